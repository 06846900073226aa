// @ts-check
// Vercel AI SDK: a model that loops, stopped before the fourth equal call.
//
//   npm install ai @ai-sdk/openai-compatible zod and the SDK, then: node vercel-ai.mjs

import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { LoopDetectedError, Run } from '@runguard/sdk'
import { guardModel } from '@runguard/sdk/vercel-ai'
import { generateText, stepCountIs, tool } from 'ai'
import { z } from 'zod'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
const model = createOpenAICompatible({ name: 'local', baseURL: service.url })('gpt-4o')
let toolRuns = 0
const get_weather = tool({
  description: 'The weather in a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (toolRuns++, `18 degrees in ${city}`),
})

const run = new Run({ repeats: 4 })
try {
  await generateText({ model: guardModel(model, run), tools: { get_weather }, stopWhen: stepCountIs(50), prompt: 'How warm is Paris?' })
} catch (error) {
  if (!(error instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
