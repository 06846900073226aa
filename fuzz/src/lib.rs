//! What the fuzz targets do, one function a reader: random bytes go in, and it neither panics nor breaks its word. libFuzzer drives
//! them from `fuzz_targets/`; the tests below drive each for a moment, on stable Rust.

mod body;
mod conversation;
mod story;

use arbitrary::Unstructured;
use runguard_agent::provider::fuzzing::{Wire, read};
use runguard_core::Timestamp;
use runguard_core::fingerprint::{Volatile, canonical_text, canonical_value, of_text, of_value};
use runguard_core::text::{self, MARKS, StoreText};
use runguard_guards::Policy;
use runguard_guards::guard::{ROUTES, outlook, replay};
use runguard_guards::input::Input;
use runguard_replay::format::{Format, open};
use runguard_replay::trace::Detail;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);

/// No body at all makes the request reader panic.
pub fn request(data: &[u8]) {
    let Some((&choice, body)) = data.split_first() else { return };
    let route = ROUTES[usize::from(choice) % ROUTES.len()];
    if let Ok(input) = Input::read(body, route.fields) {
        let _ = (route.read)(&input);
    }
}

/// Requests that fit their route: no history of them makes a guard panic, the log rebuilds every state, every answer is JSON.
pub fn guard(data: &[u8]) {
    story::run(&POLICY, Unstructured::new(data));
}

/// No settings file makes a reader of settings panic, the service's or the agent's; what is read can be shown.
pub fn settings(text: &str) {
    if let Ok(loaded) = runguard_engine::settings::check_text(Path::new("fuzz.toml"), text) {
        let _ = loaded.values();
    }
    if let Ok(settings) = runguard_agent::Settings::from_toml(text) {
        assert!(settings.check().is_ok());
    }
}

/// Nothing a provider sends makes its reader panic, in whatever pieces it comes.
pub fn provider(data: (u8, u8, &[u8])) {
    let (wire, piece, bytes) = data;
    let wire = [Wire::OpenAi, Wire::Anthropic, Wire::Bedrock, Wire::BedrockWhole][usize::from(wire) % 4];
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(piece).max(1)).collect();
    let _ = read(wire, &pieces);
}

/// No question to the gateway makes its readers panic; one that is changed says the rest as it did.
pub fn question(data: (u8, &[u8])) {
    let (interface, body) = data;
    runguard_gateway::fuzzing::question(interface, body);
    // Bytes alone are hardly ever a conversation.
    runguard_gateway::fuzzing::question(interface, conversation::question(body).to_string().as_bytes());
}

/// Nothing a provider sends makes the gateway panic, in whatever pieces it comes, and every byte of it is passed on.
pub fn relayed(data: (u8, u8, &[u8])) {
    let (interface, piece, bytes) = data;
    let size = usize::from(piece).max(1);
    runguard_gateway::fuzzing::stream(interface, size, bytes);
    runguard_gateway::fuzzing::stream(interface, size, conversation::events(bytes).as_bytes());
}

/// No file makes a reader of recorded runs panic, whichever format it is taken for.
pub fn trace(data: (u8, &[u8])) {
    let (choice, bytes) = data;
    let format = Format::ALL.get(usize::from(choice) % (Format::ALL.len() + 1)).copied();
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file can be made");
    file.write_all(bytes).expect("a file can be written");
    if let Ok(runs) = open(file.path(), format, Detail::TEXTS) {
        // Each either is a run or says why it is none.
        assert!(runs.take(100_000).count() < 100_000, "a reader goes on for ever");
    }
}

/// The canonical form is JSON, is its own canonical form, and says the same of a text and of what it means.
pub fn fingerprint(text: &str) {
    let volatile = Volatile::default();
    let Ok(canonical) = canonical_text(text, &volatile) else { return };
    assert_eq!(canonical_text(&canonical, &volatile).as_deref(), Ok(canonical.as_str()), "canonical once is canonical for good");
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        // Read back from the value: a whole number of more than 64 bits is exact as a text, and rounded as a value.
        let text = value.to_string();
        assert_eq!(canonical_value(&value, &volatile), canonical_text(&text, &volatile), "a value and its text");
        assert_eq!(of_text(&text), of_value(&value));
    }
}

