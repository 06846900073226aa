// The dashboard in Chromium, on a real service with real decisions.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { PICTURES, audit, launch, open, picture, settled } from './browser.mjs';
import { Service } from './service.mjs';

let browser;
before(async () => { browser = await launch(); });
after(() => browser.close());

const close = async (page) => {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
};
const part = (page, name) => page.getByRole('region', { name, exact: true });
const tile = async (page, name) => (await page.locator('.tile', { has: page.locator('dt', { hasText: new RegExp(`^${name}$`) }) }).locator('.value').textContent()).trim();
const isWide = (page) => page.evaluate(() => document.documentElement.scrollWidth > innerWidth);

describe('a service with a day of traffic', () => {
  const service = new Service();
  let looped;
  let one;
  const views = () => ({
    overview: '/', spend: '/?view=spend', decisions: '/?view=decisions', insights: '/?view=insights', settings: '/?view=settings', alerts: '/?view=alerts',
    sessions: '/?view=sessions', session: `/?view=session&session=${looped}`, decision: `/?view=decision&decision=${one}`,
  });

  before(async () => {
    await service.start('--virtual-clock');
    await service.day(Date.now());
    await service.stop();
    await service.start();
    ({ session_id: looped, decision_id: one } = (await service.ask('/v1/decisions?reason=cycle_detected&limit=1')).decisions[0]);
  });
  after(() => service.end());

  test('loads everything from its own origin, without an error', async () => {
    const page = await open(browser, service);
    await settled(page);
    const heads = await page.locator('main h2').allTextContents();
    for (const head of ['Decisions by outcome', 'Why blocked', 'Circuits', 'Handoffs', 'Knowledge base topics', 'Agent actions', 'Endpoints', 'Budgets', 'Latest decisions']) assert.ok(heads.includes(head), head);
    const { totals } = await service.ask('/v1/stats');
    const blocked = totals.filter((one) => one.outcome === 'blocked').reduce((sum, one) => sum + one.count, 0);
    assert.ok(blocked > 20);
    assert.equal(await tile(page, 'Blocked'), String(blocked));
    assert.equal(await page.locator('figure.chart canvas').count(), 2);
    await close(page);
  });

  test('the files are small, cached by tag, and say what may run', async () => {
    const index = await fetch(`${service.origin}/`);
    const names = [...(await index.text()).matchAll(/(?:src|href)="(dashboard\/[^"]+)"/g)].map((match) => match[1]);
    assert.ok(names.length >= 10);
    let bytes = 0;
    for (const name of ['', ...names]) {
      const first = await fetch(`${service.origin}/${name}`);
      assert.equal(first.status, 200, name);
      bytes += (await first.arrayBuffer()).byteLength;
      assert.match(first.headers.get('content-security-policy'), /^default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'$/);
      assert.equal(first.headers.get('x-content-type-options'), 'nosniff');
      assert.equal(first.headers.get('referrer-policy'), 'no-referrer');
      assert.equal((await fetch(`${service.origin}/${name}`, { headers: { 'if-none-match': first.headers.get('etag') } })).status, 304);
    }
    assert.ok(bytes <= 250 * 1024, `${bytes} bytes`);
    assert.equal((await fetch(`${service.origin}/dashboard/..%2fCargo.toml`)).status, 404);
  });

  test('the page of documents has no finding of the audit, and tries a route', async () => {
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [1360, 360]) {
        const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
        await page.goto(`${service.origin}/docs`);
        assert.deepEqual(await audit(page), [], `${colorScheme} ${width}`);
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
        await picture(page, `docs-${width === 360 ? 'phone' : colorScheme}`);
        const form = page.locator('form.try[data-method=GET]').first();
        await form.getByRole('button').click();
        await form.locator('pre', { hasText: '200 OK' }).waitFor();
        await page.close();
      }
    }
  });

  for (const scheme of ['light', 'dark']) {
    test(`no serious finding of the accessibility audit, ${scheme}`, async () => {
      for (const [name, address] of Object.entries(views())) {
        const page = await open(browser, service, address, { colorScheme: scheme });
        await settled(page);
        await picture(page, `${name}-${scheme}`);
        assert.deepEqual(await audit(page), [], name);
        await close(page);
      }
    });
  }

  test('a phone of 360 pixels needs no sideways scrolling', async () => {
    for (const [name, address] of Object.entries(views())) {
      const page = await open(browser, service, address, { viewport: { width: 360, height: 740 } });
      await settled(page);
      await picture(page, `${name}-phone`);
      assert.equal(await isWide(page), false, name);
      await close(page);
    }
    console.log(`pictures are in ${PICTURES}`);
  });

  test('names are whole on a phone: of bots in the graph, and of settings', async () => {
    const phone = { viewport: { width: 360, height: 740 } };
    const page = await open(browser, service, '/', phone);
    await settled(page);
    const { handoffs } = await service.ask('/v1/overview?since=24h');
    const bots = new Set(handoffs.edges.flatMap((edge) => [edge.source, edge.target]));
    assert.ok(bots.has('tech-support'));
    const graph = part(page, 'Handoffs').locator('svg.graph');
    await graph.locator('.bot').first().waitFor();
    assert.deepEqual(new Set(await graph.locator('.bot text').allTextContents()), bots);
    const isInside = (svg) => {
      const room = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].map((text) => text.getBoundingClientRect()).every((text) => text.left >= room.left && text.right <= room.right && text.top >= room.top && text.bottom <= room.bottom);
    };
    assert.ok(await graph.evaluate(isInside));
    await close(page);
    const other = await open(browser, service, '/?view=settings', phone);
    await settled(other);
    await other.evaluate(() => { for (const details of document.querySelectorAll('details')) details.open = true; });
    // Where a part of a name ends, and only there, it may go on in the next line.
    const torn = () => [...document.querySelectorAll('.values th .foreign')].flatMap((name) => [...name.childNodes]).filter((part) => {
      const range = document.createRange();
      range.selectNodeContents(part);
      return part.nodeType === Node.TEXT_NODE && new Set([...range.getClientRects()].map((line) => line.top)).size > 1;
    }).map((part) => part.textContent);
    assert.ok(await other.locator('.values th').count() > 100);
    assert.deepEqual(await other.evaluate(torn), []);
    await close(other);
  });

  test('a session shows how its budgets stand, if it has any', async () => {
    await service.ask('/guard/budget/record', { session_id: 'spends', usd: 0.5, max_usd: 2 });
    await service.circle('spends-nothing');
    const page = await open(browser, service, '/?view=session&session=spends');
    await settled(page);
    assert.match(await part(page, 'What it may spend').textContent(), /default.*\$1\.50 left of \$2\.00.*25 ?% spent/);
    await close(page);
    const other = await open(browser, service, '/?view=session&session=spends-nothing');
    await settled(other);
    assert.equal(await part(other, 'What it may spend').isVisible(), false);
    await close(other);
  });

  test('from a reason to its decisions to a session, and back again', async () => {
    await service.circle('round-and-round');
    const page = await open(browser, service);
    await settled(page);
    await part(page, 'Why blocked').getByRole('link', { name: /Handed round in a circle/ }).click();
    await page.getByRole('heading', { level: 1, name: 'Decisions' }).waitFor();
    assert.equal(new URL(page.url()).searchParams.get('reason'), 'cycle_detected');
    const rows = part(page, 'Log').locator('tbody tr');
    await rows.first().waitFor();
    for (const text of await rows.allTextContents()) assert.match(text, /Handed round in a circle/);
    await rows.first().locator('td:last-child a').click();
    await page.getByRole('heading', { level: 1, name: 'Session', exact: true }).waitFor();
    const last = part(page, 'Timeline').locator('.step.blocked').last();
    await last.getByText('Why was this blocked?').waitFor();
    const text = await last.textContent();
    assert.match(text, /cycle_detected/);
    assert.match(text, /already visited 2 times/);
    assert.match(text, /Ceiling2/);
    assert.match(await part(page, 'What would be allowed next').textContent(), /2 of 2.*Handed round in a circle allowed in (30 min|29 min)/);
    await page.goBack();
    await page.getByRole('heading', { level: 1, name: 'Decisions' }).waitFor();
    assert.equal(new URL(page.url()).searchParams.get('reason'), 'cycle_detected');
    await page.goBack();
    await page.getByRole('heading', { level: 1, name: 'Overview' }).waitFor();
    assert.equal(new URL(page.url()).search, '');
    await close(page);
  });

  test('filters are in the address, and the address brings them back', async () => {
    const page = await open(browser, service);
    await settled(page);
    const all = await tile(page, 'Decisions');
    await page.getByLabel('Guard', { exact: true }).selectOption('handoff');
    await page.waitForFunction((before) => document.querySelector('.tile .value')?.textContent !== before, all);
    await page.getByLabel('Time', { exact: true }).selectOption('7d');
    await settled(page);
    const parameters = new URL(page.url()).searchParams;
    assert.deepEqual([parameters.get('guard'), parameters.get('since')], ['handoff', '7d']);
    await page.waitForFunction((before) => document.querySelector('.tile .value') && document.querySelector('.tile .value').textContent !== before, all);
    const handoffs = await tile(page, 'Decisions');
    const other = await open(browser, service, new URL(page.url()).search);
    await settled(other);
    assert.equal(await tile(other, 'Decisions'), handoffs);
    assert.equal(await other.getByLabel('Guard', { exact: true }).inputValue(), 'handoff');
    assert.equal(await other.getByLabel('Time', { exact: true }).inputValue(), '7d');
    await other.getByRole('button', { name: 'Clear filters' }).click();
    await other.waitForFunction((before) => document.querySelector('.tile .value')?.textContent === before, all);
    await close(other);
    await close(page);
  });

  test('dragging over a chart sets the time', async () => {
    const page = await open(browser, service);
    await settled(page);
    const box = await page.locator('.u-over').first().boundingBox();
    await page.mouse.move(box.x + box.width * 0.25, box.y + 60);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 70, { steps: 5 });
    assert.equal(await page.locator('.tip').first().isVisible(), true);
    await page.mouse.up();
    await page.waitForURL(/until=/);
    const { since, until } = Object.fromEntries(new URL(page.url()).searchParams);
    const hours = (Number(until) - Number(since)) / 3_600_000;
    assert.ok(hours > 5 && hours < 7, `${hours} hours`);
    await settled(page);
    await page.goBack();
    await page.waitForURL((url) => url.search === '');
    await close(page);
  });

  test('a session is reached with the keyboard alone', async () => {
    const page = await open(browser, service, '/?view=decisions&outcome=blocked');
    await settled(page);
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
    await page.keyboard.press('Enter');
    const isSession = () => page.evaluate(() => /[?&]view=session(&|$)/.test(document.activeElement.getAttribute('href') ?? ''));
    for (let presses = 0; presses < 60 && !(await isSession()); presses += 1) await page.keyboard.press('Tab');
    assert.ok(await isSession(), 'no session within sixty presses');
    assert.notEqual(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), 'none');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: 'Session', exact: true }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.tagName), 'H1');
    await close(page);
  });

  test('a circuit counts down, and an admin forces and resets it', async () => {
    await service.trip('ledger');
    const page = await open(browser, service);
    await settled(page);
    const row = part(page, 'Circuits').locator('tr', { hasText: 'ledger' });
    const left = async () => Number(/(\d+) s/.exec(await row.locator('[data-until]').textContent())[1]);
    const first = await left();
    assert.ok(first > 0 && first <= 45);
    await page.waitForFunction((start) => [...document.querySelectorAll('tr')].some((line) => line.textContent.includes('ledger') && Number(/in (\d+) s/.exec(line.textContent)?.[1]) < start), first);
    await row.getByRole('button', { name: 'Close ledger' }).click();
    await page.getByRole('button', { name: 'Cancel' }).click();
    assert.equal((await service.ask('/v1/circuits')).circuits.find((one) => one.endpoint_key === 'ledger').phase, 'open');
    await row.getByRole('button', { name: 'Close ledger' }).click();
    await page.getByRole('button', { name: 'Force closed' }).click();
    await row.getByText('held by an operator').waitFor();
    assert.equal((await service.ask('/v1/circuits')).circuits.find((one) => one.endpoint_key === 'ledger').forced, 'closed');
    await row.getByRole('button', { name: 'Reset ledger' }).click();
    await page.locator('#confirm').getByRole('button', { name: 'Reset' }).click();
    await row.getByText('Closed', { exact: true }).waitFor();
    await page.waitForFunction(() => ![...document.querySelectorAll('tr')].some((line) => line.textContent.includes('ledger') && line.textContent.includes('operator')));
    await close(page);
  });

  test('a changed threshold is previewed', async () => {
    const page = await open(browser, service, '/?view=settings&guard=handoff');
    await settled(page);
    await page.getByRole('button', { name: 'Preview' }).click();
    await page.getByText('Change at least one value').waitFor();
    await page.getByLabel('Max visits per bot').fill('6');
    await page.getByRole('button', { name: 'Preview' }).click();
    await page.getByText(/would have been another/).first().waitFor();
    await part(page, 'In force').getByText('[guards.handoff]').waitFor();
    await close(page);
  });

  test('what a preview shows can be taken over: as TOML, and as a command that does it', async () => {
    const page = await open(browser, service, '/?view=settings&guard=handoff', { permissions: ['clipboard-read', 'clipboard-write'] });
    await settled(page);
    assert.equal(await page.getByLabel('Window', { exact: true }).inputValue(), '30m');
    assert.match(await page.locator('.try').textContent(), /in force: 30 min/);
    await page.getByLabel('Window', { exact: true }).fill('2h');
    await page.getByLabel('Max visits per bot').fill('3');
    await page.getByRole('button', { name: 'Preview' }).click();
    await page.getByRole('button', { name: 'Copy as TOML' }).click();
    await page.getByRole('button', { name: 'Copied' }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), '[guards.handoff]\nmax_visits_per_bot = 3\nwindow = "2h"\n');
    const command = (await page.locator('.copyable pre').last().textContent()).split(' ');
    assert.deepEqual(command, ['runguard', 'settings', 'set', 'guards.handoff.max_visits_per_bot=3', 'guards.handoff.window=2h']);
    service.run(...command.slice(1));
    assert.equal(readFileSync(join(service.folder, 'runguard.toml'), 'utf8'), '[guards.handoff]\nmax_visits_per_bot = 3\nwindow = "2h"\n');
    assert.deepEqual(await audit(page), []);
    await close(page);
  });

  test('a session is found by how its name begins, and the most blocked come first', async () => {
    const page = await open(browser, service, '/?view=sessions');
    await settled(page);
    const rows = part(page, 'List').locator('tbody tr');
    assert.equal(await rows.count(), 50);
    await page.getByRole('button', { name: 'Show more' }).click();
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length > 50);
    await page.getByRole('link', { name: 'Most blocked' }).click();
    await page.waitForFunction(() => new URLSearchParams(location.search).get('sort') === 'blocked');
    const falling = () => {
      const blocked = [...document.querySelectorAll('tbody tr td:nth-of-type(2)')].map((cell) => Number(cell.textContent.replace('–', '0')));
      return blocked[0] > 0 && blocked.every((one, at) => at === 0 || one <= blocked[at - 1]) && blocked.length;
    };
    const listed = await (await page.waitForFunction(falling)).jsonValue();
    const saved = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save as CSV' }).click();
    const lines = readFileSync(await (await saved).path(), 'utf8').trimEnd().split('\r\n');
    assert.equal(lines.length, listed + 1);
    assert.match(lines[0], /^session_id,tenant,decisions,/);
    // From the field at the top of every page: a name that some begin with, then one.
    const find = page.getByLabel('Session id, or how it begins');
    await find.fill('conv-40');
    await find.press('Enter');
    await page.waitForFunction(() => new URLSearchParams(location.search).get('prefix') === 'conv-40');
    await page.waitForFunction(() => {
      const names = [...document.querySelectorAll('tbody tr th')].map((cell) => cell.textContent);
      return names.length > 0 && names.every((name) => name.startsWith('conv-40'));
    });
    await find.fill(looped);
    await find.press('Enter');
    await page.waitForFunction((wanted) => new URLSearchParams(location.search).get('session') === wanted, looped);
    await page.getByRole('heading', { level: 1, name: 'Session', exact: true }).waitFor();
    await close(page);
  });

  test('one decision has an address, and all of them are saved', async () => {
    const page = await open(browser, service, '/?view=decisions&reason=cycle_detected');
    await settled(page);
    // A list that is not of today alone says the day; and which clock it goes by.
    assert.match(await part(page, 'Log').locator('thead').textContent(), /Time, UTC/);
    const saved = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save as CSV' }).click();
    const lines = readFileSync(await (await saved).path(), 'utf8').trimEnd().split('\r\n');
    const { decisions } = await service.ask('/v1/decisions?reason=cycle_detected&since=24h&limit=1000');
    assert.deepEqual(lines.slice(1).map((line) => line.split(',')[0]), decisions.map((decision) => decision.decision_id));
    await part(page, 'Log').locator('tbody tr').first().locator('th a').click();
    await page.getByRole('heading', { level: 1, name: 'Decision' }).waitFor();
    await part(page, 'What was decided').getByText('Why was this blocked?').waitFor();
    assert.match(await part(page, 'What was decided').textContent(), /cycle_detected/);
    const other = await open(browser, service, new URL(page.url()).search);
    await part(other, 'What was decided').getByText('Why was this blocked?').waitFor();
    await close(other);
    await close(page);
  });

  test('advice is put aside for a while or for good, and comes back', async () => {
    const page = await open(browser, service, '/?view=insights&since=7d');
    await settled(page);
    const cards = page.locator('.card');
    const before = await cards.count();
    assert.ok(before > 2, `${before}`);
    const title = await cards.first().locator('h3').textContent();
    await cards.first().getByRole('button', { name: /^Dismiss/ }).click();
    await page.waitForFunction((all) => document.querySelectorAll('.card').length === all - 1, before);
    await cards.first().getByRole('button', { name: /^Snooze/ }).click();
    await page.waitForFunction((all) => document.querySelectorAll('.card').length === all - 2, before);
    // Kept by the service: another reader sees the same.
    const other = await open(browser, service, '/?view=insights&since=7d');
    await settled(other);
    assert.equal(await other.locator('.card').count(), before - 2);
    await other.getByRole('link', { name: 'Show 2 put aside' }).click();
    await other.waitForFunction((all) => document.querySelectorAll('.card').length === all, before);
    assert.deepEqual(await audit(other), []);
    await other.locator('.card.aside', { hasText: title }).getByRole('button', { name: /^Restore/ }).click();
    await other.getByRole('link', { name: 'Hide what is put aside' }).waitFor();
    await other.waitForFunction(() => document.querySelectorAll('.card.aside').length === 1);
    await other.locator('summary', { hasText: 'suggestion' }).first().click();
    assert.equal(await other.locator('.insight-group').first().getAttribute('open'), null);
    await other.locator('.card.aside').getByRole('button', { name: /^Restore/ }).click({ force: true }).catch(() => {});
    await close(other);
    await close(page);
  });

  test('the circle is seen in the graph, with its counts', async () => {
    const page = await open(browser, service);
    await settled(page);
    const graph = part(page, 'Handoffs').locator('svg.graph');
    await graph.locator('.edge.round').first().waitFor();
    assert.match(await graph.getAttribute('aria-label'), /[1-9]\d* ways are part of a circle/);
    const { handoffs } = await service.ask('/v1/overview?since=24h');
    const shown = await graph.locator('.counts text').allTextContents();
    const worst = handoffs.edges.toSorted((a, b) => b.blocked - a.blocked)[0];
    assert.ok(shown.includes(`✕ ${worst.blocked}`), shown.join());
    await close(page);
    // Where one bot hands everything over, the circle is in the chains of others.
    for (let step = 0, goesOn = true; goesOn && step < 20; step += 1) goesOn = (await service.ask('/guard/handoff', { session_id: 'by-one', source_bot: 'hub', target_bot: ['returns-bot', 'shipping-bot'][step % 2] })).allow;
    const other = await open(browser, service);
    await settled(other);
    await part(other, 'Handoffs').locator('.edge.round title', { hasText: /^(returns|shipping)-bot → (returns|shipping)-bot: 1 times on the way round$/ }).first().waitFor({ state: 'attached' });
    await close(other);
  });

  test('nothing moves for those who asked for it', async () => {
    const page = await open(browser, service, '/', { reducedMotion: 'reduce' });
    await settled(page);
    await page.locator('.live[data-state="live"]').waitFor();
    assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
    await close(page);
    const other = await open(browser, service);
    await other.locator('.live[data-state="live"]').waitFor();
    assert.ok(await other.evaluate(() => document.getAnimations().length) > 0);
    await close(other);
  });

  test('the theme is a choice that stays', async () => {
    const page = await open(browser, service, '/', { colorScheme: 'light' });
    await settled(page);
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.getByRole('button', { name: 'Dark theme' }).click();
    const dark = await ground();
    assert.notEqual(light, dark);
    await page.reload();
    await page.locator('#view h1').waitFor();
    assert.equal(await ground(), dark);
    await close(page);
  });
});

