// Opens a run for the whole program. Node imports this before the program; `runguard run` puts it in the way.
import { writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const found = [process.argv[1], `${process.cwd()}/program.js`].flatMap((from) => {
  try {
    return from === undefined ? [] : [createRequire(pathToFileURL(from)).resolve('@runguard/sdk/program')]
  } catch {
    return []
  }
})
if (found.length > 0) {
  const { begin } = await import(pathToFileURL(found[0]).href)
  await begin()
} else if (process.env.RUNGUARD_RUN_PARENT === String(process.ppid)) {
  process.stderr.write(
    'runguard run: the package @runguard/sdk is not installed for this program, so nothing would be counted. Install it there: @INSTALL_NODE@\n',
  )
  writeFileSync(`${process.env.RUNGUARD_RUN_FOLDER}/node.missing`, '')
  process.exit(2)
}
