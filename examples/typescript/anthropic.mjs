// @ts-check
// A client of @anthropic-ai/sdk: a model that loops, stopped before the fourth equal call.
//
//   npm install @anthropic-ai/sdk and the SDK, then: node anthropic.mjs

import Anthropic from '@anthropic-ai/sdk'
import { LoopDetectedError, Run } from '@runguard/sdk'
import { guardAnthropic } from '@runguard/sdk/anthropic'
import { startLoopingModel } from './looping-model.mjs'

const service = await startLoopingModel()
const run = new Run({ maxUsd: 1, repeats: 4 })
const client = guardAnthropic(new Anthropic({ baseURL: service.url.replace('/v1', ''), apiKey: 'none' }), run)
let toolRuns = 0
const getWeather = ({ city }) => (toolRuns++, `18 degrees in ${city}`)

/** @type {Anthropic.MessageParam[]} */
const messages = [{ role: 'user', content: 'How warm is Paris?' }]
try {
  for (;;) {
    const { content } = await client.messages.create({ model: 'claude-sonnet-4-6', max_tokens: 1000, messages })
    messages.push({ role: 'assistant', content })
    /** @type {Anthropic.ToolResultBlockParam[]} */
    const results = []
    for (const block of content) {
      if (block.type !== 'tool_use') continue
      results.push({ type: 'tool_result', tool_use_id: block.id, content: getWeather(/** @type {any} */ (block.input)) })
    }
    if (results.length === 0) break
    messages.push({ role: 'user', content: results })
  }
} catch (error) {
  if (!(error instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.message}`)
}
console.log(`${toolRuns} tool runs, ${service.asked()} model calls`)
service.stop()
