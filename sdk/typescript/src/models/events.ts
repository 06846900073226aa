/** Server-sent events: cut out of bytes in any chunking, and not changed. */

const LINE_FEED = 10
const CARRIAGE_RETURN = 13

/** Cuts bytes into whole events, each with the blank line that ends it. */
export class EventCutter {
  #pending = new Uint8Array()
  /** Up to here the pending bytes were looked at. */
  #seen = 0
  #lineIsEmpty = true

  cut(bytes: Uint8Array): Uint8Array[] {
    const events: Uint8Array[] = []
    const all = new Uint8Array(this.#pending.length + bytes.length)
    all.set(this.#pending)
    all.set(bytes, this.#pending.length)
    let begin = 0
    let at = this.#seen
    while (at < all.length) {
      const byte = all[at]
      // Whether a line feed belongs to it is seen with the next byte.
      if (byte === CARRIAGE_RETURN && at + 1 === all.length) break
      at += byte === CARRIAGE_RETURN && all[at + 1] === LINE_FEED ? 2 : 1
      if (byte !== LINE_FEED && byte !== CARRIAGE_RETURN) {
        this.#lineIsEmpty = false
      } else if (this.#lineIsEmpty) {
        events.push(all.subarray(begin, at))
        begin = at
      } else {
        this.#lineIsEmpty = true
      }
    }
    this.#pending = all.slice(begin)
    this.#seen = at - begin
    return events
  }

  /** What is no whole event. */
  rest(): Uint8Array {
    const rest = this.#pending
    this.#pending = new Uint8Array()
    this.#seen = 0
    return rest
  }
}

const decoder = new TextDecoder()
const encoder = new TextEncoder()

/** What OpenAI ends a stream of chat completions with, in place of an object. */
export const DONE = '[DONE]'

/** An event as it is sent. */
export function written(data: any): Uint8Array {
  if (data.type === DONE) return encoder.encode(`data: ${DONE}\n\n`)
  return encoder.encode(`${data.type === undefined ? '' : `event: ${data.type}\n`}data: ${JSON.stringify(data)}\n\n`)
}

/** Whether a stream ends with an event. Readers may not look for what comes after it. */
export function isLast({ type }: { type?: unknown }): boolean {
  return type === DONE || type === 'message_stop' || /^response\.(completed|incomplete|failed)$/.test(String(type))
}

/** Lines that carry nothing of an answer: comments, which keep a connection alive, and what is said of the event. */
const AROUND_DATA = /^(:|(event|id|retry)(:|$)|$)/

/** The fields of an event: what its lines of this name say. */
export function linesOf(event: Uint8Array): { named(name: string): string[]; other(): string[] } {
  const lines = decoder.decode(event).split(/\r\n|\r|\n/)
  return {
    named: (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).replace(/^ /, '')),
    other: () => lines.filter((line) => !line.startsWith('data:') && !AROUND_DATA.test(line)),
  }
}

/** The JSON object that an event carries, null when it carries none; and the bytes of what it carries in another form. */
export function eventOf(event: Uint8Array): { data: any; size: number } {
  const lines = linesOf(event)
  const data = lines.named('data')
  const size = encoder.encode(lines.other().join('')).length
  if (data.length === 0) return { data: null, size }
  if (data[0] === DONE) return { data: { type: DONE }, size }
  try {
    const value: unknown = JSON.parse(data.join('\n'))
    if (typeof value === 'object' && value !== null) return { data: value, size }
  } catch {
    // It is a text, or was cut off.
  }
  return { data: null, size: size + encoder.encode(data.join('')).length }
}
