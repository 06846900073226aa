/**
 * What the adapters that sit between an agent and its model have in common.
 *
 * Frameworks swallow what a tool throws and go on; none goes on without an answer of its model. So the
 * guard sits there: it sees the tools an answer asks for before any of them runs, and their results in
 * the request that follows. What a call may cost is set aside before it is sent.
 */

import { answerSize } from '../core/json.js'
import { InvalidInputError, tripOf } from '../errors.js'
import { BEGIN, INSTEAD, type ModelCall } from '../model-call.js'
import { failed, settle, untilNext } from '../models/exchange.js'
import { parseArguments, usageOfTotal } from '../models/routes.js'
import type { Usage } from '../prices.js'
import { tell, type OnRepeat, type Told } from './repeats.js'
import { Runs, type AnyRun, type RunSource } from './runs.js'

export { parseArguments, usageOfTotal }
export type { RunSource }

export interface GuardSettings {
  /** What becomes of a run that is stopped: an error (`throw`, the default), or a final answer of the model that says why (`end`). */
  onTrip?: 'throw' | 'end' | undefined
  /**
   * Gives the model of a name, for the run's `fallbackModel`: these adapters stand for one model, and cannot change it by its name. A provider of
   * the AI SDK is such a function. Without it the model stays.
   */
  modelNamed?: ((name: string) => any) | undefined
  /**
   * What becomes of a tool call whose result the model has already: it runs until the run is stopped (`run`, the default), or the model is told so
   * (`tell`) by the tool, which must come from this adapter's `tellRepeats`.
   */
  onRepeat?: OnRepeat | undefined
}

/** Whether the model is told. */
export function tells({ onRepeat = 'run' }: Pick<GuardSettings, 'onRepeat'>): boolean {
  if (onRepeat !== 'run' && onRepeat !== 'tell')
    throw new InvalidInputError(`onRepeat must be 'run' or 'tell', not ${JSON.stringify(onRepeat)}.`)
  return onRepeat === 'tell'
}

export interface AskedCall {
  readonly id: string
  readonly tool: string
  readonly args: unknown
}

export interface CallResult {
  readonly id: string
  readonly result?: unknown
  readonly error?: unknown
}

export interface ModelRequest {
  /** The name prices are known by. */
  readonly model: string
  /** All that is sent. */
  readonly prompt: unknown
  readonly maxTokens: number | undefined
  /** How many answers are asked for, as it stands there; one when it is not said. */
  readonly choices?: unknown
  /** Another model can be asked instead. */
  readonly mayFallBack: boolean
  /** Every result that is in the request. */
  readonly results: Iterable<CallResult>
  /** The ids of those it ends with. */
  readonly last: readonly string[]
  /** What the conversation begins with. */
  readonly beginning: unknown
}

/** The tools that the answers to one run have asked for. */
interface Asked {
  readonly run: AnyRun
  readonly calls: Map<string, AskedCall & { readonly told: Told | null }>
}

export class ModelTurns {
  readonly #runs: Runs<Asked>
  readonly #tells: boolean

  constructor(source: RunSource | undefined, settings: Pick<GuardSettings, 'onRepeat'>) {
    this.#tells = tells(settings)
    this.#runs = new Runs(source, (run) => ({ run, calls: new Map() }))
  }

  /**
   * Before a request: hands the run the results it has not seen yet, then asks whether the model may be
   * called. Throws the trip of a run that is over.
   */
  async begin(request: ModelRequest): Promise<Turn> {
    const asked = this.#runs.of(request.last, request.beginning)
    // A request carries the whole history; with ids used twice the newest result is the one asked for.
    const newest = new Map<string, CallResult>()
    for (const result of request.results) newest.set(result.id, result)

    const nudges: string[] = []
    for (const [id, call] of asked.calls) {
      const found = newest.get(id)
      if (!found) continue
      asked.calls.delete(id)
      // A sentence is no result.
      if (call.told?.isRead) continue
      const outcome = found.error === undefined ? {} : { error: found.error }
      const nudge = await asked.run.afterTool(call.tool, call.args, found.result, outcome)
      if (nudge) nudges.push(nudge)
    }
    const call = await asked.run[BEGIN](request.model, request.prompt, {
      maxTokens: request.maxTokens,
      choices: request.choices,
      mayFallBack: request.mayFallBack,
    })
    const remember = (one: AskedCall): void => {
      const instead = this.#tells ? asked.run[INSTEAD](one.tool, one.args) : null
      asked.calls.set(one.id, { ...one, told: instead === null ? null : tell(one.id, one.tool, one.args, instead) })
      this.#runs.asked(one.id, request.beginning, asked)
    }
    const nudge = nudges.length > 0 ? nudges.join('\n') : null
    return new Turn(asked.run, call, nudge, call.model === request.model ? null : call.model, remember)
  }
}

