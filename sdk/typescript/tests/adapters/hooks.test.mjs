// `withGuard({ maxUsd: 1 }, …)` without naming a client: real clients against a model on this machine.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import test from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { gzipSync } from 'node:zlib'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import Anthropic from '@anthropic-ai/sdk'
import {
  BudgetExceededError,
  currentRun,
  guard,
  LoopDetectedError,
  Run,
  setPrices,
  ToolLimitError,
  TripError,
  tripOf,
  UnknownModelError,
  withGuard,
} from '@runguard/sdk'
import { generateText, streamText } from 'ai'
import OpenAI, { AzureOpenAI } from 'openai'
import { COSTLY, startModel } from './model-server.mjs'

const require = createRequire(import.meta.url)
const CLAUDE = 'claude-sonnet-4-6'
const messages = [{ role: 'user', content: 'go on' }]
const more = () => ({ text: 'more' })

async function service(t, script = more, options = { usage: COSTLY }) {
  const model = await startModel(script, options)
  t.after(model.stop)
  return model
}

const openai = (model, Client = OpenAI, options = {}) => new Client({ baseURL: model.url, apiKey: 'key', maxRetries: 0, ...options })
const anthropic = (model, Client = Anthropic) => new Client({ baseURL: model.url.replace('/v1', ''), apiKey: 'key', maxRetries: 0 })
const asked = { model: 'gpt-4o', messages }
const askedClaude = { model: CLAUDE, max_tokens: 1000, messages }
const all = async (stream) => {
  const parts = []
  for await (const part of stream) parts.push(part)
  return parts
}

/** Ways to ask a model; each gives a function that asks once. */
const WAYS = {
  chat:
    (model, client = openai(model)) =>
    () =>
      client.chat.completions.create(asked),
  'chat, streamed':
    (model, client = openai(model)) =>
    async () =>
      all(await client.chat.completions.create({ ...asked, stream: true })),
  'chat, the helper for streams':
    (model, client = openai(model)) =>
    () =>
      client.chat.completions.stream(asked).finalContent(),
  'chat, parsed':
    (model, client = openai(model)) =>
    () =>
      client.chat.completions.parse(asked),
  'chat, raw response':
    (model, client = openai(model)) =>
    () =>
      client.chat.completions.create(asked).withResponse(),
  'chat, CommonJS':
    (model, client = openai(model, require('openai').OpenAI)) =>
    () =>
      client.chat.completions.create(asked),
  'chat, client with options':
    (model, client = openai(model).withOptions({ timeout: 9000 })) =>
    () =>
      client.chat.completions.create(asked),
  'chat, a fetch of its own':
    (model, client = openai(model, OpenAI, { fetch: (...given) => fetch(...given) })) =>
    () =>
      client.chat.completions.create(asked),
  'chat, Azure': (model) => {
    const client = new AzureOpenAI({ endpoint: model.url.replace('/v1', ''), apiKey: 'key', apiVersion: '2024-10-21', maxRetries: 0 })
    return () => client.chat.completions.create(asked)
  },
  responses:
    (model, client = openai(model)) =>
    () =>
      client.responses.create({ model: 'gpt-4o', input: 'go on' }),
  'responses, streamed':
    (model, client = openai(model)) =>
    async () =>
      all(await client.responses.create({ model: 'gpt-4o', input: 'go on', stream: true })),
  completions:
    (model, client = openai(model)) =>
    () =>
      client.completions.create({ model: 'gpt-4o', prompt: 'go on' }),
  'completions, streamed':
    (model, client = openai(model)) =>
    async () =>
      all(await client.completions.create({ model: 'gpt-4o', prompt: 'go on', stream: true })),
  'chat, a body of bytes':
    (model, client = openai(model)) =>
    () =>
      client.post('/chat/completions', { body: new TextEncoder().encode(JSON.stringify(asked)) }),
  messages:
    (model, client = anthropic(model)) =>
    () =>
      client.messages.create(askedClaude),
  'messages, streamed':
    (model, client = anthropic(model)) =>
    async () =>
      all(await client.messages.create({ ...askedClaude, stream: true })),
  'messages, the helper for streams':
    (model, client = anthropic(model)) =>
    () =>
      client.messages.stream(askedClaude).finalMessage(),
  'messages, CommonJS':
    (model, client = anthropic(model, require('@anthropic-ai/sdk'))) =>
    () =>
      client.messages.create(askedClaude),
  'AI SDK, responses': (model) => () =>
    generateText({ model: createOpenAI({ baseURL: model.url, apiKey: 'key' })('gpt-4o'), prompt: 'go on' }),
  'AI SDK, chat streamed': (model) => async () => {
    const errors = []
    const given = {
      model: createOpenAI({ baseURL: model.url, apiKey: 'key' }).chat('gpt-4o'),
      prompt: 'go on',
      onError: ({ error }) => errors.push(error),
    }
    await all(streamText(given).fullStream)
    if (errors.length > 0) throw errors[0]
  },
  'AI SDK, messages': (model) => () =>
    generateText({ model: createAnthropic({ baseURL: model.url, apiKey: 'key' })(CLAUDE), prompt: 'go on' }),
  'fetch, a body that is streamed': (model) => async () => {
    const init = { method: 'POST', duplex: 'half', body: new Blob([JSON.stringify(asked)]).stream() }
    return (await fetch(`${model.url}/chat/completions`, init)).json()
  },
  'plain fetch': (model) => async () => {
    const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(asked) }
    return (await fetch(`${model.url}/chat/completions`, init)).json()
  },
}

