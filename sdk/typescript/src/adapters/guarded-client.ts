/** What the adapters of `openai` and `@anthropic-ai/sdk` share: a copy of a client that tells a run what its models are asked, and ask for. */
import { isTold } from '../current.js'
import { InvalidInputError } from '../errors.js'
import { sent } from '../models/clients.js'
import { GUARDED } from '../models/hooks.js'
import { Unmetered, type ToolCall } from '../models/routes.js'
import { Conversation, type Begin } from '../models/tellers.js'
import type { GuardSettings } from './model-turns.js'
import { Runs, type RunSource } from './runs.js'

/** What becomes of a run that is stopped: see `onTrip`. */
export type ClientSettings = Pick<GuardSettings, 'onTrip'>

/** A copy of the client (same settings) whose calls belong to the run. */
export function guardedClient<Client extends object>(client: Client, source: RunSource | undefined, { onTrip }: ClientSettings): Client {
  const original: any = client
  if (typeof original?.makeRequest !== 'function')
    throw new InvalidInputError('This is no client of openai or @anthropic-ai/sdk that could be guarded. Pass the client itself.')
  const runs = new Runs(source, (run) => new Conversation(run, onTrip === 'end'))
  const begin: Begin = (route, body, mayFallBack) => {
    const beginning = body?.messages?.[0]?.content ?? body?.input?.[0]?.content ?? body?.input
    const conversation = runs.of(body === null || route instanceof Unmetered ? [] : route.transcript(body).last, beginning)
    const remember = (calls: readonly ToolCall[]): void => {
      for (const { id } of calls) runs.asked(id, beginning, conversation)
    }
    return conversation.begin(route, body, mayFallBack, remember)
  }
  return hooked(copyOf(original), begin, onTrip === 'end')
}

function copyOf(client: any): any {
  // Before openai 5 a client could not copy itself.
  return typeof client.withOptions === 'function' ? client.withOptions({}) : new client.constructor(client._options)
}

function hooked(client: any, begin: Begin, endsPolitely: boolean): any {
  const { makeRequest, withOptions } = client
  const own = {
    makeRequest: (options: any, ...rest: any[]) =>
      // A retry is part of its call.
      isTold() ? makeRequest.call(client, options, ...rest) : sent(makeRequest, client, begin, options, rest, endsPolitely),
    // It makes another client; without this it would be an unguarded one.
    withOptions: (...options: any[]) => hooked(withOptions.apply(client, options), begin, endsPolitely),
    [GUARDED]: true,
  }
  for (const name of Reflect.ownKeys(own)) {
    Object.defineProperty(client, name, { value: own[name as keyof typeof own], configurable: true, writable: true })
  }
  return client
}
