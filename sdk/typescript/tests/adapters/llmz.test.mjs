import assert from 'node:assert/strict'
import test from 'node:test'
import { z } from '@bpinternal/zui'
import { BudgetExceededError, LoopDetectedError, Run, StallDetectedError, tripOf } from '@runguard/sdk'
import { guardHooks } from '@runguard/sdk/llmz'
import { _CustomModelClient, execute, Tool } from 'llmz'

/** A model that writes code as `script(turn)` says, for 0.01 dollars each time. */
class ScriptedModel extends _CustomModelClient {
  requests = []

  constructor(script, cost = 0.01) {
    super()
    this.script = script
    this.cost = cost
  }

  async getModelDetails(id) {
    return { id, name: id, ref: id, integration: 'test', input: { maxTokens: 100_000 }, output: { maxTokens: 4_000 }, tags: [] }
  }

  async generateText({ messages }) {
    this.requests.push(messages)
    const turn = this.requests.length
    const usage = { inputTokens: 30_000, outputTokens: 100, inputCost: 0.007, outputCost: 0.003 }
    const metadata = { provider: 'test', model: 'test:model', usage, cost: this.cost, stopReason: 'tool_calls' }
    return { output: '', toolCalls: [{ id: `call_${turn}`, name: 'run_javascript', input: { code: this.script(turn) } }], metadata }
  }
}

const loops = () => "const weather = await get_weather({ city: 'Paris' }); return inspect(weather)"
const behaves = (turn) =>
  turn <= 2
    ? `const weather = await get_weather({ city: '${['Paris', 'Rome'][turn - 1]}' }); return inspect(weather)`
    : "return exit('done', { success: true, result: 'Paris' })"

function setting(script, weather = ({ city }) => `18 degrees in ${city}`) {
  const client = new ScriptedModel(script)
  let runs = 0
  const getWeather = new Tool({
    name: 'get_weather',
    description: 'The weather in a city',
    input: z.object({ city: z.string() }),
    output: z.string(),
    handler: async (input) => {
      runs += 1
      return weather(input)
    },
  })
  const task = { client, tools: [getWeather], instructions: 'Which city is warmer?', options: { loop: 20 } }
  return { task, counts: () => ({ tools: runs, models: client.requests.length }), requests: client.requests }
}

/** The errors an execution ended with, outermost first. */
function chain(error) {
  return error ? [error, ...chain(error.cause)] : []
}

test('with onRepeat: tell the model reads that it has the result, before the execution is ended', async () => {
  const run = new Run({ repeats: 4 })
  const { task, counts, requests } = setting(loops)
  const result = await execute({ ...task, ...guardHooks(run, {}, { onRepeat: 'tell' }) })
  assert.equal(tripOf(result.error), run.trip)
  assert.deepEqual(counts(), { tools: 1, models: 4 })
  assert.match(JSON.stringify(requests[2]), /was already executed with identical parameters/)
  assert.doesNotMatch(JSON.stringify(requests[1]), /was already executed/)
  const healthy = setting(behaves)
  assert.equal((await execute({ ...healthy.task, ...guardHooks(new Run(), {}, { onRepeat: 'tell' }) })).isError(), false)
  assert.deepEqual(healthy.counts(), { tools: 2, models: 3 })
  assert.throws(() => guardHooks(run, {}, { onRepeat: 'skip' }), /onRepeat/)
})

test('a loop ends the execution with our error as its cause, and stays ended', async () => {
  const run = new Run({ repeats: 4 })
  const { task, counts } = setting(loops)
  for (const models of [4, 4]) {
    const result = await execute({ ...task, ...guardHooks(run) })
    assert.equal(result.isError(), true)
    assert.equal(result.error.code, 'EXECUTION_ABORTED')
    assert.equal(tripOf(result.error), run.trip)
    assert.ok(chain(result.error).some((error) => error instanceof LoopDetectedError && error.pattern === 'get_weather'))
    assert.throws(() => run.check(), LoopDetectedError)
    assert.deepEqual(counts(), { tools: 3, models })
  }
})

test('a loop inside one program is stopped as well', async () => {
  const { task, counts } = setting(() => "for (;;) await get_weather({ city: 'Paris' }).catch(() => {})")
  const result = await execute({ ...task, ...guardHooks(new Run({ repeats: 4 })) })
  assert.equal(result.error.code, 'EXECUTION_ABORTED')
  assert.deepEqual(counts(), { tools: 3, models: 1 })
})

