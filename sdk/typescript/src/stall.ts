/** Notices that an agent gets nowhere, by what its calls give. */
import { count, snakeCase, text } from './core/input.js'
import { argumentsToJson, writeOutcome } from './core/json.js'
import { CoreObject, DONE, TRIPPED, failure, outputJson, secondLength, wasm, writeTwo } from './core/wasm.js'
import { InvalidInputError } from './errors.js'
import { RemoteStallDetector } from './remote.js'

export type Rung = 'go_on' | 'observe' | 'steer' | 'block' | 'stop'
export type StallRule = 'identical' | 'cycle' | 'novelty' | 'same_error' | 'messages' | 'unmoved' | 'put_back' | 'same_result' | 'failing' | 'long_run'
export type StallPreset = 'chatbot' | 'coding' | 'browser' | 'research'

/** When a count climbs which rung; 0 is never. Rungs left out stay as the preset has them. */
export interface Ladder {
  steer?: number
  block?: number
  stop?: number
}

/** Thresholds that replace those of the preset. */
export interface StallSettings {
  preset?: StallPreset | undefined
  /** The same call with the same result, in a row. */
  identical?: Ladder | undefined
  /** Rounds of a cycle of two to `cycleMaxPeriod` calls. */
  cycle?: Ladder | undefined
  cycleMaxPeriod?: number | undefined
  /** Of the latest `noveltyWindow` calls at most `noveltyMaxNew` brought something new: then `noveltyRung` is climbed. */
  noveltyWindow?: number | undefined
  noveltyMaxNew?: number | undefined
  noveltyRung?: Rung | undefined
  /** How often the model is told before that rung. */
  noveltyNudges?: number | undefined
  /** Actions on web pages are compared by what is done and to which element, whatever was typed and whatever came of it. */
  noveltyByTarget?: boolean | undefined
  /** The same error in a row, whatever the arguments. */
  sameError?: Ladder | undefined
  /** The same message in a row, or two alternating ones. */
  messages?: Ladder | undefined
  /** The same check with the same outcome, although something was changed in between. */
  unmoved?: Ladder | undefined
  /** A file that comes back to what it had been. */
  putBack?: Ladder | undefined
  /** Calls in a row that look at different things and give the same. */
  sameResult?: Ladder | undefined
  /** Calls in a row that fail, whatever they say. */
  failing?: Ladder | undefined
  /** Calls of a run in which a check failed again after a change. */
  longRun?: Ladder | undefined
  /** Tokens of such a run: with an eighth of them left the model is told, then the run is stopped; 0 is never. */
  longRunTokens?: number | undefined
  /** What is never news in results: names (`etag`: the value behind it) and patterns with stars (`worker-*`). */
  volatile?: readonly string[] | undefined
  /** Tools that wait for something. */
  polling?: readonly string[] | undefined
  /** Tools that change the world: after a success, trying again is a new experiment. */
  mutating?: readonly string[] | undefined
  /** The highest rung; `observe` watches and never interferes. */
  highest?: Rung | undefined
}

/** What the detector makes of a step. */
export interface Verdict {
  rung: Rung
  rule: StallRule | null
  /** What was counted: calls in a row, rounds, errors; for novelty the new ones in the window. */
  count: number
  /** A sentence for the model; empty when there is nothing to say. */
  nudge: string
  /** A clause for the log. */
  message: string
}

export interface StepOutcome {
  /** What the tool failed with. */
  error?: unknown
  /** Number of the model's turn: the same call twice in one turn counts once. */
  round?: number | undefined
  /** Tokens the model read and wrote since the last call that was told: for `longRunTokens`. */
  tokens?: number | undefined
  sessionId?: string | undefined
}

const GO_ON: Verdict = Object.freeze({ rung: 'go_on', rule: null, count: 0, nudge: '', message: '' })

/** Watches any number of runs, one history a session. Never throws a trip: it says how far the ladder was climbed. */
export class StallDetector extends CoreObject {
  constructor(settings: StallSettings | StallPreset = {}) {
    const { preset = 'coding', ...changes } = typeof settings === 'string' ? { preset: settings } : settings
    super(wasm.stall_new(writeTwo(text('preset', preset, 64), argumentsToJson(snakeCase(changes))), secondLength), wasm.stall_free)
  }

  /** The same with async methods, kept by a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteStallDetector>[0]): RemoteStallDetector {
    return new RemoteStallDetector(options)
  }

  /** Takes a call with what it gave. */
  observe(tool: string, args?: unknown, result?: unknown, outcome: StepOutcome = {}): Verdict {
    const round = outcome.round === undefined ? -1 : count('round', outcome.round)
    const texts = [session(outcome.sessionId), text('tool', tool), argumentsToJson(args)]
    const lengths = writeOutcome(texts, result, outcome.error) as [number, number, number, number, number]
    return this.#verdict(wasm.stall_observe(this.handle, ...lengths, round, count('tokens', outcome.tokens ?? 0), Date.now()))
  }

  /** Takes what the model said without calling anything. */
  message(said: string, sessionId?: string): Verdict {
    if (typeof said !== 'string') throw new InvalidInputError('The message must be a text.')
    return this.#verdict(wasm.stall_message(this.handle, writeTwo(session(sessionId), said), secondLength, Date.now()))
  }

  /** A person has spoken: what was tried before says nothing about what comes. */
  userMessage(sessionId?: string): void {
    const status = wasm.stall_user_message(this.handle, writeTwo(session(sessionId), ''))
    if (status !== DONE) throw failure(status)
  }

  #verdict(status: number): Verdict {
    if (status === DONE) return GO_ON
    if (status === TRIPPED) return outputJson<Verdict>()
    throw failure(status)
  }
}

function session(id: string | undefined): string {
  return id === undefined || id === '' ? '' : text('sessionId', id)
}
