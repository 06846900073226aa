// What is watched for, what is on its way, what could not be delivered.

import { get, post } from './api.js';
import { badge, el, foreign, panel, table } from './dom.js';
import { sessionOf } from './view-decisions.js';
import { count, duration, fieldName, guardName, reasonName, times, when } from './words.js';

/// Entries of a list that are shown.
const MOST = 100;
const EXAMPLE = '[[alerts.target]]\nname = "team"\nkind = "slack"\nurl = "…"\n\n# circuit trips, blocks, budgets and fallbacks are told already\n[[alerts.rule]]\nname = "before-the-trip"\nwhen = "degrading"\nto = ["team"]';

/// A rule in words: what it waits for, and of what.
function condition(rule) {
  const window = duration(rule.window_seconds ?? 0);
  const words = {
    circuit_trip: 'a circuit opens',
    degrading: `an endpoint has more than ${count(rule.share ?? 0)} % of the failures that open its circuit`,
    blocks: `${times(rule.count ?? 0, 'block')} within ${window}`,
    block_rate: `more than ${count(rule.share ?? 0)} % of at least ${times(rule.count ?? 0, 'decision')} within ${window} are blocks`,
    budget: `a budget reaches ${(rule.at ?? []).join(', ')} %`,
    fallback: `answers are degraded or come from a fallback`,
    consumption: `${(rule.at ?? []).join(', ')} % of ${count(rule.limit ?? 0)} ${rule.unit} for a ${rule.period} are used`,
    spike: `more than ${rule.factor} times as many ${rule.unit} as on other days, and at least ${count(rule.at_least ?? 0)}`,
  };
  const of = [rule.guard && guardName(rule.guard), rule.reason && reasonName(rule.reason), rule.subject, rule.tenant && `tenant ${rule.tenant}`].filter(Boolean);
  return [Object.hasOwn(words, rule.when) ? words[rule.when] : fieldName(rule.when), of.length ? el('span', { class: 'hint' }, ' of ', of.map((one, at) => [at > 0 ? ', ' : null, foreign(one, 60)])) : null];
}

const time = (text) => (text ? el('time', { datetime: text }, when(Date.parse(text))) : '–');
const list = (value) => (Array.isArray(value) ? value : []);
const more = (all) => (all.length > MOST ? el('p', { class: 'hint more' }, `and ${count(all.length - MOST)} more`) : null);

