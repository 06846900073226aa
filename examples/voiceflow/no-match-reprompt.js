// Asks RunGuard before an AI step prompts again after a No Match or No Reply.
//
// Where  Function step at the top of the No Match path. user_id and last_utterance take the
//        variables of the same names; step_id names the step, e.g. capture_email
// Then   allow: the AI step; block: a static message or a person
//
// inputs:  runguard_url, runguard_key, user_id, step_id, last_utterance
// outputs: allow, reason, message, remaining_reprompts
// paths:   allow, block
export default async function main(args) {
  const { runguard_url, runguard_key, user_id, step_id, last_utterance } = args.inputVars
  try {
    const response = await fetch(`${runguard_url}/guard/no-match-reprompt?flat=1&status=200`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(runguard_key ? { authorization: `Bearer ${runguard_key}` } : {}),
      },
      body: JSON.stringify({
        session_id: String(user_id),
        step_id,
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
        remaining_reprompts: answer.remaining_reprompts ?? 0,
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
        remaining_reprompts: 1,
      },
      next: { path: 'allow' },
      trace: [],
    }
  }
}