for (const [way, make] of Object.entries(WAYS)) {
  test(`a block caps dollars: ${way}`, async (t) => {
    const model = await service(t)
    const ask = make(model)
    let run
    await assert.rejects(
      withGuard({ maxUsd: 1 }, async (own) => {
        run = own
        for (let call = 0; call < 30; call += 1) await ask()
      }),
      BudgetExceededError,
    )
    assert.ok(model.requests.length >= 3 && model.requests.length <= 4, `${model.requests.length} calls`)
    assert.ok(run.budget.spent >= 0.9 && run.budget.spent <= 1.36, `spent ${run.budget.spent}`)
    await ask()
  })

  test(`each call is counted once: ${way}`, async (t) => {
    const model = await service(t)
    const ask = make(model)
    await withGuard({ maxUsd: 100, maxModelCalls: 3 }, async (run) => {
      for (let call = 0; call < 3; call += 1) await ask()
      assert.ok(run.budget.spent > 0.6 && run.budget.spent < 1.05, `spent ${run.budget.spent}`)
      await assert.rejects(ask(), (error) => tripOf(error) instanceof ToolLimitError)
    })
    assert.equal(model.requests.length, 3)
  })
}

test('guard around a function: each call is a run, and a client made inside is seen', async (t) => {
  const model = await service(t)
  const agent = guard(
    async (calls) => {
      const client = openai(model)
      for (let call = 0; call < calls; call += 1) await client.chat.completions.create(asked)
    },
    { maxUsd: 1 },
  )
  await agent(2)
  await agent(2)
  await assert.rejects(agent(30), BudgetExceededError)
})

for (const way of ['chat', 'chat, streamed', 'responses', 'AI SDK, responses', 'AI SDK, chat streamed']) {
  test(`64 at once spend what there is and no more: ${way}`, async (t) => {
    const model = await service(t)
    const ask = WAYS[way](model)
    await withGuard({ maxUsd: 1 }, async (run) => {
      const answers = await Promise.allSettled(Array.from({ length: 64 }, ask))
      assert.equal(answers.filter(({ status }) => status === 'fulfilled').length, 4)
      assert.equal(model.requests.length, 4)
      assert.ok(Math.abs(run.budget.spent - 1) < 1e-9, `spent ${run.budget.spent}`)
    })
  })
}

