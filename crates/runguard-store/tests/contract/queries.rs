//! Queries: the same answer whether rows are indexed or still behind the index.

use crate::contract::toy::{MINUTE, NOW, Store, Toy, on_every_store, settle, write};
use runguard_core::row::Kind;
use runguard_store::{Order, Row, RowCount, RowFilter};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinSet;

on_every_store!(
    rows_and_stats_are_the_same_behind_the_index_and_in_it,
    a_page_that_was_begun_goes_on_while_rows_are_added,
    whoever_waits_for_rows_is_told_of_each_once_it_is_safe,
);

const GUARDS: [&str; 3] = ["handoff", "agent_action", "api_circuit"];
const REASONS: [Option<&str>; 4] = [None, Some("cycle_detected"), Some("circuit_open"), Some("action_cycle")];
const OUTCOMES: [&str; 3] = ["allowed", "blocked", "would_block"];
const KINDS: [&str; 3] = ["check", "record", "admin"];

fn row(number: usize) -> Row {
    // Times that mostly go on, at times back, and start before 1970.
    let at = if number < 50 { number as i64 * 7 - 200_000 } else { NOW + number as i64 * 977 - (number as i64 % 7) * 40_000 };
    Row {
        seq: 0,
        at,
        id: format!("id-{number:05}"),
        tenant: format!("tenant {}", number / 3 % 3).into(),
        guard: GUARDS[number / 2 % 3].into(),
        kind: KINDS[usize::from(number.is_multiple_of(5)) + usize::from(number.is_multiple_of(25))].into(),
        session: format!("session {}", number % 37),
        subject: format!("subject {}", number % 11),
        outcome: OUTCOMES[number / 5 % 3].into(),
        // One that is rare: most zones do not have it.
        reason: if number % 1500 == 700 { Some("rare") } else { REASONS[number / 7 % 4] }.map(Into::into),
        answer: format!("{{\"number\":{number}}}"),
        input: "{}".into(),
    }
}

async fn write_rows(store: &std::sync::Arc<Store>, numbers: std::ops::Range<usize>) {
    let mut tasks = JoinSet::new();
    for number in numbers {
        let store = store.clone();
        tasks.spawn(async move { write(&store, row(number)).await });
    }
    tasks.join_all().await;
}

fn filters() -> Vec<RowFilter> {
    let any = RowFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let mut filters = vec![
        any(),
        RowFilter { id: text("id-00700"), ..any() },
        RowFilter { id: text("nobody"), ..any() },
        RowFilter { kind: text("record"), ..any() },
        RowFilter { kind: text("admin"), ..any() },
        RowFilter { guard: text("handoff"), ..any() },
        RowFilter { guard: text("nothing"), ..any() },
        RowFilter { reason: text("cycle_detected"), ..any() },
        RowFilter { reason: text("rare"), ..any() },
        RowFilter { outcome: text("blocked"), ..any() },
        RowFilter { tenant: text("tenant 1"), ..any() },
        RowFilter { session: text("session 5"), ..any() },
        RowFilter { tenant: text("tenant 1"), session: text("session 5"), ..any() },
        RowFilter { tenant: text("tenant 1"), session: text("session 5"), outcome: text("blocked"), since: Some(NOW + 900_000), ..any() },
        RowFilter { tenant: text("nobody"), session: text("session 5"), ..any() },
        RowFilter { since: Some(0), ..any() },
        RowFilter { until: Some(0), ..any() },
        RowFilter { since: Some(NOW + 500_000), until: Some(NOW + 700_000), ..any() },
        RowFilter { since: Some(NOW + 700_000), until: Some(NOW + 500_000), ..any() },
        RowFilter {
            guard: text("agent_action"),
            reason: text("circuit_open"),
            outcome: text("allowed"),
            tenant: text("tenant 2"),
            ..any()
        },
    ];
    // The bounds themselves: from this time on, before that time.
    let edge = row(1234).at;
    filters.push(RowFilter { since: Some(edge), until: Some(edge + 1), ..any() });
    filters.push(RowFilter { since: Some(edge - 5000), until: Some(edge), ..any() });
    filters.push(RowFilter { since: Some(edge + 1), until: Some(edge + 5000), ..any() });
    filters
}

fn passes(filter: &RowFilter, row: &Row) -> bool {
    let is = |wanted: &Option<String>, value: Option<&str>| wanted.as_deref().is_none_or(|wanted| value == Some(wanted));
    is(&filter.id, Some(&row.id))
        && is(&filter.kind, Some(row.kind.code()))
        && is(&filter.guard, Some(row.guard.code()))
        && is(&filter.reason, row.reason_code())
        && is(&filter.outcome, Some(row.outcome.code()))
        && is(&filter.tenant, Some(&row.tenant))
        && is(&filter.session, Some(&row.session))
        && filter.since.is_none_or(|since| row.at >= since)
        && filter.until.is_none_or(|until| row.at < until)
}

async fn page_through(store: &Store, filter: &RowFilter, order: Order, limit: usize) -> Vec<Row> {
    let mut found: Vec<Row> = Vec::new();
    loop {
        let page = store.rows(filter.clone(), order, found.last().map(|row| row.seq), limit).await.unwrap();
        assert!(page.len() <= limit);
        if page.is_empty() {
            return found;
        }
        found.extend(page);
    }
}

