import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { after, before, test } from 'node:test'
import { botpressSnippet, runBotpress } from '../runner/botpress.mjs'
import { deadUrl, startService } from './service.mjs'

let service
before(async () => (service = await startService()))
after(() => service.stop())

/** Workflow variables as the snippets' first lines declare them. */
const DECLARED = {
  guardAllow: false,
  guardReason: 'unset',
  guardMessage: 'unset',
  remainingRetries: -1,
  handoffChain: 'unset',
  handoffsRemaining: -1,
  queriesRemaining: -1,
  bestConfidenceSeen: -1,
  actionsRemaining: -1,
  permitId: '',
  attempt: 1,
  startedMs: 0,
  recentFailures: -1,
  upstreamFailed: false,
  upstreamStatus: 0,
}

/** A conversation whose flow runs snippets one after the other. */
function conversation(id, { url = service.url, preview = '', turn = {}, workflow: own = {} } = {}) {
  const workflow = { ...DECLARED, ...own }
  const variables = { env: { RUNGUARD_URL: url }, event: { conversationId: id, preview }, turn, workflow }
  const run = async (name, more = {}) => {
    await runBotpress(await botpressSnippet(name), { ...variables, ...more })
    return { allow: workflow.guardAllow, reason: workflow.guardReason, message: workflow.guardMessage }
  }
  return { run, variables }
}

test('ai-task-retry: two retries, then the cap', async () => {
  const { run, variables } = conversation('retry-1', { preview: 'my order ORD-12345678 is late', workflow: { validationError: 'no match' } })
  assert.deepEqual(await run('ai-task-retry'), { allow: true, reason: '', message: '' })
  assert.equal(variables.workflow.remainingRetries, 1)
  assert.equal((await run('ai-task-retry')).allow, true)
  assert.equal(variables.workflow.remainingRetries, 0)
  const third = await run('ai-task-retry')
  assert.equal(third.allow, false)
  assert.equal(third.reason, 'retry_cap_reached')
  assert.match(third.message, /2/)
})

test('ai-task-retry: a message without an order number is not worth a retry', async () => {
  const { run } = conversation('retry-2', { preview: 'where is my parcel?', workflow: { validationError: 'no match' } })
  const first = await run('ai-task-retry')
  assert.equal(first.allow, false)
  assert.equal(first.reason, 'input_missing_prerequisite_signal')
})

test('handoff: the third visit of one bot closes the circle', async () => {
  const { run, variables } = conversation('handoff-1', { workflow: { targetBot: 'billing' } })
  const visit = (bot) => {
    variables.workflow.targetBot = bot
    return run('handoff')
  }
  for (const bot of ['billing', 'plans', 'billing', 'plans']) assert.equal((await visit(bot)).allow, true)
  const fifth = await visit('billing')
  assert.equal(fifth.allow, false)
  assert.equal(fifth.reason, 'cycle_detected')
  assert.equal(variables.workflow.handoffChain, 'billing → plans → billing → plans')
  assert.equal(variables.workflow.handoffsRemaining, 0)
})

test('kb-requery: two searches for one topic, whatever the order of its words', async () => {
  const question = async (preview, turn) => {
    const { run, variables } = conversation('kb-1', { preview, turn })
    return { ...(await run('kb-requery')), remaining: variables.workflow.queriesRemaining, best: variables.workflow.bestConfidenceSeen }
  }
  assert.equal((await question('How do I return shoes?', undefined)).allow, true)
  const second = await question('return shoes: how do I?', { KnowledgeAgent: { responded: false } })
  assert.equal(second.allow, true)
  assert.equal(second.remaining, 0, 'the last one: prepare the fallback')
  const third = await question('How do I return shoes?', { KnowledgeAgent: { responded: false } })
  assert.equal(third.allow, false)
  assert.equal(third.reason, 'kb_requery_cap_reached')
  assert.equal(third.best, 0)
  assert.equal((await question('What does shipping cost?')).allow, true)
})

