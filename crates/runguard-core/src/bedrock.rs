//! Agents of Amazon Bedrock, by the trace of what they do.
//!
//! A [`Turn`] hears the events of a stream and says, step by step, what a [`Run`] is to be asked and told: which model
//! was called and what it used, which call is being made, what came of it. It also looks for what a run alone does not see, because only
//! a trace shows it: the same question to a knowledge base in other words, lookups that bring what is known, actions that fail as before
//! whatever their parameters are, and rounds of both ([`AttemptSettings`]). Whoever reads the stream carries the steps out in their order
//! and hangs up at the first trip.
//!
//! ```
//! use runguard_core::bedrock::{AttemptSettings, Step, Turn};
//! use serde_json::json;
//!
//! let mut turn = Turn::new(AttemptSettings::default());
//! let questions = ["APAC Q3 revenue", "Asia Pacific Q3 revenue breakdown", "Q3 APAC quarterly financial results"];
//! let mut steps = Vec::new();
//! for (number, question) in questions.into_iter().enumerate() {
//!     let asks = json!({"traceId": number.to_string(), "knowledgeBaseLookupInput": {"knowledgeBaseId": "KB1", "text": question}});
//!     let chunk = json!([{"content": {"text": "Global revenue of the third quarter rose by four percent."}}]);
//!     let sees = json!({"traceId": number.to_string(), "knowledgeBaseLookupOutput": {"retrievedReferences": chunk}});
//!     steps.extend(turn.hear(&json!({"trace": {"trace": {"orchestrationTrace": {"invocationInput": asks}}}})));
//!     steps.extend(turn.hear(&json!({"trace": {"trace": {"orchestrationTrace": {"observation": sees}}}})));
//! }
//! assert!(matches!(steps.last(), Some(Step::Stop { repeats: 3, .. })), "the third lookup");
//! ```

mod attempts;
mod preset;
mod trace;

pub use attempts::{AttemptChanges, AttemptSettings};
pub use preset::{Preset, PresetOptions, PresetSettings};

use crate::detect::stall::result_fingerprint;
use crate::fingerprint;
use crate::limits::InvalidSetting;
use crate::run::Run;
use crate::similarity::Gist;
use attempts::{Attempts, InVain};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use trace::{Announced, Fact, Observed, Speaker, TokensUsed};

/// Questions of one turn that another one is compared with. A turn with more different ones does not ask in a circle of a few.
const REMEMBERED_QUESTIONS: usize = 64;

/// What a run is to be asked or told, in the order of the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// A model is being called.
    Model,
    /// Tokens were used.
    Usage {
        /// The model that used them, where the trace says it.
        model: Option<String>,
        /// Read.
        input_tokens: u64,
        /// Written.
        output_tokens: u64,
    },
    /// A call is being made.
    Before {
        /// The collaborator that makes it; `None` is the agent itself.
        agent: Option<String>,
        /// What is called.
        tool: String,
        /// With what; a question to a knowledge base in the words it was first asked in.
        args: Value,
    },
    /// What came of a call.
    After {
        /// As it was announced.
        agent: Option<String>,
        /// As it was announced.
        tool: String,
        /// As they were announced.
        args: Value,
        /// What it gave.
        result: Option<String>,
        /// Why it failed, if it did.
        error: Option<String>,
    },
    /// The run is to be ended ([`Run::stop_loop`](crate::run::Run::stop_loop)).
    Stop {
        /// One round of the calls, oldest first.
        cycle: Vec<String>,
        /// How often it was made.
        repeats: u32,
        /// What happened and what to do, in sentences.
        message: String,
    },
}

/// The aliases through which an agent was reached, that of the invoked one first.
type Chain = Vec<String>;
type Tokens = (u64, u64);

/// What is remembered during one turn of the user, which returns of control may spread over several streams.
#[derive(Debug, Default)]
pub struct Turn {
    attempts: Attempts,
    asked: Vec<(String, Gist, String)>,
    /// By whom and in which step a model was called; under an empty step the latest.
    models: BTreeMap<(Chain, String), String>,
    /// The service may say twice what was used.
    counted: BTreeSet<(Chain, String, String)>,
    /// What a collaborator's own steps used since it was called, and who it is.
    reported: BTreeMap<String, (Tokens, Chain)>,
    open: BTreeMap<(Chain, String), Open>,
    /// Calls that the caller is to make, by the invocation: those that were announced, and those that were handed out.
    announced: Vec<(String, Returned)>,
    handed_out: Vec<(String, Returned)>,
}

