import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { after, before, it, mock } from 'node:test'
import { deadUrl, startService } from '../../../examples/test/service.mjs'
import { inBoth } from './both.mjs'

let service
let locked
before(async () => {
  ;[service, locked] = await Promise.all([startService(), startService({ locked: true })])
})
after(() => Promise.all([service.stop(), locked.stop()]))

/** A server that answers as told, for what a real service does not do on purpose. */
async function answering(handler) {
  const server = createServer(handler).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => (server.closeAllConnections(), server.close()) }
}

inBoth('GuardClient', ({ GuardClient, ServiceError, InvalidInputError }) => {
  it('has a method for every route of the service but its pages', async () => {
    const { paths } = await new GuardClient(service.url).openapi()
    const pages = new Set(['/', '/docs', '/docs/problems/{kind}', '/dashboard/{file}'])
    const named = (path) =>
      path
        .replace(/^\/(guard|v1)\//, '')
        .replace('.json', '')
        .replace(/\{\w+\}\//g, '')
        .replace(/\/\{\w+\}/, '')
    const special = {
      'GET /v1/decisions/{decision_id}': 'decision',
      'GET /v1/sessions/{session_id}': 'session',
      'DELETE /v1/sessions/{session_id}': 'eraseSession',
    }
    for (const [path, operations] of Object.entries(paths)) {
      for (const method of Object.keys(operations)) {
        const plain = named(path)
          .replace(/^(circuit|run|insight)s\/(open|close|reset|stop|resume|dismiss|snooze|restore)$/, '$1/$2')
          .replace(/^\//, '')
        const name = special[`${method.toUpperCase()} ${path}`] ?? plain.replace(/[-/](\w)/g, (_, letter) => letter.toUpperCase())
        if (!pages.has(path)) assert.equal(typeof GuardClient.prototype[name], 'function', `${method} ${path}: ${name}`)
      }
    }
  })

  it('asks what the log teaches', async () => {
    const client = new GuardClient(service.url)
    assert.ok(Array.isArray((await client.overview({ since: '1h' })).reasons))
    assert.ok(Array.isArray((await client.insights()).insights))
    assert.equal((await client.consumption({ since: '1h' })).time_zone, 'UTC')
    assert.equal((await client.settings()).admin, true)
    assert.equal((await client.preview({ guard: 'handoff', settings: { max_handoffs: 3 }, since: '1h' })).guard, 'handoff')
    assert.equal(typeof (await client.alerts()), 'object')
  })

  it('waits two seconds for an answer, unless told otherwise', async () => {
    mock.timers.enable({ apis: ['setTimeout'] })
    try {
      for (const [timeoutMs, waits] of [
        [undefined, 2000],
        [50, 50],
      ]) {
        const never = (_, { signal }) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
        let seen = null
        new GuardClient({ url: 'http://127.0.0.1:1', timeoutMs, fetch: never }).handoff({}).catch((error) => (seen = error))
        mock.timers.tick(waits - 1)
        await new Promise(setImmediate)
        assert.equal(seen, null)
        mock.timers.tick(1)
        await new Promise(setImmediate)
        assert.ok(seen instanceof ServiceError)
      }
    } finally {
      mock.timers.reset()
    }
  })

  it('a block is an answer, not an error', async () => {
    const client = new GuardClient({ url: `${service.url}/` })
    const request = { session_id: `h-${Math.random()}`, source_bot: 'a', target_bot: 'b' }
    assert.equal((await client.handoff(request)).allow, true)
    assert.equal((await client.handoff(request)).handoffs_used, 2)
    const blocked = await client.handoff(request)
    assert.deepEqual([blocked.allow, blocked.reason, blocked.guard], [false, 'cycle_detected', 'handoff'])
    assert.ok(blocked.message.length > 20 && blocked.retry_after_seconds > 0)
    assert.equal((await client.decision(blocked.decision_id)).decision_id, blocked.decision_id)
    assert.ok((await client.decisions({ session: request.session_id, outcome: 'blocked' })).decisions.length === 1)
  })

  it('asks every flow guard', async () => {
    const client = new GuardClient(service.url)
    const session_id = `f-${Math.random()}`
    assert.equal(
      (await client.aiTaskRetry({ session_id, task_name: 'extract_order_number', user_message: 'where is it' })).reason,
      'input_missing_prerequisite_signal',
    )
    assert.equal((await client.kbRequery({ session_id, topic_hash: 't', last_confidence: 0.9 })).reason, 'confidence_already_met')
    assert.equal((await client.kbRequeryCheck({ session_id, query: 'refunds' })).allow, true)
    assert.equal(
      (await client.kbRequeryRecord({ session_id, query: 'refunds', confidence_score: 0.3, retrieved_chunks: 2 })).recorded,
      true,
    )
    assert.equal((await client.kbRequeryCheck({ session_id, query: 'refunds' })).reason, 'low_confidence_re_query_blocked')
    assert.equal((await client.agentAction({ session_id, action_name: 'look', action_params: { id: 7 } })).total_actions_used, 1)
    assert.equal((await client.agentActionResult({ session_id, action_name: 'look', result_summary: 'ok' })).allow, true)
    assert.equal(
      (await client.noMatchReprompt({ session_id, step_id: 'capture_email', user_utterance: 'no' })).reason,
      'entity_signal_absent',
    )
    assert.equal(
      (await client.captureSlotFill({ session_id, capture_step: 's', entity_type: 'email', user_utterance: 'a at b dot com' })).reason,
      'colloquial_format_detected',
    )
    const { permit_id } = await client.apiCircuitCheck({ session_id, endpoint_key: 'orders' })
    assert.equal((await client.apiCircuitRecord({ session_id, endpoint_key: 'orders', outcome: 'success', permit_id })).recorded, true)
    assert.equal((await client.session(session_id)).session_id, session_id)
    await client.circuitOpen('orders')
    assert.equal((await client.apiCircuitCheck({ session_id, endpoint_key: 'orders' })).allow, false)
    await client.circuitClose('orders')
    await client.circuitReset('orders')
    assert.ok((await client.circuits()).circuits.some(({ endpoint_key }) => endpoint_key === 'orders'))
    assert.ok(Object.keys(await client.stats({ since: '1h' })).length > 0)
    assert.match(await client.metrics(), /# TYPE/)
    assert.deepEqual([await client.healthz(), await client.readyz()], [true, true])
    await client.eraseSession(session_id)
  })

  it('asks every detector', async () => {
    const client = new GuardClient(service.url)
    const session_id = `d-${Math.random()}`
    const call = { session_id, tool: 'search', args: { q: 'x' } }
    assert.equal((await client.loop(call)).allow, true)
    assert.equal((await client.loop(call)).allow, true)
    assert.equal((await client.loopCheck(call)).reason, 'loop_detected')
    assert.equal((await client.loop(call)).reason, 'loop_detected')
    assert.equal((await client.stall({ ...call, result: 'r' })).rung, 'go_on')
    assert.equal((await client.budgetRecord({ session_id, max_usd: 1, usd: 0.25 })).remaining_usd, 0.75)
    const { reservation_id } = await client.budgetReserve({ session_id, usd: 0.5 })
    assert.equal((await client.budgetCommit({ session_id, reservation_id, usd: 0.4 })).spent_usd, 0.65)
    const held = await client.budgetReserve({ session_id, usd: 0.1 })
    assert.equal((await client.budgetRelease({ session_id, reservation_id: held.reservation_id })).allow, true)
    assert.equal((await client.budgetReserve({ session_id, usd: 0.5 })).reason, 'budget_exceeded')
    assert.equal((await client.budgetCheck({ session_id })).remaining_usd, 0.35)
    assert.equal((await client.toolCall(call)).allow, true)
    assert.equal((await client.toolCallRecord(call)).recorded, true)
    assert.equal((await client.toolCall(call)).reason, 'exact_duplicate')
    const action = { session_id, action_group: 'orders', function: 'get_order', parameters: [{ name: 'id', value: '7' }] }
    for (let time = 0; time < 2; time++) {
      assert.equal((await client.actionGroup(action)).allow, true)
      await client.actionGroupResult({ ...action, failed: true })
    }
    const refused = await client.actionGroup(action)
    assert.deepEqual([refused.allow, refused.retryable], [false, false])
  })

  it('counts an idempotent request once', async () => {
    const client = new GuardClient(service.url)
    const request = { session_id: `i-${Math.random()}`, action_name: 'a' }
    const first = await client.agentAction(request, { idempotencyKey: `${request.session_id}-1` })
    assert.deepEqual(await client.agentAction(request, { idempotencyKey: `${request.session_id}-1` }), first)
    assert.equal((await client.agentAction(request)).total_actions_used, 2)
  })

  it('hears decisions as they are made', async () => {
    const client = new GuardClient(service.url)
    const session_id = `e-${Math.random()}`
    const stop = new AbortController()
    const seen = []
    const listening = (async () => {
      for await (const event of client.events({ session: session_id }, { signal: stop.signal })) {
        seen.push(event)
        stop.abort()
      }
    })()
    const asking = setInterval(() => client.agentAction({ session_id, action_name: 'a' }), 50)
    await listening
    clearInterval(asking)
    assert.equal(seen[0].data.session_id, session_id)
    assert.ok(seen[0].id)
  })

  it('says what is wrong with a request or a key', async () => {
    const client = new GuardClient({ url: service.url, failOpen: true })
    await assert.rejects(
      client.handoff({ session_id: 's' }),
      (error) => error instanceof InvalidInputError && /source_bot/.test(error.message),
    )
    await assert.rejects(client.guard('handoff', { big: 10n }), InvalidInputError)
    await assert.rejects(client.decision('unknown'), (error) => error instanceof ServiceError && error.status === 404)
    await assert.rejects(async () => client.session(''), InvalidInputError)
    await assert.rejects(
      new GuardClient({ url: locked.url, failOpen: true }).handoff({}),
      (error) => error instanceof ServiceError && error.status === 401,
    )
    assert.equal(
      (await new GuardClient({ url: locked.url, apiKey: locked.key }).agentAction({ session_id: 's', action_name: 'a' })).allow,
      true,
    )
    for (const url of ['', 'localhost:8100', undefined, 7]) assert.throws(() => new GuardClient({ url }), InvalidInputError)
  })

  it('without a service: an error, or open', async () => {
    const url = await deadUrl()
    await assert.rejects(
      new GuardClient(url).handoff({}),
      (error) => error instanceof ServiceError && error.status === null && /could not be asked/.test(error.message),
    )
    const told = []
    const open = new GuardClient({ url, failOpen: true, onFailedOpen: (error) => told.push(error) })
    const answer = await open.handoff({})
    assert.deepEqual([answer.allow, answer.failed_open, told.length], [true, true, 1])
    await assert.rejects(open.decisions(), ServiceError, 'reading has nothing to let pass')
  })

  it('gives up on a service that is slow, in the head or in the body', async () => {
    const silent = await answering(() => {})
    const dripping = await answering((_, response) => response.writeHead(200, { 'content-type': 'application/json' }).write('{'))
    try {
      for (const { url } of [silent, dripping]) {
        const begun = performance.now()
        await assert.rejects(
          new GuardClient({ url, timeoutMs: 100 }).handoff({}),
          (error) => error instanceof ServiceError && /100 ms/.test(error.message),
        )
        assert.ok(performance.now() - begun < 2000)
      }
      const stop = new AbortController()
      setTimeout(() => stop.abort(), 20)
      await assert.rejects(new GuardClient(silent.url).handoff({}, { signal: stop.signal }), ServiceError)
    } finally {
      silent.close()
      dripping.close()
    }
  })

  it('does not take the answer of a proxy for a decision', async () => {
    for (const [status, body] of [
      [429, 'slow down'],
      [429, '{"error":"rate"}'],
      [200, '<html>'],
      [502, 'bad gateway'],
    ]) {
      const proxy = await answering((_, response) => response.writeHead(status).end(body))
      try {
        await assert.rejects(
          new GuardClient(proxy.url).handoff({}),
          (error) => error instanceof ServiceError && error.status === status,
          `${status} ${body}`,
        )
        assert.equal((await new GuardClient({ url: proxy.url, failOpen: true, onFailedOpen: () => {} }).handoff({})).failed_open, true)
      } finally {
        proxy.close()
      }
    }
  })
})
