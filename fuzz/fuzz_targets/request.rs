//! No body makes the request reader or a guard panic, and what is read can be answered as JSON in both shapes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_core::answer::{Envelope, Shape};
use runguard_core::guard::{Moment, ROUTES, replay};
use runguard_core::input::Input;
use runguard_core::text::StoreText;
use runguard_core::{Policy, Timestamp};
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);

fuzz_target!(|data: &[u8]| {
    let Some((&choice, body)) = data.split_first() else { return };
    let route = ROUTES[usize::from(choice) % ROUTES.len()];
    let Ok(input) = Input::read(body, route.fields) else { return };
    let operation = (route.read)(&input);
    let now = Timestamp::from_millis(1_700_000_000_000);
    let places = operation.places();
    let mut states: Vec<Option<Vec<u8>>> = vec![None; places.len()];
    for _ in 0..4 {
        let parts: Vec<Option<&[u8]>> = states.iter().map(Option::as_deref).collect();
        let moment = Moment { now, decision_id: "01JF8Z6Q0V3N1W2X4Y5Z6A7B8C", store_text: StoreText::Redacted };
        let outcome = operation.run(&POLICY, &parts, moment);
        let envelope = Envelope { decision_id: "id", session_id: operation.session_id(), warnings: &input.warnings, now };
        for shape in [Shape::Full, Shape::Flat] {
            let json = outcome.answer.to_json(&envelope, shape);
            assert!(json.starts_with('{') && json.ends_with('}'));
        }
        for change in outcome.changes {
            let slot = places[change.place].slot as u8;
            let rebuilt = replay(slot, states[change.place].as_deref(), &change.events, now);
            assert_eq!(rebuilt.as_deref(), Some(change.state.as_slice()), "the log rebuilds the state");
            states[change.place] = Some(change.state);
        }
    }
    let _ = operation.input(StoreText::Redacted).to_json();
});
