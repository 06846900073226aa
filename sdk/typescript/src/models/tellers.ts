/** Who tells a run of a model call: a hooked client of the money alone, a guarded one of the tools as well. */
import { TOLD, wasm } from '../core/wasm.js'
import { BEGIN, COUNT_MODEL, HANDLE, HEARS_HOOKS, NOTE_USAGE, type BeginOptions, type ModelCall } from '../model-call.js'
import { InvalidInputError } from '../errors.js'
import { askedOfModel, type Asked, type Usage } from '../prices.js'
import type { AnyRun } from '../adapters/runs.js'
import { Exchange, modelOf, type Teller } from './exchange.js'
import { Unmetered, type Route, type ToolCall } from './routes.js'

/** A conversation that keeps more open or nudged calls than this has lost their results long ago; the oldest are forgotten. */
const REMEMBERED_CALLS = 10_000

/** What a hooked client needs of a run, in this process or in a service. */
export interface HookedRun {
  [BEGIN](model: string, prompt: unknown, options: BeginOptions): Promise<ModelCall>
  [HEARS_HOOKS](): boolean
  [NOTE_USAGE](usage: Usage): void
  readonly [HANDLE]: number
  [COUNT_MODEL](): Promise<void> | void
  readonly budget: object | null
  check(): void
}

/** What a request asks for. Throws where nobody could say what it costs, and dollars are limited. */
function askedOf(run: Pick<HookedRun, typeof HANDLE>, route: Route, body: any): Asked {
  const asked = askedOfModel(route.path, modelOf(body), body)
  if (asked.unmetered !== null && wasm.run_limits_dollars(run[HANDLE]) === TOLD) throw new InvalidInputError(asked.unmetered)
  return asked
}

function begun(run: Pick<HookedRun, typeof BEGIN>, body: any, asked: Asked, mayFallBack: boolean): Promise<ModelCall> {
  return run[BEGIN](modelOf(body), body, { maxTokens: asked.max_output ?? undefined, choices: asked.choices, mayFallBack })
}

const UNREADABLE =
  'The body of this request to a model cannot be read, so what it may cost cannot be set aside, and the run has a budget. ' +
  'Send JSON that is not compressed, or send it outside of the run.'

/** A model is asked something that cannot be read or metered. Under a budget that must not be: nobody could say what it costs. */
async function unread(run: Pick<HookedRun, 'budget' | typeof COUNT_MODEL>, route: Route | Unmetered): Promise<null> {
  if (run.budget !== null) throw new InvalidInputError(route instanceof Unmetered ? route.why : UNREADABLE)
  await run[COUNT_MODEL]()
  return null
}

/**
 * How a request begins: which API it is of, what it asks (null when that cannot be read), and whether the model in its body is the one that
 * answers. Null: nothing is known of it, and nothing stands against it.
 */
export type Begin = (route: Route | Unmetered, body: any, mayFallBack: boolean) => Promise<Exchange | null>

/** What a hooked client tells: money. Tools are told by who calls them. */
export class Spending implements Teller {
  readonly #run: HookedRun

  constructor(run: HookedRun) {
    this.#run = run
  }

  /** Throws when the run is over, or has not enough left. */
  async begin(route: Route | Unmetered, body: any, mayFallBack: boolean): Promise<Exchange | null> {
    if (body === null || route instanceof Unmetered) return this.#run[HEARS_HOOKS]() ? unread(this.#run, route) : null
    if (!this.#run[HEARS_HOOKS]()) return new Exchange(this, route, body, null, [])
    const asked = askedOf(this.#run, route, body)
    return new Exchange(this, route, body, await begun(this.#run, body, asked, mayFallBack), asked.bounds)
  }

  asked(calls: readonly ToolCall[]): void {
    if (calls.length > 0) this.check()
  }

  used(usage: Usage): void {
    this.#run[NOTE_USAGE](usage)
  }

  check(): void {
    this.#run.check()
  }
}

/** What a guarded client has seen of its run. */
export class Conversation {
  readonly #run: AnyRun
  readonly #endsPolitely: boolean
  readonly #waiting = new Map<string, ToolCall>()
  readonly #known = new Map<string, true>()
  readonly #nudges = new Map<string, string>()

  constructor(run: AnyRun, endsPolitely: boolean) {
    this.#run = run
    this.#endsPolitely = endsPolitely
  }

  /** Tells of the calls and results that are in a request, and begins the model call. Throws when the run is over. `onAsked` hears of calls that are allowed. */
  async begin(route: Route | Unmetered, asked: any, mayFallBack: boolean, onAsked: (calls: readonly ToolCall[]) => void): Promise<Exchange | null> {
    this.check()
    if (asked === null || route instanceof Unmetered) return unread(this.#run, route)
    const asks = askedOf(this.#run, route, asked)
    const { calls, results } = route.transcript(asked)
    // Calls that no answer brought come from a run that was stopped and started anew: they count as well.
    await this.asked(calls.filter(({ id }) => !this.#known.has(id)))
    for (const [id, call] of this.#waiting) {
      const found = results.get(id)
      if (found === undefined) continue
      this.#waiting.delete(id)
      const outcome = found.error === undefined ? {} : { error: found.error }
      const nudge = await this.#run.afterTool(call.tool, call.args, found.result, outcome)
      if (nudge) remember(this.#nudges, id, nudge)
    }
    // A nudge is in no transcript of the caller's, so it is put in again every time, or the model would forget it.
    const nudges = new Map([...this.#nudges].filter(([id]) => results.has(id)))
    const body = nudges.size > 0 ? route.withNudges(asked, nudges) : asked
    const teller: Teller = {
      endsPolitely: this.#endsPolitely,
      check: () => this.check(),
      asked: async (calls) => {
        await this.asked(calls)
        onAsked(calls)
      },
    }
    return new Exchange(teller, route, body, await begun(this.#run, body, asks, mayFallBack), asks.bounds)
  }

  async asked(calls: readonly ToolCall[]): Promise<void> {
    for (const call of calls) {
      remember(this.#known, call.id, true)
      await this.#run.beforeTool(call.tool, call.args)
      remember(this.#waiting, call.id, call)
    }
  }

  check(): void {
    this.#run.check()
  }
}

function remember<Value>(table: Map<string, Value>, key: string, value: Value): void {
  table.delete(key)
  table.set(key, value)
  if (table.size > REMEMBERED_CALLS) table.delete(table.keys().next().value as string)
}
