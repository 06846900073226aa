/**
 * LangChain.js (`langchain`): a middleware for `createAgent`. For a graph of your own see `langgraph`.
 *
 *     const agent = createAgent({ model, tools, middleware: [guardMiddleware(() => new Run({ maxUsd: 1 }))] })
 *
 * Each invocation is a run of its own, so one agent serves everybody; with a run instead of a function all belong to it, and with
 * neither they belong to the current run.
 *
 * It hooks into the model and not into the tools: a middleware around tools makes every error of a tool fatal, and an agent that recovers
 * from one today must still do so with a guard. A trip ends `invoke` and `stream` with LangChain's MiddlewareError; `tripOf(error)` is the
 * trip. With `{ onTrip: 'end' }` it is a final answer of the model that says why.
 */

import { asTold } from '../current.js'
import { usageIn, type Usage } from '../prices.js'
import { ModelTurns, chosen, ending, replacing, saidAtEnd } from './model-turns.js'
import type { CallResult, GuardSettings, RunSource, Turn } from './model-turns.js'
import { toldOf } from './repeats.js'

interface GuardMiddleware {
  readonly name: string
  wrapModelCall(request: any, handler: (request: any) => any): Promise<any>
}

/** Asks the run before each model call and before each tool the answer asks for. */
export function guardMiddleware(run?: RunSource, settings: GuardSettings = {}): GuardMiddleware {
  const turns = new ModelTurns(run, settings)
  const asked = async (request: any, handler: (request: any) => any): Promise<any> => {
    const { messages, model, modelSettings, systemPrompt, tools } = request
    const turn = await begin(turns, messages, model, [systemPrompt, tools], modelSettings, settings)
    const nudged = turn.nudge === null ? request : { ...request, messages: [...messages, { role: 'user', content: turn.nudge }] }
    let answer: any
    try {
      const asking = await chosen(turn, model, settings)
      answer = await asTold(() => handler(asking === model ? nudged : { ...nudged, model: asking }))
    } catch (error) {
      await turn.failed(error)
      throw error
    }
    await inspect(turn, answer)
    return answer
  }
  return {
    name: 'RunGuard',
    wrapModelCall: (request, handler) => asked(request, handler).catch((error: unknown) => message(saidAtEnd(error, settings))),
  }
}

/** The package is a peer of every tool and every chat model. Its name is kept from compilers, which have it not. */
export const CORE: string = '@langchain/core'

/** The package is a peer: whoever has this middleware has it. The name is kept from compilers, which have it not. */
const PACKAGE: string = 'langchain'

async function message(text: string): Promise<any> {
  const { AIMessage } = (await import(PACKAGE)) as { AIMessage: new (text: string) => unknown }
  return new AIMessage(text)
}

/** Tools that give the model a sentence in place of a result that it has already, where its guard has `{ onRepeat: 'tell' }`. */
export function tellRepeats<Tools extends readonly any[]>(tools: Tools): Tools {
  const telling = tools.map((tool) => {
    if (typeof tool?.invoke !== 'function') return tool
    const invoke = async (input: any, ...rest: unknown[]): Promise<unknown> => {
      const told = input?.type === 'tool_call' ? toldOf(input.id, tool.name, input.args) : null
      if (told === null) return tool.invoke(input, ...rest)
      const { ToolMessage } = await import(`${CORE}/messages`)
      return new ToolMessage({ content: told, tool_call_id: input.id, name: tool.name })
    }
    return replacing(tool, { invoke })
  })
  return telling as unknown as Tools
}

/** A call of a chat model with these messages, and what is sent besides. */
export function begin(
  turns: ModelTurns,
  messages: readonly Message[],
  model: any,
  besides: unknown,
  settings: any,
  { modelNamed }: GuardSettings,
): Promise<Turn> {
  return turns.begin({
    model: modelName(model),
    prompt: [besides, messages.map((message) => [message.content, message.tool_calls])],
    maxTokens: longest(model, settings),
    choices: settings?.n ?? model?.n,
    mayFallBack: modelNamed !== undefined,
    results: toolResults(messages),
    last: ending(messages, ({ tool_call_id }) => typeof tool_call_id === 'string').map(({ tool_call_id }) => String(tool_call_id)),
    beginning: messages[0]?.content,
  })
}

/** What a chat model answered. Throws before a tool that must not run. */
export async function inspect(turn: Turn, answer: any): Promise<void> {
  await turn.used(answerer(answer) ?? '', tokens(answer), [answer.content, answer.tool_calls])
  for (const call of answer.tool_calls ?? []) await turn.asks({ id: String(call.id), tool: call.name, args: call.args })
}

interface Message {
  readonly tool_call_id?: unknown
  readonly tool_calls?: unknown
  readonly content: unknown
  readonly status?: unknown
}

function* toolResults(messages: readonly Message[]): Generator<CallResult> {
  for (const { tool_call_id, content, status } of messages) {
    if (typeof tool_call_id !== 'string') continue
    yield status === 'error' ? { id: tool_call_id, error: content } : { id: tool_call_id, result: content }
  }
}

const isName = (name: unknown): name is string => typeof name === 'string' && name !== ''

function modelName(model: any): string {
  // `openai:gpt-4o` is how LangChain names a provider's model.
  if (isName(model)) return model.slice(model.indexOf(':') + 1)
  return [model?.model, model?.modelName, model?._defaultConfig?.model].find(isName) ?? 'unknown'
}

function answerer(answer: any): string | undefined {
  return [answer.response_metadata?.model_name, answer.response_metadata?.model].find(isName)
}

/** The first of these that is a number of tokens, or of answers. */
function positive(...given: unknown[]): number | undefined {
  return given.find((count): count is number => Number.isSafeInteger(count) && (count as number) > 0)
}

function longest(model: any, settings: any): number | undefined {
  return positive(settings?.maxTokens, settings?.max_tokens, model?.maxTokens)
}

/** How it was served stands in the usage, or beside it. */
function tokens(answer: any): Usage | null {
  const usage = usageIn('langchain', answer.usage_metadata)
  const tier: unknown = answer.response_metadata?.service_tier
  return usage === null || usage.serviceTier !== undefined || typeof tier !== 'string' ? usage : { ...usage, serviceTier: tier }
}
