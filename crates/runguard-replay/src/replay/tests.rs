use super::*;
use crate::evaluate::{Progress, Recorded};
use crate::format::Format;
use crate::labels::Labels;
use crate::packed::tests::{any_run, pack};
use crate::rules::{Caps, Presets};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use runguard_core::money::NanoDollars;
use runguard_core::{Span, Timestamp};
use runguard_guards::policy::Tree;
use std::collections::BTreeMap;

const BY: [By; 4] = By::ALL;

fn guards(caps: Caps) -> Guards {
    Guards::new(Presets::default(), &Tree::new(), &Watched::ALL, caps).unwrap()
}

fn caps() -> Caps {
    Caps { steps: Some(30), tokens: Some(60_000), usd: NanoDollars::parse("1").ok(), time: Some(Span::from_seconds(500)) }
}

fn report(files: &[PathBuf], threads: usize, guards: &Guards, pack: Option<&Path>) -> Summary {
    let labels = Labels::default();
    let reading = Reading { recorded: Recorded::of(files, &labels), detail: guards.detail(), threads, progress: &Progress::default() };
    replay(&reading, &Ask { guards, against: &Other::ALL, by: &BY, pack }).unwrap()
}

fn packed(folder: &Path, runs: &[Run]) -> PathBuf {
    let path = folder.join("runs.packed");
    pack(&path, runs);
    path
}

/// Where a run ends, worked out the long way: every prefix anew, the rules by their words.
fn naive_end(guards: &Guards, run: &Run, caps: &Caps) -> Option<(usize, String)> {
    for at in 0..run.steps.len() {
        let prefix = Run { steps: run.steps[..=at].to_vec(), ..run.clone() };
        if let Some((_, cause)) = guards.watch().run(&prefix).ended {
            return Some((at, cause.code().to_owned()));
        }
        let sum = |of: &dyn Fn(&crate::trace::Step) -> f64| prefix.steps.iter().map(of).sum::<f64>();
        let times: Vec<i64> = prefix.steps.iter().filter_map(|step| step.at_millis).collect();
        let passed = [
            (caps.steps.is_some_and(|most| prefix.steps.len() as u64 > most), "budget.steps"),
            (caps.tokens.is_some_and(|most| sum(&|step| step.tokens as f64) > most as f64), "budget.tokens"),
            (caps.usd.is_some_and(|most| sum(&|step| step.dollars) > most.as_dollars() + 1e-9), "budget.dollars"),
            (
                caps.time.is_some_and(|most| {
                    run.steps[at].at_millis.is_some_and(|now| {
                        Timestamp::from_millis(now).millis_since(Timestamp::from_millis(times[0])) > most.as_millis() as i64
                    })
                }),
                "budget.minutes",
            ),
        ];
        if let Some((_, code)) = passed.into_iter().find(|(passed, _)| *passed) {
            return Some((at, code.to_owned()));
        }
    }
    None
}

#[derive(Debug, Default, PartialEq)]
struct Naive {
    runs: u64,
    ended: u64,
    steps: u64,
    tokens: u64,
    cents: i64,
}

