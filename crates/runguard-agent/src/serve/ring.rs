//! The latest events of a run, for whoever reads them, as fast or slow as they like.
//!
//! Each event is written out once, as the bytes that go over the wire, and kept until newer ones push it out. A reader is
//! no more than a number: it holds nothing up and costs no memory, and one that is too slow is told what it has missed.

use crate::event::Event;
use bytes::{Bytes, BytesMut};
use serde_json::json;
use std::collections::VecDeque;

/// Events kept; the oldest go first.
pub(super) const MOST_EVENTS: usize = 4096;
/// Bytes kept; the oldest go first, the latest always stays.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// What a reader is given at once, about.
const BATCH_BYTES: usize = 16 * 1024;

#[derive(Debug)]
struct Frame {
    bytes: Bytes,
    is_end: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    frames: VecDeque<Frame>,
    /// The number the next event gets. The first is 1.
    next: u64,
    bytes: usize,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Batch {
    Nothing,
    Some(Bytes),
    /// The last one: a run's end is in it.
    Last(Bytes),
}

impl Ring {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::new(), next: 1, bytes: 0 }
    }

    pub(super) fn push(&mut self, event: &Event) {
        let name = event.name();
        // Every event can be written as JSON; were it not so, its name still says that it happened.
        let data = serde_json::to_string(event).unwrap_or_else(|_| json!({ "event": name }).to_string());
        let bytes = Bytes::from(format!("id: {}\nevent: {name}\ndata: {data}\n\n", self.next));
        self.next += 1;
        self.bytes += bytes.len();
        self.frames.push_back(Frame { bytes, is_end: matches!(event, Event::Ended(_)) });
        while self.frames.len() > MOST_EVENTS || (self.bytes > MOST_BYTES && self.frames.len() > 1) {
            self.bytes -= self.frames.pop_front().map_or(0, |frame| frame.bytes.len());
        }
    }

    /// The number the next event gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The events from number `from` on, and `from` moved past them. A batch ends where a run ends.
    pub(super) fn read(&self, from: &mut u64) -> Batch {
        let oldest = self.next - self.frames.len() as u64;
        let mut batch = BytesMut::new();
        // A number that was never given is from before a restart: nothing is known of what this reader has.
        if *from < oldest || *from > self.next {
            let missed = oldest.checked_sub(*from);
            let data = json!({ "event": "lagged", "missed": missed, "next": oldest });
            batch.extend_from_slice(format!("event: lagged\ndata: {data}\n\n").as_bytes());
            *from = oldest;
        }
        for frame in self.frames.iter().skip((*from - oldest) as usize) {
            batch.extend_from_slice(&frame.bytes);
            *from += 1;
            if frame.is_end {
                return Batch::Last(batch.freeze());
            }
            if batch.len() >= BATCH_BYTES {
                break;
            }
        }
        if batch.is_empty() { Batch::Nothing } else { Batch::Some(batch.freeze()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(bytes: usize) -> Event {
        Event::Notice { message: "x".repeat(bytes) }
    }

    fn read_all(ring: &Ring, mut from: u64) -> String {
        let mut all = String::new();
        while let Batch::Some(batch) = ring.read(&mut from) {
            all.push_str(std::str::from_utf8(&batch).unwrap());
        }
        all
    }

    #[test]
    fn a_reader_gets_each_event_once_and_in_order() {
        let mut ring = Ring::new();
        for _ in 0..1000 {
            ring.push(&notice(100));
        }
        let all = read_all(&ring, 1);
        let ids: Vec<u64> = all.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
        assert_eq!(ids, (1..=1000).collect::<Vec<_>>());
        assert!(read_all(&ring, 991).starts_with("id: 991\n"));
        assert_eq!(read_all(&ring, 1001), "");
    }

    #[test]
    fn a_reader_that_fell_behind_is_told_and_goes_on_from_the_oldest() {
        let mut ring = Ring::new();
        for _ in 0..MOST_EVENTS + 10 {
            ring.push(&notice(1));
        }
        assert_eq!(ring.frames.len(), MOST_EVENTS);
        let all = read_all(&ring, 3);
        assert!(all.starts_with("event: lagged\ndata: {\"event\":\"lagged\",\"missed\":8,\"next\":11}\n\nid: 11\n"), "{}", &all[..100]);
        assert!(read_all(&ring, 11).starts_with("id: 11\n"));
        assert!(
            read_all(&ring, 1_000_000).starts_with("event: lagged\ndata: {\"event\":\"lagged\",\"missed\":null,\"next\":11}\n\nid: 11\n")
        );
    }

    #[test]
    fn large_events_are_bounded_by_their_bytes() {
        let mut ring = Ring::new();
        for _ in 0..100 {
            ring.push(&notice(MOST_BYTES / 10));
        }
        assert!(ring.bytes() <= MOST_BYTES);
        ring.push(&notice(2 * MOST_BYTES));
        assert_eq!(ring.frames.len(), 1);
        assert!(read_all(&ring, 101).starts_with("id: 101\n"));
    }
}
