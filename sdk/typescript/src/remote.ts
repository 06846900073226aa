/**
 * The detectors when a RunGuard service keeps the counts: many processes then share one run, one budget, one circuit.
 * The same names as in process, but every method is async, because HTTP is.
 */
import { saysSomething, type BreakerSettings, type BreakerState } from './breaker.js'
import type { Books, BudgetLimits, TokenAmount } from './budget.js'
import { GuardClient, type ClientOptions } from './client.js'
import { amount, count, newId, numberOrNone, text } from './core/input.js'
import { argumentsToJson, writeOutcome } from './core/json.js'
import { answered, reservationEnded } from './core/steps.js'
import { CoreObject, output, secondLength, wasm, write, writeAll, writeTwo } from './core/wasm.js'
import { BudgetExceededError, LoopDetectedError, TripError } from './errors.js'
import type { LoopEvent, LoopSettings } from './loop.js'
import { BEGIN, COUNT_MODEL, HANDLE, HEARS_HOOKS, INSTEAD, NOTE_USAGE, STOP_LOOP, beginModel } from './model-call.js'
import type { BeginOptions, ModelCall, ModelCallOptions } from './model-call.js'
import { counts, type Usage } from './prices.js'
import { CoreRun, settingsOf, type AgentName, type RunOptions, type ToolOutcome } from './run.js'
import type { StepOutcome, Verdict } from './stall.js'
import { hasFailed, type Skip } from './tools.js'

/** Where the service is. Unlike a bare client, guards fail open unless told otherwise; budgets do not. */
export type ServiceOptions = ClientOptions | { client: GuardClient }

function clientOf(options: ServiceOptions): GuardClient {
  return 'client' in options ? options.client : new GuardClient(options)
}

/** Whether calls pass that nobody answers, as the core takes it. */
function passes(client: GuardClient, otherwise: boolean): number {
  return Number(client.failOpen ?? otherwise)
}

/** A loop detector whose calls are counted by a service. A call that was refused is not counted. */
export class RemoteLoopDetector extends CoreObject {
  readonly #client: GuardClient
  readonly #ownId = newId('ts')

  constructor(options: LoopSettings & ServiceOptions) {
    const client = clientOf(options)
    super(
      wasm.service_loop_new(
        numberOrNone('repeats', options.repeats),
        numberOrNone('maxCycleLen', options.maxCycleLen),
        numberOrNone('windowSeconds', options.windowSeconds),
        numberOrNone('maxCalls', options.maxCalls),
        passes(client, true),
      ),
      wasm.service_loop_free,
    )
    this.#client = client
  }

  /** Takes a call, as `LoopDetector.record` does. Rejects with LoopDetectedError. */
  async record(first: string | LoopEvent, key?: string): Promise<void> {
    await this.#ask(wasm.service_loop_record, first, key)
  }

