// @ts-check
// LangChain.js: a model that loops, stopped before the fourth equal call.
//
//   npm install langchain @langchain/core @langchain/openai zod and the SDK, then: node langchain.mjs

import { ChatOpenAI } from '@langchain/openai'
import { LoopDetectedError, Run } from '@runguard/sdk'
import { guardMiddleware } from '@runguard/sdk/langchain'
import { createAgent, tool } from 'langchain'
import { z } from 'zod'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
const model = new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } })
let toolRuns = 0
const getWeather = tool(async ({ city }) => (toolRuns++, `18 degrees in ${city}`), {
  name: 'get_weather',
  description: 'The weather in a city',
  schema: z.object({ city: z.string() }),
})

const run = new Run({ repeats: 4 })
const agent = createAgent({ model, tools: [getWeather], middleware: [guardMiddleware(run)] })
try {
  await agent.invoke({ messages: [{ role: 'user', content: 'How warm is Paris?' }] })
} catch (error) {
  // LangChain wraps what a middleware throws.
  if (!(error.cause instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.cause.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
