//! `runguard agent` as a person and a script meet it: the binary, its streams, its exit codes, its signals.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn runguard(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runguard"));
    command.current_dir(folder).arg("agent").args(arguments).stdin(Stdio::null()).env("NO_PROXY", "*").env_remove("CLICOLOR_FORCE");
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    runguard(folder, arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A folder with settings for a scripted model.
fn scripted(script: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let settings =
        "[provider]\nkind = \"scripted\"\nmodel = \"scripted\"\nprice_as = \"gpt-4o\"\nscript = \"script.toml\"\n\n[tools]\nallow = []\n";
    std::fs::write(folder.path().join("agent.toml"), settings).unwrap();
    std::fs::write(folder.path().join("script.toml"), script).unwrap();
    folder
}

/// A hundred words, slowly enough to be caught at it.
fn slow() -> TempDir {
    let words: Vec<String> = (0..100).map(|number| format!("word{number}")).collect();
    let words = words.join(" ");
    scripted(&format!("[[reply]]\ntext = \"{words}\"\nword_ms = 20\n"))
}

/// Starts it and waits for the first words.
fn caught_in_mid_stream(folder: &Path, arguments: &[&str]) -> Child {
    let mut child = runguard(folder, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut seen = [0; 12];
    child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"word0 word1 ");
    child
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|problem| panic!("{problem}: {line}"))).collect()
}

fn sessions(folder: &Path) -> Vec<Value> {
    let listed = run(folder, &["sessions", "list", "--json"]);
    serde_json::from_str::<Value>(&out(&listed)).unwrap().as_array().unwrap().clone()
}

