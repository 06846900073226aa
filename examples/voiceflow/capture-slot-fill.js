// Asks RunGuard before an AI step asks again for a value that a Capture step did not get.
//
// Where  Function step at the top of the Capture step's No Match path. user_id and last_utterance
//        take the variables of the same names; entity_type is email, phone, date, order_id or your own
// Then   allow: the AI step, plainer the fewer remaining_attempts there are
//        hint:  format_hint as a static message, then back to the Capture step: no AI step is needed
//        block: a person
//
// inputs:  runguard_url, runguard_key, user_id, capture_step, entity_type, last_utterance
// outputs: allow, reason, message, format_hint, remaining_attempts
// paths:   allow, hint, block
export default async function main(args) {
  const { runguard_url, runguard_key, user_id, capture_step, entity_type, last_utterance } = args.inputVars
  try {
    const response = await fetch(`${runguard_url}/guard/capture-slot-fill?flat=1&status=200`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(runguard_key ? { authorization: `Bearer ${runguard_key}` } : {}),
      },
      body: JSON.stringify({
        session_id: String(user_id),
        capture_step,
        entity_type,
        user_utterance: String(last_utterance || ''), // unset variables are 0
      }),
    })
    const answer = response.json // a property here, not a method
    if (typeof answer.allow !== 'boolean') throw new Error(answer.detail || `RunGuard answered ${response.status}`)
    return {
      outputVars: {
        allow: answer.allow,
        reason: answer.reason || '',
        message: answer.message || '',
        format_hint: answer.format_hint || '',
        remaining_attempts: answer.remaining_attempts ?? 0,
      },
      next: { path: answer.allow ? 'allow' : answer.format_hint ? 'hint' : 'block' },
      trace: [],
    }
  } catch (error) {
    // Fails open: an exception here would end the user's turn.
    return {
      outputVars: {
        allow: true,
        reason: 'guard_unavailable',
        message: String(error.message),
        format_hint: '',
        remaining_attempts: 1,
      },
      next: { path: 'allow' },
      trace: [],
    }
  }
}