fn cents(dollars: f64) -> i64 {
    (dollars * 100.0).round() as i64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_sums_are_those_of_a_slow_recomputation(runs in proptest::collection::vec(any_run(), 1..12)) {
        let folder = tempfile::tempdir().unwrap();
        let caps = caps();
        let summary = report(&[packed(folder.path(), &runs)], 1, &guards(caps), None);
        let uncapped = guards(Caps::default());
        let (mut by_end, mut rules, mut sources) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for run in &runs {
            let end = naive_end(&uncapped, run, &caps);
            let naive: &mut Naive = by_end.entry(run.success).or_default();
            naive.runs += 1;
            let source: &mut u64 = sources.entry(run.source.clone()).or_default();
            *source += u64::from(end.is_some());
            if let Some((at, code)) = end {
                let after = if code.starts_with("budget.") { &run.steps[at + 1..] } else { run.spared(at) };
                naive.ended += 1;
                naive.steps += after.len() as u64;
                naive.tokens += after.iter().map(|step| step.tokens).sum::<u64>();
                naive.cents += cents(after.iter().map(|step| step.dollars).sum());
                rules.entry(code).or_insert_with(Vec::new).push((run.success, at as u64 + 1));
            }
        }
        let sums = &summary.total.sums;
        let good = Naive { runs: sums.successful, ended: sums.false_stops, steps: sums.lost_steps, tokens: sums.lost_tokens, cents: cents(sums.lost_dollars) };
        let bad = Naive { runs: sums.failed, ended: sums.stopped, steps: sums.saved_steps, tokens: sums.saved_tokens, cents: cents(sums.saved_dollars) };
        prop_assert_eq!(&good, by_end.entry(Some(true)).or_default());
        prop_assert_eq!(&bad, by_end.entry(Some(false)).or_default());
        let unknown = by_end.entry(None).or_default();
        prop_assert_eq!((sums.unknown, sums.unknown_stopped), (unknown.runs, unknown.ended));

        prop_assert_eq!(summary.rules.len(), rules.len());
        for rule in &summary.rules {
            let ended = &rules[rule.rule];
            let of = |success: Option<bool>| ended.iter().filter(|(end, _)| *end == success).count() as u64;
            prop_assert_eq!((rule.successful, rule.failed, rule.unknown), (of(Some(true)), of(Some(false)), of(None)));
            let mut at: Vec<u64> = ended.iter().map(|(_, at)| *at).collect();
            at.sort_unstable();
            prop_assert_eq!(rule.at.median, at[at.len().div_ceil(2) - 1]);
            prop_assert_eq!(rule.at.largest, at[at.len() - 1]);
            prop_assert!(rule.examples.iter().all(|example| at.contains(&example.step)));
        }
        let total = |of: fn(&RuleFigures) -> u64| summary.rules.iter().map(of).sum::<u64>();
        prop_assert_eq!(total(|rule| rule.saved_steps), sums.saved_steps, "the rules add up");
        prop_assert_eq!(total(|rule| rule.lost_tokens), sums.lost_tokens);

        let by_source = &summary.groups[0];
        prop_assert_eq!(by_source.groups.len(), sources.len());
        for group in &by_source.groups {
            let sums = group.figures.sums;
            prop_assert_eq!(sums.false_stops + sums.stopped + sums.unknown_stopped, sources[&group.name]);
        }
        prop_assert_eq!(summary.runs, runs.len() as u64);
        prop_assert_eq!(summary.steps, runs.iter().map(|run| run.steps.len() as u64).sum::<u64>());
    }
}

fn many_runs(count: usize) -> Vec<Run> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    (0..count).map(|_| any_run().new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn threads_say_what_one_says_and_a_packed_file_what_its_source_says() {
    let folder = tempfile::tempdir().unwrap();
    let source = packed(folder.path(), &many_runs(2500));
    let guards = guards(caps());
    let again = folder.path().join("again.packed");
    let one = report(std::slice::from_ref(&source), 1, &guards, None);
    let many = report(std::slice::from_ref(&source), 4, &guards, Some(&again));
    assert_eq!(one, many);
    assert!(one.rules.len() > 6 && one.rules.iter().all(|rule| !rule.examples.is_empty()), "{:?}", one.rules);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&source).unwrap(), "packed again, on four threads, it is the same file");
    let twice = report(&[source.clone(), again], 3, &guards, None);
    assert_eq!((twice.runs, twice.files[0].runs, twice.files[1].runs), (5000, 2500, 2500));
}

const LINE: &str = r#"{"run_id":"r","source":"s","task":"t","success":false,"steps":[STEPS]}"#;
const STEP: &str =
    r#"{"kind":"call","tool":"sh","args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false,"cost_usd":0.1}"#;

#[test]
fn lines_and_what_is_packed_of_them_give_one_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.jsonl");
    let line = |steps: usize| LINE.replace("STEPS", &vec![STEP; steps].join(","));
    let text: String = (0..300).map(|index| if index == 7 { "broken\n".to_owned() } else { line(index % 9) + "\n" }).collect();
    std::fs::write(&path, text).unwrap();
    let out = folder.path().join("out.packed");
    let guards = guards(Caps::default());
    let source = report(std::slice::from_ref(&path), 2, &guards, Some(&out));
    assert_eq!((source.runs, source.broken_lines, source.broken[0].line), (299, 1, 8));
    assert_eq!((source.files[0].runs, source.files[0].broken_lines), (299, 1));
    let mut from_packed = report(&[out], 2, &guards, None);
    let example = &from_packed.rules[0].examples[0];
    assert_eq!((Path::new(&example.file), example.line), (path.as_path(), 4), "an example leads to where its texts are");
    assert_eq!(from_packed.broken_lines, 0);
    (from_packed.files, from_packed.broken_lines, from_packed.broken) = (source.files.clone(), 1, source.broken.clone());
    assert_eq!(from_packed, source);
}

