// Asks RunGuard before an API step calls an upstream service that others may have found down.
//
// Where  Function step in front of the API step; api-circuit-record.js goes behind both of its ports.
//        Keep permit_id, attempt and started_ms in variables for it
// Then   allow: the API step; block: a static "not available just now"
//        recent_failures_in_window says how the upstream does while calls still pass: from 3 or 4 on somebody should look
//
// inputs:  runguard_url, runguard_key, user_id, endpoint_key
// outputs: allow, reason, message, permit_id, attempt, started_ms, recent_failures_in_window, retry_after_seconds
// paths:   allow, block
export default async function main(args) {
  const { runguard_url, runguard_key, user_id, endpoint_key } = args.inputVars
  try {
    const response = await fetch(`${runguard_url}/guard/api-circuit/check?flat=1&status=200`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(runguard_key ? { authorization: `Bearer ${runguard_key}` } : {}),
      },
      body: JSON.stringify({
        endpoint_key,
        session_id: String(user_id),
      }),
    })
    const answer = response.json // a property here, not a method
    if (typeof answer.allow !== 'boolean') throw new Error(answer.detail || `RunGuard answered ${response.status}`)
    return {
      outputVars: {
        allow: answer.allow,
        reason: answer.reason || '',
        message: answer.message || '',
        permit_id: answer.permit_id || '',
        attempt: answer.session_attempt_number ?? 1,
        started_ms: Date.now(),
        recent_failures_in_window: answer.recent_failures_in_window ?? answer.recent_failures ?? 0,
        retry_after_seconds: answer.retry_after_seconds ?? 0,
      },
      next: { path: answer.allow ? 'allow' : 'block' },
      trace: [],
    }
  } catch (error) {
    // Fails open: an exception here would end the user's turn.
    return {
      outputVars: {
        allow: true,
        reason: 'guard_unavailable',
        message: String(error.message),
        permit_id: '',
        attempt: 1,
        started_ms: Date.now(),
        recent_failures_in_window: 0,
        retry_after_seconds: 0,
      },
      next: { path: 'allow' },
      trace: [],
    }
  }
}
