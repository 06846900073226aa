/** One class per kind of trip, and one per kind of mistake. */

/** Names of an error's classes. A registered symbol, because the ESM and the CJS build may be loaded side by side. */
const KINDS = Symbol.for('@runguard/sdk.kinds')

/** Everything this package throws. `message` says what happened and what to do. */
export class RunGuardError extends Error {
  /** The class as both builds of this package know it. */
  static readonly kind: string = 'RunGuardError'

  declare readonly [KINDS]: readonly string[]

  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = new.target.name
    const kinds: string[] = []
    for (let at = new.target as unknown; typeof at === 'function' && at !== Error; at = Object.getPrototypeOf(at)) {
      if (Object.hasOwn(at, 'kind')) kinds.push((at as typeof RunGuardError).kind)
    }
    Object.defineProperty(this, KINDS, { value: kinds })
  }

  /** An error of the CJS build is an instance of the same class of the ESM build, and the other way round. */
  static override [Symbol.hasInstance](this: Function & { kind?: string }, value: unknown): boolean {
    if (!Object.hasOwn(this, 'kind')) return Function.prototype[Symbol.hasInstance].call(this, value)
    const kinds = typeof value === 'object' && value !== null ? (value as { [KINDS]?: readonly string[] })[KINDS] : undefined
    return Array.isArray(kinds) && kinds.includes(this.kind)
  }
}

export interface TripDetails {
  reason?: string | undefined
  runId?: string | null | undefined
}

/** A guard stopped the run. `reason` is the code that logs and the service use as well. */
export class TripError extends RunGuardError {
  static override readonly kind: string = 'TripError'
  readonly reason: string
  runId: string | null

  constructor(message: string, details: TripDetails = {}, defaultReason = 'stopped') {
    super(message)
    this.reason = details.reason ?? defaultReason
    this.runId = details.runId ?? null
  }

  /** As of an HTTP answer that is final: frameworks that try failed model calls again (LangChain.js for more than a minute) leave it. */
  get status(): number {
    return 402
  }

  /** What alerts and logs carry. */
  toJSON(): Record<string, unknown> {
    const own: object = this
    return { ...own, error: this.name, message: this.message }
  }
}

/** The newest calls are copies of one short pattern, or one key reached its ceiling of calls. */
export class LoopDetectedError extends TripError {
  static override readonly kind: string = 'LoopDetectedError'
  /** One round, oldest first. */
  readonly cycle: readonly string[]
  /** The round with arrows: `search`, or `search → read`. */
  readonly pattern: string
  readonly repeats: number
  readonly cycleLen: number

  constructor(message: string, details: TripDetails & { cycle?: readonly string[]; repeats?: number } = {}) {
    super(message, details, 'loop_detected')
    this.cycle = [...(details.cycle ?? [])]
    this.pattern = this.cycle.join(' → ')
    this.repeats = details.repeats ?? 0
    this.cycleLen = this.cycle.length
  }
}

export type BudgetUnit = 'usd' | 'tokens' | 'calls'

/** More was spent than the limit allows. `unit` says what `spent` and `limit` count. */
export class BudgetExceededError extends TripError {
  static override readonly kind: string = 'BudgetExceededError'
  readonly spent: number
  readonly limit: number
  readonly unit: BudgetUnit

  constructor(message: string, details: TripDetails & { spent: number; limit: number; unit?: BudgetUnit }) {
    super(message, details, 'budget_exceeded')
    this.spent = details.spent
    this.limit = details.limit
    this.unit = details.unit ?? 'usd'
  }
}

/** Calls go on but bring nothing new. `nudge` is a text that can be given to the model. */
export class StallDetectedError extends TripError {
  static override readonly kind: string = 'StallDetectedError'
  readonly rule: string
  readonly count: number
  readonly nudge: string

  constructor(message: string, details: TripDetails & { rule: string | null; count: number; nudge?: string }) {
    super(message, details, 'stall_detected')
    this.rule = details.rule ?? ''
    this.count = details.count
    this.nudge = details.nudge ?? ''
  }
}

/** The run used up its calls of a tool, of all tools, or of the model. */
export class ToolLimitError extends TripError {
  static override readonly kind: string = 'ToolLimitError'
  readonly tool: string
  readonly limit: number

  constructor(message: string, details: TripDetails & { tool: string; limit: number }) {
    super(message, details, 'tool_limit_reached')
    this.tool = details.tool
    this.limit = details.limit
  }
}

/** The run took as long as it may. `limit` is in seconds. */
export class TimeLimitError extends TripError {
  static override readonly kind: string = 'TimeLimitError'
  readonly limit: number

  constructor(message: string, details: TripDetails & { limit: number }) {
    super(message, details, 'time_limit')
    this.limit = details.limit
  }
}

/** The endpoint failed too often lately; calls to it are refused until it has had time to recover. */
export class CircuitOpenError extends TripError {
  static override readonly kind: string = 'CircuitOpenError'
  readonly endpoint: string
  readonly retryAfterSeconds: number | null

  constructor(message: string, details: TripDetails & { endpoint: string; retryAfterSeconds?: number | null }) {
    super(message, details, 'circuit_open')
    this.endpoint = details.endpoint
    this.retryAfterSeconds = details.retryAfterSeconds ?? null
  }

  /** It may be better later. */
  override get status(): number {
    return 503
  }
}

/** An argument cannot be used. Nothing was counted. */
export class InvalidInputError extends RunGuardError {
  static override readonly kind: string = 'InvalidInputError'
}

/** The price table does not know the model. */
export class UnknownModelError extends RunGuardError {
  static override readonly kind: string = 'UnknownModelError'
  readonly model: string

  constructor(message: string, details: { model: string }) {
    super(message)
    this.model = details.model
  }

  /** As of an HTTP answer that is final: nobody tries it again. */
  get status(): number {
    return 400
  }
}

/** The RunGuard service could not be asked, or answered with an error. `status` is its HTTP status, if there was one. */
export class ServiceError extends RunGuardError {
  static override readonly kind: string = 'ServiceError'
  readonly status: number | null
  /** The body of an error answer (RFC 9457), when there was one. */
  readonly problem: Record<string, unknown> | null

  constructor(message: string, details: { status?: number | null; problem?: Record<string, unknown> | null; cause?: unknown } = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.status = details.status ?? null
    this.problem = details.problem ?? null
  }
}

/** How many wrappings are looked through: frameworks have a handful. */
const MOST_WRAPPINGS = 100
const WRAPPED = ['cause', 'error', 'originalError', 'original', 'reason', 'innerError']

/** The trip behind an error, however a framework has wrapped it; null when there is none. */
export function tripOf(error: unknown): TripError | null {
  const seen = new Set<unknown>()
  const waiting: unknown[] = [error]
  while (waiting.length > 0 && seen.size < MOST_WRAPPINGS) {
    const one = waiting.shift()
    if (one instanceof TripError) return one
    if (typeof one !== 'object' || one === null || seen.has(one)) continue
    seen.add(one)
    const members = one as Record<string, unknown>
    waiting.push(...WRAPPED.map((name) => members[name]))
    if (Array.isArray(members['errors'])) waiting.push(...(members['errors'] as unknown[]))
  }
  return null
}
