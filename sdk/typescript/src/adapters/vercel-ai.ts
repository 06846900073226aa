/**
 * Vercel AI SDK (`ai`): a guarded model.
 *
 *     const model = guardModel(openai('gpt-4o'), () => new Run({ maxUsd: 1 }))
 *     await generateText({ model, tools, stopWhen: stepCountIs(50), prompt })
 *
 * Each call of `generateText`, `streamText` or an agent is a run of its own; with a run instead of a function all calls belong to it,
 * and with neither they belong to the current run.
 *
 * The SDK turns what `execute` throws into a tool result and lets the model go on, so the guard is in the model: an error there ends
 * `generateText` and agents, and `streamText` with an error part; the SDK does not try again. With `{ onTrip: 'end' }` it is a final
 * answer of the model that says why.
 */

import { asTold } from '../current.js'
import { whenAborted } from '../models/exchange.js'
import type { Usage } from '../prices.js'
import { ModelTurns, chosen, parseArguments, replacing, saidAtEnd, usageOfTotal } from './model-turns.js'
import type { CallResult, GuardSettings, RunSource, Turn } from './model-turns.js'
import { toldOf } from './repeats.js'

/** What is used of a language model; the same in the specifications v2 (ai 5), v3 (ai 6) and v4 (ai 7). */
export interface GuardableModel {
  readonly modelId: string
  readonly specificationVersion?: string
  doGenerate(options: any): PromiseLike<any>
  doStream(options: any): PromiseLike<any>
}

interface Part {
  readonly type: string
  readonly [field: string]: unknown
}

interface Message {
  readonly role: string
  readonly content: string | readonly Part[]
}

interface Options {
  readonly prompt: readonly Message[]
  readonly tools?: unknown
  readonly maxOutputTokens?: number | undefined
  readonly abortSignal?: AbortSignal | undefined
}

/** A model that asks the run before each request and before each tool call it hands to the SDK. */
export function guardModel<Model extends GuardableModel>(model: Model, run?: RunSource, settings: GuardSettings = {}): Model {
  return guardedModel(model, run, { ...settings, held: /^tool-call$/ })
}

/** Tools that give the model a sentence in place of a result that it has already, where its guard has `{ onRepeat: 'tell' }`. */
export function tellRepeats<Tools extends Readonly<Record<string, any>>>(tools: Tools): Tools {
  const telling = Object.entries(tools).map(([name, tool]) => {
    if (typeof tool?.execute !== 'function') return [name, tool]
    const execute = (input: unknown, options: any): unknown => toldOf(options?.toolCallId, name, input) ?? tool.execute(input, options)
    return [name, { ...tool, execute }]
  })
  return Object.fromEntries(telling)
}

interface HoldingSettings extends GuardSettings {
  /** Parts of a stream that something may run a tool upon. From the first on all is held back until it is known whether it may. */
  readonly held: RegExp
}

export function guardedModel<Model extends GuardableModel>(model: Model, run: RunSource | undefined, settings: HoldingSettings): Model {
  const turns = new ModelTurns(run, settings)
  const mayFallBack = settings.modelNamed !== undefined

  const begin = async (options: Options): Promise<[Turn, Options]> => {
    const { prompt, tools, maxOutputTokens: maxTokens } = options
    const results = [...toolResults(prompt)]
    const last = prompt.at(-1)?.role === 'tool' ? [...toolResults(prompt.slice(-1))].map(({ id }) => id) : []
    const beginning = prompt.find(({ role }) => role === 'user')?.content
    const turn = await turns.begin({ model: model.modelId, prompt: [prompt, tools], maxTokens, mayFallBack, results, last, beginning })
    let asked = options
    if (turn.nudge !== null) asked = { ...asked, prompt: [...prompt, { role: 'user', content: [{ type: 'text', text: turn.nudge }] }] }
    if (turn.maxTokens !== null) asked = { ...asked, maxOutputTokens: turn.maxTokens }
    return [turn, asked]
  }
  const asks = async (turn: Turn, part: Part): Promise<void> => {
    if (part.type !== 'tool-call') return
    await turn.asks({ id: String(part['toolCallId']), tool: String(part['toolName']), args: parseArguments(part['input']) })
  }
  const asked = async (turn: Turn, ask: (model: GuardableModel) => PromiseLike<any>): Promise<any> => {
    try {
      const asking = await chosen(turn, model as GuardableModel, settings)
      return await asTold(() => ask(asking))
    } catch (error) {
      await turn.failed(error)
      throw error
    }
  }

  const generate = async (options: Options): Promise<any> => {
    const [turn, changed] = await begin(options)
    const answer = await asked(turn, (asking) => asking.doGenerate(changed))
    await turn.used(answered(answer.response), tokens(answer.usage), answer.content)
    for (const part of answer.content) await asks(turn, part)
    return answer
  }
  const stream = async (options: Options): Promise<any> => {
    const [turn, changed] = await begin(options)
    const answer = await asked(turn, (asking) => asking.doStream(changed))
    return { ...answer, stream: watched(answer.stream, turn, model, asks, settings, options.abortSignal) }
  }
  return replacing(model, {
    doGenerate: (options: Options) =>
      generate(options).catch((error: unknown) => ({
        ...finish(model),
        content: [{ type: 'text', text: saidAtEnd(error, settings) }],
        warnings: [],
      })),
    doStream: (options: Options) =>
      stream(options).catch((error: unknown) => ({ stream: streamOf(said(saidAtEnd(error, settings), model)) })),
  })
}

