import assert from 'node:assert/strict'
import { it } from 'node:test'
import { inBoth, thrownBy } from './both.mjs'

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

inBoth(
  'Run',
  ({
    Run,
    BudgetTracker,
    LoopDetector,
    StallDetector,
    LoopDetectedError,
    ToolLimitError,
    BudgetExceededError,
    StallDetectedError,
    TripError,
    InvalidInputError,
  }) => {
    it('compares what a tool was asked, not what frameworks pass behind it', () => {
      class RunContext {}
      const behind = [
        (n) => [{ toolCallId: `call-${n}`, messages: [n], abortSignal: null }],
        (n) => [Object.assign(new RunContext(), { n }), { toolCall: { id: n }, signal: null }],
        (n) => [{ callbacks: [n], configurable: { thread: n }, metadata: { n } }],
        (n) => [{ runtimeContext: new Map([[n, n]]), tracingContext: { n } }],
        () => [undefined],
      ]
      for (const more of behind) {
        let runs = 0
        const search = new Run().tool(() => {
          runs += 1
          return 'nothing found'
        }, 'search')
        assert.ok(
          thrownBy(() => {
            for (let n = 0; n < 20; n += 1) search({ query: 'rust' }, ...more(n))
          }) instanceof LoopDetectedError,
        )
        assert.equal(runs, 2)
      }
    })

    it('stops a model that is told what it has already and does not listen', () => {
      const wordings = [
        'warranty policy for damaged items',
        'what is the warranty policy for damaged items',
        'the warranty policy for a damaged item',
        'warranty policy for the damaged items, please',
        'could you tell me the warranty policy for damaged items',
        'damaged items warranty policy',
      ]
      // As adapters ask.
      const instead = Symbol.for('@runguard/sdk.instead')
      const toldBeforeTheTrip = (run) => {
        let told = 0
        const trip = thrownBy(() => {
          for (let n = 0; n < 18; n += 1) {
            const args = { query: wordings[n % wordings.length] }
            run.beforeModel()
            run.beforeTool('search_knowledge', args)
            if (run[instead]('search_knowledge', args) === null) run.afterTool('search_knowledge', args, 'Thirty days.')
            else told += 1
          }
        })
        assert.ok(trip instanceof LoopDetectedError && trip === run.trip, String(trip))
        return told
      }
      assert.equal(toldBeforeTheTrip(new Run()), 6)
      assert.equal(toldBeforeTheTrip(new Run({ repeats: 9 })), 9)
      const again = new Run()
      again.afterTool('search', { query: 'rust' }, 'nothing')
      assert.equal(again[instead]('search', { query: 'rust' }), null, 'nobody has asked before what the model has')
      again.afterTool('search', { query: 'rust' }, 'nothing')
      assert.notEqual(again[instead]('search', { query: 'rust' }), null)
      again.reset()
      assert.equal(again[instead]('search', { query: 'rust' }), null, 'an operator has it forgotten')
      const polls = new Run({ tools: { status: { polling: 20 } } })
      for (let n = 0; n < 10; n += 1) {
        polls.beforeTool('status', { job: 7 })
        assert.equal(polls[instead]('status', { job: 7 }), null)
        polls.afterTool('status', { job: 7 }, `${n} %`)
      }
    })

    it('tells once that most is spent, and a model call then asks the fallback', async () => {
      const warn = console.warn
      console.warn = () => {}
      try {
        const warnings = []
        const run = new Run({ maxUsd: 1, fallbackModel: 'gpt-4o-mini', onWarning: (warning) => warnings.push(warning.message) })
        run.recordUsd(0.7)
        assert.deepEqual([warnings, (await run.modelCall('gpt-4o', 'hi', { maxTokens: 9 })).model], [[], 'gpt-4o'])
        run.recordUsd(0.1)
        run.recordUsd(0.01)
        const call = await run.modelCall('gpt-4o', 'hi', { maxTokens: 9 })
        assert.deepEqual([warnings, call.model], [['$0.80 of $1.00 are spent.'], 'gpt-4o-mini'])
        await call.used({ inputTokens: 1_000_000 })
        assert.ok(run.budget.spent < 0.97, 'at the price of the model that was asked')
        const failing = () => Promise.reject(new Error('no'))
        new Run({ maxUsd: 1, warnAt: 0.1, onWarning: failing }).recordUsd(0.5)
        await pause(1)
        for (const wrong of [0, 1.1, -1, '0.5']) assert.throws(() => new Run({ maxUsd: 1, warnAt: wrong }), InvalidInputError)
        assert.throws(() => new Run({ onWarning: 'print' }), InvalidInputError)
      } finally {
        console.warn = warn
      }
    })

    it('a model call that is left by a block gives back what it held', async () => {
      const run = new Run({ maxUsd: 1 })
      const call = await run.modelCall('gpt-4o', 'hi', { maxTokens: 100 })
      assert.ok(run.budget.reserved > 0)
      call[Symbol.dispose]()
      assert.equal(run.budget.reserved, 0)
      await (await run.modelCall('gpt-4o', 'hi', { maxTokens: 100 })).release()
      await call.used({ inputTokens: 1_000_000 })
      assert.equal(run.budget.spent, 0, 'it has ended')
    })

    it('compares all arguments of a function that is called by its own code', () => {
      const add = new Run().tool((one, two) => one + two, 'add')
      for (let n = 0; n < 20; n += 1) add(1, n)
      const change = new Run().tool(() => null, 'change')
      for (let n = 0; n < 20; n += 1) change({ order: 7 }, { state: `s${n}` })
      const dated = new Run().tool(() => null, 'dated')
      for (let n = 0; n < 20; n += 1) dated('x', new Date(n * 1000))
    })

    it('refuses the third equal call, and everything after it', () => {
      const run = new Run({ runId: 'r1' })
      run.beforeTool('search', { q: 'x', page: 1 })
      run.beforeTool('search', { page: 1.0, q: 'x' })
      const trip = thrownBy(() => run.beforeTool('search', { q: 'x', page: 1 }))
      assert.ok(trip instanceof LoopDetectedError)
      assert.deepEqual([trip.pattern, trip.cycle, trip.repeats, trip.runId, trip.reason], ['search', ['search'], 3, 'r1', 'loop_detected'])
      assert.equal(
        trip.message,
        "'search' was called with the same arguments 3 times in a row. Stop the run, or try something else: the same call gives the same result.",
      )
      for (const question of [() => run.beforeTool('other', {}), () => run.beforeModel(), () => run.check()])
        assert.equal(thrownBy(question), trip)
      assert.deepEqual([run.tripped, run.trip, run.message], [true, trip, trip.message])
    })

    it('with repeats 4 lets three equal calls run', () => {
      const run = new Run({ repeats: 4 })
      for (let call = 0; call < 3; call++) run.beforeTool('search', { q: 'x' })
      assert.throws(() => run.beforeTool('search', { q: 'x' }), LoopDetectedError)
    })

    it('names the tools of a longer circle', () => {
      const run = new Run()
      for (let round = 0; round < 2; round++) for (const tool of ['search', 'read']) run.beforeTool(tool, { a: 1 })
      run.beforeTool('search', { a: 1 })
      const trip = thrownBy(() => run.beforeTool('read', { a: 1 }))
      assert.deepEqual([trip.pattern, trip.cycleLen], ['search → read', 2])
      assert.ok(!/[\u001f]/.test(trip.message), trip.message)
    })

    it('lets different arguments pass', () => {
      const run = new Run()
      for (let page = 0; page < 50; page++) run.beforeTool('read', { page })
      assert.equal(run.tripped, false)
      assert.equal(run.message, '')
    })

    it('has ceilings for tool calls and model calls', () => {
      const run = new Run({ maxToolCalls: 2 })
      run.beforeTool('a', 1)
      run.beforeTool('b', 2)
      const trip = thrownBy(() => run.beforeTool('c', 3))
      assert.ok(trip instanceof ToolLimitError)
      assert.deepEqual([trip.tool, trip.limit, trip.reason], ['c', 2, 'tool_call_ceiling'])
      const talker = new Run({ maxModelCalls: 1 })
      talker.beforeModel()
      assert.equal(thrownBy(() => talker.beforeModel()).reason, 'model_call_ceiling')
      assert.throws(() => new Run({ maxToolCalls: 0 }).beforeTool('a'), ToolLimitError)
    })

    it('stops when the money is spent, and the trip stays', () => {
      const run = new Run({ maxUsd: 1 })
      run.recordUsd(0.4)
      run.beforeModel()
      assert.throws(
        () => run.recordUsd(0.7),
        (error) => error instanceof BudgetExceededError && error.runId === run.runId,
      )
      assert.throws(() => run.beforeTool('a'), BudgetExceededError)
      const exact = new Run({ maxUsd: 1 })
      exact.recordUsd(1)
      assert.equal(exact.tripped, false)
      assert.throws(() => exact.beforeModel(), BudgetExceededError)
      new Run().recordUsd(1000)
    })

    it('draws on a shared budget', () => {
      const team = new BudgetTracker({ maxUsd: 1 })
      const first = new Run({ budget: team, maxUsd: 0.8 })
      const second = new Run({ budget: team })
      first.recordUsd(0.7)
      assert.equal(team.spent, 0.7)
      assert.throws(() => second.recordUsd(0.5), BudgetExceededError)
      assert.throws(() => first.beforeModel(), BudgetExceededError)
    })

    it('steers and then stops a run without progress; the trip comes with the next question', () => {
      const run = new Run({ repeats: 100, stall: 'coding' })
      const nudges = [1, 2, 3, 4].map(() => {
        run.beforeModel()
        run.beforeTool('search', { q: 'x' })
        return run.afterTool('search', { q: 'x' }, 'nothing')
      })
      assert.deepEqual(
        nudges.map((nudge) => nudge !== null),
        [false, false, true, true],
      )
      const trip = thrownBy(() => run.beforeModel())
      assert.ok(trip instanceof StallDetectedError)
      assert.deepEqual([trip.rule, trip.count, trip.reason], ['identical', 4, 'stalled_identical'])
      assert.equal(new Run().afterTool('a', {}, 'r'), null)
    })

    it('starts anew with a user message, but keeps the trip and the money', () => {
      const run = new Run({ maxUsd: 1, stall: new StallDetector('coding') })
      run.recordUsd(0.5)
      for (let turn = 0; turn < 4; turn++) {
        run.beforeTool('search', {})
        run.beforeTool('search', {})
        run.newTurn()
      }
      assert.equal(run.budget.spent, 0.5)
      run.beforeTool('search', {})
      run.beforeTool('search', {})
      assert.throws(() => run.beforeTool('search', {}), LoopDetectedError)
      run.newTurn()
      assert.throws(() => run.beforeTool('search', {}), LoopDetectedError)
      run.reset()
      run.beforeTool('search', {})
    })

    it('shares a detector without mixing runs', () => {
      const loop = new LoopDetector()
      const [first, second] = [new Run({ loop }), new Run({ loop })]
      for (const run of [first, second]) {
        run.beforeTool('a', {})
        run.beforeTool('a', {})
      }
      assert.throws(() => first.beforeTool('a', {}), LoopDetectedError)
      assert.equal(second.tripped, false)
    })

    it('refuses bad input and counts nothing', () => {
      const run = new Run({ maxToolCalls: 1 })
      const cyclic = {}
      cyclic.self = cyclic
      assert.throws(() => run.beforeTool('', {}), InvalidInputError)
      assert.throws(() => run.beforeTool('a', cyclic), InvalidInputError)
      assert.throws(() => run.beforeTool('a', 'x'.repeat(10_000_000)), InvalidInputError)
      assert.equal(run.tripped, false)
      run.beforeTool('a', 10n)
      for (const options of [
        { runId: '' },
        { url: 'http://x' },
        { runId: 7 },
        { repeats: 1 },
        { maxToolCalls: -1 },
        { maxModelCalls: 1.5 },
        { maxUsd: NaN },
        { stall: 'none' },
        { alerts: { webhook: 'ftp://x' } },
      ]) {
        assert.throws(() => new Run(options), InvalidInputError, JSON.stringify(options))
      }
      assert.throws(() => new Run({ maxUsd: 1 }).recordUsd(-1), InvalidInputError)
    })

    it('wraps tools, sync and async', async () => {
      const run = new Run()
      let calls = 0
      const sync = run.tool(function add(left, right) {
        calls++
        return left + right
      })
      const slow = run.tool(async (id) => {
        calls++
        if (id === 'bad') throw new Error('no such id')
        return id
      }, 'slow')
      assert.equal(sync(1, 2), 3)
      assert.equal(await slow('x'), 'x')
      await assert.rejects(slow('bad'), /no such id/)
      sync(1, 2)
      sync(1, 2)
      assert.throws(() => sync(1, 2), LoopDetectedError)
      assert.throws(() => slow('y'), LoopDetectedError)
      assert.equal(calls, 5)
      assert.throws(() => run.tool(() => 1), InvalidInputError)
    })

    it('a trip that its tool wrapper sees does not hide the result', async () => {
      const run = new Run({ repeats: 100, stall: { identical: { stop: 2 } } })
      const tool = run.tool(async () => 'same', 'tool')
      assert.deepEqual([await tool(), await tool()], ['same', 'same'])
      assert.throws(() => tool(), TripError)
    })
  },
)

