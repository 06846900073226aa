/** A model call of a run: what it may cost is set aside before it is sent, and settled with what it did cost. */
import { amount, count, text } from './core/input.js'
import { answerSize, resultToText } from './core/json.js'
import { CoreObject, secondLength, wasm, write, writeTwo } from './core/wasm.js'
import { counts, type Usage } from './prices.js'

export interface ModelCallOptions {
  /** The longest answer that is asked for, in tokens. */
  maxTokens?: number | undefined
}

/** What only adapters and hooked clients say. */
export interface BeginOptions extends ModelCallOptions {
  /** How many answers are asked for, as it stands there; `maxTokens` is the length of each. */
  choices?: unknown
  /** Whoever asks can ask another model instead. */
  mayFallBack?: boolean | undefined
}

/** How a call reaches its run: the number it has in the core, and who makes of a status what it means. */
export interface CallOwner {
  readonly runId: string
  readonly handle: number
  /** Of the calls that are under way. */
  readonly underWay: Set<CallProgress>
  heed(status: number): unknown
  /** Money was spent. */
  spent(): void
}

/** What is known of a call that is under way. It does not hold on to the call, so that one that was dropped can still be settled. */
export class CallProgress {
  /** An answer has begun, so the call costs something whatever becomes of it. */
  isAnswered = false
  /** What the provider has counted so far, and the model that answers. */
  usage: Usage | null = null
  model = ''
  /** Bytes of the answer that came. */
  bytes = 0
  /** Since when nobody has read on in an answer that is handed out piece by piece. */
  #restsSince: number | null = null
  #wasRead = false

  /** Somebody waits for the next piece of the answer. */
  isRead(): void {
    this.#restsSince = null
    this.#wasRead = true
  }

  /** The answer, or its next piece, was handed out. */
  rests(): void {
    this.isAnswered = true
    this.#restsSince = Date.now()
  }

  /** Whether nobody seems to read the answer, so that waiting for its end may be for ever. */
  get isLeftAlone(): boolean {
    if (this.#restsSince === null) return false
    return Date.now() - this.#restsSince > (this.#wasRead ? LONGEST_THOUGHT_MS : LONGEST_UNREAD_MS)
  }
}

/** What the core leaves of a call that begins. */
interface Begun {
  call: number
  model: string
  max_output: number | null
}

/** Whoever waits longer is told so, with the numbers. */
const PATIENCE_MS = 120_000
const FIRST_PAUSE_MS = 2
const LONGEST_PAUSE_MS = 250
/** Who reads a stream at all begins at once. */
const LONGEST_UNREAD_MS = 100
/** What a reader does with a piece before it asks for the next. */
const LONGEST_THOUGHT_MS = 5_000

/** A call that is under way. `used`, `estimated` or `release` ends it; what comes after changes nothing. */
export class ModelCall extends CoreObject {
  /** The longest answer that what is left pays for; null when the one that was asked for fits. Of several answers, each. */
  readonly maxTokens: number | null
  /** The model to ask: `fallbackModel` of the run once most is spent. */
  readonly model: string
  readonly #owner: CallOwner
  readonly #progress: CallProgress

  constructor(owner: CallOwner, begun: Begun) {
    const progress = new CallProgress()
    super(begun.call, (handle) => left(owner, handle, progress))
    owner.underWay.add(progress)
    this.#owner = owner
    this.#progress = progress
    this.model = begun.model
    this.maxTokens = begun.max_output
  }

  /** What the provider counted; `model` is the one that answered. Throws once the budget is exceeded. */
  async used(usage: Usage, model = ''): Promise<void> {
    const tokens = counts(usage)
    await this.#end((run, call) => wasm.run_finish_model(run, call, write(model), ...tokens))
  }

  /** The provider counted nothing: this came, or an answer of so many bytes. */
  async estimated(answer: unknown = ''): Promise<void> {
    const bytes = typeof answer === 'number' ? answer : answerSize(answer)
    await this.#end((run, call) => uncounted(this.#owner, run, call, bytes))
  }

  /** What a provider with prices of its own asks for. @internal */
  async paid(usd: number, tokens: number): Promise<void> {
    const cost = [amount('usd', usd), count('tokens', tokens)] as const
    await this.#end((run, call) => wasm.run_finish_paid(run, call, ...cost))
  }

