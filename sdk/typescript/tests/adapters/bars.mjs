// What every adapter between an agent and its model is measured by, with the framework itself and a model on this machine.

import assert from 'node:assert/strict'
import test from 'node:test'
import { BudgetExceededError, currentRun, LoopDetectedError, Run, tripOf, withGuard } from '@runguard/sdk'
import { COSTLY, startModel } from './model-server.mjs'

/** Answers that an agent has had in this conversation: one user's, whoever else is served. */
function turnOf({ messages = [], input = [] }) {
  const isAnswer = ({ role, type }) => role === 'assistant' || type === 'function_call'
  return 1 + [...messages, ...(Array.isArray(input) ? input : [])].filter(isAnswer).length
}

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
export function bars(agent, { endsPolitely = true, streams = true, models = true } = {}) {
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
      assert.deepEqual(counts(), { tools: 2, models: 3 })
    })

    test(`bars${how}: a dollar is a dollar`, async (t) => {
      // The fourth answer breaks it: its tool does not run.
      const run = new Run({ maxUsd: 0.99 })
      const { invoke, counts } = await set(t, wanders, run, { stream, usage: COSTLY })
      await assert.rejects(invoke, trips(BudgetExceededError))
      assert.deepEqual(counts(), { tools: 3, models: 4 })
      assert.ok(run.budget.spent <= 1 + 1e-9, `spent ${run.budget.spent}`)
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
        assert.deepEqual(counts(), { tools: before.tools + 2, models: before.models + 3 })
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

    if (endsPolitely) {
      test(`bars${how}: with onTrip: 'end' the answer says why`, async (t) => {
        const run = new Run()
        const { invoke, counts } = await set(t, loops, run, { stream, onTrip: 'end' })
        assert.equal(await invoke(), run.message)
        assert.match(run.message, /get_weather/)
        assert.deepEqual(counts(), { tools: 2, models: 3 })
        assert.equal(await invoke(), run.message)
        assert.deepEqual(counts(), { tools: 2, models: 3 })
      })
    }
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
