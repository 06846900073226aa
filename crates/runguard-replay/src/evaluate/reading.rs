//! Every run of many files, on many threads, in bounded memory.

use crate::format::{self, Format, Input, OpenError, Runs, input};
use crate::labels::Labels;
use crate::packed::{Frame, Frames, is_packed};
use crate::trace::{Broken, Cancelled, Detail, Line, Lines, ReadAt, Run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Bytes of lines, frames or runs that make a batch; a single longer one is a batch of its own.
const BATCH_BYTES: usize = 256 << 10;
/// What a step takes in memory, about.
const STEP_BYTES: usize = 128;
/// Batches waiting for each thread: enough to keep it busy, few enough to cost no memory.
const WAITING: usize = 2;
/// Broken lines that are told one by one; all are counted.
const TOLD: usize = 100;

/// The runs that are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    pub files: &'a [PathBuf],
    /// What was named. A file that was only found in a folder may hold something else, and is not complained about.
    pub given: &'a [PathBuf],
    /// Without one, each file's is guessed from its content.
    pub format: Option<Format>,
    /// What is known of their ends besides what they say.
    pub labels: &'a Labels,
    /// Where another file is read in place of one of these: a copy of it, say. What is told names this one.
    pub instead: &'a Instead,
}

/// By the file that was named, the one that is opened.
pub type Instead = BTreeMap<PathBuf, PathBuf>;

/// Nothing is read in place of another.
static AS_NAMED: Instead = Instead::new();

impl<'a> Recorded<'a> {
    /// The runs of files that were all named.
    pub fn of(files: &'a [PathBuf], labels: &'a Labels) -> Self {
        Self { files, given: files, format: None, labels, instead: &AS_NAMED }
    }

    /// The runs of one of the files.
    pub(crate) fn open(&self, path: &Path, detail: Detail) -> Result<OfFile, OpenError> {
        let opened = self.opened(path);
        Ok(OfFile { runs: format::open(opened, self.format, detail)?, named: self.named(path) })
    }

    fn opened<'p>(&'p self, path: &'p Path) -> &'p Path {
        self.instead.get(path).map_or(path, PathBuf::as_path)
    }

    /// How the file is called that something else is read for.
    fn named(&self, path: &Path) -> Option<Arc<Path>> {
        self.instead.contains_key(path).then(|| path.into())
    }

    /// Whether a file that is not read is simply none of ours, since nobody named it.
    pub(crate) fn is_left_alone(&self, path: &Path, error: &OpenError) -> bool {
        matches!(error, OpenError::Unknown { .. } | OpenError::Empty { .. } | OpenError::Wrapped { .. })
            && !self.given.iter().any(|given| given == path)
    }
}

/// The runs of a file, under the name by which it was asked for.
pub(crate) struct OfFile {
    runs: Runs,
    named: Option<Arc<Path>>,
}

impl OfFile {
    fn bytes_read(&self) -> u64 {
        self.runs.bytes_read()
    }
}

impl Iterator for OfFile {
    type Item = Result<Run, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut next = self.runs.next()?;
        if let Some(named) = &self.named {
            match &mut next {
                Ok(run) => run.place.file = named.clone(),
                Err(broken) => broken.file = named.to_path_buf(),
            }
        }
        Some(next)
    }
}

/// What is read, and how.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    pub recorded: Recorded<'a>,
    pub detail: Detail,
    /// With one, everything is done on the thread that asks.
    pub threads: usize,
    pub progress: &'a Progress,
}

/// How far the reading is, for who watches it from another thread, and may end it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Of the files as they lie on the disk.
    bytes: AtomicU64,
    runs: AtomicU64,
    steps: AtomicU64,
    cancelled: Cancelled,
}

