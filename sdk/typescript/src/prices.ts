/** What model calls cost: a table that comes with the package, and prices of your own before it. */
import { count, snakeCase, text } from './core/input.js'
import { argumentsToJson, resultToText } from './core/json.js'
import { DONE, TOLD, UNKNOWN_MODEL, failure, output, outputJson, secondLength, wasm, write, writeAll, writeTwo, type Counts } from './core/wasm.js'
import { InvalidInputError, UnknownModelError, type RunGuardError } from './errors.js'

/** Tokens of a model call, each counted in one field. */
export interface Usage {
  /** Read afresh: without the cached and cache-writing ones. */
  inputTokens?: number | undefined
  /** Written by the model, its reasoning included. */
  outputTokens?: number | undefined
  /** Of the prompt, read from a cache. */
  cachedTokens?: number | undefined
  /** Of the prompt, written to a cache. */
  cacheWriteTokens?: number | undefined
  /** Of the prompt, written to a cache for an hour; not in `cacheWriteTokens`. */
  cacheWrite1hTokens?: number | undefined
  /** Of the prompt, sound that is heard; not in `inputTokens`. */
  audioInputTokens?: number | undefined
  /** Of the answer, sound that is spoken; not in `outputTokens`. */
  audioOutputTokens?: number | undefined
  /** How it was served, as the provider's answer says: `priority`, `flex` and `batch` have prices, all else is the standard. */
  serviceTier?: string | null | undefined
}

/** Dollars for a million tokens, as decimal text ("0.25") or a number. */
export interface Price {
  input: number | string
  output: number | string
  /** Left out: as input. */
  cacheRead?: number | string | undefined
  cacheWrite?: number | string | undefined
  /** For entries that are kept an hour. Left out: as `cacheWrite`. */
  cacheWrite1h?: number | string | undefined
  /** Sound that is heard. Left out: as input. */
  audioInput?: number | string | undefined
  /** Sound that is spoken. Left out: as output. */
  audioOutput?: number | string | undefined
  /** The longest answer of the model in tokens: what is set aside for a call that asks for no length. Left out: the table's, or 8,192. */
  maxOutput?: number | undefined
  /** Prices of requests whose whole prompt is larger than `tokens`. */
  above?: readonly SizedPrice[] | undefined
  /** Prices of other ways to be served, by the size of the prompt (`tokens: 0`: any). What is left out costs what it always does. */
  priority?: readonly SizedPrice[] | undefined
  flex?: readonly SizedPrice[] | undefined
  batch?: readonly SizedPrice[] | undefined
}

/** What requests cost whose whole prompt is larger than `tokens`. */
export type SizedPrice = { tokens: number } & Partial<
  Pick<Price, 'input' | 'output' | 'cacheRead' | 'cacheWrite' | 'cacheWrite1h' | 'audioInput' | 'audioOutput'>
>

/** In the order of the core's numbers. */
const SERVICE_TIERS = ['standard', 'priority', 'flex', 'batch']

/** The counts of a usage in the order the core takes them, and how it was served. */
export function counts(usage: Usage): Counts {
  return [
    count('inputTokens', usage.inputTokens ?? 0),
    count('outputTokens', usage.outputTokens ?? 0),
    count('cachedTokens', usage.cachedTokens ?? 0),
    count('cacheWriteTokens', usage.cacheWriteTokens ?? 0),
    count('cacheWrite1hTokens', usage.cacheWrite1hTokens ?? 0),
    count('audioInputTokens', usage.audioInputTokens ?? 0),
    count('audioOutputTokens', usage.audioOutputTokens ?? 0),
    Math.max(SERVICE_TIERS.indexOf(usage.serviceTier ?? 'standard'), 0),
  ]
}

/** Whose usage reports can be read. */
export type UsageProvider = 'openai' | 'anthropic' | 'bedrock' | 'gemini' | 'langchain'

/** Why a run with a budget cannot have a request to this address, if it is one that is paid for though no answer says how much. */
export function unmetered(path: string): string | null {
  return wasm.unmetered(write(path)) === DONE ? null : output()
}

