import assert from 'node:assert/strict'
import test from 'node:test'
import { ChatOpenAI } from '@langchain/openai'
import { BudgetExceededError, LoopDetectedError, Run, StallDetectedError, withGuard } from '@runguard/sdk'
import { guardMiddleware, tellRepeats } from '@runguard/sdk/langchain'
import { createAgent, tool } from 'langchain'
import { z } from 'zod'
import { bars } from './bars.mjs'
import { assertSpent, behaves, COSTLY, loops, startModel } from './model-server.mjs'

async function setting(t, script, run, weather = ({ city }) => `18 degrees in ${city}`) {
  const service = await startModel(script)
  t.after(service.stop)
  let runs = 0
  const getWeather = tool(
    async (input) => {
      runs += 1
      return weather(input)
    },
    { name: 'get_weather', description: 'The weather in a city', schema: z.object({ city: z.string() }) },
  )
  const model = new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } })
  const agent = createAgent({ model, tools: [getWeather], middleware: [guardMiddleware(run)] })
  return { agent, counts: () => ({ tools: runs, models: service.requests.length }), requests: service.requests }
}

const task = { messages: [{ role: 'user', content: 'Is Paris warmer than Rome?' }] }
const isOurs = (error) => error.cause instanceof LoopDetectedError && error.cause.pattern === 'get_weather'

test('invoke: a loop ends with our error as its cause, and stays ended', async (t) => {
  const { agent, counts } = await setting(t, loops, new Run({ repeats: 4 }))
  await assert.rejects(agent.invoke(task), isOurs)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
  await assert.rejects(agent.invoke(task), isOurs)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
})

test('stream: a loop ends with our error as its cause, and stays ended', async (t) => {
  const { agent, counts } = await setting(t, loops, new Run({ repeats: 4 }))
  const stream = async () => {
    for await (const _chunk of await agent.stream(task, { streamMode: 'messages' }));
  }
  await assert.rejects(stream(), isOurs)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
  await assert.rejects(stream(), isOurs)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
})

test('four equal calls in one answer: none of them runs', async (t) => {
  const { agent, counts } = await setting(t, () => ({ tools: Array(4).fill(loops().tools[0]) }), new Run({ repeats: 4 }))
  await assert.rejects(agent.invoke(task), isOurs)
  assert.deepEqual(counts(), { tools: 0, models: 1 })
})

test('a healthy run is untouched, and its usage is recorded', async (t) => {
  const run = new Run({ repeats: 4, maxUsd: 5 })
  const { agent, counts } = await setting(t, behaves, run)
  const { messages } = await agent.invoke(task)
  assert.equal(messages.at(-1).content, 'Paris is warmer.')
  assert.equal(messages.length, 6)
  assert.deepEqual(counts(), { tools: 2, models: 3 })
  assert.equal(run.tripped, false)
  assertSpent(run, 3)
})

test('a spent budget keeps the next tool from running, but an answer is delivered', async (t) => {
  const first = await setting(t, behaves, new Run({ maxUsd: 0.005 }))
  await assert.rejects(first.agent.invoke(task), (error) => error.cause instanceof BudgetExceededError)
  assert.deepEqual(first.counts(), { tools: 1, models: 2 })
  const second = await setting(t, behaves, new Run({ maxUsd: 0.008 }))
  assert.equal((await second.agent.invoke(task)).messages.at(-1).content, 'Paris is warmer.')
})

test('a nudge reaches the model, and the end comes if it does not help', async (t) => {
  const run = new Run({ repeats: 10, stall: 'chatbot' })
  const { agent, counts, requests } = await setting(t, loops, run)
  await assert.rejects(agent.invoke(task), (error) => error.cause instanceof StallDetectedError)
  assert.ok(counts().tools <= 4, `${counts().tools} tool runs`)
  const { role, content } = requests.at(-1).messages.at(-1)
  assert.equal(role, 'user')
  assert.match(content, /get_weather/)
})

test("a tool's error is still the model's to read", async (t) => {
  const { agent, requests } = await setting(t, behaves, new Run(), () => Promise.reject(new Error('the station is down')))
  const { messages } = await agent.invoke(task)
  assert.equal(messages.at(-1).content, 'Paris is warmer.')
  assert.match(JSON.stringify(requests.at(-1).messages), /the station is down/)
})

test('the same error again and again is a stall, whatever the arguments', async (t) => {
  const otherCities = (turn) => ({ tools: [{ name: 'get_weather', args: { city: `City ${turn}` } }] })
  const fails = () => Promise.reject(new Error('the station is down'))
  const { agent, counts } = await setting(t, otherCities, new Run({ stall: 'chatbot' }), fails)
  await assert.rejects(agent.invoke(task), ({ cause }) => cause instanceof StallDetectedError && cause.rule === 'same_error')
  assert.ok(counts().models <= 5, `${counts().models} model calls`)
})

test('without a middleware, withGuard caps dollars, and the framework does not try again', async (t) => {
  const service = await startModel((turn) => ({ tools: [{ name: 'get_weather', args: { city: `City ${turn}` } }] }), { usage: COSTLY })
  t.after(service.stop)
  const getWeather = tool(async () => '18 degrees', { name: 'get_weather', description: 'Weather', schema: z.object({ city: z.string() }) })
  const model = new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } })
  const agent = createAgent({ model, tools: [getWeather] })
  const begun = Date.now()
  await assert.rejects(
    withGuard({ maxUsd: 0.99 }, () => agent.invoke(task, { recursionLimit: 50 })),
    BudgetExceededError,
  )
  assert.equal(service.requests.length, 4)
  assert.ok(Date.now() - begun < 5000, `${Date.now() - begun} ms`)
})

bars(async (service, source, { ran, stream, model: name = 'gpt-4o', onTrip, onRepeat }) => {
  const getWeather = tool(async ({ city }) => (ran(), `18 degrees in ${city}`), {
    name: 'get_weather',
    description: 'The weather in a city',
    schema: z.object({ city: z.string() }),
  })
  const modelNamed = (model) => new ChatOpenAI({ model, apiKey: 'none', maxRetries: 0, configuration: { baseURL: service.url } })
  const middleware = [guardMiddleware(source, { onTrip, onRepeat, modelNamed })]
  const agent = createAgent({ model: modelNamed(name), tools: tellRepeats([getWeather]), middleware })
  return async () => {
    if (!stream) return (await agent.invoke(task, { recursionLimit: 50 })).messages.at(-1).content
    let last
    for await (const [mode, chunk] of await agent.stream(task, { streamMode: ['messages', 'values'], recursionLimit: 50 })) {
      if (mode === 'values') last = chunk
    }
    return last.messages.at(-1).content
  }
}, { tells: true })
