//! Sessions on disk: what is recorded is there after whatever happens, and nothing else is.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::sample::Index;
use runguard_agent::guardrails::Detectors;
use runguard_agent::message::{Block, Message, Role, Tag, ToolCall, ToolResult};
use runguard_agent::report::Stop;
use runguard_agent::session::disk::{SessionError, SessionFolder};
use runguard_agent::session::{Record, Session, VERSION};
use runguard_agent::settings::{Durability, ProviderKind, ProviderSettings, SessionSettings, Settings};
use runguard_agent::spend::Counters;
use runguard_agent::state::AgentState;
use runguard_core::money::NanoDollars;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const FOLDER: &str = "RUNGUARD_TEST_SESSIONS";

fn settings() -> Settings {
    let mut settings = Settings::new(ProviderSettings::new(ProviderKind::Openai, "gpt-4o-mini"));
    "books".clone_into(&mut settings.name);
    settings.limits.cost_limit = 0.1;
    settings.provider.temperature = Some(0.7);
    settings
}

fn folder_in(path: &Path) -> SessionFolder {
    SessionFolder::open(&SessionSettings { folder: path.to_owned(), durability: Durability::Process }).unwrap()
}

fn place() -> (TempDir, SessionFolder) {
    let place = tempfile::tempdir().unwrap();
    let folder = folder_in(place.path());
    (place, folder)
}

fn file_of(place: &TempDir, id: &str) -> PathBuf {
    place.path().join(format!("{id}.jsonl"))
}

fn counted(steps: u32) -> Counters {
    Counters {
        steps,
        input_tokens: 100 * u64::from(steps),
        output_tokens: 7,
        cost: NanoDollars::from_dollars(0.25).unwrap(),
        ..Counters::default()
    }
}

fn says(text: &str) -> Record {
    Record::Message { message: Message::user(text), counters: Counters::default(), detectors: Detectors::default() }
}

fn calls(calls: &[(&str, &str)]) -> Message {
    let call = |(id, name): &(&str, &str)| {
        Block::ToolCall(ToolCall { id: (*id).to_owned(), name: (*name).to_owned(), arguments: r#"{"path":"a.txt"}"#.to_owned() })
    };
    Message { role: Role::Assistant, content: calls.iter().map(call).collect(), reason: None }
}

fn started(id: &str) -> Record {
    Record::ToolStarted { id: id.to_owned() }
}

fn finished(id: &str, text: &str) -> Record {
    let result = ToolResult { id: id.to_owned(), name: "read_file".to_owned(), text: text.to_owned(), is_error: false };
    Record::ToolFinished { result, counters: counted(1) }
}

/// Every kind of record once, as a run writes them.
fn story() -> Vec<Record> {
    let zero = NanoDollars::ZERO;
    vec![
        says("Read a.txt\nand tell me"),
        Record::CallStarted { step: 1, reserved_tokens: 900, reserved_cost: zero },
        Record::CallFailed { counters: counted(0) },
        Record::CallStarted { step: 1, reserved_tokens: 900, reserved_cost: zero },
        Record::Reply { message: calls(&[("a", "read_file"), ("b", "write_file")]), counters: counted(1), detectors: Detectors::default() },
        Record::State { state: AgentState::WaitingForTool, stop: None, counters: counted(1) },
        started("a"),
        started("b"),
        finished("a", "zwölf \u{0} \"Zeilen\"\n"),
        finished("b", "ok"),
        Record::Results { counters: counted(1), detectors: Detectors::default() },
        Record::Trimmed { from: 0, count: 1, marker: Some(Message::internal(Tag::ContextMarker, "1 message left out")), left_out: 1 },
        Record::CallStarted { step: 2, reserved_tokens: 900, reserved_cost: zero },
        Record::Reply { message: Message::assistant("Twelve lines."), counters: counted(2), detectors: Detectors::default() },
        Record::State { state: AgentState::Completed, stop: Some(Stop::Completed), counters: counted(2) },
    ]
}

/// Everything a session holds, also what it does not show; without the place it is written to.
fn contents(session: &Session) -> String {
    let all = format!("{session:?}");
    all.split_once(", journal: ").expect("the journal is the last field").0.to_owned()
}

/// What a session must hold that has lived through these records.
fn lived(id: &str, records: &[Record]) -> String {
    let mut session = Session::in_memory(id);
    for record in records {
        session.apply(record.clone());
    }
    contents(&session)
}

/// Writes a session down and closes it.
fn write(folder: &SessionFolder, records: &[Record]) -> String {
    let mut session = folder.create(&settings()).unwrap();
    for record in records {
        session.record(record.clone()).unwrap();
    }
    session.id().to_owned()
}

fn line_ends(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn a_resumed_session_is_the_one_that_was_left() {
    let (place, folder) = place();
    let story = story();
    let id = write(&folder, &story);
    let loaded = folder.resume(&id).unwrap();
    assert_eq!(contents(&loaded.session), lived(&id, &story));
    assert_eq!(loaded.session.id(), id);
    assert_eq!(loaded.settings, settings());
    assert_eq!(loaded.recovered, runguard_agent::session::Recovered::default());
    assert_eq!(loaded.damage, None);
    assert!(loaded.opened_at_ms > 1_700_000_000_000);

    let mut session = loaded.session;
    session.record(says("And b.txt?")).unwrap();
    drop(session);
    let longer = [&story[..], &[says("And b.txt?")]].concat();
    assert_eq!(contents(&folder.resume(&id).unwrap().session), lived(&id, &longer));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "one file a session and nothing beside it");
}

#[test]
fn the_file_is_json_a_line_and_private() {
    let (place, folder) = place();
    let id = write(&folder, &story());
    let text = fs::read_to_string(file_of(&place, &id)).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1 + story().len());
    assert_eq!(lines[0]["record"], "opened");
    assert_eq!(lines[0]["version"], VERSION);
    assert_eq!(lines[0]["runguard"], env!("CARGO_PKG_VERSION"));
    assert_eq!(lines[1]["message"]["content"][0]["text"], "Read a.txt\nand tell me");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file_of(&place, &id)), 0o600);
        let inner = place.path().join("deep/sessions");
        folder_in(&inner);
        assert_eq!(mode(&inner), 0o700);
    }
}

