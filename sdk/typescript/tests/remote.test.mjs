import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { deadUrl, startService } from '../../../examples/test/service.mjs'
import { inBoth } from './both.mjs'

let service
before(async () => {
  service = await startService()
})
after(() => service.stop())

const name = () => `run-${Math.random().toString(16).slice(2)}`

inBoth('detectors kept by a service', (sdk) => {
  const {
    LoopDetector,
    StallDetector,
    BudgetTracker,
    CircuitBreaker,
    ToolExecutionTracker,
    Run,
    LoopDetectedError,
    BudgetExceededError,
    CircuitOpenError,
    ServiceError,
    UnknownModelError,
    InvalidInputError,
    TripError,
  } = sdk

  it('LoopDetector', async () => {
    const { url } = service
    const one = LoopDetector.remote({ url })
    const other = LoopDetector.remote({ url })
    const session = name()
    await one.record(session, 'search')
    await other.record({ sessionId: session, tool: 'search' })
    const expected = await one.check(session, 'search')
    assert.ok(expected instanceof LoopDetectedError)
    await assert.rejects(
      other.record(session, 'search'),
      (error) => error instanceof LoopDetectedError && error.pattern === 'search' && error.repeats === 3,
    )
    other.reset(session)
    await other.record(session, 'search')
    await one.record('alone')
    assert.equal(await one.check('alone'), null)
    await assert.rejects(one.record(''), InvalidInputError)
    await one.record('x'.repeat(5000))
  })

  it('StallDetector', async () => {
    const stall = StallDetector.remote({ url: service.url })
    const sessionId = name()
    const rungs = []
    for (let call = 0; call < 4; call++) rungs.push((await stall.observe('search', { q: 'x' }, 'nothing', { sessionId })).rung)
    assert.deepEqual(rungs, ['go_on', 'go_on', 'steer', 'stop'])
    const own = StallDetector.remote({ url: service.url })
    await own.observe('search', {}, 'r')
    await own.observe('search', {}, 'r')
    await own.userMessage()
    assert.equal((await own.observe('search', {}, 'r')).rung, 'go_on')
    assert.equal((await own.message('hello')).rung, 'go_on')
  })

  it('BudgetTracker', async () => {
    const budget = BudgetTracker.remote({ url: service.url, maxUsd: 5, cap: 2 })
    await budget.record(2)
    assert.equal(await budget.check(), 3)
    const held = await budget.reserve(2)
    assert.deepEqual(
      await budget.books().then(({ spent, reserved, remaining, limit }) => [spent, reserved, remaining, limit]),
      [2, 2, 1, 5],
    )
    await assert.rejects(budget.reserve(1.5), BudgetExceededError)
    await held.commit(1)
    await held.release()
    await assert.rejects(held.commit(1), InvalidInputError)
    await (await budget.reserve(1)).release()
    assert.equal(await budget.check(), 2)
    assert.equal(await budget.check('s', 'step'), 2)
    await budget.record('s', 'step')
    await budget.record('s', 'step')
    await assert.rejects(budget.record('s', 'step'), (error) => error instanceof BudgetExceededError && error.unit === 'calls')
    await assert.rejects(budget.recordUsage('nobody-knows-it', { inputTokens: 1 }), UnknownModelError)
    await budget.recordUsage('gpt-4o', { inputTokens: 400_000 })
    assert.equal(await budget.check(), 1)
    await assert.rejects(budget.record(5), (error) => error instanceof BudgetExceededError && error.limit === 5)
    const child = BudgetTracker.remote({ url: service.url, maxUsd: 10 }).child({ maxUsd: 1 })
    await assert.rejects(child.record(2), BudgetExceededError)
    assert.throws(
      () => child.child({ maxUsd: 1 }),
      (error) => error instanceof InvalidInputError && /first budget/.test(error.message),
    )
    const tokens = BudgetTracker.remote({ url: service.url, maxTokens: 10 })
    await tokens.reserve(0, { tokens: 7 })
    const { reservedTokens, remainingTokens } = await tokens.books()
    assert.deepEqual([reservedTokens, remainingTokens, await tokens.check()], [7, 3, 3])
    await assert.rejects(budget.record(NaN), InvalidInputError)
  })

  it('CircuitBreaker', async () => {
    const breaker = CircuitBreaker.remote({ url: service.url, name: name() })
    assert.equal(await breaker.call(async () => 7), 7)
    for (let call = 0; call < 10; call++)
      await assert.rejects(
        breaker.call(() => Promise.reject(new Error('down'))),
        /down/,
      )
    await assert.rejects(breaker.check(), (error) => error instanceof CircuitOpenError && error.retryAfterSeconds > 0)
    assert.equal(await breaker.state(), 'open')
  })

  it('what is not given is as the service has it set', async () => {
    const other = await startService({ settings: { RUNGUARD_GUARDS__LOOP__REPEATS: '5' } })
    try {
      for (const [detector, most] of [
        [LoopDetector.remote({ url: other.url }), 5],
        [LoopDetector.remote({ url: other.url, repeats: 3 }), 3],
      ]) {
        for (let call = 1; call < most; call++) await detector.record('search')
        await assert.rejects(detector.record('search'), (error) => error instanceof LoopDetectedError && error.repeats === most)
      }
      const run = Run.remote({ url: other.url })
      for (let call = 0; call < 4; call++) await run.beforeTool('search', { q: 1 })
      await assert.rejects(run.beforeTool('search', { q: 1 }), LoopDetectedError)
    } finally {
      await other.stop()
    }
  })

  it('a circuit of a long name is one by its beginning and a hash, and an operator may force it', async () => {
    const long = `${name()}-${'x'.repeat(300)}`
    const [one, same, other] = [long, long, `${long}y`].map((name) => CircuitBreaker.remote({ url: service.url, name }))
    assert.ok(one.name.length <= 256 && one.name === same.name && one.name !== other.name)
    await one.forceOpen()
    await assert.rejects(
      same.check(),
      (error) => error instanceof CircuitOpenError && error.endpoint === one.name && error.retryAfterSeconds === null,
    )
    assert.equal(await one.state(), 'open')
    await other.check()
    await one.forceClose()
    assert.equal(await same.call(() => 7), 7)
    await one.reset()
    assert.equal(await one.state(), 'closed')
  })

  it('a guard inside of a call says nothing about the endpoint', async () => {
    const inside = () => {
      throw new LoopDetectedError('inside')
    }
    const [here, there] = [new CircuitBreaker(name()), CircuitBreaker.remote({ url: service.url, name: name() })]
    for (let call = 0; call < 12; call++) {
      assert.throws(() => here.call(inside), LoopDetectedError)
      await assert.rejects(
        here.call(async () => inside()),
        LoopDetectedError,
      )
      await assert.rejects(there.call(inside), LoopDetectedError)
    }
    assert.deepEqual([here.state, await there.state()], ['closed', 'closed'])
  })

  it('long messages are compared whole', async () => {
    const detector = StallDetector.remote({ url: service.url })
    const rungs = []
    for (const end of ['one', 'two', 'three', 'three', 'three']) rungs.push((await detector.message(`${'word '.repeat(2000)}${end}`)).rung)
    assert.deepEqual(rungs.slice(0, 3), ['go_on', 'go_on', 'go_on'])
    assert.equal(rungs.at(-1), 'stop')
  })

  it('a skip says how often the tool ran and may', async () => {
    for (const tracker of [new ToolExecutionTracker(), ToolExecutionTracker.remote({ url: service.url })]) {
      for (const n of [0, 1, 2]) {
        assert.equal(await tracker.shouldSkip('look', { n }), null)
        await tracker.record('look', { n })
      }
      const { reasonCode, count, limit } = await tracker.shouldSkip('look', { n: 9 })
      assert.deepEqual([reasonCode, count, limit], ['tool_limit', 3, 3])
    }
  })

  it('ToolExecutionTracker', async () => {
    const tracker = ToolExecutionTracker.remote({ url: service.url })
    assert.equal(await tracker.shouldSkip('search_knowledge', { query: 'fix bug' }), null)
    await tracker.record('search_knowledge', { query: 'fix bug' })
    assert.match((await tracker.shouldSkip('search_knowledge', { query: 'fix bug' })).message, /identical parameters/)
    tracker.newTurn()
    assert.equal(await tracker.shouldSkip('search_knowledge', { query: 'fix bug' }), null)
  })

  it('Run', async () => {
    const run = Run.remote({ url: service.url, maxUsd: 1, repeats: 3, stall: true })
    await run.beforeModel()
    await run.beforeTool('search', { q: 'secret' })
    await run.afterTool('search', { q: 'secret' }, 'r')
    await run.beforeTool('search', { q: 'secret' })
    await assert.rejects(
      run.beforeTool('search', { q: 'secret' }),
      (error) => error instanceof LoopDetectedError && error.runId === run.runId,
    )
    await assert.rejects(run.beforeModel(), TripError)
    assert.equal(run.tripped, true)
    const spender = Run.remote({ url: service.url, maxUsd: 1 })
    await assert.rejects(spender.recordUsd(2), BudgetExceededError)
    await assert.rejects(spender.beforeTool('a'), BudgetExceededError)
    const log = await new sdk.GuardClient(service.url).decisions({ session: run.runId, kind: 'all' })
    assert.ok(!JSON.stringify(log).includes('secret'))
  })

  it('calls side by side keep the ceiling of a run', async () => {
    const run = Run.remote({ url: service.url, maxUsd: 10, maxModelCalls: 3 })
    const ask = async () => (await run.modelCall('gpt-4o', 'hi', { maxTokens: 9 })).used({ inputTokens: 10 })
    await ask()
    const answers = await Promise.allSettled(Array.from({ length: 8 }, ask))
    assert.equal(answers.filter(({ status }) => status === 'fulfilled').length, 2)
    for (const { reason } of answers) if (reason) assert.equal(reason.reason, 'model_call_ceiling')
  })

  it('a model call whose question was refused holds up nobody', async () => {
    const run = Run.remote({ url: `${service.url}/nowhere`, maxUsd: 10 })
    const ask = () => run.modelCall('gpt-4o', 'hi', { maxTokens: 9 })
    await assert.rejects(ask, ServiceError)
    await assert.rejects(Promise.race([ask(), new Promise((resolve) => setTimeout(resolve, 3000))]), ServiceError)
  })

  it('warns and falls back with the money in a service', async () => {
    const warn = console.warn
    console.warn = () => {}
    try {
      const warnings = []
      const run = Run.remote({
        url: service.url,
        maxUsd: 1,
        warnAt: 0.5,
        fallbackModel: 'gpt-4o-mini',
        onWarning: (one) => warnings.push(one.spent),
      })
      await (await run.modelCall('gpt-4o', 'hi', { maxTokens: 9 })).used({ inputTokens: 200_000 })
      const call = await run.modelCall('gpt-4o', 'hi', { maxTokens: 9 })
      assert.deepEqual([warnings, call.model], [[0.5], 'gpt-4o-mini'])
      assert.ok((await run.budget.books()).reserved > 0)
      call.free()
      // Nobody waits for it: the service is told on its own time.
      for (let round = 0; round < 100 && (await run.budget.books()).reserved > 0; round += 1)
        await new Promise((resolve) => setTimeout(resolve, 10))
      assert.equal((await run.budget.books()).reserved, 0)
    } finally {
      console.warn = warn
    }
  })

  it('a budget of calls without steps', async () => {
    const budget = BudgetTracker.remote({ url: service.url, cap: 2 })
    await budget.record()
    assert.equal(await budget.check(), 1)
    await budget.record()
    await assert.rejects(budget.record(), BudgetExceededError)
  })

  it('without a service guards pass and budgets do not', async () => {
    const url = await deadUrl()
    const warn = console.warn
    console.warn = () => {}
    try {
      await LoopDetector.remote({ url }).record('a')
      assert.equal((await StallDetector.remote({ url }).observe('a')).rung, 'go_on')
      assert.equal(await CircuitBreaker.remote({ url }).call(() => 7), 7)
      await assert.rejects(BudgetTracker.remote({ url, maxUsd: 1 }).record(1), ServiceError)
      await assert.rejects(LoopDetector.remote({ url, failOpen: false }).record('a'), ServiceError)
    } finally {
      console.warn = warn
    }
  })
})
