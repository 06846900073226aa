//! Guards over recorded steps, and what contenders make of them.

use super::*;
use crate::evaluate::{Progress, Reading, Recorded};
use crate::labels::Labels;
use runguard_core::detect::stall::CallEffect;

pub(crate) fn call(args: u64, result: u64) -> Step {
    Step {
        kind: Kind::Call,
        tool: "sh".into(),
        args,
        result: Some(result),
        error: None,
        effect: CallEffect::Unknown,
        round: None,
        spoke: None,
        tokens: 10,
        dollars: 0.5,
        at_millis: None,
        texts: None,
    }
}

/// A call of an agent that has neither shell nor files.
pub(crate) fn asked(args: u64) -> Step {
    Step { tool: "get_order".into(), ..call(args, args) }
}

pub(crate) fn failed(args: u64, error: u64) -> Step {
    Step { error: Some(error), ..call(args, error) }
}

pub(super) fn said(text: u64) -> Step {
    Step { kind: Kind::Message, tool: "__message__".into(), result: Some(1), ..call(text, 1) }
}

pub(super) fn unknown(args: u64) -> Step {
    Step { result: None, ..call(args, 0) }
}

pub(crate) fn run(source: &str, steps: Vec<Step>) -> Run {
    Run {
        task: "t".into(),
        model: "m".into(),
        agent: "a".into(),
        success: Some(false),
        steps,
        ..Run::new("r".into(), source, crate::trace::ReadAt::default())
    }
}

pub(super) fn stop(name: &str, steps: Vec<Step>) -> Option<usize> {
    let contenders = contenders().unwrap();
    contenders.iter().find(|contender| contender.name == name).unwrap().stop(&run("s", steps))
}

#[test]
fn runguard_nudges_at_three_and_stops_at_four() {
    assert_eq!(stop("RunGuard", vec![call(1, 1); 3]), None);
    assert_eq!(stop("RunGuard", vec![call(1, 1); 6]), Some(3));
}

#[test]
fn the_preset_follows_the_calls_and_a_person_starts_anew() {
    let contenders = contenders().unwrap();
    let stop = |steps: Vec<Step>| contenders[0].stop(&run("taubench", steps));
    assert_eq!(stop([vec![said(1)], vec![asked(1); 6]].concat()), Some(3), "somebody waits for the answer");
    assert_eq!(stop([vec![said(1)], vec![call(1, 1); 6]].concat()), Some(4), "who has a shell is answered by a program");
    let talk: Vec<Step> = (0..9).flat_map(|_| [asked(1), said(1)]).collect();
    assert_eq!(stop(talk), None);
}

#[test]
fn who_tells_of_turns_and_people_is_judged_by_them() {
    let contenders = contenders().unwrap();
    let stop = |steps: Vec<Step>| contenders[0].stop(&run("s", steps));
    let in_round = |round: u64| Step { round: Some(round), ..call(1, 1) };
    assert_eq!(stop(vec![in_round(1); 6]), None, "side by side they are one");
    assert_eq!(stop((1..7).map(in_round).collect()), Some(3));
    let after = |spoke: bool| Step { spoke: Some(spoke), ..call(1, 1) };
    let spoken: Vec<Step> = [true, false, false, true, false, false, true, false, false].map(after).to_vec();
    assert_eq!(stop(spoken), None, "counted anew whenever a person speaks");
    let answered = Step { spoke: Some(false), ..said(1) };
    assert_eq!(stop([vec![asked(1), answered, asked(1)], vec![asked(1); 3]].concat()), Some(4), "by a program: this is no chatbot");
    let talk: Vec<Step> = (0..9).flat_map(|_| [Step { spoke: Some(true), ..asked(1) }, Step { spoke: Some(false), ..said(1) }]).collect();
    assert_eq!(stop(talk), None);
}

#[test]
fn the_loop_detector_hears_of_turns_and_people_too() {
    let ended = |steps: Vec<Step>| found(serde_json::json!({}), &[Watched::Loop], Caps::default(), steps).ended.map(|(at, _)| at);
    let in_round = |round: u64| Step { round: Some(round), ..call(1, 1) };
    assert_eq!(ended(vec![in_round(1); 6]), None, "side by side they are one");
    assert_eq!(ended((1..7).map(in_round).collect()), Some(2));
    assert_eq!(ended(vec![call(1, 1); 6]), Some(2), "where nobody tells of turns");
    assert_eq!(ended(vec![Step { spoke: Some(true), ..call(1, 1) }; 7]), None, "asked for by a person each time");
}

