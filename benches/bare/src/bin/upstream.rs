//! A provider that answers at once: what `./bench gateway` has behind each gateway.
//!
//! `upstream PORT` answers any path as a chat completion: whole, or, if the question says `"stream":true`, as 100 pieces with usage at
//! the end. Who asks for `Pause` gets a stream that begins and then says nothing: such streams are counted, not timed.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Response, header::CONTENT_TYPE};
use futures_util::{StreamExt, stream};
use std::convert::Infallible;
use std::net::Ipv4Addr;

const PIECES: usize = 100;
const WHOLE: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1789000000,"model":"gpt-4o-mini","choices":[{"index":0,"message":{"role":"assistant","content":"All of it is in order."},"finish_reason":"stop"}],"usage":{"prompt_tokens":250,"completion_tokens":7,"total_tokens":257}}"#;
const PIECE: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1789000000,\"model\":\"gpt-4o-mini\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";
const END: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1789000000,\"model\":\"gpt-4o-mini\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1789000000,\"model\":\"gpt-4o-mini\",\"choices\":[],\"usage\":{\"prompt_tokens\":250,\"completion_tokens\":100,\"total_tokens\":350}}\n\ndata: [DONE]\n\n";

fn says(question: &[u8], words: &str) -> bool {
    // As serde and Python write it.
    let spaced = words.replace(':', ": ");
    [words, &spaced].iter().any(|words| question.windows(words.len()).any(|window| window == words.as_bytes()))
}

fn answer(question: &[u8]) -> Result<Response<Body>, axum::http::Error> {
    // Only the beginning: looking through 100 KB would be what is measured.
    let beginning = &question[..question.len().min(512)];
    if !says(beginning, r#""stream":true"#) {
        return Response::builder().header(CONTENT_TYPE, "application/json").body(Body::from(WHOLE));
    }
    let is_slow = says(beginning, "Pause");
    let pieces = stream::iter(0..PIECES + 2).then(move |number| async move {
        match number {
            0 => {}
            // So that each goes out by itself, as a model's words do.
            _ if !is_slow => tokio::task::yield_now().await,
            _ => std::future::pending().await,
        }
        Ok::<_, Infallible>(Bytes::from_static(match number {
            PIECES => END.as_bytes(),
            number if number > PIECES => USAGE.as_bytes(),
            _ => PIECE.as_bytes(),
        }))
    });
    Response::builder().header(CONTENT_TYPE, "text/event-stream").body(Body::from_stream(pieces))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("usage: upstream PORT")?.parse()?;
    let routes = Router::new().fallback(|question: Bytes| async move { answer(&question).map_err(|error| error.to_string()) });
    let routes = routes.layer(axum::extract::DefaultBodyLimit::disable());
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    Ok(axum::serve(listener, routes).await?)
}
