import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth } from './both.mjs'

inBoth('ToolExecutionTracker', ({ ToolExecutionTracker, InvalidInputError }) => {
  it('skips by limit, by exact call, by similar query, in this order', () => {
    const tracker = new ToolExecutionTracker()
    assert.equal(tracker.shouldSkip('search_knowledge', { query: 'fix bug' }), null)
    tracker.record('search_knowledge', { query: 'fix bug' })
    assert.deepEqual(tracker.shouldSkip('search_knowledge', { query: 'fix bug' }), {
      reasonCode: 'exact_duplicate',
      message: "Tool 'search_knowledge' was already executed with identical parameters",
      count: 1,
      limit: 2,
    })
    assert.equal(
      tracker.shouldSkip('search_knowledge', { query: 'fix the bug' }).message,
      "Tool 'search_knowledge' was already executed with a similar query",
    )
    tracker.record('search_knowledge', { query: 'deploy' })
    assert.equal(
      tracker.shouldSkip('search_knowledge', { query: 'new' }).message,
      "Tool 'search_knowledge' has reached its execution limit (2) for this turn",
    )
    tracker.newTurn()
    assert.equal(tracker.shouldSkip('search_knowledge', { query: 'fix bug' }), null)
  })

  it('lets a call that failed be tried again', () => {
    const tracker = new ToolExecutionTracker()
    tracker.record('fetch', { url: 'a' }, { error: new Error('timeout') })
    assert.equal(tracker.shouldSkip('fetch', { url: 'a' }), null)
  })

  it('compares letters alone with plainRatio, as the design does', () => {
    for (const [settings, skips] of [[{}, false], [{ plainRatio: true }, true]]) {
      const tracker = new ToolExecutionTracker(settings)
      tracker.record('search_knowledge', { query: 'invoice number 4711 of march' })
      assert.equal(tracker.shouldSkip('search_knowledge', { query: 'invoice number 4712 of march' }) !== null, skips)
    }
  })

  it('takes limits beside the built-in ones', () => {
    const tracker = new ToolExecutionTracker({ limits: { mine: 1 }, defaultLimit: 5, volatile: { '*': ['request_id'] } })
    tracker.record('mine', {})
    tracker.record('read_file', { path: 'a' })
    assert.deepEqual([tracker.shouldSkip('mine', { a: 1 }).reasonCode, tracker.shouldSkip('mine', { a: 1 }).limit], ['tool_limit', 1])
    assert.equal(tracker.shouldSkip('read_file', { path: 'a', request_id: 7 }).limit, 3)
    for (const settings of [{ threshold: 0 }, { threshold: NaN }, { defaultLimit: -1 }, { limits: { a: 5000 } }, { unknown: 1 }]) {
      assert.throws(() => new ToolExecutionTracker(settings), InvalidInputError, JSON.stringify(settings))
    }
  })

  it('refuses bad input and counts nothing', () => {
    const tracker = new ToolExecutionTracker({ defaultLimit: 1 })
    const cyclic = {}
    cyclic.self = cyclic
    assert.throws(() => tracker.record('a', cyclic), InvalidInputError)
    assert.throws(() => tracker.record('', {}), InvalidInputError)
    assert.equal(tracker.shouldSkip('a', {}), null)
  })
})

inBoth('RecipeCache', ({ RecipeCache, InvalidInputError }) => {
  it('gives back what the same action gave in the same step', () => {
    const cache = new RecipeCache()
    const sent = { ok: true }
    cache.put('notify', 'SLACK_SEND', { channel: 'ops', text: 'done' }, sent)
    assert.equal(cache.get('notify', 'SLACK_SEND', { text: 'done', channel: 'ops' }), sent)
    assert.equal(cache.get('escalate', 'SLACK_SEND', { text: 'done', channel: 'ops' }), undefined)
    cache.put('notify', 'SLACK_SEND', { channel: 'ops', text: 'done' }, 'again')
    assert.equal(cache.get('notify', 'SLACK_SEND', { text: 'done', channel: 'ops' }), 'again')
    cache.newRecipe()
    assert.equal(cache.get('notify', 'SLACK_SEND', { text: 'done', channel: 'ops' }), undefined)
    assert.throws(() => cache.get('', 'a', {}), InvalidInputError)
    assert.throws(() => cache.put('s', '', {}, 1), InvalidInputError)
  })

  it('keeps the newest thousand', () => {
    const cache = new RecipeCache()
    for (let number = 0; number < 1200; number++) cache.put('step', 'act', { number }, number)
    assert.deepEqual(
      [cache.get('step', 'act', { number: 199 }), cache.get('step', 'act', { number: 200 }), cache.get('step', 'act', { number: 1199 })],
      [undefined, 200, 1199],
    )
  })
})
