import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { it } from 'node:test'
import { inBoth } from './both.mjs'

const vectors = JSON.parse(readFileSync(new URL('../../vectors.json', import.meta.url), 'utf8'))

inBoth('fingerprint and similarity', ({ fingerprint, similarity, InvalidInputError }) => {
  it('agrees with the core on the shared vectors', () => {
    assert.ok(vectors.fingerprints.length >= 40 && vectors.similarity.length >= 12)
    for (const { args, ignore, fingerprint: expected } of vectors.fingerprints) {
      assert.equal(fingerprint(JSON.parse(args), { ignore }), expected, args)
    }
    for (const { left, right, autojunk, ratio } of vectors.similarity) assert.equal(similarity(left, right, { autojunk }), ratio, left)
  })

  it('is sixteen hex digits, and the same for undefined, null and {}', () => {
    assert.match(fingerprint({ a: 1 }), /^[0-9a-f]{16}$/)
    assert.equal(fingerprint(undefined), fingerprint({}))
    assert.equal(fingerprint(null), fingerprint({}))
  })

  it('reads what JSON.stringify does not', () => {
    const same = [
      [{ n: 12n }, { n: 12 }],
      [
        new Map([
          ['a', 1],
          ['b', 2],
        ]),
        { b: 2, a: 1 },
      ],
      [new Map([[1, 'x']]), { 1: 'x' }],
      [new Set(['x', 'y']), new Set(['y', 'x'])],
      [{ at: new Date(0) }, { at: '1970-01-01T00:00:00.000Z' }],
      [{ a: 1, b: undefined, c: () => 1, d: Symbol('x') }, { a: 1 }],
      [
        [undefined, 1],
        [null, 1],
      ],
      [new Number(7), 7],
      [{ u: new URL('http://a.b/c') }, { u: 'http://a.b/c' }],
      [Object.assign(Object.create(null), { a: 1 }), { a: 1 }],
      [{ n: -0 }, { n: 0 }],
    ]
    for (const [left, right] of same) assert.equal(fingerprint({ v: left }), fingerprint({ v: right }), JSON.stringify(right))
    const different = [
      NaN,
      Infinity,
      -Infinity,
      null,
      0,
      '0',
      12345678901234567890n,
      12345678901234567891n,
      new Set([1, 2]),
      new Set([1, 3]),
      new Map([['a', 1]]),
      new Map([['a', 2]]),
      new Uint8Array([1]),
      new Uint8Array([2]),
      /a/,
      /b/,
      new Error('x'),
      new Error('y'),
    ]
    assert.equal(new Set(different.map((value) => fingerprint({ value }))).size, different.length)
  })

  it('takes the same object twice, but not inside itself', () => {
    const shared = { x: 1 }
    assert.equal(fingerprint({ a: shared, b: shared }), fingerprint({ a: { x: 1 }, b: { x: 1 } }))
    const cyclic = { name: 'a' }
    cyclic.self = [cyclic]
    assert.throws(
      () => fingerprint(cyclic),
      (error) => error instanceof InvalidInputError && /contain themselves/.test(error.message),
    )
    assert.throws(
      () =>
        fingerprint({
          get broken() {
            throw new TypeError('no')
          },
        }),
      InvalidInputError,
    )
  })

  it('has bounds on size and depth', () => {
    let deep = 1
    for (let level = 0; level < 100_000; level++) deep = [deep]
    assert.throws(() => fingerprint(deep), InvalidInputError)
    assert.throws(() => fingerprint({ text: 'x'.repeat(10_000_000) }), InvalidInputError)
    assert.throws(() => fingerprint(new Uint8Array(10_000_000)), InvalidInputError)
    assert.throws(() => fingerprint(new Array(6_000_000).fill(1)), InvalidInputError)
    const large = { text: 'é'.repeat(2_000_000), list: new Array(100_000).fill(0) }
    assert.equal(fingerprint(large), fingerprint(structuredClone(large)))
    assert.equal(fingerprint({ a: 1 }), fingerprint({ a: 1 }), 'and the small ones still work')
  })

  it('tells lone surrogates apart', () => {
    assert.notEqual(fingerprint({ a: '\ud800' }), fingerprint({ a: '\ud801' }))
  })

  it('compares only texts', () => {
    assert.throws(() => similarity('a', 7), InvalidInputError)
    assert.throws(() => fingerprint({}, { ignore: [''] }), InvalidInputError)
  })
})
