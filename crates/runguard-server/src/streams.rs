//! Who listens to decisions as they happen.
//!
//! One follower reads each row of the log once, writes it down as an event once, and hands it to those whose filter it passes. A
//! stream that hears of nothing costs nothing: it is not woken, and its filter is asked only about rows of its tenant and its
//! session. Nobody waits for a reader: what it has not taken gathers in its mailbox, and when that is full it is told so, reads the log
//! itself from where it is, and joins again. So a slow reader loses nothing and slows nobody.

use crate::auth;
use crate::routes::events;
use crate::service::App;
use bytes::Bytes;
use runguard_engine::{Caller, KeyRing};
use runguard_store::{RowFilter, RowRef};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

/// Rows gather for this long before they are read: a busy service is asked fifty times a second, not a thousand.
const GATHER: Duration = Duration::from_millis(20);
/// Rows read at a time, so that no snapshot of the log is held for long.
const PAGE_ROWS: u64 = 1000;
/// What waits for one stream. Beyond either it is told to read the log.
const MOST_WAITING: usize = 256;
const MOST_WAITING_BYTES: usize = 1024 * 1024;
/// How often keys are looked at; the pulse of the keep-alives too.
const BEAT: Duration = Duration::from_secs(1);
/// A stream that was sent nothing for this many beats is sent a line, so that a dead connection is noticed.
const BEATS_OF_SILENCE: u64 = 15;
/// When the log cannot be read.
const AFTER_TROUBLE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamLimits {
    pub(crate) overall: usize,
    pub(crate) per_key: usize,
}

/// Why a stream is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooMany {
    Overall(usize),
    OfKey(usize),
}

/// All that listen.
#[derive(Debug)]
pub(crate) struct Streams {
    limits: StreamLimits,
    hall: Mutex<Hall>,
    /// The first one came.
    someone: Notify,
}

#[derive(Debug, Default)]
struct Hall {
    /// The last row that everyone who listens was offered.
    offered: u64,
    next_number: u64,
    members: HashMap<u64, Member>,
    of_key: HashMap<String, usize>,
    rooms: Rooms,
}

#[derive(Debug)]
struct Member {
    caller: Arc<Caller>,
    mailbox: Arc<Mailbox>,
}

/// Streams with the same filter are asked about a row once.
#[derive(Debug)]
struct Room {
    filter: RowFilter,
    members: Vec<(u64, Arc<Mailbox>)>,
}

/// Rooms by what tells most rows apart, so that a row finds its own without asking all.
#[derive(Debug, Default)]
struct Rooms {
    of_any_tenant: Vec<Room>,
    of_tenant: HashMap<String, RoomsOfTenant>,
}

#[derive(Debug, Default)]
struct RoomsOfTenant {
    of_any_session: Vec<Room>,
    of_session: HashMap<String, Vec<Room>>,
}

impl Rooms {
    fn enter(&mut self, filter: &RowFilter, number: u64, mailbox: Arc<Mailbox>) {
        let rooms = match (&filter.tenant, &filter.session) {
            (None, _) => &mut self.of_any_tenant,
            (Some(tenant), None) => &mut self.of_tenant.entry(tenant.clone()).or_default().of_any_session,
            (Some(tenant), Some(session)) => {
                self.of_tenant.entry(tenant.clone()).or_default().of_session.entry(session.clone()).or_default()
            }
        };
        match rooms.iter_mut().find(|room| room.filter == *filter) {
            Some(room) => room.members.push((number, mailbox)),
            None => rooms.push(Room { filter: filter.clone(), members: vec![(number, mailbox)] }),
        }
    }

    fn leave(&mut self, filter: &RowFilter, number: u64) {
        let without = |rooms: &mut Vec<Room>| {
            for room in rooms.iter_mut().filter(|room| room.filter == *filter) {
                room.members.retain(|(member, _)| *member != number);
            }
            rooms.retain(|room| !room.members.is_empty());
        };
        let Some(tenant) = &filter.tenant else { return without(&mut self.of_any_tenant) };
        let Some(of_tenant) = self.of_tenant.get_mut(tenant) else { return };
        match &filter.session {
            None => without(&mut of_tenant.of_any_session),
            Some(session) => {
                if let Some(rooms) = of_tenant.of_session.get_mut(session) {
                    without(rooms);
                }
                of_tenant.of_session.retain(|_, rooms| !rooms.is_empty());
            }
        }
        if of_tenant.of_any_session.is_empty() && of_tenant.of_session.is_empty() {
            self.of_tenant.remove(tenant);
        }
    }

