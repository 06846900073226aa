/** The RunGuard service over HTTP: one method a route. Bodies have the names of the HTTP interface, both ways. */
import { InvalidInputError, RunGuardError, ServiceError } from './errors.js'
import { EventCutter, linesOf } from './models/events.js'
import { GuardRoutes, type BudgetCheckRequest, type BudgetReleaseRequest } from './routes.js'

export type * from './routes.js'

/** As in Python. */
const TIMEOUT_MS = 2000

export interface ClientOptions {
  /** Where the service is: `http://127.0.0.1:8100`. */
  url: string
  /** A key made with `runguard key create`. Not needed on loopback while no key exists. */
  apiKey?: string | undefined
  /** How long an answer may take. Default 2000. */
  timeoutMs?: number | undefined
  /**
   * What happens when the service cannot be asked. `false` (default): ServiceError. `true`: guards answer
   * `{ allow: true, failed_open: true }`. An answer to a wrong request (400, 413, 422), or of a wrong address or key (a redirect, 401,
   * 403, 404), is an error either way.
   */
  failOpen?: boolean | undefined
  /** Hears of every request that failed open. Default: a line on `console.warn`. */
  onFailedOpen?: ((error: ServiceError) => void) | undefined
  fetch?: typeof fetch | undefined
}

export interface RequestOptions {
  /** The same key again returns the first answer and counts nothing. */
  idempotencyKey?: string | undefined
  signal?: AbortSignal | undefined
}

/** What a guard says. A block is an answer too: `allow` is false, and `reason` and `message` say why. */
export interface Answer {
  allow: boolean
  reason?: string
  message?: string
  guard?: string
  decision_id?: string
  session_id?: string
  /** There when time alone would change the answer. */
  retry_after_seconds?: number
  /** The service could not be asked, and `failOpen` is set. */
  failed_open?: boolean
  warnings?: string[]
  [field: string]: unknown
}

/** Fields of a request, `undefined` ones are left out. */
export type Fields = Record<string, unknown>

/** What a run did: a call and what it gave, by hashes; words without a call; or a person who spoke. */
export interface RunStep {
  /** Tells it from the run's others: a step that was told before counts once. */
  id: string
  tool?: string
  args?: string
  result?: string | null
  error?: string | null
  /** The model's turn. */
  round?: string | null
  said?: string | null
  user?: boolean
}

/** A budget that many sessions share. */
export interface BudgetScope {
  /** What there is one of for each: `team`, `user`; `run`, `tenant`, `key` and `model` need no name. */
  per: string
  name?: string
  period?: 'day' | 'week' | 'month'
  /** Limits for this question. */
  max_usd?: number
  max_tokens?: number
  cap?: number
}

/** What was or will be spent: dollars, tokens, a call of a key, or the usage of a model. */
export type BudgetAmountRequest = BudgetCheckRequest
/** Which budget, and its limits if the caller sets them. */
export type BudgetRequest = Omit<BudgetReleaseRequest, 'reservation_id'>

export interface DecisionFilter {
  guard?: string
  reason?: string
  session?: string
  tenant?: string
  outcome?: 'allowed' | 'would_block' | 'blocked' | 'recorded'
  kind?: 'check' | 'record' | 'admin' | 'all'
  since?: string
  until?: string
  limit?: number
  cursor?: string
  order?: 'asc' | 'desc'
}

/** One message of the event stream. */
export interface ServiceEvent {
  id: string
  event: string
  data: unknown
}

export class GuardClient extends GuardRoutes {
  readonly url: string
  readonly #options: ClientOptions

  constructor(options: ClientOptions | string) {
    super()
    const given = typeof options === 'string' ? { url: options } : options
    if (typeof given.url !== 'string' || !/^https?:\/\//.test(given.url)) {
      throw new InvalidInputError(`url must be the http:// or https:// address of the service, not ${String(given.url)}.`)
    }
    this.url = given.url.replace(/\/+$/, '')
    this.#options = given
  }

  // What was decided.

  decisions(filter: DecisionFilter = {}): Promise<Fields> {
    return this.#json('GET', '/v1/decisions', filter)
  }

  decision(decisionId: string): Promise<Fields> {
    return this.#json('GET', `/v1/decisions/${segment('decisionId', decisionId)}`)
  }

  /** Sessions by how their names begin, the latest first unless told. */
  sessions(
    query: { tenant?: string; since?: string; until?: string; prefix?: string; sort?: string; limit?: number; cursor?: string } = {},
  ): Promise<Fields> {
    return this.#json('GET', '/v1/sessions', query)
  }

