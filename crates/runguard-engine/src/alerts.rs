//! Tells people about what the log shows: follows it, asks the rules, and delivers what they say.
//!
//! All of it runs on one thread of its own with a small runtime: the follower, which reads rows behind the log's writer at a
//! modest pace, and one task a target ([`delivery`]). No decision waits for any of it. What is fired is in the
//! [`outbox`] before anyone is told, together with how far the log was read, so a crash neither loses an alert nor invents one.
//!
//! Of a cluster's nodes one does it. What the next must know (the rules' states, how far the log was read, what was fired and may be in
//! nobody's outbox) it leaves in the shared state ([`baton`]) before anyone is told: so whoever goes on neither tells it again nor
//! forgets to say that it is over.

mod baton;
mod delivery;
mod outbox;
mod shown;
mod targets;

pub use outbox::{OutboxError, Status};
pub use shown::{ShownAlert, ShownAlerts, ShownMessage};
pub use targets::{Again, AlertMessage, Failed, Target, TargetKind, TargetSettings};

use crate::clock::system_now;
use crate::engine::Engine;
use crate::erasure::Gone;
use baton::{AlerterPlace, Baton, cluster_of};
pub(crate) use outbox::FILE;
use outbox::{Outbox, Posting};
use runguard_core::limits::InvalidSetting;
use runguard_core::notice::{AlertState, Severity};
use runguard_core::{Span, Timestamp};
use runguard_guards::logged;
use runguard_guards::policy::{self, SettingsProblem, Tree};
use runguard_insight::alert::{self, Alert, Firing, Rule, State};
use runguard_store::{Cluster, Order, Row, RowFilter, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Rows read at a time; a rest follows, so that answers come first.
const CHUNK: usize = 128;
const REST: Duration = Duration::from_millis(1);
/// Rows gather for this long before they are looked at: a busy service wakes the thread twenty times a second, not a thousand.
const GATHER: Duration = Duration::from_millis(50);
/// How far the log was read is written down this often when there is nothing to tell. After a crash those rows are read again.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// When the log or the file cannot be used.
const AFTER_TROUBLE: Duration = Duration::from_secs(5);
/// How far behind the end of the log a node follows while another tells: longer than it takes to notice that it ended.
const DISTANCE: Duration = Duration::from_secs(15);
const MOST_SEEN: usize = 10_000;
const MOST_TARGETS: usize = 20;
const MOST_RULES: usize = 50;

/// `[alerts]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertSettings {
    pub enabled: bool,
    pub max_attempts: u32,
    pub backoff: Span,
    /// Whether the usual rules are in force beside one's own.
    pub default_rules: bool,
    pub target: Vec<TargetSettings>,
    pub rule: Vec<Rule>,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self { enabled: true, max_attempts: 32, backoff: Span::from_seconds(5), default_rules: true, target: Vec::new(), rule: Vec::new() }
    }
}

impl AlertSettings {
    /// Before the second attempt, at most.
    fn first_wait(&self) -> Duration {
        Duration::from_millis(self.backoff.as_millis())
    }

