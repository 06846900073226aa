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

/** What OpenAI ends a stream of chat completions with, in place of an object. */
const DONE = '[DONE]'

/** Whether a stream ends with an event. Readers may not look for what comes after it. */
export function isLast({ type }: { type?: unknown }): boolean {
  return type === DONE || type === 'message_stop' || /^response\.(completed|incomplete|failed)$/.test(String(type))
}

/** The JSON object that an event carries; null when it carries none. */
export function dataOf(event: Uint8Array): any {
  const lines = decoder.decode(event).split(/\r\n|\r|\n/)
  const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(line[5] === ' ' ? 6 : 5))
  if (data.length === 0) return null
  if (data[0] === DONE) return { type: DONE }
  try {
    const value: unknown = JSON.parse(data.join('\n'))
    return typeof value === 'object' ? value : null
  } catch {
    return null
  }
}
