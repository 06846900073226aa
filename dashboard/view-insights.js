// Ranked advice, each with what it rests on, the setting to change and sessions to look at.

import { get } from './api.js';
import { badge, el, foreign, panel } from './dom.js';
import { count, decimal, dollars, duration, fieldName, guardName, milliseconds, percent, times } from './words.js';

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

/// By the unit in its name, if it has one.
function named(name, value) {
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

export function insights(frame, main) {
  const list = el('div', { class: 'cards' });
  const state = panel('Advice', { class: 'full' });
  main.append(el('p', { class: 'lead' }, 'What the log suggests to change, the most worthwhile first.'), state.root);
  state.say('Loading…');
  const aborted = new AbortController();

  const card = (insight) => el('article', { class: `card severity-${insight.severity}`, id: `insight-${anchor(insight)}`, tabindex: -1 },
    el('div', { class: 'row' }, badge(`severity-${insight.severity}`, fieldName(insight.severity)), insight.guard ? el('span', { class: 'hint' }, guardName(insight.guard)) : null,
      insight.saves?.operations ? el('span', { class: 'saves' }, `about ${times(insight.saves.operations, 'operation')}${insight.saves.usd ? `, ${dollars(insight.saves.usd)}` : ''}`) : null),
    el('h3', null, foreign(insight.title, 200)),
    el('p', null, foreign(insight.advice, 1000)),
    Object.keys(insight.evidence ?? {}).length ? facts(Object.entries(insight.evidence)) : null,
    insight.setting ? el('p', { class: 'row' }, el('span', { class: 'hint' }, 'Setting'), el('code', null, foreign(insight.setting)),
      /^guards\./.test(insight.setting) && !/\.(patterns|entities)\b/.test(insight.setting) ? el('a', { to: frame.to('settings', { try: insight.setting }) }, 'See what a change would do') : null) : null,
    insight.sessions?.length ? el('p', { class: 'row' }, el('span', { class: 'hint' }, 'For example'), insight.sessions.slice(0, 5).map((id) => el('a', { to: frame.to('session', { session: id }) }, foreign(id, 40)))) : null);

  return {
    async refresh() {
      const { since, until, tenant, guard } = frame.filters();
      try {
        const answer = await get('v1/insights', { since, until, tenant }, aborted.signal);
        const shown = answer.insights.filter((insight) => !guard || insight.guard === guard);
        if (!shown.length) return void state.say(el('strong', null, 'Nothing stands out.'), el('br'), 'Advice needs some traffic: a few hundred decisions, or a longer time in the filter.');
        state.show(shown, (all) => {
          list.replaceChildren(...all.map(card));
          return list;
        });
        state.side.replaceChildren(el('span', { class: 'hint' }, times(shown.length, 'suggestion')));
        const wanted = frame.where.insight && document.getElementById(`insight-${frame.where.insight}`);
        if (wanted) {
          wanted.scrollIntoView({ block: 'start' });
          wanted.focus({ preventScroll: true });
        }
      } catch (error) {
        frame.failed(state, error);
      }
      return undefined;
    },
    end: () => aborted.abort(),
  };
}
