import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth, thrownBy } from './both.mjs'

inBoth('detectors that report by themselves', (sdk) => {
  const { LoopDetector, BudgetTracker, CircuitBreaker, ToolExecutionTracker, flushAlerts, BudgetExceededError, CircuitOpenError } = sdk

  it('a loop detector reports each loop it throws', async () => {
    const told = []
    const detector = new LoopDetector({ alerts: (trip) => told.push(trip) })
    const trips = ['a', 'b'].map((session) => thrownBy(() => [1, 2, 3].forEach(() => detector.record(session, 'search'))))
    assert.ok(detector.check('a', 'search'))
    await flushAlerts()
    assert.deepEqual(told, trips)
  })

  it('a budget reports each limit once', async () => {
    const told = []
    const budget = new BudgetTracker({ maxUsd: 1, maxTokens: 10, alerts: (trip) => told.push(trip.unit) })
    for (let call = 0; call < 3; call += 1) assert.throws(() => budget.record(2), BudgetExceededError)
    budget.exhausted()
    assert.throws(() => budget.reserve(1), BudgetExceededError)
    await flushAlerts()
    assert.deepEqual(told, ['usd'])
  })

  it('a breaker reports that it has opened, once until it has closed', async () => {
    const told = []
    const breaker = new CircuitBreaker({ name: 'api', failureThreshold: 2, alerts: { call: (trip) => told.push(trip.endpoint) } })
    for (let call = 0; call < 2; call += 1) breaker.record(false)
    for (let call = 0; call < 5; call += 1) assert.throws(() => breaker.check(), CircuitOpenError)
    breaker.reset()
    breaker.check()
    for (let call = 0; call < 2; call += 1) breaker.record(false)
    assert.throws(() => breaker.check(), CircuitOpenError)
    await flushAlerts()
    assert.deepEqual(told, ['api', 'api'])
  })

  it('a budget of calls without steps', () => {
    const budget = new BudgetTracker({ cap: 2 })
    budget.record()
    assert.equal(budget.check(), 1)
    budget.record()
    assert.throws(() => budget.record(), BudgetExceededError)
    assert.equal(budget.check(), 0)
  })

  it('a tracker has the names of the design', () => {
    const tracker = new ToolExecutionTracker()
    assert.equal(tracker.shouldSkipExecution('search', { query: 'a' }), null)
    tracker.recordExecution('search', { query: 'a' })
    assert.equal(tracker.shouldSkipExecution('search', { query: 'a' }).reasonCode, 'exact_duplicate')
  })
})
