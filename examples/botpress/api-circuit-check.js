// Asks RunGuard before an integration or an HTTP call goes to an upstream service that others may have found down.
//
// Where  Execute Code card in front of it; api-circuit-record.js goes behind it, on both of its ways
// Out    workflow.guardAllow (Boolean), workflow.guardReason, workflow.guardMessage (String),
//        workflow.recentFailures (Number): of all conversations while calls still pass; from 3 or 4 on somebody should look;
//        for the record: workflow.permitId (String), workflow.attempt, workflow.startedMs (Number)
// Then   guardAllow: the call; otherwise a fixed "not available just now"
const endpointKey = 'orders-api'

workflow.guardAllow = true
workflow.guardReason = ''
workflow.guardMessage = ''
workflow.permitId = ''
workflow.attempt = 1
workflow.startedMs = Date.now()
workflow.recentFailures = 0
try {
  const { status, data } = await axios.post(
    `${env.RUNGUARD_URL}/guard/api-circuit/check`,
    {
      endpoint_key: endpointKey,
      session_id: event.conversationId,
    },
    {
      headers: env.RUNGUARD_KEY ? { authorization: `Bearer ${env.RUNGUARD_KEY}` } : {},
      timeout: 2000,
      // A block is HTTP 429: axios would throw, and the bot would leave by its Error flow.
      validateStatus: () => true,
    }
  )
  if (typeof data.allow !== 'boolean') throw new Error(data.detail || `RunGuard answered ${status}`)
  workflow.guardAllow = data.allow
  workflow.guardReason = data.reason || ''
  workflow.guardMessage = data.message || ''
  workflow.permitId = data.permit_id || ''
  workflow.attempt = data.session_attempt_number ?? 1
  workflow.startedMs = Date.now()
  workflow.recentFailures = data.recent_failures_in_window ?? data.recent_failures ?? 0
} catch (error) {
  // Fails open: a guard that is away must not stop the conversation.
  workflow.guardReason = 'guard_unavailable'
  workflow.guardMessage = error.message
}
