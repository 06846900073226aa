//! What was sent and is not known to be in the log, kept in case the database loses it.
//!
//! The newest entries are in memory. While the log takes no rows the older ones go to disk, page by page, up to a bound; that it comes
//! near, and what is let go of beyond it, is said. What is on disk outlives the process.

use crate::cluster::fitting;
use crate::cluster::log::Positions;
use crate::files::{create_private_folder, private_file};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// A clock reading may be off by so much.
pub(super) const MARGIN_MILLIS: u64 = 2_000;
/// Decisions remembered that were given up. What became of one is asked when its node brings home what it decided instead.
const MOST_DOUBTED: usize = 100_000;
/// Entries that go to disk at a time, a moment for whoever writes them: so many, or fewer where they have many rows.
const PAGE: usize = 2_000;
const PAGE_BYTES: usize = 2 << 20;
/// Of an entry with one row: what the entries in memory may have on average.
const BYTES_OF_ENTRY: usize = 1_000;

/// An entry that was sent and may not be in the log yet.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) partition: u16,
    /// It was in its stream at this time at the latest.
    pub(crate) at_millis: u64,
    pub(crate) answered: Instant,
    pub(crate) entry: Vec<u8>,
}

/// How far the log has read.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) positions: Positions,
    /// It has all that was in the streams at this time.
    pub(crate) has_all_before: Option<Instant>,
}

impl Progress {
    fn has(&self, partition: u16, at_millis: u64, answered: Instant) -> bool {
        let is_passed = || self.positions.iter().any(|(other, at)| *other == partition && at.millis > at_millis);
        self.has_all_before.is_some_and(|time| answered < time) || is_passed()
    }
}

/// How much is kept where.
#[derive(Debug, Clone)]
pub struct Shelf {
    pub place: Place,
    /// Entries that stay in memory, of a thousand bytes on average.
    pub entries_in_memory: usize,
    /// Bytes on disk.
    pub most_bytes: u64,
}

#[derive(Debug, Clone)]
pub enum Place {
    Folder(PathBuf),
    /// Stands for the disk in a simulation.
    Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>),
}

impl Default for Place {
    fn default() -> Self {
        Self::Memory(Arc::default())
    }
}

impl Place {
    fn names(&self) -> Vec<String> {
        match self {
            Self::Folder(folder) => {
                let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
                files.filter_map(|file| file.file_name().into_string().ok()).collect()
            }
            Self::Memory(files) => files.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect(),
        }
    }

    fn write(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Folder(folder) => {
                create_private_folder(folder)?;
                // Whole, or as it was.
                let unfinished = folder.join(UNFINISHED);
                let mut file = private_file().write(true).create(true).truncate(true).open(&unfinished)?;
                io::Write::write_all(&mut file, &bytes)?;
                std::fs::rename(unfinished, folder.join(name))
            }
            Self::Memory(files) => {
                files.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), bytes);
                Ok(())
            }
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Folder(folder) => std::fs::read(folder.join(name)),
            Self::Memory(files) => Ok(files.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().unwrap_or_default()),
        }
    }

    fn remove(&self, name: &str) {
        match self {
            Self::Folder(folder) => {
                let _ = std::fs::remove_file(folder.join(name));
            }
            Self::Memory(files) => drop(files.lock().unwrap_or_else(PoisonError::into_inner).remove(name)),
        }
    }
}

const UNFINISHED: &str = "unfinished";
/// Names the database that the pages were sent to.
const SENT_TO: &str = "sent-to";
/// Begins the name of a page that no database has.
const LATE: &str = "late-";

/// Entries on disk.
#[derive(Debug)]
struct Page {
    name: String,
    number: u64,
    entries: usize,
    bytes: u64,
    /// Of each partition's entries the latest.
    at_millis: BTreeMap<u16, u64>,
    answered: Instant,
}

#[derive(Debug, Serialize, Deserialize)]
struct Shelved(u16, u64, Vec<u8>);

#[derive(Debug, Default)]
struct Held {
    recent: VecDeque<Sent>,
    recent_bytes: usize,
    /// Older than those in memory.
    pages: VecDeque<Page>,
    /// Those that a database lost and its successor does not count: in memory, and more of them on disk.
    late: VecDeque<Vec<u8>>,
    late_pages: VecDeque<Page>,
    next_page: u64,
    /// The database that has the pages, if it has lost nothing.
    sent_to: u64,
    told_of_half: bool,
}

impl Held {
    fn bytes(&self) -> u64 {
        self.pages.iter().chain(&self.late_pages).map(|page| page.bytes).sum()
    }

