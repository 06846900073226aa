//! The sessions by name: when each was seen, how its questions ended, what it cost.
//!
//! What is told of a session adds up in any order, so a log may be read in pieces. A page is picked while sessions are read one after the
//! other: only as many are kept as are shown, however many there are.

use runguard_core::row::{Kind, Outcome, RowRef};
use runguard_guards::lengths::Length;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NANOS: f64 = 1e9;

/// The latest refusal: by time, and among those of one moment by its code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    pub at: i64,
    pub reason: Box<str>,
}

/// What is known of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSeen {
    pub tenant: Box<str>,
    pub session: Box<str>,
    pub first_seen: i64,
    pub last_seen: i64,
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
    pub nanodollars: u64,
    pub refused: Option<Refusal>,
    pub longest: Option<Longest>,
}

/// The longest that a run became: by its calls, and of as many by its tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Longest {
    pub calls: u64,
    pub tokens: u64,
    pub kind: Box<str>,
}

impl SessionSeen {
    pub fn first(tenant: &str, session: &str, at: i64) -> Self {
        Self {
            tenant: tenant.into(),
            session: session.into(),
            first_seen: at,
            last_seen: at,
            allowed: 0,
            would_block: 0,
            blocked: 0,
            nanodollars: 0,
            refused: None,
            longest: None,
        }
    }

    /// What is told afterwards is no decision, and it shows that the session is there.
    pub(super) fn add_row(&mut self, row: &RowRef<'_>, outcome: Outcome, nanodollars: u64, length: Option<Length>) {
        let is_check = row.kind == Kind::Check;
        let counted = |wanted: Outcome| u64::from(is_check && outcome == wanted);
        let reason = row.reason_code().filter(|_| is_check && outcome != Outcome::Allowed);
        self.add(&Self {
            allowed: counted(Outcome::Allowed),
            would_block: counted(Outcome::WouldBlock),
            blocked: counted(Outcome::Blocked),
            nanodollars,
            refused: reason.map(|reason| Refusal { at: row.at, reason: reason.into() }),
            longest: length.map(|Length { kind, calls, tokens }| Longest { calls, tokens, kind }),
            ..Self::first("", "", row.at)
        });
    }

    /// Adds what another piece of the log tells of the same session.
    pub fn add(&mut self, other: &Self) {
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_seen = self.last_seen.max(other.last_seen);
        for (mine, more) in [
            (&mut self.allowed, other.allowed),
            (&mut self.would_block, other.would_block),
            (&mut self.blocked, other.blocked),
            (&mut self.nanodollars, other.nanodollars),
        ] {
            *mine = mine.saturating_add(more);
        }
        if other.refused > self.refused {
            self.refused.clone_from(&other.refused);
        }
        if other.longest > self.longest {
            self.longest.clone_from(&other.longest);
        }
    }

    fn decisions(&self) -> u64 {
        self.allowed.saturating_add(self.would_block).saturating_add(self.blocked)
    }
}

/// What sessions are sorted by, the most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionSort {
    #[default]
    LastSeen,
    Blocked,
    Usd,
    Decisions,
}

impl SessionSort {
    pub const ALL: [Self; 4] = [Self::LastSeen, Self::Blocked, Self::Usd, Self::Decisions];

    pub const fn code(self) -> &'static str {
        match self {
            Self::LastSeen => "last_seen",
            Self::Blocked => "blocked",
            Self::Usd => "usd",
            Self::Decisions => "decisions",
        }
    }

    /// In the words of whoever chooses among them.
    pub const fn about(self) -> &'static str {
        match self {
            Self::LastSeen => "The latest first",
            Self::Blocked => "Those blocked most often first; in observe mode, those that would be",
            Self::Usd => "The dearest first",
            Self::Decisions => "Those that asked most often first",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.code() == code)
    }

    fn amount(self, seen: &SessionSeen) -> (u64, u64) {
        match self {
            Self::LastSeen => (0, 0),
            Self::Blocked => (seen.blocked, seen.would_block),
            Self::Usd => (seen.nanodollars, 0),
            Self::Decisions => (seen.decisions(), 0),
        }
    }
}

/// Which sessions.
#[derive(Debug, Clone, Default)]
pub struct SessionQuery {
    /// `None`: of all tenants.
    pub tenant: Option<String>,
    /// Seen from this time on and before that one, in milliseconds.
    pub since_ms: i64,
    pub until_ms: i64,
    /// What their names begin with.
    pub prefix: String,
    pub sort: SessionSort,
    /// So many are passed over.
    pub skip: usize,
    pub limit: usize,
}

