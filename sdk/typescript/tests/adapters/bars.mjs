// What every adapter between an agent and its model is measured by, with the framework itself and a model on this machine.

import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import test from 'node:test'
import { BudgetExceededError, currentRun, LoopDetectedError, Run, tripOf, withGuard } from '@runguard/sdk'
import { COSTLY, startModel } from './model-server.mjs'

/** Answers that an agent has had in this conversation: one user's, whoever else is served. */
function turnOf({ messages = [], input = [] }) {
  const isAnswer = ({ role, type }) => role === 'assistant' || type === 'function_call'
  return 1 + [...messages, ...(Array.isArray(input) ? input : [])].filter(isAnswer).length
}

/** The worst that a cell of the table may be. */
const BARS = JSON.parse(readFileSync(new URL('./bars.json', import.meta.url), 'utf8'))

/** With these the row of the framework in the table is measured: where it is written, and a RunGuard service. */
const { RUNGUARD_ROW, RUNGUARD_URL } = process.env

const asks = (city) => ({ tools: [{ name: 'get_weather', args: { city } }] })
const healthy = (_, body) => (turnOf(body) <= 2 ? asks(['Paris', 'Rome'][turnOf(body) - 1]) : { text: 'Paris is warmer.' })
const loops = () => asks('Paris')
const wanders = (turn) => asks(`City ${turn}`)

/** Whatever a framework makes of an error, the trip can be found in it. */
const trips = (Kind) => (error) => tripOf(error) instanceof Kind

/**
 * `agent(service, source, settings)` gives a function that runs the framework's agent once, which has the tool `get_weather` and the model
 * `gpt-4o` or `settings.model`, streamed with `settings.stream`, and gives its last text. It counts its tool runs with `settings.ran()`.
 */
