//! Runs as a compact file: what of them rules look at, hashed already, to be read again and again.
//!
//! Reading JSON costs many times what the rules cost. Who tries thresholds out reads the same runs dozens of times, so they
//! are written once as they stand in memory: a frame a run, in which every tool is named once. A frame has its length and a
//! checksum in front, and the file says at its end how many there were: what is cut off or damaged is known by its place,
//! and is never taken for a shorter file. A damaged run is left out and reading goes on; only where a length itself cannot
//! be trusted does the rest stay unread.
//!
//! A run keeps the place where it was first read, so that what a report says of it leads to the record that has its texts.

use crate::trace::{Broken, Cancelled, Counted, Kind, ReadAt, Run, Step, opened};
use runguard_core::detect::stall::CallEffect;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// What every file begins with; the last byte is the version of what follows.
const MAGIC: [u8; 8] = *b"RGRUNS\n\x03";
/// Length of a frame, a check of that length, a checksum of the frame.
const HEAD_BYTES: usize = 16;
/// A longer frame is no run.
const MOST_FRAME_BYTES: u32 = 256 << 20;
/// A file ends with a frame of this length, which holds no run.
const END: u32 = u32::MAX;

/// Whether a file begins as packed runs do, of whatever version.
pub fn is_packed(path: &Path) -> io::Result<bool> {
    // What is read from a pipe is gone; and a folder is none.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::with_capacity(MAGIC.len());
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start.len() == MAGIC.len() && start[..MAGIC.len() - 1] == MAGIC[..MAGIC.len() - 1])
}

/// How a run is written. Optional values stand behind flags, so that a step without them is short.
#[derive(Serialize, Deserialize)]
struct PackedRun<'a> {
    #[serde(borrow)]
    id: &'a str,
    source: &'a str,
    task: &'a str,
    model: &'a str,
    agent: &'a str,
    success: Option<bool>,
    stuck: Option<bool>,
    native_tools: Option<bool>,
    file: &'a str,
    line: u64,
    tools: Vec<&'a str>,
    steps: Vec<PackedStep>,
}

#[derive(Serialize, Deserialize)]
struct PackedStep {
    is_message: bool,
    tool: u32,
    args: u64,
    result: Option<u64>,
    error: Option<u64>,
    effect: CallEffect,
    round: Option<u64>,
    spoke: Option<bool>,
    tokens: u64,
    /// Most steps of most sources have no price.
    dollars: Option<f64>,
    at_millis: Option<i64>,
}

/// Writes a run as a frame, at the end of `out`. Texts are not kept.
pub fn write_frame(run: &Run, out: &mut Vec<u8>) -> Result<(), String> {
    let mut tools: Vec<&str> = Vec::new();
    let mut steps = Vec::with_capacity(run.steps.len());
    for step in &run.steps {
        let tool = tools.iter().position(|known| **known == *step.tool).unwrap_or_else(|| {
            tools.push(&step.tool);
            tools.len() - 1
        });
        steps.push(PackedStep {
            is_message: step.kind == Kind::Message,
            tool: tool as u32,
            args: step.args,
            result: step.result,
            error: step.error,
            effect: step.effect,
            round: step.round,
            spoke: step.spoke,
            tokens: step.tokens,
            dollars: (step.dollars != 0.0).then_some(step.dollars),
            at_millis: step.at_millis,
        });
    }
    let file = run.place.file.to_string_lossy();
    let packed = PackedRun {
        id: &run.id,
        source: &run.source,
        task: &run.task,
        model: &run.model,
        agent: &run.agent,
        success: run.success,
        stuck: run.stuck,
        native_tools: run.native_tools,
        file: &file,
        line: run.place.line,
        tools,
        steps,
    };
    let from = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    if let Err(error) = postcard::to_io(&packed, &mut *out) {
        out.truncate(from);
        return Err(format!("run {} cannot be packed: {error}", run.id));
    }
    let length = out.len() - from - HEAD_BYTES;
    let Some(length) = u32::try_from(length).ok().filter(|length| *length <= MOST_FRAME_BYTES) else {
        out.truncate(from);
        return Err(format!("run {} is longer than {} MB and cannot be packed", run.id, MOST_FRAME_BYTES >> 20));
    };
    let head = head_of(length, &out[from + HEAD_BYTES..]);
    out[from..from + HEAD_BYTES].copy_from_slice(&head);
    Ok(())
}

fn head_of(length: u32, bytes: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&check_of(length).to_le_bytes());
    head[8..].copy_from_slice(&xxh3_64(bytes).to_le_bytes());
    head
}

