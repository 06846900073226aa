use super::*;
use crate::trace::{Kind, MESSAGE, Step};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use runguard_core::detect::stall::{error_fingerprint, result_fingerprint};
use runguard_core::fingerprint;
use serde_json::{Value, json};
use std::io::Write;

const FIXTURES: [(&str, Format); 26] = [
    ("traces.jsonl", Format::Traces),
    ("decisions.jsonl", Format::DecisionLog),
    ("decisions.json", Format::DecisionLog),
    ("otlp.jsonl", Format::Otlp),
    ("otlp-document.json", Format::Otlp),
    ("otlp-runguard.jsonl", Format::Otlp),
    ("langsmith.jsonl", Format::LangSmith),
    ("langfuse.json", Format::Langfuse),
    ("langfuse-observations.jsonl", Format::Langfuse),
    ("openai.json", Format::OpenAi),
    ("openai-requests.jsonl", Format::OpenAi),
    ("openai-responses.json", Format::OpenAi),
    ("anthropic.json", Format::Anthropic),
    ("bedrock.jsonl", Format::Bedrock),
    ("claude-code.jsonl", Format::ClaudeCode),
    ("claude-code-parallel.jsonl", Format::ClaudeCode),
    ("marshmallow-1867.traj", Format::SweAgent),
    ("astropy-13033.traj.json", Format::SweAgent),
    ("astropy__astropy-14369.traj.json", Format::SweAgent),
    ("openhands-events.json", Format::OpenHands),
    ("openhands-output.jsonl", Format::OpenHands),
    ("openhands-1.jsonl", Format::OpenHands),
    ("sphinx-doc__sphinx-11445/deepseek-reasoner-1737444714.6804376.json", Format::OpenHands),
    ("tau-bench-airline.json", Format::TauBench),
    ("openinference-nested.json", Format::Otlp),
    ("astropy__astropy-13977/gpt-4o-1760000003.25.json", Format::OpenHands),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name)
}

fn bytes_of(name: &str) -> Vec<u8> {
    fs::read(fixture(name)).unwrap()
}

/// As it would be read from a file of that name, in pieces of that size.
fn read_as(bytes: &[u8], format: Format, file: &str, piece: usize) -> Vec<Result<Run, Broken>> {
    let Some(reader) = reader_of(format) else {
        let mut path = tempfile::NamedTempFile::new().unwrap();
        path.write_all(bytes).unwrap();
        return open(path.path(), Some(format), Detail::FINGERPRINTS).unwrap().collect();
    };
    let input: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(piece, io::Cursor::new(bytes.to_vec())));
    let out = Out { file: Path::new(file).into(), format, detail: Detail::FINGERPRINTS, ready: VecDeque::new() };
    Reading { records: Records::new(Heard::once(input)), files: VecDeque::new(), read: Arc::default(), reader, out, ended: false }.collect()
}

fn runs_of(name: &str) -> Vec<Run> {
    open(&fixture(name), None, Detail::FINGERPRINTS).unwrap().map(|run| run.unwrap()).collect()
}

fn run_of(name: &str) -> Run {
    let mut runs = runs_of(name);
    assert_eq!(runs.len(), 1, "{name}");
    runs.remove(0)
}

fn done(run: &Run) -> Vec<(Kind, String, u64, Option<u64>, Option<u64>)> {
    run.steps.iter().map(|step| (step.kind, step.tool.to_string(), step.args, step.result, step.error)).collect()
}

#[test]
fn every_format_is_told_by_its_content_and_has_a_code() {
    for (name, format) in FIXTURES {
        assert_eq!(guess(&fixture(name)).unwrap(), format, "{name}");
        // Whatever the name is, and packed.
        let mut packed = tempfile::NamedTempFile::with_suffix(".xyz").unwrap();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes_of(name)).unwrap();
        packed.write_all(&encoder.finish().unwrap()).unwrap();
        assert_eq!(guess(packed.path()).unwrap(), format, "{name}, packed and under another name");
    }
    for format in Format::ALL {
        assert_eq!(Format::from_code(format.code()), Some(format));
    }
    assert_eq!(Format::from_code("csv"), None);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"name,age\nada,36\n").unwrap();
    let error = guess(file.path()).unwrap_err().to_string();
    assert!(error.contains("claude-code") && error.contains("nothing at its beginning"), "{error}");
    assert!(matches!(guess(Path::new("/nowhere/at.all")), Err(OpenError::Unreadable { .. })));
    fs::write(file.path(), b"RGRUNS\n\x01").unwrap();
    assert_eq!(guess(file.path()).unwrap(), Format::Packed);
}

/// Whatever tells the format: the first record, one behind it, or none for sure.
#[cfg(unix)]
#[test]
fn a_pipe_whose_format_is_guessed_is_read_from_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (name, _)) in FIXTURES.into_iter().enumerate() {
        let pipe = folder.path().join(format!("{number}-{}", name.rsplit('/').next().unwrap_or(name)));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (to, bytes) = (pipe.clone(), bytes_of(name));
        let writes = std::thread::spawn(move || fs::write(to, bytes));
        let told = |run: Result<Run, Broken>| run.map(|run| (run.model, run.steps)).map_err(|broken| (broken.line, broken.problem));
        let read: Vec<_> = open(&pipe, None, Detail::FINGERPRINTS).unwrap().map(told).collect();
        let expected: Vec<_> = open(&fixture(name), None, Detail::FINGERPRINTS).unwrap().map(told).collect();
        assert!(name.contains('/') || read == expected, "{name}: {read:?}");
        assert!(!read.is_empty() && writes.join().unwrap().is_ok(), "{name}");
    }
}

#[test]
fn a_file_without_letters_or_with_two_bytes_for_each_is_told_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let told = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let packed = folder.path().join("a.jsonl.gz");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        fs::write(&packed, encoder.finish().unwrap()).unwrap();
        [path.clone(), packed].map(|path| {
            let error = open(&path, None, Detail::FINGERPRINTS).err().map(|error| error.to_string());
            assert_eq!(error, guess(&path).err().map(|error| error.to_string()));
            error.map(|error| error.replace(&*path.to_string_lossy(), "it"))
        })
    };
    for nothing in ["", " \n\n", "\u{feff}", "\u{feff}\r\n"] {
        assert_eq!(told(nothing.as_bytes()), [(); 2].map(|()| Some("it is empty".to_owned())), "{nothing:?}");
    }
    let text = String::from_utf8(bytes_of("traces.jsonl")).unwrap();
    let list = String::from_utf8(bytes_of("openai.json")).unwrap();
    for text in [&text, &list, &format!("\u{feff}{text}")] {
        for bytes in [u16::to_le_bytes, u16::to_be_bytes] {
            let two: Vec<u8> = text.encode_utf16().flat_map(bytes).collect();
            let expected = "it is text in UTF-16: write it as UTF-8 (iconv -f UTF-16 -t UTF-8) and read what comes of it";
            assert_eq!(told(&two), [(); 2].map(|()| Some(expected.to_owned())));
        }
    }
    assert_eq!(told(text.as_bytes()), [None, None]);
}

/// A file has a few models; one that has many is priced as well.
#[test]
fn prices_are_the_same_however_many_models_there_are() {
    use super::conversation::Spent;
    use runguard_core::prices::{Prices, Usage};
    let (usage, prices) = (Usage::new(1_000_000, 0), Prices::bundled());
    let names = ["claude-sonnet-4-20250514", "gpt-4o", "no-such-model", "us.anthropic.claude-3-7-sonnet-20250219-v1:0", "GPT-4o"];
    let many = (0..40).map(|number| format!("nobody-has-{number}"));
    let names: Vec<String> = names.map(str::to_owned).into_iter().chain(many).collect();
    for name in names.iter().chain(names.iter().rev()) {
        let dollars = prices.price(name).map_or(0.0, |(price, _)| price.cost(&usage).as_dollars());
        assert_eq!(Spent::of(name, &usage, None).dollars.to_bits(), dollars.to_bits(), "{name}");
    }
}