describe('a settings file that is refused', () => {
  const service = new Service();
  const file = join(service.folder, 'runguard.toml');
  before(() => {
    writeFileSync(file, '[guards.handoff]\nmax_handoffs = 3\n');
    return service.start();
  });
  after(() => service.end());

  test('is told on every page until a good one comes, and why', async () => {
    const page = await open(browser, service, '/');
    await settled(page);
    const banner = page.locator('#refused');
    assert.equal(await banner.isVisible(), false);
    writeFileSync(file, '');
    await banner.waitFor({ state: 'visible' });
    assert.match(await banner.textContent(), /settings file was refused/);
    await banner.getByRole('link').click();
    await part(page, 'In force').getByText('is empty').waitFor();
    writeFileSync(file, '[guards.handoff]\nmax_handoffs = 4\n');
    await banner.waitFor({ state: 'hidden' });
    await close(page);
  });
});

describe('a service in which much is wrong', () => {
  const service = new Service();
  const file = join(service.folder, 'runguard.toml');
  before(async () => {
    writeFileSync(file, '[alerts]\nmax_attempts = 1\n[[alerts.target]]\nname = "team"\nkind = "slack"\nurl = "http://127.0.0.1:9/"\nallow_private = true\n');
    await service.start();
  });
  after(() => service.end());
  const check = (page, name) => page.locator('.check-item', { has: page.getByText(name, { exact: true }) });

  test('says so first, and where', async () => {
    const page = await open(browser, service);
    await settled(page);
    for (const [name, text] of [['Circuits', 'None open'], ['Alerts', 'None firing'], ['Service', 'Ready'], ['Settings', 'In force']]) {
      await check(page, name).getByText(text).waitFor();
    }
    assert.equal(await page.locator('.check-item.wrong').count(), 0);
    await service.trip('inventory');
    await check(page, 'Circuits').getByText('1 open').waitFor();
    assert.match(await check(page, 'Circuits').textContent(), /inventory/);
    await check(page, 'Alerts').getByText(/firing/).waitFor();
    writeFileSync(file, '[guards.handoff]\nmax_handofs = 3\n');
    await check(page, 'Settings').getByText('was refused').waitFor();
    assert.deepEqual(await audit(page), []);
    await picture(page, 'wrong-light');
    await close(page);
    for (const [name, options] of Object.entries({ dark: { colorScheme: 'dark' }, phone: { viewport: { width: 360, height: 740 } } })) {
      const other = await open(browser, service, '/', options);
      await settled(other);
      await check(other, 'Settings').getByText('was refused').waitFor();
      await picture(other, `wrong-${name}`);
      assert.deepEqual(await audit(other), []);
      assert.equal(await isWide(other), false);
      await close(other);
    }
  });
});

