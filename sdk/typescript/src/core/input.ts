/** What may come in, checked where it comes in. */
import { InvalidInputError } from '../errors.js'

/** What names something is no longer than this: a hash does instead. */
export const LONGEST_NAME = 65_536

/** A text that is there, and not longer than `most` characters. */
export function text(name: string, value: unknown, most = LONGEST_NAME): string {
  if (typeof value !== 'string') throw new InvalidInputError(`${name} must be a text, not ${kind(value)}.`)
  if (value === '') throw new InvalidInputError(`${name} is empty. Give it a value.`)
  if (value.length > most)
    throw new InvalidInputError(`${name} is ${value.length} characters long, and may be ${most}. Give a shorter one, or a hash of it.`)
  return value
}

/** Refuses settings that are not known: a typo must not pass in silence. */
export function known(of: string, settings: object, names: readonly string[]): void {
  if (typeof settings !== 'object' || settings === null)
    throw new InvalidInputError(`The settings of ${of} must be an object, not ${kind(settings)}.`)
  const unknown = Object.keys(settings).find((name) => !names.includes(name))
  if (unknown === undefined) return
  const hint =
    unknown === 'url' || unknown === 'apiKey' ? `For one that is kept by a service use ${of}.remote(…).` : `It knows ${names.join(', ')}.`
  throw new InvalidInputError(`${of} has no setting '${unknown}'. ${hint}`)
}

/** A number of at least 0 for the core, or -1 when it was left out. */
export function numberOrNone(name: string, value: unknown): number {
  return value === undefined || value === null ? -1 : amount(name, value)
}

/** A finite number of at least 0. */
export function amount(name: string, value: unknown): number {
  if (typeof value !== 'number' || !Number.isFinite(value) || value < 0) {
    throw new InvalidInputError(`${name} must be a number of at least 0, not ${typeof value === 'number' ? value : kind(value)}.`)
  }
  return value
}

/** A whole number of at least 0. */
export function count(name: string, value: unknown): number {
  if (!Number.isSafeInteger(amount(name, value))) throw new InvalidInputError(`${name} must be a whole number, not ${value}.`)
  return value as number
}

function kind(value: unknown): string {
  return value === null ? 'null' : Array.isArray(value) ? 'a list' : typeof value === 'object' ? 'an object' : typeof value
}

/** Settings under the names the core has for them, without those that are undefined. */
export function snakeCase(settings: object): Record<string, unknown> {
  const given = Object.entries(settings).filter(([, value]) => value !== undefined)
  return Object.fromEntries(given.map(([name, value]) => [name.replace(/[A-Z]|\d+/g, (part) => `_${part.toLowerCase()}`), value]))
}

/** What the core gives, under the names that settings have here. */
export function camelCase(settings: object): Record<string, any> {
  return Object.fromEntries(
    Object.entries(settings).map(([name, value]) => [name.replace(/_./g, (part) => part.charAt(1).toUpperCase()), value]),
  )
}

const ID_BYTES = 12
/** Drawn for many names at once: a small draw has memory of its own outside of the heap, which makes the collector run. */
const random = new Uint8Array(ID_BYTES * 256)
let drawn = random.length
const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'))

/** A new name. Not `crypto.randomUUID`: a page served without TLS has none. */
export function newId(prefix: string): string {
  if (drawn === random.length) {
    crypto.getRandomValues(random)
    drawn = 0
  }
  let id = `${prefix}-`
  for (const end = drawn + ID_BYTES; drawn < end; drawn++) id += HEX[random[drawn] as number]
  return id
}
