//! Plays the stories that every language's `Run` must tell alike.

use runguard_core::Timestamp;
use runguard_core::budget::{Budget, Left, Limits, Reservation, call_key};
use runguard_core::detect::loops::{LoopDetector, LoopSettings};
use runguard_core::detect::stall::{self, CallEffect, Preset, StallSessions};
use runguard_core::fingerprint;
use runguard_core::ledger::{Cost, Scope};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Prices, Prompt, UnknownModel, UnknownModelError, Usage};
use runguard_core::run::reply::{self, Fault};
use runguard_core::run::service::{AnswerMeaning, Spent};
use runguard_core::run::{
    Ceilings, Failure, Gave, Loops, ModelCall, ModelQuestion, Money, Progress, Question, Refusal, Run, ServiceBudget, ServiceLoops,
    ServiceStalls, Stalls, Trip, Unanswered, Used,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Gives the status and the body of what comes back to a route and a body.
type Send<'a> = dyn FnMut(&str, &str) -> (u16, String) + 'a;

pub(crate) fn told() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/stories.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Plays all stories that are kept by this; gives how many.
pub(crate) fn play_all(kept_by: &str, mut send: impl FnMut(&Value, &str, &str) -> (u16, String)) -> usize {
    let mut played = 0;
    for story in told()["stories"].as_array().unwrap() {
        if story["kept_by"].as_array().unwrap().contains(&json!(kept_by)) {
            Player::new(story, kept_by, &mut |path, body| send(story, path, body)).play();
            played += 1;
        }
    }
    played
}

enum Held {
    InProcess(Reservation),
    Service(String),
}

struct Player<'a> {
    story: &'a Value,
    run: Run,
    money: Option<Money>,
    held: BTreeMap<String, Held>,
    /// The call that began last.
    begun: Option<ModelCall>,
    calls: BTreeMap<String, ModelCall>,
    send: &'a mut Send<'a>,
}

/// What a step gave: nothing, a nudge, or why not.
type Outcome = Result<Option<String>, Value>;

fn limits(of: &Value) -> Limits {
    let count = |name: &str| of[name].as_u64();
    Limits { usd: of["max_usd"].as_f64().map(dollars), tokens: count("max_tokens"), cap: count("cap").map(|cap| cap as u32) }
}

fn within(budget: Arc<ServiceBudget>, of: &Value) -> Arc<ServiceBudget> {
    budget.within(of.get("scopes").map_or_else(Vec::new, |scopes| Scope::read_all(&scopes.to_string()).unwrap())).unwrap()
}

fn dollars(usd: f64) -> NanoDollars {
    NanoDollars::from_dollars(usd).unwrap()
}

fn price(model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
    Prices::bundled().cost(model, usage, &UnknownModel::Error).map(|(usd, _)| usd)
}

fn refused(trip: &Trip) -> Value {
    serde_json::to_value(trip).unwrap()
}

impl<'a> Player<'a> {
    fn new(story: &'a Value, kept_by: &str, send: &'a mut Send<'a>) -> Self {
        let (options, over) = (&story["run"], story.get("budget").map(limits));
        let id = story["name"].as_str().unwrap();
        let own = Some(limits(options)).filter(|limits| *limits != Limits::default());
        let ceilings = Ceilings::default().tool_calls(options["max_tool_calls"].as_u64()).model_calls(options["max_model_calls"].as_u64());
        let repeats = options["repeats"].as_u64().map_or(3, |repeats| repeats as u32);
        let (loops, stall, money) = if kept_by == "process" {
            let settings = LoopSettings::default().repeats(repeats);
            let stall = options.get("stall").map(|stall| {
                let preset = stall.as_str().or(stall["preset"].as_str()).unwrap();
                let settings = Preset::from_name(preset).unwrap().settings();
                let settings = match stall["long_run_tokens"].as_u64() {
                    Some(tokens) => settings.long_run_tokens(tokens),
                    None => settings,
                };
                Stalls::InProcess(Arc::new(Mutex::new(StallSessions::new(settings).unwrap())))
            });
            let money = match (over.map(Budget::new), own) {
                (Some(over), Some(own)) => Some(over.child(own)),
                (Some(over), None) => Some(over),
                (None, own) => own.map(Budget::new),
            };
            (Loops::InProcess(Arc::new(Mutex::new(LoopDetector::new(settings).unwrap()))), stall, money.map(Money::InProcess))
        } else {
            let loops = ServiceLoops::new(Some(repeats), None, None, None, Unanswered::Passes);
            let stall = options["stall"].as_str().map(|_| Stalls::Service(ServiceStalls::new(Unanswered::Passes)));
            let over = over.map(|over| within(ServiceBudget::new(&format!("team of {id}"), over, Unanswered::Refused), &story["budget"]));
            let own = own.or_else(|| options.get("scopes").map(|_| Limits::default()));
            let money = match (over, own) {
                (Some(over), Some(own)) => Some(within(over.child(id, own).unwrap(), options)),
                (Some(over), None) => Some(over),
                (None, own) => own.map(|own| within(ServiceBudget::new(id, own, Unanswered::Refused), options)),
            };
            (Loops::Service(loops), stall, money.map(Money::Service))
        };
        let run = Run::new(id, ceilings, loops, stall, money.clone());
        Self { story, run, money, held: BTreeMap::new(), begun: None, calls: BTreeMap::new(), send }
    }

