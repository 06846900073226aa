/** One agent run: what every adapter asks before a step. */
import { Alerts, type AlertsLike } from './alerts.js'
import { BudgetTracker } from './budget.js'
import { asked } from './core/arguments.js'
import { amount, count, known, newId, text } from './core/input.js'
import { argumentsToJson, writeOutcome } from './core/json.js'
import { settled, tripError } from './core/steps.js'
import { CoreObject, DONE, TOLD, TRIPPED, failure, outputJson, secondLength, wasm, write, writeAll, writeTwo } from './core/wasm.js'
import { withCurrent } from './current.js'
import { InvalidInputError, RunGuardError, TripError, type BudgetUnit } from './errors.js'
import { LoopDetector } from './loop.js'
import { BEGIN, COUNT_MODEL, HANDLE, HEARS_HOOKS, INSTEAD, NOTE_USAGE, STOP_LOOP, beginModel } from './model-call.js'
import type { BeginOptions, CallOwner, CallProgress, ModelCall, ModelCallOptions } from './model-call.js'
import { counts, type Usage } from './prices.js'
import { RemoteRun } from './remote.js'
import { StallDetector, type StallPreset, type StallSettings } from './stall.js'
import { ToolExecutionTracker } from './tools.js'

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
  /** How long the run may take, from its first question on. */
  maxSeconds?: number | undefined
  /** Once so much of the budget is spent, `onWarning` is called and a warning printed: a share such as 0.8. */
  warnAt?: number | undefined
  /** Called once, when `warnAt` of the budget is spent; without `warnAt`, four fifths of it. */
  onWarning?: ((warning: BudgetWarning) => unknown) | undefined
  /** The model that is asked from the warning on, by clients and adapters that can change it; without `warnAt`, from four fifths on. */
  fallbackModel?: string | undefined
  /** A budget that this run draws on. With `maxUsd` or `maxTokens` the run gets a child of it. */
  budget?: BudgetTracker | undefined
  /** Rules for single tools, by name. */
  tools?: Readonly<Record<string, ToolRule>> | undefined
  /** A detector to share; by default the run has its own. */
  loop?: LoopDetector | undefined
  /** Watches results too: a detector, its settings, or the name of a preset. */
  stall?: StallDetector | StallSettings | StallPreset | undefined
  alerts?: AlertsLike | undefined
}

/** Most of a limit is spent: what `onWarning` is called with. */
export interface BudgetWarning {
  readonly message: string
  readonly unit: BudgetUnit
  /** Dollars or tokens, by the unit. */
  readonly spent: number
  readonly limit: number
  readonly runId: string
}

/** What holds for the calls of one tool. */
export interface ToolRule {
  /** Nothing is looked for in its calls. Ceilings hold. */
  exempt?: boolean | undefined
  /** It is called until something changes: equal calls are no loop before they gave the same so often in a row. */
  polling?: number | undefined
  /** Arguments that make no other call of it. */
  ignore?: readonly string[] | undefined
  /** How often a run may call it. */
  maxCalls?: number | undefined
}

export interface AgentName {
  /** One of several agents in the run: each has a history of its own, so that the steps of one do not hide another's loop. */
  agent?: string | undefined
}

export interface ToolOutcome extends AgentName {
  /** What the tool failed with. */
  error?: unknown
}

/** The highest limit of a tool that there is. */
const NO_LIMIT = 1_000
/** Usages that hooked clients have told last, so that a caller who tells one too is not counted twice. */
const REMEMBERED_USAGES = 64
const OPTIONS = [
  'runId',
  'repeats',
  'maxCycleLen',
  'maxToolCalls',
  'maxModelCalls',
  'maxUsd',
  'maxTokens',
  'maxSeconds',
  'warnAt',
  'onWarning',
  'fallbackModel',
  'budget',
  'tools',
  'loop',
  'stall',
  'alerts',
]

/** The run in the core, and the trip as it was first thrown. What `Run` and `RemoteRun` have in common. */
export class CoreRun extends CoreObject {
  readonly #runId: string
  readonly #alerts: Alerts | null
  readonly #onWarning: ((warning: BudgetWarning) => unknown) | undefined
  /** Made with the first model call: there may be very many runs. */
  #underWay: Set<CallProgress> | null = null
  #trip: TripError | null = null
  /** For adapters that tell the model what it has already. */
  #repeated: ToolExecutionTracker | null = null

