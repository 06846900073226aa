//! Who may ask: with a key, whoever has it, from anywhere; without one, the people of this machine.

use super::problem::Problem;
use super::{HEALTH, READY};
use http::HeaderMap;
use runguard_http::door;
use runguard_http::problem::kinds::PAGES;
use std::fmt;
use subtle::ConstantTimeEq;

#[derive(Clone)]
pub(super) enum Door {
    Key(String),
    ThisMachine,
}

/// A key never shows.
impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key",
            Self::ThisMachine => "ThisMachine",
        })
    }
}

impl Door {
    pub(super) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            // What tells nothing and does nothing: for those who watch over the service.
            Self::Key(_) if path == "/" || path == HEALTH || path == READY || path.starts_with(PAGES) => Ok(()),
            Self::Key(key) => {
                let is_right = door::token(headers).is_some_and(|token| bool::from(token.as_bytes().ct_eq(key.as_bytes())));
                if is_right { Ok(()) } else { Err(Problem::unauthorized()) }
            }
            Self::ThisMachine => Ok(door::this_machine(headers, &[])?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_printed() {
        assert!(!format!("{:?}", Door::Key("hush".into())).contains("hush"));
    }
}
