import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { deadUrl, startService } from '../../../examples/test/service.mjs'
import { ActionCall, MemoryStore, ServiceStore, callBegun, callFinished, guardActionGroup } from '@runguard/sdk/aws-lambda'

let service
before(async () => (service = await startService()))
after(() => service.stop())

let sessions = 0
const named = (name, parameters, more = {}) => ({
  messageVersion: '1.0',
  sessionId: `session-${process.pid}-${sessions}`,
  actionGroup: 'orders',
  function: name,
  parameters: Object.entries(parameters).map(([name, value]) => ({ name, type: 'string', value })),
  ...more,
})
const text = (body, responseState) => ({
  messageVersion: '1.0',
  response: {
    actionGroup: 'orders',
    function: 'find',
    functionResponse: { responseBody: { TEXT: { body } }, ...(responseState ? { responseState } : {}) },
  },
})
const http = (httpStatusCode, body) => ({ response: { httpStatusCode, responseBody: { 'application/json': { body } } } })

/** A handler that gives these answers in turn, and counts. */
function handling(answers, options) {
  const ran = []
  sessions += 1
  const handler = guardActionGroup(async (event) => {
    ran.push(event)
    const answer = answers[(ran.length - 1) % answers.length]
    if (answer instanceof Error) throw answer
    return answer
  }, options)
  return { ran, handler }
}

for (const [kind, optionsOf] of [
  ['in this process', () => ({})],
  ['in a store', () => ({ store: new MemoryStore() })],
  ['in a service', () => ({ url: service.url })],
]) {
  it(`the third call after two that failed is not run, remembered ${kind}`, async () => {
    for (const failure of [
      text('no', 'REPROMPT'),
      text('{"error": "AccessDenied"}'),
      text('"Error: no such table"'),
      http(404, '{}'),
      http('503', 'gone'),
      http(200, { error: 'no stock' }),
      new Error('down'),
    ]) {
      const { ran, handler } = handling([failure], optionsOf())
      const ask = () => handler(named('find', { id: '7' }, { sessionAttributes: { user: 'x' } })).catch((error) => error)
      for (let call = 0; call < 2; call += 1) assert.equal(await ask(), failure)
      const { messageVersion, response, sessionAttributes } = await ask()
      assert.deepEqual([messageVersion, sessionAttributes, response.functionResponse.responseState], ['1.0', { user: 'x' }, 'FAILURE'])
      const told = JSON.parse(response.functionResponse.responseBody.TEXT.body)
      assert.deepEqual([told.error, told.retryable], ['PERMANENT_FAILURE', false])
      assert.match(told.message, /orders::find.*failed 2 times/)
      assert.equal(ran.length, 2)
    }
  })

  it(`calls that succeed, and others, are run, remembered ${kind}`, async () => {
    const { ran, handler } = handling([text('{"ok": true}')], optionsOf())
    for (let call = 0; call < 5; call += 1) await handler(named('find', { id: '7' }))
    assert.equal(ran.length, 5)
    const failing = handling([text('no', 'FAILURE')], optionsOf())
    for (const id of ['1', '2', '3', '4']) await failing.handler(named('find', { id }))
    assert.equal(failing.ran.length, 4)
  })
}

it('calls that fail in turns are seen, and an API schema is answered with 422', async () => {
  const { ran, handler } = handling([http(500, '{}')])
  const event = (apiPath) => ({
    sessionId: 'api',
    actionGroup: 'orders',
    apiPath,
    httpMethod: 'POST',
    requestBody: { content: { 'application/json': { properties: [{ name: 'id', type: 'integer', value: '7' }] } } },
  })
  for (const path of ['/find', '/pay', '/find', '/pay']) await handler(event(path))
  const { response } = await handler(event('/find'))
  assert.deepEqual([response.httpStatusCode, response.apiPath, response.httpMethod], [422, '/find', 'POST'])
  assert.equal(ran.length, 4)
})

it('equal calls have equal signatures, however they are written', () => {
  const one = new ActionCall(named('find', { id: '7', by: 'x' }))
  const other = new ActionCall({
    ...named('find', {}),
    parameters: [
      { name: 'by', type: 'string', value: 'x' },
      { name: 'id', type: 'string', value: '7' },
    ],
  })
  assert.equal(one.signature, other.signature)
  assert.equal(one.name, 'orders::find')
  const begun = callBegun([], one)
  assert.equal(begun.refusal, null)
  const failed = callFinished(begun.calls, one, true)
  assert.match(callBegun(callFinished(callBegun(failed, one).calls, one, true), one).refusal, /failed 2 times/)
})

it('without its memory the handler runs, and that is said', async (t) => {
  const warned = t.mock.method(console, 'warn', () => {})
  const { ran, handler } = handling([text('no', 'FAILURE')], { store: new ServiceStore(await deadUrl()) })
  for (let call = 0; call < 3; call += 1) await handler(named('find', { id: '7' }))
  await handler(named('find', { id: '7' }, { sessionId: undefined }))
  assert.equal(ran.length, 4)
  assert.equal(warned.mock.calls.length, 4)
  assert.throws(() => guardActionGroup(() => {}, { url: 'http://127.0.0.1:1', store: new MemoryStore() }), /one place/)
})