#[test]
fn help_teaches() {
    let here = TempDir::new().unwrap();
    let help = run(here.path(), &["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in ["--demo loop", "--resume", "--budget", "Exit codes", "sessions"] {
        assert!(out(&help).contains(word), "{word} in {}", out(&help));
    }
    assert!(out(&run(here.path(), &["--list-demos"])).lines().count() >= 6);
}

#[test]
fn wrong_usage_is_2_and_says_what_to_do() {
    let here = TempDir::new().unwrap();
    let without_settings = run(here.path(), &["hello"]);
    assert_eq!(without_settings.status.code(), Some(2));
    assert!(err(&without_settings).contains("--demo loop"), "{}", err(&without_settings));
    let unknown = run(here.path(), &["--demo", "nonsense"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("ping-pong"));
    for arguments in [
        &["--config", "missing.toml", "hello"][..],
        &["--demo", "loop", "--budget", "five"],
        &["--demo", "loop", "--timeout", "soon"],
        &["--demo", "loop", "--max-steps", "0"],
        &["--demo", "loop", "--resume"],
        &["--rerun-interrupted", "hello"],
        &["  "],
    ] {
        let output = run(here.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
    }
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn an_unknown_session_is_3() {
    let folder = scripted("[[reply]]\ntext = \"Yes.\"\n");
    assert_eq!(run(folder.path(), &["--resume"]).status.code(), Some(3));
    assert_eq!(run(folder.path(), &["sessions", "show", "0"]).status.code(), Some(3));
    assert_eq!(run(folder.path(), &["hello"]).status.code(), Some(0));
    assert_eq!(run(folder.path(), &["--resume", "zzz"]).status.code(), Some(3));
    assert_eq!(run(folder.path(), &["sessions", "show", "zzz"]).status.code(), Some(3));
}

#[test]
fn every_demo_shows_what_it_says() {
    let here = TempDir::new().unwrap();
    let demos = [
        ("loop", 1, "guard: repetition", "Without the guard: 50 steps"),
        ("ping-pong", 1, "guard: stalled_cycle", "Without the guard: 50 steps"),
        ("budget", 1, "BUDGET_EXCEEDED (cost_limit)", "Without the limit"),
        ("truncated", 0, "COMPLETED", "Without the recovery"),
        ("flaky", 0, "retry 1 of 4 in 600 ms: rate_limited", "Without the retries"),
        ("healthy", 0, "COMPLETED", "it would have been the same"),
    ];
    let running: Vec<_> = demos
        .iter()
        .map(|(name, ..)| runguard(here.path(), &["--demo", name]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for ((name, code, shown, closing), child) in demos.into_iter().zip(running) {
        let output = child.wait_with_output().unwrap();
        let stderr = err(&output);
        assert_eq!(output.status.code(), Some(code), "{name}: {stderr}");
        assert!(stderr.contains(shown) && stderr.contains(closing), "{name}: {stderr}");
        assert!(!out(&output).contains('\x1b') && !stderr.contains(['\x1b', '\r']), "{name}: plain lines on a pipe");
        if code == 0 {
            assert!(!stderr.contains("guard:"), "{name}: {stderr}");
        }
    }
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0, "a demo leaves nothing behind");
}

#[test]
fn json_is_events_and_nothing_else() {
    let here = TempDir::new().unwrap();
    let output = run(here.path(), &["--demo", "loop", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let events = json_lines(&out(&output));
    let last = events.last().unwrap();
    assert_eq!((last["event"].as_str(), last["state"].as_str()), (Some("ended"), Some("ERROR")));
    let streams = |finished: bool| events.iter().filter(|event| event["event"] == "chunk" && event["finished"] == finished).count();
    assert_eq!(streams(true), 4);
    assert!(streams(false) > 4);
    assert_eq!(err(&output), "");
}

#[test]
fn the_answer_is_alone_on_the_standard_output() {
    let folder = scripted("[[reply]]\ntext = \"The answer.\"\n");
    let output = run(folder.path(), &["What is it?"]);
    assert_eq!((out(&output).as_str(), output.status.code()), ("The answer.\n", Some(0)));
    assert!(err(&output).contains("COMPLETED"));
    let quiet = run(folder.path(), &["--quiet", "What is it?"]);
    assert_eq!((out(&quiet).as_str(), err(&quiet).as_str()), ("The answer.\n", ""));
}

#[test]
fn the_prompt_comes_from_a_pipe_and_the_session_can_be_read() {
    let folder = scripted("[[reply]]\ntext = \"Heard.\"\n");
    let mut child = runguard(folder.path(), &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all("Listen: \u{1b}[31mred".as_bytes()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    let list = run(folder.path(), &["sessions"]);
    assert!(out(&list).contains("COMPLETED") && out(&list).contains("Listen: ·[31mred"), "{}", out(&list));
    let show = run(folder.path(), &["sessions", "show"]);
    assert!(out(&show).contains("Listen: ·[31mred") && out(&show).contains("Heard."), "{}", out(&show));
    assert!(!out(&show).contains('\x1b'));
    let show: Value = serde_json::from_str(&out(&run(folder.path(), &["sessions", "show", "--json"]))).unwrap();
    assert_eq!(show["guardrails"]["counters"]["steps"], 1);
    assert_eq!(show["messages"][1]["content"][0]["text"], "Heard.");
}

#[test]
fn what_the_loop_told_the_model_is_shown_only_when_asked_for() {
    let folder = scripted("[[reply]]\ntext = \"Half an \"\ntruncated = true\n\n[[reply]]\ntext = \"answer.\"\n");
    assert_eq!(out(&run(folder.path(), &["Say it."])), "Half an answer.\n");
    let (short, all) = (run(folder.path(), &["sessions", "show"]), run(folder.path(), &["sessions", "show", "--all"]));
    assert!(!out(&short).contains("[to the model") && out(&all).contains("[to the model: go on]"), "{}", out(&all));
}

#[test]
fn hostile_words_are_made_harmless() {
    let script = "[[reply]]\ntext = \"a\\u001b[2J\\u001b]0;evil\\u0007 b\\u009b31m c\\u202e d\\u2066 e\\rf \\u007f\\tg\"\n";
    let folder = scripted(script);
    for arguments in [&["Say it."][..], &["--json", "Say it."]] {
        let output = run(folder.path(), arguments);
        let shown = out(&output) + &err(&output);
        let steering = shown.chars().filter(|c| (c.is_control() && !"\n\t".contains(*c)) || "\u{202e}\u{2066}".contains(*c));
        assert_eq!(steering.count(), 0, "{shown:?}");
        assert!(shown.contains("evil"));
    }
}

#[test]
fn ctrl_c_in_mid_stream_saves_and_resumes() {
    for name in ["INT", "TERM"] {
        let folder = slow();
        let child = caught_in_mid_stream(folder.path(), &["Count."]);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", err(&output));
        let listed = sessions(folder.path());
        let id = listed[0]["id"].as_str().unwrap();
        assert_eq!((listed.len(), listed[0]["state"].as_str()), (1, Some("CANCELLED")));
        assert!(err(&output).contains(&format!("runguard agent --resume {id}")), "{}", err(&output));
        let resumed = run(folder.path(), &["--resume"]);
        assert_eq!(resumed.status.code(), Some(0), "{}", err(&resumed));
        assert!(out(&resumed).trim_end().ends_with("word99"));
        let listed = sessions(folder.path());
        assert_eq!((listed.len(), listed[0]["state"].as_str()), (1, Some("COMPLETED")));
    }
}

#[test]
fn a_killed_run_goes_on_and_says_what_was_lost() {
    let folder = slow();
    let mut child = caught_in_mid_stream(folder.path(), &["Count."]);
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = run(folder.path(), &["--resume"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", err(&resumed));
    assert!(err(&resumed).contains("note: A question to the model was under way"), "{}", err(&resumed));
    assert_eq!(sessions(folder.path())[0]["state"], "COMPLETED");
}

#[test]
fn a_run_whose_reader_is_gone_ends() {
    let folder = slow();
    let mut child = caught_in_mid_stream(folder.path(), &["Count."]);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(sessions(folder.path())[0]["state"], "CANCELLED");
}

#[test]
fn a_limit_can_be_raised_and_the_session_goes_on() {
    let script = "at_end = \"finish\"\n[[reply]]\ntext = \"Looking.\"\ncalls = [{ name = \"look\", arguments = {} }]\n\n[[reply]]\ntext = \"Found.\"\n";
    let folder = scripted(script);
    let stopped = run(folder.path(), &["--max-steps", "1", "Look."]);
    assert_eq!(stopped.status.code(), Some(1), "{}", err(&stopped));
    assert!(err(&stopped).contains("MAX_STEPS (max_steps)") && err(&stopped).contains("--max-steps 2"), "{}", err(&stopped));
    // The saved settings hold, so it is at its limit still.
    assert_eq!(run(folder.path(), &["--resume"]).status.code(), Some(1));
    let resumed = run(folder.path(), &["--resume", "--max-steps", "9"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", err(&resumed));
    assert!(out(&resumed).ends_with("Found.\n"));
    // Words in place of an id are words.
    let further = run(folder.path(), &["--resume", "and further", "--max-steps", "20"]);
    assert_eq!(further.status.code(), Some(0), "{}", err(&further));
    let show = out(&run(folder.path(), &["sessions", "show"]));
    assert!(show.contains("and further"), "{show}");
}

#[test]
fn a_demo_that_is_kept_can_go_on_with_more_to_spend() {
    let here = TempDir::new().unwrap();
    let first = run(here.path(), &["--demo", "budget", "--sessions", "kept"]);
    assert_eq!(first.status.code(), Some(1));
    assert!(err(&first).contains("--sessions kept --budget 0.04"), "{}", err(&first));
    let cost = |folder: &Path| {
        let listed = run(folder, &["sessions", "--sessions", "kept", "--json"]);
        serde_json::from_str::<Value>(&out(&listed)).unwrap()[0]["cost_usd"].as_f64().unwrap()
    };
    assert!(cost(here.path()) <= 0.02);
    let second = run(here.path(), &["--resume", "--sessions", "kept", "--budget", "0.03"]);
    assert_eq!(second.status.code(), Some(1));
    let cost = cost(here.path());
    assert!(cost > 0.02 && cost <= 0.03, "{cost}");
}

/// Everything a terminal of 100 columns is sent, through `script`, which gives the program one.
fn on_a_terminal(folder: &Path, arguments: &[&str], typed: &str) -> Option<(String, Option<i32>)> {
    let line = format!("stty cols 100; exec '{}' agent {}", env!("CARGO_BIN_EXE_runguard"), arguments.join(" "));
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).current_dir(folder).env("TERM", "xterm").env("NO_COLOR", "1");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        eprintln!("`script` is not here: nothing was looked at");
        return None;
    };
    // Held open to the end: its end would be one for the program too.
    let mut keyboard = child.stdin.take()?;
    keyboard.write_all(typed.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    child.stdout.take()?.read_to_end(&mut bytes).ok()?;
    drop(keyboard);
    Some((String::from_utf8(bytes).ok()?, child.wait().ok()?.code()))
}

/// What stays on the screen: carriage return, line feed and "clear to the end of the line" are all there may be.
fn left_on_screen(bytes: &str) -> Vec<String> {
    let (mut lines, mut column) = (vec![Vec::<char>::new()], 0);
    let mut rest = bytes;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let row = lines.len() - 1;
        match c {
            '\r' => column = 0,
            '\n' => lines.push(Vec::new()),
            '\x1b' => {
                rest = rest.strip_prefix("[K").unwrap_or_else(|| panic!("another sequence: {rest:?}"));
                lines[row].truncate(column);
            }
            c => {
                let line = &mut lines[row];
                // A line feed goes down and stays in its column.
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect()).collect()
}

#[test]
fn the_status_line_comes_and_goes_without_a_trace() {
    let here = TempDir::new().unwrap();
    let Some((bytes, code)) = on_a_terminal(here.path(), &["--demo", "loop"], "") else { return };
    assert_eq!(code, Some(1), "{bytes}");
    assert!(bytes.contains("\r\x1b[Kstep 1/50 · 0 tokens · $0.0000 of $5.00 · 0:0"), "{bytes:?}");
    assert!(bytes.contains("step 2/50 · 9,540 tokens · $0.0303 of $5.00"), "{bytes:?}");
    let screen = left_on_screen(&bytes);
    assert!(!screen.iter().any(|line| line.contains("of $5.00")), "{screen:#?}");
    let words = screen.iter().filter(|line| *line == "Let me look the kettle up in the catalogue.").count();
    assert_eq!(words, 4, "whole lines, untorn: {screen:#?}");
}

#[test]
fn a_chat_asks_until_ctrl_d() {
    let folder = scripted("[[reply]]\ntext = \"First answer.\"\n\n[[reply]]\ntext = \"Second answer.\"\n");
    let Some((bytes, code)) = on_a_terminal(folder.path(), &[], "one\ntwo\n\u{4}") else { return };
    assert_eq!(code, Some(0), "{bytes}");
    let screen = left_on_screen(&bytes);
    for answer in ["First answer.", "Second answer."] {
        assert!(screen.iter().any(|line| line == answer), "{answer}: {screen:#?}");
    }
    let listed = sessions(folder.path());
    assert_eq!((listed.len(), listed[0]["state"].as_str(), listed[0]["steps"].as_u64()), (1, Some("WAITING_FOR_INPUT"), Some(2)));
}

#[test]
fn a_chat_that_says_nothing_leaves_no_session() {
    let folder = scripted("[[reply]]\ntext = \"Never said.\"\n");
    let Some((bytes, code)) = on_a_terminal(folder.path(), &[], "\u{4}") else { return };
    assert_eq!(code, Some(0), "{bytes}");
    assert!(sessions(folder.path()).is_empty());
}