#[test]
fn a_run_that_anything_ended_did_not_get_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.jsonl");
    let steered = |steps: &[String], watched: &[Watched], caps| {
        std::fs::write(&path, LINE.replace("STEPS", &steps.join(","))).unwrap();
        let guards = Guards::new(Presets::default(), &Tree::new(), watched, caps).unwrap();
        let summary = report(std::slice::from_ref(&path), 1, &guards, None);
        let steered = summary.nudges.iter().find(|nudge| nudge.rule == "stall.steer").unwrap().failed;
        (summary.rules.first().map(|rule| rule.rule), steered.runs, steered.recovered)
    };
    let same = |count: usize| vec![STEP.to_owned(); count];
    assert_eq!(steered(&same(8), &Watched::ALL, Caps::default()), (Some("loop.cycle"), 1, 0), "another guard");
    let other = |index: usize| STEP.replace("\"1\"", &format!("\"a{index}\"")).replace("\"2\"", &format!("\"b{index}\""));
    let got_going = [same(3), (0..5).map(other).collect()].concat();
    let capped = Caps { steps: Some(5), ..Caps::default() };
    assert_eq!(steered(&got_going, &[Watched::Stall], capped), (Some("budget.steps"), 1, 0), "a budget");
    assert_eq!(steered(&got_going, &[Watched::Stall], Caps::default()), (None, 1, 1), "nothing");
}

#[test]
fn a_stop_that_nobody_was_told_of_before_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.jsonl");
    std::fs::write(&path, LINE.replace("STEPS", &[STEP; 8].join(","))).unwrap();
    let ended = |settings: serde_json::Value, watched: Watched| {
        let guards = Guards::new(Presets::default(), settings.as_object().unwrap(), &[watched], Caps::default()).unwrap();
        let summary = report(std::slice::from_ref(&path), 1, &guards, None);
        let note = summary.notes.iter().find(|note| note.contains("without a nudge")).cloned().unwrap_or_default();
        (summary.rules[0].rule, summary.rules[0].without_nudge, note)
    };
    let told = |count: u64| format!("{count} of the 1 stops of the stall detector came without a nudge before");
    assert_eq!(ended(serde_json::json!({}), Watched::Stall), ("stall.identical", 0, told(0)));
    let silent = serde_json::json!({"stall": {"identical": {"steer": 0}, "cycle": {"steer": 0}}});
    assert_eq!(ended(silent, Watched::Stall), ("stall.identical", 1, told(1)));
    assert_eq!(ended(serde_json::json!({}), Watched::Loop), ("loop.cycle", 1, String::new()), "the loop detector does not speak");
}

#[test]
fn a_damaged_packed_file_is_told_of_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = packed(folder.path(), &many_runs(50));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let summary = report(std::slice::from_ref(&path), 2, &guards(Caps::default()), None);
    assert_eq!((summary.runs, summary.broken_lines, summary.broken[0].line), (49, 1, 1));
    assert!(summary.broken[0].to_string().contains("runs.packed:1: run 1 at byte 8 is damaged"), "{}", summary.broken[0]);
    let missing = report(&[folder.path().join("none")], 1, &guards(Caps::default()), None);
    assert_eq!((missing.runs, missing.broken_lines), (0, 1));
}

#[test]
fn what_is_cancelled_says_so_and_packs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = [packed(folder.path(), &many_runs(20))];
    let (guards, progress, out) = (guards(Caps::default()), Progress::default(), folder.path().join("out.packed"));
    progress.cancel();
    let labels = Labels::default();
    let reading = Reading { recorded: Recorded::of(&files, &labels), detail: Detail::FINGERPRINTS, threads: 2, progress: &progress };
    let summary = replay(&reading, &Ask { guards: &guards, against: &[], by: &BY, pack: Some(&out) }).unwrap();
    assert!(!summary.finished && !out.exists() && summary.runs == 0);
    assert!(summary.notes.iter().any(|note| note.contains("packed file was not written")), "{:?}", summary.notes);
}

