/**
 * Model clients that tell the run around them, without being asked to: what `guard` and `withGuard` hook, and put back.
 *
 * `fetch` is hooked, where clients made inside of the block and the AI SDK's providers end, and the classes of the clients that keep
 * the `fetch` they were made with. What is hooked looks for `currentRun()` at every call: code outside of a run goes its way as if
 * nothing were there. Hooks stay as long as any run is open in the process.
 */
import { asTold, hookedRun, isTold } from '../current.js'
import { lookedAt } from './bodies.js'
import { sent, type MakeRequest } from './clients.js'
import { Unmetered, routeOf } from './routes.js'
import { Spending } from './tellers.js'

type Fetch = typeof globalThis.fetch

/** A place where a function stood before ours. */
interface Place {
  readonly owner: any
  readonly name: string
  readonly original: unknown
  readonly replacement: unknown
}

/** Where the classes are, in the releases that are known: the file, and the names under which they are exported. */
const CLIENTS: readonly { readonly name: string; readonly files: readonly string[]; readonly classes: readonly string[] }[] = [
  { name: 'openai', files: ['client', 'core'], classes: ['OpenAI', 'APIClient'] },
  { name: '@anthropic-ai/sdk', files: ['client', 'core'], classes: ['BaseAnthropic', 'Anthropic', 'APIClient'] },
]

/** Set on a client that tells a run of its own. */
export const GUARDED = Symbol.for('@runguard/sdk.guarded')

interface Builtins {
  getBuiltinModule?: (name: string) => any
  argv?: readonly string[]
  cwd?: () => string
}

const { process } = globalThis as { process?: Builtins }
const builtin = (name: string): any => process?.getBuiltinModule?.(name)

let debug: ((message: string) => void) | null = null
const said = new Set<string>()

/** Shown once, with NODE_DEBUG=runguard. */
function say(message: string): void {
  if (said.has(message)) return
  said.add(message)
  debug ??= (builtin('node:util')?.debuglog('runguard') as typeof debug) ?? (() => {})
  debug?.(message)
}

class Hooks {
  #open = 0
  readonly #places: Place[] = []
  /** Classes of ESM copies that were found, in the order they were. */
  readonly #found = new Set<any>()
  #search: Promise<void> | null = null
  /** The copies that the program imports are known. */
  isSearched = false

  /** A run is opened. Gives what closes it. */
  enter(): () => void {
    this.#open += 1
    if (this.#open === 1) {
      const original = globalThis.fetch
      if (typeof original === 'function') this.#put(globalThis, 'fetch', hookedFetch(original), 'fetch')
      this.#hookClasses()
    }
    let isOpen = true
    return () => {
      if (isOpen) this.#leave()
      isOpen = false
    }
  }

  /** Looks for the copies of the clients that the program imports. */
  search(): Promise<void> {
    this.#search ??= this.#importedClasses().then(() => {
      this.isSearched = true
      this.hookLoaded()
    })
    return this.#search
  }

  /** Hooks the classes of clients that were loaded since. */
  hookLoaded(): void {
    if (this.#open > 0) this.#hookClasses()
  }

  #leave(): void {
    this.#open -= 1
    if (this.#open > 0) return
    for (const { owner, name, original, replacement } of this.#places.splice(0).reverse()) {
      // Someone else may have put a hook of their own around ours: theirs stays, and ours finds no run.
      if (owner[name] === replacement) owner[name] = original
    }
  }

  #put(owner: any, name: string, replacement: unknown, told: string): void {
    this.#places.push({ owner, name, original: owner[name], replacement })
    owner[name] = replacement
    say(`hooks ${told} while a run is open`)
  }

  #hookClasses(): void {
    for (const Client of [...this.#found, ...requiredClasses()]) {
      let prototype = Client.prototype
      while (prototype && !Object.hasOwn(prototype, 'makeRequest')) prototype = Object.getPrototypeOf(prototype)
      if (!prototype || this.#places.some(({ owner }) => owner === prototype)) continue
      this.#put(prototype, 'makeRequest', hookedRequest(prototype.makeRequest), Client.name)
    }
  }

  async #importedClasses(): Promise<void> {
    const [fs, path, url] = ['node:fs', 'node:path', 'node:url'].map(builtin)
    const load = importer()
    if (!fs || !path || !url || load === null) return
    for (const { name, files, classes } of CLIENTS) {
      for (const folder of installed(fs, path, name)) {
        const file = files.map((file) => path.join(folder, `${file}.mjs`)).find((file: string) => fs.existsSync(file))
        if (file === undefined) continue
        try {
          this.#keep(await load(url.pathToFileURL(file).href), classes)
        } catch (problem) {
          say(`could not look into ${file}: ${String(problem)}`)
        }
      }
    }
  }

  #keep(exported: any, classes: readonly string[]): void {
    for (const one of classes) if (typeof exported?.[one] === 'function') this.#found.add(exported[one])
  }
}

