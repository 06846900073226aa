import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { PUBLIC_URL, runVoiceflow, voiceflowSnippet } from '../runner/voiceflow.mjs'
import { deadUrl, startService } from './service.mjs'

let service
before(async () => (service = await startService()))
after(() => service.stop())

async function step(name, inputVars, url = service.url) {
  const result = await runVoiceflow(await voiceflowSnippet(name), { runguard_url: PUBLIC_URL, ...inputVars }, url)
  return { ...result.outputVars, path: result.next.path }
}

test('no-match-reprompt: three prompts, then the ceiling', async () => {
  const user = { user_id: 'reprompt-1', step_id: 'choose_plan', last_utterance: 'hmm' }
  for (const remaining_reprompts of [2, 1, 0]) {
    const answer = await step('no-match-reprompt', user)
    assert.deepEqual({ ...answer, message: '' }, { allow: true, reason: '', message: '', remaining_reprompts, path: 'allow' })
  }
  const fourth = await step('no-match-reprompt', user)
  assert.equal(fourth.path, 'block')
  assert.equal(fourth.allow, false)
  assert.equal(fourth.reason, 'reprompt_ceiling_reached')
  assert.match(fourth.message, /3/)
})

test('no-match-reprompt: an utterance without an address, and a No Reply, are not worth a prompt', async () => {
  for (const last_utterance of ['no idea', undefined]) {
    const answer = await step('no-match-reprompt', { user_id: 'reprompt-2', step_id: 'capture_email', last_utterance })
    assert.equal(answer.path, 'block')
    assert.equal(answer.reason, 'entity_signal_absent')
  }
})

test('capture-slot-fill: a spoken address gets a hint, not an AI prompt', async () => {
  const user = { user_id: 'slot-1', capture_step: 'email', entity_type: 'email' }
  const spoken = await step('capture-slot-fill', { ...user, last_utterance: 'john at example dot com' })
  assert.equal(spoken.path, 'hint')
  assert.equal(spoken.reason, 'colloquial_format_detected')
  assert.notEqual(spoken.format_hint, '')
})

test('capture-slot-fill: four attempts, then the ceiling', async () => {
  const user = { user_id: 'slot-2', capture_step: 'email', entity_type: 'email', last_utterance: 'whatever' }
  for (const remaining of [3, 2, 1, 0]) {
    const answer = await step('capture-slot-fill', user)
    assert.equal(answer.path, 'allow')
    assert.equal(answer.remaining_attempts, remaining)
  }
  const fifth = await step('capture-slot-fill', user)
  assert.equal(fifth.reason, 'attempt_ceiling_reached')
  assert.equal(fifth.path, 'block')
})

test('kb-requery: a low score is not asked again, and the cap holds', async () => {
  const weak = { user_id: 'kb-1', query: 'Do you ship to the moon?' }
  assert.equal((await step('kb-requery-check', weak)).path, 'allow')
  assert.equal((await step('kb-requery-record', { ...weak, confidence_score: 0.2, retrieved_chunks: 3 })).recorded, true)
  const again = await step('kb-requery-check', weak)
  assert.equal(again.path, 'block')
  assert.equal(again.reason, 'low_confidence_re_query_blocked')
  assert.equal(again.best_confidence_seen, 0.2)

  const good = { user_id: 'kb-2', query: 'How long may I return shoes?' }
  for (let query = 1; query <= 2; query += 1) {
    assert.equal((await step('kb-requery-check', { ...good, prior_confidence: 0.7 })).path, 'allow')
    await step('kb-requery-record', { ...good, confidence_score: 0.7, retrieved_chunks: 4 })
  }
  const third = await step('kb-requery-check', { ...good, prior_confidence: 0.7 })
  assert.equal(third.reason, 'kb_query_cap_reached')
  assert.equal(third.best_confidence_seen, 0.7)
})

