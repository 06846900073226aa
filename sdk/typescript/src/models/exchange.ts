/** One request to a model, and its answer: told to the run before and after, whole or streamed. */
import { answerSize } from '../core/json.js'
import { TripError, tripOf } from '../errors.js'
import type { ModelCall } from '../model-call.js'
import { mayBeBilled, type Usage } from '../prices.js'
import { asStream } from './bodies.js'
import type { Reader, Route, Shown, ToolCall } from './routes.js'
import { EventCutter, eventOf, isLast, written } from './events.js'

/** Whom an exchange tells: the run alone, or with what was said so far. */
export interface Teller {
  /** The tools an answer asks for. Throws before the caller can run one that must not run. */
  asked(calls: readonly ToolCall[]): Promise<void> | void
  /** Throws the trip of a run that is over. */
  check(): void
  used?(usage: Usage): void
  /** A run that is stopped ends with a final answer that says why, and not with an error. */
  readonly endsPolitely?: boolean
}

/** Tells what a call used; without a word of the provider, by the size of what came. A budget it breaks is thrown by the run's next question, so that a final answer is not lost. */
export async function settle(call: ModelCall | null, usage: Usage | null, model: string, came: unknown = ''): Promise<void> {
  if (call !== null) await untilNext(() => (usage === null ? call.estimated(came) : call.used(usage, model)))
}

/** A trip that this leads to is thrown by the run's next question. */
export async function untilNext(tell: () => unknown): Promise<void> {
  try {
    await tell()
  } catch (error) {
    if (!(error instanceof TripError)) throw error
  }
}

/**
 * Ends what is watched when the signal says so; gives what undoes it. A signal may outlive a stream, and must not keep one that was dropped from
 * being seen as such: hence the weak reference, and a function of its own, whose closures know nothing else.
 */
export function whenAborted(signal: AbortSignal | null | undefined, watched: { ended(): Promise<void> }): () => void {
  const weak = new WeakRef(watched)
  const brokenOff = (): void =>
    void weak
      .deref()
      ?.ended()
      .catch(() => {})
  signal?.addEventListener('abort', brokenOff, { once: true })
  return () => signal?.removeEventListener('abort', brokenOff)
}

/** A request that ended with an error. */
export async function failed(call: ModelCall | null, error: unknown): Promise<void> {
  if (call !== null) await (mayBeBilled(error) ? settle(call, null, '') : call.release())
}

/** The model that a request asks. */
export function modelOf(body: any): string {
  return typeof body.model === 'string' && body.model !== '' ? body.model : 'unknown'
}

/** A final answer that says why the run was stopped; throws any other error. */
export function saidInstead(error: unknown, route: Route, body: any): Response {
  const trip = tripOf(error)
  const model = modelOf(body)
  const whole = trip === null ? null : route.said(trip.message, model)
  if (trip === null || whole === null) throw error
  if (body.stream !== true) return Response.json(whole)
  const events = route.saidEvents(trip.message, model, { count: () => 0, first: undefined })
  return new Response(joined(events.map(written)) as BodyInit, { headers: { 'content-type': 'text/event-stream' } })
}

export class Exchange {
  readonly #teller: Teller
  readonly #route: Route
  readonly #asked: any
  readonly #call: ModelCall | null
  /** The members by which the answer is made shorter. */
  readonly #bounds: readonly string[]

  constructor(teller: Teller, route: Route, body: any, call: ModelCall | null, bounds: readonly string[]) {
    this.#teller = teller
    this.#route = route
    this.#asked = body
    this.#call = call
    this.#bounds = bounds
  }