/// A web agent that types and clicks, on a page that is another each time.
pub(crate) fn web(elements: u64, steps: u64) -> Vec<Step> {
    (0..steps).map(|page| Step { tool: "click".into(), effect: CallEffect::Acts { on: page % elements }, ..call(page, page) }).collect()
}

fn guards(settings: Value, watched: &[Watched], caps: Caps) -> Result<Guards, SettingsProblem> {
    Guards::new(Presets::default(), settings.as_object().unwrap(), watched, caps)
}

fn found(settings: Value, watched: &[Watched], caps: Caps, steps: Vec<Step>) -> RunFindings {
    guards(settings, watched, caps).unwrap().watch().run(&run("s", steps))
}

#[test]
fn what_is_long_is_learned_from_the_runs_that_are_read() {
    let runs: Vec<Run> = (1..=40).map(|calls| run("s", others(calls))).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.packed");
    crate::packed::tests::pack(&file, &runs);
    let labels = Labels::default();
    let learned = |settings: Value, files: &[std::path::PathBuf]| {
        let guards = guards(settings, &[Watched::Stall], Caps::default()).unwrap();
        let reading =
            Reading { recorded: Recorded::of(files, &labels), detail: guards.detail(), threads: 2, progress: &Progress::default() };
        crate::replay::learned(&reading, guards).unwrap()
    };
    // A check that fails again after a change, and then something new at every step.
    let getting_nowhere = || {
        let check = || Step { effect: CallEffect::Runs, ..failed(1, 1) };
        let mut steps = vec![check(), Step { effect: CallEffect::Changes, ..call(2, 2) }, check()];
        steps.extend((10..60).map(|number| call(number, number)));
        run("s", steps)
    };
    let ended = |guards: &Guards, run: &Run| guards.watch().run(run).ended;
    let files = [file];
    let known = learned(serde_json::json!({}), &files);
    assert_eq!(ended(&known, &getting_nowhere()), Some((40, Cause::Stall(StallRule::LongRun))), "nine of ten have 36 calls at most");
    assert_eq!(known.stall_settings_for(&getting_nowhere(), Preset::Coding).long_run.stop, 41);
    let another = Run { model: "another".into(), ..getting_nowhere() };
    assert_eq!((ended(&known, &another), known.stall_settings_for(&another, Preset::Coding).long_run.stop), (None, 0));
    for said in [serde_json::json!({"stall": {"long_run_learned": false}}), serde_json::json!({"stall": {"long_run": {"stop": 90}}})] {
        assert_eq!(ended(&learned(said.clone(), &files), &getting_nowhere()), None, "{said}");
    }
    let observed =
        learned(serde_json::json!({"stall": {"rules": {"stalled_long_run": "observe"}}}), &files).watch().run(&getting_nowhere());
    assert_eq!((observed.ended, observed.alone[Ender::Stall as usize]), (None, Some(40)));
}

#[test]
fn what_is_long_is_learned_from_runs_that_are_folders_too() {
    let folder = tempfile::tempdir().unwrap();
    for run in 0..30 {
        let events = folder.path().join(format!("{run}/events"));
        std::fs::create_dir_all(&events).unwrap();
        for call in 0..10 {
            let event = serde_json::json!({
                "kind": "ActionEvent", "source": "agent", "tool_name": "search", "tool_call_id": format!("c{call}"), "action": {"page": call},
            });
            std::fs::write(events.join(format!("event-{call}.json")), event.to_string()).unwrap();
        }
    }
    let (labels, files) = (Labels::default(), crate::replay::files_of(&[folder.path().to_owned()]).unwrap());
    assert!(files.len() == 30 && files.iter().all(|file| file.is_dir()));
    let guards = guards(serde_json::json!({}), &[Watched::Stall], Caps::default()).unwrap();
    let reading = Reading { recorded: Recorded::of(&files, &labels), detail: guards.detail(), threads: 2, progress: &Progress::default() };
    let known = crate::replay::learned(&reading, guards).unwrap();
    let nameless = Run { model: String::new(), ..run("openhands", Vec::new()) };
    assert_eq!(known.stall_settings_for(&nameless, Preset::Coding).long_run.stop, 12);
}

