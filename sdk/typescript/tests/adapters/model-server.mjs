// A model service on this machine that speaks OpenAI's two protocols, chat completions and responses, and
// Anthropic's messages, plain and streaming. What it answers is a script's decision; what it was asked is kept.

import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { costUsd } from '@runguard/sdk'

/** What an answer uses; the cached tokens are some of the prompt's. */
const USAGE = { prompt: 1000, cached: 400, output: 100 }

/** A quarter of a dollar for gpt-4o ($2.50 and $10 a million), a little more for Claude. */
export const COSTLY = { prompt: 96_000, cached: 0, output: 1000 }

/** The budget of `run` has been charged for so many answers of gpt-4o, and no more. */
export function assertSpent(run, answers) {
  const { prompt, cached, output } = USAGE
  const due = answers * costUsd('gpt-4o', { inputTokens: prompt - cached, cachedTokens: cached, outputTokens: output })
  assert.ok(due > 0 && Math.abs(run.budget.spent - due) < 1e-9, `spent ${run.budget.spent} dollars, not ${due}`)
}

/** A model that asks for the same tool with the same arguments for ever. */
export const loops = () => ({ tools: [{ name: 'get_weather', args: { city: 'Paris' } }] })

/** A model that asks for two cities, one after the other, and then answers. */
export const behaves = (turn) =>
  turn <= 2 ? { tools: [{ name: 'get_weather', args: { city: ['Paris', 'Rome'][turn - 1] } }] } : { text: 'Paris is warmer.' }

/**
 * Starts a service; `script(turn, body)` says what it answers to its request number `turn`: `{ text }`
 * or `{ tools: [{ name, args }] }`, or `{ status }` for a failure; with `breaksOff` a stream has no end.
 * `usage` is what an answer uses, null where none says so. `requests` holds what it was asked.
 */
