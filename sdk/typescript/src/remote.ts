/**
 * The detectors when a RunGuard service keeps the counts: many processes then share one run, one budget, one circuit.
 * The same names as in process, but every method is async, because HTTP is.
 */
import { Alerts } from './alerts.js'
import type { BreakerSettings, BreakerState } from './breaker.js'
import type { Books, BudgetLimits, TokenAmount } from './budget.js'
import { GuardClient, type Answer, type ClientOptions, type Fields } from './client.js'
import { amount, count, newId, text } from './core/input.js'
import { argumentsToJson, resultToText } from './core/json.js'
import {
  BudgetExceededError,
  CircuitOpenError,
  InvalidInputError,
  LoopDetectedError,
  StallDetectedError,
  ToolLimitError,
  TripError,
  UnknownModelError,
} from './errors.js'
import { fingerprint } from './fingerprint.js'
import type { LoopEvent, LoopSettings } from './loop.js'
import { counts, type Usage } from './prices.js'
import type { RunOptions, ToolOutcome } from './run.js'
import type { Rung, StallRule, StepOutcome, Verdict } from './stall.js'
import type { Skip, SkipReason } from './tools.js'

/** Where the service is. Unlike a bare client, guards fail open unless told otherwise; budgets do not. */
export type ServiceOptions = ClientOptions | { client: GuardClient }

const LONGEST_ID = 256

function clientOf(options: ServiceOptions, failOpen: boolean): GuardClient {
  return 'client' in options ? options.client : new GuardClient({ failOpen, ...options })
}

/** A name the service takes: a long one is cut, and told apart by its fingerprint. */
function id(what: string, name: unknown): string {
  const given = text(what, name, 65_536)
  return given.length <= LONGEST_ID ? given : `${given.slice(0, 200)}(${fingerprint(given)})`
}

/** A loop detector whose calls are counted by a service. A call that was refused is not counted. */
export class RemoteLoopDetector {
  readonly #client: GuardClient
  readonly #thresholds: Fields
  readonly #ownId = newId('ts')
  readonly #turns = new Map<string, number>()

  constructor(options: LoopSettings & ServiceOptions) {
    this.#client = clientOf(options, true)
    const { repeats, maxCycleLen, windowSeconds, maxCalls } = options
    this.#thresholds = { repeats, max_cycle_len: maxCycleLen, window_seconds: windowSeconds ?? undefined, max_calls: maxCalls ?? undefined }
  }

  /** Takes a call, as `LoopDetector.record` does. Rejects with LoopDetectedError. */
  async record(first: string | LoopEvent, key?: string): Promise<void> {
    const error = await this.#ask('loop', first, key)
    if (error !== null) throw error
  }

  /** The error the next such call would reject with, or null. */
  check(first: string | LoopEvent, key?: string): Promise<LoopDetectedError | null> {
    return this.#ask('loop/check', first, key)
  }

  /** Begins a new history for the session. What was counted stays in the service's log. */
  reset(sessionId: string = this.#ownId): void {
    this.#turns.set(sessionId, (this.#turns.get(sessionId) ?? 0) + 1)
  }

  async #ask(route: string, first: string | LoopEvent, key: string | undefined): Promise<LoopDetectedError | null> {
    const [session, name] =
      typeof first !== 'string' ? [first?.sessionId, first?.tool] : key === undefined ? [this.#ownId, first] : [first, key]
    const turn = this.#turns.get(session) ?? 0
    const session_id = id('sessionId', session === '' || turn === 0 ? session : `${session}#${turn}`)
    return loopError(await this.#client.guard(route, { session_id, tool: id('The name of the call', name), ...this.#thresholds }), name)
  }
}

function loopError(answer: Answer, name: string): LoopDetectedError | null {
  if (answer.allow) return null
  const cycle = Array.isArray(answer['pattern']) ? (answer['pattern'] as string[]) : [name]
  return new LoopDetectedError(answer.message ?? '', {
    cycle,
    repeats: Number(answer['repeats'] ?? answer['calls_in_window'] ?? 0),
    reason: answer.reason,
  })
}

/** A stall detector whose history is kept by a service, with the service's thresholds. Arguments leave this process as hashes. */
export class RemoteStallDetector {
  readonly #client: GuardClient
  readonly #ownId = newId('ts')

