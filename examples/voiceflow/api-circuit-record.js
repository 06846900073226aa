// Tells RunGuard how the API step went: this is what opens and closes the circuit.
//
// Where  Function step behind the API step, on its success and its failure port. status_code takes
//        VF_STATUS_CODE; attempt, permit_id and started_ms what api-circuit-check.js returned
//
// inputs:  runguard_url, runguard_key, user_id, endpoint_key, status_code, attempt, permit_id, started_ms
// outputs: recorded
// paths:   next
export default async function main(args) {
  const { runguard_url, runguard_key, user_id, endpoint_key, status_code, attempt, permit_id, started_ms } = args.inputVars
  const status = Number(status_code) || 0
  // No status is a timeout. A 404 is an answer: only these say that the upstream is in trouble.
  const failed = status === 0 || status === 408 || status === 429 || status >= 500
  try {
    const response = await fetch(`${runguard_url}/guard/api-circuit/record?flat=1&status=200`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(runguard_key ? { authorization: `Bearer ${runguard_key}` } : {}),
      },
      body: JSON.stringify({
        endpoint_key,
        session_id: String(user_id),
        attempt: Number(attempt) || 1,
        outcome: failed ? 'failure' : 'success',
        ...(status ? { status_code: status } : {}),
        // Of an upstream that answers late and later a circuit can open too (slow_call_ms).
        ...(Number(started_ms) ? { latency_ms: Math.max(0, Date.now() - Number(started_ms)) } : {}),
        ...(permit_id ? { permit_id: String(permit_id) } : {}),
      }),
    })
    const answer = response.json // a property here, not a method
    if (answer.recorded !== true) throw new Error(answer.detail || `RunGuard answered ${response.status}`)
    return {
      outputVars: { recorded: true },
      next: { path: 'next' },
      trace: [],
    }
  } catch {
    // A lost record loosens the guard a little; an exception would end the user's turn.
    return {
      outputVars: { recorded: false },
      next: { path: 'next' },
      trace: [],
    }
  }
}
