//! What must hold at the end, whatever happened.
//!
//! The tape says in which order the database did what it did. Run again one after the other on one set of states, every sound
//! decision on it must come out as it was answered: so many nodes did what one would have done. Limits are counted once more from
//! the answers alone, and the log must hold every answer once.

use crate::network::Taped;
use crate::world::{
    CHILD_LIMIT, ERASABLE, GLOBEX_LIMIT, Given, Heard, PARENT_LIMIT, POOL_LIMIT, PROBE_TIMEOUT_MILLIS, PROBES, RETRY_CAP, Request, World,
    pool_of, route,
};
use runguard_core::ledger::Account;
use runguard_core::row::{Action, Effect, Kind};
use runguard_core::{GuardName, Timestamp};
use runguard_engine::Outcome;
use runguard_engine::engine::RULES;
use runguard_guards::answer::{Envelope, Shape};
use runguard_guards::guard::{Moment, Place, Scope, budget};
use runguard_guards::input::Input;
use runguard_store::cluster::entry;
use runguard_store::cluster::link::Put;
use runguard_store::{Family, Memory, Names, Order, Row, RowFilter, RowWithEffects};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

const CLOCKS_APART: i64 = 1_000;
/// The last node hears of an erasure within this time.
const HEARD_WITHIN: Duration = Duration::from_secs(30);
/// The cells in which the store notes how far it is with building states.
pub(crate) const BUILT: u128 = 0;
const CLOSED: u128 = 1;
/// And which nodes have rows to bring.
pub(crate) const BEHIND: u128 = 2;
/// And since when all of them could say so.
pub(crate) const SETTLED: u128 = 6;
/// And which sessions are being erased.
pub(crate) const ERASING: u128 = 7;

fn name_of(family: u8, hash: u128, slot: u8, subject: &str) -> u128 {
    let mut bytes = vec![family];
    bytes.extend_from_slice(&hash.to_be_bytes());
    bytes.push(slot);
    bytes.extend_from_slice(subject.as_bytes());
    xxh3_128(&bytes)
}

fn name_of_place(tenant: &str, place: &Place<'_>) -> u128 {
    let (family, label) = match place.scope {
        Scope::Session => (0, place.subject.to_owned()),
        Scope::Endpoint => (1, format!("{tenant}\0{}", place.subject)),
        Scope::Account => (3, format!("{tenant}\0{}\0{}", place.subject, place.name)),
    };
    let hash = xxh3_128(&[&[family], tenant.as_bytes(), &[0], place.name.as_bytes()].concat());
    name_of(family, hash, place.slot.number, &label)
}

pub(crate) fn rows_of(log: &Memory) -> Vec<Row> {
    // Held by nobody else: it never waits.
    let all = log.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX);
    let mut all = std::pin::pin!(all);
    match all.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(rows) => rows.unwrap_or_default(),
        std::task::Poll::Pending => unreachable!("memory does not wait"),
    }
}
use std::future::Future;

/// Rows that an emptied database took with it before the log had them.
#[derive(Debug, Default)]
struct Risks {
    /// Not sent again before the states were built: a limit may have been passed for each of them.
    late: BTreeSet<String>,
    /// All of them. Sent again they stand in the log in another order.
    moved: BTreeSet<String>,
    /// Whoever could have sent them again was dead.
    lost: BTreeSet<String>,
    /// Of these, operators' changes.
    lost_controls: usize,
}

pub(crate) async fn check(world: &World) -> Result<(), String> {
    let risks = risks(world);
    let engine = world.engines().into_iter().next().ok_or("no node is up")?;
    let rows = engine.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await.map_err(|error| error.to_string())?;
    log_has_every_answer(world, &rows, &risks)?;
    log_has_nothing_else(world, &rows, &risks)?;
    limits(world, &risks)?;
    limits_after_erasures(world, &rows, &risks)?;
    refused_erasures_took_nothing(world, &rows)?;
    promised_erasures_take_no_later_life(world)?;
    sound_answers_know_what_was_decided_alone(world)?;
    replay_tape(world, &risks)?;
    repeated_requests(world, &risks).await?;
    erased_stays_erased(world).await?;
    every_node_hears_of_what_was_erased(world).await?;
    states_are_what_the_log_says(world).await
}