for (const way of ['chat', 'chat, streamed', 'responses', 'messages', 'messages, streamed', 'AI SDK, chat streamed']) {
  test(`an answer without usage is billed by its size, and said once: ${way}`, async (t) => {
    const model = await service(t, () => ({ text: 'more '.repeat(2000) }), { usage: null })
    const warned = t.mock.method(console, 'warn', () => {})
    const ask = WAYS[way](model)
    let run
    await assert.rejects(
      withGuard({ maxUsd: 0.1 }, async (own) => {
        run = own
        for (let call = 0; call < 30; call += 1) await ask()
      }),
      BudgetExceededError,
    )
    assert.ok(run.budget.spent >= 0.08 && run.budget.spent < 0.2, `spent ${run.budget.spent}`)
    assert.ok(model.requests.length >= 2 && model.requests.length <= 8, `${model.requests.length} calls`)
    assert.equal(warned.mock.calls.filter(({ arguments: [text] }) => /without its usage/.test(text)).length, 1)
  })
}

test('a model without a price is not asked', async (t) => {
  const model = await service(t)
  const client = openai(model)
  await withGuard({ maxUsd: 1 }, async () => {
    for (let call = 0; call < 3; call += 1) {
      await assert.rejects(client.chat.completions.create({ ...asked, model: 'house-model' }), UnknownModelError)
    }
    assert.equal(model.requests.length, 0)
    await client.chat.completions.create(asked)
  })
})

test('an answer is no longer than what is left pays for', async (t) => {
  const model = await service(t)
  const client = openai(model)
  await withGuard({ maxUsd: 0.01 }, () => client.chat.completions.create({ ...asked, max_tokens: 4000 }))
  assert.ok(model.requests[0].max_tokens > 900 && model.requests[0].max_tokens < 1000, `${model.requests[0].max_tokens}`)
  await withGuard({ maxUsd: 5 }, async () => {
    await client.chat.completions.create({ ...asked, max_tokens: 4000 })
    await client.chat.completions.create(asked)
  })
  assert.equal(model.requests[1].max_tokens, 4000)
  assert.deepEqual(model.requests[2], asked)
})

for (const given of [{}, { max_tokens: 1000 }]) {
  test(`each of many answers is paid for: ${JSON.stringify(given)}`, async (t) => {
    const model = await service(t)
    const client = openai(model)
    const many = { ...asked, n: 64, ...given }
    await withGuard({ maxUsd: 0.5 }, () => client.chat.completions.create(many))
    const [sent] = model.requests
    const longest = sent.max_tokens ?? sent.max_completion_tokens
    // Fifty cents are 50,000 tokens that are written, for 64 answers.
    assert.ok(sent.n === 64 && longest > 776 && longest < 784, `${longest}`)
    // 7 tokens each are no answers.
    await assert.rejects(
      withGuard({ maxUsd: 0.005 }, () => client.chat.completions.create(many)),
      BudgetExceededError,
    )
    assert.equal(model.requests.length, 1)
  })
}

test('the caller sees a stream as it would be without us', async (t) => {
  const model = await service(t)
  const ask = WAYS['chat, streamed'](model)
  const before = await ask()
  const within = await withGuard({ maxUsd: 5 }, ask)
  const anonymous = (parts) => parts.map(({ id, ...part }) => part)
  assert.deepEqual(anonymous(within), anonymous(before))
  assert.equal(model.requests[1].stream_options.include_usage, true)
})

test('a stream that breaks off, or is left, is billed by what came', async (t) => {
  for (const [breaksOff, client] of [
    [true, openai],
    [false, openai],
  ]) {
    const model = await service(t, () => ({ text: 'more '.repeat(2000), breaksOff }))
    await withGuard({ maxUsd: 5 }, async (run) => {
      t.mock.method(console, 'warn', () => {})
      try {
        for await (const _ of await client(model).chat.completions.create({ ...asked, stream: true })) if (!breaksOff) break
      } catch (error) {
        assert.ok(breaksOff, error)
      }
      await new Promise((resolve) => setTimeout(resolve, 20))
      assert.ok(run.budget.spent > 0.01 && run.budget.spent < 0.2, `spent ${run.budget.spent}`)
      assert.equal(run.budget.reserved, 0)
    })
  }
})

