//! Load for `./bench gateway`: many connections that ask as fast as they are answered, or at a given pace.
//!
//! `paced PORT PATH BODY_FILE CONNECTIONS PER_SECOND SECONDS [HEADER…]` prints one line of JSON. `#######` in the body becomes a number that
//! is different in each question, `@@@@@@@` one that is different on each connection. With a pace, times count from when a question was due, so that an answer that is late makes the
//! next one late too; with `0` from when it was sent.

use std::error::Error;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

const OF_QUESTION: &[u8] = b"#######";
const OF_CONNECTION: &[u8] = b"@@@@@@@";

type Failure = Box<dyn Error + Send + Sync>;

struct Plan {
    port: u16,
    head: String,
    body: Vec<u8>,
    /// Where numbers stand in the body.
    of_question: Vec<usize>,
    of_connection: Vec<usize>,
    begin: Instant,
    end: Instant,
    /// Of one connection.
    between: Option<Duration>,
}

/// Microseconds to the first byte of the body, and to its end.
type Times = (Vec<u64>, Vec<u64>);

/// Reads one answer: when its body began, and its status.
async fn read_answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<(Instant, u16), Failure> {
    buffer.clear();
    let head_end = loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err("closed before an answer".into());
        }
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let is_whole = |buffer: &[u8]| length.map_or_else(|| buffer.ends_with(b"0\r\n\r\n"), |length| buffer.len() >= head_end + length);
    let mut first = (buffer.len() > head_end).then(Instant::now);
    while !is_whole(buffer) {
        if stream.read_buf(buffer).await? == 0 {
            break;
        }
        first.get_or_insert_with(Instant::now);
    }
    Ok((first.unwrap_or_else(Instant::now), status))
}

async fn ask(plan: &Plan, number: usize, connections: usize) -> Result<(Times, u64), Failure> {
    let (mut times, mut refused, mut asked) = (Times::default(), 0, 0);
    let connect = || async {
        let stream = TcpStream::connect(("127.0.0.1", plan.port)).await?;
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(stream)
    };
    let (mut stream, mut buffer) = (connect().await?, Vec::with_capacity(64 << 10));
    let mut question = Vec::with_capacity(plan.head.len() + plan.body.len());
    loop {
        let due = plan
            .between
            .map_or_else(Instant::now, |between| plan.begin + between.mul_f64(number as f64 / connections as f64) + between * asked);
        if due >= plan.end {
            return Ok((times, refused));
        }
        sleep_until(due).await;
        question.clear();
        question.extend_from_slice(plan.head.as_bytes());
        question.extend_from_slice(&plan.body);
        for (places, number) in [(&plan.of_question, asked as usize * connections + number), (&plan.of_connection, number)] {
            let digits = format!("{:07}", number % 10_000_000);
            for at in places.iter().map(|at| plan.head.len() + at) {
                question[at..at + digits.len()].copy_from_slice(digits.as_bytes());
            }
        }
        asked += 1;
        stream.write_all(&question).await?;
        if let Ok((first, status)) = read_answer(&mut stream, &mut buffer).await {
            refused += u64::from(status != 200);
            times.0.push((first - due).as_micros() as u64);
            times.1.push(due.elapsed().as_micros() as u64);
        } else {
            refused += 1;
            stream = connect().await?;
        }
    }
}

fn percentile(sorted: &[u64], share: f64) -> u64 {
    sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, path, body, connections, per_second, seconds, headers @ ..] = arguments.as_slice() else {
        return Err("usage: paced PORT PATH BODY_FILE CONNECTIONS PER_SECOND SECONDS [HEADER…]".into());
    };
    let (body, connections, per_second): (_, usize, f64) = (std::fs::read(body)?, connections.parse()?, per_second.parse()?);
    let mut head =
        format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        head += &format!("{header}\r\n");
    }
    head += "\r\n";
    let begin = Instant::now() + Duration::from_millis(100);
    let between = (per_second > 0.0).then(|| Duration::from_secs_f64(connections as f64 / per_second));
    let places = |mark: &[u8]| body.windows(mark.len()).enumerate().filter(|(_, window)| *window == mark).map(|(at, _)| at).collect();
    let (of_question, of_connection) = (places(OF_QUESTION), places(OF_CONNECTION));
    let seconds: f64 = seconds.parse()?;
    let end = begin + Duration::from_secs_f64(seconds);
    let plan: &'static Plan =
        Box::leak(Box::new(Plan { port: port.parse()?, head, body, of_question, of_connection, begin, end, between }));
    let askers: Vec<_> = (0..connections).map(|number| tokio::spawn(ask(plan, number, connections))).collect();
    let (mut first, mut whole, mut refused) = (Vec::new(), Vec::new(), 0);
    for asker in askers {
        let ((ones, others), not_taken) = asker.await??;
        first.extend(ones);
        whole.extend(others);
        refused += not_taken;
    }
    first.sort_unstable();
    whole.sort_unstable();
    println!(
        r#"{{"answered": {}, "refused": {refused}, "per_second": {:.1}, "first_p50": {}, "first_p99": {}, "p50": {}, "p99": {}}}"#,
        whole.len(),
        whole.len() as f64 / (Instant::now() - begin).as_secs_f64(),
        percentile(&first, 0.5),
        percentile(&first, 0.99),
        percentile(&whole, 0.5),
        percentile(&whole, 0.99),
    );
    Ok(())
}
