//! How fast runs are replayed, all guards and budgets on: `speed [--json FILE] [FOLDER]`; the folder can be told by
//! `RUNGUARD_TRACES`.
//!
//! Steps a second are by the clock; steps a second *and core* are by the time that cores worked on it, where the system tells,
//! so that what else runs on the machine counts less.

use runguard_core::Span;
use runguard_core::money::NanoDollars;
use runguard_guards::policy::Tree;
use runguard_replay::evaluate::{Progress, Reading, Recorded};
use runguard_replay::labels::Labels;
use runguard_replay::replay::{Ask, By, files_of, replay};
use runguard_replay::rules::{Caps, Guards, Presets, Watched};
use runguard_replay::trace::Detail;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

/// Each figure is the best of so many rounds: what else the machine did is not ours.
const ROUNDS: usize = 5;
/// So long a round takes at least; the files are read again and again until then.
const ROUND: Duration = Duration::from_millis(1000);

fn main() -> Result<(), Failure> {
    let (mut folder, mut json_file) = (env::var_os("RUNGUARD_TRACES").map(PathBuf::from), None);
    let mut arguments = env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--json") => json_file = Some(arguments.next().ok_or("--json needs a file")?),
            _ => folder = Some(argument.into()),
        }
    }
    let folder = folder.ok_or("where are the traces? Give their folder or set RUNGUARD_TRACES")?;
    let lines = files_of(&[folder])?;
    let scratch = tempfile::tempdir()?;
    let packed = scratch.path().join("runs.packed");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // On, and never reached: every step goes through everything.
    let caps = Caps {
        steps: Some(u64::MAX >> 1),
        tokens: Some(u64::MAX >> 1),
        usd: Some(NanoDollars::MAX),
        time: Some(Span::from_seconds(1_000_000_000)),
    };
    let guards = Guards::new(Presets::default(), &Tree::new(), &[Watched::Stall, Watched::Loop], caps)
        .map_err(|problem| format!("{}: {}", problem.path.join("."), problem.problem))?;
    read(&lines, &guards, cores, Some(&packed))?;
    let mut figures = Vec::new();
    for (name, files) in [("packed", std::slice::from_ref(&packed)), ("json lines", &lines[..])] {
        let bytes: u64 = files.iter().filter_map(|file| fs::metadata(file).ok()).map(|metadata| metadata.len()).sum();
        println!("{name}: {:.1} MB", bytes as f64 / 1e6);
        let counts = if cores > 1 { vec![1, cores] } else { vec![1] };
        for threads in counts {
            let (per_second, per_core) = best(files, &guards, threads)?;
            println!("  {threads:>3} threads  {per_second:>12.0} steps/s  {per_core:>12.0} steps/s/core");
            figures.push(serde_json::json!({"what": name, "threads": threads, "steps_per_second": per_second, "steps_per_second_per_core": per_core}));
        }
    }
    if let Some(file) = json_file {
        fs::write(file, serde_json::to_string_pretty(&serde_json::json!({ "figures": figures }))? + "\n")?;
    }
    Ok(())
}

fn read(files: &[PathBuf], guards: &Guards, threads: usize, pack: Option<&Path>) -> Result<u64, Failure> {
    let labels = Labels::default();
    let reading = Reading { recorded: Recorded::of(files, &labels), detail: Detail::FINGERPRINTS, threads, progress: &Progress::default() };
    Ok(replay(&reading, &Ask { guards, against: &[], by: &[By::Source], pack })?.steps)
}

/// Steps by the clock's second and by a core's.
fn best(files: &[PathBuf], guards: &Guards, threads: usize) -> Result<(f64, f64), Failure> {
    let mut best = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        let (started, worked, mut steps) = (Instant::now(), worked_seconds(), 0);
        while started.elapsed() < ROUND {
            steps += read(files, guards, threads, None)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let worked = worked.zip(worked_seconds()).map_or(seconds * threads as f64, |(before, after)| after - before);
        best = (best.0.max(steps as f64 / seconds), best.1.max(steps as f64 / worked.max(0.01)));
    }
    Ok(best)
}

/// What all threads of this process have worked, on Linux. The 14th and 15th field, in hundredths; the name in front of them
/// may hold anything.
fn worked_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
