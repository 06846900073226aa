//! What the cluster store asks of the shared database, and nothing more.
//!
//! Everything rests on one operation, [`Link::swap`]: compare tokens, set states, append the rows, all or nothing.
//! A token is random and never used twice, so a swap that is sent again after a cut connection finds its own token
//! and does nothing: sending again is always safe.

use crate::files::private_file;
use crate::key::{Names, SECRET_BYTES};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

/// Changes with every write of a cell and is never used twice. 0: the cell does not exist.
pub type Token = u64;

/// What is in a cell. `None`: not there.
pub type Value = Option<(Token, Vec<u8>)>;

/// What [`LinkError::NotOurs`] says when the database is not the one that [`Link::about`] told of.
const EMPTIED: &str = "emptied";

/// A cell's name: its partition and the hash of what it is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName([u8; 18]);

impl CellName {
    pub fn new(partition: u16, hash: u128) -> Self {
        let mut bytes = [0; 18];
        bytes[..2].copy_from_slice(&partition.to_be_bytes());
        bytes[2..].copy_from_slice(&hash.to_be_bytes());
        Self(bytes)
    }

    pub fn partition(&self) -> u16 {
        self.0.first_chunk().copied().map_or(0, u16::from_be_bytes)
    }

    pub fn hash(&self) -> u128 {
        self.0.last_chunk().copied().map_or(0, u128::from_be_bytes)
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:032x}", self.partition(), self.hash())
    }
}

impl fmt::Debug for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellName({self})")
    }
}

#[derive(Debug, Clone)]
pub struct SwapCell {
    pub name: CellName,
    /// The swap is made only when the cell holds this token.
    pub expect: Token,
    pub put: Put,
}

#[derive(Debug, Clone)]
pub enum Put {
    /// Only compare.
    Keep,
    Set {
        token: Token,
        state: Vec<u8>,
        keep_millis: u64,
    },
}

#[derive(Debug, Clone)]
pub struct Swap {
    /// All cells are of this partition, and so is the stream that takes the entry.
    pub partition: u16,
    pub cells: Vec<SwapCell>,
    /// Empty: nothing to log.
    pub entry: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// Made, by this call or by an earlier one that sent the same swap.
    Done,
    /// Nothing was changed: what is there, of each of its cells.
    Raced(Vec<Value>),
    /// Nothing was changed: its stream is at the bound.
    Full,
    /// Nothing was changed: the fence has moved since the last call, and what it was decided on is to be looked at again.
    Fenced,
}

/// Where an entry stands in its partition's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    pub millis: u64,
    pub number: u64,
}

