// Everything at a glance, each number a way to the decisions behind it.

import { get, post } from './api.js';
import { budgetBars } from './budgets.js';
import { GUARD_COLOURS, chainText, columns, graph, histogram, line, stacked } from './charts.js';
import { badge, bar, el, foreign, panel, table } from './dom.js';
import { decisionTable } from './view-decisions.js';
import { adviceTitle } from './view-insights.js';
import { welcome } from './view-welcome.js';
import { compact, count, decimal, dollars, duration, fieldName, guardName, milliseconds, outcomeName, percent, reasonName, subjectName, times } from './words.js';

/// Rows a list shows before it says how many more there are.
const ROWS = 8;
const LATEST = 10;

/// Names of something that is wrong before it says how many more there are.
const NAMED = 3;

export function overview(frame, main) {
  const tiles = el('dl', { class: 'tiles', 'aria-label': 'Totals' });
  const part = {
    outcomes: panel('Decisions by outcome', { class: 'half' }),
    guards: panel('Decisions by guard', { class: 'half' }),
    reasons: panel('Why blocked', { class: 'half' }),
    advice: panel('What to change', { class: 'half' }),
    circuits: panel('Circuits', { class: 'full' }),
    latest: panel('Latest decisions', { class: 'full' }),
    handoffs: panel('Handoffs', { class: 'half' }),
    subjects: panel('Most blocked', { class: 'half' }),
    topics: panel('Knowledge base topics', { class: 'full' }),
    actions: panel('Agent actions', { class: 'third' }),
    endpoints: panel('Endpoints', { class: 'wide' }),
    entities: panel('Values given in words', { class: 'third' }),
    budgets: panel('Budgets', { class: 'wide' }),
    consumption: panel('Consumption', { class: 'full' }),
  };
  const behind = el('p', { class: 'note', hidden: true });
  const checks = el('ul', { class: 'checks', 'aria-label': 'Is something wrong?' });
  const card = welcome(frame);
  const grid = el('div', { class: 'grid' }, Object.values(part).map((one) => one.root));
  main.append(checks, behind, card.root, tiles, grid);
  for (const one of Object.values(part)) one.say('Loading…');
  const byOutcome = stacked('Decisions over time by outcome', frame.zoom);
  const byGuard = stacked('Decisions over time by guard', frame.zoom);
  part.outcomes.side.append(el('span', { class: 'hint' }, 'Drag to zoom'));
  part.latest.side.append(el('a', { to: frame.to('decisions') }, 'All decisions'));
  part.advice.side.append(el('a', { to: frame.to('insights') }, 'All insights'));
  const aborted = new AbortController();
  let latest = [];
  let edges = [];
  let chains = [];
  let isEmpty = false;
  const sessions = (ids, most = 3) => (ids ?? []).slice(0, most).map((id, at) => [at > 0 ? ', ' : null, el('a', { to: frame.to('session', { session: id }) }, foreign(id, 24))]);
  const none = (one, text) => one.say(text);
  const more = (list, one, many) => (list.length > ROWS ? el('p', { class: 'hint more' }, `and ${times(list.length - ROWS, `more ${one}`, many && `more ${many}`)}`) : null);

  // --- is something wrong?

  const found = {};
  const names = (list) => [list.slice(0, NAMED).map((name, at) => [at > 0 ? ', ' : null, foreign(name, 40)]), list.length > NAMED ? ` and ${count(list.length - NAMED)} more` : null];

  /// Always the same four in the same places: what is well is seen as well.
  function drawChecks() {
    const check = (name, state, text, to, more) => el('li', { class: `check-item ${state}` }, el('span', { class: 'sign', 'aria-hidden': 'true' }, { well: '✓', wrong: '!', unknown: '…' }[state]),
      el('div', null, el('span', { class: 'name' }, name), to ? el('a', { to }, text) : el('span', { class: 'text' }, text), more ? el('span', { class: 'hint' }, more) : null));
    const { circuits, alerts } = found;
    const { health } = frame;
    const open = circuits?.list.filter((circuit) => circuit.phase !== 'closed') ?? [];
    const firing = alerts?.rules ?? [];
    checks.replaceChildren(
      !circuits ? check('Circuits', 'unknown', 'Not known') : circuits.open + circuits.halfOpen ? check('Circuits', 'wrong', [circuits.open ? `${count(circuits.open)} open` : null, circuits.halfOpen ? `${count(circuits.halfOpen)} half open` : null].filter(Boolean).join(', '), frame.to('decisions', { guard: 'api_circuit' }), names(open.map((circuit) => circuit.endpoint_key))) : check('Circuits', 'well', 'None open'),
      !alerts ? check('Alerts', 'unknown', 'Not known') : firing.length ? check('Alerts', 'wrong', `${count(firing.length)} firing`, frame.to('alerts'), names(firing)) : alerts.dead ? check('Alerts', 'wrong', `${times(alerts.dead, 'message')} not delivered`, frame.to('alerts')) : check('Alerts', 'well', 'None firing'),
      !health ? check('Service', 'unknown', 'Not known') : !health.isReady ? check('Service', 'wrong', 'Not ready', undefined, health.warnings.join(' ')) : health.warnings.length ? check('Service', 'wrong', 'Degraded', undefined, health.warnings.join(' ')) : found.degraded ? check('Service', 'wrong', `${times(found.degraded, 'answer')} without its state`, frame.to('decisions', { reason: 'state_unavailable' })) : check('Service', 'well', 'Ready'),
      !health || !health.isReady ? check('Settings', 'unknown', 'Not known') : health.refused.length ? check('Settings', 'wrong', `${health.refused.includes('keys') ? 'A changed key file' : 'The changed file'} was refused`, frame.to('settings')) : check('Settings', 'well', 'In force'),
    );
  }
  drawChecks();

  /// Every rule that fires, once a thing that it fires for.
  const loadAlerts = () => get('v1/alerts', {}, aborted.signal).then((answer) => {
    found.alerts = { rules: (answer.rules ?? []).flatMap((rule) => (rule.firing ?? []).map((one) => one.title)), dead: answer.dead?.length ?? 0 };
    drawChecks();
  }, () => {});

  function drawTiles(data) {
    const { totals } = data;
    const share = totals.decisions ? totals.blocked / totals.decisions : 0;
    const tile = (name, value, note, kind = '') => el('div', { class: `tile ${kind}` }, el('dt', null, name), el('dd', null, el('span', { class: 'value' }, value), el('span', { class: 'hint' }, note)));
    tiles.replaceChildren(
      tile('Decisions', compact(totals.decisions), totals.sessions_estimate ? `in about ${times(totals.sessions_estimate, 'session')}` : `${compact(totals.allowed)} allowed`),
      tile(outcomeName('blocked'), compact(totals.blocked), totals.decisions ? `${percent(share)} of decisions` : 'nothing yet', totals.blocked ? 'is-blocked' : ''),
      tile(outcomeName('would_block'), compact(totals.would_block), totals.would_block ? 'in observe mode, let through' : 'nothing in observe mode', 'is-would'),
      tile('Operations saved', compact(totals.operations_saved), 'calls that were not made', 'is-saved'),
      tile('Credits saved', totals.credits_saved ? decimal(totals.credits_saved) : '–', totals.credits_saved ? 'at your rate' : 'set savings.credits_per_operation'),
      tile('Dollars saved', totals.usd_saved ? dollars(totals.usd_saved) : '–', totals.usd_saved ? 'at your rate' : ['set ', foreign('savings.usd_per_operation', 40)]),
    );
  }

  function drawCharts(data) {
    const { starts, step, spread } = columns(data);
    const guards = Object.entries(data.series?.by_guard ?? {});
    const range = { starts, step, since: data.since_ms, until: Math.max(data.until_ms, data.since_ms + 1000) };
    const add = (rows) => rows.reduce((sum, row) => sum.map((value, at) => value + row[at]), new Array(starts.length).fill(0));
    const outcome = (name) => add(guards.map(([, values]) => spread(values[name])));
    if (!part.outcomes.body.contains(byOutcome.root)) part.outcomes.body.replaceChildren(byOutcome.root);
    if (!part.guards.body.contains(byGuard.root)) part.guards.body.replaceChildren(byGuard.root);
    byOutcome.show({ ...range, layers: [
      { name: outcomeName('allowed'), colour: 'chart-allowed', values: outcome('allowed') },
      { name: outcomeName('would_block'), colour: 'chart-would', values: outcome('would_block') },
      { name: outcomeName('blocked'), colour: 'chart-blocked', values: outcome('blocked') },
    ] });
    const summed = guards.map(([guard, values]) => ({ guard, values: add(['allowed', 'would_block', 'blocked'].map((name) => spread(values[name]))) }))
      .map((layer) => ({ ...layer, total: layer.values.reduce((sum, value) => sum + value, 0) })).filter((layer) => layer.total > 0).sort((a, b) => b.total - a.total);
    const shown = summed.slice(0, GUARD_COLOURS.length - 1).map((layer, at) => ({ name: guardName(layer.guard), colour: GUARD_COLOURS[at], values: layer.values }));
    const rest = summed.slice(GUARD_COLOURS.length - 1);
    if (rest.length) shown.push({ name: 'Others', colour: GUARD_COLOURS.at(-1), values: add(rest.map((layer) => layer.values)) });
    byGuard.show({ ...range, layers: shown.length ? shown : [{ name: 'None', colour: 'chart-allowed', values: new Array(starts.length).fill(0) }] });
  }

  function drawReasons(reasons) {
    const most = Math.max(1, ...reasons.map((reason) => reason.blocked + reason.would_block));
    return [el('ul', { class: 'bars' }, reasons.slice(0, ROWS).map((reason) => el('li', null,
      el('a', { to: frame.to('decisions', { reason: reason.reason, guard: reason.guard }), title: reason.reason },
        el('span', { class: 'what' }, reasonName(reason.reason), ' ', el('span', { class: 'hint' }, guardName(reason.guard))),
        el('span', { class: 'n' }, count(reason.blocked), reason.would_block ? el('span', { class: 'hint' }, ` + ${count(reason.would_block)} observed`) : null),
        bar((reason.blocked + reason.would_block) / most, reason.blocked ? 'blocked' : 'would')),
      el('button', { type: 'button', class: 'quiet small', 'aria-label': `Filter by ${reasonName(reason.reason)}`, on: { click: () => frame.go(frame.to('overview', { reason: reason.reason })) } }, 'Filter')))),
    more(reasons, 'reason')];
  }

  function drawSubjects({ subjects }) {
    return [table('Tasks, bots, topics and others by blocked decisions', [{ label: 'What' }, { label: 'Guard', class: 'wide-only' }, { label: 'Blocked', class: 'n' }, { label: 'Allowed', class: 'n' }, { label: 'Example', class: 'wide-only' }],
      subjects.slice(0, ROWS).map((subject) => [
        [foreign(inWords(subject.guard, subject.subject), 48), el('span', { class: 'hint' }, ` ${subjectName(subject.guard)}`)], guardName(subject.guard),
        [count(subject.blocked), subject.would_block ? el('span', { class: 'hint' }, ` + ${count(subject.would_block)}`) : null], count(subject.allowed), sessions(subject.sessions, 1)])),
    more(subjects, 'subject')];
  }

  function drawHandoffs({ edges: given, chains: stopped }) {
    edges = given;
    const holder = el('div', { class: 'graph-holder' });
    chains = stopped;
    requestAnimationFrame(() => drawGraph(holder));
    return [holder, el('ul', { class: 'legend' }, el('li', null, el('i', { class: 'swatch chart-allowed', 'aria-hidden': 'true' }), 'passed'), el('li', null, el('i', { class: 'swatch chart-blocked', 'aria-hidden': 'true' }), '✕ blocked'), stopped.length ? el('li', null, el('i', { class: 'swatch circle', 'aria-hidden': 'true' }), '↻ goes round in a circle') : null),
      stopped.length ? el('div', { class: 'chains' }, el('h3', null, 'Chains that were stopped'),
        el('ol', null, stopped.slice(0, 5).map((chain) => el('li', null, el('span', { class: 'chain' }, chainText(chain.chain.slice(0, 12))), el('span', { class: 'hint' }, ` × ${count(chain.count)} · `), sessions(chain.sessions))))) : null,
      el('details', { class: 'numbers', 'data-key': 'handoffs' }, el('summary', null, 'Show as table'),
        table('Handoffs from bot to bot', [{ label: 'From' }, { label: 'To' }, { label: 'Allowed', class: 'n' }, { label: 'Blocked', class: 'n' }],
          given.map((edge) => [foreign(edge.source, 40), foreign(edge.target, 40), count(edge.allowed), count(edge.blocked)])))];
  }

  function drawGraph(holder) {
    if (holder.clientWidth) holder.replaceChildren(graph(edges, chains, Math.max(260, Math.round(holder.clientWidth))));
  }

  function drawTopics(topics) {
    return [table('Knowledge base topics by queries', [{ label: 'Topic' }, { label: 'Queries', class: 'n' }, { label: 'Blocked', class: 'n' }, { label: 'Best', class: 'n' }, { label: 'Mean', class: 'n wide-only' }, { label: 'Confidence 0–1' }, { label: 'Sessions < 0.5', class: 'n' }, { label: 'Examples', class: 'wide-only' }],
      topics.slice(0, ROWS).map((topic) => [
        [foreign(topic.label || topic.topic, 70), topic.is_gap ? [' ', badge('gap', 'Gap')] : null, topic.phrasings > 1 ? el('span', { class: 'hint' }, ` in ${count(topic.phrasings)} wordings`) : null], count(topic.queries), count(topic.blocked), topic.best_confidence.toFixed(2), topic.mean_confidence.toFixed(2),
        histogram(topic.histogram, `Answers by confidence, from 0 to 1 in tenths: ${topic.histogram.join(', ')}`), `${Math.round(topic.low_share * 100)} %`, sessions(topic.sessions)])),
    topics.some((topic) => topic.is_gap) ? el('p', { class: 'hint more' }, 'Gap: asked often and never answered well. Write that document first.') : null, more(topics, 'topic')];
  }

  function drawActions({ actions, skew }) {
    const words = skew >= 0.6 ? 'few actions do nearly all the work' : skew >= 0.35 ? 'some actions run far more than others' : 'evenly used';
    return [el('p', { class: 'hint' }, `Skew ${decimal(skew)}: ${words}`),
      el('ul', { class: 'bars' }, actions.slice(0, ROWS).map((action) => el('li', null, el('div', null,
        el('span', { class: 'what' }, foreign(action.action, 40)),
        el('span', { class: 'n' }, `${percent(action.share)} `, el('span', { class: 'hint' }, `${times(action.runs, 'run')}${action.blocked ? `, ${count(action.blocked)} blocked` : ''}`)), bar(action.share, 'accent'))))),
      more(actions, 'action')];
  }

  function drawEndpoints(endpoints) {
    const sorted = [...endpoints].sort((a, b) => b.failure_rate * b.calls - a.failure_rate * a.calls || (b.mean_ms ?? 0) - (a.mean_ms ?? 0));
    return [table('Endpoints, the most failing and slowest first', [{ label: 'Endpoint' }, { label: 'Calls', class: 'n' }, { label: 'Failed', class: 'n' }, { label: 'Mean', class: 'n' }, { label: 'Slowest', class: 'n wide-only' }, { label: 'Blocked', class: 'n wide-only' }, { label: 'Failures over time', class: 'wide-only' }],
      sorted.slice(0, ROWS).map((one) => [foreign(one.endpoint, 40), count(one.calls), el('span', { class: one.failure_rate >= 0.2 ? 'bad' : '' }, percent(one.failure_rate)), milliseconds(one.mean_ms), milliseconds(one.max_ms), count(one.blocked),
        line(one.failures_over_time, `Failures over time, at most ${count(Math.max(0, ...(one.failures_over_time ?? [])))} at once`) ?? '–'])),
    more(endpoints, 'endpoint')];
  }

  const drawEntities = (entities) => [table('Entities users give in words', [{ label: 'Entity' }, { label: 'Hints', class: 'n' }, { label: 'Blocked', class: 'n' }],
    entities.slice(0, ROWS).map((entity) => [foreign(entity.entity, 40), count(entity.hints), count(entity.blocked ?? 0)])), more(entities, 'entity', 'entities')];

  const drawBudgets = (budgets) => [budgetBars(budgets, ROWS), more(budgets, 'budget')];

  // --- circuits

  const PHASES = { closed: 'Closed', open: 'Open', half_open: 'Half open' };
  const phase = (circuit) => [badge(`phase-${circuit.phase}`, PHASES[circuit.phase] ?? circuit.phase), circuit.forced ? el('span', { class: 'hint' }, ' forced') : null];

  function recovery(circuit) {
    if (circuit.forced) return 'held by an operator';
    if (circuit.phase === 'half_open') return circuit.probes_out ? `${times(circuit.probes_out, 'probe')} out` : 'next call probes';
    if (circuit.until === null) return '–';
    return el('time', { 'data-until': circuit.until }, countdown(circuit.until));
  }

  const countdown = (until) => {
    const left = Math.ceil((until - Date.now()) / 1000);
    return left > 0 ? `probes in ${duration(left)}` : 'next call probes';
  };

  async function control(circuit, verb) {
    const words = {
      open: ['Force open', 'Every call to it is blocked, in every session, until someone closes or resets it.'],
      close: ['Force closed', 'Every call to it passes, whatever fails, until someone opens or resets it.'],
      reset: ['Reset', 'Failures are forgotten and it decides for itself again.'],
    }[verb];
    if (!(await frame.confirm(`${words[0]}: ${circuit.endpoint_key.slice(0, 80)}?`, words[1], words[0]))) return;
    try {
      await post(`v1/circuits/${encodeURIComponent(circuit.endpoint_key)}/${verb}`, { tenant: circuit.tenant });
      frame.say(`${words[0]}: done`);
      part.circuits.forget();
      await loadCircuits();
    } catch (error) {
      frame.failed(part.circuits, error);
    }
  }

  function drawCircuits({ circuits, all }) {
    const shown = circuits.slice(0, 20);
    const several = new Set(circuits.map((circuit) => circuit.tenant)).size > 1;
    const button = (circuit, verb, label) => el('button', { type: 'button', class: 'quiet small', 'aria-label': `${label} ${circuit.endpoint_key}`, on: { click: () => control(circuit, verb) } }, label);
    return [table('Circuits of endpoints', [{ label: 'Endpoint' }, { label: 'Phase' }, { label: 'Failures' }, { label: 'Recovery' }, { label: 'Tripped again', class: 'wide-only' }, ...(frame.admin ? [{ label: '', unseen: 'Change', class: 'end' }] : [])],
      shown.map((circuit) => [
        [foreign(circuit.endpoint_key, 48), several ? el('span', { class: 'hint' }, ' ', foreign(circuit.tenant, 24)) : null], phase(circuit),
        [el('span', { class: circuit.recent_failures >= circuit.failure_threshold ? 'bad' : '' }, `${count(circuit.recent_failures)} of ${count(circuit.failure_threshold)}`), el('span', { class: 'narrow-only' }, ' failures'), el('span', { class: 'hint' }, ` in ${duration(circuit.failure_window_seconds)}`)],
        recovery(circuit), count(circuit.retrips),
        ...(frame.admin ? [el('span', { class: 'buttons' }, circuit.forced === 'open' ? null : button(circuit, 'open', 'Open'), circuit.forced === 'closed' ? null : button(circuit, 'close', 'Close'), button(circuit, 'reset', 'Reset'))] : [])]), 'stack flow'),
    all > shown.length ? el('p', { class: 'hint more' }, `and ${times(all - shown.length, 'more circuit')}`) : null];
  }

  // --- loading

  const attempt = async (question, shown, parts) => {
    try {
      shown(await question());
    } catch (error) {
      for (const one of parts) frame.failed(one, error);
    }
  };
  const ask = (path, parameters, shown, parts) => attempt(() => get(path, parameters, aborted.signal), shown, parts);

  /// Where there are more than a page of them, those that are not closed are asked for by name: they are what matters.
  const circuitsOf = async (tenant) => {
    const page = await get('v1/circuits', { tenant }, aborted.signal);
    const wanted = page.next_cursor ? ['open', 'half_open'] : [];
    const pages = await Promise.all(wanted.map((phase) => get('v1/circuits', { tenant, phase }, aborted.signal)));
    const named = new Map([...pages, page].flatMap(({ circuits }) => circuits).map((circuit) => [JSON.stringify([circuit.tenant, circuit.endpoint_key]), circuit]));
    return { circuits: [...named.values()], counts: page.counts, all: Object.values(page.counts).reduce((sum, one) => sum + one, 0) };
  };

  const loadCircuits = () => attempt(() => circuitsOf(frame.where.tenant), ({ circuits, counts, all }) => {
    frame.knowTenants(circuits);
    found.circuits = { list: circuits, open: counts.open, halfOpen: counts.half_open };
    drawChecks();
    const rank = { open: 0, half_open: 1, closed: 2 };
    const now = Date.now();
    const list = circuits.map((circuit) => ({ ...circuit, until: circuit.recovery_seconds_remaining === null ? null : now + circuit.recovery_seconds_remaining * 1000 }))
      .sort((a, b) => rank[a.phase] - rank[b.phase] || b.recent_failures - a.recent_failures || a.endpoint_key.localeCompare(b.endpoint_key));
    if (list.length) part.circuits.show({ circuits: list, all }, drawCircuits);
    else none(part.circuits, 'No endpoint was called through a circuit yet.');
  }, [part.circuits]);

  const fromOverview = [part.outcomes, part.guards, part.reasons, part.handoffs, part.subjects, part.topics, part.actions, part.endpoints, part.entities, part.budgets];

  function showOverview(data) {
    drawTiles(data);
    behind.hidden = !(data.behind_rows > 1000);
    behind.textContent = `${count(data.behind_rows)} decisions are logged and not counted here yet.`;
    isEmpty = data.totals.decisions === 0;
    found.degraded = (data.reasons ?? []).filter((reason) => reason.reason === 'state_unavailable').reduce((sum, reason) => sum + reason.blocked + reason.would_block, 0);
    drawChecks();
    drawCharts(data);
    const list = (one, items, render, text) => (items?.length ? one.show(items, render) : none(one, text));
    const filtered = frame.where.guard || frame.where.reason || frame.where.tenant;
    list(part.reasons, data.reasons, drawReasons, isEmpty ? (filtered ? 'Nothing matches these filters in this time.' : 'Nothing decided in this time.') : 'Nothing was blocked. Good.');
    labels = new Map((data.topics ?? []).flatMap((topic) => [topic.topic, ...topic.members].map((name) => [name, topic.label])));
    if (data.subjects?.length) part.subjects.show({ subjects: data.subjects, labels: [...labels] }, drawSubjects);
    else none(part.subjects, 'Tasks, bots, topics and endpoints show here.');
    if (data.handoffs?.edges?.length) part.handoffs.show(data.handoffs, drawHandoffs);
    else none(part.handoffs, 'No bot handed a conversation over.');
    list(part.topics, data.topics, drawTopics, 'No knowledge base query in this time.');
    if (data.actions?.length) part.actions.show({ actions: data.actions, skew: data.action_skew }, drawActions);
    else none(part.actions, 'No agent action in this time.');
    list(part.endpoints, data.endpoints, drawEndpoints, 'No call to an endpoint was recorded.');
    list(part.entities, data.entities, drawEntities, 'No value was given in words.');
    list(part.budgets, data.budgets, drawBudgets, 'No budget in use.');
  }

  const loadLatest = () => {
    const { guard, reason, tenant, since, until } = frame.filters();
    return ask('v1/decisions', { guard, reason, tenant, since, until, limit: LATEST }, ({ decisions }) => {
      frame.knowTenants(decisions);
      const fresh = new Set(decisions.map((decision) => decision.decision_id));
      latest = [...latest.filter((decision) => !fresh.has(decision.decision_id)), ...decisions].sort((a, b) => (a.decision_id < b.decision_id ? 1 : -1)).slice(0, LATEST);
      drawLatest();
    }, [part.latest]);
  };

  function drawLatest() {
    reveal();
    if (latest.length) part.latest.show(latest, (rows) => decisionTable(frame, rows, 'Latest decisions'));
    else part.latest.say('No decision in this time.');
  }

  /// Where nothing was ever decided, the page is how to begin.
  async function greet() {
    if (!isEmpty || latest.length || frame.where.guard || frame.where.reason || frame.where.tenant || card.isShown) return;
    const { decisions } = await get('v1/decisions', { limit: 1, kind: 'all' }, aborted.signal).catch(() => ({ decisions: [undefined] }));
    if (decisions.length || latest.length) return;
    card.open();
    tiles.hidden = true;
    grid.hidden = true;
  }

  /// The rest of the page, once there is something to show.
  function reveal() {
    if (!card.isShown || !latest.length) return;
    card.arrived(latest[0]);
    tiles.hidden = false;
    grid.hidden = false;
  }

  const loadAdvice = () => ask('v1/insights', { since: frame.filters().since, until: frame.where.until, tenant: frame.where.tenant }, ({ insights }) => {
    if (insights.length) part.advice.show(insights.slice(0, 5), (list) => el('ol', { class: 'advice-short' }, list.map((insight) => el('li', null, badge(`severity-${insight.severity}`, fieldName(insight.severity)), el('div', null, adviceTitle(frame, insight), el('span', { class: 'message' }, foreign(insight.advice, 200)))))));
    else none(part.advice, 'Nothing stands out. Advice comes with traffic.');
  }, [part.advice]);

  /// Topics in words, by their names.
  let labels = new Map();
  const inWords = (guard, name) => (subjectName(guard) === 'topic' && labels.get(name)) || name;

  function drawConsumption({ weeks: each, steps }) {
    // The sum of one bot is what it is itself.
    const weeks = new Set(each.map((week) => week.bot)).size > 2 ? each : each.filter((week) => week.bot !== null);
    const change = (week) => (week.change === null ? '–' : `${week.change > 0 ? '+' : ''}${Math.round(week.change * 100)} %`);
    const bot = (name) => (name === null ? 'all' : name === '' ? '–' : foreign(name, 40));
    return [table('AI steps by week and bot', [{ label: 'Week from' }, { label: 'Bot' }, { label: 'Sessions', class: 'n' }, { label: 'AI steps', class: 'n' }, { label: 'Steps a session', class: 'n' }, { label: 'Change', class: 'n' }],
      weeks.slice(-ROWS).reverse().map((week) => [[week.week, week.is_whole ? null : el('span', { class: 'hint' }, ' in part')], bot(week.bot), count(week.sessions), count(week.ai_steps), week.steps_per_session.toFixed(2), change(week)])),
    table('Heaviest steps by day', [{ label: 'Step' }, { label: 'Guard', class: 'wide-only' }, { label: 'Bot' }, { label: 'Day', class: 'time' }, { label: 'Operations', class: 'n' }, { label: 'Credits', class: 'n' }, { label: 'Blocked', class: 'n wide-only' }],
      steps.slice(0, ROWS).map((step) => [foreign(step.label || inWords(step.guard, step.step), 48), guardName(step.guard), bot(step.bot), step.day, count(step.operations), step.credits ? decimal(step.credits) : '–', count(step.refused)])),
    more(steps, 'step')];
  }

  const loadConsumption = () => ask('v1/consumption', { tenant: frame.where.tenant }, (used) => {
    if (used.days.length) part.consumption.show({ ...used, labels: [...labels] }, drawConsumption);
    else none(part.consumption, 'No step was asked about in the last four weeks.');
  }, [part.consumption]);

  const resized = new ResizeObserver(() => {
    const holder = part.handoffs.body.querySelector('.graph-holder');
    if (holder) drawGraph(holder);
  });
  resized.observe(part.handoffs.body);

  return {
    follows: true,
    async refresh() {
      let again = false;
      await Promise.all([
        ask('v1/overview', frame.filters(), (data) => {
          showOverview(data);
          again = data.behind_rows > 0;
        }, fromOverview),
        loadCircuits(), loadLatest(), loadAdvice(), loadAlerts(),
      ]);
      // After the overview, which has the words of the topics.
      await loadConsumption();
      await greet();
      return again;
    },
    live({ decisions }) {
      if (frame.where.until) return;
      const checks = decisions.filter((decision) => decision.kind === 'check');
      const known = new Set(latest.map((decision) => decision.decision_id));
      const fresh = checks.filter((decision) => !known.has(decision.decision_id)).map((decision) => ({ ...decision, fresh: true }));
      if (!fresh.length) return;
      latest = [...fresh.reverse(), ...latest.map((decision) => ({ ...decision, fresh: undefined }))].slice(0, LATEST);
      drawLatest();
    },
    tick(node) {
      const until = Number(node.dataset.until);
      node.textContent = countdown(until);
      return until <= Date.now() && until > Date.now() - 1500;
    },
    health: drawChecks,
    redraw() {
      byOutcome.redraw();
      byGuard.redraw();
    },
    end() {
      aborted.abort();
      resized.disconnect();
      byOutcome.end();
      byGuard.end();
    },
  };
}
