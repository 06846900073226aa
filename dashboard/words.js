// The words and numbers of the page. What guards, reasons and outcomes are called is told by the service.

/// By code: `{ label, subject, reasons: [{ reason, label }] }`.
export const GUARDS = {};
const REASON_LABELS = {};
/// By code, of requests and of what operators did.
const OUTCOME_LABELS = {};

export function learnWords({ guards, outcomes, actions }) {
  for (const { outcome, label } of outcomes) OUTCOME_LABELS[outcome] = label;
  for (const { action, label } of actions) OUTCOME_LABELS[action] = label;
  for (const guard of guards) {
    GUARDS[guard.guard] = guard;
    for (const { reason, label } of guard.reasons) REASON_LABELS[reason] = label;
  }
}

const plain = (code) => {
  const words = String(code).replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
};

export const guardName = (code) => (Object.hasOwn(GUARDS, code) ? GUARDS[code].label : plain(code));
export const subjectName = (code) => (Object.hasOwn(GUARDS, code) ? GUARDS[code].subject : '');
export const reasonName = (code) => (Object.hasOwn(REASON_LABELS, code) ? REASON_LABELS[code] : plain(code));
export const fieldName = plain;
export const outcomeName = (code) => (Object.hasOwn(OUTCOME_LABELS, code) ? OUTCOME_LABELS[code] : plain(code));

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat('en', { maximumFractionDigits: 2 });
const tiny = new Intl.NumberFormat('en', { maximumSignificantDigits: 2 });
const money = new Intl.NumberFormat('en', { style: 'currency', currency: 'USD' });
const cents = new Intl.NumberFormat('en', { style: 'currency', currency: 'USD', maximumFractionDigits: 4 });

export const count = (value) => whole.format(Math.round(value ?? 0));
export const compact = (value) => (Math.abs(value ?? 0) < 10_000 ? whole.format(Math.round(value ?? 0)) : short.format(value));
// What is something does not look like nothing.
export const decimal = (value) => ((value ?? 0) !== 0 && Math.abs(value) < 0.01 ? tiny : exact).format(value ?? 0);
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
/// For a list: where it is not of today alone, every time says its day.
export function whenIn(times) {
  const [first, last] = [Math.min(...times), Math.max(...times)];
  if (isToday(first) && isToday(last)) return clock;
  return day(first).slice(0, 4) === day(Date.now()).slice(0, 4) ? (ms) => moment(ms).slice(5) : moment;
}

/// Which clock all times go by: UTC+1, UTC−3:30.
export function zone(at = Date.now()) {
  const minutes = -new Date(at).getTimezoneOffset();
  if (!minutes) return 'UTC';
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? '−' : '+'}${hours}${rest ? `:${two(rest)}` : ''}`;
}
export const zoneName = () => Intl.DateTimeFormat().resolvedOptions().timeZone ?? zone();

const UNITS = [['d', 86_400], ['h', 3600], ['m', 60], ['s', 1]];
/// As the settings file takes it: 1800 is 30m, 5400 is 90m.
export function span(seconds) {
  const [unit, length] = UNITS.find(([, length]) => seconds >= length && seconds % length === 0) ?? ['s', 1];
  return `${seconds / length}${unit}`;
}
