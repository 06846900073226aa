// @ts-check
// Botpress llmz: a model whose programs loop, stopped before the fourth equal call.
//
//   npm install --legacy-peer-deps llmz @botpress/client @botpress/cognitive @bpinternal/thicktoken @bpinternal/zui
//   and the SDK, then: node llmz.mjs

import { z } from '@bpinternal/zui'
import { Run } from '@runguard/sdk'
import { guardHooks } from '@runguard/sdk/llmz'
import { execute, Tool } from 'llmz'
import { LoopingModel } from './looping-llmz-model.mjs'

const client = new LoopingModel()
let toolRuns = 0
const getWeather = new Tool({
  name: 'get_weather',
  description: 'The weather in a city',
  input: z.object({ city: z.string() }),
  output: z.string(),
  handler: async ({ city }) => (toolRuns++, `18 degrees in ${city}`),
})

const run = new Run({ repeats: 4 })
await execute({ client, tools: [getWeather], instructions: 'How warm is Paris?', options: { loop: 50 }, ...guardHooks(run) })
if (run.trip) console.log(`stopped: ${run.trip.message}`)
console.log(`${toolRuns} tool runs, ${client.asked} model calls`)
