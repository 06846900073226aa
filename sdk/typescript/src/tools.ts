/** Tool calls of one turn: how often, the same again, nearly the same again. */
import { snakeCase, text } from './core/input.js'
import { argumentsToJson } from './core/json.js'
import { CoreObject, DONE, TRIPPED, failure, outputJson, secondLength, wasm, write, writeAll, writeTwo } from './core/wasm.js'
import { RemoteToolExecutionTracker } from './remote.js'

export type SkipReason = 'tool_limit' | 'exact_duplicate' | 'similar_query'

/** A call that should not run. `message` goes to the model as the tool's result. */
export interface Skip {
  reasonCode: SkipReason
  message: string
  /** How often the tool has run in this turn. */
  count: number
  limit: number
}

export interface TrackerSettings {
  /** Runs in one turn, by tool; beside the built-in ones. */
  limits?: Readonly<Record<string, number>> | undefined
  /** Of every other tool. Default 3. */
  defaultLimit?: number | undefined
  /** Tools of which similar queries are skipped too. */
  searchTools?: readonly string[] | undefined
  /** How alike two queries must be. Default 0.75. */
  threshold?: number | undefined
  /** Compares the letters of queries alone, as the design does: numbers and names may then differ. Default false. */
  plainRatio?: boolean | undefined
  /** The arguments a query is taken from, the first that is there. */
  queryArguments?: readonly string[] | undefined
  /** Arguments that make two searches different whatever they ask. */
  placeArguments?: readonly string[] | undefined
  /** Fields that are left out of the arguments, by tool; `*` is every tool. */
  volatile?: Readonly<Record<string, readonly string[]>> | undefined
}

/** Says before a tool runs whether it should be skipped. One turn is one message of the user and what follows from it. */
export class ToolExecutionTracker extends CoreObject {
  constructor(settings: TrackerSettings = {}) {
    super(wasm.tools_new(write(argumentsToJson(snakeCase(settings)))), wasm.tools_free)
  }

  /** The same with async methods, kept by a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteToolExecutionTracker>[0]): RemoteToolExecutionTracker {
    return new RemoteToolExecutionTracker(options)
  }

  /** null: run it, then `record` it. */
  shouldSkip(tool: string, args?: unknown): Skip | null {
    const status = wasm.tools_should_skip(this.handle, writeTwo(text('tool', tool), argumentsToJson(args)), secondLength)
    if (status === DONE) return null
    if (status === TRIPPED) return outputJson<Skip>()
    throw failure(status)
  }

  /** Counts a call that ran. One that failed may be tried again, up to the limit. */
  record(tool: string, args?: unknown, outcome: { error?: unknown } = {}): void {
    const failed = Number(hasFailed(outcome))
    const status = wasm.tools_record(this.handle, writeTwo(text('tool', tool), argumentsToJson(args)), secondLength, failed)
    if (status !== DONE) throw failure(status)
  }

  /** The same as `shouldSkip`. */
  shouldSkipExecution(tool: string, args?: unknown): Skip | null {
    return this.shouldSkip(tool, args)
  }

  /** The same as `record`. */
  recordExecution(tool: string, args?: unknown, outcome: { error?: unknown } = {}): void {
    this.record(tool, args, outcome)
  }

  /** A message of the user: all counts start anew. */
  newTurn(): void {
    const status = wasm.tools_new_turn(this.handle)
    if (status !== DONE) throw failure(status)
  }
}

/** Whether a call failed: an error may be anything but false. */
export function hasFailed({ error }: { error?: unknown }): boolean {
  return error !== undefined && error !== null && error !== false
}

/** Results of a recipe's actions, so that a step that is run again does not act again. Keeps the newest 1,000. */
export class RecipeCache<Result = unknown> extends CoreObject {
  /** By number; the core knows which number belongs to which call. The oldest comes first. */
  readonly #results = new Map<number, Result>()
  #last = 0

  constructor() {
    super(wasm.recipe_new(), wasm.recipe_free)
  }

  /** What the same action with the same arguments gave in the same step; undefined when it has not run. */
  get(step: string, action: string, args?: unknown): Result | undefined {
    const [stepLength = 0, actionLength = 0, argsLength = 0] = this.#write(step, action, args)
    const found = wasm.recipe_get(this.handle, stepLength, actionLength, argsLength)
    if (found < 0) throw failure(-found)
    return this.#results.get(found)
  }

  /** Remembers a result. Put in what succeeded: it will not run again. */
  put(step: string, action: string, args: unknown, result: Result): void {
    const [stepLength = 0, actionLength = 0, argsLength = 0] = this.#write(step, action, args)
    const replaced = wasm.recipe_get(this.handle, stepLength, actionLength, argsLength)
    if (replaced < 0) throw failure(-replaced)
    this.#results.delete(replaced)
    this.#last += 1
    const kept = wasm.recipe_put(this.handle, stepLength, actionLength, argsLength, this.#last)
    if (kept < 0) throw failure(-kept)
    this.#results.set(this.#last, result)
    for (const oldest of this.#results.keys()) {
      if (this.#results.size <= kept) break
      this.#results.delete(oldest)
    }
  }

  /** Another recipe, or the same one from its start: nothing has run yet. */
  newRecipe(): void {
    const status = wasm.recipe_clear(this.handle)
    if (status !== DONE) throw failure(status)
    this.#results.clear()
  }

  #write(step: string, action: string, args: unknown): number[] {
    return writeAll([text('step', step), text('action', action), argumentsToJson(args)])
  }
}