  constructor(options: ServiceOptions) {
    this.#client = clientOf(options, true)
  }

  observe(tool: string, args?: unknown, result?: unknown, outcome: StepOutcome = {}): Promise<Verdict> {
    const { error } = outcome
    const failed = error !== undefined && error !== null && error !== false
    return this.#ask(outcome.sessionId, {
      tool: id('tool', tool),
      args_hash: fingerprint(args),
      result: result === undefined ? undefined : resultToText(result).slice(0, 65_536),
      error: failed ? resultToText(error === true ? result : error).slice(0, 4096) : undefined,
      round: outcome.round === undefined ? undefined : String(count('round', outcome.round)),
    })
  }

  message(said: string, sessionId?: string): Promise<Verdict> {
    return this.#ask(sessionId, { message: text('message', said, 65_536) })
  }

  async userMessage(sessionId?: string): Promise<void> {
    await this.#ask(sessionId, { new_turn: true })
  }

  async #ask(sessionId: string | undefined, what: Fields): Promise<Verdict> {
    const answer = await this.#client.guard('stall', { session_id: id('sessionId', sessionId ?? this.#ownId), ...what })
    return {
      rung: (answer['rung'] as Rung | undefined) ?? 'go_on',
      rule: (answer['rule'] as StallRule | undefined) ?? null,
      count: Number(answer['count'] ?? 0),
      nudge: String(answer['nudge'] ?? ''),
      message: answer.message ?? '',
    }
  }
}

/** A budget whose books are kept by a service, under `sessionId`. */
export class RemoteBudgetTracker {
  readonly sessionId: string
  readonly #client: GuardClient
  readonly #limits: Fields

  constructor(options: BudgetLimits & ServiceOptions & { sessionId?: string; parent?: RemoteBudgetTracker }) {
    this.#client = clientOf(options, false)
    this.sessionId = options.sessionId === undefined ? newId('ts') : id('sessionId', options.sessionId)
    const { maxUsd, maxTokens, cap, parent } = options
    this.#limits = { max_usd: maxUsd ?? undefined, max_tokens: maxTokens ?? undefined, cap: cap ?? undefined, parent: parent?.sessionId }
  }

  child(limits: BudgetLimits = {}): RemoteBudgetTracker {
    return new RemoteBudgetTracker({ ...limits, client: this.#client, parent: this })
  }

  /** `record(usd)` or `record(sessionId, stepId)`. Rejects with BudgetExceededError. */
  async record(first: number | string, stepId?: string): Promise<void> {
    await this.#ask('record', typeof first === 'string' ? { key: callKey(first, stepId) } : { usd: amount('usd', first) })
  }

  async recordTokens(tokens: number): Promise<void> {
    await this.#ask('record', { tokens: count('tokens', tokens) })
  }

  async recordUsage(model: string, usage: Usage): Promise<void> {
    const [input_tokens, output_tokens, cached_tokens, cache_write_tokens] = counts(usage)
    await this.#ask('record', { model: id('model', model), input_tokens, output_tokens, cached_tokens, cache_write_tokens })
  }

  /** Dollars that remain, or with a session and a step the calls that remain; Infinity where nothing limits them. */
  async check(sessionId?: string, stepId?: string): Promise<number> {
    if (sessionId === undefined) return (await this.books()).remaining ?? Infinity
    const answer = await this.#client.guard('budget/check', {
      session_id: this.sessionId,
      ...this.#limits,
      key: callKey(sessionId, stepId),
    })
    return Number(answer['remaining_calls'] ?? (answer.allow ? Infinity : 0))
  }