fn risks(world: &World) -> Risks {
    let record = world.network.record();
    let crashed: BTreeSet<u64> = world.told().cut_off.keys().copied().collect();
    let (mut risks, mut pending) = (Risks::default(), BTreeSet::new());
    for taped in &record.tape {
        match taped {
            Taped::Emptied { at_risk, .. } | Taped::PutBack { at_risk, .. } => {
                risks.moved.extend(at_risk.iter().cloned());
                pending.extend(at_risk.iter().cloned());
            }
            Taped::Swapped { cells, rows, .. } => {
                for RowWithEffects { row, .. } in rows {
                    pending.remove(&row.id);
                }
                if cells.iter().any(|(name, _)| *name == BUILT) {
                    risks.late.extend(pending.iter().cloned());
                }
            }
        }
    }
    risks.lost = pending.into_iter().filter(|id| record.owners.get(id).is_some_and(|life| crashed.contains(life))).collect();
    let rows = record.tape.iter().filter_map(Taped::rows);
    let controls: BTreeSet<&str> =
        rows.flatten().filter(|logged| logged.row.kind == Kind::Admin).map(|logged| logged.row.id.as_str()).collect();
    risks.lost_controls = risks.lost.iter().filter(|id| controls.contains(id.as_str())).count();
    risks
}

fn log_has_every_answer(world: &World, rows: &[Row], risks: &Risks) -> Result<(), String> {
    let mut logged: BTreeMap<&str, &Row> = BTreeMap::new();
    for row in rows {
        if logged.insert(&row.id, row).is_some() {
            return Err(format!("the log has {} twice", row.id));
        }
    }
    let told = world.told();
    let record = world.network.record();
    for given in told.given.iter().filter(|given| !given.replayed) {
        let Some(row) = logged.get(given.id.as_str()) else {
            let session = serde_json::from_str::<Value>(&given.body).map(|body| body["session_id"].as_str().unwrap_or("").to_owned());
            // Alone a node may go by a clock that is behind.
            let since = if given.degraded { i64::MIN } else { given.asked_at };
            let tenant = &given.request.tenant;
            // Of the version before nobody knows when it was over: no other node waits for it.
            let latest = |session: &str| if world.is_mixed { i64::MAX } else { latest_erasure(world, tenant, session) };
            let erased = session.is_ok_and(|session| told.is_erased_after(tenant, &session, since, latest(&session)));
            if erased || risks.lost.contains(&given.id) {
                continue;
            }
            return Err(format!("an answer is not in the log: {} (life {}, {})", given.body, given.life, given.request.path));
        };
        // Sent, given up and decided alone, though it had arrived: it counts once, as the database has it.
        // What one of the version before sent may arrive at any time, also after it was decided anew: nothing puts it out of action.
        if told.is_before(given.life) || (given.degraded && record.is_in_doubt(&given.id)) {
            continue;
        }
        if row.answer != given.body || row.outcome != given.outcome {
            return Err(format!("the log says {} of {} to what was answered {}", row.answer, row.outcome, given.body));
        }
    }
    Ok(())
}

/// When a session was last erased, by whatever node's clock.
fn latest_erasure(world: &World, tenant: &str, session: &str) -> i64 {
    world.network.log.erased_session(tenant, session).map_or(i64::MIN, |at| at + CLOCKS_APART)
}

/// Rows that nobody was told of are those whose answer was lost on the way, or with their node.
fn log_has_nothing_else(world: &World, rows: &[Row], risks: &Risks) -> Result<(), String> {
    let (told, record) = (world.told(), world.network.record());
    let given: BTreeSet<&str> = told.given.iter().map(|given| given.id.as_str()).collect();
    let mut cut_off = told.cut_off.clone();
    let mut controls = 0;
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    // A refusal that the database had not heard of when it granted: both are logged.
    let is_taken_back = |row: &Row| {
        let granted = row.id.strip_suffix("-back").filter(|id| given.contains(id) && ids.contains(id));
        granted.is_some() && row.outcome == Outcome::Blocked
    };
    for row in rows.iter().filter(|row| !given.contains(row.id.as_str()) && !is_taken_back(row)) {
        if row.kind == Kind::Admin {
            controls += usize::from(row.outcome != Action::SessionErased);
            continue;
        }
        if record.is_in_doubt(&row.id) {
            continue;
        }
        match record.owners.get(&row.id).and_then(|life| cut_off.get_mut(life)) {
            Some(left) if *left > 0 => *left -= 1,
            Some(_) | None => return Err(format!("the log has a decision that nobody asked for or was told of: {row:?}")),
        }
    }
    if controls + risks.lost_controls < told.controls {
        return Err(format!("{} changes of operators were confirmed, the log has {controls}", told.controls));
    }
    Ok(())
}

