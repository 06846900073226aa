// The stand-ins are only worth something if they refuse what the platforms refuse.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runBotpress } from '../runner/botpress.mjs'
import { checkResult, runVoiceflow } from '../runner/voiceflow.mjs'

const declared = { inputs: [], outputs: ['a'], paths: ['allow'] }
const refused = {
  'an extra key': { outputVars: {}, next: { path: 'allow' }, trace: [], status: 200 },
  'an undeclared path': { next: { path: 'block' } },
  'an extra key in next': { next: { path: 'allow', listen: true } },
  'null as an output': { outputVars: { a: null } },
  'a nested output': { outputVars: { a: { b: 1 } } },
  'a list as an output': { outputVars: { a: [1] } },
  'an undefined output': { outputVars: { a: undefined } },
  'an undeclared output': { outputVars: { b: 1 } },
  'a trace that is no list': { trace: {} },
  'no object': null,
}
for (const [what, result] of Object.entries(refused)) {
  test(`Voiceflow refuses ${what}`, () => assert.throws(() => checkResult(result, declared)))
}

test('Voiceflow accepts scalars, a declared path and traces', () => {
  const result = { outputVars: { a: true }, next: { path: 'allow' }, trace: [{ type: 'text', payload: {} }] }
  assert.equal(checkResult(result, declared), result)
})

const voiceflow = (body) => runVoiceflow(`// inputs: x\n// outputs: a\n// paths: allow\nexport default async function main(args) { ${body} }`, {}, 'http://127.0.0.1:1')

test('Voiceflow offers no timers, no AbortController, no console, no require', async () => {
  const { outputVars } = await voiceflow(
    "return { outputVars: { a: [typeof setTimeout, typeof AbortController, typeof console, typeof require, typeof process].join() } }"
  )
  assert.equal(outputVars.a, 'undefined,undefined,undefined,undefined,undefined')
})

test('Voiceflow gives unset inputs as 0 and refuses private addresses', async () => {
  assert.equal((await voiceflow('return { outputVars: { a: args.inputVars.x } }')).outputVars.a, 0)
  for (const url of ['http://localhost:8100/', 'http://127.0.0.1:8100/', 'http://192.168.0.1/']) {
    await assert.rejects(voiceflow(`await fetch('${url}')`), /not a public address/)
  }
})

test('Botpress offers axios, but no fetch, timers, console or require', async () => {
  const offered = await runBotpress(
    'return [typeof axios.post, typeof fetch, typeof setTimeout, typeof console, typeof require].join()',
    { workflow: {} }
  )
  assert.equal(offered, 'function,undefined,undefined,undefined,undefined')
})

test('Botpress refuses undeclared workflow variables and values of another type', async () => {
  await assert.rejects(runBotpress('workflow.nope = 1', { workflow: {} }), /not declared/)
  await assert.rejects(runBotpress("workflow.allow = 'yes'", { workflow: { allow: true } }), /is a boolean/)
})
