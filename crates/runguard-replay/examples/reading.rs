//! How fast runs are read on one core: `cargo run --release -p runguard-replay --example reading -- FILE…`.
//!
//! Of the traces' own format the parsing alone is measured too, on lines that are in memory, as they are and without their
//! texts (also those of errors, which are compared by their words otherwise). Time is the thread's own on Linux, so that a busy
//! machine measures the same.

use runguard_replay::format;
use runguard_replay::trace::{Detail, Lines, parse};
use serde_json::Value;
use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

/// Read again and again for this long.
const SECONDS: f64 = 1.0;

/// Seconds that this thread has computed; elsewhere, that have passed.
fn seconds(start: Instant) -> f64 {
    let on_cpu = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = on_cpu.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    nanos.map_or_else(|| start.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn rate(lines: &[Vec<u8>]) -> f64 {
    let start = Instant::now();
    let before = seconds(start);
    let mut steps = 0;
    while seconds(start) - before < SECONDS {
        for line in lines {
            if let Ok(run) = black_box(parse(line, Detail::Fingerprints)) {
                steps += run.steps.len();
            }
        }
    }
    steps as f64 / (seconds(start) - before)
}

fn without_texts(line: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut run: Value = serde_json::from_slice(line)?;
    for step in run["steps"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        step.shift_remove("args");
        step.shift_remove("result");
    }
    serde_json::to_vec(&run)
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1).map(PathBuf::from) {
        let start = Instant::now();
        let before = seconds(start);
        let runs = format::open(&path, None, Detail::Fingerprints)?;
        let name = runs.format();
        let steps: usize = runs.filter_map(Result::ok).map(|run| run.steps.len()).sum();
        let from_disk = steps as f64 / (seconds(start) - before);
        print!("{} ({name}): {steps} steps; from the file {from_disk:.0} steps/s", path.display());
        if name == format::Format::Traces {
            let lines: Vec<Vec<u8>> = Lines::open(&path)?.filter_map(Result::ok).map(|line| line.bytes).collect();
            let bytes: usize = lines.iter().map(Vec::len).sum();
            let short: Vec<Vec<u8>> = lines.iter().map(|line| without_texts(line)).collect::<Result<_, _>>()?;
            let as_it_is = rate(&lines);
            print!(
                "; lines in memory {as_it_is:.0} steps/s ({} bytes a step), without texts {:.0} steps/s",
                bytes / steps.max(1),
                rate(&short)
            );
        }
        println!();
    }
    Ok(())
}