impl EntryId {
    /// The smallest id after this one.
    #[must_use]
    pub fn next(self) -> Self {
        match self.number.checked_add(1) {
            Some(number) => Self { number, ..self },
            None => Self { millis: self.millis.saturating_add(1), number: 0 },
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

/// The text is not an entry's id (`milliseconds-number`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an entry's id: it must be two numbers with a dash between")]
pub struct NotAnEntryId;

impl std::str::FromStr for EntryId {
    type Err = NotAnEntryId;

    fn from_str(text: &str) -> Result<Self, NotAnEntryId> {
        let (millis, number) = text.split_once('-').ok_or(NotAnEntryId)?;
        Ok(Self { millis: millis.parse().map_err(|_| NotAnEntryId)?, number: number.parse().map_err(|_| NotAnEntryId)? })
    }
}

/// What the database says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    pub format: u32,
    pub partitions: u16,
    /// Random, made with the database: another one means that what was in it is lost.
    pub generation: u64,
    /// What its keys are made with, as text; empty: no secret.
    pub secret: String,
}

/// How the database's content is laid out: the second has a secret.
const FORMATS: [u32; 3] = [1, 2, STATES_ANEW];
/// Its states began anew, under other keys than the first ones: nodes that do not know of it must not use it.
pub(crate) const STATES_ANEW: u32 = 3;

/// A database with another secret cannot be used: what is in it would be found under no name.
pub(crate) const OTHER_SECRET: &str = "its states are filed with another secret than this node's log. Give the node an empty data folder, or use the log, or the prefix, that belongs to the database";

impl About {
    /// What a node would make of an empty database.
    pub fn offered(partitions: u16, generation: u64, names: Names) -> Self {
        let secret = names.secret_text();
        Self { format: FORMATS[usize::from(!secret.is_empty())], partitions, generation, secret }
    }

    /// Whether a node that offered this can use a database that says that of itself.
    pub(crate) fn takes(&self, format: u64, partitions: u64) -> bool {
        FORMATS.iter().any(|known| u64::from(*known) == format) && partitions == u64::from(self.partitions)
    }
}

/// The databases that a node was told of.
#[derive(Debug, Default)]
pub(crate) struct Met {
    generation: Option<u64>,
    /// Those whose place another took. What the node knew of their streams went with them, so one that is back is known by its name.
    left: VecDeque<u64>,
}

impl Met {
    pub(crate) fn generation(&self) -> Option<u64> {
        self.generation
    }

    pub(crate) fn is(&self, generation: u64) -> bool {
        self.generation == Some(generation)
    }

    /// Whether this one was put back to an earlier state. `is_older`: it lacks what is known of the one that is met now.
    pub(crate) fn is_put_back(&self, generation: u64, is_older: bool) -> bool {
        self.left.contains(&generation) || (self.is(generation) && is_older)
    }

    /// Whether it is another than before.
    pub(crate) fn meet(&mut self, generation: u64) -> bool {
        let before = self.generation.replace(generation);
        if before == Some(generation) {
            return false;
        }
        self.left.extend(before);
        self.left.drain(..self.left.len().saturating_sub(MOST_LEFT));
        true
    }
}

pub(crate) fn names_of(secret: &str) -> Option<Names> {
    if secret.is_empty() {
        return Some(Names::PLAIN);
    }
    let secret = (secret.len() == 2 * SECRET_BYTES).then(|| u128::from_str_radix(secret, 16).ok())??;
    Some(Names::keyed(secret.to_be_bytes()))
}

/// Where a node keeps the names it has used.
const NAMES_FILE: &str = "names";
const NO_SECRET: &str = "none";

/// The names that this node used when it was last in its cluster.
pub fn names_used(folder: &Path) -> Option<Names> {
    let kept = std::fs::read_to_string(folder.join(NAMES_FILE)).ok()?;
    // A line that is whole has an end.
    match kept.strip_suffix('\n')? {
        NO_SECRET => Some(Names::PLAIN),
        secret => names_of(secret).filter(|names| *names != Names::PLAIN),
    }
}

/// Keeps them for a start while the databases are away.
pub fn keep_names_used(folder: &Path, names: Names) -> std::io::Result<()> {
    use std::io::Write as _;
    if names_used(folder) == Some(names) {
        return Ok(());
    }
    let mut file = private_file().write(true).create(true).truncate(true).open(folder.join(NAMES_FILE))?;
    let secret = names.secret_text();
    writeln!(file, "{}", if secret.is_empty() { NO_SECRET } else { &secret })
}

/// The names that all nodes use: those that the database has, or that the log was made with, or fresh ones where both are empty.
pub async fn agree_on_names(link: &impl Link, kept: Option<Names>, fresh: Names, generation: u64) -> Result<Names, LinkError> {
    let about = link.about(About::offered(link.partitions(), generation, kept.unwrap_or(fresh))).await?;
    let found = names_of(&about.secret).ok_or_else(|| LinkError::NotOurs("its secret cannot be read".into()))?;
    if kept.is_some_and(|kept| kept != found) { Err(LinkError::NotOurs(OTHER_SECRET.to_owned())) } else { Ok(found) }
}

/// Databases remembered that are not the one any more.
const MOST_LEFT: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Not reached, or cut in the middle: whether it was done is not known.
    #[error("the shared database is away: {0}")]
    Away(String),
    /// The server says no: wrong password, not a primary, out of memory.
    #[error("the shared database refuses: {0}")]
    Refused(String),
    /// Another format, other partitions, or emptied since [`Link::about`] was asked.
    #[error("the shared database is not ours: {0}")]
    NotOurs(String),
}

impl LinkError {
    /// The database lost what it had: ask [`Link::about`] again, and build the states anew.
    pub fn emptied() -> Self {
        Self::NotOurs(EMPTIED.to_owned())
    }

    /// Waiting does not mend it.
    pub fn is_wrong_setup(&self) -> bool {
        match self {
            Self::NotOurs(_) => !self.is_emptied(),
            Self::Refused(why) => ["NOPERM", "NOAUTH", "WRONGPASS"].iter().any(|code| why.contains(code)),
            Self::Away(_) => false,
        }
    }

    pub fn is_emptied(&self) -> bool {
        matches!(self, Self::NotOurs(why) if why == EMPTIED)
    }
}

/// How the database stands, beside whether it can be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condition {
    /// In all streams.
    pub stream_entries: u64,
    /// What it does when memory is short, if that is to throw states away.
    pub evicts: Option<String>,
    /// Keys it has thrown away since it was started.
    pub evicted: u64,
    /// It says that it keeps no append-only file: started again, it is as old as its last snapshot, or empty.
    pub without_aof: bool,
}

/// A swap may arrive so much later than its sender waits for the answer: what clocks are apart.
pub const LATE: Duration = Duration::from_millis(250);

/// Nodes that confirm erasures, and when they were last heard of: in seconds, by the database's clock.
pub type NodesSeen = BTreeMap<u64, u64>;

/// What a node says about erasures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// All nodes that are known, but this one, are to confirm.
    Announced(String),
    Confirmed(String),
    Forgotten(String),
}

