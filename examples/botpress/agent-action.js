// Asks RunGuard before an Action of an Autonomous Node does its work.
//
// Where  at the top of the Action's code (Studio has no hook in front of an Action)
// In     input: the Action's own input
// Out    workflow.guardAllow (Boolean), workflow.guardReason, workflow.guardMessage (String),
//        workflow.actionsRemaining (Number)
// Then   give the node an exit condition on workflow.guardAllow: the text returned below tells the
//        model that it is over, and a looping model may not listen
const actionName = 'lookup_order'
// What the agent is to reach and what it may call: insights then tell which goals lack an action.
const goal = 'find the status of an order'
const availableActions = ['lookup_order', 'get_customer_profile']

workflow.guardAllow = true
workflow.guardReason = ''
workflow.guardMessage = ''
workflow.actionsRemaining = 1
try {
  const { status, data } = await axios.post(
    `${env.RUNGUARD_URL}/guard/agent-action`,
    {
      session_id: event.conversationId,
      action_name: actionName,
      action_params: input,
      goal,
      available_actions: availableActions,
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
  workflow.actionsRemaining = data.actions_remaining ?? 0
} catch (error) {
  // Fails open: a guard that is away must not stop the conversation.
  workflow.guardReason = 'guard_unavailable'
  workflow.guardMessage = error.message
}

if (!workflow.guardAllow) return { stopped: workflow.guardMessage }
