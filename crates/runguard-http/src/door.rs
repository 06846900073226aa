//! Who may come in: whoever has a key, or, while there is none, the people of this machine.
//!
//! A key is a header that no browser sends for a page of another site. Without one, every web page that is open on this machine
//! can send requests to a port of this machine; so the name the request was sent to and the page it comes from are looked at.

use crate::problem::Problem;
use hyper::HeaderMap;
use hyper::header::{self, AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use std::net::IpAddr;

/// The key of a request: `Authorization: Bearer …`, or `x-api-key: …`. Of two in one place nobody can say which was meant: that is none.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    if headers.contains_key(AUTHORIZATION) {
        let (scheme, token) = only(headers, &AUTHORIZATION)?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then_some(token.trim());
    }
    only(headers, &API_KEY).map(str::trim)
}

static API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What proxies add.
static FORWARDED: [HeaderName; 3] = [header::FORWARDED, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];
static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a request without a key was made on this machine, and not by a page of another site. `hosts` are names that are
/// taken for this machine's as well.
pub fn this_machine(headers: &HeaderMap, hosts: &[String]) -> Result<(), Problem> {
    // A name of the attacker's that resolves to 127.0.0.1 passes every check of the browser, but not this one.
    let host = only(headers, &HOST).filter(|host| is_this_machine(host, hosts)).ok_or_else(Problem::foreign_host)?;
    // A proxy asks for somebody else. Which proxies may is said by listing the name they ask for.
    let is_forwarded = FORWARDED.iter().any(|name| headers.contains_key(name));
    if is_forwarded && is_this_machine(host, &[]) {
        return Err(Problem::foreign_host());
    }
    if headers.contains_key(ORIGIN) {
        let origin = only(headers, &ORIGIN).and_then(|origin| origin.split_once("://"));
        if origin.is_none_or(|(_, authority)| !authority.eq_ignore_ascii_case(host)) {
            return Err(Problem::foreign_origin());
        }
    }
    let is_own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    if headers.get_all(&SEC_FETCH_SITE).iter().all(is_own) { Ok(()) } else { Err(Problem::foreign_origin()) }
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Any port: the one a browser uses may be forwarded.
fn is_this_machine(host: &str, hosts: &[String]) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':').or(rest.is_empty().then_some("0"))),
        None => host.rsplit_once(':').map_or((host, Some("0")), |(name, port)| (name, Some(port))),
    };
    let is_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let is_local = || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_listed = || hosts.iter().any(|listed| listed.eq_ignore_ascii_case(name));
    is_port && (is_local() || is_listed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn of_two_keys_none_counts() {
        let of = |pairs: &[(&'static str, &'static str)]| token(&headers(pairs)).map(str::to_owned);
        let (bearer, other) = (("authorization", "Bearer rg_a"), ("authorization", "Bearer rg_b"));
        assert_eq!(of(&[bearer]).as_deref(), Some("rg_a"));
        assert_eq!(of(&[("x-api-key", " rg_a ")]).as_deref(), Some("rg_a"));
        assert_eq!(of(&[bearer, ("x-api-key", "rg_b")]).as_deref(), Some("rg_a"), "a client of Anthropic's may send both");
        for two in [[bearer, other], [bearer, bearer], [("x-api-key", "rg_a"), ("x-api-key", "rg_b")]] {
            assert_eq!(of(&two), None, "{two:?}");
        }
    }

    #[test]
    fn only_names_of_this_machine_are_names_of_this_machine() {
        for host in ["localhost", "localhost:8101", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8101", "[::1]", "[::1]:8101", "127.0.0.2"] {
            assert!(is_this_machine(host, &[]), "{host}");
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
            assert!(!is_this_machine(host, &[]), "{host}");
        }
        let listed = ["runguard.internal".to_owned()];
        assert!(is_this_machine("RunGuard.internal:443", &listed) && !is_this_machine("x.runguard.internal", &listed));
    }

    #[test]
    fn a_page_of_another_site_is_told_by_what_its_browser_says() {
        let host = ("host", "localhost:8100");
        for asked in [
            vec![host],
            vec![host, ("origin", "http://localhost:8100")],
            vec![host, ("sec-fetch-site", "same-origin")],
            vec![host, ("sec-fetch-site", "none")],
        ] {
            assert!(this_machine(&headers(&asked), &[]).is_ok(), "{asked:?}");
        }
        for asked in [
            vec![],
            vec![("host", "rebound.example")],
            vec![host, ("host", "localhost:1")],
            vec![host, ("origin", "http://evil.example")],
            vec![host, ("origin", "http://localhost:3000")],
            vec![host, ("origin", "null")],
            vec![host, ("origin", "http://localhost:8100"), ("origin", "http://localhost:8100")],
            vec![host, ("sec-fetch-site", "cross-site")],
            vec![host, ("sec-fetch-site", "same-site")],
            vec![host, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
        ] {
            assert!(this_machine(&headers(&asked), &[]).is_err(), "{asked:?}");
        }
    }
}
