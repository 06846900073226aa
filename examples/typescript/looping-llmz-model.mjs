// In place of a Botpress client, so that the example runs offline: a model whose program asks for the
// weather in Paris, for ever.

import { _CustomModelClient } from 'llmz'

export class LoopingModel extends _CustomModelClient {
  asked = 0

  /** @returns {Promise<any>} */
  async getModelDetails(id) {
    return { id, name: id, input: { maxTokens: 100_000 }, output: { maxTokens: 4_000 }, tags: [] }
  }

  /** @returns {Promise<any>} */
  async generateText() {
    this.asked += 1
    const code = "const weather = await get_weather({ city: 'Paris' }); return inspect(weather)"
    const usage = { inputTokens: 100, outputTokens: 20, inputCost: 0.0002, outputCost: 0.0002 }
    const metadata = { provider: 'local', model: 'local:loops', usage, cost: 0.0004, stopReason: 'tool_calls' }
    return { output: '', toolCalls: [{ id: `call_${this.asked}`, name: 'run_javascript', input: { code } }], metadata }
  }
}
