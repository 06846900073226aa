export { Alerts, flushAlerts, type AlertSettings, type AlertsLike } from './alerts.js'
export { CircuitBreaker, type BreakerOptions, type BreakerSettings, type BreakerState, type Permit } from './breaker.js'
export { BudgetTracker, Reservation, type Books, type BudgetLimits, type BudgetOptions, type TokenAmount } from './budget.js'
export * from './client.js'
export { currentRun } from './current.js'
export * from './errors.js'
export { fingerprint, similarity, type FingerprintOptions } from './fingerprint.js'
export { guard, tool, withGuard, type GuardOptions } from './guard.js'
export { LoopDetector, type LoopEvent, type LoopOptions, type LoopSettings } from './loop.js'
export { costUsd, readUsage, setPrices, type Price, type Usage, type UsageProvider } from './prices.js'
export { ModelCall, type ModelCallOptions } from './model-call.js'
export { Run, type AgentName, type BudgetWarning, type RunOptions, type ToolOutcome, type ToolRule } from './run.js'
export {
  StallDetector,
  type Ladder,
  type Rung,
  type StallPreset,
  type StallRule,
  type StallSettings,
  type StepOutcome,
  type Verdict,
} from './stall.js'
export { RecipeCache, ToolExecutionTracker, type Skip, type SkipReason, type TrackerSettings } from './tools.js'
export {
  RemoteBudgetTracker,
  RemoteCircuitBreaker,
  RemoteLoopDetector,
  RemoteReservation,
  RemoteRun,
  RemoteStallDetector,
  RemoteToolExecutionTracker,
  type RemoteBudgetOptions,
  type RemotePermit,
  type Scope,
  type ServiceOptions,
} from './remote.js'
