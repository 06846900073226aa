/**
 * OpenAI Agents SDK (`@openai/agents`): a guarded model, or a guarded provider of models.
 *
 *     const run = new Run({ maxUsd: 1 })
 *     const runner = new Runner({ modelProvider: guardModelProvider(new OpenAIProvider(), run) })
 *     await runner.run(agent, 'What is the weather?')
 *
 * What a tool throws goes back to the model as text, and the runner's events cannot wait for an answer.
 * An error of the model ends the run and reaches the caller as it is. Handoffs are tool calls here too.
 */

import type { Run } from '../index.js'
import { ModelTurns, parseArguments } from './model-turns.js'
import type { AskedCall, CallResult, TokenUsage } from './model-turns.js'

export interface GuardableModel {
  getResponse(request: any): Promise<any>
  getStreamedResponse(request: any): AsyncIterable<any>
}

export interface GuardableModelProvider {
  getModel(modelName?: string): any
}

interface Item {
  readonly type?: string
  readonly [field: string]: unknown
}

interface Answer {
  readonly usage?: Record<string, unknown>
  readonly output: readonly Item[]
  readonly providerData?: { readonly model?: unknown }
}

/** A provider whose models all ask `run`; for `new Runner({ modelProvider })`. */
export function guardModelProvider<Provider extends GuardableModelProvider>(provider: Provider, run: Run): Provider {
  const turns = new ModelTurns(run)
  return replacing(provider, {
    getModel: async (modelName?: string) => guarded(await provider.getModel(modelName), turns, modelName),
  })
}

/**
 * A model that asks `run` before each request and before each tool call it hands to the runner. Agents
 * that carry a model object of their own need this one. `modelName` is for prices, where the answers of
 * the model do not name it.
 */
export function guardModel<Model extends GuardableModel>(model: Model, run: Run, modelName?: string): Model {
  return guarded(model, new ModelTurns(run), modelName)
}

function guarded<Model extends GuardableModel>(model: Model, turns: ModelTurns, modelName: string | undefined): Model {
  const begin = async (request: { input: string | readonly Item[] }) => {
    const history = typeof request.input === 'string' ? [userMessage(request.input)] : request.input
    const nudge = await turns.begin(toolResults(history))
    return nudge === null ? request : { ...request, input: [...history, userMessage(nudge)] }
  }
  const inspect = async (answer: Answer) => {
    const named = answer.providerData?.model
    await turns.used(modelName ?? (typeof named === 'string' ? named : 'unknown'), tokens(answer.usage))
    for (const item of answer.output) {
      const call = toolCall(item)
      if (call) await turns.asks(call)
    }
  }
  return replacing(model, {
    async getResponse(request: any) {
      const answer = await model.getResponse(await begin(request))
      await inspect(answer)
      return answer
    },
    async *getStreamedResponse(request: any) {
      for await (const event of model.getStreamedResponse(await begin(request))) {
        // The runner starts the tools when it has the whole answer.
        if (event.type === 'response_done') await inspect(event.response)
        yield event
      }
    },
  })
}

function replacing<Target extends object>(target: Target, methods: Record<string, unknown>): Target {
  return new Proxy(target, {
    get(original, name) {
      if (typeof name === 'string' && Object.hasOwn(methods, name)) return methods[name]
      // Bound to the original: private fields are not reachable through a proxy.
      const value: unknown = Reflect.get(original, name, original)
      return typeof value === 'function' ? value.bind(original) : value
    },
  })
}

function userMessage(text: string): Item {
  return { type: 'message', role: 'user', content: text }
}

/** Function calls by their name; computer, shell and patch calls by their kind. */
function toolCall(item: Item): AskedCall | null {
  if (typeof item['callId'] !== 'string' || !item.type?.endsWith('_call')) return null
  const tool = typeof item['name'] === 'string' ? item['name'] : item.type
  const args = item['arguments'] ?? item['action'] ?? item['operation']
  return { id: item['callId'], tool, args: parseArguments(args) }
}

function* toolResults(history: readonly Item[]): Generator<CallResult> {
  for (const item of history) {
    if (typeof item['callId'] !== 'string' || !/_(result|output)$/.test(item.type ?? '')) continue
    yield { id: item['callId'], result: item['output'] }
  }
}

function tokens(usage: any): TokenUsage {
  const details = Array.isArray(usage?.inputTokensDetails) ? usage.inputTokensDetails[0] : usage?.inputTokensDetails
  return {
    promptTokens: usage?.inputTokens ?? 0,
    outputTokens: usage?.outputTokens ?? 0,
    cachedTokens: details?.cached_tokens ?? 0,
    cacheWriteTokens: details?.cache_write_tokens ?? 0,
  }
}
