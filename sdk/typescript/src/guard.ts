/** A run around a function. */
import { currentRun } from './current.js'
import { InvalidInputError } from './errors.js'
import { Run, type RunOptions } from './run.js'

/** What `Run` takes, or a run of your own. */
export type GuardOptions = (RunOptions & { run?: undefined }) | { run: Run }

/**
 * Puts a run around a function: every call opens a new one, or takes `run`. Inside, `currentRun()` is that run, and
 * `tool` functions are counted in it. A run inside another spends the outer one's money.
 */
export function guard<Args extends unknown[], Result>(
  fn: (...args: Args) => Result,
  options: GuardOptions = {},
): (...args: Args) => Result {
  if (typeof fn !== 'function') throw new InvalidInputError('guard takes the function to put a run around, then its options.')
  // Wrong options are told here, where they are written, not at the first call.
  if (options.run === undefined) open(options)
  return (...args) => open(options).within(() => fn(...args))
}

function open({ run, ...options }: GuardOptions): Run {
  if (run !== undefined) return run
  const own: RunOptions = options
  const outer = currentRun()?.budget
  return new Run(outer && own.budget === undefined ? { ...own, budget: outer } : own)
}

/** A tool that is counted in the run it is called in; outside of a run it is called straight. */
export function tool<Args extends unknown[], Result>(fn: (...args: Args) => Result, name: string = fn.name): (...args: Args) => Result {
  if (typeof name !== 'string' || name === '') throw new InvalidInputError('The tool has no name. Give one as the second argument.')
  return (...args) => (currentRun()?.tool(fn, name) ?? fn)(...args)
}
