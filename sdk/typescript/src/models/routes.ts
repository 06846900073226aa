/** How the APIs of model services write requests, answers and streams: what of it concerns a run. */
import type { Usage } from '../prices.js'

type Json = any

/** A call the model asked for. */
export interface ToolCall {
  readonly id: string
  readonly tool: string
  readonly args: unknown
}

/** What the caller sends back for a call. */
export interface ToolResult {
  readonly result?: unknown
  readonly error?: unknown
}

/** The part of a request that matters here. */
export interface Transcript {
  /** Of this turn, in order. */
  readonly calls: readonly ToolCall[]
  /** Every result, by the id of its call. */
  readonly results: ReadonlyMap<string, ToolResult>
  /** The ids of the results that the request ends with. */
  readonly last: readonly string[]
}

/** Puts one streamed answer together. */
export interface Reader {
  readonly model: string
  readonly usage: Usage | null
  /** The usage is that of the whole answer. */
  readonly isCounted: boolean
  /** The calls that an event completes. */
  take(event: Json): ToolCall[]
  /** The part of the answer that is in an event. */
  came(event: Json): unknown
  /** Whether the event came only because it was asked for here. */
  hides(event: Json): boolean
}

/** How one API path writes calls, results and usage. */
export interface Route {
  transcript(body: Json): Transcript
  /** The body with each nudge behind the result of its call. */
  withNudges(body: Json, nudges: ReadonlyMap<string, string>): Json
  calls(answer: Json): ToolCall[]
  usage(answer: Json): Usage | null
  /** What the model has written. */
  came(answer: Json): unknown
  /** The longest answer that is asked for, all of its alternatives together. */
  maxOutput(body: Json): number | undefined
  /** The body, asking for no longer answer than this. */
  shortened(body: Json, maxOutput: number): Json
  prepareStream(body: Json): Json
  reader(body: Json): Reader
}

const list = (value: unknown): Json[] => (Array.isArray(value) ? value : [])

