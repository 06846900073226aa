// @ts-check
// A run around an agent of your own: the client is not told of it. A model that loops is stopped before the fourth equal call.
//
//   npm install openai and the SDK, then: node hooks.mjs

import { LoopDetectedError, withGuard } from '@runguard/sdk'
import OpenAI from 'openai'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
const client = new OpenAI({ baseURL: service.url, apiKey: 'none' })
let toolRuns = 0

try {
  await withGuard({ maxUsd: 1, repeats: 4 }, async (run) => {
    const getWeather = run.tool(async ({ city }) => (toolRuns++, `18 degrees in ${city}`), 'get_weather')
    /** @type {OpenAI.ChatCompletionMessageParam[]} */
    const messages = [{ role: 'user', content: 'How warm is Paris?' }]
    for (;;) {
      const { choices } = await client.chat.completions.create({ model: 'gpt-4o', messages })
      const message = choices[0].message
      messages.push(message)
      if (!message.tool_calls) return console.log(message.content)
      for (const call of message.tool_calls) {
        if (call.type !== 'function') continue
        messages.push({ role: 'tool', tool_call_id: call.id, content: await getWeather(JSON.parse(call.function.arguments)) })
      }
    }
  })
} catch (error) {
  if (!(error instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
