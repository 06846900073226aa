import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import test from 'node:test'
import { promisify } from 'node:util'
import { BedrockAgentRuntimeClient, InvokeAgentCommand, InvokeInlineAgentCommand } from '@aws-sdk/client-bedrock-agent-runtime'
import {
  BudgetExceededError,
  BudgetTracker,
  costUsd,
  LoopDetectedError,
  LoopDetector,
  Run,
  StallDetector,
  TripError,
  tripOf,
  UnknownModelError,
} from '@runguard/sdk'
import { guardInvokeAgent, guardStream, instrument, processTraceEvent, Sessions } from '@runguard/sdk/bedrock'
import { SONNET, startBedrock } from './bedrock-server.mjs'

const execute = promisify(execFile)

async function setting(t, plays) {
  const server = await startBedrock(plays)
  const client = new BedrockAgentRuntimeClient({
    endpoint: server.url,
    region: 'us-east-1',
    credentials: { accessKeyId: 'a', secretAccessKey: 's' },
    maxAttempts: 1,
  })
  t.after(() => {
    client.destroy()
    server.stop()
  })
  return { server, client, sessions: new Sessions() }
}

const asks = (agentId, more = {}) =>
  new InvokeAgentCommand({ agentId, agentAliasId: 'ALIAS', sessionId: 'session-1', inputText: 'Why?', ...more })

test('a healthy agent answers, and what it used is recorded', async (t) => {
  const { server, client, sessions } = await setting(t)
  const answer = await guardInvokeAgent(client, asks('RESEARCH'), { sessions })
  assert.equal(await answer.text(), 'Margins held at 31 %. ☀')
  assert.equal(answer.steps, 5)
  assert.equal(answer.response.sessionId, 'session-1')
  const due = costUsd(SONNET, { inputTokens: 34_000, outputTokens: 900 })
  assert.ok(Math.abs(answer.run.budget.spent - due) < 1e-9, `spent ${answer.run.budget.spent}, not ${due}`)
  assert.equal(server.served[0].body.enableTrace, true)
})

for (const [agentId, steps] of [
  ['KBLOOP', 3],
  ['AGVARIED', 4],
  ['COLLAB', 5],
]) {
  test(`${agentId}: the loop is seen, the client hangs up, and the session stays stopped`, async (t) => {
    const { server, client, sessions } = await setting(t)
    const answer = await guardInvokeAgent(client, asks(agentId), { sessions })
    await assert.rejects(answer.text(), LoopDetectedError)
    assert.ok(answer.steps <= steps, `${answer.steps} steps`)
    await server.served[0].over
    assert.ok(server.served[0].hungUp, 'the server was left sending')
    assert.ok(server.served[0].sent <= steps + 1, `${server.served[0].sent} rounds were sent`)
    await assert.rejects(guardInvokeAgent(client, asks(agentId), { sessions }), LoopDetectedError)
    assert.equal(server.served.length, 1)
  })
}

test('a budget ends it, and is that of the session', async (t) => {
  const { server, client, sessions } = await setting(t)
  const options = { sessions, maxUsd: 0.15 }
  const answer = await guardInvokeAgent(client, asks('COST'), options)
  await assert.rejects(answer.text(), BudgetExceededError)
  await server.served[0].over
  assert.ok(server.served[0].sent <= 5 && server.served[0].hungUp)
  await assert.rejects(guardInvokeAgent(client, asks('COST'), options), BudgetExceededError)
  const other = await guardInvokeAgent(client, asks('RESEARCH'), options)
  assert.equal(await other.text(), 'Margins held at 31 %. ☀', 'another agent of the same session id is another session')
  await assert.rejects(guardInvokeAgent(client, asks('COST'), { ...options, maxUsd: 5 }), /began with other options \(maxUsd\)/)
})

test('a returned call that is refused is not handed out; results of one are no new turn', async (t) => {
  const { client, sessions } = await setting(t)
  let results
  const invoke = async () => {
    const state = results && { sessionState: { invocationId: 'inv', returnControlInvocationResults: results } }
    const answer = await guardInvokeAgent(client, asks('CONTROL', state ?? {}), { sessions })
    await answer.text()
    results = [
      ...(results ?? []),
      { functionResult: { actionGroup: 'payments', function: 'refund', responseBody: { TEXT: { body: 'no' } } } },
    ]
    return answer.returnControl.invocationInputs[0].functionInvocationInput.function
  }
  assert.equal(await invoke(), 'refund')
  assert.equal(await invoke(), 'refund')
  await assert.rejects(invoke, LoopDetectedError)
})

