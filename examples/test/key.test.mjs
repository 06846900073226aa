// A service that is reachable from a platform has keys: the snippets must send theirs.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { botpressSnippet, runBotpress } from '../runner/botpress.mjs'
import { PUBLIC_URL, runVoiceflow, voiceflowSnippet } from '../runner/voiceflow.mjs'
import { startService } from './service.mjs'

let service
before(async () => (service = await startService({ locked: true })))
after(() => service.stop())

async function botpress(key) {
  const workflow = { guardAllow: false, guardReason: '', guardMessage: '', targetBot: 'billing', handoffChain: '', handoffsRemaining: 0 }
  const event = { conversationId: 'c-1', preview: '' }
  await runBotpress(await botpressSnippet('handoff'), { env: { RUNGUARD_URL: service.url, RUNGUARD_KEY: key }, event, workflow })
  return { allow: workflow.guardAllow, reason: workflow.guardReason }
}

async function voiceflow(key) {
  const inputs = { runguard_url: PUBLIC_URL, runguard_key: key, user_id: 'u-1', endpoint_key: 'orders-api' }
  const { outputVars } = await runVoiceflow(await voiceflowSnippet('api-circuit-check'), inputs, service.url)
  return { allow: outputVars.allow, reason: outputVars.reason }
}

for (const [platform, ask] of Object.entries({ botpress, voiceflow })) {
  test(`${platform}: the right key gets a decision`, async () => {
    assert.deepEqual(await ask(service.key), { allow: true, reason: '' })
  })

  test(`${platform}: without the right key the flow goes on, and says that nobody guards it`, async () => {
    for (const key of [undefined, 'rg_wrong_key']) {
      assert.deepEqual(await ask(key), { allow: true, reason: 'guard_unavailable' })
    }
  })
}
