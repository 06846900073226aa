// Rules for single tools, and polls.
import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth } from './both.mjs'

inBoth('rules for single tools', ({ InvalidInputError, LoopDetectedError, Run, ToolLimitError }) => {
  it('a poll whose result changes is no loop', () => {
    const run = new Run()
    let done = 0
    const status = run.tool((job) => ({ job, done: done++ }), 'status')
    for (let turn = 0; turn < 30; turn++) status('a')
    const stuck = run.tool((job) => ({ job, done: 7 }), 'stuck')
    stuck('a')
    stuck('a')
    assert.throws(() => stuck('a'), LoopDetectedError)
  })

  it('exempt, polling, ignore, maxCalls', () => {
    const run = new Run({ tools: { log: { exempt: true }, status: { polling: 5 } } })
    for (let turn = 0; turn < 9; turn++) run.beforeTool('log', { line: 'x' })
    for (let turn = 0; turn < 5; turn++) {
      run.beforeTool('status', { job: 1 })
      run.afterTool('status', { job: 1 }, 'pending')
    }
    assert.throws(() => run.beforeTool('status', { job: 1 }), /gave the same 5 times/)

    const limited = new Run({ tools: { deploy: { maxCalls: 1 } } })
    limited.beforeTool('deploy', { to: 'a' })
    assert.throws(() => limited.beforeTool('deploy', { to: 'b' }), ToolLimitError)

    const ignoring = new Run({ tools: { bash: { ignore: ['description'] } } })
    for (const description of ['list', 'look']) ignoring.beforeTool('bash', { command: 'ls', description })
    assert.throws(() => ignoring.beforeTool('bash', { command: 'ls', description: 'see' }), LoopDetectedError)
  })

  it('what is no rule is told', () => {
    assert.throws(() => new Run({ tools: { a: { pooling: 3 } } }), InvalidInputError)
    assert.throws(() => new Run({ tools: { a: { polling: 1.5 } } }), InvalidInputError)
  })
})