/// Two calls at once, one of which fails, a third, an answer, a reply to it, a last word.
fn conversation() -> Vec<(Kind, String, u64, Option<u64>, Option<u64>)> {
    let args = |args| fingerprint::of_value(&args).unwrap();
    let call = |tool: &str, given, result: &str, failed: bool| {
        let error = failed.then(|| error_fingerprint(result));
        (Kind::Call, tool.to_owned(), args(given), Some(result_fingerprint(result)), error)
    };
    let said = |text: &str, reply: Option<&str>| {
        (Kind::Message, MESSAGE.to_owned(), result_fingerprint(text), reply.map(result_fingerprint), None)
    };
    vec![
        call("list_directory", json!({"path": ".", "depth": 2}), "b.txt\nc.txt", false),
        call("read_file", json!({"path": "a.txt", "from": 3}), "Error: no such file: a.txt", true),
        call("read_file", json!({"path": "b.txt", "from": 1}), "3 passed in 9.99s", false),
        said("There is no a.txt; b.txt says that 3 tests passed.", Some("Thanks, that is all.")),
        said("You are welcome.", None),
    ]
}

#[test]
fn a_step_tells_its_turn_and_whether_a_person_spoke_before_it() {
    for name in ["openai.json", "openai-requests.jsonl", "openai-responses.json", "anthropic.json", "claude-code.jsonl"] {
        let steps = run_of(name).steps;
        let (rounds, spoke): (Vec<_>, Vec<_>) = steps.iter().map(|step| (step.round, step.spoke)).unzip();
        assert!(
            rounds[0].is_some() && rounds[0] == rounds[1] && rounds[1] != rounds[2],
            "{name}: side by side, and then another: {rounds:?}"
        );
        assert_eq!(rounds[3..], [None, None], "{name}");
        assert_eq!(spoke, [true, false, false, false, true].map(Some), "{name}: the task, and what the answer was answered by");
    }
    let read = |name: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let runs: Vec<Run> = open(&path, None, Detail::FINGERPRINTS).unwrap().map(|run| run.unwrap()).collect();
        runs[0].steps.iter().map(|step| (step.spoke, step.round)).collect::<Vec<_>>()
    };
    let said = |text: &str| json!({"role": "assistant", "content": text});
    let user = |text: &str| json!({"role": "user", "content": text});
    let talk = [
        user("Find it."),
        said("calling search"),
        user("Observation: nothing"),
        said("I give up"),
        user("Please go on. YOU SHOULD NEVER ASK FOR HUMAN HELP."),
        said("Done."),
        user("No."),
        said("Sorry."),
    ];
    let spoke: Vec<_> = read("a.json", &json!(talk).to_string()).into_iter().map(|(spoke, _)| spoke).collect();
    assert_eq!(spoke, [true, false, false, true].map(Some), "answers of frameworks are nobody's");
    let beside = json!([
        user("Find it."),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "ls", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": "text", "text": "No, the other one."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "b", "name": "ls", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": "x"}, {"type": "text", "text": "3 steps are left."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}, {"type": "text", "text": "2 steps are left."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "d", "name": "ls", "input": {}}]},
    ]);
    let spoke: Vec<_> = read("b.json", &beside.to_string()).into_iter().map(|(spoke, _)| spoke).collect();
    assert_eq!(spoke, [true, true, true, false].map(Some), "a person speaks beside results; the same again is a reminder");
    let event = |source: &str, content: &str| json!({"id": 1, "source": source, "action": "message", "args": {"content": content}});
    let acts = |id: u64, response: &str| {
        json!({"id": id, "source": "agent", "action": "run", "args": {"command": "ls"},
            "tool_call_metadata": {"function_name": "execute_bash", "model_response": {"id": response}}})
    };
    let events = json!([
        event("user", "Find it."),
        acts(2, "r1"),
        acts(3, "r1"),
        event("environment", "Go on."),
        acts(5, "r2"),
        event("user", "Stop."),
        acts(7, "r3")
    ]);
    let (spoke, rounds): (Vec<_>, Vec<_>) = read("c.json", &events.to_string()).into_iter().unzip();
    assert_eq!(spoke, [true, false, false, true].map(Some), "the environment is no person");
    assert!(rounds[0] == rounds[1] && rounds[1] != rounds[2] && rounds[2] != rounds[3], "of one answer of the model: {rounds:?}");
}

#[test]
fn one_conversation_is_one_run_whoever_recorded_it() {
    for name in [
        "openai.json",
        "openai-requests.jsonl",
        "openai-responses.json",
        "anthropic.json",
        "claude-code.jsonl",
        "otlp.jsonl",
        "otlp-document.json",
        "langsmith.jsonl",
        "langfuse.json",
        "langfuse-observations.jsonl",
        "astropy__astropy-13977",
        "openhands-1.jsonl",
        "openinference-nested.json",
    ] {
        assert_eq!(done(&run_of(name)), conversation(), "{name}");
    }
}

#[test]
fn what_was_spent_stands_at_the_first_step_of_its_turn() {
    let spent = |name: &str| -> Vec<u64> { run_of(name).steps.iter().map(|step| step.tokens).collect() };
    for name in
        ["openai-requests.jsonl", "otlp.jsonl", "langsmith.jsonl", "langfuse.json", "langfuse-observations.jsonl", "astropy__astropy-13977"]
    {
        assert_eq!(spent(name), [110, 0, 210, 310, 410], "{name}");
    }
    assert_eq!(spent("claude-code.jsonl"), [1050, 0, 1050, 1050, 1050], "a message is paid once, however many lines it has");
    assert_eq!(spent("openai.json"), [0; 5]);

    let dollars = |name: &str| -> f64 { run_of(name).steps.iter().map(|step| step.dollars).sum() };
    let near = |left: f64, right: f64| (left - right).abs() < 1e-9;
    assert!(near(dollars("langsmith.jsonl"), 0.05) && near(dollars("langfuse.json"), 0.05), "the source's own cost");
    assert!(near(dollars("astropy__astropy-13977"), 0.08));
    // 1000 tokens in and 40 out, at 2.50 and 10 dollars a million.
    assert!(near(dollars("otlp.jsonl"), 0.0029), "{}", dollars("otlp.jsonl"));
    assert!(near(dollars("openai-requests.jsonl"), 0.0029));
    assert!(near(dollars("anthropic.json"), 0.0));
}

#[test]
fn runs_know_their_name_model_agent_task_and_place() {
    let run = run_of("claude-code.jsonl");
    assert_eq!((run.id.as_str(), run.source.as_str()), ("5f0c1f5e-7a0b-4a70-9d3c-0d6e8e0f2a11", "claude-code"));
    assert_eq!((run.model.as_str(), run.agent.as_str()), ("claude-sonnet-4-20250514", "Claude Code 2.1.63"));
    assert_eq!((run.task.as_str(), run.place.line), ("List the folder and read a.txt.", 3));
    assert_eq!(run.steps[0].at_millis, Some(1_772_359_201_000), "when the turn began");
    let run = run_of("otlp.jsonl");
    assert_eq!(
        (run.id.as_str(), run.agent.as_str(), run.model.as_str()),
        ("4bf92f3577b34da6a3ce929d0e0e4736", "helper", "gpt-4o-2024-08-06")
    );
    assert_eq!(run_of("langsmith.jsonl").agent, "LangGraph");
    assert_eq!(run_of("langfuse-observations.jsonl").agent, "helper");
    let run = run_of("astropy__astropy-13977");
    assert_eq!((run.id.as_str(), run.native_tools), ("astropy__astropy-13977", Some(true)));
    assert_eq!(&*run.place.file, fixture("astropy__astropy-13977/gpt-4o-1760000000.25.json"));
}