    fn play(mut self) {
        let story = self.story;
        for (number, step) in story["steps"].as_array().unwrap().iter().enumerate() {
            for _ in 0..step["times"].as_u64().unwrap_or(1) {
                let place = format!("{}, step {}: {step}", story["name"], number + 1);
                match (self.step(step), step.get("refused")) {
                    (Ok(nudge), None) => assert_eq!(nudge.as_deref(), step["nudge"].as_str(), "{place}"),
                    (Err(trip), Some(expected)) => {
                        for (name, value) in expected.as_object().unwrap() {
                            let same = match (&trip[name], value) {
                                (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
                                (left, right) => left == right,
                            };
                            assert!(same, "{place}\n{name} is {}", trip[name]);
                        }
                    }
                    (outcome, _) => panic!("{place}\n{outcome:?}"),
                }
            }
        }
    }

    fn step(&mut self, step: &Value) -> Outcome {
        let text = |name: &str| step[name].as_str().unwrap_or_default();
        let cost = Cost { usd: dollars(step["usd"].as_f64().unwrap_or(0.0)), tokens: step["tokens"].as_u64().unwrap_or(0) };
        let usage = || Usage::new(step["input_tokens"].as_u64().unwrap(), step["output_tokens"].as_u64().unwrap());
        let arguments = || fingerprint::of_value(&step["args"]).unwrap();
        let progress = match text("do") {
            "before_tool" => self.run.before_tool_of(step["agent"].as_str(), text("tool"), arguments(), NOW),
            "after_tool" => {
                let words = if step["error"] == true { Some("") } else { step["error"].as_str() };
                let outcome = stall::Outcome::of(step["result"].as_str(), words);
                let error = words.zip(outcome.error).map(|(text, fingerprint)| Failure { text, fingerprint });
                let effect = CallEffect::of(text("tool"), &step["args"].to_string());
                let gave = Gave { result: outcome.result, error, effect, tokens: 0 };
                self.run.after_tool_of(step["agent"].as_str(), text("tool"), arguments(), gave, NOW)
            }
            "before_model" => self.run.before_model(NOW),
            "record_usd" => self.run.record(cost),
            "record_usage" => {
                let usage = usage();
                self.run.record_usage(text("model"), &usage, || price(text("model"), &usage))
            }
            "model_call" => return self.begin(step),
            "used" => {
                let call = self.calls.remove(text("call")).unwrap();
                self.run.finish_model(call, Used::Counted { model: None, usage: &usage() }, &price)
            }
            "check" => return self.run.trip().map_or(Ok(None), |trip| Err(refused(trip))),
            "new_turn" => {
                self.run.new_turn();
                return Ok(None);
            }
            "reset" => {
                self.run.reset();
                return Ok(None);
            }
            "reserve" => return self.reserve(cost, text("as")),
            "commit" | "release" => {
                self.settle(text("reservation"), (text("do") == "commit").then_some(cost));
                return Ok(None);
            }
            "count" => return self.count(text("session"), text("step")),
            "left" => {
                let named = step["session"].as_str().zip(step["step"].as_str());
                let left = self.left(named);
                assert_eq!(left, step["gives"].as_f64(), "{} {step}", self.story["name"]);
                return Ok(None);
            }
            unknown => panic!("there is no step '{unknown}'"),
        };
        self.until_done(progress)
    }

    fn begin(&mut self, step: &Value) -> Outcome {
        let (mut prompt, model) = (Prompt::default(), step["model"].as_str().unwrap());
        prompt.add_json(&step["prompt"]);
        let asked = ModelQuestion {
            model,
            prompt,
            max_output: step["max_tokens"].as_u64(),
            choices: 1,
            has_waited: false,
            asks_again: false,
            may_fall_back: true,
        };
        let progress = self.run.begin_model(asked, &price, NOW);
        let outcome = self.until_done(progress)?;
        self.calls.insert(step["as"].as_str().unwrap().to_owned(), self.begun.take().unwrap());
        Ok(outcome)
    }

    fn until_done(&mut self, mut progress: Progress) -> Outcome {
        loop {
            progress = match progress {
                Progress::Done => return Ok(None),
                Progress::Nudge(nudge) => return Ok(Some(nudge)),
                Progress::Started(call) => {
                    self.begun = Some(call);
                    return Ok(None);
                }
                Progress::Busy => panic!("a story does not wait"),
                Progress::Refused(Refusal::Trip(trip) | Refusal::NotNow(trip)) => return Err(refused(&trip)),
                Progress::Refused(Refusal::Unpriced(unpriced)) => {
                    return Err(json!({"error": "unknown_model", "model": unpriced.model, "message": unpriced.message}));
                }
                Progress::Refused(Refusal::Unanswered) => panic!("whoever asked knows why"),
                Progress::Ask(ask) => {
                    let (status, answer) = self.answer(&ask.question)?;
                    let is_answered = answer.is_some();
                    match self.run.told(ask, answer.as_deref()) {
                        Progress::Refused(Refusal::Unanswered) if !is_answered => {
                            return Err(json!({"error": "service", "status": status}));
                        }
                        progress => progress,
                    }
                }
            }
        }
    }

    /// The status and what it answers, if it does.
    fn answer(&mut self, question: &Question) -> Result<(u16, Option<String>), Value> {
        let (status, body) = (self.send)(question.path(), &question.body());
        match reply::read("POST", question.path(), status, &body).map_err(|none| none.fault) {
            Ok(answer) => Ok((status, Some(answer.into_owned()))),
            Err(Fault::Away) => Ok((status, None)),
            Err(Fault::Misdirected) => Err(json!({"error": "service", "status": status})),
            Err(Fault::Input) => Err(json!({"error": "input"})),
        }
    }

    fn told(&mut self, question: Question) -> AnswerMeaning {
        let mut question = question;
        loop {
            let (_, answer) = self.answer(&question).unwrap();
            match question.told(answer.as_deref()) {
                AnswerMeaning::Next(next) => question = next,
                told => return told,
            }
        }
    }

    fn reserve(&mut self, estimate: Cost, name: &str) -> Outcome {
        let held = match self.money.clone().unwrap() {
            Money::InProcess(budget) => Held::InProcess(budget.reserve(estimate).map_err(|exceeded| refused(&Trip::from(&exceeded)))?),
            Money::Service(budget) => match self.told(budget.reserve(Spent::Cost(estimate))) {
                AnswerMeaning::Reserved(Some(id)) => Held::Service(id),
                AnswerMeaning::NotNow(trip) | AnswerMeaning::DoesNotFit { trip, .. } => return Err(refused(&trip)),
                told => panic!("{told:?}"),
            },
        };
        self.held.insert(name.to_owned(), held);
        Ok(None)
    }

    fn settle(&mut self, name: &str, paid: Option<Cost>) {
        match (self.held.remove(name).unwrap(), self.money.clone(), paid) {
            (Held::InProcess(held), _, None) => held.release(),
            (Held::InProcess(held), _, Some(paid)) => held.commit(paid).unwrap(),
            (Held::Service(id), Some(Money::Service(budget)), paid) => {
                let question = paid.map_or_else(|| budget.release(&id, None), |paid| budget.commit(Some(&id), Spent::Cost(paid)));
                assert!(matches!(self.told(question), AnswerMeaning::Passed));
            }
            (Held::Service(_), _, _) => panic!("a reservation has a budget"),
        }
    }

    /// `None` where nothing limits it.
    fn left(&mut self, step: Option<(&str, &str)>) -> Option<f64> {
        let books = match self.money.clone().unwrap() {
            Money::InProcess(budget) => budget.books(step.map(|(session, step)| call_key(session, step)).as_deref()),
            Money::Service(budget) => match self.told(budget.books(step)) {
                AnswerMeaning::Books(books) => books,
                told => panic!("{told:?}"),
            },
        };
        match books.left {
            Left::Usd(usd) => Some(usd),
            Left::Calls(count) | Left::Tokens(count) => Some(count as f64),
            Left::Unlimited => None,
        }
    }

    fn count(&mut self, session_id: &str, step_id: &str) -> Outcome {
        match self.money.clone().unwrap() {
            Money::InProcess(budget) => {
                let counted = budget.count(&call_key(session_id, step_id));
                counted.map(|_| None).map_err(|exceeded| refused(&Trip::from(&exceeded)))
            }
            Money::Service(budget) => match self.told(budget.record(Spent::Call { session_id, step_id })) {
                AnswerMeaning::Passed => Ok(None),
                AnswerMeaning::Stopped(trip) => Err(refused(&trip)),
                told => panic!("{told:?}"),
            },
        }
    }
}
