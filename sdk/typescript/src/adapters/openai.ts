/**
 * A plain client of `openai` (Azure's too): chat completions and responses, streamed or not, with `parse` and the helpers for streams.
 *
 *     const client = guardOpenAI(new OpenAI(), new Run({ maxUsd: 1 }))
 *
 * What is given back is a copy. Each tool call the model asks for is counted when the answer arrives, so the one that trips is thrown by
 * `create` (or by the stream) and never reaches your code. After a trip nothing is sent any more. Retries made by the client itself are no
 * steps. Call `run.newTurn()` when the user says something new. Instead of a run, a function gives one for each task: a request that ends
 * with results of tools belongs to the run that asked for them, any other begins a task. With neither it is the current run. With
 * `{ onTrip: 'end' }` a trip is a final answer of the model that says why.
 */

import { guardedClient, type ClientSettings } from './guarded-client.js'
import type { RunSource } from './runs.js'

/** A copy of the client whose model calls and tool calls belong to the run. */
export function guardOpenAI<Client extends object>(client: Client, run?: RunSource, settings: ClientSettings = {}): Client {
  return guardedClient(client, run, settings)
}
