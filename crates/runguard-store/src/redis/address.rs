//! Where the servers are and how to speak to them: the URL, taken apart.
//!
//! Own code, because the URL may name several hosts and the usual parsers allow one. The password is in here and
//! nowhere else; nothing of this is printed but hosts and ports.

use super::OpenError;
use percent_encoding::percent_decode_str;
use std::fmt;

const DEFAULT_PORT: u16 = 6379;
/// More hosts than any failover group has.
const MOST_HOSTS: usize = 64;

/// A server's host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HostPort {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

impl HostPort {
    /// From `host:port`, `[v6]:port` or, with `otherwise`, from either alone.
    pub(super) fn parse(text: &str, otherwise: &HostPort) -> Option<HostPort> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                (host, rest.strip_prefix(':'))
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => otherwise.port,
        };
        let host = if host.is_empty() { &otherwise.host } else { host };
        (!host.is_empty()).then(|| HostPort { host: host.to_owned(), port })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One server, or a group of which one is the primary.
    Primary,
    /// Redis Cluster.
    Cluster,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) kind: Kind,
    pub(super) tls: bool,
    pub(super) places: Vec<HostPort>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("kind", &self.kind).field("tls", &self.tls).field("places", &self.places).finish_non_exhaustive()
    }
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Address, OpenError> {
        let wrong = |why: &str| OpenError::Url(why.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (tls, mut kind) = match scheme {
            "redis" | "valkey" => (false, Kind::Primary),
            "rediss" | "valkeys" => (true, Kind::Primary),
            "redis+cluster" | "valkey+cluster" => (false, Kind::Cluster),
            "rediss+cluster" | "valkeys+cluster" => (true, Kind::Cluster),
            _ => return Err(wrong("its scheme is not one of redis, rediss, redis+cluster, rediss+cluster")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "cluster=true" => kind = Kind::Cluster,
                "cluster=false" => {}
                _ => return Err(wrong("the only option after ? is cluster=true")),
            }
        }
        // A password may hold an @; hosts never do.
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = match database {
            "" => 0,
            number => {
                number.parse().ok().filter(|number| *number >= 0).ok_or_else(|| wrong("what follows the / is not a database number"))?
            }
        };
        if kind == Kind::Cluster && database != 0 {
            return Err(wrong("Redis Cluster has only database 0"));
        }
        let decoded =
            |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| wrong("user or password is not UTF-8"));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((user, password)) => {
                let full = |text: String| (!text.is_empty()).then_some(text);
                (full(decoded(user)?), full(decoded(password)?))
            }
        };
        if user.is_some() && password.is_none() {
            return Err(wrong("it has a user but no password (write user:password@, or :password@ for a password alone)"));
        }
        let otherwise = HostPort { host: String::new(), port: DEFAULT_PORT };
        let places: Option<Vec<HostPort>> = hosts.split(',').map(|host| HostPort::parse(host, &otherwise)).collect();
        let places = places.ok_or_else(|| wrong("a host is missing, or a port is not a number"))?;
        if places.len() > MOST_HOSTS {
            return Err(wrong("it names more than 64 hosts"));
        }
        Ok(Address { kind, tls, places, user, password, database })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn every_form_is_read() {
        let plain = Address::parse("redis://localhost").unwrap();
        assert_eq!((plain.kind, plain.tls, plain.database), (Kind::Primary, false, 0));
        assert_eq!((plain.places, plain.user, plain.password), (vec![place("localhost", 6379)], None, None));

        let full = Address::parse("rediss://me:p%40ss,@word@a:1,[::1]:2,c/7").unwrap();
        assert_eq!((full.kind, full.tls, full.database), (Kind::Primary, true, 7));
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("me"), Some("p@ss,@word")));
        assert_eq!(full.places, [place("a", 1), place("::1", 2), place("c", 6379)]);

        assert_eq!(Address::parse("redis+cluster://a:1,b:2").unwrap().kind, Kind::Cluster);
        assert_eq!(Address::parse("rediss://a:1?cluster=true").unwrap().kind, Kind::Cluster);
        assert_eq!(Address::parse("redis://:secret@a").unwrap().password.as_deref(), Some("secret"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (url, words) in [
            ("localhost:6379", "no scheme"),
            ("http://:hunter2@a", "scheme is not one of"),
            ("redis://:hunter2@", "host is missing"),
            ("redis://:hunter2@a:port", "port is not a number"),
            ("redis://:hunter2@a/x", "database number"),
            ("redis+cluster://:hunter2@a/3", "only database 0"),
            ("redis://:hunter2@a?timeout=3", "only option"),
            ("redis://user@a", "no password"),
        ] {
            let message = Address::parse(url).unwrap_err().to_string();
            assert!(message.contains(words), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(!format!("{:?}", Address::parse("redis://u:hunter2@a").unwrap()).contains("hunter2"));
    }
}
