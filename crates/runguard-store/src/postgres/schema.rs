//! The tables, how they came to be, and how a value stands in them.
//!
//! A format is a number in a row; each step from one to the next is a script that runs in one transaction under an advisory
//! lock. Days are tables of their own, made beside the log and attached to it: that takes no lock a reader or a writer minds.

use super::pool::{Failure, Wire};
use crate::key::Names;
use jiff::ToSpan;
use jiff::civil::Date;
use runguard_core::time::{DAY_MILLIS, MINUTE_MILLIS};
use std::borrow::Cow;

/// The first that attaches a day without stopping readers, and is still looked after.
const OLDEST_SERVER: i32 = 13;

/// Steps from each format to the next. What stands here has run somewhere: only add.
const STEPS: [&str; 2] = [
    r#"
CREATE TABLE runguard_log (
    seq            bigint NOT NULL,
    at             bigint NOT NULL,
    session_number bigint NOT NULL,
    id             text COLLATE "C" NOT NULL,
    tenant         text COLLATE "C" NOT NULL,
    guard          text COLLATE "C" NOT NULL,
    kind           text COLLATE "C" NOT NULL,
    session        text COLLATE "C" NOT NULL,
    subject        text COLLATE "C" NOT NULL,
    outcome        text COLLATE "C" NOT NULL,
    reason         text COLLATE "C",
    answer         text COLLATE "C" NOT NULL,
    input          text COLLATE "C" NOT NULL,
    effects        bytea
) PARTITION BY RANGE (at);
CREATE UNIQUE INDEX runguard_log_id ON runguard_log (id, at);
CREATE INDEX runguard_log_seq ON runguard_log (seq);
CREATE INDEX runguard_log_session ON runguard_log (session_number, seq);
CREATE TABLE runguard_rollup (
    minute  bigint NOT NULL,
    tenant  text COLLATE "C" NOT NULL,
    guard   text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    reason  text COLLATE "C" NOT NULL,
    count   bigint NOT NULL,
    PRIMARY KEY (minute, tenant, guard, outcome, reason)
) WITH (fillfactor = 50);
CREATE TABLE runguard_positions (
    partition integer PRIMARY KEY,
    millis    bigint NOT NULL,
    number    bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE runguard_counter (
    single   boolean PRIMARY KEY DEFAULT true CHECK (single),
    last_seq bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO runguard_counter (last_seq) VALUES (0);
CREATE TABLE runguard_erased (
    session_number bigint PRIMARY KEY,
    at             bigint NOT NULL
);
CREATE TABLE runguard_probe (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    count bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO runguard_probe (count) VALUES (0);
"#,
    "CREATE TABLE runguard_trusted (
    single  boolean PRIMARY KEY DEFAULT true CHECK (single),
    at      bigint NOT NULL,
    off_by  bigint NOT NULL,
    off_for bigint NOT NULL
);
CREATE TABLE runguard_secret (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    secret text NOT NULL
);
INSERT INTO runguard_secret (secret) SELECT '' WHERE EXISTS (SELECT FROM runguard_positions);",
];

const FORMAT_TABLE: &str = "CREATE TABLE IF NOT EXISTS runguard_format (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    format bigint NOT NULL
)";

/// The tables of the days.
pub(super) const DAYS: &str = "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'runguard_log'::regclass ORDER BY 1";

/// Brings the tables to this version's format. Gives the channel on which rows are told.
pub(super) async fn prepare(wire: &mut Wire) -> Result<String, Failure> {
    let about = wire
        .query_one(
            "SELECT (SELECT 'runguard_log_' || oid FROM pg_namespace WHERE nspname = current_schema()),
             current_setting('server_encoding'), current_setting('server_version_num')::int / 10000",
            &[],
        )
        .await?;
    let channel: Option<String> = about.try_get(0)?;
    let (encoding, version): (&str, i32) = (about.try_get(1)?, about.try_get(2)?);
    if encoding != "UTF8" {
        return Err(Failure::Refused(format!("the database is encoded in {encoding}; create one with ENCODING 'UTF8' TEMPLATE template0")));
    }
    if version < OLDEST_SERVER {
        return Err(Failure::Refused(format!("it is version {version}; RunGuard needs {OLDEST_SERVER} or later")));
    }
    let Some(channel) = channel else {
        return Err(Failure::Refused("the schema of its search_path does not exist; create it with CREATE SCHEMA, or name another".into()));
    };
    let known = STEPS.len() as i64;
    let mut found = format(wire).await?;
    if found < known {
        let upgrade = async {
            // The next statement sees what others have done meanwhile.
            wire.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1920298599, hashtext(current_schema()))").await?;
            let found = format(wire).await?;
            for step in STEPS.iter().skip(found.max(0) as usize) {
                wire.batch_execute(step).await?;
            }
            if found < known {
                let note = format!(
                    "{FORMAT_TABLE}; INSERT INTO runguard_format (format) VALUES ({known}) ON CONFLICT (single) DO UPDATE SET format = {known}"
                );
                wire.batch_execute(&note).await?;
            }
            wire.batch_execute("COMMIT").await?;
            Ok::<_, Failure>(found.max(known))
        };
        found = upgrade.await?;
    }
    if found > known {
        return Err(Failure::TooNew { found, known });
    }
    Ok(channel)
}