    /// Reads the table; a problem names the key it stands at.
    pub fn read(table: &Tree) -> Result<Self, SettingsProblem> {
        let plain: Tree =
            table.iter().filter(|(key, _)| !["target", "rule"].contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut settings: Self = policy::read_table(&plain, &["alerts"], &[])?;
        if !(1..=1000).contains(&settings.max_attempts) {
            return Err(SettingsProblem::new(&["alerts", "max_attempts"], "must be from 1 to 1000"));
        }
        if settings.backoff == Span::ZERO {
            return Err(SettingsProblem::new(&["alerts", "backoff"], "must be longer than nothing"));
        }
        settings.target = read_list(table, "target", MOST_TARGETS, &["name", "kind"], TargetSettings::check)?;
        settings.rule = read_list(table, "rule", MOST_RULES, &["name", "when"], Rule::check)?;
        unique("target", settings.target.iter().map(|target| target.name.as_str()))?;
        unique("rule", settings.rule.iter().map(|rule| rule.name.as_str()))?;
        for (number, rule) in settings.rule.iter().enumerate() {
            if let Some(stranger) = rule.to.iter().find(|name| !settings.target.iter().any(|target| target.name == **name)) {
                return Err(SettingsProblem::new(
                    &["alerts", "rule", &number.to_string(), "to"],
                    format!("there is no target `{stranger}`"),
                ));
            }
        }
        Ok(settings)
    }

    /// The rules in force: the usual ones and one's own, which stand in the place of those whose name they have.
    pub fn rules(&self) -> Vec<Rule> {
        let is_own = |usual: &Rule| self.rule.iter().any(|own| own.name == usual.name);
        let usual = alert::default_rules().into_iter().filter(|usual| self.default_rules && !is_own(usual));
        usual.chain(self.rule.iter().cloned()).collect()
    }

    fn is_on(&self) -> bool {
        self.enabled && !self.target.is_empty()
    }

    /// The receivers, with their secrets from the environment and the address that they are sent links to.
    pub fn targets(&self, public_url: &str) -> Result<Vec<Target>, String> {
        let made = |settings| Target::new(settings, &|name| std::env::var(name).ok()).map(|target| target.linking(public_url));
        self.target.iter().map(made).collect()
    }
}

fn read_list<S: Serialize + serde::de::DeserializeOwned + Default>(
    table: &Tree,
    name: &str,
    most: usize,
    needed: &[&str],
    check: impl Fn(&S) -> Result<(), InvalidSetting>,
) -> Result<Vec<S>, SettingsProblem> {
    let list = match table.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= most => list,
        Some(Value::Array(_)) => return Err(SettingsProblem::new(&["alerts", name], format!("at most {most} are taken"))),
        Some(_) => return Err(SettingsProblem::new(&["alerts", name], format!("must be a list: write [[alerts.{name}]]"))),
    };
    let mut read = Vec::new();
    for (number, item) in list.iter().enumerate() {
        let number = number.to_string();
        let path = ["alerts", name, number.as_str()];
        let item = item.as_object().ok_or_else(|| SettingsProblem::new(&path, "must be a table"))?;
        if let Some(missing) = needed.iter().find(|key| !item.contains_key(**key)) {
            return Err(SettingsProblem::new(&path, format!("`{missing}` is missing")));
        }
        let one: S = policy::read_table(item, &path, &[])?;
        check(&one).map_err(|InvalidSetting { name, problem }| SettingsProblem::new(&[&path[..], &[name]].concat(), problem))?;
        read.push(one);
    }
    Ok(read)
}

fn unique<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Result<(), SettingsProblem> {
    let mut seen = std::collections::HashSet::new();
    for (number, name) in names.enumerate() {
        if !seen.insert(name) {
            return Err(SettingsProblem::new(&["alerts", list, &number.to_string(), "name"], format!("`{name}` is there twice")));
        }
    }
    Ok(())
}

/// What is counted, by kind of target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Fired,
    Delivered,
    Failed,
    Dead,
}

impl Count {
    pub const ALL: [Self; 4] = [Self::Fired, Self::Delivered, Self::Failed, Self::Dead];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Dead => "dead",
        }
    }
}

/// What the thread and the doors share.
#[derive(Debug)]
struct Shared {
    settings: AlertSettings,
    rules: Vec<Rule>,
    targets: Vec<Target>,
    outbox: Mutex<Outbox>,
    /// One a target: there is something for it.
    woken: Vec<Notify>,
    /// The last failure of each target; none after a success.
    problems: Mutex<Vec<Option<String>>>,
    /// By rule.
    firing: Mutex<Vec<Vec<Firing>>>,
    counts: [[AtomicU64; Count::ALL.len()]; TargetKind::ALL.len()],
    read_upto: AtomicU64,
}

