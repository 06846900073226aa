// @ts-check
// Mastra: a model that loops, stopped before the fourth equal call.
//
//   npm install @mastra/core @ai-sdk/openai-compatible zod and the SDK, then: node mastra.mjs

import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent } from '@mastra/core/agent'
import { noopLogger } from '@mastra/core/logger'
import { createTool } from '@mastra/core/tools'
import { Run, tripOf } from '@runguard/sdk'
import { guardModel } from '@runguard/sdk/mastra'
import { z } from 'zod'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
const model = createOpenAICompatible({ name: 'local', baseURL: service.url })('gpt-4o')
let toolRuns = 0
const get_weather = createTool({
  id: 'get_weather',
  description: 'The weather in a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (toolRuns++, `18 degrees in ${city}`),
})

// Each `generate` is a run of its own.
const agent = new Agent({
  id: 'forecaster',
  name: 'Forecaster',
  instructions: 'Be short.',
  // The types of Mastra and of this provider do not fit each other.
  model: /** @type {any} */ (guardModel(model, () => new Run({ repeats: 4 }))),
  tools: { get_weather },
})
agent.__setLogger(noopLogger)
try {
  await agent.generate('How warm is Paris?', { maxSteps: 50 })
} catch (error) {
  const trip = tripOf(error)
  if (trip === null) throw error
  console.log(`stopped: ${trip.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
