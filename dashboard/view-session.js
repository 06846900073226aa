// One session, step by step: what was asked, what was answered and why, what is used up, what would be allowed next. And one decision by
// itself, for a link to it.

import { get } from './api.js';
import { budgetBars } from './budgets.js';
import { badge, bar, copyable, el, foreign, panel, table } from './dom.js';
import { decisionOf, sessionOf, topicOf } from './view-decisions.js';
import { facts } from './view-insights.js';
import { sessionLink } from './view-sessions.js';
import { count, duration, fieldName, guardName, moment, outcomeName, reasonName, whenIn, zone } from './words.js';

/// Said elsewhere in the step.
const KNOWN = new Set(['allow', 'allow_ai_response', 'guard', 'decision_id', 'session_id', 'reason', 'message', 'would_block', 'recorded', 'handoff_chain']);
/// Steps on the page; a session is seldom longer.
const PAGE = 200;

/// What the step used up, in a few words.
const used = (answer) => Object.entries(answer ?? {}).filter(([name, value]) => typeof value === 'number' && /(_used|_remaining|^remaining_|_number|^calls)/.test(name)).slice(0, 3)
  .map(([name, value]) => `${fieldName(name).toLowerCase()} ${count(value)}`).join(' · ');

function step(frame, row, before, at, isAlone = false) {
  const gap = before ? (row.time_ms - before.time_ms) / 1000 : 0;
  const answer = Object.entries(row.answer ?? {}).filter(([name]) => !KNOWN.has(name));
  const input = Object.entries(row.input ?? {}).filter(([name, value]) => value !== null && value !== '' && !Object.hasOwn(row.answer ?? {}, name));
  const refused = row.outcome === 'blocked' || row.outcome === 'would_block';
  const question = row.outcome === 'blocked' ? 'Why was this blocked?' : row.outcome === 'would_block' ? 'Why would this be blocked?' : 'Details';
  return el('li', { class: `step ${row.outcome}` },
    el('div', { class: 'row' },
      el('a', { to: decisionOf(frame, row), class: 'plain', title: 'This decision by itself' }, el('time', { datetime: row.time, title: moment(row.time_ms) }, at(row.time_ms))), before ? el('span', { class: 'hint' }, `+${gap < 10 ? `${Math.max(0, gap).toFixed(1)} s` : duration(gap)}`) : null,
      badge(row.outcome, outcomeName(row.outcome)), el('strong', null, guardName(row.guard)), foreign(topicOf(row), 80), row.kind === 'check' ? el('span', { class: 'hint' }, used(row.answer)) : el('span', { class: 'hint' }, row.kind === 'record' ? 'result' : row.kind)),
    el('details', { open: refused || isAlone, 'data-key': row.decision_id }, el('summary', null, question),
      row.reason ? el('p', null, el('strong', null, reasonName(row.reason)), ' ', el('code', null, row.reason)) : null,
      row.message ? el('p', { class: 'quote' }, foreign(row.message, 2000)) : null,
      answer.length ? [el('h3', { class: 'part' }, 'Counted'), facts(answer)] : null,
      input.length ? [el('h3', { class: 'part' }, 'Asked with'), facts(input)] : null,
      el('p', { class: 'hint' }, 'Decision ', el('code', null, row.decision_id))));
}