export async function startModel(script, { usage = USAGE } = {}) {
  const requests = []
  const server = createServer(async (request, response) => {
    let text = ''
    for await (const chunk of request) text += chunk
    const body = JSON.parse(text)
    requests.push(body)
    const said = script(requests.length, body)
    if (said.status) return response.writeHead(said.status, { 'content-type': 'application/json' }).end('{"error":{"message":"no"}}')
    const answer = { ...describe(said, requests.length), usage }
    const others = { '/responses': responses, '/messages': messages, '/embeddings': embeddings, '/v1/completions': completions }
    const speak = Object.entries(others).find(([path]) => request.url.endsWith(path))?.[1] ?? chat
    speak(response, body, answer)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${server.address().port}/v1`,
    requests,
    stop: () => new Promise((resolve) => server.close(resolve).closeAllConnections()),
  }
}

function describe({ text, tools = [], breaksOff = false }, turn) {
  const calls = tools.map(({ name, args }, index) => ({ id: `call_${turn}_${index}`, name, args: JSON.stringify(args) }))
  return { id: `answer_${turn}`, text: text ?? null, calls, breaksOff }
}

function json(response, value) {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value))
}

/** In pieces that end anywhere, as a network cuts them. */
function stream(response, events, last, breaksOff) {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  const sent = breaksOff ? events.slice(0, Math.ceil(events.length / 2)) : events
  const text = sent.map((event) => `${event.type ? `event: ${event.type}\n` : ''}data: ${JSON.stringify(event)}\n\n`).join('')
  const pieces = text.match(/[^]{1,97}/g) ?? []
  const next = () => {
    const piece = pieces.shift()
    if (piece !== undefined) return response.write(piece, () => setImmediate(next))
    if (breaksOff) response.destroy()
    else response.end(last)
  }
  next()
}

function chat(response, { model, stream: streaming, stream_options }, { id, text, calls, usage: used, breaksOff }) {
  const head = { id, created: 1700000000, model }
  const tool_calls = calls.map((call, index) => ({
    index,
    id: call.id,
    type: 'function',
    function: { name: call.name, arguments: call.args },
  }))
  const message = { role: 'assistant', content: text, ...(calls.length > 0 ? { tool_calls } : {}) }
  const finish_reason = calls.length > 0 ? 'tool_calls' : 'stop'
  const usage = used && {
    prompt_tokens: used.prompt,
    completion_tokens: used.output,
    total_tokens: used.prompt + used.output,
    prompt_tokens_details: { cached_tokens: used.cached },
  }
  if (!streaming) return json(response, { ...head, object: 'chat.completion', choices: [{ index: 0, message, finish_reason }], usage })
  const chunk = { ...head, object: 'chat.completion.chunk' }
  const events = [
    { ...chunk, choices: [{ index: 0, delta: message, finish_reason: null }] },
    { ...chunk, choices: [{ index: 0, delta: {}, finish_reason }] },
    ...(usage && stream_options?.include_usage ? [{ ...chunk, choices: [], usage }] : []),
  ]
  stream(response, events, 'data: [DONE]\n\n', breaksOff)
}

/** The older completions, of a text. */
function completions(response, { model, stream: streaming, stream_options }, { id, text, usage: used, breaksOff }) {
  const head = { id, object: 'text_completion', created: 1700000000, model }
  const usage = used && { prompt_tokens: used.prompt, completion_tokens: used.output, total_tokens: used.prompt + used.output }
  const choices = [{ index: 0, text, logprobs: null, finish_reason: 'stop' }]
  if (!streaming) return json(response, { ...head, choices, usage })
  const counted = usage && stream_options?.include_usage ? [{ ...head, choices: [], usage }] : []
  stream(response, [{ ...head, choices }, ...counted], 'data: [DONE]\n\n', breaksOff)
}

function embeddings(response, { model }, { usage }) {
  const data = [{ object: 'embedding', index: 0, embedding: [0, 0, 1] }]
  json(response, { object: 'list', data, model, usage: usage && { prompt_tokens: usage.prompt, total_tokens: usage.prompt } })
}

function messages(response, { model, stream: streaming }, { id, text, calls, usage: used, breaksOff }) {
  const content = calls.map((call) => ({ type: 'tool_use', id: call.id, name: call.name, input: JSON.parse(call.args) }))
  if (text !== null) content.unshift({ type: 'text', text })
  const usage = used && {
    input_tokens: used.prompt - used.cached,
    output_tokens: used.output,
    cache_read_input_tokens: used.cached,
    cache_creation_input_tokens: 0,
  }
  const stop_reason = calls.length > 0 ? 'tool_use' : 'end_turn'
  const whole = { id, type: 'message', role: 'assistant', model, content, stop_reason, stop_sequence: null, ...(usage ? { usage } : {}) }
  if (!streaming) return json(response, whole)
  const started = usage ? { usage: { ...usage, output_tokens: 1 } } : {}
  const events = [{ type: 'message_start', message: { ...whole, content: [], stop_reason: null, ...started } }]
  content.forEach((block, index) => {
    const isText = block.type === 'text'
    const delta = isText ? { type: 'text_delta', text } : { type: 'input_json_delta', partial_json: JSON.stringify(block.input) }
    const content_block = isText ? { type: 'text', text: '' } : { ...block, input: {} }
    events.push(
      { type: 'content_block_start', index, content_block },
      { type: 'content_block_delta', index, delta },
      { type: 'content_block_stop', index },
    )
  })
  events.push({
    type: 'message_delta',
    delta: { stop_reason, stop_sequence: null },
    ...(usage ? { usage: { output_tokens: used.output } } : {}),
  })
  events.push({ type: 'message_stop' })
  stream(response, events, '', breaksOff)
}

function responses(response, { model, stream: streaming }, { id, text, calls, usage: used, breaksOff }) {
  const output = calls.map((call) => ({
    type: 'function_call',
    id: `fc_${call.id}`,
    call_id: call.id,
    name: call.name,
    arguments: call.args,
    status: 'completed',
  }))
  if (text !== null) {
    const content = [{ type: 'output_text', text, annotations: [] }]
    output.push({ type: 'message', id: `msg_${id}`, role: 'assistant', status: 'completed', content })
  }
  const details = { input_tokens_details: { cached_tokens: used?.cached }, output_tokens_details: { reasoning_tokens: 0 } }
  const usage = used && { input_tokens: used.prompt, output_tokens: used.output, total_tokens: used.prompt + used.output, ...details }
  const whole = { id, object: 'response', created_at: 1700000000, model, status: 'completed', output, usage, error: null, tools: [] }
  if (!streaming) return json(response, whole)
  const events = [{ type: 'response.created', response: { ...whole, status: 'in_progress', output: [] } }]
  output.forEach((item, output_index) => {
    events.push({ type: 'response.output_item.added', output_index, item }, { type: 'response.output_item.done', output_index, item })
  })
  events.push({ type: 'response.completed', response: whole })
  stream(
    response,
    events.map((event, sequence_number) => ({ sequence_number, ...event })),
    '',
    breaksOff,
  )
}
