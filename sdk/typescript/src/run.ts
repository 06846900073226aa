/** One agent run: what every adapter asks before a step. */
import { Alerts, type AlertsLike } from './alerts.js'
import { BudgetTracker } from './budget.js'
import { count, known, newId, text } from './core/input.js'
import { withCurrent } from './current.js'
import {
  BudgetExceededError,
  LoopDetectedError,
  RunGuardError,
  StallDetectedError,
  ToolLimitError,
  TripError,
  UnknownModelError,
} from './errors.js'
import { fingerprint } from './fingerprint.js'
import { LoopDetector } from './loop.js'
import { counts, type Usage } from './prices.js'
import { RemoteRun } from './remote.js'
import { StallDetector, type StallPreset, type StallSettings } from './stall.js'

export interface RunOptions {
  /** A name for logs and alerts; by default a new one. */
  runId?: string | undefined
  /** Copies of a pattern of calls that make a loop. Default 3: the third equal call in a row is refused. */
  repeats?: number | undefined
  /** Longest pattern looked for. Default 4. */
  maxCycleLen?: number | undefined
  maxToolCalls?: number | undefined
  maxModelCalls?: number | undefined
  maxUsd?: number | undefined
  maxTokens?: number | undefined
  /** A budget that this run draws on. With `maxUsd` or `maxTokens` the run gets a child of it. */
  budget?: BudgetTracker | undefined
  /** A detector to share; by default the run has its own. */
  loop?: LoopDetector | undefined
  /** Watches results too: a detector, its settings, or the name of a preset. */
  stall?: StallDetector | StallSettings | StallPreset | undefined
  alerts?: AlertsLike | undefined
}

export interface ToolOutcome {
  /** What the tool failed with. */
  error?: unknown
}

/** Between the tool's name and the fingerprint of its arguments. No tool has it in its name. */
const SEPARATOR = '\u001f'
const WITH_FINGERPRINT = /\u001f[0-9a-f]*/g
const LONGEST_NAME = 65_536
const OPTIONS = [
  'runId',
  'repeats',
  'maxCycleLen',
  'maxToolCalls',
  'maxModelCalls',
  'maxUsd',
  'maxTokens',
  'budget',
  'loop',
  'stall',
  'alerts',
]

/** Watches one agent run. Once it has tripped it stays tripped: every later question throws the same trip at once. */
export class Run {
  readonly runId: string
  readonly loop: LoopDetector
  readonly budget: BudgetTracker | null
  readonly stall: StallDetector | null
  readonly #alerts: Alerts | null
  readonly #maxToolCalls: number
  readonly #maxModelCalls: number
  #trip: TripError | null = null
  #toolCalls = 0
  #modelCalls = 0

  constructor(options: RunOptions = {}) {
    known('Run', options, OPTIONS)
    this.runId = options.runId === undefined ? newId('run') : text('runId', options.runId, LONGEST_NAME)
    this.#maxToolCalls = ceiling('maxToolCalls', options.maxToolCalls)
    this.#maxModelCalls = ceiling('maxModelCalls', options.maxModelCalls)
    this.#alerts = Alerts.of(options.alerts)
    this.loop = options.loop ?? new LoopDetector({ repeats: options.repeats, maxCycleLen: options.maxCycleLen })
    this.budget = budgetOf(options)
    const { stall } = options
    this.stall = stall === undefined || stall instanceof StallDetector ? (stall ?? null) : new StallDetector(stall)
  }

  /** The same questions, as promises, with the counts in a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteRun>[0]): RemoteRun {
    return new RemoteRun(options)
  }

  // What an agent loop asks.

  /** Counts the call. Throws a TripError when the tool must not run. */
  beforeTool(tool: string, args?: unknown): void {
    this.check()
    const signature = text('tool', tool, LONGEST_NAME) + SEPARATOR + fingerprint(args)
    if (this.#toolCalls >= this.#maxToolCalls) {
      const limit = this.#maxToolCalls
      const message = `The run has made its ${limit} tool calls; '${tool}' would be one more. Answer with what there is, or raise maxToolCalls.`
      throw this.#stop(new ToolLimitError(message, { tool, limit, reason: 'tool_call_ceiling' }))
    }
    this.#toolCalls += 1
    try {
      this.loop.record(this.runId, signature)
    } catch (error) {
      throw error instanceof LoopDetectedError ? this.#stop(withToolNames(error)) : error
    }
  }

  /** Shows what the tool gave. May return a text for the model; a trip is thrown by the next `before…`. */
  afterTool(tool: string, args?: unknown, result?: unknown, outcome: ToolOutcome = {}): string | null {
    if (this.stall === null) return null
    // Whoever never tells of model calls has no rounds: every call counts.
    const round = this.#modelCalls === 0 ? undefined : this.#modelCalls
    const verdict = this.stall.observe(tool, args, result, { error: outcome.error, round, sessionId: this.runId })
    if (verdict.rung === 'block' || verdict.rung === 'stop') {
      const message = `The run makes no progress: ${verdict.message.charAt(0).toLowerCase()}${verdict.message.slice(1)} Stop it, or change what it is asked to do.`
      this.#stop(new StallDetectedError(message, { rule: verdict.rule ?? '', count: verdict.count, nudge: verdict.nudge }))
    }
    return verdict.nudge === '' ? null : verdict.nudge
  }

