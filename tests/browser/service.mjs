// The binary as a process, and traffic for it.

import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const REPOSITORY = resolve(import.meta.dirname, '../..');
const START_MILLIS = 30_000;

function binary() {
  const tried = process.env.RUNGUARD_BIN ? [process.env.RUNGUARD_BIN] : ['release', 'debug'].map((build) => join(REPOSITORY, 'target', build, 'runguard'));
  const found = tried.find(existsSync);
  if (!found) throw new Error(`no runguard binary at ${tried.join(', ')}: run cargo build --release or set RUNGUARD_BIN`);
  return resolve(found);
}

const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('RUNGUARD_')));

const freePort = () => new Promise((done, failed) => {
  const probe = createServer().once('error', failed).listen(0, '127.0.0.1', () => {
    const { port } = probe.address();
    probe.close(() => done(port));
  });
});

export class Service {
  folder = mkdtempSync(join(tmpdir(), 'runguard-browser-'));
  log = '';

  /// `runguard key create`: the key itself.
  key(role, ...whose) {
    const made = spawnSync(binary(), ['key', 'create', '--json', '--data', this.folder, '--role', role, ...whose], { env: environment, encoding: 'utf8', cwd: this.folder });
    if (made.status !== 0) throw new Error(made.stderr);
    return JSON.parse(made.stdout).key;
  }

  /// Any other command, in the folder of the service.
  run(...command) {
    const ended = spawnSync(binary(), command, { env: environment, encoding: 'utf8', cwd: this.folder });
    if (ended.status !== 0) throw new Error(ended.stderr);
    return ended.stdout;
  }

  async start(...options) {
    const port = await freePort();
    this.origin = `http://127.0.0.1:${port}`;
    this.process = spawn(binary(), ['serve', '--data', this.folder, '--listen', `127.0.0.1:${port}`, ...options], { env: environment, cwd: this.folder, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.process.stdout, this.process.stderr]) stream.on('data', (data) => { this.log = (this.log + data).slice(-20_000); });
    const until = Date.now() + START_MILLIS;
    for (;;) {
      if (this.process.exitCode !== null || Date.now() > until) throw new Error(`the service did not start:\n${this.log}`);
      try {
        if ((await fetch(`${this.origin}/readyz`)).ok) return this;
      } catch {
        await new Promise((again) => { setTimeout(again, 25); });
      }
    }
  }

  async stop() {
    if (this.process && this.process.exitCode === null) {
      const ended = new Promise((done) => { this.process.once('exit', done); });
      this.process.kill('SIGTERM');
      await ended;
    }
    return this;
  }