fn check_of(length: u32) -> u32 {
    xxh3_64(&length.to_le_bytes()) as u32
}

/// A file of packed runs that is being written: under another name until it is whole.
#[derive(Debug)]
pub struct Packing {
    path: PathBuf,
    unfinished: PathBuf,
    out: BufWriter<File>,
    runs: u64,
}

impl Packing {
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".unfinished-{}", std::process::id()));
        let unfinished = path.with_file_name(name);
        let mut out = BufWriter::with_capacity(1 << 18, File::create(&unfinished)?);
        out.write_all(&MAGIC)?;
        Ok(Self { path: path.to_owned(), unfinished, out, runs: 0 })
    }

    /// Takes frames as [`write_frame`] made them.
    pub fn add(&mut self, frames: &[u8], runs: u64) -> io::Result<()> {
        self.runs += runs;
        self.out.write_all(frames)
    }

    pub fn finish(mut self) -> io::Result<u64> {
        let count = self.runs.to_le_bytes();
        self.out.write_all(&head_of(END, &count))?;
        self.out.write_all(&count)?;
        self.out.flush()?;
        std::fs::rename(&self.unfinished, &self.path)?;
        Ok(self.runs)
    }
}

impl Drop for Packing {
    fn drop(&mut self) {
        // Once finished it bears its own name, and there is nothing to remove.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}

/// One packed run, not yet unpacked.
#[derive(Debug)]
pub struct Frame {
    file: Arc<Path>,
    /// Which run of the file, from 1.
    pub number: u64,
    /// Where it stands in the file.
    offset: u64,
    checksum: u64,
    pub bytes: Vec<u8>,
}

impl Frame {
    /// The run, or what is wrong with it.
    pub fn run(&self) -> Result<Run, Broken> {
        self.run_knowing(&mut ReadAt::default())
    }

    /// The same for many frames in a row, whose runs mostly come from one file: `last` is where the one before was read.
    pub fn run_knowing(&self, last: &mut ReadAt) -> Result<Run, Broken> {
        if xxh3_64(&self.bytes) != self.checksum {
            return Err(self.broken("is damaged (its checksum does not fit) and left out"));
        }
        let packed: PackedRun<'_> = postcard::from_bytes(&self.bytes).map_err(|error| self.broken(&format!("cannot be read: {error}")))?;
        if last.file.to_str() != Some(packed.file) {
            last.file = Path::new(packed.file).into();
        }
        let tools: Vec<Arc<str>> = packed.tools.iter().map(|tool| (*tool).into()).collect();
        let mut steps = Vec::with_capacity(packed.steps.len());
        for step in packed.steps {
            let tool = tools.get(step.tool as usize).ok_or_else(|| self.broken("names a tool that it does not have"))?;
            steps.push(Step {
                kind: if step.is_message { Kind::Message } else { Kind::Call },
                tool: tool.clone(),
                args: step.args,
                result: step.result,
                error: step.error,
                effect: step.effect,
                round: step.round,
                spoke: step.spoke,
                tokens: step.tokens,
                dollars: step.dollars.unwrap_or(0.0),
                at_millis: step.at_millis,
                texts: None,
            });
        }
        Ok(Run {
            id: packed.id.to_owned(),
            source: packed.source.to_owned(),
            task: packed.task.to_owned(),
            model: packed.model.to_owned(),
            agent: packed.agent.to_owned(),
            success: packed.success,
            stuck: packed.stuck,
            native_tools: packed.native_tools,
            place: ReadAt { file: last.file.clone(), line: packed.line },
            steps,
        })
    }

    fn broken(&self, problem: &str) -> Broken {
        let problem = format!("run {} at byte {} {problem}; pack the file again from its source", self.number, self.offset);
        Broken { file: self.file.to_path_buf(), line: self.number, problem }
    }
}

/// The frames of a file, in their order.
pub struct Frames {
    file: Arc<Path>,
    input: BufReader<Counted<Box<dyn Read + Send>>>,
    read: Arc<AtomicU64>,
    offset: u64,
    number: u64,
    ended: bool,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").field("file", &self.file).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Frames {
    /// Fails when the file is none of packed runs, or of a version this program does not know.
    pub fn open(path: &Path, cancelled: &Cancelled) -> io::Result<Self> {
        let read = Arc::new(AtomicU64::new(0));
        let mut input = BufReader::with_capacity(1 << 18, Counted { input: opened(path, cancelled)?, read: read.clone() });
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic).map_err(|_| io::Error::other("is no file of packed runs"))?;
        let (name, version) = magic.split_at(MAGIC.len() - 1);
        if name != &MAGIC[..MAGIC.len() - 1] {
            return Err(io::Error::other("is no file of packed runs"));
        }
        if version != &MAGIC[MAGIC.len() - 1..] {
            let problem = format!(
                "holds packed runs of version {}, and this program reads version {}; pack them again from their source",
                version[0],
                MAGIC[MAGIC.len() - 1]
            );
            return Err(io::Error::other(problem));
        }
        Ok(Self { file: path.into(), input, read, offset: MAGIC.len() as u64, number: 0, ended: false })
    }

    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn rest_unread(&mut self, problem: &str) -> Broken {
        self.ended = true;
        let problem = format!(
            "after run {}, at byte {}: {problem}; the rest of the file is not read: pack it again from its source",
            self.number, self.offset
        );
        Broken { file: self.file.to_path_buf(), line: self.number + 1, problem }
    }

    fn read_frame(&mut self) -> Result<Option<Frame>, Broken> {
        let mut head = [0; HEAD_BYTES];
        self.input.read_exact(&mut head).map_err(|error| self.rest_unread(&cut_off(&error)))?;
        let word = |from: usize| u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let (length, check) = (word(0), word(4));
        let checksum = u64::from(word(8)) | u64::from(word(12)) << 32;
        if check != check_of(length) || (length > MOST_FRAME_BYTES && length != END) {
            return Err(self.rest_unread("the file is damaged (a length does not fit its check)"));
        }
        let held = if length == END { 8 } else { length };
        let mut bytes = vec![0; held as usize];
        self.input.read_exact(&mut bytes).map_err(|error| self.rest_unread(&cut_off(&error)))?;
        if length == END {
            return self.end(&bytes, checksum);
        }
        self.number += 1;
        let frame = Frame { file: self.file.clone(), number: self.number, offset: self.offset, checksum, bytes };
        self.offset += (HEAD_BYTES as u64) + u64::from(length);
        Ok(Some(frame))
    }

    fn end(&mut self, bytes: &[u8], checksum: u64) -> Result<Option<Frame>, Broken> {
        self.ended = true;
        let runs = bytes.try_into().map_or(0, u64::from_le_bytes);
        if xxh3_64(bytes) != checksum || runs != self.number {
            return Err(self.rest_unread(&format!("the file says that it holds {runs} runs")));
        }
        let more = self.input.fill_buf().map(<[u8]>::len);
        match more {
            Ok(0) => Ok(None),
            Ok(_) => Err(self.rest_unread("more follows after the end")),
            Err(error) => Err(self.rest_unread(&error.to_string())),
        }
    }
}

fn cut_off(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof { "the file is cut off".into() } else { error.to_string() }
}

impl Iterator for Frames {
    type Item = Result<Frame, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        self.read_frame().transpose()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    fn any_step() -> impl Strategy<Value = Step> {
        let optional = || proptest::option::of(0_u64..4);
        let action = (any::<bool>(), 0_usize..3, 0_u64..4, optional(), optional());
        (action, 0_u64..5000, 0_u32..9, proptest::option::of(0_i64..600_000)).prop_map(
            |((is_message, tool, args, result, error), tokens, cents, at_millis)| Step {
                kind: if is_message { Kind::Message } else { Kind::Call },
                tool: ["bash", "read_file", "wait"][tool].into(),
                args,
                result,
                error,
                effect: [CallEffect::Unknown, CallEffect::Runs, CallEffect::Edits { file: 1, by: u64::MAX }][args as usize % 3],
                round: (tokens % 7 == 0).then_some(args),
                spoke: [None, Some(false), Some(false), Some(true)][if tokens % 31 == 0 { 3 } else { tokens as usize % 3 }],
                tokens,
                dollars: f64::from(cents) / 100.0,
                at_millis,
                texts: None,
            },
        )
    }