/// A call that the caller is to make.
#[derive(Debug, Clone)]
struct Returned {
    agent: Option<String>,
    tool: String,
    args: Value,
}

/// A call whose result is awaited.
#[derive(Debug)]
struct Open {
    agent: Option<String>,
    tool: String,
    args: Value,
    lookup: Option<usize>,
}

impl Turn {
    /// A turn at its beginning.
    pub fn new(settings: AttemptSettings) -> Self {
        Self { attempts: Attempts::new(settings), ..Self::default() }
    }

    /// A turn of this run: what is given goes before what goes with the run.
    pub fn of_run(run: &Run, given: AttemptChanges) -> Result<Self, InvalidSetting> {
        let settings = AttemptSettings::of_run(run).changed(given);
        settings.check().map(|()| Self::new(settings))
    }

    /// After how many attempts in vain the run is ended.
    pub fn settings(&self) -> AttemptSettings {
        self.attempts.settings()
    }

    /// One event of the stream: `{"trace": …}` or `{"returnControl": …}`. Others say nothing. The results of returned calls, which are sent
    /// with the next invocation, are told as `{"invocationId": …, "returnControlInvocationResults": […]}`, as the session's state has them.
    pub fn hear(&mut self, event: &Value) -> Vec<Step> {
        let mut steps = Vec::new();
        for fact in event.get("trace").map(trace::facts).unwrap_or_default() {
            match fact {
                Fact::ModelCalled { speaker, trace_id, model } => {
                    if let Some(model) = model {
                        for step in [trace_id, String::new()] {
                            self.models.insert((speaker.chain.clone(), step), model.clone());
                        }
                    }
                    steps.push(Step::Model);
                }
                Fact::Used(used) => steps.extend(self.pay(used)),
                Fact::Announced(call) => self.announce(call, &mut steps),
                Fact::Observed(seen) => self.observe(seen, &mut steps),
            }
        }
        if let Some(payload) = event.get("returnControl") {
            self.hand_out(payload, &mut steps);
        }
        if event.get("returnControlInvocationResults").is_some() {
            self.take_results(event, &mut steps);
        }
        steps
    }

    fn pay(&mut self, used: TokensUsed) -> Option<Step> {
        let TokensUsed { speaker, trace_id, part, tokens: (mut input, mut output), sums_up } = used;
        let is_first = self.counted.insert((speaker.chain.clone(), trace_id.clone(), part));
        if !trace_id.is_empty() && !is_first {
            return None;
        }
        let mut payer = speaker.chain;
        if let Some(collaborator) = sums_up {
            // Only what the collaborator's own steps did not report, at the price of its model.
            if let Some((before, chain)) = self.reported.remove(&collaborator) {
                (input, output) = (input.saturating_sub(before.0), output.saturating_sub(before.1));
                payer = chain;
            }
        } else if !speaker.collaborator.is_empty() {
            let (before, _) = self.reported.get(&speaker.collaborator).cloned().unwrap_or_default();
            self.reported.insert(speaker.collaborator, ((before.0 + input, before.1 + output), payer.clone()));
        }
        let named = |step: &str| self.models.get(&(payer.clone(), step.to_owned()));
        let model = named(&trace_id).or_else(|| named("")).cloned();
        Some(Step::Usage { model, input_tokens: input, output_tokens: output })
    }

    fn announce(&mut self, call: Announced, steps: &mut Vec<Step>) {
        let Announced { speaker, trace_id, tool, mut args, question, invocation_id, collaborator } = call;
        let agent = history_of(&speaker);
        let history = agent.clone().unwrap_or_default();
        if let Some(collaborator) = collaborator {
            self.reported.remove(&collaborator);
        }
        let (mut lookup, mut in_vain) = (None, None);
        if let Some(question) = question {
            args = json!({"query": self.first_words(&tool, &question)});
            let (asked, found) = self.attempts.asked(&history, &tool, &question);
            (lookup, in_vain) = (Some(asked), found);
        }
        steps.push(Step::Before { agent: agent.clone(), tool: tool.clone(), args: args.clone() });
        steps.extend(in_vain.map(stop));
        if let Some(invocation_id) = invocation_id {
            self.announced.push((invocation_id, Returned { agent: agent.clone(), tool: tool.clone(), args: args.clone() }));
        }
        self.open.insert((speaker.chain, trace_id), Open { agent, tool, args, lookup });
    }