describe('a service that meters model calls', () => {
  const service = new Service();
  before(async () => {
    writeFileSync(join(service.folder, 'runguard.toml'), '[guards.budget]\nmax_usd = 2\n[guards.budget.scopes.tenant.day]\nmax_usd = 1\n[guards.budget.scopes.model.month]\nmax_tokens = 100_000\n');
    await service.start('--virtual-clock');
    const pay = (session_id, model, day, tokens) => service.ask('/guard/budget/record', { session_id, model, input_tokens: tokens, output_tokens: tokens }, { now: Date.now() - day * 86_400_000 });
    for (let day = 6; day >= 0; day -= 1) {
      await pay(`nightly-${day}`, 'gpt-4o', day, 9000 + 3000 * ((day * 5) % 4));
      await pay(`review-${day}`, 'claude-sonnet-4-6', day, 7000);
    }
    await service.stop();
    await service.start();
    const steps = Array.from({ length: 4 }, (_, at) => ({ id: `c${at}`, tool: 'search', args: 'a', result: 'x' }));
    await service.ask('/guard/agent-run', { session_id: 'looping/agent 1', model: 'gpt-4o', steps });
    await service.ask('/guard/agent-run', { session_id: 'at-work', model: 'gpt-4o', steps: steps.slice(0, 1) });
  });
  after(() => service.end());

  for (const [name, options] of Object.entries({ light: { colorScheme: 'light' }, dark: { colorScheme: 'dark' }, phone: { viewport: { width: 360, height: 740 } } })) {
    test(`what was spent is seen, ${name}`, async () => {
      const page = await open(browser, service, '/?view=spend', options);
      await settled(page);
      await part(page, 'By model').getByText('claude-sonnet-4-6').waitFor();
      const { total } = await service.ask('/v1/spend?since=30d');
      assert.equal(await tile(page, 'Model calls'), String(total.calls));
      assert.match(await part(page, 'What is left').textContent(), /tenant\/day.*left of \$1\.00/);
      assert.equal(await page.locator('figure.chart canvas').count(), 1);
      await picture(page, `spending-${name}`);
      assert.deepEqual(await audit(page), []);
      assert.equal(await isWide(page), false);
      await close(page);
    });
  }

  test('a run is found, stopped and resumed', async () => {
    const page = await open(browser, service, '/?view=spend');
    await settled(page);
    const runs = part(page, 'Runs');
    const row = (name) => runs.locator('tbody tr', { hasText: name });
    await row('at-work').getByText('Live').waitFor();
    await row('at-work').getByRole('button', { name: 'Stop at-work' }).click();
    await page.locator('#confirm').getByRole('button', { name: 'Stop' }).click();
    await row('at-work').getByText('Stopped', { exact: true }).waitFor();
    const refused = await service.ask('/guard/agent-run', { session_id: 'at-work', model: 'gpt-4o' });
    assert.deepEqual([refused.allow, refused.reason], [false, 'run_stopped']);
    await row('looping/agent 1').getByText('Run gets nowhere').waitFor();
    await row('looping/agent 1').getByRole('button', { name: 'Resume looping/agent 1' }).click();
    await page.locator('#confirm').getByRole('button', { name: 'Resume' }).click();
    await row('looping/agent 1').getByText('Live').waitFor();
    await runs.getByLabel('Runs whose name begins with').fill('looping');
    await runs.getByLabel('Runs whose name begins with').press('Enter');
    await page.waitForFunction(() => new URLSearchParams(location.search).get('prefix') === 'looping');
    await row('looping/agent 1').waitFor();
    assert.equal(await row('at-work').count(), 0);
    await close(page);
  });
});

