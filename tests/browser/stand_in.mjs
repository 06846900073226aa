// Stands in for routes the binary does not have. Remove this file and its one call in browser.mjs once it has them all.

const ROUTES = ['v1/overview', 'v1/insights', 'v1/settings', 'v1/preview', 'v1/alerts'];

export async function standIn(page, service, headers = {}) {
  const missing = [];
  for (const route of ROUTES) if ((await fetch(`${service.origin}/${route}`, { headers })).status === 404) missing.push(route);
  if (missing.length === 0) return;
  await page.route((url) => missing.some((route) => url.pathname.startsWith(`/${route}`)), async (route) => {
    const request = route.request();
    try {
      const { status, body } = await answer(service.origin, new URL(request.url()), request.method(), request.postDataJSON?.(), request.headers().authorization);
      await route.fulfill({ status, json: body });
    } catch (error) {
      // A page that was closed waits for no answer, and its service may have stopped already.
      if (!page.isClosed()) throw error;
    }
  });
}

const add = (map, key, make) => map.get(key) ?? map.set(key, make()).get(key);

export async function answer(origin, url, method, sent, authorization) {
  const parameters = Object.fromEntries(url.searchParams);
  const headers = authorization ? { authorization } : {};
  const route = ROUTES.find((one) => url.pathname.startsWith(`/${one}`));
  const rows = [];
  if (route === 'v1/overview' || route === 'v1/insights') {
    let cursor = '';
    do {
      const query = new URLSearchParams({ kind: 'all', limit: '1000', ...(cursor && { cursor }) });
      for (const name of ['since', 'until', 'tenant', 'guard', 'reason']) if (parameters[name]) query.set(name, parameters[name]);
      const response = await fetch(`${origin}/v1/decisions?${query}`, { headers });
      if (!response.ok) return { status: response.status, body: await response.json() };
      const pageOf = await response.json();
      rows.push(...pageOf.decisions);
      cursor = pageOf.next_cursor;
    } while (cursor);
  }
  if (route === 'v1/overview') return { status: 200, body: overview(rows.reverse(), parameters) };
  if (route === 'v1/insights') return { status: 200, body: insights(overview(rows.reverse(), parameters)) };
  if (route === 'v1/settings') {
    const probe = await fetch(`${origin}/v1/circuits?tenant=another`, { headers });
    return probe.status === 401 ? { status: 401, body: await probe.json() } : { status: 200, body: settings(probe.ok) };
  }
  if (route === 'v1/preview') return { status: 200, body: { rows: 42, truncated: false, before: { allowed: 30, would_block: 0, blocked: 12 }, after: { allowed: 36, would_block: 0, blocked: 6 }, changed_total: 6, changed: [{ decision_id: '01', session_id: 'conv-1', subject: 'billing', before: 'blocked', after: 'allowed', reason: 'cycle_detected', time: new Date().toISOString() }], inexact: [] } };
  if (method === 'POST') return { status: 200, body: {} };
  return { status: 200, body: alerts() };
}

const SPANS = { m: 60_000, h: 3_600_000, d: 86_400_000 };
const time = (text, fallback) => (!text ? fallback : /^\d+$/.test(text) ? Number(text) : /^\d+[mhd]$/.test(text) ? Date.now() - parseInt(text, 10) * SPANS[text.at(-1)] : Date.parse(text));