/// As the service refuses it, and as a run of the packages ends.
#[test]
fn a_call_that_is_not_let_through_ends_the_run_that_makes_it() {
    let again = run("s", (0..6).map(|_| call(1, 1)).collect());
    let found = |settings: serde_json::Value| {
        let found = guards(settings, &[Watched::Stall], Caps::default()).unwrap().watch().run(&again);
        (found.ended, found.alone[Ender::Stall as usize], found.nudges[Nudge::Steer.index()])
    };
    let identical = |block: u32| serde_json::json!({"steer": 2, "block": block, "stop": 5});
    assert_eq!(found(serde_json::json!({"stall": {"identical": identical(0)}})), (Some((4, STALL)), Some(4), 3));
    assert_eq!(found(serde_json::json!({"stall": {"identical": identical(3)}})), (Some((2, STALL)), Some(2), 1));
    let observed = serde_json::json!({"stall": {"identical": identical(3), "mode": "observe"}});
    assert_eq!(found(observed), (None, Some(2), 1));
}

const STALL: Cause = Cause::Stall(StallRule::Identical);

#[test]
fn what_is_volatile_by_settings_is_no_news() {
    let step = |number: u32| {
        let result = format!("[{number}] etag: a{number}, 3 rows");
        let length = result.len();
        format!(
            r#"{{"kind":"call","tool":"sh","args_hash":"1","result":"{result}","result_hash":"{number}","result_len":{length},"error":false}}"#
        )
    };
    let steps: Vec<String> = (0..6).map(step).collect();
    let line = format!(r#"{{"run_id":"r","source":"s","task":"t","success":false,"steps":[{}]}}"#, steps.join(","));
    let ended = |volatile: &[&str]| {
        let guards = guards(serde_json::json!({"stall": {"volatile": volatile}}), &[Watched::Stall], Caps::default()).unwrap();
        let run = crate::trace::parse(line.as_bytes(), guards.detail()).unwrap();
        guards.watch().run(&run).ended
    };
    assert_eq!(ended(&["etag", "[*]"]), Some((3, Cause::Stall(StallRule::Identical))));
    assert_eq!((ended(&["etag"]), ended(&[])), (None, None));
    assert!(guards(serde_json::json!({"stall": {"volatile": ["*"]}}), &[Watched::Stall], Caps::default()).is_err());
}

fn others(count: u64) -> Vec<Step> {
    (0..count).map(|index| Step { at_millis: Some(index as i64 * 30_000), ..call(index, index) }).collect()
}

#[test]
fn codes_and_numbers_agree() {
    for (index, cause) in Cause::ALL.into_iter().enumerate() {
        assert_eq!(cause.index(), index, "{}", cause.code());
    }
    for (index, nudge) in Nudge::ALL.into_iter().enumerate() {
        assert_eq!(nudge.index(), index, "{}", nudge.code());
    }
    for (index, ender) in Ender::ALL.into_iter().enumerate() {
        assert_eq!(ender as usize, index);
    }
    for (index, preset) in Preset::ALL.into_iter().enumerate() {
        assert_eq!(preset as usize, index);
    }
    assert!(Other::ALL.into_iter().all(|other| Other::from_code(other.code()) == Some(other)));
    assert!(Watched::ALL.into_iter().all(|watched| Watched::from_code(watched.code()) == Some(watched)));
}

#[test]
fn a_budget_ends_a_run_at_exactly_the_step_that_passes_it() {
    let none = Caps::default();
    for (caps, ender, at) in [
        (Caps { steps: Some(7), ..none }, Ender::Steps, 7),
        (Caps { tokens: Some(70), ..none }, Ender::Tokens, 7),
        (Caps { tokens: Some(69), ..none }, Ender::Tokens, 6),
        (Caps { usd: Some(NanoDollars::parse("3.5").unwrap()), ..none }, Ender::Dollars, 7),
        (Caps { usd: Some(NanoDollars::parse("3.499999999").unwrap()), ..none }, Ender::Dollars, 6),
        (Caps { time: Some(Span::from_seconds(210)), ..none }, Ender::Minutes, 8),
        (Caps { time: Some(Span::from_seconds(209)), ..none }, Ender::Minutes, 7),
    ] {
        let found = found(serde_json::json!({}), &[], caps, others(20));
        assert_eq!(found.ended, Some((at, Cause::Budget(ender))), "{caps:?}");
        assert_eq!(found.alone.iter().flatten().count(), 1);
    }
    let exactly = Caps { steps: Some(20), tokens: Some(200), usd: NanoDollars::parse("10").ok(), time: Some(Span::from_seconds(570)) };
    assert_eq!(found(serde_json::json!({}), &[], exactly, others(20)).ended, None, "what is reached is not passed");
}

#[test]
fn limits_of_the_settings_are_caps_unless_others_are_given() {
    let settings = serde_json::json!({"budget": {"max_usd": 2, "max_tokens": 1000}});
    assert_eq!(found(settings.clone(), &[], Caps::default(), others(20)).ended, Some((4, Cause::Budget(Ender::Dollars))));
    let own = Caps { usd: NanoDollars::parse("1").ok(), ..Caps::default() };
    assert_eq!(found(settings, &[], own, others(20)).ended, Some((2, Cause::Budget(Ender::Dollars))));
    let observed = serde_json::json!({"budget": {"max_usd": 2, "mode": "observe"}});
    assert_eq!(found(observed, &[], Caps::default(), others(20)).ended, None);
}

#[test]
fn the_first_to_find_something_ends_the_run_and_each_is_known_alone() {
    let both = [Watched::Stall, Watched::Loop];
    let caps = Caps { steps: Some(5), ..Caps::default() };
    let found = found(serde_json::json!({}), &both, caps, vec![call(1, 1); 9]);
    assert_eq!(found.ended, Some((2, Cause::Cycle)), "three equal calls, whatever they gave");
    assert_eq!(found.alone, [Some(3), Some(2), Some(5), None, None, None]);
    assert_eq!(found.nudges, [1, 0, 0, 0], "the third step was told of before the loop ended it");
}

#[test]
fn thresholds_and_modes_are_those_of_the_service() {
    let nine = || vec![call(1, 1); 9];
    let ended = |settings: Value| found(settings, &[Watched::Stall, Watched::Loop], Caps::default(), nine()).ended;
    assert_eq!(ended(serde_json::json!({"loop": {"repeats": 5}})), Some((3, Cause::Stall(StallRule::Identical))));
    let later = serde_json::json!({"loop": {"mode": "off"}, "stall": {"identical": {"stop": 7}, "novelty_window": 0}});
    assert_eq!(ended(later), Some((6, Cause::Stall(StallRule::Identical))));
    let watching =
        serde_json::json!({"loop": {"mode": "observe"}, "stall": {"rules": {"stalled_identical": "off", "stalled_no_news": "observe"}}});
    let seen = found(watching, &[Watched::Stall, Watched::Loop], Caps::default(), nine());
    assert_eq!((seen.ended, seen.alone[1]), (None, Some(2)), "observing ends nothing and is counted");
    let one_watches = serde_json::json!({"loop": {"mode": "off"}, "stall": {"rules": {"stalled_identical": "observe"}}});
    assert_eq!(ended(one_watches), Some((6, Cause::Stall(StallRule::Novelty))), "what watches hides nothing");
    let of_tool = serde_json::json!({"loop": {"tools": {"sh": {"repeats": 6}}}, "stall": {"tools": {"sh": {"mode": "off"}}}});
    assert_eq!(ended(of_tool), Some((5, Cause::Cycle)));
    let ceiling = serde_json::json!({"loop": {"max_calls": 1}});
    assert_eq!(ended(ceiling), Some((1, Cause::Ceiling)));
}

#[test]
fn a_mistyped_setting_is_refused_with_the_right_name() {
    let refused = |settings: Value| guards(settings, &[], Caps::default()).unwrap_err();
    let problem = refused(serde_json::json!({"stall": {"identicl": {"stop": 5}}}));
    assert_eq!(problem.path, ["guards", "stall", "identicl"]);
    assert!(problem.problem.contains("did you mean `identical`?"), "{problem:?}");
    assert!(refused(serde_json::json!({"stal": {}})).problem.contains("did you mean `stall`?"));
    assert!(refused(serde_json::json!({"stall": {"identical": {"stop": 1}}})).problem.contains("from 2 to 1000"));
}

#[test]
fn presets_are_chosen_by_the_calls_of_a_run_and_can_be_named() {
    let presets = Presets { always: None, by_source: vec![("mine".into(), Preset::Research)] };
    let of = |presets: &Presets, source: &str, steps: Vec<Step>| presets.of(source).of_run(&run(source, steps));
    let chat = vec![said(1), asked(1)];
    assert_eq!(
        [
            of(&presets, "x", chat.clone()),
            of(&presets, "taubench", web(3, 3)),
            of(&presets, "mine", web(3, 3)),
            of(&presets, "webarena", others(9))
        ],
        [Preset::Chatbot, Preset::Browser, Preset::Research, Preset::Coding]
    );
    let presets = Presets { always: Some(Preset::Browser), ..presets };
    assert_eq!([of(&presets, "x", chat.clone()), of(&presets, "mine", chat)], [Preset::Browser, Preset::Research]);
    let guards = Guards::new(presets, &Tree::new(), &[Watched::Stall], Caps::default()).unwrap();
    assert_eq!(guards.watch().run(&run("x", vec![call(1, 1); 6])).ended, Some((4, Cause::Stall(StallRule::Identical))), "of browser");
    // A setting is laid over every preset.
    let settings = serde_json::json!({"stall": {"identical": {"stop": 6}, "novelty_window": 0}});
    let guards = Guards::new(Presets::default(), settings.as_object().unwrap(), &[Watched::Stall], Caps::default()).unwrap();
    for first in [said(1), call(2, 2)] {
        let steps = [vec![first], vec![asked(1); 9]].concat();
        assert_eq!(guards.watch().run(&run("x", steps)).ended, Some((6, Cause::Stall(StallRule::Identical))));
    }
}

#[test]
fn a_web_agent_is_seen_by_what_it_acts_on_whatever_its_source_is_called() {
    let guards = guards(serde_json::json!({}), &[Watched::Stall], Caps::default()).unwrap();
    let found = guards.watch().run(&run("anything", web(3, 20)));
    assert_eq!((found.preset, found.ended), (Preset::Browser, Some((8, Cause::Stall(StallRule::Novelty)))));
    assert_eq!(guards.watch().run(&run("anything", web(20, 20))).ended, None);
    let beside_work = [others(9), web(3, 20)].concat();
    assert_eq!(guards.watch().run(&run("anything", beside_work)).ended, None, "an agent that works looks at some pages");
    let loops = Guards::new(Presets::default(), &Tree::new(), &[Watched::Loop], Caps::default()).unwrap();
    assert_eq!(loops.watch().run(&run("anything", web(20, 3))).preset, Preset::Browser, "whichever guards are asked");
}

#[test]
fn the_tracker_skips_and_never_ends() {
    let texts = |args: &str| Some(Box::new(crate::trace::Texts { args: args.into(), result: String::new() }));
    let search = |args: &str| Step { tool: "search_knowledge".into(), texts: texts(args), ..call(args.len() as u64, 1) };
    let steps = vec![
        search(r#"{"query": "fix bug"}"#),
        search(r#"{"query": "fix the bug"}"#),
        search(r#"{"query": "fix bug"}"#),
        search(r#"{"query": "weather in Rome"}"#),
        search(r#"{"query": "trains to Oslo"}"#),
    ];
    let seen = found(serde_json::json!({}), &[Watched::ToolCall], Caps::default(), steps.clone());
    assert_eq!((seen.ended, seen.nudges), (None, [0, 1, 1, 1]));
    let without_texts: Vec<Step> = steps.into_iter().map(|step| Step { texts: None, ..step }).collect();
    let seen = found(serde_json::json!({}), &[Watched::ToolCall], Caps::default(), without_texts);
    assert_eq!(seen.nudges, [0, 3, 0, 0], "by fingerprint two others came first, then the limit was reached");
    // Whoever is answered by a person begins a turn.
    let turns: Vec<Step> = (0..6).flat_map(|_| [search("{}"), said(1)]).collect();
    let guards = guards(serde_json::json!({}), &[Watched::ToolCall], Caps::default()).unwrap();
    assert_eq!(guards.watch().run(&run("s", turns.clone())).nudges, [0; 4]);
    let by_program = [vec![call(1, 1)], turns].concat();
    assert_eq!(guards.watch().run(&run("s", by_program)).nudges[2], 5);
}