/** What a request asks for, as the core reads it. */
export interface Asked {
  /** The longest answer, of several each; null where that is left to the model. */
  readonly max_output: number | null
  readonly choices: number
  /** The members by which an answer is made shorter. */
  readonly bounds: readonly string[]
  /** Why no limit in dollars can hold it. */
  readonly unmetered: string | null
}

/** Reads a request to a provider. */
export function askedOfModel(path: string, model: string, body: Readonly<Record<string, unknown>>): Asked {
  // What is said to a model does not say how the answer is to be.
  const { messages: _messages, input: _input, system: _system, instructions: _instructions, ...rest } = body
  const lengths = writeAll([path, model, resultToText(rest)])
  const status = wasm.asked_of_model(...(lengths as [number, number, number]))
  return status === TOLD ? outputJson() : { max_output: null, choices: 1, bounds: [], unmetered: null }
}

/** Whether a request that ended with this error may have been answered, and billed: by the names of it and of what caused it. */
export function mayBeBilled(error: unknown): boolean {
  const names = new Set<string>()
  let cause = error
  for (let depth = 0; cause instanceof Error && depth < 16; depth++, cause = cause.cause) names.add(cause.name).add(cause.constructor.name)
  return wasm.may_be_billed(write([...names].join('\n'))) !== 0
}

/**
 * The counts of a provider's usage report, each token in one field: `openai` (chat completions, responses, and services that answer like them),
 * `anthropic`, `bedrock` (Converse), `gemini`, `langchain` (the `usage_metadata` of its messages). Throws InvalidInputError for what is no such report.
 */
export function readUsage(provider: UsageProvider, report: unknown): Usage {
  const status = wasm.usage_read(writeTwo(text('provider', provider), resultToText(report)), secondLength)
  if (status !== DONE) throw failure(status)
  const told = outputJson<Record<string, unknown>>()
  const named = Object.entries(told).map(([name, value]) => [
    name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase()),
    value,
  ])
  return Object.fromEntries(named) as Usage
}

/** The same; null where nobody has counted, or in no way that can be read: an answer that is paid for is not lost to that. */
export function usageIn(provider: UsageProvider, report: unknown): Usage | null {
  if (typeof report !== 'object' || report === null) return null
  try {
    return readUsage(provider, report)
  } catch (error) {
    if (error instanceof InvalidInputError) return null
    throw error
  }
}

/** What a stream has reported of its usage so far with what it reports now: both as the provider writes them. */
export function usageMerged(earlier: object, later: unknown): object {
  const status = wasm.usage_merge(writeTwo(resultToText(earlier), resultToText(later)), secondLength)
  if (status !== DONE) throw failure(status)
  return outputJson()
}

/** Dollars a model call costs. Throws UnknownModelError for a model without a price. */
export function costUsd(model: string, usage: Usage): number {
  const tokens = counts(usage)
  const usd = wasm.cost_usd(write(text('model', model)), ...tokens)
  if (usd < 0) throw priceFailure(-usd, model)
  return usd
}

/** The error of a status that pricing left. */
export function priceFailure(status: number, model: string): RunGuardError {
  return status === UNKNOWN_MODEL ? new UnknownModelError(output(), { model }) : failure(status)
}

/**
 * Sets prices that go before the table, for this process. `unknownModel` says what a model without a price costs:
 * an error (default), nothing, or a price.
 */
export function setPrices(
  models: Readonly<Record<string, Price>>,
  options: { unknownModel?: 'error' | 'free' | Price | undefined } = {},
): void {
  const named = Object.fromEntries(Object.entries(models).map(([model, price]) => [text('The name of a model', model), inCore(price)]))
  const { unknownModel } = options
  const status = wasm.prices_set(write(argumentsToJson(named)))
  if (status !== DONE) throw failure(status)
  if (unknownModel === undefined) return
  const chosen = wasm.prices_unknown(write(argumentsToJson(typeof unknownModel === 'string' ? unknownModel : inCore(unknownModel))))
  if (chosen !== DONE) throw failure(chosen)
}

function inCore(price: Price): unknown {
  const sized = (prices: readonly SizedPrice[] | undefined) => prices?.map(snakeCase)
  const { above, priority, flex, batch } = price
  return snakeCase({ ...price, above: sized(above), priority: sized(priority), flex: sized(flex), batch: sized(batch) })
}