/// A way to the shared database. Each swap is all or nothing; the swaps of one call are made in order, each on what the
/// one before left. A call may cover many partitions.
pub trait Link: Send + Sync + fmt::Debug + 'static {
    /// What arrives when its sender waits no more does nothing; nor does the first call after a [fence](Link::fence).
    fn swap(&self, swaps: &[Swap]) -> impl Future<Output = Result<Vec<Swapped>, LinkError>> + Send {
        self.swap_under(swaps, None)
    }

    /// The same for what was decided when so many fences [had been met](Link::fences_met): once there is another, nothing is sent, and all of
    /// it is [`Swapped::Fenced`].
    fn swap_under(&self, swaps: &[Swap], fences: Option<u64>) -> impl Future<Output = Result<Vec<Swapped>, LinkError>> + Send;

    /// How often this link has learned that the fence was moved.
    fn fences_met(&self) -> u64;

    /// In the order of `names`.
    fn load(&self, names: Vec<CellName>) -> impl Future<Output = Result<Vec<Value>, LinkError>> + Send;

    /// The database's clock, in milliseconds since 1970.
    fn time(&self) -> impl Future<Output = Result<i64, LinkError>> + Send;

    /// Up to `count` entries of each partition asked for, oldest first, each partition's together. Waits up to
    /// `wait_millis` for the first one; one call at a time.
    fn entries(
        &self,
        after: Vec<(u16, EntryId)>,
        count: usize,
        wait_millis: u64,
    ) -> impl Future<Output = Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError>> + Send;

    /// The last entry of each partition's stream, 0-0 when it is empty.
    fn latest(&self) -> impl Future<Output = Result<Vec<EntryId>, LinkError>> + Send;

    /// Entries up to and including these go.
    fn trim(&self, upto: Vec<(u16, EntryId)>) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// The log has read the streams of the database of this generation up to here.
    fn has_read(&self, generation: u64, positions: &[(u16, EntryId)]);

    /// Swaps that were sent before, and have not arrived, do nothing when they do. Whoever still waits for one hears of it
    /// ([`Swapped::Fenced`]) and sends it again: to everybody it takes place after this.
    fn fence(&self) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// What the server calls itself: another name after every start. 0: not known yet.
    fn server_run(&self) -> u64;

    /// Whether its streams end before what is known of them, or it lacks what this node wrote: it was put back to an earlier state.
    /// What to do about it is [`Link::about`].
    fn is_older(&self) -> impl Future<Output = Result<bool, LinkError>> + Send;

    /// What the database says of itself; creates it with `mine` when it is empty (once, whoever comes first). One that
    /// [is older](Link::is_older) than it was, or whose place another had taken, gets another generation, and has no states. From here
    /// on every swap checks that it is the same database, on a connection on which this was seen: [`LinkError::is_emptied`].
    fn about(&self, mine: About) -> impl Future<Output = Result<About, LinkError>> + Send;

    fn condition(&self) -> impl Future<Output = Result<Condition, LinkError>> + Send;

    fn note_endpoint(&self, label: String) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Sorted.
    fn endpoints(&self) -> impl Future<Output = Result<Vec<String>, LinkError>> + Send;

    fn forget_endpoint(&self, label: String) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Takes or prolongs a lease; true: it is ours for so long. 0 milliseconds give it back (and answer false).
    fn lease(&self, name: &str, holder: u64, millis: u64) -> impl Future<Output = Result<bool, LinkError>> + Send;

    /// A node has files of its own: from here on it is to confirm every erasure that another announces. Said again and again; after 30 days of
    /// silence it counts no more. Whom it knew is known to the database again, should that have lost it. Gives all who are known now.
    fn is_here(&self, node: u64, known: &NodesSeen) -> impl Future<Output = Result<NodesSeen, LinkError>> + Send;

    /// A node says something about what must go from the files of all of them.
    fn say_of_erasures(&self, node: u64, said: Said) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Erasures that were announced, and the nodes that have yet to confirm them.
    fn erasures(&self) -> impl Future<Output = Result<Vec<(String, Vec<u64>)>, LinkError>> + Send;

    fn partitions(&self) -> u16;
}

/// Finds swaps that were made by an earlier call and overtaken by a later swap of the same call.
///
/// The database can tell a repeated swap only by its own token in the cell. In a chain (the second swap builds on the
/// first) the first one's token is gone; but the second could only be made on it, so it was there.
pub(crate) fn settle_chains(swaps: &[Swap], answers: &mut [Swapped]) {
    if answers.iter().all(|answer| !matches!(answer, Swapped::Raced(_))) {
        return;
    }
    let mut built_on: HashSet<Token> = HashSet::new();
    for (swap, answer) in swaps.iter().zip(answers).rev() {
        let overtaken = |cell: &SwapCell| matches!(cell.put, Put::Set { token, .. } if built_on.contains(&token));
        if matches!(answer, Swapped::Raced(_)) && swap.cells.iter().any(overtaken) {
            *answer = Swapped::Done;
        }
        if matches!(answer, Swapped::Done) {
            built_on.extend(swap.cells.iter().map(|cell| cell.expect).filter(|token| *token != 0));
        }
    }
}
