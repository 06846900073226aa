import assert from 'node:assert/strict'
import test from 'node:test'
import { HumanMessage } from '@langchain/core/messages'
import { tool } from '@langchain/core/tools'
import { END, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph'
import { createReactAgent, ToolNode } from '@langchain/langgraph/prebuilt'
import { ChatOpenAI } from '@langchain/openai'
import { LoopDetectedError, Run, StallDetectedError, tripOf } from '@runguard/sdk'
import { guardChatModel, tellRepeats } from '@runguard/sdk/langgraph'
import { z } from 'zod'
import { bars } from './bars.mjs'
import { assertSpent, behaves, loops, startModel } from './model-server.mjs'

const task = { messages: [{ role: 'user', content: 'Is Paris warmer than Rome?' }] }

function weather(ran) {
  return tool(async ({ city }) => (ran(), `18 degrees in ${city}`), {
    name: 'get_weather',
    description: 'The weather in a city',
    schema: z.object({ city: z.string() }),
  })
}

/** A graph as one builds it by hand. */
function graphOf(model, tools) {
  const bound = model.bindTools(tools)
  return new StateGraph(MessagesAnnotation)
    .addNode('model', async ({ messages }) => ({ messages: [await bound.invoke(messages)] }))
    .addNode('tools', new ToolNode(tools))
    .addEdge(START, 'model')
    .addConditionalEdges('model', ({ messages }) => (messages.at(-1).tool_calls?.length ? 'tools' : END))
    .addEdge('tools', 'model')
    .compile()
}

for (const build of [graphOf, (llm, tools) => createReactAgent({ llm, tools })]) {
  bars(async (service, source, { ran, stream, model = 'gpt-4o', onTrip, onRepeat }) => {
    const modelNamed = (model) => new ChatOpenAI({ model, apiKey: 'none', maxRetries: 0, configuration: { baseURL: service.url } })
    const graph = build(guardChatModel(modelNamed(model), source, { onTrip, onRepeat, modelNamed }), tellRepeats([weather(ran)]))
    return async () => {
      if (!stream) return (await graph.invoke(task, { recursionLimit: 50 })).messages.at(-1).content
      let last
      for await (const [mode, chunk] of await graph.stream(task, { streamMode: ['messages', 'values'], recursionLimit: 50 })) {
        if (mode === 'values') last = chunk
      }
      return last.messages.at(-1).content
    }
  }, { tells: true })
}

test('the model that was given is not changed, and a nudge reaches the model', async (t) => {
  const service = await startModel(loops)
  t.after(service.stop)
  const llm = new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } })
  const run = new Run({ repeats: 10, stall: 'chatbot', maxUsd: 1 })
  await assert.rejects(
    graphOf(guardChatModel(llm, run), [weather(() => {})]).invoke(task),
    (error) => tripOf(error) instanceof StallDetectedError,
  )
  const { role, content } = service.requests.at(-1).messages.at(-1)
  assert.equal(role, 'user')
  assert.match(content, /get_weather/)
  await llm.invoke([new HumanMessage('go on')])
})

test('a healthy run is untouched, and its usage is recorded', async (t) => {
  const service = await startModel(behaves)
  t.after(service.stop)
  const llm = new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } })
  const run = new Run({ repeats: 4, maxUsd: 5 })
  const { messages } = await graphOf(guardChatModel(llm, run), [weather(() => {})]).invoke(task)
  assert.equal(messages.at(-1).content, 'Paris is warmer.')
  assertSpent(run, 3)
})

test('a loop ends with our error, and stays ended', async (t) => {
  const service = await startModel(loops)
  t.after(service.stop)
  const llm = new ChatOpenAI({ model: 'gpt-4o', apiKey: 'none', configuration: { baseURL: service.url } })
  const graph = graphOf(guardChatModel(llm, new Run()), [weather(() => {})])
  for (const _ of [1, 2]) await assert.rejects(graph.invoke(task), LoopDetectedError)
  assert.equal(service.requests.length, 3)
})
