// A model service on this machine that speaks OpenAI's two protocols, chat completions and responses,
// plain and streaming. What it answers is a script's decision; what it was asked is kept.

import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { costUsd } from '@runguard/sdk'

/** What an answer uses; the cached tokens are some of the prompt's. */
const USAGE = { prompt: 1000, cached: 400, output: 100 }

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
 * or `{ tools: [{ name, args }] }`. `requests` holds what it was asked.
 */
export async function startModel(script) {
  const requests = []
  const server = createServer(async (request, response) => {
    let text = ''
    for await (const chunk of request) text += chunk
    const body = JSON.parse(text)
    requests.push(body)
    const answer = describe(script(requests.length, body), requests.length)
    const speak = request.url.endsWith('/responses') ? responses : chat
    speak(response, body, answer)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${server.address().port}/v1`,
    requests,
    stop: () => new Promise((resolve) => server.close(resolve).closeAllConnections()),
  }
}

function describe({ text, tools = [] }, turn) {
  const calls = tools.map(({ name, args }, index) => ({ id: `call_${turn}_${index}`, name, args: JSON.stringify(args) }))
  return { id: `answer_${turn}`, text: text ?? null, calls }
}

function json(response, value) {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value))
}

function stream(response, events, last) {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (const event of events) {
    if (event.type) response.write(`event: ${event.type}\n`)
    response.write(`data: ${JSON.stringify(event)}\n\n`)
  }
  response.end(last)
}

function chat(response, { model, stream: streaming }, { id, text, calls }) {
  const head = { id, created: 1700000000, model }
  const tool_calls = calls.map((call, index) => ({
    index,
    id: call.id,
    type: 'function',
    function: { name: call.name, arguments: call.args },
  }))
  const message = { role: 'assistant', content: text, ...(calls.length > 0 ? { tool_calls } : {}) }
  const finish_reason = calls.length > 0 ? 'tool_calls' : 'stop'
  const usage = {
    prompt_tokens: USAGE.prompt,
    completion_tokens: USAGE.output,
    total_tokens: USAGE.prompt + USAGE.output,
    prompt_tokens_details: { cached_tokens: USAGE.cached },
  }
  if (!streaming) return json(response, { ...head, object: 'chat.completion', choices: [{ index: 0, message, finish_reason }], usage })
  const chunk = { ...head, object: 'chat.completion.chunk' }
  const events = [
    { ...chunk, choices: [{ index: 0, delta: message, finish_reason: null }] },
    { ...chunk, choices: [{ index: 0, delta: {}, finish_reason }] },
    { ...chunk, choices: [], usage },
  ]
  stream(response, events, 'data: [DONE]\n\n')
}

function responses(response, { model, stream: streaming }, { id, text, calls }) {
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
  const details = { input_tokens_details: { cached_tokens: USAGE.cached }, output_tokens_details: { reasoning_tokens: 0 } }
  const usage = { input_tokens: USAGE.prompt, output_tokens: USAGE.output, total_tokens: USAGE.prompt + USAGE.output, ...details }
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
  )
}
