/**
 * The Rust core, compiled to WebAssembly and carried in the package as text, so that no bundler needs to know of it.
 *
 * Texts go through one buffer in the module's memory: written by hand when short and ASCII, which is faster than
 * calling TextEncoder, and by TextEncoder otherwise.
 */
import { InvalidInputError, RunGuardError } from '../errors.js'
import { WASM_BASE64 } from './wasm-bytes.js'

/** Tokens that are read, written, read from a cache, written to one for the usual time and for an hour, heard, spoken; and the service tier. */
export type Counts = [number, number, number, number, number, number, number, number]

/**
 * The lengths of its name, of the rules of its tools and of the name of its fallback model; ceilings of tool calls, model calls and seconds, and
 * the thousandths it is warned at, below 0 where there is none; the numbers of its loop detector, its stall detector and its budget.
 */
export type RunSettings = [number, number, number, number, number, number, number, number, number, number]

interface Exports {
  memory: WebAssembly.Memory
  input(length: number): number
  reserve(bytes: number): void
  output_pointer(): number
  output_length(): number
  similarity(left: number, right: number, autojunk: number): number
  fingerprint(json: number, ignored: number): number
  trip_facts(error: number): number
  trip_to_slack(facts: number, source: number): number
  trip_to_pagerduty(facts: number, source: number, routingKey: number): number
  loop_new(repeats: number, maxCycleLen: number, windowSeconds: number, maxCalls: number): number
  loop_free(handle: number): void
  loop_record(handle: number, session: number, name: number, now: number): number
  loop_check(handle: number, session: number, name: number, now: number): number
  loop_reset(handle: number, session: number): number
  loop_reset_all(handle: number): number
  loop_sessions(handle: number): number
  budget_new(maxUsd: number, maxTokens: number, cap: number): number
  budget_child(handle: number, maxUsd: number, maxTokens: number, cap: number): number
  budget_free(handle: number): void
  budget_record(handle: number, usd: number, tokens: number): number
  budget_exhausted(handle: number): number
  budget_count(handle: number, session: number, step: number): number
  budget_count_any(handle: number): number
  budget_calls_left(handle: number, session: number, step: number): number
  budget_reserve(handle: number, usd: number, tokens: number): number
  budget_commit(handle: number, id: number, usd: number, tokens: number): number
  budget_release(handle: number, id: number): number
  budget_books(handle: number): number
  tools_new(changes: number): number
  tools_free(handle: number): void
  tools_should_skip(handle: number, tool: number, args: number): number
  tools_record(handle: number, tool: number, args: number, failed: number): number
  tools_new_turn(handle: number): number
  recipe_new(): number
  recipe_free(handle: number): void
  recipe_get(handle: number, step: number, action: number, args: number): number
  recipe_put(handle: number, step: number, action: number, args: number, result: number): number
  recipe_clear(handle: number): number
  budget_record_usage(handle: number, model: number, ...counts: Counts): number
  cost_usd(model: number, ...counts: Counts): number
  prices_set(models: number): number
  answer_size(answer: number): number
  may_be_billed(names: number): number
  unmetered(path: number): number
  asked_of_model(path: number, model: number, body: number): number
  run_limits_dollars(handle: number): number
  usage_read(provider: number, report: number): number
  usage_merge(earlier: number, later: number): number
  prices_unknown(choice: number): number
  breaker_new(settings: number): number
  breaker_free(handle: number): void
  breaker_check(handle: number, now: number): number
  breaker_record(handle: number, permit: number, ok: number, latencyMs: number, now: number): number
  breaker_phase(handle: number, now: number): number
  breaker_control(handle: number, control: number, now: number): number
  stall_new(preset: number, changes: number): number
  stall_free(handle: number): void
  stall_observe(
    handle: number,
    session: number,
    tool: number,
    args: number,
    result: number,
    error: number,
    round: number,
    tokens: number,
    now: number,
  ): number
  stall_message(handle: number, session: number, text: number, now: number): number
  stall_user_message(handle: number, session: number): number
  run_new(...settings: RunSettings): number
  run_over_service(...settings: RunSettings): number
  run_free(handle: number): void
  run_before_tool(handle: number, tool: number, args: number, now: number): number
  run_before_tool_of(handle: number, agent: number, tool: number, args: number, now: number): number
  run_after_tool(handle: number, agent: number, tool: number, args: number, result: number, error: number, now: number): number
  run_before_model(handle: number, now: number): number
  run_begin_model(
    handle: number,
    model: number,
    prompt: number,
    maxOutput: number,
    choices: number,
    hasWaited: number,
    mayFallBack: number,
    now: number,
  ): number
  run_finish_model(handle: number, call: number, model: number, ...counts: Counts): number
  run_finish_broken_off(handle: number, call: number, model: number, bytes: number, ...counts: Counts): number
  run_finish_paid(handle: number, call: number, usd: number, tokens: number): number
  run_finish_uncounted(handle: number, call: number, bytes: number): number
  run_drop_model(handle: number, call: number): number
  run_estimated_calls(handle: number): number
  run_take_warning(handle: number): number
  rest_new(): number
  rest_lasts(handle: number, now: number): number
  rest_told(handle: number, answered: number, now: number): void
  run_record(handle: number, usd: number, tokens: number): number
  run_record_usage(handle: number, model: number, ...counts: Counts): number
  run_stop_loop(handle: number, cycle: number, message: number, repeats: number): number
  run_tell_repeat(handle: number, tool: number): number
  run_trip(handle: number): number
  run_new_turn(handle: number): number
  run_reset(handle: number): number
  reservation_ended(): void
  question_dropped(question: number): void
  question_told(question: number, answer: number): number
  reply_read(path: number, body: number, status: number): number
  service_loop_new(repeats: number, maxCycleLen: number, windowSeconds: number, maxCalls: number, failOpen: number): number
  service_loop_free(handle: number): void
  service_loop_record(handle: number, session: number, name: number): number
  service_loop_check(handle: number, session: number, name: number): number
  service_loop_reset(handle: number, session: number): void
  service_stall_new(failOpen: number): number
  service_stall_free(handle: number): void
  service_stall_observe(handle: number, session: number, tool: number, args: number, result: number, error: number, round: number, tokens: number): number
  service_stall_message(handle: number, session: number, text: number): number
  service_stall_user_message(handle: number, session: number): number
  service_budget_new(session: number, scopes: number, maxUsd: number, maxTokens: number, cap: number, failOpen: number): number
  service_budget_child(handle: number, session: number, scopes: number, maxUsd: number, maxTokens: number, cap: number): number
  service_budget_free(handle: number): void
  service_budget_session(handle: number): void
  service_budget_record(handle: number, usd: number, tokens: number): number
  service_budget_count(handle: number, session: number, step: number): number
  service_budget_count_any(handle: number): number
  service_budget_record_usage(handle: number, model: number, ...counts: Counts): number
  service_budget_reserve(handle: number, usd: number, tokens: number): number
  service_budget_commit(handle: number, reservation: number, usd: number, tokens: number): number
  service_budget_release(handle: number, reservation: number): number
  service_budget_books(handle: number): number
  service_budget_calls_left(handle: number, session: number, step: number): number
  service_budget_exhausted(handle: number): number
  service_circuit_new(name: number, failOpen: number): number
  service_circuit_free(handle: number): void
  service_circuit_name(handle: number): void
  service_circuit_check(handle: number, session: number): number
  service_circuit_record(handle: number, session: number, permit: number, ok: number, latencyMs: number): number
  service_tools_new(failOpen: number): number
  service_tools_free(handle: number): void
  service_tools_should_skip(handle: number, turn: number, tool: number, args: number): number
  service_tools_record(handle: number, turn: number, tool: number, args: number, failed: number): number
  bedrock_turn_new(run: number, attempts: number): number
  bedrock_turn_free(handle: number): void
  bedrock_turn_hear(handle: number, event: number): number
  bedrock_preset(name: number, given: number, attempts: number): number
  action_call(action: number): number
  history_begin(calls: number, action: number, signature: number): number
  history_finish(calls: number, signature: number, failed: number): number
  reply_failed(given: number): number
}

