/**
 * AWS Lambda functions behind a Bedrock agent: a guarded handler of an action group, of both schemas.
 *
 *     export const handler = guardActionGroup(async (event) => { … }, { url: process.env.RUNGUARD_URL })
 *
 * An agent that gets an error tries again, often in the same words. A call that failed twice since anything last succeeded, in a row or in turns
 * with others that failed, is not run a third time: the agent is told for good. Calls that succeed are never counted, so polling a healthy
 * action is fine. What is remembered must be kept outside of the function, which lives in many short-lived copies: in a RunGuard service (`url`),
 * in DynamoDB (`dynamodbTable`), in Redis (`redisUrl`), or in a store of your own. Without any it is kept in this process, which is enough for tests and for one warm copy. When the memory cannot
 * be reached the handler runs, and a warning is printed.
 */
import { GuardClient } from '../client.js'
import { argumentsToJson } from '../core/json.js'
import { DONE, failure, outputJson, secondLength, wasm, write, writeAll, writeTwo } from '../core/wasm.js'
import { InvalidInputError } from '../errors.js'
import { fingerprint } from '../fingerprint.js'
import { DynamoDBStore, RedisStore } from './action-stores.js'

export { DynamoDBStore, RedisStore }

/** One call of an action in a session, as Bedrock wrote it. Equal calls have equal signatures, however they are written. */
export class ActionCall {
  readonly sessionId: string
  readonly actionGroup: string
  readonly apiPath: string | undefined
  readonly httpMethod: string | undefined
  readonly function: string | undefined
  /** `group::function`, or `group::VERB /path`. */
  readonly name: string
  /** In the form in which equal calls are equal: `parameters` and `request_body`, each by name. */
  readonly args: { readonly parameters: unknown; readonly request_body: unknown }

  /** The call in the event of an action-group Lambda function. */
  constructor(event: any) {
    this.sessionId = String(event?.sessionId ?? '')
    this.actionGroup = String(event?.actionGroup ?? '')
    this.apiPath = event?.apiPath
    this.httpMethod = event?.httpMethod
    this.function = event?.function
    const { actionGroup, apiPath, httpMethod, function: called, parameters, requestBody } = event ?? {}
    checked(wasm.action_call(write(argumentsToJson({ actionGroup, apiPath, httpMethod, function: called, parameters, requestBody }))))
    const read = outputJson<Pick<ActionCall, 'name' | 'args'>>()
    this.name = read.name
    this.args = read.args
  }

  get signature(): string {
    return fingerprint({ call: this.name, ...this.args })
  }
}

/** Remembers how the calls of each session ended. Rejects when it cannot be reached. */
export interface ActionStore {
  /** Takes note that the call is about to run. Why it must not, or null. */
  refusal(call: ActionCall): Promise<string | null>
  /** Takes note of what came of it. */
  record(call: ActionCall, failed: boolean): Promise<void>
}

interface Remembered {
  calls: string[]
  refusal: string | null
}

/** The latest calls of a session after one is about to be made: for a store of your own, which keeps `calls` and nothing else. */
export function callBegun(calls: readonly string[], call: ActionCall): Remembered {
  const [kept = 0, name = 0, signature = 0] = writeAll([JSON.stringify(calls), call.name, call.signature])
  checked(wasm.history_begin(kept, name, signature))
  return outputJson()
}

/** The latest calls of a session after it is known what came of one. */
export function callFinished(calls: readonly string[], call: ActionCall, failed: boolean): readonly string[] {
  checked(wasm.history_finish(writeTwo(JSON.stringify(calls), call.signature), secondLength, Number(failed)))
  return outputJson<Remembered>().calls
}

function checked(status: number): void {
  if (status !== DONE) throw failure(status)
}

/** A Bedrock session is idle for at most an hour before it ends. */
const KEPT_MS = 3_600_000
/** Sessions one process remembers; beyond them the one not used for longest is forgotten. */
const KEPT_SESSIONS = 10_000

/** Remembers in this process. */
export class MemoryStore implements ActionStore {
  readonly #sessions = new Map<string, { calls: readonly string[]; at: number }>()

  async refusal(call: ActionCall): Promise<string | null> {
    const { calls, refusal } = callBegun(this.#kept(call.sessionId), call)
    this.#keep(call.sessionId, calls)
    return refusal
  }

  async record(call: ActionCall, failed: boolean): Promise<void> {
    this.#keep(call.sessionId, callFinished(this.#kept(call.sessionId), call, failed))
  }

  #kept(sessionId: string): readonly string[] {
    const kept = this.#sessions.get(sessionId)
    return kept === undefined || Date.now() - kept.at > KEPT_MS ? [] : kept.calls
  }

  #keep(sessionId: string, calls: readonly string[]): void {
    this.#sessions.delete(sessionId)
    this.#sessions.set(sessionId, { calls, at: Date.now() })
    if (this.#sessions.size > KEPT_SESSIONS) this.#sessions.delete(this.#sessions.keys().next().value as string)
  }
}