#[test]
fn what_was_under_way_is_told() {
    let (_place, folder) = place();
    let two = calls(&[("a", "read_file"), ("same", "shell"), ("same", "write_file")]);
    let reply = Record::Reply { message: two, counters: counted(1), detectors: Detectors::default() };
    let id =
        write(&folder, &[says("go"), reply, started("a"), finished("a", "x"), started("same"), finished("same", "y"), started("same")]);
    let recovered = folder.resume(&id).unwrap().recovered;
    assert_eq!(recovered.interrupted, ["write_file"], "by name, and only the one that did not end");
    assert!(!recovered.lost_call);

    let asked = Record::CallStarted { step: 1, reserved_tokens: 5, reserved_cost: NanoDollars::ZERO };
    let id = write(&folder, &[says("go"), asked]);
    let recovered = folder.resume(&id).unwrap().recovered;
    assert!(recovered.lost_call);
    assert!(recovered.interrupted.is_empty());
}

#[test]
fn a_session_is_found_by_its_beginning_and_by_last() {
    let (place, folder) = place();
    assert!(matches!(folder.resume("last"), Err(SessionError::Unknown { known, .. }) if known.is_empty()));
    let ids: Vec<String> = (0..20).map(|_| write(&folder, &[])).collect();
    assert!(ids.is_sorted(), "also within one millisecond: {ids:?}");
    assert_eq!(folder.resume("last").unwrap().session.id(), ids[19]);
    assert_eq!(folder.resume(&ids[3]).unwrap().session.id(), ids[3]);
    fs::copy(file_of(&place, &ids[3]), place.path().join("20010203-040506-aaaaa.jsonl")).unwrap();
    fs::copy(file_of(&place, &ids[3]), place.path().join("20010203-040506-aaaaa-2.jsonl")).unwrap();
    fs::copy(file_of(&place, &ids[3]), place.path().join("restored.jsonl")).unwrap();
    assert_eq!(folder.resume("rest").unwrap().session.id(), "restored", "a copy goes by its own name");
    assert_eq!(folder.resume("20010203-040506-aaaaa").unwrap().session.id(), "20010203-040506-aaaaa", "whole before longer");
    assert_eq!(folder.read("20010203-040506-aaaaa-").unwrap().session.id(), "20010203-040506-aaaaa-2");
    assert_eq!(folder.resume("last").unwrap().session.id(), ids[19], "a name without a time is not the last");

    match folder.resume("20").unwrap_err() {
        SessionError::Ambiguous { count, candidates, .. } => {
            assert_eq!(count, 22);
            assert_eq!(candidates[0], ids[19]);
            assert_eq!(candidates.len(), 8);
        }
        other => panic!("{other}"),
    }
    match folder.resume("2001020x").unwrap_err() {
        SessionError::Unknown { known, .. } => {
            assert_eq!(known[..2], ["20010203-040506-aaaaa-2", "20010203-040506-aaaaa"], "the nearest first");
        }
        other => panic!("{other}"),
    }
    for bad in ["", "../x", "a/b", "A", ".", "a.jsonl", "x\0", "ä", &"a".repeat(65)] {
        assert!(matches!(folder.resume(bad), Err(SessionError::BadId { .. })), "{bad:?}");
        assert!(matches!(folder.read(bad), Err(SessionError::BadId { .. })), "{bad:?}");
    }
}

