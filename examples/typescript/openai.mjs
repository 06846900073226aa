// @ts-check
// A client of openai: a model that loops, stopped before the fourth equal call.
//
//   npm install openai and the SDK, then: node openai.mjs

import { LoopDetectedError, Run } from '@runguard/sdk'
import { guardOpenAI } from '@runguard/sdk/openai'
import OpenAI from 'openai'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
const run = new Run({ maxUsd: 1, repeats: 4 })
const client = guardOpenAI(new OpenAI({ baseURL: service.url, apiKey: 'none' }), run)
let toolRuns = 0
const getWeather = ({ city }) => (toolRuns++, `18 degrees in ${city}`)

/** @type {OpenAI.ChatCompletionMessageParam[]} */
const messages = [{ role: 'user', content: 'How warm is Paris?' }]
try {
  for (;;) {
    const { choices } = await client.chat.completions.create({ model: 'gpt-4o', messages })
    const message = choices[0].message
    messages.push(message)
    if (!message.tool_calls) break
    for (const call of message.tool_calls) {
      if (call.type !== 'function') continue
      messages.push({ role: 'tool', tool_call_id: call.id, content: getWeather(JSON.parse(call.function.arguments)) })
    }
  }
} catch (error) {
  if (!(error instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