    fn keep_recent(&mut self, keeps: impl Fn(&Sent) -> bool) {
        self.recent.retain(keeps);
        self.recent_bytes = self.recent.iter().map(|sent| sent.entry.len()).sum();
    }
}

/// How many of these, from the front, make a page.
pub(crate) fn page_of<'a>(most: usize, entries: impl Iterator<Item = &'a Vec<u8>>) -> usize {
    fitting(entries.map(Vec::len), most, PAGE_BYTES)
}

#[derive(Debug)]
pub(crate) struct Unconfirmed {
    held: Mutex<Held>,
    /// Decisions that were sent and given up: they may have arrived, and were made again alone.
    doubted: Mutex<BTreeSet<String>>,
    shelf: Shelf,
    dropped: AtomicU64,
}

/// Entries that are brought home together.
#[derive(Debug)]
pub(crate) struct Late {
    page: Option<u64>,
    pub(crate) entries: Vec<Vec<u8>>,
}

impl Unconfirmed {
    /// With what an earlier life left on disk.
    pub(crate) fn new(shelf: Shelf) -> Self {
        let mut held = Held::default();
        let number_in = |name: &String| Some((name.strip_prefix(LATE).unwrap_or(name).parse::<u64>().ok()?, name.clone()));
        let left: BTreeSet<(u64, String)> = shelf.place.names().iter().filter_map(number_in).collect();
        for (number, name) in left {
            held.next_page = held.next_page.max(number + 1);
            let bytes = shelf.place.read(&name).unwrap_or_default();
            match postcard::from_bytes::<Vec<Shelved>>(&bytes) {
                Ok(shelved) if !shelved.is_empty() => {
                    let page = Page::of(name, number, bytes.len(), Instant::now(), &shelved);
                    if page.name.starts_with(LATE) { held.late_pages.push_back(page) } else { held.pages.push_back(page) }
                }
                // Cut while it was written.
                Ok(_) | Err(_) => shelf.place.remove(&name),
            }
        }
        let sent_to = shelf.place.read(SENT_TO).unwrap_or_default();
        held.sent_to = sent_to.try_into().map_or(0, u64::from_be_bytes);
        Self { held: Mutex::new(held), doubted: Mutex::default(), shelf, dropped: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubted(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any of these may have arrived though it was given up.
    pub(crate) fn doubts<'a>(&self, mut ids: impl Iterator<Item = &'a str>) -> bool {
        let doubted = self.doubted();
        !doubted.is_empty() && ids.any(|id| doubted.contains(id))
    }

    pub(crate) fn give_up<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let mut doubted = self.doubted();
        doubted.extend(ids.map(str::to_owned));
        while doubted.len() > MOST_DOUBTED {
            // Ids go up with the time: the oldest is first.
            doubted.pop_first();
        }
    }

    /// Entries that the database of this generation has.
    pub(crate) fn add(&self, generation: u64, sent: impl Iterator<Item = Sent>) {
        let mut held = self.lock();
        for sent in sent {
            held.recent_bytes += sent.entry.len();
            held.recent.push_back(sent);
        }
        let most = self.shelf.entries_in_memory;
        let page = PAGE.min(most.max(1));
        while held.recent.len() >= most + page || held.recent_bytes > most * BYTES_OF_ENTRY + PAGE_BYTES {
            let page = page_of(page, held.recent.iter().map(|sent| &sent.entry));
            let oldest: Vec<Sent> = held.recent.drain(..page).collect();
            held.recent_bytes -= oldest.iter().map(|sent| sent.entry.len()).sum::<usize>();
            if held.pages.is_empty() {
                tracing::warn!(
                    in_memory = held.recent.len(),
                    "many rows are not known to be in the log: those that may have to be sent again go to disk. Look whether Postgres is up"
                );
            }
            let answered = oldest.last().map_or_else(Instant::now, |sent| sent.answered);
            let shelved: Vec<Shelved> = oldest.into_iter().map(|sent| Shelved(sent.partition, sent.at_millis, sent.entry)).collect();
            self.say_where_pages_are(&mut held, generation);
            let number = held.next_page;
            held.next_page += 1;
            if let Some(page) = self.write("", number, answered, &shelved) {
                held.pages.push_back(page);
            }
            self.make_room(&mut held);
        }
    }

    fn say_where_pages_are(&self, held: &mut Held, generation: u64) {
        if held.sent_to == generation {
            return;
        }
        // Should it not be there, they are looked for in the log one by one.
        held.sent_to = generation;
        let _ = self.shelf.place.write(SENT_TO, generation.to_be_bytes().to_vec());
    }

    /// Whether there are entries on disk that were sent to another database than this: it may not have them.
    pub(crate) fn is_of_another(&self, generation: u64) -> bool {
        let held = self.lock();
        !held.pages.is_empty() && held.sent_to != generation
    }

    /// The oldest go when the disk that may be used is used.
    fn make_room(&self, held: &mut Held) {
        let (bytes, most) = (held.bytes(), self.shelf.most_bytes);
        if bytes < most / 2 {
            held.told_of_half = false;
        } else if !std::mem::replace(&mut held.told_of_half, true) {
            tracing::warn!(
                bytes,
                most,
                "rows that are not known to be in the log fill half of the disk they may use (store.unconfirmed_mb). Look whether Postgres is up"
            );
        }
        while held.bytes() > self.shelf.most_bytes {
            let Some(page) = held.pages.pop_front() else { return };
            self.shelf.place.remove(&page.name);
            self.drop_entries(page.entries, "they fill the disk they may use; raise store.unconfirmed_mb");
        }
    }

    fn drop_entries(&self, entries: usize, why: &str) {
        if self.dropped.fetch_add(entries as u64, Ordering::Relaxed) == 0 {
            tracing::error!(
                entries,
                why,
                "rows that are not known to be in the log are not kept any more: should the shared state be lost before the log has them, they are lost"
            );
        }
    }

    fn write(&self, kind: &str, number: u64, answered: Instant, shelved: &[Shelved]) -> Option<Page> {
        let bytes = postcard::to_stdvec(shelved).unwrap_or_default();
        let page = Page::of(format!("{kind}{number}"), number, bytes.len(), answered, shelved);
        match self.shelf.place.write(&page.name, bytes) {
            Ok(()) => Some(page),
            Err(error) => {
                self.drop_entries(page.entries, &error.to_string());
                None
            }
        }
    }

    fn read(&self, name: &str) -> Vec<Shelved> {
        let bytes = self.shelf.place.read(name).unwrap_or_else(|error| {
            self.drop_entries(1, &error.to_string());
            Vec::new()
        });
        postcard::from_bytes(&bytes).unwrap_or_default()
    }

    /// Those that the log has are let go.
    pub(crate) fn confirm(&self, progress: &Progress) {
        let mut held = self.lock();
        held.keep_recent(|sent| !progress.has(sent.partition, sent.at_millis, sent.answered));
        held.pages.retain(|page| {
            let is_logged = page.at_millis.iter().all(|(partition, millis)| progress.has(*partition, *millis, page.answered));
            if is_logged {
                self.shelf.place.remove(&page.name);
            }
            !is_logged
        });
    }

    /// What is there, oldest first, in parts: pages by their number, and then what is in memory.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let held = self.lock();
        let pages = held.pages.iter().map(|page| Part::Page(page.number));
        pages.chain(std::iter::once(Part::Recent)).collect()
    }