test('kb-requery: a corrected slip of the keyboard is asked once', async () => {
  const mistyped = { user_id: 'kb-3', query: 'How do I reset the thremostat?' }
  const corrected = { user_id: 'kb-3', query: 'How do I reset the thermostat?' }
  await step('kb-requery-record', { ...mistyped, confidence_score: 0.2, retrieved_chunks: 3 })
  assert.equal((await step('kb-requery-check', mistyped)).reason, 'low_confidence_re_query_blocked')
  assert.equal((await step('kb-requery-check', corrected)).path, 'allow')
  await step('kb-requery-record', { ...corrected, confidence_score: 0.2, retrieved_chunks: 3 })
  assert.equal((await step('kb-requery-check', { ...corrected, query: 'How do I reset the themostat?' })).path, 'block')
})

test('api-circuit: three failures end a session, ten open the circuit for all', async () => {
  const endpoint_key = 'orders-api'
  const call = async (user_id, status_code) => {
    const check = await step('api-circuit-check', { user_id, endpoint_key })
    if (check.path === 'allow') {
      const { permit_id, attempt, started_ms } = check
      const record = await step('api-circuit-record', { user_id, endpoint_key, status_code, permit_id, attempt, started_ms })
      assert.deepEqual(record, { recorded: true, path: 'next' })
    }
    return check
  }
  for (const attempt of [1, 2, 3]) {
    const check = await call('circuit-1', 503)
    assert.equal(check.attempt, attempt)
    assert.notEqual(check.permit_id, '')
  }
  assert.equal((await call('circuit-1', 503)).reason, 'session_retry_ceiling')

  for (let session = 2; session <= 8; session += 1) {
    const check = await call(`circuit-${session}`, 0)
    assert.equal(check.path, 'allow')
    assert.equal(check.recent_failures_in_window, session + 1, 'the upstream degrades before the trip')
  }
  const tripped = await call('circuit-9', 200)
  assert.equal(tripped.path, 'block')
  assert.equal(tripped.reason, 'circuit_just_tripped')
  assert.ok(tripped.retry_after_seconds > 0)
  assert.equal((await call('circuit-9', 200)).reason, 'circuit_open')
  assert.match(await (await fetch(`${service.url}/v1/sessions/circuit-2`)).text(), /"latency_ms":\d/)
})

test('api-circuit: good calls never lock a session out', async () => {
  for (let call = 1; call <= 5; call += 1) {
    const user = { user_id: 'circuit-good', endpoint_key: 'good-api' }
    const check = await step('api-circuit-check', user)
    assert.equal(check.path, 'allow')
    await step('api-circuit-record', { ...user, status_code: 404, permit_id: check.permit_id, attempt: check.attempt })
  }
})

const away = {
  'no-match-reprompt': { step_id: 'capture_email', last_utterance: 'x' },
  'capture-slot-fill': { capture_step: 'email', entity_type: 'email', last_utterance: 'x' },
  'kb-requery-check': { query: 'anything' },
  'api-circuit-check': { endpoint_key: 'orders-api' },
}
for (const [name, inputs] of Object.entries(away)) {
  test(`${name}: goes on when the service is away`, async () => {
    const answer = await step(name, { user_id: 'away', ...inputs }, await deadUrl())
    assert.equal(answer.path, 'allow')
    assert.equal(answer.allow, true)
    assert.equal(answer.reason, 'guard_unavailable')
  })
}
for (const name of ['kb-requery-record', 'api-circuit-record']) {
  test(`${name}: goes on when the service is away`, async () => {
    assert.deepEqual(await step(name, { user_id: 'away' }, await deadUrl()), { recorded: false, path: 'next' })
  })
}

test('a refused request (no step id) fails open and says why', async () => {
  const answer = await step('no-match-reprompt', { user_id: 'u', step_id: '', last_utterance: 'x' })
  assert.equal(answer.path, 'allow')
  assert.equal(answer.reason, 'guard_unavailable')
  assert.notEqual(answer.message, '')
})
