/** How the APIs of model services write requests, answers and streams: what of it concerns a run. */
import { unmetered, usageIn, usageMerged, type Usage } from '../prices.js'
import { DONE } from './events.js'

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
  /** Whether a part of a tool call is in an event. */
  hasCall(event: Json): boolean
}

/** What the caller has seen of a stream: how many events of a kind, and the first that brought a whole answer. */
export interface Shown {
  count(type: string): number
  readonly first: Json
}

/** How one API path writes calls, results and usage. */
export interface Route {
  /** As it ends, which the core knows it by. */
  readonly path: string
  transcript(body: Json): Transcript
  /** The body with each nudge behind the result of its call. */
  withNudges(body: Json, nudges: ReadonlyMap<string, string>): Json
  calls(answer: Json): ToolCall[]
  usage(answer: Json): Usage | null
  /** What the model has written. */
  came(answer: Json): unknown
  /** The body, asking for no longer answer than this by these members. */
  shortened(body: Json, maxOutput: number, bounds: readonly string[]): Json
  prepareStream(body: Json): Json
  reader(body: Json): Reader
  /** A final answer of the model that says a sentence. */
  said(text: string, model: string): Json
  /** The same as the events that end a stream. */
  saidEvents(text: string, model: string, shown: Shown): Json[]
}

/** The id of an answer that no model has given. */
const OWN_ID = 'runguard'
const now = (): number => Math.floor(Date.now() / 1000)

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

/** From frameworks that count cached and cache-written tokens inside the input, under names of their own: prices want every token once. */
export function usageOfTotal(total: unknown, output: unknown, cached: unknown, cacheWrite: unknown): Usage {
  const input_tokens_details = { cached_tokens: number(cached), cache_write_tokens: number(cacheWrite) }
  return usageIn('openai', { input_tokens: number(total), output_tokens: number(output), input_tokens_details }) ?? {}
}

function number(value: unknown): number {
  return Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : 0
}

function appended(content: unknown, nudge: string, partType: string): unknown {
  if (Array.isArray(content)) return [...content, { type: partType, text: nudge }]
  return typeof content === 'string' && content !== '' ? `${content}\n\n${nudge}` : nudge
}

function shortened(body: Json, maxOutput: number, bounds: readonly string[]): Json {
  return { ...body, ...Object.fromEntries(bounds.map((name) => [name, maxOutput])) }
}

const chat: Route = {
  path: '/chat/completions',
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
  usage: (answer) => openaiUsage(answer.usage, answer.service_tier),
  came: (answer) => answer.choices,
  shortened,
  // Without this a streamed chat completion reports no usage at all.
  prepareStream: (body) => ({ ...body, stream_options: { ...body.stream_options, include_usage: true } }),
  reader: (body) => new ChatReader(Boolean(body.stream_options?.include_usage)),
  said(text, model) {
    const message = { role: 'assistant', content: text, refusal: null }
    const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }
    const choices = [{ index: 0, message, logprobs: null, finish_reason: 'stop' }]
    return { id: OWN_ID, object: 'chat.completion', created: now(), model, choices, usage }
  },
  saidEvents(text, model) {
    const chunk = (delta: Json, finish_reason: string | null) => ({
      id: OWN_ID,
      object: 'chat.completion.chunk',
      created: now(),
      model,
      choices: [{ index: 0, delta, logprobs: null, finish_reason }],
    })
    return [chunk({ role: 'assistant', content: text }, null), chunk({}, 'stop'), { type: DONE }]
  },
}

function chatCalls(message: Json): ToolCall[] {
  return list(message?.tool_calls).flatMap((call): ToolCall[] => {
    const id = String(call?.id ?? '')
    if (call?.function) return [{ id, tool: String(call.function.name ?? ''), args: parseArguments(call.function.arguments ?? '') }]
    return call?.custom ? [{ id, tool: String(call.custom.name ?? ''), args: call.custom.input }] : []
  })
}

/** As OpenAI reports it; how it was served stands beside it. */
function openaiUsage(report: Json, serviceTier: unknown): Usage | null {
  const usage = usageIn('openai', report)
  return usage === null || typeof serviceTier !== 'string' ? usage : { ...usage, serviceTier }
}

class ChatReader implements Reader {
  model = ''
  usage: Usage | null = null
  isCounted = false
  #serviceTier: unknown
  #report: object = {}
  readonly #usageWasAskedFor: boolean
  readonly #parts = new Map<string, { id: string; name: string; arguments: string; choice: unknown }>()

