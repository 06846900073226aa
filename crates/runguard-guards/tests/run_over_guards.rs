//! The stories of `sdk/stories.json` with the counts kept by the guards: a run over a service says what a run in a process says. And
//! what it sends is what the routes take.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on should stop; the stories are a file")]

#[path = "../../runguard-core/tests/stories/player.rs"]
mod player;

use runguard_core::Timestamp;
use runguard_core::budget::{Cost, Limits};
use runguard_core::calendar::Period;
use runguard_core::ledger::Scope;
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Prices, Prompt, UnknownModel, UnknownModelError, Usage};
use runguard_core::run::{Ceilings, Loops, ModelQuestion, Money, Progress, Refusal, Run, ServiceBudget, Unanswered, Used};
use runguard_core::text::StoreText;
use runguard_guards::Policy;
use runguard_guards::answer::{Envelope, Shape};
use runguard_guards::guard::{Moment, ROUTES};
use runguard_guards::input::Input;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The guards with their states.
#[derive(Default)]
struct Guards {
    policy: Policy,
    states: BTreeMap<(String, u8, String), Vec<u8>>,
    decisions: i64,
}

impl Guards {
    fn answer(&mut self, path: &str, body: &str) -> String {
        let route = ROUTES.iter().find(|route| route.path == path).unwrap();
        let input = Input::read(body.as_bytes(), route.fields).unwrap_or_else(|problems| panic!("{path} {body}: {problems:?}"));
        assert!(input.warnings.is_empty(), "{path} {body}");
        let operation = (route.read)(&input);
        let places = operation.places_by(&self.policy);
        let key = |index: usize| (places[index].name.to_owned(), places[index].slot.number, places[index].subject.to_owned());
        let before: Vec<Option<&[u8]>> = (0..places.len()).map(|index| self.states.get(&key(index)).map(Vec::as_slice)).collect();
        self.decisions += 1;
        let decision_id = format!("decision-{}", self.decisions);
        let now = Timestamp::from_millis(1_700_000_000_000 + self.decisions);
        let outcome = operation.run(
            &self.policy,
            &before,
            Moment { now, decision_id: &decision_id, store_text: StoreText::Redacted, long_runs: None },
        );
        for change in outcome.changes {
            self.states.insert(key(change.place), change.state);
        }
        let envelope = Envelope { decision_id: &decision_id, session_id: operation.session_id(), warnings: &outcome.warnings, now };
        outcome.answer.to_json(&envelope, Shape::Full).json
    }
}

#[test]
fn every_story_over_the_guards() {
    let mut guards = Guards::default();
    let played = player::play_all("service", |_, path, body| (200, guards.answer(path, body)));
    assert!(played > 20);
}

impl Guards {
    fn with_scopes(scopes: &Value) -> Self {
        let tree = json!({"budget": {"scopes": scopes}});
        Self { policy: Policy::build(tree.as_object().unwrap(), &["guards"]).unwrap(), ..Self::default() }
    }

    /// Asks until nothing is left to ask.
    fn told(&mut self, run: &mut Run, mut progress: Progress) -> Progress {
        while let Progress::Ask(ask) = progress {
            let answer = self.answer(ask.question.path(), &ask.question.body());
            progress = run.told(ask, Some(&answer));
        }
        progress
    }
}

fn run_with(budget: Arc<ServiceBudget>) -> Run {
    Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::Service(budget)))
}

fn budget_of(session: &str) -> Arc<ServiceBudget> {
    ServiceBudget::new(session, Limits::default(), Unanswered::Refused)
}

fn dollars(usd: &str) -> Cost {
    Cost::usd(NanoDollars::parse(usd).unwrap())
}

fn price(model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
    Prices::bundled().cost(model, usage, &UnknownModel::Error).map(|(usd, _)| usd)
}

