//! The tools of one step: which run, which are answered without running, and what is made of the results.

use super::ask::until;
use super::{Halt, Interrupted, Run, cancelled};
use crate::event::{Event, GuardAction, GuardEvent};
use crate::guardrails::{Done, Judgement};
use crate::message::{ToolCall, ToolResult};
use crate::session::{Progress, Record};
use crate::state::Interruption;
use crate::tool::{Effect, Tool, ToolOutput, cut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use runguard_core::detect::tool_calls::SkipReason;
use serde_json::Value;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a cancelled tool has to tidy up.
const GRACE: Duration = Duration::from_secs(1);
/// Of a result this much is shown to whoever watches.
const PREVIEW_BYTES: usize = 300;

/// What to do with a call.
enum Plan {
    Run(Arc<dyn Tool>, Value),
    /// Answered here. `rule` is set when a guard refused it.
    Answer(ToolOutput),
}

struct Planned {
    position: usize,
    call: ToolCall,
    plan: Plan,
}

impl Run<'_> {
    /// Runs what the model asked for and judges what came of it. `Some`: a judge ends the run.
    pub(super) async fn tools(&mut self) -> Result<Option<Halt>, (Interruption, Halt)> {
        let calls: Vec<ToolCall> = self.open_calls();
        let mut ran: Vec<Option<Effect>> = vec![None; calls.len()];
        let mut waiting = self.plan(&calls).into_iter().peekable();
        while let Some(first) = waiting.next() {
            let mut batch = vec![first];
            while batch.len() < self.agent.settings.tools.max_parallel
                && batch.iter().all(Planned::is_parallel)
                && waiting.peek().is_some_and(Planned::is_parallel)
            {
                batch.extend(waiting.next());
            }
            self.run_batch(batch, &mut ran).await?;
        }
        self.judge(&calls, &ran).map_err(broken)
    }

    /// The calls of the step that is open, in order.
    fn open_calls(&self) -> Vec<ToolCall> {
        self.session.messages().last().map(|message| message.tool_calls().cloned().collect()).unwrap_or_default()
    }

    fn plan(&mut self, calls: &[ToolCall]) -> Vec<Planned> {
        let mut planned = Vec::new();
        let mut in_this_step = HashSet::new();
        let progress: Vec<Progress> = self.session.open_tools().iter().map(|(_, progress)| progress.clone()).collect();
        for (position, (call, progress)) in calls.iter().zip(progress).enumerate() {
            let plan = match progress {
                Progress::Finished(_) => continue,
                Progress::Started if self.options.interrupted == Interrupted::Tell => {
                    Plan::Answer(ToolOutput::error(interrupted(&call.name)))
                }
                Progress::Started | Progress::Waiting => {
                    self.plan_call(call, in_this_step.insert((call.name.clone(), call.arguments.clone())))
                }
            };
            planned.push(Planned { position, call: call.clone(), plan });
        }
        planned
    }

    fn plan_call(&mut self, call: &ToolCall, is_first: bool) -> Plan {
        let agent = self.agent;
        let Some(tool) = agent.tools.get(&call.name) else {
            let names: Vec<&str> = agent.tools.specs().iter().map(|spec| spec.name.as_str()).collect();
            let known = if names.is_empty() { "There are no tools.".to_owned() } else { format!("There are: {}.", names.join(", ")) };
            return Plan::Answer(ToolOutput::error(format!("There is no tool '{}'. {known}", call.name)));
        };
        let arguments = match call.parsed() {
            Ok(arguments) => arguments,
            Err(problem) => {
                return Plan::Answer(ToolOutput::error(format!("The arguments are not valid JSON ({problem}). Send one JSON object.")));
            }
        };
        let mut refusal = agent.guardrails.refuse(&self.detectors, call, &arguments);
        if refusal.is_none() && !is_first {
            let (reason, message) = SkipReason::exact_duplicate(&call.name);
            refusal = Some(crate::guardrails::Refusal { rule: reason.code(), count: 1, message });
        }
        match refusal {
            None => Plan::Run(Arc::clone(tool), arguments),
            Some(refusal) => {
                let message = refusal.message.clone();
                self.observer.event(Event::Guard(GuardEvent {
                    action: GuardAction::Block,
                    rule: refusal.rule,
                    count: refusal.count,
                    message,
                }));
                Plan::Answer(ToolOutput::ok(refusal.message))
            }
        }
    }

    async fn run_batch(&mut self, batch: Vec<Planned>, ran: &mut [Option<Effect>]) -> Result<(), (Interruption, Halt)> {
        if self.cancel.is_cancelled() {
            return Err((Interruption::Cancelled, cancelled()));
        }
        let stop = self.cancel.child_token();
        let limit = Duration::from_millis(self.agent.settings.tools.timeout.as_millis());
        let mut running = FuturesUnordered::new();
        for Planned { position, call, plan } in batch {
            match plan {
                Plan::Answer(output) => self.finished(&call, output, None, Duration::ZERO).map_err(broken)?,
                Plan::Run(tool, arguments) => {
                    self.session.record(Record::ToolStarted { id: call.id.clone() }).map_err(|problem| broken(problem.into()))?;
                    self.observer.event(Event::ToolStarted {
                        id: call.id.clone(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    });
                    let stop = stop.clone();
                    running.push(async move {
                        let began = Instant::now();
                        let effect = tool.spec().effect;
                        let output = match tokio::time::timeout(limit, tool.call(&arguments, &stop)).await {
                            Ok(output) => output,
                            Err(_) => ToolOutput::error(format!("{} took longer than {} s and was ended.", call.name, limit.as_secs_f64())),
                        };
                        (position, call, output, effect, began.elapsed())
                    });
                }
            }
        }
        let mut ending: Option<(Interruption, Halt)> = None;
        let mut grace = None;
        loop {
            tokio::select! {
                biased;
                done = running.next() => match done {
                    None => return ending.map_or(Ok(()), Err),
                    Some((position, call, output, effect, took)) => {
                        ran[position] = Some(effect);
                        self.finished(&call, output, Some(effect), took).map_err(broken)?;
                    }
                },
                () = self.cancel.cancelled(), if ending.is_none() => {
                    ending = Some((Interruption::Cancelled, cancelled()));
                    grace = Some(Instant::now() + GRACE);
                }
                () = until(self.deadline), if ending.is_none() => {
                    ending = Some((Interruption::TimedOut, self.timed_out()));
                    stop.cancel();
                    grace = Some(Instant::now() + GRACE);
                }
                // What has not ended by then is dropped, and its outcome is not known.
                () = until(grace), if ending.is_some() => return ending.map_or(Ok(()), Err),
            }
        }
    }

    /// Writes a result down and shows it.
    fn finished(&mut self, call: &ToolCall, output: ToolOutput, effect: Option<Effect>, took: Duration) -> Result<(), Halt> {
        let bytes = output.text.len();
        let (text, was_cut) = cut(output.text, self.agent.settings.tools.max_result_bytes);
        let preview = cut(text.clone(), PREVIEW_BYTES).0;
        if effect.is_some() {
            self.counters.tool_runs += 1;
        }
        let result = ToolResult { id: call.id.clone(), name: call.name.clone(), text, is_error: output.is_error };
        let counters = self.timed();
        self.session.record(Record::ToolFinished { result, counters })?;
        self.observer.event(Event::ToolFinished {
            id: call.id.clone(),
            name: call.name.clone(),
            ok: !output.is_error,
            ran: effect.is_some(),
            bytes,
            cut: was_cut,
            millis: took.as_millis().try_into().unwrap_or(u64::MAX),
            preview,
        });
        Ok(())
    }

    fn judge(&mut self, calls: &[ToolCall], ran: &[Option<Effect>]) -> Result<Option<Halt>, Halt> {
        let results: Vec<ToolResult> = self
            .session
            .open_tools()
            .iter()
            .filter_map(|(_, progress)| match progress {
                Progress::Finished(result) => Some(result.clone()),
                Progress::Waiting | Progress::Started => None,
            })
            .collect();
        let done: Vec<Done<'_>> = calls
            .iter()
            .zip(&results)
            .zip(ran)
            .map(|((call, result), ran)| Done { call, text: &result.text, is_error: result.is_error, ran: *ran })
            .collect();
        let judgement = self.agent.guardrails.results(&mut self.detectors, self.counters.steps, &done);
        let counters = self.timed();
        self.session.record(Record::Results { counters, detectors: self.detectors.clone() })?;
        if let Judgement::Stop { .. } = &judgement {
            return Ok(Some(self.stopped_by(judgement)));
        }
        let before = self.pending_nudge.take().unwrap_or(Judgement::GoOn);
        self.nudge(before.or(judgement))?;
        Ok(None)
    }

    /// Answers the calls of a step that will not run, so that the conversation stays whole.
    pub(super) fn answer_open_calls(&mut self, text: &str) -> Result<(), Halt> {
        for (call, (_, progress)) in self.open_calls().iter().zip(self.session.open_tools().to_vec()) {
            if !matches!(progress, Progress::Finished(_)) {
                let text = if progress == Progress::Started { interrupted(&call.name) } else { text.to_owned() };
                let result = ToolResult { id: call.id.clone(), name: call.name.clone(), text, is_error: true };
                let counters = self.timed();
                self.session.record(Record::ToolFinished { result, counters })?;
            }
        }
        let counters = self.timed();
        self.session.record(Record::Results { counters, detectors: self.detectors.clone() })?;
        Ok(())
    }
}

impl Planned {
    fn is_parallel(&self) -> bool {
        match &self.plan {
            Plan::Run(tool, _) => tool.spec().parallel,
            Plan::Answer(_) => true,
        }
    }
}

/// What the model is told of a tool whose end nobody saw.
fn interrupted(name: &str) -> String {
    format!(
        "{name} was interrupted: the program was ended while it ran, and it is not known what it did. It was not run again. Check what has happened before you repeat it."
    )
}

/// Something that could not be written down.
fn broken(halt: Halt) -> (Interruption, Halt) {
    (Interruption::Error, halt)
}
