// The frame around the views: where we are (all of it in the address), the filters, the stream, the key.

import { Problem, follow, get, key } from './api.js';
import { address, el, plain } from './dom.js';
import { alerts } from './view-alerts.js';
import { decisions } from './view-decisions.js';
import { insights } from './view-insights.js';
import { overview } from './view-overview.js';
import { decision, session } from './view-session.js';
import { sessions } from './view-sessions.js';
import { settings } from './view-settings.js';
import { spend } from './view-spend.js';
import { GUARDS, guardName, learnWords, moment, reasonName, zone, zoneName } from './words.js';

const VIEWS = { overview, spend, decisions, sessions, insights, session, decision, settings, alerts };
const NAMES = { overview: 'Overview', spend: 'Spend', decisions: 'Decisions', sessions: 'Sessions', insights: 'Insights', settings: 'Settings', alerts: 'Alerts' };
/// Views without a place in the navigation.
const OTHERS = { session: 'Session', decision: 'Decision' };
const FILTERS = ['since', 'until', 'guard', 'reason', 'tenant'];
const RANGES = { '15m': 'Last 15 minutes', '1h': 'Last hour', '6h': 'Last 6 hours', '24h': 'Last 24 hours', '7d': 'Last 7 days', '30d': 'Last 30 days' };
const DEFAULT_RANGE = '24h';
/// What is looked at by the day, or looked for.
const LONG_RANGE = '30d';
const LONG_VIEWS = ['spend', 'sessions'];
/// Tenants offered in the filter.
const MAX_TENANTS = 50;
/// Time between two looks at the numbers: with few decisions, and with many.
const CALM_MILLIS = 1000;
const BUSY_MILLIS = 5000;
const BUSY_DECISIONS = 20;
/// Time between two looks at whether a changed file was refused.
const FILES_MILLIS = 5000;

const at = (id) => document.getElementById(id);
const main = at('view');
const tenants = new Set();
let where = read();
let view;
let admin = false;
let seesAll = false;
let stopStream;
let paused = false;
let rounds = 0;

function read() {
  const parameters = Object.fromEntries(new URLSearchParams(location.search));
  return { ...parameters, view: Object.hasOwn(VIEWS, parameters.view) ? parameters.view : 'overview' };
}

const usualRange = () => (LONG_VIEWS.includes(where.view) ? LONG_RANGE : DEFAULT_RANGE);
/// The filters as the API takes them.
const filters = () => ({ since: where.since ?? usualRange(), until: where.until, guard: where.guard, reason: where.reason, tenant: where.tenant });
/// The filters as an address keeps them.
const kept = () => Object.fromEntries(FILTERS.filter((name) => where[name]).map((name) => [name, where[name]]));

const to = (name, more = {}) => ({ view: name === 'overview' ? undefined : name, ...kept(), ...more });

function go(parameters) {
  history.pushState(null, '', address(parameters));
  arrive(true);
}

function say(text) {
  at('said').textContent = text;
}

// --- what the views get

const frame = {
  get where() {
    return where;
  },
  get admin() {
    return admin;
  },
  /// Whether the service is ready, what files it refused, what its cluster warns of; undefined before it was asked.
  get health() {
    return health;
  },
  /// Whether the caller sees all tenants, or its own only.
  get seesAll() {
    return seesAll;
  },
  filters,
  to,
  go,
  say,
  knowTenants(rows) {
    for (const row of rows) if (row.tenant && tenants.size < MAX_TENANTS && !tenants.has(row.tenant)) {
      tenants.add(row.tenant);
      at('tenants')?.append(el('option', { value: row.tenant }));
    }
  },
  tenants: () => [...tenants],
  zoom: (since, until) => go({ ...where, view: where.view === 'overview' ? undefined : where.view, since: String(since), until: String(Math.max(until, since + 1000)) }),
  /// Asks before something is changed.
  confirm(title, text, yes) {
    at('confirm-title').textContent = plain(title);
    at('confirm-text').textContent = text;
    at('confirm-yes').textContent = yes;
    const dialog = at('confirm');
    dialog.returnValue = '';
    dialog.showModal();
    return new Promise((resolve) => { dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true }); });
  },
  /// A part that could not be had: what happened, and what to do.
  failed(part, error) {
    if (error.name === 'AbortError') return;
    if (error.status === 401) {
      askForKey(key.get() ? 'This key is wrong or was revoked.' : '');
      part.say('A key is needed.');
    } else if (error.status === 403 && /role/.test(error.message)) {
      askForKey(`This key may not look at the log. ${error.message}`);
      part.say(error.message);
    } else if (error.status === 404) part.say('Not available in this version of the service.');
    else part.say(el('strong', null, error instanceof Problem ? error.title : 'Something went wrong'), el('br'), error.message, ' ',
      el('button', { type: 'button', class: 'quiet', on: { click: () => refresh() } }, 'Try again'));
  },
};

