// The real service, as a process of its own with an empty folder.

import { execFileSync, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const target = fileURLToPath(new URL('../../target', import.meta.url))

export function binary() {
  const candidates = [process.env.RUNGUARD_BIN, join(target, 'release/runguard'), join(target, 'debug/runguard')]
  const found = candidates.find((path) => path && existsSync(path))
  if (!found) throw new Error('no runguard binary: run `cargo build --release`, or set RUNGUARD_BIN')
  return found
}

export async function freePort() {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const { port } = server.address()
  await new Promise((resolve) => server.close(resolve))
  return port
}

/**
 * Starts RunGuard; returns its address and a function that stops it and removes its folder.
 * `settings`: as they stand in the environment. `locked`: it also has a `key`, and refuses whoever comes without one.
 */
export async function startService({ locked = false, settings = {} } = {}) {
  const folder = await mkdtemp(join(tmpdir(), 'runguard-examples-'))
  const makeKey = () => JSON.parse(execFileSync(binary(), ['key', 'create', '--data', folder, '--json'])).key
  const key = locked ? makeKey() : undefined
  const url = `http://127.0.0.1:${await freePort()}`
  const service = spawn(binary(), ['serve', '--listen', url.replace('http://', ''), '--data', folder], {
    cwd: folder,
    env: { ...process.env, ...settings },
  })
  let log = ''
  for (const stream of [service.stdout, service.stderr]) stream.on('data', (text) => (log += text))
  const gone = new Promise((resolve) => service.once('close', resolve))

  const stop = async () => {
    service.kill('SIGTERM')
    await gone
    await rm(folder, { recursive: true, force: true })
  }
  const ready = async () => (await fetch(`${url}/readyz`).catch(() => null))?.status === 200
  const deadline = Date.now() + 30_000
  while (!(await ready())) {
    if (service.exitCode !== null || Date.now() > deadline) {
      await stop()
      throw new Error(`runguard did not become ready; its log:\n${log}`)
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return { url, key, stop }
}

/** An address where nothing listens. */
export async function deadUrl() {
  return `http://127.0.0.1:${await freePort()}`
}
