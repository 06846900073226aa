//! A handler that parses a guard request and answers a body of a given size, and does nothing else.
//!
//! `bare PORT BODY_BYTES` serves two forms of it, because they cost differently:
//! - `POST /guard/agent-action` with axum's `Json` extractor, the usual way: the yardstick;
//! - `POST /bytes` with the raw body and `serde_json::from_slice`: for information.

use axum::{Json, Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

#[derive(Deserialize)]
struct Question {
    session_id: String,
    action_name: String,
    action_params_hash: String,
}

#[derive(Serialize)]
struct Answer {
    allow: bool,
    session_id: String,
    action_name: String,
    action_params_hash: String,
    message: &'static str,
}

impl Answer {
    /// Every parsed field comes back, so that no part of the parsing can be left out.
    fn to(question: Question, message: &'static str) -> Self {
        Self {
            allow: true,
            session_id: question.session_id,
            action_name: question.action_name,
            action_params_hash: question.action_params_hash,
            message,
        }
    }
}

async fn json(State(message): State<&'static str>, Json(question): Json<Question>) -> Json<Answer> {
    Json(Answer::to(question, message))
}

async fn bytes(State(message): State<&'static str>, body: Bytes) -> Result<Vec<u8>, StatusCode> {
    let question = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    serde_json::to_vec(&Answer::to(question, message)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

/// The padding that brings an answer to the benchmark's requests up to `body_bytes`.
fn padding(body_bytes: usize) -> &'static str {
    let unpadded = Answer::to(
        Question { session_id: "s-0000000".into(), action_name: "lookup_order".into(), action_params_hash: "0123456789abcdef".into() },
        "",
    );
    let unpadded_bytes = serde_json::to_vec(&unpadded).map_or(0, |body| body.len());
    "x".repeat(body_bytes.saturating_sub(unpadded_bytes)).leak()
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |name: &str| -> usize {
        let argument = arguments.next().and_then(|argument| argument.parse().ok());
        argument.unwrap_or_else(|| panic!("usage: bare PORT BODY_BYTES ({name} is missing or no number)"))
    };
    let port = u16::try_from(number("PORT")).expect("a port is below 65536");
    let message = padding(number("BODY_BYTES"));

    let routes = Router::new().route("/guard/agent-action", post(json)).route("/bytes", post(bytes)).with_state(message);
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    axum::serve(listener, routes).await
}
