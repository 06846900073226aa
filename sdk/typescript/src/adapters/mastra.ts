/**
 * Mastra (`@mastra/core`): a guarded model. Its agents take the AI SDK's models.
 *
 *     const model = guardModel(openai('gpt-4o'), () => new Run({ maxUsd: 1 }))
 *     const agent = new Agent({ id: 'forecaster', name: 'Forecaster', instructions, model, tools })
 *
 * Each `generate` or `stream` is a run of its own; with a run instead of a function all belong to it, and with neither they belong to the
 * current run. A model that an agent names by a text (`'openai/gpt-4o'`) is no object that could be guarded: put `withGuard` around the
 * call, or pass the model itself.
 */

import { replacing, type GuardSettings, type RunSource } from './model-turns.js'
import { toldOf } from './repeats.js'
import { guardedModel, type GuardableModel } from './vercel-ai.js'

export type { GuardSettings, GuardableModel, RunSource }

/** A model that asks the run before each request and before each tool call it hands to an agent. */
export function guardModel<Model extends GuardableModel>(model: Model, run?: RunSource, settings: GuardSettings = {}): Model {
  // Mastra puts a call together from the pieces of its input.
  return guardedModel(model, run, { ...settings, held: /^tool-/ })
}

/** Tools that give the model a sentence in place of a result that it has already, where its guard has `{ onRepeat: 'tell' }`. */
export function tellRepeats<Tools extends Readonly<Record<string, any>>>(tools: Tools): Tools {
  const telling = Object.entries(tools).map(([name, tool]) => {
    if (typeof tool?.execute !== 'function') return [name, tool]
    const execute = (input: any, context: any): unknown => {
      // Releases before 1 give the id behind the input, and the input with what is around it.
      const told = toldOf(context?.agent?.toolCallId ?? context?.toolCallId, name, input?.context ?? input)
      return told ?? tool.execute(input, context)
    }
    return [name, replacing(tool, { execute })]
  })
  return Object.fromEntries(telling)
}