fn facts(given: &Given) -> Value {
    serde_json::from_str(&given.body).unwrap()
}

/// Counted from what callers were told, without a look at any state.
fn limits(world: &World, risks: &Risks) -> Result<(), String> {
    let told = world.told();
    let sound = || told.given.iter().filter(|given| !given.replayed && !given.degraded);
    let mut retries: BTreeMap<(String, String, String), (usize, usize)> = BTreeMap::new();
    let mut probes: BTreeMap<(String, String, String), Vec<i64>> = BTreeMap::new();
    let mut spent: BTreeMap<(String, String), f64> = BTreeMap::new();
    for given in sound().filter(|given| given.outcome == Outcome::Allowed) {
        let body = facts(given);
        let asked: Value = serde_json::from_str(&given.request.body).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (tenant, session) = (given.request.tenant.to_string(), text(&asked["session_id"]));
        match given.request.path {
            "/guard/ai-task-retry" if !session.starts_with(ERASABLE) => {
                let (allowed, excused) = retries.entry((tenant, session, text(&asked["task_name"]))).or_default();
                *allowed += 1;
                *excused += usize::from(risks.late.contains(&given.id));
            }
            "/guard/api-circuit/check" if body["probe"] == true => {
                let permit = text(&body["permit_id"]);
                let generation = permit.split('-').next().unwrap_or_default().to_owned();
                probes.entry((tenant, text(&asked["endpoint_key"]), generation)).or_default().push(given.at);
            }
            "/guard/budget/commit" if body["known"] == true => {
                let cost = body["cost_usd"].as_f64().unwrap_or(0.0);
                *spent.entry((tenant.clone(), pool_of(&session))).or_default() += cost;
                *spent.entry((tenant.clone(), session)).or_default() += cost;
                *spent.entry((tenant, "team".into())).or_default() += cost;
            }
            "/guard/budget/reserve" => {
                let total = body["spent_usd"].as_f64().unwrap_or(0.0) + body["reserved_usd"].as_f64().unwrap_or(0.0);
                if total > CHILD_LIMIT + 1e-9 {
                    return Err(format!("spent and reserved pass the limit: {}", given.body));
                }
            }
            _ => {}
        }
    }
    for (key, (allowed, excused)) in retries {
        if allowed > RETRY_CAP + excused {
            return Err(format!("{allowed} retries were allowed for {key:?}, the cap is {RETRY_CAP}"));
        }
    }
    for (key, mut times) in probes {
        times.sort_unstable();
        let crowded = times.windows(PROBES + 1).find(|some| some[PROBES] - some[0] < PROBE_TIMEOUT_MILLIS);
        if let Some(some) = crowded.filter(|_| risks.late.is_empty()) {
            return Err(format!("probes of {key:?} at {some:?}: no more than {PROBES} at a time"));
        }
    }
    for (key, spent) in spent {
        let limit = match (key.0.as_str(), key.1.as_str()) {
            // Every session has the same parent: what it spends is all that the tenant does.
            ("globex", "team") => GLOBEX_LIMIT,
            (_, "team") => PARENT_LIMIT,
            (_, pool) if pool.starts_with("pool") => POOL_LIMIT,
            _ => CHILD_LIMIT,
        };
        if spent > limit + 1e-9 && risks.late.is_empty() {
            return Err(format!("{key:?} spent {spent}, the limit is {limit}"));
        }
    }
    Ok(())
}

/// What the version before has under way nobody stops, nor does anybody finish what it began.
fn is_excused(world: &World, session: &str) -> bool {
    session.starts_with(ERASABLE) && world.is_mixed
}