    fn observe(&mut self, seen: Observed, steps: &mut Vec<Step>) {
        let Observed { speaker, trace_id, result, error, found } = seen;
        let Some(open) = self.open.remove(&(speaker.chain, trace_id)) else { return };
        self.finish(open, result, error, &found, steps);
    }

    fn finish(&mut self, open: Open, result: Option<String>, error: Option<String>, found: &[String], steps: &mut Vec<Step>) {
        let Open { agent, tool, args, lookup } = open;
        let history = agent.clone().unwrap_or_default();
        let in_vain = match (lookup, &error) {
            (Some(lookup), None) => self.attempts.found(&history, &tool, lookup, found),
            // A knowledge base that cannot be asked is no action that fails: the same question again is a loop of its own.
            (Some(_), Some(_)) => None,
            (None, Some(error)) => self.attempts.failed(&history, &tool, &args, error),
            (None, None) => {
                let given = result.as_deref().map(result_fingerprint).unwrap_or_default();
                self.attempts.succeeded(&history, &tool, fingerprint::of_value(&args).unwrap_or_default(), given);
                None
            }
        };
        steps.push(Step::After { agent, tool, args, result, error });
        steps.extend(in_vain.map(stop));
    }

    /// Calls that the caller is asked to make: refused here, they are never made.
    fn hand_out(&mut self, payload: &Value, steps: &mut Vec<Step>) {
        let invocation = payload.get("invocationId").and_then(Value::as_str).unwrap_or_default();
        for (tool, args) in trace::returned_calls(payload) {
            let is_announced = |(id, call): &(String, Returned)| id == invocation && call.tool == tool && call.args == args;
            let call = if let Some(place) = self.announced.iter().position(is_announced) {
                self.announced.remove(place).1
            } else {
                steps.push(Step::Before { agent: None, tool: tool.clone(), args: args.clone() });
                Returned { agent: None, tool, args }
            };
            self.handed_out.push((invocation.to_owned(), call));
        }
    }

    /// What came of the calls that the caller made.
    fn take_results(&mut self, state: &Value, steps: &mut Vec<Step>) {
        let invocation = state.get("invocationId").and_then(Value::as_str).unwrap_or_default();
        for (tool, result, error) in trace::returned_results(state) {
            let Some(place) = self.handed_out.iter().position(|(id, call)| id == invocation && call.tool == tool) else { continue };
            let (_, Returned { agent, tool, args }) = self.handed_out.remove(place);
            // Should the trace tell of it too, it is told once.
            self.open.retain(|_, open| open.tool != tool || open.args != args);
            self.finish(Open { agent, tool, args, lookup: None }, Some(result), error, &[], steps);
        }
    }

    /// The words a question was first asked in, so that near-equal lookups are equal calls.
    fn first_words(&mut self, tool: &str, question: &str) -> String {
        let gist = Gist::whole(question);
        let known = self.asked.iter().find(|(asked_of, earlier, _)| asked_of == tool && earlier.is_similar(&gist));
        if let Some((_, _, words)) = known {
            return words.clone();
        }
        if self.asked.len() == REMEMBERED_QUESTIONS {
            self.asked.remove(0);
        }
        self.asked.push((tool.to_owned(), gist, question.to_owned()));
        question.to_owned()
    }
}

fn stop(in_vain: InVain) -> Step {
    let InVain { cycle, repeats, message } = in_vain;
    Step::Stop { cycle, repeats, message }
}

/// The name a collaborator has in the run; `None` is the run itself.
fn history_of(speaker: &Speaker) -> Option<String> {
    if !speaker.collaborator.is_empty() {
        Some(speaker.collaborator.clone())
    } else if speaker.chain.len() > 1 {
        Some(speaker.chain[1..].join("\n"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