/// Every filter in both orders, and page by page, against the rows themselves.
async fn check_rows(store: &Store, written: usize, when: &str) {
    let all = store.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await.unwrap();
    let ids: BTreeSet<&str> = all.iter().map(|row| row.id.as_str()).collect();
    assert_eq!((all.len(), ids.len()), (written, written), "{when}: each row once");
    assert!(all.iter().zip(1..).all(|(row, seq)| row.seq == seq));
    for found in &all {
        let row = row(found.id[3..].parse().unwrap());
        let expected = Row { seq: found.seq, ..row };
        assert_eq!(*found, expected);
    }
    for filter in filters() {
        let mut expected: Vec<Row> = all.iter().filter(|row| passes(&filter, row)).cloned().collect();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for limit in [13, 1000, 1_000_000] {
                let found = page_through(store, &filter, order, limit).await;
                assert_eq!(found.len(), expected.len(), "{when}: {filter:?} {order:?} {limit}");
                assert_eq!(found, expected, "{when}: {filter:?} {order:?} {limit}");
            }
            expected.reverse();
        }
    }
}

async fn check_stats(store: &Store, written: usize, when: &str) {
    let spans = [(i64::MIN / 2, i64::MAX / 2), (NOW, NOW + 1_000_000), (-1, 1), (NOW + 600_001, NOW + 600_002), (NOW + 5 * MINUTE, NOW)];
    for (since, until) in spans {
        for (tenant, guard) in [(None, None), (Some("tenant 1"), None), (None, Some("handoff")), (Some("tenant 2"), Some("agent_action"))] {
            let first = since.div_euclid(MINUTE);
            // A minute that has begun counts whole.
            let last = until.div_euclid(MINUTE) + i64::from(until.rem_euclid(MINUTE) > 0);
            let mut counts: BTreeMap<RowCount, u64> = BTreeMap::new();
            for row in (0..written).map(row) {
                let minute = row.at.div_euclid(MINUTE);
                let counts_here = row.kind == Kind::Check && (first..last).contains(&minute);
                if counts_here && tenant.is_none_or(|tenant| *row.tenant == *tenant) && guard.is_none_or(|guard| row.guard.code() == guard)
                {
                    let counted = RowCount { minute, guard: row.guard, outcome: row.outcome, reason: row.reason, count: 0 };
                    *counts.entry(counted).or_default() += 1;
                }
            }
            let expected: Vec<RowCount> = counts.into_iter().map(|(counted, count)| RowCount { count, ..counted }).collect();
            let mut found = store.stats_by(tenant.map(Into::into), guard.map(Into::into), since, until, 1).await.unwrap();
            found.sort_unstable();
            assert_eq!(found, expected, "{when}: {tenant:?} {guard:?} {since} {until}");
        }
    }
}

async fn rows_and_stats_are_the_same_behind_the_index_and_in_it(toy: Toy) {
    let mut written = 0;
    // Several zones, and a part of them in one batch.
    for upto in [2500, 2600, 2601, 4000] {
        write_rows(&toy.store, written..upto).await;
        settle(&toy.store).await;
        written = upto;
        check_rows(&toy.store, written, "some behind the index").await;
        check_stats(&toy.store, written, "some behind the index").await;
        toy.store.flush().await.unwrap();
        assert_eq!(toy.store.rows_behind(), 0);
    }
    check_rows(&toy.store, written, "indexed").await;
    check_stats(&toy.store, written, "indexed").await;
    if let Store::Embedded(_) = *toy.store {
        let toy = toy.reopen();
        check_rows(&toy.store, written, "opened again").await;
        check_stats(&toy.store, written, "opened again").await;
    }
}

async fn a_page_that_was_begun_goes_on_while_rows_are_added(toy: Toy) {
    write_rows(&toy.store, 0..50).await;
    settle(&toy.store).await;
    let first = toy.store.rows(RowFilter::default(), Order::NewestFirst, None, 20).await.unwrap();
    write_rows(&toy.store, 50..80).await;
    toy.store.flush().await.unwrap();
    let rest = toy.store.rows(RowFilter::default(), Order::NewestFirst, first.last().map(|row| row.seq), 1000).await.unwrap();
    let seqs: Vec<u64> = first.iter().chain(&rest).map(|row| row.seq).collect();
    assert_eq!(seqs, (1..=50).rev().collect::<Vec<u64>>());
}

async fn whoever_waits_for_rows_is_told_of_each_once_it_is_safe(toy: Toy) {
    let mut committed = toy.store.committed();
    assert_eq!(*committed.borrow_and_update(), 0);
    write_rows(&toy.store, 0..10).await;
    assert_eq!(*committed.wait_for(|seq| *seq >= 10).await.unwrap(), 10);
    let rows = toy.store.rows(RowFilter::default(), Order::OldestFirst, Some(4), 100).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), (5..=10).collect::<Vec<_>>());
    if let Store::Embedded(_) = *toy.store {
        assert_eq!(*toy.reopen().store.committed().borrow(), 10);
    }
}