impl Shared {
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, kind: TargetKind, count: Count, times: usize) {
        self.counts[kind as usize][count as usize].fetch_add(times as u64, Ordering::Relaxed);
    }

    fn set_problem(&self, number: usize, problem: Option<String>) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)[number] = problem;
    }

    fn set_firing(&self, rules: &[(Rule, State)]) {
        *self.firing.lock().unwrap_or_else(PoisonError::into_inner) = rules.iter().map(|(_, state)| state.firing().collect()).collect();
    }
}

/// An erasure while nobody is told of anything: what an earlier life of the service left in the file goes too.
pub(crate) fn erase_from_idle_file(folder: &Path, gone: &Gone) -> Result<bool, OutboxError> {
    if folder.join(FILE).exists() { Outbox::open(folder)?.forget(gone) } else { Ok(false) }
}

/// Overwrites what was removed from the file; whether it is rid of it. On a connection of its own: whoever tells people of alerts, or
/// shows them, does not wait for it.
pub(crate) fn purge_file(folder: &Path) -> Result<bool, OutboxError> {
    if folder.join(FILE).exists() { Outbox::open(folder)?.purge() } else { Ok(true) }
}

/// What an erasure asks of the follower.
#[derive(Debug)]
struct Forget {
    gone: Gone,
    done: oneshot::Sender<Result<bool, StoreError>>,
}