test('a stream in a form of its own is passed on as it comes, and billed by its size', async (t) => {
  const bytes = new Uint8Array(10_000).map((_, index) => index % 251)
  const server = createServer((_, response) => response.writeHead(200, { 'content-type': 'application/vnd.amazon.eventstream' }).end(bytes))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close().closeAllConnections())
  t.mock.method(console, 'warn', () => {})
  await withGuard({ maxUsd: 1 }, async (run) => {
    const init = { method: 'POST', body: JSON.stringify({ ...asked, stream: true }) }
    const response = await fetch(`http://127.0.0.1:${server.address().port}/v1/messages`, init)
    assert.deepEqual(new Uint8Array(await response.arrayBuffer()), bytes)
    assert.ok(run.budget.spent > 0.01, `spent ${run.budget.spent}`)
    assert.equal(run.budget.reserved, 0)
  })
})

test('a request that fails gives back what was set aside; retries are one call', async (t) => {
  const model = await service(t, (turn) => (turn <= 2 ? { status: 500 } : { text: 'more' }))
  const client = openai(model, OpenAI, { maxRetries: 2 })
  await withGuard({ maxUsd: 1, maxModelCalls: 1 }, async (run) => {
    await client.chat.completions.create(asked)
    assert.equal(model.requests.length, 3)
    assert.ok(Math.abs(run.budget.spent - 0.25) < 1e-9, `spent ${run.budget.spent}`)
  })
  const broken = await service(t, () => ({ status: 500 }))
  await withGuard({ maxUsd: 1 }, async (run) => {
    for (let call = 0; call < 3; call += 1) await assert.rejects(openai(broken).chat.completions.create(asked), /500/)
    assert.deepEqual([run.budget.spent, run.budget.reserved], [0, 0])
  })
})

test('a refused tool ends the run: the next question to the model is refused', async (t) => {
  const model = await service(t)
  const client = openai(model)
  let runs = 0
  await assert.rejects(
    withGuard({ repeats: 3 }, async (run) => {
      const search = run.tool(() => (runs++, 'nothing'), 'search')
      for (let turn = 0; turn < 30; turn += 1) {
        await client.chat.completions.create(asked)
        try {
          search({ query: 'rust' })
        } catch (error) {
          assert.ok(error instanceof TripError)
        }
      }
    }),
    LoopDetectedError,
  )
  assert.deepEqual([runs, model.requests.length], [2, 3])
})

test('an answer with tool calls that broke the budget is not handed out', async (t) => {
  const model = await service(t, () => ({ tools: [{ name: 'search', args: {} }] }))
  const client = openai(model)
  await withGuard({ maxUsd: 0.2 }, async () => {
    await assert.rejects(client.chat.completions.create(asked), BudgetExceededError)
  })
  await withGuard({ maxUsd: 0.2 }, async () => {
    await assert.rejects(async () => all(await client.chat.completions.create({ ...asked, stream: true })), BudgetExceededError)
  })
})

test('what the caller tells is not told twice', async (t) => {
  const model = await service(t)
  const client = openai(model)
  const spent = (tell) =>
    withGuard({ maxUsd: 10 }, async (run) => {
      for (let call = 0; call < 3; call += 1) await tell(run)
      return run.budget.spent
    })
  const after = await spent(async (run) => {
    const { usage } = await client.chat.completions.create(asked)
    run.recordUsage('gpt-4o', { inputTokens: usage.prompt_tokens, outputTokens: usage.completion_tokens })
  })
  assert.ok(Math.abs(after - 0.75) < 1e-9, `${after}`)
  const byHand = await spent(async (run) => {
    run.beforeModel()
    const { usage } = await client.chat.completions.create(asked)
    run.recordUsage('gpt-4o', { inputTokens: usage.prompt_tokens, outputTokens: usage.completion_tokens })
  })
  assert.ok(Math.abs(byHand - 0.75) < 1e-9, `${byHand}`)
})