function overview(all, parameters) {
  const until = time(parameters.until, Date.now() + 1);
  const since = time(parameters.since, until - 86_400_000);
  const bucket = until - since <= 3 * 3_600_000 ? 60 : until - since <= 4 * 86_400_000 ? 3600 : 86_400;
  const rows = all.filter((row) => row.kind === 'check');
  const starts = [...new Set(rows.map((row) => Math.floor(row.time_ms / bucket / 1000) * bucket * 1000))].sort((a, b) => a - b);
  const totals = { decisions: rows.length, allowed: 0, would_block: 0, blocked: 0, operations_saved: 0, credits_saved: 0, usd_saved: 0 };
  const series = {};
  const reasons = new Map(); const subjects = new Map(); const edges = new Map(); const chains = new Map(); const topics = new Map();
  const actions = new Map(); const endpoints = new Map(); const entities = new Map(); const budgets = new Map();
  const example = (one, row) => { if (one.sessions.length < 3 && !one.sessions.includes(row.session_id)) one.sessions.push(row.session_id); };
  for (const row of all) {
    const { answer: said, input } = row;
    if (row.guard === 'api_circuit') {
      const one = add(endpoints, row.subject, () => ({ endpoint: row.subject, calls: 0, failures: 0, failure_rate: 0, mean_ms: null, max_ms: null, blocked: 0, failures_over_time: starts.map(() => 0), sum: 0 }));
      if (row.kind === 'record') {
        one.calls += 1;
        one.sum += input.latency_ms ?? 0;
        one.max_ms = Math.max(one.max_ms ?? 0, input.latency_ms ?? 0);
        if (input.outcome === 'failure') {
          one.failures += 1;
          const at = starts.findLastIndex((start) => start <= row.time_ms);
          if (at >= 0) one.failures_over_time[at] += 1;
        }
      } else if (row.outcome === 'blocked') one.blocked += 1;
    }
    if (row.guard === 'kb_requery' && row.kind === 'record') {
      const one = add(topics, row.subject, () => ({ topic: row.subject, label: input.query ?? '', queries: 0, blocked: 0, best_confidence: 0, mean_confidence: 0, histogram: new Array(10).fill(0), is_gap: false, sessions: [], sum: 0 }));
      one.queries += 1;
      one.sum += input.confidence_score;
      one.best_confidence = Math.max(one.best_confidence, input.confidence_score);
      one.histogram[Math.min(9, Math.floor(input.confidence_score * 10))] += 1;
      example(one, row);
    }
    if (row.guard === 'budget') {
      const one = add(budgets, said.budget ?? row.subject, () => ({ budget: said.budget ?? row.subject, spent_usd: 0, limit_usd: null, tokens: 0, token_limit: null, refused: 0 }));
      one.spent_usd = said.spent_usd ?? said.spent ?? one.spent_usd;
      one.limit_usd = said.limit_usd ?? said.limit ?? one.limit_usd;
      if (row.outcome === 'blocked') one.refused += 1;
    }
  }
  for (const row of rows) {
    const { answer: said } = row;
    const start = starts.indexOf(Math.floor(row.time_ms / bucket / 1000) * bucket * 1000);
    totals[row.outcome] += 1;
    if (row.outcome === 'blocked') totals.operations_saved += row.guard === 'kb_requery' ? 2 : 1;
    const counts = series[row.guard] ??= { allowed: starts.map(() => 0), would_block: starts.map(() => 0), blocked: starts.map(() => 0) };
    counts[row.outcome][start] += 1;
    if (row.reason) {
      const one = add(reasons, row.reason, () => ({ guard: row.guard, reason: row.reason, blocked: 0, would_block: 0, subjects: [], sessions: [] }));
      one[row.outcome] += 1;
      example(one, row);
    }
    const subject = add(subjects, `${row.guard}|${row.subject}`, () => ({ guard: row.guard, subject: row.subject, allowed: 0, would_block: 0, blocked: 0, sessions: [] }));
    subject[row.outcome] += 1;
    if (row.reason) example(subject, row);
    if (row.guard === 'handoff') {
      const edge = add(edges, `${said.source_bot}|${said.target_bot}`, () => ({ source: said.source_bot, target: said.target_bot, allowed: 0, blocked: 0 }));
      edge[row.outcome === 'allowed' ? 'allowed' : 'blocked'] += 1;
      if (said.chain) {
        const chain = add(chains, said.chain.join('|'), () => ({ chain: said.chain, count: 0, sessions: [] }));
        chain.count += 1;
        example(chain, row);
      }
    }
    if (row.guard === 'agent_action') {
      const action = add(actions, row.subject, () => ({ action: row.subject, runs: 0, blocked: 0, share: 0 }));
      action[row.outcome === 'blocked' ? 'blocked' : 'runs'] += 1;
    }
    if (row.guard === 'kb_requery' && row.outcome === 'blocked' && topics.has(row.subject)) topics.get(row.subject).blocked += 1;
    if (row.reason === 'colloquial_format_detected') add(entities, said.entity_type, () => ({ entity: said.entity_type, hints: 0, blocked: 0, sessions: [] })).hints += 1;
  }
  const runs = [...actions.values()].map((one) => one.runs).sort((a, b) => a - b);
  const ran = runs.reduce((sum, value) => sum + value, 0);
  for (const one of actions.values()) one.share = ran ? one.runs / ran : 0;
  for (const one of endpoints.values()) {
    one.failure_rate = one.calls ? one.failures / one.calls : 0;
    one.mean_ms = one.calls ? one.sum / one.calls : null;
  }
  for (const one of topics.values()) {
    one.mean_confidence = one.sum / one.queries;
    one.is_gap = one.queries >= 3 && one.best_confidence < 0.5;
  }
  totals.credits_saved = totals.operations_saved * 1;
  totals.usd_saved = totals.operations_saved * 0.012;
  const sorted = (map, weight) => [...map.values()].sort((a, b) => weight(b) - weight(a)).slice(0, 50);
  return {
    since: new Date(since).toISOString(), until: new Date(until).toISOString(), since_ms: since, until_ms: until, bucket_seconds: bucket,
    filters: { tenant: null, guard: null, reason: null }, behind_rows: 0, totals, series: { starts_ms: starts, by_guard: series },
    reasons: sorted(reasons, (one) => one.blocked + one.would_block), subjects: sorted(subjects, (one) => one.blocked * 1000 + one.allowed),
    handoffs: { edges: sorted(edges, (one) => one.allowed + one.blocked), chains: sorted(chains, (one) => one.count) }, topics: sorted(topics, (one) => one.queries),
    actions: sorted(actions, (one) => one.runs), action_skew: ran ? runs.reduce((sum, value, at) => sum + (2 * (at + 1) - runs.length - 1) * value, 0) / (runs.length * ran) : 0,
    endpoints: sorted(endpoints, (one) => one.calls), entities: sorted(entities, (one) => one.hints), budgets: sorted(budgets, (one) => one.spent_usd), hours: [],
  };
}