    fn for_row<'a>(&'a self, row: &'a RowRef<'_>) -> impl Iterator<Item = &'a Arc<Mailbox>> {
        let of_tenant = self.of_tenant.get(row.tenant);
        let of_session = of_tenant.and_then(|rooms| rooms.of_session.get(row.session));
        let rooms = self.of_any_tenant.iter().chain(of_tenant.into_iter().flat_map(|rooms| &rooms.of_any_session));
        let rooms = rooms.chain(of_session.into_iter().flatten());
        rooms.filter(move |room| room.filter.matches(row)).flat_map(|room| room.members.iter().map(|(_, mailbox)| mailbox))
    }
}

/// What waits for one stream.
#[derive(Debug, Default)]
struct Mailbox {
    waiting: Mutex<Waiting>,
    woken: Notify,
    ending: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Something did not fit: from here on the log must be read.
    overrun: bool,
    /// Nothing was put in since the last look.
    quiet: bool,
    keep_alive: bool,
    ended: bool,
}

/// What a stream is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Rows with their numbers, in order.
    Events(Vec<(u64, Bytes)>),
    /// Nothing happened for a while.
    Silence,
    /// It was too slow: the log has what it missed.
    Behind,
    /// The service stops, or the key was revoked.
    End,
}

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, seq: u64, event: &Bytes) {
        let mut waiting = self.waiting();
        waiting.quiet = false;
        if waiting.overrun {
            return;
        }
        if waiting.events.len() >= MOST_WAITING || waiting.bytes + event.len() > MOST_WAITING_BYTES {
            (waiting.overrun, waiting.bytes) = (true, 0);
            waiting.events.clear();
        } else {
            waiting.bytes += event.len();
            waiting.events.push_back((seq, event.clone()));
        }
        drop(waiting);
        self.woken.notify_one();
    }

    fn end(&self) {
        self.waiting().ended = true;
        self.woken.notify_one();
        self.ending.notify_waiters();
    }

    fn take(&self) -> Option<News> {
        let mut waiting = self.waiting();
        if waiting.ended {
            return Some(News::End);
        }
        if waiting.overrun {
            return Some(News::Behind);
        }
        if !waiting.events.is_empty() {
            waiting.bytes = 0;
            return Some(News::Events(std::mem::take(&mut waiting.events).into()));
        }
        std::mem::take(&mut waiting.keep_alive).then_some(News::Silence)
    }
}

/// One who listens, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    streams: Arc<Streams>,
    number: u64,
    filter: RowFilter,
    mailbox: Arc<Mailbox>,
}

impl Listener {
    pub(crate) fn filter(&self) -> &RowFilter {
        &self.filter
    }

    /// Listens from here on. Gives the last row that will not be in the mailbox: up to it the log must be read.
    pub(crate) fn join(&self) -> u64 {
        let hall = self.streams.hall();
        let mut waiting = self.mailbox.waiting();
        waiting.events.clear();
        (waiting.overrun, waiting.bytes) = (false, 0);
        hall.offered
    }

    pub(crate) async fn next(&self) -> News {
        loop {
            if let Some(news) = self.mailbox.take() {
                return news;
            }
            self.mailbox.woken.notified().await;
        }
    }

    /// Comes back when the stream is over.
    pub(crate) async fn ended(&self) {
        let ending = self.mailbox.ending.notified();
        let ended = self.mailbox.waiting().ended;
        if !ended {
            ending.await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.streams.hall().leave(&self.filter, self.number);
    }
}

impl Hall {
    fn leave(&mut self, filter: &RowFilter, number: u64) {
        self.rooms.leave(filter, number);
        let Some(member) = self.members.remove(&number) else { return };
        if let Some(count) = self.of_key.get_mut(&member.caller.key_id) {
            *count -= 1;
            if *count == 0 {
                self.of_key.remove(&member.caller.key_id);
            }
        }
    }
}

impl Streams {
    pub(crate) fn new(limits: StreamLimits) -> Arc<Self> {
        Arc::new(Self { limits, hall: Mutex::default(), someone: Notify::new() })
    }

    fn hall(&self) -> MutexGuard<'_, Hall> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one in, whose stream begins after the row `newest`.
    pub(crate) fn enter(self: &Arc<Self>, caller: Arc<Caller>, filter: RowFilter, newest: u64) -> Result<Listener, TooMany> {
        let mut hall = self.hall();
        if hall.members.len() >= self.limits.overall {
            return Err(TooMany::Overall(self.limits.overall));
        }
        if hall.of_key.get(&caller.key_id).copied().unwrap_or(0) >= self.limits.per_key {
            return Err(TooMany::OfKey(self.limits.per_key));
        }
        if hall.members.is_empty() {
            // Nobody was offered what came while nobody listened.
            hall.offered = hall.offered.max(newest);
            self.someone.notify_one();
        }
        *hall.of_key.entry(caller.key_id.clone()).or_default() += 1;
        let number = hall.next_number;
        hall.next_number += 1;
        let mailbox = Arc::new(Mailbox::default());
        hall.rooms.enter(&filter, number, mailbox.clone());
        hall.members.insert(number, Member { caller, mailbox: mailbox.clone() });
        drop(hall);
        Ok(Listener { streams: self.clone(), number, filter, mailbox })
    }

