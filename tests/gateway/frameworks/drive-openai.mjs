// OpenAI's own client, in the hands of a loop that somebody wrote by hand.

import OpenAI from 'openai'
import { address, MOST_STEPS, search, serve, TOOL_SCHEMA } from './driver.mjs'

const named = { name: 'search', parameters: TOOL_SCHEMA }

async function askChat(client, { model, stream }, messages, seen) {
  const options = { model, messages, tools: [{ type: 'function', function: named }] }
  if (!stream) {
    const answer = await client.chat.completions.create(options)
    seen.push(answer)
    return answer.choices[0].message
  }
  const running = client.chat.completions.stream(options)
  for await (const chunk of running) seen.push(chunk)
  return running.finalMessage()
}

async function askResponses(client, { model, stream }, input, seen) {
  const options = { model, input, tools: [{ type: 'function', ...named, strict: false }] }
  if (!stream) {
    const response = await client.responses.create(options)
    seen.push(response)
    return response.output
  }
  let last
  for await (const event of await client.responses.create({ ...options, stream: true })) {
    seen.push(event)
    last = event
  }
  return last.response.output
}

await serve(async (task) => {
  const client = new OpenAI({ apiKey: 'sk-callers-own', ...address(task) })
  const items = [{ role: 'user', content: task.question }]
  const seen = []
  for (let step = 0; step < MOST_STEPS; step += 1) {
    let results
    if (task.interface === 'chat') {
      const message = await askChat(client, task, items, seen)
      items.push(message)
      results = (message.tool_calls ?? []).map((call) => ({
        role: 'tool',
        tool_call_id: call.id,
        content: search(JSON.parse(call.function.arguments)),
      }))
    } else {
      const output = await askResponses(client, task, items, seen)
      items.push(...output)
      results = output
        .filter((item) => item.type === 'function_call')
        .map((call) => ({ type: 'function_call_output', call_id: call.call_id, output: search(JSON.parse(call.arguments)) }))
    }
    if (results.length === 0) break
    items.push(...results)
  }
  return seen
})
