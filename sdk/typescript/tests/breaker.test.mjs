import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth, thrownBy } from './both.mjs'

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

inBoth('CircuitBreaker', ({ CircuitBreaker, CircuitOpenError, InvalidInputError }) => {
  it('opens at the threshold, tests after the recovery, closes on success', async () => {
    const breaker = new CircuitBreaker({ name: 'orders-api', failureThreshold: 2, recoverySeconds: 0.15 })
    const fail = () => {
      throw new Error('down')
    }
    assert.throws(() => breaker.call(fail), /down/)
    assert.equal(breaker.state, 'closed')
    await assert.rejects(
      breaker.call(async () => fail()),
      /down/,
    )
    assert.equal(breaker.state, 'open')
    let calls = 0
    const refused = thrownBy(() => breaker.call(() => calls++))
    assert.ok(refused instanceof CircuitOpenError)
    assert.deepEqual([refused.endpoint, refused.reason], ['orders-api', 'circuit_just_tripped'])
    assert.ok(refused.retryAfterSeconds > 0 && refused.retryAfterSeconds <= 0.15, String(refused.retryAfterSeconds))
    assert.equal(thrownBy(() => breaker.check()).reason, 'circuit_open')
    assert.equal(calls, 0)
    await pause(180)
    assert.equal(breaker.state, 'half_open')
    const probe = breaker.check()
    assert.throws(() => breaker.check(), CircuitOpenError, 'one probe at a time')
    breaker.record(true, { permit: probe, latencyMs: 3 })
    assert.equal(breaker.state, 'closed')
    assert.equal(await breaker.call(async () => 7), 7)
    assert.equal(breaker.wrap((left, right) => left + right)(1, 2), 3)
  })

  it('takes no notice of a result from before the trip', async () => {
    const breaker = new CircuitBreaker({ failureThreshold: 1, recoverySeconds: 0.05 })
    const early = breaker.check()
    breaker.record(false)
    await pause(80)
    const probe = breaker.check()
    breaker.record(true, { permit: early })
    assert.equal(breaker.state, 'half_open')
    breaker.record(true, { permit: probe })
    assert.equal(breaker.state, 'closed')
  })

  it('obeys an operator', () => {
    const breaker = new CircuitBreaker('db')
    breaker.forceOpen()
    assert.equal(thrownBy(() => breaker.check()).retryAfterSeconds, null)
    breaker.forceClose()
    for (let time = 0; time < 20; time++) breaker.record(false)
    breaker.check()
    breaker.reset()
    assert.equal(breaker.state, 'closed')
  })

  it('refuses bad settings', () => {
    for (const settings of [
      { name: '' },
      { failureThreshold: 0 },
      { failureThreshold: 1.5 },
      { failureRate: NaN },
      { failureRate: 2 },
      { recoverySeconds: -1 },
      { probes: 0 },
      { unknown: 1 },
    ]) {
      assert.throws(() => new CircuitBreaker(settings), InvalidInputError, JSON.stringify(settings))
    }
    const breaker = new CircuitBreaker()
    assert.throws(() => breaker.record(true, { latencyMs: NaN }), InvalidInputError)
  })

  it('takes a latency to the nearest millisecond', () => {
    const breaker = new CircuitBreaker({ name: 'slow', slowCallMs: 500, slowRate: 0.5, minCalls: 1 })
    breaker.record(true, { latencyMs: 500.4 })
    assert.equal(breaker.state, 'closed')
    breaker.record(true, { latencyMs: 500.6 })
    assert.equal(breaker.state, 'open')
    for (const recoverySeconds of [0.0004, 1e12]) assert.throws(() => new CircuitBreaker({ recoverySeconds }), InvalidInputError)
  })
})