export function session(frame, main, head) {
  const id = frame.where.session ?? '';
  const tenant = frame.where.of ?? frame.where.tenant;
  head.append(el('code', { class: 'id' }, foreign(id, 256)));
  const next = panel('What would be allowed next', { class: 'full' });
  const steps = panel('Timeline', { class: 'full' });
  const about = el('p', { class: 'lead' });
  const budgets = panel('What it may spend', { class: 'full' });
  main.append(about, next.root, budgets.root, steps.root);
  budgets.root.hidden = true;
  next.say('Loading…');
  steps.say('Loading…');
  const aborted = new AbortController();
  let limit = PAGE;

  const countdown = (until) => {
    const left = Math.ceil((until - Date.now()) / 1000);
    return left > 0 ? `allowed in ${duration(left)}` : 'allowed again';
  };

  /// What topics were asked in words, by their names.
  let asked = new Map();
  const drawNext = ({ counters }) => table('What is used up and what would be allowed', [{ label: 'Guard' }, { label: 'Subject' }, { label: 'Used', class: 'time' }, { label: '', unseen: 'Share', class: 'wide-only share' }, { label: 'Window', class: 'wide-only' }, { label: 'Next' }],
    counters.map((one) => [guardName(one.guard), foreign(asked.get(one.subject) ?? one.subject, 48), `${count(one.used)} of ${count(one.ceiling)}`, bar(one.ceiling ? one.used / one.ceiling : 0, one.allowed_next ? 'accent' : 'blocked'), duration(one.window_seconds),
      one.allowed_next ? badge('allowed', 'Allowed') : [badge('blocked', reasonName(one.reason)), ' ', one.until === null ? el('span', { class: 'hint' }, 'time alone does not change it') : el('time', { class: 'hint', 'data-until': one.until }, countdown(one.until))]]));

  function drawSteps({ timeline, more }) {
    const at = whenIn(timeline.map((row) => row.time_ms));
    return [el('ol', { class: 'steps' }, timeline.map((row, number) => step(frame, row, timeline[number - 1], at))),
      more ? el('button', { type: 'button', class: 'quiet', on: { click: () => { limit = Math.min(1000, limit + PAGE); load(); } } }, 'Show more steps') : null];
  }

  async function load() {
    try {
      const shown = await get(`v1/sessions/${encodeURIComponent(id)}`, { tenant, limit }, aborted.signal);
      const now = Date.now();
      about.replaceChildren(`${moment(Date.parse(shown.first_seen))} to ${moment(Date.parse(shown.last_seen))} · `, badge('allowed', `${count(shown.counts.allowed)} allowed`), ' ', shown.counts.would_block ? [badge('would_block', `${count(shown.counts.would_block)} would block`)][0] : '', ' ', badge('blocked', `${count(shown.counts.blocked)} blocked`), ' · tenant ', foreign(shown.tenant, 60));
      asked = new Map(shown.timeline.map((row) => [row.subject, topicOf(row)]));
      steps.side.replaceChildren(el('span', { class: 'hint' }, `Times in ${zone()}`));
      if (shown.counters.length) next.show({ counters: shown.counters.map((one) => ({ ...one, until: one.retry_after_seconds === null ? null : now + one.retry_after_seconds * 1000 })), asked: [...asked] }, drawNext);
      else next.say('Nothing is used up: every window has passed.');
      budgets.root.hidden = !shown.budgets.length;
      budgets.show(shown.budgets, (all) => budgetBars(all));
      steps.show({ timeline: shown.timeline, more: Boolean(shown.next_cursor) && limit < 1000 }, drawSteps);
    } catch (error) {
      if (error.status === 404) {
        const others = frame.tenants().filter((other) => other !== tenant);
        next.root.hidden = true;
        const near = await get('v1/sessions', { prefix: id, since: '365d', limit: 20, tenant: frame.where.tenant }, aborted.signal).then((page) => page.sessions, () => []);
        steps.say(el('strong', null, 'Nothing is known of this session.'), el('br'), 'It was never seen, its log was removed, or it belongs to another tenant.', ' ',
          near.length ? el('p', null, 'Names that begin so: ', near.map((one, at) => [at > 0 ? ', ' : null, sessionLink(frame, one)])) : null,
          others.slice(0, 10).map((other) => [el('a', { to: { ...frame.where, of: other } }, 'Look in ', foreign(other, 40)), ' ']));
      } else {
        frame.failed(next, error);
        frame.failed(steps, error);
      }
    }
  }

  if (!id) {
    next.root.hidden = true;
    steps.say('Which session? Type its id into the field above.');
  }
  return {
    follows: Boolean(id),
    follow: id ? { session: id, tenant, guard: undefined, reason: undefined } : {},
    refresh: () => (id ? load() : undefined),
    tick(node) {
      const until = Number(node.dataset.until);
      node.textContent = countdown(until);
      return until <= Date.now() && until > Date.now() - 1500;
    },
    end: () => aborted.abort(),
  };
}

export function decision(frame, main, head) {
  const id = frame.where.decision ?? '';
  const aborted = new AbortController();
  const part = panel('What was decided', { class: 'full' });
  head.append(el('code', { class: 'id' }, foreign(id, 64)));
  main.append(part.root);
  part.say(id ? 'Loading…' : 'Which decision? Its link is at its time in the log.');

  const draw = (row) => [
    el('ol', { class: 'steps' }, step(frame, row, undefined, moment, true)),
    el('p', { class: 'row' }, el('span', { class: 'hint' }, 'Session'), el('a', { to: sessionOf(frame, row) }, foreign(row.session_id, 80)), el('span', { class: 'hint' }, 'tenant ', foreign(row.tenant, 60)), el('span', { class: 'hint' }, `time in ${zone(row.time_ms)}`)),
    copyable('link', location.href, frame.say)];

  return {
    async refresh() {
      if (!id) return;
      try {
        part.show(await get(`v1/decisions/${encodeURIComponent(id)}`, {}, aborted.signal), draw);
      } catch (error) {
        if (error.status === 404) part.say(el('strong', null, 'Nothing is known of this decision.'), el('br'), 'Its log was removed, or it belongs to another tenant.');
        else frame.failed(part, error);
      }
    },
    end: () => aborted.abort(),
  };
}
