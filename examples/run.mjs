// Runs one snippet against a RunGuard that is already up, and prints what the flow would see:
//
//   node run.mjs http://127.0.0.1:8100 voiceflow/no-match-reprompt user_id=u1 step_id=capture_email
//   node run.mjs http://127.0.0.1:8100 botpress/ai-task-retry conversationId=c1 preview='where is it?'

import { botpressSnippet, runBotpress } from './runner/botpress.mjs'
import { PUBLIC_URL, runVoiceflow, voiceflowSnippet } from './runner/voiceflow.mjs'

const [service, snippet, ...pairs] = process.argv.slice(2)
const [platform, name] = (snippet ?? '').replace(/\.js$/, '').split('/')
const given = Object.fromEntries(pairs.map((pair) => pair.split(/=(.*)/s).slice(0, 2)))

if (platform === 'voiceflow') {
  console.log(await runVoiceflow(await voiceflowSnippet(name), { runguard_url: PUBLIC_URL, ...given }, service))
} else if (platform === 'botpress') {
  const { conversationId = 'conversation-1', preview = '', ...own } = given
  const texts = { guardReason: '', guardMessage: '', validationError: '', targetBot: '', handoffChain: '', permitId: '' }
  const left = { remainingRetries: 0, handoffsRemaining: 0, queriesRemaining: 0, bestConfidenceSeen: 0, actionsRemaining: 0 }
  const upstream = { attempt: 1, startedMs: 0, recentFailures: 0, upstreamFailed: false, upstreamStatus: 0 }
  const workflow = { guardAllow: true, ...texts, ...left, ...upstream, ...own }
  const variables = { event: { conversationId, preview }, env: { RUNGUARD_URL: service }, turn: {}, input: own, workflow }
  const returned = await runBotpress(await botpressSnippet(name), variables)
  console.log({ workflow, ...(returned === undefined ? {} : { returned }) })
} else {
  console.error('usage: node run.mjs SERVICE_URL botpress/NAME|voiceflow/NAME [variable=value …]')
  process.exitCode = 2
}
