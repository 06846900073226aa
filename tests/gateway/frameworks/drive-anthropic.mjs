// Anthropic's own client, in the hands of a loop that somebody wrote by hand.

import Anthropic from '@anthropic-ai/sdk'
import { address, MOST_STEPS, search, serve, TOOL_SCHEMA } from './driver.mjs'

await serve(async (task) => {
  const client = new Anthropic({ apiKey: 'sk-callers-own', ...address(task) })
  const messages = [{ role: 'user', content: task.question }]
  const seen = []
  for (let step = 0; step < MOST_STEPS; step += 1) {
    const options = { model: task.model, max_tokens: 1000, messages, tools: [{ name: 'search', input_schema: TOOL_SCHEMA }] }
    let message
    if (task.stream) {
      const running = client.messages.stream(options)
      for await (const event of running) seen.push(event)
      message = await running.finalMessage()
    } else {
      message = await client.messages.create(options)
    }
    seen.push(message)
    const calls = message.content.filter((block) => block.type === 'tool_use')
    if (calls.length === 0) break
    messages.push({ role: 'assistant', content: message.content })
    messages.push({ role: 'user', content: calls.map((call) => ({ type: 'tool_result', tool_use_id: call.id, content: search(call.input) })) })
  }
  return seen
})
