use super::*;
use crate::caps::Room;
use crate::evaluate::Recorded;
use crate::explain::{Explained, explain};
use crate::front::Grid;
use crate::labels::Labels;
use crate::rules::tests::{call, run};
use crate::rules::{Guards, Presets};
use crate::trace::{ReadAt, Run, Step, Texts};
use crate::tune::{Options, Reader, Save, Together, examples, gather, tune};
use base64::Engine;
use runguard_core::detect::stall::Preset;
use sha2::{Digest, Sha256};
use std::io::Write;

const HOSTILE: &str = "</style><script>alert(1)</script>\" onload='x' \u{202e}evil&amp;";

/// A run whose every text is hostile.
fn hostile(success: Option<bool>) -> Run {
    let said = |index: u64| Step {
        tool: HOSTILE.into(),
        texts: Some(Box::new(Texts { args: HOSTILE.into(), result: HOSTILE.into() })),
        ..call(index, index)
    };
    let steps = (0..9).map(said).chain((0..6).map(|_| said(77))).collect();
    Run {
        id: HOSTILE.into(),
        source: HOSTILE.into(),
        task: HOSTILE.into(),
        model: HOSTILE.into(),
        agent: HOSTILE.into(),
        success,
        place: ReadAt { file: std::path::Path::new(HOSTILE).into(), line: 3 },
        ..run("s", steps)
    }
}

fn guards() -> Guards {
    Guards::of_stall(&Preset::Coding.settings(), Presets::default()).unwrap()
}

fn explained(success: Option<bool>) -> Explained {
    explain(&hostile(success), &guards())
}

/// Nothing on it was slipped in, and nothing is asked of a network.
fn assert_harmless(page: &str) {
    assert!(!page.contains("<script"), "no script");
    assert!(!page.contains('\u{202e}'), "nothing that turns the direction of writing");
    assert!(!page.contains("onload='x'") && !page.contains("&amp;amp;amp;"), "no attribute slipped in");
    assert_eq!(page.matches("</style>").count(), 1);
    for request in ["http://", "https://", "src=", "href=", "url(", "@import", "<link", "<img", "<iframe"] {
        assert!(!page.contains(request), "{request}");
    }
    assert!(page.contains("default-src 'none'"));
    // Every tag that is opened is closed.
    for tag in ["table", "tr", "td", "th", "section", "svg", "details", "ol", "bdi", "div", "p", "code", "span"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "<{tag}>");
    }
}

#[test]
fn the_style_is_the_one_that_is_allowed() {
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    assert_eq!(hash, STYLE_HASH, "the style was changed: this is its hash");
    assert!(STYLE.contains("prefers-color-scheme:dark"));
}

#[test]
fn a_run_is_shown_step_by_step_whatever_it_says() {
    for success in [Some(true), Some(false), None] {
        let page = explain_page(&explained(success));
        assert_harmless(&page);
        assert!(page.contains("&lt;script&gt;alert(1)"), "shown as text");
        assert!(page.contains(">stop</span> the same call gave the same result 4 times in a row"));
        assert!(page.contains(">steer</span>") && page.contains("The model is told: "));
        assert!(page.contains("more steps, all with something new") && page.contains("2 steps that would not have been made"));
        assert!(page.contains("4<span class=\"soft\">/4</span>"), "the count beside its threshold");
    }
    assert!(explain_page(&explained(Some(true))).contains("a false stop that loses 2 of 15 steps"));
}

#[test]
fn a_long_run_does_not_make_a_long_page() {
    let steps = (0..50_000).map(|index| call(index % 3, index)).collect();
    let page = explain_page(&explain(&run("s", steps), &guards()));
    assert!(page.len() < 200 * 1024, "{}", page.len());
    assert!(page.contains("The run goes on"));
}

fn traces(known: bool) -> tempfile::NamedTempFile {
    let name = serde_json::to_string(HOSTILE).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for index in 0..1500 {
        let success = index % 3 > 0;
        let step = |args: usize| {
            format!(
                r#"{{"kind":"call","tool":{name},"args":{name},"args_hash":"{args}","result":{name},"result_hash":"{args}","result_len":900,"error":false,"tokens_in":{index},"cost_usd":0.01}}"#
            )
        };
        let calls: Vec<String> = (0..10).map(|at| step(if success { at } else { at / 9 })).collect();
        let success = if known { success.to_string() } else { "null".to_owned() };
        writeln!(
            file,
            r#"{{"run_id":{name},"source":{name},"task":"{index}","model":{name},"agent":{name},"success":{success},"steps":[{}]}}"#,
            calls.join(",")
        )
        .unwrap();
    }
    file
}

fn options() -> Options {
    Options {
        grid: Grid::around(Preset::Coding.settings()),
        guards: guards(),
        save: Save::Dollars,
        max_false_stops: 0.01,
        together: Together::Task,
        room: Room { percentile: 0.99, factor: 1.5 },
    }
}

#[test]
fn what_tuning_found_is_one_harmless_page() {
    for known in [true, false] {
        let file = traces(known);
        let options = options();
        let (files, labels) = ([file.path().to_owned()], Labels::default());
        let recorded = Recorded::of(&files, &labels);
        let gathered = gather(&recorded, &options, &mut |_| ()).unwrap();
        let summary = tune(&gathered, &options);
        let shown = examples(&gathered, &options, options.grid.base(), &recorded);
        assert!(!shown.is_empty());
        let page = tune_page(&summary, &shown, Reader::Service);
        assert_harmless(&page);
        assert!(page.len() < 300 * 1024, "{}", page.len());
        assert!(page.contains("&lt;script&gt;alert(1)"), "the examples are shown");
        assert_eq!(page.contains("id=\"front-title\""), known);
        assert_eq!(page.contains("Each rule alone"), !known);
        assert!(page.contains("cap 0.15") && page.contains("id=\"used-steps\"") && !page.contains("id=\"used-minutes\""));
        assert_eq!(page.contains("\nidentical = {"), known, "only what is recommended");
    }
}