/// Whoever heard that nothing was done finds all of it: unless somebody else asked.
fn refused_erasures_took_nothing(world: &World, rows: &[Row]) -> Result<(), String> {
    let told = world.told();
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let refused = told.attempts.iter().filter(|attempt| matches!(attempt.ended, Some((_, Heard::Refused))));
    for attempt in refused.filter(|attempt| !is_excused(world, &attempt.session)) {
        let gone = attempt.rows.iter().find(|id| !ids.contains(id.as_str()));
        // When another one was finished that had begun earlier nobody knows.
        if let Some(id) = gone.filter(|_| !told.is_erased_after(&attempt.tenant, &attempt.session, attempt.began, i64::MAX)) {
            return Err(format!("{id} is gone, though the erasure of {} at {} was refused", attempt.session, attempt.began));
        }
    }
    Ok(())
}

/// One of which somebody was told that it has begun takes nothing of what came after another one.
fn promised_erasures_take_no_later_life(world: &World) -> Result<(), String> {
    for promise in world.told().promises.iter().filter(|promise| !is_excused(world, &promise.session)) {
        let told = world.network.log.erasures_told(&promise.tenant, &promise.session);
        let Some(place) = told.iter().position(|id| *id == promise.row) else { continue };
        if place > promise.before {
            return Err(format!("{} was to go, and went once more after {:?}: {promise:?}", promise.session, &told[promise.before..place]));
        }
    }
    Ok(())
}

/// What the log has of a session that is erased now and then came after the last time: by these rows too no cap was passed.
fn limits_after_erasures(world: &World, rows: &[Row], risks: &Risks) -> Result<(), String> {
    let mut retries: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    let is_sound = |row: &&Row| !row.answer.contains("\"degraded\":true") && !risks.late.contains(&row.id);
    let of_erasable = rows.iter().filter(|row| row.session.starts_with(ERASABLE) && row.guard == GuardName::AiTaskRetry);
    for row in of_erasable.filter(is_sound).filter(|row| row.outcome == Outcome::Allowed) {
        *retries.entry((&row.tenant, &row.session, &row.subject)).or_default() += 1;
    }
    let is_passed = |(key, allowed): &(&(&str, &str, &str), &usize)| **allowed > RETRY_CAP && !is_excused(world, key.1);
    match retries.iter().find(is_passed) {
        Some((key, allowed)) => Err(format!("{allowed} retries were allowed for {key:?} after its erasure, the cap is {RETRY_CAP}")),
        None => Ok(()),
    }
}

/// When the server was gone for everybody and is back, no answer is sound until what was decided alone meanwhile counts: a sound one
/// could pass a cap. Of nodes that are still cut off, or have died, nobody can know; and where messages are lost they may be heard late.
fn sound_answers_know_what_was_decided_alone(world: &World) -> Result<(), String> {
    if !world.is_calm {
        return Ok(());
    }
    let (told, record) = (world.told(), world.network.record());
    let mut place: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, taped) in record.tape.iter().enumerate() {
        for RowWithEffects { row, .. } in taped.rows().into_iter().flatten() {
            place.entry(&row.id).or_insert(index);
        }
    }
    let place = |given: &Given| place.get(given.id.as_str()).copied().unwrap_or(usize::MAX);
    // What the version before did not say.
    let of_this = |given: &&Given| !told.is_before(given.life);
    // Nothing is spent alone: budgets refuse then, so what is in the shared states is all there is.
    let is_flow = |given: &&Given| !given.request.path.starts_with("/guard/budget");
    // What was erased meanwhile never comes home.
    let stays = |given: &&Given| !facts(given)["session_id"].as_str().is_some_and(|session| session.starts_with(ERASABLE));
    let asked = || told.given.iter().filter(|given| !given.replayed).filter(of_this).filter(is_flow);
    for (index, (gone_at, back_at)) in record.outages.iter().enumerate() {
        let until = record.outages.get(index + 1).map_or(i64::MAX, |next| next.0);
        let alone: Vec<&Given> =
            asked().filter(stays).filter(|given| given.degraded && given.asked_at >= *gone_at && given.answered_at <= *back_at).collect();
        for sound in asked().filter(|given| !given.degraded && (*back_at..until).contains(&given.asked_at)) {
            let could_say = |given: &&&Given| {
                let node = told.lives[&given.life].0;
                let is_cut = record.cuts.iter().any(|(cut, from, until)| *cut == node && *from < sound.answered_at && until > gone_at);
                !is_cut && told.died.get(&given.life).is_none_or(|died| *died > sound.answered_at)
            };
            if let Some(owed) = alone.iter().filter(could_say).find(|given| place(given) > place(sound)) {
                return Err(format!(
                    "{} at {} is sound, and {} of life {}, decided alone before {back_at}, does not count yet",
                    sound.body, sound.asked_at, owed.id, owed.life
                ));
            }
        }
    }
    Ok(())
}

