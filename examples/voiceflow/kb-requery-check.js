// Asks RunGuard before the knowledge base is asked (again).
//
// Where  Function step in front of the knowledge base step; kb-requery-record.js goes behind it
// Then   allow: the knowledge base step; block: the best answer so far, or the fallback
//
// inputs:  runguard_url, runguard_key, user_id, query, prior_confidence
// outputs: allow, reason, message, best_confidence_seen, remaining_queries
// paths:   allow, block
export default async function main(args) {
  const { runguard_url, runguard_key, user_id, query, prior_confidence } = args.inputVars
  try {
    const response = await fetch(`${runguard_url}/guard/kb-requery/check?flat=1&status=200`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(runguard_key ? { authorization: `Bearer ${runguard_key}` } : {}),
      },
      body: JSON.stringify({
        session_id: String(user_id),
        query: String(query),
        // An unset variable is 0; without a score RunGuard takes the one recorded last.
        prior_confidence: Number(prior_confidence) || null,
      }),
    })
    const answer = response.json // a property here, not a method
    if (typeof answer.allow !== 'boolean') throw new Error(answer.detail || `RunGuard answered ${response.status}`)
    return {
      outputVars: {
        allow: answer.allow,
        reason: answer.reason || '',
        message: answer.message || '',
        best_confidence_seen: answer.best_confidence_seen ?? 0,
        remaining_queries: answer.remaining_queries ?? 0,
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
        best_confidence_seen: 0,
        remaining_queries: 1,
      },
      next: { path: 'allow' },
      trace: [],
    }
  }
}
