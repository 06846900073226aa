// What a service that was never asked shows: how to ask it, and a check mark when the first decision is there.

import { get, key } from './api.js';
import { badge, copyable, el, foreign, tabs } from './dom.js';
import { decisionOf } from './view-decisions.js';
import { guardName, outcomeName } from './words.js';

const HERE = location.origin + location.pathname.replace(/\/$/, '');

const CURL = `curl -s ${HERE}/guard/ai-task-retry${key.get() ? " -H 'authorization: Bearer rg_…'" : ''} -d '{"session_id":"demo","task_name":"classify"}'`;
const GATEWAY = `export OPENAI_BASE_URL=${HERE}/openai/v1
export ANTHROPIC_BASE_URL=${HERE}/anthropic
export AWS_ENDPOINT_URL_BEDROCK_RUNTIME=${HERE}/bedrock
python agent.py`;
const python = () => `from runguard import Run

run = Run("job-7", repeats=3, max_usd=5.00, url="${HERE}"${key.get() ? ', api_key="rg_…"' : ''})
run.before_tool("search", {"query": "refunds"})   # the third equal call in a row raises LoopDetectedError`;
const typescript = () => `import { GuardClient } from '@runguard/sdk/client'

const client = new GuardClient({ url: '${HERE}'${key.get() ? ", apiKey: 'rg_…'" : ''} })
const answer = await client.aiTaskRetry({ session_id: 'demo', task_name: 'classify' })
if (!answer.allow) console.log(answer.reason, answer.message)`;

export function welcome(frame) {
  const state = el('p', { class: 'awaited', role: 'status' }, el('span', { class: 'dot', 'aria-hidden': 'true' }), 'No decisions yet. Waiting for the first one…');
  const gatewayNote = el('p', { class: 'hint' }, 'An agent is capped without a change to its code: it asks RunGuard, and RunGuard asks the provider. Start the service as ', el('code', { class: 'whole' }, 'runguard gateway --max-usd-per-run 2'), '.');
  const draw = (about, label, text) => () => [about, copyable(label, text, frame.say)];
  const root = el('section', { class: 'panel welcome', 'aria-labelledby': 'welcome-title', hidden: true },
    el('h2', { id: 'welcome-title' }, 'Ask before the next step'),
    el('p', null, 'RunGuard is ready. Choose how your agent or flow asks it; the first decision shows here by itself.'),
    tabs('How to ask', [
      ['Gateway', draw(gatewayNote, 'variables', GATEWAY)],
      ['Python', draw(el('p', { class: 'hint' }, 'In your own agent loop, counted by this service: many processes share one run.'), 'Python', python())],
      ['TypeScript', draw(el('p', { class: 'hint' }, 'One method a route; a block is an answer, not an exception.'), 'TypeScript', typescript())],
      ['curl', draw(el('p', { class: 'hint' }, 'Three times the same: the third is blocked.'), 'command', CURL)],
    ]),
    key.get() ? el('p', { class: 'hint' }, 'Callers need a key: ', el('code', null, 'runguard key create --role guard')) : null,
    state,
    el('p', { class: 'hint' }, 'Or see it with made-up traffic first: ', el('code', { class: 'whole' }, 'runguard demo'), '.'));
  let isOver = false;

  /// The gateway's tab says whether this service is one, to those who may know.
  get('v1/settings').then(({ settings }) => {
    if (settings.gateway?.enabled?.value === true) gatewayNote.replaceChildren('This service is a gateway: set the variable of your provider, and start your agent.');
  }, () => {});

  return {
    root,
    get isShown() {
      return !root.hidden;
    },
    /// Nothing was ever decided.
    open() {
      if (!isOver) root.hidden = false;
    },
    /// The first decision: the card stays, with its check mark, until the page is left.
    arrived(decision) {
      if (root.hidden || isOver) return;
      isOver = true;
      state.classList.add('done');
      state.replaceChildren(el('span', { class: 'check', 'aria-hidden': 'true' }, '✓'), 'The first decision is here: ', badge(decision.outcome, outcomeName(decision.outcome)), ' ', el('a', { to: decisionOf(frame, decision) }, guardName(decision.guard)), ' of ', foreign(decision.session_id, 40));
      frame.say('The first decision is here');
    },
  };
}