function load(): Exports {
  const text = atob(WASM_BASE64)
  const code = new Uint8Array(text.length)
  for (let position = 0; position < text.length; position++) code[position] = text.charCodeAt(position)
  return new WebAssembly.Instance(new WebAssembly.Module(code)).exports as unknown as Exports
}

export const wasm = load()

/** The operation did what it was asked for. */
export const DONE = 0
/** A guard said stop; the output says why. */
export const TRIPPED = 1
/** The input was refused and nothing changed; the output says why. */
export const REFUSED = 2
/** There is no price for the model, and nothing changed; the output says so. */
export const UNKNOWN_MODEL = 4
/** It may go on; the output is what it gave. */
export const TOLD = 5
/** A service has to be asked; the output is the question. */
export const ASK = 6
/** Nobody answered, and then nothing passes. */
export const UNANSWERED = 7
/** A guard refused this once; the output says why. */
export const NOT_NOW = 8
export const BUSY = 10

const ROOM = 64 * 1024
const SHORT = 64
/** Bytes of a fingerprint, which is ASCII: calling TextDecoder for it would take longer than making it. */
const FINGERPRINT = 16
const encoder = new TextEncoder()
const decoder = new TextDecoder()
let memory = new Uint8Array(wasm.memory.buffer)
let input = wasm.input(ROOM)
let room = ROOM