fn figures(successful: u64, false_stops: u64, failed: u64, stopped: u64) -> crate::replay::Figures {
    let mut sums = crate::evaluate::Tally::default();
    for (count, ended, success) in [(successful, false_stops, true), (failed, stopped, false)] {
        for index in 0..count {
            let run = Run { success: Some(success), ..run("s", vec![call(1, 1); 10]) };
            sums += &crate::evaluate::Tally::of(&run, (index < ended).then(|| run.spared(4)));
        }
    }
    sums.into()
}

#[test]
fn what_would_have_happened_is_one_harmless_page() {
    use crate::replay::{
        By, Circled, Circles, Circling, Counted, Example, FileRead, Grouping, Named, NudgeFigures, Nudged, RuleCircles, RuleFigures,
        Summary, Where,
    };
    use crate::trace::Broken;
    let total = figures(200, 3, 100, 40);
    let named = |name: &str, figures| Named { name: name.to_owned(), figures };
    let nudged = Nudged { runs: 4, steps: 9, recovered: 3 };
    let circled = Circled { runs: 1, steps: 7, tokens: 70, dollars: 3.5 };
    let mut summary = Summary {
        circles: Circles {
            total: circled,
            rules: vec![RuleCircles { rule: "stall.identical", words: "the same again", circled }],
            most: vec![Circling {
                id: HOSTILE.into(),
                file: HOSTILE.into(),
                line: 3,
                task: HOSTILE.into(),
                model: HOSTILE.into(),
                first: 4,
                steps: 7,
                of: 30,
                tokens: 70,
                dollars: 3.5,
                rule: "stall.identical",
                tool: HOSTILE.into(),
            }],
        },
        most_after: Vec::new(),
        files_left_alone: 0,
        version: 1,
        finished: true,
        files: vec![FileRead { file: HOSTILE.into(), runs: 300, steps: 3000, broken_lines: 25 }; 100],
        runs: 300,
        steps: 3000,
        tokens: 30_000,
        dollars: 1500.0,
        broken_lines: 25,
        broken: vec![Broken { file: HOSTILE.into(), line: 7, problem: HOSTILE.into() }; 21],
        presets: vec![Counted { name: "coding", runs: 300 }, Counted { name: "chatbot", runs: 0 }],
        total,
        alone: vec![named(HOSTILE, total), named("loop", figures(200, 0, 100, 1))],
        rules: vec![RuleFigures {
            unknown_after_steps: 0,
            unknown_after_tokens: 0,
            unknown_after_dollars: 0.0,
            rule: "stall.identical",
            successful: 3,
            failed: 40,
            unknown: 0,
            false_stops: total.false_stops,
            failed_stopped: total.failed_stopped,
            saved_steps: 200,
            saved_tokens: 2000,
            saved_dollars: 100.0,
            lost_steps: 15,
            lost_tokens: 150,
            lost_dollars: 7.5,
            without_nudge: 2,
            at: Where { median: 5, p90: 5, largest: 5 },
            examples: vec![
                Example {
                    id: HOSTILE.into(),
                    file: HOSTILE.into(),
                    line: 12,
                    source: HOSTILE.into(),
                    task: HOSTILE.into(),
                    model: HOSTILE.into(),
                    success: Some(false),
                    step: 5,
                    steps: 10,
                    rule: "stall.identical",
                    after_steps: 2,
                    after_tokens: 20,
                    after_dollars: 0.5,
                };
                3
            ],
        }],
        nudges: vec![NudgeFigures { rule: "stall.identical", successful: nudged, failed: nudged, unknown: nudged }],
        groups: vec![Grouping { by: By::Model, groups: vec![named(HOSTILE, total); 90], others: Some(total) }],
        against: vec![named(HOSTILE, figures(200, 30, 100, 60)), named("Roo", figures(200, 20, 100, 30))],
        notes: vec![HOSTILE.into()],
    };
    let page = replay_page(&summary);
    assert_harmless(&page);
    assert!(page.contains("43 of 300 runs would have been ended. Of 100 that failed 40: that saves 200 steps"));
    assert!(page.contains("id=\"against-title\"") && page.contains("300 by preset <bdi>coding</bdi>") && !page.contains("chatbot"));
    assert!(page.contains("30 more are in the JSON") && page.contains("and 5 more") && page.contains("40 more files"));
    assert!(page.contains("1 run went in circles for a while: 7 steps, 70 tokens, $3.50 brought nothing new (0.2 % of all dollars)."));
    assert!(page.contains("the same again") && page.contains(":3</code>"));
    assert!(page.contains("&lt;script&gt;alert(1)") && page.contains(":12</code>"));
    assert!(page.len() < 300 * 1024, "{}", page.len());
    (summary.finished, summary.total) = (false, crate::replay::Figures::default());
    (summary.total.sums.unknown, summary.total.sums.unknown_stopped, summary.total.sums.unknown_after_steps) = (300, 43, 77);
    let page = replay_page(&summary);
    assert!(
        page.contains("Not everything was read") && page.contains("43 of 300 runs would have been ended. 77 steps came after that point.")
    );
}

#[test]
fn axes_end_at_round_numbers() {
    for (value, round) in [(0.013, 0.016), (0.5, 0.5), (0.51, 0.6), (9.1, 10.0), (0.0, 1e-9)] {
        assert!((rounded_up(value) - round).abs() < 1e-12, "{value}");
    }
}
