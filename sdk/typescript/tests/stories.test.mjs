// The stories that every language's Run must tell alike, in this process and over a real service.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { after, before, it, mock } from 'node:test'
import { startService } from '../../../examples/test/service.mjs'
import { routeOf } from '../dist/esm/models/routes.js'
import { Spending } from '../dist/esm/models/tellers.js'
import { InvalidInputError, Run } from '../dist/esm/index.js'
import { askedOfModel, mayBeBilled, usageIn } from '../dist/esm/prices.js'
import { inBoth } from './both.mjs'

const { stories, replies, sentences, usages, transcripts, questions, failures } = JSON.parse(readFileSync(new URL('../../stories.json', import.meta.url), 'utf8'))

/** A service that gives these answers, one to each question. */
async function answering(answers, use) {
  const left = [...answers]
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      const { status, text, decision } = left.shift()
      response.writeHead(status, { location: 'http://127.0.0.1:1/' }).end(text ?? JSON.stringify(decision))
    })
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  try {
    await use(`http://127.0.0.1:${server.address().port}`)
  } finally {
    server.closeAllConnections()
    server.close()
  }
}

const camelCase = (options) =>
  Object.fromEntries(Object.entries(options).map(([name, value]) => [name.replace(/_./g, (part) => part[1].toUpperCase()), value]))

class Player {
  #held = new Map()

  constructor(run) {
    this.run = run
  }

  /** Each step is a question of the run, or of its budget. */
  step({ do: name, ...step }) {
    const { run } = this
    switch (name) {
      case 'before_tool':
        return run.beforeTool(step.tool, step.args, { agent: step.agent })
      case 'after_tool':
        return run.afterTool(step.tool, step.args, step.result, { error: step.error, agent: step.agent })
      case 'before_model':
        return run.beforeModel()
      case 'record_usd':
        return run.recordUsd(step.usd)
      case 'record_usage':
        return run.recordUsage(step.model, { inputTokens: step.input_tokens, outputTokens: step.output_tokens })
      case 'model_call':
        return this.#begin(step)
      case 'used':
        return this.#held.get(step.call).used({ inputTokens: step.input_tokens, outputTokens: step.output_tokens })
      case 'check':
        return run.check()
      case 'new_turn':
        return run.newTurn()
      case 'reset':
        return run.reset()
      case 'reserve':
        return this.#reserve(step)
      case 'commit':
        return this.#held.get(step.reservation).commit(step.usd)
      case 'release':
        return this.#held.get(step.reservation).release()
      case 'count':
        return run.budget.record(step.session, step.step)
      case 'left':
        return this.#left(step)
      default:
        throw new Error(`there is no step '${name}'`)
    }
  }

  async #left({ session, step, gives }) {
    assert.equal(await this.run.budget.check(session, step), gives ?? Infinity)
  }

  async #begin({ model, prompt, max_tokens: maxTokens, as }) {
    this.#held.set(as, await this.run.modelCall(model, prompt, { maxTokens }))
  }

  async #reserve({ usd, as }) {
    this.#held.set(as, await this.run.budget.reserve(usd))
  }
}

inBoth('stories', (sdk) => {
  // One for each: what is spent of a scope stays spent.
  let service
  before(async () => {
    service = await startService()
  })
  after(() => service.stop())

  const errors = {
    loop: sdk.LoopDetectedError,
    stall: sdk.StallDetectedError,
    budget: sdk.BudgetExceededError,
    calls: sdk.ToolLimitError,
    unknown_model: sdk.UnknownModelError,
    service: sdk.ServiceError,
    input: sdk.InvalidInputError,
  }

  async function play(run, steps) {
    const player = new Player(run)
    for (const step of steps) {
      for (let time = 0; time < (step.times ?? 1); time++) {
        const place = JSON.stringify(step)
        let outcome
        try {
          outcome = { gave: await player.step(step) }
        } catch (refused) {
          outcome = { refused }
        }
        if (step.refused === undefined) {
          assert.equal(outcome.refused, undefined, place)
          assert.equal(outcome.gave ?? null, step.nudge ?? null, place)
        } else {
          const { error, ...fields } = step.refused
          assert.ok(outcome.refused instanceof errors[error], `${place}: ${outcome.refused}`)
          const seen = Object.fromEntries(Object.keys(fields).map((name) => [name, outcome.refused[name]]))
          assert.deepEqual(seen, fields, place)
        }
      }
    }
  }

  function remote(url, budget, run) {
    const parent = budget && { budget: sdk.BudgetTracker.remote({ ...camelCase(budget), url }) }
    return sdk.Run.remote({ ...camelCase(run), ...parent, url, stall: run.stall !== undefined })
  }

  it('what comes back is an answer or somebody’s fault, with the core and without', async () => {
    const seen = (asked) =>
      asked.then(
        (answer) => (answer?.failed_open === true ? 'away' : 'answer'),
        (error) => (error instanceof sdk.InvalidInputError ? 'input' : error instanceof sdk.LoopDetectedError ? 'answer' : 'misdirected'),
      )
    for (const reply of replies) {
      await answering([reply, reply], async (url) => {
        const away = []
        const warn = mock.method(console, 'warn', () => {})
        const client = new sdk.GuardClient({ url, failOpen: true, onFailedOpen: (error) => away.push(error) })
        const place = JSON.stringify(reply)
        const asked = client.handoff({})
        assert.equal(await seen(asked), reply.is, place)
        if (reply.says !== undefined) assert.deepEqual(await asked, { allow: true, ...reply.says }, place)
        const byCore = await seen(sdk.LoopDetector.remote({ client }).record('a'))
        assert.equal(away.length === 2 ? 'away' : byCore, reply.is, place)
        warn.mock.restore()
        const warned = warn.mock.calls.map(({ arguments: [text] }) => text.replace(/^runguard: POST \S+ /, ''))
        assert.deepEqual(warned, [...(reply.warns ?? []), ...(reply.warns ?? [])], place)
      })
    }
  })

  it('every language says the same sentences', async () => {
    const { url } = service
    for (const budget of [new sdk.BudgetTracker({ maxUsd: 1 }), sdk.BudgetTracker.remote({ maxUsd: 1, url })]) {
      const held = await budget.reserve(0.5)
      await held.release()
      await assert.rejects(async () => held.commit(0.5), { message: sentences.reservation_ended })
    }
    assert.throws(() => new sdk.StallDetector('nothing'), { message: sentences.unknown_preset })
    for (const detector of [new sdk.StallDetector(), sdk.StallDetector.remote({ url })])
      assert.equal((await detector.observe('search', {}, 'found')).message, sentences.progress)
  })

  for (const { name, kept_by, budget, run, steps, answers } of stories) {
    const options = camelCase(run)
    if (typeof options.stall === 'object') options.stall = camelCase(options.stall)
    if (kept_by.includes('answers')) {
      it(`with these answers: ${name}`, () => answering(answers, (url) => play(remote(url, budget, run), steps)))
    }
    if (kept_by.includes('process')) {
      it(`in process: ${name}`, () =>
        play(new sdk.Run({ ...options, ...(budget && { budget: new sdk.BudgetTracker(camelCase(budget)) }) }), steps))
    }
    if (kept_by.includes('service')) {
      it(`over a service: ${name}`, () => play(remote(service.url, budget, run), steps))
    }
  }
})