impl SessionQuery {
    fn wants(&self, seen: &SessionSeen) -> bool {
        seen.last_seen >= self.since_ms
            && seen.first_seen < self.until_ms
            && self.tenant.as_deref().is_none_or(|tenant| tenant == &*seen.tenant)
            && seen.session.starts_with(&self.prefix)
    }
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ListedSession {
    pub session_id: String,
    pub tenant: String,
    /// Of the whole session, as far as the log is kept, whatever the time asked for.
    pub decisions: u64,
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
    /// What its model calls cost.
    pub usd: f64,
    /// Why it was last blocked, or would have been.
    pub reason: Option<String>,
    pub first_seen: String,
    pub last_seen: String,
    pub first_seen_ms: i64,
    pub last_seen_ms: i64,
}

/// A page of sessions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SessionList {
    /// In RFC 3339, and in milliseconds.
    pub since: String,
    pub until: String,
    pub since_ms: i64,
    pub until_ms: i64,
    /// Decisions that are logged and not yet looked at.
    pub behind_rows: u64,
    pub sessions: Vec<ListedSession>,
    /// Of all that the query finds, whatever the page.
    pub found: u64,
    pub next_cursor: Option<String>,
}

/// The most first; of equals the latest, then by name.
type Rank = ((u64, u64), i64, Reverse<Box<str>>, Reverse<Box<str>>);

/// Picks a page out of sessions that come in any order, each once.
#[derive(Debug)]
pub struct Picker<'a> {
    query: &'a SessionQuery,
    best: BinaryHeap<(Reverse<Rank>, Chosen)>,
    found: usize,
}

/// Takes no part in the order: its rank is all that counts.
#[derive(Debug)]
struct Chosen(SessionSeen);

impl PartialEq for Chosen {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Chosen {}

impl PartialOrd for Chosen {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Chosen {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<'a> Picker<'a> {
    pub fn new(query: &'a SessionQuery) -> Self {
        Self { query, best: BinaryHeap::new(), found: 0 }
    }

    pub fn offer(&mut self, seen: SessionSeen) {
        if !self.query.wants(&seen) {
            return;
        }
        self.found += 1;
        let amount = self.query.sort.amount(&seen);
        let is_full = self.best.len() >= self.query.skip.saturating_add(self.query.limit);
        // The least of those that are kept is on top.
        if is_full && self.best.peek().is_none_or(|(Reverse((least, last_seen, ..)), _)| (amount, seen.last_seen) < (*least, *last_seen)) {
            return;
        }
        let rank = (amount, seen.last_seen, Reverse(seen.tenant.clone()), Reverse(seen.session.clone()));
        self.best.push((Reverse(rank), Chosen(seen)));
        if is_full {
            self.best.pop();
        }
    }

    pub fn page(self) -> SessionList {
        let Self { query, best, found } = self;
        let page: Vec<ListedSession> = best.into_sorted_vec().into_iter().skip(query.skip).map(|(_, Chosen(seen))| listed(seen)).collect();
        let reached = query.skip.saturating_add(page.len());
        SessionList {
            since_ms: query.since_ms,
            until_ms: query.until_ms,
            next_cursor: (reached < found && !page.is_empty()).then(|| reached.to_string()),
            found: found as u64,
            sessions: page,
            ..SessionList::default()
        }
    }
}

fn listed(seen: SessionSeen) -> ListedSession {
    ListedSession {
        decisions: seen.decisions(),
        session_id: seen.session.into(),
        tenant: seen.tenant.into(),
        allowed: seen.allowed,
        would_block: seen.would_block,
        blocked: seen.blocked,
        usd: seen.nanodollars as f64 / NANOS,
        reason: seen.refused.map(|refused| refused.reason.into()),
        first_seen_ms: seen.first_seen,
        last_seen_ms: seen.last_seen,
        ..ListedSession::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::*;
    use proptest::prelude::*;

    fn row<'a>(seq: u64, session: &'a str, outcome: &'a str, reason: Option<&'a str>) -> RowRef<'a> {
        RowRef {
            seq,
            at: seq as i64 * 1000,
            id: "",
            tenant: "acme",
            guard: "handoff".into(),
            kind: "check".into(),
            session,
            subject: "billing",
            outcome: outcome.into(),
            reason: reason.map(Into::into),
            answer: "{}",
            input: "{}",
        }
    }

    fn paid(seq: u64, session: &str) -> RowRef<'_> {
        let answer = r#"{"cost_usd":0.5,"spent_usd":0.5}"#;
        let input = r#"{"act":"commit","model":"gpt-4o"}"#;
        RowRef { guard: "budget".into(), subject: "default", answer, input, ..row(seq, session, "allowed", None) }
    }

