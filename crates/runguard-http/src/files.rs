//! How many connections the system lets us have.

/// Files that are not connections: databases, logs, what a request opens for a moment.
const OTHER_FILES: u64 = 256;

/// Raises the limit on open files as far as it goes, and says how many connections fit below it.
pub(crate) fn connections_that_fit() -> Option<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
            if let Err(error) = setrlimit(Resource::Nofile, raised) {
                tracing::debug!(%error, "the limit on open files stays as it is");
            }
        }
        getrlimit(Resource::Nofile).current.map(|files| files.saturating_sub(OTHER_FILES))
    }
    #[cfg(not(unix))]
    None
}
