// A stand-in for Voiceflow's Function step: ECMAScript, Voiceflow's own fetch, and nothing else.
// What the function returns is checked as strictly as the platform does.

import { readFile } from 'node:fs/promises'
import { isIPv4 } from 'node:net'
import vm from 'node:vm'

/** Where the flow thinks RunGuard lives; the stand-in's fetch takes it to the real service. */
export const PUBLIC_URL = 'https://runguard.example.com'

/**
 * Runs a Function step: `code` with `inputVars`, the address `PUBLIC_URL` answered by `service`.
 * Returns the checked result, or throws where the platform would end the user's turn.
 */
export async function runVoiceflow(code, inputVars, service) {
  const declared = declaredInterface(code)
  for (const name of Object.keys(inputVars)) {
    if (!declared.inputs.includes(name)) throw new Error(`input ${name} is not declared`)
  }
  // Variables that were never set arrive as 0.
  const inputs = Object.fromEntries(declared.inputs.map((name) => [name, inputVars[name] ?? 0]))

  if (/^\s*import\b/m.test(code)) throw new Error('a Function step cannot import')
  const context = vm.createContext({ hostFetch: (request) => platformFetch(JSON.parse(request), service) })
  vm.runInContext(PRELUDE, context)
  vm.runInContext(code.replace(/^export default /m, 'globalThis.main = '), context)
  const result = await vm.runInContext(`main(${JSON.stringify({ inputVars: inputs })})`, context)
  return checkResult(structuredClone(result), declared)
}

export async function voiceflowSnippet(name) {
  return readFile(new URL(`../voiceflow/${name}.js`, import.meta.url), 'utf8')
}

/** The function's interface, from the lines at its top that a user copies into the editor. */
export function declaredInterface(code) {
  const list = (kind) => {
    const line = code.match(new RegExp(`^// ${kind}: *(.*)$`, 'm'))
    if (!line) throw new Error(`the function does not say its ${kind}`)
    return line[1].split(',').map((name) => name.trim())
  }
  return { inputs: list('inputs'), outputs: list('outputs'), paths: list('paths') }
}

// Only text crosses the border of the platform's sandbox, and so here: no object of ours leaks in.
const PRELUDE = `
  delete globalThis.console
  {
    const host = hostFetch
    delete globalThis.hostFetch
    globalThis.fetch = async (url, init) => {
      let answer
      try {
        answer = await host(JSON.stringify({ url, init }))
      } catch (error) {
        throw new Error(error.message)
      }
      return JSON.parse(answer)
    }
  }
`

async function platformFetch({ url, init }, service) {
  const { hostname } = new URL(url)
  if (hostname === 'localhost' || (isIPv4(hostname) && /^(127|10|192\.168|172\.(1[6-9]|2\d|3[01]))\./.test(hostname))) {
    throw new Error(`${hostname} is not a public address`)
  }
  if (!url.startsWith(`${PUBLIC_URL}/`)) throw new Error(`nothing answers at ${url}`)
  const response = await fetch(url.replace(PUBLIC_URL, service), init)
  // The platform reads the body itself: it is data in the property `json`, and no JSON is an error.
  return JSON.stringify({ ok: response.ok, status: response.status, json: await response.json() })
}

/** What the platform accepts: nothing but these keys, declared paths, and plain scalars. */
export function checkResult(result, declared) {
  const only = (object, keys, what) => {
    if (object === null || typeof object !== 'object' || Array.isArray(object)) throw new Error(`${what} is no object`)
    for (const key of Object.keys(object)) if (!keys.includes(key)) throw new Error(`${what} has an unknown key: ${key}`)
  }
  only(result, ['outputVars', 'next', 'trace'], 'the result')
  only(result.outputVars ?? {}, declared.outputs, 'outputVars')
  for (const [name, value] of Object.entries(result.outputVars ?? {})) {
    const scalar = typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value)
    if (!scalar) throw new Error(`output ${name} is neither text, number nor boolean: ${JSON.stringify(value)}`)
  }
  if (result.next !== undefined) {
    only(result.next, ['path'], 'next')
    if (!declared.paths.includes(result.next.path)) throw new Error(`path ${result.next.path} is not declared`)
  }
  if (result.trace !== undefined) {
    if (!Array.isArray(result.trace)) throw new Error('trace is no list')
    for (const trace of result.trace) if (typeof trace?.type !== 'string') throw new Error('a trace has no type')
  }
  return result
}
