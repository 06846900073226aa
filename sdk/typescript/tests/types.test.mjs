import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, symlinkSync, writeFileSync, mkdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { it } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin/tsc')

const uses = `
  const detector = new sdk.LoopDetector({ repeats: 3, maxCycleLen: 4, windowSeconds: 60, maxCalls: null })
  detector.record('a'); detector.record('s', 'a'); detector.record({ sessionId: 's', tool: 'a' })
  const found: sdk.LoopDetectedError | null = detector.check('a')
  const cycle: readonly string[] | undefined = found?.cycle
  const run = new sdk.Run({ maxUsd: 5, stall: 'coding', alerts: (trip: sdk.TripError) => console.log(trip.reason, cycle) })
  run.recordUsage('gpt-4o', { inputTokens: 1 })
  const add: (left: number, right: number) => number = run.tool((left: number, right: number) => left + right, 'add')
  const agent: (q: string) => Promise<number> = sdk.guard(async (q: string) => q.length + add(1, 2), { maxUsd: 1 })
  const remote: Promise<void> = sdk.LoopDetector.remote({ url: 'http://localhost' }).record('a')
  const answer: Promise<sdk.Answer> = new sdk.GuardClient('http://localhost').handoff({ session_id: 's', source_bot: 'a', target_bot: 'b' })
  // @ts-expect-error a required field is missing
  void new sdk.GuardClient('http://localhost').handoff({ session_id: 's' })
  // @ts-expect-error there is no such setting
  void new sdk.LoopDetector({ repeat: 3 })
  void [agent, remote, answer]
`

it('is typed for ESM and CJS, in the strictest mode', () => {
  const folder = mkdtempSync(join(tmpdir(), 'runguard-types-'))
  try {
    mkdirSync(join(folder, 'node_modules/@runguard'), { recursive: true })
    symlinkSync(root, join(folder, 'node_modules/@runguard/sdk'))
    writeFileSync(
      join(folder, 'esm.mts'),
      `import * as sdk from '@runguard/sdk'\nimport { GuardClient } from '@runguard/sdk/client'\nvoid GuardClient\n${uses}`,
    )
    writeFileSync(join(folder, 'cjs.cts'), `import sdk = require('@runguard/sdk')\n${uses}`)
    const options = {
      strict: true,
      noEmit: true,
      module: 'NodeNext',
      target: 'ES2022',
      lib: ['ES2022', 'DOM', 'ESNext.Disposable'],
      exactOptionalPropertyTypes: true,
      noUncheckedIndexedAccess: true,
      types: [],
    }
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions: options, files: ['esm.mts', 'cjs.cts'] }))
    const checked = (() => {
      try {
        return execFileSync(process.execPath, [tsc, '-p', folder], { encoding: 'utf8' })
      } catch (error) {
        return error.stdout
      }
    })()
    assert.equal(checked, '')
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
