//! Who may ask.
//!
//! With a key, whoever has it, from anywhere: a browser sends no such header for a page of another site. Without one, this
//! machine only; and because every web page that is open on this machine can send requests to it, the name the request was
//! sent to and the page it comes from are looked at too.

use super::problem::Problem;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use std::fmt;
use std::net::IpAddr;
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
            Self::Key(_) if path == "/" || path == "/health" => Ok(()),
            Self::Key(key) => {
                let is_right = token(headers).is_some_and(|token| bool::from(token.as_bytes().ct_eq(key.as_bytes())));
                if is_right { Ok(()) } else { Err(Problem::unauthorized()) }
            }
            Self::ThisMachine => this_machine(headers),
        }
    }
}

fn token(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then_some(token.trim());
    }
    headers.get("x-api-key")?.to_str().ok().map(str::trim)
}

fn this_machine(headers: &HeaderMap) -> Result<(), Problem> {
    // A name of the attacker's that resolves to 127.0.0.1 passes every check of the browser, but not this one.
    let host = only(headers, HOST.as_str()).filter(|host| is_this_machine(host)).ok_or_else(Problem::foreign_host)?;
    if headers.contains_key(ORIGIN) {
        let origin = only(headers, ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
        if origin.is_none_or(|(_, authority)| !authority.eq_ignore_ascii_case(host)) {
            return Err(Problem::foreign_origin());
        }
    }
    match headers.get("sec-fetch-site").map(http::HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Problem::foreign_origin()),
    }
}

fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Any port: the one a browser uses may be forwarded.
fn is_this_machine(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':').or(rest.is_empty().then_some("0"))),
        None => host.rsplit_once(':').map_or((host, Some("0")), |(name, port)| (name, Some(port))),
    };
    let is_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    is_port && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_names_of_this_machine() {
        for host in ["localhost", "localhost:8101", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8101", "[::1]", "[::1]:8101", "127.0.0.2"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "",
            ":8101",
            "evil.example",
            "evil.example:8101",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:evil",
            "localhost:",
            "10.0.0.1",
            "0.0.0.0:8101",
            "[::2]:8101",
            "[::1]x",
            "[::1",
            "[localhost.evil]",
            "user@localhost",
            "localhost@evil.example",
            "2130706433",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        assert!(!format!("{:?}", Door::Key("hush".into())).contains("hush"));
    }
}
