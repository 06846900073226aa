/** How a question to the core ends: it may go on, it is refused, or a service has to be asked first. */
import type { GuardClient } from '../client.js'
import {
  BudgetExceededError,
  CircuitOpenError,
  InvalidInputError,
  LoopDetectedError,
  ServiceError,
  StallDetectedError,
  TimeLimitError,
  ToolLimitError,
  TripError,
  UnknownModelError,
  type BudgetUnit,
} from '../errors.js'
import {
  ASK,
  BUSY,
  DONE,
  NOT_NOW,
  REFUSED,
  TOLD,
  TRIPPED,
  UNANSWERED,
  UNKNOWN_MODEL,
  failure,
  output,
  outputJson,
  secondLength,
  wasm,
  write,
  writeTwo,
} from './wasm.js'

type Trip = { message: string; reason: string } & (
  | { error: 'loop'; cycle: string[]; repeats: number }
  | { error: 'stall'; rule: string | null; count: number; nudge: string }
  | { error: 'budget'; unit: BudgetUnit; spent: number; limit: number }
  | { error: 'calls'; tool: string; limit: number }
  | { error: 'time'; limit: number }
  | { error: 'circuit'; endpoint: string; retryAfterSeconds: number | null }
)

/** What a service has to be asked. */
export interface Question {
  question: number
  part: 'loop' | 'stall' | 'budget' | 'circuit' | 'tools'
  path: string
  body: string
}

/** The trip that the core left. */
export function tripError(): TripError {
  const trip = outputJson<Trip>()
  switch (trip.error) {
    case 'loop':
      return new LoopDetectedError(trip.message, trip)
    case 'stall':
      return new StallDetectedError(trip.message, trip)
    case 'budget':
      return new BudgetExceededError(trip.message, trip)
    case 'calls':
      return new ToolLimitError(trip.message, trip)
    case 'time':
      return new TimeLimitError(trip.message, trip)
    case 'circuit':
      return new CircuitOpenError(trip.message, trip)
  }
}

function unknownModel(): UnknownModelError {
  const { model, message } = outputJson<{ model: string; message: string }>()
  return new UnknownModelError(message, { model })
}

/** What is said to who settles a reservation that has ended. */
export function reservationEnded(): InvalidInputError {
  wasm.reservation_ended()
  return new InvalidInputError(output())
}

/** What the core says to a status: a value, or nothing when it is done. Throws what it refuses; `stopped` makes the error of a trip. */
export function settled(status: number, stopped: () => Error = tripError): unknown {
  switch (status) {
    case DONE:
      return null
    case BUSY:
      return false
    case TOLD:
      return outputJson()
    case TRIPPED:
      throw stopped()
    case NOT_NOW:
      throw tripError()
    case UNKNOWN_MODEL:
      throw unknownModel()
    default:
      throw failure(status)
  }
}

/** Asks services until the core has its answer. */
export async function answered(
  status: number,
  client: (part: Question['part']) => GuardClient,
  stopped: () => Error = tripError,
): Promise<unknown> {
  while (status === ASK) {
    const question = outputJson<Question>()
    const asked = client(question.part)
    const answer = await reply(asked, question).catch((error: unknown) => {
      // The request itself is wrong: the question is over all the same.
      wasm.question_dropped(question.question)
      throw error
    })
    if (answer instanceof ServiceError) {
      status = wasm.question_told(question.question, -1)
      if (status === UNANSWERED) throw answer
      asked.failedOpen(answer)
    } else {
      status = wasm.question_told(question.question, write(answer))
    }
  }
  return settled(status, stopped)
}

/** By address: parts of many runs ask the same service, and one that cannot be reached is left alone for a moment by all of them. */
const rests = new Map<string, { handle: number; why: ServiceError | null }>()

function restOf({ url }: GuardClient): { handle: number; why: ServiceError | null } {
  const known = rests.get(url) ?? { handle: wasm.rest_new(), why: null }
  rests.set(url, known)
  return known
}

/** The answer to a question, or why there is none though asking later may help; what asking again does not mend is thrown. */
async function reply(client: GuardClient, { path, body }: Question): Promise<string | ServiceError> {
  const rest = restOf(client)
  if (rest.why !== null && wasm.rest_lasts(rest.handle, Date.now()) === 1) return rest.why
  const came = await client.exchange(path, body)
  rest.why = came instanceof ServiceError ? came : null
  wasm.rest_told(rest.handle, Number(rest.why === null), Date.now())
  if (came instanceof ServiceError) return came
  const read = wasm.reply_read(writeTwo(path, came.text), secondLength, came.status)
  if (read === DONE) return output()
  if (read === REFUSED) throw failure(read)
  const error = new ServiceError(output(), { status: came.status })
  if (read === UNANSWERED) return error
  throw error
}
