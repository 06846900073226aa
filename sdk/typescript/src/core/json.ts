/**
 * Values as JSON text for the core, which makes the canonical form of it.
 *
 * `JSON.stringify` throws on a BigInt, and writes a Map or a Set as `{}`, so that different calls would look the same.
 */
import { InvalidInputError } from '../errors.js'
import { DONE, output, wasm, write, writeAll, writeTwo } from './wasm.js'

/** Most characters of one set of arguments. A model never writes such arguments; a mistake does. */
const LONGEST = 8 * 1024 * 1024
/** Deepest nesting: what the core takes. */
const DEEPEST = 128

const TOO_LARGE = `The arguments are larger than ${LONGEST / 1024 / 1024} MiB. Pass a reference (a path, an id, a hash) instead of the data.`

/** JSON text of arguments. Members that are undefined, functions or symbols are left out, as `JSON.stringify` does. */
export function argumentsToJson(value: unknown): string {
  if (value === undefined || value === null) return 'null'
  try {
    if (isPlain(value)) return JSON.stringify(value)
    return new Writer(false).text(value, '', 0) ?? 'null'
  } catch (error) {
    if (error instanceof InvalidInputError) throw error
    // A getter, a proxy or a toJSON of the caller's own threw.
    const why = error instanceof Error ? error.message : String(error)
    throw new InvalidInputError(`The arguments could not be read: ${why}. Pass plain data.`, { cause: error })
  }
}

/** Text of what a tool gave. Results are whatever a library returns, so what cannot be read of one is only marked. */
export function resultToText(value: unknown): string {
  if (typeof value === 'string') return value.length > LONGEST ? `${value.length} ${value.slice(0, LONGEST)}` : value
  if (value instanceof Error) return `${value.name}: ${value.message}`
  try {
    return new Writer(true).text(value, '', 0) ?? 'null'
  } catch {
    return '"[unreadable]"'
  }
}

/** Bytes of what a model has written, as the core counts them. */
export function answerSize(answer: unknown): number {
  if (answer === undefined || answer === null || answer === '') return 0
  return wasm.answer_size(write(typeof answer === 'string' ? JSON.stringify(answer) : resultToText(answer)))
}

/**
 * Writes texts, and behind them what a call gave. Gives the lengths of all; those of the result and of the error, the last two, are
 * below 0 when there is none. Only told that it failed, the result is what it failed with.
 */
export function writeOutcome(texts: readonly string[], result: unknown, error: unknown): number[] {
  const failed = error !== undefined && error !== null && error !== false
  const gave = result === undefined ? '' : resultToText(result)
  const lengths = writeAll([...texts, gave, failed ? (error === true ? gave : resultToText(error)) : ''])
  if (result === undefined || error === true) lengths[texts.length] = -1
  if (!failed) lengths[texts.length + 1] = -1
  return lengths
}

/** Of a value this much is looked at before it is written the slow way. */
const LOOKED_AT = 10_000
let left = 0

/** Whether `JSON.stringify` writes the value as the writer below does, only faster: small, plain data, as models send it. */
function isPlain(value: unknown): boolean {
  left = LOOKED_AT
  return looksPlain(value, 0)
}

function looksPlain(value: unknown, depth: number): boolean {
  if (--left < 0) return false
  switch (typeof value) {
    case 'string':
      return (left -= value.length) > 0
    case 'number':
      return Number.isFinite(value)
    case 'bigint':
      return false
    case 'object':
      break
    default:
      return true
  }
  if (value === null) return true
  if (depth >= DEEPEST) return false
  if (Array.isArray(value)) {
    for (const item of value) if (!looksPlain(item, depth + 1)) return false
    return true
  }
  const prototype: unknown = Object.getPrototypeOf(value)
  if ((prototype !== Object.prototype && prototype !== null) || 'toJSON' in value) return false
  for (const key in value) if (!looksPlain((value as Record<string, unknown>)[key], depth + 1)) return false
  return true
}

class Writer {
  /** The containers being written. */
  readonly #open = new Set<object>()
  readonly #lenient: boolean
  #written = 0

  constructor(lenient: boolean) {
    this.#lenient = lenient
  }

