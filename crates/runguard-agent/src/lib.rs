//! An agent that cannot run away.
//!
//! A loop around a model and its tools in which every step is paid for before it is made: budgets are reserved, repetition
//! and stalls are told to the model and then ended, and every end says why, what it cost, what came of it and how to go on.
//!
//! Start with [`agent`]: the loop, and nothing but its control flow. [`guardrails`] judges, [`spend`] counts, [`context`]
//! keeps the conversation within its window, [`session`] makes it survive a crash.

pub mod agent;
pub mod context;
pub mod demo;
pub mod event;
pub mod guardrails;
pub mod message;
pub mod provider;
pub mod report;
#[cfg(feature = "serve")]
pub mod serve;
pub mod session;
pub mod settings;
pub mod spend;
pub mod state;
pub mod tool;

pub use agent::{Agent, Input, RunOptions};
pub use event::{Event, Observer, StreamChunk};
pub use message::Message;
pub use report::{Report, Stop};
pub use session::Session;
pub use settings::Settings;
pub use state::AgentState;
