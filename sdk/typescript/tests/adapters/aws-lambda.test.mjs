// The history of an action group's functions in DynamoDB and Redis, with the real clients and servers; and in turns with the Python package.

import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createServer } from 'node:net'
import { after, before, describe, it } from 'node:test'
import { CreateTableCommand, DynamoDBClient, GetItemCommand } from '@aws-sdk/client-dynamodb'
import { DynamoDBStore, RedisStore, guardActionGroup } from '@runguard/sdk/aws-lambda'
import { Redis as IoRedis } from 'ioredis'
import { createClient } from 'redis'

/** With moto, boto3, redis and the RunGuard wheel: the environment `lambda` of the Python adapters. */
const python = process.env.RUNGUARD_LAMBDA_PYTHON ?? ''
const hasPython = existsSync(python)
const without = hasPython ? false : 'RUNGUARD_LAMBDA_PYTHON names no interpreter: fill the Python environment `lambda` first'
const hasRedis = spawnSync('redis-server', ['--version']).status === 0
const noRedis = hasRedis ? false : 'redis-server is not installed'
const TABLE = 'bedrock-agent-call-history'

async function freePort() {
  const server = createServer()
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address()
  await new Promise((resolve) => server.close(resolve))
  return port
}

async function until(what, isSo) {
  for (let attempt = 0; attempt < 200; attempt += 1) {
    if (await isSo().catch(() => false)) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`${what} is not there after 10 s`)
}

let sessions = 0
const eventOf = (id = '7', name = 'find') => ({
  messageVersion: '1.0',
  sessionId: `session-${process.pid}-${sessions}`,
  actionGroup: 'orders',
  function: name,
  parameters: [{ name: 'id', type: 'string', value: id }],
})
const failed = { response: { actionGroup: 'orders', function: 'find', functionResponse: { responseState: 'FAILURE', responseBody: { TEXT: { body: 'no' } } } } }

/** A function that always fails, and counts. */
function failing(options) {
  const made = { ran: 0 }
  made.handler = guardActionGroup(async () => ((made.ran += 1), failed), options)
  return made
}
const isRefused = ({ response }) => JSON.stringify(response).includes('PERMANENT_FAILURE')

/** Two copies of a function, a third call that is refused, and none of what others wrote at the same time is lost. */
function keepsHistory(storeOf) {
  it('copies of the function know of each other', async () => {
    sessions += 1
    const copies = [failing({ store: storeOf() }), failing({ store: storeOf() })]
    assert.equal(isRefused(await copies[0].handler(eventOf())), false)
    assert.equal(isRefused(await copies[1].handler(eventOf())), false)
    for (const { handler } of copies) assert.equal(isRefused(await handler(eventOf())), true)
    assert.deepEqual(copies.map(({ ran }) => ran), [1, 1])
    sessions += 1
    assert.equal(isRefused(await copies[0].handler(eventOf())), false, 'another session')
  })

  it('calls that fail in turns are seen', async () => {
    sessions += 1
    const { handler } = failing({ store: storeOf() })
    for (const name of ['find', 'pay', 'find', 'pay']) assert.equal(isRefused(await handler(eventOf('7', name))), false)
    assert.equal(isRefused(await handler(eventOf('7', 'find'))), true)
  })

  it('what is written at once is all kept', async () => {
    sessions += 1
    const copies = Array.from({ length: 4 }, () => failing({ store: storeOf() }))
    await Promise.all(copies.map(({ handler }, copy) => handler(eventOf(`id-${copy}`))))
    for (let copy = 0; copy < 4; copy += 1) await copies[0].handler(eventOf(`id-${copy}`))
    for (let copy = 0; copy < 4; copy += 1) assert.equal(isRefused(await copies[1].handler(eventOf(`id-${copy}`))), true, `id-${copy}`)
  })
}

/** Python's function for the same events: prints whether each was refused. */
const PYTHON = `
import json, sys
from runguard.adapters.aws_lambda import guard_action_group
failed = json.loads(sys.argv[3])
handler = guard_action_group(lambda event, context: failed, **{sys.argv[1]: sys.argv[2]})
print("PERMANENT_FAILURE" in json.dumps(handler(json.loads(sys.argv[4]), None)))
`
function pythonRefuses(place, where, event, env = {}) {
  const asked = ['-c', PYTHON, place, where, JSON.stringify(failed), JSON.stringify(event)]
  const { stdout, stderr, status } = spawnSync(python, asked, { encoding: 'utf8', env: { ...process.env, ...env } })
  assert.equal(status, 0, stderr)
  return stdout.trim() === 'True'
}

