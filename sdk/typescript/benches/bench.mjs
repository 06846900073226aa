// How long one call takes from Node; ends with 1 when the bar is missed.
// The fastest of several rounds counts: whatever else the machine does can only add to it.
import { LoopDetector, Run, StallDetector, fingerprint } from '@runguard/sdk'

const BAR_NS = 500
const NEW_RUN_BAR_NS = 30_000
const ROUNDS = 40
const CALLS = 50_000

/** Nanoseconds a call: the mean of a round, of the fastest round. */
function measure(call, calls = CALLS) {
  const rounds = []
  for (let round = 0; round < ROUNDS; round++) {
    const begun = process.hrtime.bigint()
    for (let number = 0; number < calls; number++) call(number)
    rounds.push(Number(process.hrtime.bigint() - begun) / calls)
  }
  return Math.min(...rounds)
}

// Names that never loop within the detector's sight, so that no call throws.
const names = Array.from({ length: 61 }, (_, number) => `tool_${number}`)
const sessions = Array.from({ length: 1000 }, (_, number) => `session-${number}`)
const args = { query: 'refund policy', filters: { lang: 'en', tags: ['a', 'b'] }, limit: 10 }

const alone = new LoopDetector()
const many = new LoopDetector()
const stall = new StallDetector()
const run = new Run({ maxToolCalls: 1e12 })

const wrapped = run.tool(() => null, 'wrapped')

/** Nanoseconds a new run takes while 100,000 others are alive: the mean of the last 20,000, whatever the collector does. */
function newRun() {
  const alive = Array.from({ length: 100_000 }, () => new Run({ maxUsd: 1 }))
  const begun = process.hrtime.bigint()
  for (let number = 0; number < 20_000; number++) alive.push(new Run({ maxUsd: 1 }))
  return Number(process.hrtime.bigint() - begun) / 20_000
}

const rows = [
  ['LoopDetector.record(signature)', measure((number) => alone.record(names[number % 61])), BAR_NS],
  [
    'LoopDetector.record(sessionId, key), 1,000 sessions',
    measure((number) => many.record(sessions[number % 1000], names[number % 61])),
    BAR_NS,
  ],
  ['LoopDetector.check(signature)', measure((number) => alone.check(names[number % 61])), BAR_NS],
  ['fingerprint, 80 bytes of arguments', measure(() => fingerprint(args), 5_000)],
  ['Run.beforeTool', measure((number) => run.beforeTool(names[number % 61], args), 5_000)],
  ['a tool of Run.tool', measure((number) => wrapped({ number: number % 61 }), 5_000)],
  ['new Run, with 100,000 alive', newRun(), NEW_RUN_BAR_NS],
  ['StallDetector.observe', measure((number) => stall.observe(names[number % 61], args, `result ${number}`), 5_000)],
]

let missed = false
for (const [name, nanoseconds, bar] of rows) {
  const verdict = bar === undefined ? '' : nanoseconds <= bar ? `PASS (bar ${bar} ns)` : `MISS (bar ${bar} ns)`
  missed ||= verdict.startsWith('MISS')
  console.log(`${name.padEnd(54)} ${nanoseconds.toFixed(0).padStart(7)} ns  ${verdict}`)
}
process.exitCode = missed ? 1 : 0
