/**
 * Where a Lambda function's history is kept outside of it: DynamoDB, and Redis or Valkey. Table, items and keys are those of the Python package, so
 * functions of both languages may serve one session.
 */
import { RunGuardError } from '../errors.js'
import { callBegun, callFinished, type ActionCall, type ActionStore } from './aws-lambda.js'

/** A Bedrock session is idle for at most an hour before it ends. */
const KEPT_SECONDS = 3600
/** Copies of one session's function that write at the same moment are few: Bedrock waits for each answer. */
const ATTEMPTS = 20

export interface StoreOptions {
  /** How long a session is remembered. Default an hour, the longest that Bedrock keeps one that is idle. */
  keptSeconds?: number | undefined
  /** How long one request to the store may take. Default a second. */
  timeoutMs?: number | undefined
}

/** One try at a change: whether it was written, or others were faster. */
type Step = (calls: readonly string[]) => readonly string[]

/** A store that keeps the latest calls of each session, and changes them only where nobody else has meanwhile. */
abstract class KeepsCalls implements ActionStore {
  protected readonly keptSeconds: number
  protected readonly timeoutMs: number

  constructor({ keptSeconds = KEPT_SECONDS, timeoutMs = 1000 }: StoreOptions) {
    this.keptSeconds = keptSeconds
    this.timeoutMs = timeoutMs
  }

  async refusal(call: ActionCall): Promise<string | null> {
    let refusal: string | null = null
    await this.#change(call.sessionId, (calls) => {
      const begun = callBegun(calls, call)
      refusal = begun.refusal
      return begun.calls
    })
    return refusal
  }

  async record(call: ActionCall, failed: boolean): Promise<void> {
    await this.#change(call.sessionId, (calls) => callFinished(calls, call, failed))
  }

  /** Reads, takes the step and writes; false when another copy was faster. */
  protected abstract swap(sessionId: string, step: Step): Promise<boolean>

  async #change(sessionId: string, step: Step): Promise<void> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      if (await this.swap(sessionId, step)) return
      // What the other wrote is read, and the step taken again.
      await new Promise((resolve) => setTimeout(resolve, 5 * attempt))
    }
    throw new RunGuardError(`The calls of session ${sessionId} were changed by others ${ATTEMPTS} times in a row.`)
  }
}

/** What is used of the client of `@aws-sdk/client-dynamodb`. */
export interface DynamoDBSender {
  send(command: any): Promise<any>
}

/** The packages are there where the store is used. Their names are kept from compilers, which have them not. */
const DYNAMODB: string = '@aws-sdk/client-dynamodb'
const NODE_REDIS: string = 'redis'

/**
 * Remembers in a DynamoDB table with the partition key `sessionId` (a string), through `@aws-sdk/client-dynamodb`, which Lambda has.
 *
 * An item has `callHistory` (the latest calls), `version` (each write is conditional on it, so copies of the function do not race) and
 * `expiresAt` (seconds since 1970; switch the table's time to live on for it). The function's role needs `dynamodb:GetItem` and
 * `dynamodb:PutItem` on the table.
 */
export class DynamoDBStore extends KeepsCalls {
  readonly #table: string
  #client: DynamoDBSender | undefined

  constructor(table = 'bedrock-agent-call-history', options: StoreOptions & { client?: DynamoDBSender | undefined } = {}) {
    super(options)
    this.#table = table
    this.#client = options.client
  }