test('other runs and code outside are left alone, and everything is put back', async (t) => {
  const model = await service(t)
  const ask = WAYS.chat(model)
  const { OpenAI: Required } = require('openai')
  const before = [globalThis.fetch, OpenAI.prototype.makeRequest, Required.prototype.makeRequest, Anthropic.prototype.makeRequest]
  const now = () => [globalThis.fetch, OpenAI.prototype.makeRequest, Required.prototype.makeRequest, Anthropic.prototype.makeRequest]
  let go
  const outside = new Promise((resolve) => (go = resolve)).then(() => [currentRun(), ask()])
  await withGuard({ maxUsd: 0.01 }, async (outer) => {
    assert.ok(now().every((one, index) => one !== before[index]))
    go()
    const [run, answer] = await outside
    assert.equal(run, null)
    await answer
    assert.equal(outer.budget.spent, 0)
    const other = new Run({ maxUsd: 5 })
    await withGuard({ run: other }, ask)
    assert.ok(Math.abs(other.budget.spent - 0.25) < 1e-9)
    assert.equal(outer.budget.spent, 0)
    assert.notEqual(globalThis.fetch, before[0], 'the outer run is still open')
  })
  assert.deepEqual(now(), before)
})

test('it can be switched off', async (t) => {
  const model = await service(t)
  const ask = WAYS.chat(model)
  const spent = await withGuard({ maxUsd: 0.01, hook: false }, async (run) => {
    for (let call = 0; call < 5; call += 1) await ask()
    return run.budget.spent
  })
  assert.deepEqual([spent, model.requests.length], [0, 5])
})

test('embeddings are priced', async (t) => {
  setPrices({ 'text-embedding-3-small': { input: 0.02, output: 0 } })
  const model = await service(t)
  const client = openai(model)
  const spent = await withGuard({ maxUsd: 1 }, async (run) => {
    await client.embeddings.create({ model: 'text-embedding-3-small', input: 'a text', encoding_format: 'float' })
    return run.budget.spent
  })
  assert.ok(Math.abs(spent - 0.00192) < 1e-9, `${spent}`)
})

test('what is hooked is said with NODE_DEBUG=runguard', async () => {
  const program = `import { withGuard } from '@runguard/sdk'; await withGuard({}, async () => {}); await withGuard({}, async () => {})`
  const options = { env: { ...process.env, NODE_DEBUG: 'runguard' } }
  const said = await new Promise((resolve, reject) => {
    execFile(process.execPath, ['--input-type=module', '-e', program], options, (error, _, stderr) =>
      error ? reject(error) : resolve(stderr),
    )
  })
  assert.equal(said.match(/hooks fetch/g)?.length, 1, said)
  assert.equal(said.match(/hooks OpenAI/g)?.length, 1, said)
})

const { RUNGUARD_BIN } = process.env

for (const [kind, load] of [
  ['ESM', "import OpenAI, { AzureOpenAI } from 'openai'"],
  ['CommonJS', "const { OpenAI } = require('openai')"],
]) {
  test(`runguard run caps a program as it is: ${kind}`, { skip: RUNGUARD_BIN === undefined && 'RUNGUARD_BIN is not set' }, async (t) => {
    const model = await service(t)
    const file = `agent-${process.pid}.${kind === 'ESM' ? 'mjs' : 'cjs'}`
    const ask = `async function agent() {
      const client = new OpenAI({ baseURL: '${model.url}', apiKey: 'key' })
      for (let call = 0; call < 30; call += 1) await client.chat.completions.create({ model: 'gpt-4o', messages: [{ role: 'user', content: 'go' }] })
    }
    agent().catch((error) => { console.log(error.name); process.exitCode = 7 })`
    writeFileSync(file, `${load}\n${ask}`)
    t.after(() => rmSync(file))
    const begun = Date.now()
    const [code, stdout, stderr] = await new Promise((resolve) => {
      execFile(RUNGUARD_BIN, ['run', '--max-usd', '1', '--', process.execPath, file], (error, ...said) =>
        resolve([error?.code ?? 0, ...said]),
      )
    })
    assert.equal(stdout.trim(), 'BudgetExceededError', stderr)
    assert.equal(code, 7)
    assert.match(stderr, /spent \$1\.00 of \$1\.00/)
    assert.equal(model.requests.length, 4)
    assert.ok(Date.now() - begun < 20_000, `${Date.now() - begun} ms`)
  })
}