impl Progress {
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The same files are read once more.
    pub(crate) fn begins_anew(&self) {
        for count in [&self.bytes, &self.runs, &self.steps] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Nothing more is read; what was read is still judged.
    pub fn cancel(&self) {
        self.cancelled.cancel();
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

/// Where a run stands among all that are read: its file, its batch, its number in it. The same on one thread and on many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Order {
    pub batch: u64,
    pub number: u32,
    /// Which of the files.
    pub file: u32,
}

/// Does something with runs, on a thread of its own.
pub trait Worker: Send {
    fn run(&mut self, run: Run, order: Order);

    /// All runs of a batch were given. Every batch comes to one worker, and every number once.
    fn end_of_batch(&mut self, _batch: u64) {}
}

/// What could not be read.
#[derive(Debug, Default)]
pub struct Unread {
    /// The first of them, by file and line.
    pub first: Vec<Broken>,
    pub count: u64,
    /// By file.
    pub by_file: Vec<u64>,
    pub left_alone: LeftAlone,
}

impl Unread {
    fn tell(&mut self, file: usize, broken: Broken) {
        self.count += 1;
        if self.by_file.len() <= file {
            self.by_file.resize(file + 1, 0);
        }
        self.by_file[file] += 1;
        // The earliest stay, whichever thread met them.
        let at = self.first.partition_point(|other| (&other.file, other.line) <= (&broken.file, broken.line));
        self.first.insert(at, broken);
        self.first.truncate(TOLD);
    }

    fn merge(&mut self, other: Self) {
        for (file, count) in other.by_file.iter().enumerate().filter(|(_, count)| **count > 0) {
            if self.by_file.len() <= file {
                self.by_file.resize(file + 1, 0);
            }
            self.by_file[file] += count;
        }
        self.count += other.count;
        self.first.extend(other.first);
        self.first.sort_by(|left, right| (&left.file, left.line).cmp(&(&right.file, right.line)));
        self.first.truncate(TOLD);
        self.left_alone.merge(other.left_alone);
    }
}

/// Files that were found in folders and hold no recorded runs.
#[derive(Debug, Default)]
pub struct LeftAlone {
    unknown: Found,
    wrapped: Found,
}

/// How many there were, and how the first of them is told.
#[derive(Debug, Default)]
struct Found {
    count: u64,
    first: Option<String>,
}

impl Found {
    fn merge(&mut self, other: Self) {
        self.count += other.count;
        // Whichever thread met it.
        self.first = self.first.take().into_iter().chain(other.first).min();
    }
}

impl LeftAlone {
    pub(crate) fn add(&mut self, error: OpenError) {
        match error {
            OpenError::Wrapped { .. } => self.wrapped.merge(Found { count: 1, first: Some(error.to_string()) }),
            OpenError::Unknown { path } | OpenError::Empty { path } => {
                self.unknown.merge(Found { count: 1, first: Some(path.display().to_string()) });
            }
            // Those are complained about.
            OpenError::Unreadable { .. } | OpenError::Database { .. } => {}
        }
    }

    fn merge(&mut self, other: Self) {
        self.unknown.merge(other.unknown);
        self.wrapped.merge(other.wrapped);
    }

    pub fn count(&self) -> u64 {
        self.unknown.count + self.wrapped.count
    }

    /// What the reader is told of them.
    pub fn notes(&self) -> Vec<String> {
        let files = |count: u64| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
        let tell = |found: &Found, of: &dyn Fn(String, &str) -> String| found.first.as_deref().map(|first| of(files(found.count), first));
        let verb = |found: &Found, one, many| if found.count == 1 { one } else { many };
        let hold = verb(&self.unknown, "holds", "hold");
        let are = verb(&self.wrapped, "was", "were");
        let unknown = tell(&self.unknown, &|files, first| {
            format!("{files} in these folders {hold} no runs in a form that is known, the first: {first}")
        });
        let wrapped = tell(&self.wrapped, &|files, first| format!("{files} in these folders {are} not read; {first}"));
        unknown.into_iter().chain(wrapped).collect()
    }
}

struct Batch {
    number: u64,
    file: usize,
    path: Arc<Path>,
    load: Load,
}

enum Load {
    Lines(Vec<Line>, fn(&[u8], Detail) -> Result<Run, String>),
    Frames(Vec<Frame>),
    Runs(Vec<Run>),
}

/// Gives every run to one of the workers, and hands these back.
pub fn each_run<W: Worker>(reading: &Reading<'_>, make: impl Fn() -> W) -> (Vec<W>, Unread) {
    let mut unread = Unread::default();
    if reading.threads <= 1 {
        let mut crew = Crew { worker: make(), unread: Unread::default(), reading };
        read(reading, &mut unread, &mut |batch| {
            crew.work(batch);
            true
        });
        unread.merge(crew.unread);
        return (vec![crew.worker], unread);
    }
    let (batches, waiting) = sync_channel::<Batch>(WAITING * reading.threads);
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        let spawn = |_| {
            let crew = Crew { worker: make(), unread: Unread::default(), reading };
            scope.spawn(|| crew.take_from(&waiting))
        };
        let threads: Vec<_> = (0..reading.threads).map(spawn).collect();
        // Nobody is left to take a batch only after a panic, which is told below.
        read(reading, &mut unread, &mut |batch| batches.send(batch).is_ok());
        drop(batches);
        let mut workers = Vec::with_capacity(threads.len());
        for thread in threads {
            match thread.join() {
                Ok(crew) => {
                    unread.merge(crew.unread);
                    workers.push(crew.worker);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        (workers, unread)
    })
}

/// A worker with what it could not read.
struct Crew<'a, W> {
    worker: W,
    unread: Unread,
    reading: &'a Reading<'a>,
}

impl<W: Worker> Crew<'_, W> {
    fn take_from(mut self, waiting: &Mutex<Receiver<Batch>>) -> Self {
        loop {
            // Held only while taking a batch, so a panic elsewhere leaves the queue whole.
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(batch) = next else { return self };
            self.work(batch);
        }
    }

    fn work(&mut self, Batch { number, file, path, load }: Batch) {
        let mut order = Order { batch: number, number: 0, file: file as u32 };
        let (mut runs, mut steps) = (0, 0);
        let mut give = |mut run: Run| {
            self.reading.recorded.labels.label(&mut run);
            runs += 1;
            steps += run.steps.len() as u64;
            self.worker.run(run, order);
            order.number += 1;
        };
        match load {
            Load::Lines(lines, parse) => {
                for line in lines {
                    match parse(&line.bytes, self.reading.detail) {
                        Ok(run) => give(Run { place: ReadAt { file: path.clone(), line: line.number }, ..run }),
                        Err(problem) => self.unread.tell(file, Broken { file: path.to_path_buf(), line: line.number, problem }),
                    }
                }
            }
            Load::Frames(frames) => {
                let mut last = ReadAt::default();
                for frame in frames {
                    match frame.run_knowing(&mut last) {
                        Ok(run) => give(run),
                        Err(broken) => self.unread.tell(file, broken),
                    }
                }
            }
            Load::Runs(runs) => runs.into_iter().for_each(give),
        }
        let progress = self.reading.progress;
        progress.runs.fetch_add(runs, Ordering::Relaxed);
        progress.steps.fetch_add(steps, Ordering::Relaxed);
        self.worker.end_of_batch(number);
    }
}

/// Reads all files and sends what they hold; ends early when cancelled, or when sending says so.
fn read(reading: &Reading<'_>, unread: &mut Unread, send: &mut dyn FnMut(Batch) -> bool) {
    let mut number = 0;
    let mut bytes_before = 0;
    for (file, path) in reading.recorded.files.iter().enumerate() {
        let mut source = Source { reading, file, path: path.as_path().into(), number: &mut number, bytes_before, unread, send };
        // A pipe that was waited for until it was cancelled may have said nothing yet.
        if let Err(problem) = source.read()
            && !reading.progress.is_cancelled()
        {
            source.unread.tell(file, Broken { file: path.clone(), line: 0, problem });
        }
        bytes_before += bytes_on_disk(path);
        reading.progress.bytes.store(bytes_before, Ordering::Relaxed);
        if reading.progress.is_cancelled() {
            break;
        }
    }
}

/// How large a file is, or what lies in a folder that is read as one.
pub fn bytes_on_disk(path: &Path) -> u64 {
    let Ok(metadata) = std::fs::metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file).map(|metadata| metadata.len()).sum()
}

