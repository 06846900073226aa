//! The HTTP shell of every listener: what must hold before anyone's own routes are asked.
//!
//! Whoever listens is reached by strangers: clients that send half a request, do not read, open more connections than there
//! are file descriptors, or are a web page that found the port. What is done about them is the same for every service,
//! so it stands here, once: the accept loop ([`listen`]), plain and TLS connections of HTTP/1.1 and HTTP/2 ([`tls`],
//! `connection`), request ids, bodies within bounds ([`body`]), the way in without a key ([`door`]), how much of the service
//! one caller may have ([`load`]), and errors as callers see them ([`problem`]). So do whom to trust
//! and when to ask again, for whoever calls others ([`client`], [`again`], [`aws`]), and how streams of events are read ([`events`]). A service brings its routes and its words.

pub mod address;
pub mod again;
pub mod aws;
pub mod body;
pub mod client;
mod connection;
mod crowd;
pub mod door;
pub mod events;
mod files;
pub mod listen;
pub mod load;
mod pacing;
pub mod problem;
pub mod reply;
mod request_id;
mod socket;
pub mod tls;

pub use listen::{ListenError, Listener, Options, Service, Threads};
pub use problem::{FieldProblem, Problem};
pub use reply::{Body, Reply};
pub use request_id::{REQUEST_ID, RequestId};