  /** Sets an estimate aside. */
  async reserve(usd = 0, { tokens = 0 }: TokenAmount = {}): Promise<RemoteReservation> {
    const answer = await this.#ask('reserve', { usd: amount('usd', usd), tokens: count('tokens', tokens) })
    return new RemoteReservation((act, what) => this.#ask(act, what), answer['reservation_id'] as string | undefined, usd, tokens)
  }

  async books(): Promise<Books> {
    const answer = await this.#client.guard('budget/check', { session_id: this.sessionId, ...this.#limits })
    const value = (name: string): number | null => (answer[name] === undefined ? null : Number(answer[name]))
    return {
      spent: value('spent_usd') ?? 0,
      reserved: value('reserved_usd') ?? 0,
      remaining: value('remaining_usd'),
      limit: value('limit_usd'),
      spentTokens: value('spent_tokens') ?? 0,
      reservedTokens: value('reserved_tokens') ?? 0,
      remainingTokens: value('remaining_tokens'),
      limitTokens: value('limit_tokens'),
    }
  }

  /** The error when nothing more may be spent, or null. */
  async exhausted(): Promise<BudgetExceededError | null> {
    const books = await this.books()
    const units = [
      [books.spent, books.limit, books.remaining, 'usd'],
      [books.spentTokens, books.limitTokens, books.remainingTokens, 'tokens'],
    ] as const
    for (const [spent, limit, remaining, unit] of units) {
      if (remaining !== null && remaining <= 0) {
        const message = `The budget of ${limit ?? 'the parent'} ${unit} is used up: ${spent} spent. Stop the run, or start it with a higher limit.`
        return new BudgetExceededError(message, { spent, limit: limit ?? spent, unit })
      }
    }
    return null
  }

  async #ask(act: string, what: Fields): Promise<Answer> {
    const answer = await this.#client.guard(`budget/${act}`, { session_id: this.sessionId, ...this.#limits, ...what })
    if (answer.allow) return answer
    const { reason, message = '' } = answer
    if (reason === 'unknown_model') throw new UnknownModelError(message, { model: String(answer['model'] ?? what['model'] ?? '') })
    const [unit, spent, limit] =
      answer['cap'] !== undefined
        ? (['calls', answer['calls'], answer['cap']] as const)
        : answer['limit_usd'] === undefined && answer['limit_tokens'] !== undefined
          ? (['tokens', answer['spent_tokens'], answer['limit_tokens']] as const)
          : (['usd', answer['spent_usd'], answer['limit_usd']] as const)
    throw new BudgetExceededError(message, { unit, spent: Number(spent ?? 0), limit: Number(limit ?? 0), reason })
  }
}

function callKey(sessionId: unknown, stepId: unknown): string {
  return id('sessionId and stepId', `${text('sessionId', sessionId, 65_536)}/${text('stepId', stepId, 65_536)}`)
}

/** An estimate that a service has set aside. Commit or release it; the service frees it after a while. */
export class RemoteReservation {
  readonly #ask: (act: string, what: Fields) => Promise<Answer>
  readonly #id: string | undefined
  readonly usd: number
  readonly tokens: number
  #open = true

  constructor(ask: (act: string, what: Fields) => Promise<Answer>, reservationId: string | undefined, usd: number, tokens: number) {
    this.#ask = ask
    this.#id = reservationId
    this.usd = usd
    this.tokens = tokens
  }