/** Arguments as an object where the model wrote JSON. Broken JSON stays text: a model that repeats it loops all the same. */
export function parseArguments(text: unknown): unknown {
  if (typeof text !== 'string') return text
  if (text === '') return {}
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** From services that count cached and cache-written tokens inside the input: prices want every token once. */
export function usageOfTotal(total: unknown, output: unknown, cached: unknown, cacheWrite: unknown): Usage {
  const [cachedTokens, cacheWriteTokens] = [number(cached), number(cacheWrite)]
  return {
    inputTokens: Math.max(0, number(total) - cachedTokens - cacheWriteTokens),
    outputTokens: number(output),
    cachedTokens,
    cacheWriteTokens,
  }
}

function number(value: unknown): number {
  return Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : 0
}

function appended(content: unknown, nudge: string, partType: string): unknown {
  if (Array.isArray(content)) return [...content, { type: partType, text: nudge }]
  return typeof content === 'string' && content !== '' ? `${content}\n\n${nudge}` : nudge
}

const chat: Route = {
  transcript({ messages }) {
    const calls: ToolCall[] = []
    const results = new Map<string, ToolResult>()
    let last: string[] = []
    for (const message of list(messages)) {
      if (message?.role === 'user') calls.length = 0
      if (message?.role === 'assistant') calls.push(...chatCalls(message))
      if (message?.role !== 'tool') {
        last = []
        continue
      }
      results.set(String(message.tool_call_id), { result: message.content })
      last.push(String(message.tool_call_id))
    }
    return { calls, results, last }
  },
  withNudges(body, nudges) {
    const messages = list(body.messages).map((message) => {
      const nudge = message?.role === 'tool' ? nudges.get(message.tool_call_id) : undefined
      return nudge === undefined ? message : { ...message, content: appended(message.content, nudge, 'text') }
    })
    return { ...body, messages }
  },
  calls: (answer) => list(answer.choices).flatMap((choice) => chatCalls(choice.message)),
  usage: (answer) => chatUsage(answer.usage, answer.service_tier),
  came: (answer) => answer.choices,
  maxOutput(body) {
    const longest = body.max_completion_tokens ?? body.max_tokens
    return number(longest) > 0 ? longest * (number(body.n) || 1) : undefined
  },
  shortened(body, maxOutput) {
    // Models that think refuse the older name, and servers that only speak like OpenAI may not know the newer one.
    const isOpenAI = /(^|\/)(gpt-|chatgpt-|o1|o3|o4)[^/]*$/.test(String(body.model))
    const given = ['max_completion_tokens', 'max_tokens'].find((name) => body[name])
    return {
      ...body,
      [given ?? (isOpenAI ? 'max_completion_tokens' : 'max_tokens')]: Math.max(1, Math.floor(maxOutput / (number(body.n) || 1))),
    }
  },
  // Without this a streamed chat completion reports no usage at all.
  prepareStream: (body) => ({ ...body, stream_options: { ...body.stream_options, include_usage: true } }),
  reader: (body) => new ChatReader(Boolean(body.stream_options?.include_usage)),
}

function chatCalls(message: Json): ToolCall[] {
  return list(message?.tool_calls).flatMap((call): ToolCall[] => {
    const id = String(call?.id ?? '')
    if (call?.function) return [{ id, tool: String(call.function.name ?? ''), args: parseArguments(call.function.arguments ?? '') }]
    return call?.custom ? [{ id, tool: String(call.custom.name ?? ''), args: call.custom.input }] : []
  })
}

function chatUsage(usage: Json, serviceTier: unknown): Usage | null {
  if (!usage) return null
  const details = usage.prompt_tokens_details
  const [heard, spoken] = [number(details?.audio_tokens), number(usage.completion_tokens_details?.audio_tokens)]
  const written = Math.max(0, number(usage.completion_tokens) - spoken)
  const read = number(usage.prompt_tokens) - heard
  const told = usageOfTotal(read, written, details?.cached_tokens, details?.cache_write_tokens)
  return { ...told, audioInputTokens: heard, audioOutputTokens: spoken, serviceTier: tierOf(serviceTier) }
}

function tierOf(told: unknown): string | undefined {
  return typeof told === 'string' ? told : undefined
}

class ChatReader implements Reader {
  model = ''
  usage: Usage | null = null
  isCounted = false
  #serviceTier: unknown
  readonly #usageWasAskedFor: boolean
  readonly #parts = new Map<string, { id: string; name: string; arguments: string; choice: unknown }>()

  constructor(usageWasAskedFor: boolean) {
    this.#usageWasAskedFor = usageWasAskedFor
  }

  take(event: Json): ToolCall[] {
    this.model = event.model || this.model
    this.#serviceTier = event.service_tier ?? this.#serviceTier
    if (event.usage) {
      this.usage = chatUsage(event.usage, this.#serviceTier)
      this.isCounted = true
    }
    const finished: ToolCall[] = []
    for (const choice of list(event.choices)) {
      for (const delta of list(choice.delta?.tool_calls)) {
        const key = `${choice.index} ${delta.index}`
        const part = this.#parts.get(key) ?? { id: '', name: '', arguments: '', choice: choice.index }
        this.#parts.set(key, part)
        part.id = delta.id || part.id
        part.name += delta.function?.name ?? ''
        part.arguments += delta.function?.arguments ?? ''
      }
      if (choice.finish_reason === null || choice.finish_reason === undefined) continue
      for (const [key, part] of this.#parts) {
        if (part.choice !== choice.index) continue
        this.#parts.delete(key)
        finished.push({ id: part.id, tool: part.name, args: parseArguments(part.arguments) })
      }
    }
    return finished
  }

  came(event: Json): unknown {
    return list(event.choices).map((choice) => choice.delta)
  }

  hides(event: Json): boolean {
    return !this.#usageWasAskedFor && Boolean(event.usage) && list(event.choices).length === 0
  }
}

const responses: Route = {
  transcript({ input }) {
    const calls: ToolCall[] = []
    const results = new Map<string, ToolResult>()
    let last: string[] = []
    for (const item of list(input)) {
      const isResult = /_call_output$/.test(String(item?.type))
      if (item?.role === 'user') calls.length = 0
      else if (!isResult) calls.push(...responseCalls(item))
      if (!isResult) {
        last = []
        continue
      }
      results.set(String(item.call_id), { result: item.output })
      last.push(String(item.call_id))
    }
    return { calls, results, last }
  },
  withNudges(body, nudges) {
    const input = list(body.input).map((item) => {
      const nudge = /_call_output$/.test(String(item?.type)) ? nudges.get(item.call_id) : undefined
      return nudge === undefined ? item : { ...item, output: appended(item.output, nudge, 'input_text') }
    })
    return { ...body, input }
  },
  calls: (answer) => list(answer.output).flatMap(responseCalls),
  usage: responseUsage,
  came: (answer) => answer.output,
  maxOutput: (body) => number(body.max_output_tokens) || undefined,
  // The API takes no fewer.
  shortened: (body, maxOutput) => ({ ...body, max_output_tokens: Math.max(maxOutput, 16) }),
  prepareStream: (body) => body,
  reader: () => new ResponsesReader(),
}

function responseCalls(item: Json): ToolCall[] {
  const id = String(item?.call_id ?? '')
  if (item?.type === 'function_call') return [{ id, tool: String(item.name ?? ''), args: parseArguments(item.arguments ?? '') }]
  return item?.type === 'custom_tool_call' ? [{ id, tool: String(item.name ?? ''), args: item.input }] : []
}

function responseUsage({ usage, service_tier }: Json): Usage | null {
  if (!usage) return null
  const details = usage.input_tokens_details
  const told = usageOfTotal(usage.input_tokens, usage.output_tokens, details?.cached_tokens, details?.cache_write_tokens)
  return { ...told, serviceTier: tierOf(service_tier) }
}

class ResponsesReader implements Reader {
  model = ''
  usage: Usage | null = null
  isCounted = false

  take(event: Json): ToolCall[] {
    // `completed`, `incomplete` and `failed` bring the whole response, and with it the usage.
    if (event.response) {
      this.model = event.response.model || this.model
      this.usage = responseUsage(event.response) ?? this.usage
      this.isCounted = this.usage !== null
    }
    return event.type === 'response.output_item.done' ? responseCalls(event.item) : []
  }

  came(event: Json): unknown {
    return event.delta
  }

  hides(): boolean {
    return false
  }
}

/** They have no tools, and nothing is written. */
const embeddings: Route = {
  transcript: () => ({ calls: [], results: new Map(), last: [] }),
  withNudges: (body) => body,
  calls: () => [],
  usage: (answer) => (answer.usage ? { inputTokens: number(answer.usage.prompt_tokens) } : null),
  came: () => '',
  maxOutput: () => 0,
  shortened: (body) => body,
  prepareStream: (body) => body,
  reader: () => new ResponsesReader(),
}

const messages: Route = {
  transcript(body) {
    const calls: ToolCall[] = []
    const results = new Map<string, ToolResult>()
    let last: string[] = []
    for (const message of list(body.messages)) {
      const blocks = list(message?.content)
      last = []
      if (message?.role === 'assistant') {
        calls.push(...blocks.flatMap(messageCall))
        continue
      }
      const answers = blocks.filter((block) => block?.type === 'tool_result')
      // Tool results come in the user's name; a message without any is the user's own.
      if (answers.length === 0) calls.length = 0
      for (const block of answers) {
        const id = String(block.tool_use_id)
        results.set(id, block.is_error ? { error: block.content ?? 'error' } : { result: block.content })
        last.push(id)
      }
    }
    return { calls, results, last }
  },
  withNudges(body, nudges) {
    const nudged = (block: Json): Json => {
      const nudge = block?.type === 'tool_result' ? nudges.get(block.tool_use_id) : undefined
      return nudge === undefined ? block : { ...block, content: appended(block.content, nudge, 'text') }
    }
    const written = list(body.messages).map((message) =>
      Array.isArray(message?.content) ? { ...message, content: message.content.map(nudged) } : message,
    )
    return { ...body, messages: written }
  },
  calls: (answer) => list(answer.content).flatMap(messageCall),
  usage: (answer) => (answer.usage ? messageUsage({}, answer.usage) : null),
  came: (answer) => answer.content,
  maxOutput: (body) => number(body.max_tokens) || undefined,
  shortened(body, maxOutput) {
    const budget = body.thinking?.budget_tokens
    if (typeof budget !== 'number' || budget < maxOutput) return { ...body, max_tokens: maxOutput }
    // Thinking has a part of the answer, of at least 1,024 tokens; the API refuses one that is not longer.
    const { thinking, ...rest } = body
    if (maxOutput <= 1024) return { ...rest, max_tokens: maxOutput }
    return { ...rest, max_tokens: maxOutput, thinking: { ...thinking, budget_tokens: Math.max(1024, Math.floor(maxOutput / 2)) } }
  },
  prepareStream: (body) => body,
  reader: () => new MessagesReader(),
}

function messageCall(block: Json): ToolCall[] {
  return block?.type === 'tool_use' ? [{ id: String(block.id ?? ''), tool: String(block.name ?? ''), args: block.input }] : []
}

/** Later reports replace earlier ones: the counts of a stream are totals so far. */
function messageUsage(before: Usage, told: Json): Usage {
  // Only the first report of a stream tells them apart; the others repeat the sum.
  const forAnHour = number(told.cache_creation?.ephemeral_1h_input_tokens) || (before.cacheWrite1hTokens ?? 0)
  const written = told.cache_creation_input_tokens
  const latest = (value: unknown, earlier: number | undefined): number => (typeof value === 'number' ? number(value) : (earlier ?? 0))
  return {
    // Anthropic's input leaves cached tokens out already.
    inputTokens: latest(told.input_tokens, before.inputTokens),
    outputTokens: latest(told.output_tokens, before.outputTokens),
    cachedTokens: latest(told.cache_read_input_tokens, before.cachedTokens),
    cacheWriteTokens: typeof written === 'number' ? Math.max(0, number(written) - forAnHour) : (before.cacheWriteTokens ?? 0),
    cacheWrite1hTokens: forAnHour,
  }
}

class MessagesReader implements Reader {
  model = ''
  usage: Usage | null = null
  isCounted = false
  readonly #open = new Map<unknown, { id: string; name: string; json: string }>()

  take(event: Json): ToolCall[] {
    switch (event.type) {
      case 'message_start':
        this.model = event.message?.model || this.model
        if (event.message?.usage) this.usage = messageUsage({}, event.message.usage)
        return []
      case 'message_delta':
        if (event.usage) {
          this.usage = messageUsage(this.usage ?? {}, event.usage)
          this.isCounted = true
        }
        return []
      case 'content_block_start':
        if (event.content_block?.type === 'tool_use')
          this.#open.set(event.index, { id: event.content_block.id, name: event.content_block.name, json: '' })
        return []
      case 'content_block_delta': {
        const block = this.#open.get(event.index)
        if (block && event.delta?.type === 'input_json_delta') block.json += event.delta.partial_json ?? ''
        return []
      }
      case 'content_block_stop': {
        const block = this.#open.get(event.index)
        this.#open.delete(event.index)
        return block ? [{ id: block.id, tool: block.name, args: parseArguments(block.json) }] : []
      }
      default:
        return []
    }
  }

  came(event: Json): unknown {
    return event.type === 'content_block_delta' ? event.delta : ''
  }

  hides(): boolean {
    return false
  }
}

const ROUTES: readonly (readonly [string, Route])[] = [
  ['/chat/completions', chat],
  ['/responses', responses],
  ['/embeddings', embeddings],
  ['/messages', messages],
]

/** The route of a request that asks a model; null for any other. `path` may be a whole address. */
export function routeOf(method: string | undefined, path: unknown): Route | null {
  if (method?.toUpperCase() !== 'POST' || typeof path !== 'string') return null
  const end = path.split(/[?#]/, 1)[0] as string
  return ROUTES.find(([known]) => end.endsWith(known))?.[1] ?? null
}
