/** Which run the code being executed belongs to. */
import type { Run } from './run.js'

interface Storage {
  getStore(): Run | undefined
  run<T>(run: Run, body: () => T): T
}

/** Where a runtime can follow a run through awaits: Node, Deno, Bun and edge runtimes. Asked for without an import, which bundlers for browsers would trip over. */
function asyncStorage(): Storage | null {
  const { process, AsyncLocalStorage } = globalThis as {
    process?: { getBuiltinModule?: (name: string) => { AsyncLocalStorage?: new () => Storage } | undefined }
    AsyncLocalStorage?: new () => Storage
  }
  const Kind = AsyncLocalStorage ?? process?.getBuiltinModule?.('node:async_hooks')?.AsyncLocalStorage
  return Kind === undefined ? null : new Kind()
}

/** In a browser: the run of the innermost body that is executing right now, up to its first await. */
function plainStorage(): Storage {
  const open: Run[] = []
  return {
    getStore: () => open.at(-1),
    run(run, body) {
      open.push(run)
      try {
        return body()
      } finally {
        open.pop()
      }
    },
  }
}

/** One for the ESM and the CJS build, which may be loaded side by side. */
const KEY = Symbol.for('@runguard/sdk.current')
const shared = globalThis as { [KEY]?: Storage }
const storage: Storage = (shared[KEY] ??= asyncStorage() ?? plainStorage())

/** The run of `guard` or `run.within` around this code, or null. */
export function currentRun(): Run | null {
  return storage.getStore() ?? null
}

export function withCurrent<T>(run: Run, body: () => T): T {
  return storage.run(run, body)
}