const NOTHING = {
  input_tokens: 0,
  output_tokens: 0,
  cached_tokens: 0,
  cache_write_tokens: 0,
  cache_write_1h_tokens: 0,
  audio_input_tokens: 0,
  audio_output_tokens: 0,
}

/** The events of a stream that bring a report. */
const EVENTS = {
  '/chat/completions': (usage) => ({ model: 'm', choices: [], usage }),
  '/responses': (usage) => ({ type: 'response.in_progress', response: { model: 'm', usage } }),
  '/messages': (usage, number) =>
    number > 0 ? { type: 'message_delta', usage } : { type: 'message_start', message: { model: 'm', usage } },
}

for (const { name, path, reports, service_tier, used } of usages) {
  it(`usage: ${name}`, () => {
    const route = routeOf('POST', path)
    const [first, ...later] = reports
    let usage
    if (route === null) {
      usage = usageIn(path, first)
    } else if (later.length > 0) {
      const reader = route.reader({})
      reports.forEach((report, number) => reader.take(EVENTS[path](report, number)))
      assert.ok(reader.isCounted)
      ;({ usage } = reader)
    } else {
      usage = route.usage({ usage: first, service_tier })
    }
    const { serviceTier = 'standard', ...counts } = usage
    const { service_tier: servedAs = 'standard', ...counted } = used
    assert.equal(serviceTier, servedAs)
    assert.deepEqual({ ...camelCase(NOTHING), ...counts }, camelCase({ ...NOTHING, ...counted }))
  })
}

for (const { name, path, body, calls, results, nudges, sent } of transcripts) {
  it(`transcript: ${name}`, () => {
    const route = routeOf('POST', path)
    const found = route.transcript(body)
    assert.deepEqual(
      found.calls.map(({ id, tool, args }) => [id, tool, args]),
      calls,
    )
    assert.deepEqual(Object.fromEntries([...found.results].map(([id, { result }]) => [id, result])), results)
    if (sent !== undefined) assert.deepEqual(route.withNudges(body, new Map(Object.entries(nudges))), sent)
  })
}

for (const { name, path, body, max_output, choices, bounds, unmetered } of questions) {
  it(`question: ${name}`, async () => {
    const route = routeOf('POST', path)
    const asked = askedOfModel(route.path, body.model, body)
    assert.deepEqual({ ...asked, unmetered: null }, { max_output, choices, bounds, unmetered: null })
    if (unmetered === null) assert.equal(asked.unmetered, null)
    else assert.ok(asked.unmetered?.includes(unmetered), asked.unmetered)
    // As a hooked client asks.
    const begun = async (options, of) => (await new Spending(new Run(options)).begin(route, of, true)) !== null
    for (const options of [{ maxTokens: 10_000_000 }, {}]) assert.ok(await begun(options, body))
    if (unmetered === null) assert.ok(await begun({ maxUsd: 100 }, { ...body, model: 'gpt-4o-mini' }))
    else await assert.rejects(begun({ maxUsd: 100 }, body), InvalidInputError)
  })
}

it('only a request that was sent may be billed', () => {
  for (const { errors, may_be_billed } of failures) {
    const error = errors.reduceRight((cause, name) => Object.assign(new Error(name, { cause }), { name }), undefined)
    assert.equal(mayBeBilled(error), may_be_billed, errors.join())
  }
})