// --- the key

function askForKey(problem) {
  const dialog = at('ask');
  if (problem) at('ask-problem').textContent = problem;
  if (dialog.open) return;
  leaveStream();
  dialog.showModal();
}

at('ask').addEventListener('cancel', (event) => event.preventDefault());
at('ask-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const value = at('ask-key').value.trim();
  if (!value) return;
  key.set(value);
  at('ask-problem').textContent = 'Checking…';
  get('v1/decisions', { limit: 1 }).then(() => {
    at('ask').close();
    at('ask-key').value = '';
    at('ask-problem').textContent = '';
    start();
  }, (error) => {
    key.set('');
    at('ask-problem').textContent = error.status === 401 ? 'This key is wrong or was revoked. Paste it whole; it begins with rg_.' : error.message;
    at('ask-key').select();
  });
});
at('forget').addEventListener('click', () => {
  key.set('');
  location.reload();
});

/// Without keys, everyone who reaches the service is an admin of all tenants.
async function learnRole() {
  if (!key.get()) {
    [admin, seesAll] = [true, true];
    return;
  }
  try {
    const shown = await get('v1/settings');
    [admin, seesAll] = [shown.admin === true, shown.all_tenants === true];
  } catch {
    [admin, seesAll] = [false, false];
  }
}

// --- where we are

function arrive(moved) {
  const before = where.view;
  where = read();
  view?.end?.();
  rounds += 1;
  drawFilters();
  for (const link of document.querySelectorAll('#nav a')) {
    link.setAttribute('href', address(to(link.dataset.nav)));
    const here = link.dataset.nav === where.view;
    if (here) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.querySelector('.brand').setAttribute('href', address(to('overview')));
  main.replaceChildren();
  const title = el('h1', { tabindex: -1 }, NAMES[where.view] ?? OTHERS[where.view]);
  const head = el('div', { class: 'title' }, title);
  main.append(head);
  view = VIEWS[where.view](frame, main, head);
  document.title = `${title.textContent} · RunGuard`;
  if (moved) {
    if (before !== where.view) {
      window.scrollTo(0, 0);
      title.focus({ preventScroll: true });
    }
    say(`${title.textContent} shown`);
  }
  refresh();
  enterStream();
}

addEventListener('popstate', () => arrive(true));
document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href^="?"]');
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(Object.fromEntries(new URLSearchParams(link.getAttribute('href'))));
});

at('nav').append(...Object.entries(NAMES).map(([name, label]) => el('a', { to: { view: name }, 'data-nav': name }, label)));
at('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const id = event.target.elements.session.value.trim();
  event.target.reset();
  if (id) openSession(id);
});

/// The session of that name or, where the name is only how some begin, the list of them.
async function openSession(id) {
  const list = await get('v1/sessions', { prefix: id, since: '365d', limit: 50, tenant: where.tenant }).catch(() => ({ sessions: [] }));
  const [only] = list.sessions;
  if (list.sessions.some((one) => one.session_id === id) || !only) go(to('session', { session: id }));
  else if (list.found === 1) go(to('session', { session: only.session_id, of: only.tenant }));
  else go(to('sessions', { prefix: id }));
}

// --- filters

const local = (ms) => {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 16);
};
const absolute = (text) => (/^\d{9,}$/.test(text ?? '') ? Number(text) : Date.parse(text ?? ''));

