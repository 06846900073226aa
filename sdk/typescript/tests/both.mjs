// Runs the same tests against the ESM and the CJS build of the package.
import { createRequire } from 'node:module'
import { describe } from 'node:test'
import * as esm from '@runguard/sdk'

const cjs = createRequire(import.meta.url)('@runguard/sdk')

export function inBoth(name, body) {
  describe(`${name} (ESM)`, () => body(esm))
  describe(`${name} (CJS)`, () => body(cjs))
}

/** What `body` throws. */
export function thrownBy(body) {
  try {
    body()
  } catch (error) {
    return error
  }
  throw new Error('nothing was thrown')
}
