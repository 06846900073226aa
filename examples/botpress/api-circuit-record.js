// Tells RunGuard how the call to the upstream service went: this is what opens and closes the circuit.
//
// Where  Execute Code card behind the call, on both of its ways
// In     workflow.upstreamFailed (Boolean), workflow.upstreamStatus (Number, 0 if there is none);
//        workflow.permitId, workflow.attempt and workflow.startedMs as api-circuit-check.js left them
const endpointKey = 'orders-api'

try {
  await axios.post(
    `${env.RUNGUARD_URL}/guard/api-circuit/record`,
    {
      endpoint_key: endpointKey,
      session_id: event.conversationId,
      attempt: workflow.attempt || 1,
      outcome: workflow.upstreamFailed ? 'failure' : 'success',
      status_code: workflow.upstreamStatus || null,
      latency_ms: workflow.startedMs ? Math.max(0, Date.now() - workflow.startedMs) : null,
      permit_id: workflow.permitId,
    },
    {
      headers: env.RUNGUARD_KEY ? { authorization: `Bearer ${env.RUNGUARD_KEY}` } : {},
      timeout: 2000,
      validateStatus: () => true,
    }
  )
} catch {
  // A lost record loosens the guard a little; the conversation goes on.
}
