// A stand-in for Botpress Studio's code sandbox: it offers what the documentation promises and
// nothing else. No fetch, no timers, no imports; axios is the real one.

import { readFile } from 'node:fs/promises'
import vm from 'node:vm'
import axios from 'axios'

/**
 * Runs snippets as the body of one card or Action.
 *
 * `variables` holds what the flow offers: `event`, `env`, `workflow`, and where it applies `turn`
 * and `input`. `workflow` is changed in place, as in a flow; its values give the declared types.
 */
export async function runBotpress(code, variables) {
  const context = vm.createContext({ ...variables, axios, workflow: typed(variables.workflow) })
  vm.runInContext('delete globalThis.console', context)
  return vm.runInContext(`(async () => {\n${code}\n})()`, context)
}

export async function botpressSnippet(name) {
  return readFile(new URL(`../botpress/${name}.js`, import.meta.url), 'utf8')
}

/** Workflow variables are declared with a type in Studio; a value of another type is an error. */
function typed(workflow) {
  return new Proxy(workflow, {
    set(target, name, value) {
      if (!(name in target)) throw new TypeError(`workflow.${String(name)} is not declared`)
      if (typeof value !== typeof target[name]) throw new TypeError(`workflow.${String(name)} is a ${typeof target[name]}`)
      target[name] = value
      return true
    },
  })
}
