//! Which server answers for which partition.
//!
//! On a plain Redis it is always the same one. In Redis Cluster a partition's keys share a slot and the slot has a home,
//! which moves: a server that is asked for a slot it gave away names the right one (MOVED), and when a home is away a task
//! asks the others who took over. Own code and not the library's cluster client, because that one queues and tries again
//! behind a server that is away, where we must fail at once, and because WAIT must follow its swap on the same line.

use super::OpenError;
use super::address::{HostPort, Kind};
use super::server::{Dialer, Fault, Line, Server, random, text};
use crate::cluster::link::LinkError;
use futures_util::FutureExt as _;
use redis::{Pipeline, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How often one question follows a slot, or waits for one on the move, before it gives up.
const MOST_HOPS: usize = 6;
/// Between questions for a slot on the move, and between looks for one that has no home.
const SHORT_WAIT: Duration = Duration::from_millis(25);
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Servers asked at once where the slots are; others get their turn at the next look.
const ASKED_AT_ONCE: usize = 8;
/// More servers than a cluster should have; what is beyond is not remembered.
const MOST_KNOWN: usize = 1024;
const SLOTS: u16 = 16384;

/// What a question is about, and so which server gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    Partition(u16),
    Meta,
}

impl Home {
    pub(super) fn partition(self) -> Option<u16> {
        match self {
            Self::Partition(partition) => Some(partition),
            Self::Meta => None,
        }
    }
}

pub(super) enum Nodes {
    One(Arc<Server>),
    Many(Cluster),
}

pub(super) struct Cluster {
    map: Arc<Map>,
    watcher: JoinHandle<()>,
}

struct Map {
    dialer: Dialer,
    /// The slot of each partition, and at the end that of the meta keys.
    slots: Vec<u16>,
    table: Mutex<Table>,
    stale: Notify,
}

#[derive(Default)]
struct Table {
    servers: HashMap<HostPort, Arc<Server>>,
    /// In the order of `slots`.
    homes: Vec<HostPort>,
    /// Every server of the cluster that was heard of, replicas too.
    known: Vec<HostPort>,
}

impl Nodes {
    pub(super) async fn open(dialer: Dialer, partitions: u16) -> Result<Nodes, OpenError> {
        let line = dialer.dial().await?;
        match dialer.address.kind {
            Kind::Primary => Ok(Nodes::One(Arc::new(Server::start(dialer, Some(line))))),
            Kind::Cluster => {
                let map = Map::new(dialer, partitions);
                map.look().await.map_err(|detail| OpenError::Busy { place: line.place.to_string(), detail })?;
                Ok(Nodes::Many(Cluster::watched(map)))
            }
        }
    }

    /// Of servers that are not reached yet: they are looked for until they are.
    pub(super) fn open_away(dialer: Dialer, partitions: u16) -> Nodes {
        match dialer.address.kind {
            Kind::Primary => Nodes::One(Arc::new(Server::start(dialer, None))),
            Kind::Cluster => {
                let cluster = Cluster::watched(Map::new(dialer, partitions));
                cluster.map.stale.notify_one();
                Nodes::Many(cluster)
            }
        }
    }

    /// Sends what `questions` makes for the line to the home, wherever it has moved. `may_take` is what the server may take
    /// for it beyond the usual.
    pub(super) async fn ask(
        &self,
        home: Home,
        may_take: Duration,
        questions: impl Fn(&Line, &mut Pipeline) + Send + Sync,
    ) -> Result<Vec<Value>, LinkError> {
        let mut aside: Option<Arc<Server>> = None;
        let mut last = "its slot moves faster than it can be followed".to_owned();
        for _ in 0..MOST_HOPS {
            let mut commands = Pipeline::new();
            let asking = aside.is_some();
            if asking {
                commands.cmd("ASKING");
            }
            let server = match aside.take() {
                Some(server) => server,
                None => self.home(home)?,
            };
            let line = server.line().await.inspect_err(|_| self.look_again())?;
            questions(&line, &mut commands);
            let (answers, fault) = match server.ask(&line, &commands, may_take).await {
                Ok(answers) => (answers, None),
                Err(fault) => (Vec::new(), Some(fault)),
            };
            match (fault, self) {
                (None, _) => return Ok(answers.into_iter().skip(usize::from(asking)).collect()),
                (Some(Fault::NoScript), _) => {
                    server.load_script(&line).await?;
                    aside = asking.then_some(server);
                }
                (Some(Fault::Link(error)), _) => {
                    self.look_again();
                    return Err(error);
                }
                (Some(Fault::Moved(place)), Nodes::Many(cluster)) => {
                    cluster.map.settle(home, place);
                    self.look_again();
                }
                (Some(Fault::Ask(place)), Nodes::Many(cluster)) => aside = Some(cluster.map.server(&place)),
                (Some(Fault::TryAgain(said)), _) => {
                    last = said;
                    tokio::time::sleep(SHORT_WAIT).await;
                }
                (Some(Fault::Moved(place) | Fault::Ask(place)), Nodes::One(_)) => {
                    return Err(LinkError::Refused(format!("it is part of a Redis Cluster (it points to {place}): use redis+cluster://")));
                }
            }
        }
        Err(LinkError::Away(last))
    }

    fn home(&self, home: Home) -> Result<Arc<Server>, LinkError> {
        match self {
            Nodes::One(server) => Ok(Arc::clone(server)),
            Nodes::Many(cluster) => cluster.map.home(home),
        }
    }

