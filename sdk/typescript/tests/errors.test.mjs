import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { it } from 'node:test'
import * as esm from '@runguard/sdk'

const cjs = createRequire(import.meta.url)('@runguard/sdk')

it('an error of one build is an instance of the same class of the other', () => {
  const error = new cjs.LoopDetectedError('x', { cycle: ['a'], repeats: 3 })
  assert.ok(error instanceof esm.LoopDetectedError && error instanceof esm.TripError && error instanceof esm.RunGuardError)
  assert.ok(!(error instanceof esm.BudgetExceededError) && !(error instanceof esm.ServiceError))
  assert.ok(!(new Error('x') instanceof esm.RunGuardError) && !(null instanceof esm.RunGuardError) && !({} instanceof esm.TripError))
})

it('a subclass of the user is its own class', () => {
  class Mine extends esm.TripError {}
  assert.ok(new Mine('x') instanceof Mine && new Mine('x') instanceof esm.TripError)
  assert.ok(!(new esm.TripError('x') instanceof Mine))
})

it('trips become JSON with all their facts', () => {
  const error = new esm.BudgetExceededError('too much', { spent: 5.5, limit: 5, runId: 'r1' })
  const { name, ...facts } = JSON.parse(JSON.stringify(error))
  assert.equal(name, 'BudgetExceededError')
  assert.deepEqual(facts, {
    error: 'BudgetExceededError',
    message: 'too much',
    reason: 'budget_exceeded',
    runId: 'r1',
    spent: 5.5,
    limit: 5,
    unit: 'usd',
  })
})

it('finds the trip behind an error, however it was wrapped', () => {
  const trip = new esm.TripError('over')
  assert.equal(esm.tripOf(trip), trip)
  assert.equal(esm.tripOf(new Error('x', { cause: new Error('y', { cause: trip }) })), trip)
  assert.equal(esm.tripOf(new AggregateError([new Error('x'), trip])), trip)
  assert.equal(esm.tripOf({ error: { originalError: new cjs.TripError('other build') } })?.message, 'other build')
  const round = new Error('x')
  round.cause = round
  for (const none of [null, undefined, 'text', new Error('x'), round]) assert.equal(esm.tripOf(none), null)
})