describe('an empty service', () => {
  const service = new Service();
  before(() => service.start());
  after(() => service.end());

  test('says how to begin, and shows the first decision as it comes', async () => {
    const page = await open(browser, service);
    await settled(page);
    const card = part(page, 'Ask before the next step');
    await card.getByText('No decisions yet.').waitFor();
    assert.match(await card.locator('pre').textContent(), /OPENAI_BASE_URL=http:\/\/127\.0\.0\.1:\d+\/openai\/v1/);
    await picture(page, 'empty-light');
    assert.deepEqual(await audit(page), []);
    await card.getByRole('tab', { name: 'Gateway' }).press('ArrowLeft');
    assert.equal(await card.getByRole('tab', { name: 'curl' }).getAttribute('aria-selected'), 'true');
    assert.match(await card.locator('pre').textContent(), /curl -s http:\/\/127\.0\.0\.1:\d+\/guard\/ai-task-retry/);
    assert.equal(await part(page, 'Latest decisions').isVisible(), false);
    await page.locator('.live[data-state="live"]').waitFor();
    await service.circle('first-of-all');
    await card.getByText('The first decision is here').waitFor();
    assert.deepEqual(await audit(page), []);
    await picture(page, 'first-light');
    await part(page, 'Latest decisions').getByText('first-of-all').first().waitFor();
    await page.waitForFunction(() => document.querySelector('.tile.is-blocked .value')?.textContent === '1');
    await page.waitForFunction(() => document.querySelector('.tile .value')?.textContent === '5');
    // It goes on when the connection is lost.
    await page.context().setOffline(true);
    await page.context().setOffline(false);
    await service.circle('second');
    await page.waitForFunction(() => document.querySelector('.tile.is-blocked .value')?.textContent === '2');
    await close(page);
  });

  test('a pause holds the page still', async () => {
    const page = await open(browser, service);
    await settled(page);
    await page.locator('.live[data-state="live"]').waitFor();
    await page.getByRole('button', { name: 'Live' }).click();
    const before = await tile(page, 'Decisions');
    await service.circle('while-paused');
    await page.waitForTimeout(1500);
    assert.equal(await tile(page, 'Decisions'), before);
    assert.equal(await page.getByText('while-paused').count(), 0);
    await page.getByRole('button', { name: 'Paused' }).click();
    await page.getByText('while-paused').first().waitFor();
    await close(page);
  });

  test('a session that nobody knows', async () => {
    const page = await open(browser, service, '/?view=session&session=nobody', { expect: [/404/] });
    await page.getByText('Nothing is known of this session.').waitFor();
    await close(page);
  });
});