#[test]
fn a_session_in_use_is_refused_and_can_be_looked_at() {
    let (_place, folder) = place();
    let mut session = folder.create(&settings()).unwrap();
    let id = session.id().to_owned();
    let refused = folder.resume(&id).unwrap_err();
    assert!(matches!(&refused, SessionError::InUse { id: used, .. } if *used == id), "{refused}");
    if cfg!(target_os = "linux") {
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    }
    session.record(says("still writing")).unwrap();
    assert_eq!(folder.read(&id).unwrap().session.messages().len(), 1);
    drop(session);
    let resumed = folder.resume(&id).unwrap();
    assert!(matches!(folder.resume(&id), Err(SessionError::InUse { .. })));
    drop(resumed);
    folder.resume(&id).unwrap();
}

#[test]
#[cfg(unix)]
fn a_program_that_is_just_being_started_does_not_keep_a_session_in_use() {
    let (place, folder) = place();
    let id = write(&folder, &[]);
    let damaged = write(&folder, &[says("a")]);
    let text = fs::read_to_string(file_of(&place, &damaged)).unwrap();
    fs::write(file_of(&place, &damaged), text.replace("message", "massage")).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let in_use = (0..2000).any(|_| {
            matches!(folder.resume(&id), Err(SessionError::InUse { .. }))
                || matches!(folder.resume(&damaged), Err(SessionError::InUse { .. }))
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!in_use);
    });
}

#[test]
fn looking_changes_nothing() {
    let (place, folder) = place();
    let id = write(&folder, &story());
    let file = file_of(&place, &id);
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 3);
    fs::write(&file, &bytes).unwrap();
    let loaded = folder.read(&id).unwrap();
    assert!(loaded.recovered.torn_bytes > 0);
    assert_eq!(contents(&loaded.session), lived(&id, &story()[..story().len() - 1]));
    let mut session = loaded.session;
    session.record(says("kept nowhere")).unwrap();
    folder.list().unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes);
}

#[test]
fn the_list_shows_the_latest_first() {
    let (place, folder) = place();
    let first = write(&folder, &story());
    let second = write(&folder, &[]);
    let long = "many words  and\n more ".repeat(50);
    let third = write(&folder, &[says(&long), started("x")]);
    fs::write(place.path().join("notes.txt"), "not a session").unwrap();
    fs::write(place.path().join("Not an id.jsonl"), "not a session").unwrap();

    let list = folder.list().unwrap();
    let ids: Vec<&str> = list.iter().map(|summary| summary.id.as_str()).collect();
    assert_eq!(ids, [&third, &second, &first]);
    assert!(list.iter().all(|summary| summary.problem.is_none() && summary.name == "books" && summary.model == "gpt-4o-mini"));
    assert_eq!(list[2].state, AgentState::Completed);
    assert_eq!((list[2].steps, list[2].total_tokens), (2, 207));
    assert_eq!(list[2].cost, NanoDollars::from_dollars(0.25).unwrap());
    assert_eq!(list[2].first_prompt, "Read a.txt and tell me");
    assert_eq!(list[2].opened_at_ms, folder.read(&first).unwrap().opened_at_ms);
    assert_eq!(list[1].state, AgentState::Running);
    assert_eq!(list[1].first_prompt, "");
    assert!(list[0].first_prompt.starts_with("many words and more many"));
    assert_eq!(list[0].first_prompt.chars().count(), 201);
}

