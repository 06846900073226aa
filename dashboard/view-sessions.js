// The sessions: found by how their names begin, the latest, most blocked, dearest or busiest first.

import { csv, download, get } from './api.js';
import { badge, el, foreign, panel, table } from './dom.js';
import { count, day, dollars, reasonName, times, whenIn, zone } from './words.js';

const PAGE = 50;
/// Rows kept on the page, and in a file.
const MOST = 1000;
const SORTS = { last_seen: 'Latest', blocked: 'Most blocked', usd: 'Dearest', decisions: 'Busiest' };
const COLUMNS = ['session_id', 'tenant', 'decisions', 'allowed', 'would_block', 'blocked', 'usd', 'reason', 'first_seen', 'last_seen'];

export const sessionLink = (frame, session) => el('a', { to: frame.to('session', { session: session.session_id, of: session.tenant }) }, foreign(session.session_id, 40));

export function sessions(frame, main, head) {
  const aborted = new AbortController();
  const list = panel('List', { class: 'full' });
  const bottom = el('div', { class: 'row' });
  const sort = Object.hasOwn(SORTS, frame.where.sort ?? '') ? frame.where.sort : 'last_seen';
  const prefix = frame.where.prefix ?? '';
  const choice = (code) => el('a', { to: { ...frame.to('sessions'), prefix, sort: code === 'last_seen' ? '' : code }, class: 'chip', 'aria-current': sort === code ? 'true' : null }, SORTS[code]);
  const find = el('input', { type: 'search', id: 'sessions-prefix', maxlength: 256, placeholder: 'Begins with…', autocomplete: 'off', spellcheck: 'false', value: prefix });
  head.append(el('nav', { class: 'chips', 'aria-label': 'Sort by' }, Object.keys(SORTS).map(choice)),
    el('form', { class: 'inline', role: 'search', 'aria-label': 'Sessions', on: { submit: (event) => {
      event.preventDefault();
      frame.go({ ...frame.to('sessions'), sort: sort === 'last_seen' ? '' : sort, prefix: find.value.trim() });
    } } }, el('label', { for: 'sessions-prefix', class: 'unseen' }, 'Sessions whose name begins with'), find));
  main.append(list.root, bottom);
  list.say('Loading…');
  let rows = [];
  let found = 0;
  let wanted = PAGE;

  const parameters = (more) => {
    const { since, until, tenant } = frame.filters();
    return { since, until, tenant, prefix, sort, ...more };
  };

  function draw(shown) {
    const several = new Set(shown.map((session) => session.tenant)).size > 1;
    const at = whenIn(shown.flatMap((session) => [session.first_seen_ms, session.last_seen_ms]));
    const time = (ms, text) => el('time', { datetime: text }, at(ms));
    return table('Sessions', [{ label: 'Session' }, ...(several ? [{ label: 'Tenant' }] : []), { label: 'Decisions', class: 'n' }, { label: 'Blocked', class: 'n' }, { label: 'Would block', class: 'n wide-only' }, { label: 'Dollars', class: 'n' }, { label: 'Last reason' }, { label: `First seen, ${zone()}`, class: 'time wide-only' }, { label: `Last seen, ${zone()}`, class: 'time' }],
      shown.map((session) => [sessionLink(frame, session), ...(several ? [foreign(session.tenant, 24)] : []), count(session.decisions),
        session.blocked ? el('span', { class: 'bad' }, count(session.blocked)) : '–', session.would_block ? count(session.would_block) : '–', session.usd ? dollars(session.usd) : '–',
        session.reason ? badge(session.blocked ? 'blocked' : 'would_block', reasonName(session.reason)) : '–', time(session.first_seen_ms, session.first_seen), time(session.last_seen_ms, session.last_seen)]));
  }

  const save = () => {
    download(`sessions-${day(Date.now())}.csv`, csv(COLUMNS, rows));
    frame.say(`${times(rows.length, 'session')} saved as CSV`);
  };

  async function load() {
    try {
      const answer = await get('v1/sessions', parameters({ limit: wanted }), aborted.signal);
      rows = answer.sessions;
      found = answer.found;
      frame.knowTenants(rows);
      if (!rows.length) {
        list.say(prefix ? ['No session whose name begins with ', foreign(prefix, 80), ' in this time.'] : 'No session in this time.');
        list.side.replaceChildren();
        bottom.replaceChildren();
        return answer.behind_rows > 0;
      }
      list.show(rows, draw);
      list.side.replaceChildren(el('span', { class: 'hint' }, rows.length < found ? `${count(rows.length)} of ${times(found, 'session')} ` : `${times(found, 'session')} `),
        el('button', { type: 'button', class: 'quiet small', on: { click: save } }, 'Save as CSV'));
      bottom.replaceChildren(...(rows.length < found ? [wanted < MOST ? el('button', { type: 'button', class: 'quiet', on: { click: () => { wanted = Math.min(MOST, wanted + 2 * PAGE); load(); } } }, 'Show more') : el('p', { class: 'hint' }, `${count(MOST)} shown. Narrow the time, or say how the name begins.`)] : []));
      return answer.behind_rows > 0;
    } catch (error) {
      frame.failed(list, error);
      return false;
    }
  }

  return { follows: true, follow: { guard: undefined, reason: undefined }, refresh: load, end: () => aborted.abort() };
}
