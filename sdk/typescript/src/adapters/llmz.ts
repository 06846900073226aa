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

import { UnknownModelError } from '../errors.js'
import { BEGIN, type ModelCall } from '../model-call.js'
import { untilNext } from '../models/exchange.js'
import { INSTEAD } from '../model-call.js'
import { Run } from '../run.js'
import { tells, type GuardSettings } from './model-turns.js'
import { runOf, type AnyRun, type RunSource } from './runs.js'

interface Iteration {
  readonly model: unknown
  readonly messages?: readonly any[]
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
  readonly iteration: Iteration
  readonly controller: AbortController
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
 * they are in the current one, or in one of their own. With `{ onRepeat: 'tell' }` a tool whose result the model has already is not run: it
 * fails with a sentence that says so, which the model reads.
 */
export function guardHooks(source?: RunSource, own: OwnHooks = {}, settings: Pick<GuardSettings, 'onRepeat'> = {}): Required<OwnHooks> {
  const run = runOf(source) ?? new Run()
  const tellsRepeats = tells(settings)
  const sentences = new Set<string>()
  let nudges: string[] = []
  let call: ModelCall | null = null
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
    async onIterationStart(iteration: Iteration, controller, context) {
      const changed = await own.onIterationStart?.(iteration, controller, context)
      await orAbort(controller, async () => {
        run.check()
        // Before llmz 1.0 they are there, and no other hook comes before the request.
        if (iteration.messages !== undefined) call = await begun(run, iteration, iteration.messages)
      })
      return changed
    },

    async onBeforeRequest(event: RequestEvent) {
      const changed = await own.onBeforeRequest?.(event)
      const told = nudges.length === 0 ? [] : [{ role: 'user', content: nudges.join('\n') }]
      const messages = [...(changed?.messages ?? event.messages), ...told]
      await orAbort(event.controller, async () => {
        call = await begun(run, event.iteration, messages)
      })
      nudges = []
      return told.length === 0 ? changed : { messages }
    },

    async onBeforeTool(event: ToolEvent) {
      const changed = await own.onBeforeTool?.(event)
      const name = fullName(event.tool.name, event.object)
      const input = changed?.input ?? event.input
      await orAbort(event.controller, () => run.beforeTool(name, input))
      const instead = tellsRepeats ? run[INSTEAD](name, input) : null
      if (instead !== null) {
        sentences.add(instead)
        throw new Error(instead)
      }
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
        // A sentence is no result.
        if ([...sentences].some((sentence) => messageOf(trace.error).includes(sentence))) continue
        note(await run.afterTool(fullName(trace.tool_name, trace.object), trace.input, undefined, { error: trace.error }))
      }
      await settled(run, call, iteration.llm)
      call = null
    },
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String((error as { message?: unknown } | null)?.message ?? error)
}

function fullName(tool: string, object: string | undefined): string {
  return object ? `${object}.${tool}` : tool
}

/** Sets aside the most a call may cost, by the price of its model. A name that has none (`best`, a model of Botpress's own) is only counted. */
async function begun(run: AnyRun, { model }: Iteration, messages: readonly any[]): Promise<ModelCall | null> {
  const name = Array.isArray(model) ? model[0] : model
  try {
    return await run[BEGIN](typeof name === 'string' && name !== '' ? name : 'unknown', messages, {})
  } catch (error) {
    if (!(error instanceof UnknownModelError)) throw error
    await run.beforeModel()
    return null
  }
}

/** Botpress says itself what a call cost, in dollars; an answer from its cache costs nothing. */
async function settled(run: AnyRun, call: ModelCall | null, told: Iteration['llm']): Promise<void> {
  const { spend = 0, tokens = 0 } = told ?? {}
  if (call !== null) return untilNext(() => (told === undefined ? call.release() : call.paid(spend, tokens)))
  await untilNext(() => run.recordUsd(spend))
  await untilNext(() => run.budget?.recordTokens(tokens))
}
