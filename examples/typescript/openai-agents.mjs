// @ts-check
// OpenAI Agents SDK: a model that loops, stopped before the fourth equal call.
//
//   npm install @openai/agents zod and the SDK, then: node openai-agents.mjs

import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from '@openai/agents'
import { LoopDetectedError, Run } from '@runguard/sdk'
import { guardModelProvider } from '@runguard/sdk/openai-agents'
import { z } from 'zod'
import { startLoopingModel } from './looping-model.mjs'

setTracingDisabled(true)
const service = await startLoopingModel()
const provider = new OpenAIProvider({ apiKey: 'none', baseURL: service.url, useResponses: false })
let toolRuns = 0
const getWeather = tool({
  name: 'get_weather',
  description: 'The weather in a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => (toolRuns++, `18 degrees in ${city}`),
})
const agent = new Agent({ name: 'Forecaster', model: 'gpt-4o', tools: [getWeather] })

const run = new Run({ repeats: 4 })
const runner = new Runner({ modelProvider: guardModelProvider(provider, run) })
try {
  await runner.run(agent, 'How warm is Paris?', { maxTurns: 50 })
} catch (error) {
  if (!(error instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