  constructor(runId: string, options: Pick<RunOptions, 'alerts' | 'onWarning'>, handle: number) {
    super(handle, wasm.run_free)
    this.#runId = runId
    this.#alerts = Alerts.of(options.alerts)
    this.#onWarning = options.onWarning
  }

  /** What a model call needs of its run; `heed` makes of a status what it means. */
  owner(heed: (status: number) => unknown): CallOwner {
    this.#underWay ??= new Set()
    return { runId: this.#runId, handle: this.handle, underWay: this.#underWay, heed, spent: () => this.spent() }
  }

  /** Money was spent: tells once that most of it is gone. */
  spent(): void {
    if (wasm.run_take_warning(this.handle) !== TOLD) return
    const warning: BudgetWarning = { ...outputJson<Omit<BudgetWarning, 'runId'>>(), runId: this.#runId }
    console.warn(`runguard: ${this.#runId}: ${warning.message}`)
    const called = async (): Promise<unknown> => this.#onWarning?.(warning)
    // An answer that is paid for is not lost to it.
    void called().catch((error: unknown) => console.warn(`runguard: onWarning failed: ${String(error)}`))
  }

  /** Its number in the core. */
  get number(): number {
    return this.handle
  }

  beforeTool(tool: string, args: unknown, { agent }: AgentName): number {
    // A run that is over has no use for arguments, and they may be such that they cannot be compared.
    this.check()
    if (agent !== undefined) {
      const lengths = writeAll([text('agent', agent), text('tool', tool), argumentsToJson(args)])
      return wasm.run_before_tool_of(this.handle, ...(lengths as [number, number, number]), Date.now())
    }
    return wasm.run_before_tool(this.handle, writeTwo(text('tool', tool), argumentsToJson(args)), secondLength, Date.now())
  }

  afterTool(tool: string, args: unknown, result: unknown, { error, agent }: ToolOutcome): number {
    try {
      this.#repeated?.record(tool, args, { error })
    } catch (problem) {
      // The tool has run: what cannot be compared is no reason to lose its result.
      if (!(problem instanceof InvalidInputError)) throw problem
    }
    // Without a name it is the run itself.
    const name = agent === undefined ? '' : text('agent', agent)
    const lengths = writeOutcome([name, text('tool', tool), argumentsToJson(args)], result, error)
    return wasm.run_after_tool(this.handle, ...(lengths as [number, number, number, number, number]), Date.now())
  }

  beforeModel(): number {
    return wasm.run_before_model(this.handle, Date.now())
  }

  stopLoop(cycle: readonly string[], repeats: number, message: string): number {
    return wasm.run_stop_loop(this.handle, writeTwo(JSON.stringify(cycle), message), secondLength, repeats)
  }

  /** What to give the model in place of a result that it has already, or null. The call is counted before. */
  instead(tool: string, args: unknown): string | null {
    // Tools that the design names keep its limits; of all others only repeats are told.
    this.#repeated ??= new ToolExecutionTracker({ defaultLimit: NO_LIMIT })
    const skip = this.#repeated.shouldSkip(tool, args)
    if (skip === null || wasm.run_tell_repeat(this.handle, write(text('tool', tool))) !== TOLD) return null
    // Who is told too often is stopped at the next step.
    return this.looked(skip.message)
  }

  record(usd: number): number {
    return wasm.run_record(this.handle, amount('usd', usd), 0)
  }

  recordUsage(model: string, usage: Usage): number {
    const tokens = counts(usage)
    return wasm.run_record_usage(this.handle, write(text('model', model)), ...tokens)
  }

  newTurn(): void {
    this.#repeated = null
    this.#change(wasm.run_new_turn(this.handle))
  }

  reset(): void {
    this.#repeated = null
    this.#change(wasm.run_reset(this.handle))
    this.#trip = null
  }

  get trip(): TripError | null {
    return this.#trip
  }

  check(): void {
    if (this.#trip !== null) throw this.#trip
  }

  /** Keeps the first trip and reports it once. Gives the one to throw. */
  stopped = (): TripError => {
    if (this.#trip === null) {
      const trip = tripError()
      trip.runId ??= this.#runId
      this.#trip = trip
      this.#alerts?.send(trip)
    }
    return this.#trip
  }

  /** A trip that a result led to is thrown by the next question. */
  looked(nudge: unknown): string | null {
    if (wasm.run_trip(this.handle) === TRIPPED) this.stopped()
    return nudge as string | null
  }

  #change(status: number): void {
    if (status !== DONE) throw failure(status)
  }
}

/** Watches one agent run. Once it has tripped it stays tripped: every later question throws the same trip at once. */
export class Run {
  readonly runId: string
  readonly loop: LoopDetector
  readonly budget: BudgetTracker | null
  readonly stall: StallDetector | null
  readonly #core: CoreRun
  /** The agent itself tells of its model calls. Then hooked clients do not. */
  #isTold = false
  readonly #hooked: string[] = []

  constructor(options: RunOptions = {}) {
    known('Run', options, OPTIONS)
    this.runId = options.runId === undefined ? newId('run') : text('runId', options.runId)
    this.loop = options.loop ?? new LoopDetector({ repeats: options.repeats, maxCycleLen: options.maxCycleLen })
    this.budget = budgetOf(options)
    const { stall } = options
    this.stall = stall === undefined || stall instanceof StallDetector ? (stall ?? null) : new StallDetector(stall)
    const parts = [this.loop, this.stall, this.budget].map(CoreObject.handleOf) as [number, number, number]
    this.#core = new CoreRun(this.runId, options, wasm.run_new(...settingsOf(this.runId, options), ...parts))
  }

  /** The same questions, as promises, with the counts in a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteRun>[0]): RemoteRun {
    return new RemoteRun(options)
  }

  // What an agent loop asks.

  /** Counts the call. Throws a TripError when the tool must not run. */
  beforeTool(tool: string, args?: unknown, agent: AgentName = {}): void {
    this.#heed(this.#core.beforeTool(tool, args, agent))
  }

  /** Shows what the tool gave. May return a text for the model; a trip is thrown by the next `before…`. */
  afterTool(tool: string, args?: unknown, result?: unknown, outcome: ToolOutcome = {}): string | null {
    return this.#core.looked(settled(this.#core.afterTool(tool, args, result, outcome)))
  }

  /** Counts a model call. Throws the trip, or BudgetExceededError or ToolLimitError when there is nothing left. */
  beforeModel(): void {
    this.#isTold = true
    this.#heed(this.#core.beforeModel())
  }

  /**
   * Begins a model call, and sets aside the most it may cost: `prompt` is all that is sent. Waits while calls under way hold what is left. Tell
   * the call what was `used`, or `release` it. Throws when the run is over, when the rest of the budget does not pay for the call, or when the
   * model has no price.
   */
  modelCall(model: string, prompt?: unknown, options: ModelCallOptions = {}): Promise<ModelCall> {
    this.#isTold = true
    return this[BEGIN](model, prompt, { ...options, mayFallBack: true })
  }

  /** @internal */
  [BEGIN](model: string, prompt: unknown, options: BeginOptions): Promise<ModelCall> {
    const core = this.#core
    const owner = core.owner((status) => settled(status, core.stopped))
    return beginModel(owner, model, prompt, options)
  }

  /** @internal */
  get [HANDLE](): number {
    return this.#core.number
  }

  /** @internal */
  [COUNT_MODEL](): void {
    this.#heed(this.#core.beforeModel())
  }

  /** @internal */
  [STOP_LOOP](cycle: readonly string[], repeats: number, message: string): void {
    this.#heed(this.#core.stopLoop(cycle, repeats, message))
  }

  /** @internal */
  [INSTEAD](tool: string, args: unknown): string | null {
    return this.#core.instead(tool, args)
  }

  /** @internal */
  [HEARS_HOOKS](): boolean {
    this.check()
    return !this.#isTold
  }

  /** @internal */
  [NOTE_USAGE](usage: Usage): void {
    this.#hooked.push(counts(usage).join())
    if (this.#hooked.length > REMEMBERED_USAGES) this.#hooked.shift()
  }

  /** Adds what a model call used. Throws once the budget is exceeded; a model without a price throws when dollars are limited. */
  recordUsage(model: string, usage: Usage): void {
    const told = this.#isTold ? -1 : this.#hooked.indexOf(counts(usage).join())
    if (told >= 0) {
      // A hooked client has told it already.
      this.#hooked.splice(told, 1)
      this.check()
      return
    }
    this.#spend(this.#core.recordUsage(model, usage))
  }

  /** Adds dollars spent. Throws once the budget is exceeded. */
  recordUsd(usd: number): void {
    this.#spend(this.#core.record(usd))
  }

  /**
   * A tool that asks this run before each call, and shows it the result. `name` is needed for a function without one. Calls are
   * compared by their arguments; what frameworks pass behind them (ids, messages, a context) is none of them.
   */
  tool<Args extends unknown[], Result>(fn: (...args: Args) => Result, name: string = fn.name): (...args: Args) => Result {
    text('name', name)
    return (...args) => {
      const given = asked(args)
      this.beforeTool(name, given)
      return watched(
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
    return this.#core.trip
  }

  get tripped(): boolean {
    return this.trip !== null
  }

  /** What to tell the model or the user about the trip; empty when there is none. */
  get message(): string {
    return this.trip?.message ?? ''
  }

  /** Throws the trip, if there is one. */
  check(): void {
    this.#core.check()
  }

  /** A user message: what follows may repeat what was before. Budget and trip stay. */
  newTurn(): void {
    this.#core.newTurn()
  }

  /** Forgets the trip and all counts but the money. For an operator, not for the agent. */
  reset(): void {
    this.#core.reset()
  }

  #heed(status: number): void {
    if (status !== DONE) settled(status, this.#core.stopped)
  }

  #spend(status: number): void {
    try {
      this.#heed(status)
    } finally {
      this.#core.spent()
    }
  }
}

/** The name of a run and its settings as the core takes them: below 0 there is no ceiling. The texts are left where the core reads them. */
export function settingsOf(
  runId: string,
  options: Omit<RunOptions, 'budget' | 'loop' | 'stall'>,
): [number, number, number, number, number, number, number] {
  const { maxToolCalls, maxModelCalls, maxSeconds, onWarning, fallbackModel } = options
  const ceiling = (name: string, value: number | undefined): number => (value === undefined ? -1 : count(name, value))
  const seconds = maxSeconds === undefined ? -1 : amount('maxSeconds', maxSeconds)
  if (onWarning !== undefined && typeof onWarning !== 'function')
    throw new InvalidInputError('onWarning must be a function: it is given the warning.')
  const fallback = fallbackModel === undefined ? '' : text('fallbackModel', fallbackModel)
  const ceilings = [ceiling('maxToolCalls', maxToolCalls), ceiling('maxModelCalls', maxModelCalls), seconds, warnedAt(options)] as const
  const [id = 0, rules = 0, fallbackLength = 0] = writeAll([runId, rulesOf(options), fallback])
  return [id, rules, fallbackLength, ...ceilings]
}

/** In thousandths; below 0: never. */
function warnedAt({ warnAt, onWarning, fallbackModel }: Pick<RunOptions, 'warnAt' | 'onWarning' | 'fallbackModel'>): number {
  if (warnAt === undefined) return onWarning === undefined && fallbackModel === undefined ? -1 : 800
  if (!(amount('warnAt', warnAt) > 0 && warnAt <= 1))
    throw new InvalidInputError(`warnAt must be a share of the budget above 0 and up to 1, such as 0.8, not ${warnAt}.`)
  return Math.round(warnAt * 1000)
}

/** The rules of single tools as the core takes them; nothing when there are none. */
function rulesOf({ tools = {} }: Pick<RunOptions, 'tools'>): string {
  const rules = Object.entries(tools).map(([name, rule]) => {
    known(`The rule of '${name}'`, rule, ['exempt', 'polling', 'ignore', 'maxCalls'])
    const { exempt = false, polling, ignore = [], maxCalls } = rule
    const whole = (field: string, value: number | undefined): number | null => (value === undefined ? null : count(field, value))
    return [name, { exempt, polling: whole('polling', polling), ignore, max_calls: whole('maxCalls', maxCalls) }]
  })
  return rules.length === 0 ? '' : JSON.stringify(Object.fromEntries(rules))
}

function budgetOf({ budget, maxUsd, maxTokens }: RunOptions): BudgetTracker | null {
  if (maxUsd === undefined && maxTokens === undefined) return budget ?? null
  return budget === undefined ? new BudgetTracker({ maxUsd, maxTokens }) : budget.child({ maxUsd, maxTokens })
}

/** Calls `body` and tells how it ended, at once or when its promise settles. What the watchers say changes nothing. */
function watched<Result>(body: () => Result, done: (result: unknown) => unknown, failed: (error: unknown) => unknown): Result {
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
