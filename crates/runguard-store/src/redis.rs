//! The shared database in Redis or Valkey: one server with or without replicas, or Redis Cluster.
//!
//! The only rule written in Lua is "compare, set, append" (`swap.lua`); what the states mean is decided in Rust. One
//! connection carries all swaps: Redis runs them one after the other anyway, and a call carries many. Reading the log has
//! connections of its own, because a read that waits holds up what follows it. A call that fails is not sent again
//! here: the caller knows whether its answer is still wanted, and sending again is safe ([`Link::swap`]).

mod address;
mod call;
mod keys;
mod nodes;
mod options;
mod server;

pub use options::{OpenError, RedisOptions};

use crate::cluster::SharedClock;
use crate::cluster::link::{
    About, CellName, Condition, EntryId, LATE, Link, LinkError, Met, NodesSeen, STATES_ANEW, Said, Swap, Swapped, Value, names_of,
    settle_chains,
};
use crate::key::Names;
use address::{Address, Kind};
use call::{MOST_KEEP_MILLIS, ScriptCall, array, read_entry, read_swapped, read_value, strange};
use futures_util::future::join_all;
use keys::Keys;
use nodes::{Home, Nodes};
use redis::Pipeline;
use redis::Value as Reply;
use server::{random, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

const SWAP: &str = include_str!("redis/swap.lua");
const ABOUT: &str = include_str!("redis/about.lua");
const ENDS: &str = include_str!("redis/ends.lua");
const LEASE: &str = include_str!("redis/lease.lua");
const ERASING: &str = include_str!("redis/erasing.lua");

/// Longer than anybody waits for entries in one call.
const MOST_WAIT_MILLIS: u64 = 30_000;
/// Between two looks for entries where the server cannot wait for us.
const POLL: Duration = Duration::from_millis(20);
/// How long it is remembered how often a node has written; begun again with every look at the database.
const WROTE_MILLIS: u64 = 7 * 24 * 3600 * 1000;
/// How often a database that is being set up by another node is looked at again.
const MOST_ROUNDS: usize = 20;

/// A node's link to the database.
pub struct RedisLink {
    keys: Keys,
    kind: Kind,
    partitions: u16,
    stream_limit: u64,
    replicas: u32,
    timeout: Duration,
    nodes: Nodes,
    /// The same servers again, for what may wait or is large.
    readers: Nodes,
    reading: tokio::sync::Mutex<()>,
    /// Names this node's count of what it wrote.
    writer: u64,
    writes: AtomicU64,
    /// What [`Link::about`] told of.
    known: Mutex<LastMet>,
    /// The server's clock, once it was asked.
    clock: OnceLock<SharedClock>,
    /// It was said that streams may not be asked where they end.
    told_of_rights: AtomicBool,
}

/// The database as this node last met it.
#[derive(Default)]
struct LastMet {
    met: Met,
    /// Which set of states counts: one that came back older than it was begins another. The first has no name.
    states: String,
    /// The last entry of each partition's stream that this node, or the log, knows of.
    ends: Vec<EntryId>,
    /// By home: the last write of this node that was answered. The database counts them too; where it is behind it was put back to
    /// an earlier state, whatever others have written since.
    wrote: BTreeMap<Option<u16>, u64>,
    /// By home: what a command must know to be carried out. An erasure, and a node with rows to bring
    /// home, move it on, and what was under way before does nothing.
    fences: BTreeMap<Option<u16>, String>,
    fences_met: u64,
    /// Connections on which the database was seen to be this one, and not older than that.
    lines: BTreeSet<u64>,
}

impl LastMet {
    fn reached(&mut self, partition: u16, end: EntryId) {
        if let Some(known) = self.ends.get_mut(usize::from(partition)) {
            *known = end.max(*known);
        }
    }

    fn meet_fence(&mut self, home: Option<u16>, fence: Option<String>) {
        if let Some(fence) = fence
            && self.fences.insert(home, fence.clone()) != Some(fence)
        {
            self.fences_met += 1;
        }
    }
}

impl fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLink").field("kind", &self.kind).field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

impl RedisLink {
    /// Connects and checks what it finds. From here on the connections are kept up: what breaks comes back by itself.
    pub async fn open(options: RedisOptions) -> Result<RedisLink, OpenError> {
        let dialer = options.dialer()?;
        let nodes = Nodes::open(dialer.clone(), options.partitions).await?;
        let readers = Nodes::open(dialer, options.partitions).await?;
        Self::over(options, nodes, readers)
    }

    /// A link to a database that is away: it is there as soon as it can be reached.
    pub fn open_away(options: RedisOptions) -> Result<RedisLink, OpenError> {
        let dialer = options.dialer()?;
        let nodes = Nodes::open_away(dialer.clone(), options.partitions);
        let readers = Nodes::open_away(dialer, options.partitions);
        Self::over(options, nodes, readers)
    }

    fn over(options: RedisOptions, nodes: Nodes, readers: Nodes) -> Result<RedisLink, OpenError> {
        let kind = Address::parse(&options.url)?.kind;
        Ok(RedisLink {
            keys: Keys { prefix: options.prefix },
            kind,
            partitions: options.partitions,
            stream_limit: options.stream_limit,
            replicas: options.replicas,
            timeout: options.timeout,
            nodes,
            readers,
            reading: tokio::sync::Mutex::new(()),
            writer: random(),
            writes: AtomicU64::new(0),
            known: Mutex::default(),
            clock: OnceLock::new(),
            told_of_rights: AtomicBool::new(false),
        })
    }

    /// How the names of a database that is there become keys; `None` where nothing is in it.
    pub async fn kept_names(&self) -> Result<Option<Names>, LinkError> {
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("HMGET").arg(self.keys.about()).arg("generation").arg("secret");
        });
        match array(answer.await?)?.as_slice() {
            [Reply::Nil, _] => Ok(None),
            [_, secret] => names_of(&text(secret)).map(Some).ok_or_else(|| LinkError::NotOurs("its secret cannot be read".into())),
            _ => Err(strange()),
        }
    }

    fn known(&self) -> MutexGuard<'_, LastMet> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_partitions(&self, mut asked: impl Iterator<Item = u16>) -> Result<(), LinkError> {
        match asked.find(|partition| *partition >= self.partitions) {
            None => Ok(()),
            Some(partition) => Err(LinkError::Refused(format!("there is no partition {partition}, only {}", self.partitions))),
        }
    }

    /// Asks one thing of the home's server.
    async fn one(&self, home: Home, question: impl Fn(&mut Pipeline) + Send + Sync) -> Result<Reply, LinkError> {
        let answers = self.nodes.ask(home, Duration::ZERO, |_, commands| question(commands)).await?;
        answers.into_iter().next().ok_or_else(strange)
    }

    /// Asks the same of every partition: at once on one server, of each home in Redis Cluster.
    async fn each(
        &self,
        nodes: &Nodes,
        partitions: &[u16],
        question: impl Fn(&mut Pipeline, usize) + Send + Sync,
    ) -> Result<Vec<Reply>, LinkError> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let question = &question;
        let answers: Vec<Reply> = match self.kind {
            Kind::Primary => {
                let all = |commands: &mut Pipeline| (0..partitions.len()).for_each(|index| question(commands, index));
                nodes.ask(Home::Meta, Duration::ZERO, |_, commands| all(commands)).await?
            }
            Kind::Cluster => {
                let asked = partitions.iter().enumerate().map(|(index, partition)| {
                    nodes.ask(Home::Partition(*partition), Duration::ZERO, move |_, commands| question(commands, index))
                });
                let answers: Result<Vec<Vec<Reply>>, LinkError> = join_all(asked).await.into_iter().collect();
                answers?.into_iter().flatten().collect()
            }
        };
        if answers.len() == partitions.len() { Ok(answers) } else { Err(strange()) }
    }

    /// One call of the script. All swaps are of one partition in Redis Cluster.
    /// And how the fence stands, where it has moved.
    async fn swap_at(&self, home: Home, swaps: &[Swap], fences: Option<u64>) -> Result<(Vec<Swapped>, Option<String>), LinkError> {
        let (call, generation, fence) = {
            let known = self.known();
            if fences.is_some_and(|fences| fences != known.fences_met) {
                return Ok((vec![Swapped::Fenced; swaps.len()], None));
            }
            let wrote = self.keys.wrote(home.partition(), self.writer);
            let call = ScriptCall::write(&self.keys, wrote, &known.states, home, self.stream_limit, swaps);
            (call, known.met.generation(), known.fences.get(&home.partition()).cloned().unwrap_or_default())
        };
        let deadline = self.clock.get().map_or_else(String::new, |clock| {
            let waits = i64::try_from((self.timeout + LATE).as_millis()).unwrap_or(i64::MAX);
            clock.now_millis().saturating_add(waits).to_string()
        });
        let write = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        let replicas = self.replicas;
        let wait = if replicas > 0 { self.timeout / 2 } else { Duration::ZERO };
        let answers = self.nodes.ask(home, wait, |line, commands| {
            let command = commands.cmd("EVALSHA").arg(&*line.swap_hash).arg(call.keys.len());
            command.arg(&call.keys);
            match generation {
                None => command.arg(""),
                // On a connection that nobody has looked through no generation is the right one.
                Some(_) if !self.known().lines.contains(&line.number) => command.arg("-"),
                Some(generation) => command.arg(generation),
            };
            command.arg(&fence).arg(&deadline).arg(write).arg(WROTE_MILLIS);
            for argument in &call.arguments {
                command.arg(&**argument);
            }
            if replicas > 0 {
                commands.cmd("WAIT").arg(replicas).arg(wait.as_millis().max(1) as u64);
            }
        });
        let mut answers = answers.await?.into_iter();
        let swapped = match answers.next() {
            Some(Reply::Nil) => return Err(LinkError::emptied()),
            Some(Reply::BulkString(fence)) => {
                return Ok((vec![Swapped::Fenced; swaps.len()], Some(String::from_utf8_lossy(&fence).into_owned())));
            }
            Some(Reply::Int(0)) => return Err(LinkError::Away("what was sent arrived too late, and nothing of it was done".to_owned())),
            Some(Reply::Array(mut answers)) if answers.len() == swaps.len() + 1 => {
                let added = array(answers.pop().unwrap_or(Reply::Nil))?;
                let mut known = self.known();
                for (partition, end) in call.streams.iter().zip(added) {
                    if let Ok(end) = text(&end).parse() {
                        known.reached(*partition, end);
                        let wrote = known.wrote.entry(home.partition()).or_default();
                        *wrote = write.max(*wrote);
                    }
                }
                drop(known);
                answers.into_iter().map(read_swapped).collect::<Option<Vec<_>>>()
            }
            Some(_) | None => None,
        };
        let mut swapped = swapped.ok_or_else(strange)?;
        if replicas > 0 && swapped.contains(&Swapped::Done) {
            match answers.next() {
                Some(Reply::Int(found)) if found >= i64::from(replicas) => {}
                Some(Reply::Int(found)) => {
                    return Err(LinkError::Away(format!(
                        "only {found} of {replicas} replicas have it, and it could be lost with the primary"
                    )));
                }
                Some(_) | None => return Err(strange()),
            }
        }
        settle_chains(swaps, &mut swapped);
        Ok((swapped, None))
    }

    /// Gives every partition the generation, then says so.
    async fn mark(&self, generation: u64) -> Result<(), LinkError> {
        let partitions: Vec<u16> = (0..self.partitions).collect();
        self.each(&self.nodes, &partitions, |commands, index| {
            commands.cmd("HSET").arg(self.keys.mark(partitions[index])).arg("generation").arg(generation);
        })
        .await?;
        self.one(Home::Meta, |commands| {
            commands.cmd("HSET").arg(self.keys.about()).arg("marked").arg(generation);
        })
        .await?;
        Ok(())
    }

    async fn all_marked(&self, generation: u64) -> Result<bool, LinkError> {
        let partitions: Vec<u16> = (0..self.partitions).collect();
        let marks = self.each(&self.nodes, &partitions, |commands, index| {
            commands.cmd("HGET").arg(self.keys.mark(partitions[index])).arg("generation");
        });
        Ok(marks.await?.iter().all(|mark| text(mark) == generation.to_string()))
    }

    /// Whether the streams end where they did, and the database has what this node wrote. If not, it was put back to an earlier
    /// state. And the connections asked.
    async fn came_back_older(&self) -> Result<(bool, BTreeSet<u64>), LinkError> {
        let partitions: Vec<u16> = (0..self.partitions).collect();
        // Before the question: what is added while it is under way is no sign of anything.
        let (expected, wrote) = {
            let known = self.known();
            (known.ends.clone(), known.wrote.clone())
        };
        let lines = Mutex::new(BTreeSet::new());
        let ask = |home: Home, partitions: Vec<u16>| {
            let lines = &lines;
            let mut keys = vec![self.keys.wrote(home.partition(), self.writer)];
            keys.extend(partitions.iter().map(|partition| self.keys.log(*partition)));
            self.nodes.ask(home, Duration::ZERO, move |line, commands| {
                lines.lock().unwrap_or_else(PoisonError::into_inner).insert(line.number);
                commands.cmd("EVAL").arg(ENDS).arg(keys.len()).arg(&keys).arg(WROTE_MILLIS);
            })
        };
        let mut answers: Vec<(Option<u16>, Reply)> = Vec::new();
        match self.kind {
            Kind::Primary => answers.extend(ask(Home::Meta, partitions.clone()).await?.into_iter().map(|answer| (None, answer))),
            Kind::Cluster => {
                // The meta keys have a home of their own, and swaps go to it as well.
                let homes = partitions.iter().map(|partition| ask(Home::Partition(*partition), vec![*partition]));
                for (answered, partition) in join_all(homes).await.into_iter().zip(&partitions) {
                    answers.extend(answered?.into_iter().map(|answer| (Some(*partition), answer)));
                }
            }
        }
        let mut is_older = false;
        let mut ends = Vec::with_capacity(partitions.len());
        for (home, answer) in answers {
            let mut found = array(answer)?.into_iter();
            let counted: u64 = found.next().and_then(|counted| text(&counted).parse().ok()).unwrap_or(0);
            is_older |= wrote.get(&home).is_some_and(|wrote| counted < *wrote);
            ends.extend(found);
        }
        for (found, expected) in ends.iter().zip(&expected) {
            match text(found).parse::<EntryId>() {
                Ok(end) => is_older |= end < *expected,
                Err(_) if self.told_of_rights.swap(true, Ordering::Relaxed) => {}
                Err(_) => tracing::warn!(
                    "Redis does not let us ask where its streams end, so a database that comes back older than it was is not noticed. Give its user +xinfo|stream"
                ),
            }
        }
        Ok((is_older, lines.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    async fn read_entries(
        &self,
        after: &[(u16, EntryId)],
        count: usize,
        wait_millis: u64,
    ) -> Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError> {
        match self.kind {
            Kind::Primary => {
                let may_take = Duration::from_millis(wait_millis) * 2;
                let asked = self.readers.ask(Home::Meta, may_take, |_, commands| {
                    let command = commands.cmd("XREAD").arg("COUNT").arg(count.max(1));
                    if wait_millis > 0 {
                        command.arg("BLOCK").arg(wait_millis);
                    }
                    command.arg("STREAMS");
                    for (partition, _) in after {
                        command.arg(self.keys.log(*partition));
                    }
                    for (_, id) in after {
                        command.arg(id.to_string());
                    }
                });
                let answer = asked.await?.into_iter().next().ok_or_else(strange)?;
                self.read_streams(after, answer)
            }
            Kind::Cluster => {
                let partitions: Vec<u16> = after.iter().map(|(partition, _)| *partition).collect();
                let end = Instant::now() + Duration::from_millis(wait_millis);
                loop {
                    let asked = self.each(&self.readers, &partitions, |commands, index| {
                        let (partition, id) = after[index];
                        let command = commands.cmd("XREAD").arg("COUNT").arg(count.max(1)).arg("STREAMS");
                        command.arg(self.keys.log(partition)).arg(id.to_string());
                    });
                    let mut found = Vec::new();
                    for (index, answer) in asked.await?.into_iter().enumerate() {
                        found.extend(self.read_streams(&after[index..=index], answer)?);
                    }
                    if !found.is_empty() || Instant::now() + POLL > end {
                        return Ok(found);
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }

    fn read_streams(&self, asked: &[(u16, EntryId)], answer: Reply) -> Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError> {
        let mut found = Vec::new();
        let streams = match answer {
            Reply::Nil => return Ok(found),
            Reply::Array(streams) => streams,
            _ => return Err(strange()),
        };
        for stream in streams {
            let [name, Reply::Array(entries)] = <[Reply; 2]>::try_from(array(stream)?).map_err(|_| strange())? else {
                return Err(strange());
            };
            let name = text(&name);
            let partition = asked.iter().map(|(partition, _)| *partition).find(|partition| self.keys.log(*partition) == name);
            let partition = partition.ok_or_else(strange)?;
            for entry in entries {
                let (id, entry) = read_entry(entry)?;
                found.push((partition, id, entry));
            }
        }
        Ok(found)
    }
}

impl Link for RedisLink {
    async fn swap_under(&self, swaps: &[Swap], fences: Option<u64>) -> Result<Vec<Swapped>, LinkError> {
        self.check_partitions(swaps.iter().map(|swap| swap.partition))?;
        self.check_partitions(swaps.iter().flat_map(|swap| &swap.cells).map(|cell| cell.name.partition()))?;
        if swaps.is_empty() {
            return Ok(Vec::new());
        }
        if self.kind == Kind::Primary {
            let (answers, fence) = self.swap_at(Home::Meta, swaps, fences).await?;
            self.known().meet_fence(Home::Meta.partition(), fence);
            return Ok(answers);
        }
        let mut places: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        let mut groups: BTreeMap<u16, Vec<Swap>> = BTreeMap::new();
        let count = swaps.len();
        for (index, swap) in swaps.iter().enumerate() {
            places.entry(swap.partition).or_default().push(index);
            groups.entry(swap.partition).or_default().push(swap.clone());
        }
        let calls = groups.iter().map(|(partition, swaps)| self.swap_at(Home::Partition(*partition), swaps, fences));
        let answered: Result<Vec<_>, LinkError> = join_all(calls).await.into_iter().collect();
        let mut answers = vec![Swapped::Full; count];
        // Each partition has a fence of its own. Learned only with the whole answer: who sends all of it again must not be let through
        // without having looked.
        for ((of_partition, fence), (partition, places)) in answered?.into_iter().zip(places) {
            self.known().meet_fence(Home::Partition(partition).partition(), fence);
            for (answer, place) in of_partition.into_iter().zip(places) {
                answers[place] = answer;
            }
        }
        Ok(answers)
    }

    fn fences_met(&self) -> u64 {
        self.known().fences_met
    }

    async fn load(&self, names: Vec<CellName>) -> Result<Vec<Value>, LinkError> {
        self.check_partitions(names.iter().map(CellName::partition))?;
        let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            let group = if self.kind == Kind::Primary { 0 } else { name.partition() };
            groups.entry(group).or_default().push(index);
        }
        let partitions: Vec<u16> = groups.keys().copied().collect();
        let groups: Vec<Vec<usize>> = groups.into_values().collect();
        let states = self.known().states.clone();
        let asked = self.each(&self.nodes, &partitions, |commands, group| {
            let command = commands.cmd("MGET");
            for index in &groups[group] {
                command.arg(self.keys.cell(&states, &names[*index]));
            }
        });
        let mut values = vec![None; names.len()];
        for (answer, group) in asked.await?.into_iter().zip(&groups) {
            for (value, index) in array(answer)?.into_iter().zip(group) {
                values[*index] = read_value(value).ok_or_else(strange)?;
            }
        }
        Ok(values)
    }

    async fn time(&self) -> Result<i64, LinkError> {
        let asked = Instant::now();
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("TIME");
        });
        let parts: Option<Vec<i64>> = array(answer.await?)?.iter().map(|part| text(part).parse().ok()).collect();
        let Some([seconds, micros]) = parts.as_deref() else { return Err(strange()) };
        let millis = seconds * 1000 + micros / 1000;
        self.clock.get_or_init(|| SharedClock::new(millis)).learn(millis, asked);
        Ok(millis)
    }

    async fn entries(&self, after: Vec<(u16, EntryId)>, count: usize, wait_millis: u64) -> Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError> {
        self.check_partitions(after.iter().map(|(partition, _)| *partition))?;
        if after.is_empty() {
            return Ok(Vec::new());
        }
        let _one_at_a_time = self.reading.lock().await;
        self.read_entries(&after, count, wait_millis.min(MOST_WAIT_MILLIS)).await
    }

    async fn latest(&self) -> Result<Vec<EntryId>, LinkError> {
        let partitions: Vec<u16> = (0..self.partitions).collect();
        let asked = self.each(&self.nodes, &partitions, |commands, index| {
            commands.cmd("XREVRANGE").arg(self.keys.log(partitions[index])).arg("+").arg("-").arg("COUNT").arg(1);
        });
        let mut latest = Vec::with_capacity(partitions.len());
        for answer in asked.await? {
            latest.push(match array(answer)?.into_iter().next() {
                Some(entry) => read_entry(entry)?.0,
                None => EntryId::default(),
            });
        }
        Ok(latest)
    }

    async fn trim(&self, upto: Vec<(u16, EntryId)>) -> Result<(), LinkError> {
        self.check_partitions(upto.iter().map(|(partition, _)| *partition))?;
        let partitions: Vec<u16> = upto.iter().map(|(partition, _)| *partition).collect();
        let asked = self.each(&self.nodes, &partitions, |commands, index| {
            let (partition, upto) = upto[index];
            commands.cmd("XTRIM").arg(self.keys.log(partition)).arg("MINID").arg(upto.next().to_string());
        });
        asked.await.map(drop)
    }

    fn has_read(&self, generation: u64, positions: &[(u16, EntryId)]) {
        let mut known = self.known();
        if !known.met.is(generation) {
            return;
        }
        for (partition, end) in positions {
            known.reached(*partition, *end);
        }
    }

    fn server_run(&self) -> u64 {
        self.nodes.server_run()
    }

    async fn fence(&self) -> Result<(), LinkError> {
        let fence = random();
        let move_on = |commands: &mut Pipeline, key: String| {
            commands.cmd("HSET").arg(key).arg("fence").arg(fence);
        };
        match self.kind {
            Kind::Primary => self.one(Home::Meta, |commands| move_on(commands, self.keys.about())).await.map(drop),
            Kind::Cluster => {
                let partitions: Vec<u16> = (0..self.partitions).collect();
                let moved = self.each(&self.nodes, &partitions, |commands, index| move_on(commands, self.keys.mark(partitions[index])));
                moved.await.map(drop)
            }
        }
    }

    async fn is_older(&self) -> Result<bool, LinkError> {
        Ok(self.came_back_older().await?.0)
    }

    /// `mine.generation` must be random each time: it also takes the place of one that lost something.
    async fn about(&self, mine: About) -> Result<About, LinkError> {
        let mut lost: Option<u64> = None;
        let mut states_anew = String::new();
        for _ in 0..MOST_ROUNDS {
            let offered = if lost == Some(mine.generation) { mine.generation.wrapping_add(1) } else { mine.generation };
            let answer = self.one(Home::Meta, |commands| {
                let command = commands.cmd("EVAL").arg(ABOUT).arg(1).arg(self.keys.about());
                command
                    .arg(mine.format)
                    .arg(mine.partitions)
                    .arg(offered)
                    .arg(lost.map_or_else(String::new, |lost| lost.to_string()))
                    .arg(&mine.secret)
                    .arg(&states_anew);
            });
            let mut parts = array(answer.await?)?;
            // Databases of earlier versions have none.
            let secret = parts.pop().map(|secret| text(&secret)).unwrap_or_default();
            let states = parts.pop().map(|states| text(&states)).unwrap_or_default();
            let numbers: Option<Vec<u64>> = parts.iter().map(|part| text(part).parse().ok()).collect();
            let Some([format, partitions, generation, marked]) = numbers.as_deref() else {
                return Err(LinkError::NotOurs(format!(
                    "the key {} is there, but it is not RunGuard's. Set another prefix",
                    self.keys.about()
                )));
            };
            if !mine.takes(*format, *partitions) {
                return Err(LinkError::NotOurs(format!(
                    "it has format {format} with {partitions} partitions, this node wants format {} with {}. Set the partitions to what the database has, or use another prefix or database; nodes of different versions cannot share one",
                    mine.format, mine.partitions
                )));
            }
            if self.kind == Kind::Cluster {
                if marked != generation {
                    self.mark(*generation).await?;
                    continue;
                }
                if !self.all_marked(*generation).await? {
                    lost = Some(*generation);
                    continue;
                }
            }
            let (is_older, lines) = self.came_back_older().await?;
            let mut known = self.known();
            if known.met.is_put_back(*generation, is_older) {
                (lost, states_anew) = (Some(*generation), STATES_ANEW.to_string());
                continue;
            }
            if known.met.meet(*generation) {
                (known.ends, known.wrote) = (vec![EntryId::default(); usize::from(self.partitions)], BTreeMap::new());
            }
            (known.states, known.lines) = (states, lines);
            drop(known);
            return Ok(About { format: *format as u32, partitions: mine.partitions, generation: *generation, secret });
        }
        Err(LinkError::Away("the database is being set up by another node".to_owned()))
    }

    async fn condition(&self) -> Result<Condition, LinkError> {
        let runs = Mutex::new(BTreeSet::new());
        let ask = |home: Home, partitions: Vec<u16>| {
            let runs = &runs;
            async move {
                let run = AtomicU64::new(0);
                let asked = self.nodes.ask(home, Duration::ZERO, |line, commands| {
                    run.store(line.run, Ordering::Relaxed);
                    for section in ["memory", "stats", "persistence"] {
                        commands.cmd("INFO").arg(section);
                    }
                    for partition in &partitions {
                        commands.cmd("XLEN").arg(self.keys.log(*partition));
                    }
                });
                let mut answers = asked.await?.into_iter();
                let [memory, stats, persistence] = [(); 3].map(|()| answers.next().map(|answer| text(&answer)).unwrap_or_default());
                let stream_entries = answers.filter_map(|answer| text(&answer).parse::<u64>().ok()).sum();
                // A server that is home to several partitions tells the same of itself each time.
                let is_first = runs.lock().unwrap_or_else(PoisonError::into_inner).insert(run.into_inner());
                Ok(Condition {
                    stream_entries,
                    evicts: server::policy_that_evicts(&memory),
                    evicted: if is_first { server::evicted_keys(&stats) } else { 0 },
                    without_aof: server::is_without_aof(&persistence),
                })
            }
        };
        match self.kind {
            Kind::Primary => ask(Home::Meta, (0..self.partitions).collect()).await,
            Kind::Cluster => {
                let homes = (0..self.partitions).map(|partition| ask(Home::Partition(partition), vec![partition]));
                let mut all = Condition::default();
                for one in join_all(homes).await {
                    let Condition { stream_entries, evicts, evicted, without_aof } = one?;
                    all.stream_entries += stream_entries;
                    all.evicted += evicted;
                    all.evicts = all.evicts.or(evicts);
                    all.without_aof |= without_aof;
                }
                Ok(all)
            }
        }
    }

    async fn note_endpoint(&self, label: String) -> Result<(), LinkError> {
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("SADD").arg(self.keys.endpoints()).arg(&label);
        });
        answer.await.map(drop)
    }

    async fn endpoints(&self) -> Result<Vec<String>, LinkError> {
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("SMEMBERS").arg(self.keys.endpoints());
        });
        let mut labels: Vec<String> = array(answer.await?)?.iter().map(text).collect();
        labels.sort_unstable();
        Ok(labels)
    }

    async fn forget_endpoint(&self, label: String) -> Result<(), LinkError> {
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("SREM").arg(self.keys.endpoints()).arg(&label);
        });
        answer.await.map(drop)
    }

    async fn lease(&self, name: &str, holder: u64, millis: u64) -> Result<bool, LinkError> {
        let millis = millis.min(MOST_KEEP_MILLIS);
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("EVAL").arg(LEASE).arg(1).arg(self.keys.lease(name)).arg(holder).arg(millis);
        });
        Ok(matches!(answer.await?, Reply::Int(1)))
    }

    async fn is_here(&self, node: u64, known: &NodesSeen) -> Result<NodesSeen, LinkError> {
        let answer = self.one(Home::Meta, |commands| {
            let keys = [self.keys.nodes(), self.keys.erasures()];
            let command = commands.cmd("EVAL").arg(ERASING).arg(keys.len()).arg(&keys).arg("here").arg(node).arg("");
            for (other, seen) in known {
                command.arg(other).arg(seen);
            }
        });
        let parts: Vec<String> = array(answer.await?)?.iter().map(text).collect();
        let seen = |pair: &[String]| Some((pair[0].parse().ok()?, pair[1].parse().ok()?));
        Ok(parts.chunks_exact(2).filter_map(seen).collect())
    }

    async fn say_of_erasures(&self, node: u64, said: Said) -> Result<(), LinkError> {
        let (verb, erasure) = match &said {
            Said::Announced(erasure) => ("announced", erasure.as_str()),
            Said::Confirmed(erasure) => ("confirmed", erasure.as_str()),
            Said::Forgotten(erasure) => ("forgotten", erasure.as_str()),
        };
        let answer = self.one(Home::Meta, |commands| {
            let keys = [self.keys.nodes(), self.keys.erasures()];
            commands.cmd("EVAL").arg(ERASING).arg(keys.len()).arg(&keys).arg(verb).arg(node).arg(erasure);
        });
        answer.await.map(drop)
    }

    async fn erasures(&self) -> Result<Vec<(String, Vec<u64>)>, LinkError> {
        let answer = self.one(Home::Meta, |commands| {
            commands.cmd("HGETALL").arg(self.keys.erasures());
        });
        let parts: Vec<String> = array(answer.await?)?.iter().map(text).collect();
        let nodes = |waiting: &str| waiting.split(',').filter_map(|node| node.parse().ok()).collect();
        Ok(parts.chunks_exact(2).map(|pair| (pair[0].clone(), nodes(&pair[1]))).collect())
    }

    fn partitions(&self) -> u16 {
        self.partitions
    }
}

/// Whether an address can be read.
#[cfg(feature = "fuzzing")]
pub(crate) fn check_address(url: &str) -> Result<(), OpenError> {
    Address::parse(url).map(drop)
}