    fn is_empty(&self) -> bool {
        self.hall().members.is_empty()
    }

    async fn someone(&self) {
        while self.is_empty() {
            self.someone.notified().await;
        }
    }

    /// Hands a row to those it concerns.
    fn offer(&self, row: &RowRef<'_>) {
        let mut hall = self.hall();
        if row.seq <= hall.offered {
            return;
        }
        let mut event: Option<Bytes> = None;
        for mailbox in hall.rooms.for_row(row) {
            mailbox.put(row.seq, event.get_or_insert_with(|| events::event(row)));
        }
        hall.offered = row.seq;
    }

    /// All rows up to this one were offered, or are not in the log any more.
    fn offered_upto(&self, seq: u64) {
        let mut hall = self.hall();
        hall.offered = hall.offered.max(seq);
    }

    fn offered(&self) -> u64 {
        self.hall().offered
    }

    /// A line for those who heard nothing since their last turn. Each has its turn at another beat, so that not all wake at once.
    fn keep_alive(&self, beat: u64) {
        for (number, member) in &self.hall().members {
            if !(number + beat).is_multiple_of(BEATS_OF_SILENCE) {
                continue;
            }
            let mut waiting = member.mailbox.waiting();
            if std::mem::replace(&mut waiting.quiet, true) {
                waiting.keep_alive = true;
                drop(waiting);
                member.mailbox.woken.notify_one();
            }
        }
    }

    fn end_unless(&self, stays: impl Fn(&Caller) -> bool) {
        for member in self.hall().members.values().filter(|member| !stays(&member.caller)) {
            member.mailbox.end();
        }
    }
}

/// Follows the log for all streams, while there are any, until the service stops.
pub(crate) async fn follow(app: Arc<App>) {
    let mut stopping = app.stopping.clone();
    tokio::select! {
        () = attend(&app) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    app.streams.end_unless(|_| false);
}

async fn attend(app: &App) {
    let mut committed = app.engine.store.committed();
    let mut keys: Option<Arc<KeyRing>> = None;
    let mut beats = 0;
    let mut pulse = tokio::time::interval(BEAT);
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        app.streams.someone().await;
        tokio::select! {
            changed = committed.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(GATHER).await;
                let newest = *committed.borrow_and_update();
                if !read(app, newest).await {
                    tokio::time::sleep(AFTER_TROUBLE).await;
                    committed.mark_changed();
                }
            }
            _ = pulse.tick() => {
                beats += 1;
                app.streams.keep_alive(beats);
                let in_force = app.engine.keys.load_full();
                if !keys.as_ref().is_some_and(|known| Arc::ptr_eq(known, &in_force)) {
                    app.streams.end_unless(|caller| auth::is_still_admitted(app, caller));
                    keys = Some(in_force);
                }
            }
        }
    }
}

