import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth } from './both.mjs'

inBoth('StallDetector', ({ StallDetector, InvalidInputError }) => {
  it('steers at three identical calls with the same result and stops at four', () => {
    const detector = new StallDetector()
    const rungs = [1, 2, 3, 4].map(() => detector.observe('search', { q: 'x' }, 'nothing found'))
    assert.deepEqual(
      rungs.map(({ rung }) => rung),
      ['go_on', 'go_on', 'steer', 'stop'],
    )
    assert.deepEqual([rungs[2].rule, rungs[2].count], ['identical', 3])
    assert.match(rungs[2].nudge, /called search 3 times/)
    assert.equal(rungs[0].nudge, '')
  })

  it('leaves out of results what is volatile by name or pattern', () => {
    const rungs = (detector) => [1, 2, 3, 4].map((n) => detector.observe('get', {}, { etag: `a${n}`, by: `worker-${n}q`, rows: 3 }).rung)
    assert.deepEqual(rungs(new StallDetector()), ['go_on', 'go_on', 'go_on', 'go_on'])
    assert.deepEqual(rungs(new StallDetector({ volatile: ['etag', 'worker-*'] })), ['go_on', 'go_on', 'steer', 'stop'])
    assert.throws(() => new StallDetector({ volatile: ['*'] }), /volatile/)
  })

  it('takes another result for progress', () => {
    const detector = new StallDetector('coding')
    for (let number = 0; number < 20; number++) assert.equal(detector.observe('test', {}, { failed: 20 - number }).rung, 'go_on')
  })

  it('sees the same error behind different arguments', () => {
    const detector = new StallDetector({ preset: 'research' })
    const rungs = [1, 2, 3, 4, 5].map((id) => detector.observe('get', { id }, undefined, { error: new Error(`no row ${id}`) }).rung)
    assert.deepEqual(rungs, ['go_on', 'go_on', 'steer', 'steer', 'stop'])
    const told = new StallDetector('research')
    assert.deepEqual(
      [1, 2, 3].map((id) => told.observe('get', { id }, 'timeout', { error: true }).rule),
      [null, null, 'same_error'],
    )
  })

  it('counts parallel duplicates of one round once, and keeps sessions apart', () => {
    const detector = new StallDetector()
    for (let time = 0; time < 5; time++) assert.equal(detector.observe('a', {}, 'r', { round: 1 }).rung, 'go_on')
    for (let time = 0; time < 2; time++) {
      assert.equal(detector.observe('b', {}, 'r', { sessionId: 's1' }).rung, 'go_on')
      assert.equal(detector.observe('b', {}, 'r', { sessionId: 's2' }).rung, 'go_on')
    }
    assert.equal(detector.observe('b', {}, 'r', { sessionId: 's1' }).rung, 'steer')
    detector.userMessage('s2')
    assert.equal(detector.observe('b', {}, 'r', { sessionId: 's2' }).rung, 'go_on')
  })

  it('watches messages without a call', () => {
    const detector = new StallDetector()
    assert.deepEqual(
      [1, 2, 3].map(() => detector.message('I will look into it.').rung),
      ['go_on', 'steer', 'stop'],
    )
  })

  it('takes thresholds, and only those it knows', () => {
    const strict = new StallDetector({ identical: { stop: 2 } })
    assert.deepEqual(
      [1, 2].map(() => strict.observe('a', {}, 'r').rung),
      ['go_on', 'stop'],
    )
    const watching = new StallDetector({ highest: 'observe' })
    assert.equal([1, 2, 3, 4, 5, 6].map(() => watching.observe('a', {}, 'r')).at(-1).rung, 'observe')
    for (const settings of [
      { preset: 'none' },
      { identical: { stop: 1 } },
      { noveltyWindow: 65 },
      { noveltyRung: 'jump' },
      { identicall: {} },
      { identical: { stopp: 3 } },
      { polling: 7 },
    ]) {
      assert.throws(() => new StallDetector(settings), InvalidInputError, JSON.stringify(settings))
    }
  })

  it('reads any result, and refuses bad arguments without counting', () => {
    const detector = new StallDetector()
    const cyclic = {}
    cyclic.self = cyclic
    for (const result of [
      cyclic,
      'x'.repeat(10_000_000),
      7n,
      new Map([['a', 1]]),
      null,
      Symbol('x'),
      {
        get broken() {
          throw new Error('no')
        },
      },
    ]) {
      assert.equal(detector.observe('odd', {}, result).rung, 'go_on')
    }
    detector.observe('a', { q: 1 }, 'r')
    detector.observe('a', { q: 1 }, 'r')
    assert.throws(() => detector.observe('a', cyclic, 'r'), InvalidInputError)
    assert.throws(() => detector.observe('', {}, 'r'), InvalidInputError)
    assert.throws(() => detector.observe('a', {}, 'r', { round: -1 }), InvalidInputError)
    assert.throws(() => detector.message(7), InvalidInputError)
    assert.equal(detector.observe('a', { q: 1 }, 'r').rung, 'steer')
    detector.free()
    assert.throws(() => detector.observe('a'), /was freed/)
  })

  it('takes a run that used many tokens for a long one', () => {
    const detector = new StallDetector({ longRunTokens: 8_000, unmoved: { steer: 0, block: 0, stop: 0 } })
    const check = (tokens, number) => {
      detector.observe('edit_file', { path: 'a.py', text: String(number) }, 'ok', { tokens })
      return detector.observe('bash', { command: 'pytest' }, undefined, { error: `failed: ${number}` }).rung
    }
    assert.deepEqual([3_000, 3_000, 1_500, 600].map(check), ['go_on', 'go_on', 'steer', 'stop'])
  })
})