/// What of a scope is left for a question that draws on it.
fn left_of(guards: &mut Guards, scope: &Value) -> f64 {
    let body = json!({"session_id": "somebody else", "usd": 1_000, "scopes": [scope]});
    let answer: Value = serde_json::from_str(&guards.answer("/guard/budget/check", &body.to_string())).unwrap();
    answer["remaining_usd"].as_f64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_call_leaves_nothing_set_aside_in_the_scope_of_its_model() {
    let model = json!({"per": "model", "name": "gpt-4o", "period": "day"});
    let (used, paid) = (Usage::new(1_000_000, 0), dollars("0.75"));
    for (used, left) in [
        (Used::Nothing, 10.0),
        (Used::Paid { cost: paid }, 9.25),
        (Used::Counted { model: None, usage: &used }, 7.5),
        (Used::Counted { model: Some("gpt-4o-mini"), usage: &used }, 9.85),
    ] {
        let mut guards = Guards::with_scopes(&json!({"model": {"day": {"max_usd": 10}}}));
        let mut run = run_with(budget_of("run"));
        let asked = ModelQuestion {
            model: "gpt-4o",
            prompt: Prompt::default(),
            max_output: Some(1_000),
            choices: 1,
            has_waited: false,
            asks_again: false,
            may_fall_back: false,
        };
        let begun = run.begin_model(asked, &price, Timestamp::ZERO);
        let Progress::Started(call) = guards.told(&mut run, begun) else { panic!("there is enough") };
        assert!(left_of(&mut guards, &model) < 10.0);
        let ended = run.finish_model(call, used, &price);
        assert!(matches!(guards.told(&mut run, ended), Progress::Done));
        assert!((left_of(&mut guards, &model) - left).abs() < 1e-9, "{used:?}");
    }
}

#[test]
fn a_run_draws_on_the_scopes_it_names_and_on_its_parents() {
    let named = |per: &str, name: &str, usd: &str| {
        Scope::new(per, name, Some(Period::Day), Limits { usd: Some(dollars(usd).usd), ..Limits::default() }).unwrap()
    };
    let mut guards = Guards::default();
    let team = budget_of("team").within(vec![named("team", "search", "2")]).unwrap();
    let budget = team.child("run", Limits::default()).unwrap().within(vec![named("user", "u-17", "1")]).unwrap();
    let (mut run, mut other) = (run_with(budget), run_with(team));
    let paid = run.record(dollars("0.75"));
    assert!(matches!(guards.told(&mut run, paid), Progress::Done));
    let paid = other.record(dollars("0.5"));
    assert!(matches!(guards.told(&mut other, paid), Progress::Done));
    let scope = |per: &str, name: &str, max_usd: u64| json!({"per": per, "name": name, "period": "day", "max_usd": max_usd});
    assert!((left_of(&mut guards, &scope("user", "u-17", 1)) - 0.25).abs() < 1e-9);
    assert!((left_of(&mut guards, &scope("team", "search", 2)) - 0.75).abs() < 1e-9);
    let paid = run.record(dollars("0.3"));
    let Progress::Refused(Refusal::NotNow(trip)) = guards.told(&mut run, paid) else { panic!("the user's day is over") };
    assert!(trip.message.starts_with("The budget of user 'u-17' for the day of $1.00 is exceeded"), "{}", trip.message);
    let many = (0..16).map(|number| named("user", &number.to_string(), "1")).collect();
    let refused = budget_of("team").within(vec![named("team", "search", "2")]).unwrap().within(many).unwrap_err();
    assert_eq!(refused.to_string(), "a budget with its parent draws on at most 16 scopes, not on 17");
}

#[test]
fn a_limit_of_a_day_ends_no_run_and_is_called_by_its_name() {
    let mut guards = Guards::with_scopes(&json!({"tenant": {"day": {"max_usd": 1}}}));
    let mut run = run_with(budget_of("run"));
    let paid = run.record(dollars("1"));
    assert!(matches!(guards.told(&mut run, paid), Progress::Done));
    let asked = run.before_model(Timestamp::ZERO);
    let Progress::Refused(Refusal::NotNow(trip)) = guards.told(&mut run, asked) else { panic!("tomorrow it passes") };
    assert_eq!(
        trip.message,
        "The tenant's budget for the day of $1.00 is used up: $1.00 spent. Wait for the next period, stop the run, or raise the limit."
    );
    assert_eq!(run.trip(), None);
}
