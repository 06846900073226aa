// Asks Bedrock as the SDK for JavaScript does, at the address that AWS_ENDPOINT_URL_BEDROCK_RUNTIME names, and says in JSON what it was told.

import {
  BedrockRuntimeClient,
  ConverseCommand,
  ConverseStreamCommand,
  InvokeModelCommand,
  InvokeModelWithResponseStreamCommand,
} from '@aws-sdk/client-bedrock-runtime'

const [what, modelId] = process.argv.slice(2)
const client = new BedrockRuntimeClient({})
const messages = [{ role: 'user', content: [{ text: 'Say hello.' }] }]
const body = JSON.stringify({ anthropic_version: 'bedrock-2023-05-31', max_tokens: 50, messages: [{ role: 'user', content: 'Say hello.' }] })
const asked = { modelId, messages, inferenceConfig: { maxTokens: 50 } }
const decode = (bytes) => JSON.parse(new TextDecoder().decode(bytes))

async function streamed() {
  const told = { text: '', stopReason: null, outputTokens: null }
  for await (const event of (await client.send(new ConverseStreamCommand(asked))).stream) {
    told.text += event.contentBlockDelta?.delta.text ?? ''
    told.stopReason = event.messageStop?.stopReason ?? told.stopReason
    told.outputTokens = event.metadata?.usage.outputTokens ?? told.outputTokens
  }
  return told
}

const jobs = {
  async answers() {
    const whole = await client.send(new ConverseCommand(asked))
    const stream = await streamed()
    const invoked = await client.send(new InvokeModelCommand({ modelId, body, contentType: 'application/json' }))
    let text = ''
    for await (const event of (await client.send(new InvokeModelWithResponseStreamCommand({ modelId, body, contentType: 'application/json' }))).body) {
      text += decode(event.chunk.bytes).delta?.text ?? ''
    }
    return {
      converse: whole.output.message.content[0].text,
      converseStream: stream.text,
      stopReason: stream.stopReason,
      outputTokens: stream.outputTokens,
      invoke: decode(invoked.body).content[0].text,
      invokeStream: text,
    }
  },
  async refused() {
    const told = []
    for (const command of [new ConverseCommand(asked), new InvokeModelCommand({ modelId, body, contentType: 'application/json' })]) {
      await client.send(command).catch((error) => {
        const { name, message, $metadata, $response } = error
        told.push({ name, message, attempts: $metadata.attempts, reason: $response?.headers['x-runguard-reason'] })
      })
    }
    return told
  },
  cut: streamed,
}

console.log(JSON.stringify(await jobs[what]()))
client.destroy()