    /// Of a single server: what its latest start is called. Those of Redis Cluster come and go one by one.
    pub(super) fn server_run(&self) -> u64 {
        match self {
            Nodes::One(server) => server.run(),
            Nodes::Many(_) => 0,
        }
    }

    fn look_again(&self) {
        match self {
            Nodes::One(_) => {}
            Nodes::Many(cluster) => cluster.map.stale.notify_one(),
        }
    }
}

impl Cluster {
    fn watched(map: Map) -> Self {
        let map = Arc::new(map);
        let watcher = tokio::spawn(Arc::clone(&map).watch().boxed());
        Self { map, watcher }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Map {
    fn new(dialer: Dialer, partitions: u16) -> Self {
        let slots = (0..partitions).map(|partition| slot(partition.to_string().as_bytes())).chain([slot(b"meta")]).collect();
        let table = Table { known: dialer.address.places.clone(), ..Table::default() };
        Self { dialer, slots, table: Mutex::new(table), stale: Notify::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self, home: Home) -> usize {
        match home {
            Home::Partition(partition) => usize::from(partition),
            Home::Meta => self.slots.len() - 1,
        }
    }

    fn home(&self, home: Home) -> Result<Arc<Server>, LinkError> {
        let (place, is_known) = {
            let table = self.table();
            (table.homes.get(self.index(home)).cloned(), !table.homes.is_empty())
        };
        match place {
            Some(place) => Ok(self.server(&place)),
            None if is_known => Err(LinkError::Refused(format!("there is no {home:?}"))),
            None => Err(LinkError::Away("none of its servers was reached yet".to_owned())),
        }
    }

    fn settle(&self, home: Home, place: HostPort) {
        let index = self.index(home);
        if let Some(here) = self.table().homes.get_mut(index) {
            *here = place;
        }
    }

    fn server(&self, place: &HostPort) -> Arc<Server> {
        let mut table = self.table();
        let server = table.servers.entry(place.clone());
        Arc::clone(server.or_insert_with(|| Arc::new(Server::start(self.dialer.at(vec![place.clone()]), None))))
    }

    async fn watch(self: Arc<Self>) {
        loop {
            self.stale.notified().await;
            loop {
                if let Err(detail) = self.look().await {
                    tracing::debug!("no map of the cluster: {detail}");
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                let homes = self.table().homes.clone();
                if !homes.is_empty() && homes.iter().all(|place| self.server(place).is_up()) {
                    break;
                }
            }
        }
    }

    /// Asks where the slots are and takes the answer over.
    async fn look(&self) -> Result<(), String> {
        let mut places = self.table().known.clone();
        // Whoever answers first may know least: each look begins with another one.
        let start = usize::try_from(random() % places.len().max(1) as u64).unwrap_or(0);
        places.rotate_left(start);
        places.truncate(ASKED_AT_ONCE);
        let dialer = self.dialer.at(places);
        let line = dialer.dial().await.map_err(|error| error.to_string())?;
        let place = line.place.clone();
        let server = Server::start(dialer, Some(line.clone()));
        let mut question = Pipeline::new();
        question.cmd("CLUSTER").arg("SLOTS");
        let answers = server.ask(&line, &question, Duration::ZERO).await.map_err(|fault| format!("{fault:?}"))?;
        let ranges = answers.first().map(|answer| read_slots(answer, &place)).unwrap_or_default();
        let home =
            |slot: &u16| ranges.iter().find(|range| (range.first..=range.last).contains(slot)).and_then(|range| range.places.first());
        let homes: Option<Vec<HostPort>> = self.slots.iter().map(|slot| home(slot).cloned()).collect();
        let homes = homes.ok_or_else(|| format!("{place} says that not all slots are served"))?;
        let mut known = self.dialer.address.places.clone();
        known.extend(ranges.into_iter().flat_map(|range| range.places));
        known.sort();
        known.dedup();
        known.truncate(MOST_KNOWN);
        let mut table = self.table();
        table.servers.retain(|place, _| homes.contains(place));
        (table.homes, table.known) = (homes, known);
        Ok(())
    }
}

struct Range {
    first: u16,
    last: u16,
    /// The primary, then its replicas.
    places: Vec<HostPort>,
}

/// Reads what CLUSTER SLOTS answers; a server without a name of its own is where we asked.
fn read_slots(answer: &Value, asked: &HostPort) -> Vec<Range> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    let number = |value: &Value| text(value).parse::<u16>().ok();
    let place = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let host = text(parts.first()?);
        let host = if host.is_empty() || host == "?" { asked.host.clone() } else { host };
        Some(HostPort { host, port: number(parts.get(1)?)? })
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let places: Vec<HostPort> = parts.get(2..)?.iter().filter_map(place).collect();
        Some(Range { first: number(parts.first()?)?, last: number(parts.get(1)?)?, places })
    };
    ranges.iter().filter_map(range).collect()
}

/// The slot of a key with this tag: CRC-16 (XMODEM).
fn slot(tag: &[u8]) -> u16 {
    let step = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    let crc = tag.iter().fold(0_u16, |crc, byte| (0..8).fold(crc ^ u16::from(*byte) << 8, step));
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the algorithm, and slots that CLUSTER KEYSLOT gives.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"0"), 13907);
        assert_eq!(slot(b""), 0);
    }
}
