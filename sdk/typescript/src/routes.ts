/** One method per guard route. Made from the service's tables, not by hand: `UPDATE_DOCS=1 cargo test -p runguard-server --test generated_docs`. */
import type { Answer, BudgetScope, RequestOptions, RunStep } from './client.js'

/** May this AI Task be run again after its output failed validation? */
export interface AiTaskRetryRequest {
  /** The conversation. */
  session_id: string
  /** The AI Task. */
  task_name: string
  /** The message the task works on. */
  user_message?: string | null
  /** Why the last output was refused. */
  validation_error?: string | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May the conversation be handed to this bot? */
export interface HandoffRequest {
  /** The conversation. */
  session_id: string
  /** The bot that wants to hand over. */
  source_bot: string
  /** The bot that should take over. */
  target_bot: string
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May the knowledge base be asked again? (The check counts.) */
export interface KbRequeryRequest {
  /** The conversation. */
  session_id: string
  /** A stable name of the question. */
  topic_hash: string
  /** The query. */
  query_text?: string | null
  /** Confidence of the last answer; 0 when there was none. */
  last_confidence?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May the knowledge base be asked? (The record counts.) */
export interface KbRequeryCheckRequest {
  /** The conversation. */
  session_id: string
  /** The query. */
  query: string
  /** Confidence of the last answer; without it the last recorded one counts. */
  prior_confidence?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** What a knowledge base query gave. This counts. */
export interface KbRequeryRecordRequest {
  /** The conversation. */
  session_id: string
  /** The query that was made. */
  query: string
  /** Confidence of the answer; empty or null when there was none, which counts as 0. */
  confidence_score: number
  /** Chunks found; 0 is a retrieval failure, after which a second try is fair. */
  retrieved_chunks?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May the agent run this action? */
export interface AgentActionRequest {
  /** The run or conversation. */
  session_id: string
  /** The action the agent wants to run. */
  action_name: string
  /** A hash of the parameters, made by the caller. */
  action_params_hash?: string | null
  /** The parameters themselves: RunGuard hashes them, whatever their order and form. */
  action_params?: unknown
  /** What the agent is to reach; 200 characters are kept. */
  goal?: string | null
  /** What it may call: a list, or a text with commas; 100 names are kept. */
  available_actions?: string[] | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** What the newest call of this action gave. */
export interface AgentActionResultRequest {
  /** The run or conversation. */
  session_id: string
  /** The action that ran. */
  action_name: string
  /** What came out; 200 characters are kept. */
  result_summary?: string | null
  /** A hash of the whole result; without it the summary is compared. */
  result_hash?: string | null
  /** Whether the action failed. */
  error?: boolean | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May the user be asked again with a generated reprompt? */
export interface NoMatchRepromptRequest {
  /** The conversation. */
  session_id: string
  /** The step whose No Match or No Reply path this is. */
  step_id: string
  /** What the user said; a No Reply has none. */
  user_utterance?: string | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May a generated answer ask for this value again? */
export interface CaptureSlotFillRequest {
  /** The conversation. */
  session_id: string
  /** The Capture step. */
  capture_step: string
  /** What it captures: email, phone, date, order_id, or one of your own. */
  entity_type: string
  /** What the user said. */
  user_utterance?: string | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May this session call the endpoint? */
export interface ApiCircuitCheckRequest {
  /** The upstream API. */
  endpoint_key: string
  /** The conversation. */
  session_id: string
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** How a call to the endpoint ended. */
export interface ApiCircuitRecordRequest {
  /** The upstream API. */
  endpoint_key: string
  /** The conversation. */
  session_id: string
  /** How it ended. */
  outcome: 'success' | 'failure'
  /** Which attempt of the session it was. */
  attempt?: number | null
  /** The HTTP status. */
  status_code?: number | null
  /** How long it took. */
  latency_ms?: number | null
  /** The permit the check gave. */
  permit_id?: string | null
  /** How long the endpoint asked to be left alone (its Retry-After): if this failure opens the circuit, it is open for at least as long, up to 10 minutes. */
  retry_after_seconds?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May this call be made, or does it complete a loop? An allowed call is counted. */
export interface LoopRequest {
  /** The run. */
  session_id: string
  /** The call: a tool's name, or a signature of your own. */
  tool: string
  /** Its arguments: calls with other arguments are other calls. */
  args?: unknown
  /** Copies of a pattern that make a loop; as set if left out. */
  repeats?: number | null
  /** Longest pattern looked for, up to 32. */
  max_cycle_len?: number | null
  /** Only calls this young count; 0: all. */
  window_seconds?: number | null
  /** Calls of one kind within the window, whatever their order; 0: any number. */
  max_calls?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** Would this call complete a loop? Nothing is counted. */
export interface LoopCheckRequest {
  /** The run. */
  session_id: string
  /** The call: a tool's name, or a signature of your own. */
  tool: string
  /** Its arguments: calls with other arguments are other calls. */
  args?: unknown
  /** Copies of a pattern that make a loop; as set if left out. */
  repeats?: number | null
  /** Longest pattern looked for, up to 32. */
  max_cycle_len?: number | null
  /** Only calls this young count; 0: all. */
  window_seconds?: number | null
  /** Calls of one kind within the window, whatever their order; 0: any number. */
  max_calls?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** This call gave this result: does the run still make progress? */
export interface StallRequest {
  /** The run. */
  session_id: string
  /** The tool that was called; left out for a message without a call. */
  tool?: string | null
  /** Its arguments. */
  args?: unknown
  /** A hash of the arguments, instead of them. */
  args_hash?: string | null
  /** What it gave. */
  result?: unknown
  /** A hash of the result, instead of it. */
  result_hash?: string | null
  /** The error, when it failed. */
  error?: string | null
  /** A hash of the error, instead of comparing it; also of one without words. */
  error_hash?: string | null
  /** The model's turn: the same call twice in one turn is one. */
  round?: string | null
  /** What the call does, where its arguments are not told: looks, looks_up (one thing, by its id), runs, changes, restores, waits, `writes FILE LEAVES`, `edits FILE BY`, `undoes FILE` or `acts TARGET` (on an element of a web page), in hex. */
  does?: string | null
  /** Tokens the model read and wrote since the last call that was told: for `long_run_tokens`. */
  tokens?: number | null
  /** What the model said without calling anything. */
  message?: string | null
  /** A hash of the message, instead of it. */
  message_hash?: string | null
  /** A person has spoken: everything starts anew. */
  new_turn?: boolean | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** A model is about to be asked, and this is what the run did: does it still get anywhere? */
export interface AgentRunRequest {
  /** The run. */
  session_id: string
  /** The model that is asked. */
  model?: string | null
  /** What happened, oldest first; steps that were told before may be told again. At most 256 of {id, tool, args, result, error, round}: a call by its name and the hashes of what it was given and gave; {id, said, result}: the hashes of what the model said without a call, and of what was answered; {id, user: true}: a person has spoken. */
  steps?: RunStep[] | null
  /** The steps are all that the conversation has, not only what is new: where none of its calls was told before, it is another one, and begins anew. */
  whole?: boolean | null
  /** How long this question is, in tokens: counted for the next one, as it is paid if it is asked. For `long_run_tokens`. */
  tokens?: number | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** Is there enough left for this? Nothing is counted. */
export interface BudgetCheckRequest {
  /** Whose budget: a run, a session, a user. */
  session_id: string
  /** Which of its budgets; one is enough for most. */
  budget?: string | null
  /** The session whose budget of the same name this one draws on. */
  parent?: string | null
  /** The caller's own limit in dollars; it stays until another is given in a question that is not refused, and cannot be above the limit of the settings. */
  max_usd?: number | null
  /** The same in credits, at the price the settings have for one (credit_usd); the lower of it and max_usd holds. */
  max_credits?: number | null
  /** The same in tokens. */
  max_tokens?: number | null
  /** The same in calls of one key. */
  cap?: number | null
  /** What it draws on besides: at most 16 of {per, name, period, max_usd, max_credits, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same. */
  scopes?: BudgetScope[] | null
  /** Dollars. */
  usd?: number | null
  /** The same in credits of a platform, in place of usd: booked at the price the settings have for one (credit_usd). */
  credits?: number | null
  /** Tokens, if no model is named. */
  tokens?: number | null
  /** What is counted against the cap, such as a step or a task. */
  key?: string | null
  /** The model, to price its tokens from the table. */
  model?: string | null
  /** Input tokens, without cached ones. */
  input_tokens?: number | null
  /** Output tokens. */
  output_tokens?: number | null
  /** Input tokens read from a cache. */
  cached_tokens?: number | null
  /** Input tokens written to a cache. */
  cache_write_tokens?: number | null
  /** Input tokens written to a cache for an hour, not among the others. */
  cache_write_1h_tokens?: number | null
  /** Input tokens of sound, not among input_tokens. */
  audio_input_tokens?: number | null
  /** Output tokens of sound, not among output_tokens. */
  audio_output_tokens?: number | null
  /** How it was served, as the provider says: priority, flex or batch; anything else is the standard. */
  service_tier?: string | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** This was spent. It counts, also when it passes the limit. A key without a cost asks for a call: blocked, it is not counted. */
export interface BudgetRecordRequest {
  /** Whose budget: a run, a session, a user. */
  session_id: string
  /** Which of its budgets; one is enough for most. */
  budget?: string | null
  /** The session whose budget of the same name this one draws on. */
  parent?: string | null
  /** The caller's own limit in dollars; it stays until another is given in a question that is not refused, and cannot be above the limit of the settings. */
  max_usd?: number | null
  /** The same in credits, at the price the settings have for one (credit_usd); the lower of it and max_usd holds. */
  max_credits?: number | null
  /** The same in tokens. */
  max_tokens?: number | null
  /** The same in calls of one key. */
  cap?: number | null
  /** What it draws on besides: at most 16 of {per, name, period, max_usd, max_credits, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same. */
  scopes?: BudgetScope[] | null
  /** Dollars. */
  usd?: number | null
  /** The same in credits of a platform, in place of usd: booked at the price the settings have for one (credit_usd). */
  credits?: number | null
  /** Tokens, if no model is named. */
  tokens?: number | null
  /** What is counted against the cap, such as a step or a task. */
  key?: string | null
  /** The model, to price its tokens from the table. */
  model?: string | null
  /** Input tokens, without cached ones. */
  input_tokens?: number | null
  /** Output tokens. */
  output_tokens?: number | null
  /** Input tokens read from a cache. */
  cached_tokens?: number | null
  /** Input tokens written to a cache. */
  cache_write_tokens?: number | null
  /** Input tokens written to a cache for an hour, not among the others. */
  cache_write_1h_tokens?: number | null
  /** Input tokens of sound, not among input_tokens. */
  audio_input_tokens?: number | null
  /** Output tokens of sound, not among output_tokens. */
  audio_output_tokens?: number | null
  /** How it was served, as the provider says: priority, flex or batch; anything else is the standard. */
  service_tier?: string | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** Set this aside for a step, if there is enough. */
export interface BudgetReserveRequest {
  /** Whose budget: a run, a session, a user. */
  session_id: string
  /** Which of its budgets; one is enough for most. */
  budget?: string | null
  /** The session whose budget of the same name this one draws on. */
  parent?: string | null
  /** The caller's own limit in dollars; it stays until another is given in a question that is not refused, and cannot be above the limit of the settings. */
  max_usd?: number | null
  /** The same in credits, at the price the settings have for one (credit_usd); the lower of it and max_usd holds. */
  max_credits?: number | null
  /** The same in tokens. */
  max_tokens?: number | null
  /** The same in calls of one key. */
  cap?: number | null
  /** What it draws on besides: at most 16 of {per, name, period, max_usd, max_credits, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same. */
  scopes?: BudgetScope[] | null
  /** Dollars. */
  usd?: number | null
  /** The same in credits of a platform, in place of usd: booked at the price the settings have for one (credit_usd). */
  credits?: number | null
  /** Tokens, if no model is named. */
  tokens?: number | null
  /** What is counted against the cap, such as a step or a task. */
  key?: string | null
  /** The model, to price its tokens from the table. */
  model?: string | null
  /** Input tokens, without cached ones. */
  input_tokens?: number | null
  /** Output tokens. */
  output_tokens?: number | null
  /** Input tokens read from a cache. */
  cached_tokens?: number | null
  /** Input tokens written to a cache. */
  cache_write_tokens?: number | null
  /** Input tokens written to a cache for an hour, not among the others. */
  cache_write_1h_tokens?: number | null
  /** Input tokens of sound, not among input_tokens. */
  audio_input_tokens?: number | null
  /** Output tokens of sound, not among output_tokens. */
  audio_output_tokens?: number | null
  /** How it was served, as the provider says: priority, flex or batch; anything else is the standard. */
  service_tier?: string | null
  /** What becomes of it when nobody settles it in its time: free again, or spent, because whoever held it may have paid. */
  if_unsettled?: 'free' | 'spent' | null
  /** What becomes of a refusal: it is in the log, or nothing is left of it, because whoever asks will ask for less, or wait. Who gives up asks a last time without it, so that the log says what was refused. */
  if_refused?: 'kept' | 'forgotten' | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** The step is done and cost this much; without a cost, what was reserved. */
export interface BudgetCommitRequest {
  /** Whose budget: a run, a session, a user. */
  session_id: string
  /** Which of its budgets; one is enough for most. */
  budget?: string | null
  /** The session whose budget of the same name this one draws on. */
  parent?: string | null
  /** The caller's own limit in dollars; it stays until another is given in a question that is not refused, and cannot be above the limit of the settings. */
  max_usd?: number | null
  /** The same in credits, at the price the settings have for one (credit_usd); the lower of it and max_usd holds. */
  max_credits?: number | null
  /** The same in tokens. */
  max_tokens?: number | null
  /** The same in calls of one key. */
  cap?: number | null
  /** What it draws on besides: at most 16 of {per, name, period, max_usd, max_credits, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same. */
  scopes?: BudgetScope[] | null
  /** Dollars. */
  usd?: number | null
  /** The same in credits of a platform, in place of usd: booked at the price the settings have for one (credit_usd). */
  credits?: number | null
  /** Tokens, if no model is named. */
  tokens?: number | null
  /** What is counted against the cap, such as a step or a task. */
  key?: string | null
  /** The model, to price its tokens from the table. */
  model?: string | null
  /** Input tokens, without cached ones. */
  input_tokens?: number | null
  /** Output tokens. */
  output_tokens?: number | null
  /** Input tokens read from a cache. */
  cached_tokens?: number | null
  /** Input tokens written to a cache. */
  cache_write_tokens?: number | null
  /** Input tokens written to a cache for an hour, not among the others. */
  cache_write_1h_tokens?: number | null
  /** Input tokens of sound, not among input_tokens. */
  audio_input_tokens?: number | null
  /** Output tokens of sound, not among output_tokens. */
  audio_output_tokens?: number | null
  /** How it was served, as the provider says: priority, flex or batch; anything else is the standard. */
  service_tier?: string | null
  /** As the reserve route gave it. */
  reservation_id: string
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** The step was not done: what was reserved is free again. */
export interface BudgetReleaseRequest {
  /** Whose budget: a run, a session, a user. */
  session_id: string
  /** Which of its budgets; one is enough for most. */
  budget?: string | null
  /** The session whose budget of the same name this one draws on. */
  parent?: string | null
  /** The caller's own limit in dollars; it stays until another is given in a question that is not refused, and cannot be above the limit of the settings. */
  max_usd?: number | null
  /** The same in credits, at the price the settings have for one (credit_usd); the lower of it and max_usd holds. */
  max_credits?: number | null
  /** The same in tokens. */
  max_tokens?: number | null
  /** The same in calls of one key. */
  cap?: number | null
  /** What it draws on besides: at most 16 of {per, name, period, max_usd, max_credits, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same. */
  scopes?: BudgetScope[] | null
  /** As the reserve route gave it. */
  reservation_id: string
  /** The model that was named to reserve, where it has a scope. */
  model?: string | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** Should this tool be run, or has it given already what it can? An allowed call is counted. */
export interface ToolCallRequest {
  /** The run or conversation. */
  session_id: string
  /** The turn: each starts anew. Without one, all of the session is one turn. */
  turn_id?: string | null
  /** The tool. */
  tool: string
  /** Its arguments. */
  args?: unknown
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** How the call ended. One that failed may be made again, up to the tool's limit. */
export interface ToolCallRecordRequest {
  /** The run or conversation. */
  session_id: string
  /** The turn: each starts anew. Without one, all of the session is one turn. */
  turn_id?: string | null
  /** The tool. */
  tool: string
  /** Its arguments. */
  args?: unknown
  /** Whether it failed. */
  error?: boolean | null
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** May this action be run, or has the same call failed for good? */
export interface ActionGroupRequest {
  /** The agent's session. */
  session_id: string
  /** The action group. */
  action_group: string
  /** The API path, for groups with an API schema. */
  api_path?: string | null
  /** Its method. */
  http_method?: string | null
  /** The function, for groups with function details. */
  function?: string | null
  /** The parameters of the call. */
  parameters?: unknown
  /** The body of the call. */
  request_body?: unknown
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

/** Whether the action succeeded. */
export interface ActionGroupResultRequest {
  /** The agent's session. */
  session_id: string
  /** The action group. */
  action_group: string
  /** The API path, for groups with an API schema. */
  api_path?: string | null
  /** Its method. */
  http_method?: string | null
  /** The function, for groups with function details. */
  function?: string | null
  /** The parameters of the call. */
  parameters?: unknown
  /** The body of the call. */
  request_body?: unknown
  /** Whether it failed. */
  failed: boolean
  /** Idempotency key, for callers that cannot send the Idempotency-Key header. */
  request_id?: string | null
}

export abstract class GuardRoutes {
  protected abstract ask(route: string, request: object, options?: RequestOptions): Promise<Answer>