  session(sessionId: string, query: { tenant?: string; limit?: number; cursor?: string } = {}): Promise<Fields> {
    return this.#json('GET', `/v1/sessions/${segment('sessionId', sessionId)}`, query)
  }

  eraseSession(sessionId: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('DELETE', `/v1/sessions/${segment('sessionId', sessionId)}`, query)
  }

  stats(query: { guard?: string; tenant?: string; since?: string; until?: string; bucket?: string } = {}): Promise<Fields> {
    return this.#json('GET', '/v1/stats', query)
  }

  /** Everything a dashboard shows of a time; the last day unless told. */
  overview(
    query: { guard?: string; reason?: string; tenant?: string; since?: string; until?: string; bucket?: string } = {},
  ): Promise<Fields> {
    return this.#json('GET', '/v1/overview', query)
  }

  /** What was used by bot, step and day, and by conversation and week; the last 28 days unless told. */
  consumption(query: { tenant?: string; since?: string; until?: string; time_zone?: string } = {}): Promise<Fields> {
    return this.#json('GET', '/v1/consumption', query)
  }

  /** What model calls cost, by day, model, key, run and more, and what is left of the budgets. */
  spend(query: { tenant?: string; since?: string; until?: string; time_zone?: string; by?: string } = {}): Promise<Fields> {
    return this.#json('GET', '/v1/spend', query)
  }

  /** Runs that asked a model, the latest first unless told. */
  runs(
    query: {
      tenant?: string
      since?: string
      until?: string
      prefix?: string
      state?: string
      sort?: string
      limit?: number
      cursor?: string
    } = {},
  ): Promise<Fields> {
    return this.#json('GET', '/v1/runs', query)
  }

