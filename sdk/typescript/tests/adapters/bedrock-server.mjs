// A Bedrock agent runtime on this machine, for `@aws-sdk/client-bedrock-agent-runtime`: InvokeAgent and InvokeInlineAgent over HTTP/2, which is
// what that client speaks, answered as an AWS event stream. The agent id in the path chooses the trace that is played. Trace events are sent
// only when the request has `enableTrace`, as the real service does. Between two rounds the server waits a moment for the client to hang up,
// so that a test can see how far a stream was really read.

import { readFileSync } from 'node:fs'
import { createServer } from 'node:http2'

export const SONNET = 'anthropic.claude-3-7-sonnet-20250219-v1:0'
export const HAIKU = 'anthropic.claude-3-5-haiku-20241022-v1:0'

const ROUND_PAUSE_MS = 20

// --- the wire

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1
  return value
})

function crc32(bytes) {
  let sum = 0xffffffff
  for (const byte of bytes) sum = CRC[(sum ^ byte) & 255] ^ (sum >>> 8)
  return (sum ^ 0xffffffff) >>> 0
}

const uint32 = (value) => {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

/** One message of `application/vnd.amazon.eventstream`, with both checksums. */
function frame(headers, payload) {
  const packed = Buffer.concat(
    Object.entries(headers).map(([name, value]) => {
      const [key, text] = [Buffer.from(name), Buffer.from(value)]
      return Buffer.concat([Buffer.from([key.length]), key, Buffer.from([7, text.length >> 8, text.length & 255]), text])
    }),
  )
  const prelude = Buffer.concat([uint32(12 + packed.length + payload.length + 4), uint32(packed.length)])
  const body = Buffer.concat([prelude, uint32(crc32(prelude)), packed, payload])
  return Buffer.concat([body, uint32(crc32(body))])
}

/** One member of the response stream: `chunk`, `trace`, `returnControl`, or an exception. */
function encoded({ kind, body }) {
  const message = kind.endsWith('Exception') ? 'exception' : 'event'
  const headers = { [`:${message}-type`]: kind, ':content-type': 'application/json', ':message-type': message }
  return frame(headers, Buffer.from(JSON.stringify(body)))
}

// --- the shapes of a trace

const metadata = (inputTokens, outputTokens) => ({ usage: { inputTokens, outputTokens }, totalTimeMs: 812 })
const chunk = (text) => ({ kind: 'chunk', body: { bytes: Buffer.from(text).toString('base64') } })

/** Writes the events of one agent, numbering its steps as the service does. */
class Tracer {
  step = -1

  constructor(agent, { model = SONNET, collaborator, caller } = {}) {
    Object.assign(this, { agent, model, collaborator, caller })
  }

  get traceId() {
    return `${this.agent}-${this.step}`
  }

  get chain() {
    const own = { agentAliasArn: `arn:aws:bedrock:us-east-1:123456789012:agent-alias/${this.agent}/ALIAS` }
    return [...(this.caller?.chain ?? []), own]
  }

  trace(trace) {
    const part = {
      agentId: this.agent.slice(0, 10),
      agentAliasId: 'ALIAS',
      agentVersion: '1',
      sessionId: 'session',
      callerChain: this.chain,
      trace,
    }
    return { kind: 'trace', body: this.collaborator ? { ...part, collaboratorName: this.collaborator } : part }
  }

  orchestration(member) {
    return this.trace({ orchestrationTrace: member })
  }

  thinks([input, output]) {
    this.step += 1
    const { traceId, model } = this
    return [
      this.orchestration({ modelInvocationInput: { traceId, type: 'ORCHESTRATION', text: '…', foundationModel: model } }),
      this.orchestration({ modelInvocationOutput: { traceId, rawResponse: { content: '…' }, metadata: metadata(input, output) } }),
      this.orchestration({ rationale: { traceId, text: 'I need one more look.' } }),
    ]
  }

  calls(invocationType, details) {
    return this.orchestration({ invocationInput: { traceId: this.traceId, invocationType, ...details } })
  }

  sees(type, details) {
    return this.orchestration({ observation: { traceId: this.traceId, type, ...details } })
  }

  asksKnowledgeBase(text, ...chunks) {
    const retrievedReferences = chunks.map((found) => ({ content: { text: found }, metadata: { usage: 'internal', page: 3 } }))
    return [
      this.calls('KNOWLEDGE_BASE', { knowledgeBaseLookupInput: { knowledgeBaseId: 'KB12345678', text } }),
      this.sees('KNOWLEDGE_BASE', { knowledgeBaseLookupOutput: { retrievedReferences } }),
    ]
  }

  callsAction(action, answer) {
    return [
      this.calls('ACTION_GROUP', { actionGroupInvocationInput: { executionType: 'LAMBDA', ...action } }),
      this.sees('ACTION_GROUP', { actionGroupInvocationOutput: { text: answer } }),
    ]
  }

  finishes(text, usage) {
    const final = this.sees('FINISH', { finalResponse: { text } })
    return [...(usage ? this.thinks(usage) : []), final, chunk(text.slice(0, 5)), chunk(text.slice(5))]
  }
}

const functionCall = (actionGroupName, name, parameters = {}) => ({
  actionGroupName,
  function: name,
  parameters: Object.entries(parameters).map(([name, value]) => ({ name, type: 'string', value })),
})

// --- the plays

const forty = (round) => Array.from({ length: 40 }, (_, number) => round(number))

/** `sdk/bedrock-plays.json`, which the other languages play too. */
const { plays: told } = JSON.parse(readFileSync(new URL('./bedrock-plays.json', import.meta.url), 'utf8'))

/** A play of the file: its steps in turn, and then its end. */
function played({ name, rounds, steps, ends, ends_usage: endsUsage }) {
  const agent = new Tracer(name.toLowerCase())
  const does = ({ asks, finds, does, with: parameters, gets }) =>
    asks === undefined ? agent.callsAction(functionCall(...does, parameters), gets) : agent.asksKnowledgeBase(asks, ...finds)
  const told = Array.from({ length: rounds }, (_, number) => {
    const step = steps[number % steps.length]
    return [...agent.thinks(step.usage), ...does(step)]
  })
  return ends === null ? told : [...told, agent.finishes(ends, endsUsage)]
}

export const PLAYS = {
  ...Object.fromEntries(told.map((play) => [play.name, () => played(play)])),
  /** No step repeats, but every prompt is 5,000 tokens longer. */
  COST() {
    const agent = new Tracer('cost')
    return forty((number) => {
      const thought = agent.thinks([5_000 * (number + 1), 500])
      // The service may repeat a part; it must be paid for once.
      return [...thought, thought[1], ...agent.callsAction(functionCall('reports', `section_${number}`), '{"ok": true}')]
    })
  },
  /** A supervisor hands the same question to one collaborator for ever; the collaborator's own steps differ each time. */
  COLLAB() {
    const supervisor = new Tracer('supervisor')
    return forty((number) => {
      const handed = {
        agentCollaboratorName: 'billing',
        agentCollaboratorAliasArn: 'arn:billing',
        input: { type: 'TEXT', text: 'Why twice?' },
      }
      const asks = [
        ...supervisor.thinks([3_000, 100]),
        supervisor.calls('AGENT_COLLABORATOR', { agentCollaboratorInvocationInput: handed }),
      ]
      const worker = new Tracer(`billing${number}`, { model: HAIKU, collaborator: 'billing', caller: supervisor })
      const works = [
        ...worker.thinks([1_000, 20]),
        ...worker.callsAction(functionCall('ledger', 'page', { batch: String(number) }), `page ${number}`),
      ]
      const output = { agentCollaboratorName: 'billing', output: { type: 'TEXT', text: 'No idea.' }, metadata: metadata(1_000, 20) }
      return [...asks, ...works, supervisor.sees('AGENT_COLLABORATOR', { agentCollaboratorInvocationOutput: output })]
    })
  },
  /** Asks the caller to run `refund(order=7)`, whatever the caller answered last time. */
  CONTROL({ sessionState }) {
    const agent = new Tracer('control')
    const results = sessionState?.returnControlInvocationResults ?? []
    if (results.length > 0) agent.step = 99
    const call = functionCall('payments', 'refund', { order: '7' })
    const invocationId = `inv-${results.length}`
    const asked = { actionGroup: 'payments', function: 'refund', parameters: call.parameters, actionInvocationType: 'RESULT' }
    const announced = { ...call, executionType: 'RETURN_CONTROL', invocationId }
    return [
      [...agent.thinks([1_000, 10]), agent.calls('ACTION_GROUP', { actionGroupInvocationInput: announced })],
      [{ kind: 'returnControl', body: { invocationId, invocationInputs: [{ functionInvocationInput: asked }] } }],
    ]
  },
  /** A good step, then the service throttles inside the stream. */
  THROTTLED() {
    const agent = new Tracer('throttled')
    const step = [...agent.thinks([1_000, 10]), ...agent.asksKnowledgeBase('Q3 revenue', 'Four million.')]
    return [step, [{ kind: 'throttlingException', body: { message: 'Too many tokens per minute.' } }]]
  },
  /** A model behind an application inference profile, whose id says nothing about the price. */
  UNPRICED() {
    const agent = new Tracer('unpriced', { model: 'arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3' })
    return [[...agent.thinks([1_000, 10]), ...agent.finishes('Fine.')]]
  },
}

// --- the server

/** `served` holds each request, how many rounds its client let the server send, and whether it hung up; `over` is kept when it is. */
export async function startBedrock(plays = PLAYS) {
  const served = []
  const server = createServer()
  const sessions = new Set()
  server.on('session', (session) => {
    sessions.add(session)
    session.on('close', () => sessions.delete(session))
    session.on('error', () => {})
  })
  server.on('stream', async (stream, headers) => {
    stream.on('error', () => {})
    let text = ''
    for await (const part of stream) text += part
    const body = JSON.parse(text || '{}')
    const parts = decodeURIComponent(headers[':path']).replace(/^\//, '').split('/')
    const [agent, session] = parts.length === 7 ? [parts[1], parts[5]] : [String(body.agentName ?? ''), parts[1]]
    const rounds = plays[agent]?.(body)
    if (rounds === undefined) {
      stream.respond({ ':status': 404, 'x-amzn-errortype': 'ResourceNotFoundException', 'content-type': 'application/json' })
      stream.end(JSON.stringify({ message: `no agent ${agent}` }))
      return
    }
    let told
    const one = { body, session, sent: 0, hungUp: false, over: new Promise((resolve) => (told = resolve)) }
    served.push(one)
    stream.respond({
      ':status': 200,
      'content-type': 'application/vnd.amazon.eventstream',
      'x-amzn-bedrock-agent-content-type': 'application/json',
      'x-amz-bedrock-agent-session-id': session,
    })
    for (const events of rounds) {
      if (stream.destroyed || stream.closed) break
      const shown = events.filter(({ kind }) => kind !== 'trace' || body.enableTrace === true)
      stream.write(Buffer.concat(shown.map(encoded)))
      one.sent += 1
      await new Promise((resolve) => setTimeout(resolve, ROUND_PAUSE_MS))
    }
    one.hungUp = stream.destroyed || stream.closed
    if (!one.hungUp) stream.end()
    told()
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const stop = () => {
    for (const session of sessions) session.destroy()
    server.close()
  }
  return { url: `http://127.0.0.1:${server.address().port}`, served, stop }
}