#[test]
fn progress_reaches_the_end_of_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = [packed(folder.path(), &many_runs(500))];
    let (guards, progress) = (guards(Caps::default()), Progress::default());
    let labels = Labels::default();
    let reading = Reading { recorded: Recorded::of(&files, &labels), detail: Detail::FINGERPRINTS, threads: 3, progress: &progress };
    let summary = replay(&reading, &Ask { guards: &guards, against: &[], by: &[], pack: None }).unwrap();
    assert_eq!(progress.bytes(), std::fs::metadata(&files[0]).unwrap().len());
    assert_eq!((progress.runs(), progress.steps()), (summary.runs, summary.steps));
}

#[test]
fn a_reader_is_told_what_the_figures_cannot_say() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = many_runs(1).remove(0);
    run.success = None;
    run.steps.iter_mut().for_each(|step| (step.tokens, step.dollars, step.at_millis) = (0, 0.0, None));
    let summary = report(&[packed(folder.path(), &[run])], 1, &guards(caps()), None);
    for says in ["no limit of time", "no limit of tokens", "no limit of dollars", "no word on success", "tool_call:"] {
        assert!(summary.notes.iter().any(|note| note.contains(says)), "{says}: {:?}", summary.notes);
    }
}

/// A tar archive of a file with runs, one a line: from the second line on it looks like that file.
fn archive_of_runs() -> Vec<u8> {
    let mut archive = vec![0; 512];
    archive[..7].copy_from_slice(b"a.jsonl");
    archive[257..262].copy_from_slice(b"ustar");
    for id in 0..5 {
        let run = format!(r#"{{"run_id":"{id}","source":"s","task":"t","success":false,"steps":[]}}"#);
        archive.extend(run.bytes().chain([b'\n']));
    }
    archive.resize(1024, 0);
    archive
}

#[test]
fn archives_in_a_folder_are_told_and_nothing_else_is_held_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    packed(folder.path(), &many_runs(3));
    std::fs::rename(path("runs.packed"), path("a.runs")).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &archive_of_runs()).unwrap();
    std::fs::write(path("b.tar.gz"), gzip.finish().unwrap()).unwrap();
    std::fs::write(path("c.parquet"), b"PAR1....").unwrap();
    std::fs::write(path("d.json"), b"{\"name\":\"package\"}").unwrap();
    std::fs::write(path("e.zip"), b"not what it is called").unwrap();
    std::fs::write(path("f.png"), b"\x89PNG").unwrap();
    let given = [folder.path().to_owned()];
    let files = files_of(&given).unwrap();
    for (threads, format) in [(1, None), (3, None), (1, Some(Format::Packed))] {
        let labels = Labels::default();
        let guards = guards(caps());
        // With a format that is named, what is none of that is complained about.
        let files: Vec<PathBuf> =
            files.iter().filter(|file| format.is_none() || !file.ends_with("d.json") && !file.ends_with("e.zip")).cloned().collect();
        let recorded = Recorded { given: &given, format, ..Recorded::of(&files, &labels) };
        let reading = Reading { recorded, detail: guards.detail(), threads, progress: &Progress::default() };
        let summary = replay(&reading, &Ask { guards: &guards, against: &[], by: &BY, pack: None }).unwrap();
        let left_alone = if format.is_none() { 4 } else { 2 };
        assert_eq!((summary.runs, summary.broken_lines, summary.files_left_alone), (3, 0, left_alone), "{:?}", summary.broken);
        let told = |of: &str| summary.notes.iter().find(|note| note.contains("these folders") && note.contains(of)).cloned();
        let archive = told("b.tar.gz is a tar archive: unpack it (tar xf) and read what comes of it");
        assert!(archive.as_ref().is_some_and(|note| note.starts_with("2 files in these folders were not read; ")), "{:?}", summary.notes);
        let unknown = told("d.json");
        assert!(
            format.is_some() || unknown.as_ref().is_some_and(|note| note.starts_with("2 files in these folders hold no runs")),
            "{:?}",
            summary.notes
        );
    }
    let named = [path("c.parquet")];
    let summary = report(&named, 1, &guards(caps()), None);
    let problem = summary.broken.first().map(|broken| broken.problem.clone()).unwrap_or_default();
    assert!(problem.ends_with("c.parquet is a Parquet table: write it as lines of JSON and read what comes of it"), "{problem}");
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_links_in_a_circle_hold_nothing_up_and_count_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("sub")).unwrap();
    std::fs::write(path("sub/a.jsonl"), "").unwrap();
    std::os::unix::fs::symlink("..", path("sub/up")).unwrap();
    std::os::unix::fs::symlink("sub", path("z")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("zero.jsonl")).unwrap();
    std::os::unix::fs::symlink("nowhere.jsonl", path("gone.jsonl")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path("pipe.jsonl")).status().unwrap().success());
    assert_eq!(files_of(&[folder.path().to_owned()]).unwrap(), [path("gone.jsonl"), path("sub/a.jsonl")]);
}

