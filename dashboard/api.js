// The public API, and the stream of decisions.

const KEY = 'runguard.key';

export const key = {
  get: () => {
    try {
      return sessionStorage.getItem(KEY) ?? '';
    } catch {
      return '';
    }
  },
  set: (value) => {
    try {
      if (value) sessionStorage.setItem(KEY, value);
      else sessionStorage.removeItem(KEY);
    } catch {
      // Without storage the key is asked for again after a reload.
    }
  },
};

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

const headers = () => (key.get() ? { authorization: `Bearer ${key.get()}` } : {});

const query = (parameters) => {
  const used = Object.entries(parameters ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return used.length ? `?${new URLSearchParams(used)}` : '';
};

async function ask(path, parameters, options) {
  let response;
  try {
    response = await fetch(path + query(parameters), { ...options, headers: { ...headers(), ...options.headers }, cache: 'no-store', credentials: 'same-origin' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, 'The service does not answer', 'Is RunGuard still running? The page tries again by itself.');
  }
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    throw new Problem(response.status, 'The answer is not JSON', 'Is a proxy in between?');
  }
  if (response.ok) return body;
  const wrong = (body?.errors ?? []).map((error) => `${error.field} ${error.problem}`).join('; ');
  throw new Problem(response.status, body?.title ?? `Status ${response.status}`, wrong || body?.detail || '');
}

export const get = (path, parameters, signal) => ask(path, parameters, { signal });
export const post = (path, parameters, body) => ask(path, parameters, {
  method: 'POST', body: body === undefined ? undefined : JSON.stringify(body), headers: body === undefined ? {} : { 'content-type': 'application/json' },
});

/// Cells of a table as a spreadsheet reads them: what would be run as a formula is text.
const cell = (value) => {
  const text = String(value ?? '');
  const safe = /^[=+\-@\t\r]/.test(text) && typeof value !== 'number' ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
export const csv = (names, rows) => [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n';

/// Pages of a list as CSV, as the service writes it, up to a bound of rows.
export async function csvPages(path, parameters, most) {
  const page = 1000;
  let text = '';
  let cursor;
  for (let rows = 0; rows < most; rows += page) {
    const response = await fetch(path + query({ ...parameters, format: 'csv', limit: page, cursor }), { headers: headers(), cache: 'no-store' });
    if (!response.ok) throw new Problem(response.status, 'The log could not be written', `The service answered ${response.status}.`);
    const more = await response.text();
    text += text ? more.slice(more.indexOf('\n') + 1) : more;
    cursor = response.headers.get('x-next-cursor');
    if (!cursor) break;
  }
  return { text, isCut: Boolean(cursor) };
}

/// Gives the reader a file. The only link that is made of something else than parameters: its address is our own.
export function download(name, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv;charset=utf-8' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/// Waits between attempts to connect again, in milliseconds.
const WAITS = [500, 1000, 2000, 5000, 10_000];
/// Decisions kept between two drawings; older ones are counted only.
const KEPT = 50;
/// More than this between two drawings cannot be followed: we let go and take up at the end.
const FLOOD = 5000;
const DRAW_MILLIS = 250;

/// Follows the decisions. `EventSource` cannot send a key, so the stream is read by hand. `onBatch({decisions, count})`
/// comes at most four times a second; `onState` hears 'live', 'waiting', 'refused' or 'caught-up' (something was skipped).
export function follow(parameters, { onBatch, onState }) {
  const stop = new AbortController();
  let last = '';
  let attempt = 0;
  let pending = [];
  let count = 0;
  let timer = 0;
  let connection;

  const draw = () => {
    timer = 0;
    const decisions = [];
    for (const text of pending) {
      try {
        decisions.push(JSON.parse(text));
      } catch {
        // A line that is no decision shows nothing.
      }
    }
    const batch = { decisions, count };
    pending = [];
    count = 0;
    if (!stop.signal.aborted) onBatch(batch);
  };

  const take = (frame) => {
    let data = '';
    for (const line of frame.split('\n')) {
      if (line.startsWith('id: ')) last = line.slice(4);
      else if (line.startsWith('data: ')) data += line.slice(6);
    }
    if (!data) return;
    pending.push(data);
    count += 1;
    if (pending.length > KEPT) pending.shift();
    if (!timer) timer = setTimeout(draw, DRAW_MILLIS);
    if (count > FLOOD) {
      last = '';
      connection.abort();
    }
  };

  const read = async () => {
    connection = new AbortController();
    stop.signal.addEventListener('abort', () => connection.abort(), { once: true });
    const response = await fetch(`v1/events${query(parameters)}`, {
      headers: { ...headers(), accept: 'text/event-stream', ...(last ? { 'last-event-id': last } : {}) }, signal: connection.signal, cache: 'no-store',
    });
    if (response.status === 401 || response.status === 403 || response.status === 422) throw new Problem(response.status, 'refused', '');
    if (!response.ok || !response.body) throw new Problem(response.status, 'no stream', '');
    onState('live');
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      attempt = 0;
      rest += value;
      const frames = rest.split('\n\n');
      rest = frames.pop();
      frames.forEach(take);
    }
  };

  (async () => {
    while (!stop.signal.aborted) {
      try {
        await read();
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error.status) {
          if (error.status !== 503 && error.status < 500) return onState('refused');
        }
      }
      if (stop.signal.aborted) return;
      onState(last ? 'waiting' : 'caught-up');
      const wait = WAITS[Math.min(attempt, WAITS.length - 1)] * (0.75 + Math.random() / 2);
      attempt += 1;
      await new Promise((resolve) => { setTimeout(resolve, wait); });
    }
  })();

  return () => {
    stop.abort();
    clearTimeout(timer);
  };
}
