import assert from 'node:assert/strict'
import test from 'node:test'
import { LoopDetectedError, Run, StallDetectedError } from '@runguard/sdk'
import { guardClient } from '@runguard/sdk/mcp'
import { z } from 'zod'

// Version 2 of the SDK is in packages of other names.
const first = await import('@modelcontextprotocol/sdk/client/index.js').catch(() => null)
const { Client } = first ?? (await import('@modelcontextprotocol/client'))
const { McpServer } = await import(first ? '@modelcontextprotocol/sdk/server/mcp.js' : '@modelcontextprotocol/server')
const { InMemoryTransport } = await import(first ? '@modelcontextprotocol/sdk/inMemory.js' : '@modelcontextprotocol/server')

/** A server with one tool, and a guarded client that is connected to it. */
async function setting(t, run, weather = ({ city }) => `18 degrees in ${city}`, settings = {}) {
  const server = new McpServer({ name: 'weather', version: '1.0.0' })
  let runs = 0
  server.registerTool('get_weather', { inputSchema: z.object({ city: z.string() }) }, async (input) => {
    runs += 1
    return { content: [{ type: 'text', text: await weather(input) }] }
  })
  const [here, there] = InMemoryTransport.createLinkedPair()
  await server.connect(there)
  const client = guardClient(new Client({ name: 'agent', version: '1.0.0' }), run, settings)
  await client.connect(here)
  t.after(() => client.close())
  return { client, toolRuns: () => runs }
}

const call = { name: 'get_weather', arguments: { city: 'Paris' } }

/** An agent whose model asks for the same tool for ever; returns how often the model was asked. */
async function loopingAgent(client) {
  let models = 0
  try {
    for (; models < 20;) {
      models += 1
      await client.callTool({ ...call, _meta: { progressToken: models } })
    }
  } catch (error) {
    return { models, error }
  }
  return { models }
}

test('a loop ends with our error, and stays ended', async (t) => {
  const { client, toolRuns } = await setting(t, new Run({ repeats: 4 }))
  const first = await loopingAgent(client)
  assert.ok(first.error instanceof LoopDetectedError && first.error.pattern === 'get_weather')
  assert.deepEqual({ tools: toolRuns(), models: first.models }, { tools: 3, models: 4 })
  const second = await loopingAgent(client)
  assert.ok(second.error instanceof LoopDetectedError)
  assert.deepEqual({ tools: toolRuns(), models: second.models }, { tools: 3, models: 1 })
})

test('no other way to a tool leads past the guard', async (t) => {
  const run = new Run({ repeats: 4 })
  const { client, toolRuns } = await setting(t, run)
  for (let calls = 0; calls < 3; calls += 1) await client.callTool(call)
  const request = { method: 'tools/call', params: call }
  await assert.rejects(first ? client.request(request, z.any()) : client.request(request), LoopDetectedError)
  assert.equal(toolRuns(), 3)
})

test('the streaming form of a call is refused too', { skip: !first }, async (t) => {
  const { client, toolRuns } = await setting(t, new Run({ repeats: 4 }))
  const messages = []
  for (let calls = 0; calls < 4; calls += 1) {
    for await (const message of client.experimental.tasks.callToolStream(call)) messages.push(message)
  }
  assert.deepEqual(
    messages.map(({ type }) => type),
    ['result', 'result', 'result', 'error'],
  )
  assert.match(messages[3].error.message, /LoopDetectedError/)
  assert.equal(toolRuns(), 3)
})

test('healthy calls and other requests are untouched', async (t) => {
  const run = new Run()
  const { client, toolRuns } = await setting(t, run)
  for (let page = 0; page < 4; page += 1) assert.equal((await client.listTools()).tools.length, 1)
  for (const city of ['Paris', 'Rome', 'Oslo', 'Paris']) {
    const { content } = await client.callTool({ name: 'get_weather', arguments: { city } })
    assert.deepEqual(content, [{ type: 'text', text: `18 degrees in ${city}` }])
  }
  assert.equal(toolRuns(), 4)
  assert.equal(run.tripped, false)
})

test('a nudge is part of the result the model reads, and the end comes if it does not help', async (t) => {
  const run = new Run({ repeats: 10, stall: 'chatbot' })
  const { client, toolRuns } = await setting(t, run)
  const contents = []
  const keepCalling = async () => {
    while (contents.length < 20) {
      run.beforeModel()
      contents.push((await client.callTool(call)).content)
    }
  }
  await assert.rejects(keepCalling(), StallDetectedError)
  assert.ok(toolRuns() <= 4, `${toolRuns()} tool runs`)
  assert.equal(contents[0].length, 1)
  assert.equal(contents.at(-1).length, 2)
  assert.notEqual(contents.at(-1)[1].text, '')
})

test("a tool's error comes back as the server sent it", async (t) => {
  const { client } = await setting(t, new Run(), () => Promise.reject(new Error('the station is down')))
  const { isError, content } = await client.callTool(call)
  assert.equal(isError, true)
  assert.match(content[0].text, /the station is down/)
})

test("with onTrip: 'end' a refused call has a result that says why", async (t) => {
  const run = new Run()
  const { client, toolRuns } = await setting(t, run, undefined, { onTrip: 'end' })
  for (let calls = 0; calls < 2; calls += 1) assert.equal((await client.callTool(call)).isError, undefined)
  for (let calls = 0; calls < 2; calls += 1)
    assert.deepEqual(await client.callTool(call), { content: [{ type: 'text', text: run.message }], isError: true })
  assert.equal(toolRuns(), 2)
})
