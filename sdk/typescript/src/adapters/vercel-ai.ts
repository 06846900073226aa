/**
 * Vercel AI SDK (`ai`): a guarded model.
 *
 *     const run = new Run({ maxUsd: 1 })
 *     const model = guardModel(openai('gpt-4o'), run)
 *     await generateText({ model, tools, stopWhen: stepCountIs(50), prompt })
 *
 * The SDK turns what `execute` throws into a tool result and lets the model go on, so the guard is in
 * the model: an error there ends `generateText` and agents, and `streamText` with an error part; the SDK
 * does not try again.
 */

import type { Run } from '../index.js'
import { ModelTurns, parseArguments } from './model-turns.js'
import type { CallResult, TokenUsage } from './model-turns.js'

/** What is used of a language model; the same in the specifications v2, v3 (ai 6) and v4 (ai 7). */
export interface GuardableModel {
  readonly modelId: string
  doGenerate(options: any): PromiseLike<any>
  doStream(options: any): PromiseLike<any>
}

interface Part {
  readonly type: string
  readonly [field: string]: unknown
}

interface Message {
  readonly role: string
  readonly content: string | readonly Part[]
}

/** A model that asks `run` before each request and before each tool call it hands to the SDK. */
export function guardModel<Model extends GuardableModel>(model: Model, run: Run): Model {
  const turns = new ModelTurns(run)

  const begin = async (options: { prompt: readonly Message[] }) => {
    const nudge = await turns.begin(toolResults(options.prompt))
    if (nudge === null) return options
    return { ...options, prompt: [...options.prompt, { role: 'user', content: [{ type: 'text', text: nudge }] }] }
  }
  const inspect = async (part: Part) => {
    if (part.type === 'finish') await turns.used(model.modelId, tokens(part['usage']))
    if (part.type !== 'tool-call') return
    await turns.asks({ id: String(part['toolCallId']), tool: String(part['toolName']), args: parseArguments(part['input']) })
  }

  const guarded: Pick<GuardableModel, 'doGenerate' | 'doStream'> = {
    async doGenerate(options) {
      const answer = await model.doGenerate(await begin(options))
      await turns.used(model.modelId, tokens(answer.usage))
      for (const part of answer.content) await inspect(part)
      return answer
    },
    async doStream(options) {
      const answer = await model.doStream(await begin(options))
      let refused = false
      const watch = new TransformStream<Part, Part>({
        async transform(part, stream) {
          // After a refusal only the usage is of interest, which comes last: it was spent all the same.
          if (refused && part.type !== 'finish') return
          try {
            // The SDK runs a tool as soon as its call arrives: a call that is refused must not be passed on.
            await inspect(part)
            if (!refused) stream.enqueue(part)
          } catch (error) {
            // Errors are parts of the SDK's streams: one thrown here would break a server's response.
            if (!refused) stream.enqueue({ type: 'error', error })
            refused = true
          }
        },
      })
      return { ...answer, stream: answer.stream.pipeThrough(watch) }
    },
  }
  return new Proxy(model, {
    get(target, name) {
      if (name === 'doGenerate' || name === 'doStream') return guarded[name]
      // Bound to the model itself: private fields are not reachable through a proxy.
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

function* toolResults(prompt: readonly Message[]): Generator<CallResult> {
  for (const { content } of prompt) {
    if (typeof content === 'string') continue
    for (const part of content) {
      if (part.type !== 'tool-result') continue
      const id = String(part['toolCallId'])
      const output = part['output'] as { type: string; value?: unknown; reason?: unknown }
      if (output.type.startsWith('error')) yield { id, error: output.value }
      else if (output.type === 'execution-denied') yield { id, error: output.reason ?? 'execution denied' }
      else yield { id, result: output.value }
    }
  }
}

/** v2 gives plain numbers, later specifications a breakdown; cached tokens are part of the input in all. */
function tokens(usage: any): TokenUsage {
  const input = usage?.inputTokens
  const output = usage?.outputTokens
  return {
    promptTokens: input?.total ?? (typeof input === 'number' ? input : 0),
    outputTokens: output?.total ?? (typeof output === 'number' ? output : 0),
    cachedTokens: input?.cacheRead ?? usage?.cachedInputTokens ?? 0,
    cacheWriteTokens: input?.cacheWrite ?? 0,
  }
}
