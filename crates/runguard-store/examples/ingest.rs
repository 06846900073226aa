//! How fast rows go into the log in Postgres, beside a bare COPY of the same rows into a table with nothing to it.
//!
//!     ingest --url postgres://… [--rows 500000] [--batch 5000]

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::SinkExt as _;
use runguard_store::cluster::EntryId;
use runguard_store::postgres::Imported;
use runguard_store::{PgLog, PgOptions, Row, RowWithEffects};
use std::error::Error;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};
use tokio_postgres::NoTls;

const PARTITIONS: u16 = 16;
const GOAL_ROWS_PER_SECOND: f64 = 50_000.0;

struct Arguments {
    url: String,
    rows: usize,
    batch: usize,
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let (mut url, mut rows, mut batch) = (None, 500_000, 5_000);
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--url" => url = Some(value),
            "--rows" => rows = value.parse()?,
            "--batch" => batch = value.parse()?,
            other => return Err(format!("{other} is unknown; there are --url, --rows, --batch").into()),
        }
    }
    Ok(Arguments { url: url.ok_or("--url postgres://… is missing")?, rows, batch })
}

/// A row of about 600 bytes, as a guard writes them: some thousand sessions at a time, ten rows each.
fn row(number: usize, start_millis: i64) -> RowWithEffects {
    const GUARDS: [&str; 6] = ["ai_task_retry", "handoff", "kb_requery", "api_circuit", "agent_action", "budget"];
    let guard = GUARDS[number % 6];
    let blocked = number.is_multiple_of(9);
    let session = number / 10_000 * 1_000 + number % 1_000;
    let id = (u128::from(start_millis as u64 + number as u64 / 50) << 80)
        | (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << 80) - 1);
    let row = Row {
        seq: 0,
        at: start_millis + number as i64 / 50,
        id: format!("{id:032X}")[6..].to_owned(),
        tenant: format!("tenant-{}", number % 7).into(),
        guard: guard.into(),
        kind: "check".into(),
        session: format!("conversation-{:016x}", (session as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        subject: format!("task-{}", number % 23),
        outcome: if blocked { "blocked" } else { "allowed" }.into(),
        reason: blocked.then(|| "retry_cap_reached".into()),
        answer: format!(
            "{{\"attempt_number\":{},\"remaining_retries\":{},\"message\":\"Retry {} of 3 for this task in the last hour; after that, route to a static hint or to a person.\"}}",
            number % 3,
            2 - number % 3,
            number % 3
        ),
        input: format!(
            "{{\"task_name\":\"task-{}\",\"user_message\":\"my order {} has not arrived, can you tell me where it is?\",\"validation_error\":\"no order number found in the message\"}}",
            number % 23,
            number
        ),
    };
    RowWithEffects { row, effects: vec![number as u8; 64] }
}

fn bare(rows: &[RowWithEffects]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
    for (RowWithEffects { row, effects }, seq) in rows.iter().zip(0_i64..) {
        bytes.put_i16(14);
        for number in [seq, row.at, seq] {
            bytes.put_i32(8);
            bytes.put_i64(number);
        }
        let texts = [&*row.id, &*row.tenant, row.guard.code(), row.kind.code(), &*row.session, &*row.subject, row.outcome.code()];
        let reason = row.reason_code().map(str::as_bytes);
        let values = texts.map(|text| Some(text.as_bytes())).into_iter().chain([reason]);
        for value in values.chain([Some(row.answer.as_bytes()), Some(row.input.as_bytes()), Some(effects)]) {
            match value {
                Some(value) => {
                    bytes.put_i32(value.len() as i32);
                    bytes.put_slice(value);
                }
                None => bytes.put_i32(-1),
            }
        }
    }
    bytes.put_i16(-1);
    bytes.freeze()
}

async fn copy_bare(arguments: &Arguments, start_millis: i64) -> Result<Duration, Box<dyn Error>> {
    let (client, connection) = tokio_postgres::connect(&arguments.url, NoTls).await?;
    let driver = tokio::spawn(connection);
    client
        .batch_execute(
            "DROP TABLE IF EXISTS runguard_bare; CREATE TABLE runguard_bare (seq bigint, at bigint, session_number bigint, id text, tenant text, guard text,
             kind text, session text, subject text, outcome text, reason text, answer text, input text, effects bytea)",
        )
        .await?;
    let mut took = Duration::ZERO;
    for first in (0..arguments.rows).step_by(arguments.batch) {
        let rows: Vec<RowWithEffects> =
            (first..arguments.rows.min(first + arguments.batch)).map(|number| row(number, start_millis)).collect();
        let started = Instant::now();
        let mut bytes = bare(&rows);
        let mut sink = pin!(client.copy_in::<_, Bytes>("COPY runguard_bare FROM STDIN (FORMAT binary)").await?);
        while !bytes.is_empty() {
            sink.send(bytes.split_to(bytes.len().min(256 * 1024))).await?;
        }
        sink.finish().await?;
        took += started.elapsed();
    }
    client.batch_execute("DROP TABLE runguard_bare").await?;
    drop(client);
    driver.await??;
    Ok(took)
}

async fn import(arguments: &Arguments, start_millis: i64) -> Result<(Duration, Duration), Box<dyn Error>> {
    let log = PgLog::open(PgOptions { url: arguments.url.clone(), retention_days: 30 }).await?;
    let mut positions = log.positions(PARTITIONS).await?;
    let (mut took, mut slowest) = (Duration::ZERO, Duration::ZERO);
    for first in (0..arguments.rows).step_by(arguments.batch) {
        let rows: Vec<RowWithEffects> =
            (first..arguments.rows.min(first + arguments.batch)).map(|number| row(number, start_millis)).collect();
        let upto: Vec<(u16, EntryId)> =
            positions.iter().map(|(partition, id)| (*partition, EntryId { millis: id.millis + 1, number: 0 })).collect();
        let started = Instant::now();
        let imported = log.import(&positions, rows, &upto).await?;
        let batch = started.elapsed();
        took += batch;
        slowest = slowest.max(batch);
        if imported == Imported::Overtaken {
            return Err("somebody else imports into this database".into());
        }
        positions = upto;
    }
    Ok((took, slowest))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments()?;
    let start_millis = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as i64;
    let per_second = |took: Duration| arguments.rows as f64 / took.as_secs_f64();
    let bare = per_second(copy_bare(&arguments, start_millis).await?);
    let (took, slowest) = import(&arguments, start_millis).await?;
    let imported = per_second(took);
    let bytes: usize = (0..1000).map(|number| row(number, start_millis)).map(|row| self::bare(&[row]).len()).sum();
    println!("rows {} of about {} bytes, batches of {}", arguments.rows, bytes / 1000, arguments.batch);
    println!("bare COPY {bare:.0} rows/s");
    println!("import {imported:.0} rows/s, slowest batch {} ms", slowest.as_millis());
    println!("ratio {:.2}", imported / bare);
    let goal = GOAL_ROWS_PER_SECOND.min(bare / 2.0);
    println!("goal {goal:.0} rows/s: {}", if imported >= goal { "reached" } else { "missed" });
    Ok(())
}