/** An agent that hands out refunds, each of another order, for ever. */
function REFUNDS({ sessionState }) {
  const number = Number(sessionState?.invocationId ?? 0) + 1
  const parameters = [{ name: 'order', type: 'string', value: `order ${number}` }]
  const call = { actionGroup: 'payments', function: 'refund', parameters, actionInvocationType: 'RESULT' }
  return [[{ kind: 'returnControl', body: { invocationId: String(number), invocationInputs: [{ functionInvocationInput: call }] } }]]
}

/** Makes the calls that `send` hands out, which fail each time; how often it did. */
async function refunds(send) {
  let more = {}
  for (let made = 1; ; made += 1) {
    const { returnControl } = await send(more)
    assert.equal(returnControl.invocationInputs.length, 1)
    const responseBody = { TEXT: { body: '{"error": "card declined"}' } }
    const functionResult = { actionGroup: 'payments', function: 'refund', responseBody }
    const state = { invocationId: returnControl.invocationId, returnControlInvocationResults: [{ functionResult }] }
    more = { sessionState: state }
    assert.ok(made < 20, 'it never ends')
  }
}

test('returned calls that fail as before end before anything is sent', async (t) => {
  t.mock.method(console, 'warn', () => {})
  const { server, client, sessions } = await setting(t, { REFUNDS })
  const guarded = async (more) => {
    const answer = await guardInvokeAgent(client, asks('REFUNDS', more), { sessions })
    await answer.text()
    return answer
  }
  await assert.rejects(refunds(guarded), (error) => error instanceof LoopDetectedError && error.repeats === 4)
  assert.equal(server.served.length, 4)

  instrument(client, { sessions: new Sessions() })
  const plain = async (more) => {
    const { completion } = await client.send(asks('REFUNDS', more))
    await completion.text()
    return completion
  }
  await assert.rejects(refunds(plain), (error) => tripOf(error) instanceof LoopDetectedError)
  assert.equal(server.served.length, 8)
})

test('the thresholds go with the run: a stall detector looks after errors, and lookups may repeat as calls may', async (t) => {
  const { client } = await setting(t)
  const steps = async (agentId, options) => {
    const answer = await guardInvokeAgent(client, asks(agentId), { sessions: new Sessions(), ...options })
    await assert.rejects(answer.text(), TripError)
    return answer
  }
  const stalled = await steps('AGVARIED', { stall: new StallDetector('coding', { sameError: { nudge: 7, warn: 8, stop: 9 } }) })
  assert.equal(stalled.run.trip.name, 'StallDetectedError')
  assert.equal((await steps('KBLOOP', { repeats: 5, attempts: { barrenLookups: 0 } })).steps, 5)
  assert.equal((await steps('KBLOOP', { repeats: 5, attempts: { barrenLookups: 0, sameLookups: 3 } })).steps, 3)
})

test('a budget that is spent elsewhere is asked before anything is sent', async (t) => {
  const { server, client, sessions } = await setting(t)
  const budget = new BudgetTracker({ maxUsd: 1 })
  budget.record(1)
  await assert.rejects(guardInvokeAgent(client, asks('RESEARCH'), { sessions, budget }), BudgetExceededError)
  assert.equal(server.served.length, 0)
})

test('an instrumented client needs no change in the code that calls it', async (t) => {
  const { server, client, sessions } = await setting(t)
  const instrumented = instrument(client, { sessions, repeats: 3 })
  const { completion } = await client.send(asks('KBLOOP'))
  await assert.rejects(async () => {
    for await (const _ of completion);
  }, LoopDetectedError)
  await assert.rejects(client.send(asks('KBLOOP')), (error) => tripOf(error) instanceof LoopDetectedError)
  assert.equal(instrumented.run('session-1', 'KBLOOP').tripped, true)
  const inline = new InvokeInlineAgentCommand({
    sessionId: 'session-2',
    agentName: 'RESEARCH',
    foundationModel: SONNET,
    instruction: 'x'.repeat(40),
    inputText: 'Why?',
  })
  let text = ''
  for await (const { chunk } of (await client.send(inline)).completion) if (chunk) text += Buffer.from(chunk.bytes).toString()
  assert.equal(text, 'Margins held at 31 %. ☀')
  await assert.rejects(guardInvokeAgent(client, asks('KBLOOP'), { sessions }), /instrumented already/)
  instrumented.remove()
  await client.send(asks('RESEARCH'))
  assert.equal(server.served.at(-1).body.enableTrace, undefined)
})

