/**
 * LangChain.js (`langchain`): a middleware for `createAgent`.
 *
 *     const run = new Run({ maxUsd: 1 })
 *     const agent = createAgent({ model, tools, middleware: [guardMiddleware(run)] })
 *
 * It hooks into the model and not into the tools: a middleware around tools makes every error of a tool
 * fatal, and an agent that recovers from one today must still do so with a guard. A trip ends `invoke`
 * and `stream` with LangChain's MiddlewareError; `error.cause` is the trip.
 */

import type { Run } from '../index.js'
import { ModelTurns } from './model-turns.js'
import type { CallResult, TokenUsage } from './model-turns.js'

interface GuardMiddleware {
  readonly name: string
  wrapModelCall(request: any, handler: (request: any) => any): Promise<any>
}

/** Asks `run` before each model call and before each tool the answer asks for. One per run. */
export function guardMiddleware(run: Run): GuardMiddleware {
  const turns = new ModelTurns(run)
  return {
    name: 'RunGuard',
    async wrapModelCall(request, handler) {
      const nudge = await turns.begin(toolResults(request.messages))
      const nudged = nudge === null ? request : { ...request, messages: [...request.messages, { role: 'user', content: nudge }] }
      const answer = await handler(nudged)
      await turns.used(modelName(request.model, answer), tokens(answer.usage_metadata))
      for (const call of answer.tool_calls ?? []) {
        await turns.asks({ id: String(call.id), tool: call.name, args: call.args })
      }
      return answer
    },
  }
}

interface Message {
  readonly tool_call_id?: unknown
  readonly content: unknown
  readonly status?: unknown
}

function* toolResults(messages: readonly Message[]): Generator<CallResult> {
  for (const { tool_call_id, content, status } of messages) {
    if (typeof tool_call_id !== 'string') continue
    yield status === 'error' ? { id: tool_call_id, error: content } : { id: tool_call_id, result: content }
  }
}

function modelName(model: any, answer: any): string {
  const names = [answer.response_metadata?.model_name, answer.response_metadata?.model, model?.model, model?.modelName]
  return names.find((name) => typeof name === 'string' && name !== '') ?? 'unknown'
}

function tokens(usage: any): TokenUsage {
  return {
    promptTokens: usage?.input_tokens ?? 0,
    outputTokens: usage?.output_tokens ?? 0,
    cachedTokens: usage?.input_token_details?.cache_read ?? 0,
    cacheWriteTokens: usage?.input_token_details?.cache_creation ?? 0,
  }
}