describe('text that wants to be more than text', () => {
  const service = new Service();
  const hostile = [
    '<img src=x onerror="window.harmed=1">', '</script><script>window.harmed=1</script>', '"><svg onload=window.harmed=1>', 'javascript:window.harmed=1',
    '\u202Egnp.exe\u202C\u2066', '{{constructor.constructor("window.harmed=1")()}}', "'-window.harmed-'", `${'x'.repeat(200)}<b>`,
  ];
  before(async () => {
    await service.start();
    const long = `<img src=x onerror=window.harmed=1>${'y'.repeat(10_000)}`;
    for (const text of hostile) {
      for (let step = 0; step < 4; step += 1) {
        await service.ask('/guard/ai-task-retry', { session_id: text, task_name: text, user_message: long, validation_error: text });
        await service.ask('/guard/handoff', { session_id: text, source_bot: text, target_bot: `${text.slice(0, 200)}2` });
        await service.ask('/guard/kb-requery/check', { session_id: text, query: text });
        await service.ask('/guard/kb-requery/record', { session_id: text, query: text + long, confidence_score: 0.2, retrieved_chunks: 1 });
        await service.ask('/guard/agent-action', { session_id: text, action_name: text, action_params: { [text]: long } });
        await service.ask('/guard/no-match-reprompt', { session_id: text, step_id: text, user_utterance: long });
        await service.ask('/guard/capture-slot-fill', { session_id: text, capture_step: text, entity_type: 'date', user_utterance: `next Saturday ${text}` });
        await service.ask('/guard/budget/record', { session_id: text, budget: text, usd: 0.4, max_usd: 1 });
        await service.ask('/guard/tool-call', { session_id: text, tool: text, args: { query: text } });
      }
      await service.ask('/guard/api-circuit/record', { session_id: text, endpoint_key: text, attempt: 1, outcome: 'failure' });
    }
  });
  after(() => service.end());

  test('is shown as text everywhere, and nothing runs', async () => {
    const addresses = ['/', '/?view=decisions', '/?view=sessions', '/?view=insights', '/?view=settings', '/?view=alerts',
      ...hostile.map((text) => `/?${new URLSearchParams({ view: 'session', session: text })}`),
      `/?${new URLSearchParams({ view: hostile[0], guard: hostile[1], tenant: hostile[0], since: hostile[2], try: hostile[0], insight: hostile[0] })}`];
    for (const address of addresses) {
      const page = await open(browser, service, address, { expect: address.includes('tenant') || address.includes('guard=') ? [/422/] : [] });
      await settled(page);
      await page.evaluate(() => { for (const details of document.querySelectorAll('details')) details.open = true; });
      await page.waitForTimeout(100);
      assert.equal(await page.evaluate(() => window.harmed), undefined, address);
      assert.equal(await page.evaluate(() => document.querySelectorAll('main img, main script, main b:not(.legend b), main [onerror], main [onload], main a[href^="javascript"]').length), 0, address);
      assert.equal(await isWide(page), false, address);
      await close(page);
    }
    const page = await open(browser, service);
    await settled(page);
    const shown = await page.locator('main').textContent();
    assert.match(shown, /<img src=x onerror="window\.harmed=1">/);
    assert.match(shown, /⟨U\+202E⟩gnp\.exe⟨U\+202C⟩/);
    assert.doesNotMatch(shown, /[\u202A-\u202E\u2066-\u2069]/);
    await picture(page, 'hostile-light');
    for (const link of await page.locator('main a').evaluateAll((links) => links.map((one) => one.getAttribute('href')))) assert.match(link, /^\?/);
    await page.getByRole('button', { name: `Open ${hostile[0]}` }).click();
    await page.locator('#confirm').getByText(hostile[0]).waitFor();
    await page.getByRole('button', { name: 'Force open' }).click();
    await part(page, 'Circuits').getByText('held by an operator').waitFor();
    assert.equal(await page.evaluate(() => window.harmed), undefined);
    await close(page);
  });

  test('is shown as text when it comes live', async () => {
    const page = await open(browser, service, '/?view=decisions', { viewport: { width: 360, height: 740 } });
    await page.locator('.live[data-state="live"]').waitFor();
    await service.ask('/guard/handoff', { session_id: `${hostile[0]}live`, source_bot: 'a', target_bot: hostile[1] });
    await page.locator('tbody tr', { hasText: '</script><script>window.harmed' }).first().waitFor();
    assert.equal(await page.evaluate(() => window.harmed), undefined);
    assert.equal(await isWide(page), false);
    await close(page);
  });
});

