//! Server-sent events of a provider, as they complete, and the answer that grows from them.

use super::http::Body;
use super::{ErrorKind, Finish, ProviderError, Reply};
use runguard_http::events::{Event, Splitter};
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;

/// How long usage and the end mark are waited for when the answer itself is whole.
const TRAILER_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer in the form of one kind of provider: what must be remembered from one piece of it to the next.
pub(super) trait Growing: Default + Send {
    /// An event that says, without being JSON, that nothing follows.
    const END_MARK: Option<&'static str> = None;

    fn take_event(&mut self, event: &Event<'_>, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError>;

    fn take_whole(&mut self, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError>;

    /// The last event came.
    fn is_done(&self) -> bool {
        false
    }

    /// All has been said but usage and the end mark, and some servers do not send them: nothing is wrong without.
    fn is_said(&self) -> bool {
        false
    }

    /// Something began that cannot be used yet.
    fn is_open(&self) -> bool {
        false
    }

    fn finish(&self) -> Finish;
}

/// Reads a provider's answer, streamed or whole, into the reply.
pub(super) async fn read<A: Growing>(body: Body, is_streaming: bool, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    let mut answer = A::default();
    if body.is_type("json") || !is_streaming {
        let value = body.json().await?;
        answer.take_whole(&value, reply)?;
    } else if body.is_type("html") {
        return Err(body.malformed("a page and not with events", b""));
    } else {
        read_events(body, &mut answer, reply).await?;
    }
    reply.finish(answer.finish());
    Ok(())
}

async fn read_events<A: Growing>(mut body: Body, answer: &mut A, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    let (mut parser, mut is_marked) = (Parser::default(), false);
    while !is_marked && !answer.is_done() {
        let next = if answer.is_said() {
            timeout(TRAILER_TIMEOUT, body.chunk()).await.unwrap_or(Ok(None)).unwrap_or(None)
        } else {
            body.chunk().await?
        };
        let Some(bytes) = next else {
            return match answer {
                said if said.is_said() => Ok(()),
                answer if answer.is_open() || !parser.is_between_events() => Err(body.cut()),
                _ => reply.end_unmarked(body.cut()),
            };
        };
        parser.push(&bytes, |event| {
            if is_marked || answer.is_done() || event.data.is_empty() {
                return Ok(());
            }
            is_marked = A::END_MARK.is_some_and(|mark| event.data.trim() == mark);
            if is_marked {
                return Ok(());
            }
            match serde_json::from_str(&event.data) {
                Ok(value) => answer.take_event(event, &value, reply),
                Err(problem) => Err(body.malformed(&format!("an event that is no JSON ({problem})"), event.data.as_bytes())),
            }
        })?;
    }
    body.drain().await;
    Ok(())
}

/// The same without a connection: the answer that comes whole, if it is one, and the events.
#[cfg(feature = "fuzzing")]
pub(super) fn read_pieces<A: Growing>(pieces: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    let (mut parser, mut answer) = (Parser::default(), A::default());
    if let Ok(value) = serde_json::from_slice(&pieces.concat()) {
        answer.take_whole(&value, reply)?;
    }
    for piece in pieces {
        parser.push(piece, |event| match serde_json::from_str(&event.data) {
            Ok(value) => answer.take_event(event, &value, reply),
            Err(_) => Ok(()),
        })?;
    }
    reply.finish(answer.finish());
    Ok(())
}

#[derive(Debug, Default)]
pub(super) struct Parser(Splitter);

impl Parser {
    /// Whether nothing is left over: the last event that began has ended.
    pub(super) fn is_between_events(&self) -> bool {
        self.0.is_between_events()
    }

    /// Takes the next bytes and gives every event they complete.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&Event<'_>) -> Result<(), ProviderError>,
    ) -> Result<(), ProviderError> {
        self.0.push(bytes).map_err(|problem| ProviderError::new(ErrorKind::Endless, problem.to_string()))?;
        while let Some(event) = self.0.next() {
            Event::read(&event).as_ref().map_or(Ok(()), &mut take)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_taker_says_ends_the_reading_and_no_event_is_endless() {
        let (mut parser, mut seen) = (Parser::default(), 0);
        let result = parser.push(b"data: 1\n\ndata: 2\n\n", |_| {
            seen += 1;
            Err(ProviderError::new(ErrorKind::Malformed, "no"))
        });
        assert_eq!((result.unwrap_err().kind, seen), (ErrorKind::Malformed, 1));
        let block = vec![b'x'; 1024 * 1024];
        let error = (0..9).find_map(|_| parser.push(&block, |_| Ok(())).err()).unwrap();
        assert_eq!(error.kind, ErrorKind::Endless);
    }
}
