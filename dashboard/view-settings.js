// What is in force and where each value came from, and what another threshold would have done.

import { get, post } from './api.js';
import { badge, bar, copyable, el, foreign, panel, replace, table } from './dom.js';
import { sessionOf } from './view-decisions.js';
import { GUARDS, count, duration, fieldName, guardName, outcomeName, reasonName, span, times, whenIn, zone } from './words.js';

const isLeaf = (node) => Object.hasOwn(node, 'value') && Object.hasOwn(node, 'source');

/// Every value with its path and where it came from.
function flatten(node, path = []) {
  if (node === null || typeof node !== 'object') return [];
  if (isLeaf(node)) return [{ path: path.join('.'), value: node.value, origin: String(node.source), isDefault: node.default ?? node.source === 'default', later: node.after_restart, unit: node.unit }];
  return Object.entries(node).flatMap(([name, inner]) => flatten(inner, [...path, name]));
}

/// Whether it is a length of time, which the service says.
const isSpan = (one) => one.unit === 'seconds';
const written = (value) => (value === '' ? '–' : typeof value === 'string' ? value : JSON.stringify(value));
/// As people read it: a length of time in its units.
const shown = (one) => (isSpan(one) ? duration(one.value) : written(one.value));
/// As the form has it, and as it stands in a file.
const typed = (one) => (isSpan(one) ? span(one.value) : String(one.value));
/// As a list of all of them has it: a length of time as a file takes it.
const inFile = (one, value) => (isSpan(one) && typeof value === 'number' ? span(value) : written(value));
const toml = (value) => (typeof value === 'string' ? JSON.stringify(value) : String(value));
/// What a shell takes as one word.
const word = (text) => (/^[\w./:=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const isDefault = (one) => one.isDefault;
/// Thresholds: single values of a guard that a form can change. Lists, patterns and overrides stay in the file.
const canTry = (one) => ['number', 'boolean'].includes(typeof one.value) || (typeof one.value === 'string' && one.value.length < 40 && !/patterns|entities|hint/.test(one.path));

export function settings(frame, main) {
  const aborted = new AbortController();
  const preview = panel('What would another threshold have done?', { class: 'full' });
  const force = panel('In force', { class: 'full' });
  const result = el('div', { class: 'result', 'aria-live': 'polite' });
  const form = el('form', { class: 'try' });
  main.append(preview.root, force.root);
  preview.say('Loading…');
  force.say('Loading…');
  const wanted = /^guards\.([a-z_]+)\.(.+)$/.exec(frame.where.try ?? '');
  let values = [];
  let guard = wanted?.[1] ?? (frame.where.guard || 'handoff');
  let changes = {};
  /// The same as paths and values.
  let leaves = [];

  const ofGuard = () => values.filter((one) => one.path.startsWith(`guards.${guard}.`) && canTry(one)).slice(0, 40);

  function drawForm() {
    const fields = ofGuard().map((one) => {
      const path = one.path.slice(`guards.${guard}.`.length);
      const id = `try-${path}`;
      const control = typeof one.value === 'boolean' || path.endsWith('mode')
        ? el('select', { id, name: path }, (path.endsWith('mode') ? ['enforce', 'observe', 'off'] : ['true', 'false']).map((choice) => el('option', { value: choice, selected: choice === String(one.value) }, choice)))
        : el('input', { id, name: path, type: typeof one.value === 'number' && !isSpan(one) ? 'number' : 'text', step: 'any', min: typeof one.value === 'number' ? 0 : null, value: typed(one), autocomplete: 'off' });
      return el('div', { class: `field ${wanted && wanted[2] === path ? 'wanted' : ''}` }, el('label', { for: id }, fieldName(path.replaceAll('.', ' · '))), control, el('span', { class: 'hint' }, `in force: ${shown(one)}`));
    });
    const choose = el('select', { id: 'try-guard', on: { change: (event) => {
      guard = event.target.value;
      result.replaceChildren();
      drawForm();
    } } }, Object.keys(GUARDS).map((code) => el('option', { value: code, selected: code === guard }, guardName(code))));
    replace(form, [el('div', { class: 'field' }, el('label', { for: 'try-guard' }, 'Guard'), choose), ...fields,
      el('div', { class: 'field act' }, el('button', { class: 'primary' }, 'Preview'))]);
  }

  function changed() {
    changes = {};
    leaves = [];
    for (const one of ofGuard()) {
      const path = one.path.slice(`guards.${guard}.`.length);
      const control = form.elements[path];
      if (!control || control.value === typed(one) || control.value === '') continue;
      const value = typeof one.value === 'number' && Number.isFinite(Number(control.value)) ? Number(control.value) : typeof one.value === 'boolean' ? control.value === 'true' : control.value.trim();
      leaves.push([path, value]);
      const steps = path.split('.');
      let node = changes;
      for (const step of steps.slice(0, -1)) node = node[step] ??= {};
      node[steps.at(-1)] = value;
    }
    return Object.keys(changes).length > 0;
  }

  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (!changed()) return void result.replaceChildren(el('p', { class: 'hint' }, 'Change at least one value, then preview.'));
    result.replaceChildren(el('p', { class: 'hint' }, 'Deciding the logged requests again…'));
    const { since, until, tenant } = frame.filters();
    try {
      drawResult(await post('v1/preview', {}, { guard, settings: changes, since, until, tenant }));
    } catch (error) {
      if (error.name === 'AbortError') return undefined;
      result.replaceChildren(el('p', { class: 'problem' }, error.status === 404 ? 'Preview is not available in this version of the service.' : `${error.title ?? 'It did not work'}: ${error.message}`));
    }
    return undefined;
  });

  /// How to make it so: this page changes nothing.
  function takeOver() {
    const { tenant } = frame.filters();
    const table = [...(tenant ? ['tenants', /^[\w-]+$/.test(tenant) ? tenant : JSON.stringify(tenant)] : []), 'guards', guard].join('.');
    const lines = leaves.map(([path, value]) => `${path} = ${toml(value)}`);
    const pairs = leaves.map(([path, value]) => word(`${table}.${path}=${typeof value === 'string' ? value : toml(value)}`));
    return [el('h3', null, 'Make it so'), el('p', { class: 'hint' }, 'In the settings file, or with the command where the file is. A service that runs with it takes it over within a second.'),
      el('div', { class: 'pair-of-texts' }, copyable('as TOML', `[${table}]\n${lines.join('\n')}\n`, frame.say), copyable('command', `runguard settings set ${pairs.join(' ')}`, frame.say))];
  }

  function drawResult(answer) {
    const most = Math.max(1, ...['allowed', 'would_block', 'blocked'].flatMap((name) => [answer.before[name] ?? 0, answer.after[name] ?? 0]));
    const difference = (name) => (answer.after[name] ?? 0) - (answer.before[name] ?? 0);
    const signed = (number) => (number > 0 ? `+${count(number)}` : number < 0 ? `−${count(-number)}` : '±0');
    const total = answer.changed_total ?? answer.changed.length;
    const at = whenIn(answer.changed.map((row) => Date.parse(row.time)));
    result.replaceChildren(
      el('p', { class: 'outcome' }, el('strong', null, total === 0 ? 'Nothing would have been decided otherwise.' : `${times(total, 'decision')} of ${count(answer.rows)} would have been another.`), answer.truncated ? ' Only the newest were looked at.' : ''),
      table('Outcomes before and after', [{ label: 'Outcome' }, { label: 'As it was', class: 'n' }, { label: 'With the change', class: 'n' }, { label: 'Difference', class: 'n' }, { label: '', unseen: 'Share', class: 'wide-only' }],
        ['allowed', 'would_block', 'blocked'].map((name) => [badge(name, outcomeName(name)), count(answer.before[name]), count(answer.after[name]), signed(difference(name)),
          el('span', { class: 'pair' }, bar((answer.before[name] ?? 0) / most, 'faint'), bar((answer.after[name] ?? 0) / most, name === 'blocked' ? 'blocked' : name === 'would_block' ? 'would' : 'accent'))])),
      ...(answer.changed.length ? [el('h3', null, 'Decisions that change'), table('Decisions that would have been another', [{ label: 'Session' }, { label: 'Subject' }, { label: 'Was' }, { label: 'Would be' }, { label: 'Reason' }, { label: `Time, ${zone()}`, class: 'wide-only' }],
        answer.changed.slice(0, 50).map((row) => [el('a', { to: sessionOf(frame, { tenant: 'default', ...row }) }, foreign(row.session_id, 32)), foreign(row.subject, 40), badge(row.before, outcomeName(row.before)), badge(row.after, outcomeName(row.after)), row.reason ? reasonName(row.reason) : '–', row.time ? at(Date.parse(row.time)) : '–']))] : []),
      ...takeOver(),
      ...((answer.inexact ?? []).length ? [el('p', { class: 'hint' }, 'Not exact: ', answer.inexact.map((note, at) => [at > 0 ? '; ' : null, foreign(note, 300)].filter(Boolean)).flat())] : []),
    );
  }

  const group = (path) => {
    const parts = path.split('.');
    return parts[0] === 'guards' || parts[0] === 'tenants' ? parts.slice(0, 2).join('.') : parts[0];
  };

  function drawForce(all) {
    const groups = new Map();
    for (const one of all) groups.set(group(one.path), [...(groups.get(group(one.path)) ?? []), one]);
    return [...groups].map(([name, list]) => {
      const own = list.filter((one) => !isDefault(one)).length;
      return el('details', { class: 'group', 'data-key': name, open: own > 0 || name === `guards.${frame.where.guard}` || name === `guards.${wanted?.[1]}` },
        el('summary', null, el('code', null, `[${name}]`), el('span', { class: 'hint' }, ` ${times(list.length, 'value')}${own ? `, ${count(own)} set` : ''}`)),
        table(`Values of ${name}`, [{ label: 'Key' }, { label: 'Value' }, { label: 'From' }], list.slice(0, 200).map((one) => [
          el('code', null, foreign(one.path.slice(name.length + 1) || one.path, 120)), [el('code', null, foreign(inFile(one, one.value), 160)), one.later === undefined ? null : el('span', { class: 'hint' }, ' after a restart ', el('code', null, foreign(inFile(one, one.later), 160)))], isDefault(one) ? el('span', { class: 'hint' }, 'default') : badge('set', foreign(one.origin, 80))]), 'stack values'));
    });
  }

  /// Why a changed file is not in force. The file and the error are told to an admin of all tenants only.
  function drawRefused(refused) {
    return refused.map((one) => el('p', { class: 'note' }, `The changed ${one.what === 'keys' ? 'key file' : 'settings file'} was refused at ${whenIn([Date.parse(one.time)])(Date.parse(one.time))}; what was in force before still is.`,
      one.error ? [' ', el('code', null, foreign(one.error, 600))] : ' An admin key of all tenants sees why.'));
  }

  return {
    async refresh() {
      try {
        const answer = await get('v1/settings', { tenant: frame.where.tenant }, aborted.signal);
        values = flatten(answer.settings);
        force.show({ values, refused: answer.refused ?? [] }, (shown) => [...drawRefused(shown.refused), ...drawForce(shown.values)]);
        preview.show(values, () => {
          drawForm();
          return [el('p', { class: 'hint' }, 'The logged requests of the time above are decided again with your values. Nothing is changed.'), form, result];
        });
        if (wanted) {
          const field = form.elements[wanted[2]];
          field?.focus?.({ preventScroll: true });
        }
      } catch (error) {
        frame.failed(force, error);
        frame.failed(preview, error);
      }
    },
    end: () => aborted.abort(),
  };
}
