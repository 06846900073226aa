/** What the adapters of `openai` and `@anthropic-ai/sdk` share: a copy of a client that tells a run what its models are asked, and ask for. */
import { isTold } from '../current.js'
import { InvalidInputError } from '../errors.js'
import { sent } from '../models/clients.js'
import type { Exchange } from '../models/exchange.js'
import { GUARDED } from '../models/hooks.js'
import type { Route, ToolCall } from '../models/routes.js'
import { Conversation } from '../models/tellers.js'
import { Runs, type RunSource } from './runs.js'

/** A copy of the client (same settings) whose calls belong to the run. */
export function guardedClient<Client extends object>(client: Client, source: RunSource | undefined): Client {
  const original: any = client
  if (typeof original?.makeRequest !== 'function')
    throw new InvalidInputError('This is no client of openai or @anthropic-ai/sdk that could be guarded. Pass the client itself.')
  const runs = new Runs(source, (run) => new Conversation(run))
  const begin = (route: Route, body: any): Promise<Exchange> => {
    const beginning = body.messages?.[0]?.content ?? body.input?.[0]?.content ?? body.input
    const conversation = runs.of(route.transcript(body).last, beginning)
    const remember = (calls: readonly ToolCall[]): void => {
      for (const { id } of calls) runs.asked(id, beginning, conversation)
    }
    return conversation.begin(route, body, remember)
  }
  return hooked(copyOf(original), begin)
}

function copyOf(client: any): any {
  // Before openai 5 a client could not copy itself.
  return typeof client.withOptions === 'function' ? client.withOptions({}) : new client.constructor(client._options)
}

function hooked(client: any, begin: (route: Route, body: any) => Promise<Exchange>): any {
  const { makeRequest, withOptions } = client
  const own = {
    makeRequest: (options: any, ...rest: any[]) =>
      // A retry is part of its call.
      isTold() ? makeRequest.call(client, options, ...rest) : sent(makeRequest, client, begin, options, rest),
    // It makes another client; without this it would be an unguarded one.
    withOptions: (...options: any[]) => hooked(withOptions.apply(client, options), begin),
    [GUARDED]: true,
  }
  for (const name of Reflect.ownKeys(own)) {
    Object.defineProperty(client, name, { value: own[name as keyof typeof own], configurable: true, writable: true })
  }
  return client
}