export function alerts(frame, main) {
  const aborted = new AbortController();
  const part = {
    rules: panel('Rules', { class: 'full' }),
    targets: panel('Targets', { class: 'full' }),
    dead: panel('Dead letters', { class: 'full' }),
    queued: panel('On their way', { class: 'full' }),
    delivered: panel('Delivered', { class: 'full' }),
  };
  const note = el('p', { class: 'note', hidden: true });
  main.append(el('p', { class: 'lead' }, 'Who is told of what, and whether they heard.'), note, ...Object.values(part).map((one) => one.root));
  for (const one of Object.values(part)) one.say('Loading…');

  const button = (label, name, run) => el('button', { type: 'button', class: 'quiet small', 'aria-label': `${label} ${name}`, on: { click: run } }, label);
  const change = frame.admin ? [{ label: '', unseen: 'Change', class: 'end' }] : [];

  async function retry(id) {
    try {
      await post(`v1/alerts/dead/${encodeURIComponent(id)}/retry`, {});
      frame.say('It is on its way again');
      await load();
    } catch (error) {
      frame.failed(part.dead, error);
    }
  }

  async function test(name) {
    frame.say(`Telling ${name}…`);
    try {
      const { tested } = await post('v1/alerts/test', {}, { target: name });
      const failed = list(tested).find((one) => !one.delivered);
      part.targets.side.replaceChildren(badge(failed ? 'blocked' : 'allowed', failed ? foreign(`${name}: ${failed.problem}`, 160) : `${name} heard the test`));
      frame.say(failed ? `${name} did not hear the test: ${failed.problem}` : `${name} heard the test`);
    } catch (error) {
      frame.failed(part.targets, error);
    }
  }

  const drawRules = (rules) => table('Rules of alerts', [{ label: 'Rule' }, { label: 'Tells when', class: 'own-line' }, { label: 'Tells', class: 'own-line' }, { label: 'Again after', class: 'wide-only' }, { label: 'State' }],
    rules.slice(0, MOST).map((rule) => [foreign(rule.name, 64), condition(rule), [el('span', { class: 'narrow-only' }, 'tells '), rule.to?.length ? rule.to.map((name, at) => [at > 0 ? ', ' : null, foreign(name, 64)]) : 'everyone'], duration(rule.cooldown_seconds ?? 0),
      rule.firing?.length ? rule.firing.slice(0, 5).map((one) => el('div', null, badge('blocked', 'Firing'), ' ', foreign(one.title, 100), el('span', { class: 'hint' }, ' since ', time(one.since)))) : badge('plain', 'Quiet')]), 'stack flow');

  const drawTargets = (targets) => table('Targets of alerts', [{ label: 'Target' }, { label: 'Kind' }, { label: 'Waiting', class: 'n' }, { label: 'Dead', class: 'n' }, { label: 'Problem' }, ...change],
    targets.slice(0, MOST).map((target) => [[foreign(target.name, 64), target.host ? el('span', { class: 'hint' }, ' ', foreign(target.host, 80)) : null], fieldName(target.kind), count(target.queued), count(target.dead), target.problem ? el('span', { class: 'bad' }, foreign(target.problem, 200)) : '–',
      ...(frame.admin ? [button('Test', target.name, () => test(target.name))] : [])]));

  const drawMessages = (caption, moments, buttons) => (messages) => [table(caption, [{ label: 'Alert' }, { label: 'Rule', class: 'wide-only' }, { label: 'To' }, { label: 'Tries', class: 'n' }, ...moments.map(([label]) => ({ label })), { label: 'Session', class: 'wide-only' }, ...(buttons ? change : [])],
    messages.slice(0, MOST).map((message) => [
      [badge(message.state === 'firing' ? 'blocked' : 'allowed', fieldName(message.state ?? 'firing')), ' ', foreign(message.title, 160), message.problem ? el('span', { class: 'message' }, foreign(message.problem, 240)) : null],
      foreign(message.rule, 64), foreign(message.target, 64), count(message.attempts), ...moments.map(([, name]) => time(message[name])),
      message.session_id ? el('a', { to: sessionOf(frame, message) }, foreign(message.session_id, 28)) : '–',
      ...(buttons && frame.admin ? [button('Retry', String(message.title ?? message.id).slice(0, 80), () => retry(message.id))] : [])])), more(messages)];

  async function load() {
    try {
      const answer = await get('v1/alerts', {}, aborted.signal);
      const show = (one, given, render, ...empty) => (given.length ? one.show(given, render) : one.say(...empty));
      note.hidden = !(answer.dropped > 0);
      note.textContent = `${times(answer.dropped ?? 0, 'alert')} had to be dropped: more than ${count(answer.queue_limit ?? 0)} were waiting.`;
      show(part.rules, list(answer.rules), drawRules, 'No rule yet. Add one to the settings file:', el('pre', null, EXAMPLE));
      if (frame.admin && frame.seesAll) show(part.targets, list(answer.targets), drawTargets, 'Nobody is told. Name a target in the settings file:', el('pre', null, EXAMPLE));
      else part.targets.say('Who is told is for an admin of all tenants to see.');
      show(part.dead, list(answer.dead), drawMessages('Alerts that could not be delivered', [['Given up', 'finished']], true), 'None. Everything that was sent arrived, or is being tried.');
      show(part.queued, list(answer.queued), drawMessages('Alerts that are being sent', [['Next try', 'next_attempt']]), 'Nothing is waiting.');
      show(part.delivered, list(answer.delivered), drawMessages('Alerts that were delivered', [['Delivered', 'finished']]), 'Nothing was delivered yet.');
    } catch (error) {
      for (const one of Object.values(part)) frame.failed(one, error);
    }
  }

  return { follows: true, follow: { guard: undefined, reason: undefined }, refresh: load, end: () => aborted.abort() };
}