export function bars(agent, { endsPolitely = true, streams = true, models = true, hasRow = true, tells = false } = {}) {
  const set = async (t, script, source, { usage, ...settings } = {}) => {
    const service = await startModel(script, usage === undefined ? {} : { usage })
    t.after(service.stop)
    let tools = 0
    const ran = () => (tools += 1)
    const invoke = await agent(service, source, { ran, ...settings })
    return { invoke, requests: service.requests, counts: () => ({ tools, models: service.requests.length }) }
  }
  const ways = streams ? [false, true] : [false]

  for (const stream of ways) {
    const how = stream ? ', streamed' : ''

    test(`bars${how}: a loop is stopped at the third equal call`, async (t) => {
      const { invoke, counts } = await set(t, loops, () => new Run(), { stream })
      await assert.rejects(invoke, trips(LoopDetectedError))
      assert.deepEqual(counts(), BARS.loop)
    })

    test(`bars${how}: a dollar is a dollar`, async (t) => {
      // The fourth answer breaks it: its tool does not run.
      const run = new Run({ maxUsd: 0.99 })
      const { invoke, counts } = await set(t, wanders, run, { stream, usage: COSTLY })
      await assert.rejects(invoke, trips(BudgetExceededError))
      assert.deepEqual(counts(), BARS.cap)
      assert.ok(run.budget.spent <= BARS.at_once.usd + 1e-9, `spent ${run.budget.spent}`)
    })

    test(`bars${how}: without usage an answer is billed by its size, and that is said once`, async (t) => {
      const warned = t.mock.method(console, 'warn', () => {})
      const long = (turn) => asks(`${turn} ${'more '.repeat(2000)}`)
      const run = new Run({ maxUsd: 0.1 })
      const { invoke, counts } = await set(t, long, run, { stream, usage: null })
      await assert.rejects(invoke, trips(BudgetExceededError))
      assert.ok(counts().models >= 2 && counts().models <= 8, JSON.stringify(counts()))
      assert.ok(run.budget.spent > 0.05 && run.budget.spent < 0.2, `spent ${run.budget.spent}`)
      assert.equal(warned.mock.calls.filter(({ arguments: [text] }) => /without its usage/.test(text)).length, 1)
    })

    test(`bars${how}: 64 at once spend what there is and no more`, async (t) => {
      const run = new Run({ maxUsd: 1 })
      const { invoke, counts } = await set(t, () => ({ text: 'done' }), run, { stream, usage: COSTLY })
      const answers = await Promise.allSettled(Array.from({ length: 64 }, invoke))
      assert.equal(answers.filter(({ status }) => status === 'fulfilled').length, 4)
      assert.deepEqual(counts(), { tools: 0, models: 4 })
      assert.ok(Math.abs(run.budget.spent - 1) < 1e-9, `spent ${run.budget.spent}`)
    })

    for (const [kind, source] of [
      ['nothing', undefined],
      ['a function', () => new Run({ maxUsd: 1 })],
    ]) {
      test(`bars${how}: one object serves everybody, given ${kind}: healthy users pass, a looping one is stopped`, async (t) => {
        let isLooping = false
        const script = (turn, body) => (isLooping ? loops() : healthy(turn, body))
        const { invoke, counts } = await set(t, script, source, { stream })
        for (let user = 0; user < 4; user += 1) assert.equal(await invoke(), 'Paris is warmer.')
        assert.deepEqual(await Promise.all([invoke(), invoke(), invoke()]), Array(3).fill('Paris is warmer.'))
        const before = counts()
        isLooping = true
        await assert.rejects(invoke, trips(LoopDetectedError))
        assert.deepEqual(counts(), { tools: before.tools + BARS.loop.tools, models: before.models + BARS.loop.models })
        isLooping = false
        assert.equal(await invoke(), 'Paris is warmer.')
      })
    }

    test(`bars${how}: given nothing it is in the run around it, and no call is counted twice`, async (t) => {
      const { invoke, counts } = await set(t, healthy, undefined, { stream, usage: COSTLY })
      await withGuard({ maxUsd: 10, maxToolCalls: 2, maxModelCalls: 3 }, async (run) => {
        assert.equal(currentRun(), run)
        assert.equal(await invoke(), 'Paris is warmer.')
        assert.ok(Math.abs(run.budget.spent - 0.75) < 1e-9, `spent ${run.budget.spent}`)
      })
      assert.deepEqual(counts(), { tools: 2, models: 3 })
    })

    test(`bars${how}: once most is spent a cheaper model goes on`, async (t) => {
      t.mock.method(console, 'warn', () => {})
      const script = (turn) => (turn <= 3 ? wanders(turn) : { text: 'Paris is warmer.' })
      const warnings = []
      const run = new Run({ maxUsd: 1, warnAt: 0.5, fallbackModel: 'gpt-4o-mini', onWarning: ({ message }) => warnings.push(message) })
      const { invoke, requests } = await set(t, script, run, { stream, usage: COSTLY })
      assert.equal(await invoke(), 'Paris is warmer.')
      const [first, ...others] = requests.map(({ model }) => model)
      assert.deepEqual(others, [first, 'gpt-4o-mini', 'gpt-4o-mini'])
      assert.deepEqual(warnings, ['$0.50 of $1.00 are spent.'])
    })

    if (tells) {
      test(`bars${how}: with onRepeat: 'tell' the model reads that it has the result, before the run is stopped`, async (t) => {
        const { invoke, counts, requests } = await set(t, loops, () => new Run({ repeats: 4 }), { stream, onRepeat: 'tell' })
        await assert.rejects(invoke, trips(LoopDetectedError))
        assert.deepEqual(counts(), { tools: 1, models: 4 })
        const told = requests.map((body) => JSON.stringify(body).split('was already executed with identical parameters').length - 1)
        assert.deepEqual(told, [0, 0, 1, 2])
        // Another run knows nothing of it.
        await assert.rejects(invoke, trips(LoopDetectedError))
        assert.deepEqual(counts(), { tools: 2, models: 8 })
      })

      test(`bars${how}: with onRepeat: 'tell' different calls run`, async (t) => {
        const { invoke, counts } = await set(t, healthy, () => new Run({ repeats: 4 }), { stream, onRepeat: 'tell' })
        assert.deepEqual(await Promise.all([invoke(), invoke(), invoke()]), Array(3).fill('Paris is warmer.'))
        assert.deepEqual(counts(), { tools: 6, models: 9 })
        await assert.rejects(async () => (await set(t, healthy, new Run(), { stream, onRepeat: 'skip' })).invoke(), /onRepeat/)
      })
    }

    if (endsPolitely) {
      test(`bars${how}: with onTrip: 'end' the answer says why`, async (t) => {
        const run = new Run()
        const { invoke, counts } = await set(t, loops, run, { stream, onTrip: 'end' })
        assert.equal(await invoke(), run.message)
        assert.match(run.message, /get_weather/)
        assert.deepEqual(counts(), BARS.loop)
        assert.equal(await invoke(), run.message)
        assert.deepEqual(counts(), BARS.loop)
      })
    }
  }

  if (RUNGUARD_ROW && hasRow) {
    test('bars: the row of the table', async (t) => {
      t.mock.method(console, 'warn', () => {})
      const stopped = async (...given) => {
        const { invoke, counts } = await set(t, ...given)
        await assert.rejects(invoke, trips(Error))
        return counts()
      }
      const cap = (stream) => stopped(wanders, () => new Run({ maxUsd: 0.99 }), { stream, usage: COSTLY })
      const long = (turn) => asks(`${turn} ${'more '.repeat(2000)}`)
      const row = {
        loop: await stopped(loops, () => new Run()),
        cap: await cap(false),
        cap_streamed: streams ? await cap(true) : null,
        no_usage: await stopped(long, () => new Run({ maxUsd: 0.1 }), { usage: null }),
        at_once: { usd: await spentAtOnce(t) },
        restart: await countsOfRestart(t, stopped),
        users: { healthy: await healthyUsers(t), of: 3 },
      }
      writeFileSync(RUNGUARD_ROW, JSON.stringify(row))
    })
  }

  /** 64 invocations of a quarter dollar each on one run with one dollar: what the service saw. */
  async function spentAtOnce(t) {
    const { invoke, counts } = await set(t, () => ({ text: 'done' }), new Run({ maxUsd: 1 }), { usage: COSTLY })
    await Promise.allSettled(Array.from({ length: 64 }, invoke))
    return counts().models * 0.25
  }

  /** A healthy conversation of two calls, then a run of the same id, known to the service alone, with a model that never ends. */
  async function countsOfRestart(t, stopped) {
    const runId = `job-${process.pid}-${Date.now()}`
    const begun = () => Run.remote({ runId, url: RUNGUARD_URL, maxUsd: 0.99 })
    const short = (_, body) => (turnOf(body) === 1 ? asks('Paris') : { text: 'Paris is warm.' })
    const { invoke, counts } = await set(t, short, begun(), { usage: COSTLY })
    assert.equal(await invoke(), 'Paris is warm.')
    const [before, after] = [counts(), await stopped(wanders, begun(), { usage: COSTLY })]
    return { tools: before.tools + after.tools, models: before.models + after.models }
  }

  async function healthyUsers(t) {
    const { invoke } = await set(t, healthy, () => new Run())
    let passed = 0
    for (let user = 0; user < 3; user += 1) passed += Number((await invoke().catch(() => '')) === 'Paris is warmer.')
    return passed
  }

  if (models) {
    test('bars: a model without a price is not asked', async (t) => {
      const { invoke, counts } = await set(t, healthy, new Run({ maxUsd: 1 }), { model: 'house-model' })
      await assert.rejects(invoke, /No price is known/)
      await assert.rejects(invoke, /No price is known/)
      assert.deepEqual(counts(), { tools: 0, models: 0 })
    })
  }
}
