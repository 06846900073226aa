#!/usr/bin/env node
// Runs the program of the package for this platform, with the arguments, streams, signals and exit code as they are.
import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'

const { version } = createRequire(import.meta.url)('./package.json')
const name = `@runguard/cli-${process.platform}-${process.arch}`

function program() {
  if (process.env.RUNGUARD_BIN) return process.env.RUNGUARD_BIN
  try {
    return createRequire(import.meta.url).resolve(`${name}/bin/runguard`)
  } catch {
    console.error(
      `runguard: the package ${name} is not installed. Install it beside @runguard/cli: it is a file of the release of its own, npm install ` +
        `runguard-cli-${version}.tgz ${name.slice(1).replace('/', '-')}-${version}.tgz (npm leaves it out with --no-optional),` +
        ' build the program with `cargo install --locked --path crates/runguard-cli` where there is no package for this platform,' +
        ' or name a program in RUNGUARD_BIN.',
    )
    process.exit(1)
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: 'inherit' })
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal))
child.on('error', (error) => {
  console.error(`runguard: the program could not be started: ${error.message}`)
  process.exit(1)
})
child.on('exit', (code, signal) => (signal ? process.kill(process.pid, signal) : process.exit(code ?? 1)))