  constructor(usageWasAskedFor: boolean) {
    this.#usageWasAskedFor = usageWasAskedFor
  }

  take(event: Json): ToolCall[] {
    this.model = event.model || this.model
    this.#serviceTier = event.service_tier ?? this.#serviceTier
    if (event.usage) {
      // Some count as they go on.
      this.#report = usageMerged(this.#report, event.usage)
      this.usage = openaiUsage(this.#report, this.#serviceTier)
      this.isCounted = this.usage !== null
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

  hasCall(event: Json): boolean {
    return list(event.choices).some((choice) => list(choice.delta?.tool_calls).length > 0)
  }
}

const withoutTools: Pick<Route, 'transcript' | 'withNudges' | 'calls'> = {
  transcript: () => ({ calls: [], results: new Map(), last: [] }),
  withNudges: (body) => body,
  calls: () => [],
}

/** The older completions: a text goes on. */
const completions: Route = {
  ...chat,
  path: '/completions',
  ...withoutTools,
  came: (answer) => list(answer.choices).map((choice) => choice.text),
  reader: (body) => new CompletionsReader(Boolean(body.stream_options?.include_usage)),
  said: (text, model) => ({ ...saidCompletion(text, model, 'stop'), usage: { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 } }),
  saidEvents: (text, model) => [saidCompletion(text, model, 'stop'), { type: DONE }],
}

function saidCompletion(text: string, model: string, finish_reason: string): Json {
  const choices = [{ index: 0, text, logprobs: null, finish_reason }]
  return { id: OWN_ID, object: 'text_completion', created: now(), model, choices }
}

class CompletionsReader extends ChatReader {
  override came(event: Json): unknown {
    return list(event.choices).map((choice) => choice.text)
  }
}

const responses: Route = {
  path: '/responses',
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
  usage: (answer) => openaiUsage(answer.usage, answer.service_tier),
  came: (answer) => answer.output,
  // The API takes no fewer.
  shortened: (body, maxOutput, bounds) => shortened(body, Math.max(maxOutput, 16), bounds),
  prepareStream: (body) => body,
  reader: () => new ResponsesReader(),
  said: saidResponse,
  saidEvents(text, model, shown) {
    const response = { ...shown.first, ...saidResponse(text, shown.first?.model ?? model), id: shown.first?.id ?? OWN_ID }
    const [item] = response.output
    const output_index = shown.count('response.output_item.added')
    const place = { output_index, item_id: item.id, content_index: 0 }
    const part = item.content[0]
    const events: Json[] = shown.first ? [] : [{ type: 'response.created', response: { ...response, status: 'in_progress', output: [] } }]
    events.push(
      { type: 'response.output_item.added', output_index, item: { ...item, status: 'in_progress', content: [] } },
      { type: 'response.content_part.added', ...place, part: { ...part, text: '' } },
      { type: 'response.output_text.delta', ...place, delta: text, logprobs: [] },
      { type: 'response.output_text.done', ...place, text, logprobs: [] },
      { type: 'response.content_part.done', ...place, part },
      { type: 'response.output_item.done', output_index, item },
      { type: 'response.completed', response },
    )
    return events.map((event, place) => ({ ...event, sequence_number: shown.count('') + place }))
  },
}

function saidResponse(text: string, model: string): Json {
  const content = [{ type: 'output_text', text, annotations: [], logprobs: [] }]
  const output = [{ type: 'message', id: `msg_${OWN_ID}`, role: 'assistant', status: 'completed', content }]
  const details = { input_tokens_details: { cached_tokens: 0 }, output_tokens_details: { reasoning_tokens: 0 } }
  const usage = { input_tokens: 0, output_tokens: 0, total_tokens: 0, ...details }
  return { id: OWN_ID, object: 'response', created_at: now(), status: 'completed', error: null, model, output, tools: [], usage }
}

function responseCalls(item: Json): ToolCall[] {
  const id = String(item?.call_id ?? '')
  if (item?.type === 'function_call') return [{ id, tool: String(item.name ?? ''), args: parseArguments(item.arguments ?? '') }]
  return item?.type === 'custom_tool_call' ? [{ id, tool: String(item.name ?? ''), args: item.input }] : []
}

class ResponsesReader implements Reader {
  model = ''
  usage: Usage | null = null
  isCounted = false
  #report: object = {}

  take(event: Json): ToolCall[] {
    // `completed`, `incomplete` and `failed` bring the whole response, and with it the usage.
    if (event.response) {
      this.model = event.response.model || this.model
      this.#report = usageMerged(this.#report, event.response.usage)
      this.usage = openaiUsage(this.#report, event.response.service_tier)
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

  hasCall(event: Json): boolean {
    return event.type === 'response.output_item.added' && /_call$/.test(String(event.item?.type))
  }
}

/** Nothing is written. */
const embeddings: Route = {
  path: '/embeddings',
  ...withoutTools,
  usage: (answer) => openaiUsage(answer.usage, undefined),
  came: () => '',
  shortened,
  prepareStream: (body) => body,
  reader: () => new ResponsesReader(),
  // There are no words in an embedding.
  said: () => null,
  saidEvents: () => [],
}

const messages: Route = {
  path: '/messages',
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
  usage: (answer) => usageIn('anthropic', answer.usage),
  came: (answer) => answer.content,
  shortened(body, maxOutput, bounds) {
    const budget = body.thinking?.budget_tokens
    if (typeof budget !== 'number' || budget < maxOutput) return shortened(body, maxOutput, bounds)
    // Thinking has a part of the answer, of at least 1,024 tokens; the API refuses one that is not longer.
    const { thinking, ...rest } = body
    if (maxOutput <= 1024) return shortened(rest, maxOutput, bounds)
    return shortened({ ...rest, thinking: { ...thinking, budget_tokens: Math.max(1024, Math.floor(maxOutput / 2)) } }, maxOutput, bounds)
  },
  prepareStream: (body) => body,
  reader: () => new MessagesReader(),
  said: (text, model) => ({ ...saidMessage(model), content: [{ type: 'text', text }], stop_reason: 'end_turn' }),
  saidEvents(text, model, shown) {
    const index = shown.count('content_block_start')
    const begins = shown.count('message_start') > 0 ? [] : [{ type: 'message_start', message: saidMessage(model) }]
    return [
      ...begins,
      { type: 'content_block_start', index, content_block: { type: 'text', text: '' } },
      { type: 'content_block_delta', index, delta: { type: 'text_delta', text } },
      { type: 'content_block_stop', index },
      { type: 'message_delta', delta: { stop_reason: 'end_turn', stop_sequence: null }, usage: { output_tokens: 0 } },
      { type: 'message_stop' },
    ]
  },
}

function saidMessage(model: string): Json {
  const usage = { input_tokens: 0, output_tokens: 0 }
  return { id: OWN_ID, type: 'message', role: 'assistant', model, content: [], stop_reason: null, stop_sequence: null, usage }
}

function messageCall(block: Json): ToolCall[] {
  return block?.type === 'tool_use' ? [{ id: String(block.id ?? ''), tool: String(block.name ?? ''), args: block.input }] : []
}

class MessagesReader implements Reader {
  model = ''
  usage: Usage | null = null
  isCounted = false
  #report: object = {}
  readonly #open = new Map<unknown, { id: string; name: string; json: string }>()

  take(event: Json): ToolCall[] {
    switch (event.type) {
      case 'message_start':
        this.model = event.message?.model || this.model
        this.#reported(event.message?.usage)
        return []
      case 'message_delta':
        this.isCounted = this.#reported(event.usage)
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

  #reported(told: Json): boolean {
    if (typeof told !== 'object' || told === null) return this.isCounted
    this.#report = usageMerged(this.#report, told)
    this.usage = usageIn('anthropic', this.#report)
    return this.usage !== null
  }

  came(event: Json): unknown {
    // Its kind is no part of the answer.
    const { type: _, ...delta } = event.type === 'content_block_delta' ? (event.delta ?? {}) : {}
    return delta
  }

  hides(): boolean {
    return false
  }

  hasCall(event: Json): boolean {
    return event.type === 'content_block_start' && event.content_block?.type === 'tool_use'
  }
}

const ROUTES = [chat, completions, responses, embeddings, messages]

/** What is paid for, though no answer says how much. */
export class Unmetered {
  /** Why a run with a budget cannot have it. */
  readonly why: string

  constructor(why: string) {
    this.why = why
  }
}

/** The route of a request that asks a model; null for any other. `path` may be a whole address. */
export function routeOf(method: string | undefined, path: unknown): Route | Unmetered | null {
  if (method?.toUpperCase() !== 'POST' || typeof path !== 'string') return null
  const end = path.split(/[?#]/, 1)[0] as string
  const known = ROUTES.find(({ path }) => end.endsWith(path))
  if (known !== undefined) return known
  const why = unmetered(end)
  return why === null ? null : new Unmetered(why)
}
