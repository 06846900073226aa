//! One question to the model, with everything that can happen to it.

use super::{Halt, Near, Run, cancelled};
use crate::event::{Event, Spent};
use crate::message::Message;
use crate::provider::{ErrorKind, Finish, Parts, ProviderError, Reply, Request};
use crate::report::Stop;
use crate::session::Record;
use crate::spend::{self, Granted};
use crate::state::End;
use runguard_http::again::full_jitter;
use std::time::Duration;
use tokio::time::Instant;

/// A whole answer, counted.
pub(super) struct Answered {
    pub(super) message: Message,
    pub(super) finish: Finish,
}

/// How one attempt went.
enum Attempt {
    Whole,
    Failed(ProviderError),
    Cancelled,
    OutOfTime,
}

impl Run<'_> {
    /// Asks until there is an answer, an error that will not go away, or no time, money or patience left.
    pub(super) async fn ask(&mut self) -> Result<Answered, Halt> {
        let step = self.counters.steps + 1;
        self.observer.event(Event::StepStarted { step });
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.partial.clear();
            let bytes = self.fixed_bytes() as u64 + self.session.messages().iter().map(|message| message.bytes() as u64).sum::<u64>();
            let granted = self
                .allowance
                .grant(
                    spend::highest_input(&self.counters, bytes, |newest| self.most_words(newest)),
                    self.agent.settings.provider.max_tokens,
                )
                .map_err(|refused| self.over_budget(&refused))?;
            let reserved = granted.reservation.estimate();
            if granted.max_tokens < self.agent.settings.provider.max_tokens {
                self.say_near_budget(Near::AnswerShortened { set_aside: reserved });
            }
            self.session.record(Record::CallStarted { step, reserved_tokens: reserved.tokens, reserved_cost: reserved.usd })?;
            let (outcome, parts) = self.attempt(&granted).await;
            self.count(step, granted, &outcome, &parts, bytes)?;
            let problem = match outcome {
                Attempt::Whole => {
                    if parts.is_unmarked {
                        self.say_unmarked();
                    }
                    let finish = parts.finish.unwrap_or(Finish::EndTurn);
                    return Ok(Answered { message: parts.message, finish });
                }
                Attempt::Failed(problem) => problem,
                Attempt::Cancelled => {
                    self.partial = parts.message.text();
                    return Err(cancelled());
                }
                Attempt::OutOfTime => {
                    self.partial = parts.message.text();
                    return Err(self.timed_out());
                }
            };
            self.partial = parts.message.text();
            if problem.kind == ErrorKind::ContextTooLong && self.halve_context()? {
                attempt -= 1;
                continue;
            }
            let wait = self.wait_before_next(&problem, attempt)?;
            self.sleep(wait).await?;
        }
    }

    async fn attempt(&mut self, granted: &Granted) -> (Attempt, Parts) {
        let agent = self.agent;
        let mut reply = Reply::new(self.observer, granted.max_tokens);
        let system = agent.settings.system.as_str();
        let request = Request {
            system: (!system.is_empty()).then_some(system),
            messages: self.session.messages(),
            tools: agent.tools.specs(),
            max_tokens: granted.max_tokens,
        };
        let outcome = {
            let asked = agent.provider.ask(request, &mut reply);
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => Attempt::Cancelled,
                () = until(self.deadline) => Attempt::OutOfTime,
                answer = asked => answer.map_or_else(Attempt::Failed, |()| Attempt::Whole),
            }
        };
        (outcome, reply.into_parts())
    }

    /// Pays for an answer, whole or not.
    fn count(&mut self, step: u32, granted: Granted, outcome: &Attempt, parts: &Parts, bytes: u64) -> Result<(), Halt> {
        let reached_the_model = match outcome {
            Attempt::Whole | Attempt::Cancelled | Attempt::OutOfTime => true,
            Attempt::Failed(problem) => {
                let came = parts.bytes > 0 || parts.usage.is_some();
                came || matches!(problem.kind, ErrorKind::Timeout | ErrorKind::Cut | ErrorKind::Malformed | ErrorKind::Endless)
            }
        };
        let is_whole = matches!(outcome, Attempt::Whole);
        let is_marked = is_whole && !parts.is_unmarked;
        if !reached_the_model {
            granted.reservation.release();
            let counters = self.timed();
            self.session.record(Record::CallFailed { counters })?;
            return Ok(());
        }
        let mut charge = self.allowance.charge(&granted, parts.usage, bytes, parts.bytes as u64);
        if !is_marked && parts.usage.is_some() {
            // A stream that did not get to its end has not said how much it gave: count what came, unless it has said more.
            let came = self.allowance.charge(&granted, None, bytes, parts.bytes as u64);
            if came.usage.output_tokens > charge.usage.output_tokens {
                charge.usage.output_tokens = came.usage.output_tokens;
                charge.cost = self.agent.price.cost(&charge.usage);
                charge.estimated = true;
            }
        }
        let paid = runguard_core::budget::Cost { usd: charge.cost, tokens: charge.usage.total_tokens() };
        self.agent.guardrails.spent(&mut self.detectors, charge.usage.total_tokens());
        // What is over the limit is seen in the counters.
        let _ = granted.reservation.commit(paid);
        let (input, output) = (charge.usage.prompt_tokens(), charge.usage.output_tokens);
        let counters = &mut self.counters;
        counters.input_tokens = counters.input_tokens.saturating_add(input);
        counters.output_tokens = counters.output_tokens.saturating_add(output);
        counters.cost = counters.cost.saturating_add(charge.cost);
        counters.estimated |= charge.estimated;
        if !charge.estimated {
            counters.prompt_tokens = input;
            counters.prompt_bytes = bytes;
        }
        let counters = self.timed();
        self.observer.event(Event::Spent(Spent {
            step,
            input_tokens: input,
            output_tokens: output,
            cost: charge.cost,
            total_tokens: counters.total_tokens(),
            total_cost: counters.cost,
            elapsed_ms: counters.elapsed_ms,
            estimated: charge.estimated,
        }));
        if !is_whole {
            self.session.record(Record::CallFailed { counters })?;
        }
        Ok(())
    }

    /// What came may be less than the model had to say, and nobody would see it.
    fn say_unmarked(&mut self) {
        let message =
            "The provider closed the stream without an end mark. What came is taken as the whole answer, and not asked for again.";
        tracing::warn!(run = self.session.id(), "{message}");
        self.observer.event(Event::Notice { message: message.to_owned() });
    }

    /// The provider's window is smaller than ours: half of the conversation goes, once a step.
    fn halve_context(&mut self) -> Result<bool, Halt> {
        if self.agent.settings.context.window == 0 || std::mem::replace(&mut self.context_was_halved, true) {
            return Ok(false);
        }
        let bytes: usize = self.session.messages().iter().map(Message::bytes).sum();
        self.trim_to(bytes / 2)
    }

    /// How long to wait before asking again, or the end.
    fn wait_before_next(&mut self, problem: &ProviderError, attempt: u32) -> Result<Duration, Halt> {
        let settings = &self.agent.settings.provider;
        let stop = Stop::Provider { kind: problem.kind.code().to_owned(), attempts: attempt };
        if !problem.kind.is_recoverable() {
            return Err(Halt::new(End::Error, stop, problem.message.clone()));
        }
        if attempt > settings.max_retries {
            let times = if attempt == 1 { "once" } else { "again and again" };
            return Err(Halt::new(End::Error, stop, format!("The provider was asked {times} ({attempt}) without an answer: {problem}")));
        }
        let longest = Duration::from_millis(settings.max_wait.as_millis());
        let wait = match problem.retry_after {
            Some(asked) if asked > longest => {
                let message = format!(
                    "The provider asks to wait {} s, more than `provider.max_wait` ({}): {problem}",
                    asked.as_secs(),
                    settings.max_wait
                );
                return Err(Halt::new(End::Error, stop, message));
            }
            Some(asked) => asked,
            None => {
                let random = getrandom::u64().unwrap_or(u64::MAX);
                full_jitter(Duration::from_millis(settings.backoff.as_millis()), longest, attempt.saturating_sub(1), random)
            }
        };
        self.observer.event(Event::Retry {
            attempt,
            of: settings.max_retries,
            after_ms: wait.as_millis().try_into().unwrap_or(u64::MAX),
            kind: problem.kind.code(),
            message: problem.message.clone(),
        });
        Ok(wait)
    }

    async fn sleep(&mut self, wait: Duration) -> Result<(), Halt> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(cancelled()),
            () = until(self.deadline) => Err(self.timed_out()),
            () = tokio::time::sleep(wait) => Ok(()),
        }
    }
}

/// Never, without a deadline.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