/// One after the other, as if there were one node.
fn replay_tape(world: &World, risks: &Risks) -> Result<(), String> {
    let (told, record) = (world.told(), world.network.record());
    let asked: BTreeMap<&str, &Request> =
        told.given.iter().filter(|given| !given.replayed).map(|given| (given.id.as_str(), &given.request)).collect();
    let mut states: BTreeMap<u128, Vec<u8>> = BTreeMap::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let put_back_to = |taped: &Taped| if let Taped::PutBack { length, .. } = taped { Some(*length) } else { None };
    let mut kept: BTreeMap<usize, BTreeMap<u128, Vec<u8>>> =
        record.tape.iter().filter_map(put_back_to).map(|length| (length, BTreeMap::new())).collect();
    for (index, taped) in record.tape.iter().enumerate() {
        if let Some(kept) = kept.get_mut(&index) {
            kept.clone_from(&states);
        }
        let (cells, rows) = match taped {
            Taped::Emptied { .. } => {
                states.clear();
                continue;
            }
            Taped::PutBack { length, .. } => {
                states.clone_from(&kept[length]);
                continue;
            }
            Taped::Swapped { cells, rows, .. } => (cells, rows),
        };
        // Sent again for the log alone: whoever builds the states finds it there.
        if cells.iter().any(|(name, _)| *name != CLOSED) {
            for RowWithEffects { row, effects } in rows {
                let degraded = row.answer.contains("\"degraded\":true");
                // What comes home was decided elsewhere, and what is sent again before.
                if let Some(request) = asked.get(row.id.as_str()).filter(|_| !degraded && seen.insert(row.id.as_str())) {
                    same_answer(world, &states, request, row)?;
                }
                for effect in Effect::read_all(effects) {
                    let name = name_of(effect.family, effect.hash, effect.slot, effect.subject);
                    let before = states.get(&name).map(Vec::as_slice);
                    if let Some(state) = (RULES.replay)(effect.slot, before, effect.events, row.at) {
                        // Sent again, what one node settled may stand before what another set aside: then it counts twice, never not at all.
                        if risks.moved.is_empty() {
                            stays_within_its_limit(&effect, &state, row)?;
                        }
                        states.insert(name, state);
                    }
                }
            }
        }
        for (name, put) in cells {
            match put {
                Put::Keep => {}
                // What stands for a state that was taken away.
                Put::Set { state, .. } if state.is_empty() => {
                    states.remove(name);
                }
                Put::Set { state, .. } => {
                    if !rows.is_empty() && states.get(name) != Some(state) {
                        let ids: Vec<&str> = rows.iter().map(|logged| logged.row.id.as_str()).collect();
                        let made = states.get(name).map(|state| String::from_utf8_lossy(state));
                        let set = String::from_utf8_lossy(state);
                        return Err(format!("the rows {ids:?} make {made:?} of a state, with them was set {set:?}"));
                    }
                    states.insert(*name, state.clone());
                }
            }
        }
    }
    Ok(())
}