/** The parts of an answer, up to a call that is refused. */
function watched(
  parts: ReadableStream<Part>,
  turn: Turn,
  model: GuardableModel,
  asks: (turn: Turn, part: Part) => Promise<void>,
  settings: HoldingSettings,
  signal: AbortSignal | undefined,
): ReadableStream<Part> {
  const source = parts.getReader()
  let isRefused = false
  let name = ''
  let held: Part[] = []
  const forget = whenAborted(signal, turn)
  const ended = async (): Promise<void> => {
    forget()
    await turn.ended()
  }
  turn.came('')
  const released = (...otherwise: Part[]): Part[] => {
    const parts = held.length > 0 ? held : otherwise
    held = []
    return parts
  }
  const shown = async (part: Part): Promise<Part[]> => {
    if (part.type === 'response-metadata' && typeof part['modelId'] === 'string') name = part['modelId']
    if (typeof part['delta'] === 'string') turn.came(part['delta'])
    if (part.type === 'finish') {
      const usage = tokens(part['usage'])
      await (usage === null ? ended() : turn.used(name, usage, ''))
    }
    // After a refusal only the usage is of interest, which comes last: it was spent all the same.
    if (isRefused) return []
    try {
      // The SDK runs a tool as soon as its call arrives: one that is refused must not be passed on, nor one of an answer that breaks the
      // budget, which is known at its end.
      await asks(turn, part)
      if (settings.held.test(part.type) || held.length > 0) held.push(part)
      if (held.length > 0 && part.type !== 'finish') return []
      if (held.length > 0) turn.check()
      return released(part)
    } catch (error) {
      isRefused = true
      // Errors are parts of the SDK's streams: one thrown here would break a server's response.
      return settings.onTrip === 'end' ? said(saidAtEnd(error, settings), model).slice(1) : [{ type: 'error', error }]
    }
  }
  return new ReadableStream<Part>(
    {
      async pull(stream) {
        turn.isRead()
        for (;;) {
          const { done, value } = await source.read().catch(async (error: unknown) => {
            await ended()
            throw error
          })
          if (done) {
            await ended()
            if (!isRefused) for (const part of released()) stream.enqueue(part)
            stream.close()
            return
          }
          const visible = await shown(value)
          if (visible.length > 0) turn.came('')
          for (const part of visible) stream.enqueue(part)
          if (visible.length > 0) return
        }
      },
      async cancel(reason) {
        await ended()
        await source.cancel(reason)
      },
    },
    { highWaterMark: 0 },
  )
}

/** An answer of the model's that says a sentence, and how it ends. */
function said(text: string, model: GuardableModel): Part[] {
  const id = 'runguard'
  return [
    { type: 'stream-start', warnings: [] },
    { type: 'text-start', id },
    { type: 'text-delta', id, delta: text },
    { type: 'text-end', id },
    { type: 'finish', ...finish(model) },
  ]
}

function finish({ specificationVersion }: GuardableModel): { finishReason: unknown; usage: unknown } {
  if (specificationVersion === 'v2') return { finishReason: 'stop', usage: { inputTokens: 0, outputTokens: 0, totalTokens: 0 } }
  const inputTokens = { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 }
  return { finishReason: { unified: 'stop', raw: undefined }, usage: { inputTokens, outputTokens: { total: 0, text: 0, reasoning: 0 } } }
}

function streamOf(parts: readonly Part[]): ReadableStream<Part> {
  return new ReadableStream({
    start(stream) {
      for (const part of parts) stream.enqueue(part)
      stream.close()
    },
  })
}

/** The model that answered; nothing where it does not say, then it is the one that was asked. */
function answered(response: { modelId?: unknown } | undefined): string {
  return typeof response?.modelId === 'string' ? response.modelId : ''
}

function* toolResults(prompt: readonly Message[]): Generator<CallResult> {
  for (const { content } of prompt) {
    if (typeof content === 'string') continue
    for (const part of content) {
      if (part.type !== 'tool-result') continue
      const id = String(part['toolCallId'])
      const output = part['output'] as { type: string; value?: unknown; reason?: unknown }
      if (output.type.startsWith('error')) yield { id, error: output.value }
      else if (output.type === 'execution-denied') yield { id, error: output.reason ?? 'execution denied' }
      else yield { id, result: output.value }
    }
  }
}

/** v2 gives plain numbers, later specifications a breakdown; cached tokens are part of the input in all. Null when nobody has counted. */
function tokens(usage: any): Usage | null {
  const [input, output] = [usage?.inputTokens, usage?.outputTokens]
  const total = typeof input === 'number' ? input : input?.total
  const written = typeof output === 'number' ? output : output?.total
  if (typeof total !== 'number' && typeof written !== 'number') return null
  return usageOfTotal(total, written, input?.cacheRead ?? usage?.cachedInputTokens, input?.cacheWrite)
}