  /** May this AI Task be run again after its output failed validation? */
  aiTaskRetry(request: AiTaskRetryRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('ai-task-retry', request, options)
  }

  /** May the conversation be handed to this bot? */
  handoff(request: HandoffRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('handoff', request, options)
  }

  /** May the knowledge base be asked again? (The check counts.) */
  kbRequery(request: KbRequeryRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('kb-requery', request, options)
  }

  /** May the knowledge base be asked? (The record counts.) */
  kbRequeryCheck(request: KbRequeryCheckRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('kb-requery/check', request, options)
  }

  /** What a knowledge base query gave. This counts. */
  kbRequeryRecord(request: KbRequeryRecordRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('kb-requery/record', request, options)
  }

  /** May the agent run this action? */
  agentAction(request: AgentActionRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('agent-action', request, options)
  }

  /** What the newest call of this action gave. */
  agentActionResult(request: AgentActionResultRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('agent-action/result', request, options)
  }

  /** May the user be asked again with a generated reprompt? */
  noMatchReprompt(request: NoMatchRepromptRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('no-match-reprompt', request, options)
  }

  /** May a generated answer ask for this value again? */
  captureSlotFill(request: CaptureSlotFillRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('capture-slot-fill', request, options)
  }

  /** May this session call the endpoint? */
  apiCircuitCheck(request: ApiCircuitCheckRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('api-circuit/check', request, options)
  }