    /// The entries of a part, with their partitions.
    pub(crate) fn part(&self, part: Part) -> Vec<(u16, Vec<u8>)> {
        match part {
            Part::Page(number) => {
                self.read(&number.to_string()).into_iter().map(|Shelved(partition, _, entry)| (partition, entry)).collect()
            }
            Part::Recent => self.lock().recent.iter().map(|sent| (sent.partition, sent.entry.clone())).collect(),
        }
    }

    /// A part was sent again, as far as it came in time.
    pub(crate) fn came_late(&self, part: Part, late: Vec<Vec<u8>>) {
        let mut held = self.lock();
        match part {
            Part::Recent => {
                let gone: BTreeSet<&[u8]> = late.iter().map(Vec::as_slice).collect();
                held.keep_recent(|sent| !gone.contains(sent.entry.as_slice()));
                held.late.extend(late);
            }
            Part::Page(_) if late.is_empty() => {}
            Part::Page(number) => {
                let gone: BTreeSet<&[u8]> = late.iter().map(Vec::as_slice).collect();
                let (late, rest): (Vec<Shelved>, Vec<Shelved>) =
                    self.read(&number.to_string()).into_iter().partition(|Shelved(_, _, entry)| gone.contains(entry.as_slice()));
                let Some(place) = held.pages.iter().position(|page| page.number == number) else { return };
                let answered = held.pages[place].answered;
                // Under the same number: what is left keeps its place.
                if let Some(page) = self.write(LATE, number, answered, &late) {
                    held.late_pages.push_back(page);
                }
                if rest.is_empty() {
                    self.shelf.place.remove(&number.to_string());
                    held.pages.remove(place);
                } else if let Some(page) = self.write("", number, answered, &rest) {
                    held.pages[place] = page;
                }
            }
        }
    }

