//! The stories of `sdk/stories.json` with the counts kept by the guards: a run over a service says what a run in a process says. And
//! what it sends is what the routes take.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on should stop; the stories are a file")]

#[path = "../../runguard-core/tests/stories/player.rs"]
mod player;

use runguard_core::Timestamp;
use runguard_core::budget::{Cost, Limits};
use runguard_core::money::NanoDollars;
use runguard_core::run::{Ceilings, Loops, Money, Progress, Refusal, Run, ServiceBudget, Unanswered};
use runguard_core::text::StoreText;
use runguard_guards::Policy;
use runguard_guards::answer::{Envelope, Shape};
use runguard_guards::guard::{Moment, ROUTES};
use runguard_guards::input::Input;
use serde_json::json;
use std::collections::BTreeMap;

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
        let outcome = operation.run(&self.policy, &before, Moment { now, decision_id: &decision_id, store_text: StoreText::Redacted });
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

#[test]
fn a_limit_of_a_day_ends_no_run_and_is_called_by_its_name() {
    let tree = json!({"budget": {"scopes": {"tenant": {"day": {"max_usd": 1}}}}});
    let mut guards = Guards { policy: Policy::build(tree.as_object().unwrap(), &["guards"]).unwrap(), ..Guards::default() };
    let budget = ServiceBudget::new("run", Limits::default(), Unanswered::Refused);
    let mut run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::Service(budget)));
    let mut told = |run: &mut Run, progress: Progress| {
        let Progress::Ask(ask) = progress else { panic!("the guards are asked") };
        let answer = guards.answer(ask.question.path(), &ask.question.body());
        run.told(ask, Some(&answer))
    };
    let paid = run.record(Cost::usd(NanoDollars::parse("1").unwrap()));
    assert!(matches!(told(&mut run, paid), Progress::Done));
    let asked = run.before_model(Timestamp::ZERO);
    let Progress::Refused(Refusal::NotNow(trip)) = told(&mut run, asked) else { panic!("tomorrow it passes") };
    assert_eq!(
        trip.message,
        "The tenant's budget for the day of $1.00 is used up: $1.00 spent. Wait for the next period, stop the run, or raise the limit."
    );
    assert_eq!(run.trip(), None);
}
