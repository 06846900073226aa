/**
 * Amazon Bedrock agents (`@aws-sdk/client-bedrock-agent-runtime`): guarded invocations, or a guarded client.
 *
 *     const answer = await guardInvokeAgent(client, new InvokeAgentCommand({ agentId, agentAliasId, sessionId, inputText }), { maxUsd: 2 })
 *     console.log(await answer.text()) // throws a TripError when the agent loops or spends too much
 *
 * The agent runs inside AWS, and there is no call that stops it. What a caller can do is to read the trace while it streams, hang up on the
 * first sign of a loop, hand out no further call to run, and send nothing more in that session. That is what happens here:
 *
 * - the trace is always switched on; without it a stream says nothing about what the agent does
 * - one run per session holds the budget and the trip; the loop history starts anew with each user message, and an invocation that only brings
 *   back the results of returned calls is no new message
 * - each agent of a multi-agent session has a loop history of its own
 * - on a trip the stream is closed, before the error is thrown
 */
import { BudgetTracker } from '../budget.js'
import { camelCase, known, snakeCase, text } from '../core/input.js'
import { argumentsToJson } from '../core/json.js'
import { DONE, failure, outputJson, wasm, writeAll } from '../core/wasm.js'
import { InvalidInputError } from '../errors.js'
import { LoopDetector } from '../loop.js'
import { Run } from '../run.js'
import { Listener, Sessions, sharedSessions, type AttemptSettings, type ListenerSettings, type SessionOptions } from './bedrock-run.js'
import type { AnyRun } from './runs.js'

export { Sessions, type AttemptSettings, type SessionOptions }

/** A kind of agent that there are settings for. */
export type BedrockPreset = 'research' | 'automation' | 'interactive'

/** The options of the session's run, or a run of your own, and how the trace is read. */
export type BedrockOptions = SessionOptions &
  Omit<ListenerSettings, 'sameTurn'> & {
    run?: AnyRun | undefined
    /** Where runs of sessions are kept; by default all of this process together. */
    sessions?: Sessions | undefined
    /** Settings for a kind of agent; what is given besides goes before them. */
    preset?: BedrockPreset | undefined
  }

/** What clients and commands of the AWS SDK carry: functions around the sending of a command. */
interface MiddlewareStack {
  add(middleware: any, options: any): void
  remove(name: string): boolean
}

/** `BedrockAgentRuntimeClient`. */
export interface AgentClient {
  send(command: any): Promise<any>
  readonly middlewareStack: MiddlewareStack
}

/** `InvokeAgentCommand` or `InvokeInlineAgentCommand`. */
export interface AgentCommand {
  readonly input: any
}

const OPERATIONS = ['InvokeAgentCommand', 'InvokeInlineAgentCommand']
const MIDDLEWARE = 'runguard'
const BODY_MIDDLEWARE = 'runguardBody'
const INSTRUMENTED = new WeakSet<object>()

/** The event stream of an agent, guarded. Iterate over it, or take the whole `text()`. */
export class GuardedCompletion implements AsyncIterableIterator<any> {
  readonly run: AnyRun
  /** What came beside the stream. */
  readonly response: any
  /** The calls that the agent asks its caller to make, if it does. */
  returnControl: any = null
  readonly #events: AsyncIterator<any>
  readonly #listener: Listener
  readonly #onEnd: () => void
  readonly #body: unknown
  readonly #decoder = new TextDecoder()
  #text = ''

  /** `body` is what the events are read from, where it is known. */
  constructor(stream: AsyncIterable<any>, listener: Listener, response: any = {}, onEnd: () => void = () => {}, body?: unknown) {
    const { completion: _, ...rest } = response
    this.#body = body
    this.run = listener.run
    this.response = rest
    this.#events = stream[Symbol.asyncIterator]()
    this.#listener = listener
    this.#onEnd = onEnd
  }

  /** Calls the agent announced so far, the refused one included. */
  get steps(): number {
    return this.#listener.steps
  }

