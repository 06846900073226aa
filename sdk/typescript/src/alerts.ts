/** Tells people about a trip: Slack, PagerDuty, any webhook, any function. Never blocks the agent, never throws into it. */
import { known, snakeCase } from './core/input.js'
import { DONE, failure, output, outputJson, wasm, write, writeAll } from './core/wasm.js'
import { InvalidInputError, TripError } from './errors.js'

export interface AlertSettings {
  slackWebhook?: string | undefined
  /** A routing key of PagerDuty's Events API v2. */
  pagerdutyKey?: string | undefined
  /** Gets the facts of the trip as JSON. */
  webhook?: string | undefined
  call?: ((trip: TripError) => unknown) | undefined
  /** Where the alert comes from; the run's id is in it anyway. */
  source?: string | undefined
  timeoutMs?: number | undefined
  /** Where PagerDuty is asked; https://events.eu.pagerduty.com/v2/enqueue for accounts in the EU. */
  pagerdutyUrl?: string | undefined
}

/** What an `alerts` option may be. */
export type AlertsLike = Alerts | AlertSettings | ((trip: TripError) => unknown)

const PAGERDUTY = 'https://events.pagerduty.com/v2/enqueue'
const ATTEMPTS = 3
const LONGEST_PAUSE_MS = 5000
/** Deliveries under way at once: a flood of trips must not become a flood of requests. */
const AT_ONCE = 4
/** Deliveries that are not done, beyond which alerts are dropped. */
const MOST_WAITING = 1000

const underWay = new Set<Promise<void>>()
let turns = AT_ONCE
const waiting: (() => void)[] = []

/** Waits for one of the turns, and gives it to the next at the end. */
async function inTurn(delivery: () => Promise<unknown>): Promise<void> {
  if (turns > 0) turns--
  else await new Promise<void>((resolve) => waiting.push(resolve))
  try {
    await delivery()
  } finally {
    const next = waiting.shift()
    if (next === undefined) turns++
    else next()
  }
}

/** Waits until every alert is delivered or given up. False when `timeoutMs` was not enough. */
export async function flushAlerts(timeoutMs = 5000): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, timeoutMs)))
  const settled = Promise.all(underWay)
  await Promise.race([settled, late])
  clearTimeout(timer)
  return underWay.size === 0
}

/** Where a trip is reported. Each channel has its own delivery, so one that fails does not keep the others back. */
export class Alerts {
  readonly #settings: AlertSettings

  constructor(settings: AlertSettings) {
    known('Alerts', settings, ['slackWebhook', 'pagerdutyKey', 'webhook', 'call', 'source', 'timeoutMs', 'pagerdutyUrl'])
    for (const name of ['slackWebhook', 'webhook', 'pagerdutyUrl'] as const) {
      const url = settings[name]
      if (url !== undefined && !/^https?:\/\//.test(url))
        throw new InvalidInputError(`${name} must be an http:// or https:// URL, not ${String(url)}.`)
    }
    if (settings.call !== undefined && typeof settings.call !== 'function')
      throw new InvalidInputError('call must be a function: it is given the TripError.')
    this.#settings = settings
  }

  static of(value: AlertsLike | null | undefined): Alerts | null {
    if (value === undefined || value === null) return null
    if (value instanceof Alerts) return value
    return new Alerts(typeof value === 'function' ? { call: value } : value)
  }

  /** Begins the deliveries and returns at once. */
  send(trip: TripError): void {
    const { slackWebhook, pagerdutyKey, webhook, call, source = hostName(), timeoutMs = 5000, pagerdutyUrl = PAGERDUTY } = this.#settings
    const facts = factsOf(trip)
    const request = (channel: string, url: string, body: () => string) => deliver(channel, () => inTurn(() => post(url, body(), timeoutMs)))
    if (slackWebhook !== undefined) request('slack', slackWebhook, () => slackBody(facts, source))
    if (pagerdutyKey !== undefined) request('pagerduty', pagerdutyUrl, () => pagerdutyBody(facts, source, pagerdutyKey))
    if (webhook !== undefined) request('webhook', webhook, () => toJson(facts))
    // It has no time limit, so it takes no turn: one that never ends would hold up all others.
    if (call !== undefined) deliver('function', async () => call(trip))
  }
}

/** Of this machine, where there is one that has a name: a browser does not say. */
function hostName(): string {
  const { process } = globalThis as { process?: { getBuiltinModule?(name: 'node:os'): { hostname(): string } | undefined } }
  return process?.getBuiltinModule?.('node:os')?.hostname() || 'runguard'
}

/** Reports an error that is a trip, and gives it back. */
export function reported<E>(alerts: Alerts | null, error: E): E {
  if (alerts !== null && error instanceof TripError) alerts.send(error)
  return error
}

function deliver(channel: string, delivery: () => Promise<unknown>): void {
  if (underWay.size >= MOST_WAITING) {
    console.warn(`runguard: alert to ${channel} dropped: ${MOST_WAITING} others are waiting`)
    return
  }
  // In a later turn of the event loop, so that a slow function of the user's does not hold up the agent's own step.
  const done: Promise<void> = new Promise<void>((resolve) => setTimeout(resolve))
    .then(delivery)
    .then(
      () => {},
      (error: unknown) => console.warn(`runguard: alert to ${channel} failed: ${error instanceof Error ? error.message : String(error)}`),
    )
    .finally(() => underWay.delete(done))
  underWay.add(done)
}

type Facts = Record<string, unknown>

/** What a webhook gets: flat, without the arguments of any call. */
function factsOf(trip: TripError): Facts {
  const { error: kind, ...own } = trip.toJSON()
  const status = wasm.trip_facts(write(toJson({ ...snakeCase(own), kind, time: new Date().toISOString() })))
  if (status !== DONE) throw failure(status)
  return outputJson()
}

/** The bodies as the core makes them. */
function slackBody(facts: Facts, source: string): string {
  const [factsLength = 0, sourceLength = 0] = writeAll([toJson(facts), source])
  return made(wasm.trip_to_slack(factsLength, sourceLength))
}

function pagerdutyBody(facts: Facts, source: string, routingKey: string): string {
  const [factsLength = 0, sourceLength = 0, keyLength = 0] = writeAll([toJson(facts), source, routingKey])
  return made(wasm.trip_to_pagerduty(factsLength, sourceLength, keyLength))
}

function made(status: number): string {
  if (status !== DONE) throw failure(status)
  return output()
}

/** Half a character (a lone surrogate) is no UTF-8, and would be refused with the whole message. */
function toJson(facts: Facts): string {
  return JSON.stringify(facts, (_key, value: unknown) => (typeof value === 'string' ? value.replace(/\p{Surrogate}/gu, '\uFFFD') : value))
}

async function post(url: string, body: string, timeoutMs: number): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    let pause = attempt * 1000
    try {
      const response = await fetch(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
        signal: AbortSignal.timeout(timeoutMs),
      })
      await response.body?.cancel()
      if (response.ok) return
      const passing = response.status === 429 || response.status >= 500
      if (!passing || attempt === ATTEMPTS) throw new Refused(`the answer was HTTP ${response.status}`)
      const asked = Number(response.headers.get('retry-after') ?? Number.NaN) * 1000
      if (asked >= 0) pause = Math.min(asked, LONGEST_PAUSE_MS)
    } catch (error) {
      if (error instanceof Refused || attempt === ATTEMPTS) throw error
    }
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

/** An answer that another attempt would not change. */
class Refused extends Error {}
