/** What a run may spend: dollars, tokens, calls of one step. */
import { Alerts, type AlertsLike } from './alerts.js'
import { amount, count, known, numberOrNone, text } from './core/input.js'
import {
  CoreObject,
  DONE,
  TRIPPED,
  UNKNOWN_MODEL,
  failure,
  onCollected,
  outputJson,
  secondLength,
  wasm,
  write,
  writeTwo,
} from './core/wasm.js'
import { reservationEnded, tripError } from './core/steps.js'
import { BudgetExceededError, RunGuardError } from './errors.js'
import { counts, priceFailure, type Usage } from './prices.js'
import { RemoteBudgetTracker } from './remote.js'

export interface BudgetLimits {
  maxUsd?: number | null | undefined
  maxTokens?: number | null | undefined
  /** Calls of each step of each session. */
  cap?: number | null | undefined
}

export interface BudgetOptions extends BudgetLimits {
  /** Where it is reported that a limit is exceeded: once for each limit that says so. Children report by themselves. */
  alerts?: AlertsLike | undefined
}

/** The books of a budget. What children spent and reserved is in them. Dollars are floats here, and nano-dollars inside. */
export interface Books {
  spent: number
  reserved: number
  /** What may still be spent, over all parents; null where nothing limits it. */
  remaining: number | null
  limit: number | null
  spentTokens: number
  reservedTokens: number
  remainingTokens: number | null
  limitTokens: number | null
}

export interface TokenAmount {
  tokens?: number | undefined
}

const nothing: BudgetLimits = {}

/** A budget of dollars, tokens, or calls. Sums are exact to the nano-dollar. */
export class BudgetTracker extends CoreObject {
  readonly #alerts: Alerts | null
  /** What was reported: each limit is exceeded again by every later record. */
  readonly #reported: Set<string> | null

  constructor(limits: BudgetOptions = nothing, parent?: { handle: number }) {
    known('BudgetTracker', limits, ['maxUsd', 'maxTokens', 'cap', 'alerts'])
    const given = [
      numberOrNone('maxUsd', limits.maxUsd),
      numberOrNone('maxTokens', limits.maxTokens),
      numberOrNone('cap', limits.cap),
    ] as const
    super(parent === undefined ? wasm.budget_new(...given) : wasm.budget_child(parent.handle, ...given), wasm.budget_free)
    this.#alerts = Alerts.of(limits.alerts)
    this.#reported = this.#alerts === null ? null : new Set()
  }

  /** The same with async methods, kept by a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteBudgetTracker>[0]): RemoteBudgetTracker {
    return new RemoteBudgetTracker(options)
  }

  /** A budget that draws on what remains of this one. */
  child(limits: BudgetOptions = nothing): BudgetTracker {
    return new BudgetTracker(limits, { handle: this.handle })
  }

  /**
   * `record(usd)` adds dollars spent; `record(sessionId, stepId)` counts a call against the cap, `record()` one of a budget without steps.
   * Throws BudgetExceededError: money spent stays counted, a call over the cap is not counted, for it is yet to be made.
   */
  record(): void
  record(usd: number): void
  record(sessionId: string, stepId: string): void
  record(...given: [first?: number | string, stepId?: string]): void {
    const [first, stepId] = given
    if (given.length === 0) {
      this.#settle(wasm.budget_count_any(this.handle))
    } else if (typeof first === 'string') {
      const session = text('sessionId', first)
      this.#settle(wasm.budget_count(this.handle, writeTwo(session, text('stepId', stepId)), secondLength))
    } else {
      this.#settle(wasm.budget_record(this.handle, amount('usd', first), 0))
    }
  }

  /** Adds tokens used. */
  recordTokens(tokens: number): void {
    this.#settle(wasm.budget_record(this.handle, 0, count('tokens', tokens)))
  }

  /**
   * Prices what a model call used, and adds dollars and tokens. Of a model without a price the tokens are added; throws
   * UnknownModelError where dollars are limited.
   */
  recordUsage(model: string, usage: Usage): void {
    const tokens = counts(usage)
    const status = wasm.budget_record_usage(this.handle, write(text('model', model)), ...tokens)
    if (status !== DONE) throw status === UNKNOWN_MODEL ? priceFailure(status, model) : this.#told(problem(status))
  }

