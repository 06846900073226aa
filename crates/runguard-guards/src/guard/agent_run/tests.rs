use super::*;
use crate::answer::Value;
use crate::guard::properties::{Story, operation};
use serde_json::json;

fn call(number: usize, args: &str, result: &str) -> serde_json::Value {
    json!({"id": format!("call_{number}"), "tool": "search", "args": args, "result": result, "round": number.to_string()})
}

#[test]
fn the_fourth_equal_pair_ends_the_run_and_it_stays_ended_for_its_rest() {
    let mut story = Story::default();
    let mut steps = Vec::new();
    for number in 0..3 {
        steps.push(call(number, "a", "x"));
        assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}))));
        assert_eq!(story.fact("new_steps"), Some(Value::from(1_u32)), "the whole conversation comes again, and counts once");
    }
    assert_eq!(story.fact("rung"), Some(Value::from("steer")));
    steps.push(call(3, "a", "x"));
    let looping = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}));
    assert_eq!(story.at(0).refuses(&*looping), Reason::RunStalled);
    let fresh = operation("/guard/agent-run", json!({"session_id": "r", "steps": [call(9, "b", "y")]}));
    let mut spoken = steps.clone();
    spoken.push(json!({"id": "u1", "user": true}));
    let spoken = operation("/guard/agent-run", json!({"session_id": "r", "steps": spoken}));
    assert_eq!(story.at(3_599_000).refuses(&*fresh), Reason::RunStalled, "a task that begins anew is the same run");
    assert!(story.at(3_599_500).allows(&*spoken), "a person wants it to go on");
    assert!(story.at(3_600_000).allows(&*fresh));
    assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "other"}))));
}

#[test]
fn what_people_say_first_a_door_counts_with_what_is_done_for_them() {
    let mut story = Story::default();
    let asked = |steps: &[serde_json::Value]| {
        let body = json!({"session_id": "r", "tokens": 7, "steps": steps}).to_string();
        let (mut input, call) = (Input::read(body.as_bytes(), ROUTE.fields).unwrap(), PassedCall::default());
        input.call = Some(&call);
        (ROUTE.read)(&input)
    };
    let (said, again) = (json!({"id": "u1", "user": true}), json!({"id": "u2", "user": true}));
    for steps in [vec![said.clone()], vec![said.clone()], vec![said.clone(), again.clone()], Vec::new()] {
        assert_eq!(story.at(0).run(&*asked(&steps)).changes, [], "nothing need be known of such a run");
        assert_eq!(story.fact("new_steps"), Some(Value::from(0_u32)));
    }
    assert!(story.at(0).allows(&*asked(&[said.clone(), call(1, "a", "x")])));
    assert_eq!(story.fact("new_steps"), Some(Value::from(2_u32)));
    assert!(story.at(0).allows(&*asked(&[said.clone(), call(1, "a", "x"), again])));
    assert_eq!(story.fact("new_steps"), Some(Value::from(1_u32)), "a run that is known hears of every word");
    let mut counts = Story::with_settings_of(&["agent_run"], json!({"long_run_tokens": 9_000}));
    assert_eq!(counts.at(0).run(&*asked(&[json!({"id": "u1", "user": true})])).changes.len(), 1, "unless its tokens count");
}

#[test]
fn an_operators_word_stops_a_run_and_lets_one_go_on() {
    let now = Timestamp::from_millis(1_000);
    let stop = Control::Stop { note: "too dear".into() };
    let steps: Vec<_> = (0..4).map(|number| call(number, "a", "x")).collect();
    let looping = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}));
    let policy = Policy::default();
    let ask = |state: &[u8], at: i64| {
        let moment = Moment { now: Timestamp::from_millis(at), decision_id: "", store_text: StoreText::None, long_runs: None };
        looping.run(&policy, &[Some(state)], moment)
    };
    let tripped = ask(&[], 1_000);
    assert_eq!(tripped.answer.reason, Some(Reason::RunStalled));
    let stopped = control(Some(&tripped.changes[0].state), &stop, now);
    let refused = ask(&stopped.state, 10_000_000);
    assert_eq!((refused.answer.reason, refused.answer.retry_at), (Some(Reason::RunStopped), None), "no time lifts it");
    assert_eq!(refused.answer.message.as_deref(), Some("The run was stopped by hand: too dear. It goes on when an operator resumes it."));
    let replayed = crate::guard::replay(SLOT.number, Some(&tripped.changes[0].state), &stopped.events, now);
    assert_eq!(replayed.as_ref(), Some(&stopped.state));
    let resumed = control(Some(&stopped.state), &Control::Resume, now);
    assert!(!ask(&resumed.state, 2_000).answer.is_block(), "what it was tripped for is lifted too");
}

