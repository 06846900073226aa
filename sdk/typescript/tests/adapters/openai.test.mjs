import assert from 'node:assert/strict'
import test from 'node:test'
import { BudgetExceededError, LoopDetectedError, Run, StallDetectedError, withGuard } from '@runguard/sdk'
import { guardOpenAI } from '@runguard/sdk/openai'
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { bars } from './bars.mjs'
import { assertSpent, behaves, COSTLY, loops, startModel } from './model-server.mjs'

const question = 'Is Paris warmer than Rome?'
const clientOf = (service, options = {}) => new OpenAI({ baseURL: service.url, apiKey: 'key', maxRetries: 0, ...options })
const tools = [
  { type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } },
]

/** An agent as one writes it by hand; gives its last text. */
async function chat(client, { ran = () => {}, stream = false, model = 'gpt-4o', weather = ({ city }) => `18 degrees in ${city}` } = {}) {
  const messages = [{ role: 'user', content: question }]
  for (;;) {
    const asked = { model, messages, tools }
    const message = stream
      ? (await client.chat.completions.stream(asked).finalChatCompletion()).choices[0].message
      : (await client.chat.completions.create(asked)).choices[0].message
    messages.push(message)
    if (!message.tool_calls?.length) return message.content
    for (const call of message.tool_calls) {
      ran()
      messages.push({ role: 'tool', tool_call_id: call.id, content: weather(JSON.parse(call.function.arguments)) })
    }
  }
}

async function responses(client, { ran = () => {}, stream = false, model = 'gpt-4o' } = {}) {
  const input = [{ role: 'user', content: question }]
  for (;;) {
    let response
    if (stream) {
      for await (const event of await client.responses.create({ model, input, stream: true })) response = event.response ?? response
    } else response = await client.responses.create({ model, input })
    const calls = response.output.filter(({ type }) => type === 'function_call')
    input.push(...response.output)
    if (calls.length === 0) return response.output.at(-1).content[0].text
    for (const call of calls) {
      ran()
      input.push({ type: 'function_call_output', call_id: call.call_id, output: `18 degrees in ${JSON.parse(call.arguments).city}` })
    }
  }
}

for (const agent of [chat, responses]) {
  bars(
    (service, source, settings) => {
      const client = guardOpenAI(clientOf(service), source, settings)
      return () => agent(client, settings)
    },
    { hasRow: agent === chat },
  )
}

async function setting(t, script, options) {
  const service = await startModel(script, options)
  t.after(service.stop)
  return service
}

test('a healthy run is untouched, and its usage is recorded; the client that was given is not changed', async (t) => {
  const service = await setting(t, behaves)
  const run = new Run({ repeats: 4, maxUsd: 5 })
  const client = clientOf(service)
  assert.equal(await chat(guardOpenAI(client, run)), 'Paris is warmer.')
  assertSpent(run, 3)
  await client.chat.completions.create({ model: 'gpt-4o', messages: [{ role: 'user', content: question }] })
  assertSpent(run, 3)
})

test('a copy with other options is guarded too, parsed answers as well', async (t) => {
  const service = await setting(t, () => ({ text: '{"city":"Paris"}' }))
  const run = new Run({ maxUsd: 5 })
  const client = guardOpenAI(clientOf(service), run).withOptions({ timeout: 9000 })
  const response_format = zodResponseFormat(z.object({ city: z.string() }), 'place')
  const { choices } = await client.chat.completions.parse({
    model: 'gpt-4o',
    messages: [{ role: 'user', content: question }],
    response_format,
  })
  assert.deepEqual(choices[0].message.parsed, { city: 'Paris' })
  assertSpent(run, 1)
})

test('a run that was stopped counts the calls that are in the transcript', async (t) => {
  const service = await setting(t, loops)
  const run = new Run()
  const client = guardOpenAI(clientOf(service), run)
  await assert.rejects(chat(client), LoopDetectedError)
  await assert.rejects(chat(client), LoopDetectedError)
  assert.equal(service.requests.length, 3)
  const call = { id: 'old', type: 'function', function: { name: 'get_weather', arguments: '{"city":"Paris"}' } }
  const said = [1, 2, 3].flatMap((turn) => [
    { role: 'assistant', tool_calls: [{ ...call, id: `old_${turn}` }] },
    { role: 'tool', tool_call_id: `old_${turn}`, content: '18 degrees' },
  ])
  const anew = guardOpenAI(clientOf(service), new Run())
  const messages = [{ role: 'user', content: question }, ...said]
  await assert.rejects(anew.chat.completions.create({ model: 'gpt-4o', messages, tools }), LoopDetectedError)
  assert.equal(service.requests.length, 3)
})

test('a nudge stands behind the result, in every request that follows; the end comes if it does not help', async (t) => {
  const service = await setting(t, loops)
  const client = guardOpenAI(clientOf(service), new Run({ repeats: 10, stall: 'chatbot' }))
  await assert.rejects(chat(client), StallDetectedError)
  const { role, content } = service.requests.at(-1).messages.at(-1)
  assert.equal(role, 'tool')
  assert.match(content, /^18 degrees in Paris\n\n.*get_weather/s)
})

test('retries of the client are one call, and a hooked client does not count it again', async (t) => {
  const service = await setting(t, (turn) => (turn <= 2 ? { status: 500 } : { text: 'more' }), { usage: COSTLY })
  const run = new Run({ maxUsd: 1, maxModelCalls: 1 })
  const client = guardOpenAI(clientOf(service, { maxRetries: 2 }), run)
  await withGuard({ run }, () => client.chat.completions.create({ model: 'gpt-4o', messages: [{ role: 'user', content: question }] }))
  assert.equal(service.requests.length, 3)
  assert.ok(Math.abs(run.budget.spent - 0.25) < 1e-9, `spent ${run.budget.spent}`)
})

test('a final answer that breaks the budget is delivered, one with tool calls is not', async (t) => {
  const final = await setting(t, () => ({ text: 'done' }), { usage: COSTLY })
  const asked = { model: 'gpt-4o', messages: [{ role: 'user', content: question }] }
  const run = new Run({ maxUsd: 0.2 })
  assert.equal((await guardOpenAI(clientOf(final), run).chat.completions.create(asked)).choices[0].message.content, 'done')
  await assert.rejects(guardOpenAI(clientOf(final), run).chat.completions.create(asked), BudgetExceededError)
  const calling = await setting(t, loops, { usage: COSTLY })
  await assert.rejects(guardOpenAI(clientOf(calling), new Run({ maxUsd: 0.2 })).chat.completions.create(asked), BudgetExceededError)
})