    /// All of them are in the streams of another database: it is that one's progress that counts for them.
    pub(crate) fn were_sent_again(&self, generation: u64, now_millis: i64) {
        let (at_millis, answered) = (u64::try_from(now_millis).unwrap_or(0) + MARGIN_MILLIS, Instant::now());
        let mut held = self.lock();
        for sent in &mut held.recent {
            (sent.at_millis, sent.answered) = (at_millis, answered);
        }
        for page in &mut held.pages {
            page.answered = answered;
            page.at_millis.values_mut().for_each(|millis| *millis = at_millis);
        }
        self.say_where_pages_are(&mut held, generation);
    }

    /// The oldest of those that no database has.
    pub(crate) fn next_late(&self) -> Option<Late> {
        let held = self.lock();
        if let Some(Page { name, number, .. }) = held.late_pages.front() {
            let entries = self.read(name).into_iter().map(|Shelved(_, _, entry)| entry).collect();
            return Some(Late { page: Some(*number), entries });
        }
        let entries: Vec<Vec<u8>> = held.late.iter().take(page_of(PAGE, held.late.iter())).cloned().collect();
        (!entries.is_empty()).then_some(Late { page: None, entries })
    }

    pub(crate) fn late_is_home(&self, late: &Late) {
        let mut held = self.lock();
        match late.page {
            None => drop(held.late.drain(..late.entries.len())),
            Some(number) => held.late_pages.retain(|page| {
                if page.number == number {
                    self.shelf.place.remove(&page.name);
                }
                page.number != number
            }),
        }
    }

    pub(crate) fn late_count(&self) -> usize {
        let held = self.lock();
        held.late.len() + held.late_pages.iter().map(|page| page.entries).sum::<usize>()
    }

    /// Entries that are kept, their bytes on disk, and how many were let go of without knowing that the log has them.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let held = self.lock();
        let entries = held.recent.len() + held.pages.iter().map(|page| page.entries).sum::<usize>();
        (entries as u64, held.bytes(), self.dropped.load(Ordering::Relaxed))
    }
}

impl Page {
    fn of(name: String, number: u64, bytes: usize, answered: Instant, shelved: &[Shelved]) -> Self {
        let mut at_millis: BTreeMap<u16, u64> = BTreeMap::new();
        for Shelved(partition, millis, _) in shelved {
            let latest = at_millis.entry(*partition).or_default();
            *latest = (*latest).max(*millis);
        }
        Self { name, number, entries: shelved.len(), bytes: bytes as u64, at_millis, answered }
    }
}