/// One file that is being read.
struct Source<'a> {
    reading: &'a Reading<'a>,
    file: usize,
    path: Arc<Path>,
    number: &'a mut u64,
    bytes_before: u64,
    unread: &'a mut Unread,
    send: &'a mut dyn FnMut(Batch) -> bool,
}

impl Source<'_> {
    fn read(&mut self) -> Result<(), String> {
        let Reading { recorded, detail, progress: Progress { cancelled, .. }, .. } = self.reading;
        let format = recorded.format;
        let packed = match format {
            Some(format) => format == Format::Packed && !format::is_wrapped(recorded.opened(&self.path)),
            None => is_packed(recorded.opened(&self.path)).map_err(|error| error.to_string())?,
        };
        if packed {
            let frames = Frames::open(recorded.opened(&self.path), cancelled).map_err(|error| error.to_string())?;
            self.batches(frames, Frames::bytes_read, |frame| frame.bytes.len(), Load::Frames);
            return Ok(());
        }
        let input = match input(recorded.opened(&self.path), format, *detail, cancelled) {
            Err(error) if recorded.is_left_alone(&self.path, &error) => {
                self.unread.left_alone.add(error);
                return Ok(());
            }
            input => input.map_err(|error| error.to_string())?,
        };
        match input {
            Input::Lines(lines, parse) => {
                let load = |lines| Load::Lines(lines, parse);
                self.batches(lines, Lines::bytes_read, |line| line.bytes.len(), load);
            }
            Input::Runs(runs) => {
                let runs = OfFile { runs, named: recorded.named(&self.path) };
                self.batches(runs, OfFile::bytes_read, |run| (run.steps.len() + 1) * STEP_BYTES, Load::Runs);
            }
        }
        Ok(())
    }

    /// Sends items in batches.
    fn batches<T, I: Iterator<Item = Result<T, Broken>>>(
        &mut self,
        mut items: I,
        bytes_read: impl Fn(&I) -> u64,
        bytes_of: impl Fn(&T) -> usize,
        load: impl Fn(Vec<T>) -> Load,
    ) {
        let progress = self.reading.progress;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let item = if progress.is_cancelled() { None } else { items.next() };
            match item {
                Some(Ok(item)) => {
                    bytes += bytes_of(&item);
                    batch.push(item);
                }
                // What a pipe had not told to its end by then is not broken.
                Some(Err(_)) if progress.is_cancelled() => break,
                Some(Err(broken)) => self.unread.tell(self.file, broken),
                None => break,
            }
            if bytes >= BATCH_BYTES {
                bytes = 0;
                progress.bytes.store(self.bytes_before + bytes_read(&items), Ordering::Relaxed);
                if !self.send(load(std::mem::take(&mut batch))) {
                    return;
                }
            }
        }
        if !batch.is_empty() {
            self.send(load(batch));
        }
    }

    fn send(&mut self, load: Load) -> bool {
        let batch = Batch { number: *self.number, file: self.file, path: self.path.clone(), load };
        *self.number += 1;
        (self.send)(batch)
    }
}