  async commit(usd: number = this.usd, { tokens = this.tokens }: TokenAmount = {}): Promise<void> {
    const paid = { usd: amount('usd', usd), tokens: count('tokens', tokens) }
    if (!this.#open) throw new InvalidInputError('This reservation was committed or released before.')
    this.#open = false
    // Without an id the service could not be asked when this was reserved, and calls pass then.
    await (this.#id === undefined ? this.#ask('record', paid) : this.#ask('commit', { reservation_id: this.#id, ...paid }))
  }

  async release(): Promise<void> {
    if (!this.#open) return
    this.#open = false
    if (this.#id !== undefined) await this.#ask('release', { reservation_id: this.#id })
  }
}

/** The right to one call, as the service knows it. */
export interface RemotePermit {
  readonly sessionId: string
  readonly permitId: string | undefined
}

/** A circuit breaker that all who use the same name share, with the service's thresholds. */
export class RemoteCircuitBreaker {
  readonly name: string
  readonly #client: GuardClient

  constructor(options: Pick<BreakerSettings, 'name'> & ServiceOptions) {
    this.#client = clientOf(options, true)
    this.name = id('name', options.name ?? 'default')
  }

  async call<Result>(fn: () => Result): Promise<Awaited<Result>> {
    const permit = await this.check()
    const begun = performance.now()
    const tell = (ok: boolean): Promise<void> => this.record(ok, { permit, latencyMs: performance.now() - begun })
    let result: Awaited<Result>
    try {
      result = await fn()
    } catch (error) {
      await tell(false)
      throw error
    }
    await tell(true)
    return result
  }

  /** Rejects with CircuitOpenError when no call may run. */
  async check(): Promise<RemotePermit> {
    // Each call is a session of its own: the ceiling of retries per session is for conversations.
    const sessionId = newId('ts')
    const answer = await this.#client.apiCircuitCheck({ endpoint_key: this.name, session_id: sessionId })
    if (answer.allow) return { sessionId, permitId: answer['permit_id'] as string | undefined }
    throw new CircuitOpenError(answer.message ?? '', {
      endpoint: this.name,
      retryAfterSeconds: answer.retry_after_seconds ?? null,
      reason: answer.reason,
    })
  }

  async record(ok: boolean, options: { latencyMs?: number | undefined; permit?: RemotePermit | undefined } = {}): Promise<void> {
    const { latencyMs, permit } = options
    await this.#client.apiCircuitRecord({
      endpoint_key: this.name,
      session_id: permit?.sessionId ?? newId('ts'),
      outcome: ok ? 'success' : 'failure',
      ...(latencyMs === undefined ? {} : { latency_ms: Math.round(amount('latencyMs', latencyMs)) }),
      ...(permit?.permitId === undefined ? {} : { permit_id: permit.permitId }),
    })
  }

  async state(): Promise<BreakerState> {
    const { circuits } = (await this.#client.circuits({ endpoint: this.name })) as { circuits?: { endpoint_key: string; phase: BreakerState }[] }
    return circuits?.find(({ endpoint_key }) => endpoint_key === this.name)?.phase ?? 'closed'
  }
}

/** A tracker of tool calls whose turn is kept by a service, with the service's limits. */
export class RemoteToolExecutionTracker {
  readonly #client: GuardClient
  #turn = newId('ts')

  constructor(options: ServiceOptions) {
    this.#client = clientOf(options, true)
  }

  async shouldSkip(tool: string, args?: unknown): Promise<Skip | null> {
    const answer = await this.#client.toolCall({
      session_id: this.#turn,
      tool: id('tool', tool),
      args: JSON.parse(argumentsToJson(args)) as unknown,
    })
    if (answer.allow) return null
    return {
      reasonCode: (answer.reason ?? 'tool_limit') as SkipReason,
      message: answer.message ?? '',
      count: Number(answer['calls'] ?? 0),
      limit: Number(answer['limit'] ?? 0),
    }
  }

  async record(tool: string, args?: unknown, outcome: { error?: unknown } = {}): Promise<void> {
    const { error } = outcome
    const failed = error !== undefined && error !== null && error !== false
    await this.#client.toolCallRecord({
      session_id: this.#turn,
      tool: id('tool', tool),
      args: JSON.parse(argumentsToJson(args)) as unknown,
      error: failed,
    })
  }

  newTurn(): void {
    this.#turn = newId('ts')
  }
}

/** `Run`, with its counts in a service: the same questions, as promises. The trip itself is kept here, so it is sticky without a request. */
export class RemoteRun {
  readonly runId: string
  readonly budget: RemoteBudgetTracker | null
  readonly #client: GuardClient
  readonly #thresholds: Fields
  readonly #stall: RemoteStallDetector | null
  readonly #alerts: Alerts | null
  readonly #maxToolCalls: number
  readonly #maxModelCalls: number
  #trip: TripError | null = null
  #toolCalls = 0
  #modelCalls = 0
  #turn = 0