function insights(data) {
  const list = data.reasons.slice(0, 6).map((reason, at) => ({
    id: `often_${reason.reason}`, title: `${reason.reason} fires often on ${data.subjects[0]?.subject ?? ''}`, advice: `It was refused ${reason.blocked} times. Ask for the value first, or raise the threshold and look at the sessions below.`,
    severity: ['high', 'medium', 'low'][Math.min(2, at)], score: reason.blocked, guard: reason.guard, subject: data.subjects.find((one) => one.guard === reason.guard)?.subject ?? null,
    setting: `guards.${reason.guard}.window`, evidence: { blocked: reason.blocked, share: 0.42, decisions: data.totals.decisions }, sessions: reason.sessions, saves: { operations: reason.blocked, usd: 0.5 },
  }));
  return { since: data.since, until: data.until, behind_rows: 0, insights: list };
}

const leaf = (value, source = 'default') => ({ value, source });
const settings = (admin) => ({ tenant: null, admin, settings: {
  server: { listen: leaf('127.0.0.1:8100') }, log: { store_text: leaf('redacted'), retention_days: leaf(30, 'runguard.toml, line 3') },
  guards: {
    handoff: { max_handoffs: leaf(6), max_visits_per_bot: leaf(2, 'runguard.toml, line 7'), window: leaf(1800), mode: leaf('enforce') },
    ai_task_retry: { max_retries: leaf(2), window: leaf(3600), mode: leaf('enforce') },
  },
} });

const message = { rule: 'many-blocks', state: 'firing', severity: 'error', title: '20 blocks of cycle_detected in 5 min', text: '', tenant: 'default', guard: 'handoff', reason: 'cycle_detected', session_id: 'conv-4007', time: new Date().toISOString() };
const alerts = () => ({
  enabled: true, behind_rows: 0, queue_limit: 10_000, dropped: 0,
  rules: [{ name: 'trips', when: 'circuit_trip', to: ['team'], window_seconds: 300, cooldown_seconds: 900, firing: [{ title: 'Circuit inventory is open', since: new Date().toISOString() }] }, { name: 'many-blocks', when: 'blocks', reason: 'cycle_detected', count: 20, window_seconds: 300, cooldown_seconds: 900, to: [], firing: [] }],
  targets: [{ name: 'team', kind: 'slack', host: 'hooks.example.com', queued: 0, dead: 0, problem: null }, { name: 'on-call', kind: 'pagerduty', host: null, queued: 0, dead: 1, problem: 'connection refused' }],
  queued: [], delivered: [{ ...message, id: '1', rule: 'trips', title: 'Circuit inventory is open', target: 'team', attempts: 1, finished: new Date().toISOString(), problem: null }],
  dead: [{ ...message, id: '2', target: 'on-call', attempts: 8, finished: new Date().toISOString(), problem: 'connection refused' }],
});
