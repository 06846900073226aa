import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { after, before, it } from 'node:test'
import { inBoth } from './both.mjs'

const { cases } = JSON.parse(readFileSync(new URL('../../notices.json', import.meta.url), 'utf8'))

let server
let url
let received = []
let answers = []

before(async () => {
  server = createServer((request, response) => {
    let body = ''
    request.on('data', (piece) => (body += piece))
    request.on('end', () => {
      received.push({ path: request.url, body: JSON.parse(body) })
      response.writeHead(answers.shift() ?? 200, { 'retry-after': '0' }).end('ok')
    })
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  url = `http://127.0.0.1:${server.address().port}`
})
after(() => server.close())

inBoth('alerts', (sdk) => {
  const { Run, Alerts, LoopDetectedError, TripError, flushAlerts, InvalidInputError } = sdk
  const trip = (run) => {
    for (let call = 0; call < 5; call++) {
      try {
        run.beforeTool('search', { secret: 'hunter2' })
      } catch (error) {
        assert.ok(error instanceof LoopDetectedError)
      }
    }
  }

  it('tells every channel once, without the arguments of any call', async () => {
    received = []
    const seen = []
    const run = new Run({
      runId: 'run-7',
      alerts: {
        slackWebhook: `${url}/slack`,
        pagerdutyKey: 'key',
        pagerdutyUrl: `${url}/pagerduty`,
        webhook: `${url}/hook`,
        call: (error) => seen.push(error),
      },
    })
    trip(run)
    assert.equal(await flushAlerts(), true)
    assert.deepEqual(received.map(({ path }) => path).sort(), ['/hook', '/pagerduty', '/slack'])
    assert.deepEqual(seen, [run.trip])
    const bodies = Object.fromEntries(received.map(({ path, body }) => [path, body]))
    const { time, ...facts } = bodies['/hook']
    assert.ok(!Number.isNaN(Date.parse(time)))
    assert.deepEqual(facts, {
      event: 'trip',
      kind: 'LoopDetectedError',
      reason: 'loop_detected',
      message: run.message,
      run_id: 'run-7',
      pattern: 'search',
      repeats: 3,
      cycle_len: 1,
    })
    assert.match(bodies['/slack'].text, /RunGuard stopped a run: loop_detected/)
    assert.equal(bodies['/pagerduty'].dedup_key, 'runguard/run-7/loop_detected')
    assert.deepEqual(
      [bodies['/pagerduty'].routing_key, bodies['/pagerduty'].event_action, bodies['/pagerduty'].payload.severity],
      ['key', 'trigger', 'error'],
    )
    assert.ok(!JSON.stringify(received).includes('hunter2'))
  })

  it('tells every trip as the shared cases have it', async () => {
    const camelCase = (fields) =>
      Object.fromEntries(Object.entries(fields).map(([name, value]) => [name.replace(/_[a-z]/g, (end) => end[1].toUpperCase()), value]))
    assert.ok(cases.length >= 15)
    for (const { name, trip, source, facts, slack, pagerduty } of cases) {
      received = []
      new Alerts({
        slackWebhook: `${url}/slack`,
        pagerdutyKey: 'R0UT1NGK3Y',
        pagerdutyUrl: `${url}/pagerduty`,
        webhook: `${url}/hook`,
        source,
      }).send(new sdk[trip.kind](trip.message, camelCase(trip.fields)))
      assert.equal(await flushAlerts(), true)
      const now = received.find(({ path }) => path === '/hook').body.time
      const bodies = Object.fromEntries(
        received.map(({ path, body }) => [path, JSON.parse(JSON.stringify(body).replaceAll(now, facts.time))]),
      )
      assert.deepEqual(bodies, { '/hook': facts, '/slack': slack, '/pagerduty': pagerduty }, name)
    }
  })

  it('tells of half a character, which is no UTF-8', async () => {
    received = []
    new Alerts({ slackWebhook: `${url}/slack` }).send(new TripError('cut \ud83d here \\ud83d'))
    assert.equal(await flushAlerts(), true)
    assert.match(received[0].body.text, /cut \ufffd here \\ud83d/)
  })

  it('never throws and never waits, whatever a channel does', async () => {
    const warnings = []
    const warn = console.warn
    console.warn = (text) => warnings.push(text)
    try {
      const broken = () => {
        throw new Error('alert code is broken')
      }
      const begun = performance.now()
      trip(new Run({ alerts: broken }))
      trip(new Run({ alerts: new Alerts({ webhook: 'http://127.0.0.1:1/nobody', timeoutMs: 50, call: async () => broken() }) }))
      assert.ok(performance.now() - begun < 500)
      assert.equal(warnings.length, 0, 'nothing of it ran in the agent’s own step')
      await flushAlerts(10_000)
      assert.ok(
        warnings.some((text) => text.includes('alert code is broken')) && warnings.some((text) => text.includes('webhook')),
        warnings.join(),
      )
    } finally {
      console.warn = warn
    }
  })

  it('is not held up by functions that do not end', async () => {
    received = []
    let end = () => {}
    const stuck = new Promise((resolve) => (end = resolve))
    for (let number = 0; number < 5; number++) new Alerts({ call: () => stuck }).send(new TripError('x'))
    new Alerts({ webhook: `${url}/free` }).send(new TripError('x'))
    assert.equal(await flushAlerts(1000), false)
    assert.equal(received.length, 1)
    end()
    assert.equal(await flushAlerts(), true)
  })

  it('tries again after 429 and 5xx, not after 4xx', async () => {
    received = []
    answers = [503, 429, 200]
    new Alerts({ webhook: `${url}/again` }).send(new TripError('x'))
    await flushAlerts()
    assert.equal(received.length, 3)
    received = []
    answers = [404, 200]
    const warn = console.warn
    console.warn = () => {}
    new Alerts({ webhook: `${url}/once` }).send(new TripError('x'))
    await flushAlerts()
    console.warn = warn
    answers = []
    assert.equal(received.length, 1)
  })

  it('refuses bad settings', () => {
    for (const settings of [{ webhook: 'x' }, { slack: 'http://x' }, { slackWebhook: 7 }, { call: 'x' }])
      assert.throws(() => new Alerts(settings), InvalidInputError)
  })
})