  /** The text of a value, or undefined when it has none. */
  text(value: unknown, key: string, depth: number): string | undefined {
    switch (typeof value) {
      case 'string':
        return this.#count(JSON.stringify(value))
      case 'number':
        return this.#count(Number.isFinite(value) ? String(value) : nameOf(value))
      case 'boolean':
        return value ? 'true' : 'false'
      case 'bigint':
        return this.#count(String(value))
      case 'object':
        return value === null ? 'null' : this.#object(value, key, depth)
      default:
        return undefined
    }
  }

  #count(text: string): string {
    this.#written += text.length + 1
    if (this.#written <= LONGEST) return text
    return this.#mark('[too large]', TOO_LARGE)
  }

  #mark(mark: string, problem: string): string {
    if (this.#lenient) return JSON.stringify(mark)
    throw new InvalidInputError(problem)
  }

  #object(value: object, key: string, depth: number): string | undefined {
    if (this.#open.has(value))
      return this.#mark('[circular]', 'The arguments contain themselves, so they cannot be compared. Pass data without cycles.')
    if (depth >= DEEPEST) return this.#mark('[too deep]', `The arguments are nested more than ${DEEPEST} deep. Pass a flatter value.`)
    this.#open.add(value)
    try {
      if (Array.isArray(value)) return this.#list(value, depth)
      if ('toJSON' in value && typeof value.toJSON === 'function') return this.text(value.toJSON(key), key, depth + 1)
      if (value instanceof Map)
        return this.#members(
          [...value].map(([name, member]) => [this.#name(name, depth), member]),
          depth,
        )
      if (value instanceof Set) return this.#set(value, depth)
      if (value instanceof Number || value instanceof String || value instanceof Boolean) return this.text(value.valueOf(), key, depth + 1)
      if (value instanceof RegExp) return this.text(String(value), key, depth + 1)
      if (value instanceof Error)
        return this.#members(
          [
            ['name', value.name],
            ['message', value.message],
          ],
          depth,
        )
      if (value instanceof ArrayBuffer) return this.#bytes(new Uint8Array(value))
      if (ArrayBuffer.isView(value)) return this.#bytes(new Uint8Array(value.buffer, value.byteOffset, value.byteLength))
      return this.#members(Object.entries(value), depth)
    } finally {
      this.#open.delete(value)
    }
  }

  #list(items: readonly unknown[], depth: number): string {
    return `[${items.map((item, position) => this.text(item, String(position), depth + 1) ?? 'null').join(',')}]`
  }

  #members(entries: Iterable<readonly [string, unknown]>, depth: number): string {
    const texts: string[] = []
    for (const [key, value] of entries) {
      const text = this.text(value, key, depth + 1)
      if (text !== undefined) texts.push(`${this.#count(JSON.stringify(key))}:${text}`)
    }
    return `{${texts.join(',')}}`
  }

  /** The key of a Map as the name of a member: 1 and "1" are one name. */
  #name(key: unknown, depth: number): string {
    return typeof key === 'string' ? key : (this.text(key, '', depth + 1) ?? String(key))
  }

  /** A set has no order; here it is that of the fingerprints, in which different forms of a value are the same. */
  #set(set: Set<unknown>, depth: number): string {
    const texts = [...set].map((item, position) => this.text(item, String(position), depth + 1) ?? 'null')
    const keyed = texts.map((text) => [wasm.fingerprint(writeTwo(text, ''), 0) === DONE ? output() : '', text] as const)
    return `[${keyed
      .sort(([left], [right]) => (left < right ? -1 : left > right ? 1 : 0))
      .map(([, text]) => text)
      .join(',')}]`
  }

  #bytes(bytes: Uint8Array): string {
    if (this.#written + bytes.length * 2 > LONGEST) return this.#count(' '.repeat(LONGEST))
    let hex = ''
    for (const byte of bytes) hex += byte.toString(16).padStart(2, '0')
    return this.#count(`"${hex}"`)
  }
}

/** JSON has no NaN or infinity; by these names they stay apart from each other and from null. */
function nameOf(value: number): string {
  return Number.isNaN(value) ? '"NaN"' : value > 0 ? '"inf"' : '"-inf"'
}