  /** Refuses a run's next calls until it is resumed; whoever is refused is told the note. */
  runStop(run: string, request: { note?: string } = {}, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/runs/${segment('run', run)}/stop`, query, request)
  }

  runResume(run: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/runs/${segment('run', run)}/resume`, query)
  }

  /** What the log advises, the weightiest first; the last 7 days unless told. */
  insights(query: { tenant?: string; since?: string; until?: string; show?: string } = {}): Promise<Fields> {
    return this.#json('GET', '/v1/insights', query)
  }

  /** Puts a piece of advice aside, until it is restored. */
  insightDismiss(key: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/insights/${segment('key', key)}/dismiss`, query)
  }

  /** Puts a piece of advice aside for a while: 7 days unless told. */
  insightSnooze(key: string, request: { for?: string } = {}, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/insights/${segment('key', key)}/snooze`, query, request)
  }

  insightRestore(key: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/insights/${segment('key', key)}/restore`, query)
  }

  /** What other settings of a guard would have answered, from the log. */
  preview(request: {
    guard: string
    settings: Fields
    since?: string
    until?: string
    tenant?: string
    subject?: string
  }): Promise<Fields> {
    return this.#json('POST', '/v1/preview', {}, request)
  }

  /** Every guard with its routes and reasons, and what people call them. */
  guards(): Promise<Fields> {
    return this.#json('GET', '/v1/guards')
  }

  /** The settings in force, each value with where it came from. */
  settings(query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('GET', '/v1/settings', query)
  }

  /** Decisions as they are made. Ends when the service ends it, or `signal` is aborted; `lastEventId` goes on where another stream ended. */
  async *events(
    filter: DecisionFilter = {},
    options: { signal?: AbortSignal; lastEventId?: string } = {},
  ): AsyncGenerator<ServiceEvent, void, undefined> {
    const headers = { accept: 'text/event-stream', ...(options.lastEventId === undefined ? {} : { 'last-event-id': options.lastEventId }) }
    const response = await this.#send('GET', withQuery('/v1/events', filter), { headers, stream: true, signal: options.signal })
    if (!response.ok || response.body === null) throw problemOf(response.status, parsed(await response.text()))
    try {
      yield* serverSentEvents(response.body)
    } catch (error) {
      if (options.signal?.aborted !== true)
        throw new ServiceError(`The event stream of ${this.url} broke off: ${reasonOf(error)}.`, { cause: error })
    }
  }

  // Circuits, by hand.

  circuits(query: { tenant?: string; endpoint?: string; phase?: string; limit?: number; cursor?: string } = {}): Promise<Fields> {
    return this.#json('GET', '/v1/circuits', query)
  }

  circuitOpen(endpointKey: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/circuits/${segment('endpointKey', endpointKey)}/open`, query)
  }

  circuitClose(endpointKey: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/circuits/${segment('endpointKey', endpointKey)}/close`, query)
  }

  circuitReset(endpointKey: string, query: { tenant?: string } = {}): Promise<Fields> {
    return this.#json('POST', `/v1/circuits/${segment('endpointKey', endpointKey)}/reset`, query)
  }

  // Alerts.

  /** Rules with what is firing, targets, and what waits, was delivered or was given up. */
  alerts(): Promise<Fields> {
    return this.#json('GET', '/v1/alerts')
  }

  /** Sends a test message, to one target or to all. */
  alertsTest(request: { target?: string } = {}): Promise<Fields> {
    return this.#json('POST', '/v1/alerts/test', {}, request)
  }

  /** Puts a message that was given up back into the queue. */
  alertsDeadRetry(id: string): Promise<Fields> {
    return this.#json('POST', `/v1/alerts/dead/${segment('id', id)}/retry`)
  }

  // The service itself.

  /** Whether the service runs. */
  async healthz(): Promise<boolean> {
    const response = await this.#send('GET', '/healthz')
    await response.body?.cancel()
    return response.ok
  }

  /** Whether the service can decide now. */
  async readyz(): Promise<boolean> {
    const response = await this.#send('GET', '/readyz')
    await response.body?.cancel()
    return response.ok
  }

  /** Metrics in Prometheus' text form. */
  async metrics(): Promise<string> {
    const response = await this.#send('GET', '/metrics')
    if (!response.ok) throw problemOf(response.status, parsed(await response.text()))
    return response.text()
  }

  openapi(): Promise<Fields> {
    return this.#json('GET', '/openapi.json')
  }

  /** Asks a guard by the end of its path: for routes newer than this package. Never throws for a block. */
  guard(route: string, request: Fields, options?: RequestOptions): Promise<Answer> {
    return this.ask(route, request, options)
  }

  protected override async ask(route: string, request: object, options: RequestOptions = {}): Promise<Answer> {
    let body: string
    try {
      body = JSON.stringify(request)
    } catch (error) {
      throw new InvalidInputError(`The request is not JSON: ${reasonOf(error)}. Give plain data.`, { cause: error })
    }
    const reply = await this.exchange(`/guard/${route}`, body, options)
    const answer = reply instanceof ServiceError ? reply : decided(reply)
    if (!(answer instanceof ServiceError)) return answer
    if (this.#options.failOpen !== true) throw answer
    this.failedOpen(answer)
    return { allow: true, failed_open: true, message: answer.message }
  }

  /** Used by the detectors: what came back, whatever it is, or why nothing did. */
  async exchange(path: string, body: string, options: RequestOptions = {}): Promise<Reply | ServiceError> {
    const headers: Record<string, string> = { 'content-type': 'application/json' }
    if (options.idempotencyKey !== undefined) headers['idempotency-key'] = options.idempotencyKey
    try {
      // A redirect is not followed: the question would become another.
      const response = await this.#send('POST', path, { body, headers, signal: options.signal, redirect: 'manual' })
      const text = await response.text()
      for (const warning of warningsIn(text)) console.warn(`runguard: POST ${path}: ${warning}`)
      return { status: response.status, text }
    } catch (error) {
      if (error instanceof ServiceError) return error
      throw error
    }
  }

  /** What was said about requests that nobody answers, if anything was. */
  get failOpen(): boolean | undefined {
    return this.#options.failOpen
  }

  /** Used by the detectors: tells of a request that passed unasked. */
  failedOpen(error: ServiceError): void {
    const tell =
      this.#options.onFailedOpen ?? ((problem) => console.warn(`runguard: ${problem.message} Going on without a guard (failOpen).`))
    tell(error)
  }

  async #json(method: string, path: string, query: object = {}, body?: object): Promise<Fields> {
    const extra = body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
    const response = await this.#send(method, withQuery(path, query), extra)
    if (!response.ok) throw problemOf(response.status, parsed(await response.text()))
    return (await response.json()) as Fields
  }

  async #send(
    method: string,
    path: string,
    extra: { body?: string; headers?: Record<string, string>; signal?: AbortSignal | undefined; stream?: boolean; redirect?: RequestRedirect } = {},
  ): Promise<Response> {
    const { apiKey, timeoutMs = TIMEOUT_MS } = this.#options
    const ask = this.#options.fetch ?? fetch
    const abort = new AbortController()
    const stop = () => abort.abort(extra.signal?.reason)
    if (extra.signal?.aborted) stop()
    extra.signal?.addEventListener('abort', stop, { once: true })
    const timer = setTimeout(() => abort.abort(new DOMException(`no answer within ${timeoutMs} ms`, 'TimeoutError')), timeoutMs)
    try {
      const response = await ask(this.url + path, {
        method,
        headers: { ...extra.headers, ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }) },
        signal: abort.signal,
        ...(extra.redirect === undefined ? {} : { redirect: extra.redirect }),
        ...(extra.body === undefined ? {} : { body: extra.body }),
      })
      if (extra.stream === true) return response
      // The body counts for the time limit as well.
      const body = response.status === 204 || response.status === 304 ? null : await response.arrayBuffer()
      // A browser does not tell where a redirect leads, nor its status.
      const status = response.type === 'opaqueredirect' ? 302 : response.status
      return new Response(body, { status, headers: response.headers })
    } catch (error) {
      throw new ServiceError(
        `The RunGuard service at ${this.url} could not be asked: ${reasonOf(error)}. Check that it runs and that the address is right.`,
        { cause: error },
      )
    } finally {
      clearTimeout(timer)
      if (extra.stream !== true) extra.signal?.removeEventListener('abort', stop)
    }
  }
}

/** What came back over HTTP. */
export interface Reply {
  status: number
  text: string
}

/**
 * The decision in a reply, or why there is none though asking later may help; what asking again does not mend is thrown. The core has the
 * same rules, but a client is made without it: stories.json holds both to them.
 */
function decided({ status, text }: Reply): Answer | ServiceError {
  if (status === 204) return { allow: true, recorded: true }
  const answer = parsed(text)
  const isOk = status >= 200 && status < 300
  if ((isOk || status === 429) && isObject(answer) && (typeof answer['allow'] === 'boolean' || answer['recorded'] === true))
    return { allow: true, ...answer }
  if (isOk) {
    const hint = 'Check that the address is that of a RunGuard service, and not of something before it.'
    return new ServiceError(`It was answered with ${status}, but without a decision. ${hint}`, { status })
  }
  const problem = problemOf(status, answer)
  if (problem instanceof ServiceError && (status === 408 || status === 429 || status >= 500)) return problem
  throw problem
}

/** What the service noticed in a request that it answered: a name that it does not know, a limit that it does not allow. */
function warningsIn(text: string): unknown[] {
  const answer = text.includes('"warnings"') ? parsed(text) : null
  return isObject(answer) && Array.isArray(answer['warnings']) ? answer['warnings'] : []
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error && error.cause.message !== '' ? `${error.message} (${error.cause.message})` : error.message
}

function problemOf(status: number, answer: unknown): RunGuardError {
  const problem = isObject(answer) ? answer : null
  const errors = Array.isArray(problem?.['errors']) ? (problem['errors'] as { field?: string; problem?: string }[]) : []
  const fields = errors.map(({ field, problem }) => `${field}: ${problem}`).join('; ')
  const said = [problem?.['detail'] ?? problem?.['title'], fields].filter((part) => typeof part === 'string' && part !== '').join(' ')
  if ([400, 413, 422].includes(status))
    return new InvalidInputError(`The RunGuard service refused the request (HTTP ${status})${said === '' ? '' : `: ${said}`}`)
  return new ServiceError(`The RunGuard service answered HTTP ${status}${said === '' ? '' : `: ${said}`}`, { status, problem })
}

function segment(name: string, value: string): string {
  if (typeof value !== 'string' || value === '') throw new InvalidInputError(`${name} is empty. Give it a value.`)
  return encodeURIComponent(value)
}

function withQuery(path: string, query: object): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined)
  return given.length === 0 ? path : `${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()}`
}

async function* serverSentEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServiceEvent, void, undefined> {
  const reader = body.getReader()
  const cutter = new EventCutter()
  let id = ''
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      for (const event of cutter.cut(value)) {
        const lines = linesOf(event)
        // An event without an id has that of the one before it.
        id = lines.named('id').at(-1) ?? id
        const data = lines.named('data')
        if (data.length > 0) yield { id, event: lines.named('event').at(-1) ?? 'message', data: parsed(data.join('\n')) }
      }
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