  /** The call was not made, or costs nothing. */
  async release(): Promise<void> {
    await this.#end(wasm.run_drop_model)
  }

  /** How far it is, for those that hand out an answer piece by piece. @internal */
  get progress(): CallProgress {
    return this.#progress
  }

  /** The answer broke off: bills what came of it. @internal */
  async brokenOff(): Promise<void> {
    await this.#end((run, call) => broken(this.#owner, run, call, this.#progress))
  }

  async #end(finish: (run: number, call: number) => number): Promise<void> {
    if (!this.#owner.underWay.delete(this.#progress)) return
    const status = finish(this.#owner.handle, this.handle)
    // Its number may be another's from here on.
    this.free()
    try {
      await this.#owner.heed(status)
    } finally {
      this.#owner.spent()
    }
  }
}

/** Nobody will say what became of a call: it was dropped. What came of its answer is billed; without one it was not made. */
function left(owner: CallOwner, call: number, progress: CallProgress): void {
  if (!owner.underWay.delete(progress)) return
  const run = owner.handle
  const ended = async (): Promise<void> => {
    await owner.heed(progress.isAnswered ? broken(owner, run, call, progress) : wasm.run_drop_model(run, call))
  }
  // A trip is thrown by the run's next question.
  void ended()
    .catch(() => {})
    .finally(() => owner.spent())
}

function broken(owner: CallOwner, run: number, call: number, { usage, model, bytes }: CallProgress): number {
  if (usage === null) return uncounted(owner, run, call, bytes)
  return wasm.run_finish_broken_off(run, call, write(model), bytes, ...counts(usage))
}

function uncounted({ runId }: CallOwner, run: number, call: number, bytes: number): number {
  const before = wasm.run_estimated_calls(run)
  const status = wasm.run_finish_uncounted(run, call, bytes)
  if (before === 0 && wasm.run_estimated_calls(run) > 0)
    console.warn(`runguard: ${runId}: an answer came without its usage, so its cost is an estimate, by its size.`)
  return status
}

/** Begins a call, and waits while others hold what is left; but not for answers that nobody reads, which would be for ever. */
export async function beginModel(owner: CallOwner, model: string, prompt: unknown, options: BeginOptions): Promise<ModelCall> {
  const name = text('model', model)
  const longest = options.maxTokens === undefined ? -1 : count('maxTokens', options.maxTokens)
  // Of what is no number the provider says what is wrong with it.
  const choices = typeof options.choices === 'number' ? options.choices : 1
  const mayFallBack = Number(options.mayFallBack ?? false)
  const sent = resultToText(prompt)
  const began = Date.now()
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 1.5, LONGEST_PAUSE_MS)) {
    const hasWaited = Number(Date.now() - began > PATIENCE_MS || areLeftAlone(owner.underWay))
    const names = writeTwo(name, sent)
    const status = wasm.run_begin_model(owner.handle, names, secondLength, longest, choices, hasWaited, mayFallBack, Date.now())
    const begun = await owner.heed(status)
    if (begun !== false) return new ModelCall(owner, begun as Begun)
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

function areLeftAlone(calls: ReadonlySet<CallProgress>): boolean {
  for (const call of calls) if (!call.isLeftAlone) return false
  return calls.size > 0
}

/** The same for those who watch a model call that is not theirs: adapters and hooked clients. */
export const BEGIN = Symbol.for('@runguard/sdk.begin')
/** Whether a hooked client shall tell of its call. Throws when the run is over. */
export const HEARS_HOOKS = Symbol.for('@runguard/sdk.hears-hooks')
/** Counts a model call that somebody else makes, so that nothing can be set aside for it. */
export const COUNT_MODEL = Symbol.for('@runguard/sdk.count-model')
/** Stops the run for a loop that an adapter has found. */
export const STOP_LOOP = Symbol.for('@runguard/sdk.stop-loop')
export const INSTEAD = Symbol.for('@runguard/sdk.instead')
/** A hooked client has told this usage. */
export const NOTE_USAGE = Symbol.for('@runguard/sdk.note-usage')
/** The number of a run in the core. */
export const HANDLE = Symbol.for('@runguard/sdk.handle')
