/**
 * MCP TypeScript SDK, client side: a guarded client.
 *
 *     const run = new Run({ maxToolCalls: 100 })
 *     const client = guardClient(new Client({ name: 'my-agent', version: '1.0.0' }), run)
 *     await client.callTool({ name: 'search', arguments: { query } }) // throws the trip
 *
 * A refused call never leaves the client. The model is not seen from here: if an agent framework
 * catches what its tools throw, guard the framework as well, or end your own loop on the error.
 */

import { saidAtEnd, type GuardSettings } from './model-turns.js'
import { runOf, type RunSource } from './runs.js'

/** `Client` of `@modelcontextprotocol/sdk` 1.x and of `@modelcontextprotocol/client` 2.x. */
export interface GuardableClient {
  request(...parameters: any[]): Promise<any>
}

/**
 * Makes `client` ask the run before each `tools/call`, however it is sent, and returns it. A function is asked for the run at each call;
 * with neither it is the current run, and outside of one the call is sent straight. With `{ onTrip: 'end' }` a call that is refused has a result
 * all the same: an error that says why, for the model to read.
 */
export function guardClient<Client extends GuardableClient>(
  client: Client,
  source?: RunSource,
  settings: Pick<GuardSettings, 'onTrip'> = {},
): Client {
  // callTool, its streaming form and the client's own retries all end here.
  const send = client.request.bind(client)
  client.request = async (request: { method: string; params?: any }, ...rest: unknown[]) => {
    const run = request.method === 'tools/call' ? runOf(source) : null
    if (run === null) return send(request, ...rest)
    // Not `_meta`: it holds progress tokens and trace ids, new ones with each call.
    const { name, arguments: args = {} } = request.params
    try {
      await run.beforeTool(name, args)
    } catch (error) {
      return { content: [{ type: 'text', text: saidAtEnd(error, settings) }], isError: true }
    }
    let result
    try {
      result = await send(request, ...rest)
    } catch (error) {
      await run.afterTool(name, args, undefined, { error })
      throw error
    }
    const outcome = result.isError ? { error: result.content } : {}
    const nudge = await run.afterTool(name, args, result.structuredContent ?? result.content, outcome)
    if (!nudge || !Array.isArray(result.content)) return result
    return { ...result, content: [...result.content, { type: 'text', text: nudge }] }
  }
  return client
}
