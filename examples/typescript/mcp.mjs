// @ts-check
// MCP TypeScript SDK: an agent that calls a server's tool for ever, stopped before the fourth equal call.
//
//   npm install @modelcontextprotocol/sdk zod and the SDK, then: node mcp.mjs

import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { LoopDetectedError, Run } from '@runguard/sdk'
import { guardClient } from '@runguard/sdk/mcp'
import { z } from 'zod'

const server = new McpServer({ name: 'weather', version: '1.0.0' })
let toolRuns = 0
server.registerTool('get_weather', { inputSchema: { city: z.string() } }, async ({ city }) => ({
  content: [{ type: 'text', text: (toolRuns++, `18 degrees in ${city}`) }],
}))
const [here, there] = InMemoryTransport.createLinkedPair()
await server.connect(there)

const run = new Run({ repeats: 4 })
const client = guardClient(new Client({ name: 'agent', version: '1.0.0' }), run)
await client.connect(here)
try {
  for (;;) await client.callTool({ name: 'get_weather', arguments: { city: 'Paris' } })
} catch (error) {
  if (!(error instanceof LoopDetectedError)) throw error
  console.log(`stopped: ${error.message}`)
}
console.log(`${toolRuns} tool runs`)
await client.close()
