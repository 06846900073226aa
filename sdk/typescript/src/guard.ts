/** A run around a function. */
import { currentRun } from './current.js'
import { InvalidInputError, tripOf } from './errors.js'
import { hooks } from './models/hooks.js'
import { Run, type RunOptions } from './run.js'

/** What `Run` takes, or a run of your own. */
export type GuardOptions = ((RunOptions & { run?: undefined }) | { run: Run }) & {
  /**
   * Whether model clients in the run tell it what they use: those of `openai` and `@anthropic-ai/sdk`, the AI SDK, and whatever sends
   * their requests with `fetch`. Default true.
   */
  hook?: boolean | undefined
}

/**
 * Puts a run around a function: every call opens a new one, or takes `run`. Inside, `currentRun()` is that run, `tool` functions are
 * counted in it, and model clients tell it what they use. A run inside another spends the outer one's money.
 */
export function guard<Args extends unknown[], Result>(
  fn: (...args: Args) => Result,
  options: GuardOptions = {},
): (...args: Args) => Result {
  if (typeof fn !== 'function') throw new InvalidInputError('guard takes the function to put a run around, then its options.')
  // Wrong options are told here, where they are written, not at the first call.
  if (options.run === undefined) open(options)
  if (options.hook === false) return (...args) => open(options).within(() => fn(...args))
  void hooks.search()
  const call = (...args: Args): Result => {
    const run = open(options)
    const leave = hooks.enter()
    let result: Result
    try {
      result = run.within(() => fn(...args))
    } catch (error) {
      leave()
      throw unwrapped(run, error)
    }
    if (!(result instanceof Promise)) {
      leave()
      return result
    }
    return result
      .catch((error: unknown) => {
        throw unwrapped(run, error)
      })
      .finally(leave) as Result
  }
  // Who waits for a promise can wait for the clients to be found as well; any other is called at once.
  const canWait = fn.constructor.name === 'AsyncFunction'
  return (...args) => (canWait && !hooks.isSearched ? (hooks.search().then(() => call(...args)) as Result) : call(...args))
}

/** Clients and frameworks wrap what ends them. What comes out of a run that was stopped is its trip. */
function unwrapped(run: Run, error: unknown): unknown {
  return run.trip !== null && tripOf(error) === run.trip ? run.trip : error
}

/**
 * Runs `body` in a run: `withGuard({ maxUsd: 1 }, async (run) => …)`. Inside it is as in `guard`; clients may have been made before.
 */
export async function withGuard<Result>(options: GuardOptions, body: (run: Run) => Result | Promise<Result>): Promise<Result> {
  if (typeof body !== 'function') throw new InvalidInputError('withGuard takes options, then the function to run.')
  const run = open(options)
  if (options.hook === false) return await run.within(body)
  const leave = hooks.enter()
  try {
    await hooks.search()
    return await run.within(body)
  } catch (error) {
    throw unwrapped(run, error)
  } finally {
    leave()
  }
}

function open({ run, hook: _, ...options }: GuardOptions): Run {
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