function drawFilters() {
  const form = at('filters');
  const wanted = { overview: 'all', decisions: 'all', insights: 'guard', settings: 'time', spend: 'time', sessions: 'time' }[where.view];
  form.hidden = !wanted;
  const focused = form.contains(document.activeElement) ? document.activeElement.name : '';
  const custom = Boolean(where.until) || (where.since && !Object.hasOwn(RANGES, where.since));
  const choice = (value, label, chosen) => el('option', { value, selected: value === chosen }, label);
  const change = (more) => go({ ...where, view: where.view === 'overview' ? undefined : where.view, cursor: undefined, ...more });
  const range = el('select', { name: 'range', on: { change: (event) => {
    if (event.target.value === 'custom') {
      const now = Date.now();
      change({ since: String(now - 86_400_000), until: String(now) });
    } else change({ since: event.target.value === usualRange() ? undefined : event.target.value, until: undefined });
  } } }, Object.entries(RANGES).map(([value, label]) => choice(value, label, custom ? 'custom' : where.since ?? usualRange())), choice('custom', 'Custom range', custom ? 'custom' : ''));
  const field = (label, control) => {
    control.id = `filter-${control.name}`;
    return el('div', { class: 'field' }, el('label', { for: control.id }, label), control);
  };
  const parts = [field('Time', range)];
  if (custom) {
    const [from, until] = [absolute(where.since), absolute(where.until)];
    const edge = (name, value) => el('input', { type: 'datetime-local', name, value: Number.isFinite(value) ? local(value) : '', on: { change: (event) => {
      const picked = Date.parse(event.target.value);
      change({ [name]: Number.isFinite(picked) ? String(picked) : undefined });
    } } });
    parts.push(field('From', edge('since', from)), field('Until', edge('until', until)));
  }
  if (wanted === 'all' || wanted === 'guard') {
    parts.push(field('Guard', el('select', { name: 'guard', on: { change: (event) => change({ guard: event.target.value, reason: undefined }) } },
      choice('', 'All guards', where.guard ?? ''), Object.keys(GUARDS).map((code) => choice(code, guardName(code), where.guard)))));
  }
  if (wanted === 'all') {
    const groups = Object.values(GUARDS).filter(({ guard }) => !where.guard || guard === where.guard);
    parts.push(field('Reason', el('select', { name: 'reason', on: { change: (event) => change({ reason: event.target.value }) } },
      choice('', 'All reasons', where.reason ?? ''),
      groups.map(({ label, reasons }) => {
        const group = el('optgroup', null, reasons.map(({ reason }) => choice(reason, reasonName(reason), where.reason)));
        group.label = label;
        return group;
      }))));
  }
  if (seesAll || where.tenant) parts.push(field('Tenant', el('input', { name: 'tenant', list: 'tenants', value: where.tenant ?? '', placeholder: 'All', maxlength: 256, autocomplete: 'off', spellcheck: 'false', on: { change: (event) => change({ tenant: event.target.value.trim() }) } })));
  if (FILTERS.some((name) => where[name])) {
    const cleared = Object.fromEntries(FILTERS.map((name) => [name, undefined]));
    parts.push(el('button', { type: 'button', class: 'quiet clear', name: 'clear', on: { click: () => change(cleared) } }, 'Clear filters'));
  }
  form.replaceChildren(...parts, el('datalist', { id: 'tenants' }, [...tenants].map((tenant) => el('option', { value: tenant }))));
  if (focused) form.elements[focused]?.focus?.();
}
at('filters').addEventListener('submit', (event) => event.preventDefault());

// --- files that were refused, and a cluster that somebody should look at

const FILES = { settings: 'The changed settings file', keys: 'The changed key file' };
const CLUSTER = {
  state_away: 'The shared state is away: this node decides alone, and its answers are marked.',
  log_away: 'The log takes no rows: what is shown may be old.',
  state_evicts: 'Redis is set up to throw states away when memory is short: caps may be passed. Set maxmemory-policy to noeviction.',
  state_without_aof: 'Redis keeps no append-only file: started again, it has old states or none, until they are built from the log. Set appendonly to yes.',
  settings_differ: 'Nodes of this cluster have different settings.',
  keys_differ: 'Nodes of this cluster have different keys: a caller may be filed under another tenant.',
  rows_not_kept: 'Rows that the log is not known to have were let go of.',
};

let health;

