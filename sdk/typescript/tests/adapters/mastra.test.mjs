import assert from 'node:assert/strict'
import test from 'node:test'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent } from '@mastra/core/agent'
import { noopLogger } from '@mastra/core/logger'
import { createTool } from '@mastra/core/tools'
import { BudgetExceededError, tripOf, withGuard } from '@runguard/sdk'
import { guardModel, tellRepeats } from '@runguard/sdk/mastra'
import { z } from 'zod'
import { bars } from './bars.mjs'
import { COSTLY, startModel } from './model-server.mjs'

const modelOf = (service, name = 'gpt-4o') => createOpenAICompatible({ name: 'fake', baseURL: service.url, includeUsage: true })(name)

function agentOf(model, ran) {
  const get_weather = createTool({
    id: 'get_weather',
    description: 'The weather in a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async (input) => (ran(), `18 degrees in ${(input.context ?? input).city}`),
  })
  const agent = new Agent({ id: 'forecaster', name: 'Forecaster', instructions: 'Compare.', model, tools: tellRepeats({ get_weather }), maxRetries: 0 })
  // Every error is logged, and there are many here.
  agent.__setLogger(noopLogger)
  return agent
}

bars(async (service, source, { ran, stream, model: name, onTrip, onRepeat }) => {
  const agent = agentOf(guardModel(modelOf(service, name), source, { onTrip, onRepeat, modelNamed: (name) => modelOf(service, name) }), ran)
  return async () => {
    const settings = { maxSteps: 20 }
    if (!stream) return (await agent.generate('Is Paris warmer than Rome?', settings)).text
    const output = await agent.stream('Is Paris warmer than Rome?', settings)
    let text = ''
    let failure
    for await (const part of output.fullStream) {
      if (part.type === 'step-start') text = ''
      if (part.type === 'text-delta') text += part.payload.text
      if (part.type === 'error') failure = part.payload.error
    }
    if (failure) throw failure
    return text
  }
}, { tells: true })

test('without an adapter, withGuard caps dollars', async (t) => {
  const service = await startModel((turn) => ({ tools: [{ name: 'get_weather', args: { city: `City ${turn}` } }] }), { usage: COSTLY })
  t.after(service.stop)
  const agent = agentOf(modelOf(service), () => {})
  const asked = withGuard({ maxUsd: 0.99 }, () => agent.generate('Is Paris warmer than Rome?', { maxSteps: 20 }))
  await assert.rejects(asked, (error) => tripOf(error) instanceof BudgetExceededError)
  assert.equal(service.requests.length, 4)
})
