import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import { createReadStream, mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { dirname, join, normalize } from 'node:path'
import { it } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const browser = ['chromium', 'chromium-browser', 'google-chrome'].find((name) => {
  try {
    return execFileSync('sh', ['-c', `command -v ${name}`])
  } catch {
    return false
  }
})

const page = `<!doctype html><meta charset="utf-8"><pre id="out">nothing happened</pre><script type="module">
  const out = document.getElementById('out')
  try {
    const sdk = await import('/dist/esm/index.js')
    const { Run, guard, tool, currentRun, fingerprint, LoopDetectedError, CircuitBreaker, costUsd, GuardClient } = sdk
    const run = new Run({ maxUsd: 1 })
    const facts = { secure: isSecureContext, fingerprint: fingerprint({ b: [1, 'é'], a: 2n }), cost: costUsd('gpt-4o', { inputTokens: 1000000 }) }
    facts.inside = guard(() => currentRun() !== null)()
    facts.outside = currentRun()
    try { for (let call = 1; ; call++) { run.beforeTool('search', { q: 'x' }); facts.calls = call } }
    catch (error) { facts.trip = error instanceof LoopDetectedError && error.pattern }
    facts.state = new CircuitBreaker('api').state
    facts.ready = await new GuardClient(location.origin).readyz()
    out.textContent = JSON.stringify(facts)
  } catch (error) { out.textContent = 'failed: ' + error.stack }
</script>`

it(
  'works in a browser, from a page without TLS',
  { skip: browser === undefined && 'no chromium is installed', timeout: 60_000 },
  async () => {
    const server = createServer((request, response) => {
      const path = normalize(request.url)
      if (path === '/') return response.writeHead(200, { 'content-type': 'text/html' }).end(page)
      if (path === '/readyz') return response.writeHead(200).end('{}')
      const file = createReadStream(join(root, path))
      file.on('error', () => response.writeHead(404).end())
      file.once('open', () => response.writeHead(200, { 'content-type': 'text/javascript' }) && file.pipe(response))
    }).listen(0, '127.0.0.1')
    await new Promise((resolve) => server.once('listening', resolve))
    const profile = mkdtempSync(join(tmpdir(), 'runguard-chromium-'))
    try {
      // Another name than localhost, because that would count as safe even without TLS.
      const url = `http://agent.test:${server.address().port}/`
      const flags = [
        '--headless',
        '--no-sandbox',
        '--disable-gpu',
        `--user-data-dir=${profile}`,
        '--host-resolver-rules=MAP agent.test 127.0.0.1',
        '--no-proxy-server',
        '--virtual-time-budget=20000',
        '--dump-dom',
        url,
      ]
      const dom = await new Promise((resolve, reject) =>
        execFile(browser, flags, (error, stdout) => (error ? reject(error) : resolve(stdout))),
      )
      const facts = JSON.parse(/<pre id="out">(.*?)<\/pre>/s.exec(dom)?.[1] ?? dom)
      const { fingerprint } = await import('@runguard/sdk')
      assert.deepEqual(facts, {
        secure: false,
        fingerprint: fingerprint({ a: 2, b: [1, 'e\u0301'] }),
        cost: 2.5,
        inside: true,
        outside: null,
        calls: 2,
        trip: 'search',
        state: 'closed',
        ready: true,
      })
    } finally {
      server.closeAllConnections()
      server.close()
      rmSync(profile, { recursive: true, force: true })
    }
  },
)
