//! `runguard agent` of a binary that was built without it: says so.

use crate::failure::Failure;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Agent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

impl Agent {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let asked = self.rest.join(" ");
        let problem = "this runguard was built without the feature `agent`; build it with it: `cargo build --release --features agent`";
        Err(Failure::Usage(format!("`runguard agent {asked}`: {problem}")))
    }
}
