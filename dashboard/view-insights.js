// Ranked advice, each with what it rests on, the setting to change and sessions to look at.

import { get, post } from './api.js';
import { badge, el, foreign, panel } from './dom.js';
import { count, decimal, dollars, duration, fieldName, guardName, milliseconds, percent, reasonName, times, when } from './words.js';

export const anchor = (insight) => `${insight.id}:${insight.subject ?? ''}`;

export const adviceTitle = (frame, insight) => el('a', { to: frame.to('insights', { insight: anchor(insight) }) }, foreign(insight.title, 140));

/// A number, a text or a list, as it is best read.
export function fact(value, between = ', ') {
  if (value === null || value === undefined) return '–';
  if (typeof value === 'number') return Number.isInteger(value) ? count(value) : decimal(value);
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value === 'string') return foreign(value, 300);
  if (Array.isArray(value) && value.every((item) => typeof item !== 'object')) return value.slice(0, 40).map((item, at) => [at > 0 ? between : null, fact(item)]);
  if (!Array.isArray(value) && Object.values(value).every((item) => typeof item !== 'object')) return Object.entries(value).slice(0, 40).map(([name, item], at) => [at > 0 ? ', ' : null, foreign(name, 60), ' ', fact(item)]);
  return foreign(JSON.stringify(value), 300);
}

/// By the unit in its name, if it has one; in the words of the other pages.
function named(name, value) {
  if (name === 'reason') return [name, foreign(reasonName(value), 60)];
  if (name === 'refused') return ['blocked', fact(value)];
  if (typeof value !== 'number') return [name, fact(value, /chain|pattern|cycle/.test(name) ? ' → ' : ', ')];
  if (name.endsWith('_seconds')) return [name.slice(0, -8), duration(value)];
  if (name.endsWith('_ms')) return [name.slice(0, -3), milliseconds(value)];
  if (name.endsWith('_usd') || name === 'usd') return [name.replace(/_?usd$/, '') || 'cost', dollars(value)];
  if (/(share|_rate)$/.test(name) && value <= 1) return [name, percent(value)];
  return [name, fact(value)];
}

export const facts = (entries) => el('dl', { class: 'facts' }, entries.map(([name, value]) => {
  const [label, shown] = named(name, value);
  return el('div', null, el('dt', null, foreign(fieldName(label), 60)), el('dd', null, shown));
}));

/// The weightiest first, as the groups are.
const SEVERITIES = ['high', 'medium', 'low'];

/// Advice by guard, in the order of the weightiest of each.
function grouped(all) {
  const groups = new Map();
  for (const insight of all) groups.set(insight.guard ?? '', [...(groups.get(insight.guard ?? '') ?? []), insight]);
  return [...groups];
}

export function insights(frame, main) {
  const state = panel('Advice', { class: 'full' });
  main.append(el('p', { class: 'lead' }, 'What the log suggests to change, the most worthwhile first.'), state.root);
  state.say('Loading…');
  const aborted = new AbortController();
  const shows = frame.where.show === 'all' ? 'all' : undefined;
  /// Groups that were closed stay so when the page is drawn again.
  const closed = new Set();
  let wanted = frame.where.insight;

  async function change(insight, verb, body, words) {
    try {
      await post(`v1/insights/${encodeURIComponent(insight.key)}/${verb}`, { tenant: frame.where.tenant }, body);
      frame.say(words);
      await refresh();
    } catch (error) {
      frame.failed(state, error);
    }
  }

  const buttons = (insight) => {
    const button = (label, verb, words, body) => el('button', { type: 'button', class: 'quiet small', 'aria-label': `${label}: ${insight.title}`, on: { click: () => change(insight, verb, body, words) } }, label);
    if (!frame.admin) return null;
    return el('span', { class: 'buttons' }, insight.put_aside ? button('Restore', 'restore', 'It is shown again')
      : [button('Snooze 7 days', 'snooze', 'It comes back in 7 days', { for: '7d' }), button('Dismiss', 'dismiss', 'It is put aside')]);
  };

  const card = (insight) => el('article', { class: `card severity-${insight.severity}${insight.put_aside ? ' aside' : ''}`, id: `insight-${anchor(insight)}`, tabindex: -1 },
    el('div', { class: 'row' }, badge(`severity-${insight.severity}`, fieldName(insight.severity)),
      insight.put_aside ? badge('plain', insight.put_aside.until ? ['Put aside until ', when(Date.parse(insight.put_aside.until))].join('') : 'Put aside') : null,
      insight.saves?.operations ? el('span', { class: 'saves' }, `about ${times(insight.saves.operations, 'operation')}${insight.saves.usd ? `, ${dollars(insight.saves.usd)}` : ''}`) : null),
    el('h3', null, foreign(insight.title, 200)),
    el('p', null, foreign(insight.advice, 1000)),
    Object.keys(insight.evidence ?? {}).length ? facts(Object.entries(insight.evidence)) : null,
    insight.setting ? el('p', { class: 'row' }, el('span', { class: 'hint' }, 'Setting'), el('code', null, foreign(insight.setting)),
      /^guards\./.test(insight.setting) && !/\.(patterns|entities)\b/.test(insight.setting) ? el('a', { to: frame.to('settings', { try: insight.setting }) }, 'See what a change would do') : null) : null,
    insight.sessions?.length ? el('p', { class: 'row' }, el('span', { class: 'hint' }, 'For example'), insight.sessions.slice(0, 5).map((id) => el('a', { to: frame.to('session', { session: id }) }, foreign(id, 40)))) : null,
    buttons(insight));

  function group([guard, list]) {
    const worst = SEVERITIES.find((severity) => list.some((insight) => insight.severity === severity));
    const isWanted = wanted && list.some((insight) => anchor(insight) === wanted);
    return el('details', { class: 'insight-group', open: isWanted || !closed.has(guard), on: { toggle: (event) => (event.target.open ? closed.delete(guard) : closed.add(guard)) } },
      el('summary', null, el('strong', null, guard ? guardName(guard) : 'In general'), ' ', badge(`severity-${worst}`, times(list.length, 'suggestion'))),
      el('div', { class: 'cards' }, list.map(card)));
  }

  const aside = (number) => (shows ? el('a', { to: frame.to('insights') }, 'Hide what is put aside') : el('a', { to: frame.to('insights', { show: 'all' }) }, `Show ${count(number)} put aside`));

  async function refresh() {
    const { since, until, tenant, guard } = frame.filters();
    try {
      const answer = await get('v1/insights', { since, until, tenant, show: shows }, aborted.signal);
      const shown = answer.insights.filter((insight) => !guard || insight.guard === guard);
      state.side.replaceChildren(el('span', { class: 'hint' }, shown.length ? `${times(shown.length, 'suggestion')} ` : ''), ...(answer.put_aside ? [aside(answer.put_aside)] : []));
      if (!shown.length) return void state.say(el('strong', null, 'Nothing stands out.'), el('br'), 'Advice needs some traffic: a few hundred decisions, or a longer time in the filter.');
      state.show(shown, (all) => grouped(all).map(group));
      const found = wanted && document.getElementById(`insight-${wanted}`);
      if (found) {
        wanted = undefined;
        found.scrollIntoView({ block: 'start' });
        found.focus({ preventScroll: true });
      }
    } catch (error) {
      frame.failed(state, error);
    }
    return undefined;
  }

  return { refresh, end: () => aborted.abort() };
}