  async end() {
    await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  async ask(path, body, { key, now } = {}) {
    const response = await fetch(this.origin + path, {
      method: body ? 'POST' : 'GET', body: body && JSON.stringify(body),
      headers: { ...(key && { authorization: `Bearer ${key}` }), ...(now && { 'x-runguard-now': String(Math.round(now)) }) },
    });
    const text = await response.text();
    if (![200, 204, 429].includes(response.status)) throw new Error(`${path} ${JSON.stringify(body)}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  /// A conversation that is handed round until it is refused.
  async circle(session, options) {
    let answer;
    for (const [source, target] of [['front', 'billing'], ['billing', 'front'], ['front', 'billing'], ['billing', 'front'], ['front', 'billing']]) {
      answer = await this.ask('/guard/handoff', { session_id: session, source_bot: source, target_bot: target }, options);
    }
    return answer;
  }

  /// An endpoint that fails until its circuit opens.
  async trip(endpoint, options) {
    for (let number = 0; number < 10; number += 1) await this.ask('/guard/api-circuit/record', { endpoint_key: endpoint, session_id: `caller-${number}`, attempt: 1, outcome: 'failure', status_code: 503, latency_ms: 900 + number }, options);
    await this.ask('/guard/api-circuit/check', { endpoint_key: endpoint, session_id: 'caller-0' }, options);
  }

  /// A day as a busy support desk has it: every guard, most of it healthy. Needs a service on the virtual clock.
  async day(end, conversations = 220) {
    let seed = 7;
    const chance = () => {
      seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
      return seed / 2_147_483_648;
    };
    const pick = (list) => list[Math.floor(chance() * list.length)];
    const topics = [['how do I cancel my subscription', 0.86], ['is there a student discount', 0.31], ['refund policy for damaged items', 0.74], ['change the delivery address', 0.81], ['warranty for refurbished phones', 0.22], ['invoice with VAT number', 0.45], ['reset my password', 0.93]];
    const starts = Array.from({ length: conversations }, (_, at) => {
      const part = (at + chance()) / conversations;
      return end - 86_400_000 * (1 - part * 0.985) + Math.sin(part * 9) * 1_800_000;
    }).sort((a, b) => a - b);
    for (const [number, start] of starts.entries()) {
      let now = start;
      const session_id = `conv-${String(4000 + number)}`;
      const ask = (path, body) => this.ask(`/guard/${path}`, { session_id, ...body }, { now: now += 1500 + chance() * 9000 });
      const kind = chance();
      if (kind < 0.2) {
        const bots = ['triage', 'billing', 'returns', 'shipping', 'tech-support', 'sales'];
        const loops = chance() < 0.4;
        let source = 'triage';
        for (let step = 0; step < (loops ? 6 : 1 + chance() * 2); step += 1) {
          const target = loops ? ['billing', 'returns'][step % 2] : pick(bots.filter((bot) => bot !== source));
          const answer = await ask('handoff', { source_bot: source, target_bot: target });
          if (!answer.allow) break;
          source = target;
        }
      } else if (kind < 0.4) {
        const [query, good] = pick(topics);
        for (let step = 0; step < 1 + chance() * 3; step += 1) {
          const confidence = Math.max(0, Math.min(1, good + (chance() - 0.5) * 0.2));
          const answer = await ask('kb-requery/check', { query });
          if (!answer.allow) break;
          await ask('kb-requery/record', { query, confidence_score: confidence, retrieved_chunks: 3 });
        }
      } else if (kind < 0.55) {
        const task_name = pick(['extract_order_number', 'classify_intent', 'summarise_ticket', 'extract_date']);
        const user_message = chance() < 0.45 ? 'I do not have it with me' : 'order #12345678 of 2026-11-03';
        for (let step = 0; step < 1 + chance() * 4; step += 1) await ask('ai-task-retry', { task_name, user_message, validation_error: 'no match' });
      } else if (kind < 0.7) {
        const spiral = chance() < 0.35;
        for (let step = 0; step < 3 + chance() * 5; step += 1) await ask('agent-action', { action_name: spiral ? 'search_orders' : pick(['search_orders', 'get_customer', 'search_orders', 'send_mail', 'lookup_policy']), action_params: { page: step } });
      } else if (kind < 0.8) {
        for (let step = 0; step < 1 + chance() * 4; step += 1) await ask('no-match-reprompt', { step_id: pick(['capture_email', 'capture_order_id', 'choose_topic']), user_utterance: chance() < 0.5 ? 'what do you mean' : 'ana@example.com A-123456' });
      } else if (kind < 0.88) {
        const [capture_step, entity_type, user_utterance] = pick([['ask_date', 'date', 'next Saturday'], ['ask_phone', 'phone', 'three two one, four four'], ['ask_email', 'email', 'ana at example dot com']]);
        for (let step = 0; step < 1 + chance() * 2; step += 1) await ask('capture-slot-fill', { capture_step, entity_type, user_utterance });
      } else if (kind < 0.96) {
        const endpoint_key = pick(['crm', 'orders-api', 'payments', 'orders-api']);
        const answer = await ask('api-circuit/check', { endpoint_key });
        if (answer.allow) await ask('api-circuit/record', { endpoint_key, attempt: 1, outcome: chance() < (endpoint_key === 'crm' ? 0.3 : 0.05) ? 'failure' : 'success', status_code: 200, latency_ms: Math.round((endpoint_key === 'crm' ? 700 : 90) * (0.5 + chance())) });
      } else {
        for (let step = 0; step < 6; step += 1) await ask('budget/record', { budget: pick(['research-agent', 'support-agent']), max_usd: 2, usd: 0.1 + chance() * 0.3 });
        for (let step = 0; step < 4; step += 1) await ask('tool-call', { tool: 'search_knowledge', args: { query: 'refund policy' } });
      }
    }
    await this.trip('inventory', { now: end - 12_000 });
  }
}
