/**
 * Sentences for the model in place of results that it has already (`onRepeat: 'tell'`).
 *
 * The guard in front of a model sees a call before its tool does, and knows the run; the tool knows only the id of its call. So the sentence
 * waits here for the call, from the answer that asks for it until the tool reads it.
 */
import { fingerprint } from '../fingerprint.js'

/** What becomes of a tool call whose result the model has already: it runs until the run is stopped, or the model is told so instead. */
export type OnRepeat = 'run' | 'tell'

export interface Told {
  readonly sentence: string
  /** The arguments of its call. */
  readonly asked: string
  /** The tool has given it as its result. */
  isRead: boolean
}

/** Sentences that no tool has read. The oldest are forgotten. */
const WAITING = 10_000
/** Ids that are shorter may be numbers, which others have too: there the arguments must be the same as well. */
const UNIQUE_ID_LENGTH = 12

const waiting = new Map<string, Told>()

const key = (id: string, tool: string): string => `${id} ${tool}`

/** Keeps the sentence for the tool. */
export function tell(id: string, tool: string, args: unknown, sentence: string): Told {
  const told = { sentence, asked: compared(args), isRead: false }
  waiting.delete(key(id, tool))
  waiting.set(key(id, tool), told)
  if (waiting.size > WAITING) waiting.delete(waiting.keys().next().value as string)
  return told
}

/** What the tool gives in place of its result; null when it is to run. */
export function toldOf(id: unknown, tool: string, args: unknown): string | null {
  if (typeof id !== 'string') return null
  const told = waiting.get(key(id, tool))
  if (told === undefined || (id.length < UNIQUE_ID_LENGTH && told.asked !== compared(args))) return null
  waiting.delete(key(id, tool))
  told.isRead = true
  return told.sentence
}

function compared(args: unknown): string {
  try {
    return fingerprint(args)
  } catch {
    // What cannot be compared is like nothing else.
    return ''
  }
}
