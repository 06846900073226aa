/**
 * LangGraph.js (`@langchain/langgraph`), and whatever calls a chat model of LangChain.js: a guarded chat model.
 *
 *     const model = guardChatModel(new ChatOpenAI({ model: 'gpt-4o' }), () => new Run({ maxUsd: 1 }))
 *     const agent = createReactAgent({ llm: model, tools })     // or call model.bindTools(tools) in a node of your graph
 *
 * Each invocation is a run of its own, so one graph serves everybody; with a run instead of a function all belong to it, and with neither
 * they belong to the current run. A trip ends `invoke` and `stream` with the error itself; with `{ onTrip: 'end' }` it is a final answer of
 * the model that says why.
 */

import { asTold } from '../current.js'
import { GUARDED } from '../models/hooks.js'
import { CORE, begin, inspect, tellRepeats } from './langchain.js'
import { ModelTurns, chosen, saidAtEnd, type GuardSettings, type RunSource } from './model-turns.js'

/** A chat model of LangChain.js. */
export interface GuardableChatModel {
  invoke(input: any, options?: any): Promise<any>
  bindTools?(tools: any, options?: any): any
}

export { tellRepeats }

/** A copy of the chat model that asks the run before each request, and before it hands out a tool call. */
export function guardChatModel<Model extends GuardableChatModel>(model: Model, run?: RunSource, settings: GuardSettings = {}): Model {
  return guarded(model, new ModelTurns(run, settings), settings)
}

/** What gives another model, with tools, a format or options bound to it. */
const DERIVING = ['bindTools', 'withConfig', 'bind']

function guarded(original: any, turns: ModelTurns, settings: GuardSettings): any {
  const copy = Object.create(original, { [GUARDED]: { value: true } })
  for (const name of DERIVING) {
    if (typeof original[name] !== 'function') continue
    copy[name] = (...given: unknown[]) => {
      const derived = original[name].apply(copy, given)
      // Some models make a new one, others a binding to this one.
      return typeof derived?._generate === 'function' && !derived[GUARDED] ? guarded(derived, turns, settings) : derived
    }
  }

  const sent = async (given: any, options: any) => {
    const turn = await begin(turns, given, original, options?.tools, options, settings)
    if (turn.nudge === null) return { turn, messages: given }
    const { HumanMessage } = await import(`${CORE}/messages`)
    return { turn, messages: [...given, new HumanMessage(turn.nudge)] }
  }

  const generate = async (given: any, options: any, manager: any): Promise<any> => {
    const { turn, messages } = await sent(given, options)
    let result: any
    try {
      const asking = await chosen(turn, copy, settings)
      const called = asking === copy ? original : asking
      result = await asTold(() => called._generate.call(asking, messages, options, manager))
    } catch (error) {
      await turn.failed(error)
      throw error
    }
    await inspect(turn, result.generations[0].message)
    return result
  }

  async function* stream(given: any, options: any, manager: any): AsyncGenerator<any> {
    const { turn, messages } = await sent(given, options)
    let chunks: AsyncIterator<any> | undefined
    let whole: any = null
    // An answer that ends politely has no tool calls: from the first on it is held back until they are known to be allowed.
    const held: any[] = []
    try {
      const asking = await chosen(turn, copy, settings)
      const called = asking === copy ? original : asking
      chunks = called._streamResponseChunks.call(asking, messages, options, manager)[Symbol.asyncIterator]() as AsyncIterator<any>
      for (;;) {
        turn.isRead()
        const { done, value } = await asTold(() => (chunks as AsyncIterator<any>).next())
        if (done) break
        whole = whole === null ? value : whole.concat(value)
        turn.came([value.message.content, value.message.tool_call_chunks])
        if (settings.onTrip === 'end' && (held.length > 0 || value.message.tool_call_chunks?.length > 0)) held.push(value)
        else yield value
      }
      // Nobody runs a tool before the answer is whole.
      if (whole !== null) await inspect(turn, whole.message)
      yield* held
    } catch (error) {
      if (whole === null) await turn.failed(error)
      throw error
    } finally {
      await turn.ended()
      await chunks?.return?.()
    }
  }

  copy._generate = (...given: [any, any, any]) =>
    generate(...given).catch(async (error: unknown) => {
      const text = saidAtEnd(error, settings)
      const { AIMessage } = await import(`${CORE}/messages`)
      return { generations: [{ text, message: new AIMessage(text) }] }
    })
  if (typeof original._streamResponseChunks === 'function') {
    copy._streamResponseChunks = async function* (...given: [any, any, any]) {
      try {
        yield* stream(...given)
      } catch (error) {
        const text = saidAtEnd(error, settings)
        const { AIMessageChunk } = await import(`${CORE}/messages`)
        const { ChatGenerationChunk } = await import(`${CORE}/outputs`)
        yield new ChatGenerationChunk({ text, message: new AIMessageChunk(text) })
      }
    }
  }
  return copy
}