#[test]
fn a_question_that_is_tried_again_hears_what_it_heard() {
    let mut story = Story::default();
    let steps: Vec<_> = (0..3).map(|number| call(number, "a", "x")).collect();
    let third = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps, "whole": true}));
    assert!(story.at(0).allows(&*third));
    let (rule, nudge) = (story.fact("rule"), story.fact("nudge"));
    assert_eq!(rule, Some(Value::from("identical")));
    for _ in 0..3 {
        assert!(story.at(1).allows(&*third));
        assert_eq!(
            (story.fact("rule"), story.fact("nudge"), story.fact("new_steps")),
            (rule.clone(), nudge.clone(), Some(Value::from(0_u32)))
        );
    }
    let shorter = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps[..2], "whole": true}));
    assert!(story.at(2).allows(&*shorter));
    assert_eq!(story.fact("rule"), None, "an earlier place of the conversation");
    let on = operation("/guard/agent-run", json!({"session_id": "r", "steps": [call(9, "b", "y")]}));
    assert!(story.at(3).allows(&*on) && story.at(3).allows(&*third));
    assert_eq!(story.fact("rule"), None, "it got on");
}

/// The question at which a run is refused that tells its steps one by one.
fn refused_at(settings: serde_json::Value, steps: &[serde_json::Value]) -> Option<usize> {
    let mut story = Story::with_settings_of(&["agent_run"], settings);
    let asks = |number: &usize| operation("/guard/agent-run", json!({"session_id": "r", "steps": steps[..*number], "whole": true}));
    (1..=steps.len()).find(|number| story.at(0).run(&*asks(number)).answer.is_block())
}

#[test]
fn a_run_is_watched_as_what_its_tools_say_it_is() {
    let clicks: Vec<_> = (0..12)
            .map(|page| json!({"id": page.to_string(), "tool": "click", "args": page.to_string(), "result": page.to_string(), "does": format!("acts {}", page % 3)}))
            .collect();
    assert_eq!(refused_at(json!({}), &clicks), Some(9), "in front of a browser");
    assert_eq!(refused_at(json!({"preset": "coding"}), &clicks), None, "what is named goes before what is seen");
    let begun = |tool: &str, answers: u64| -> Vec<_> {
        let said = |number: u64| {
            [json!({"id": format!("s{number}"), "said": format!("{number}")}), json!({"id": format!("u{number}"), "user": true})]
        };
        let called = (0..6).map(|number| json!({"id": number.to_string(), "tool": tool, "args": "a", "result": "x"}));
        [json!({"id": "u", "user": true})].into_iter().chain((0..answers).flat_map(said)).chain(called).collect()
    };
    assert_eq!(refused_at(json!({}), &begun("get_order", 1)), Some(3 + 3), "somebody waits for the answer");
    assert_eq!(refused_at(json!({}), &begun("get_order", 0)), Some(1 + 4), "who asked once may have gone");
    assert_eq!(refused_at(json!({}), &begun("execute_bash", 1)), Some(3 + 4), "who has a shell works");
}

#[test]
fn thresholds_are_laid_over_the_preset_and_each_rule_has_a_mode() {
    let same: Vec<_> = (0..8).map(|number| call(number, "a", "x")).collect();
    assert_eq!(refused_at(json!({"stall": {"identical": {"stop": 6}, "novelty_window": 0}}), &same), Some(6));
    assert_eq!(refused_at(json!({"stall": {"identical": {"stop": 6}}}), &same), Some(6), "before its news run out");
    let said = json!({"rules": {"stalled_identical": "observe"}, "stall": {"novelty_window": 0}});
    assert_eq!(refused_at(said, &same), None, "one rule only watches");
    assert_eq!(refused_at(json!({"rules": {"stalled_cycle": "observe"}}), &same), Some(4), "and the others do not");
    let clicks: Vec<_> = (0..12)
            .map(|page| json!({"id": page.to_string(), "tool": "click", "args": page.to_string(), "result": page.to_string(), "does": format!("acts {}", page % 3)}))
            .collect();
    assert_eq!(refused_at(json!({"stall": {"identical": {"stop": 6}}}), &clicks), Some(9), "the rest stays the preset's");
    assert_eq!(refused_at(json!({"stall": {"highest": "steer"}}), &same), None);
    let refused = |settings: serde_json::Value| {
        let tree = json!({"agent_run": settings});
        Policy::build(tree.as_object().unwrap(), &["guards"]).map(drop).unwrap_err()
    };
    let unknown = refused(json!({"stall": {"identicl": {"stop": 6}}}));
    assert!(unknown.path == ["guards", "agent_run", "stall", "identicl"] && unknown.problem.contains("identicl"), "{unknown:?}");
    let wrong = refused(json!({"stall": {"identical": {"stop": 1}}}));
    assert!(wrong.problem.contains("one step is never a stall"), "{wrong:?}");
    assert!(refused(json!({"rules": {"loop_detected": "off"}})).problem.contains("stalled_identical"));
}

#[test]
fn a_state_from_before_anything_was_judged_is_read() {
    let before = encode(&State { told: vec![7], ..State::default() });
    let state = State::load(&[Some(&before)]);
    assert_eq!((state.told.as_slice(), &state.judged), (&[7][..], &None));
    let judged = Judged { step: 7, rung: Rung::Steer, rule: StallRule::Identical, count: 3, tool: "search".into() };
    let state = State { judged: Some(judged), ..state };
    assert_eq!(State::load(&[Some(&state.save(0))]), state);
    assert_eq!(postcard::from_bytes::<State>(&state.save(0)).map(|state| state.told), Ok(vec![7]), "by an earlier version too");
}

