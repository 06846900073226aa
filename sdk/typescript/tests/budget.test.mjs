import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth, thrownBy } from './both.mjs'

inBoth('BudgetTracker', ({ BudgetTracker, BudgetExceededError, InvalidInputError }) => {
  it('adds deltas and throws once more is spent than the limit', () => {
    const budget = new BudgetTracker({ maxUsd: 5 })
    budget.record(2.5)
    budget.record(2.5)
    assert.deepEqual([budget.spent, budget.remaining, budget.limit, budget.check()], [5, 0, 5, 0])
    const error = thrownBy(() => budget.record(0.01))
    assert.ok(error instanceof BudgetExceededError)
    assert.deepEqual([error.spent, error.limit, error.unit, error.reason], [5.01, 5, 'usd', 'budget_exceeded'])
    assert.throws(() => budget.record(0), BudgetExceededError, 'what is spent stays spent')
  })

  it('sums exactly', () => {
    const budget = new BudgetTracker({ maxUsd: 100 })
    for (let step = 0; step < 100_000; step++) budget.record(0.001)
    assert.equal(budget.spent, 100)
    assert.equal(budget.remaining, 0)
  })

  it('counts calls against the cap', () => {
    const tracker = new BudgetTracker({ cap: 2 })
    assert.equal(tracker.check('s', 'step'), 2)
    tracker.record('s', 'step')
    tracker.record('s', 'step')
    assert.equal(tracker.check('s', 'step'), 0)
    const error = thrownBy(() => tracker.record('s', 'step'))
    assert.deepEqual([error.unit, error.limit], ['calls', 2])
    assert.equal(tracker.check('s', 'other'), 2)
    assert.equal(new BudgetTracker().check('s', 'step'), Infinity)
  })

  it('limits tokens', () => {
    const budget = new BudgetTracker({ maxTokens: 1000 })
    budget.recordTokens(1000)
    const error = thrownBy(() => budget.recordTokens(1))
    assert.deepEqual([error.unit, error.spent, error.limit], ['tokens', 1001, 1000])
    assert.deepEqual([budget.limit, budget.remaining, budget.books.limitTokens], [null, Infinity, 1000])
  })

  it('sets money aside, so that two calls cannot both count on the last dollar', () => {
    const budget = new BudgetTracker({ maxUsd: 5 })
    const first = budget.reserve(3)
    assert.throws(() => budget.reserve(2.01), BudgetExceededError)
    assert.deepEqual([budget.reserved, budget.remaining], [3, 2])
    first.commit(1)
    assert.deepEqual([budget.spent, budget.reserved, budget.remaining], [1, 0, 4])
    assert.throws(() => first.commit(1), InvalidInputError)
    const second = budget.reserve(4)
    second.release()
    second.release()
    assert.deepEqual([budget.spent, budget.remaining], [1, 4])
    const third = budget.reserve(1)
    third[Symbol.dispose]()
    assert.equal(budget.reserved, 0)
    assert.throws(() => budget.reserve(4).commit(9), BudgetExceededError)
    assert.equal(budget.spent, 10, 'what was paid is counted in any case')
  })

  it('a child draws on its parent', () => {
    const team = new BudgetTracker({ maxUsd: 10 })
    const run = team.child({ maxUsd: 8 })
    run.record(6)
    assert.deepEqual([team.spent, run.remaining, team.remaining], [6, 2, 4])
    team.record(3)
    assert.equal(run.remaining, 1)
    assert.throws(() => run.reserve(1.5), BudgetExceededError)
    team.free()
    assert.equal(run.remaining, 1, 'a child keeps its parent')
    assert.throws(() => team.child({}), InvalidInputError)
  })

  it('refuses bad amounts and changes nothing', () => {
    const budget = new BudgetTracker({ maxUsd: 5, maxTokens: 100, cap: 3 })
    for (const bad of [NaN, -1, Infinity, -Infinity, undefined, null, {}, 10n, 1e300]) {
      assert.throws(() => budget.record(bad), InvalidInputError, String(bad))
      assert.throws(() => budget.reserve(bad === undefined ? 'x' : bad), InvalidInputError, String(bad))
    }
    for (const bad of [NaN, -1, 1.5, Infinity, '7', 2 ** 60]) assert.throws(() => budget.recordTokens(bad), InvalidInputError, String(bad))
    for (const bad of [['', 'x'], ['s', ''], ['s']]) assert.throws(() => budget.record(...bad), InvalidInputError)
    const held = budget.reserve(1)
    assert.throws(() => held.commit(-1), InvalidInputError)
    assert.deepEqual([budget.spent, budget.reserved, budget.books.spentTokens, budget.check('s', 'x')], [0, 1, 0, 3])
    for (const limits of [{ maxUsd: -1 }, { maxUsd: NaN }, { maxTokens: 1.5 }, { cap: 1.5 }, { cap: -2 }, { maxUsd: '5' }, { maxUSD: 5 }]) {
      assert.throws(() => new BudgetTracker(limits), InvalidInputError, JSON.stringify(limits))
    }
  })
})
