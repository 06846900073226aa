// What model calls cost, what is left of the budgets, and the runs that ask: with a word on them for those who may.

import { get, post } from './api.js';
import { budgetBars } from './budgets.js';
import { stacked } from './charts.js';
import { badge, el, foreign, panel, table } from './dom.js';
import { compact, count, dollars, percent, reasonName, times, when } from './words.js';

/// Entries of a list that are shown, and runs of a page.
const ROWS = 10;
const RUNS = 25;
const DAY = 86_400_000;
const KINDS = { live: 'allowed', idle: 'plain', tripped: 'would_block', stopped: 'blocked' };
const STATES = { live: 'Live', idle: 'Idle', tripped: 'Tripped', stopped: 'Stopped' };
const FOUND = { header: 'by its header', claude_code: 'as a session of Claude Code', metadata: 'by its metadata', previous_response: 'by the answer before', prompt_cache_key: 'by its cache key', beginning: 'by how it begins' };

export function spend(frame, main) {
  const aborted = new AbortController();
  const tiles = el('dl', { class: 'tiles', 'aria-label': 'Totals' });
  const part = {
    days: panel('Dollars by day', { class: 'full' }),
    budgets: panel('What is left', { class: 'half' }),
    model: panel('By model', { class: 'half' }),
    runs: panel('Runs', { class: 'full' }),
    run: panel('Dearest runs', { class: 'half' }),
    key: panel('By key', { class: 'half' }),
  };
  const chart = stacked('Dollars by day', (since, until) => frame.zoom(since, until), { show: dollars, least: 0, none: 'Nothing spent' });
  const find = el('input', { type: 'search', id: 'runs-prefix', maxlength: 256, placeholder: 'Begins with…', autocomplete: 'off', spellcheck: 'false', value: frame.where.prefix ?? '' });
  const search = el('form', { class: 'inline', role: 'search', 'aria-label': 'Runs', on: { submit: (event) => {
    event.preventDefault();
    frame.go(frame.to('spend', { prefix: find.value.trim() }));
  } } }, el('label', { for: 'runs-prefix', class: 'unseen' }, 'Runs whose name begins with'), find);
  part.runs.side.append(search);
  main.append(tiles, el('div', { class: 'grid' }, Object.values(part).map((one) => one.root)));
  for (const one of Object.values(part)) one.say('Loading…');

  function drawTiles({ total }) {
    const tile = (name, value, note, kind = '') => el('div', { class: `tile ${kind}` }, el('dt', null, name), el('dd', null, el('span', { class: 'value' }, value), el('span', { class: 'hint' }, note)));
    const input = total.input_tokens + total.cached_tokens + total.cache_write_tokens;
    tiles.replaceChildren(
      tile('Spent', dollars(total.usd), total.overdue_usd ? `${dollars(total.overdue_usd)} of it overdue: nobody settled it in time` : total.calls ? `${dollars(total.usd / total.calls)} a call` : 'nothing yet'),
      tile('Model calls', compact(total.calls), 'paid for'),
      tile('Tokens', compact(input + total.output_tokens), `${compact(input)} in, ${compact(total.output_tokens)} out`),
      tile('From caches', input ? percent(total.cached_tokens / input) : '–', 'of what was sent'),
      tile('Blocked', compact(total.refused), 'calls that were not made', total.refused ? 'is-blocked' : ''),
      tile('Saved', total.saved_usd ? `about ${dollars(total.saved_usd)}` : '–', 'blocked calls at an average price', 'is-saved'),
    );
  }

  function drawDays(data, entries) {
    // A day is drawn from its midnight here; which day an hour belongs to the service says.
    const start = (name) => new Date(`${name}T00:00:00`).getTime();
    const since = start(entries[0].name);
    const until = start(entries.at(-1).name) + DAY;
    const starts = Array.from({ length: Math.max(1, Math.round((until - since) / DAY)) }, (_, at) => since + at * DAY);
    const values = new Array(starts.length).fill(0);
    for (const entry of entries) values[Math.min(values.length - 1, Math.round((start(entry.name) - since) / DAY))] += entry.usd;
    part.days.show([], () => [chart.root, el('p', { class: 'hint' }, `Days of ${data.time_zone}.`)]);
    chart.show({ starts, layers: [{ name: 'Dollars', colour: 'c1', values }], since, until, step: DAY });
  }

  const drawEntries = (caption, label, link) => (entries) => [table(caption, [{ label }, { label: 'Calls', class: 'n' }, { label: 'Blocked', class: 'n' }, { label: 'In', class: 'n wide-only' }, { label: 'Out', class: 'n wide-only' }, { label: 'Dollars', class: 'n' }],
    entries.slice(0, ROWS).map((entry) => [link && entry.name !== '(other)' ? el('a', { to: link(entry) }, foreign(entry.name, 40)) : foreign(entry.name, 40), count(entry.calls), entry.refused ? el('span', { class: 'bad' }, count(entry.refused)) : '–',
      compact(entry.input_tokens + entry.cached_tokens + entry.cache_write_tokens), compact(entry.output_tokens), dollars(entry.usd)])),
  entries.length > ROWS ? el('p', { class: 'hint more' }, `and ${count(entries.length - ROWS)} more`) : null];

  async function control(run, verb) {
    const [title, text] = verb === 'stop' ? ['Stop', 'Every further model call of this run is blocked, until somebody resumes it.'] : ['Resume', 'The run may go on, whatever it was stopped for; what it did before does not count against it.'];
    if (!(await frame.confirm(`${title} ${run.run.slice(0, 80)}?`, text, title))) return;
    try {
      await post(`v1/runs/${encodeURIComponent(run.run)}/${verb}`, { tenant: run.tenant }, verb === 'stop' ? { note: 'Stopped from the dashboard' } : undefined);
      frame.say(verb === 'stop' ? 'The run is stopped' : 'The run may go on');
      part.runs.forget();
      await load();
    } catch (error) {
      frame.failed(part.runs, error);
    }
  }

  function drawRuns({ runs, found }) {
    const button = (run, verb, label) => el('button', { type: 'button', class: 'quiet small', 'aria-label': `${label} ${run.run}`, on: { click: () => control(run, verb) } }, label);
    const several = new Set(runs.map((run) => run.tenant)).size > 1;
    return [table('Runs that asked models', [{ label: 'Run' }, { label: 'State' }, { label: 'Model', class: 'wide-only' }, { label: 'Steps', class: 'n wide-only' }, { label: 'Calls', class: 'n wide-only' }, { label: 'Dollars', class: 'n' }, { label: 'Set aside', class: 'n wide-only' }, { label: 'Left', class: 'n wide-only' }, { label: 'Last seen', class: 'wide-only' }, ...(frame.admin ? [{ label: '', unseen: 'Change', class: 'end' }] : [])],
      runs.map((run) => [
        [el('a', { to: frame.to('session', { session: run.run, of: run.tenant }) }, foreign(run.run, 44)), el('span', { class: 'message hint' }, [several ? run.tenant : null, run.key ? `key ${run.key}` : null, run.found_by ? `known ${FOUND[run.found_by] ?? run.found_by}` : null].filter(Boolean).join(', '))],
        [badge(KINDS[run.state] ?? 'plain', STATES[run.state] ?? run.state), run.reason ? el('span', { class: 'message hint' }, reasonName(run.reason)) : null, run.note ? el('span', { class: 'message hint' }, foreign(run.note, 120)) : null],
        run.model ? foreign(run.model, 40) : '–', count(run.steps), count(run.calls), [dollars(run.usd), run.budget.overdue_usd ? el('span', { class: 'message hint' }, `and ${dollars(run.budget.overdue_usd)} overdue`) : null], run.budget.reserved_usd ? dollars(run.budget.reserved_usd) : '–',
        run.budget.remaining_usd === null ? '–' : dollars(run.budget.remaining_usd), el('time', { datetime: run.last_seen }, when(run.last_seen_ms)),
        ...(frame.admin ? [run.state === 'stopped' || run.reason === 'run_stalled' ? button(run, 'resume', 'Resume') : button(run, 'stop', 'Stop')] : [])])),
    found > runs.length ? el('p', { class: 'hint more' }, `and ${times(found - runs.length, 'more run')}`) : null];
  }

  async function load() {
    const { since, until, tenant } = frame.filters();
    const range = { since, until, tenant };
    const show = (one, entries, render, empty) => (entries?.length ? one.show(entries, render) : one.say(...[empty].flat()));
    const numbers = get('v1/spend', { ...range, by: 'day,model,key,run' }, aborted.signal).then((data) => {
      const by = Object.fromEntries(data.groups.map((group) => [group.by, group.entries]));
      drawTiles(data);
      frame.knowTenants([...data.budgets, ...by.run]);
      if (by.day.length) drawDays(data, by.day);
      else part.days.say('No model call in this time. Lead one through the gateway: ', el('code', null, 'export OPENAI_BASE_URL=…/openai/v1'));
      show(part.model, by.model, drawEntries('What was spent by model', 'Model'), 'Nothing yet.');
      show(part.key, by.key, drawEntries('What was spent by key', 'Key'), 'No call with a key of RunGuard’s.');
      show(part.run, by.run, drawEntries('What was spent by run', 'Run', (entry) => frame.to('session', { session: entry.name, of: entry.tenant })), 'Nothing yet.');
      show(part.budgets, data.budgets, (budgets) => budgetBars(budgets, 2 * ROWS), ['No limit that many share. Set one with ', el('code', { class: 'whole' }, '--max-usd-per-day'), ', or ', el('code', null, 'guards.budget.scopes'), '.']);
      return data.behind_rows > 0;
    });
    const list = get('v1/runs', { ...range, prefix: frame.where.prefix, limit: RUNS }, aborted.signal).then((data) => {
      if (data.runs.length) part.runs.show({ runs: data.runs, found: data.found }, drawRuns);
      else part.runs.say(frame.where.prefix ? 'No run whose name begins so.' : 'No run in this time.');
    });
    const [behind] = await Promise.all([
      numbers.catch((error) => { for (const one of [part.days, part.model, part.key, part.run, part.budgets]) frame.failed(one, error); }),
      list.catch((error) => frame.failed(part.runs, error)),
    ]);
    return behind;
  }

  return { follows: true, follow: { guard: undefined, reason: undefined }, refresh: load, redraw: () => chart.redraw(), end: () => { aborted.abort(); chart.end(); } };
}
