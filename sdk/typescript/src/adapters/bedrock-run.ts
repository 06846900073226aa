/** The run behind a Bedrock session: which one it is, what a turn of it remembers, and what it is told by a stream. */
import { BudgetTracker } from '../budget.js'
import type { ClientOptions } from '../client.js'
import { snakeCase } from '../core/input.js'
import { argumentsToJson } from '../core/json.js'
import { CoreObject, DONE, failure, outputJson, wasm, write } from '../core/wasm.js'
import { InvalidInputError } from '../errors.js'
import { COUNT_MODEL, HANDLE, STOP_LOOP } from '../model-call.js'
import { RemoteRun } from '../remote.js'
import { Run, type RunOptions } from '../run.js'
import type { AnyRun } from './runs.js'

/** After how many attempts in vain a run is ended. 0 turns a rule off. */
export interface AttemptSettings {
  /** Lookups about the same thing in one knowledge base, all but the first of which brought nothing new. */
  sameLookups?: number | undefined
  /** Lookups in a row in one knowledge base that brought nothing new, whatever they asked. */
  barrenLookups?: number | undefined
  /** Actions in a row that failed with the same error, whatever their parameters. */
  sameErrors?: number | undefined
  /** Rounds of looking up and failing as before, after which another lookup is one too many. */
  failingRounds?: number | undefined
}

/** What a session's run may have: the options of `Run`, and where a service keeps it, so that processes share it. */
export type SessionOptions = Omit<RunOptions, 'runId' | 'stall'> & {
  stall?: RunOptions['stall']
} & Partial<Pick<ClientOptions, 'url' | 'apiKey'>>

/** What the trace says, in its order. */
type Step =
  | { step: 'model' }
  | { step: 'usage'; model: string | null; input_tokens: number; output_tokens: number }
  | { step: 'before'; agent: string | null; tool: string; args: unknown }
  | { step: 'after'; agent: string | null; tool: string; args: unknown; result: string | null; error: string | null }
  | { step: 'stop'; cycle: string[]; repeats: number; message: string }

/** What of an event, or of the state of a session, says something. */
export interface Heard {
  trace?: unknown
  returnControl?: unknown
  invocationId?: unknown
  returnControlInvocationResults?: unknown
}

/** What is remembered during one user turn, which returns of control may spread over several streams. */
export class Turn extends CoreObject {
  /** The thresholds that are not given go with the run. */
  constructor(run: AnyRun, settings: AttemptSettings = {}) {
    super(wasm.bedrock_turn_new(run[HANDLE], write(argumentsToJson(snakeCase(settings)))), wasm.bedrock_turn_free)
  }

  /** What one event of the stream says, or the state that is sent with results of returned calls. */
  hear({ trace, returnControl, invocationId, returnControlInvocationResults }: Heard): Step[] {
    const said = JSON.stringify({ trace, returnControl, invocationId, returnControlInvocationResults })
    const status = wasm.bedrock_turn_hear(this.handle, write(said))
    if (status !== DONE) throw failure(status)
    return outputJson()
  }
}

const turns = new WeakMap<AnyRun, Turn>()

function turnOf(run: AnyRun, isSameTurn: boolean, settings: AttemptSettings | undefined): Turn {
  const known = turns.get(run)
  if (known !== undefined && isSameTurn) return known
  const turn = new Turn(run, settings)
  run.newTurn()
  turns.set(run, turn)
  return turn
}

/** The run of each session. Beyond `capacity` sessions the one not used for longest is forgotten. */
export class Sessions {
  readonly #capacity: number
  readonly #runs = new Map<string, { run: AnyRun; options: SessionOptions }>()

  constructor(capacity = 10_000) {
    if (!(capacity >= 1)) throw new InvalidInputError(`capacity is ${capacity}: at least one session must be remembered.`)
    this.#capacity = capacity
  }

