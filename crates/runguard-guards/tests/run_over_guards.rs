//! The stories of `sdk/stories.json` with the counts kept by the guards: a run over a service says what a run in a process says. And
//! what it sends is what the routes take.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on should stop; the stories are a file")]

#[path = "../../runguard-core/tests/stories/player.rs"]
mod player;

use runguard_core::Timestamp;
use runguard_core::text::StoreText;
use runguard_guards::Policy;
use runguard_guards::answer::{Envelope, Shape};
use runguard_guards::guard::{Moment, ROUTES};
use runguard_guards::input::Input;
use std::collections::BTreeMap;

#[test]
fn every_story_over_the_guards() {
    let policy = Policy::default();
    let mut states: BTreeMap<(String, u8, String), Vec<u8>> = BTreeMap::new();
    let mut decisions = 0;
    let played = player::play_all("service", |_, path, body| {
        let route = ROUTES.iter().find(|route| route.path == path).unwrap();
        let input = Input::read(body.as_bytes(), route.fields).unwrap_or_else(|problems| panic!("{path} {body}: {problems:?}"));
        assert!(input.warnings.is_empty(), "{path} {body}");
        let operation = (route.read)(&input);
        let places = operation.places();
        let key = |index: usize| (places[index].name.to_owned(), places[index].slot.number, places[index].subject.to_owned());
        let before: Vec<Option<&[u8]>> = (0..places.len()).map(|index| states.get(&key(index)).map(Vec::as_slice)).collect();
        decisions += 1;
        let decision_id = format!("decision-{decisions}");
        let now = Timestamp::from_millis(1_700_000_000_000 + decisions);
        let outcome = operation.run(&policy, &before, Moment { now, decision_id: &decision_id, store_text: StoreText::Redacted });
        for change in outcome.changes {
            states.insert(key(change.place), change.state);
        }
        let envelope = Envelope { decision_id: &decision_id, session_id: operation.session_id(), warnings: &outcome.warnings, now };
        (200, outcome.answer.to_json(&envelope, Shape::Full).json)
    });
    assert!(played > 20);
}
