//! What can be wrong with a request, each kind with its name and a page that tells of it.
//!
//! A problem's `type` is the address of its page on the service that answered, so whoever reads an error in a log finds out what to do
//! about it where the service is, and of the version that it is.

use crate::reply::{Reply, reply};
use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};

/// Where the pages are, on every service.
pub const PAGES: &str = "/docs/problems/";

/// One kind of problem.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name in addresses.
    pub code: &'static str,
    pub title: &'static str,
    /// When it happens, and what to do about it.
    pub about: &'static str,
}

/// Makes constants of kinds, and the list `ALL` of them.
#[macro_export]
macro_rules! problem_kinds {
    ($($name:ident: $code:literal, $title:literal, $about:literal;)+) => {
        $(pub static $name: $crate::problem::kinds::Kind = $crate::problem::kinds::Kind { code: $code, title: $title, about: $about };)+
        /// All of them.
        pub static ALL: &[&$crate::problem::kinds::Kind] = &[$(&$name),+];
    };
}

problem_kinds! {
    NOT_FOUND: "not-found", "There is nothing here",
        "No route has this address. Look for a slip of the finger, and at the list of routes that the answer names.";
    METHOD_NOT_ALLOWED: "method-not-allowed", "This route has another method",
        "The address is right and the method is not: questions to guards are POST, reading is GET. The header `Allow` names those that work.";
    TOO_LARGE: "too-large", "The body is too large",
        "The body has more bytes than the route takes, which the answer says. Nothing of it was looked at. Send a hash or a summary instead of a whole text.";
    TOO_SLOW: "too-slow", "The body took too long",
        "The whole request did not arrive within 10 seconds. A slow connection, or a length that the body does not have.";
    BROKEN_BODY: "broken-body", "The body broke off",
        "The connection ended before the body did. Nothing was done; send it again.";
    NOT_AN_OBJECT: "not-an-object", "The body must be a JSON object",
        "The body is no JSON, or it is JSON and no object. The answer says at which line and column it goes wrong. Templates of low-code tools often leave out quotes.";
    UNAUTHORIZED: "unauthorized", "A key is needed",
        "The request has no key, or one that is wrong or was revoked. Send it as `Authorization: Bearer …`. Once one key exists, everybody needs one.";
    FORBIDDEN: "forbidden", "The key may not do this",
        "The key is good, and its role or its tenant is another. The answer names the least that would do.";
    ENCODED: "encoded", "The body is encoded",
        "The body came with `Content-Encoding`. Bodies are read as they are: send it without.";
    NO_HOST: "no-host", "The request names no host",
        "A request of HTTP/1.1 has one `Host` header, not none and not several. Clients set it themselves; look at what stands between.";
    FOREIGN_HOST: "foreign-host", "The request was meant for another host",
        "Without a key only this machine is served, under its own names: a web page could otherwise reach the port. Make a key, or name the host in `server.hosts`.";
    FOREIGN_ORIGIN: "foreign-origin", "A page of another site asks",
        "A browser sent the request for a page of another origin. Make a key, and ask from a server of your own.";
    NOT_READY: "not-ready", "The service cannot answer right now",
        "It starts, stops, or cannot write down what it decides (a full disk, a database that is away). Nothing was counted. Ask again after `Retry-After`; `/readyz` says when it is back.";
    TOO_MUCH_AT_ONCE: "too-much-at-once", "One caller asks too much at once",
        "The key, or all keys of its tenant, have as many requests or bytes under way as one caller gets (`server.max_in_flight_per_key` and the five after it). Wait for answers before asking more.";
    TOO_FAST: "too-fast", "Requests come too fast",
        "The key, or its tenant, asks more often in a second than it may (`server.requests_per_second_per_key`, `…_per_tenant`). Wait for `Retry-After`.";
    NO_CONNECTION_LEFT: "no-connection-left", "Too many connections are open",
        "As many connections are open as the service takes; those kept for health checks answer nothing else. Close idle ones, or raise `server.max_connections`.";
    HEAD_TOO_LARGE: "head-too-large", "The head of the request is too large",
        "At most 64 header fields and about 64 KiB are taken. Cookies of other services on the same host are the usual reason.";
    ADDRESS_TOO_LONG: "address-too-long", "The address is too long",
        "At most about 64 KiB are taken. What is that long belongs into the body.";
    UNREADABLE: "unreadable", "This is not a request",
        "What came is not HTTP/1.1: look at the request line, the header fields, the pieces of the body, and their ends. Another protocol on this port, most likely.";
    TLS_NEEDED: "tls-needed", "A plain request to a TLS port",
        "The port speaks TLS: begin the address with https://.";
    UNKNOWN: "unknown", "Not known",
        "The route is right, and nothing is known under this name: it was never seen, is past its retention, was erased, or belongs to another tenant.";
    INVALID_FIELDS: "invalid-fields", "Some fields are missing or wrong",
        "`errors` names every field with what is wrong with it. Nothing was counted and nothing was begun. Fields that are not known are warnings and not errors.";
}

/// The page of a kind; `None` when there is none of this name. `back` is where the routes are listed.
pub fn page(code: &str, kinds: &[&[&Kind]], back: &str) -> Option<Reply> {
    let kind = kinds.iter().flat_map(|kinds| kinds.iter()).find(|kind| kind.code == code)?;
    // `code` in the text stands between backticks.
    let about: String = kind.about.split('`').enumerate().fold(String::new(), |text, (number, part)| {
        let part = part.replace('&', "&amp;").replace('<', "&lt;");
        text + &if number % 2 == 1 { format!("<code>{part}</code>") } else { part }
    });
    let Kind { title, .. } = kind;
    let body = format!(
        concat!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
            "<title>{title}</title><style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem}}</style></head>",
            "<body><main><h1>{title}</h1><p>{about}</p><p>The answer's <code>detail</code> says what it was this time. Its type is <code>{pages}{code}</code>.</p>",
            "<p><a href=\"{back}\">All routes</a></p></main></body></html>"
        ),
        title = title,
        about = about,
        pages = PAGES,
        code = code,
        back = back
    );
    let mut page = reply(StatusCode::OK, HeaderValue::from_static("text/html; charset=utf-8"), body);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    page.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_page_and_no_other_name_has() {
        let codes: std::collections::HashSet<&str> = ALL.iter().map(|kind| kind.code).collect();
        assert_eq!(codes.len(), ALL.len());
        for kind in ALL {
            assert!(page(kind.code, &[ALL], "/docs").is_some());
            assert_eq!(kind.about.matches('`').count() % 2, 0, "{}", kind.code);
        }
        assert!(page("<script>", &[ALL], "/docs").is_none());
    }
}