    /// Runs as they come: often the same few calls, so that rules find something.
    pub(crate) fn any_run() -> impl Strategy<Value = Run> {
        let optional = || proptest::option::of(any::<bool>());
        let who = ("[a-z]{1,8}", 0_usize..3, 0_usize..5);
        (who, optional(), optional(), optional(), proptest::collection::vec(any_step(), 0..40), 0_u64..9).prop_map(
            |((id, source, task), success, stuck, native_tools, steps, line)| Run {
                id,
                source: ["taubench", "webarena", "other"][source].to_owned(),
                task: format!("t{task}"),
                model: format!("m{}", task % 2),
                agent: "a".into(),
                success,
                stuck,
                native_tools,
                place: ReadAt { file: Path::new("runs.jsonl").into(), line },
                steps,
            },
        )
    }

    pub(crate) fn pack(path: &Path, runs: &[Run]) {
        let mut packing = Packing::create(path).unwrap();
        for run in runs {
            let mut frame = Vec::new();
            write_frame(run, &mut frame).unwrap();
            packing.add(&frame, 1).unwrap();
        }
        assert_eq!(packing.finish().unwrap(), runs.len() as u64);
    }

    fn read(bytes: &[u8]) -> Vec<Result<Run, Broken>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Frames::open(file.path(), &Cancelled::default()).unwrap().map(|frame| frame.and_then(|frame| frame.run())).collect()
    }