/// The alerts of a running service.
#[derive(Debug)]
pub struct Alerts {
    shared: Arc<Shared>,
    forgetting: mpsc::UnboundedSender<Forget>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How a test alert went.
#[derive(Debug)]
pub struct Tested {
    pub target: String,
    pub kind: TargetKind,
    pub problem: Option<String>,
}

impl Alerts {
    /// Starts the thread; `None` when there is nobody to tell.
    pub fn start(engine: &Arc<Engine>) -> Result<Option<Self>, String> {
        let settings = engine.settings.load();
        if !settings.alerts.is_on() {
            return Ok(None);
        }
        let targets = settings.alerts.targets(&settings.server.public_url)?;
        let mut outbox = Outbox::open(Path::new(&settings.store.data)).map_err(|error| error.to_string())?;
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let strangers = outbox.give_up_strangers(&names, system_now().as_millis()).map_err(|error| error.to_string())?;
        if strangers > 0 {
            tracing::warn!(alerts = strangers, "alerts wait for targets that the settings do not have; they are dead letters");
        }
        let mut rules = settings.alerts.rules();
        for rule in &mut rules {
            rule.savings = settings.savings.clone();
        }
        let shared = Arc::new(Shared {
            settings: settings.alerts.clone(),
            firing: Mutex::new(vec![Vec::new(); rules.len()]),
            rules,
            woken: targets.iter().map(|_| Notify::new()).collect(),
            problems: Mutex::new(vec![None; targets.len()]),
            targets,
            outbox: Mutex::new(outbox),
            counts: Default::default(),
            read_upto: AtomicU64::new(0),
        });
        let (forgetting, to_forget) = mpsc::unbounded_channel();
        let mut follower = Follower::new(engine.clone(), shared.clone(), to_forget);
        if engine.store.log_is_known() {
            follower.begin().map_err(|error| error.to_string())?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let (stop, stopping) = watch::channel(false);
        let thread = std::thread::Builder::new().name("alerts".into());
        let thread = thread.spawn(move || runtime.block_on(run(follower, stopping))).map_err(|error| error.to_string())?;
        Ok(Some(Self { shared, forgetting, stop, thread: Mutex::new(Some(thread)) }))
    }

    /// Ends the thread. What was not delivered is delivered after the next start.
    pub fn stop(&self) {
        let _ = self.stop.send(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the alerts' thread ended in a panic");
        }
    }

    /// A session was erased: it leaves the rules and the messages as well. Says whether anything was known of it.
    pub(crate) async fn forget(&self, gone: &Gone) -> Result<bool, StoreError> {
        let (done, answer) = oneshot::channel();
        self.forgetting.send(Forget { gone: gone.clone(), done }).map_err(|_| StoreError::Stopping)?;
        answer.await.map_err(|_| StoreError::Stopping)?
    }

    /// Kind of target, what is counted, how often since the start.
    pub fn counts(&self) -> impl Iterator<Item = (TargetKind, Count, u64)> {
        TargetKind::ALL.into_iter().flat_map(move |kind| {
            Count::ALL
                .into_iter()
                .map(move |count| (kind, count, self.shared.counts[kind as usize][count as usize].load(Ordering::Relaxed)))
        })
    }

    /// Puts a dead letter back into the queue; whether there was one.
    pub fn retry(&self, id: i64, tenant: Option<&str>) -> Result<bool, OutboxError> {
        let target = self.shared.outbox().retry(id, tenant)?;
        if let Some(number) = self.shared.targets.iter().position(|known| Some(&known.name) == target.as_ref()) {
            self.shared.woken[number].notify_one();
        }
        Ok(target.is_some())
    }

    /// Sends a test alert past the queue, to one target or to all. `None`: there is no such target.
    pub async fn test(&self, name: Option<&str>) -> Option<Vec<Tested>> {
        test(&self.shared.targets, name).await
    }
}

/// Sends a test alert to one target or to all, each by itself. `None`: there is no such target.
pub async fn test(targets: &[Target], name: Option<&str>) -> Option<Vec<Tested>> {
    let chosen: Vec<&Target> = targets.iter().filter(|target| name.is_none_or(|name| name == target.name)).collect();
    if chosen.is_empty() && name.is_some() {
        return None;
    }
    let now = system_now().as_millis();
    let number = getrandom::u64().unwrap_or(0);
    let mut waiting: Vec<_> = chosen.iter().map(|target| Box::pin(test_one(target, number, now))).collect();
    let mut tested = Vec::new();
    // All of them are under way at once: the slowest decides how long it takes.
    std::future::poll_fn(|context| {
        waiting.retain_mut(|test| match test.as_mut().poll(context) {
            std::task::Poll::Ready(done) => {
                tested.push(done);
                false
            }
            std::task::Poll::Pending => true,
        });
        if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    tested.sort_by(|left, right| left.target.cmp(&right.target));
    Some(tested)
}

async fn test_one(target: &Target, number: u64, now: i64) -> Tested {
    let alert = |state: AlertState| Alert {
        rule: "test".into(),
        dedup_key: format!("test-{number:016x}"),
        state,
        severity: Severity::Info,
        at: Timestamp::from_millis(now),
        tenant: String::new(),
        guard: String::new(),
        reason: String::new(),
        subject: String::new(),
        session: String::new(),
        decision_id: String::new(),
        title: "A test alert of RunGuard".into(),
        text: "Alerts arrive here. Nothing is wrong.".into(),
    };
    let message = |state: AlertState| AlertMessage { id: format!("msg_test_{number:016x}_{}", state.code()), alerts: vec![alert(state)] };
    let mut sent = target.send(&message(AlertState::Firing), now / 1000).await;
    // A test must leave no incident open.
    if sent.is_ok() && target.kind == TargetKind::Pagerduty {
        sent = target.send(&message(AlertState::Resolved), now / 1000).await;
    }
    Tested { target: target.name.clone(), kind: target.kind, problem: sent.err().map(|failed| failed.message) }
}

async fn run(mut follower: Follower, stopping: watch::Receiver<bool>) {
    let shared = follower.shared.clone();
    let mut deliveries = JoinSet::new();
    for number in 0..shared.targets.len() {
        deliveries.spawn(delivery::deliver(shared.clone(), number, stopping.clone()));
    }
    let mut stopped = stopping;
    tokio::select! {
        () = follower.follow() => {}
        _ = stopped.changed() => {}
    }
    // Who asks from here on is told that the service stops.
    follower.to_forget.close();
    if follower.save().await {
        while let Ok(asked) = follower.to_forget.try_recv() {
            follower.forget(asked).await;
        }
    }
    deliveries.join_all().await;
}

/// Reads the log and asks the rules.
struct Follower {
    engine: Arc<Engine>,
    shared: Arc<Shared>,
    rules: Vec<(Rule, State)>,
    has_begun: bool,
    /// What the rules have said and is not written down.
    pending: Vec<Alert>,
    /// The last row that was looked at, and the last that is written down.
    read_upto: u64,
    last_id: String,
    saved_upto: u64,
    saved_at: Instant,
    /// The ends of the log we saw while another node was telling.
    seen: VecDeque<(Instant, u64)>,
    /// What is left to the next, where there are several nodes.
    baton: Baton,
    /// It names alerts as perhaps in nobody's outbox.
    baton_names_pending: bool,
    to_forget: mpsc::UnboundedReceiver<Forget>,
}

impl Follower {
    fn new(engine: Arc<Engine>, shared: Arc<Shared>, to_forget: mpsc::UnboundedReceiver<Forget>) -> Self {
        Self {
            engine,
            shared,
            rules: Vec::new(),
            has_begun: false,
            pending: Vec::new(),
            read_upto: 0,
            last_id: String::new(),
            saved_upto: 0,
            saved_at: Instant::now(),
            seen: VecDeque::new(),
            baton: Baton::default(),
            baton_names_pending: false,
            to_forget,
        }
    }

    /// Where it was left, or at the end of the log.
    fn begin(&mut self) -> Result<(), OutboxError> {
        let (newest, shared) = (*self.engine.store.committed().borrow(), self.shared.clone());
        let found = shared.outbox().watermark()?;
        let (read_upto, is_first) = match found {
            Some(seq) if seq <= newest => (seq, false),
            // Another log than the one the file knows.
            Some(_) | None => (newest, true),
        };
        let mut rules = Vec::new();
        for rule in &shared.rules {
            rules.push((rule.clone(), if is_first { State::default() } else { shared.outbox().state(rule)? }));
        }
        if is_first {
            tracing::info!(row = newest, "alerts begin at the end of the log");
            shared.outbox().commit(newest, &rules, &[], system_now().as_millis())?;
        }
        shared.set_firing(&rules);
        shared.read_upto.store(read_upto, Ordering::Relaxed);
        (self.rules, self.read_upto, self.saved_upto, self.has_begun) = (rules, read_upto, read_upto, true);
        Ok(())
    }

    /// A node may start while the log is away: until then nobody knows where it ends.
    async fn begin_with_the_log(&mut self) {
        loop {
            tokio::select! {
                () = self.engine.store.wait_for_log() => {}
                Some(asked) = self.to_forget.recv() => {
                    self.forget(asked).await;
                    continue;
                }
            }
            match self.begin() {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(%error, "alerts cannot be read");
                    tokio::time::sleep(AFTER_TROUBLE).await;
                }
            }
        }
    }

    async fn follow(&mut self) {
        if !self.has_begun {
            self.begin_with_the_log().await;
        }
        let mut committed = self.engine.store.committed();
        loop {
            let mut newest = *committed.borrow_and_update();
            let leads = self.engine.store.leads("alerts").await && self.take_over(newest).await;
            if leads {
                self.seen.clear();
            } else {
                self.baton.let_go();
                self.baton_names_pending = false;
                newest = self.left_to_others(newest);
            }
            while self.read_upto < newest {
                let rows = match self.engine.store.rows(RowFilter::default(), Order::OldestFirst, Some(self.read_upto), CHUNK).await {
                    Ok(rows) => rows,
                    Err(error) => {
                        tracing::error!(%error, "the log cannot be read for alerts");
                        tokio::time::sleep(AFTER_TROUBLE).await;
                        continue;
                    }
                };
                let rules = &mut self.rules;
                self.pending.extend(rows.iter().flat_map(|row| judge(rules, row)));
                if let Some(last) = rows.last() {
                    self.last_id.clone_from(&last.id);
                }
                // Rows that were erased leave gaps.
                self.read_upto = if rows.len() < CHUNK {
                    newest.max(rows.last().map_or(0, |row| row.seq))
                } else {
                    rows.last().map_or(newest, |row| row.seq)
                };
                self.shared.read_upto.store(self.read_upto, Ordering::Relaxed);
                let is_due = self.saved_at.elapsed() >= SAVE_EVERY;
                // What the rules have said they do not say again: it is kept before anything else is read.
                while (is_due || !self.pending.is_empty()) && !self.save().await {
                    tokio::time::sleep(AFTER_TROUBLE).await;
                }
                if leads && !self.is_ours_to_tell() {
                    break;
                }
                tokio::time::sleep(REST).await;
            }
            tokio::select! {
                changed = committed.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(GATHER).await;
                }
                () = tokio::time::sleep(DISTANCE / 5), if !self.seen.is_empty() => {}
                Some(asked) = self.to_forget.recv() => self.forget(asked).await,
                () = tokio::time::sleep(SAVE_EVERY), if self.saved_upto < self.read_upto => {
                    self.save().await;
                }
            }
        }
    }

    /// Another node tells of what happens. What it had no time to tell of should it end, we must not have passed over: so we
    /// follow at a distance.
    fn left_to_others(&mut self, newest: u64) -> u64 {
        self.seen.push_back((Instant::now(), newest));
        while let Some((at, row)) = self.seen.front().copied() {
            if at.elapsed() < DISTANCE && self.seen.len() <= MOST_SEEN {
                break;
            }
            self.read_upto = self.read_upto.max(row);
            self.seen.pop_front();
        }
        self.shared.read_upto.store(self.read_upto, Ordering::Relaxed);
        self.read_upto
    }

    /// Whether no other node has gone on in our place.
    fn is_ours_to_tell(&self) -> bool {
        self.baton.is_ours() || cluster_of(&self.engine.store).is_none()
    }

    /// Goes on from where whoever did it before has left it. `false`: not yet.
    async fn take_over(&mut self, newest: u64) -> bool {
        let Some(cluster) = cluster_of(&self.engine.store) else { return true };
        if self.baton.is_ours() {
            return true;
        }
        match self.baton.take(cluster).await {
            Err(error) => {
                tracing::warn!(%error, "what the node before has told is not known yet: no alert is told");
                false
            }
            Ok(None) => true,
            Ok(Some(held)) => {
                let place = self.place_of(&held, newest).await;
                if place.is_none() && !self.baton.has_waited(DISTANCE) {
                    // Another node has seen more of the log than we have; we get it in a moment.
                    self.baton.let_go();
                    return false;
                }
                // What nobody finds is of another log.
                self.read_upto = place.unwrap_or(self.read_upto);
                self.go_on_from(held).await;
                true
            }
        }
    }

    /// Where the row stands in our log that was looked at last.
    async fn place_of(&self, held: &AlerterPlace, newest: u64) -> Option<u64> {
        if cluster_of(&self.engine.store).is_some_and(Cluster::log_is_shared) {
            return (held.upto <= newest).then_some(held.upto);
        }
        if held.last_id.is_empty() {
            return Some(self.read_upto);
        }
        // Each node numbers its own copy.
        let filter = RowFilter { id: Some(held.last_id.clone()), ..RowFilter::default() };
        self.engine.store.rows(filter, Order::NewestFirst, None, 1).await.ok()?.pop().map(|row| row.seq)
    }

    async fn go_on_from(&mut self, held: AlerterPlace) {
        for (rule, state) in &mut self.rules {
            if let Some(known) = held.state_of(rule) {
                *state = known;
            }
        }
        (self.last_id, self.pending) = (held.last_id, held.pending);
        self.shared.set_firing(&self.rules);
        self.shared.read_upto.store(self.read_upto, Ordering::Relaxed);
        self.saved_upto = 0;
        // What was fired and may be in nobody's outbox is told by us: twice under one id, if it is in one.
        while !self.pending.is_empty() && self.baton.is_ours() && !self.save().await {
            tokio::time::sleep(AFTER_TROUBLE).await;
        }
    }

    async fn forget(&mut self, Forget { gone, done }: Forget) {
        for (_, state) in &mut self.rules {
            state.forget(gone.tenant(), |session| gone.is(gone.tenant(), session));
        }
        self.pending.retain(|alert| !gone.is(&alert.tenant, &alert.session));
        self.shared.set_firing(&self.rules);
        let mut forgotten = self.shared.outbox().forget(&gone).map_err(|error| StoreError::Write(error.to_string()));
        if let Some(cluster) = cluster_of(&self.engine.store) {
            let left_to_next = self.baton.forget(cluster, &gone).await;
            forgotten = forgotten.and_then(|here| left_to_next.map(|there| here || there));
        }
        // Nobody may wait for it any more.
        let _ = done.send(forgotten);
    }

    /// Writes alerts, states and the place in the log down; whether it worked. Where another node has gone on meanwhile, what we
    /// would say is its to say.
    async fn save(&mut self) -> bool {
        if !self.has_begun || self.pending.is_empty() && self.saved_upto == self.read_upto && !self.baton_names_pending {
            return true;
        }
        if let Some(cluster) = cluster_of(&self.engine.store)
            && self.baton.is_ours()
        {
            self.baton_names_pending |= !self.pending.is_empty();
            if let Err(error) = self.baton.pass(cluster, AlerterPlace::of(self.read_upto, &self.last_id, &self.rules, &self.pending)).await
            {
                tracing::warn!(%error, "another node tells of alerts, or the shared state is away: what this one would tell is left to whoever goes on");
                self.baton.let_go();
                self.baton_names_pending = false;
                self.pending.clear();
                if let Err(error) = self.begin() {
                    tracing::error!(%error, "alerts cannot be read");
                }
                return true;
            }
            self.baton_names_pending = !self.pending.is_empty();
        }
        if !self.write_down() {
            return false;
        }
        if !self.pending.is_empty() {
            self.pending.clear();
            if let Some(cluster) = cluster_of(&self.engine.store)
                && self.baton.is_ours()
            {
                if self.baton.pass(cluster, AlerterPlace::of(self.read_upto, &self.last_id, &self.rules, &[])).await.is_err() {
                    // They are in our outbox: should another go on now, they are told twice, under one id.
                    self.baton.let_go();
                }
                self.baton_names_pending = false;
            }
        }
        true
    }

    /// In our own file.
    fn write_down(&mut self) -> bool {
        let alerts = &self.pending;
        let targets = &self.shared.targets;
        let receives = |alert: &Alert, target: &Target| {
            let rule = self.rules.iter().find(|(rule, _)| rule.name == alert.rule).map(|(rule, _)| rule);
            rule.is_none_or(|rule| rule.to.is_empty() || rule.to.contains(&target.name))
        };
        let postings: Vec<Posting<'_>> = alerts
            .iter()
            .flat_map(|alert| {
                targets.iter().filter(|target| receives(alert, target)).map(move |target| Posting { alert, target: &target.name })
            })
            .collect();
        if let Err(error) = self.shared.outbox().commit(self.read_upto, &self.rules, &postings, system_now().as_millis()) {
            tracing::error!(%error, "alerts cannot be written down");
            return false;
        }
        (self.saved_upto, self.saved_at) = (self.read_upto, Instant::now());
        if !alerts.is_empty() {
            self.shared.set_firing(&self.rules);
        }
        for (number, target) in targets.iter().enumerate() {
            let fired = postings.iter().filter(|posting| posting.target == target.name).count();
            if fired > 0 {
                self.shared.count(target.kind, Count::Fired, fired);
                self.shared.woken[number].notify_one();
            }
        }
        for alert in alerts {
            tracing::info!(rule = alert.rule, state = alert.state.code(), severity = alert.severity.code(), key = alert.dedup_key, "alert");
        }
        true
    }
}

fn judge(rules: &mut [(Rule, State)], row: &Row) -> Vec<Alert> {
    let row = row.as_ref();
    let shows = logged::shows(&row);
    rules.iter_mut().flat_map(|(rule, state)| rule.judge(state, &row, &shows)).collect()
}

#[cfg(test)]
mod tests;