/// No text makes the redaction panic or grow without a mark, and a long number that nothing explains does not stay.
pub fn redact(text: &str) {
    let redacted = text::redact(text);
    // Whatever stands before it: a number that is no date, no fraction, no round number and no part of a hash.
    let numbered = format!("{text}\nmy number is 7453917 there");
    assert!(!text::redact(&numbered).contains("7453917"), "{numbered:?} -> {:?}", text::redact(&numbered));
    assert!(redacted == text || MARKS.iter().any(|mark| redacted.contains(mark)));
    for store_text in [StoreText::None, StoreText::Redacted, StoreText::Full] {
        assert!(store_text.keep(text, 100).chars().count() <= 100);
        let _ = store_text.keep_name(text);
    }
}

/// No bytes in a store make a decoder panic: states, events, rows of the log and of Redis' streams.
pub fn row(data: (u8, &[u8], &[u8])) {
    let (slot, state, events) = data;
    let now = Timestamp::from_millis(1_700_000_000_000);
    let slot = slot % 17;
    if let Some(after) = replay(slot, Some(state), events, now) {
        let _ = replay(slot, Some(&after), events, now);
        let _ = outlook(slot, &POLICY, "a", &after, now);
    }
    let _ = outlook(slot, &POLICY, "a", state, now);
    runguard_store::fuzzing::read_row(events);
}

/// No address of a database makes its reader panic, and no refusal repeats a password.
pub fn address(url: &str) {
    for refused in [runguard_store::fuzzing::redis_address(url), runguard_store::fuzzing::postgres_address(url)].into_iter().flatten() {
        let secret = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).and_then(|(login, _)| login.split_once(':'));
        if let Some((_, password)) = secret.filter(|(_, password)| password.len() > 12) {
            assert!(!refused.contains(password), "{refused}");
        }
    }
}

/// No pattern makes its compiler panic, or take more than its bound; none makes the search panic.
pub fn pattern(data: (&str, &str)) {
    let (source, text) = data;
    let Value::Object(guards) = json!({"ai_task_retry": {"patterns": {"t": source}}}) else { return };
    if let Ok(policy) = Policy::build(&guards, &["guards"]) {
        let patterns = &policy.ai_task_retry.for_subject("t").settings.patterns;
        let _ = patterns.get("t").map(|pattern| pattern.is_in(text));
    }
}

#[cfg(test)]
mod tests {
    use super::{POLICY, story};
    use arbitrary::{Arbitrary, Unstructured};
    use proptest::prelude::*;
    use std::cell::Cell;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..2000)
    }

    /// As libFuzzer's macro makes a target's input of bytes.
    fn give<'a, Data: Arbitrary<'a>>(bytes: &'a [u8], target: impl Fn(Data)) {
        if let Ok(data) = Data::arbitrary_take_rest(Unstructured::new(bytes)) {
            target(data);
        }
    }

    macro_rules! each_for_a_moment {
        ($($target:ident)*) => {
            $(#[test]
            fn $target() {
                proptest!(ProptestConfig::with_cases(100), |(bytes in bytes())| give(&bytes, super::$target));
            })*
        };
    }

    each_for_a_moment!(request settings provider question relayed trace fingerprint redact row address pattern);

    #[test]
    fn most_bodies_are_taken_and_no_history_of_them_breaks_a_guard() {
        let (made, taken) = (Cell::new(0), Cell::new(0));
        proptest!(ProptestConfig::with_cases(400), |(bytes in bytes())| {
            let share = story::run(&POLICY, Unstructured::new(&bytes));
            made.set(made.get() + share.made);
            taken.set(taken.get() + share.taken);
        });
        let share = taken.get() as f64 / made.get() as f64;
        println!("{} bodies, {:.1} % taken", made.get(), share * 100.0);
        assert!(share > 0.8, "only {:.1} % of {} bodies were taken", share * 100.0, made.get());
    }
}