#[test]
fn a_bedrock_session() {
    let run = run_of("bedrock.jsonl");
    let tools: Vec<&str> = run.steps.iter().map(|step| &*step.tool).collect();
    assert_eq!(tools, ["files::list", "knowledge base KB12345678", "files::GET /read", MESSAGE]);
    let args = json!({"parameters": {"depth": 2, "path": "."}, "request_body": {}});
    assert_eq!(run.steps[0].args, fingerprint::of_value(&args).unwrap(), "values are read by their type");
    let failed: Vec<bool> = run.steps.iter().map(|step| step.error.is_some()).collect();
    assert_eq!(failed, [false, false, true, false], "the body says so");
    assert!(run.steps[..3].iter().all(|step| step.result.is_some()));
    let tokens: Vec<u64> = run.steps.iter().map(|step| step.tokens).collect();
    assert_eq!(tokens, [110, 210, 310, 410], "the last part came twice and counts once");
    assert!(run.steps[0].dollars > 0.0);
    assert_eq!((run.id.as_str(), run.agent.as_str()), ("session-7", "files"));
}

#[test]
fn trajectories_of_swe_agents() {
    let run = run_of("marshmallow-1867.traj");
    let tools: Vec<&str> = run.steps.iter().map(|step| &*step.tool).collect();
    assert_eq!(tools, ["bash", "open", MESSAGE, "submit"]);
    assert_eq!(run.steps[0].args, fingerprint::of_value(&json!({"command": "ls -F"})).unwrap());
    assert!(run.steps[1].error.is_some() && run.steps[0].error.is_none());
    let tokens: Vec<u64> = run.steps.iter().map(|step| step.tokens).collect();
    assert_eq!(tokens, [1026, 1026, 1025, 1025], "4102 in all, spread");
    assert!((run.steps[3].dollars - 0.02).abs() < 1e-9);
    assert_eq!((run.id.as_str(), run.task.as_str(), run.model.as_str()), ("marshmallow-1867", "marshmallow-1867", "gpt-4o"));

    let run = run_of("astropy-13033.traj.json");
    assert_eq!(run.id, "astropy-13033");
    let steps: Vec<(&str, bool, u64)> = run.steps.iter().map(|step| (&*step.tool, step.error.is_some(), step.tokens)).collect();
    assert_eq!(steps, [("bash", false, 110), ("bash", true, 210), (MESSAGE, false, 310)], "the exit code is the flag");
    assert_eq!(run.steps[1].args, fingerprint::of_value(&json!({"command": "grep TimeSeries core.py"})).unwrap());
}

#[test]
fn a_turn_that_was_refused_made_no_call_and_results_stay_with_theirs() {
    let run = open(&fixture("astropy__astropy-14369.traj.json"), None, Detail::TEXTS).unwrap().next().unwrap().unwrap();
    let texts: Vec<(Kind, bool, &str)> = run
        .steps
        .iter()
        .map(|step| (step.kind, step.error.is_some(), step.texts.as_ref().unwrap().result.split_whitespace().next().unwrap_or_default()))
        .collect();
    let call = Kind::Call;
    assert_eq!(
        texts,
        [
            (call, false, "<returncode>0</returncode>"),
            (call, false, "<returncode>0</returncode>"),
            (Kind::Message, false, "Please"),
            (call, false, "<returncode>0</returncode>"),
            (call, false, "<returncode>0</returncode>"),
            (call, true, "The"),
            (call, false, "diff"),
        ],
        "refused; killed, which is a failure; submitted"
    );
    let of = |step: usize| run.steps[step].texts.as_ref().unwrap();
    assert!(of(4).args.contains("python update_cds.py") && of(4).result.contains("Could not find the block"), "{:?}", of(4));
    assert_eq!(run.steps[2].tokens, 22664, "paid all the same");
}

#[test]
fn what_swe_agents_tools_print_says_whether_they_failed() {
    let observed = |observation: &str| {
        let file =
            json!({"environment": "swe_main", "trajectory": [{"action": "ls", "observation": observation, "state": "{}"}], "info": {}});
        let path = "default__claude-3-5-sonnet-20241022__t-0.00__p-1.00__c-2.00___swe_bench_lite/a__a-1/a__a-1.traj";
        let run = read_as(file.to_string().as_bytes(), Format::SweAgent, path, 64).remove(0).unwrap();
        assert_eq!((run.model.as_str(), run.id.as_str()), ("claude-3-5-sonnet-20241022", "a__a-1"), "the folder names the model");
        run.steps[0].error.is_some()
    };
    for failed in [
        "cat: a.txt: No such file or directory",
        "/bin/bash: line 1: pyhton: command not found",
        "bash: -c: line 4: syntax error near unexpected token `('",
        "ls: cannot access 'x': No such file or directory",
        "Running\nTraceback (most recent call last):\n  File \"x.py\", line 1\nValueError: no",
        "Your proposed edit has introduced new syntax error(s). Please read this error message carefully",
        "No replacement was performed, old_str `x` did not appear verbatim in /a.py.",
        "File src/fields.py not found",
        "EXECUTION TIMED OUT",
        "The command 'pytest' was cancelled because it took more than 30 seconds.",
    ] {
        assert!(observed(failed), "{failed}");
    }
    for fine in [
        "",
        "a.txt\nb.txt",
        "3 passed",
        "   12 Traceback (most recent call last):",
        "grep: the word\nNo such file or directory",
        "Note: is a directory of names",
    ] {
        assert!(!observed(fine), "{fine}");
    }
}

#[test]
fn calls_side_by_side_are_one_message_though_results_stand_between_its_lines() {
    let run = run_of("claude-code-parallel.jsonl");
    let steps: Vec<(&str, Option<u64>, u64)> = run.steps.iter().map(|step| (&*step.tool, step.result, step.tokens)).collect();
    let came = |text: &str| Some(result_fingerprint(text));
    assert_eq!(
        steps,
        [("Read", came("one"), 1310), ("Read", came("two"), 0), ("Read", came("three"), 0), (MESSAGE, None, 1012)],
        "what the last line of a message says of its tokens"
    );
}

#[test]
fn events_of_openhands() {
    let check = |run: &Run| {
        let steps: Vec<(&str, bool, u64)> = run.steps.iter().map(|step| (&*step.tool, step.error.is_some(), step.tokens)).collect();
        let expected =
            [("run", false, 110), ("run", true, 210), ("str_replace_editor", false, 410), (MESSAGE, false, 410), ("finish", false, 0)];
        assert_eq!(steps, expected);
        assert_eq!(run.steps[0].args, fingerprint::of_value(&json!({"command": "ls"})).unwrap(), "without thoughts and flags");
        assert_eq!(
            run.steps[2].args,
            fingerprint::of_value(&json!({"command": "view", "path": "/b.txt"})).unwrap(),
            "the model's own call"
        );
        assert_eq!(run.steps[3].result, Some(result_fingerprint("Thanks, that is all.")));
        let dollars: f64 = run.steps.iter().map(|step| step.dollars).sum();
        assert!((dollars - 0.1).abs() < 1e-9, "running totals: {dollars}");
    };
    check(&run_of("openhands-events.json"));
    let [failed, stuck] = &runs_of("openhands-output.jsonl")[..] else { panic!("two runs") };
    check(failed);
    assert_eq!((failed.success, failed.stuck, failed.agent.as_str()), (Some(false), Some(false), "CodeActAgent"));
    assert_eq!((stuck.success, stuck.stuck, stuck.steps.len()), (None, Some(true), 2), "pairs of the older form");
}

