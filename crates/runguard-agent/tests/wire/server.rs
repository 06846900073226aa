//! A server that sends exactly the bytes it is told to.

use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// The same bytes again and again, until the other side goes.
    SendForever(Vec<u8>, Duration),
    /// Silence, until the other side goes.
    Hang,
    Reset,
}

/// What was asked.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The request line and the headers, names in lower case.
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: serde_json::Value,
    /// Which connection it came on.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Server {
    pub(crate) base: String,
    pub(crate) requests: mpsc::UnboundedReceiver<Seen>,
    /// One message for every connection the other side has closed.
    pub(crate) closed: mpsc::UnboundedReceiver<()>,
}

/// Answers every request with the same steps; the connection stays open behind them when `steps` are a whole answer.
pub(crate) async fn serve(steps: Vec<Step>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (seen, requests) = mpsc::unbounded_channel();
    let (gone, closed) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for connection in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            tokio::spawn(answer(stream, connection, steps.clone(), seen.clone(), gone.clone()));
        }
    });
    Server { base, requests, closed }
}

async fn answer(
    mut stream: TcpStream,
    connection: usize,
    steps: Vec<Step>,
    seen: mpsc::UnboundedSender<Seen>,
    gone: mpsc::UnboundedSender<()>,
) {
    stream.set_nodelay(true).unwrap();
    while let Some(request) = read_request(&mut stream, connection).await {
        let _ = seen.send(request);
        for step in &steps {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(bytes).await.is_err() {
                        let _ = gone.send(());
                        return;
                    }
                }
                Step::Pause(time) => tokio::time::sleep(*time).await,
                Step::SendForever(bytes, pause) => {
                    while stream.write_all(bytes).await.is_ok() {
                        tokio::time::sleep(*pause).await;
                    }
                    let _ = gone.send(());
                    return;
                }
                Step::Hang => {
                    let _ = stream.read(&mut [0]).await;
                    let _ = gone.send(());
                    return;
                }
                Step::Reset => {
                    // The peer must have read what was sent: a reset throws away what is on its way.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    stream.set_zero_linger().unwrap();
                    return;
                }
            }
        }
        // An answer that says how long it is leaves the connection open; any other ends with it.
        let is_framed = steps.iter().any(|step| matches!(step, Step::Send(bytes) if bytes.ends_with(b"0\r\n\r\n")));
        if !is_framed {
            let _ = stream.shutdown().await;
            return;
        }
    }
    let _ = gone.send(());
}

async fn read_request(stream: &mut TcpStream, connection: usize) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers: Vec<(String, String)> =
        lines.map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap()).collect();
    let length: usize = headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
    while bytes.len() < head_end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&bytes[head_end + 4..]).unwrap();
    Some(Seen { line, headers, body, connection })
}

/// A head and what comes behind it, to the end of the connection.
pub(crate) fn until_close(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}").into_bytes()
}

/// A whole answer whose every piece is a frame of its own, so that it arrives in just these pieces.
pub(crate) fn in_pieces<'a>(content_type: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = unended(content_type, pieces);
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

/// The same, and the end of the body does not come.
pub(crate) fn unended<'a>(content_type: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes();
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