test('breaking off hangs up, errors in the stream come through, and an unknown model has a name', async (t) => {
  const { server, client, sessions } = await setting(t)
  for await (const event of await guardInvokeAgent(client, asks('COST'), { sessions })) if (event.trace) break
  await server.served[0].over
  assert.ok(server.served[0].hungUp)
  await assert.rejects((await guardInvokeAgent(client, asks('THROTTLED'), { sessions })).text(), { name: 'ThrottlingException' })
  const unpriced = (models) => guardInvokeAgent(client, asks('UNPRICED'), { sessions: new Sessions(), maxUsd: 1, models })
  await assert.rejects((await unpriced()).text(), UnknownModelError)
  const arn = 'arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3'
  assert.equal(await (await unpriced({ [arn]: SONNET })).text(), 'Fine.')
})

test('without a trace nothing is guarded, and that is said', async (t) => {
  const { client } = await setting(t)
  const warned = t.mock.method(console, 'warn', () => {})
  const { completion } = await client.send(asks('RESEARCH'))
  await guardStream(completion, new Run()).text()
  assert.match(warned.mock.calls[0].arguments[0], /carried no trace/)
})

test('a session that was asked to end begins anew', async (t) => {
  const { client, sessions } = await setting(t)
  const first = await guardInvokeAgent(client, asks('RESEARCH', { endSession: true }), { sessions })
  await first.text()
  const second = await guardInvokeAgent(client, asks('RESEARCH'), { sessions })
  assert.notEqual(second.run, first.run)
  assert.equal(second.run.budget.spent, 0)
})

test('detectors of your own are fed from a trace', async (t) => {
  const { client } = await setting(t)
  const listen = async (agentId, loopDetector, budgetTracker) => {
    const { completion } = await client.send(asks(agentId, { enableTrace: true }))
    for await (const event of completion) if (event.trace) processTraceEvent(event.trace, loopDetector, budgetTracker)
  }
  await assert.rejects(listen('KBLOOP', new LoopDetector()), LoopDetectedError)
  await assert.rejects(listen('COST', new LoopDetector(), new BudgetTracker({ maxUsd: 0.1 })), BudgetExceededError)
  const budget = new BudgetTracker()
  await listen('RESEARCH', new LoopDetector(), budget)
  assert.ok(Math.abs(budget.spent - costUsd(SONNET, { inputTokens: 34_000, outputTokens: 900 })) < 1e-9, `spent ${budget.spent}`)
})

test('presets are settings for a kind of agent', async (t) => {
  const { client, sessions } = await setting(t)
  const answer = await guardInvokeAgent(client, asks('RESEARCH'), { sessions, preset: 'interactive', maxUsd: 3 })
  assert.equal(answer.run.budget.limit, 3)
  await answer.text()
  await assert.rejects(guardInvokeAgent(client, asks('RESEARCH'), { preset: 'lazy' }), /research, automation, interactive/)
  const own = { loop: new LoopDetector({ repeats: 9 }), budget: new BudgetTracker({ maxUsd: 7 }) }
  const { run } = await guardInvokeAgent(client, asks('RESEARCH'), { sessions: new Sessions(), preset: 'interactive', ...own })
  assert.deepEqual([run.loop, run.budget], [own.loop, own.budget], 'they bring their settings with them')
  const unsaid = await guardInvokeAgent(client, asks('RESEARCH'), { sessions: new Sessions(), preset: 'interactive', maxUsd: undefined })
  assert.equal(unsaid.run.budget.limit, 2)
  await assert.rejects(guardInvokeAgent(client, asks('RESEARCH'), { run: new Run(), preset: 'interactive' }), /not both: preset/)
})

test('the program of the documentation runs as it stands', async (t) => {
  const { server } = await setting(t)
  const keys = { AWS_ACCESS_KEY_ID: 'a', AWS_SECRET_ACCESS_KEY: 's', AWS_ENDPOINT_URL_BEDROCK_AGENT_RUNTIME: server.url }
  const run = (agentId) => execute(process.execPath, ['bedrock-agent.mjs', agentId, 'ALIAS', 'Why?'], { env: { ...process.env, ...keys } })
  assert.equal((await run('RESEARCH')).stdout, 'Margins held at 31 %. ☀\n')
  assert.match((await run('KBLOOP')).stdout, /^stopped: .+\n$/)
})
