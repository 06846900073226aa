// Builds the page. Text from outside only ever becomes a text node or the value of a harmless attribute; there is no
// way in here to make markup of it. Links are made from parameters, never from a text, so no scheme can slip in.

const SVG = 'http://www.w3.org/2000/svg';
const ATTRIBUTES = new Set(['id', 'class', 'title', 'type', 'name', 'value', 'for', 'role', 'scope', 'colspan', 'tabindex', 'hidden', 'disabled',
  'open', 'checked', 'selected', 'placeholder', 'min', 'max', 'step', 'list', 'maxlength', 'inputmode', 'autocomplete', 'spellcheck', 'datetime',
  'viewBox', 'width', 'height', 'x', 'y', 'x1', 'y1', 'x2', 'y2', 'cx', 'cy', 'r', 'rx', 'd', 'fill', 'stroke', 'stroke-width', 'stroke-dasharray',
  'text-anchor', 'dy', 'points', 'marker-end', 'refX', 'refY', 'markerWidth', 'markerHeight', 'markerUnits', 'orient', 'transform', 'preserveAspectRatio', 'dir']);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === 'to') node.setAttribute('href', address(value));
    else if (ATTRIBUTES.has(name) || name.startsWith('aria-') || name.startsWith('data-')) node.setAttribute(name, value === true ? '' : String(value));
    else throw new Error(`attribute ${name} is not allowed`);
  }
  append(node, children);
  return node;
}

