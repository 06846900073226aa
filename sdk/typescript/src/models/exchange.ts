/** One request to a model, and its answer: told to the run before and after, whole or streamed. */
import { wasm } from '../core/wasm.js'
import { TripError } from '../errors.js'
import type { ModelCall } from '../model-call.js'
import type { Usage } from '../prices.js'
import type { Reader, Route, ToolCall } from './routes.js'
import { EventCutter, dataOf, isLast } from './events.js'

/** Whom an exchange tells: the run alone, or with what was said so far. */
export interface Teller {
  /** The tools an answer asks for. Throws before the caller can run one that must not run. */
  asked(calls: readonly ToolCall[]): Promise<void> | void
  /** Throws the trip of a run that is over. */
  check(): void
  used?(usage: Usage): void
}

const encoder = new TextEncoder()

/** Bytes of the texts in a value. */
export function textSize(value: unknown): number {
  if (typeof value === 'string') return encoder.encode(value).length
  if (typeof value !== 'object' || value === null) return 0
  let size = 0
  for (const one of Object.values(value)) size += textSize(one)
  return size
}

/** Tells what a call used; without a word of the provider, by the size of what came. A budget it breaks is thrown by the run's next question, so that a final answer is not lost. */
export async function settle(call: ModelCall | null, usage: Usage | null, model: string, came: unknown = ''): Promise<void> {
  if (call === null) return
  try {
    await (usage === null ? call.estimated(typeof came === 'number' ? came : textSize(came)) : call.used(usage, model))
  } catch (error) {
    if (!(error instanceof TripError)) throw error
  }
}

/** A request that ended with an error. Only one that timed out, or was given up, may have been answered, and billed. */
export async function failed(call: ModelCall | null, error: unknown): Promise<void> {
  if (call === null) return
  const wasLeft = error instanceof Error && /Timeout|Abort/.test(`${error.name} ${error.constructor.name}`)
  await (wasLeft ? settle(call, null, '') : call.release())
}

export class Exchange {
  readonly #teller: Teller
  readonly #route: Route
  readonly #asked: any
  readonly #call: ModelCall | null

  constructor(teller: Teller, route: Route, body: any, call: ModelCall | null) {
    this.#teller = teller
    this.#route = route
    this.#asked = body
    this.#call = call
  }

  /** What is sent. */
  get body(): any {
    const longest = this.#call?.maxTokens ?? null
    const body = longest === null ? this.#asked : this.#route.shortened(this.#asked, longest)
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
    await this.#whole(new TextDecoder().decode(bytes))
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
    const source = (typeof body.getReader === 'function' ? body : webStream(body)).getReader()
    const watch = new Watch(this.#teller, this.#route.reader(this.#asked), (usage, model, came) => this.#used(usage, model, came))
    const brokenOff = (): void => void watch.ended().catch(() => {})
    signal?.addEventListener('abort', brokenOff, { once: true })
    const ended = async (): Promise<void> => {
      signal?.removeEventListener('abort', brokenOff)
      await watch.ended()
    }
    return new ReadableStream<Uint8Array>(
      {
        async pull(stream) {
          for (;;) {
            const { done, value } = await source.read().catch(async (error: unknown) => {
              await ended()
              throw error
            })
            if (done) {
              const rest = watch.rest()
              if (rest.length > 0) stream.enqueue(rest)
              await ended()
              watch.check()
              stream.close()
              return
            }
            const shown = await watch.shown(value)
            if (shown.length > 0) {
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
  readonly #reader: Reader
  readonly #used: (usage: Usage | null, model: string, came: number) => Promise<void>
  readonly #cutter = new EventCutter()
  #came = 0
  #trip: unknown = null
  #hasCalls = false
  #isOver = false

  constructor(teller: Teller, reader: Reader, used: (usage: Usage | null, model: string, came: number) => Promise<void>) {
    this.#teller = teller
    this.#reader = reader
    this.#used = used
  }

  /** What of the bytes the caller may see: whole events. From the call that trips on, it sees nothing more. */
  async shown(bytes: Uint8Array): Promise<Uint8Array> {
    const shown: Uint8Array[] = []
    for (const event of this.#cutter.cut(bytes)) if (await this.#shows(event)) shown.push(event)
    return joined(shown)
  }

  /** What is left of an event that does not end. */
  rest(): Uint8Array {
    const rest = this.#cutter.rest()
    this.#came += rest.length
    return this.#trip === null ? rest : new Uint8Array()
  }

  async #shows(event: Uint8Array): Promise<boolean> {
    const data = dataOf(event)
    if (data === null) {
      this.#came += event.length
      return this.#trip === null
    }
    const calls = this.#reader.take(data)
    this.#came += textSize(this.#reader.came(data))
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
    // A stream that broke off: what came is in no report.
    const outputTokens = Math.max(usage?.outputTokens ?? 0, wasm.usual_tokens(this.#came))
    await this.#used(usage === null || isCounted ? usage : { ...usage, outputTokens }, model, this.#came)
  }

  check(): void {
    if (this.#trip !== null) throw this.#trip
    // An answer that breaks the budget must not have its calls run; one without calls is the caller's to keep.
    if (this.#hasCalls) this.#teller.check()
  }
}

function webStream(body: unknown): ReadableStream<Uint8Array> {
  return (ReadableStream as unknown as { from(source: unknown): ReadableStream<Uint8Array> }).from(body)
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