/** Remembers in a RunGuard service, which also logs what was refused. */
export class ServiceStore implements ActionStore {
  readonly #client: GuardClient

  constructor(url: string, apiKey?: string, timeoutMs = 1000) {
    this.#client = new GuardClient({ url, apiKey, timeoutMs })
  }

  async refusal(call: ActionCall): Promise<string | null> {
    const { allow, message, reason } = await this.#client.actionGroup(bodyOf(call))
    return allow ? null : (message ?? reason ?? 'It failed before.')
  }

  async record(call: ActionCall, failed: boolean): Promise<void> {
    await this.#client.actionGroupResult({ ...bodyOf(call), failed })
  }
}

/** Arguments by name: in the lists that Bedrock writes, another order would be another call. */
function bodyOf({ sessionId, actionGroup, apiPath, httpMethod, function: called, args }: ActionCall): any {
  return { session_id: sessionId, action_group: actionGroup, api_path: apiPath, http_method: httpMethod, function: called, ...args }
}

export interface ActionGroupOptions {
  store?: ActionStore | undefined
  /** Of a RunGuard service. */
  url?: string | undefined
  apiKey?: string | undefined
  /** Of Redis or Valkey; the package `redis` must be there. */
  redisUrl?: string | undefined
  /** The name of a DynamoDB table. */
  dynamodbTable?: string | undefined
  timeoutMs?: number | undefined
}

type Handler = (event: any, context?: any) => any

/**
 * A handler of an action-group Lambda function that is not run for a call that failed for good. Put it outermost: resolvers that turn errors into
 * texts must be inside. Failed means: an error, an HTTP status from 400 up, a body that tells of a failure, or a response state FAILURE or
 * REPROMPT.
 */
export function guardActionGroup(handler: Handler, options: ActionGroupOptions = {}): (event: any, context?: any) => Promise<any> {
  if (typeof handler !== 'function') throw new InvalidInputError('guardActionGroup takes the handler, then its options.')
  const store = storeOf(options)
  return async (event, context) => {
    const call = new ActionCall(event)
    if (call.sessionId === '') {
      console.warn(`runguard: ${call.name} runs unguarded: the event has no sessionId.`)
      return handler(event, context)
    }
    let isReachable = true
    const refusal = await store.refusal(call).catch((error: unknown) => {
      isReachable = false
      console.warn(`runguard: ${call.name} runs unguarded: its earlier calls could not be looked up (${String(error)}).`)
      return null
    })
    if (refusal !== null) return permanentFailure(event, refusal)
    const tell = async (failed: boolean): Promise<void> => {
      if (!isReachable) return
      await store.record(call, failed).catch((error: unknown) => {
        console.warn(`runguard: The result of ${call.name} was not remembered (${String(error)}).`)
      })
    }
    let response: any
    try {
      response = await handler(event, context)
    } catch (error) {
      await tell(true)
      throw error
    }
    await tell(hasFailed(response))
    return response
  }
}

function storeOf({ store, url, apiKey, redisUrl, dynamodbTable, timeoutMs }: ActionGroupOptions): ActionStore {
  const given = Object.entries({ store, url, redisUrl, dynamodbTable }).filter(([, place]) => place !== undefined)
  if (given.length > 1)
    throw new InvalidInputError(`Give one place to remember calls in, not ${given.map(([name]) => name).join(' and ')}.`)
  if (url !== undefined) return new ServiceStore(url, apiKey, timeoutMs)
  if (redisUrl !== undefined) return new RedisStore(redisUrl, { timeoutMs })
  if (dynamodbTable !== undefined) return new DynamoDBStore(dynamodbTable, { timeoutMs })
  return store ?? new MemoryStore()
}

/** Whether what the handler gave tells of a failure. What cannot be written does not: Lambda cannot send it either. */
function hasFailed(response: unknown): boolean {
  let written: string | undefined
  try {
    written = JSON.stringify(response)
  } catch {
    return false
  }
  return wasm.reply_failed(write(written ?? 'null')) !== 0
}

/** The reply that ends the retries: FAILURE stops a function-schema request, 422 tells the model in an API-schema one. */
function permanentFailure(event: any, message: string): any {
  const body = JSON.stringify({ error: 'PERMANENT_FAILURE', message, retryable: false })
  const { actionGroup, apiPath, httpMethod, function: called, sessionAttributes, promptSessionAttributes } = event
  const response = called
    ? { actionGroup, function: called, functionResponse: { responseState: 'FAILURE', responseBody: { TEXT: { body } } } }
    : { actionGroup, apiPath, httpMethod, httpStatusCode: 422, responseBody: { 'application/json': { body } } }
  return {
    messageVersion: event.messageVersion ?? '1.0',
    response,
    ...(sessionAttributes == null ? {} : { sessionAttributes }),
    ...(promptSessionAttributes == null ? {} : { promptSessionAttributes }),
  }
}
