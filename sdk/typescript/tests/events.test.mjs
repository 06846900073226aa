import assert from 'node:assert/strict'
import { it } from 'node:test'
import { EventCutter, eventOf } from '../dist/esm/models/events.js'

const events = [
  'data: {"a":1}\n\n',
  ': a comment\n\n',
  'event: x\r\ndata: {"b":\r\ndata: "é"}\r\n\r\n',
  'data: {"c":3}\r\r',
  'data:[DONE]\n\n',
]

it('events are cut out of bytes in any chunking, and no byte is lost', () => {
  const bytes = new TextEncoder().encode(`${events.join('')}data: {"broken`)
  for (let size = 1; size <= bytes.length; size += 1) {
    const cutter = new EventCutter()
    const cut = []
    for (let at = 0; at < bytes.length; at += size) cut.push(...cutter.cut(bytes.slice(at, at + size)))
    const texts = cut.map((event) => new TextDecoder().decode(event))
    assert.deepEqual(texts, events, `in pieces of ${size}`)
    assert.equal(new TextDecoder().decode(cutter.rest()), 'data: {"broken')
    assert.deepEqual(
      cut.map((event) => eventOf(event).data),
      [{ a: 1 }, null, { b: 'é' }, { c: 3 }, { type: '[DONE]' }],
    )
  }
})

it('what is around the data is no part of an answer', () => {
  const sizeOf = (text) => eventOf(new TextEncoder().encode(text)).size
  const around = [...events, ': keep-alive\n: and more\n\n', 'event: ping\nid: 7\nretry: 10\n\n', ':', '\n']
  assert.deepEqual(
    around.map(sizeOf),
    around.map(() => 0),
  )
  assert.deepEqual(['data: hé\n\n', 'data: {"broken', '{"a":1}\n', 'id'].map(sizeOf), [3, 8, 7, 0])
})