    fn packed(runs: &[Run]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.packed");
        pack(&path, runs);
        assert!(is_packed(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
        std::fs::read(path).unwrap()
    }

    fn few_runs() -> Vec<Run> {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        (0..3).map(|_| any_run().new_tree(&mut runner).unwrap().current()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_packed_comes_out_again(runs in proptest::collection::vec(any_run(), 0..6)) {
            let read: Vec<Run> = read(&packed(&runs)).into_iter().map(Result::unwrap).collect();
            prop_assert_eq!(read, runs);
        }
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_never_taken_for_whole() {
        let runs = few_runs();
        let whole = packed(&runs);
        for length in MAGIC.len()..whole.len() {
            let read = read(&whole[..length]);
            let (last, before) = read.split_last().unwrap();
            let broken = last.as_ref().unwrap_err();
            assert!(
                broken.problem.contains("cut off") && broken.problem.contains("the rest of the file is not read"),
                "{length}: {broken}"
            );
            assert!(before.iter().zip(&runs).all(|(read, run)| read.as_ref().unwrap() == run), "{length}");
            assert_eq!(broken.line, before.len() as u64 + 1, "the place is the run that is missing");
        }
    }

    #[test]
    fn a_damaged_byte_is_told_with_its_place_and_costs_one_run_or_the_rest() {
        let runs = few_runs();
        let whole = packed(&runs);
        for at in MAGIC.len()..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            let read = read(&damaged);
            let broken: Vec<&Broken> = read.iter().filter_map(|run| run.as_ref().err()).collect();
            assert_eq!(broken.len(), 1, "byte {at}");
            let place: u64 = broken[0].problem.split("byte ").nth(1).unwrap().split([' ', ':']).next().unwrap().parse().unwrap();
            assert!(place <= at as u64 && at as u64 - place < 2048, "byte {at} told as {place}");
            assert!(read.iter().flatten().all(|run| runs.contains(run)), "what is read is right");
            if broken[0].problem.contains("left out") {
                assert_eq!(read.len(), runs.len(), "reading goes on");
            }
        }
        let read = read(&[&whole[..], b"more"].concat());
        assert!(read.last().unwrap().as_ref().unwrap_err().problem.contains("more follows"));
    }

    #[test]
    fn a_run_that_was_taken_out_is_missed() {
        let whole = packed(&few_runs());
        let first = HEAD_BYTES + u32::from_le_bytes(whole[8..12].try_into().unwrap()) as usize;
        let read = read(&[&whole[..8], &whole[8 + first..]].concat());
        let broken = read.last().unwrap().as_ref().unwrap_err();
        assert!(read.len() == 3 && broken.problem.contains("says that it holds 3 runs"), "{broken}");
    }

    #[test]
    fn other_files_and_other_versions_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "{\"run_id\":1}").unwrap();
        assert!(!is_packed(&path).unwrap());
        assert!(Frames::open(&path, &Cancelled::default()).unwrap_err().to_string().contains("is no file of packed runs"));
        std::fs::write(&path, "RG").unwrap();
        assert!(!is_packed(&path).unwrap() && Frames::open(&path, &Cancelled::default()).is_err());
        let mut later = packed(&[]);
        later[7] = 9;
        std::fs::write(&path, later).unwrap();
        assert!(is_packed(&path).unwrap(), "it is known for what it is");
        assert!(
            Frames::open(&path, &Cancelled::default()).unwrap_err().to_string().contains("version 9, and this program reads version 3")
        );
    }

    #[test]
    fn an_unfinished_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.packed");
        std::fs::write(&path, "what was there").unwrap();
        drop(Packing::create(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "what was there");
    }
}
