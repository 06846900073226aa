import assert from 'node:assert/strict'
import test from 'node:test'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { BudgetExceededError, LoopDetectedError, Run, StallDetectedError } from '@runguard/sdk'
import { guardModel, tellRepeats } from '@runguard/sdk/vercel-ai'
import * as ai from 'ai'
import { z } from 'zod'
import { bars } from './bars.mjs'
import { assertSpent, behaves, loops, startModel } from './model-server.mjs'

const { generateText, stepCountIs, streamText, tool } = ai
// Its name in ai 5.
const ToolLoopAgent = ai.ToolLoopAgent ?? ai.Experimental_Agent

async function setting(t, script, run) {
  const service = await startModel(script)
  t.after(service.stop)
  let runs = 0
  const get_weather = tool({
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      runs += 1
      return `18 degrees in ${city}`
    },
  })
  const provider = createOpenAICompatible({ name: 'fake', baseURL: service.url, includeUsage: true })
  const model = guardModel(provider('gpt-4o'), run)
  const task = { model, tools: { get_weather }, prompt: 'Is Paris warmer than Rome?', stopWhen: stepCountIs(20) }
  return { task, counts: () => ({ tools: runs, models: service.requests.length }), requests: service.requests }
}

test('generateText: a loop ends with our error, and stays ended', async (t) => {
  const run = new Run({ repeats: 4 })
  const { task, counts } = await setting(t, loops, run)
  await assert.rejects(generateText(task), (error) => error instanceof LoopDetectedError && error.pattern === 'get_weather')
  assert.deepEqual(counts(), { tools: 3, models: 4 })
  await assert.rejects(generateText(task), LoopDetectedError)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
})

test('streamText: a loop ends the stream with our error, and stays ended', async (t) => {
  const run = new Run({ repeats: 4, maxUsd: 5 })
  const { task, counts } = await setting(t, loops, run)
  const errorsOf = async (result) => {
    const errors = []
    for await (const part of result.fullStream) if (part.type === 'error') errors.push(part.error)
    return errors
  }
  const onError = () => {}
  const first = streamText({ ...task, onError })
  assert.deepEqual(await errorsOf(first), [run.trip])
  assert.ok(run.trip instanceof LoopDetectedError)
  assert.equal(await first.finishReason, 'error')
  assert.deepEqual(counts(), { tools: 3, models: 4 })
  // The answer that was refused has been paid for.
  assertSpent(run, 4)
  assert.deepEqual(await errorsOf(streamText({ ...task, onError })), [run.trip])
  assert.deepEqual(counts(), { tools: 3, models: 4 })
})

test('ToolLoopAgent: a loop ends with our error', async (t) => {
  const run = new Run({ repeats: 4 })
  const { task, counts } = await setting(t, loops, run)
  const { prompt, ...settings } = task
  await assert.rejects(new ToolLoopAgent(settings).generate({ prompt }), LoopDetectedError)
  assert.deepEqual(counts(), { tools: 3, models: 4 })
})

test('four equal calls in one answer: none of them runs', async (t) => {
  const { task, counts } = await setting(t, () => ({ tools: Array(4).fill(loops().tools[0]) }), new Run({ repeats: 4 }))
  await assert.rejects(generateText(task), LoopDetectedError)
  assert.deepEqual(counts(), { tools: 0, models: 1 })
})

for (const way of ['generateText', 'streamText']) {
  test(`${way}: a healthy run is untouched, and its usage is recorded`, async (t) => {
    const run = new Run({ repeats: 4, maxUsd: 5 })
    const { task, counts } = await setting(t, behaves, run)
    const result = way === 'generateText' ? await generateText(task) : streamText(task)
    assert.equal(await result.text, 'Paris is warmer.')
    assert.deepEqual(counts(), { tools: 2, models: 3 })
    assert.equal(run.tripped, false)
    assertSpent(run, 3)
  })
}

test('a spent budget keeps the next tool from running, but an answer is delivered', async (t) => {
  const first = await setting(t, behaves, new Run({ maxUsd: 0.005 }))
  await assert.rejects(generateText(first.task), BudgetExceededError)
  assert.deepEqual(first.counts(), { tools: 1, models: 2 })
  const second = await setting(t, behaves, new Run({ maxUsd: 0.008 }))
  assert.equal((await generateText(second.task)).text, 'Paris is warmer.')
})

test('a nudge reaches the model, and the end comes if it does not help', async (t) => {
  const run = new Run({ repeats: 10, stall: 'chatbot' })
  const { task, counts, requests } = await setting(t, loops, run)
  await assert.rejects(generateText(task), StallDetectedError)
  assert.ok(counts().tools <= 4, `${counts().tools} tool runs`)
  const { role, content } = requests.at(-1).messages.at(-1)
  assert.equal(role, 'user')
  assert.match(content, /get_weather/)
})

test("a tool's error is still the model's to read", async (t) => {
  const { task, counts, requests } = await setting(t, behaves, new Run())
  task.tools.get_weather.execute = () => Promise.reject(new Error('the station is down'))
  assert.equal((await generateText(task)).text, 'Paris is warmer.')
  assert.equal(counts().models, 3)
  assert.match(JSON.stringify(requests.at(-1).messages), /the station is down/)
})

test('the same error again and again is a stall, whatever the arguments', async (t) => {
  const otherCities = (turn) => ({ tools: [{ name: 'get_weather', args: { city: `City ${turn}` } }] })
  const { task, counts } = await setting(t, otherCities, new Run({ stall: 'chatbot' }))
  task.tools.get_weather.execute = () => Promise.reject(new Error('the station is down'))
  await assert.rejects(generateText(task), (error) => error instanceof StallDetectedError && error.rule === 'same_error')
  assert.ok(counts().models <= 5, `${counts().models} model calls`)
})

bars(async (service, source, { ran, stream, model: name = 'gpt-4o', onTrip, onRepeat }) => {
  const provider = createOpenAICompatible({ name: 'fake', baseURL: service.url, includeUsage: true })
  const model = guardModel(provider(name), source, { onTrip, onRepeat, modelNamed: provider })
  const get_weather = tool({
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (ran(), `18 degrees in ${city}`),
  })
  const tools = tellRepeats({ get_weather })
  const task = { model, tools, prompt: 'Is Paris warmer than Rome?', stopWhen: stepCountIs(20), maxRetries: 0 }
  return async () => {
    if (!stream) return (await generateText(task)).text
    const errors = []
    const { fullStream } = streamText({ ...task, onError: ({ error }) => errors.push(error) })
    let text = ''
    for await (const part of fullStream) {
      if (part.type === 'start-step') text = ''
      if (part.type === 'text-delta') text += part.text
    }
    if (errors.length > 0) throw errors[0]
    return text
  }
}, { tells: true })
