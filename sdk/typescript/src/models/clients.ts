/** The clients of `openai` and `@anthropic-ai/sdk`, which send every call through `makeRequest`, with their retries inside. */
import { asTold } from '../current.js'
import { lookedAt } from './bodies.js'
import { saidInstead, type Exchange } from './exchange.js'
import { Unmetered, routeOf } from './routes.js'
import type { Begin } from './tellers.js'

export type MakeRequest = (this: any, options: any, ...rest: any[]) => Promise<any>

/** Sends a request of a client; one that asks a model is told to the run, before and after. Retries are part of the call. */
export async function sent(send: MakeRequest, client: any, begin: Begin, asked: any, rest: any[], endsPolitely = false): Promise<any> {
  const options = await asked
  const route = routeOf(options?.method, options?.path)
  if (route instanceof Unmetered) {
    await begin(route, null, false)
    return asTold(() => send.call(client, options, ...rest))
  }
  if (route === null || options.body === undefined || options.body === null) return send.call(client, options, ...rest)
  const { says, body } = await lookedAt(options.body)
  // A client of Azure's may be tied to a deployment, whatever model a request names.
  let exchange: Exchange | null
  try {
    exchange = await begin(route, says, client.deploymentName === undefined)
  } catch (error) {
    if (!endsPolitely || says === null) throw error
    const response = saidInstead(error, route, says)
    return { response, options, controller: new AbortController(), requestLogID: 'runguard', startTime: Date.now() }
  }
  if (exchange === null) return asTold(() => send.call(client, { ...options, body }, ...rest))
  // What is as it was is sent as it is.
  const changed = exchange.body === says ? body : exchange.body
  let made: any
  try {
    made = await asTold(() => send.call(client, { ...options, body: changed }, ...rest))
  } catch (error) {
    await exchange.failed(error)
    throw error
  }
  return { ...made, response: await exchange.answered(made.response, made.controller?.signal) }
}