/** Makes sure that `units` UTF-16 units fit, whatever they are. */
function makeRoom(units: number): void {
  const bytes = units * 3
  if (bytes > room || (room > ROOM && bytes <= ROOM)) {
    room = Math.max(bytes, ROOM)
    input = wasm.input(room)
  }
  if (memory.length === 0) regrown()
}

/** Memory that grew is another buffer; the old view is empty then. It grows by a part of itself, so that this is rare. */
function regrown(): void {
  wasm.reserve(wasm.memory.buffer.byteLength >> 2)
  memory = new Uint8Array(wasm.memory.buffer)
}

function put(text: string, at: number): number {
  const length = text.length
  if (length <= SHORT) {
    let position = 0
    for (; position < length; position++) {
      const unit = text.charCodeAt(position)
      if (unit > 127) break
      memory[at + position] = unit
    }
    if (position === length) return length
  }
  return encoder.encodeInto(text, memory.subarray(at, input + room)).written
}

/** Writes one text; returns its length in bytes. */
export function write(text: string): number {
  makeRoom(text.length)
  return put(text, input)
}

/** Length of the second text that `writeTwo` wrote. */
export let secondLength = 0

/** Writes two texts one after the other; returns the length of the first, and leaves that of the second aside. */
export function writeTwo(first: string, second: string): number {
  makeRoom(first.length + second.length)
  const length = put(first, input)
  secondLength = put(second, input + length)
  return length
}

/** Writes any number of texts; returns their lengths. */
export function writeAll(texts: readonly string[]): number[] {
  makeRoom(texts.reduce((units, text) => units + text.length, 0))
  let at = input
  return texts.map((text) => {
    const length = put(text, at)
    at += length
    return length
  })
}

function ascii(at: number, length: number): string {
  let text = ''
  for (let position = at; position < at + length; position++) text += String.fromCharCode(memory[position] as number)
  return text
}

/** What the last operation left. */
export function output(): string {
  if (memory.length === 0) regrown()
  const at = wasm.output_pointer()
  const length = wasm.output_length()
  if (length === FINGERPRINT) return ascii(at, length)
  return decoder.decode(memory.subarray(at, at + length))
}

export function outputJson<T>(): T {
  return JSON.parse(output()) as T
}

/** The error for a status that is neither done nor tripped. */
export function failure(status: number): RunGuardError {
  if (status === REFUSED) return new InvalidInputError(output())
  return new RunGuardError('This object was freed. Make a new one, or free it later.')
}

const registry = new FinalizationRegistry<() => void>((free) => free())

/** Runs `cleanUp`, which must not hold on to the object, when the object was collected. */
export function onCollected(object: object, cleanUp: () => void): void {
  registry.register(object, cleanUp)
}

/** An object that lives in the core. Freed when it is collected, or at once with `free()` or `using`. */
export abstract class CoreObject {
  /** Number of the object in the core; 0 when it was freed. */
  protected handle: number
  readonly #free: (handle: number) => void

  protected constructor(handle: number, free: (handle: number) => void) {
    if (handle === 0) throw failure(REFUSED)
    if (memory.length === 0) regrown()
    this.handle = handle
    this.#free = free
    registry.register(this, () => free(handle), this)
  }

  /** The number of an object that may be missing: 0 for none. */
  static handleOf(object: CoreObject | null): number {
    return object === null ? 0 : object.handle
  }

  /** Gives the memory back. Any later use throws. */
  free(): void {
    if (this.handle === 0) return
    registry.unregister(this)
    this.#free(this.handle)
    this.handle = 0
  }

  [Symbol.dispose](): void {
    this.free()
  }
}