#[test]
fn attempts_of_openhands_in_one_folder_are_runs_of_their_own() {
    let runs = runs_of("sphinx-doc__sphinx-11445");
    let found: Vec<(&str, &str, Vec<&str>)> =
        runs.iter().map(|run| (run.id.as_str(), run.task.as_str(), run.steps.iter().map(|step| &*step.tool).collect())).collect();
    let task = "sphinx-doc__sphinx-11445";
    assert_eq!(
        found,
        [
            ("sphinx-doc__sphinx-11445/1", task, vec!["execute_bash", "str_replace_editor"]),
            (task, task, vec!["str_replace_editor", "execute_bash"])
        ],
        "the last has the task's name"
    );
    assert!(runs[1].steps[0].result.is_some() && runs[0].steps[1].result.is_none(), "an attempt is not answered by the next");
}

#[test]
fn a_conversation_of_openhands_one_file_an_event_is_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("c0ffee/events");
    fs::create_dir_all(&events).unwrap();
    fs::write(events.with_file_name("base_state.json"), r#"{"agent": {"llm": {"model": "gpt-4o"}}}"#).unwrap();
    for (number, line) in String::from_utf8(bytes_of("openhands-1.jsonl")).unwrap().lines().enumerate() {
        fs::write(events.join(format!("event-{number:05}-3f2b.json")), line).unwrap();
    }
    assert_eq!(files(folder.path()).unwrap(), std::slice::from_ref(&events));
    let runs: Vec<Run> = open(&events, None, Detail::FINGERPRINTS).unwrap().map(|run| run.unwrap()).collect();
    let [run] = &runs[..] else { panic!("one run") };
    assert_eq!((run.id.as_str(), run.model.as_str()), ("c0ffee", "gpt-4o"));
    assert_eq!(done(run), conversation());
    let tokens: Vec<u64> = run.steps.iter().map(|step| step.tokens).collect();
    assert_eq!(tokens, [0, 110, 210, 0, 0], "running totals come after the steps");
}

