import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth, thrownBy } from './both.mjs'

inBoth('LoopDetector', ({ LoopDetector, LoopDetectedError, TripError, RunGuardError, InvalidInputError }) => {
  it('trips at the third equal call in a row', () => {
    const detector = new LoopDetector()
    detector.record('search')
    detector.record('search')
    const error = thrownBy(() => detector.record('search'))
    assert.ok(error instanceof LoopDetectedError && error instanceof TripError && error instanceof RunGuardError && error instanceof Error)
    assert.deepEqual(
      [error.pattern, error.cycle, error.repeats, error.cycleLen, error.reason],
      ['search', ['search'], 3, 1, 'loop_detected'],
    )
    assert.match(error.message, /'search' came 3 times/)
  })

  it('trips at the sixth event of A B A B A B, and names the shortest pattern', () => {
    const detector = new LoopDetector({ repeats: 3, maxCycleLen: 4 })
    for (const name of ['a', 'b', 'a', 'b', 'a']) detector.record(name)
    const error = thrownBy(() => detector.record('b'))
    assert.deepEqual([error.pattern, error.cycleLen, error.repeats], ['a → b', 2, 3])
  })

  it('keeps sessions apart, in both call shapes', () => {
    const detector = new LoopDetector()
    detector.record({ sessionId: 's1', tool: 'search' })
    detector.record('s1', 'search')
    detector.record('s2', 'search')
    assert.equal(detector.sessions, 2)
    assert.equal(detector.check('s2', 'search'), null)
    assert.ok(detector.check('s1', 'search') instanceof LoopDetectedError)
    assert.throws(() => detector.record({ sessionId: 's1', tool: 'search' }), LoopDetectedError)
  })

  it('asks without recording', () => {
    const detector = new LoopDetector({ repeats: 2 })
    detector.record('a')
    for (let time = 0; time < 5; time++) assert.equal(detector.check('a')?.repeats, 2)
    assert.equal(detector.check('b'), null)
    detector.record('b')
    assert.equal(detector.check('a'), null)
  })

  it('is a plain ceiling with maxCalls and a window', () => {
    const detector = new LoopDetector({ windowSeconds: 3600, maxCalls: 2 })
    detector.record('s', 'topic')
    detector.record('s', 'other')
    detector.record('s', 'topic')
    const error = detector.check('s', 'topic')
    assert.equal(error.reason, 'call_ceiling')
    assert.throws(() => detector.record('s', 'topic'), LoopDetectedError)
    assert.equal(detector.check('s', 'third'), null)
  })

  it('counts a ceiling without a session, whatever other sessions do', () => {
    const detector = new LoopDetector({ maxCalls: 1, repeats: 50 })
    detector.record('once')
    for (let number = 0; number < 50; number++) detector.record(`s${number}`, 'x')
    assert.throws(() => detector.record('once'), LoopDetectedError)
  })

  it('forgets when told to', () => {
    const detector = new LoopDetector({ repeats: 2 })
    detector.record('s', 'a')
    detector.record('a')
    detector.reset('s')
    detector.record('s', 'a')
    assert.ok(detector.check('a'))
    detector.reset()
    assert.equal(detector.check('a'), null)
    assert.equal(detector.sessions, 0)
  })

  it('takes names of any length and alphabet', () => {
    const detector = new LoopDetector({ repeats: 2 })
    for (const name of ['süß', '検索', '🔎'.repeat(200), 'x'.repeat(60_000), `${'a'.repeat(63)}é`, 'lone \ud800']) {
      detector.record(name)
      assert.ok(detector.check(name), name.slice(0, 20))
      assert.equal(detector.check(`${name}!`), null)
    }
  })

  it('refuses bad input and changes nothing', () => {
    const detector = new LoopDetector({ repeats: 2 })
    detector.record('a')
    for (const bad of [
      [''],
      [undefined],
      [null],
      [7],
      ['', 'x'],
      ['s', ''],
      ['s', 7],
      [{}],
      [{ sessionId: '', tool: 'x' }],
      [{ sessionId: 's' }],
      ['x'.repeat(70_000)],
    ]) {
      assert.throws(() => detector.record(...bad), InvalidInputError, JSON.stringify(bad)?.slice(0, 40))
    }
    assert.equal(detector.check('a')?.repeats, 2)
    for (const settings of [
      { repeats: 1 },
      { repeats: NaN },
      { repeats: 2.5 },
      { maxCycleLen: 0 },
      { maxCycleLen: 33 },
      { windowSeconds: 0 },
      { windowSeconds: -1 },
      { maxCalls: 0 },
      { maxCalls: '3' },
      { url: 'http://x' },
      { repeat: 3 },
      { repeats: 1e12 },
    ]) {
      assert.throws(() => new LoopDetector(settings), InvalidInputError, JSON.stringify(settings))
    }
  })

  it('is freed once, and says so when it is used later', () => {
    const detector = new LoopDetector()
    detector.free()
    detector.free()
    const other = new LoopDetector({ repeats: 2 })
    assert.throws(() => detector.record('a'), /was freed/)
    assert.throws(() => detector.check('a'), /was freed/)
    assert.throws(() => detector.sessions, /was freed/)
    other.record('a')
    assert.ok(other.check('a'), 'the object that took its place is untouched')
    new LoopDetector()[Symbol.dispose]()
  })
})
