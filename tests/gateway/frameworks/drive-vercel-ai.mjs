// The AI SDK of Vercel: generateText and streamText, with its providers for OpenAI and Anthropic.

import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { address, MOST_STEPS, search, serve } from './driver.mjs'

function model(task) {
  const { interface: wire, model: name } = task
  const options = { apiKey: 'sk-callers-own', ...address(task) }
  // Without a gateway its address has the version, other than that of Anthropic's own client.
  if (wire === 'messages') return createAnthropic({ ...options, ...(task.is_direct && { baseURL: `${task.url}/v1` }) })(name)
  const openai = createOpenAI(options)
  return wire === 'chat' ? openai.chat(name) : openai.responses(name)
}

const plain = ({ text, toolCalls, finishReason, usage }) => ({
  text,
  calls: toolCalls.map(({ toolCallId, toolName, input }) => ({ toolCallId, toolName, input })),
  finishReason,
  usage,
})

await serve(async (task) => {
  const asked = {
    model: model(task),
    prompt: task.question,
    stopWhen: stepCountIs(MOST_STEPS),
    tools: { search: tool({ inputSchema: z.object({ query: z.string() }), execute: async (input) => search(input) }) },
  }
  if (!task.stream) {
    const { steps, totalUsage } = await generateText(asked)
    return [steps.map(plain), totalUsage]
  }
  const result = streamText({ ...asked, onError() {} })
  const kinds = []
  for await (const part of result.fullStream) {
    kinds.push(part.type)
    // A stream ends in peace whatever happens in it: who wants to know must look.
    if (part.type === 'error') throw part.error
  }
  return [kinds, (await result.steps).map(plain), await result.totalUsage]
})