    fn seen(rows: &[RowRef<'_>]) -> Vec<SessionSeen> {
        let mut digest = Digest::default();
        for row in rows {
            digest.fold(row, 1);
        }
        let mut seen: Vec<SessionSeen> = digest.take_sessions().collect();
        seen.sort_by(|left, right| left.session.cmp(&right.session));
        seen
    }

    fn all() -> SessionQuery {
        SessionQuery { until_ms: i64::MAX, limit: 100, ..SessionQuery::default() }
    }

    fn page(query: &SessionQuery, sessions: &[SessionSeen]) -> SessionList {
        let mut picker = Picker::new(query);
        for seen in sessions {
            picker.offer(seen.clone());
        }
        picker.page()
    }

    fn names(list: &SessionList) -> Vec<&str> {
        list.sessions.iter().map(|session| session.session_id.as_str()).collect()
    }

    #[test]
    fn a_session_is_how_its_questions_ended_and_what_it_cost() {
        let rows = [
            row(1, "s", "allowed", None),
            row(2, "s", "would_block", Some("cycle_detected")),
            row(3, "s", "blocked", Some("handoff_ceiling_reached")),
            paid(4, "s"),
            RowRef { kind: "record".into(), ..row(5, "s", "recorded", None) },
            // Numbers are kept of what has no session, and nothing else.
            row(6, "", "blocked", Some("cycle_detected")),
        ];
        let list = page(&all(), &seen(&rows));
        assert_eq!((list.found, list.sessions.len()), (1, 1));
        let session = &list.sessions[0];
        assert_eq!((session.allowed, session.would_block, session.blocked, session.decisions), (2, 1, 1, 4));
        assert_eq!((session.first_seen_ms, session.last_seen_ms, session.reason.as_deref()), (1000, 5000, Some("handoff_ceiling_reached")));
        assert!((session.usd - 0.5).abs() < 1e-9);
    }

    #[test]
    fn sessions_are_sorted_by_whatever_one_asks_for() {
        let rows = [
            row(1, "often", "allowed", None),
            row(2, "often", "allowed", None),
            row(3, "often", "allowed", None),
            row(4, "stopped", "blocked", Some("cycle_detected")),
            row(5, "watched", "would_block", Some("cycle_detected")),
            paid(6, "dear"),
            row(7, "late", "allowed", None),
        ];
        let sessions = seen(&rows);
        let by = |sort| page(&SessionQuery { sort, ..all() }, &sessions);
        assert_eq!(names(&by(SessionSort::LastSeen))[..2], ["late", "dear"]);
        assert_eq!(names(&by(SessionSort::Blocked))[..3], ["stopped", "watched", "late"]);
        assert_eq!(names(&by(SessionSort::Usd))[0], "dear");
        assert_eq!(names(&by(SessionSort::Decisions))[0], "often");
        for sort in SessionSort::ALL {
            assert_eq!(SessionSort::from_code(sort.code()), Some(sort));
        }
    }

    #[test]
    fn a_time_a_tenant_and_a_beginning_narrow_it() {
        let rows = [
            row(1, "conv-1", "allowed", None),
            row(9, "conv-1", "allowed", None),
            row(5, "conv-2", "allowed", None),
            row(5, "x", "allowed", None),
        ];
        let sessions = seen(&rows);
        assert_eq!(names(&page(&SessionQuery { prefix: "conv".into(), ..all() }, &sessions)), ["conv-1", "conv-2"]);
        // It was there before and after: so in between, too.
        assert_eq!(names(&page(&SessionQuery { since_ms: 6000, until_ms: 7000, ..all() }, &sessions)), ["conv-1"]);
        assert_eq!(names(&page(&SessionQuery { until_ms: 5000, ..all() }, &sessions)), ["conv-1"]);
        assert_eq!(page(&SessionQuery { tenant: Some("other".into()), ..all() }, &sessions).found, 0);
    }

    proptest! {
        #[test]
        fn pages_together_are_the_whole_list_in_order(count in 0..40_u64, limit in 1..7_usize, order in any::<u64>()) {
            let ids: Vec<String> = (0..count).map(|number| format!("s{number:02}")).collect();
            // Several of one moment: their names decide.
            let mut sessions: Vec<SessionSeen> = ids.iter().enumerate().map(|(number, id)| SessionSeen::first("acme", id, number as i64 / 3)).collect();
            let whole = page(&SessionQuery { limit: 1000, ..all() }, &sessions);
            sessions.rotate_left((order % count.max(1)) as usize);
            let mut together = Vec::new();
            let mut skip = 0;
            loop {
                let query = SessionQuery { skip, limit, ..all() };
                let one = page(&query, &sessions);
                prop_assert_eq!(one.found, count);
                prop_assert!(one.sessions.len() <= limit);
                together.extend(one.sessions);
                match one.next_cursor {
                    Some(cursor) => skip = cursor.parse().unwrap(),
                    None => break,
                }
            }
            prop_assert_eq!(together, whole.sessions);
        }

        #[test]
        fn what_is_read_in_pieces_adds_up(cut in 0..5_usize) {
            let rows = [row(1, "s", "allowed", None), row(2, "s", "blocked", Some("cycle_detected")), paid(3, "s"), row(2, "s", "would_block", Some("handoff_ceiling_reached")), paid(1, "s")];
            let whole = seen(&rows);
            let mut sum: Option<SessionSeen> = None;
            for piece in [&rows[cut..], &rows[..cut]] {
                for one in seen(piece) {
                    match &mut sum {
                        Some(sum) => sum.add(&one),
                        None => sum = Some(one),
                    }
                }
            }
            prop_assert_eq!(sum, Some(whole[0].clone()));
        }
    }
}
