// What the guides print works: requests are sent to the real service, settings and plans are read by it, code is run.

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { runBotpress } from '../runner/botpress.mjs'
import { binary, startService } from './service.mjs'

let service
let folder
before(async () => {
  service = await startService()
  folder = await mkdtemp(join(tmpdir(), 'runguard-docs-'))
})
after(async () => {
  await service.stop()
  await rm(folder, { recursive: true, force: true })
})

const guide = (name) => readFileSync(new URL(`../../docs/${name}.md`, import.meta.url), 'utf8')

/** The listings of a guide in one language. */
const listings = (name, language) =>
  [...guide(name).matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(([, text]) => text)

/** Sends a request as an API step does: variables are put in as they are. */
async function send(listing, variables) {
  const filled = listing.replace(/\{(\w+)\}/g, (_, name) => {
    assert.ok(name in variables, `the guide uses {${name}}`)
    return String(variables[name])
  })
  const [head, body] = filled.split('\n\n')
  const [request, ...headers] = head.split('\n')
  const [method, address] = request.split(' ')
  const { pathname, search } = new URL(address)
  const response = await fetch(service.url + pathname + search, {
    method,
    headers: Object.fromEntries(headers.filter((line) => !line.startsWith('Authorization')).map((line) => line.split(': '))),
    body,
  })
  assert.equal(response.status, 200, body)
  const answer = await response.json()
  for (const value of Object.values(answer)) assert.notEqual(typeof value, 'object', 'nothing nested')
  return answer
}

const [reprompt, capture, ask, tell, check, record] = listings('voiceflow', 'http')

test('voiceflow: an API step before a reprompt', async () => {
  const user = { runguard_key: '', user_id: 'docs-1', last_utterance: 'john at example dot com' }
  for (const remaining of [2, 1, 0]) assert.equal((await send(reprompt, user)).remaining_reprompts, remaining)
  const fourth = await send(reprompt, user)
  assert.equal(fourth.allow, false)
  assert.equal(fourth.reason, 'reprompt_ceiling_reached')
})

test('voiceflow: a capture has three ways', async () => {
  const say = (last_utterance) => send(capture, { runguard_key: '', user_id: 'docs-2', last_utterance })
  const spoken = await say('john at example dot com')
  assert.equal(spoken.allow, false)
  assert.notEqual(spoken.format_hint, '')
  for (const remaining of [3, 2, 1, 0]) assert.equal((await say('no idea')).remaining_attempts, remaining)
  const fifth = await say('no idea')
  assert.equal(fifth.reason, 'attempt_ceiling_reached')
  assert.equal(fifth.format_hint, undefined)
})

test('voiceflow: numbers that a template puts into quotes are taken, with a warning', async () => {
  const user = { runguard_key: '', user_id: 'docs-3', last_utterance: 'Do you ship to the moon?', confidence: 0.4, chunks: 3 }
  assert.equal((await send(ask, user)).allow, true)
  const told = await send(tell, user)
  assert.equal(told.recorded, true)
  assert.match(told.warnings, /'confidence_score'.*'retrieved_chunks'/)
  assert.equal((await send(ask, user)).reason, 'low_confidence_re_query_blocked')
})

test('voiceflow: one guard around an integration, for all flows', async () => {
  const user = { runguard_key: '', user_id: 'docs-4', attempt: '', permit_id: '' }
  const allowed = await send(check, user)
  assert.equal(allowed.allow, true)
  assert.equal(allowed.failure_threshold, 10)
  const { session_attempt_number: attempt, permit_id } = allowed
  assert.equal((await send(record, { ...user, attempt, permit_id })).recorded, true)
  const failed = record.replace('"success"', '"failure"')
  for (let flow = 0; flow < 10; flow += 1) await send(failed, { ...user, user_id: `flow-${flow}`, attempt: 1 })
  assert.equal((await send(check, { ...user, user_id: 'docs-5' })).reason, 'circuit_just_tripped')
})

test('botpress: counters in the flow', async () => {
  const [, retry, transfer, search] = listings('botpress', 'js')
  const ask = async (code, workflow) => {
    await runBotpress(code, { workflow })
    return workflow.guardAllow
  }
  for (const [code, counter] of [[retry, 'retries'], [search, 'searches']]) {
    const workflow = { guardAllow: true, [counter]: 0 }
    for (const allowed of [true, true, false]) assert.equal(await ask(code, workflow), allowed)
  }
  const workflow = { guardAllow: true, chain: '', targetBot: '' }
  const visit = (bot) => ask(transfer, Object.assign(workflow, { targetBot: bot }))
  for (const bot of ['billing', 'plans', 'billing', 'plans']) assert.equal(await visit(bot), true)
  assert.equal(await visit('billing'), false)
  assert.equal(workflow.chain, 'billing → plans → billing → plans')
})

for (const name of ['voiceflow', 'botpress']) {
  test(`${name}: the settings are taken`, () => {
    const file = join(folder, `${name}.toml`)
    writeFileSync(file, listings(name, 'toml').join('\n'))
    execFileSync(binary(), ['settings', 'check', file])
  })
}

test('botpress: the plan has no gaps, and the command says so', () => {
  writeFileSync(join(folder, 'flow.yaml'), listings('botpress', 'yaml')[0])
  const [command, ...said] = listings('botpress', 'console')[0].trim().split('\n')
  assert.equal(command, '$ runguard check-flow flow.yaml')
  const shown = execFileSync(binary(), ['check-flow', 'flow.yaml'], { cwd: folder, encoding: 'utf8' })
  assert.equal(shown.trim(), said.join('\n'))
})
