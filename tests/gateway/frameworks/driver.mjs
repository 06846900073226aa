// driver.py, for clients in Node: reads tasks, one JSON a line, plays each to its end, and writes what the client saw and what came over the wire.

import { createInterface } from 'node:readline'

/** Steps after which a driver gives up: more than any guard needs. */
export const MOST_STEPS = 40
export const TOOL_SCHEMA = { type: 'object', properties: { query: { type: 'string' } }, required: ['query'] }

let searched = []
let answers = []

export function search({ query }) {
  searched.push(query)
  return `no result for ${query}`
}

// Below the clients, which all ask with `fetch`.
const ask = globalThis.fetch
globalThis.fetch = async (...given) => {
  const response = await ask(...given)
  const body = response.clone().text().catch(() => '')
  answers.push({ status: response.status, type: response.headers.get('content-type'), body })
  return response
}

/** What a client is given of its address; nothing where that stands in the environment. */
export const address = ({ url, by_environment }) => (by_environment ? {} : { baseURL: url })

function toEnvironment({ url, by_environment, interface: wire }) {
  for (const variable of ['OPENAI_BASE_URL', 'ANTHROPIC_BASE_URL']) delete process.env[variable]
  if (by_environment) process.env[wire === 'messages' ? 'ANTHROPIC_BASE_URL' : 'OPENAI_BASE_URL'] = url
}

export async function serve(play) {
  for await (const line of createInterface({ input: process.stdin })) {
    searched = []
    answers = []
    const told = { seen: null, error: null }
    try {
      const task = JSON.parse(line)
      toEnvironment(task)
      told.seen = await play(task)
    } catch (error) {
      told.error = { kind: error.name === 'Error' ? error.constructor.name : error.name, text: error.message }
    }
    const wire = await Promise.all(answers.map(async ({ status, type, body }) => ({ status, type, parts: null, body: await body })))
    process.stdout.write(`${JSON.stringify({ ...told, searched, wire })}\n`)
  }
}
