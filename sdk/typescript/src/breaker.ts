/** A circuit breaker for something that fails: an API, a database, a model provider. */
import { Alerts, type AlertsLike } from './alerts.js'
import { amount, snakeCase, text } from './core/input.js'
import { argumentsToJson } from './core/json.js'
import { tripError } from './core/steps.js'
import { CoreObject, DONE, TRIPPED, failure, wasm, write } from './core/wasm.js'
import { RunGuardError, TripError } from './errors.js'
import { RemoteCircuitBreaker } from './remote.js'

export interface BreakerSettings {
  /** What it protects, for messages. Default `default`. */
  name?: string | undefined
  /** Failures in the window that open the circuit. Default 10. */
  failureThreshold?: number | undefined
  /** Default 60. */
  failureWindowSeconds?: number | undefined
  /** Share of failures among at least `minCalls` calls that opens it too; 0 is off. */
  failureRate?: number | undefined
  minCalls?: number | undefined
  /** A call that takes longer is slow; 0 is off. */
  slowCallMs?: number | undefined
  /** Share of slow calls that opens it too; 0 is off. */
  slowRate?: number | undefined
  /** How long it stays open before a call may test it. Default 45. */
  recoverySeconds?: number | undefined
  /** Factor for each time such a test fails, up to ten minutes. Default 1. */
  recoveryBackoff?: number | undefined
  /** Calls that may test it at the same time. Default 1. */
  probes?: number | undefined
  /** A test that has not reported by then is given to another call. Default 30. */
  probeTimeoutSeconds?: number | undefined
}

export interface BreakerOptions extends BreakerSettings {
  /** Where it is reported that the circuit has opened: with the first call that is refused, once until it has closed again. */
  alerts?: AlertsLike | undefined
}

export type BreakerState = 'closed' | 'open' | 'half_open'

/** The right to one call. Its result is told with it, so that a late one is not taken for a current one. */
export interface Permit {
  readonly number: number
}

export class CircuitBreaker extends CoreObject {
  readonly name: string
  readonly #alerts: Alerts | null
  #isReported = false

  constructor(settings: BreakerOptions | string = {}) {
    const { alerts, ...given }: BreakerOptions = typeof settings === 'string' ? { name: settings } : settings
    super(wasm.breaker_new(write(argumentsToJson(inCore(given)))), wasm.breaker_free)
    this.name = given.name ?? 'default'
    this.#alerts = Alerts.of(alerts)
  }

  /** The same with async methods, kept by a RunGuard service. */
  static remote(options: ConstructorParameters<typeof RemoteCircuitBreaker>[0]): RemoteCircuitBreaker {
    return new RemoteCircuitBreaker(options)
  }

  /** Runs `fn` unless the circuit is open: then throws CircuitOpenError without calling it. What `fn` throws, or its promise rejects with, counts as a failure, unless it is the trip of a guard inside of it. */
  call<Result>(fn: () => Result): Result {
    const permit = this.check()
    const begun = performance.now()
    const tell = (ok: boolean): void => this.#tell(permit.number, ok, performance.now() - begun)
    let result: Result
    try {
      result = fn()
    } catch (error) {
      if (saysSomething(error)) tell(false)
      throw error
    }
    if (!(result instanceof Promise)) {
      tell(true)
      return result
    }
    return result.then(
      (value: unknown) => {
        tell(true)
        return value
      },
      (error: unknown) => {
        if (saysSomething(error)) tell(false)
        throw error
      },
    ) as Result
  }

  /** A function that goes through this breaker. */
  wrap<Args extends unknown[], Result>(fn: (...args: Args) => Result): (...args: Args) => Result {
    return (...args) => this.call(() => fn(...args))
  }

  /** May a call run now? Throws CircuitOpenError when not. Tell the result with `record`. */
  check(): Permit {
    const number = wasm.breaker_check(this.handle, Date.now())
    if (number < 0) throw this.#refusal(-number)
    if (this.#isReported && this.state === 'closed') this.#isReported = false
    return { number }
  }

  /** How a call ended. Without its permit it counts as one that was admitted just now. */
  record(ok: boolean, options: { latencyMs?: number | undefined; permit?: Permit | undefined } = {}): void {
    const latency = options.latencyMs === undefined ? -1 : amount('latencyMs', options.latencyMs)
    this.#tell(options.permit?.number ?? 0, ok, latency)
  }

  get state(): BreakerState {
    const phase = wasm.breaker_phase(this.handle, Date.now())
    if (phase < 0) throw failure(phase)
    return phase === 0 ? 'closed' : phase === 1 ? 'open' : 'half_open'
  }

  /** Refuses everything until `reset`. */
  forceOpen(): void {
    this.#control(0)
  }

  /** Lets everything pass until `reset`. */
  forceClose(): void {
    this.#control(1)
  }

  /** Closed and automatic, with nothing remembered. */
  reset(): void {
    this.#control(2)
  }

  #tell(permit: number, ok: boolean, latencyMs: number): void {
    const status = wasm.breaker_record(this.handle, permit, ok ? 1 : 0, latencyMs, Date.now())
    if (status !== DONE) throw failure(status)
  }

  #control(control: number): void {
    const status = wasm.breaker_control(this.handle, control, Date.now())
    if (status !== DONE) throw failure(status)
  }

  #refusal(status: number): RunGuardError {
    if (status !== TRIPPED) return failure(status)
    const trip = tripError()
    // Every caller is refused; people are told once.
    if (!this.#isReported) this.#alerts?.send(trip)
    this.#isReported = true
    return trip
  }
}

/** Whether an error tells of the endpoint: a guard inside of the call that stopped it does not. */
export function saysSomething(error: unknown): boolean {
  return !(error instanceof TripError)
}

/** The settings under the core's names. What is left out keeps its default. */
function inCore(settings: BreakerSettings): Record<string, unknown> {
  const { name, failureWindowSeconds, recoverySeconds, probeTimeoutSeconds, ...shares } = settings
  const numbers = snakeCase({
    ...shares,
    failureWindow: failureWindowSeconds,
    recovery: recoverySeconds,
    probeTimeout: probeTimeoutSeconds,
  })
  for (const [key, value] of Object.entries(numbers)) amount(key, value)
  return { ...numbers, ...(name === undefined ? {} : { name: text('name', name) }) }
}