/// What is in force is not what stands in the file: said on every page, until a good file comes.
async function learnRefused() {
  let refused = [];
  let warnings = [];
  try {
    const ready = await get('readyz');
    refused = ready.refused ?? [];
    warnings = ready.cluster?.warnings ?? [];
    health = { isReady: true, refused, warnings: warnings.map((warning) => CLUSTER[warning] ?? plain(warning)) };
  } catch (error) {
    health = { isReady: false, refused, warnings: [error.message] };
    view?.health?.(health);
    return;
  }
  view?.health?.(health);
  at('cluster').textContent = warnings.map((warning) => CLUSTER[warning] ?? plain(warning)).join(' ');
  at('cluster').hidden = !warnings.length;
  const text = refused.map((what) => `${FILES[what] ?? plain(what)} was refused; what was in force before still is.`).join(' ');
  at('refused').hidden = !text;
  if (at('refused').dataset.text === text) return;
  at('refused').dataset.text = text;
  at('refused').replaceChildren(text, ' ', el('a', { to: to('settings') }, 'See why'));
}

setInterval(() => document.hidden || paused || learnRefused(), FILES_MILLIS);

// --- looking again, and the stream

let latest = 0;
let planned = 0;
let recent = [];

async function refresh() {
  clearTimeout(planned);
  planned = 0;
  latest = Date.now();
  const round = rounds;
  const again = await view.refresh();
  at('foot-note').textContent = `Updated ${moment(Date.now())} · times in ${zoneName()}${zoneName() === zone() ? '' : ` (${zone()})`}`;
  // The numbers are made a moment after the decisions: look again until they are all in.
  if (again && round === rounds) plan(CALM_MILLIS);
}

function plan(gap) {
  if (planned || document.hidden || paused) return;
  planned = setTimeout(refresh, Math.max(0, latest + gap - Date.now()));
}

function onBatch(batch) {
  const now = Date.now();
  recent = [...recent.filter(([time]) => now - time < BUSY_MILLIS), [now, batch.count]];
  frame.knowTenants(batch.decisions);
  view.live?.(batch);
  if (view.follows) plan(recent.reduce((sum, [, number]) => sum + number, 0) > BUSY_DECISIONS ? BUSY_MILLIS : CALM_MILLIS);
}

const STATES = { live: 'Live', waiting: 'Reconnecting…', refused: 'Not live', paused: 'Paused', 'caught-up': 'Reconnecting…' };
let state = '';

function onState(next) {
  const came = next === 'live' && (state === 'waiting' || state === 'caught-up');
  state = next;
  at('live').dataset.state = next;
  at('live').setAttribute('aria-pressed', String(next !== 'paused'));
  at('live-text').textContent = STATES[next];
  at('live').title = next === 'paused' ? 'Go on following decisions' : 'Pause';
  if (came) refresh();
}

function leaveStream() {
  stopStream?.();
  stopStream = undefined;
}

function enterStream() {
  leaveStream();
  if (paused || document.hidden || at('ask').open) return;
  const { guard, reason, tenant } = filters();
  stopStream = follow({ ...(view.follows ? { guard, reason } : {}), tenant, kind: 'all', ...view.follow }, { onBatch, onState });
}

at('live').addEventListener('click', () => {
  paused = !paused;
  if (paused) {
    leaveStream();
    clearTimeout(planned);
    planned = 0;
    onState('paused');
  } else {
    refresh();
    enterStream();
  }
});
// A tab that nobody looks at holds no stream and piles nothing up; when it is looked at again it asks anew.
document.addEventListener('visibilitychange', () => {
  if (paused) return;
  if (document.hidden) {
    leaveStream();
    clearTimeout(planned);
    planned = 0;
  } else {
    refresh();
    enterStream();
  }
});

// --- countdowns: <time data-until="ms">

setInterval(() => {
  if (document.hidden) return;
  let over = false;
  for (const node of document.querySelectorAll('[data-until]')) over = view.tick?.(node) || over;
  if (over) plan(CALM_MILLIS);
}, 1000);

// --- theme

const dark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? 'dark' : 'light')) === 'dark';
function themed() {
  at('theme').setAttribute('aria-pressed', String(isDark()));
  view?.redraw?.();
}
at('theme').addEventListener('click', () => {
  const next = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem('runguard.theme', next);
  } catch {
    // The choice lasts as long as the page.
  }
  themed();
});
dark.addEventListener('change', themed);

async function start() {
  at('forget').hidden = !key.get();
  at('metrics').hidden = Boolean(key.get());
  // Without them the page shows the codes.
  await Promise.all([learnRole(), get('v1/guards').then(learnWords, () => {})]);
  arrive(false);
  themed();
  learnRefused();
}

start();
