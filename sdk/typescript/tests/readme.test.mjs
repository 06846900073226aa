import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { after, before, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { startService } from '../../../examples/test/service.mjs'

const run = promisify(execFile)
const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8')
const examples = [...readme.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code)
let service
before(async () => (service = await startService()))
after(() => service.stop())

/** What each example must print, in the order of the page. */
const printed = [
  /^loop_detected - 'search' was called with the same arguments 3 times in a row\. Stop the run, or /,
  /^run-[0-9a-f]{24}$/m,
  /^true\n0\.316 4\.684\nstop\nok closed\nTool 'search_knowledge' was already executed with a similar query\n$/,
  /^stopped: tool_call_ceiling\n$/,
  /^4\.75\n$/,
  /^$/,
]

it('every example of the page runs and prints what it says', async () => {
  assert.equal(examples.length, printed.length)
  for (const [number, example] of examples.entries()) {
    const code = example.replaceAll('http://127.0.0.1:8100', service.url)
    const { stdout, stderr } = await run(process.execPath, ['--input-type=module', '-e', code], {
      cwd: fileURLToPath(new URL('.', import.meta.url)),
    })
    assert.match(stdout, printed[number], example)
    assert.equal(stderr, '', example)
  }
})