/// Characters that nobody sees but that turn or hide what stands beside them (`gnp.exe` read as `exe.png`) are spelt out.
const UNSEEN = /[\u0000-\u0008\u000B-\u001F\u007F-\u009F\u200B\u202A-\u202E\u2060\u2066-\u2069\uFEFF]/g;
export const plain = (text) => String(text).replaceAll(UNSEEN, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`);

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child instanceof Node ? child : plain(child));
  }
}

export const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

/// The address of a view: its parameters, and nothing that is empty.
export function address(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined && value !== null && value !== '') query.set(name, value);
  return `?${query}`;
}

const SHOWN_CHARACTERS = 120;

/// Text from outside: kept apart from its surroundings (it may be written from right to left) and cut to a bound.
export function foreign(text, most = SHOWN_CHARACTERS) {
  const whole = String(text ?? '');
  const letters = whole.length > most ? Array.from(whole.slice(0, most * 2)) : null;
  if (!letters || letters.length <= most) return el('bdi', { class: 'foreign' }, parts(whole));
  return el('bdi', { class: 'foreign', title: plain(whole.slice(0, 2000)) }, parts(`${letters.slice(0, most).join('')}…`));
}

/// A long name, which may be broken where its parts end rather than anywhere.
const parts = (text) => text.split(/(?<=\S{4}[_./])(?=\S{2})/).flatMap((part, at) => (at ? [el('wbr'), part] : [part]));

/// A table with a caption for those who do not see the heading above it. Roles are said aloud because a narrow screen
/// may show its rows as blocks, and browsers then forget that it is a table.
export function table(caption, columns, rows, kind = '') {
  const head = columns.map((column) => el('th', { scope: 'col', role: 'columnheader', class: column.class }, column.label || el('span', { class: 'unseen' }, column.unseen)));
  const line = (cells) => el('tr', { role: 'row' }, cells.map((cell, at) => el(at === 0 ? 'th' : 'td', { scope: at === 0 ? 'row' : null, role: at === 0 ? 'rowheader' : 'cell', class: columns[at].class }, cell)));
  return el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': caption },
    el('table', { role: 'table', class: kind }, el('caption', { class: 'unseen' }, caption), el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, head)), el('tbody', { role: 'rowgroup' }, rows.map(line))));
}

/// A part of a view. It is drawn again only when its data changed, and the keyboard stays where it was.
export function panel(title, options = {}) {
  const body = el('div', { class: 'body' });
  const id = `panel-${title.toLowerCase().replaceAll(/[^a-z]+/g, '-')}`;
  const heading = el('h2', { id }, title);
  const side = el('div', { class: 'side' });
  const root = el('section', { class: `panel ${options.class ?? ''}`, 'aria-labelledby': id }, el('div', { class: 'head' }, heading, side), body);
  let drawn;
  const put = (...nodes) => replace(body, nodes);
  return {
    root,
    body,
    side,
    show(data, render) {
      const signature = JSON.stringify(data);
      if (signature === drawn) return;
      drawn = signature;
      put(render(data));
    },
    say(...nodes) {
      drawn = undefined;
      put(el('div', { class: 'empty' }, nodes));
    },
    forget() {
      drawn = undefined;
    },
  };
}

/// Puts other children into a node and the keyboard back to where it was, if the same thing is still there.
export function replace(node, children) {
  const active = document.activeElement;
  const key = active && active !== node && node.contains(active) ? keyOf(active) : null;
  const open = new Set([...node.querySelectorAll('details[open][data-key]')].map((details) => details.dataset.key));
  const scrolled = [...node.querySelectorAll('.scroll')].map((part) => part.scrollLeft);
  node.replaceChildren();
  append(node, children);
  for (const details of node.querySelectorAll('details[data-key]')) if (open.has(details.dataset.key)) details.open = true;
  [...node.querySelectorAll('.scroll')].forEach((part, at) => { if (scrolled[at]) part.scrollLeft = scrolled[at]; });
  if (key) for (const candidate of node.querySelectorAll('a, button, summary, input, select, [tabindex]')) {
    if (keyOf(candidate) === key) {
      candidate.focus({ preventScroll: true });
      break;
    }
  }
}

const keyOf = (node) => `${node.tagName}|${node.dataset.key ?? ''}|${node.getAttribute('href') ?? ''}|${node.getAttribute('aria-label') ?? node.textContent.slice(0, 80)}`;

export const bar = (share, kind = '') => svg('svg', { class: `bar ${kind}`, viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
  svg('rect', { class: 'rail', width: 100, height: 6 }), svg('rect', { class: 'fill', width: Math.max(0, Math.min(100, share * 100)).toFixed(2), height: 6 }));

/// What is to be pasted elsewhere, with a button that copies it. `said`: tells that it is done.
export function copyable(label, text, said) {
  const button = el('button', { type: 'button', class: 'quiet small', on: { click: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
      said?.(`${label} copied`);
    } catch {
      // Without a secure address the browser has no clipboard: it is marked, ready to be copied by hand.
      getSelection().selectAllChildren(shown);
      button.textContent = 'Marked: press Ctrl-C';
    }
    setTimeout(() => { button.textContent = `Copy ${label}`; }, 3000);
  } } }, `Copy ${label}`);
  const shown = el('pre', { tabindex: 0 }, text);
  return el('div', { class: 'copyable' }, shown, button);
}

/// Choices of which one is shown. `tabs`: [[label, draw]].
export function tabs(label, list) {
  const name = label.toLowerCase().replaceAll(/[^a-z]+/g, '-');
  const place = el('div', { role: 'tabpanel', id: `${name}-shown`, class: 'tab-shown' });
  const buttons = list.map(([tab], at) => el('button', { type: 'button', role: 'tab', class: 'chip', id: `${name}-${at}`, 'aria-controls': `${name}-shown`, on: {
    click: () => choose(at),
    keydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose((at + step + list.length) % list.length);
      buttons[(at + step + list.length) % list.length].focus();
    },
  } }, tab));
  const choose = (chosen) => {
    buttons.forEach((button, at) => {
      button.setAttribute('aria-selected', String(at === chosen));
      button.tabIndex = at === chosen ? 0 : -1;
    });
    place.setAttribute('aria-labelledby', `${name}-${chosen}`);
    place.replaceChildren();
    append(place, [list[chosen][1]()]);
  };
  choose(0);
  return el('div', { class: 'tabs' }, el('div', { role: 'tablist', 'aria-label': label, class: 'chips' }, buttons), place);
}

export const badge = (kind, text) => el('span', { class: `badge ${kind}` }, text);
