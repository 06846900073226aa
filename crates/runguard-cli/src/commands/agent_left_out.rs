//! `runguard agent` of a binary that was built without it: says so.

use crate::failure::Failure;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Agent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<String>,
}

impl Agent {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        Err(Failure::Usage(
            "this runguard was built without the feature `agent`; build it with it: `cargo build --release --features agent`".into(),
        ))
    }
}
