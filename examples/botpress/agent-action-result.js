// Tells RunGuard what an Action brought, so that it can tell progress from repetition.
//
// Where  at the end of the Action's code, below agent-action.js and the Action's own work
// In     actionName (from agent-action.js), result: what the Action is about to return
try {
  await axios.post(
    `${env.RUNGUARD_URL}/guard/agent-action/result`,
    {
      session_id: event.conversationId,
      action_name: actionName,
      result_summary: (JSON.stringify(result) ?? '').slice(0, 200),
    },
    {
      headers: env.RUNGUARD_KEY ? { authorization: `Bearer ${env.RUNGUARD_KEY}` } : {},
      timeout: 2000,
      validateStatus: () => true,
    }
  )
} catch {
  // The result is for the log and the loop rules; the conversation goes on without it.
}