test('sound and the way it was served are priced', async (t) => {
  const usage = {
    prompt_tokens: 1000,
    completion_tokens: 500,
    prompt_tokens_details: { audio_tokens: 400 },
    completion_tokens_details: { audio_tokens: 300 },
  }
  const answer = { id: 'a', object: 'chat.completion', created: 0, model: 'loud', service_tier: 'flex', choices: [], usage }
  const server = createServer((_, response) => response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer)))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close().closeAllConnections())
  setPrices({ loud: { input: 10, output: 20, audioInput: 100, audioOutput: 200, flex: [{ tokens: 0, input: 5 }] } })
  const client = openai({ url: `http://127.0.0.1:${server.address().port}/v1` })
  const spent = await withGuard({ maxUsd: 1 }, async (run) => {
    await client.chat.completions.create({ ...asked, model: 'loud' })
    return run.budget.spent
  })
  const due = (600 * 5 + 200 * 20 + 400 * 100 + 300 * 200) / 1e6
  assert.ok(Math.abs(spent - due) < 1e-9, `${spent}, not ${due}`)
})

setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc')

/** Runs the collector until `isSo`, for a second at most. */
async function collectUntil(isSo) {
  for (let round = 0; round < 100 && !isSo(); round += 1) {
    gc()
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  assert.ok(isSo())
}

/** How long it takes, in milliseconds. */
async function lasts(ask) {
  const began = performance.now()
  await ask()
  return performance.now() - began
}

for (const [kind, read] of [
  ['never read', () => {}],
  ['read in part', async (stream) => void (await stream[Symbol.asyncIterator]().next())],
]) {
  test(`a stream that is dropped, ${kind}, is billed for what came and holds up nobody`, async (t) => {
    t.mock.method(console, 'warn', () => {})
    const model = await service(t, () => ({ text: 'more '.repeat(300) }))
    await withGuard({ maxUsd: 1 }, async (run) => {
      // From openai 7 on the client holds on to a stream that was begun, as long as its connection is there.
      const isHeld = kind === 'read in part' && Number.parseInt(require('openai/version').VERSION) >= 7
      for (const ask of [
        ...(isHeld ? [] : [() => openai(model).chat.completions.create({ ...asked, stream: true })]),
        () => anthropic(model).messages.create({ ...askedClaude, stream: true }),
        async () =>
          (await fetch(`${model.url}/chat/completions`, { method: 'POST', body: JSON.stringify({ ...asked, stream: true }) })).body,
      ]) {
        const before = run.budget.spent
        await (async () => void (await read(await ask())))()
        assert.ok(run.budget.reserved > 0)
        await collectUntil(() => run.budget.reserved === 0)
        assert.ok(run.budget.spent > before, 'the prompt was paid')
      }
      assert.ok((await lasts(() => openai(model).chat.completions.create(asked))) < 1000)
    })
  })
}

test('two streams that nobody reads yet do not wait for each other', async (t) => {
  const model = await service(t)
  await withGuard({ maxUsd: 1 }, async (run) => {
    const client = openai(model)
    const begin = () => client.chat.completions.create({ ...asked, stream: true, max_tokens: 1000 })
    const first = await begin()
    let second
    assert.ok((await lasts(async () => (second = await begin()))) < 2000)
    for (const stream of [first, second]) await all(stream)
    assert.ok(Math.abs(run.budget.spent - 0.5) < 1e-9, `spent ${run.budget.spent}`)
  })
})

test('an aborted stream is billed for what came, read or not', async (t) => {
  t.mock.method(console, 'warn', () => {})
  const model = await service(t)
  await withGuard({ maxUsd: 1 }, async (run) => {
    const aborting = new AbortController()
    const stream = await openai(model).chat.completions.create({ ...asked, stream: true }, { signal: aborting.signal })
    aborting.abort()
    await new Promise((resolve) => setTimeout(resolve, 50))
    assert.equal(run.budget.reserved, 0)
    assert.ok(run.budget.spent > 0)
    assert.equal(typeof stream.controller, 'object')
    const signal = AbortSignal.timeout(100)
    const request = new Request(`${model.url}/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({ ...asked, stream: true }),
      signal,
    })
    const response = await fetch(request)
    await new Promise((resolve) => setTimeout(resolve, 200))
    assert.equal(run.budget.reserved, 0)
    assert.equal(response.ok, true)
  })
})

test('comments that keep a stream alive are not billed', async (t) => {
  t.mock.method(console, 'warn', () => {})
  const spent = async (comments) => {
    const server = createServer((_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      const chunk = {
        id: 'a',
        object: 'chat.completion.chunk',
        created: 1,
        model: 'gpt-4o',
        choices: [{ index: 0, delta: { content: 'more' }, finish_reason: 'stop' }],
      }
      response.end(`${': OPENROUTER PROCESSING\n\n'.repeat(comments)}data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`)
    })
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
    t.after(() => server.close())
    return withGuard({ maxUsd: 1 }, async (run) => {
      await all(await openai({ url: `http://127.0.0.1:${server.address().port}` }).chat.completions.create({ ...asked, stream: true }))
      return run.budget.spent
    })
  }
  const plain = await spent(0)
  assert.ok(plain > 0)
  assert.equal(await spent(1000), plain)
})

test('most of a budget is told once, and then a cheaper model goes on', async (t) => {
  const printed = t.mock.method(console, 'warn', () => {})
  for (const [kind, ask] of [
    ['chat', (model) => openai(model).chat.completions.create(asked)],
    ['a stream', async (model) => all(await openai(model).chat.completions.create({ ...asked, stream: true }))],
    ['fetch', async (model) => (await fetch(`${model.url}/chat/completions`, { method: 'POST', body: JSON.stringify(asked) })).json()],
  ]) {
    const model = await service(t)
    const warnings = []
    const options = { maxUsd: 1, warnAt: 0.5, onWarning: (warning) => warnings.push(warning), fallbackModel: 'gpt-4o-mini' }
    await withGuard(options, async (run) => {
      for (let turn = 0; turn < 4; turn += 1) await ask(model)
      assert.deepEqual(
        model.requests.map(({ model }) => model),
        ['gpt-4o', 'gpt-4o', 'gpt-4o-mini', 'gpt-4o-mini'],
        kind,
      )
      assert.deepEqual(warnings, [{ message: '$0.50 of $1.00 are spent.', unit: 'usd', spent: 0.5, limit: 1, runId: run.runId }])
    })
  }
  assert.equal(printed.mock.calls.filter(({ arguments: [text] }) => text.includes('$0.50 of $1.00')).length, 3)
})

test('a body that cannot be read is refused under a budget, and else a call', async (t) => {
  const model = await service(t)
  const body = gzipSync(JSON.stringify(asked))
  const headers = { 'content-encoding': 'gzip' }
  const ways = [
    () => openai(model).post('/chat/completions', { body, headers }),
    () => fetch(`${model.url}/chat/completions`, { method: 'POST', body, headers }),
  ]
  await withGuard({ maxUsd: 1 }, async () => {
    for (const ask of ways) await assert.rejects(ask, /cannot be read/)
    assert.equal(model.requests.length, 0)
  })
  await withGuard({ maxModelCalls: 0 }, async () => {
    for (const ask of ways) await assert.rejects(ask, ToolLimitError)
  })
  const server = createServer((request, response) => request.resume().on('end', () => response.end('thanks')))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const elsewhere = { url: `http://127.0.0.1:${server.address().port}` }
  await withGuard({ maxModelCalls: 1 }, async () => {
    assert.equal(await openai(elsewhere).post('/chat/completions', { body, headers }), 'thanks', 'it is one call')
    await assert.rejects(openai(elsewhere).post('/chat/completions', { body, headers }), ToolLimitError)
  })
  await withGuard({ maxUsd: 1, maxModelCalls: 0 }, async () => {
    // Other services have such addresses too.
    for (const body of ['hello', new Blob(['hello']).stream(), new URLSearchParams({ text: 'hello' })]) {
      const answer = await fetch(`${elsewhere.url}/messages`, { method: 'POST', body, duplex: 'half' })
      assert.equal(await answer.text(), 'thanks')
    }
  })
})

test('what is billed without a count is refused under a budget, and else a call', async (t) => {
  const model = await service(t)
  const ways = [
    () => openai(model).images.generate({ prompt: 'a cat' }),
    () => openai(model).audio.speech.create({ model: 'tts-1', voice: 'alloy', input: 'hello' }),
    () => openai(model).batches.create({ completion_window: '24h', endpoint: '/v1/chat/completions', input_file_id: 'file-1' }),
    () => fetch('https://api.openai.com/v1/images/generations', { method: 'POST', body: '{"prompt":"a cat"}' }),
  ]
  for (const ask of ways) {
    await withGuard({ maxUsd: 1 }, async (run) => {
      await assert.rejects(ask, /without saying how much/)
      assert.equal(run.tripped, false)
    })
    await withGuard({ maxModelCalls: 0 }, () => assert.rejects(ask, ToolLimitError))
  }
  assert.equal(model.requests.length, 0)
  const server = createServer((request, response) => request.resume().on('end', () => response.end('thanks')))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  await withGuard({ maxUsd: 1 }, async () => {
    // A common word in somebody else's address.
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/batches`, { method: 'POST', body: '{}' })
    assert.equal(await answer.text(), 'thanks')
  })
})

test('what has a price that nobody knows is refused under a limit of dollars', async (t) => {
  const model = await service(t)
  const ask = (more) => openai(model).chat.completions.create({ model: 'gpt-4o', messages, ...more })
  const ways = {
    web_search_options: () => ask({ web_search_options: {} }),
    plugins: () => ask({ plugins: [{ id: 'web' }] }),
    'provider runs itself': () => openai(model).responses.create({ model: 'gpt-4o', input: 'go on', tools: [{ type: 'web_search' }] }),
    'names models': () => ask({ models: ['gpt-4'] }),
  }
  for (const [why, way] of Object.entries(ways)) {
    const before = model.requests.length
    await withGuard({ maxUsd: 1 }, async (run) => {
      await assert.rejects(way, new RegExp(why))
      assert.equal(run.tripped, false)
    })
    assert.equal(model.requests.length, before)
    await withGuard({ maxTokens: 200_000 }, way)
    assert.equal(model.requests.length, before + 1)
  }
})

test('of two bounds of an answer the larger is set aside, and both are lowered', async (t) => {
  const model = await service(t)
  await withGuard({ maxUsd: 0.1 }, () =>
    openai(model).chat.completions.create({ model: 'gpt-4o', messages, max_tokens: 90_000, max_completion_tokens: 100 }),
  )
  const { max_tokens, max_completion_tokens } = model.requests.at(-1)
  assert.ok(max_tokens > 9_000 && max_tokens < 10_000 && max_tokens === max_completion_tokens, String(max_tokens))
})

for (const [kind, more] of Object.entries({
  n: { n: 4 },
  best_of: { n: 2, best_of: 4 },
  prompts: { prompt: ['go', 'on', 'and', 'on'] },
  tokens: { n: 2, prompt: [[1, 2], [3]] },
})) {
  test(`every completion that is asked for is set aside: ${kind}`, async (t) => {
    const model = await service(t)
    await withGuard({ maxUsd: 1 }, async () => {
      await openai(model).completions.create({ model: 'gpt-4o', prompt: 'go on', max_tokens: 90_000, ...more })
    })
    const { max_tokens: longest } = model.requests[0]
    assert.ok(longest > 24_000 && longest <= 25_000, `${longest}: a dollar pays for four of them`)
  })
}

test('no number of answers is too large to be set aside', async (t) => {
  const model = await service(t)
  await withGuard({ maxUsd: 1 }, async (run) => {
    for (const n of [1e30, Infinity, 2 ** 53]) {
      await assert.rejects(openai(model).chat.completions.create({ ...asked, n, max_tokens: 1000 }), BudgetExceededError)
    }
    assert.equal(model.requests.length, 0)
    for (const n of [NaN, -3, 'two', null]) await openai(model).chat.completions.create({ ...asked, n, max_tokens: 1000 })
    assert.equal(run.tripped, false)
  })
})