  /** Counts a model call. Throws the trip, or BudgetExceededError or ToolLimitError when there is nothing left. */
  beforeModel(): void {
    this.check()
    const exhausted = this.budget?.exhausted() ?? null
    if (exhausted !== null) throw this.#stop(exhausted)
    if (this.#modelCalls >= this.#maxModelCalls) {
      const limit = this.#maxModelCalls
      const message = `The run has made its ${limit} model calls. Answer with what there is, or raise maxModelCalls.`
      throw this.#stop(new ToolLimitError(message, { tool: 'model', limit, reason: 'model_call_ceiling' }))
    }
    this.#modelCalls += 1
  }

  /** Adds what a model call used. Throws once the budget is exceeded; a model without a price throws when dollars are limited. */
  recordUsage(model: string, usage: Usage): void {
    if (this.budget === null) return
    const budget = this.budget
    this.#spend(() => {
      try {
        budget.recordUsage(model, usage)
      } catch (error) {
        if (!(error instanceof UnknownModelError) || budget.books.remaining !== null) throw error
        budget.recordTokens(counts(usage).reduce((sum, tokens) => sum + tokens, 0))
      }
    })
  }

  /** Adds dollars spent. Throws once the budget is exceeded. */
  recordUsd(usd: number): void {
    this.#spend(() => this.budget?.record(usd))
  }

  /** A tool that asks this run before each call, and shows it the result. `name` is needed for a function without one. */
  tool<Args extends unknown[], Result>(fn: (...args: Args) => Result, name: string = fn.name): (...args: Args) => Result {
    text('name', name, LONGEST_NAME)
    return (...args) => {
      const given = args.length === 1 ? args[0] : args
      this.beforeTool(name, given)
      return settled(
        () => fn(...args),
        (result) => this.afterTool(name, given, result),
        (error) => this.afterTool(name, given, undefined, { error }),
      )
    }
  }

  /** Runs `body` with this run as the current one; refused at once when the run has tripped. */
  within<Result>(body: (run: Run) => Result): Result {
    this.check()
    return withCurrent(this, () => body(this))
  }

  // What became of the run.

  /** Why the run was stopped, or null. */
  get trip(): TripError | null {
    return this.#trip
  }

  get tripped(): boolean {
    return this.#trip !== null
  }

  /** What to tell the model or the user about the trip; empty when there is none. */
  get message(): string {
    return this.#trip?.message ?? ''
  }

  /** Throws the trip, if there is one. */
  check(): void {
    if (this.#trip !== null) throw this.#trip
  }

  /** A user message: what follows may repeat what was before. Budget and trip stay. */
  newTurn(): void {
    this.loop.reset(this.runId)
    this.stall?.userMessage(this.runId)
  }

  /** Forgets the trip and all counts but the money. For an operator, not for the agent. */
  reset(): void {
    this.newTurn()
    this.#toolCalls = 0
    this.#modelCalls = 0
    this.#trip = null
  }

  #spend(spend: () => void): void {
    try {
      spend()
    } catch (error) {
      throw error instanceof BudgetExceededError ? this.#stop(error) : error
    }
  }

  /** Keeps the first trip and reports it once. Gives the one to throw. */
  #stop(trip: TripError): TripError {
    if (this.#trip === null) {
      trip.runId ??= this.runId
      this.#trip = trip
      this.#alerts?.send(trip)
    }
    return this.#trip
  }
}

function ceiling(name: string, value: number | undefined): number {
  return value === undefined ? Infinity : count(name, value)
}

function budgetOf({ budget, maxUsd, maxTokens }: RunOptions): BudgetTracker | null {
  if (maxUsd === undefined && maxTokens === undefined) return budget ?? null
  return budget === undefined ? new BudgetTracker({ maxUsd, maxTokens }) : budget.child({ maxUsd, maxTokens })
}

/** The same trip with the names of the tools, without the fingerprints of their arguments. */
function withToolNames(error: LoopDetectedError): LoopDetectedError {
  const cycle = error.cycle.map((name) => name.replace(WITH_FINGERPRINT, ''))
  let message = error.message.replace(WITH_FINGERPRINT, '')
  if (cycle.length === 1 && error.reason === 'loop_detected') message = message.replace('came', 'was called with the same arguments')
  return new LoopDetectedError(message, { cycle, repeats: error.repeats, reason: error.reason })
}

/** Calls `body` and tells how it ended, at once or when its promise settles. What the watchers say changes nothing. */
function settled<Result>(body: () => Result, done: (result: unknown) => unknown, failed: (error: unknown) => unknown): Result {
  const told = (watch: () => unknown): void => {
    try {
      watch()
    } catch (error) {
      if (!(error instanceof RunGuardError)) throw error
    }
  }
  let result: Result
  try {
    result = body()
  } catch (error) {
    told(() => failed(error))
    throw error
  }
  if (!(result instanceof Promise)) {
    told(() => done(result))
    return result
  }
  return result.then(
    (value: unknown) => {
      told(() => done(value))
      return value
    },
    (error: unknown) => {
      told(() => failed(error))
      throw error
    },
  ) as Result
}
