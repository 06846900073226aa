// The snippets printed in the README are the files the other tests run.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import test from 'node:test'

const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8')
const readme = read('../../README.md')

for (const file of ['botpress/ai-task-retry.js', 'voiceflow/no-match-reprompt.js']) {
  test(`the README prints ${file} as it is`, () => {
    assert.ok(readme.includes(read(`../${file}`).trimEnd()))
  })
}
