//! A connection's bytes: a client that does not read is left after a while, and hyper's bare refusals get words.
//!
//! hyper answers what it cannot parse itself, before any service is asked, with a status and nothing else. Whoever has to find
//! out what is wrong with a request is helped by a sentence, so what it writes is looked at: an answer of a service always
//! carries a request id, hyper's own never does.

use crate::problem::Problem;
use crate::request_id::REQUEST_ID;
use hyper::StatusCode;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a client may take nothing of what it is sent.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that still sends when we close loses our last answer, unless what it sends is read: for so long, and so much.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Socket<T> {
    inner: T,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// What is sent instead of hyper's words, and how much of it is.
    instead: Option<(Vec<u8>, usize)>,
    /// Runs once the end was said to a client that still sends.
    lingering: Option<Lingering>,
}

#[derive(Debug)]
struct Lingering {
    until: Pin<Box<Sleep>>,
    bytes: usize,
}

impl<T: AsyncWrite + Unpin> Socket<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner, stalled: None, instead: None, lingering: None }
    }

    /// `Pending` becomes an error when it has lasted too long.
    fn patiently<R>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }

    /// Writes our words for all of `bare`.
    fn poll_instead(&mut self, context: &mut Context<'_>, bare: &[u8], status: StatusCode) -> Poll<io::Result<usize>> {
        let (mut words, mut sent) = self.instead.take().unwrap_or_else(|| (Problem::unreadable(status).to_wire(), 0));
        while sent < words.len() {
            let polled = Pin::new(&mut self.inner).poll_write(context, &words[sent..]);
            match self.patiently(context, polled) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => sent += written,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.instead = Some((std::mem::take(&mut words), sent));
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(bare.len()))
    }
}

/// The status of an answer that hyper made by itself.
fn bare_refusal(bytes: &[u8]) -> Option<StatusCode> {
    let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let status = match status {
        b"400" => StatusCode::BAD_REQUEST,
        b"414" => StatusCode::URI_TOO_LONG,
        b"431" => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        _ => return None,
    };
    let id = REQUEST_ID.as_str().as_bytes();
    let has_id = bytes.windows(id.len()).any(|window| window == id);
    (!has_id && bytes.ends_with(b"\r\n\r\n")).then_some(status)
}

impl<T: AsyncRead + Unpin> AsyncRead for Socket<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Socket<T> {
    /// Reads and throws away until the client has ended too. One that sends nothing is not waited for.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 8192];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.inner).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let lingering =
                        self.lingering.get_or_insert_with(|| Lingering { until: Box::pin(tokio::time::sleep(LINGER)), bytes: 0 });
                    lingering.bytes += buffer.filled().len();
                    if lingering.bytes > LINGER_BYTES {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    return self.lingering.as_mut().map_or(Poll::Ready(()), |lingering| lingering.until.as_mut().poll(context));
                }
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(status) = bare_refusal(bytes) {
            return self.poll_instead(context, bytes, status);
        }
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.patiently(context, polled)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        // A refusal of hyper's has no body: it is one slice.
        if let [bytes] = slices
            && let Some(status) = bare_refusal(bytes)
        {
            return self.poll_instead(context, bytes, status);
        }
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.patiently(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.patiently(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let polled = Pin::new(&mut self.inner).poll_shutdown(context);
            ready!(self.patiently(context, polled))?;
        }
        self.poll_linger(context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_left_and_one_that_reads_slowly_is_not() {
        let (near, mut far) = tokio::io::duplex(1024);
        let mut near = Socket::new(near);
        near.write_all(&[0; 1024]).await.unwrap();
        let began = tokio::time::Instant::now();
        let slow = tokio::spawn(async move {
            tokio::time::sleep(WRITE_TIMEOUT / 2).await;
            far.read_exact(&mut [0; 1024]).await.unwrap();
            far
        });
        near.write_all(&[0; 1024]).await.unwrap();
        let _far = slow.await.unwrap();
        let error = near.write_all(&[0; 2048]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), WRITE_TIMEOUT / 2 + WRITE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_still_sends_is_read_out_and_nobody_else_is_waited_for() {
        let began = tokio::time::Instant::now();
        let (near, _far) = tokio::io::duplex(1024);
        Socket::new(near).shutdown().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let (near, mut far) = tokio::io::duplex(1024);
        far.write_all(&[0; 10]).await.unwrap();
        let sending = tokio::spawn(async move {
            far.write_all(&[0; 5000]).await.unwrap();
            far
        });
        Socket::new(near).shutdown().await.unwrap();
        assert_eq!(began.elapsed(), LINGER);
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_bare_refusal_gets_words_and_an_answer_of_a_service_stays() {
        for (written, is_ours) in [
            ("HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", false),
            ("HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\r\n", false),
            ("HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
        ] {
            // Small, so that our words take several writes.
            let (near, mut far) = tokio::io::duplex(16);
            let mut near = Socket::new(near);
            let read = tokio::spawn(async move {
                let mut text = String::new();
                far.read_to_string(&mut text).await.unwrap();
                text
            });
            near.write_all(written.as_bytes()).await.unwrap();
            drop(near);
            let text = read.await.unwrap();
            assert_eq!(text == written, is_ours, "{text}");
            assert!(is_ours || (text.contains("application/problem+json") && text.ends_with('}')), "{text}");
        }
    }
}
