/**
 * Which run a request belongs to, where one object (a model, a middleware, a client) serves everybody.
 *
 * A run that is given takes all. Otherwise it is the current run, or one for each invocation: a request that ends with results of tools
 * belongs to the run whose answer asked for them; any other begins an invocation.
 */
import { currentRun } from '../current.js'
import { InvalidInputError } from '../errors.js'
import type { RemoteRun } from '../remote.js'
import { Run } from '../run.js'

/** A run for everything, or a function that gives the run of an invocation; left out: the current run, or one for each invocation. */
export type RunSource = AnyRun | (() => AnyRun)

/** In this process, or in a service. */
export type AnyRun = Run | RemoteRun

/** Calls whose results may still come. The oldest are forgotten. */
const REMEMBERED_CALLS = 10_000
/** Of the text an invocation begins with, this much tells it from others: some services give ids that are not unique. */
const LONGEST_BEGINNING = 500

/** What is kept for each run. */
export class Runs<State> {
  readonly #source: RunSource | undefined
  readonly #make: (run: AnyRun) => State
  readonly #states = new WeakMap<AnyRun, State>()
  readonly #waiting = new Map<string, State>()

  constructor(source: RunSource | undefined, make: (run: AnyRun) => State) {
    if (source !== undefined && typeof source !== 'function' && typeof source?.beforeTool !== 'function')
      throw new InvalidInputError('An adapter takes a run, a function that gives one, or nothing.')
    this.#source = source
    this.#make = make
  }

  /** Of a request that ends with the results of these calls. `beginning` is what its conversation begins with. */
  of(results: readonly string[], beginning: unknown): State {
    if (this.#source !== undefined && typeof this.#source !== 'function') return this.#stateOf(this.#source)
    const current = this.#source === undefined ? currentRun() : null
    if (current !== null) return this.#stateOf(current)
    for (const id of results) {
      const found = this.#waiting.get(key(id, beginning))
      if (found !== undefined) return found
    }
    return this.#stateOf(this.#source?.() ?? new Run())
  }

  /** The answer to a request asked for a tool. */
  asked(id: string, beginning: unknown, state: State): void {
    if (typeof this.#source === 'object') return
    const one = key(id, beginning)
    this.#waiting.delete(one)
    this.#waiting.set(one, state)
    if (this.#waiting.size > REMEMBERED_CALLS) this.#waiting.delete(this.#waiting.keys().next().value as string)
  }

  #stateOf(run: AnyRun): State {
    const known = this.#states.get(run)
    if (known !== undefined) return known
    const state = this.#make(run)
    this.#states.set(run, state)
    return state
  }
}

function key(id: string, beginning: unknown): string {
  const text = typeof beginning === 'string' ? beginning : (JSON.stringify(beginning) ?? '')
  return `${id} ${text.length} ${text.slice(0, LONGEST_BEGINNING)}`
}

/** The run of an adapter that has no requests to tell invocations by; null when there is none. */
export function runOf(source: RunSource | undefined): AnyRun | null {
  return (typeof source === 'function' ? source() : source) ?? currentRun()
}
