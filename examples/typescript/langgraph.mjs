// @ts-check
// LangGraph.js: a model that loops, stopped before the fourth equal call.
//
//   npm install @langchain/langgraph @langchain/core @langchain/openai zod and the SDK, then: node langgraph.mjs

import { tool } from '@langchain/core/tools'
import { createReactAgent } from '@langchain/langgraph/prebuilt'
import { ChatOpenAI } from '@langchain/openai'
import { Run, tripOf } from '@runguard/sdk'
import { guardChatModel } from '@runguard/sdk/langgraph'
import { z } from 'zod'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
let toolRuns = 0
const getWeather = tool(async ({ city }) => (toolRuns++, `18 degrees in ${city}`), {
  name: 'get_weather',
  description: 'The weather in a city',
  schema: z.object({ city: z.string() }),
})

// Each `invoke` is a run of its own.
const llm = guardChatModel(
  new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } }),
  () => new Run({ repeats: 4 }),
)
const agent = createReactAgent({ llm, tools: [getWeather] })
try {
  await agent.invoke({ messages: [{ role: 'user', content: 'How warm is Paris?' }] }, { recursionLimit: 50 })
} catch (error) {
  const trip = tripOf(error)
  if (trip === null) throw error
  console.log(`stopped: ${trip.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
