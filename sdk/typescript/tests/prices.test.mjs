import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth, thrownBy } from './both.mjs'

inBoth('prices', ({ costUsd, readUsage, setPrices, BudgetTracker, Run, UnknownModelError, InvalidInputError, BudgetExceededError }) => {
  it('prices a call under any of a model’s names', () => {
    assert.equal(costUsd('gpt-4o', { inputTokens: 1_000_000 }), 2.5)
    assert.equal(costUsd('openai/gpt-4o', { inputTokens: 1000, outputTokens: 100 }), 0.0035)
    assert.equal(
      costUsd('us.anthropic.claude-3-7-sonnet-20250219-v1:0', { inputTokens: 1_000_000, outputTokens: 1_000_000, cachedTokens: 1_000_000 }),
      18.3,
    )
  })

  it('does not guess: an unknown model is an error where dollars are limited, and its tokens count', () => {
    const error = thrownBy(() => costUsd('gpt-4o-mni', { inputTokens: 1 }))
    assert.ok(error instanceof UnknownModelError)
    assert.equal(error.model, 'gpt-4o-mni')
    assert.match(error.message, /^No price is known .*gpt-4o-mini/)
    const budget = new BudgetTracker({ maxUsd: 1 })
    assert.throws(() => budget.recordUsage('nobody-knows-it', { inputTokens: 10 }), UnknownModelError)
    for (const usage of [{ inputTokens: -1 }, { outputTokens: NaN }, { cachedTokens: 1.5 }, { cacheWriteTokens: '1' }]) {
      assert.throws(() => budget.recordUsage('gpt-4o', usage), InvalidInputError)
    }
    assert.throws(() => costUsd('', {}), InvalidInputError)
    assert.deepEqual([budget.spent, budget.books.spentTokens], [0, 10])
    budget.recordUsage('nobody-knows-it', {})
    const tokens = new BudgetTracker({ maxTokens: 15 })
    tokens.recordUsage('nobody-knows-it', { inputTokens: 10 })
    assert.equal(tokens.check(), 5)
  })

  it('counts dollars and tokens of a usage', () => {
    const budget = new BudgetTracker({ maxUsd: 0.01, maxTokens: 10_000 })
    budget.recordUsage('gpt-4o', { inputTokens: 1000, outputTokens: 500, cachedTokens: 200 })
    assert.deepEqual([budget.spent, budget.books.spentTokens], [0.00775, 1700])
    assert.throws(() => budget.recordUsage('gpt-4o', { outputTokens: 1000 }), BudgetExceededError)
  })

  it('a run without a dollar limit counts the tokens of an unknown model', () => {
    const run = new Run({ maxTokens: 100 })
    run.recordUsage('nobody-knows-it', { inputTokens: 60, cachedTokens: 40 })
    assert.throws(() => run.beforeModel(), BudgetExceededError)
    assert.throws(() => new Run({ maxUsd: 1 }).recordUsage('nobody-knows-it', { inputTokens: 60 }), UnknownModelError)
  })

  it('takes prices of your own', () => {
    setPrices({ 'my-model': { input: '1.5', output: 3, cacheRead: 0.1, above: [{ tokens: 1000, input: 2 }] } })
    assert.equal(costUsd('my-model', { inputTokens: 1000, cachedTokens: 0 }), 0.0015)
    assert.equal(costUsd('my-model', { inputTokens: 1_000_000 }), 2)
    assert.throws(() => setPrices({ other: { input: -1, output: 1 } }), InvalidInputError)
    assert.throws(() => setPrices({ other: { input: 1 } }), InvalidInputError)
    setPrices({}, { unknownModel: 'free' })
    assert.equal(costUsd('nobody-knows-it', { inputTokens: 5 }), 0)
    setPrices({}, { unknownModel: { input: 1, output: 1 } })
    assert.equal(costUsd('nobody-knows-it', { inputTokens: 1_000_000 }), 1)
    setPrices({}, { unknownModel: 'error' })
    assert.throws(() => setPrices({}, { unknownModel: 'whatever' }), InvalidInputError)
    assert.throws(() => costUsd('nobody-knows-it', { inputTokens: 5 }), UnknownModelError)
  })

  it('sets aside the longest answer of the model when no length is asked for', async () => {
    setPrices({ short: { input: 0, output: 1000, maxOutput: 100 }, unsaid: { input: 0, output: 1000 } })
    const maxTokens = async (model, maxUsd) => {
      const call = await new Run({ maxUsd }).modelCall(model, '?')
      await call.release()
      return call.maxTokens
    }
    assert.equal(await maxTokens('short', 1), null)
    assert.equal(await maxTokens('unsaid', 1), 1000)
    assert.ok((await maxTokens('gpt-4o', 0.1)) < 10_000)
  })

  it('prices sound, service tiers, hours in a cache and embeddings', () => {
    // The figures are litellm's, as in the tests of the core.
    const sound = { inputTokens: 2345, outputTokens: 178, audioInputTokens: 1000, audioOutputTokens: 500 }
    assert.equal(costUsd('gpt-audio', sound), 0.0716425)
    const usage = { inputTokens: 12_345, outputTokens: 678, cachedTokens: 6789 }
    assert.equal(costUsd('gpt-5.4', { ...usage, serviceTier: 'priority' }), 0.0854595)
    assert.equal(costUsd('gpt-5.4', { ...usage, serviceTier: 'default' }), costUsd('gpt-5.4', usage))
    assert.equal(costUsd('text-embedding-3-small', { inputTokens: 12_345 }), 0.0002469)
    const budget = new BudgetTracker({ maxUsd: 1 })
    budget.recordUsage('claude-sonnet-4-5', { cacheWriteTokens: 1000, cacheWrite1hTokens: 1000 })
    assert.equal(budget.spent, 0.00975)
    setPrices({ ours: { input: 1, output: 1, cacheWrite1h: 3, audioInput: 5, flex: [{ tokens: 0, input: '0.5' }] } })
    assert.equal(costUsd('ours', { inputTokens: 1_000_000, cacheWrite1hTokens: 1_000_000, audioInputTokens: 1_000_000 }), 9)
    assert.equal(costUsd('ours', { inputTokens: 1_000_000, serviceTier: 'flex' }), 0.5)
    assert.equal(costUsd('ollama/llama3.1:8b', { inputTokens: 1000 }), 0)
  })

  it('reads usage reports, each token in one field', () => {
    const openai = {
      prompt_tokens: 100,
      completion_tokens: 50,
      prompt_tokens_details: { cached_tokens: 30, audio_tokens: 20 },
      completion_tokens_details: { audio_tokens: 5 },
    }
    const { inputTokens, cachedTokens, audioInputTokens, outputTokens, audioOutputTokens } = readUsage('openai', openai)
    assert.deepEqual([inputTokens, cachedTokens, audioInputTokens, outputTokens, audioOutputTokens], [50, 30, 20, 45, 5])
    const anthropic = {
      input_tokens: 9,
      output_tokens: 1,
      cache_creation_input_tokens: 7,
      cache_creation: { ephemeral_1h_input_tokens: 3 },
    }
    assert.equal(readUsage('anthropic', anthropic).cacheWrite1hTokens, 3)
    assert.equal(readUsage('bedrock', { inputTokens: 4, outputTokens: 2 }).inputTokens, 4)
    assert.equal(readUsage('gemini', { promptTokenCount: 4, totalTokenCount: 9 }).outputTokens, 5)
    for (const report of [{ prompt_tokens: 0.5 }, {}, null, 'many']) assert.throws(() => readUsage('openai', report), InvalidInputError)
    assert.throws(() => readUsage('cohere', { input_tokens: 1 }), InvalidInputError)
  })
})
