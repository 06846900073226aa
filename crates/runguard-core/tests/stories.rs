//! The stories of `sdk/stories.json`, played on the core itself; Python and TypeScript play the same.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on should stop; the stories are a file")]

#[path = "stories/player.rs"]
mod player;

use runguard_core::model_question::Asked;
use runguard_core::prices::{ServiceTier, Usage, may_be_billed, raise_counts};
use runguard_core::run::reply;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[test]
fn every_story_in_this_process() {
    assert!(player::play_all("process", |_, _, _| panic!("nobody is asked")) > 20);
}

#[test]
fn every_story_that_brings_its_answers() {
    let mut given: BTreeMap<String, usize> = BTreeMap::new();
    let played = player::play_all("answers", |story, _, _| {
        let next = given.entry(story["name"].to_string()).or_default();
        let answer = &story["answers"][*next];
        *next += 1;
        let text = answer["text"].as_str().map_or_else(|| answer["decision"].to_string(), str::to_owned);
        (answer["status"].as_u64().unwrap() as u16, text)
    });
    assert!(played > 2);
}

#[test]
fn every_reply_is_an_answer_or_somebodys_fault() {
    for expected in player::told()["replies"].as_array().unwrap() {
        let status = expected["status"].as_u64().unwrap() as u16;
        let read = reply::read("POST", "/guard/loop", status, expected["text"].as_str().unwrap());
        if let (Some(says), Ok(answer)) = (expected.get("says"), &read) {
            assert_eq!(&serde_json::from_str::<Value>(answer).unwrap(), says, "{expected}");
        }
        assert_eq!(read.map_or_else(|none| none.fault.name(), |_| "answer"), expected["is"], "{expected}");
    }
}

#[test]
fn every_usage_is_counted() {
    for expected in player::told()["usages"].as_array().unwrap() {
        let mut report = Map::new();
        for told in expected["reports"].as_array().unwrap() {
            raise_counts(&mut report, told);
        }
        let read = match expected["path"].as_str().unwrap() {
            "/messages" => Usage::from_anthropic,
            "langchain" => Usage::from_langchain,
            _ => Usage::from_openai,
        };
        let usage = read(&Value::Object(report)).unwrap();
        let usage = expected["service_tier"].as_str().map_or(usage, |tier| usage.in_tier(ServiceTier::named(tier)));
        assert_eq!(usage, serde_json::from_value(expected["used"].clone()).unwrap(), "{expected}");
    }
}

#[test]
fn every_question_is_read() {
    for expected in player::told()["questions"].as_array().unwrap() {
        let (body, model) = (expected["body"].to_string(), expected["body"]["model"].as_str().unwrap());
        let Asked { max_output, choices, bounds, unmetered } = Asked::read(expected["path"].as_str().unwrap(), model, &body).unwrap();
        assert_eq!(
            json!([max_output, choices, bounds]),
            json!([expected["max_output"], expected["choices"], expected["bounds"]]),
            "{expected}"
        );
        match (expected["unmetered"].as_str(), &unmetered) {
            (Some(part), Some(why)) => assert!(why.contains(part), "{why}\n{expected}"),
            (said, why) => assert!(said.is_none() && why.is_none(), "{why:?}\n{expected}"),
        }
    }
}

#[test]
fn every_failure_may_be_billed_or_not() {
    for expected in player::told()["failures"].as_array().unwrap() {
        let names = expected["errors"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        assert_eq!(may_be_billed(names), expected["may_be_billed"].as_bool().unwrap(), "{expected}");
    }
}
