//! Fields that change from call to call without changing what the call does.

use super::writer::compose;
use serde::{Deserialize, Serialize};

/// Fields left out of a fingerprint: request ids, timestamps, trace headers.
///
/// A plain name is left out at any depth; a dotted path counts from the top and looks through arrays
/// (`items.request_id` is that field of every item).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct Volatile {
    names: Vec<String>,
    paths: Vec<String>,
}

impl Volatile {
    /// Nothing is left out.
    pub const NONE: &'static Self = &Self { names: Vec::new(), paths: Vec::new() };

    /// These fields.
    pub fn of<S: AsRef<str>>(fields: impl IntoIterator<Item = S>) -> Self {
        let fields = fields.into_iter().map(|field| compose(field.as_ref()).into_owned()).filter(|field| !field.is_empty());
        let (paths, names) = fields.partition(|field| field.contains('.'));
        Self { names, paths }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty()
    }

    /// The fields of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self { names: [&*self.names, &*other.names].concat(), paths: [&*self.paths, &*other.paths].concat() }
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }

    pub(super) fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    pub(super) fn has_path(&self, path: &str) -> bool {
        self.paths.iter().any(|other| other == path)
    }
}

impl From<Vec<String>> for Volatile {
    fn from(fields: Vec<String>) -> Self {
        Self::of(fields)
    }
}

impl From<Volatile> for Vec<String> {
    fn from(volatile: Volatile) -> Self {
        volatile.names.into_iter().chain(volatile.paths).collect()
    }
}
