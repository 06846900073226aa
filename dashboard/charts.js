// Pictures: stacked columns over time (uPlot), small histograms and lines, and the graph of handoffs. Each has its
// numbers in a table or a text beside it.

import { el, foreign, svg, table } from './dom.js';
import { clock, count, day, moment } from './words.js';

// Loaded by the page before this module: the published build that is a third of the ES module's size.
const { uPlot } = globalThis;

/// Columns drawn at most; the service gives far fewer.
const MAX_COLUMNS = 3000;
const HEIGHT = 190;

const probe = el('span', { hidden: true });
document.documentElement.append(probe);

/// What a colour of the style sheet is in the theme in force; a canvas does not read variables.
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export const GUARD_COLOURS = ['c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8'];

/// Every bucket of the time, those without a decision too: a gap must look like one.
export function columns(overview) {
  const step = Math.max(1, overview.bucket_seconds) * 1000;
  const given = overview.series?.starts_ms ?? [];
  const from = Math.min(Math.floor(overview.since_ms / step) * step, given[0] ?? Infinity);
  const length = Math.min(MAX_COLUMNS, Math.max(1, Math.ceil((overview.until_ms - from) / step)));
  const starts = Array.from({ length }, (_, at) => from + at * step);
  const place = given.map((start) => Math.round((start - from) / step));
  const spread = (values) => {
    const row = new Array(length).fill(0);
    place.forEach((at, index) => { if (at >= 0 && at < length) row[at] += values?.[index] ?? 0; });
    return row;
  };
  return { starts, step, spread };
}