/// Entries that are sent again together.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Page(u64),
    Recent,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::link::EntryId;

    fn sent(number: u64) -> Sent {
        Sent { partition: (number % 2) as u16, at_millis: number, answered: Instant::now(), entry: number.to_be_bytes().to_vec() }
    }

    fn numbers(unconfirmed: &Unconfirmed) -> Vec<u64> {
        let entries = unconfirmed.parts().into_iter().flat_map(|part| unconfirmed.part(part));
        entries.map(|(_, entry)| u64::from_be_bytes(entry.try_into().unwrap())).collect()
    }

    fn positions(upto: u64) -> Progress {
        let at = EntryId { millis: upto, number: 0 };
        Progress { positions: vec![(0, at), (1, at)], has_all_before: None }
    }

    /// What a process that is killed now leaves.
    fn copy_of(shelf: &Shelf) -> Shelf {
        let files = shelf.place.names().into_iter().map(|name| (name.clone(), shelf.place.read(&name).unwrap()));
        Shelf { place: Place::Memory(Arc::new(Mutex::new(files.collect()))), ..shelf.clone() }
    }

    #[test]
    fn what_memory_has_no_room_for_is_on_disk_until_the_log_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf { place: Place::Folder(folder.path().join("unconfirmed")), entries_in_memory: 10, most_bytes: 1 << 20 };
        // Beside the one that says which database has them.
        let files = || std::fs::read_dir(folder.path().join("unconfirmed")).unwrap().count() - 1;
        let unconfirmed = Unconfirmed::new(shelf.clone());
        (0..95).for_each(|number| unconfirmed.add(7, std::iter::once(sent(number))));
        assert_eq!(numbers(&unconfirmed), (0..95).collect::<Vec<_>>(), "nothing is gone, and all of it is in order");
        assert_eq!((unconfirmed.counts().0, unconfirmed.counts().2, files()), (95, 0, 8));
        unconfirmed.confirm(&positions(45));
        assert_eq!(numbers(&unconfirmed), (40..95).collect::<Vec<_>>(), "a page goes as a whole");
        // Two of a page, and one of those in memory, came too late for the states.
        for part in unconfirmed.parts() {
            let late = [50_u64, 55, 90].map(|number| number.to_be_bytes().to_vec());
            let entries = unconfirmed.part(part);
            unconfirmed.came_late(part, late.into_iter().filter(|late| entries.iter().any(|(_, entry)| entry == late)).collect());
        }
        assert_eq!(unconfirmed.late_count(), 3);
        let bring_late = |unconfirmed: &Unconfirmed| {
            let mut brought: Vec<u64> = Vec::new();
            while let Some(late) = unconfirmed.next_late() {
                brought.extend(late.entries.iter().map(|entry| u64::from_be_bytes(entry.as_slice().try_into().unwrap())));
                unconfirmed.late_is_home(&late);
            }
            brought
        };
        let killed = Unconfirmed::new(copy_of(&shelf));
        assert_eq!((bring_late(&killed), numbers(&killed)), (vec![50, 55], (40..80).filter(|number| ![50, 55].contains(number)).collect()));
        assert_eq!((bring_late(&unconfirmed), unconfirmed.late_count()), (vec![50, 55, 90], 0), "the oldest first");
        assert_eq!(numbers(&unconfirmed), (40..95).filter(|number| ![50, 55, 90].contains(number)).collect::<Vec<_>>());
        unconfirmed.were_sent_again(8, 1_000);
        unconfirmed.confirm(&positions(1_000));
        assert_eq!(unconfirmed.counts().0, 52, "of the other database nothing is known yet");
        unconfirmed.confirm(&positions(1_000 + MARGIN_MILLIS + 1));
        assert_eq!((unconfirmed.counts(), files()), ((0, 0, 0), 0));
        (0..95).for_each(|number| unconfirmed.add(7, std::iter::once(sent(number))));
        let next_life = Unconfirmed::new(shelf);
        assert_eq!(numbers(&next_life), (0..80).collect::<Vec<_>>(), "what was in memory went with the process");
        assert!(!next_life.is_of_another(7) && next_life.is_of_another(9));
        next_life.confirm(&positions(1_000));
        assert_eq!((next_life.counts(), files()), ((0, 0, 0), 0));
    }

    #[test]
    fn entries_of_many_rows_are_bounded_by_their_bytes() {
        let shelf = Shelf { place: Place::default(), entries_in_memory: 1_000, most_bytes: u64::MAX };
        let unconfirmed = Unconfirmed::new(shelf.clone());
        let large = |number: u64| Sent { entry: [&number.to_be_bytes()[..], &vec![0; 500_000]].concat(), ..sent(number) };
        (0..20).for_each(|number| unconfirmed.add(7, std::iter::once(large(number))));
        let in_memory: usize = unconfirmed.part(Part::Recent).iter().map(|(_, entry)| entry.len()).sum();
        assert!(in_memory <= 1_000 * BYTES_OF_ENTRY + PAGE_BYTES, "{in_memory}");
        assert!(shelf.place.names().iter().all(|name| shelf.place.read(name).unwrap().len() <= PAGE_BYTES + 500_000), "pages too");
        let numbers = || -> Vec<u64> {
            let entries = unconfirmed.parts().into_iter().flat_map(|part| unconfirmed.part(part));
            entries.map(|(_, entry)| u64::from_be_bytes(entry[..8].try_into().unwrap())).collect()
        };
        assert_eq!(numbers(), (0..20).collect::<Vec<_>>(), "nothing is gone, and all of it is in order");
        unconfirmed.confirm(&positions(20));
        assert_eq!((numbers(), unconfirmed.lock().recent_bytes), (Vec::new(), 0));
    }

    #[test]
    fn what_is_let_go_of_at_the_bound_is_counted() {
        let unconfirmed = Unconfirmed::new(Shelf { place: Place::default(), entries_in_memory: 10, most_bytes: 500 });
        (0..200).for_each(|number| unconfirmed.add(7, std::iter::once(sent(number))));
        let (kept, bytes, dropped) = unconfirmed.counts();
        assert!(kept + dropped == 200 && dropped > 0 && bytes <= 500, "{kept} {bytes} {dropped}");
        assert_eq!(numbers(&unconfirmed), (200 - kept..200).collect::<Vec<_>>(), "the oldest go first");
    }
}
