// Asks RunGuard before the conversation is handed to another bot.
//
// Where  Execute Code card in front of the transfer
// In     workflow.targetBot (String): the bot that was chosen
// Out    workflow.guardAllow (Boolean), workflow.guardReason, workflow.guardMessage (String),
//        workflow.handoffChain (String): where the conversation has been, for the person who takes over;
//        workflow.handoffsRemaining (Number)
// Then   guardAllow: transfer; otherwise hand over to a person
const sourceBot = 'orchestrator'

workflow.guardAllow = true
workflow.guardReason = ''
workflow.guardMessage = ''
workflow.handoffChain = ''
workflow.handoffsRemaining = 1
try {
  const { status, data } = await axios.post(
    `${env.RUNGUARD_URL}/guard/handoff`,
    {
      session_id: event.conversationId,
      source_bot: sourceBot,
      target_bot: workflow.targetBot,
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
  workflow.handoffChain = (data.handoff_chain || []).join(' → ')
  workflow.handoffsRemaining = data.handoffs_remaining ?? 0
} catch (error) {
  // Fails open: a guard that is away must not stop the conversation.
  workflow.guardReason = 'guard_unavailable'
  workflow.guardMessage = error.message
}
