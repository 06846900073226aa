// The words and numbers of the page. A test compares the codes with the service's own list.

export const GUARDS = {
  ai_task_retry: 'AI task retry',
  handoff: 'Bot handoff',
  kb_requery: 'Knowledge base',
  agent_action: 'Agent action',
  no_match_reprompt: 'Reprompt',
  capture_slot_fill: 'Slot filling',
  api_circuit: 'API circuit',
  loop: 'Loop',
  stall: 'Stall',
  budget: 'Budget',
  tool_call: 'Tool call',
  action_group: 'Action group',
};

/// What the subject of a decision is, by guard.
export const SUBJECTS = {
  ai_task_retry: 'task', handoff: 'bot', kb_requery: 'topic', agent_action: 'action', no_match_reprompt: 'step', capture_slot_fill: 'step',
  api_circuit: 'endpoint', loop: 'run', stall: 'run', budget: 'budget', tool_call: 'tool', action_group: 'action',
};

export const REASONS = {
  ai_task_retry: { input_missing_prerequisite_signal: 'Value missing in the message', retry_cap_reached: 'Retries used up' },
  handoff: { handoff_ceiling_reached: 'Too many handoffs', cycle_detected: 'Handed round in a circle' },
  kb_requery: {
    confidence_already_met: 'Answer was good enough', kb_requery_cap_reached: 'Queries used up', kb_query_cap_reached: 'Recorded queries used up',
    low_confidence_re_query_blocked: 'Topic is not documented',
  },
  agent_action: {
    total_action_ceiling: 'Too many actions', consecutive_same_action_spiral: 'Same action in a row', same_action_frequency_spiral: 'Same action too often',
    identical_call_spiral: 'Identical call again', action_cycle: 'Actions go round in a circle',
  },
  no_match_reprompt: { entity_signal_absent: 'Value missing in the answer', reprompt_ceiling_reached: 'Reprompts used up' },
  capture_slot_fill: { colloquial_format_detected: 'Value given in words', attempt_ceiling_reached: 'Attempts used up' },
  api_circuit: { circuit_just_tripped: 'Circuit tripped', circuit_open: 'Circuit open', session_retry_ceiling: 'Session retries used up' },
  loop: { call_ceiling: 'Call made too often', loop_detected: 'Calls loop' },
  stall: {
    stalled_identical: 'Same call, same result', stalled_cycle: 'Same round, same results', stalled_no_news: 'Nothing new', stalled_same_error: 'Same error again',
    stalled_messages: 'Same message again',
  },
  budget: {
    budget_exceeded: 'Budget used up', unknown_model: 'Model without a price', call_cap_reached: 'Calls used up', too_many_reservations: 'Too many reservations',
    state_unavailable: 'Shared state away',
  },
  tool_call: { tool_limit: 'Tool limit reached', exact_duplicate: 'Same call again', similar_query: 'Similar query again' },
  action_group: { permanent_failure: 'Fails for good' },
};

const FLAT = Object.assign({}, ...Object.values(REASONS));

const plain = (code) => {
  const words = String(code).replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
};

export const guardName = (code) => (Object.hasOwn(GUARDS, code) ? GUARDS[code] : plain(code));
export const reasonName = (code) => (Object.hasOwn(FLAT, code) ? FLAT[code] : plain(code));
export const fieldName = plain;
export const OUTCOMES = { allowed: 'Allowed', would_block: 'Would block', blocked: 'Blocked', recorded: 'Recorded' };
export const outcomeName = (code) => (Object.hasOwn(OUTCOMES, code) ? OUTCOMES[code] : plain(code));

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat('en', { maximumFractionDigits: 2 });
const money = new Intl.NumberFormat('en', { style: 'currency', currency: 'USD' });
const cents = new Intl.NumberFormat('en', { style: 'currency', currency: 'USD', maximumFractionDigits: 4 });

export const count = (value) => whole.format(Math.round(value ?? 0));
export const compact = (value) => (Math.abs(value ?? 0) < 10_000 ? whole.format(Math.round(value ?? 0)) : short.format(value));
export const decimal = (value) => exact.format(value ?? 0);
export const dollars = (value) => ((value ?? 0) !== 0 && Math.abs(value) < 0.01 ? cents : money).format(value ?? 0);
export const percent = (share) => {
  const value = (share ?? 0) * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
};
export const times = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

const two = (number) => String(number).padStart(2, '0');

/// 4 s, 3 min 20 s, 2 h 5 min, 3 d 4 h.
export function duration(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min${left % 60 ? ` ${left % 60} s` : ''}`;
  if (left < 86_400) return `${Math.floor(left / 3600)} h${Math.floor((left % 3600) / 60) ? ` ${Math.floor((left % 3600) / 60)} min` : ''}`;
  return `${Math.floor(left / 86_400)} d${Math.floor((left % 86_400) / 3600) ? ` ${Math.floor((left % 86_400) / 3600)} h` : ''}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return '–';
  return value < 1000 ? `${Math.round(value)} ms` : `${exact.format(value / 1000)} s`;
}

export const clock = (ms) => {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
};
export const day = (ms) => {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
};
export const moment = (ms) => `${day(ms)} ${clock(ms)}`;
export const isToday = (ms) => day(ms) === day(Date.now());
/// The time alone for today, with the day before it otherwise.
export const when = (ms) => (isToday(ms) ? clock(ms) : moment(ms).slice(5));
