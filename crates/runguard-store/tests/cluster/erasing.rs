//! An erasure whose node stops at any moment: nothing of it was done, or all of it is.

use super::{TENANT, Together, join_by, key, number, row, summed};
use futures_util::future::FutureExt as _;
use runguard_core::row::Kind;
use runguard_store::cluster::model::Stall;
use runguard_store::{
    Cell, Change, Cluster, Decided, Erased, LogFault, LogKept, Memory, Order, Row, RowFilter, StoreError, StoreHealth, View, Written,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const GONE: &str = "gone";
/// Longer than an erasure has; each has a little more than thirty.
const CALLS: u64 = 60;
/// By then another node has finished what was left.
const FINISHED: Duration = Duration::from_secs(20);

/// Adds one by the shared clock, as guards do. Gives the new sum.
async fn count(node: &Cluster, sessions: &[&str]) -> (u64, StoreHealth) {
    let now = node.clock().now_millis();
    let cells: Vec<Cell<'_>> = sessions.iter().map(|session| summed(key(session))).collect();
    let step = |view: &View<'_>| {
        let sum = |cell| number(view.get(cell)) + 1;
        let change = |cell| Change { cell, events: 1_u64.to_le_bytes().to_vec(), state: sum(cell).to_le_bytes().to_vec() };
        let row = Row { at: now.max(view.not_before()), ..row(sessions[0]) };
        Decided::Keep((sum(0), view.store_health()), Written { row, changes: (0..cells.len()).map(change).collect() })
    };
    node.apply(&cells, step).await.unwrap()
}

fn erasure(node: &Cluster) -> Row {
    Row { kind: "admin".into(), at: node.clock().now_millis(), session: String::new(), ..row("") }
}

/// What the log has of a session, and what its state says.
async fn rows_and_sum(node: &Cluster, session: &str) -> (u64, u64) {
    node.flush().await.unwrap();
    let filter = RowFilter { session: Some(session.into()), ..RowFilter::default() };
    let rows = node.rows(filter, Order::OldestFirst, None, 1000).await.unwrap().len() as u64;
    let states = node.states(TENANT, session).await.unwrap();
    (rows, states.iter().map(|state| number(Some(&state.state))).sum())
}

/// Two nodes, and a third one that stops.
async fn with_one_that_stops() -> (Together, Arc<Cluster>, Stall) {
    let together = Together::new(2).await;
    let link = together.link.another();
    let stall = link.stall();
    let node = join_by(link, LogKept::Memory(together.log.clone(), Memory::alone()), "/nonexistent".into(), 2).await;
    for _ in 0..5 {
        assert_eq!(count(&node, &[GONE, "child"]).await.1, StoreHealth::Sound);
    }
    node.flush().await.unwrap();
    (together, node, stall)
}