/** `import`, out of the sight of bundlers, which would follow it, and of the CommonJS build, which has none. Null where code cannot be made of text. */
function importer(): ((address: string) => Promise<any>) | null {
  try {
    return new Function('address', 'return import(address)') as (address: string) => Promise<any>
  } catch {
    return null
  }
}

/** The folders of a package that the program may import from: beside it, and where it was started. */
function installed(fs: any, path: any, name: string): Set<string> {
  const folders = new Set<string>()
  for (const begin of [process?.argv?.[1], process?.cwd?.()]) {
    if (begin === undefined) continue
    let at: string = fs.existsSync(begin) ? fs.realpathSync(begin) : begin
    for (let up = path.dirname(at); ; at = up, up = path.dirname(at)) {
      const folder = path.join(at, 'node_modules', name)
      if (fs.existsSync(path.join(folder, 'package.json'))) {
        // The first one found is the one that is imported.
        folders.add(fs.realpathSync(folder))
        break
      }
      if (up === at) break
    }
  }
  return folders
}

let required: { readonly modules: number; readonly found: any[] } = { modules: 0, found: [] }

/** The classes of the CommonJS copies that are loaded. */
function requiredClasses(): any[] {
  const cache: Record<string, { exports?: any }> = builtin('node:module')?._cache ?? {}
  const modules = Object.keys(cache).length
  if (modules === required.modules) return required.found
  const found: any[] = []
  required = { modules, found }
  for (const { name, files, classes } of CLIENTS) {
    const ends = files.map((file) => `/node_modules/${name}/${file}.js`)
    for (const [file, module] of Object.entries(cache)) {
      const plain = file.replaceAll('\\', '/')
      if (!ends.some((end) => plain.endsWith(end))) continue
      for (const one of classes) if (typeof module.exports?.[one] === 'function') found.push(module.exports[one])
    }
  }
  return found
}

function hookedRequest(original: MakeRequest): MakeRequest {
  return function makeRequest(this: any, options: any, ...rest: any[]): Promise<any> {
    const run = isTold() || this[GUARDED] ? null : hookedRun()
    if (run === null) return original.call(this, options, ...rest)
    const spending = new Spending(run)
    return sent(original, this, (...asked) => spending.begin(...asked), options, rest)
  }
}

function hookedFetch(original: Fetch): Fetch {
  const hooked: Fetch = async (input, init) => {
    const run = isTold() ? null : hookedRun()
    const request = run === null ? null : await modelRequest(input, init)
    if (run === null || request === null) return original(input, init)
    if (request.route === null) return request.send(original, null)
    // A client that was loaded meanwhile tells of itself the next time.
    hooks.hookLoaded()
    const exchange = await new Spending(run).begin(request.route, request.says, request.mayFallBack)
    if (exchange === null) return request.send(original, null)
    let response: Response
    try {
      response = await asTold(() => request.send(original, exchange.body))
    } catch (error) {
      await exchange.failed(error)
      throw error
    }
    return exchange.answered(response, request.signal)
  }
  // Some look at what is on it.
  return Object.assign(hooked, original)
}

const PROVIDERS = /^https:\/\/(api\.openai\.com|api\.anthropic\.com|[^/]+\.openai\.azure\.com)\//

/** A request that may ask a model, and how to send it, with its own body (null) or with another one; null for any other. */
async function modelRequest(input: Parameters<Fetch>[0], init: RequestInit | undefined) {
  const isRequest = typeof input === 'object' && 'url' in input
  const address = isRequest ? input.url : String(input)
  const known = routeOf(init?.method ?? (isRequest ? input.method : undefined), address)
  if (known === null) return null
  const signal = init?.signal ?? (isRequest ? input.signal : null)
  if (known instanceof Unmetered) {
    // Such addresses are common words: only the providers' own are known to be theirs.
    if (!PROVIDERS.test(address)) return null
    return { route: known, says: null, send: (fetch: Fetch) => fetch(input, init), mayFallBack: false, signal }
  }
  const given = init?.body ?? (isRequest ? await input.clone().arrayBuffer() : null)
  const { says, body } = await lookedAt(given)
  const headers = new Headers(init?.headers ?? (isRequest ? input.headers : undefined))
  // Other services have such addresses too: what is no JSON asks no model, unless it may be inside.
  const route = says === null && !headers.has('content-encoding') ? null : known
  const send = (fetch: Fetch, changed: any): Promise<Response> => {
    // What is as it was is sent as it is, or as it was read.
    if (changed === null || changed === says) return fetch(input, body === given ? init : { ...init, body })
    headers.delete('content-length')
    return fetch(input, { ...init, headers, body: JSON.stringify(changed) })
  }
  // Where the address names the model, the body does not choose it.
  const mayFallBack = !/\/deployments\//.test(address)
  return { route, says, send, mayFallBack, signal }
}

/** One for the ESM and the CJS build, which may be loaded side by side. */
const KEY = Symbol.for('@runguard/sdk.hooks')
const shared = globalThis as { [KEY]?: Hooks }
export const hooks: Hooks = (shared[KEY] ??= new Hooks())