  /** The error the next such call would reject with, or null. */
  async check(first: string | LoopEvent, key?: string): Promise<LoopDetectedError | null> {
    return refusal(LoopDetectedError, this.#ask(wasm.service_loop_check, first, key))
  }

  /** Begins a new history for the session. What was counted stays in the service's log. */
  reset(sessionId: string = this.#ownId): void {
    wasm.service_loop_reset(this.handle, write(text('sessionId', sessionId)))
  }

  async #ask(ask: typeof wasm.service_loop_record, first: string | LoopEvent, key: string | undefined): Promise<void> {
    const [session, name] =
      typeof first !== 'string' ? [first?.sessionId, first?.tool] : key === undefined ? [this.#ownId, first] : [first, key]
    const written = writeTwo(text('sessionId', session), text('The name of the call', name))
    await answered(ask(this.handle, written, secondLength), () => this.#client)
  }
}

/** The error of a kind that a promise is rejected with, or null. */
async function refusal<E extends Error>(Kind: abstract new (...args: never[]) => E, asked: Promise<unknown>): Promise<E | null> {
  try {
    await asked
    return null
  } catch (error) {
    if (error instanceof Kind) return error
    throw error
  }
}

/** A stall detector whose history is kept by a service, with the service's thresholds. Arguments and results leave this process as hashes. */
export class RemoteStallDetector extends CoreObject {
  readonly #client: GuardClient
  readonly #ownId = newId('ts')

  constructor(options: ServiceOptions) {
    const client = clientOf(options)
    super(wasm.service_stall_new(passes(client, true)), wasm.service_stall_free)
    this.#client = client
  }

  async observe(tool: string, args?: unknown, result?: unknown, outcome: StepOutcome = {}): Promise<Verdict> {
    const round = outcome.round === undefined ? -1 : count('round', outcome.round)
    const texts = [this.#session(outcome.sessionId), text('tool', tool), argumentsToJson(args)]
    const lengths = writeOutcome(texts, result, outcome.error) as [number, number, number, number, number]
    return this.#verdict(wasm.service_stall_observe(this.handle, ...lengths, round, count('tokens', outcome.tokens ?? 0)))
  }

  async message(said: string, sessionId?: string): Promise<Verdict> {
    const written = writeTwo(this.#session(sessionId), text('message', said))
    return this.#verdict(wasm.service_stall_message(this.handle, written, secondLength))
  }

  async userMessage(sessionId?: string): Promise<void> {
    await this.#verdict(wasm.service_stall_user_message(this.handle, write(this.#session(sessionId))))
  }

  #session(sessionId: string | undefined): string {
    return text('sessionId', sessionId ?? this.#ownId)
  }

  async #verdict(status: number): Promise<Verdict> {
    return (await answered(status, () => this.#client)) as Verdict
  }
}

/** What the core reads in a budget's answer. */
type ServiceBooks = Record<string, number | null>

/** A budget that many share, kept by a service. Its limits hold beside those of the service's settings. */
export interface Scope extends BudgetLimits {
  /** What there is a budget for each of: `team`, `user`, or `model`, `tenant`, `key`, `run`, whose names the service knows. */
  per: string
  name?: string | undefined
  /** By the service's calendar; for good if left out. */
  period?: 'day' | 'week' | 'month' | undefined
  maxCredits?: number | undefined
}

/** What a budget of a service has beside its limits. */
export interface RemoteBudgetOptions extends BudgetLimits {
  sessionId?: string
  /** What it draws on too, with many others: granted by all of them or by none. */
  scopes?: readonly Scope[] | undefined
}

function writtenScopes(scopes: readonly Scope[] | undefined): string {
  if (scopes === undefined || scopes.length === 0) return ''
  const names: Record<string, string> = { maxUsd: 'max_usd', maxTokens: 'max_tokens', maxCredits: 'max_credits' }
  const given = (scope: Scope) => Object.entries(scope).filter(([, value]) => value !== null)
  return JSON.stringify(scopes.map((scope) => Object.fromEntries(given(scope).map(([name, value]) => [names[name] ?? name, value]))))
}

/** A budget whose books are kept by a service, under `sessionId`. */
export class RemoteBudgetTracker extends CoreObject {
  readonly sessionId: string
  readonly client: GuardClient

  constructor(options: RemoteBudgetOptions & ServiceOptions & { parent?: RemoteBudgetTracker }) {
    const client = clientOf(options)
    const { maxUsd, maxTokens, cap, parent } = options
    const limits = [numberOrNone('maxUsd', maxUsd), numberOrNone('maxTokens', maxTokens), numberOrNone('cap', cap)] as const
    const session = options.sessionId === undefined ? newId('ts') : text('sessionId', options.sessionId)
    const named = writeTwo(session, writtenScopes(options.scopes))
    super(
      parent === undefined
        ? wasm.service_budget_new(named, secondLength, ...limits, passes(client, false))
        : wasm.service_budget_child(CoreObject.handleOf(parent), named, secondLength, ...limits),
      wasm.service_budget_free,
    )
    this.client = client
    wasm.service_budget_session(this.handle)
    this.sessionId = output()
  }

  /** A budget that draws on what remains of this one, and on its scopes. */
  child(limits: RemoteBudgetOptions = {}): RemoteBudgetTracker {
    return new RemoteBudgetTracker({ ...limits, client: this.client, parent: this })
  }

  /** `record(usd)`, `record(sessionId, stepId)`, or `record()` for a call of a budget without steps. Rejects with BudgetExceededError. */
  async record(...given: [first?: number | string, stepId?: string]): Promise<void> {
    const [first, stepId] = given
    if (given.length === 0) {
      await this.#ask(wasm.service_budget_count_any(this.handle))
      return
    }
    await this.#ask(
      typeof first === 'string'
        ? wasm.service_budget_count(this.handle, step(first, stepId), secondLength)
        : wasm.service_budget_record(this.handle, amount('usd', first), 0),
    )
  }

  async recordTokens(tokens: number): Promise<void> {
    await this.#ask(wasm.service_budget_record(this.handle, 0, count('tokens', tokens)))
  }

  async recordUsage(model: string, usage: Usage): Promise<void> {
    const tokens = counts(usage)
    await this.#ask(wasm.service_budget_record_usage(this.handle, write(text('model', model)), ...tokens))
  }

  /** What is left, as `BudgetTracker.check` tells it. */
  async check(sessionId?: string, stepId?: string): Promise<number> {
    const asked =
      sessionId === undefined
        ? wasm.service_budget_books(this.handle)
        : wasm.service_budget_calls_left(this.handle, step(sessionId, stepId), secondLength)
    return ((await this.#ask(asked)) as ServiceBooks)['left'] ?? Infinity
  }

  /** Sets an estimate aside. */
  async reserve(usd = 0, { tokens = 0 }: TokenAmount = {}): Promise<RemoteReservation> {
    const id = await this.#ask(wasm.service_budget_reserve(this.handle, amount('usd', usd), count('tokens', tokens)))
    return new RemoteReservation(this, id as string | null, usd, tokens)
  }

  /** Used by `RemoteReservation`. */
  async commitReservation(id: string | null, usd: number, tokens: number): Promise<void> {
    await this.#ask(wasm.service_budget_commit(this.handle, id === null ? -1 : write(id), amount('usd', usd), count('tokens', tokens)))
  }

  /** Used by `RemoteReservation`. */
  async releaseReservation(id: string): Promise<void> {
    await this.#ask(wasm.service_budget_release(this.handle, write(id)))
  }

  async books(): Promise<Books> {
    const books = (await this.#ask(wasm.service_budget_books(this.handle))) as ServiceBooks
    const value = (name: string): number | null => books[name] ?? null
    return {
      spent: value('spent') ?? 0,
      reserved: value('reserved') ?? 0,
      remaining: value('remaining'),
      limit: value('limit'),
      spentTokens: value('spent_tokens') ?? 0,
      reservedTokens: value('reserved_tokens') ?? 0,
      remainingTokens: value('remaining_tokens'),
      limitTokens: value('limit_tokens'),
    }
  }

  /** The error when nothing more may be spent, or null. */
  async exhausted(): Promise<BudgetExceededError | null> {
    return refusal(BudgetExceededError, this.#ask(wasm.service_budget_exhausted(this.handle)))
  }

  #ask(status: number): Promise<unknown> {
    return answered(status, () => this.client)
  }
}

function step(sessionId: unknown, stepId: unknown): number {
  return writeTwo(text('sessionId', sessionId), text('stepId', stepId))
}

/** An estimate that a service has set aside. Commit or release it; the service frees it after a while. */
export class RemoteReservation {
  readonly #budget: RemoteBudgetTracker
  readonly #id: string | null
  readonly usd: number
  readonly tokens: number
  #open = true

  constructor(budget: RemoteBudgetTracker, reservationId: string | null, usd: number, tokens: number) {
    this.#budget = budget
    this.#id = reservationId
    this.usd = usd
    this.tokens = tokens
  }

  async commit(usd: number = this.usd, { tokens = this.tokens }: TokenAmount = {}): Promise<void> {
    amount('usd', usd)
    count('tokens', tokens)
    if (!this.#open) throw reservationEnded()
    this.#open = false
    await this.#budget.commitReservation(this.#id, usd, tokens)
  }

  async release(): Promise<void> {
    if (!this.#open) return
    this.#open = false
    if (this.#id !== null) await this.#budget.releaseReservation(this.#id)
  }
}

/** The right to one call, as the service knows it. */
export interface RemotePermit {
  readonly sessionId: string
  readonly permitId: string | null
  /** Whether this call tests a circuit that was open. */
  readonly probe: boolean
}

/** A circuit breaker that all who use the same name share, with the service's thresholds. */
export class RemoteCircuitBreaker extends CoreObject {
  readonly name: string
  readonly #client: GuardClient

  constructor(options: Pick<BreakerSettings, 'name'> & ServiceOptions) {
    const client = clientOf(options)
    super(wasm.service_circuit_new(write(text('name', options.name ?? 'default')), passes(client, true)), wasm.service_circuit_free)
    this.#client = client
    wasm.service_circuit_name(this.handle)
    this.name = output()
  }

  async call<Result>(fn: () => Result): Promise<Awaited<Result>> {
    const permit = await this.check()
    const begun = performance.now()
    const tell = (ok: boolean): Promise<void> => this.record(ok, { permit, latencyMs: performance.now() - begun })
    let result: Awaited<Result>
    try {
      result = await fn()
    } catch (error) {
      if (saysSomething(error)) await tell(false)
      throw error
    }
    await tell(true)
    return result
  }

  /** Rejects with CircuitOpenError when no call may run. */
  async check(): Promise<RemotePermit> {
    return (await this.#ask(wasm.service_circuit_check(this.handle, write(newId('ts'))))) as RemotePermit
  }

  async record(ok: boolean, options: { latencyMs?: number | undefined; permit?: RemotePermit | undefined } = {}): Promise<void> {
    const { latencyMs, permit } = options
    const latency = latencyMs === undefined ? -1 : amount('latencyMs', latencyMs)
    const session = writeTwo(permit?.sessionId ?? newId('ts'), permit?.permitId ?? '')
    const id = permit?.permitId == null ? -1 : secondLength
    await this.#ask(wasm.service_circuit_record(this.handle, session, id, Number(ok), latency))
  }

  async state(): Promise<BreakerState> {
    const { circuits } = (await this.#client.circuits({ endpoint: this.name })) as {
      circuits?: { endpoint_key: string; phase: BreakerState }[]
    }
    return circuits?.find(({ endpoint_key }) => endpoint_key === this.name)?.phase ?? 'closed'
  }

  /** Refuses everything until `reset`. */
  async forceOpen(): Promise<void> {
    await this.#client.circuitOpen(this.name)
  }

  /** Lets everything pass until `reset`. */
  async forceClose(): Promise<void> {
    await this.#client.circuitClose(this.name)
  }

  /** Closed and automatic, with nothing remembered. */
  async reset(): Promise<void> {
    await this.#client.circuitReset(this.name)
  }

  #ask(status: number): Promise<unknown> {
    return answered(status, () => this.#client)
  }
}

/** A tracker of tool calls whose turn is kept by a service, with the service's limits. */
export class RemoteToolExecutionTracker extends CoreObject {
  readonly #client: GuardClient
  #turn = newId('ts')

  constructor(options: ServiceOptions) {
    const client = clientOf(options)
    super(wasm.service_tools_new(passes(client, true)), wasm.service_tools_free)
    this.#client = client
  }

  async shouldSkip(tool: string, args?: unknown): Promise<Skip | null> {
    return (await this.#ask(wasm.service_tools_should_skip(this.handle, ...this.#call(tool, args)))) as Skip | null
  }

  async record(tool: string, args?: unknown, outcome: { error?: unknown } = {}): Promise<void> {
    await this.#ask(wasm.service_tools_record(this.handle, ...this.#call(tool, args), Number(hasFailed(outcome))))
  }

  /** The same as `shouldSkip`. */
  shouldSkipExecution(tool: string, args?: unknown): Promise<Skip | null> {
    return this.shouldSkip(tool, args)
  }

  /** The same as `record`. */
  recordExecution(tool: string, args?: unknown, outcome: { error?: unknown } = {}): Promise<void> {
    return this.record(tool, args, outcome)
  }

  newTurn(): void {
    this.#turn = newId('ts')
  }

  #call(tool: string, args: unknown): [number, number, number] {
    return writeAll([this.#turn, text('tool', tool), argumentsToJson(args)]) as [number, number, number]
  }

  #ask(status: number): Promise<unknown> {
    return answered(status, () => this.#client)
  }
}

/** `Run`, with its counts in a service: the same questions, as promises. The trip itself is kept here, so it is sticky without a request. */
export class RemoteRun {
  readonly runId: string
  readonly budget: RemoteBudgetTracker | null
  readonly #client: GuardClient
  readonly #core: CoreRun
  readonly #stall: RemoteStallDetector | null

  constructor(
    options: Omit<RunOptions, 'budget' | 'loop' | 'stall'> &
      ServiceOptions & { stall?: boolean; budget?: RemoteBudgetTracker; scopes?: readonly Scope[] | undefined },
  ) {
    const { maxUsd, maxTokens, budget, repeats, maxCycleLen, scopes } = options
    const client = clientOf(options)
    this.#client = client
    this.runId = options.runId === undefined ? newId('run') : text('runId', options.runId)
    const loop = new RemoteLoopDetector({ repeats, maxCycleLen, client })
    this.#stall = options.stall === true ? new RemoteStallDetector({ client }) : null
    const limits = { maxUsd, maxTokens, scopes, sessionId: this.runId }
    const limited = maxUsd !== undefined || maxTokens !== undefined || (scopes?.length ?? 0) > 0
    this.budget = limited ? (budget?.child(limits) ?? new RemoteBudgetTracker({ ...limits, client })) : (budget ?? null)
    const parts = [loop, this.#stall, this.budget].map(CoreObject.handleOf) as [number, number, number]
    this.#core = new CoreRun(this.runId, options, wasm.run_over_service(...settingsOf(this.runId, options), ...parts))
    // The run has what it needs of it.
    loop.free()
  }

  async beforeTool(tool: string, args?: unknown, agent: AgentName = {}): Promise<void> {
    await this.#heed(this.#core.beforeTool(tool, args, agent))
  }

  async afterTool(tool: string, args?: unknown, result?: unknown, outcome: ToolOutcome = {}): Promise<string | null> {
    return this.#core.looked(await this.#heed(this.#core.afterTool(tool, args, result, outcome)))
  }

  async beforeModel(): Promise<void> {
    await this.#heed(this.#core.beforeModel())
  }

  /** As `Run.modelCall`. */
  modelCall(model: string, prompt?: unknown, options: ModelCallOptions = {}): Promise<ModelCall> {
    return this[BEGIN](model, prompt, { ...options, mayFallBack: true })
  }

  /** @internal */
  [BEGIN](model: string, prompt: unknown, options: BeginOptions): Promise<ModelCall> {
    const owner = this.#core.owner((status) => this.#heed(status))
    return beginModel(owner, model, prompt, options)
  }

  /** @internal */
  get [HANDLE](): number {
    return this.#core.number
  }

  /** @internal */
  [COUNT_MODEL](): Promise<void> {
    return this.beforeModel()
  }

  /** @internal */
  async [STOP_LOOP](cycle: readonly string[], repeats: number, message: string): Promise<void> {
    await this.#heed(this.#core.stopLoop(cycle, repeats, message))
  }

  /** @internal */
  [INSTEAD](tool: string, args: unknown): string | null {
    return this.#core.instead(tool, args)
  }

  /** @internal */
  [HEARS_HOOKS](): boolean {
    this.check()
    return true
  }

  /** @internal */
  [NOTE_USAGE](): void {}

  async recordUsage(model: string, usage: Usage): Promise<void> {
    await this.#spend(this.#core.recordUsage(model, usage))
  }

  async recordUsd(usd: number): Promise<void> {
    await this.#spend(this.#core.record(usd))
  }

  get trip(): TripError | null {
    return this.#core.trip
  }

  get tripped(): boolean {
    return this.trip !== null
  }

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

  #heed(status: number): Promise<unknown> {
    const client = (part: string): GuardClient => (part === 'budget' && this.budget !== null ? this.budget.client : this.#client)
    return answered(status, client, this.#core.stopped)
  }

  async #spend(status: number): Promise<void> {
    try {
      await this.#heed(status)
    } finally {
      this.#core.spent()
    }
  }
}