/// A pipe that nobody writes to waits to be opened already; one that is silent waits in the middle of a line.
#[cfg(unix)]
#[test]
fn a_pipe_that_says_nothing_is_waited_for_until_it_is_cancelled() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let lines = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/traces.jsonl")).unwrap();
    let guards = guards(caps());
    let cancelled_after = |millis: u64, says: &[u8], format: Option<Format>, threads: usize| {
        let pipe = folder.path().join(format!("{millis} {} {format:?} {threads}", says.len()));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (labels, progress, files) = (Labels::default(), Progress::default(), [pipe]);
        let recorded = Recorded { format, ..Recorded::of(&files, &labels) };
        let reading = Reading { recorded, detail: guards.detail(), threads, progress: &progress };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Held open until it is over, as by a program that is busy with something else.
                let mut held = (!says.is_empty()).then(|| std::fs::OpenOptions::new().write(true).open(&files[0]).unwrap());
                if let Some(held) = &mut held {
                    held.write_all(&[says, b"{\"run_id\":\"half"].concat()).unwrap();
                }
                std::thread::sleep(std::time::Duration::from_millis(millis));
                progress.cancel();
                std::thread::sleep(std::time::Duration::from_millis(300));
            });
            let summary = replay(&reading, &Ask { guards: &guards, against: &[], by: &BY, pack: None }).unwrap();
            assert_eq!((summary.finished, summary.broken_lines), (false, 0), "{format:?} {:?}", summary.broken);
            summary.runs
        })
    };
    for threads in [1, 3] {
        for format in [None, Some(Format::Traces), Some(Format::Packed), Some(Format::OpenAi)] {
            assert_eq!(cancelled_after(200, b"", format, threads), 0);
        }
        // On a busy machine it may take a while until what was said is read, from its beginning.
        let is_read = |format| [300, 3_000, 30_000].into_iter().any(|millis| cancelled_after(millis, &lines, format, threads) == 3);
        assert!(is_read(None) && is_read(Some(Format::Traces)));
    }
}

#[test]
fn what_sub_agents_did_is_told_with_the_project_of_their_session() {
    let of = |file: &str| {
        let run = Run { place: crate::trace::ReadAt { file: Path::new(file).into(), line: 1 }, ..many_runs(1).remove(0) };
        By::Folder.of(&run).to_owned()
    };
    assert_eq!((of("p/-home-u-x/s.jsonl"), of("p/-home-u-x/s/subagents/agent-q.jsonl")), ("-home-u-x".into(), "-home-u-x".into()));
}

#[test]
fn files_of_folders_and_of_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let error = files_of(&[folder.path().to_owned()]).unwrap_err().to_string();
    assert!(error.contains("nothing in this folder looks like recorded runs"), "{error}");
    std::fs::write(folder.path().join("a.jsonl"), "").unwrap();
    assert_eq!(files_of(&[folder.path().to_owned()]).unwrap(), [folder.path().join("a.jsonl")]);
    std::fs::write(folder.path().join("runguard.db"), b"SQLite format 3\0").unwrap();
    assert_eq!(files_of(&[folder.path().to_owned()]).unwrap(), [folder.path()], "a data folder is one log");
    assert!(files_of(&["missing".into()]).unwrap_err().to_string().starts_with("missing: "));
}
