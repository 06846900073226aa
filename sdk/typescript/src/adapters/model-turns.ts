/**
 * What the adapters that sit between an agent and its model have in common.
 *
 * Frameworks swallow what a tool throws and go on; none goes on without an answer of its model. So the
 * guard sits there: it sees the tools an answer asks for before any of them runs, and their results in
 * the request that follows.
 */

import type { Run } from '../index.js'

export interface AskedCall {
  readonly id: string
  readonly tool: string
  readonly args: unknown
}

export interface CallResult {
  readonly id: string
  readonly result?: unknown
  readonly error?: unknown
}

export interface TokenUsage {
  /** The whole prompt, with what was read from a cache or written to one. */
  readonly promptTokens: number
  readonly outputTokens: number
  readonly cachedTokens: number
  readonly cacheWriteTokens: number
}

export class ModelTurns {
  readonly #run: Run
  readonly #asked = new Map<string, AskedCall>()

  constructor(run: Run) {
    this.#run = run
  }

  /**
   * Before a request: hands the run the results it has not seen yet, then asks whether the model may be
   * called. Returns a text the model should read, or null. Throws the trip of a run that is over.
   */
  async begin(results: Iterable<CallResult>): Promise<string | null> {
    // A request carries the whole history; with ids used twice the newest result is the one asked for.
    const newest = new Map<string, CallResult>()
    for (const result of results) newest.set(result.id, result)

    const nudges: string[] = []
    for (const [id, call] of this.#asked) {
      const found = newest.get(id)
      if (!found) continue
      this.#asked.delete(id)
      const outcome = found.error === undefined ? {} : { error: found.error }
      const nudge = await this.#run.afterTool(call.tool, call.args, found.result, outcome)
      if (nudge) nudges.push(nudge)
    }
    await this.#run.beforeModel()
    return nudges.length > 0 ? nudges.join('\n') : null
  }

  /** Each tool an answer asks for, before it runs. Throws when it must not. */
  async asks(call: AskedCall): Promise<void> {
    await this.#run.beforeTool(call.tool, call.args)
    this.#asked.set(call.id, call)
  }

  async used(model: string, { promptTokens, outputTokens, cachedTokens, cacheWriteTokens }: TokenUsage): Promise<void> {
    // Prices want every token once.
    const inputTokens = Math.max(0, promptTokens - cachedTokens - cacheWriteTokens)
    const usage = { inputTokens, outputTokens, cachedTokens, cacheWriteTokens }
    await keepingTrips(this.#run, () => this.#run.recordUsage(model, usage))
  }
}

/**
 * What was spent is spent: an answer that ends the task is worth having even if it went over the budget.
 * The run keeps the trip, so the next tool or model call is refused.
 */
export async function keepingTrips(run: Run, record: () => unknown): Promise<void> {
  try {
    await record()
  } catch (error) {
    if (!run.tripped) throw error
  }
}

/** Arguments as an object where the model wrote JSON, as its text where it did not. */
export function parseArguments(text: unknown): unknown {
  if (typeof text !== 'string') return text
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
