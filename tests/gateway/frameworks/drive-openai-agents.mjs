// The OpenAI Agents SDK for JavaScript: its runner and its models.

import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from '@openai/agents'
import { z } from 'zod'
import { address, MOST_STEPS, search, serve } from './driver.mjs'

setTracingDisabled(true)

await serve(async (task) => {
  const modelProvider = new OpenAIProvider({ apiKey: 'sk-callers-own', ...address(task), useResponses: task.interface === 'responses' })
  const find = tool({
    name: 'search',
    description: 'Searches the library for a query.',
    parameters: z.object({ query: z.string() }),
    execute: async (input) => search(input),
  })
  const agent = new Agent({ name: 'researcher', instructions: 'Find it.', model: task.model, tools: [find] })
  const result = await new Runner({ modelProvider }).run(agent, task.question, { stream: task.stream, maxTurns: MOST_STEPS })
  const kinds = []
  if (task.stream) {
    for await (const event of result) kinds.push(event.type)
    await result.completed
  }
  const { requests, inputTokens, outputTokens } = result.state._context.usage
  return { output: result.finalOutput, kinds, items: result.history, usage: [requests, inputTokens, outputTokens] }
})
