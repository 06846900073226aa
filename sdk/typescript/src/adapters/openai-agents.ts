/**
 * OpenAI Agents SDK (`@openai/agents`): a guarded model, or a guarded provider of models.
 *
 *     const provider = guardModelProvider(new OpenAIProvider(), () => new Run({ maxUsd: 1 }))
 *     await new Runner({ modelProvider: provider }).run(agent, 'What is the weather?')
 *
 * Each `run` of a runner is a run of its own; with a run instead of a function all belong to it, and with neither they belong to the
 * current run. Agents that are tools of others are in the same run with `withGuard`, or with a run that is given.
 *
 * What a tool throws goes back to the model as text, and the runner's events cannot wait for an answer. An error of the model ends the run
 * and reaches the caller as it is; with `{ onTrip: 'end' }` it is a final answer that says why. Handoffs are tool calls here too.
 */

import { asTold } from '../current.js'
import type { Usage } from '../prices.js'
import { ModelTurns, chosen, ending, parseArguments, replacing, saidAtEnd, usageOfTotal } from './model-turns.js'
import type { AskedCall, CallResult, GuardSettings, RunSource, Turn } from './model-turns.js'
import { toldOf } from './repeats.js'

export interface GuardableModel {
  getResponse(request: any): Promise<any>
  getStreamedResponse(request: any): AsyncIterable<any>
}

export interface GuardableModelProvider {
  getModel(modelName?: string): any
}

export interface ModelSettings extends GuardSettings {
  /** For prices, where the model does not name itself. */
  modelName?: string | undefined
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

interface Request {
  readonly input: string | readonly Item[]
  readonly systemInstructions?: unknown
  readonly tools?: unknown
  readonly modelSettings?: { readonly maxTokens?: number }
}

/** A provider whose models all ask the run; for `new Runner({ modelProvider })`. */
export function guardModelProvider<Provider extends GuardableModelProvider>(
  provider: Provider,
  run?: RunSource,
  settings: GuardSettings = {},
): Provider {
  const turns = new ModelTurns(run, settings)
  const modelNamed = settings.modelNamed ?? ((name: string) => provider.getModel(name))
  return replacing(provider, {
    getModel: async (modelName?: string) => guarded(await provider.getModel(modelName), turns, { ...settings, modelNamed, modelName }),
  })
}

/**
 * A model that asks the run before each request and before each tool call it hands to the runner. Agents
 * that carry a model object of their own need this one. The last argument may be just the model's name.
 */
export function guardModel<Model extends GuardableModel>(model: Model, run?: RunSource, settings: string | ModelSettings = {}): Model {
  const named = typeof settings === 'string' ? { modelName: settings } : settings
  return guarded(model, new ModelTurns(run, named), named)
}

/** Function tools that give the model a sentence in place of a result that it has already, where its guard has `{ onRepeat: 'tell' }`. */
export function tellRepeats<Tools extends readonly any[]>(tools: Tools): Tools {
  const telling = tools.map((tool) => {
    if (tool?.type !== 'function' || typeof tool.invoke !== 'function') return tool
    const invoke = async (context: unknown, input: unknown, details: any, ...rest: unknown[]): Promise<unknown> =>
      toldOf(details?.toolCall?.callId, tool.name, parseArguments(input)) ?? tool.invoke(context, input, details, ...rest)
    return { ...tool, invoke }
  })
  return telling as unknown as Tools
}

function guarded<Model extends GuardableModel>(model: Model, turns: ModelTurns, settings: ModelSettings): Model {
  const name = settings.modelName ?? ownName(model) ?? 'unknown'
  const begin = async (request: Request): Promise<[Turn, Request]> => {
    const history = typeof request.input === 'string' ? [userMessage(request.input)] : request.input
    const turn = await turns.begin({
      model: name,
      prompt: [request.systemInstructions, history, request.tools],
      maxTokens: request.modelSettings?.maxTokens,
      mayFallBack: settings.modelNamed !== undefined,
      results: toolResults(history),
      last: ending(history, isResult).map((item) => String(item['callId'])),
      beginning: history[0]?.['content'],
    })
    let asked = request
    if (turn.nudge !== null) asked = { ...asked, input: [...history, userMessage(turn.nudge)] }
    if (turn.maxTokens !== null) asked = { ...asked, modelSettings: { ...asked.modelSettings, maxTokens: turn.maxTokens } }
    return [turn, asked]
  }
  const inspect = async (turn: Turn, answer: Answer): Promise<void> => {
    const named = answer.providerData?.model
    await turn.used(typeof named === 'string' ? named : '', tokens(answer.usage), answer.output)
    for (const item of answer.output) {
      const call = toolCall(item)
      if (call) await turn.asks(call)
    }
  }
  const respond = async (request: Request): Promise<any> => {
    const [turn, asked] = await begin(request)
    let answer: any
    try {
      const asking = await chosen<GuardableModel>(turn, model, settings)
      answer = await asTold(() => asking.getResponse(asked))
    } catch (error) {
      await turn.failed(error)
      throw error
    }
    await inspect(turn, answer)
    return answer
  }
  async function* stream(request: Request): AsyncGenerator<any> {
    const [turn, asked] = await begin(request)
    let events: AsyncIterator<any> | undefined
    let hasCome = false
    try {
      events = (await chosen<GuardableModel>(turn, model, settings)).getStreamedResponse(asked)[Symbol.asyncIterator]()
      for (;;) {
        turn.isRead()
        const { done, value: event } = await asTold(() => (events as AsyncIterator<any>).next())
        if (done) break
        hasCome = true
        turn.came(event.type === 'output_text_delta' ? event.delta : '')
        // The runner starts the tools when it has the whole answer.
        if (event.type === 'response_done') await inspect(turn, event.response)
        yield event
      }
    } catch (error) {
      if (!hasCome) await turn.failed(error)
      throw error
    } finally {
      await turn.ended()
      await events?.return?.()
    }
  }
  return replacing(model, {
    getResponse: (request: Request) =>
      respond(request).catch((error: unknown) => ({
        usage: { ...noUsage(), inputTokensDetails: [], outputTokensDetails: [] },
        ...said(saidAtEnd(error, settings)),
      })),
    async *getStreamedResponse(request: Request) {
      try {
        yield* stream(request)
      } catch (error) {
        const response = { id: 'runguard', usage: noUsage(), ...said(saidAtEnd(error, settings)) }
        yield { type: 'response_done', response }
      }
    },
  })
}

function ownName(model: any): string | undefined {
  return [model._model, model.model, model.modelId].find((name) => typeof name === 'string' && name !== '')
}

/** An answer that says a sentence. */
function said(text: string): { output: Item[] } {
  return { output: [{ type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text }] }] }
}

function noUsage(): object {
  return { requests: 0, inputTokens: 0, outputTokens: 0, totalTokens: 0 }
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

function isResult(item: Item): boolean {
  return typeof item['callId'] === 'string' && /_(result|output)$/.test(item.type ?? '')
}

function* toolResults(history: readonly Item[]): Generator<CallResult> {
  for (const item of history) if (isResult(item)) yield { id: String(item['callId']), result: item['output'] }
}

/** Null when nobody has counted: the SDK fills in zeros. */
function tokens(usage: any): Usage | null {
  if (!usage?.inputTokens && !usage?.outputTokens) return null
  const details = Array.isArray(usage.inputTokensDetails) ? usage.inputTokensDetails[0] : usage.inputTokensDetails
  return usageOfTotal(usage.inputTokens, usage.outputTokens, details?.cached_tokens, details?.cache_write_tokens)
}
