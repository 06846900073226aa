/** The clients of `openai` and `@anthropic-ai/sdk`, which send every call through `makeRequest`, with their retries inside. */
import { asTold } from '../current.js'
import type { Exchange } from './exchange.js'
import { routeOf, type Route } from './routes.js'

export type MakeRequest = (this: any, options: any, ...rest: any[]) => Promise<any>

/** Sends a request of a client; one that asks a model is told to the run, before and after. Retries are part of the call. */
export async function sent(
  send: MakeRequest,
  client: any,
  begin: (route: Route, body: any) => Promise<Exchange>,
  asked: any,
  rest: any[],
): Promise<any> {
  const options = await asked
  const route = routeOf(options?.method, options?.path)
  if (route === null || typeof options.body !== 'object' || options.body === null) return send.call(client, options, ...rest)
  const exchange = await begin(route, options.body)
  let made: any
  try {
    made = await asTold(() => send.call(client, { ...options, body: exchange.body }, ...rest))
  } catch (error) {
    await exchange.failed(error)
    throw error
  }
  return { ...made, response: await exchange.answered(made.response, made.controller?.signal) }
}