test('kb-requery: an answer that is there is not asked for again', async () => {
  const { run } = conversation('kb-2', { preview: 'opening hours', turn: { KnowledgeAgent: { responded: true } } })
  assert.equal((await run('kb-requery')).reason, 'confidence_already_met')
})

/** An Action as a user writes it: the check, its own work, the result. */
async function action(id, url = service.url) {
  const { variables } = conversation(id, { url })
  const parts = [await botpressSnippet('agent-action'), "const result = { status: 'in transit' }"]
  parts.push(await botpressSnippet('agent-action-result'), 'return result')
  const returned = await runBotpress(parts.join('\n'), { ...variables, input: { order: '12345678' } })
  return { returned, workflow: variables.workflow }
}

test('agent-action: three calls in a row work, the fourth stops before its work', async () => {
  for (let call = 1; call <= 3; call += 1) {
    const { returned, workflow } = await action('agent-1')
    assert.deepEqual({ ...returned }, { status: 'in transit' })
    assert.equal(workflow.guardAllow, true)
  }
  const { returned, workflow } = await action('agent-1')
  assert.equal(workflow.guardAllow, false)
  assert.equal(workflow.guardReason, 'consecutive_same_action_spiral')
  assert.deepEqual({ ...returned }, { stopped: workflow.guardMessage })
})

test('agent-action-result: the result reaches the log of the session', async () => {
  await action('agent-2')
  const timeline = await (await fetch(`${service.url}/v1/sessions/agent-2`)).text()
  assert.match(timeline, /in transit/)
  assert.match(timeline, /find the status of an order/)
  assert.match(timeline, /get_customer_profile/)
})

test('api-circuit: ten failures of all conversations close the way to the upstream', async () => {
  const call = async (id) => {
    const { run, variables } = conversation(id, { workflow: { upstreamFailed: true, upstreamStatus: 503 } })
    const check = await run('api-circuit-check')
    if (check.allow) await run('api-circuit-record')
    return { ...check, failures: variables.workflow.recentFailures }
  }
  for (let number = 0; number < 10; number += 1) {
    assert.deepEqual(await call(`upstream-${number}`), { allow: true, reason: '', message: '', failures: number })
  }
  const tripped = await call('upstream-10')
  assert.equal(tripped.allow, false)
  assert.equal(tripped.reason, 'circuit_just_tripped')
  const timeline = await (await fetch(`${service.url}/v1/sessions/upstream-3`)).text()
  assert.match(timeline, /"latency_ms":\d/)
  assert.match(timeline, /"status_code":503/)
})

const snippets = ['ai-task-retry', 'handoff', 'kb-requery', 'agent-action', 'agent-action-result', 'api-circuit-check', 'api-circuit-record']

/** Runs a snippet against a service that does not answer; only the records of results say nothing. */
async function goesOn(name, url) {
  const workflow = { validationError: '', targetBot: 'billing' }
  const { run } = conversation('nobody', { url, preview: 'my order ORD-12345678', workflow })
  const answer = await run(name, { input: {}, actionName: 'lookup_order', result: 1 })
  if (name === 'agent-action-result' || name === 'api-circuit-record') return
  assert.equal(answer.allow, true)
  assert.equal(answer.reason, 'guard_unavailable')
  assert.notEqual(answer.message, '')
}

for (const name of snippets) {
  test(`${name}: goes on when the service is away`, async () => goesOn(name, await deadUrl()))
}

test('every snippet goes on when the service hangs', async () => {
  const silent = createServer(() => {}).listen(0, '127.0.0.1')
  await new Promise((resolve) => silent.once('listening', resolve))
  await Promise.all(snippets.map((name) => goesOn(name, `http://127.0.0.1:${silent.address().port}`)))
  silent.closeAllConnections()
  silent.close()
})

test('a refused request (no conversation id) fails open and says why', async () => {
  const { run } = conversation('', { preview: 'my order ORD-12345678', workflow: { validationError: '' } })
  const answer = await run('ai-task-retry')
  assert.equal(answer.allow, true)
  assert.equal(answer.reason, 'guard_unavailable')
  assert.notEqual(answer.message, '')
})
