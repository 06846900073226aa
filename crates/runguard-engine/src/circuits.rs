//! The endpoints of the tenants: looked at in pages, counted by phase, bounded in number.
//!
//! A caller makes up endpoint keys, so there may be very many. What is held of them at a time is a page, whoever asks for however
//! much; all of them are looked at only by so many at once, and for the metrics at most once in a while.

use crate::engine::{Engine, cell, label};
use runguard_core::Timestamp;
use runguard_core::breaker::Phase;
use runguard_core::text::StoreText;
use runguard_guards::guard::api_circuit::{self, CircuitView};
use runguard_guards::guard::{Place, Scope};
use runguard_store::{Decided, Family, Labelled, StoreError};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// How many look through all endpoints at the same time; others wait.
const AT_ONCE: usize = 2;
/// How old counts for the metrics may be.
const COUNTED_FOR_MILLIS: u64 = 10_000;
/// A tenant at its bound is counted again after this long: some of its endpoints may have been forgotten.
const FULL_FOR_MILLIS: u64 = 10_000;

/// One endpoint.
#[derive(Debug)]
pub struct Circuit {
    pub tenant: String,
    pub endpoint_key: String,
    pub view: CircuitView,
}

/// Which circuits to look at.
#[derive(Debug, Clone, Default)]
pub struct CircuitQuery {
    /// `None`: of all tenants.
    pub tenant: Option<String>,
    /// `closed`, `half_open` or `open`; `None`: any.
    pub phase: Option<String>,
    /// The last one of the page before: tenant and endpoint.
    pub after: Option<(String, String)>,
    pub limit: usize,
}

impl CircuitQuery {
    /// The first ones of a tenant, or of all.
    pub fn first(tenant: Option<&str>, limit: usize) -> Self {
        Self { tenant: tenant.map(str::to_owned), limit, ..Self::default() }
    }
}

/// Circuits by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseCounts {
    pub closed: u64,
    pub half_open: u64,
    pub open: u64,
}

impl PhaseCounts {
    fn add(&mut self, phase: Phase) {
        match phase {
            Phase::Open => self.open += 1,
            Phase::HalfOpen => self.half_open += 1,
            Phase::Closed => self.closed += 1,
        }
    }

    pub fn by_name(self) -> [(&'static str, u64); 3] {
        [(Phase::Closed.code(), self.closed), (Phase::HalfOpen.code(), self.half_open), (Phase::Open.code(), self.open)]
    }
}

/// Some circuits, ordered by tenant and endpoint.
#[derive(Debug)]
pub struct CircuitPage {
    pub circuits: Vec<Circuit>,
    /// Whether more come after the last one.
    pub more: bool,
    /// Of all that the query's tenant has, whatever their phase.
    pub counts: PhaseCounts,
}

impl CircuitPage {
    /// One that was asked for by name, if it is there.
    pub fn of(circuit: Option<Circuit>) -> Self {
        let mut counts = PhaseCounts::default();
        if let Some(circuit) = &circuit {
            counts.add(circuit.view.phase);
        }
        Self { circuits: circuit.into_iter().collect(), more: false, counts }
    }
}

/// What is known of the endpoints as a whole.
#[derive(Debug)]
pub(crate) struct Endpoints {
    looking: Arc<Semaphore>,
    /// Apart from those who look: a guard's answer does not wait for them.
    counting: Semaphore,
    counted: tokio::sync::Mutex<Option<(i64, PhaseCounts)>>,
    remembered: Mutex<Remembered>,
}

/// How many endpoints each tenant has, as far as this process knows.
#[derive(Debug, Default)]
struct Remembered {
    /// `None`: never counted.
    counted_at_millis: Option<i64>,
    of_tenant: HashMap<String, u64>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self {
            looking: Arc::new(Semaphore::new(AT_ONCE)),
            counting: Semaphore::new(1),
            counted: tokio::sync::Mutex::default(),
            remembered: Mutex::default(),
        }
    }
}

impl Endpoints {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn one_more(&self, tenant: &str) {
        *self.remembered().of_tenant.entry(tenant.to_owned()).or_default() += 1;
    }
}

/// Whether a step may begin to remember an endpoint, and whether it did.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) is_full: bool,
    pub(crate) most: u32,
    pub(crate) began: AtomicBool,
}