#[test]
fn a_run_whose_questions_got_dear_is_stopped_where_somebody_says_what_is_much() {
    for much in [
        json!({"long_run_tokens": 100_000}),
        json!({"stall": {"long_run_tokens": 100_000}}),
        json!({"long_run_tokens": 100_000, "stall": {"long_run_tokens": 9_000_000}}),
    ] {
        let mut story = Story::with_settings_of(&["agent_run"], much.clone());
        let rungs = getting_nowhere(&mut story, 5, json!({"tokens": 30_000}));
        let expected = ["go_on", "go_on", "go_on", "steer", "stop"];
        assert_eq!(
            rungs,
            expected.map(|rung| Some(Value::from(rung))),
            "{much}: 90,000 were used before the fourth question, 120,000 before the fifth"
        );
    }
}

/// A run that edits and sees its check fail, told by its whole conversation at each of so many questions.
fn getting_nowhere(story: &mut Story, questions: usize, asks: serde_json::Value) -> Vec<Option<Value>> {
    let mut steps = Vec::new();
    let mut rungs = Vec::new();
    for number in 0..questions {
        steps.push(json!({"id": format!("c{number}"), "tool": "bash", "args": format!("echo {number}"), "result": "x", "does": "changes", "round": format!("{number}")}));
        steps.push(json!({"id": format!("t{number}"), "tool": "bash", "args": "pytest", "error": format!("e{number}"), "does": "runs", "round": format!("{number}b")}));
        let mut body = json!({"session_id": "r", "steps": steps, "whole": true});
        body.as_object_mut().unwrap().extend(asks.as_object().unwrap().clone());
        story.at(0).run(&*operation("/guard/agent-run", body));
        rungs.push(story.fact("rung"));
    }
    rungs
}

#[test]
fn what_the_log_says_is_long_ends_a_run_of_that_kind_unless_somebody_says_it() {
    let stopped = ["go_on", "go_on", "go_on", "steer", "stop"].map(|rung| Some(Value::from(rung)));
    let told = |settings: serde_json::Value, long: Long, asks: serde_json::Value| {
        let mut story = Story::with_settings_of(&["agent_run"], settings);
        story.long_runs = [("agent_run\n\nm".into(), long)].into_iter().collect();
        let rungs = getting_nowhere(&mut story, 5, asks);
        (rungs, story)
    };
    let by_calls = Long { calls: 8, tokens: 0 };
    let (rungs, story) = told(json!({}), by_calls, json!({"model": "m"}));
    assert_eq!(rungs, stopped, "from nine calls on, and told an eighth before");
    let said = |name: &str| story.fact(name);
    assert_eq!((said("calls"), said("long_calls"), said("long_tokens")), (Some(10_u64.into()), Some(8_u64.into()), None));
    let by_tokens = Long { calls: 0, tokens: 100_000 };
    assert_eq!(told(json!({}), by_tokens, json!({"model": "m", "tokens": 30_000})).0, stopped);
    let going_on = vec![Some(Value::from("go_on")); 5];
    for (settings, model) in [
        (json!({}), "another"),
        (json!({"stall": {"long_run_learned": false}}), "m"),
        (json!({"stall": {"long_run": {"stop": 50}}}), "m"),
        (json!({"rules": {"stalled_long_run": "off"}}), "m"),
    ] {
        assert_eq!(told(settings.clone(), by_calls, json!({"model": model})).0, going_on, "{settings} {model}");
    }
    let (rungs, story) = told(json!({"rules": {"stalled_long_run": "observe"}}), by_calls, json!({"model": "m"}));
    assert_eq!((rungs, story.fact("rule")), (stopped.to_vec(), Some(Value::from("long_run"))));
    assert_eq!(story.said_allow(), Some(true), "it only watches");
}

#[test]
fn news_and_people_are_no_circle() {
    let mut story = Story::default();
    let steps: Vec<_> = (0..12).map(|number| call(number, "a", &format!("x{number}"))).collect();
    assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}))));
    let mut asked = Vec::new();
    for number in 0..8 {
        asked.push(json!({"id": format!("u{number}"), "user": true}));
        asked.push(call(number, "a", "x"));
    }
    assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "p", "steps": asked}))));
}

#[test]
fn words_that_come_again_with_their_answer_are_a_circle_too() {
    let mut story = Story::default();
    let said = |count: usize| -> Vec<_> {
        (0..count)
            .flat_map(|number| {
                [
                    json!({"id": format!("s{number}"), "said": "calling search", "result": "observation"}),
                    json!({"id": format!("u{number}"), "user": true}),
                ]
            })
            .collect()
    };
    assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "r", "steps": said(3)}))));
    let fourth = operation("/guard/agent-run", json!({"session_id": "r", "steps": said(4)}));
    assert_eq!(story.at(0).refuses(&*fourth), Reason::RunStalled);
}
