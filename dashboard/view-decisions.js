// The log: filtered, in pages, newest first, live at its top.

import { csvPages, download, get } from './api.js';
import { badge, el, foreign, panel, table } from './dom.js';
import { count, day, guardName, moment, outcomeName, reasonName, subjectName, times, whenIn, zone } from './words.js';

const PAGE = 50;
/// Rows of a file.
const MOST_SAVED = 20_000;
/// Rows kept on the page; reading on from there starts a page of its own.
const MOST = 1000;

/// Where a decision's session is shown; another tenant's session needs its tenant named.
export const sessionOf = (frame, decision) => frame.to('session', { session: decision.session_id, of: decision.tenant !== 'default' && decision.tenant !== frame.where.tenant ? decision.tenant : undefined });

/// A topic's name is a hash; what was asked says more.
export const topicOf = (row) => (subjectName(row.guard) === 'topic' && (row.input?.query || row.input?.query_text)) || row.subject;

/// Where one decision is shown by itself.
export const decisionOf = (frame, decision) => frame.to('decision', { decision: decision.decision_id });

export function decisionTable(frame, rows, caption) {
  const at = whenIn(rows.map((row) => row.time_ms));
  return table(caption, [{ label: `Time, ${zone()}`, class: 'time' }, { label: 'Outcome', class: 'outcome' }, { label: 'Guard', class: 'guard wide-only' }, { label: 'Subject', class: 'subject' }, { label: 'Why', class: 'why' }, { label: 'Session', class: 'session' }],
    rows.map((row) => [
      el('a', { to: decisionOf(frame, row), class: 'plain', title: 'This decision by itself' }, el('time', { datetime: row.time, title: moment(row.time_ms), class: row.fresh ? 'fresh' : '' }, at(row.time_ms))),
      badge(row.outcome, outcomeName(row.outcome)), guardName(row.guard), [foreign(topicOf(row), 40), el('span', { class: 'hint narrow-only' }, ` ${guardName(row.guard)}`)],
      row.reason ? [el('a', { to: frame.to('decisions', { reason: row.reason }), title: row.reason }, reasonName(row.reason)), row.message ? el('span', { class: 'message' }, foreign(row.message, 240)) : null] : el('span', { class: 'hint' }, '–'),
      el('a', { to: sessionOf(frame, row) }, foreign(row.session_id, 28))]), 'stack');
}

export function decisions(frame, main, head) {
  const list = panel('Log', { class: 'full' });
  const bottom = el('div', { class: 'row' });
  const outcome = frame.where.outcome ?? '';
  const choice = (value, label) => el('a', { to: { ...frame.to('decisions'), outcome: value }, class: 'chip', 'aria-current': outcome === value ? 'true' : null }, label);
  head.append(el('nav', { class: 'chips', 'aria-label': 'Outcome' }, choice('', 'All'), ['allowed', 'would_block', 'blocked'].map((code) => choice(code, outcomeName(code)))));
  main.append(list.root, bottom);
  list.say('Loading…');
  const aborted = new AbortController();
  let rows = [];
  let cursor = null;
  const parameters = () => ({ ...frame.filters(), outcome, limit: PAGE });

  function draw() {
    if (!rows.length) return list.say('No decision matches. Take a longer time or clear the filters.');
    list.show(rows, (shown) => decisionTable(frame, shown, 'Decisions, newest first'));
    list.side.replaceChildren(el('span', { class: 'hint' }, `${times(rows.length, 'decision')}${cursor ? ' so far' : ''} `),
      el('button', { type: 'button', class: 'quiet small', on: { click: save } }, 'Save as CSV'));
    bottom.replaceChildren(...(cursor && rows.length < MOST ? [el('button', { type: 'button', class: 'quiet', on: { click: more } }, 'Show older')] : rows.length >= MOST ? [el('p', { class: 'hint' }, `${count(MOST)} shown. Narrow the time for older ones.`)] : []));
  }

  /// All that the filters let through, not only what is on the page.
  async function save(event) {
    event.target.disabled = true;
    try {
      const { text, isCut } = await csvPages('v1/decisions', { ...frame.filters(), outcome }, MOST_SAVED);
      download(`decisions-${day(Date.now())}.csv`, text);
      frame.say(isCut ? `The newest ${count(MOST_SAVED)} decisions saved as CSV; narrow the time for the others` : 'Decisions saved as CSV');
    } catch (error) {
      frame.failed(list, error);
    }
    event.target.disabled = false;
  }

  function add(fresh) {
    const known = new Set(rows.map((row) => row.decision_id));
    rows = [...rows, ...fresh.filter((row) => !known.has(row.decision_id))].sort((a, b) => (a.decision_id < b.decision_id ? 1 : -1)).slice(0, MOST);
  }

  async function more() {
    try {
      const page = await get('v1/decisions', { ...parameters(), cursor }, aborted.signal);
      add(page.decisions);
      cursor = page.next_cursor;
      draw();
      frame.say(`${times(page.decisions.length, 'older decision')} shown`);
    } catch (error) {
      frame.failed(list, error);
    }
  }

  return {
    follow: { guard: frame.where.guard, reason: frame.where.reason },
    async refresh() {
      try {
        const page = await get('v1/decisions', parameters(), aborted.signal);
        if (!rows.length) cursor = page.next_cursor;
        frame.knowTenants(page.decisions);
        add(page.decisions);
        draw();
      } catch (error) {
        frame.failed(list, error);
      }
    },
    live(batch) {
      if (frame.where.until) return;
      const fresh = batch.decisions.filter((row) => row.kind === 'check' && (!outcome || row.outcome === outcome));
      if (!fresh.length) return;
      rows = rows.map((row) => (row.fresh ? { ...row, fresh: undefined } : row));
      add(fresh.map((row) => ({ ...row, fresh: true })));
      draw();
    },
    end: () => aborted.abort(),
  };
}
