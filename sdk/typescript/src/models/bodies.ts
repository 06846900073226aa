/** What is sent to a model, whoever wrote it. */

type Body = Readonly<Record<string, any>>

/** A body that was looked at: what it says, null when that cannot be read; and what to send in its place, since a stream can be read once. */
export interface Looked {
  readonly says: Body | null
  readonly body: any
}

/** Looks at the body of a request. */
export async function lookedAt(body: any): Promise<Looked> {
  if (typeof body === 'string') return { says: parsed(body), body }
  if (body instanceof FormData || body instanceof URLSearchParams) return { says: null, body }
  if (body instanceof ArrayBuffer || ArrayBuffer.isView(body) || body instanceof Blob)
    return { says: parsed(await new Response(body as BodyInit).text()), body }
  if (typeof body !== 'object' || body === null) return { says: null, body }
  if (!(Symbol.asyncIterator in body)) return { says: body, body }
  const bytes = new Uint8Array(await new Response(asStream(body)).arrayBuffer())
  return { says: parsed(new TextDecoder().decode(bytes)), body: bytes }
}

/** A stream of the web, of one of Node's too. */
export function asStream(body: any): ReadableStream<Uint8Array> {
  if (typeof body.getReader === 'function') return body
  return (ReadableStream as unknown as { from(source: unknown): ReadableStream<Uint8Array> }).from(body)
}

function parsed(text: string): Body | null {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : null
  } catch {
    return null
  }
}
