/** A run around a whole program, as `runguard run` opens it: the program is not changed, and its model clients are hooked. */
import { openForProgram } from './current.js'
import type { TripError } from './errors.js'
import { hooks } from './models/hooks.js'
import { RemoteRun } from './remote.js'

interface NodeProcess {
  readonly env: Readonly<Record<string, string | undefined>>
  readonly pid: number
  getBuiltinModule(name: 'node:fs'): { writeFileSync(path: string, text: string): void }
}

/**
 * Opens the run that the environment tells of, until the process ends. Its money is kept by a service, so that all processes of a program
 * share it. Its tools are not seen.
 */
export async function begin(): Promise<RemoteRun> {
  const { process } = globalThis as unknown as { process: NodeProcess }
  const leave = (kind: string, text: string): void => {
    const folder = process.env['RUNGUARD_RUN_FOLDER']
    if (folder !== undefined) process.getBuiltinModule('node:fs').writeFileSync(`${folder}/${process.pid}.${kind}`, text)
  }
  const told = JSON.parse(process.env['RUNGUARD_RUN'] ?? '{}') as Record<string, any>
  const run = new RemoteRun({
    url: told['url'],
    apiKey: told['api_key'],
    runId: told['run_id'],
    maxUsd: told['max_usd'],
    maxTokens: told['max_tokens'],
    maxSeconds: told['max_seconds'],
    maxModelCalls: told['max_model_calls'],
    alerts: { call: (trip: TripError) => leave('trip', trip.message) },
  })
  openForProgram(run)
  hooks.enter()
  leave('begun', '')
  await hooks.search()
  return run
}
