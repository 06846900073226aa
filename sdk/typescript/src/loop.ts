/** Notices that a run goes round in a circle. */
import { Alerts, reported, type AlertsLike } from './alerts.js'
import { LoopDetectedError } from './errors.js'
import { tripError } from './core/steps.js'
import { CoreObject, DONE, TRIPPED, failure, secondLength, wasm, writeTwo } from './core/wasm.js'
import { LONGEST_NAME, known, numberOrNone, text } from './core/input.js'
import { RemoteLoopDetector } from './remote.js'

export interface LoopSettings {
  /** Copies of a pattern that make a loop. Default 3: the third equal call in a row trips. */
  repeats?: number | undefined
  /** Longest pattern looked for. Default 4. */
  maxCycleLen?: number | undefined
  /** Events older than this do not count. */
  windowSeconds?: number | null | undefined
  /** Calls of one key within the window, whatever their order. */
  maxCalls?: number | null | undefined
}

export interface LoopOptions extends LoopSettings {
  /** Where each loop that is thrown is reported. */
  alerts?: AlertsLike | undefined
}

/** A call of a session, by the name of its tool. */
export interface LoopEvent {
  sessionId: string
  tool: string
}

const CALL = 'The name of the call'

/** Finds loops in any number of sessions, in constant time and memory a session. */
export class LoopDetector extends CoreObject {
  /** Whether time matters to this detector; asking the clock costs as much as the rest of a call. */
  readonly #timed: boolean
  readonly #alerts: Alerts | null

  constructor(settings: LoopOptions = {}) {
    known('LoopDetector', settings, ['repeats', 'maxCycleLen', 'windowSeconds', 'maxCalls', 'alerts'])
    super(
      wasm.loop_new(
        numberOrNone('repeats', settings.repeats),
        numberOrNone('maxCycleLen', settings.maxCycleLen),
        numberOrNone('windowSeconds', settings.windowSeconds),
        numberOrNone('maxCalls', settings.maxCalls),
      ),
      wasm.loop_free,
    )
    this.#alerts = Alerts.of(settings.alerts)
    this.#timed = (settings.windowSeconds ?? settings.maxCalls ?? null) !== null
  }

  /** The same with async methods, kept by a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteLoopDetector>[0]): RemoteLoopDetector {
    return new RemoteLoopDetector(options)
  }

  /**
   * Takes a call: `record(signature)`, `record({ sessionId, tool })` or `record(sessionId, key)`.
   * Throws LoopDetectedError when the newest calls are a loop.
   */
  record(signature: string): void
  record(event: LoopEvent): void
  record(sessionId: string, key: string): void
  record(first: string | LoopEvent, key?: string): void {
    const status = this.#ask(wasm.loop_record, first, key)
    if (status === DONE) return
    throw reported(this.#alerts, this.#error(status))
  }

  /** Asks without recording: the error the next such call would throw, or null. */
  check(signature: string): LoopDetectedError | null
  check(event: LoopEvent): LoopDetectedError | null
  check(sessionId: string, key: string): LoopDetectedError | null
  check(first: string | LoopEvent, key?: string): LoopDetectedError | null {
    const status = this.#ask(wasm.loop_check, first, key)
    if (status === DONE) return null
    const error = this.#error(status)
    if (error instanceof LoopDetectedError) return error
    throw error
  }

  /** Forgets the calls of one session, or of all. */
  reset(sessionId?: string): void {
    const status =
      sessionId === undefined ? wasm.loop_reset_all(this.handle) : wasm.loop_reset(this.handle, writeTwo(named('sessionId', sessionId), ''))
    if (status !== DONE) throw failure(status)
  }

  /** Sessions with a name that are remembered. */
  get sessions(): number {
    const sessions = wasm.loop_sessions(this.handle)
    if (sessions < 0) throw failure(sessions)
    return sessions
  }

  #ask(operation: typeof wasm.loop_record, first: string | LoopEvent, key: string | undefined): number {
    let session = ''
    let name: string
    if (typeof first !== 'string') {
      session = named('sessionId', first?.sessionId)
      name = named(CALL, first.tool)
    } else if (key === undefined) {
      name = named(CALL, first)
    } else {
      session = named('sessionId', first)
      name = named(CALL, key)
    }
    const now = this.#timed || session !== '' ? Date.now() : 0
    return operation(this.handle, writeTwo(session, name), secondLength, now)
  }

  #error(status: number): Error {
    return status === TRIPPED ? tripError() : failure(status)
  }
}

function named(what: string, value: unknown): string {
  // The common case first: this is the hot path.
  return typeof value === 'string' && value !== '' && value.length <= LONGEST_NAME ? value : text(what, value)
}
