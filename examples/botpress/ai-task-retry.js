// Asks RunGuard before an AI Task is tried again because its output failed validation.
//
// Where  Execute Code card between the AI Task's failure and the way back to it
// In     workflow.validationError (String): what was wrong with the output
// Out    workflow.guardAllow (Boolean), workflow.guardReason, workflow.guardMessage (String),
//        workflow.remainingRetries (Number): ask more plainly the fewer there are
// Then   guardAllow: back to the AI Task; otherwise ask the user for what is missing
const taskName = 'extract_order_number'

workflow.guardAllow = true
workflow.guardReason = ''
workflow.guardMessage = ''
workflow.remainingRetries = 1
try {
  const { status, data } = await axios.post(
    `${env.RUNGUARD_URL}/guard/ai-task-retry`,
    {
      session_id: event.conversationId,
      task_name: taskName,
      user_message: event.preview,
      validation_error: workflow.validationError,
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
  workflow.remainingRetries = data.remaining_retries ?? 0
} catch (error) {
  // Fails open: a guard that is away must not stop the conversation.
  workflow.guardReason = 'guard_unavailable'
  workflow.guardMessage = error.message
}