describe('a service with keys', () => {
  const service = new Service();
  const keys = {};
  before(async () => {
    for (const role of ['admin', 'read', 'guard']) keys[role] = service.key(role);
    keys.other = service.key('read', '--tenant', 'acme');
    keys.ofOne = service.key('admin', '--tenant', 'default');
    await service.start();
    await service.circle('with-a-key', { key: keys.guard });
    await service.trip('crm', { key: keys.guard });
  });
  after(() => service.end());

  test('asks for a key, refuses a wrong one, opens with a right one', async () => {
    const page = await open(browser, service, '/', { expect: [/401/] , headers: { authorization: `Bearer ${keys.admin}` } });
    await page.getByRole('heading', { name: 'This service needs a key' }).waitFor();
    await picture(page, 'key-light');
    assert.deepEqual(await audit(page), []);
    await page.getByLabel('API key').fill('rg_wrong_key');
    await page.getByRole('button', { name: 'Open the dashboard' }).click();
    await page.getByText('This key is wrong or was revoked. Paste it whole').waitFor();
    await page.getByLabel('API key').fill(keys.admin);
    await page.keyboard.press('Enter');
    await part(page, 'Latest decisions').getByText('with-a-key').first().waitFor();
    assert.equal(await page.locator('#ask').isVisible(), false);
    assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes('rg_') || document.cookie.includes('rg_') || location.href.includes('rg_')), false);
    await page.locator('.live[data-state="live"]').waitFor();
    await service.circle('with-a-key-live', { key: keys.guard });
    await part(page, 'Latest decisions').getByText('with-a-key-live').first().waitFor();
    await part(page, 'Circuits').getByRole('button', { name: 'Reset crm' }).waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'This service needs a key' }).waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    await close(page);
  });

  test('one who may only read sees no button to change', async () => {
    const page = await open(browser, service, '/', { key: keys.read, expect: [/403/] });
    await settled(page);
    await part(page, 'Circuits').getByText('crm').waitFor();
    assert.equal(await part(page, 'Circuits').getByRole('button').count(), 0);
    assert.equal(await page.getByLabel('Tenant').count(), 0);
    await close(page);
  });

  test('the admin of one tenant changes its own and is shown no other', async () => {
    const page = await open(browser, service, '/', { key: keys.ofOne, expect: [/403/] });
    await settled(page);
    await part(page, 'Circuits').getByRole('button', { name: 'Reset crm' }).waitFor();
    assert.equal(await page.getByLabel('Tenant').count(), 0);
    await page.goto(`${service.origin}/?view=alerts`);
    await part(page, 'Targets').getByText('Who is told is for an admin of all tenants to see.').waitFor();
    await close(page);
  });

  test('another tenant sees nothing of it', async () => {
    const page = await open(browser, service, '/', { key: keys.other, expect: [/403/] });
    await settled(page);
    await page.getByText('No decisions yet.').waitFor();
    assert.equal(await page.getByText('with-a-key').count(), 0);
    await close(page);
  });

  test('a key that may only ask guards is told so', async () => {
    const page = await open(browser, service, '/', { expect: [/401/, /403/], headers: { authorization: `Bearer ${keys.admin}` } });
    await page.getByLabel('API key').fill(keys.guard);
    await page.keyboard.press('Enter');
    await page.locator('#ask-problem', { hasText: /runguard key create .*--role read/ }).waitFor();
    await close(page);
  });
});