/// Keeps in the log how its names become keys, where it has nothing of the kind.
pub(super) async fn keep_names(wire: &Wire, names: Names) -> Result<(), Failure> {
    let secret = names.secret_text();
    wire.batch_execute(&format!("INSERT INTO runguard_secret (secret) VALUES ('{secret}') ON CONFLICT DO NOTHING")).await?;
    let kept: String = wire.query_one("SELECT secret FROM runguard_secret", &[]).await?.try_get(0)?;
    if kept == secret {
        return Ok(());
    }
    Err(Failure::Refused(
        "the log was made with another secret than this node's; start the node again, or use the log that belongs to the shared state"
            .into(),
    ))
}

/// 0 when there is nothing.
async fn format(wire: &Wire) -> Result<i64, Failure> {
    // Of the catalog itself: what the server remembers of names may be older than the lock we waited for.
    let sql = "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = 'runguard_format' AND n.nspname = current_schema())";
    let row = wire.query_one(sql, &[]).await?;
    if !row.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let row = wire.query_opt("SELECT format FROM runguard_format", &[]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
}

const EPOCH: Date = jiff::civil::date(1970, 1, 1);

/// A day by UTC, counted from 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Day(i64);

impl Day {
    /// The first of the year 1, and the last of 9999: they also hold whatever lies beyond, so that every day has a name.
    const FIRST: Self = Self(-719_162);
    const LAST: Self = Self(2_932_896);
    const TABLE: &str = "runguard_log_";

    pub(super) fn of(at: i64) -> Self {
        Self(at.div_euclid(DAY_MILLIS)).clamp(Self::FIRST, Self::LAST)
    }

    pub(super) fn first_minute(self) -> i64 {
        self.0 * (DAY_MILLIS / MINUTE_MILLIS)
    }

    pub(super) fn table(self) -> String {
        let date = EPOCH.saturating_add(self.0.days());
        format!("{}{:04}{:02}{:02}", Self::TABLE, date.year(), date.month(), date.day())
    }

    /// `None`: not one of ours.
    pub(super) fn of_table(name: &str) -> Option<Self> {
        let date = Date::strptime("%Y%m%d", name.strip_prefix(Self::TABLE)?).ok()?;
        let found = Self(i64::from((date - EPOCH).get_days()));
        (found.table() == name).then_some(found)
    }

    /// Makes the day's table and attaches it.
    pub(super) fn creation(self) -> String {
        let from = if self == Self::FIRST { "MINVALUE".into() } else { format!("'{}'", self.0 * DAY_MILLIS) };
        let to = if self == Self::LAST { "MAXVALUE".into() } else { format!("'{}'", (self.0 + 1) * DAY_MILLIS) };
        let table = self.table();
        format!(
            "CREATE TABLE {table} (LIKE runguard_log INCLUDING ALL);
             ALTER TABLE runguard_log ATTACH PARTITION {table} FOR VALUES FROM ({from}) TO ({to});"
        )
    }
}

/// Stands before what stands for a character that Postgres does not take.
const ESCAPE: char = '\u{1a}';

/// A text as Postgres can keep it: it takes every character but NUL. Two texts are the same exactly when their forms are.
pub(super) fn to_kept(text: &str) -> Cow<'_, str> {
    // Byte by byte and without a branch: this runs over everything that is imported.
    if text.bytes().fold(0, |found, byte| found | u8::from(byte == 0) | u8::from(byte == ESCAPE as u8)) > 0 {
        Cow::Owned(text.replace(ESCAPE, "\u{1a}\u{1a}").replace('\0', "\u{1a}0"))
    } else {
        Cow::Borrowed(text)
    }
}

pub(super) fn from_kept(kept: &str) -> Cow<'_, str> {
    if !kept.contains(ESCAPE) {
        return Cow::Borrowed(kept);
    }
    let mut text = String::with_capacity(kept.len());
    let mut characters = kept.chars();
    while let Some(character) = characters.next() {
        if character == ESCAPE {
            text.push(if characters.next() == Some('0') { '\0' } else { ESCAPE });
        } else {
            text.push(character);
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn days_have_the_names_of_the_calendar() {
        let named = [
            (0, "19700101"),
            (DAY_MILLIS - 1, "19700101"),
            (-1, "19691231"),
            (951_782_400_000, "20000229"),
            (1_709_251_199_999, "20240229"),
            (1_709_251_200_000, "20240301"),
            (4_107_542_400_000, "21000301"),
            (i64::MIN, "00010101"),
            (i64::MAX, "99991231"),
        ];
        for (at, name) in named {
            assert_eq!(Day::of(at).table(), format!("runguard_log_{name}"), "{at}");
        }
        for name in ["runguard_log_20250229", "runguard_log_2025010", "runguard_log_2025x101", "runguard_log_20251301", "other_20250101"] {
            assert_eq!(Day::of_table(name), None, "{name}");
        }
        assert_eq!(Day::of(DAY_MILLIS).first_minute(), 1440);
    }

    #[test]
    fn every_day_is_found_by_its_name_and_follows_the_one_before() {
        let mut before = String::new();
        for number in Day::FIRST.0..=Day::LAST.0 {
            let name = Day(number).table();
            assert!(name > before, "{name} after {before}");
            assert_eq!(Day::of_table(&name), Some(Day(number)));
            before = name;
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_and_none_looks_like_another(texts in proptest::collection::vec("[\0\u{1a}0aé]{0,6}", 2)) {
            let kept: Vec<_> = texts.iter().map(|text| to_kept(text)).collect();
            for (text, kept) in texts.iter().zip(&kept) {
                prop_assert!(!kept.contains('\0'));
                prop_assert_eq!(&*from_kept(kept), text.as_str());
            }
            prop_assert_eq!(texts[0] == texts[1], kept[0] == kept[1]);
        }
    }
}
