import assert from 'node:assert/strict'
import test from 'node:test'
import Anthropic from '@anthropic-ai/sdk'
import { LoopDetectedError, Run, setPrices, StallDetectedError } from '@runguard/sdk'
import { guardAnthropic } from '@runguard/sdk/anthropic'
import { bars } from './bars.mjs'
import { loops, startModel } from './model-server.mjs'

// So that the answers of the tests cost what those of gpt-4o do.
const MODEL = 'claude-sonnet-4-6'
setPrices({ [MODEL]: { input: 2.5, output: 10 } })

const tools = [{ name: 'get_weather', input_schema: { type: 'object', properties: { city: { type: 'string' } } } }]
const clientOf = (service) => new Anthropic({ baseURL: service.url.replace('/v1', ''), apiKey: 'key', maxRetries: 0 })

/** An agent as one writes it by hand; gives its last text. */
async function messages(client, { ran = () => {}, stream = false, model = MODEL } = {}) {
  const said = [{ role: 'user', content: 'Is Paris warmer than Rome?' }]
  for (;;) {
    const asked = { model, max_tokens: 4000, messages: said, tools }
    const content = stream ? await streamed(client, asked) : (await client.messages.create(asked)).content
    said.push({ role: 'assistant', content })
    const calls = content.filter(({ type }) => type === 'tool_use')
    if (calls.length === 0) return content[0].text
    const result = ({ id, input }) => (ran(), { type: 'tool_result', tool_use_id: id, content: `18 degrees in ${input.city}` })
    said.push({ role: 'user', content: calls.map(result) })
  }
}

/** By hand: the client's helper for streams needs a usage. */
async function streamed(client, asked) {
  const content = []
  for await (const { type, index, content_block, delta } of await client.messages.create({ ...asked, stream: true })) {
    if (type === 'content_block_start') content[index] = { ...content_block }
    if (delta?.type === 'text_delta') content[index].text += delta.text
    if (delta?.type === 'input_json_delta') content[index].input = JSON.parse(delta.partial_json)
  }
  return content
}

bars((service, source, settings) => {
  const client = guardAnthropic(clientOf(service), source, settings)
  return () => messages(client, settings)
})

test('a nudge stands behind the result, and the end comes if it does not help', async (t) => {
  const service = await startModel(loops)
  t.after(service.stop)
  const client = guardAnthropic(clientOf(service), new Run({ repeats: 10, stall: 'chatbot' }))
  await assert.rejects(messages(client), StallDetectedError)
  const [{ type, content }] = service.requests.at(-1).messages.at(-1).content
  assert.equal(type, 'tool_result')
  assert.match(content, /^18 degrees in Paris\n\n.*get_weather/s)
})

test('events of a stream that is read one by one stop at the call that trips', async (t) => {
  const service = await startModel(() => ({ tools: Array(3).fill(loops().tools[0]) }))
  t.after(service.stop)
  const client = guardAnthropic(clientOf(service), new Run())
  let finished = 0
  await assert.rejects(async () => {
    const asked = { model: MODEL, max_tokens: 4000, messages: [{ role: 'user', content: 'go' }], tools, stream: true }
    for await (const event of await client.messages.create(asked)) if (event.type === 'content_block_stop') finished += 1
  }, LoopDetectedError)
  assert.equal(finished, 2)
})