/** One model call of a framework. */
export class Turn {
  readonly #run: AnyRun
  readonly #call: ModelCall
  readonly #remember: (call: AskedCall) => void
  /** A text the model should read, or null. */
  readonly nudge: string | null
  /** The name of the model to ask instead, or null. */
  readonly fallback: string | null

  constructor(run: AnyRun, call: ModelCall, nudge: string | null, fallback: string | null, remember: (call: AskedCall) => void) {
    this.#run = run
    this.#call = call
    this.nudge = nudge
    this.fallback = fallback
    this.#remember = remember
  }

  /** The longest answer that what is left pays for; null when the one that was asked for fits. */
  get maxTokens(): number | null {
    return this.#call.maxTokens
  }

  /**
   * What the model used; null when nobody has counted, then `came` is what it wrote. What was spent is spent: an answer that ends the
   * task is worth having even if it went over the budget. The run keeps the trip, so the next tool or model call is refused.
   */
  async used(model: string, usage: Usage | null, came: unknown): Promise<void> {
    await settle(this.#call, usage, model, came)
  }

  // Of an answer that is handed out piece by piece.

  /** Somebody waits for the next piece. */
  isRead(): void {
    this.#call.progress.isRead()
  }

  /** This came, and is handed out. */
  came(piece: unknown): void {
    this.#call.progress.bytes += answerSize(piece)
    this.#call.progress.rests()
  }

  /** It is over, and nobody has counted: bills what came. What has been billed is not billed again. */
  async ended(): Promise<void> {
    await untilNext(() => this.#call.brokenOff())
  }

  /** The request ended with an error. */
  async failed(error: unknown): Promise<void> {
    await failed(this.#call, error)
  }

  /** Throws when the run is over. */
  check(): void {
    this.#run.check()
  }

  /** Each tool an answer asks for, before it runs. Throws when it must not. */
  async asks(call: AskedCall): Promise<void> {
    await this.#run.beforeTool(call.tool, call.args)
    this.#remember(call)
  }
}

/** What to say for an error that a framework may end with politely; throws any other. */
export function saidAtEnd(error: unknown, { onTrip = 'throw' }: GuardSettings): string {
  const trip = onTrip === 'end' ? tripOf(error) : null
  if (trip === null) throw error
  return trip.message
}

/** The model to ask: the one that is meant, or the run's fallback. */
export async function chosen<Model>(turn: Turn, model: Model, { modelNamed }: GuardSettings): Promise<Model> {
  return turn.fallback === null || modelNamed === undefined ? model : ((await modelNamed(turn.fallback)) as Model)
}

/** The same object with some methods of ours. */
export function replacing<Target extends object>(target: Target, methods: Readonly<Record<string, unknown>>): Target {
  return new Proxy(target, {
    get(original, name) {
      if (typeof name === 'string' && Object.hasOwn(methods, name)) return methods[name]
      // Bound to the original: private fields are not reachable through a proxy.
      const value: unknown = Reflect.get(original, name, original)
      return typeof value === 'function' ? value.bind(original) : value
    },
  })
}

/** The items a list ends with that are so. */
export function ending<Item>(list: readonly Item[], isSo: (item: Item) => boolean): Item[] {
  let begin = list.length
  while (begin > 0 && isSo(list[begin - 1] as Item)) begin -= 1
  return list.slice(begin)
}
