/**
 * Botpress `llmz`: hooks for `execute`.
 *
 *     const run = new Run({ maxUsd: 1 })
 *     const result = await execute({ client, tools, ...guardHooks(run) })
 *     run.check() // throws the trip, if that is what ended it
 *
 * The model writes code, so only the hook in front of a tool sees what is really called, and throwing
 * there is feedback for the model, no end. Only the controller ends an execution: its result is an
 * error with code EXECUTION_ABORTED, whose cause is the trip.
 */

import { untilNext } from '../models/exchange.js'
import { Run } from '../run.js'
import { runOf, type AnyRun, type RunSource } from './runs.js'

interface Iteration {
  readonly traces: readonly any[]
  readonly llm?: { readonly spend?: number; readonly tokens?: number }
}

interface ToolEvent {
  readonly tool: { readonly name: string }
  readonly object?: string
  readonly input: any
  readonly controller: AbortController
}

interface RequestEvent {
  readonly messages: any[]
}

/** Your own hooks, if you have some: an execution takes one function each, and these run first. */
export interface OwnHooks {
  onIterationStart?: (iteration: any, controller: AbortController, context: any) => any
  onBeforeRequest?: (event: any) => any
  onBeforeTool?: (event: any) => any
  onAfterTool?: (event: any) => any
  onIterationEnd?: (iteration: any, controller: AbortController) => any
}

/**
 * Hooks that ask the run before each iteration and each tool; to spread into the properties of `execute`, anew for each. Without a run
 * they are in the current one, or in one of their own.
 */
export function guardHooks(source?: RunSource, own: OwnHooks = {}): Required<OwnHooks> {
  const run = runOf(source) ?? new Run()
  let nudges: string[] = []
  const note = (nudge: string | null | undefined) => {
    if (nudge) nudges.push(nudge)
  }
  const orAbort = async (controller: AbortController, ask: () => unknown) => {
    try {
      await ask()
    } catch (trip) {
      controller.abort(trip)
      // llmz before 1.0 looks at the controller only after the tool; an error keeps the tool from running.
      throw trip
    }
  }

  return {
    async onIterationStart(iteration, controller, context) {
      const changed = await own.onIterationStart?.(iteration, controller, context)
      await orAbort(controller, () => run.beforeModel())
      return changed
    },

    async onBeforeRequest(event: RequestEvent) {
      const changed = await own.onBeforeRequest?.(event)
      if (nudges.length === 0) return changed
      const messages = [...(changed?.messages ?? event.messages), { role: 'user', content: nudges.join('\n') }]
      nudges = []
      return { messages }
    },

    async onBeforeTool(event: ToolEvent) {
      const changed = await own.onBeforeTool?.(event)
      await orAbort(event.controller, () => run.beforeTool(fullName(event.tool.name, event.object), changed?.input ?? event.input))
      return changed
    },

    async onAfterTool(event: ToolEvent & { readonly output: any }) {
      note(await run.afterTool(fullName(event.tool.name, event.object), event.input, event.output, {}))
      return own.onAfterTool?.(event)
    },

    async onIterationEnd(iteration: Iteration, controller) {
      await own.onIterationEnd?.(iteration, controller)
      // A tool that fails has no hook after it, only a trace.
      for (const trace of iteration.traces) {
        if (trace.type !== 'tool_call' || trace.success || controller.signal.aborted) continue
        note(await run.afterTool(fullName(trace.tool_name, trace.object), trace.input, undefined, { error: trace.error }))
      }
      await recordSpend(run, iteration.llm)
    },
  }
}

function fullName(tool: string, object: string | undefined): string {
  return object ? `${object}.${tool}` : tool
}

/** Botpress says itself what a call cost, in dollars; an answer from its cache costs nothing. */
async function recordSpend(run: AnyRun, { spend = 0, tokens = 0 }: NonNullable<Iteration['llm']> = {}): Promise<void> {
  await untilNext(() => run.recordUsd(spend))
  await untilNext(() => run.budget?.recordTokens(tokens))
}