test('a healthy execution is untouched, and what it cost is recorded', async () => {
  const run = new Run({ repeats: 4, maxUsd: 1 })
  const { task, counts } = setting(behaves)
  const result = await execute({ ...task, ...guardHooks(run) })
  assert.deepEqual(result.output, { success: true, result: 'Paris' })
  assert.deepEqual(counts(), { tools: 2, models: 3 })
  assert.equal(run.tripped, false)
  assert.equal(run.budget.spent, 0.03)
})

test('a budget that is spent ends the execution', async () => {
  for (const limit of [{ maxUsd: 0.015 }, { maxTokens: 60_000 }]) {
    const run = new Run(limit)
    const { task, counts } = setting(behaves)
    const result = await execute({ ...task, ...guardHooks(run) })
    assert.equal(result.error.code, 'EXECUTION_ABORTED')
    assert.ok(run.trip instanceof BudgetExceededError)
    assert.deepEqual(counts(), { tools: 2, models: 2 })
  }
})

test('64 executions at once spend what there is and no more', async () => {
  const client = new ScriptedModel(() => "return exit('done', { success: true, result: 'Paris' })", 0.25)
  const run = new Run({ maxUsd: 1 })
  const task = { client, model: 'openai:gpt-4o', instructions: 'Which city is warmer?', options: { loop: 20 } }
  const results = await Promise.all(Array.from({ length: 64 }, () => execute({ ...task, ...guardHooks(run) })))
  assert.equal(results.filter((result) => result.isSuccess()).length, 4)
  assert.ok(results.every((result) => result.isSuccess() || tripOf(result.error) instanceof BudgetExceededError))
  assert.deepEqual([client.requests.length, run.budget.spent, run.budget.reserved], [4, 1, 0])
})

test('a model call that fails costs nothing, and ceilings count each call once', async () => {
  const client = new ScriptedModel(behaves)
  client.generateText = () => Promise.reject(new Error('no model today'))
  const run = new Run({ maxUsd: 1, maxModelCalls: 3 })
  await execute({ client, model: 'openai:gpt-4o', instructions: 'Which city is warmer?', options: { loop: 2 }, ...guardHooks(run) })
  assert.deepEqual([run.budget.spent, run.budget.reserved], [0, 0])
  const healthy = setting(behaves)
  const counted = new Run({ maxUsd: 1, maxModelCalls: 3 })
  const result = await execute({ ...healthy.task, model: 'openai:gpt-4o', ...guardHooks(counted) })
  assert.deepEqual(result.output, { success: true, result: 'Paris' })
  assert.throws(() => counted.beforeModel(), /model calls/)
})

test('an answer that goes over the budget is still delivered', async () => {
  const { task } = setting(behaves)
  const result = await execute({ ...task, ...guardHooks(new Run({ maxUsd: 0.025 })) })
  assert.deepEqual(result.output, { success: true, result: 'Paris' })
})

test('a nudge reaches the model, and the end comes if it does not help', async () => {
  const run = new Run({ repeats: 10, stall: 'chatbot' })
  const { task, counts, requests } = setting(loops)
  await execute({ ...task, ...guardHooks(run) })
  assert.ok(run.trip instanceof StallDetectedError)
  assert.ok(counts().tools <= 4, `${counts().tools} tool runs`)
  const { role, content } = requests.at(-1).at(-1)
  assert.equal(role, 'user')
  assert.match(content, /get_weather/)
})

test("a tool's error is still the model's to read", async () => {
  const { task, requests } = setting(behaves, () => Promise.reject(new Error('the station is down')))
  const result = await execute({ ...task, ...guardHooks(new Run()) })
  assert.deepEqual(result.output, { success: true, result: 'Paris' })
  assert.match(JSON.stringify(requests.at(-1)), /the station is down/)
})

test('own hooks still run', async () => {
  const { task, counts } = setting(behaves)
  const cities = []
  const onBeforeTool = async ({ input }) => ({ input: { city: `${input.city}, France` } })
  const onAfterTool = async ({ input, output }) => {
    cities.push(input.city)
    return { output: output.toUpperCase() }
  }
  await execute({ ...task, ...guardHooks(new Run(), { onBeforeTool, onAfterTool }) })
  assert.deepEqual(cities, ['Paris, France', 'Rome, France'])
  assert.deepEqual(counts(), { tools: 2, models: 3 })
})

test('the same error again and again is a stall, whatever the arguments', async () => {
  const run = new Run({ stall: 'chatbot' })
  const { task, counts } = setting(
    (turn) => `return inspect(await get_weather({ city: 'City ${turn}' }))`,
    () => Promise.reject(new Error('the station is down')),
  )
  await execute({ ...task, ...guardHooks(run) })
  assert.ok(run.trip instanceof StallDetectedError && run.trip.rule === 'same_error')
  assert.ok(counts().tools <= 5, `${counts().tools} tool runs`)
})