/// A logged request of one agent: its task, the calls it made so far, and the next one, which the response makes.
fn logged(task: &str, agent: &str, turn: usize) -> String {
    let call = |turn: usize| json!([{"type": "text", "text": "let me look"}, {"type": "tool_use", "id": format!("toolu_{agent}{turn}"), "name": "search", "input": {"page": turn}}]);
    let mut messages = vec![json!({"role": "user", "content": task})];
    for turn in 0..turn {
        messages.push(json!({"role": "assistant", "content": call(turn)}));
        let result = json!({"type": "tool_result", "tool_use_id": format!("toolu_{agent}{turn}"), "content": "no results"});
        messages.push(json!({"role": "user", "content": [result]}));
    }
    let response = json!({"id": "msg", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": call(turn), "stop_reason": "tool_use", "usage": {"input_tokens": 100, "output_tokens": 10}});
    json!({"request": {"model": "claude-sonnet-4-5", "system": "You are", "messages": messages}, "response": response}).to_string()
}

#[test]
fn a_logged_run_whose_first_request_is_one_message_is_one() {
    let read = |lines: &[String]| -> Vec<(usize, Vec<u64>)> {
        let runs = read_as(lines.join("\n").as_bytes(), Format::Anthropic, "x", 64).into_iter().map(|run| run.unwrap());
        runs.map(|run| (run.steps.len(), run.steps.iter().map(|step| step.tokens).collect())).collect()
    };
    let lines: Vec<String> =
        [("a", 3), ("b", 2)].iter().flat_map(|(agent, turns)| (0..*turns).map(|turn| logged(agent, agent, turn))).collect();
    assert_eq!(read(&lines), [(3, vec![110; 3]), (2, vec![110; 2])], "each call once");
    // The same task, and the second asks before the first goes on: its calls are not the first one's.
    let [first, second] = ["a", "b"].map(|agent| (0..2).map(|turn| logged("task", agent, turn)).collect::<Vec<_>>());
    let runs = read(&[&first[0], &second[0], &first[1]].map(Clone::clone));
    assert_eq!(runs, [(1, vec![110]), (1, vec![110]), (2, vec![0, 110])]);
}

/// A message of one span, as exporters write them.
fn spans_of(scope: &str, name: &str, id: &str, (began, ended): (u64, u64), attributes: &Value) -> String {
    let typed = |value: &Value| match value {
        Value::Number(number) => json!({"intValue": number.to_string()}),
        other => json!({"stringValue": other}),
    };
    let attributes: Vec<Value> =
        attributes.as_object().unwrap().iter().map(|(key, value)| json!({"key": key, "value": typed(value)})).collect();
    let span = json!({"traceId": "5b8aa5a2d2c872e8321cf37308d69df2", "spanId": id, "parentSpanId": "051581bf3cb55c13", "name": name, "startTimeUnixNano": began.to_string(), "endTimeUnixNano": ended.to_string(), "attributes": attributes, "status": {}});
    json!({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": scope}, "spans": [span]}]}]}).to_string()
}

fn run_of_spans(spans: &[String]) -> Run {
    let mut runs: Vec<Run> = read_as(spans.join("\n").as_bytes(), Format::Otlp, "x", 64).into_iter().map(|run| run.unwrap()).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

/// What a call of `search` with that query is, and the last word.
fn searched(results: &[(&str, &str, bool)], said: &str) -> Vec<(Kind, String, u64, Option<u64>, Option<u64>)> {
    let call = |(query, result, failed): &(&str, &str, bool)| {
        let args = fingerprint::of_value(&json!({"query": query})).unwrap();
        (Kind::Call, "search".to_owned(), args, Some(result_fingerprint(result)), failed.then(|| error_fingerprint(result)))
    };
    let last = (Kind::Message, MESSAGE.to_owned(), result_fingerprint(said), None, None);
    results.iter().map(call).chain([last]).collect()
}

#[test]
fn spans_of_the_ai_sdk() {
    let usage = json!({"gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o-2024-08-06", "gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 50, "ai.usage.inputTokenDetails.cacheReadTokens": 500, "ai.usage.cachedInputTokens": 500, "ai.telemetry.functionId": "helper"});
    let with = |more: Value| {
        let mut all = usage.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let calls = json!([{"toolCallId": "call_0", "toolName": "search", "input": "{\"query\": \"Paris\"}"}, {"toolCallId": "call_1", "toolName": "search", "input": "{\"query\": \"Rome\"}"}]).to_string();
    let asked = json!([
        {"role": "user", "content": [{"type": "text", "text": "Look"}]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "call_0", "toolName": "search", "input": {"query": "Paris"}}]},
        {"role": "tool", "content": [
            {"type": "tool-result", "toolCallId": "call_0", "toolName": "search", "output": {"type": "text", "value": "no results"}},
            {"type": "tool-result", "toolCallId": "call_1", "toolName": "search", "output": {"type": "error-text", "value": "no way"}},
        ]},
    ])
    .to_string();
    let first = with(
        json!({"ai.operationId": "ai.generateText.doGenerate", "ai.prompt.messages": "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Look\"}]}]", "ai.response.text": "let me look", "ai.response.toolCalls": calls}),
    );
    let last = with(json!({"ai.operationId": "ai.streamText.doStream", "ai.prompt.messages": asked, "ai.response.text": "Nothing."}));
    let tool = json!({"ai.operationId": "ai.toolCall", "ai.toolCall.name": "search", "ai.toolCall.id": "call_0", "ai.toolCall.args": "{\"query\":\"Paris\"}", "ai.toolCall.result": "\"no results\""});
    let spans = [
        spans_of("ai", "ai.toolCall", "b1", (30, 40), &tool),
        spans_of("ai", "ai.generateText.doGenerate", "b2", (10, 20), &first),
        spans_of("ai", "ai.streamText.doStream", "b3", (50, 60), &last),
        spans_of(
            "ai",
            "ai.generateText",
            "b4",
            (5, 70),
            &with(json!({"ai.operationId": "ai.generateText", "ai.response.text": "Nothing."})),
        ),
    ];
    let run = run_of_spans(&spans);
    let expected = searched(&[("Paris", "no results", false), ("Rome", "no way", true)], "Nothing.");
    assert_eq!(done(&run), expected, "one call by its own span, one by what the model was told of it");
    assert_eq!((run.agent.as_str(), run.task.as_str()), ("helper", "Look"));
    assert_eq!(run.steps.iter().map(|step| step.tokens).collect::<Vec<_>>(), [1050, 0, 1050], "what goes around counts nothing");
    // 500 tokens in, 500 from the cache and 50 out, at 2.50, 1.25 and 10 dollars a million.
    assert!((run.steps[0].dollars - 0.002_375).abs() < 1e-9, "{}", run.steps[0].dollars);
}

#[test]
fn spans_of_langfuses_sdk() {
    let generation = |input: Value, output: &Value| {
        let usage = json!({"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050, "completion_tokens_details": {"reasoning_tokens": 10}, "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 500}});
        json!({"langfuse.observation.type": "generation", "langfuse.observation.model.name": "gpt-4o-2024-08-06", "langfuse.observation.usage_details": usage.to_string(), "langfuse.observation.input": json!({"tools": [], "messages": input}).to_string(), "langfuse.observation.output": output.to_string()})
    };
    let call = |id: &str, query: &str| json!({"id": id, "type": "function", "function": {"name": "search", "arguments": json!({"query": query}).to_string()}});
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [call("call_0", "Paris"), call("call_1", "Rome")]});
    let tool = |query: &str, more: Value| {
        let input = json!({"args": [], "kwargs": {"query": query}}).to_string();
        let mut all = json!({"langfuse.observation.type": "tool", "langfuse.observation.input": input});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let asked = json!({"role": "user", "content": "Look"});
    let spans = [
        spans_of("langfuse-sdk", "OpenAI-generation", "b1", (10, 20), &generation(json!([asked]), &calls)),
        // The second ran first.
        spans_of(
            "langfuse-sdk",
            "search",
            "b2",
            (30, 40),
            &tool("Rome", json!({"langfuse.observation.level": "ERROR", "langfuse.observation.status_message": "no way"})),
        ),
        spans_of("langfuse-sdk", "search", "b3", (31, 40), &tool("Paris", json!({"langfuse.observation.output": "no results"}))),
        spans_of(
            "langfuse-sdk",
            "OpenAI-generation",
            "b4",
            (50, 60),
            &generation(json!([asked, calls]), &json!({"role": "assistant", "content": "Nothing."})),
        ),
        spans_of(
            "langfuse-sdk",
            "agent",
            "b5",
            (5, 70),
            &json!({"langfuse.observation.type": "agent", "langfuse.observation.output": "Nothing."}),
        ),
    ];
    let run = run_of_spans(&spans);
    assert_eq!(done(&run), searched(&[("Paris", "no results", false), ("Rome", "no way", true)], "Nothing."));
    assert_eq!((run.model.as_str(), run.task.as_str()), ("gpt-4o-2024-08-06", "Look"));
    assert_eq!(run.steps.iter().map(|step| step.tokens).collect::<Vec<_>>(), [1050, 0, 1050]);
    assert!((run.steps[0].dollars - 0.002_375).abs() < 1e-9, "{}", run.steps[0].dollars);
}

#[test]
fn spans_of_one_question_by_two_instrumentations_are_paid_once() {
    let (sdk, other) = ("com.anthropic.sdk.python", "opentelemetry.instrumentation.anthropic");
    let usage = |response: &str, written: &str, more: Value| {
        let mut all = json!({"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude-sonnet-4-5", "gen_ai.usage.input_tokens": 1500, "gen_ai.usage.output_tokens": 50, "gen_ai.usage.cache_read.input_tokens": 300, written: 200});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if !response.is_empty() {
            all["gen_ai.response.id"] = json!(response);
        }
        all
    };
    let by_sdk = |id: &str, times, response: &str| {
        spans_of(sdk, "anthropic.messages.create", id, times, &usage(response, "gen_ai.usage.cache_write.input_tokens", json!({})))
    };
    let by_other = |id: &str, times, response: &str, query: &str| {
        let call = json!({"type": "tool_call", "id": format!("toolu_{query}"), "name": "search", "arguments": {"query": query}});
        let said =
            json!([{"role": "assistant", "parts": [{"type": "text", "content": "let me look"}, call], "finish_reason": "tool_call"}]);
        let more = json!({"gen_ai.output.messages": said.to_string()});
        spans_of(other, "anthropic.chat", id, times, &usage(response, "gen_ai.usage.cache_creation.input_tokens", more))
    };
    let spent = |spans: &[String]| -> Vec<u64> { run_of_spans(spans).steps.iter().map(|step| step.tokens).collect() };
    // 1000 tokens in, 300 from the cache, 200 into it and 50 out, at 3, 0.30, 3.75 and 15 dollars a million; told by either alone, or by both.
    for spans in [
        vec![by_other("b1", (10, 40), "msg_1", "a")],
        vec![by_sdk("b2", (20, 30), "msg_1"), by_other("b1", (10, 40), "msg_1", "a")],
        vec![by_sdk("b2", (10, 40), ""), by_other("b1", (20, 30), "msg_1", "a")],
    ] {
        let run = run_of_spans(&spans);
        assert_eq!(run.steps.iter().map(|step| step.tokens).collect::<Vec<_>>(), [1550]);
        assert!((run.steps[0].dollars - 0.004_59).abs() < 1e-9, "{}", run.steps[0].dollars);
    }
    let tool = json!({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "gen_ai.tool.call.arguments": "{}"});
    let run = run_of_spans(&[by_sdk("b2", (20, 30), "msg_1"), spans_of("a", "execute_tool search", "b3", (50, 60), &tool)]);
    assert!((run.steps[0].dollars - 0.004_59).abs() < 1e-9, "what is written to the cache, in the SDK's words: {}", run.steps[0].dollars);
    // Two at once that cost the same are two, whoever tells of them.
    let two =
        [by_other("b1", (10, 40), "", "a"), by_other("b2", (11, 41), "", "b"), by_sdk("b3", (20, 30), ""), by_sdk("b4", (21, 31), "")];
    assert_eq!(spent(&two), [1550, 1550]);
    assert_eq!(spent(&two[..2]), [1550, 1550]);
    // One after the other, or with another answer: not the same.
    assert_eq!(spent(&[by_sdk("b1", (1, 9), "msg_1"), by_other("b2", (10, 40), "msg_1", "a")]), [3100]);
    assert_eq!(spent(&[by_sdk("b1", (11, 19), "msg_1"), by_other("b2", (10, 40), "msg_2", "a")]), [3100]);
}

/// A model's span as `OpenInference` writes it: what it was paid for, and the messages it answered with.
fn openinference(messages: &Value) -> Value {
    let mut all = json!({"openinference.span.kind": "LLM", "llm.model_name": "claude-sonnet-4-5", "llm.token_count.prompt": 1500, "llm.token_count.completion": 50, "llm.token_count.prompt_details.cache_read": 300, "llm.token_count.prompt_details.cache_write": 200});
    for (name, value) in messages.as_object().unwrap() {
        all[format!("llm.output_messages.{name}")] = value.clone();
    }
    all
}

#[test]
fn spans_of_openinference_tell_of_caches() {
    let said = json!({"0.message.role": "assistant", "0.message.content": "Nothing."});
    let run = run_of_spans(&[spans_of("openinference.instrumentation.anthropic", "Messages", "b1", (10, 40), &openinference(&said))]);
    assert_eq!(run.steps[0].tokens, 1550);
    // 1000 tokens in, 300 from the cache, 200 into it and 50 out, at 3, 0.30, 3.75 and 15 dollars a million.
    assert!((run.steps[0].dollars - 0.004_59).abs() < 1e-9, "{}", run.steps[0].dollars);
}

#[test]
fn spans_of_openinference_whose_words_and_calls_are_messages_are_one_turn() {
    let words = json!({
        "0.message.role": "assistant",
        "0.message.contents.0.message_content.type": "text",
        "0.message.contents.0.message_content.text": "let me look",
        "0.message.content": "let me look",
    });
    let call = json!({
        "1.message.role": "assistant",
        "1.message.tool_calls.0.tool_call.id": "call_1",
        "1.message.tool_calls.0.tool_call.function.name": "search",
        "1.message.tool_calls.0.tool_call.function.arguments": "{\"query\": \"same thing\"}",
    });
    let tools_of = |second: &Value| -> Vec<String> {
        let mut messages = words.clone();
        messages.as_object_mut().unwrap().extend(second.as_object().unwrap().clone());
        let tool = json!({"openinference.span.kind": "TOOL", "tool.name": "search", "input.value": "{\"query\": \"same thing\"}", "output.value": "no results"});
        let scope = "openinference.instrumentation.openai_agents";
        let spans =
            [spans_of(scope, "response", "b1", (10, 20), &openinference(&messages)), spans_of(scope, "search", "b2", (30, 40), &tool)];
        run_of_spans(&spans).steps.iter().map(|step| step.tool.to_string()).collect()
    };
    assert_eq!(tools_of(&call), ["search"]);
    let other_choice = json!({"1.message.role": "assistant", "1.message.content": "or let me not"});
    assert_eq!(tools_of(&other_choice), [MESSAGE, "search"], "of two choices the first");
}

#[test]
fn spans_of_which_none_is_understood_are_told() {
    let http = |id: &str| spans_of("http", "GET /", id, (1, 2), &json!({"http.request.method": "GET"}));
    let read = read_as([http("b1"), http("b2")].join("\n").as_bytes(), Format::Otlp, "x", 64);
    let [Err(broken)] = &read[..] else { panic!("{read:?}") };
    assert!(broken.problem.starts_with("2 spans were read and none of them was understood"), "{broken:?}");
    assert!(broken.problem.contains("gen_ai.operation.name") && broken.problem.contains("ai.operationId"), "{broken:?}");
    // Among others that are, they are nobody's business.
    let tool =
        spans_of("a", "execute_tool search", "b3", (1, 2), &json!({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}));
    assert_eq!(run_of_spans(&[http("b1"), tool]).steps.len(), 1);
}

#[test]
fn batches_as_langsmiths_sdk_sends_them() {
    let text = String::from_utf8(bytes_of("langsmith.jsonl")).unwrap();
    let mut runs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    runs.sort_by_key(|run| run["start_time"].as_str().unwrap().to_owned());
    // Every second one ends within the batch that tells of its beginning; of the others a later one tells what came of them.
    let (mut lines, mut patches) = (Vec::new(), Vec::new());
    for (index, run) in runs.iter().enumerate() {
        let (mut post, mut patch) = (run.clone(), json!({}));
        for name in ["end_time", "outputs", "error", "status", "prompt_tokens", "completion_tokens", "total_tokens", "total_cost"] {
            if index % 2 == 0
                && let Some(value) = post.as_object_mut().unwrap().remove(name)
            {
                patch[name] = value;
            }
        }
        patch["id"] = run["id"].clone();
        patch["trace_id"] = run["trace_id"].clone();
        lines.push(json!({"post": [post], "patch": std::mem::take(&mut patches)}).to_string());
        patches.extend((index % 2 == 0).then_some(patch));
    }
    let unfinished = lines.join("\n");
    lines.push(json!({"patch": patches}).to_string());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
    assert_eq!(guess(file.path()).unwrap(), Format::LangSmith);
    let whole = |run: Run| Run { place: run_of("langsmith.jsonl").place, ..run };
    let read: Vec<Run> = open(file.path(), None, Detail::FINGERPRINTS).unwrap().map(|run| whole(run.unwrap())).collect();
    assert_eq!(read, [run_of("langsmith.jsonl")]);
    let read = read_as(unfinished.as_bytes(), Format::LangSmith, "x", 64);
    assert!(read.len() == 1 && read[0].as_ref().unwrap().steps.len() >= 3, "of what did not end, its beginning: {read:?}");
}

#[test]
fn results_of_tau_bench() {
    let runs = runs_of("tau-bench-airline.json");
    let known: Vec<(&str, &str, Option<bool>, &str)> =
        runs.iter().map(|run| (run.id.as_str(), run.task.as_str(), run.success, run.source.as_str())).collect();
    assert_eq!(
        known,
        [("tau-bench-airline/6-0", "airline-6", Some(true), "taubench"), ("tau-bench-airline/7-0", "airline-7", Some(false), "taubench")]
    );
    assert!(runs.iter().all(|run| run.steps.iter().any(|step| step.kind == Kind::Call && step.result.is_some())));
}

#[test]
fn success_is_told_in_many_words() {
    for (told, success) in [("true", Some(true)), ("\"failure\"", Some(false)), ("1", Some(true)), ("null", None)] {
        let line =
            format!("{{\"task_id\": \"t\", \"task_success\": {told}, \"messages\": [{{\"role\": \"assistant\", \"content\": \"x\"}}]}}");
        let run = read_as(line.as_bytes(), Format::OpenAi, "x", 64).remove(0).unwrap();
        assert_eq!((run.success, run.id.as_str()), (success, "t"), "{told}");
    }
}

#[test]
fn decisions_as_json_and_as_spans() {
    for name in ["decisions.jsonl", "decisions.json"] {
        let runs = runs_of(name);
        let run = runs.iter().find(|run| run.id == "run-1").unwrap();
        let [first, second] = &run.steps[..] else { panic!("two actions, oldest first") };
        assert_eq!((&*first.tool, first.args), ("read_file", second.args));
        assert_eq!((first.result, first.error), (Some(result_fingerprint("3 lines")), None));
        assert_eq!(second.error, Some(error_fingerprint("Error: timed out after 30s")));
        assert_eq!([(first.tokens, first.dollars), (second.tokens, second.dollars)], [(1200, 0.25), (800, 0.5)]);
        assert_eq!((run.model.as_str(), first.at_millis), ("gpt-4o", Some(1_772_359_201_000)));
        let chat = runs.iter().find(|run| run.id == "chat-2").unwrap();
        assert_eq!(chat.steps.iter().map(|step| &*step.tool).collect::<Vec<_>>(), ["handoff", "handoff"]);
        assert_eq!(chat.steps[0].args, chat.steps[1].args);
    }
    let run = run_of("otlp-runguard.jsonl");
    let steps: Vec<(&str, f64)> = run.steps.iter().map(|step| (&*step.tool, step.dollars)).collect();
    assert_eq!(steps, [("read_file", 0.25), ("search", 0.0)], "asked about at two doors, done once");
    assert_ne!(run.steps[0].args, run.steps[1].args, "what is not known looks like nothing else");
}

#[test]
fn what_our_own_spans_say_was_paid_counts_once() {
    let span = |number: u8, guard: &str, outcome: &str, more: &[(&str, Value)]| {
        let words = [("runguard.guard", guard), ("runguard.kind", "check"), ("runguard.outcome", outcome), ("runguard.subject", "default")];
        let words = words.into_iter().chain([("gen_ai.conversation.id", "run-1"), ("gen_ai.request.model", "gpt-4o")]);
        let attributes = words.map(|(key, word)| json!({"key": key, "value": {"stringValue": word}}));
        let attributes: Vec<Value> = attributes.chain(more.iter().map(|(key, value)| json!({"key": key, "value": value}))).collect();
        let id = format!("{number:016x}");
        json!({"traceId": "00112233445566778899aabbccddeeff", "spanId": id, "startTimeUnixNano": format!("{number}000000"), "attributes": attributes})
    };
    let usd = |usd: f64| ("runguard.cost_usd", json!({"doubleValue": usd}));
    let act = |act: &str| ("runguard.act", json!({"stringValue": act}));
    let tokens = |tokens: &str| ("runguard.spent_tokens", json!({"intValue": tokens}));
    let used = ("gen_ai.usage.output_tokens", json!({"intValue": "20"}));
    let paid = |spans: &[Value]| {
        let lines: Vec<String> = spans.iter().map(Value::to_string).collect();
        let runs = read_as(lines.join("\n").as_bytes(), Format::Otlp, "spans.jsonl", 4096);
        let run = runs.into_iter().next().unwrap().unwrap();
        (run.steps.iter().map(|step| step.dollars).sum::<f64>(), run.steps.iter().map(|step| step.tokens).sum::<u64>())
    };
    let asked = span(1, "agent_run", "allowed", &[]);
    let spans = [
        asked.clone(),
        span(2, "budget", "allowed", &[act("check"), usd(0.5), tokens("0")]),
        span(3, "budget", "allowed", &[act("reserve"), usd(0.5), tokens("0")]),
        span(4, "budget", "allowed", &[act("commit"), usd(0.25), tokens("120"), used.clone()]),
        span(5, "budget", "blocked", &[act("reserve"), usd(0.5), tokens("120")]),
        span(6, "budget", "allowed", &[act("reserve"), usd(0.5), tokens("120")]),
        span(7, "budget", "allowed", &[act("release"), tokens("120")]),
        span(8, "budget", "blocked", &[act("record"), usd(0.125), tokens("150")]),
    ];
    assert_eq!(paid(&spans), (0.375, 150), "what was paid, also where it was too much");
    let spans = [asked, span(2, "budget", "allowed", &[usd(0.5)]), span(3, "budget", "allowed", &[usd(0.25), used])];
    assert_eq!(paid(&spans), (0.25, 0), "of those that do not say what was done, what tells its tokens");
}

#[test]
fn texts_are_kept_when_they_are_asked_for() {
    for (name, _) in FIXTURES {
        let runs: Vec<Run> = open(&fixture(name), None, Detail::TEXTS).unwrap().map(|run| run.unwrap()).collect();
        let plain: Vec<Run> = open(&fixture(name), None, Detail::FINGERPRINTS).unwrap().map(|run| run.unwrap()).collect();
        assert!(runs.iter().flat_map(|run| &run.steps).all(|step| step.texts.is_some()), "{name}");
        let without = |mut run: Run| {
            run.steps.iter_mut().for_each(|step| step.texts = None);
            run
        };
        assert_eq!(runs.into_iter().map(without).collect::<Vec<_>>(), plain, "{name}: the rest is the same");
    }
    let run = open(&fixture("anthropic.json"), None, Detail::TEXTS).unwrap().next().unwrap().unwrap();
    let texts = run.steps[1].texts.as_ref().unwrap();
    assert_eq!((texts.args.as_str(), texts.result.as_str()), ("{\"path\":\"a.txt\",\"from\":3}", "Error: no such file: a.txt"));
}

/// The same records in other white space: objects on many lines, lists on one, ends of lines as Windows writes them.
fn rewritten(bytes: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let values: Vec<Value> = serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect();
    let compact: Vec<String> = values.iter().map(Value::to_string).collect();
    let pretty: Vec<String> = values.iter().map(|value| serde_json::to_string_pretty(value).unwrap()).collect();
    let mut forms = vec![compact.join("\n"), compact.join("\r\n\r\n"), pretty.join("\n"), pretty.join("\r\n")];
    if values.len() > 1 {
        forms.push(format!("[{}]", compact.join(",")));
        forms.push(serde_json::to_string_pretty(&values).unwrap());
    }
    forms.into_iter().map(String::into_bytes).collect()
}

#[test]
fn neither_pieces_nor_white_space_change_a_run() {
    for (name, format) in FIXTURES.into_iter().filter(|(_, format)| *format != Format::Traces) {
        let bytes = bytes_of(name);
        let whole = read_as(&bytes, format, name, 1 << 16);
        assert!(whole.iter().all(Result::is_ok) && !whole.is_empty(), "{name}: {whole:?}");
        for piece in [1, 2, 5, 64, 1000] {
            assert_eq!(read_as(&bytes, format, name, piece), whole, "{name} by {piece}");
        }
        let without_lines = |mut runs: Vec<Result<Run, Broken>>| {
            for run in runs.iter_mut().filter_map(|run| run.as_mut().ok()) {
                run.place.line = 0;
                // Runs without a name of their own are named by their line.
                run.id = run.id.split_once(':').map_or(run.id.clone(), |(name, _)| name.to_owned());
            }
            // In a list, the last records come first no more: runs are handed out in the order they began.
            runs.sort_by_key(|run| run.as_ref().map(|run| run.id.clone()).unwrap_or_default());
            runs
        };
        let expected = without_lines(whole);
        for form in rewritten(&bytes) {
            // A list of requests is a list of runs to go on from, all the same.
            assert_eq!(without_lines(read_as(&form, format, name, 1 << 16)), expected, "{name} as {}", String::from_utf8_lossy(&form));
        }
    }
}

#[test]
fn a_file_that_is_cut_off_gives_less_or_says_so_and_invents_nothing() {
    let step_of = |step: &Step| (step.kind, step.tool.clone(), step.args);
    for (name, format) in FIXTURES.into_iter().filter(|(_, format)| *format != Format::Traces) {
        let bytes = bytes_of(name);
        let whole: Vec<Run> = read_as(&bytes, format, name, 1 << 16).into_iter().map(|run| run.unwrap()).collect();
        let all: Vec<&Run> = whole.iter().collect();
        let steps_in = |runs: &[&Run]| runs.iter().map(|run| run.steps.len()).sum::<usize>();
        let end = bytes.trim_ascii_end().len();
        // Every byte of the small ones; of the others every few, and all around the ends of lines.
        let near_an_end = |at: usize| bytes[at.saturating_sub(2)..(at + 2).min(end)].contains(&b'\n');
        let stride = 1 + end / 1500;
        for at in (0..end).filter(|at| at % stride == 0 || (end < 12_000 && near_an_end(*at))) {
            let read = read_as(&bytes[..at], format, name, 1 << 16);
            let runs: Vec<&Run> = read.iter().filter_map(|run| run.as_ref().ok()).collect();
            let is_broken = read.iter().any(Result::is_err);
            assert!(is_broken || steps_in(&runs) <= steps_in(&all), "{name} cut at {at}");
            for run in runs {
                let origin = whole.iter().find(|origin| origin.id == run.id).unwrap_or_else(|| panic!("{name} cut at {at}: {}", run.id));
                // In time order an earlier step may be missing, because its record is; those that are there are the run's.
                let mut left = origin.steps.iter();
                for step in &run.steps {
                    let found = left.find(|other| {
                        step_of(other) == step_of(step)
                            && (step.result.is_none() || step.result == other.result)
                            && (step.error.is_none() || step.error == other.error)
                    });
                    assert!(found.is_some(), "{name} cut at {at}: {step:?} is not in the whole");
                }
            }
        }
        assert_eq!(read_as(&bytes[..end], format, name, 1 << 16).len(), whole.len(), "{name} without its last line's end");
    }
}

#[test]
fn broken_and_unknown_records_are_told_with_their_line_and_reading_goes_on() {
    let told = |text: &str, format| -> Vec<(u64, String)> {
        read_as(text.as_bytes(), format, "x.jsonl", 64)
            .into_iter()
            .filter_map(Result::err)
            .map(|broken| (broken.line, broken.problem))
            .collect()
    };
    let good = String::from_utf8(bytes_of("claude-code.jsonl")).unwrap();
    let mut lines: Vec<&str> = good.lines().collect();
    lines.insert(3, "{\"type\": \"assistant\", \"sess");
    lines.insert(7, "{\"sessionId\": \"s\"}");
    lines.insert(8, "{\"type\": \"telepathy\", \"sessionId\": \"s\"}");
    let text = lines.join("\n");
    let read = read_as(text.as_bytes(), Format::ClaudeCode, "x.jsonl", 64);
    let runs: Vec<&Run> = read.iter().filter_map(|run| run.as_ref().ok()).collect();
    assert_eq!(done(runs[0]), conversation(), "the rest is whole");
    let problems = told(&text, Format::ClaudeCode);
    assert_eq!(problems.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 8]);
    assert!(problems[0].1.starts_with("not JSON") && problems[1].1.contains("no type"), "types are no end of: {problems:?}");

    // In a list, the line of the element.
    let list = "[\n {\"role\": \"user\", \"content\": \"hi\"},\n {\"role\": \"assistant\", \"content\": \"ho\"},\n {\"colour\": \"red\"},\n 7,\n {\"role\": \"user\"}\n]";
    assert_eq!(told(list, Format::OpenAi).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5]);
    let stray = "[{\"role\": \"assistant\", \"content\": \"ho\"},\n{\"role\": \"tool\", \"tool_call_id\": \"x\", \"content\": \"r\"}]";
    assert!(told(stray, Format::OpenAi)[0].1.contains("no open call"));
    for (format, text) in [
        (Format::Otlp, "{\"x\": 1}"),
        (Format::Otlp, "{\"resourceSpans\": [{\"scopeSpans\": [{\"spans\": [{\"name\": \"x\"}]}]}]}"),
        (Format::LangSmith, "{\"name\": \"x\"}"),
        (Format::Langfuse, "{\"name\": \"x\"}"),
        (Format::Langfuse, "{\"id\": \"t\", \"observations\": [\"o1\"]}"),
        (Format::Bedrock, "{\"x\": 1}"),
        (Format::ClaudeCode, "{\"type\": \"user\", \"sessionId\": \"s\"}"),
        (Format::SweAgent, "{\"x\": 1}"),
        (Format::OpenHands, "{\"x\": 1}"),
        (Format::OpenHands, "{\"history\": [{\"x\": 1}]}"),
        (Format::DecisionLog, "{\"decision_id\": \"x\"}"),
        (Format::Anthropic, "{\"messages\": [{\"x\": 1}]}"),
    ] {
        assert_eq!(told(text, format).len(), 1, "{format}: {text}");
    }
}

#[test]
fn interleaved_runs_are_kept_apart_and_bounded() {
    let span = |trace: usize, at: usize| {
        json!({"traceId": format!("t{trace}"), "spanId": format!("s{trace}-{at}"), "startTimeUnixNano": at.to_string(), "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
            {"key": "gen_ai.tool.name", "value": {"stringValue": "sh"}},
            {"key": "gen_ai.tool.call.arguments", "value": {"stringValue": format!("{{\"at\":{at}}}")}},
        ]})
        .to_string()
    };
    let two: String = [span(1, 9), span(2, 1), span(1, 3), span(2, 2)].join("\n");
    let runs: Vec<Run> = read_as(two.as_bytes(), Format::Otlp, "x", 64).into_iter().map(|run| run.unwrap()).collect();
    assert_eq!(runs.iter().map(|run| (run.id.as_str(), run.steps.len())).collect::<Vec<_>>(), [("t1", 2), ("t2", 2)]);
    assert_eq!(runs[0].steps[0].args, fingerprint::of_value(&json!({"at": 3})).unwrap(), "in the order they began");

    let many = grouped::MOST_OPEN + 3;
    let mut text: String = (0..many).map(|trace| span(trace, 1) + "\n").collect();
    text.push_str(&span(0, 2));
    let read = read_as(text.as_bytes(), Format::Otlp, "x", 1 << 16);
    assert_eq!(read.iter().filter(|run| run.is_ok()).count(), many + 1);
    let broken: Vec<&Broken> = read.iter().filter_map(|run| run.as_ref().err()).collect();
    assert_eq!(broken.len(), 1);
    assert!(broken[0].line == many as u64 + 1 && broken[0].problem.contains("t0 goes on"), "{broken:?}");
}

#[test]
fn files_of_a_folder() {
    let found = files(&fixture("")).unwrap();
    let names: Vec<String> = found.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert!(names.contains(&"astropy__astropy-13977".to_owned()), "completions of one run are one: {names:?}");
    assert_eq!(names.len(), FIXTURES.len(), "{names:?}");
    assert_eq!(files(&fixture("openai.json")).unwrap(), [fixture("openai.json")]);
    assert!(files(&fixture("missing")).is_err());
}

#[test]
fn side_chains_and_what_the_program_says_itself_are_not_the_sessions() {
    let line = |extra: Value| {
        let mut line = json!({"sessionId": "s", "uuid": "u", "type": "assistant", "message": {"id": "m", "role": "assistant", "model": "claude-sonnet-4-20250514", "content": [{"type": "text", "text": "hello"}]}});
        line.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        line.to_string()
    };
    let text = [
        line(json!({})),
        line(json!({"isSidechain": true, "agentId": "a1"})),
        line(json!({"isApiErrorMessage": true, "message": {"id": "e", "role": "assistant", "content": [{"type": "text", "text": "API Error"}]}})),
        json!({"type": "result", "session_id": "s", "total_cost_usd": 0.5}).to_string(),
    ]
    .join("\n");
    let runs: Vec<Run> = read_as(text.as_bytes(), Format::ClaudeCode, "x", 64).into_iter().map(|run| run.unwrap()).collect();
    assert_eq!(runs.iter().map(|run| (run.id.as_str(), run.steps.len())).collect::<Vec<_>>(), [("s", 1), ("s/a1", 1)]);
}

/// A value and all that is in it.
fn nodes(value: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    visit(value);
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| nodes(value, visit)),
        Value::Object(members) => members.values_mut().for_each(|value| nodes(value, visit)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for format in Format::ALL.into_iter().filter(|format| *format != Format::Packed) {
            read_as(&bytes, format, "x", 7);
        }
        let _ = guess_with(Records::new(&bytes[..]), |first| first.format, |format, _| format);
    }

    #[test]
    fn damaged_files_never_panic(which in 0..FIXTURES.len(), damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..8)) {
        let (name, format) = FIXTURES[which];
        let mut bytes = bytes_of(name);
        for (at, byte, how) in damage {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        read_as(&bytes, format, name, 64);
        let _ = guess_with(Records::new(&bytes[..]), |first| first.format, |format, _| format);
    }

    /// Values of every kind where a format expects one of its own.
    #[test]
    fn values_of_the_wrong_kind_never_panic(which in 0..FIXTURES.len(), at in any::<prop::sample::Index>(), put in 0..8_usize) {
        let (name, format) = FIXTURES[which];
        let text = String::from_utf8(bytes_of(name)).unwrap();
        let mut values: Vec<Value> = serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect();
        let other = [json!(null), json!(true), json!(-1), json!(1e300), json!(u64::MAX), json!("x"), json!([[]]), json!({"a": {}})][put].clone();
        let mut count = 0;
        for value in &mut values {
            nodes(value, &mut |_| count += 1);
        }
        let at = at.index(count);
        let mut index = 0;
        for value in &mut values {
            nodes(value, &mut |value| {
                if index == at {
                    *value = other.clone();
                }
                index += 1;
            });
        }
        let bytes: String = values.iter().map(|value| value.to_string() + "\n").collect();
        read_as(bytes.as_bytes(), format, name, 64);
    }
}