#[tokio::test(start_paused = true)]
async fn an_erasure_whose_node_dies_at_any_moment_took_nothing_or_is_finished() {
    let mut ends = Vec::new();
    for calls in 0..CALLS {
        let (together, node, stall) = with_one_that_stops().await;
        let other = &together.nodes[0];
        stall.after(calls);
        let dying = tokio::spawn({
            let node = node.clone();
            async move { node.erase_session(TENANT, GONE, erasure(&node)).await }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let is_done =
            dying.is_finished() && dying.await.unwrap().is_ok_and(|erased| erased.is_some_and(|erased| erased.unfinished.is_none()));
        drop(node);
        // Whoever is told that it is sound never finds less than what the log has.
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (sum, health) = count(other, &[GONE]).await;
            if health == StoreHealth::Sound {
                let (rows, state) = rows_and_sum(other, GONE).await;
                assert_eq!((rows, state), (sum, sum), "it died after {calls} calls");
            }
        }
        tokio::time::sleep(FINISHED).await;
        let (rows, sum) = rows_and_sum(&together.nodes[1], GONE).await;
        assert_eq!(rows, sum, "it died after {calls} calls");
        let was_erased = together.log.every_row().iter().any(|row| row.kind == Kind::Admin);
        assert!(was_erased || !is_done, "after {calls} calls");
        ends.push((was_erased, is_done));
        assert_eq!(count(other, &[GONE]).await, (sum + 1, StoreHealth::Sound), "nobody waits for it any more");
    }
    for wanted in [(false, false), (true, false), (true, true)] {
        assert!(ends.contains(&wanted), "it died before, in the middle, and afterwards: {ends:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_erasure_whose_node_stalls_at_any_moment_takes_nothing_of_what_comes_meanwhile() {
    let mut took = BTreeSet::new();
    for calls in 0..CALLS {
        let (together, node, stall) = with_one_that_stops().await;
        let other = &together.nodes[0];
        stall.after(calls);
        let stalled = tokio::spawn({
            let node = node.clone();
            async move { node.erase_session(TENANT, GONE, erasure(&node)).await }
        });
        tokio::time::sleep(FINISHED).await;
        let is_erased = || together.log.every_row().iter().any(|row| row.kind == Kind::Admin);
        let is_finished = is_erased();
        let mut last = 0;
        for _ in 0..3 {
            let (sum, health) = count(other, &[GONE]).await;
            assert_eq!(health, StoreHealth::Sound, "it stalled after {calls} calls");
            last = sum;
        }
        stall.is_over();
        let ended = stalled.await.unwrap();
        tokio::time::sleep(FINISHED).await;
        let (rows, sum) = rows_and_sum(&together.nodes[1], GONE).await;
        assert_eq!(rows, sum, "it stalled after {calls} calls: {ended:?}");
        // One that had not begun may begin now, with all that is there.
        let is_taken = !is_finished && is_erased();
        assert_eq!(rows, if is_taken { 0 } else { last }, "it stalled after {calls} calls: {ended:?}");
        took.insert((is_finished, is_taken));
    }
    assert_eq!(took.len(), 3, "another node finished it, it began late, and it was given up: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_erasure_that_the_log_does_not_take_is_finished_when_it_does() {
    let together = Together::new(2).await;
    for _ in 0..3 {
        count(&together.nodes[0], &[GONE]).await;
    }
    together.nodes[0].flush().await.unwrap();
    together.log.set_log_fault(LogFault::ErasesNothing);
    let erased = together.nodes[0].erase_session(TENANT, GONE, erasure(&together.nodes[0])).await.unwrap().unwrap();
    assert!(erased.unfinished.is_some(), "{erased:?}");
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_ne!(count(&together.nodes[1], &["stays"]).await.1, StoreHealth::Away);
        assert_eq!(count(&together.nodes[1], &[GONE]).await.1, StoreHealth::Away, "its rows are there and its states are not");
    }
    together.log.set_log_fault(LogFault::Sound);
    tokio::time::sleep(FINISHED).await;
    let (rows, sum) = rows_and_sum(&together.nodes[0], GONE).await;
    assert_eq!(rows, sum, "what was decided alone meanwhile is a new life");
    assert!(rows <= 15, "{rows}");
    assert_eq!(count(&together.nodes[1], &[GONE]).await, (sum + 1, StoreHealth::Sound));
}

/// Whoever was told that it goes asks for it until it is done, and may be the last to hear.
#[tokio::test(start_paused = true)]
async fn an_erasure_that_was_finished_meanwhile_takes_nothing_of_the_new_life() {
    let together = Together::new(2).await;
    let node = &together.nodes[0];
    for _ in 0..3 {
        count(node, &[GONE]).await;
    }
    node.flush().await.unwrap();
    together.log.set_log_fault(LogFault::ErasesNothing);
    let asked = erasure(node);
    let erased = node.erase_session(TENANT, GONE, asked.clone()).await.unwrap().unwrap();
    assert!(erased.unfinished.is_some(), "{erased:?}");
    together.log.set_log_fault(LogFault::Sound);
    tokio::time::sleep(FINISHED).await;
    for sum in 1..=2 {
        assert_eq!(count(&together.nodes[1], &[GONE]).await, (sum, StoreHealth::Sound), "it was finished behind");
    }
    let again = node.erase_session(TENANT, GONE, asked).await.unwrap();
    assert_eq!(again.map(|again| (again.log_rows, again.unfinished)), Some((0, None)));
    assert_eq!(rows_and_sum(node, GONE).await, (2, 2));
    let anew = node.erase_session(TENANT, GONE, erasure(node)).await.unwrap().unwrap();
    assert_eq!((anew.log_rows, rows_and_sum(node, GONE).await), (2, (0, 0)), "asked for once more it goes");
}

/// Whoever was told that it goes, though nobody wrote that it began, may be the last to ask: what somebody else erased meanwhile had been asked for
/// earlier.
#[tokio::test(start_paused = true)]
async fn an_erasure_that_did_not_begin_takes_nothing_of_what_came_after_another_one() {
    let mut was_promised_in_vain = false;
    for calls in 0..CALLS {
        let (together, node, stall) = with_one_that_stops().await;
        let other = &together.nodes[0];
        let asked_first = erasure(other);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let promised = erasure(&node);
        stall.lose_after(calls);
        let ended = node.erase_session(TENANT, GONE, promised.clone()).await;
        stall.is_over();
        let mut erased = Err(StoreError::Stopping);
        for _ in 0..10 {
            erased = other.erase_session(TENANT, GONE, asked_first.clone()).await;
            if erased.is_ok() {
                break;
            }
        }
        let is_in_vain =
            erased.unwrap_or_else(|error| panic!("after {calls} calls: {error}")).is_some_and(|erased| erased.row == asked_first);
        tokio::time::sleep(FINISHED).await;
        for sum in 1..=2 {
            assert_eq!(count(other, &[GONE]).await, (sum, StoreHealth::Sound), "after {calls} calls: {ended:?}");
        }
        let Ok(Some(Erased { unfinished: Some(unfinished), row, .. })) = ended else { continue };
        let earlier = unfinished.earlier.unwrap_or_else(|| panic!("after {calls} calls: {unfinished:?}"));
        let again = node.go_on_erasing(TENANT, GONE, row, earlier).await.unwrap().unwrap();
        assert_eq!((again.log_rows, again.unfinished), (0, None), "after {calls} calls");
        assert_eq!(rows_and_sum(other, GONE).await, (2, 2), "after {calls} calls");
        was_promised_in_vain |= is_in_vain;
    }
    assert!(was_promised_in_vain, "its beginning is lost once at least");
}

/// What a database lost, and its node sends again a moment later, is not said to be nothing: the streams of the next one are further than its own
/// were.
#[tokio::test(start_paused = true)]
async fn an_erasure_waits_for_no_other_database_than_the_one_it_asked() {
    let (together, node, stall) = with_one_that_stops().await;
    let (link, other) = (&together.link, together.nodes[0].clone());
    other.erase_session(TENANT, GONE, erasure(&other)).await.unwrap().unwrap();
    together.log.set_log_fault(LogFault::Away);
    assert_eq!(count(&node, &[GONE]).await, (1, StoreHealth::Sound));
    let asked = tokio::spawn({
        let other = other.clone();
        async move { other.erase_session(TENANT, GONE, erasure(&other)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    stall.after(0);
    link.empty();
    together.log.set_log_fault(LogFault::Sound);
    // The streams of the new one go on from here.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        count(&together.nodes[1], &["stays"]).await;
    }
    stall.is_over();
    let ended = asked.await.unwrap();
    tokio::time::sleep(FINISHED).await;
    assert_eq!(rows_and_sum(&other, GONE).await, (1, 1));
    assert!(ended.is_err(), "it was there, and is: {ended:?}");
}

#[tokio::test(start_paused = true)]
async fn an_erasure_that_is_given_up_leaves_nothing_behind() {
    let together = Together::new(2).await;
    count(&together.nodes[0], &[GONE]).await;
    together.nodes[0].flush().await.unwrap();
    together.log.set_log_fault(LogFault::Away);
    let refused = tokio::time::timeout(Duration::from_secs(60), together.nodes[0].erase_session(TENANT, GONE, erasure(&together.nodes[0])));
    assert!(refused.await.unwrap().is_err());
    assert_eq!(count(&together.nodes[1], &[GONE]).await, (2, StoreHealth::Sound), "nobody waits");
    together.log.set_log_fault(LogFault::Sound);
    tokio::time::sleep(FINISHED).await;
    assert_eq!(rows_and_sum(&together.nodes[0], GONE).await, (2, 2), "nor is it done later");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_several_nodes_erase_at_once_is_erased_once() {
    let together = Together::new(3).await;
    for _ in 0..4 {
        count(&together.nodes[0], &[GONE]).await;
    }
    let erasures = together.nodes.iter().map(|node| {
        let node = node.clone();
        tokio::spawn(async move { node.erase_session(TENANT, GONE, erasure(&node)).await.unwrap() })
    });
    let erased: Vec<_> = futures_util::future::join_all(erasures).await.into_iter().map(Result::unwrap).collect();
    let rows: usize = erased.iter().flatten().map(|erased| erased.log_rows).sum();
    assert_eq!(rows, 4, "{erased:?}");
    assert_eq!(count(&together.nodes[1], &[GONE]).await, (1, StoreHealth::Sound));
}

#[tokio::test(start_paused = true)]
async fn what_a_session_got_from_others_is_found_however_its_erasures_come_between() {
    let together = Together::new(2).await;
    for round in 0..40_u64 {
        let asked = (0..4).map(|number| {
            let node = together.nodes[number % 2].clone();
            tokio::spawn(async move { count(&node, &["child", "parent"]).await })
        });
        let asked: Vec<_> = asked.collect();
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        let eraser = &together.nodes[round as usize % 2];
        eraser.erase_session(TENANT, "parent", erasure(eraser)).await.unwrap();
        for one in asked {
            one.await.unwrap();
        }
        // However little is left, it is found: by a second erasure as well.
        together.nodes[1].erase_session(TENANT, "parent", erasure(&together.nodes[1])).await.unwrap();
        let left: Vec<_> = together.link.cells().into_iter().filter(|(name, ..)| *name == super::name_of_sum("parent")).collect();
        assert!(left.iter().all(|(.., state)| state.is_empty()), "in round {round}: {left:?}");
    }
}

/// Two erasures of one session in one go are one, whoever hears last of its end.
#[tokio::test(start_paused = true)]
async fn an_erasure_that_goes_on_with_one_that_was_left_is_that_one() {
    let together = Together::new(2).await;
    for _ in 0..3 {
        count(&together.nodes[0], &[GONE]).await;
    }
    together.nodes[0].flush().await.unwrap();
    together.log.set_log_fault(LogFault::ErasesNothing);
    let (first, second) = (erasure(&together.nodes[0]), erasure(&together.nodes[1]));
    let begun = together.nodes[0].erase_session(TENANT, GONE, first.clone()).await.unwrap().unwrap();
    assert!(begun.unfinished.is_some() && begun.row.id == first.id, "{begun:?}");
    let joined = together.nodes[1].erase_session(TENANT, GONE, second.clone()).await.unwrap().unwrap();
    assert!(joined.unfinished.is_some() && joined.row.id == first.id, "{joined:?}");
    together.log.set_log_fault(LogFault::Sound);
    tokio::time::sleep(FINISHED).await;
    let told: Vec<_> = together.nodes.iter().flat_map(|node| node.finished_for_others()).collect();
    let told: Vec<_> = told.iter().map(|told| (&*told.tenant, &*told.session, &*told.row.id)).collect();
    assert_eq!(told, [(TENANT, GONE, &*first.id)], "whoever finished it knows whose it was, once");
    for sum in 1..=2 {
        assert_eq!(count(&together.nodes[1], &[GONE]).await, (sum, StoreHealth::Sound));
    }
    for (node, row) in [(0, begun.row), (1, joined.row)] {
        let again = together.nodes[node].erase_session(TENANT, GONE, row).await.unwrap().unwrap();
        assert_eq!((again.log_rows, rows_and_sum(&together.nodes[0], GONE).await), (0, (2, 2)), "node {node}");
    }
    let admin = together.log.every_row().into_iter().filter(|row| row.kind == Kind::Admin).count();
    assert_eq!(admin, 1);
}

/// Whoever was asked is gone for good, and so is whoever went on with it, before anybody else could hear of it; the one before that stops, and
/// has nobody left to note it.
#[tokio::test(start_paused = true)]
async fn an_erasure_whose_finisher_dies_before_that_is_noted_is_told_of_by_the_next() {
    let mut together = Together::new(3).await;
    for _ in 0..3 {
        count(&together.nodes[0], &[GONE]).await;
    }
    together.nodes[0].flush().await.unwrap();
    together.log.set_log_fault(LogFault::ErasesNothing);
    let asked = erasure(&together.nodes[0]);
    let begun = together.nodes[0].erase_session(TENANT, GONE, asked.clone()).await.unwrap().unwrap();
    assert!(begun.unfinished.is_some(), "{begun:?}");
    drop(together.nodes.remove(0));
    together.log.set_log_fault(LogFault::Sound);
    for end in ["stops", "dies", "notes it"] {
        let any = together.nodes.iter().map(|node| node.some_are_finished_for_others().boxed());
        let finished = tokio::time::timeout(FINISHED, futures_util::future::select_all(any)).await.map(|((), finisher, _)| finisher);
        let finisher = finished.unwrap_or_else(|_| panic!("nobody tells of it before one {end}"));
        let mut told = together.nodes[finisher].finished_for_others();
        assert_eq!(told.iter().map(|told| &told.row.id).collect::<Vec<_>>(), [&asked.id]);
        match end {
            "stops" => drop(told),
            "dies" => drop(together.nodes.remove(finisher)),
            _ => told.remove(0).is_noted(),
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&together.nodes[0], &[GONE]).await, (1, StoreHealth::Sound));
}

/// What its rows say of states is read while they are there, or they are gone before.
#[tokio::test(start_paused = true)]
async fn rows_that_states_are_built_from_are_not_erased_behind_them() {
    for is_put_back in [false, true] {
        let together = Together::new(2).await;
        for _ in 0..3 {
            count(&together.nodes[0], &[GONE]).await;
        }
        together.nodes[0].flush().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = together.link.replica();
        together.log.set_log_fault(LogFault::ErasesLate);
        let late = tokio::spawn({
            let node = together.nodes[0].clone();
            async move { node.erase_session(TENANT, GONE, erasure(&node)).await }
        });
        tokio::time::sleep(Duration::from_millis(700)).await;
        if is_put_back {
            // A replica that lacks all of it takes the place; nobody else has written anything.
            together.link.fail_over(before);
        } else {
            together.link.empty();
        }
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        together.log.set_log_fault(LogFault::Sound);
        let ended = late.await.unwrap();
        for node in &together.nodes {
            tokio::time::sleep(FINISHED).await;
            let (rows, sum) = rows_and_sum(node, GONE).await;
            assert_eq!(rows, sum, "put back: {is_put_back}, {ended:?}");
            assert_eq!(count(node, &[GONE]).await, (sum + 1, StoreHealth::Sound), "put back: {is_put_back}, {ended:?}");
        }
    }
}

/// Whoever asks at the same time as another, and is second, tells of nothing.
#[tokio::test(start_paused = true)]
async fn an_erasure_that_finds_nothing_any_more_leaves_no_row() {
    let together = Together::new(2).await;
    for _ in 0..3 {
        count(&together.nodes[0], &[GONE]).await;
    }
    together.nodes[0].flush().await.unwrap();
    let link = together.link.another();
    let stall = link.stall();
    let slow = join_by(link, LogKept::Memory(together.log.clone(), Memory::alone()), "/nonexistent".into(), 2).await;
    for calls in 0..20 {
        count(&together.nodes[0], &[GONE]).await;
        together.nodes[0].flush().await.unwrap();
        let before = together.log.every_row().into_iter().filter(|row| row.kind == Kind::Admin).count();
        stall.after(calls);
        let second = tokio::spawn({
            let node = slow.clone();
            async move { node.erase_session(TENANT, GONE, erasure(&node)).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let first = together.nodes[0].erase_session(TENANT, GONE, erasure(&together.nodes[0])).await;
        stall.is_over();
        let second = second.await.unwrap();
        tokio::time::sleep(FINISHED).await;
        let rows = together.log.every_row().into_iter().filter(|row| row.kind == Kind::Admin).count();
        assert_eq!(rows, before + 1, "after {calls} calls: {first:?}, {second:?}");
    }
}