inBoth('guard', ({ guard, tool, currentRun, Run, LoopDetectedError, BudgetExceededError, InvalidInputError }) => {
  it('opens a new run for every call, and follows it through awaits', async () => {
    const search = tool(async (q) => `found ${q}`, 'search')
    const agent = guard(async (times) => {
      for (let time = 0; time < times; time++) {
        await pause(1)
        await search('x')
      }
      return currentRun().runId
    })
    const [one, two] = await Promise.all([agent(2), agent(2)])
    assert.notEqual(one, two)
    await assert.rejects(agent(3), LoopDetectedError)
    await agent(2)
    assert.equal(currentRun(), null)
    assert.equal(await search('free'), 'found free')
  })

  it('with a run of its own stays tripped', () => {
    const run = new Run({ maxToolCalls: 0 })
    const agent = guard(() => run.beforeTool('a'), { run })
    const first = thrownBy(agent)
    let entered = false
    assert.equal(thrownBy(guard(() => (entered = true), { run })), first)
    assert.equal(entered, false)
  })

  it('a run inside a run spends the outer one’s money', () => {
    const inner = guard(() => currentRun().recordUsd(0.6), { maxUsd: 5 })
    const outer = guard(
      () => {
        inner()
        inner()
      },
      { maxUsd: 1 },
    )
    assert.throws(outer, BudgetExceededError)
    inner()
  })

  it('runs a block', async () => {
    const run = new Run()
    assert.equal(await run.within(async (same) => same === run && currentRun() === run), true)
  })

  it('says at once that its options are wrong', () => {
    assert.throws(() => guard(() => 1, { repeats: 0 }), InvalidInputError)
    assert.throws(() => guard({ repeats: 3 }), InvalidInputError)
    assert.throws(() => tool(() => 1), InvalidInputError)
  })
})