#[test]
fn a_file_that_cannot_be_read_is_listed_with_its_problem() {
    let (place, folder) = place();
    let good = write(&folder, &story());
    let damaged = write(&folder, &story());
    let text = fs::read_to_string(file_of(&place, &damaged)).unwrap();
    fs::write(file_of(&place, &damaged), text.replace("Zeilen", "Zeiten")).unwrap();
    let never = write(&folder, &[]);
    fs::write(file_of(&place, &never), "").unwrap();

    let list = folder.list().unwrap();
    assert_eq!(list.len(), 3);
    assert!(list[0].problem.as_ref().unwrap().contains("before the first record"), "{:?}", list[0].problem);
    assert!(list[1].problem.as_ref().unwrap().contains("line 10"), "{:?}", list[1].problem);
    assert_eq!(list[1].first_prompt, "Read a.txt and tell me", "as far as it can be read");
    assert_eq!(list[1].steps, 1);
    assert_eq!(list[2].problem, None);
    assert!(matches!(folder.resume(&never), Err(SessionError::NeverBegan { .. })));

    fs::remove_file(file_of(&place, &damaged)).unwrap();
    assert_eq!(folder.resume("last").unwrap().session.id(), good, "what never began is not the last session");
}

#[test]
fn damage_in_the_middle_is_refused_and_what_comes_before_can_be_shown() {
    let (place, folder) = place();
    let story = story();
    let id = write(&folder, &story);
    let file = file_of(&place, &id);
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let refused_at = |text: String, line: u64| {
        fs::write(&file, &text).unwrap();
        let refused = folder.resume(&id).unwrap_err();
        assert!(matches!(&refused, SessionError::Damaged { line: found, .. } if *found == line), "{refused}");
        assert!(refused.to_string().contains(&format!("{}, line {line}:", file.display())), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "a refused file is left alone");
        let shown = folder.read(&id).unwrap();
        assert_eq!(contents(&shown.session), lived(&id, &story[..line as usize - 2]));
        assert_eq!(shown.damage, Some(refused.to_string()));
    };
    refused_at(text.replace("Zeilen", "Zeiten"), 10);
    refused_at([&lines[..4], &lines[5..]].concat().concat(), 5); // missing
    refused_at([&lines[..5], &lines[4..]].concat().concat(), 6); // doubled
    refused_at([&lines[..4], &[lines[5], lines[4]], &lines[6..]].concat().concat(), 5); // moved
    refused_at(text.replacen("Twelve lines.", "Twelve\nlines.", 1), 15);
    refused_at(text.replace(r#""COMPLETED""#, r#""CANCELLED""#), 16); // the last line, but whole: nobody was writing it
    refused_at([&lines[..3], &["\n"], &lines[3..]].concat().concat(), 4);

    // What the message advises works.
    fs::write(&file, lines[..9].concat()).unwrap();
    assert_eq!(contents(&folder.resume(&id).unwrap().session), lived(&id, &story[..8]));
}

#[test]
fn a_block_that_never_reached_the_disk_is_a_torn_record_at_the_end_only() {
    let (place, folder) = place();
    let story = [story(), vec![says(&"long".repeat(3000))]].concat();
    let id = write(&folder, &story);
    let file = file_of(&place, &id);
    let good = fs::read(&file).unwrap();
    let mut bytes = good.clone();
    let hole = bytes.len() - 9000;
    bytes[hole..hole + 4096].fill(0);
    fs::write(&file, &bytes).unwrap();
    let resumed = folder.resume(&id).unwrap();
    assert_eq!(contents(&resumed.session), lived(&id, &story[..story.len() - 1]));
    assert!(resumed.recovered.torn_bytes > 12_000);
    drop(resumed);

    let mut zeros_behind = good.clone();
    zeros_behind.extend([0; 3000]);
    fs::write(&file, &zeros_behind).unwrap();
    assert_eq!(folder.resume(&id).unwrap().recovered.torn_bytes, 3000);
    assert_eq!(fs::read(&file).unwrap(), good);

    bytes.extend(b"{}\n");
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(folder.resume(&id), Err(SessionError::Damaged { .. })));
}

#[test]
fn a_line_without_end_is_damage_and_not_read_into_memory() {
    let (place, folder) = place();
    let id = write(&folder, &[]);
    let file = fs::OpenOptions::new().append(true).open(file_of(&place, &id)).unwrap();
    file.set_len(65 << 20).unwrap();
    let refused = folder.resume(&id).unwrap_err();
    assert!(refused.to_string().contains("line 2: the line is longer than 64 MiB"), "{refused}");
}

#[test]
fn another_format_is_refused_with_the_version_that_wrote_it() {
    let (place, folder) = place();
    let line = |version: u32| {
        format!("{{\"checked\":\"in another way\",\"record\":\"opened\",\"version\":{version},\"runguard\":\"7.1.0\",\"else\":1}}\n")
    };
    let other = place.path().join("20300101-000000-00000.jsonl");
    fs::write(&other, line(VERSION + 1)).unwrap();
    let refused = folder.resume("last").unwrap_err();
    assert!(matches!(&refused, SessionError::Version { found, .. } if *found == VERSION + 1), "{refused}");
    assert!(refused.to_string().contains("written by RunGuard 7.1.0"), "{refused}");
    assert_eq!(folder.list().unwrap()[0].problem, Some(refused.to_string()));
    fs::write(&other, line(VERSION)).unwrap();
    assert!(matches!(folder.resume("last"), Err(SessionError::Damaged { line: 1, .. })));
}

/// A line as the format has it: the checksum is over what follows it, and begins with the one before.
fn sealed(chain: &mut u64, json: &str) -> String {
    let body = json.strip_prefix('{').unwrap();
    *chain = xxhash_rust::xxh3::xxh3_64_with_seed(body.as_bytes(), *chain);
    format!("{{\"sum\":\"{chain:016x}\",{body}\n")
}

#[test]
fn the_format_stays_what_it_is() {
    let (place, folder) = place();
    let file = place.path().join("20300101-000000-00000.jsonl");
    let opened = |settings: &str| {
        format!(r#"{{"runguard":"0.0.9","record":"opened","version":1,"id":"x","at_ms":5,"name":"n","model":"m","settings":{settings}}}"#)
    };
    let good = opened(r#"{"provider":{"kind":"openai","model":"m"}}"#);
    let write = |lines: &[&str]| {
        let mut chain = 0;
        fs::write(&file, lines.iter().map(|line| sealed(&mut chain, line)).collect::<String>()).unwrap();
    };
    write(&[&good, r#"{"record":"tool_started","id":"a"}"#]);
    let loaded = folder.resume("last").unwrap();
    assert_eq!((loaded.opened_at_ms, loaded.session.id()), (5, "20300101-000000-00000"));
    drop(loaded);

    // Whole, so nobody was writing it when the run ended: not torn, also at the end.
    write(&[&good, r#"{"record":"something_else"}"#]);
    let refused = folder.resume("last").unwrap_err().to_string();
    assert!(refused.contains("line 2: the record is whole but not understood"), "{refused}");
    assert!(refused.contains("keep its first 1 lines"), "{refused}");
    write(&[r#"{"record":"tool_started","id":"a"}"#, &good]);
    let refused = folder.resume("last").unwrap_err().to_string();
    assert!(refused.contains("line 1: the first record is not `opened`. Nothing of it can be read"), "{refused}");
    assert_eq!(folder.list().unwrap()[0].problem, Some(refused));
    write(&[&opened(r#"{"provider":{"kind":"openai","model":"m"},"unheard_of":1}"#)]);
    let refused = folder.resume("last").unwrap_err().to_string();
    assert!(refused.contains("written by RunGuard 0.0.9") && refused.contains("unheard_of"), "{refused}");
}

#[test]
fn power_durability_reads_back_the_same() {
    let place = tempfile::tempdir().unwrap();
    let settings_of_folder = SessionSettings { folder: place.path().join("one/two"), durability: Durability::Power };
    let folder = SessionFolder::open(&settings_of_folder).unwrap();
    let id = write(&folder, &story());
    assert_eq!(contents(&folder.resume(&id).unwrap().session), lived(&id, &story()));
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_with_its_name() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    let problem = SessionFolder::open(&SessionSettings { folder: place.path().join("file/x"), ..SessionSettings::default() }).unwrap_err();
    assert!(problem.to_string().contains("file/x"), "{problem}");
}

/// A session in a file, with what it must hold after each of its lines.
struct Written {
    place: TempDir,
    folder: SessionFolder,
    id: String,
    good: Vec<u8>,
    records: Vec<Record>,
    lived: Vec<String>,
}

impl Written {
    fn new(records: Vec<Record>) -> Self {
        let (place, folder) = place();
        let id = write(&folder, &records);
        let good = fs::read(file_of(&place, &id)).unwrap();
        let lived = (0..=records.len()).map(|count| lived(&id, &records[..count])).collect();
        Self { place, folder, id, good, records, lived }
    }

    /// Cuts the file here, and resumes: exactly the whole records are there, and it goes on.
    fn check_cut(&self, cut: usize) {
        let Self { folder, id, .. } = self;
        let left = &self.good[..cut];
        fs::write(file_of(&self.place, id), left).unwrap();
        let Some(whole) = line_ends(left).checked_sub(1) else {
            assert!(matches!(folder.resume(id), Err(SessionError::NeverBegan { .. })), "cut at {cut}");
            return;
        };
        let mut loaded = folder.resume(id).unwrap();
        assert_eq!(contents(&loaded.session), self.lived[whole], "cut at {cut}");
        let torn = cut - left.iter().rposition(|byte| *byte == b'\n').unwrap() - 1;
        assert_eq!(loaded.recovered.torn_bytes, torn as u64, "cut at {cut}");
        loaded.session.record(says("on")).unwrap();
        drop(loaded);
        let on = [&self.records[..whole], &[says("on")]].concat();
        assert_eq!(contents(&folder.resume(id).unwrap().session), lived(id, &on), "cut at {cut}");
    }

    /// Changes one byte, and resumes: refused, or the last record is gone and that is said.
    fn check_change(&self, at: usize, byte: u8) {
        let Self { folder, id, good, .. } = self;
        let mut bytes = good.clone();
        bytes[at] = byte;
        fs::write(file_of(&self.place, id), &bytes).unwrap();
        let before = line_ends(&good[..at]).checked_sub(1);
        if let Ok(shown) = folder.read(id) {
            let before = before.unwrap_or_else(|| panic!("byte {at} is {byte}: the first line was changed and read"));
            assert_eq!(contents(&shown.session), self.lived[before], "byte {at} is {byte}");
            assert!(shown.damage.is_some() || shown.recovered.torn_bytes > 0, "byte {at} is {byte}: nobody is told");
        }
        match folder.resume(id) {
            Ok(loaded) => {
                assert_eq!(at, good.len() - 1, "byte {at} is {byte}: only without its end the last line looks torn");
                assert_eq!(contents(&loaded.session), self.lived[self.records.len() - 1]);
                assert!(loaded.recovered.torn_bytes > 0);
            }
            Err(SessionError::Damaged { .. }) => {}
            // A change in the version, and at the end of the only line.
            Err(SessionError::Version { .. } | SessionError::NeverBegan { .. }) => assert_eq!(before, None, "byte {at} is {byte}"),
            Err(other) => panic!("byte {at} is {byte}: {other}"),
        }
    }
}

#[test]
fn a_file_cut_at_any_byte_gives_every_whole_record() {
    let written = Written::new(story());
    for cut in 0..=written.good.len() {
        written.check_cut(cut);
    }
}

#[test]
fn a_changed_byte_is_never_taken_for_the_truth() {
    let written = Written::new(story());
    for (at, byte) in written.good.iter().enumerate() {
        // A near miss, the other case, an end of line, nothing.
        for (turn, changed) in [byte ^ 1, byte ^ 0x20, b'\n', 0].into_iter().enumerate() {
            // Where lines begin and end every change; elsewhere one of them.
            let is_edge = *byte == b'\n' || written.good[at.saturating_sub(26)..at].contains(&b'\n');
            if changed != *byte && (is_edge || at % 4 == turn) {
                written.check_change(at, changed);
            }
        }
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    let id = || prop::sample::select(vec!["a", "b", "same", ""]).prop_map(str::to_owned);
    let text = || prop_oneof!["[a-z \\n\"\\\\{}]{0,40}", "\\PC{0,20}", Just("\0\u{1}\u{2028}\u{10ffff}".to_owned())];
    let counters = || {
        (any::<u32>(), any::<u64>(), 0..i64::MAX).prop_map(|(steps, input_tokens, cost)| Counters {
            steps,
            input_tokens,
            cost: NanoDollars::try_from(cost).unwrap(),
            ..Counters::default()
        })
    };
    let reply = prop::collection::vec((id(), text()), 0..4).prop_map(|calls| Message {
        role: Role::Assistant,
        content: calls.into_iter().map(|(id, text)| Block::ToolCall(ToolCall { id, name: "tool".to_owned(), arguments: text })).collect(),
        reason: None,
    });
    prop_oneof![
        (text(), counters()).prop_map(|(text, counters)| Record::Message {
            message: Message::user(text),
            counters,
            detectors: Detectors::default()
        }),
        (0..5_usize, prop_oneof![0..4_usize, Just(usize::MAX)], prop::option::of(text())).prop_map(|(from, count, marker)| {
            Record::Trimmed { from, count, marker: marker.map(|text| Message::internal(Tag::ContextMarker, text)), left_out: 2 }
        }),
        (any::<u32>(), any::<u64>()).prop_map(|(step, reserved_tokens)| Record::CallStarted {
            step,
            reserved_tokens,
            reserved_cost: NanoDollars::ZERO
        }),
        counters().prop_map(|counters| Record::CallFailed { counters }),
        (reply, counters()).prop_map(|(message, counters)| Record::Reply { message, counters, detectors: Detectors::default() }),
        id().prop_map(|id| Record::ToolStarted { id }),
        (id(), text(), any::<bool>(), counters()).prop_map(|(id, text, is_error, counters)| Record::ToolFinished {
            result: ToolResult { id, name: "tool".to_owned(), text, is_error },
            counters
        }),
        counters().prop_map(|counters| Record::Results { counters, detectors: Detectors::default() }),
        counters().prop_map(|counters| Record::State { state: AgentState::MaxSteps, stop: Some(Stop::MaxSteps { limit: 3 }), counters }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_records_survive_any_cut_and_any_change(
        records in prop::collection::vec(any_record(), 0..24),
        cuts in prop::collection::vec(any::<Index>(), 6),
        flips in prop::collection::vec((any::<Index>(), 1..=255_u8), 6),
    ) {
        let written = Written::new(records);
        let bytes = written.good.len();
        prop_assert_eq!(line_ends(&written.good), written.records.len() + 1);
        written.check_cut(bytes);
        for cut in cuts {
            written.check_cut(cut.index(bytes + 1));
        }
        for (at, mask) in flips {
            let at = at.index(bytes);
            written.check_change(at, written.good[at] ^ mask);
        }
    }
}

/// Not a test: the process that the test below kills. It numbers messages, and says each number once it is recorded.
#[test]
#[ignore = "started, and killed, by another test"]
fn the_writer_to_be_killed() {
    let Ok(place) = std::env::var(FOLDER) else { return };
    let folder = folder_in(Path::new(&place));
    let mut session = folder.resume("last").unwrap().session;
    println!();
    for number in session.messages().len().. {
        // Longer than a page at times, so that the kill also meets a write that takes a while.
        session.record(says(&format!("{number} {}", "x".repeat(number * 997 % 20_000)))).unwrap();
        // In one piece, so that the reader never sees half a line as a whole one.
        std::io::stdout().write_all(format!("recorded {number}\n").as_bytes()).unwrap();
    }
}

fn again(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("sessions::{test}"), "--exact", "--ignored", "--nocapture"]).env(FOLDER, folder).stdout(Stdio::piped());
    command
}

fn number_of(message: &Message) -> usize {
    message.text().split(' ').next().unwrap().parse().unwrap()
}

/// What the process says, one word a line; it is killed once it has said enough.
fn recorded(mut process: Child, enough: usize) -> Vec<usize> {
    let mut recorded = Vec::new();
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        if let Some(number) = line.unwrap().strip_prefix("recorded ") {
            recorded.push(number.parse().unwrap());
        }
        if recorded.len() == enough {
            process.kill().unwrap();
        }
    }
    process.wait().unwrap();
    recorded
}

#[test]
fn a_killed_run_keeps_everything_it_was_told_is_safe() {
    let (place, folder) = place();
    let id = write(&folder, &[]);
    let mut total = 0;
    for round in 0..20_usize {
        let enough = 1 + round * round * 31 % 257;
        let recorded = recorded(again("the_writer_to_be_killed", place.path()).spawn().unwrap(), enough);
        assert!(recorded.len() >= enough, "round {round}: the process ended by itself");
        let mut loaded = folder.resume(&id).unwrap();
        let numbers: Vec<usize> = loaded.session.messages().iter().map(number_of).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len()), "round {round}: each number once, in order");
        assert!(numbers.len() > *recorded.last().unwrap(), "round {round}: {recorded:?} was said to be safe, {} are there", numbers.len());
        assert!(numbers.len() > total, "round {round}: nothing came of it");
        total = numbers.len() + 1;
        loaded.session.record(says(&format!("{}", numbers.len()))).unwrap();
    }
}

/// Not a test: the process whose files may not grow beyond a bound. It goes on after the first refusal with what still fits.
#[test]
#[ignore = "started by another test"]
fn the_writer_on_a_full_disk() {
    let Ok(place) = std::env::var(FOLDER) else { return };
    let folder = folder_in(Path::new(&place));
    let mut session = folder.create(&settings()).unwrap();
    println!();
    let number = 5;
    for earlier in 0..number {
        session.record(says(&earlier.to_string())).unwrap();
    }
    let problem = session.record(says(&"x".repeat(100_000))).unwrap_err();
    assert_eq!(problem.kind(), std::io::ErrorKind::FileTooLarge, "{problem}");
    let in_file = |folder: &SessionFolder| folder.read("last").unwrap();
    assert_eq!(session.messages().len(), number, "what could not be written has not happened");
    assert_eq!(in_file(&folder).recovered.torn_bytes, 0, "half a record was taken back");
    assert_eq!(in_file(&folder).session.messages().len(), number);
    session.record(says(&number.to_string())).expect("a short record still fits");
    assert_eq!(contents(&in_file(&folder).session), contents(&session));
    println!("recorded {number}");
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_whole_records_and_the_session_goes_on_when_there_is_room() {
    let (place, folder) = place();
    let inner = again("the_writer_on_a_full_disk", place.path());
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let mut shell = Command::new("sh");
    // 64 blocks: 32 or 64 KiB, as the shell counts.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]).args(words).env(FOLDER, place.path()).stdout(Stdio::piped());
    let recorded = recorded(shell.spawn().unwrap(), usize::MAX);
    assert_eq!(recorded.len(), 1, "the process failed");
    let mut loaded = folder.resume("last").unwrap();
    assert_eq!(loaded.recovered.torn_bytes, 0);
    assert!(loaded.session.messages().iter().map(number_of).eq(0..=recorded[0]));
    loaded.session.record(says("there is room")).unwrap();
}

/// Without room for the first record there is no session, and no file.
#[test]
#[ignore = "started by another test"]
fn the_beginner_on_a_full_disk() {
    let Ok(place) = std::env::var(FOLDER) else { return };
    let problem = folder_in(Path::new(&place)).create(&settings()).unwrap_err();
    assert!(problem.to_string().contains("begin a session"), "{problem}");
    println!("\nrecorded 1");
}

#[test]
#[cfg(unix)]
fn a_session_that_could_not_begin_leaves_no_file() {
    let (place, _folder) = place();
    let inner = again("the_beginner_on_a_full_disk", place.path());
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]).args(words).env(FOLDER, place.path()).stdout(Stdio::piped());
    assert_eq!(recorded(shell.spawn().unwrap(), usize::MAX), [1]);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

const STEPS: u32 = 10_000;
const WINDOW: usize = 40;

/// Not a test: the process whose memory is looked at.
#[test]
#[ignore = "started by another test"]
fn the_reader_of_a_long_session() {
    let Ok(place) = std::env::var(FOLDER) else { return };
    let most_kib = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim_end_matches("kB").trim().parse::<usize>().unwrap()
    };
    let before = most_kib();
    let loaded = folder_in(Path::new(&place)).resume("last").unwrap();
    assert!(loaded.session.messages().len() <= WINDOW);
    assert_eq!(loaded.session.counters().steps, STEPS);
    println!("\nrecorded {}", most_kib() - before);
}

#[test]
#[cfg(target_os = "linux")]
fn reading_a_long_session_takes_as_much_memory_as_its_window() {
    let (place, folder) = place();
    let mut session = folder.create(&settings()).unwrap();
    for step in 1..=STEPS {
        session.record(Record::CallStarted { step, reserved_tokens: 1, reserved_cost: NanoDollars::ZERO }).unwrap();
        session
            .record(Record::Reply {
                message: Message::assistant("y".repeat(4000)),
                counters: counted(step),
                detectors: Detectors::default(),
            })
            .unwrap();
        if session.messages().len() > WINDOW {
            session.record(Record::Trimmed { from: 1, count: WINDOW / 2, marker: None, left_out: 1 }).unwrap();
        }
    }
    drop(session);
    let recorded = recorded(again("the_reader_of_a_long_session", place.path()).spawn().unwrap(), usize::MAX);
    assert_eq!(recorded.len(), 1, "the process failed");
    // Pages of the program itself count too.
    assert!(recorded[0] < 20 * 1024, "the file has 42 MB, reading it took {} KiB", recorded[0]);
}

#[test]
fn two_who_begin_at_once_get_two_sessions() {
    let (_place, folder) = place();
    let ids: Vec<Vec<String>> = std::thread::scope(|scope| {
        let begin = || {
            // Somebody looks for the last session all the time, and must not get one that is just being made.
            drop(folder.resume("last"));
            folder.create(&settings()).unwrap().id().to_owned()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(move || (0..50).map(|_| begin()).collect())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut ids = ids.concat();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 400);
    let list = folder.list().unwrap();
    assert_eq!(list.len(), 400);
    assert!(list.iter().all(|summary| summary.problem.is_none()));
}
