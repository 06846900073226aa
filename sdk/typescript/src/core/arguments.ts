/** What a tool was asked, among all that its function is called with. */

/** What frameworks pass behind the input: the id of the call, the messages so far, a signal, a context. It is new at every call. */
const FRAMEWORK = [
  'toolCallId',
  'toolCall',
  'messages',
  'abortSignal',
  'signal',
  'callbacks',
  'configurable',
  'experimental_context',
  'requestContext',
  'runtimeContext',
  'runContext',
  'tracingContext',
]

/** The arguments that tell one call from another: the first, and those after it that no framework has added. */
export function asked(args: readonly unknown[]): unknown {
  const [first, ...others] = args
  const own = others.filter((value) => value !== undefined && !isAdded(value))
  return own.length === 0 ? first : [first, ...own]
}

function isAdded(value: unknown): boolean {
  if (typeof value === 'function') return true
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const kind: unknown = Object.getPrototypeOf(value)
  // An object of a class: a context, a manager. Dates and the like are values.
  if (kind !== Object.prototype && kind !== null) return !(value instanceof Date || value instanceof Map || value instanceof Set)
  return FRAMEWORK.some((name) => name in value)
}