  /** What is sent. */
  get body(): any {
    const { maxTokens = null, model } = this.#call ?? {}
    const asked = model === undefined || model === modelOf(this.#asked) ? this.#asked : { ...this.#asked, model }
    const body = maxTokens === null ? asked : this.#route.shortened(asked, maxTokens, this.#bounds)
    return body.stream === true ? this.#route.prepareStream(body) : body
  }

  async failed(error: unknown): Promise<void> {
    await failed(this.#call, error)
  }

  /** The response as the caller may have it. `signal` is what breaks it off. */
  async answered(response: Response, signal?: AbortSignal | null): Promise<Response> {
    if (!response.ok) {
      await this.#call?.release()
      return response
    }
    const kind = response.headers.get('content-type') ?? ''
    // A stream in another form is passed on as it comes, and billed by its size.
    const isStream = /event-stream/.test(kind) || (this.#asked.stream === true && !/json/.test(kind))
    if (isStream && response.body) return replaced(response, this.#watched(response.body, signal))
    let bytes: ArrayBuffer
    try {
      bytes = await response.arrayBuffer()
    } catch (error) {
      await settle(this.#call, null, '')
      throw error
    }
    try {
      await this.#whole(new TextDecoder().decode(bytes))
    } catch (error) {
      if (!this.#teller.endsPolitely) throw error
      return saidInstead(error, this.#route, this.#asked)
    }
    return replaced(response, bytes)
  }

  async #whole(text: string): Promise<void> {
    let answer: any
    try {
      answer = JSON.parse(text)
    } catch {
      answer = null
    }
    if (typeof answer !== 'object' || answer === null) {
      await settle(this.#call, null, '', text)
      return
    }
    // Usage first: an answer that breaks the budget must not have its calls run.
    const usage = this.#route.usage(answer)
    await this.#used(usage, typeof answer.model === 'string' ? answer.model : '', usage === null ? this.#route.came(answer) : '')
    const calls = this.#route.calls(answer)
    await this.#teller.asked(calls)
    if (calls.length > 0) this.#teller.check()
  }

  async #used(usage: Usage | null, model: string, came: unknown): Promise<void> {
    if (usage !== null) this.#teller.used?.(usage)
    await settle(this.#call, usage, model, came)
  }

  #watched(body: ReadableStream<Uint8Array>, signal: AbortSignal | null | undefined): ReadableStream<Uint8Array> {
    // Early releases of openai bring a stream of Node's.
    const source = asStream(body).getReader()
    const watch = new Watch(this.#teller, this.#route, this.#asked, this.#call)
    const forget = whenAborted(signal, watch)
    const ended = async (): Promise<void> => {
      forget()
      await watch.ended()
    }
    watch.rests()
    return new ReadableStream<Uint8Array>(
      {
        async pull(stream) {
          watch.isRead()
          for (;;) {
            const { done, value } = await source.read().catch(async (error: unknown) => {
              await ended()
              throw error
            })
            if (done) {
              const rest = watch.rest()
              await ended()
              const last = joined([rest, watch.last()])
              if (last.length > 0) stream.enqueue(last)
              stream.close()
              return
            }
            const shown = await watch.shown(value)
            if (shown.length > 0) {
              watch.rests()
              stream.enqueue(shown)
              return
            }
          }
        },
        async cancel(reason) {
          await ended()
          await source.cancel(reason)
        },
      },
      { highWaterMark: 0 },
    )
  }
}

/** One streamed answer. A trip is thrown at its end only, because the usage comes last. */
class Watch {
  readonly #teller: Teller
  readonly #route: Route
  readonly #asked: any
  readonly #reader: Reader
  readonly #call: ModelCall | null
  readonly #cutter = new EventCutter()
  /** An answer that ends politely has no tool calls: from the first part of one on it is held back until it is known to be allowed. */
  #held: { event: Uint8Array; data: any }[] = []
  readonly #shown = new ShownEvents()
  #trip: unknown = null
  #hasCalls = false
  #isOver = false

  constructor(teller: Teller, route: Route, asked: any, call: ModelCall | null) {
    this.#teller = teller
    this.#route = route
    this.#asked = asked
    this.#reader = route.reader(asked)
    this.#call = call
  }

  isRead(): void {
    this.#call?.progress.isRead()
  }

  rests(): void {
    this.#call?.progress.rests()
  }

  /** What of the bytes the caller may see: whole events. From the call that trips on, it sees nothing more. */
  async shown(bytes: Uint8Array): Promise<Uint8Array> {
    const shown: Uint8Array[] = []
    for (const event of this.#cutter.cut(bytes)) if (await this.#shows(event)) shown.push(...this.#released(event))
    return joined(shown)
  }

  /** What may be seen now that the event may. */
  #released(event: Uint8Array): Uint8Array[] {
    const { data } = eventOf(event)
    const isHeld = this.#teller.endsPolitely === true && (this.#held.length > 0 || (data !== null && this.#reader.hasCall(data)))
    if (isHeld) this.#held.push({ event, data })
    if (isHeld && (data === null || !isLast(data))) return []
    return this.#release(isHeld ? [] : [{ event, data }])
  }

  #release(otherwise: readonly { event: Uint8Array; data: any }[]): Uint8Array[] {
    const shown = this.#held.length > 0 ? this.#held : otherwise
    this.#held = []
    for (const { data } of shown) this.#shown.add(data)
    return shown.map(({ event }) => event)
  }

  /** What is left of an event that does not end. */
  rest(): Uint8Array {
    const rest = this.#cutter.rest()
    this.#came(eventOf(rest).size)
    return this.#trip === null ? rest : new Uint8Array()
  }

  async #shows(event: Uint8Array): Promise<boolean> {
    const { data, size } = eventOf(event)
    this.#came(size)
    if (data === null) return this.#trip === null
    const calls = this.#reader.take(data)
    this.#came(answerSize(this.#reader.came(data)))
    this.#hasCalls ||= calls.length > 0
    if (this.#trip === null) {
      try {
        await this.#teller.asked(calls)
        if (isLast(data)) {
          await this.ended()
          this.check()
        }
      } catch (trip) {
        this.#trip = trip
      }
    }
    return this.#trip === null && !this.#reader.hides(data)
  }

  /** Bills what came, once. */
  async ended(): Promise<void> {
    if (this.#isOver) return
    this.#isOver = true
    const { usage, isCounted, model } = this.#reader
    if (usage !== null) this.#teller.used?.(usage)
    if (usage !== null && isCounted) await settle(this.#call, usage, model)
    else await untilNext(() => this.#call?.brokenOff())
  }

  /** So many bytes more, and what the provider has counted by now. */
  #came(bytes: number): void {
    const progress = this.#call?.progress
    if (progress === undefined) return
    progress.bytes += bytes
    progress.usage = this.#reader.usage
    progress.model = this.#reader.model
  }

  /** What the stream ends with. Throws a trip that it must end with. */
  last(): Uint8Array {
    try {
      this.check()
      return joined(this.#release([]))
    } catch (error) {
      const trip = this.#teller.endsPolitely ? tripOf(error) : null
      if (trip === null) throw error
      return joined(this.#route.saidEvents(trip.message, modelOf(this.#asked), this.#shown).map(written))
    }
  }

  check(): void {
    if (this.#trip !== null) throw this.#trip
    // An answer that breaks the budget must not have its calls run; one without calls is the caller's to keep.
    if (this.#hasCalls) this.#teller.check()
  }
}

class ShownEvents implements Shown {
  readonly #counts = new Map<string, number>()
  first: any

  add(data: any): void {
    for (const kind of ['', String(data?.type)]) this.#counts.set(kind, this.count(kind) + 1)
    this.first ??= data?.response
  }

  count(type: string): number {
    return this.#counts.get(type) ?? 0
  }
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  if (parts.length === 1) return parts[0] as Uint8Array
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

/** The same response with another body. */
function replaced(response: Response, body: BodyInit): Response {
  const { status, statusText, headers, url } = response
  const copy = new Response(body, { status, statusText, headers })
  return Object.defineProperty(copy, 'url', { value: url })
}