  /**
   * What is left: of dollars, else of calls, else of tokens, of the first that is limited; with a session and a step the calls of
   * that step. Infinity where nothing limits it.
   */
  check(): number
  check(sessionId: string, stepId: string): number
  check(sessionId?: string, stepId?: string): number {
    if (sessionId === undefined) return this.#kept().left ?? Infinity
    const session = text('sessionId', sessionId)
    const left = wasm.budget_calls_left(this.handle, writeTwo(session, text('stepId', stepId)), secondLength)
    if (left < 0) throw failure(left)
    return left
  }

  /** The error when nothing more may be spent, or null. */
  exhausted(): BudgetExceededError | null {
    const status = wasm.budget_exhausted(this.handle)
    if (status === DONE) return null
    const error = problem(status)
    if (error instanceof BudgetExceededError) return error
    throw error
  }

  /** Sets an estimate aside. Throws BudgetExceededError, with nothing set aside, when it does not fit. */
  reserve(usd = 0, { tokens = 0 }: TokenAmount = {}): Reservation {
    const id = wasm.budget_reserve(this.handle, amount('usd', usd), count('tokens', tokens))
    if (id < 0) throw problem(-id)
    return new Reservation(this, id, usd, tokens)
  }

  /** Used by `Reservation`. */
  commitReservation(id: number, usd: number, tokens: number): void {
    this.#settle(wasm.budget_commit(this.handle, id, amount('usd', usd), count('tokens', tokens)))
  }

  /** Used by `Reservation`. */
  releaseReservation(id: number): void {
    if (this.handle !== 0) wasm.budget_release(this.handle, id)
  }

  get books(): Books {
    const { left: _, ...books } = this.#kept()
    const renamed = Object.entries(books).map(([name, value]) => [name.replace('_tokens', 'Tokens'), value])
    return Object.fromEntries(renamed) as Books
  }

  #kept(): Record<string, number | null> & { left: number | null } {
    const status = wasm.budget_books(this.handle)
    if (status !== DONE) throw failure(status)
    return outputJson()
  }

  /** Dollars spent. */
  get spent(): number {
    return this.books.spent
  }

  /** Dollars set aside. */
  get reserved(): number {
    return this.books.reserved
  }

  /** Dollars that may still be spent; Infinity where nothing limits them. */
  get remaining(): number {
    return this.books.remaining ?? Infinity
  }

  /** The limit in dollars, or null. */
  get limit(): number | null {
    return this.books.limit
  }

  #settle(status: number): void {
    if (status !== DONE) throw this.#told(problem(status))
  }

  #told(error: RunGuardError): RunGuardError {
    if (this.#alerts === null || this.#reported === null || !(error instanceof BudgetExceededError)) return error
    const limit = `${error.unit} ${error.limit}`
    if (!this.#reported.has(limit)) this.#alerts.send(error)
    this.#reported.add(limit)
    return error
  }
}

function problem(status: number): RunGuardError {
  return status === TRIPPED ? tripError() : failure(status)
}

/** An estimate that is set aside until `commit` or `release`. With `using` it is released unless it was committed. */
export class Reservation {
  readonly #budget: BudgetTracker
  readonly #id: number
  readonly usd: number
  readonly tokens: number
  #open = true

  constructor(budget: BudgetTracker, id: number, usd: number, tokens: number) {
    this.#budget = budget
    this.#id = id
    this.usd = usd
    this.tokens = tokens
    // One that is forgotten must not hold its money for ever.
    onCollected(this, () => budget.releaseReservation(id))
  }

  /** Settles with the true cost, by default the estimate. It is counted in any case; throws BudgetExceededError when it does not fit. */
  commit(usd: number = this.usd, { tokens = this.tokens }: TokenAmount = {}): void {
    amount('usd', usd)
    count('tokens', tokens)
    if (!this.#open) throw reservationEnded()
    this.#open = false
    this.#budget.commitReservation(this.#id, usd, tokens)
  }

  /** Gives back what was set aside. Once settled, does nothing. */
  release(): void {
    if (!this.#open) return
    this.#open = false
    this.#budget.releaseReservation(this.#id)
  }

  [Symbol.dispose](): void {
    this.release()
  }
}