  async next(): Promise<IteratorResult<any>> {
    try {
      this.run.check()
      const { done, value: event } = await this.#events.next()
      if (done) {
        this.#listener.ended()
        this.#onEnd()
        return { done: true, value: undefined }
      }
      await this.#listener.hear(event)
      if (event.chunk?.bytes !== undefined) this.#text += this.#decoder.decode(event.chunk.bytes, { stream: true })
      if (event.returnControl !== undefined) this.returnControl = event.returnControl
      return { done: false, value: event }
    } catch (error) {
      await this.close()
      throw error
    }
  }

  async return(): Promise<IteratorResult<any>> {
    await this.close()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  /** Hangs up. */
  async close(): Promise<void> {
    try {
      // The SDK's own iterator leaves the connection open when it is left.
      hangUp(this.#body)
      await this.#events.return?.()
    } catch {
      // A connection that fails while it is closed is closed.
    }
  }

  /** Reads to the end and gives the agent's answer. */
  async text(): Promise<string> {
    for (let next = await this.next(); next.done !== true;) next = await this.next()
    return this.#text
  }
}

/** HTTP/2's word for an answer that nobody wants any more. */
const CANCEL = 8

/** Ends a stream of Node's, of HTTP/2 or HTTP/1. */
function hangUp(body: any): void {
  if (typeof body?.destroy !== 'function') return
  // What was not read is of no interest, nor is that it was cut off.
  body.on?.('error', () => {})
  if (typeof body.close === 'function') body.close(CANCEL)
  body.destroy()
}

/** One call of InvokeAgent or InvokeInlineAgent: whose run it belongs to, and whether it begins a turn. */
class Invocation {
  readonly run: AnyRun
  readonly #request: any
  readonly #options: BedrockOptions
  /** What goes with the message of the user: results of returned calls, if there are some. */
  readonly #state: any

  constructor(request: any, options: BedrockOptions) {
    this.#request = request
    this.#options = options
    this.#state = request.sessionState ?? request.inlineSessionState ?? {}
    this.run = runOf(String(request.sessionId ?? ''), String(request.agentId ?? ''), options)
    this.run.check()
  }

  /** Throws where nothing may be sent. */
  async begin(): Promise<void> {
    // Another process may have spent what the session may.
    const exceeded = await this.run.budget?.exhausted()
    if (exceeded) throw exceeded
    // What the caller's own calls gave may be the failure too many.
    if (this.#isSameTurn) await this.#listener().hear(this.#state)
  }

  guarded(response: any, body: unknown): GuardedCompletion {
    return new GuardedCompletion(response.completion, this.#listener(), response, () => this.#ended(), body)
  }

  get #isSameTurn(): boolean {
    return Boolean(this.#state.returnControlInvocationResults?.length)
  }

  #listener(): Listener {
    const { models, defaultModel, attempts } = this.#options
    // An inline agent says itself which model it runs on.
    const model = defaultModel ?? this.#request.foundationModel
    return new Listener(this.run, { models, defaultModel: model, attempts, sameTurn: this.#isSameTurn })
  }

  #ended(): void {
    const { sessionId, agentId, endSession } = this.#request
    // A session that was asked to end and did is over; its id may be used again for another one.
    if (endSession === true && this.#options.run === undefined && !this.run.tripped)
      (this.#options.sessions ?? sharedSessions).forget(String(sessionId), String(agentId ?? ''))
  }
}

/** With what a client was given, checked and filled up. */
function chosen(options: BedrockOptions): BedrockOptions {
  const { run, sessions: _s, models: _m, defaultModel: _d, attempts: _a, ...own } = options
  const given = Object.entries(own).flatMap(([name, value]) => (value === undefined ? [] : [name]))
  if (run !== undefined && given.length > 0)
    throw new InvalidInputError(`Give a run or options, not both: ${given.join(', ')} belong to the Run you pass.`)
  return withPreset(options)
}

function runOf(sessionId: string, agentId: string, options: BedrockOptions): AnyRun {
  const { run, sessions = sharedSessions, preset: _p, models: _m, defaultModel: _d, attempts: _a, ...own } = options
  return run ?? sessions.run(sessionId, agentId, own)
}

/** The options, with those of the preset where they say nothing. */
function withPreset(options: BedrockOptions): BedrockOptions {
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as BedrockOptions
  const { preset } = given
  if (preset === undefined) return given
  const { attempts: own = {}, ...rest } = given
  const written = [text('preset', preset), JSON.stringify(Object.keys(snakeCase(rest))), argumentsToJson(snakeCase(own))]
  const status = wasm.bedrock_preset(...(writeAll(written) as [number, number, number]))
  if (status !== DONE) throw failure(status)
  const { attempts, ...usual } = outputJson<any>()
  return { ...camelCase(usual), ...given, attempts: camelCase(attempts) }
}

/** Sends the command, with the trace switched on, and gives its guarded answer. */
export async function guardInvokeAgent(
  client: AgentClient,
  command: AgentCommand,
  options: BedrockOptions = {},
): Promise<GuardedCompletion> {
  if (INSTRUMENTED.has(client))
    throw new InvalidInputError('This client is instrumented already: send the command with it, the completion of the answer is guarded.')
  const Command = command.constructor as new (input: any) => AgentCommand & { readonly middlewareStack: MiddlewareStack }
  const copy = new Command(command.input)
  guardStack(copy.middlewareStack, options)
  const { completion } = await client.send(copy)
  return completion as GuardedCompletion
}

/** Guards the invocations of whatever the functions are put around. */
function guardStack(stack: MiddlewareStack, given: BedrockOptions): BedrockOptions {
  const options = chosen(given)
  const bodies = new WeakMap<object, unknown>()
  const invoke = (next: (args: any) => Promise<any>, context: { commandName?: string }) => async (args: any) => {
    if (!OPERATIONS.includes(context.commandName ?? '')) return next(args)
    const input = { ...args.input, enableTrace: true }
    const invocation = new Invocation(input, options)
    await invocation.begin()
    const result = await next({ ...args, input })
    return { ...result, output: { ...result.output, completion: invocation.guarded(result.output, bodies.get(context)) } }
  }
  const receive = (next: (args: any) => Promise<any>, context: object) => async (args: any) => {
    const result = await next(args)
    bodies.set(context, result.response?.body)
    return result
  }
  stack.add(invoke, { step: 'initialize', name: MIDDLEWARE })
  stack.add(receive, { step: 'deserialize', name: BODY_MIDDLEWARE })
  return options
}

/** Guards the `completion` of a response you have already. It needs `enableTrace: true` to see anything. */
export function guardStream(
  stream: AsyncIterable<any>,
  run: AnyRun = new Run({ budget: new BudgetTracker() }),
  settings: ListenerSettings = {},
): GuardedCompletion {
  known('guardStream', settings, ['sameTurn', 'models', 'defaultModel', 'attempts'])
  return new GuardedCompletion(stream, new Listener(run, settings))
}

/** What `instrument` put on a client. */
export interface Instrumented {
  /** The run of a session. */
  run(sessionId: string, agentId?: string): AnyRun
  /** Takes everything off again. */
  remove(): void
}

/** Guards every InvokeAgent and InvokeInlineAgent of a client, without a change to the code that calls it. */
export function instrument(client: AgentClient, options: BedrockOptions = {}): Instrumented {
  if (INSTRUMENTED.has(client))
    throw new InvalidInputError('This client is instrumented already. Call remove() of what instrument() gave first.')
  const whole = guardStack(client.middlewareStack, options)
  INSTRUMENTED.add(client)
  return {
    run: (sessionId, agentId = '') => runOf(sessionId, agentId, whole),
    remove: () => {
      for (const name of [MIDDLEWARE, BODY_MIDDLEWARE]) client.middlewareStack.remove(name)
      INSTRUMENTED.delete(client)
    },
  }
}

const ownListeners = new WeakMap<LoopDetector, Listener>()

/**
 * Feeds detectors of your own with one trace event, `event.trace`. Throws the trip; closing the stream is yours. Make a LoopDetector for each
 * invocation, and a BudgetTracker for each session.
 */
export function processTraceEvent(
  trace: unknown,
  loopDetector: LoopDetector,
  budgetTracker?: BudgetTracker,
  settings: Omit<ListenerSettings, 'sameTurn'> = {},
): void {
  const known = ownListeners.get(loopDetector)
  const listener =
    known?.run.budget === (budgetTracker ?? null) ? known : new Listener(new Run({ loop: loopDetector, budget: budgetTracker }), settings)
  ownListeners.set(loopDetector, listener)
  for (const _ of listener.told({ trace }));
}