  protected async swap(sessionId: string, step: Step): Promise<boolean> {
    const { DynamoDBClient, GetItemCommand, PutItemCommand } = await import(DYNAMODB)
    const { timeoutMs } = this
    this.#client ??= new DynamoDBClient({ maxAttempts: 2, requestHandler: { connectionTimeout: timeoutMs, requestTimeout: timeoutMs } })
    const client = this.#client as DynamoDBSender
    const key = { TableName: this.#table, Key: { sessionId: { S: sessionId } }, ConsistentRead: true }
    const { Item: item = {} } = await client.send(new GetItemCommand(key))
    const now = Math.floor(Date.now() / 1000)
    // DynamoDB deletes what has expired within days, not at once.
    const isCurrent = Number(item.expiresAt?.N ?? 0) > now
    const kept = isCurrent ? texts(item.callHistory?.L?.map((entry: any) => entry?.S)) : []
    const changed = {
      sessionId: { S: sessionId },
      callHistory: { L: step(kept).map((entry) => ({ S: entry })) },
      version: { N: String(Number(item.version?.N ?? 0) + 1) },
      expiresAt: { N: String(now + this.keptSeconds) },
    }
    const unchanged =
      item.version === undefined
        ? { ConditionExpression: 'attribute_not_exists(#version)' }
        : { ConditionExpression: '#version = :version', ExpressionAttributeValues: { ':version': item.version } }
    const names = { ExpressionAttributeNames: { '#version': 'version' } }
    try {
      await client.send(new PutItemCommand({ TableName: this.#table, Item: changed, ...names, ...unchanged }))
      return true
    } catch (error) {
      if ((error as Error).name !== 'ConditionalCheckFailedException') throw error
      return false
    }
  }
}

/** A client of `redis` (4 and later) or of `ioredis`. */
export interface RedisSender {
  sendCommand(...command: any[]): Promise<any>
  call?(...command: any[]): Promise<any>
}

/** Writes only what nobody else has changed meanwhile. */
const SWAP = `
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1`

/** Remembers in Redis or Valkey: an address, for which the package `redis` must be there, or a client of `redis` or `ioredis` that is connected. */
export class RedisStore extends KeepsCalls {
  readonly #given: string | RedisSender
  #connected: Promise<RedisSender> | null = null

  constructor(redis: string | RedisSender, options: StoreOptions = {}) {
    super(options)
    this.#given = redis
  }

  protected async swap(sessionId: string, step: Step): Promise<boolean> {
    const key = `runguard:action-group:${sessionId}`
    const kept = (await this.#send('GET', key)) as string | null
    const changed = JSON.stringify(step(texts(parsed(kept))))
    return Number(await this.#send('EVAL', SWAP, '1', key, kept ?? '', changed, String(this.keptSeconds))) === 1
  }

  async #send(...command: string[]): Promise<unknown> {
    const sent = async (): Promise<unknown> => {
      const client = await this.#client()
      // ioredis has both, and a sendCommand of another kind.
      return typeof client.call === 'function' ? client.call(...command) : client.sendCommand(command)
    }
    let timer: ReturnType<typeof setTimeout> | undefined
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new RunGuardError(`Redis has not answered in ${this.timeoutMs} ms.`)), this.timeoutMs)
    })
    try {
      return await Promise.race([sent(), late])
    } finally {
      clearTimeout(timer)
    }
  }

  #client(): Promise<RedisSender> {
    if (typeof this.#given !== 'string') return Promise.resolve(this.#given)
    this.#connected ??= this.#connect(this.#given).catch((error: unknown) => {
      // The next call tries again.
      this.#connected = null
      throw error
    })
    return this.#connected
  }

  async #connect(url: string): Promise<RedisSender> {
    const { createClient } = await import(NODE_REDIS)
    const client = createClient({ url, socket: { connectTimeout: this.timeoutMs, reconnectStrategy: false } })
    // Without a listener an error of the connection would end the function.
    client.on('error', () => (this.#connected = null))
    await client.connect()
    return client
  }
}

/** What was kept, as far as it can be read: an item of another program's may hold anything. */
function texts(kept: unknown): string[] {
  return Array.isArray(kept) ? kept.filter((text) => typeof text === 'string') : []
}

function parsed(kept: string | null): unknown {
  try {
    return JSON.parse(kept ?? '[]')
  } catch {
    return []
  }
}
