// Chromium, and what every page is watched for.

import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
export const PICTURES = process.env.RUNGUARD_SCREENSHOTS ?? join(tmpdir(), 'runguard-screenshots');
mkdirSync(PICTURES, { recursive: true });

export const launch = () => chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

/// A page that remembers everything it must not do.
export async function open(browser, service, address = '/', { key, headers, expect = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, reducedMotion: 'no-preference', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(10_000);
  page.wrong = [];
  page.on('console', (message) => { if (['error', 'warning'].includes(message.type()) && !expect.some((pattern) => pattern.test(message.text()))) page.wrong.push(`console: ${message.text()}`); });
  page.on('pageerror', (error) => page.wrong.push(`error: ${error.stack}`));
  page.on('dialog', (dialog) => { page.wrong.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', (request) => { if (!request.url().startsWith(service.origin) && !/^(data|blob):/.test(request.url())) page.wrong.push(`request: ${request.url()}`); });
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  if (key) await page.addInitScript((value) => sessionStorage.setItem('runguard.key', value), key);
  await page.goto(service.origin + address);
  await page.locator('#view h1').waitFor();
  return page;
}

/// Waits until what was asked for is drawn.
export const settled = async (page) => {
  await page.waitForFunction(() => document.querySelector('#foot-note').textContent !== '' && ![...document.querySelectorAll('.empty')].some((part) => part.textContent === 'Loading…'));
};

/// Findings of the accessibility audit.
export async function audit(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join(' | ')}`);
}

export const picture = (page, name) => page.screenshot({ path: join(PICTURES, `${name}.png`), fullPage: true });
