//! What `--version` says.

use std::sync::LazyLock;

/// For a bug report in one line.
pub(crate) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// `COMMIT DAY` of the source, as the build found it; empty where it is not known.
const SOURCE: &str = env!("RUNGUARD_SOURCE");

/// What was built in and can be left out.
const FEATURES: &[(&str, bool)] =
    &[("agent", cfg!(feature = "agent")), ("postgres", cfg!(feature = "postgres")), ("redis", cfg!(feature = "redis"))];

/// With commit, day and features.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(long);

fn long() -> String {
    let features: Vec<&str> = FEATURES.iter().filter(|(_, is_in)| *is_in).map(|(name, _)| *name).collect();
    let source = match SOURCE.split_once(' ') {
        Some((commit, day)) => format!("{commit} ({day})"),
        None => "not known: built without git".to_owned(),
    };
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    format!("{SHORT}\ncommit: {source}\nfeatures: {features}")
}