describe('DynamoDB', { skip: without }, () => {
  const env = { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'us-east-1', AWS_DEFAULT_REGION: 'us-east-1' }
  let server
  let client
  before(async () => {
    const port = await freePort()
    server = spawn(python, ['-m', 'moto.server', '-H', '127.0.0.1', '-p', String(port)], { stdio: 'ignore' })
    env.AWS_ENDPOINT_URL_DYNAMODB = `http://127.0.0.1:${port}`
    Object.assign(process.env, env)
    client = new DynamoDBClient({})
    const key = { AttributeName: 'sessionId' }
    const table = {
      TableName: TABLE,
      AttributeDefinitions: [{ ...key, AttributeType: 'S' }],
      KeySchema: [{ ...key, KeyType: 'HASH' }],
      BillingMode: 'PAY_PER_REQUEST',
    }
    await until('the table', async () => (await client.send(new CreateTableCommand(table))).TableDescription !== undefined)
  })
  after(() => server?.kill())

  keepsHistory(() => new DynamoDBStore(TABLE, { timeoutMs: 10_000 }))

  it('an item is what the table of the design has, and expires', async () => {
    sessions += 1
    const { handler } = failing({ dynamodbTable: TABLE, timeoutMs: 10_000 })
    await handler(eventOf())
    const { Item } = await client.send(new GetItemCommand({ TableName: TABLE, Key: { sessionId: { S: eventOf().sessionId } } }))
    assert.deepEqual(Object.keys(Item).sort(), ['callHistory', 'expiresAt', 'sessionId', 'version'])
    assert.equal(Item.version.N, '2')
    const left = Number(Item.expiresAt.N) - Date.now() / 1000
    assert.ok(left > 3500 && left <= 3600, `${left} s`)
    sessions += 1
    const brief = failing({ store: new DynamoDBStore(TABLE, { keptSeconds: 0, timeoutMs: 10_000 }) })
    for (let call = 0; call < 4; call += 1) assert.equal(isRefused(await brief.handler(eventOf())), false, 'what has expired does not count')
  })

  it('Python and Node play one session by turns', async () => {
    sessions += 1
    const { handler } = failing({ dynamodbTable: TABLE, timeoutMs: 10_000 })
    assert.equal(pythonRefuses('dynamodb_table', TABLE, eventOf(), env), false)
    assert.equal(isRefused(await handler(eventOf())), false)
    assert.equal(pythonRefuses('dynamodb_table', TABLE, eventOf(), env), true)
    assert.equal(isRefused(await handler(eventOf())), true)
  })
})

describe('Redis', { skip: noRedis }, () => {
  let server
  let url
  const open = []
  before(async () => {
    const port = await freePort()
    url = `redis://127.0.0.1:${port}/0`
    server = spawn('redis-server', ['--port', String(port), '--save', '', '--appendonly', 'no'], { stdio: 'ignore' })
    await until('Redis', async () => {
      const client = createClient({ url, socket: { reconnectStrategy: false } })
      client.on('error', () => {})
      await client.connect()
      open.push(() => client.destroy())
      return true
    })
  })
  after(() => {
    for (const close of open) close()
    server?.kill()
  })
  const connected = async () => {
    const client = createClient({ url })
    await client.connect()
    open.push(() => client.destroy())
    return client
  }

  describe('through redis', async () => {
    let client
    before(async () => (client = await connected()))
    keepsHistory(() => new RedisStore(client, { timeoutMs: 10_000 }))
  })

  describe('through ioredis', () => {
    let client
    before(() => {
      client = new IoRedis(url)
      open.push(() => client.disconnect())
    })
    keepsHistory(() => new RedisStore(client, { timeoutMs: 10_000 }))
  })

  it('a session is forgotten by itself, and anything may stand where it was', async () => {
    const client = await connected()
    sessions += 1
    const { handler } = failing({ store: new RedisStore(client, { keptSeconds: 60 }) })
    const key = `runguard:action-group:${eventOf().sessionId}`
    await client.set(key, 'not ours')
    assert.equal(isRefused(await handler(eventOf())), false)
    const left = await client.ttl(key)
    assert.ok(left > 50 && left <= 60, `${left} s`)
  })

  it('Python and Node play one session by turns', { skip: without }, async () => {
    sessions += 1
    const client = await connected()
    const { handler } = failing({ store: new RedisStore(client) })
    assert.equal(isRefused(await handler(eventOf())), false)
    assert.equal(pythonRefuses('redis_url', url, eventOf()), false)
    assert.equal(isRefused(await handler(eventOf())), true)
    assert.equal(pythonRefuses('redis_url', url, eventOf()), true)
  })
})

it('by its address Redis is reached at the first call; one that is away lets the handler run', { skip: noRedis }, async (t) => {
  const warned = t.mock.method(console, 'warn', () => {})
  const port = await freePort()
  sessions += 1
  const { handler } = failing({ redisUrl: `redis://127.0.0.1:${port}`, timeoutMs: 500 })
  for (let call = 0; call < 3; call += 1) assert.equal(isRefused(await handler(eventOf())), false)
  assert.equal(warned.mock.calls.length, 3)
  const server = spawn('redis-server', ['--port', String(port), '--save', '', '--appendonly', 'no'], { stdio: 'ignore' })
  t.after(() => server.kill())
  await until('Redis', async () => spawnSync('redis-cli', ['-p', String(port), 'ping'], { encoding: 'utf8' }).stdout.trim() === 'PONG')
  for (const expected of [false, false, true]) assert.equal(isRefused(await handler(eventOf())), expected)
  assert.throws(() => guardActionGroup(() => {}, { redisUrl: 'redis://x', dynamodbTable: 'y' }), /redisUrl and dynamodbTable/)
})