/// Offers the rows up to `newest`. Whether the log could be read.
async fn read(app: &App, newest: u64) -> bool {
    while !app.streams.is_empty() {
        let after = app.streams.offered();
        if after >= newest {
            break;
        }
        let upto = newest.min(after.saturating_add(PAGE_ROWS));
        let (streams, follower) = (app.streams.clone(), app.engine.store.follower());
        let offer = move || {
            let visit = |row: RowRef<'_>| {
                streams.offer(&row);
                ControlFlow::Continue(())
            };
            follower.follow(after, upto, visit).map(|_| streams.offered_upto(upto))
        };
        match tokio::task::spawn_blocking(offer).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the log cannot be read for the event streams; they go on when it can");
                return false;
            }
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use runguard_core::GuardName;
    use runguard_core::row::{Kind, Outcome};
    use runguard_engine::{Reach, Role};

    fn streams() -> Arc<Streams> {
        Streams::new(StreamLimits { overall: 4, per_key: 3 })
    }

    fn caller(key_id: &str) -> Arc<Caller> {
        let tenant = "acme".into();
        Arc::new(Caller { tenant, reach: Reach::OwnTenant, roles: vec![Role::Read], always_200: false, key_id: key_id.to_owned() })
    }

    fn of(tenant: Option<&str>, session: Option<&str>) -> RowFilter {
        RowFilter { tenant: tenant.map(str::to_owned), session: session.map(str::to_owned), ..RowFilter::default() }
    }

    fn offer(streams: &Streams, seq: u64, tenant: &str, session: &str) {
        streams.offer(&RowRef {
            seq,
            at: 0,
            tenant,
            guard: GuardName::Handoff.into(),
            kind: Kind::Check.into(),
            session,
            subject: "",
            outcome: Outcome::Allowed.into(),
            reason: None,
            answer: "{}",
            input: "{}",
            id: "x",
        });
    }

    /// The rows that wait for one.
    fn heard(listener: &Listener) -> Vec<u64> {
        match listener.mailbox.take() {
            Some(News::Events(events)) => events.into_iter().map(|(seq, _)| seq).collect(),
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_reaches_those_whose_filter_it_passes_and_no_other() {
        let streams = Streams::new(StreamLimits { overall: 9, per_key: 9 });
        let enter = |filter: RowFilter| streams.enter(caller("k"), filter, 0).unwrap();
        let (all, acme, twin) = (enter(of(None, None)), enter(of(Some("acme"), None)), enter(of(Some("acme"), None)));
        let (one, other) = (enter(of(Some("acme"), Some("s"))), enter(RowFilter { guard: Some("budget".into()), ..of(None, None) }));
        offer(&streams, 1, "acme", "s");
        offer(&streams, 2, "acme", "t");
        offer(&streams, 3, "globex", "s");
        assert_eq!((heard(&all), heard(&acme), heard(&twin)), (vec![1, 2, 3], vec![1, 2], vec![1, 2]));
        assert_eq!((heard(&one), heard(&other)), (vec![1], vec![]));
        drop((all, acme, one, other));
        offer(&streams, 4, "acme", "s");
        assert_eq!(heard(&twin), [4]);
        drop(twin);
        let hall = streams.hall();
        assert!(hall.rooms.of_tenant.is_empty() && hall.rooms.of_any_tenant.is_empty() && hall.of_key.is_empty());
    }

    #[test]
    fn one_who_is_slow_is_told_and_joins_again_where_the_others_are() {
        let streams = streams();
        let slow = streams.enter(caller("k"), of(None, None), 10).unwrap();
        assert_eq!(slow.join(), 10);
        for seq in 11..=11 + MOST_WAITING as u64 {
            offer(&streams, seq, "acme", "s");
        }
        assert_eq!(slow.mailbox.take(), Some(News::Behind));
        offer(&streams, 500, "acme", "s");
        assert_eq!(slow.mailbox.take(), Some(News::Behind), "until it joins");
        assert_eq!(slow.join(), 500);
        offer(&streams, 501, "acme", "s");
        offer(&streams, 501, "acme", "s");
        assert_eq!(heard(&slow), [501], "each row once");
    }

    #[test]
    fn a_key_has_so_many_streams_and_all_together_too() {
        let streams = streams();
        let enter = |key: &str| streams.enter(caller(key), of(None, None), 0);
        let mine: Vec<Listener> = (0..3).map(|_| enter("k").unwrap()).collect();
        assert_eq!(enter("k").unwrap_err(), TooMany::OfKey(3));
        let _other = enter("other").unwrap();
        assert_eq!(enter("third").unwrap_err(), TooMany::Overall(4));
        drop(mine);
        assert!(enter("k").is_ok());
    }

    #[test]
    fn who_hears_nothing_is_sent_a_line_each_at_another_beat() {
        let streams = streams();
        let two = [streams.enter(caller("k"), of(None, None), 0).unwrap(), streams.enter(caller("k"), of(None, None), 0).unwrap()];
        let silent = |beats: std::ops::Range<u64>| -> Vec<(u64, usize)> {
            let mut seen = Vec::new();
            for beat in beats {
                streams.keep_alive(beat);
                seen.extend((0..2).filter(|number| two[*number].mailbox.take() == Some(News::Silence)).map(|number| (beat, number)));
            }
            seen
        };
        assert_eq!(silent(1..16), [], "the first turn finds out who is quiet");
        assert_eq!(silent(16..46), [(29, 1), (30, 0), (44, 1), (45, 0)]);
    }

    #[test]
    fn whose_key_has_gone_is_told_the_end() {
        let streams = streams();
        let (kept, revoked) =
            (streams.enter(caller("kept"), of(None, None), 0).unwrap(), streams.enter(caller("gone"), of(None, None), 0).unwrap());
        streams.end_unless(|caller| caller.key_id == "kept");
        assert_eq!((kept.mailbox.take(), revoked.mailbox.take()), (None, Some(News::End)));
    }
}