/// One chart that is kept and given other data. `layers`: [{name, colour, values}], the lowest first.
/// `options`: how values are shown, the least height of the axis, what is said of a column without any.
export function stacked(label, onRange, { show: shown = count, least = 4, none = 'No decisions' } = {}) {
  const plot = el('div', { class: 'plot' });
  const tip = el('div', { class: 'tip', hidden: true, 'aria-hidden': 'true' });
  const legend = el('ul', { class: 'legend' });
  const caption = el('figcaption', { class: 'unseen' });
  const numbers = el('details', { class: 'numbers', 'data-key': `numbers-${label}` }, el('summary', null, 'Show as table'));
  const root = el('figure', { class: 'chart', 'aria-label': label }, el('div', { class: 'canvas', 'aria-hidden': 'true' }, plot, tip), legend, caption, numbers);
  let chart;
  let given;
  let shape = '';

  const draw = () => {
    if (!given || !plot.clientWidth) return;
    const { starts, layers, since, until, step } = given;
    const sums = [];
    let below = new Array(starts.length).fill(0);
    for (const layer of layers) {
      below = below.map((value, at) => value + layer.values[at]);
      sums.push(below);
    }
    // The tallest first: each lower layer is painted over it.
    const data = [starts, ...sums.reverse()];
    const wanted = JSON.stringify([layers.map((layer) => [layer.name, colour(layer.colour)]), colour('muted'), step]);
    if (chart && wanted === shape) {
      chart.setData(data, false);
      chart.setScale('x', { min: since, max: until });
      return;
    }
    chart?.destroy();
    shape = wanted;
    const top = [...layers].reverse();
    const axis = { stroke: colour('muted'), font: '11px system-ui, sans-serif', grid: { stroke: colour('line'), width: 1 }, ticks: { show: false } };
    chart = new uPlot({
      width: plot.clientWidth,
      height: HEIGHT,
      ms: 1,
      padding: [10, 6, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: {
        x: { time: true, range: (_, min, max) => [min, max] },
        y: { range: (_, min, max) => [0, least ? Math.max(least, Math.ceil((max || 0) * 1.08)) : (max || 1) * 1.08] },
      },
      axes: [
        { ...axis, size: 28, space: 64, values: (u, ticks, __, ___, increment) => ticks.map((at) => {
          // At the end there is no room for half of the words.
          if (u.bbox.width / devicePixelRatio - u.valToPos(at, 'x') < 10) return '';
          if (increment >= 86_400_000 || (given.step >= 86_400_000 && clock(at) === '00:00:00')) return day(at).slice(5);
          return given.step >= 86_400_000 ? '' : clock(at).slice(0, 5);
        }) },
        { ...axis, size: least ? 44 : 60, space: 36, values: (_, ticks) => ticks.map((value) => (!least || Number.isInteger(value) ? shown(value) : '')) },
      ],
      series: [{}, ...top.map((layer) => ({
        label: layer.name, fill: colour(layer.colour), width: 0,
        paths: uPlot.paths.bars({ size: [0.86, 72], align: 1 }), points: { show: false },
      }))],
      hooks: { setCursor: [hover], setSelect: [select] },
    }, data, plot);
    chart.setScale('x', { min: since, max: until });
  };

  const hover = (u) => {
    // uPlot looks for the nearest start; a column reaches to the right of its start.
    const { starts, layers, step } = given;
    const at = u.cursor.left < 0 ? -1 : Math.floor((u.posToVal(u.cursor.left, 'x') - starts[0]) / step);
    if (at < 0 || at >= starts.length) {
      tip.hidden = true;
      return;
    }
    const lines = [...layers].reverse().filter((layer) => layer.values[at] > 0);
    tip.replaceChildren(el('strong', null, `${step >= 86_400_000 ? day(starts[at]) : moment(starts[at]).slice(5, 16)}`),
      ...(lines.length ? lines.map((layer) => el('span', { class: 'line' }, el('i', { class: `swatch ${layer.colour}` }), layer.name, el('b', null, shown(layer.values[at])))) : [el('span', { class: 'line' }, none)]));
    tip.hidden = false;
    const left = u.over.offsetLeft + u.cursor.left;
    const room = plot.clientWidth - tip.offsetWidth - 4;
    tip.style.transform = `translate(${Math.max(0, left > plot.clientWidth / 2 ? left - tip.offsetWidth - 14 : Math.min(room, left + 14))}px, 10px)`;
  };

  const select = (u) => {
    if (u.select.width < 6) return;
    const { since, until } = given;
    const [from, to] = [u.select.left, u.select.left + u.select.width].map((position) => Math.round(u.posToVal(position, 'x')));
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    onRange(Math.max(since, from), Math.min(until, to));
  };

  const size = new ResizeObserver(() => {
    if (!plot.clientWidth) return;
    if (chart) chart.setSize({ width: plot.clientWidth, height: HEIGHT });
    else draw();
  });
  size.observe(plot);

  return {
    root,
    show(next) {
      given = next;
      draw();
      const total = (layer) => layer.values.reduce((sum, value) => sum + value, 0);
      legend.replaceChildren(...next.layers.map((layer) => el('li', null, el('i', { class: `swatch ${layer.colour}`, 'aria-hidden': 'true' }), layer.name, ' ', el('b', null, shown(total(layer))))));
      const all = next.starts.map((_, at) => next.layers.reduce((sum, layer) => sum + layer.values[at], 0));
      const peak = all.indexOf(Math.max(...all));
      caption.textContent = `${label}. ${next.layers.map((layer) => `${layer.name}: ${shown(total(layer))}`).join(', ')}. Most at ${moment(next.starts[peak])}: ${shown(all[peak])}.`;
      const busy = next.starts.map((start, at) => [start, at]).filter(([, at]) => all[at] > 0).slice(-100);
      const fill = () => {
        if (!numbers.open) return;
        numbers.replaceChildren(numbers.firstChild, table(`${label}, the latest 100 times with any`,
          [{ label: 'From' }, ...next.layers.map((layer) => ({ label: layer.name, class: 'n' }))],
          busy.map(([start, at]) => [moment(start).slice(0, 16), ...next.layers.map((layer) => shown(layer.values[at]))])));
      };
      numbers.ontoggle = fill;
      fill();
    },
    redraw: draw,
    end() {
      size.disconnect();
      chart?.destroy();
      chart = undefined;
    },
  };
}

/// Ten columns from 0 to 1.
export function histogram(values, label) {
  const most = Math.max(1, ...values);
  return svg('svg', { class: 'histogram', viewBox: '0 0 80 24', width: 80, height: 24, role: 'img', 'aria-label': label },
    values.map((value, at) => svg('rect', { class: at < 5 ? 'low' : 'high', x: at * 8 + 0.5, width: 7, y: 24 - Math.max(1, (value / most) * 23), height: Math.max(1, (value / most) * 23) })));
}

export function line(values, label) {
  if (!values?.length || !values.some((value) => value > 0)) return null;
  const most = Math.max(...values);
  const points = values.map((value, at) => `${((at / Math.max(1, values.length - 1)) * 78 + 1).toFixed(1)},${(21 - (value / most) * 19).toFixed(1)}`);
  return svg('svg', { class: 'trend', viewBox: '0 0 80 22', width: 80, height: 22, role: 'img', 'aria-label': label }, svg('polyline', { points: points.join(' ') }));
}

/// Bots drawn at most; the table has them all.
const MAX_BOTS = 12;
const LINE_HEIGHT = 14;
const MAX_LINES = 3;

/// A name in lines of so many letters, broken where its parts end if it can be.
function inLines(name, letters) {
  const lines = [[]];
  for (const part of name.split(/(?<=[-_./ ])|(?<=\p{Ll})(?=\p{Lu})/u)) {
    const left = Array.from(part);
    if (lines.at(-1).length && lines.at(-1).length + left.length > letters) lines.push([]);
    while (left.length > letters) {
      lines.at(-1).push(...left.splice(0, letters));
      lines.push([]);
    }
    lines.at(-1).push(...left);
  }
  if (lines.length > MAX_LINES) lines[MAX_LINES - 1].splice(letters - 1, letters, '…');
  return lines.slice(0, MAX_LINES).map((line) => line.join(''));
}

/// The ways a conversation was led round in a circle, with how often: those between two visits of one bot in a chain that was stopped.
function circles(chains) {
  const ways = new Map();
  for (const { chain, count: often } of chains) {
    const last = new Map();
    const own = new Set();
    chain.forEach((bot, at) => {
      if (last.has(bot)) for (let step = last.get(bot); step < at; step += 1) own.add(JSON.stringify([chain[step], chain[step + 1]]));
      last.set(bot, at);
    });
    for (const way of own) ways.set(way, (ways.get(way) ?? 0) + often);
  }
  return ways;
}

/// Bots on a ring, neighbours by traffic; width is traffic, red where something was refused, and what goes round in a circle stands out.
/// Every way has its counts on it.
export function graph(given, chains, width) {
  const round = circles(chains);
  const nameOf = (edge) => JSON.stringify([edge.source, edge.target]);
  const isRound = (edge) => round.has(nameOf(edge));
  // Where one bot hands everything over, the circle is in the chains alone.
  const known = new Set(given.map(nameOf));
  const edges = [...given, ...[...round].filter(([way]) => !known.has(way)).map(([way, often]) => ({ source: JSON.parse(way)[0], target: JSON.parse(way)[1], allowed: 0, blocked: 0, often }))];
  const weight = new Map();
  for (const edge of edges) for (const bot of [edge.source, edge.target]) weight.set(bot, (weight.get(bot) ?? 0) + edge.allowed + edge.blocked + (isRound(edge) ? 1e9 : 0));
  const left = new Set([...weight].sort((a, b) => b[1] - a[1]).slice(0, MAX_BOTS).map(([bot]) => bot));
  const drawn = edges.filter((edge) => left.has(edge.source) && left.has(edge.target) && edge.source !== edge.target);
  const ways = drawn.filter((edge) => !edge.often).length;
  const between = (a, b) => drawn.reduce((sum, edge) => sum + ((edge.source === a && edge.target === b) || (edge.source === b && edge.target === a) ? edge.allowed + edge.blocked + (isRound(edge) ? 1e9 : 0) : 0), 0);
  const bots = [];
  for (let bot = [...left][0]; bot !== undefined;) {
    bots.push(bot);
    left.delete(bot);
    const here = bot;
    bot = [...left].sort((a, b) => between(here, b) - between(here, a) || (weight.get(b) - weight.get(a)))[0];
  }
  const room = Math.min(150, width * 0.3);
  const [rx, ry] = [Math.max(40, Math.min(250, width / 2 - room)), bots.length > 2 ? 140 : 30];
  const letters = Math.max(8, Math.floor((room - 16) / 7));
  const named = new Map(bots.map((bot) => [bot, inLines(bot, letters)]));
  const height = ry * 2 + 84 + 2 * LINE_HEIGHT * (Math.max(1, ...[...named.values()].map((lines) => lines.length)) - 1);
  const at = new Map(bots.map((bot, index) => {
    const angle = Math.PI + (index * 2 * Math.PI) / bots.length;
    return [bot, { x: width / 2 + rx * Math.cos(angle), y: height / 2 + ry * Math.sin(angle), cos: Math.cos(angle), sin: Math.sin(angle) }];
  }));
  const most = Math.max(1, ...drawn.map((edge) => edge.allowed + edge.blocked));
  const taken = [];
  /// A place on the way for its count: the first of some that no other count has.
  const free = (places) => {
    const found = places.find(([x, y]) => taken.every(([ox, oy]) => Math.abs(x - ox) > 34 || Math.abs(y - oy) > 15)) ?? places[0];
    taken.push(found);
    return found;
  };
  // What matters is drawn last, above the rest.
  const ordered = [...drawn].sort((a, b) => isRound(a) - isRound(b) || a.blocked - b.blocked);
  const places = new Map();
  const shapes = ordered.map((edge) => {
    const [a, b] = [at.get(edge.source), at.get(edge.target)];
    const [dx, dy] = [b.x - a.x, b.y - a.y];
    const far = Math.hypot(dx, dy) || 1;
    const bend = Math.min(46, far * 0.22);
    const [mx, my] = [(a.x + b.x) / 2 - (dy / far) * bend, (a.y + b.y) / 2 + (dx / far) * bend];
    const cut = (x, y, gap) => {
      const length = Math.hypot(mx - x, my - y) || 1;
      return [x + ((mx - x) / length) * gap, y + ((my - y) / length) * gap];
    };
    const [sx, sy] = cut(a.x, a.y, 10);
    const [tx, ty] = cut(b.x, b.y, 17);
    const kind = isRound(edge) ? 'round' : edge.blocked > 0 ? 'refused' : 'passed';
    const thick = (isRound(edge) ? 2.4 : 1.2) + 4 * Math.sqrt((edge.allowed + edge.blocked) / most);
    const on = (t) => [(1 - t) ** 2 * sx + 2 * (1 - t) * t * mx + t ** 2 * tx, (1 - t) ** 2 * sy + 2 * (1 - t) * t * my + t ** 2 * ty];
    places.set(edge, [0.5, 0.36, 0.64, 0.26, 0.74].map(on));
    return svg('g', { class: `edge ${kind}` },
      svg('path', { d: `M${sx.toFixed(1)} ${sy.toFixed(1)} Q${mx.toFixed(1)} ${my.toFixed(1)} ${tx.toFixed(1)} ${ty.toFixed(1)}`, 'stroke-width': thick.toFixed(1), 'marker-end': `url(#arrow-${kind})` }),
      svg('title', null, `${edge.source} → ${edge.target}: ${edge.often ? `${count(edge.often)} times on the way round` : `${count(edge.allowed)} allowed, ${count(edge.blocked)} blocked${isRound(edge) ? ', in a circle' : ''}`}`));
  });
  const counts = [...ordered].reverse().map((edge) => {
    const [x, y] = free(places.get(edge));
    const text = (kind, shown, dy) => svg('text', { class: kind, x: x.toFixed(1), y: y.toFixed(1), 'text-anchor': 'middle', dy }, shown);
    if (edge.often) return text('refused', `↻ ${count(edge.often)}`, '0.35em');
    if (!edge.blocked) return text('passed', count(edge.allowed), '0.35em');
    return [edge.allowed ? text('passed', count(edge.allowed), '-0.3em') : null, text('refused', `✕ ${count(edge.blocked)}`, edge.allowed ? '0.9em' : '0.35em')];
  });
  const nodes = bots.map((bot) => {
    const { x, y, cos, sin } = at.get(bot);
    const lines = named.get(bot);
    const aside = Math.abs(cos) > 0.3;
    const [left, top] = [x + (aside ? Math.sign(cos) * 14 : 0), y + (aside ? 0 : Math.sign(sin) * 20)];
    // All lines are above the bot, below it, or half and half beside it.
    const first = aside ? (1 - lines.length) / 2 : sin < 0 ? 1 - lines.length : 0;
    const goesRound = drawn.some((edge) => isRound(edge) && (edge.source === bot || edge.target === bot));
    return svg('g', { class: `bot ${goesRound ? 'round' : ''}` }, svg('circle', { cx: x.toFixed(1), cy: y.toFixed(1), r: 7 }),
      svg('text', { 'text-anchor': !aside ? 'middle' : cos > 0 ? 'start' : 'end' },
        lines.map((line, number) => svg('tspan', { x: left.toFixed(1), y: (top + (first + number) * LINE_HEIGHT).toFixed(1), dy: '0.35em' }, line))),
      svg('title', null, bot));
  });
  const arrow = (kind) => svg('marker', { id: `arrow-${kind}`, class: kind, viewBox: '0 0 8 8', refX: 1, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: 'userSpaceOnUse', orient: 'auto' }, svg('path', { d: 'M0 0L8 4L0 8z' }));
  const blocked = drawn.filter((edge) => edge.blocked > 0).length;
  const inCircles = drawn.filter(isRound).length;
  return svg('svg', { class: 'graph', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `Handoffs between ${bots.length} bots: ${ways} ways, ${blocked} of them with blocked handoffs. ${inCircles} ways are part of a circle. The table below has the numbers.` },
    svg('defs', null, arrow('passed'), arrow('refused'), arrow('round')), shapes, svg('g', { class: 'counts' }, counts), nodes);
}

export const chainText = (chain) => chain.flatMap((bot, at) => [at > 0 ? el('span', { class: 'arrow', 'aria-hidden': 'true' }, ' → ') : null, foreign(bot, 40)]);
