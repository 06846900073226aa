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

import type { GuardSettings, RunSource } from './model-turns.js'
import { guardedModel, type GuardableModel } from './vercel-ai.js'

export type { GuardSettings, GuardableModel, RunSource }

/** A model that asks the run before each request and before each tool call it hands to an agent. */
export function guardModel<Model extends GuardableModel>(model: Model, run?: RunSource, settings: GuardSettings = {}): Model {
  // Mastra puts a call together from the pieces of its input.
  return guardedModel(model, run, { ...settings, held: /^tool-/ })
}
