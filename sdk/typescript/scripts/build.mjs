// Builds the package: the core with cargo, its bytes into a TypeScript file, then ESM and CJS with tsc.
//   node scripts/build.mjs             all of it
//   node scripts/build.mjs --js-only   only TypeScript, with the WebAssembly of the last build
//   RUNGUARD_WASM_PROFILE=dev …        WebAssembly that is quick to build, for tests; a release is built with the profile `wasm`
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const run = (command, args, options = {}) => execFileSync(command, args, { stdio: 'inherit', cwd: root, ...options })

if (!process.argv.includes('--js-only')) {
  const crate = join(root, 'wasm')
  const profile = process.env.RUNGUARD_WASM_PROFILE ?? 'wasm'
  run(
    'cargo',
    ['build', '--profile', profile, '--locked', '--target', 'wasm32-unknown-unknown', ...(process.env.CARGO_BUILD_FLAGS?.split(' ') ?? [])],
    { cwd: crate },
  )
  const metadata = JSON.parse(
    execFileSync('cargo', ['metadata', '--format-version', '1', '--no-deps', '--offline'], { cwd: crate, maxBuffer: 1 << 26 }),
  )
  const wasm = readFileSync(join(metadata.target_directory, 'wasm32-unknown-unknown', profile === 'dev' ? 'debug' : profile, 'runguard_wasm.wasm'))
  const source = `// Made by scripts/build.mjs from the crate in wasm/.\nexport const WASM_BASE64 =\n  "${wasm.toString('base64')}";\n`
  writeFileSync(join(root, 'src/core/wasm-bytes.ts'), source)
  console.log(`core: ${(wasm.length / 1024).toFixed(0)} KiB of WebAssembly`)
}

const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin/tsc')
rmSync(join(root, 'dist'), { recursive: true, force: true })
for (const project of ['tsconfig.json', 'tsconfig.cjs.json']) run(process.execPath, [tsc, '-p', project])
mkdirSync(join(root, 'dist/cjs'), { recursive: true })
writeFileSync(join(root, 'dist/cjs/package.json'), '{ "type": "commonjs" }\n')
