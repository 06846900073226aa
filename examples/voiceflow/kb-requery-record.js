// Tells RunGuard what the knowledge base found: this is what the next check counts.
//
// Where  Function step behind the knowledge base step
//
// inputs:  runguard_url, runguard_key, user_id, query, confidence_score, retrieved_chunks
// outputs: recorded
// paths:   next
export default async function main(args) {
  const { runguard_url, runguard_key, user_id, query, confidence_score, retrieved_chunks } = args.inputVars
  try {
    const response = await fetch(`${runguard_url}/guard/kb-requery/record?flat=1&status=200`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(runguard_key ? { authorization: `Bearer ${runguard_key}` } : {}),
      },
      body: JSON.stringify({
        session_id: String(user_id),
        query: String(query),
        confidence_score: Number(confidence_score) || 0,
        retrieved_chunks: Number(retrieved_chunks) || 0,
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
