// A model on this machine that asks for the weather in Paris, for ever. The examples need no key.

import { createServer } from 'node:http'

/** Answers chat completions as OpenAI does, and messages as Anthropic does; `asked()` says how often. */
export async function startLoopingModel() {
  let asked = 0
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      asked += 1
      if (request.url?.endsWith('/messages')) return send(response, anthropicAnswer(asked))
      const call = { id: `call_${asked}`, type: 'function', function: { name: 'get_weather', arguments: '{"city":"Paris"}' } }
      const message = { role: 'assistant', content: null, tool_calls: [call] }
      const usage = { prompt_tokens: 100, completion_tokens: 20, total_tokens: 120 }
      const choices = [{ index: 0, message, finish_reason: 'tool_calls' }]
      const answer = { id: `answer_${asked}`, object: 'chat.completion', created: 0, model: 'gpt-4o', choices, usage }
      send(response, answer)
    })
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${server.address().port}/v1`, asked: () => asked, stop: () => server.close().closeAllConnections() }
}

function anthropicAnswer(asked) {
  const content = [{ type: 'tool_use', id: `call_${asked}`, name: 'get_weather', input: { city: 'Paris' } }]
  const usage = { input_tokens: 100, output_tokens: 20 }
  return {
    id: `answer_${asked}`,
    type: 'message',
    role: 'assistant',
    model: 'claude-sonnet-4-6',
    content,
    stop_reason: 'tool_use',
    stop_sequence: null,
    usage,
  }
}

function send(response, answer) {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
}
