//! Doors for the fuzz targets to what callers and providers send, without a connection.

use crate::answer::{Meter, Pass};
use crate::api::Api;
use crate::bedrock::Family;
use crate::history::{self, Before};
use crate::identity::{self, Follows};
use crate::members::Members;
use crate::pieces::Pieces;
use crate::question::{KnownAs, Question, model_of};
use bytes::Bytes;
use http::HeaderMap;
use runguard_core::detect::stall::VolatileResults;
use serde_json::Value;

const INTERFACES: [Api; 17] = [
    Api::Chat,
    Api::Completions,
    Api::Responses,
    Api::Embeddings,
    Api::Messages,
    Api::Converse,
    Api::Invoke(Family::Anthropic),
    Api::Invoke(Family::Nova),
    Api::Invoke(Family::Titan),
    Api::Invoke(Family::Llama),
    Api::Invoke(Family::Mistral),
    Api::Invoke(Family::Cohere),
    Api::Invoke(Family::Chat),
    Api::Invoke(Family::GptOss),
    Api::Invoke(Family::TitanEmbeddings),
    Api::Invoke(Family::CohereEmbeddings),
    Api::Invoke(Family::Unknown),
];

fn interface(choice: u8) -> Api {
    INTERFACES[usize::from(choice) % INTERFACES.len()]
}

/// Reads a question, what its run did and which one it is, and changes what the gateway may change.
pub fn question(choice: u8, body: &[u8]) {
    let api = interface(choice);
    let Ok(members) = Members::read(body) else { return };
    assert!(history::steps(api, &members, Before::default(), VolatileResults::NONE).len() <= 200);
    let _ = identity::run_of(&HeaderMap::new(), api, &members, "key", "2026-11-17", Follows::Nothing);
    if let Some(input) = members.get("input") {
        history::marks(input);
        history::goes_on(input);
    }
    if let Some(told) = history::nudge::append(api, &members, "a \"note\"") {
        assert!(serde_json::from_str::<Value>(&told).is_ok(), "{told}");
        assert!(told.contains(r#"[RunGuard: a \"note\"]"#), "{told}");
    }
    let model = model_of(&members).unwrap_or_else(|_| "gpt-4o".into());
    let known_as = KnownAs { priced: model.clone(), model };
    let Ok(question) = Question::read(api, &known_as, &members) else { return };
    let prepared = question.prepare(&Bytes::copy_from_slice(body), Some(77));
    if let (Ok(prepared), Some(name)) = (prepared, api.length_members().first()) {
        let bounded = Members::read(&prepared).expect("what is changed is an object still");
        let bounds = api.length_members().iter().filter(|name| bounded.has_at(name));
        assert!(bounds.clone().count() > 0, "{name} is missing");
        for name in bounds {
            assert_eq!(bounded.whole_at(name), Ok(Some(77)), "{name}");
        }
    }
}

/// Follows an answer in pieces of this size, as it is passed on, and ends it.
pub fn stream(choice: u8, size: usize, bytes: &[u8]) {
    let api = interface(choice);
    for hides_usage in [false, true] {
        let (mut pieces, mut meter, mut passed) = (Pieces::of(api), Meter::new(api, hides_usage), Vec::new());
        for piece in bytes.chunks(size) {
            if pieces.push(piece).is_err() {
                return;
            }
            while let Some(event) = pieces.next() {
                let Ok(event) = event else { return };
                match meter.take(&event) {
                    Pass::AsItCame => passed.extend_from_slice(&event),
                    Pass::Instead(event) => passed.extend_from_slice(&event),
                    Pass::Nothing => {}
                }
            }
        }
        let rest = pieces.take_rest();
        meter.take(&rest);
        passed.extend_from_slice(&rest);
        assert!(hides_usage || passed == bytes, "passed on as it came");
        let _ = (meter.account(), meter.is_beyond(10), meter.cut());
        assert!(meter.is_complete());
    }
}
