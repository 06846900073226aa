/** One name for the same arguments, and a number for how alike two texts are. */
import { text } from './core/input.js'
import { argumentsToJson } from './core/json.js'
import { DONE, failure, output, secondLength, wasm, writeTwo } from './core/wasm.js'
import { InvalidInputError } from './errors.js'

export interface FingerprintOptions {
  /** Fields left out: a name counts at any depth, a dotted path from the top (`items.request_id`). */
  ignore?: readonly string[] | undefined
}

/**
 * Sixteen hex digits for any arguments. Order of keys, forms of numbers, Unicode composition and empty members do not
 * matter. No arguments at all (`null`, `undefined`) are the same as `{}`.
 */
export function fingerprint(args: unknown, options: FingerprintOptions = {}): string {
  const ignored = options.ignore === undefined ? '' : options.ignore.map((name) => text('A name in ignore', name, 1024)).join('\n')
  const status = wasm.fingerprint(writeTwo(argumentsToJson(args), ignored), secondLength)
  if (status !== DONE) throw failure(status)
  return output()
}

/** The ratio of Python's `difflib.SequenceMatcher`, from 0 to 1. */
export function similarity(left: string, right: string, options: { autojunk?: boolean | undefined } = {}): number {
  if (typeof left !== 'string' || typeof right !== 'string') throw new InvalidInputError('similarity compares two texts.')
  return wasm.similarity(writeTwo(left, right), secondLength, options.autojunk === true ? 1 : 0)
}
