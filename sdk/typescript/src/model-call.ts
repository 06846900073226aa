/** A model call of a run: what it may cost is set aside before it is sent, and settled with what it did cost. */
import { count, text } from './core/input.js'
import { resultToText } from './core/json.js'
import { CoreObject, secondLength, wasm, write, writeTwo } from './core/wasm.js'
import { counts, type Usage } from './prices.js'

export interface ModelCallOptions {
  /** The longest answer that is asked for, in tokens. */
  maxTokens?: number | undefined
}

/** How a call reaches its run: the number it has in the core, and who makes of a status what it means. */
export interface CallKeeper {
  readonly runId: string
  readonly handle: number
  heed(status: number): unknown
}

/** What the core leaves of a call that begins. */
interface Begun {
  call: number
  max_output: number | null
}

const LONGEST_NAME = 65_536
/** Whoever waits longer is told so, with the numbers. */
const PATIENCE_MS = 120_000
const FIRST_PAUSE_MS = 2
const LONGEST_PAUSE_MS = 250

/** A call that is under way. `used`, `estimated` or `release` ends it; what comes after changes nothing. */
export class ModelCall extends CoreObject {
  /** The longest answer that what is left pays for; null when the one that was asked for fits. */
  readonly maxTokens: number | null
  readonly model: string
  readonly #keeper: CallKeeper

  constructor(keeper: CallKeeper, model: string, begun: Begun) {
    super(begun.call, wasm.model_call_free)
    this.#keeper = keeper
    this.model = model
    this.maxTokens = begun.max_output
  }

  /** What the provider counted; `model` is the one that answered. Throws once the budget is exceeded. */
  async used(usage: Usage, model = ''): Promise<void> {
    const tokens = counts(usage)
    const { handle } = this.#keeper
    await this.#end(wasm.run_finish_model(handle, this.handle, write(model), ...tokens))
  }

  /** The provider counted nothing: an answer of so many bytes came. */
  async estimated(bytes: number): Promise<void> {
    const { handle, runId } = this.#keeper
    const before = wasm.run_estimated_calls(handle)
    const status = wasm.run_finish_uncounted(handle, this.handle, bytes)
    if (before === 0 && wasm.run_estimated_calls(handle) > 0)
      console.warn(`runguard: ${runId}: an answer came without its usage, so its cost is an estimate, by its size.`)
    await this.#end(status)
  }

  /** The call was not made, or costs nothing. */
  async release(): Promise<void> {
    await this.#end(wasm.run_drop_model(this.#keeper.handle, this.handle))
  }

  async #end(status: number): Promise<void> {
    // Its number may be another's from here on.
    this.free()
    await this.#keeper.heed(status)
  }
}

/** Begins a call, and waits while others hold what is left. */
export async function beginModel(keeper: CallKeeper, model: string, prompt: unknown, { maxTokens }: ModelCallOptions): Promise<ModelCall> {
  const name = text('model', model, LONGEST_NAME)
  const longest = maxTokens === undefined ? -1 : count('maxTokens', maxTokens)
  const sent = resultToText(prompt)
  const began = Date.now()
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 1.5, LONGEST_PAUSE_MS)) {
    const hasWaited = Date.now() - began > PATIENCE_MS ? 1 : 0
    const status = wasm.run_begin_model(keeper.handle, writeTwo(name, sent), secondLength, longest, hasWaited, Date.now())
    const begun = await keeper.heed(status)
    if (begun !== false) return new ModelCall(keeper, model, begun as Begun)
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

/** The same for those who watch a model call that is not theirs: adapters and hooked clients. */
export const BEGIN = Symbol.for('@runguard/sdk.begin')
/** Whether a hooked client shall tell of its call. Throws when the run is over. */
export const HEARS_HOOKS = Symbol.for('@runguard/sdk.hears-hooks')
/** A hooked client has told this usage. */
export const NOTE_USAGE = Symbol.for('@runguard/sdk.note-usage')