/// Nobody here spends without asking, nor more than was set aside: what is settled and what is reserved is never more than a limit.
fn stays_within_its_limit(effect: &Effect<'_>, state: &[u8], row: &Row) -> Result<(), String> {
    let of_team = xxh3_128(&[&[0], row.tenant.as_bytes(), &[0], &b"team"[..]].concat());
    let is_scope = effect.slot == budget::SCOPE_SLOT.number;
    let limit = match effect.subject.split('\0').nth(1) {
        _ if effect.slot == budget::SLOT.number => {
            if effect.hash == of_team {
                PARENT_LIMIT
            } else {
                CHILD_LIMIT
            }
        }
        Some("pool/day") if is_scope => POOL_LIMIT,
        Some("tenant") if is_scope && &*row.tenant == "globex" => GLOBEX_LIMIT,
        _ => return Ok(()),
    };
    let account = Account::from_bytes(state);
    let at = Timestamp::from_millis(row.at);
    let used = account.spent(at).plus(account.reserved(at)).usd.as_dollars();
    if used <= limit + 1e-9 {
        return Ok(());
    }
    Err(format!("{used} of {limit} are spent and reserved in {:?} after {}", effect.subject, row.id))
}

fn same_answer(world: &World, states: &BTreeMap<u128, Vec<u8>>, request: &Request, row: &Row) -> Result<(), String> {
    let route = route(request.path);
    let input = Input::read(request.body.as_bytes(), route.fields).unwrap();
    let operation = (route.read)(&input);
    let policy = world.settings.policies.for_tenant(&request.tenant);
    let places = operation.places_by(policy);
    let before: Vec<Option<&[u8]>> =
        places.iter().map(|place| states.get(&name_of_place(&request.tenant, place)).map(Vec::as_slice)).collect();
    let now = Timestamp::from_millis(row.at);
    let moment = Moment { now, decision_id: &row.id, store_text: world.settings.log.store_text, long_runs: None };
    let outcome = operation.run(policy, &before, moment);
    let envelope = Envelope { decision_id: &row.id, session_id: operation.session_id(), warnings: &[], now };
    let answer = outcome.answer.to_json(&envelope, Shape::Full).rest();
    if answer == row.answer {
        return Ok(());
    }
    Err(format!("{} was answered {} for {}, on the states before it the answer is {answer}", row.id, row.answer, request.body))
}

/// The first sound answer is the answer, on every node.
async fn repeated_requests(world: &World, risks: &Risks) -> Result<(), String> {
    let given = world.told().given.clone();
    let mut first: BTreeMap<String, Given> = BTreeMap::new();
    let mut all: BTreeMap<String, Request> = BTreeMap::new();
    let excused: BTreeSet<&String> =
        given.iter().filter(|given| risks.moved.contains(&given.id)).filter_map(|given| given.request.key.as_ref()).collect();
    for given in &given {
        let Some(key) = given.request.key.as_ref().filter(|key| !excused.contains(key)) else { continue };
        all.insert(key.clone(), given.request.clone());
        if given.degraded || given.replayed {
            continue;
        }
        if let Some(first) = first.insert(key.clone(), given.clone()) {
            return Err(format!("{key} was decided twice: {} and {}", first.body, given.body));
        }
    }
    for given in given.iter().filter(|given| given.replayed && !given.degraded) {
        let key = given.request.key.clone().unwrap_or_default();
        if first.get(&key).is_some_and(|first| first.body != given.body) {
            return Err(format!("{key} was answered {} and then {}", first[&key].body, given.body));
        }
    }
    for (key, request) in all {
        let mut bodies: BTreeSet<String> = first.get(&key).map(|first| first.body.clone()).into_iter().collect();
        for engine in world.engines() {
            let again = world.ask(&engine, 0, request.clone()).await.map_err(|error| format!("{key} asked again: {error}"))?;
            bodies.insert(again.body);
        }
        if bodies.len() > 1 {
            return Err(format!("{key} has several answers: {bodies:?}"));
        }
    }
    Ok(())
}

