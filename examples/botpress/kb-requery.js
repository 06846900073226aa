// Asks RunGuard before the knowledge base is searched (again) for the user's question.
//
// Where  Execute Code card in front of the search, inside the loop
// Out    workflow.guardAllow (Boolean), workflow.guardReason, workflow.guardMessage (String),
//        workflow.queriesRemaining (Number): at 0 this search is the last, prepare the fallback;
//        workflow.bestConfidenceSeen (Number): of a refused search, for the caveat
// Then   guardAllow: search; otherwise use the answer there is, or the fallback

// One topic is the same words in any order. Their hash is the topic's name in the log.
const words = (event.preview || '').toLowerCase().match(/[\p{L}\p{N}]+/gu) || []
let hash = 0
for (const character of words.sort().join(' ')) hash = (Math.imul(hash, 31) + character.codePointAt(0)) | 0

// Botpress gives no score for an answer, it only says whether there was one.
const answered = typeof turn !== 'undefined' && turn.KnowledgeAgent?.responded

workflow.guardAllow = true
workflow.guardReason = ''
workflow.guardMessage = ''
workflow.queriesRemaining = 1
workflow.bestConfidenceSeen = 0
try {
  const { status, data } = await axios.post(
    `${env.RUNGUARD_URL}/guard/kb-requery`,
    {
      session_id: event.conversationId,
      topic_hash: (hash >>> 0).toString(16).padStart(8, '0'),
      query_text: event.preview,
      last_confidence: answered ? 1 : 0,
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
  workflow.queriesRemaining = data.queries_remaining ?? 0
  workflow.bestConfidenceSeen = data.best_confidence_seen ?? 0
} catch (error) {
  // Fails open: a guard that is away must not stop the conversation.
  workflow.guardReason = 'guard_unavailable'
  workflow.guardMessage = error.message
}
