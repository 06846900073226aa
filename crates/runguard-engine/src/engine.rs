//! Runs operations: the tenant's policy, the states, the pure step, the row, in one atomic go.

use crate::alerts::Alerts;
use crate::analyst::{Analyst, AnalystOptions};
use crate::circuits::{Circuit, Endpoints, Room};
use crate::clock::Clock;
use crate::erasure::Erasures;
use crate::ids::{Id, Ids};
use crate::keys::KeyRing;
use crate::preview::Turns;
use crate::settings::{Settings, WhenAway};
use crate::spend;
use crate::telemetry::Telemetry;
use crate::watch::Refusals;
use arc_swap::ArcSwap;
use runguard_core::calendar::Zone;
use runguard_core::row::{Action, Kind, Named, Outcome, Row};
use runguard_core::text::StoreText;
use runguard_core::{GuardName, Reason, Timestamp};
use runguard_guards::answer::{Answer, Envelope, Facts, Head, Shape, with_warnings, without_warnings};
use runguard_guards::guard::api_circuit::{self, Control, Forced, Remains};
use runguard_guards::guard::budget::Watched;
use runguard_guards::guard::{self, GuardEntry, Holds, Lasts, LivesWith, Moment, Notice, Operation, Outlook, RouteKind, Scope, Slot};
use runguard_guards::lengths::LongRuns;
use runguard_guards::policy::Mode;
use runguard_insight::insight::Overview;
use runguard_insight::insight::consumption::Consumption;
use runguard_insight::insight::digest::Range;
use runguard_insight::insight::session_list::{SessionList, SessionQuery};
use runguard_insight::insight::spend::BudgetStands;
use runguard_store::cluster::Place;
use runguard_store::{
    Cell, Change, Decided, Embedded, Family, Fingerprints, IDEMPOTENCY_MILLIS, Keep, Key, Names, OpenError, Options, Order, Role,
    RowFilter, Rules, Safe, Store, StoreError, StoreHealth, View, Written,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Answers for repeated requests live under this slot.
const KEPT_ANSWER: u8 = 100;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the idempotency key was used for another request")]
    KeyReused,
    #[error("the first request with this idempotency key is still running")]
    StillRunning,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How an answer ends its request.
pub(crate) fn outcome_of(answer: &Answer) -> Outcome {
    match answer.allow {
        None => Outcome::Recorded,
        Some(false) => Outcome::Blocked,
        Some(true) if answer.reason.is_some() => Outcome::WouldBlock,
        Some(true) => Outcome::Allowed,
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Idempotency<'a> {
    pub key: &'a str,
    /// Of route and body: the same key with another request is a mistake.
    pub fingerprint: u64,
}

/// A request that has been read and authorised.
#[derive(Debug)]
pub struct AuthorisedRequest<'a> {
    pub tenant: &'a Arc<str>,
    pub operation: &'a dyn Operation,
    pub warnings: &'a [String],
    pub now: Timestamp,
    pub shape: Shape,
    pub idempotency: Option<Idempotency<'a>>,
}

#[derive(Debug, Clone)]
pub struct Answered {
    pub outcome: Outcome,
    pub reason: Option<Reason>,
    pub body: String,
    pub retry_after_seconds: Option<u64>,
    pub notice: Option<Notice>,
    /// Given from what this node remembers, or while what others decided alone is not counted.
    pub degraded: bool,
    /// The first answer to a repeated request; nothing was counted.
    pub replayed: bool,
    /// It leaves no row.
    pub is_forgotten: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct FirstAnswer {
    fingerprint: u64,
    at: i64,
    outcome: Outcome,
    reason: Option<String>,
    retry_after_seconds: Option<u64>,
    body: String,
}

impl FirstAnswer {
    /// What the answer warned of beside the request's own field names stands behind it, where it was said.
    fn to_bytes(&self, own_warnings: &[String]) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(self).unwrap_or_default();
        if !own_warnings.is_empty() {
            bytes.extend(postcard::to_stdvec(own_warnings).unwrap_or_default());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<(Self, Vec<String>)> {
        let (kept, rest) = postcard::take_from_bytes(bytes).ok()?;
        let own_warnings = if rest.is_empty() { Vec::new() } else { postcard::from_bytes(rest).ok()? };
        Some((kept, own_warnings))
    }
}

/// What a key was first used for, and when.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    fingerprint: u64,
    at: i64,
}

impl Claim {
    fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    fn counts(&self, now: Timestamp) -> bool {
        now.millis_since(Timestamp::from_millis(self.at)) < IDEMPOTENCY_MILLIS
    }
}

/// One session, as the log and the states have it.
#[derive(Debug)]
pub struct SessionView {
    pub timeline: Vec<Row>,
    pub outlooks: Vec<Outlook>,
    /// Its own, and the scopes that are its own.
    pub budgets: Vec<BudgetStands>,
}

#[derive(Debug)]
pub struct EngineOptions {
    pub clock: Clock,
    pub settings: Settings,
    pub keys: KeyRing,
    /// Makes decision ids that come again the same, for tests; `None`: random ones.
    pub seed: Option<u64>,
}

#[derive(Debug)]
pub struct Engine {
    pub analyst: Analyst,
    pub store: Store,
    pub clock: Clock,
    pub settings: ArcSwap<Settings>,
    /// Those at the start: what needs a restart is still in force as it stands here.
    pub started_with: Arc<Settings>,
    pub keys: ArcSwap<KeyRing>,
    /// Changed files that were not taken over.
    pub refusals: Refusals,
    /// Whose preview is under way.
    pub previews: Turns,
    /// There when a collector is set.
    pub telemetry: Option<Arc<Telemetry>>,
    pub(crate) ids: Ids,
    pub(crate) endpoints: Endpoints,
    pub(crate) erasures: Erasures,
    /// Held while advice is put aside or taken back.
    pub(crate) advice: tokio::sync::Mutex<()>,
    /// Set once the service tells anybody.
    pub alerts: std::sync::OnceLock<Alerts>,
}

/// What the store must know of the guards' states.
pub const RULES: Rules = Rules { replay, group, keep, take_back: guard::take_back };

/// Rebuilds a state from the events of the log.
fn replay(slot: u8, state: Option<&[u8]>, events: &[u8], at: i64) -> Option<Vec<u8>> {
    if slot == KEPT_ANSWER {
        // The first answer stays: a node that was alone may have given another one meanwhile, and brings it home later.
        let still_counts = |kept: &FirstAnswer| at.saturating_sub(kept.at) < IDEMPOTENCY_MILLIS;
        let earlier = state.filter(|state| postcard::from_bytes(state).is_ok_and(|kept| still_counts(&kept)));
        return Some(earlier.unwrap_or(events).to_vec());
    }
    guard::replay(slot, state, events, Timestamp::from_millis(at))
}

fn group(names: Names, tenant: &str, key: Key, slot: u8, label: &str) -> Option<u64> {
    if slot == KEPT_ANSWER {
        return None;
    }
    Some(match Slot::from_number(slot).map_or(LivesWith::Session, |slot| slot.lives_with) {
        LivesWith::Session => key.group(),
        LivesWith::Endpoint => {
            // An endpoint's label says whose it is, a session's does not.
            let endpoint = match key.family {
                Family::Endpoint => label.split_once('\0').map_or(label, |(_, endpoint)| endpoint),
                Family::Session | Family::Idempotency | Family::Account => label,
            };
            names.key(Family::Endpoint, tenant, endpoint).group()
        }
        // With the one that nearly everybody has, where it has always been.
        LivesWith::Budget => names.key(Family::Session, tenant, "\0budget\0default").group(),
    })
}

fn keep(slot: u8, state: &[u8]) -> Keep {
    if slot == KEPT_ANSWER {
        return Keep::Day;
    }
    match Slot::from_number(slot).map_or(Lasts::Log, |slot| slot.lasts) {
        Lasts::Window => Keep::Window,
        Lasts::Log => Keep::Log,
        Lasts::Month => Keep::Month,
        Lasts::ByState(remains) => match remains(state) {
            Remains::Nothing => Keep::Window,
            Remains::Phase => Keep::Log,
            Remains::OperatorsWord => Keep::Always,
        },
    }
}

/// A store whose states are the guards', in files of its own.
pub fn open_store(settings: &Settings) -> Result<Store, OpenError> {
    let options = Options {
        folder: settings.store.data.clone().into(),
        durability: settings.store.durability,
        memory_bytes: settings.store.memory_mb as usize * 1024 * 1024,
        retention_days: settings.log.retention_days,
        role: Role::Whole,
        names: fresh_names()?,
    };
    Ok(Store::Embedded(Embedded::open(options, RULES)?))
}

/// For a store that is new.
pub(crate) fn fresh_names() -> Result<Names, OpenError> {
    Names::random().map_err(|error| OpenError::Shared { detail: format!("the machine gives no random numbers: {error}") })
}

async fn last_id(store: &Store) -> Result<Option<String>, StoreError> {
    // Nodes that went on from the same id would give the same ones, should its time not have come yet.
    if store.cluster_health().is_some() {
        return Ok(None);
    }
    Ok(store.rows(RowFilter::default(), Order::NewestFirst, None, 1).await?.pop().map(|row| row.id))
}

fn following(options: &EngineOptions) -> AnalystOptions {
    AnalystOptions {
        folder: options.settings.store.data.clone().into(),
        clock: options.clock.clone(),
        retention_days: options.settings.log.retention_days,
    }
}

impl Engine {
    pub async fn new(store: Store, options: EngineOptions) -> Result<Self, StoreError> {
        let ids = Ids::new(last_id(&store).await?.as_deref(), options.seed);
        let analyst = Analyst::start(&store, following(&options)).map_err(|error| StoreError::Read(error.to_string()))?;
        let erasures = Erasures::new(std::path::Path::new(&options.settings.store.data))?;
        let engine = Self::of(store, options, ids, analyst, erasures);
        engine.tell_fingerprints();
        Ok(engine)
    }

    /// An engine for a simulation: no thread and, with a seed, no chance in it. It has no overviews.
    pub async fn simulated(store: Store, options: EngineOptions, notes: Place) -> Result<Self, StoreError> {
        let ids = Ids::new(last_id(&store).await?.as_deref(), options.seed);
        let analyst = Analyst::idle(&store, &following(&options));
        Ok(Self::of(store, options, ids, analyst, Erasures::noted_at(notes)?))
    }

    fn of(store: Store, options: EngineOptions, ids: Ids, analyst: Analyst, erasures: Erasures) -> Self {
        // Before the time, by which states leave.
        store.keep_states_for(options.settings.policies.longest_window().as_millis() as i64);
        match &options.clock {
            // Told at once: whatever the clock is set to later is compared with it.
            Clock::System => store.tell_time(crate::clock::system_now().as_millis()),
            // A cluster goes by its own.
            Clock::Shared(_) => {}
            Clock::Virtual => store.believe_told_time(),
        }
        Self {
            analyst,
            ids,
            endpoints: Endpoints::default(),
            erasures,
            store,
            clock: options.clock,
            telemetry: (!options.settings.telemetry.otlp_endpoint.is_empty()).then(Arc::default),
            started_with: Arc::new(options.settings.clone()),
            settings: ArcSwap::from_pointee(options.settings),
            keys: ArcSwap::from_pointee(options.keys),
            refusals: Refusals::default(),
            previews: Turns::default(),
            advice: tokio::sync::Mutex::default(),
            alerts: OnceLock::new(),
        }
    }

    /// Decides, keeps decision and count together, and answers once both are safe.
    pub async fn ask(&self, asked: AuthorisedRequest<'_>) -> Result<Answered, EngineError> {
        let (answered, safe) = self.decide_for(asked, true).await?;
        safe.wait().await?;
        Ok(answered)
    }

    /// The same for whoever is in this process, and has more to ask before anybody is told: what is asked next is decided upon this, and safe
    /// no sooner.
    pub async fn decide(&self, asked: AuthorisedRequest<'_>) -> Result<(Answered, Safe), EngineError> {
        // What this process decides alone it hears of, or it did not happen. What others keep may have happened unheard.
        self.decide_for(asked, self.store.is_shared()).await
    }

    /// `may_be_unheard`: the answer may be lost on its way, and what it settles be told again.
    async fn decide_for(&self, asked: AuthorisedRequest<'_>, may_be_unheard: bool) -> Result<(Answered, Safe), EngineError> {
        self.store.tell_time(asked.now.as_millis());
        let settings = self.settings.load();
        let policy = settings.policies.for_tenant(asked.tenant);
        let (places, names) = (asked.operation.places_by(policy), self.store.names());
        let labels: SmallVec<[Cow<'_, str>; 2]> = places.iter().map(|place| label(asked.tenant, place, settings.log.store_text)).collect();
        let mut cells: SmallVec<[Cell<'_>; 3]> =
            places.iter().zip(&labels).map(|(place, label)| cell(names, asked.tenant, place, label)).collect();
        if let Some(idempotency) = &asked.idempotency {
            let key = names.key(Family::Idempotency, asked.tenant, idempotency.key);
            let (mine, now) = (Claim { fingerprint: idempotency.fingerprint, at: asked.now.as_millis() }, asked.now);
            let earlier =
                self.store.claim(key, &mine.to_bytes(), |there| Claim::from_bytes(there).is_some_and(|there| there.counts(now))).await?;
            if earlier.as_deref().and_then(Claim::from_bytes).is_some_and(|earlier| earlier.fingerprint != idempotency.fingerprint) {
                return Err(EngineError::KeyReused);
            }
        }
        let repeats = asked.repeats(may_be_unheard);
        for repeat in &repeats {
            let key = names.key(Family::Idempotency, asked.tenant, &repeat.key);
            let group = cells.first().map_or(key.group(), |first| first.group);
            cells.push(Cell { key, slot: KEPT_ANSWER, subject: "", group });
        }
        // Boxed, as few ask about an endpoint: the others do not carry the room for it around.
        let room = match places.first() {
            Some(place) if place.scope == Scope::Endpoint => Box::pin(self.room_for(asked.tenant, Some(place), asked.now)).await,
            Some(_) | None => None,
        };
        let known = self.analyst.long_runs();
        let long_runs = known.get(&**asked.tenant);
        // One for all tries: what is decided again, because nobody knows what became of the first time, is the same decision.
        let decision_id = OnceLock::new();
        // Made before others wait for the states; seldom is there a second try.
        let mut input = Some(asked.operation.input(settings.log.store_text));
        let (answered, mut safe) = self
            .store
            .decide(&cells, |view| {
                let decision_id = || *decision_id.get_or_init(|| self.ids.next(asked.now.as_millis()));
                let input = || input.take().unwrap_or_else(|| asked.operation.input(settings.log.store_text));
                Self::step(&asked, &settings, places.len(), &repeats, (room.as_ref(), long_runs), (&decision_id, input), view)
            })
            .await?;
        if room.is_some_and(|room| room.began()) {
            // Whoever goes away meanwhile has begun it all the same.
            self.endpoints.one_more(asked.tenant);
            std::mem::take(&mut safe).wait().await?;
        }
        Ok((answered?, safe))
    }

    /// `kept_at`: the first of the cells for the answers of a repeated request, after those of the guard.
    fn step(
        asked: &AuthorisedRequest<'_>,
        settings: &Settings,
        kept_at: usize,
        repeats: &[Repeat<'_>],
        (room, long_runs): (Option<&Room>, Option<&LongRuns>),
        (decision_id, input): (&dyn Fn() -> Id, impl FnOnce() -> String),
        view: &View<'_>,
    ) -> Decided<Result<Answered, EngineError>> {
        // What was under way while its session was erased takes place after that.
        let now = asked.now.max(Timestamp::from_millis(view.not_before()));
        let kept_cells = || repeats.iter().zip(kept_at..);
        if let Some(earlier) = kept_cells().find_map(|(repeat, cell)| earlier_answer(view, cell, asked, repeat, now)) {
            return Decided::Reply(earlier);
        }
        let operation = asked.operation;
        let decision_id = decision_id().text();
        let states: SmallVec<[Option<&[u8]>; 2]> = (0..kept_at).map(|cell| view.get(cell)).collect();
        let store_text = settings.log.store_text;
        let moment = Moment { now, decision_id: &decision_id, store_text, long_runs };
        let mut outcome = operation.run(settings.policies.for_tenant(asked.tenant), &states, moment);
        match view.store_health() {
            StoreHealth::Behind if when_away(asked, settings).0 == WhenAway::Memory => mark_degraded(&mut outcome),
            // Whoever refuses while the state is away has decided nothing that is missing from it.
            StoreHealth::Sound | StoreHealth::Behind => {}
            StoreHealth::Away => degrade(&mut outcome, asked, settings),
        }
        let mut warnings = Cow::Borrowed(asked.warnings);
        if let Some(warning) = room.filter(|_| view.get(0).is_none()).and_then(|room| take_room(&mut outcome, room)) {
            warnings.to_mut().push(warning);
        }
        if !outcome.warnings.is_empty() {
            warnings.to_mut().append(&mut outcome.warnings);
        }
        let answer = outcome.answer;
        let ended = outcome_of(&answer);
        let envelope = Envelope { decision_id: &decision_id, session_id: operation.session_id(), warnings: &warnings, now };
        let rendered = answer.to_json(&envelope, asked.shape);
        let notice = outcome.notice;
        let answered = |body: String| Answered {
            outcome: ended,
            reason: answer.reason,
            retry_after_seconds: answer.retry_after_seconds(now),
            body,
            notice,
            degraded: answer.facts.get("degraded").is_some(),
            replayed: false,
            is_forgotten: false,
        };
        if outcome.changes.is_empty() && operation.is_forgotten(&answer) {
            return Decided::Reply(Ok(Answered { is_forgotten: true, ..answered(rendered.json) }));
        }
        let logged = if asked.shape == Shape::Full && warnings.is_empty() {
            rendered.rest()
        } else {
            answer.to_json(&Envelope { warnings: &[], ..envelope }, Shape::Full).rest()
        };
        let route = operation.route();
        let row = Row {
            seq: 0,
            at: now.as_millis(),
            tenant: asked.tenant.clone(),
            guard: route.guard.into(),
            kind: match route.kind {
                RouteKind::Check => Kind::Check.into(),
                RouteKind::Record | RouteKind::RecordSilently => Kind::Record.into(),
            },
            session: operation.session_id().to_owned(),
            subject: operation.kept_subject(store_text).into_owned(),
            outcome: ended.into(),
            reason: answer.reason.map(Named::Known),
            answer: logged,
            input: input(),
            id: decision_id,
        };
        let mut changes: Vec<Change> =
            outcome.changes.into_iter().map(|change| Change { cell: change.place, events: change.events, state: change.state }).collect();
        let answered = answered(rendered.json);
        let is_kept = |repeat: &Repeat<'_>| !repeat.is_settlement || answer.reason != Some(Reason::StateUnavailable);
        for (repeat, cell) in kept_cells().filter(|(repeat, _)| is_kept(repeat)) {
            let kept = FirstAnswer {
                fingerprint: repeat.fingerprint,
                at: now.as_millis(),
                outcome: ended,
                reason: answered.reason.map(|reason| reason.code().to_owned()),
                retry_after_seconds: answered.retry_after_seconds,
                body: without_warnings(&answered.body, &warnings, asked.shape),
            };
            let bytes = kept.to_bytes(&warnings[asked.warnings.len()..]);
            changes.push(Change { cell, events: bytes.clone(), state: bytes });
        }
        Decided::Keep(Ok(answered), Written { row, changes })
    }

    /// Rows of the log.
    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        let mut rows = self.store.rows(filter, order, after, limit).await?;
        rows.iter_mut().for_each(complete_answer);
        Ok(rows)
    }

    /// A session's timeline (from `after` on, oldest first) and what would be allowed next. `None` when nothing is known of it.
    pub async fn session(
        &self,
        tenant: &str,
        session_id: &str,
        now: Timestamp,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Option<SessionView>, StoreError> {
        let filter = RowFilter { tenant: Some(tenant.into()), session: Some(session_id.into()), ..RowFilter::default() };
        let timeline = self.rows(filter, Order::OldestFirst, after, limit).await?;
        let mut states = self.store.states(tenant, session_id).await?;
        // Stores keep them in orders of their own.
        states.sort_by(|left, right| (left.slot, &left.subject).cmp(&(right.slot, &right.subject)));
        if timeline.is_empty() && states.is_empty() && after.is_none() {
            return Ok(None);
        }
        let settings = self.settings.load();
        let policy = settings.policies.for_tenant(tenant);
        let outlooks = states.iter().flat_map(|state| guard::outlook(state.slot, policy, &state.subject, &state.state, now)).collect();
        let budgets = states.iter().filter_map(|state| {
            let watched = Watched::kept_with_run(policy, session_id, state.slot, &state.subject)?;
            let figures = watched.stands(Some(&state.state), now);
            Some(spend::stands(tenant, watched, &figures))
        });
        Ok(Some(SessionView { timeline, outlooks, budgets: budgets.collect() }))
    }

    /// A page of the sessions.
    pub async fn sessions(&self, query: SessionQuery) -> Result<SessionList, StoreError> {
        self.analyst.sessions(query).await
    }

    /// What happened in a range of time.
    pub async fn overview(&self, range: Range) -> Result<Overview, StoreError> {
        let savings = self.settings.load().savings.clone();
        self.analyst.overview(&self.store, range, savings).await
    }

    /// What was used in a range of time, by the days of a time zone.
    pub async fn consumption(&self, range: Range, zone: Zone) -> Result<Consumption, StoreError> {
        let savings = self.settings.load().savings.clone();
        self.analyst.consumption(range, zone, savings).await
    }

    /// Ends the thread that tells people; whoever goes on finds what it must know.
    pub fn stop_alerts(&self) {
        if let Some(alerts) = self.alerts.get() {
            alerts.stop();
        }
    }

    /// Ends the threads; everything is written down.
    pub fn stop(&self) {
        self.stop_alerts();
        self.analyst.stop();
        self.store.stop();
    }

    pub(crate) fn new_id(&self, now: Timestamp) -> String {
        self.ids.next(now.as_millis()).text()
    }

    pub(crate) fn admin_row(&self, tenant: &str, now: Timestamp, action: Action, subject: &str) -> Row {
        Row { id: self.new_id(now), ..Self::admin_row_without_id(tenant, now, action, subject) }
    }

    pub(crate) fn admin_row_without_id(tenant: &str, now: Timestamp, action: Action, subject: &str) -> Row {
        Row {
            at: now.as_millis(),
            tenant: tenant.into(),
            kind: Kind::Admin.into(),
            subject: subject.to_owned(),
            outcome: action.into(),
            answer: "{}".into(),
            input: "{}".into(),
            ..Row::default()
        }
    }

    /// An operator's word on an endpoint, kept and logged like a decision.
    pub async fn control_circuit(&self, tenant: &str, endpoint_key: &str, control: Control, now: Timestamp) -> Result<Circuit, StoreError> {
        let action = match control {
            Control::Open => Action::CircuitForcedOpen,
            Control::Close => Action::CircuitForcedClosed,
            Control::Reset => Action::CircuitReset,
        };
        let place = api_circuit::endpoint_place(endpoint_key);
        let label = label(tenant, &place, StoreText::Full);
        let mut row = self.admin_row(tenant, now, action, endpoint_key);
        row.guard = GuardName::ApiCircuit.into();
        let state = self
            .store
            .apply(&[cell(self.store.names(), tenant, &place, &label)], |view| {
                let change = api_circuit::control(view.get(0), control, now);
                let kept = Change { cell: 0, events: change.events, state: change.state.clone() };
                // An id for each try: an earlier one may have been made, without our hearing of it.
                let row = Row { id: self.ids.next(now.as_millis()).text(), ..row.clone() };
                Decided::Keep(change.state, Written { row, changes: vec![kept] })
            })
            .await?;
        let settings = self.settings.load();
        let view = api_circuit::view(&state, endpoint_key, settings.policies.for_tenant(tenant), now);
        Ok(Circuit { tenant: tenant.to_owned(), endpoint_key: endpoint_key.to_owned(), view })
    }

    /// Notes something for other nodes, for a day; nothing where there are none. What was noted under this name before is replaced.
    pub async fn note(&self, tenant: &str, name: &str, bytes: &[u8]) {
        let key = self.store.names().key(Family::Idempotency, tenant, &noted_as(name));
        if let Err(error) = self.store.note(key, bytes).await {
            tracing::warn!(%error, "other nodes cannot be told");
        }
    }

    /// What a node noted under this name; nothing where none did, or nobody can say it.
    pub async fn noted(&self, tenant: &str, name: &str) -> Option<Vec<u8>> {
        let key = self.store.names().key(Family::Idempotency, tenant, &noted_as(name));
        self.store.noted(key).await.ok().flatten()
    }

    /// Takes over new settings; gives the keys that only a restart takes over.
    pub fn replace_settings(&self, new: Settings) -> Vec<String> {
        let needs_restart = new.changed_since_start(&self.started_with);
        self.store.keep_states_for(new.policies.longest_window().as_millis() as i64);
        self.settings.store(Arc::new(new));
        self.tell_fingerprints();
        needs_restart
    }

    /// Takes over new keys.
    pub fn replace_keys(&self, new: KeyRing) {
        self.keys.store(Arc::new(new));
        self.tell_fingerprints();
    }

    /// Other nodes compare theirs with it.
    fn tell_fingerprints(&self) {
        self.store.tell_fingerprints(Fingerprints { settings: self.settings.load().fingerprint(), keys: self.keys.load().fingerprint() });
    }
}

/// No caller's key for a repeated request has such a beginning.
fn noted_as(name: &str) -> String {
    format!("\0note\0{name}")
}

/// The shared state is away. What goes on from memory says so; what must not, refuses and leaves no trace but its row.
/// Results that are told are taken in any case: they happened.
fn degrade(outcome: &mut guard::Outcome, asked: &AuthorisedRequest<'_>, settings: &Settings) {
    let operation = asked.operation;
    let (name, policy) = (operation.route().guard, settings.policies.for_tenant(asked.tenant));
    let (when_away, setting) = when_away(asked, settings);
    let enforced = policy.mode_of(name, operation.subject(), Reason::StateUnavailable) == Mode::Enforce;
    if when_away == WhenAway::Refuse && enforced && operation.route().kind == RouteKind::Check && outcome.answer.allow == Some(true) {
        let old_name = outcome.answer.facts.get("allow_ai_response").map(|_| false);
        outcome.changes.clear();
        outcome.notice = None;
        outcome.warnings.clear();
        outcome.answer = Answer {
            guard: name,
            allow: Some(false),
            reason: Some(Reason::StateUnavailable),
            message: Some(format!(
                "The state that all nodes share is away, and {name} does not go on without it: a limit kept from memory could be passed. Try again in a moment, or stop here; `store.{setting}` says what happens."
            )),
            retry_at: None,
            facts: old_name.map_or_else(Facts::new, |allow| Facts::new().with("allow_ai_response", allow)),
            signals: Vec::new(),
        };
    }
    mark_degraded(outcome);
}

/// What a guard does while the shared state is away, and the setting that says so.
fn when_away(asked: &AuthorisedRequest<'_>, settings: &Settings) -> (WhenAway, &'static str) {
    match GuardEntry::of(asked.operation.route().guard).holds {
        Holds::Money => (settings.store.budget_when_away, "budget_when_away"),
        Holds::Flow => (settings.store.flow_when_away, "flow_when_away"),
    }
}

fn mark_degraded(outcome: &mut guard::Outcome) {
    outcome.answer.facts = std::mem::take(&mut outcome.answer.facts).with("degraded", true);
}

/// An endpoint that is not remembered yet takes one of the tenant's places, or is not remembered and says so.
fn take_room(outcome: &mut guard::Outcome, room: &Room) -> Option<String> {
    let begins = outcome.changes.iter().any(|change| change.place == 0);
    room.began.store(begins && !room.is_full, Ordering::Relaxed);
    if !begins || !room.is_full {
        return None;
    }
    api_circuit::unwatched(outcome);
    Some(format!(
        "the endpoint is not watched: the tenant has as many as it may (guards.api_circuit.max_endpoints = {}); its failures open no circuit until others are forgotten",
        room.most
    ))
}

/// A row keeps of its answer what is not in its columns; this puts the whole answer back.
pub fn complete_answer(row: &mut Row) {
    let allow = match row.outcome.answered() {
        Some(Outcome::Allowed | Outcome::WouldBlock) => Some(true),
        Some(Outcome::Blocked) => Some(false),
        Some(Outcome::Recorded) => None,
        // Not an answer: an operator's change.
        None => return,
    };
    let head = Head { allow, guard: row.guard.code(), decision_id: &row.id, session_id: &row.session, reason: row.reason_code() };
    row.answer = head.with_rest(&row.answer);
}

pub fn forced_name(forced: Forced) -> &'static str {
    match forced {
        Forced::Open => "open",
        Forced::Closed => "closed",
    }
}

/// What a state is filed under within its entry. Endpoints and accounts are no session's, so theirs says whose it is.
pub(crate) fn label<'a>(tenant: &str, place: &guard::Place<'a>, store_text: StoreText) -> Cow<'a, str> {
    match place.scope {
        Scope::Session => place.kept_subject(store_text),
        Scope::Endpoint => Cow::Owned(format!("{tenant}\0{}", place.subject)),
        Scope::Account => Cow::Owned(format!("{tenant}\0{}\0{}", place.subject, place.name)),
    }
}

pub(crate) const fn family_of(scope: Scope) -> Family {
    match scope {
        Scope::Session => Family::Session,
        Scope::Endpoint => Family::Endpoint,
        Scope::Account => Family::Account,
    }
}

/// The address of a guard's state.
pub(crate) fn cell<'a>(names: Names, tenant: &str, place: &guard::Place<'_>, label: &'a str) -> Cell<'a> {
    let family = family_of(place.scope);
    let (key, slot) = (names.key(family, tenant, place.name), place.slot.number);
    Cell { key, slot, subject: label, group: group(names, tenant, key, slot, label).unwrap_or(key.group()) }
}

/// What a request is known by when it comes again.
#[derive(Debug)]
struct Repeat<'a> {
    key: Cow<'a, str>,
    fingerprint: u64,
    /// Known by what it settles, whatever else it says.
    is_settlement: bool,
}

impl AuthorisedRequest<'_> {
    /// By the caller's own key and, where it may be told again, by what it settles, under whatever key.
    fn repeats(&self, may_be_unheard: bool) -> SmallVec<[Repeat<'_>; 2]> {
        let own = self.idempotency.as_ref().map(|Idempotency { key, fingerprint }| Repeat {
            key: Cow::Borrowed(*key),
            fingerprint: *fingerprint,
            is_settlement: false,
        });
        let settled = may_be_unheard.then(|| self.operation.once()).flatten();
        let settled = settled.map(|key| Repeat { key: key.into(), fingerprint: 0, is_settlement: true });
        own.into_iter().chain(settled).collect()
    }
}

fn earlier_answer(
    view: &View<'_>,
    key: usize,
    asked: &AuthorisedRequest<'_>,
    repeat: &Repeat<'_>,
    now: Timestamp,
) -> Option<Result<Answered, EngineError>> {
    let (kept, own_warnings) = FirstAnswer::from_bytes(view.get(key)?)?;
    if now.millis_since(Timestamp::from_millis(kept.at)) >= IDEMPOTENCY_MILLIS {
        return None;
    }
    if kept.fingerprint != repeat.fingerprint {
        return Some(Err(EngineError::KeyReused));
    }
    if !view.is_safe(key) {
        return Some(Err(EngineError::StillRunning));
    }
    Some(Ok(Answered {
        outcome: kept.outcome,
        reason: kept.reason.as_deref().and_then(Reason::from_code),
        body: with_warnings(kept.body, &[asked.warnings, &own_warnings].concat()),
        retry_after_seconds: kept.retry_after_seconds,
        notice: None,
        degraded: false,
        replayed: true,
        is_forgotten: false,
    }))
}

/// Names a request by its route and its bytes.
pub fn fingerprint(route: &str, body: &[u8]) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(route.as_bytes());
    hasher.update(&[0]);
    hasher.update(body);
    hasher.digest()
}
