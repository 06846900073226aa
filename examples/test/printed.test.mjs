// The snippets printed in the guides are the files the other tests run.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import test from 'node:test'

const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8')

for (const [guide, file] of [
  ['botpress.md', 'botpress/ai-task-retry.js'],
  ['voiceflow.md', 'voiceflow/no-match-reprompt.js'],
]) {
  test(`docs/${guide} prints ${file} as it is`, () => {
    assert.ok(read(`../../docs/${guide}`).includes(read(`../${file}`).trimEnd()))
  })
}