  /** The run of a session; the first call makes it. Later calls may leave the options out, but not change a limit. */
  run(sessionId: string, agentId = '', options: SessionOptions = {}): AnyRun {
    const key = JSON.stringify([agentId, sessionId])
    const known = this.#runs.get(key) ?? { run: opened(sessionId, options), options }
    this.#runs.delete(key)
    this.#runs.set(key, known)
    if (this.#runs.size > this.#capacity) this.#runs.delete(this.#runs.keys().next().value as string)
    const first: Readonly<Record<string, unknown>> = known.options
    const changed = Object.entries(options).filter(([name, value]) => ['number', 'string'].includes(typeof value) && first[name] !== value)
    if (changed.length > 0)
      throw new InvalidInputError(
        `Session '${sessionId}' began with other options (${changed.map(([name]) => name).join(', ')}). ` +
          'Give every call of a session the same ones, or pass run and keep the Run yourself.',
      )
    return known.run
  }

  /** Lets a session begin anew: budget, loop history and trip are gone. For an operator, not for the agent. */
  forget(sessionId: string, agentId = ''): void {
    this.#runs.delete(JSON.stringify([agentId, sessionId]))
  }
}

function opened(runId: string, options: SessionOptions): AnyRun {
  const { url, apiKey, loop, stall, budget, ...rest } = options
  if (url !== undefined) {
    if (loop !== undefined || budget !== undefined)
      throw new InvalidInputError('loop and budget are kept in this process, and with url the service keeps them. Leave them out.')
    return new RemoteRun({ ...rest, url, ...(apiKey === undefined ? {} : { apiKey }), runId, stall: stall !== undefined })
  }
  const isLimited = [rest.maxUsd, rest.maxTokens, budget].some((limit) => limit !== undefined)
  // A budget without a limit, so that what was spent can be read.
  return new Run({ ...rest, runId, loop, stall, budget: isLimited ? budget : new BudgetTracker() })
}

/** What every guarded call of this process uses that is given none. */
export const sharedSessions = new Sessions()

export interface ListenerSettings {
  /** The invocation brought back results of returned calls, and was no new user message. */
  sameTurn?: boolean | undefined
  /** Under which model an id without a price is paid, for example an application inference profile. */
  models?: Readonly<Record<string, string>> | undefined
  /** The model where the trace names none. */
  defaultModel?: string | undefined
  attempts?: AttemptSettings | undefined
}

/** Tells the run what the events of one stream say. */
export class Listener {
  readonly run: AnyRun
  /** Calls the agent announced so far, the refused one included. */
  steps = 0
  readonly #turn: Turn
  readonly #settings: ListenerSettings
  #sawTrace = false

  constructor(run: AnyRun, settings: ListenerSettings) {
    run.check()
    this.run = run
    this.#settings = settings
    this.#turn = turnOf(run, settings.sameTurn ?? false, settings.attempts)
  }

  /** Throws the trip when this event is the one too many. */
  async hear(event: Heard): Promise<void> {
    for (const said of this.told(event)) await said
  }

  /** The same, question by question: of a run in a service each is a promise, of one in this process it throws at once. */
  *told(event: Heard): Generator<unknown, void> {
    if ([event.trace, event.returnControl, event.returnControlInvocationResults].every((part) => part === undefined)) return
    this.#sawTrace ||= event.trace !== undefined
    const { run } = this
    run.check()
    for (const step of this.#turn.hear(event)) {
      switch (step.step) {
        case 'model':
          yield run[COUNT_MODEL]()
          break
        case 'usage':
          yield run.recordUsage(this.#priced(step.model), { inputTokens: step.input_tokens, outputTokens: step.output_tokens })
          break
        case 'before':
          this.steps += 1
          yield run.beforeTool(step.tool, step.args, agentOf(step.agent))
          break
        case 'after':
          yield run.afterTool(step.tool, step.args, step.result ?? undefined, { error: step.error, ...agentOf(step.agent) })
          // A stall is seen in results. The next model call is on its way by now, so the trip is thrown here.
          run.check()
          break
        case 'stop':
          yield run[STOP_LOOP](step.cycle, step.repeats, step.message)
          break
      }
    }
  }

  /** The name that a step is paid under. */
  #priced(named: string | null): string {
    const { models = {}, defaultModel } = this.#settings
    const model = named ?? defaultModel
    return model === undefined ? 'a model the trace does not name (defaultModel says which)' : (models[model] ?? model)
  }

  ended(): void {
    if (this.#sawTrace) return
    console.warn(
      `runguard: The stream of ${this.run.runId} carried no trace, so nothing of it was guarded. Invoke the agent with enableTrace: true.`,
    )
  }
}

function agentOf(agent: string | null): { agent?: string } {
  return agent === null ? {} : { agent }
}