  /** How a call to the endpoint ended. */
  apiCircuitRecord(request: ApiCircuitRecordRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('api-circuit/record', request, options)
  }

  /** May this call be made, or does it complete a loop? An allowed call is counted. */
  loop(request: LoopRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('loop', request, options)
  }

  /** Would this call complete a loop? Nothing is counted. */
  loopCheck(request: LoopCheckRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('loop/check', request, options)
  }

  /** This call gave this result: does the run still make progress? */
  stall(request: StallRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('stall', request, options)
  }

  /** A model is about to be asked, and this is what the run did: does it still get anywhere? */
  agentRun(request: AgentRunRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('agent-run', request, options)
  }

  /** Is there enough left for this? Nothing is counted. */
  budgetCheck(request: BudgetCheckRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('budget/check', request, options)
  }

  /** This was spent. It counts, also when it passes the limit. A key without a cost asks for a call: blocked, it is not counted. */
  budgetRecord(request: BudgetRecordRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('budget/record', request, options)
  }

  /** Set this aside for a step, if there is enough. */
  budgetReserve(request: BudgetReserveRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('budget/reserve', request, options)
  }

  /** The step is done and cost this much; without a cost, what was reserved. */
  budgetCommit(request: BudgetCommitRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('budget/commit', request, options)
  }

  /** The step was not done: what was reserved is free again. */
  budgetRelease(request: BudgetReleaseRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('budget/release', request, options)
  }

  /** Should this tool be run, or has it given already what it can? An allowed call is counted. */
  toolCall(request: ToolCallRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('tool-call', request, options)
  }

  /** How the call ended. One that failed may be made again, up to the tool's limit. */
  toolCallRecord(request: ToolCallRecordRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('tool-call/record', request, options)
  }

  /** May this action be run, or has the same call failed for good? */
  actionGroup(request: ActionGroupRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('action-group', request, options)
  }

  /** Whether the action succeeded. */
  actionGroupResult(request: ActionGroupResultRequest, options?: RequestOptions): Promise<Answer> {
    return this.ask('action-group/result', request, options)
  }
}
