import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { it } from 'node:test'

// A process of its own, because memory of WebAssembly never shrinks and other tests use it too.
const script = `
  import { LoopDetector, BudgetTracker, StallDetector, fingerprint } from '@runguard/sdk'
  const grown = () => process.memoryUsage().external
  const pause = () => new Promise((resolve) => setTimeout(resolve, 5))
  const make = () => { const d = new LoopDetector(); for (let s = 0; s < 200; s++) d.record('session-' + s, 'x'); return d }
  for (let n = 0; n < 50; n++) make().free()
  const before = grown()
  for (let n = 0; n < 2000; n++) make().free()
  const freed = grown() - before
  for (let n = 0; n < 40; n++) { for (let m = 0; m < 50; m++) { make(); new StallDetector() } globalThis.gc(); await pause() }
  const collected = grown() - before
  const budget = new BudgetTracker({ maxUsd: 1000 })
  for (let n = 0; n < 1000; n++) budget.reserve(1)
  globalThis.gc(); await pause(); globalThis.gc(); await pause()
  const reserved = budget.reserved
  fingerprint('x'.repeat(7_000_000))
  const large = grown()
  for (let n = 0; n < 20; n++) fingerprint('y'.repeat(7_000_000))
  console.log(JSON.stringify({ freed, collected, reserved, large: grown() - large }))
`

it('gives memory back: freed, collected, forgotten reservations, large arguments', () => {
  const args = ['--expose-gc', '--input-type=module', '-e', script]
  const { freed, collected, reserved, large } = JSON.parse(
    execFileSync(process.execPath, args, { cwd: new URL('.', import.meta.url), encoding: 'utf8' }),
  )
  assert.ok(freed < 2_000_000, `2,000 freed detectors left ${freed} bytes`)
  assert.ok(collected < 20_000_000, `2,000 forgotten detectors left ${collected} bytes`)
  assert.ok(reserved < 10, `${reserved} of 1,000 forgotten reservations are still held`)
  assert.ok(large < 2_000_000, `large arguments left ${large} bytes`)
})
