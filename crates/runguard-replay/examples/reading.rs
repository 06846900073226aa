//! How fast recorded runs are read on one core: `reading [--json FILE] PATH…`, files or folders; or `RUNGUARD_TRACES`.
//!
//! Next to it, of the same bytes in memory: how fast they are looked through (line ends are counted), read past by `serde_json`
//! (`IgnoredAny`), and made a `serde_json::Value` of. What is read is then replayed as well, with the detectors on: the
//! difference is theirs. Time is the thread's own on Linux, so that a busy machine measures the same; each figure is the best
//! of some rounds.

use runguard_guards::policy::Tree;
use runguard_replay::evaluate::{Progress, Reading, Recorded};
use runguard_replay::format::{self, Format};
use runguard_replay::labels::Labels;
use runguard_replay::replay::{Ask, files_of, replay};
use runguard_replay::rules::{Caps, Guards, Presets, Watched};
use runguard_replay::trace::Detail;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs};

// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 3;
/// So long a round takes at least.
const SECONDS: f64 = 0.5;

/// Seconds that this thread has computed; elsewhere, that have passed.
fn seconds(start: Instant) -> f64 {
    let on_cpu = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = on_cpu.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    nanos.map_or_else(|| start.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

/// How often a second something can be done.
fn rate<T>(mut action: impl FnMut() -> Result<T, Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let before = seconds(start);
        let mut times = 0.0;
        while seconds(start) - before < SECONDS {
            black_box(action()?);
            times += 1.0;
        }
        best = best.max(times / (seconds(start) - before));
    }
    Ok(best)
}

/// The files that are read for a path: itself, or those of a folder that is one run.
fn contents(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    if !path.is_dir() {
        return Ok(vec![fs::read(path)?]);
    }
    let files = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>, Failure>>()?;
    files.into_iter().filter(|file| file.is_file()).map(|file| Ok(fs::read(file)?)).collect()
}

fn values<T: DeserializeOwned>(texts: &[Vec<u8>]) -> Result<(), Failure> {
    for text in texts {
        for value in serde_json::Deserializer::from_slice(text).into_iter::<T>() {
            black_box(value?);
        }
    }
    Ok(())
}

fn read(paths: &[PathBuf]) -> Result<usize, Failure> {
    let mut steps = 0;
    for path in paths {
        steps += format::open(path, None, Detail::FINGERPRINTS)?.filter_map(Result::ok).map(|run| run.steps.len()).sum::<usize>();
    }
    Ok(steps)
}

fn main() -> Result<(), Failure> {
    let (mut paths, mut json_file) = (Vec::new(), None);
    let mut arguments = env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--json") => json_file = Some(arguments.next().ok_or("--json needs a file")?),
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    if paths.is_empty() {
        paths.push(env::var_os("RUNGUARD_TRACES").ok_or("where are the runs? Give a path or set RUNGUARD_TRACES")?.into());
    }
    let mut formats: BTreeMap<Format, Vec<PathBuf>> = BTreeMap::new();
    for path in files_of(&paths)? {
        if let Ok(format) = format::guess(&path) {
            formats.entry(format).or_default().push(path);
        }
    }
    let guards = Guards::new(Presets::default(), &Tree::new(), &[Watched::Stall, Watched::Loop], Caps::default())
        .map_err(|problem| format!("{}: {}", problem.path.join("."), problem.problem))?;
    println!(
        "{:<12} {:>8} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "MB/s", "MB", "steps", "scan", "skipped", "Value", "read", "replayed", "steps/s"
    );
    let mut figures = Vec::new();
    for (format, paths) in formats {
        let texts = paths.iter().map(|path| contents(path)).collect::<Result<Vec<_>, _>>()?.concat();
        let megabytes = texts.iter().map(Vec::len).sum::<usize>() as f64 / 1e6;
        let scanned = megabytes * rate(|| Ok(texts.iter().map(|text| text.iter().filter(|byte| **byte == b'\n').count()).sum::<usize>()))?;
        let skipped = megabytes * rate(|| values::<IgnoredAny>(&texts))?;
        let value = megabytes * rate(|| values::<Value>(&texts))?;
        let steps = read(&paths)?;
        let times = rate(|| read(&paths))?;
        let labels = Labels::default();
        let reading =
            Reading { recorded: Recorded::of(&paths, &labels), detail: Detail::FINGERPRINTS, threads: 1, progress: &Progress::default() };
        let ask = Ask { guards: &guards, against: &[], by: &[], pack: None };
        let replayed = megabytes * rate(|| Ok(replay(&reading, &ask)?))?;
        let (reads, per_second) = (megabytes * times, steps as f64 * times);
        println!(
            "{:<12} {megabytes:>8.1} {steps:>8} {scanned:>10.0} {skipped:>10.0} {value:>10.0} {reads:>10.0} {replayed:>10.0} {per_second:>10.0}",
            format.code()
        );
        figures.push(json!({
            "format": format.code(), "megabytes": megabytes, "steps": steps, "steps_per_second": per_second,
            "megabytes_per_second": {"scan": scanned, "skipped": skipped, "value": value, "read": reads, "replayed": replayed},
        }));
    }
    if let Some(file) = json_file {
        fs::write(file, serde_json::to_string_pretty(&json!({ "figures": figures }))? + "\n")?;
    }
    Ok(())
}