  constructor(options: Omit<RunOptions, 'budget' | 'loop' | 'stall'> & ServiceOptions & { stall?: boolean; budget?: RemoteBudgetTracker }) {
    this.#client = clientOf(options, true)
    this.runId = options.runId === undefined ? newId('run') : id('runId', options.runId)
    this.#thresholds = { repeats: options.repeats, max_cycle_len: options.maxCycleLen }
    this.#stall = options.stall === true ? new RemoteStallDetector({ client: this.#client }) : null
    this.#alerts = Alerts.of(options.alerts)
    this.#maxToolCalls = options.maxToolCalls === undefined ? Infinity : count('maxToolCalls', options.maxToolCalls)
    this.#maxModelCalls = options.maxModelCalls === undefined ? Infinity : count('maxModelCalls', options.maxModelCalls)
    const { maxUsd, maxTokens, budget } = options
    const limited = maxUsd !== undefined || maxTokens !== undefined
    this.budget = limited
      ? (budget?.child({ maxUsd, maxTokens }) ??
        new RemoteBudgetTracker({ maxUsd, maxTokens, sessionId: this.runId, client: this.#client }))
      : (budget ?? null)
  }

  async beforeTool(tool: string, args?: unknown): Promise<void> {
    this.check()
    const name = id('tool', tool)
    // Arguments stay here; their fingerprint tells calls apart.
    const hash = fingerprint(args)
    if (this.#toolCalls >= this.#maxToolCalls) {
      const limit = this.#maxToolCalls
      throw this.#stop(
        new ToolLimitError(
          `The run has made its ${limit} tool calls; '${tool}' would be one more. Answer with what there is, or raise maxToolCalls.`,
          { tool, limit, reason: 'tool_call_ceiling' },
        ),
      )
    }
    this.#toolCalls += 1
    const error = loopError(
      await this.#client.guard('loop', { session_id: this.#session(), tool: name, args: hash, ...this.#thresholds }),
      tool,
    )
    if (error !== null) throw this.#stop(error)
  }

  async afterTool(tool: string, args?: unknown, result?: unknown, outcome: ToolOutcome = {}): Promise<string | null> {
    if (this.#stall === null) return null
    const round = this.#modelCalls === 0 ? undefined : this.#modelCalls
    const verdict = await this.#stall.observe(tool, args, result, { error: outcome.error, round, sessionId: this.#session() })
    if (verdict.rung === 'block' || verdict.rung === 'stop') {
      this.#stop(new StallDetectedError(verdict.message, { rule: verdict.rule ?? '', count: verdict.count, nudge: verdict.nudge }))
    }
    return verdict.nudge === '' ? null : verdict.nudge
  }

  async beforeModel(): Promise<void> {
    this.check()
    const exhausted = (await this.budget?.exhausted()) ?? null
    if (exhausted !== null) throw this.#stop(exhausted)
    if (this.#modelCalls >= this.#maxModelCalls) {
      const limit = this.#maxModelCalls
      throw this.#stop(
        new ToolLimitError(`The run has made its ${limit} model calls. Answer with what there is, or raise maxModelCalls.`, {
          tool: 'model',
          limit,
          reason: 'model_call_ceiling',
        }),
      )
    }
    this.#modelCalls += 1
  }

  recordUsage(model: string, usage: Usage): Promise<void> {
    return this.#spend((budget) => budget.recordUsage(model, usage))
  }

  recordUsd(usd: number): Promise<void> {
    return this.#spend((budget) => budget.record(usd))
  }

  get trip(): TripError | null {
    return this.#trip
  }

  get tripped(): boolean {
    return this.#trip !== null
  }

  get message(): string {
    return this.#trip?.message ?? ''
  }

  /** Throws the trip, if there is one. */
  check(): void {
    if (this.#trip !== null) throw this.#trip
  }

  /** A user message: what follows may repeat what was before. Budget and trip stay. */
  newTurn(): void {
    this.#turn += 1
  }

  /** Forgets the trip and all counts but the money. For an operator, not for the agent. */
  reset(): void {
    this.newTurn()
    this.#toolCalls = 0
    this.#modelCalls = 0
    this.#trip = null
  }

  #session(): string {
    return this.#turn === 0 ? this.runId : `${this.runId}#${this.#turn}`
  }

  async #spend(spend: (budget: RemoteBudgetTracker) => Promise<void>): Promise<void> {
    try {
      if (this.budget !== null) await spend(this.budget)
    } catch (error) {
      throw error instanceof BudgetExceededError ? this.#stop(error) : error
    }
  }

  #stop(trip: TripError): TripError {
    if (this.#trip === null) {
      trip.runId ??= this.runId
      this.#trip = trip
      this.#alerts?.send(trip)
    }
    return this.#trip
  }
}
