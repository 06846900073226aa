//! A few requests, one after the other, on states that are kept, and what must be true of every one of them.

use arbitrary::Unstructured;
use runguard_core::Timestamp;
use runguard_core::text::StoreText;
use runguard_guards::answer::{Envelope, Shape};
use runguard_guards::guard::{Moment, ROUTES, replay};
use runguard_guards::input::Input;
use runguard_guards::{Policy, Scope};
use std::collections::BTreeMap;

/// How many bodies were made, and how many of them were taken.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) made: u64,
    pub(crate) taken: u64,
}

/// Bodies that `body` makes of the bytes, until they are used up.
pub(crate) fn run(policy: &Policy, mut bytes: Unstructured<'_>) -> Share {
    let mut share = Share::default();
    let mut states: BTreeMap<(Scope, String, u8, String), Vec<u8>> = BTreeMap::new();
    let mut now = 1_700_000_000_000_i64;
    while share.made < 40 && !bytes.is_empty() {
        let Ok(route) = bytes.choose(ROUTES) else { break };
        let Ok(body) = super::body::body(route.fields, &mut bytes) else { break };
        now += i64::from(bytes.arbitrary::<u16>().unwrap_or_default()) * 20;
        share.made += 1;
        let Ok(input) = Input::read(&body, route.fields) else { continue };
        share.taken += 1;
        let operation = (route.read)(&input);
        let store_text = [StoreText::None, StoreText::Redacted, StoreText::Full][share.made as usize % 3];
        let moment = Moment { now: Timestamp::from_millis(now), decision_id: "01JF8Z6Q0V3N1W2X4Y5Z6A7B8C", store_text, long_runs: None };
        let places = operation.places_by(policy);
        let names: Vec<_> = places
            .iter()
            .map(|place| (place.scope, place.name.to_owned(), place.slot.number, place.kept_subject(store_text).into_owned()))
            .collect();
        let kept: Vec<Option<&[u8]>> = names.iter().map(|name| states.get(name).map(Vec::as_slice)).collect();
        let outcome = operation.run(policy, &kept, moment);
        let envelope = Envelope { decision_id: "id", session_id: operation.session_id(), warnings: &input.warnings, now: moment.now };
        for shape in [Shape::Full, Shape::Flat] {
            let answer: serde_json::Value =
                serde_json::from_str(&outcome.answer.to_json(&envelope, shape).json).expect("an answer is JSON");
            assert!(answer.is_object());
        }
        let _: serde_json::Value = serde_json::from_str(&operation.input(store_text)).expect("what is kept is JSON");
        let _ = operation.kept_subject(store_text);
        for change in outcome.changes {
            let name = &names[change.place];
            let rebuilt = replay(name.2, states.get(name).map(Vec::as_slice), &change.events, moment.now);
            assert_eq!(rebuilt.as_deref(), Some(change.state.as_slice()), "the log rebuilds the state");
            states.insert(name.clone(), change.state);
        }
    }
    share
}
