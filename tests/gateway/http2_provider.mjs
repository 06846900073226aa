// A provider that speaks HTTP/2 over TLS, and HTTP/1.1 where it must: node http2_provider.mjs KEY CERTIFICATE. It says its
// port, and in each answer how the question came and how many connections were open.

import { readFileSync } from 'node:fs'
import { createSecureServer } from 'node:http2'

let connections = 0
const server = createSecureServer({ key: readFileSync(process.argv[2]), cert: readFileSync(process.argv[3]), allowHTTP1: true })
server.on('secureConnection', (socket) => {
  connections += 1
  socket.on('close', () => {
    connections -= 1
  })
})
server.on('request', async (request, response) => {
  let asked = ''
  for await (const piece of request) asked += piece
  const { model, stream } = JSON.parse(asked)
  const said = JSON.stringify({ version: request.httpVersion, connections, forbidden: Object.keys(request.headers).filter((name) => /^(connection|keep-alive|te|transfer-encoding|upgrade)$/.test(name)) })
  const usage = { prompt_tokens: 1000, completion_tokens: 100, total_tokens: 1100 }
  const told = { id: 'chatcmpl-1', created: 1, model }
  if (!stream) {
    response.setHeader('content-type', 'application/json')
    const choices = [{ index: 0, message: { role: 'assistant', content: said }, finish_reason: 'stop' }]
    // Others ask meanwhile.
    setTimeout(() => response.end(JSON.stringify({ ...told, object: 'chat.completion', choices, usage })), 50)
    return
  }
  response.setHeader('content-type', 'text/event-stream')
  const chunk = (choices, more = {}) => response.write(`data: ${JSON.stringify({ ...told, object: 'chat.completion.chunk', choices, ...more })}\n\n`)
  for (const letter of said) chunk([{ index: 0, delta: { content: letter }, finish_reason: null }])
  chunk([{ index: 0, delta: {}, finish_reason: 'stop' }])
  chunk([], { usage })
  response.end('data: [DONE]\n\n')
})
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
