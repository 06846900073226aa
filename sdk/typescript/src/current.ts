/** Which run the code being executed belongs to. */
import type { HookedRun } from './models/tellers.js'
import type { Run } from './run.js'

interface Storage<Value> {
  getStore(): Value | undefined
  run<T>(value: Value, body: () => T): T
}

/** Where a runtime can follow a run through awaits: Node, Deno, Bun and edge runtimes. Asked for without an import, which bundlers for browsers would trip over. */
function asyncStorage<Value>(): Storage<Value> | null {
  const { process, AsyncLocalStorage } = globalThis as {
    process?: { getBuiltinModule?: (name: string) => { AsyncLocalStorage?: new () => Storage<Value> } | undefined }
    AsyncLocalStorage?: new () => Storage<Value>
  }
  const Kind = AsyncLocalStorage ?? process?.getBuiltinModule?.('node:async_hooks')?.AsyncLocalStorage
  return Kind === undefined ? null : new Kind()
}

/** In a browser: the run of the innermost body that is executing right now, up to its first await. */
function plainStorage<Value>(): Storage<Value> {
  const open: Value[] = []
  return {
    getStore: () => open.at(-1),
    run(value, body) {
      open.push(value)
      try {
        return body()
      } finally {
        open.pop()
      }
    },
  }
}

/** One for the ESM and the CJS build, which may be loaded side by side. */
const RUN = Symbol.for('@runguard/sdk.current')
const TOLD = Symbol.for('@runguard/sdk.told')
const PROGRAM = Symbol.for('@runguard/sdk.program')
const shared = globalThis as { [RUN]?: Storage<Run>; [TOLD]?: Storage<boolean>; [PROGRAM]?: HookedRun }
const storage: Storage<Run> = (shared[RUN] ??= asyncStorage() ?? plainStorage())
const told: Storage<boolean> = (shared[TOLD] ??= asyncStorage() ?? plainStorage())

/** The run of `guard` or `run.within` around this code, or null. */
export function currentRun(): Run | null {
  return storage.getStore() ?? null
}

export function withCurrent<T>(run: Run, body: () => T): T {
  return storage.run(run, body)
}

/** Runs `body` as part of a model call that someone tells the run of: what it calls in turn is the same call. */
export function asTold<T>(body: () => T): T {
  return told.run(true, body)
}

/** Whether this code is part of a model call that someone tells the run of. */
export function isTold(): boolean {
  return told.getStore() ?? false
}

/** Whom a hooked client tells: the run around it, or the one around the whole program. */
export function hookedRun(): HookedRun | null {
  return currentRun() ?? shared[PROGRAM] ?? null
}

/** Sets the run of the whole program. */
export function openForProgram(run: HookedRun): void {
  shared[PROGRAM] = run
}