/// Neither in the log nor in a stream nor on a node's disk, nor where a node keeps what it may have to send again. Its states are held against the
/// log with all others.
async fn erased_stays_erased(world: &World) -> Result<(), String> {
    let network = &world.network;
    // The log has all by now; nodes look so often whether it has.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for engine in world.engines() {
        let kept = engine.store.cluster_health().map_or(0, |health| health.unconfirmed);
        if kept > 0 {
            return Err(format!("{kept} entries are kept though the log has them"));
        }
    }
    let mut places: Vec<(&str, BTreeSet<String>)> = vec![("the log", network.log.every_row().into_iter().map(|row| row.id).collect())];
    let streams = network.database.stream_entries();
    let waiting = streams.iter().flat_map(|entry| entry::decode(entry).unwrap_or_default());
    places.push(("a stream", waiting.map(|logged| logged.row.id).collect()));
    places.push(("a disk", world.disks().iter().flat_map(Memory::every_row).map(|row| row.id).collect()));
    let shelved = world.shelves().into_iter().flat_map(|page| postcard::from_bytes::<Vec<(u16, u64, Vec<u8>)>>(&page).unwrap_or_default());
    let shelved = shelved.flat_map(|(_, _, entry)| entry::decode(&entry).unwrap_or_default());
    places.push(("a shelf", shelved.map(|logged| logged.row.id).collect()));
    let told = world.told();
    let is_before = |life: &u64| told.is_before(*life);
    // The version before puts nothing that is under way out of action, and what it has under way itself is not.
    let owners = &network.record().owners;
    for erasure in told.erasures.iter().filter(|erasure| !is_before(&erasure.life)) {
        for (place, ids) in &places {
            let back = erasure.rows.intersection(ids).find(|id| !owners.get(*id).is_some_and(is_before));
            if let Some(id) = back {
                return Err(format!("{id} of {} was erased and is in {place} again", erasure.session));
            }
        }
    }
    Ok(())
}

/// And of nothing else: what it has of a session in files of its own goes when it hears that it was erased.
async fn every_node_hears_of_what_was_erased(world: &World) -> Result<(), String> {
    let end = Instant::now() + HEARD_WITHIN;
    while world.unfinished_erasures().iter().any(|notes| *notes > 0) {
        if Instant::now() >= end {
            return Err(format!("erasures are not finished: {:?}", world.unfinished_erasures()));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (told, record) = (world.told(), world.network.record());
    let sessions: BTreeSet<(&str, &str)> = told.attempts.iter().map(|attempt| (&*attempt.tenant, &*attempt.session)).collect();
    for (tenant, session) in sessions {
        let key = Names::PLAIN.key(Family::Session, tenant, session).to_text();
        let of_session = |erasure: &String| {
            let mut parts = erasure.split(' ');
            let at = parts.next()?.parse::<i64>().ok()?;
            (parts.next() == Some(&*key)).then_some(at)
        };
        let announced = record.announced.iter().filter_map(of_session).max();
        let erased = world.network.log.erased_session(tenant, session);
        if announced.is_some() && erased < announced {
            return Err(format!("nodes were told that {session} of {tenant} was erased at {announced:?}, it was at {erased:?}"));
        }
        if erased.is_some() && announced.is_none() {
            return Err(format!("{session} of {tenant} was erased at {erased:?}, and nobody told the nodes"));
        }
    }
    Ok(())
}

/// Everything is taken from the database once more: what the nodes build from the log must be what was there.
async fn states_are_what_the_log_says(world: &World) -> Result<(), String> {
    let engines = world.engines();
    for engine in &engines {
        engine.store.flush().await.map_err(|error| error.to_string())?;
    }
    let states = || -> BTreeMap<u128, Vec<u8>> {
        world
            .network
            .database
            .cells()
            .into_iter()
            .map(|(name, _, state)| (name.hash(), state))
            .filter(|(name, state)| *name > BEHIND && !state.is_empty())
            .collect()
    };
    let before = states();
    world.network.go_down();
    world.network.empty();
    world.network.come_up();
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.recovers(engines.len()).await?;
    let after = states();
    let sessions = world.network.record().sessions_of.clone();
    for name in before.keys().chain(after.keys()) {
        let (before, after) = (before.get(name), after.get(name));
        // Claims of keys and notes of foreign cells come with no row: the log cannot make them, and they return with the next use.
        let Some(of) = sessions.get(name) else { continue };
        if of.iter().any(|(_, session)| is_excused(world, session)) {
            continue;
        }
        // A late command of the version before is carried out beside what was decided in its place, and counts twice until states are built anew.
        if world.is_mixed && !world.is_calm {
            continue;
        }
        // Asked of every node to see whether it is sound.
        if before != after && !of.iter().any(|(_, session)| session == "after") {
            return Err(format!("a state of {of:?} was {before:?}, the log makes {after:?} of it"));
        }
    }
    Ok(())
}
