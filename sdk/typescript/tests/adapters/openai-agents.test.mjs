import assert from 'node:assert/strict'
import test from 'node:test'
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from '@openai/agents'
import { BudgetExceededError, LoopDetectedError, Run, StallDetectedError } from '@runguard/sdk'
import { guardModel, guardModelProvider, tellRepeats } from '@runguard/sdk/openai-agents'
import { z } from 'zod'
import { bars } from './bars.mjs'
import { assertSpent, behaves, loops, startModel } from './model-server.mjs'

setTracingDisabled(true)

async function setting(t, script, { useResponses = true, weather = ({ city }) => `18 degrees in ${city}` } = {}) {
  const service = await startModel(script)
  t.after(service.stop)
  let runs = 0
  const getWeather = tool({
    name: 'get_weather',
    description: 'The weather in a city',
    parameters: z.object({ city: z.string() }),
    execute: async (input) => {
      runs += 1
      return weather(input)
    },
  })
  const provider = new OpenAIProvider({ apiKey: 'none', baseURL: service.url, useResponses })
  const agent = new Agent({ name: 'Forecaster', instructions: 'Compare.', model: 'gpt-4o', tools: [getWeather] })
  return { provider, agent, counts: () => ({ tools: runs, models: service.requests.length }), requests: service.requests }
}

const question = 'Is Paris warmer than Rome?'

for (const useResponses of [true, false]) {
  const protocol = useResponses ? 'responses' : 'chat completions'

  test(`${protocol}: a loop ends with our error, and stays ended`, async (t) => {
    const { provider, agent, counts } = await setting(t, loops, { useResponses })
    const runner = new Runner({ modelProvider: guardModelProvider(provider, new Run({ repeats: 4 })) })
    await assert.rejects(runner.run(agent, question), (error) => error instanceof LoopDetectedError && error.pattern === 'get_weather')
    assert.deepEqual(counts(), { tools: 3, models: 4 })
    await assert.rejects(runner.run(agent, question), LoopDetectedError)
    assert.deepEqual(counts(), { tools: 3, models: 4 })
  })

  test(`${protocol}, streamed: a loop ends with our error, and stays ended`, async (t) => {
    const { provider, agent, counts } = await setting(t, loops, { useResponses })
    const runner = new Runner({ modelProvider: guardModelProvider(provider, new Run({ repeats: 4 })) })
    const stream = async () => {
      const result = await runner.run(agent, question, { stream: true })
      for await (const _event of result);
      await result.completed
    }
    await assert.rejects(stream(), LoopDetectedError)
    assert.deepEqual(counts(), { tools: 3, models: 4 })
    await assert.rejects(stream(), LoopDetectedError)
    assert.deepEqual(counts(), { tools: 3, models: 4 })
  })

  for (const stream of [false, true]) {
    test(`${protocol}${stream ? ', streamed' : ''}: a healthy run is untouched, and its usage is recorded`, async (t) => {
      const run = new Run({ repeats: 4, maxUsd: 5 })
      const { provider, agent, counts, requests } = await setting(t, behaves, { useResponses })
      const runner = new Runner({ modelProvider: guardModelProvider(provider, run) })
      const result = await runner.run(agent, question, { stream })
      if (stream) await result.completed
      assert.equal(result.finalOutput, 'Paris is warmer.')
      assert.deepEqual(counts(), { tools: 2, models: 3 })
      assert.equal(run.tripped, false)
      // Early releases ask for no usage in streamed chat completions: then it is estimated.
      if (!stream || useResponses || requests[0].stream_options) assertSpent(run, 3)
    })
  }
}

test('an agent with a model of its own is guarded by guardModel', async (t) => {
  const { provider, agent, counts } = await setting(t, loops)
  agent.model = guardModel(await provider.getModel('gpt-4o'), new Run({ repeats: 4 }), 'gpt-4o')
  await assert.rejects(new Runner().run(agent, question), LoopDetectedError)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
})

test('two agents that hand the task to each other are a loop', async (t) => {
  const handOver = (turn) => ({ tools: [{ name: `transfer_to_${turn % 2 ? 'Second' : 'First'}`, args: {} }] })
  const { provider, agent: second, counts } = await setting(t, handOver)
  second.name = 'Second'
  const first = new Agent({ name: 'First', model: 'gpt-4o', handoffs: [second] })
  second.handoffs = [first]
  const runner = new Runner({ modelProvider: guardModelProvider(provider, new Run()) })
  await assert.rejects(runner.run(first, question), (error) => error instanceof LoopDetectedError && error.cycleLen === 2)
  assert.equal(counts().models, 6)
})

test('a spent budget keeps the next tool from running, but an answer is delivered', async (t) => {
  const first = await setting(t, behaves)
  const poor = new Runner({ modelProvider: guardModelProvider(first.provider, new Run({ maxUsd: 0.005 })) })
  await assert.rejects(poor.run(first.agent, question), BudgetExceededError)
  assert.deepEqual(first.counts(), { tools: 1, models: 2 })
  const second = await setting(t, behaves)
  const richer = new Runner({ modelProvider: guardModelProvider(second.provider, new Run({ maxUsd: 0.008 })) })
  assert.equal((await richer.run(second.agent, question)).finalOutput, 'Paris is warmer.')
})

test('a nudge reaches the model, and the end comes if it does not help', async (t) => {
  const run = new Run({ repeats: 10, stall: 'chatbot' })
  const { provider, agent, counts, requests } = await setting(t, loops)
  await assert.rejects(new Runner({ modelProvider: guardModelProvider(provider, run) }).run(agent, question), StallDetectedError)
  assert.ok(counts().tools <= 4, `${counts().tools} tool runs`)
  const { role, content } = requests.at(-1).input.at(-1)
  assert.equal(role, 'user')
  assert.match(content, /get_weather/)
})

test("a tool's error is still the model's to read", async (t) => {
  const weather = () => Promise.reject(new Error('the station is down'))
  const { provider, agent, requests } = await setting(t, behaves, { weather })
  const runner = new Runner({ modelProvider: guardModelProvider(provider, new Run()) })
  assert.equal((await runner.run(agent, question)).finalOutput, 'Paris is warmer.')
  assert.match(JSON.stringify(requests.at(-1).input), /An error occurred while running the tool/)
})

bars(async (service, source, { ran, stream = false, model = 'gpt-4o', onTrip, onRepeat }) => {
  const provider = new OpenAIProvider({ apiKey: 'none', baseURL: service.url, useResponses: true })
  const getWeather = tool({
    name: 'get_weather',
    description: 'The weather in a city',
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => (ran(), `18 degrees in ${city}`),
  })
  const agent = new Agent({ name: 'Forecaster', instructions: 'Compare.', model, tools: tellRepeats([getWeather]) })
  const runner = new Runner({ modelProvider: guardModelProvider(provider, source, { onTrip, onRepeat }) })
  return async () => {
    const result = await runner.run(agent, question, { stream, maxTurns: 30 })
    if (stream) {
      for await (const _event of result);
      await result.completed
    }
    return result.finalOutput
  }
}, { tells: true })