impl Room {
    pub(crate) fn began(&self) -> bool {
        self.began.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// A page of circuits, and how many there are in which phase.
    pub async fn circuits(&self, query: CircuitQuery, now: Timestamp) -> Result<CircuitPage, StoreError> {
        let turn = self.endpoints.looking.clone().acquire_owned().await;
        let settings = self.settings.load_full();
        let limit = query.limit;
        let page: (BTreeMap<(String, String), CircuitView>, PhaseCounts) = (BTreeMap::new(), PhaseCounts::default());
        let (mut found, counts) = self
            .store
            .visit_family(Family::Endpoint, page, move |(found, counts), entry| {
                // Held by whoever looks, not by whoever asked.
                let _turn = &turn;
                let Some((tenant, endpoint_key)) = entry.label.split_once('\0') else { return };
                if entry.slot != api_circuit::ENDPOINT_SLOT.number || query.tenant.as_deref().is_some_and(|wanted| wanted != tenant) {
                    return;
                }
                let policy = settings.policies.for_tenant(tenant);
                if api_circuit::is_over(entry.state, endpoint_key, policy, now) {
                    return;
                }
                let view = api_circuit::view(entry.state, endpoint_key, policy, now);
                counts.add(view.phase);
                let is_past = query.after.as_ref().is_some_and(|(whose, key)| (tenant, endpoint_key) <= (whose.as_str(), key.as_str()));
                if is_past || query.phase.as_deref().is_some_and(|wanted| wanted != view.phase.code()) {
                    return;
                }
                // One more than asked for tells whether there are more.
                if found.len() > limit {
                    let is_later =
                        found.last_key_value().is_some_and(|((whose, key), _)| (tenant, endpoint_key) > (whose.as_str(), key.as_str()));
                    if is_later {
                        return;
                    }
                    found.pop_last();
                }
                found.insert((tenant.to_owned(), endpoint_key.to_owned()), view);
            })
            .await?;
        let more = found.len() > limit;
        while found.len() > limit {
            found.pop_last();
        }
        let circuits = found.into_iter().map(|((tenant, endpoint_key), view)| Circuit { tenant, endpoint_key, view }).collect();
        Ok(CircuitPage { circuits, more, counts })
    }

    /// One circuit; `None` when nothing is remembered of the endpoint.
    pub async fn circuit(&self, tenant: &str, endpoint_key: &str, now: Timestamp) -> Result<Option<Circuit>, StoreError> {
        let place = api_circuit::endpoint_place(endpoint_key);
        let label = label(tenant, &place, StoreText::Full);
        let state = self
            .store
            .apply(&[cell(self.store.names(), tenant, &place, &label)], |view| Decided::Reply(view.get(0).map(<[u8]>::to_vec)))
            .await?;
        let settings = self.settings.load();
        let policy = settings.policies.for_tenant(tenant);
        let state = state.filter(|state| !api_circuit::is_over(state, endpoint_key, policy, now));
        let view = |state: Vec<u8>| api_circuit::view(&state, endpoint_key, policy, now);
        Ok(state.map(view).map(|view| Circuit { tenant: tenant.to_owned(), endpoint_key: endpoint_key.to_owned(), view }))
    }

    /// How many circuits there are in which phase, as of a moment ago.
    pub async fn circuit_counts(&self, now: Timestamp) -> Result<PhaseCounts, StoreError> {
        let mut counted = self.endpoints.counted.lock().await;
        if let Some((at, counts)) = *counted
            && now.as_millis().abs_diff(at) < COUNTED_FOR_MILLIS
        {
            return Ok(counts);
        }
        let counts = self.circuits(CircuitQuery::default(), now).await?.counts;
        *counted = Some((now.as_millis(), counts));
        Ok(counts)
    }

    /// Whether the tenant of a request may have one endpoint more. `None`: the request is about no endpoint.
    pub(crate) async fn room_for(&self, tenant: &str, place: Option<&Place<'_>>, now: Timestamp) -> Option<Room> {
        place.filter(|place| place.scope == Scope::Endpoint)?;
        let most = api_circuit::max_endpoints(self.settings.load().policies.for_tenant(tenant));
        let room = |count: u64| Room { is_full: count >= u64::from(most), most, began: AtomicBool::new(false) };
        let (count, counted_at) = {
            let remembered = self.endpoints.remembered();
            (remembered.of_tenant.get(tenant).copied().unwrap_or(0), remembered.counted_at_millis)
        };
        let is_fresh = |at: i64| count < u64::from(most) || now.as_millis().abs_diff(at) < FULL_FOR_MILLIS;
        if counted_at.is_some_and(is_fresh) {
            return Some(room(count));
        }
        let _turn = match counted_at {
            None => self.endpoints.counting.acquire().await.ok()?,
            // Somebody counts already: until then what was known holds.
            Some(_) => match self.endpoints.counting.try_acquire() {
                Ok(turn) => turn,
                Err(_) => return Some(room(count)),
            },
        };
        if self.endpoints.remembered().counted_at_millis != counted_at {
            // Another has counted while we waited.
            return Some(room(self.endpoints.remembered().of_tenant.get(tenant).copied().unwrap_or(0)));
        }
        let count_each = |of_tenant: &mut HashMap<String, u64>, entry: Labelled<'_>| {
            if let Some((tenant, _)) = entry.label.split_once('\0') {
                match of_tenant.get_mut(tenant) {
                    Some(count) => *count += 1,
                    None => drop(of_tenant.insert(tenant.to_owned(), 1)),
                }
            }
        };
        let Ok(of_tenant) = self.store.visit_family(Family::Endpoint, HashMap::new(), count_each).await else {
            // No reason to refuse, nor to ask a store that is away again for every request: this process goes by its own.
            self.endpoints.remembered().counted_at_millis = Some(now.as_millis());
            return Some(room(count));
        };
        let count = of_tenant.get(tenant).copied().unwrap_or(0);
        *self.endpoints.remembered() = Remembered { counted_at_millis: Some(now.as_millis()), of_tenant };
        Some(room(count))
    }
}
