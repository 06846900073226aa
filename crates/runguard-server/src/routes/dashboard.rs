//! The dashboard: a page and its files, inside the binary, packed (`build.rs`) and sent so to whoever takes it.
//!
//! Nothing is loaded from elsewhere and the policy lets nothing in: no inline script or style, no other host. What a user
//! wrote reaches the page only as text, through the public API. Files are asked for again each time and answered
//! `304` while they are the same, so a page never mixes files of two versions for longer than one load.

use crate::packed::{Packed, takes_gzip};
use crate::problem::Problem;
use axum::extract::Path;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, VARY,
};
use hyper::{HeaderMap, StatusCode};
use runguard_core::fingerprint;
use runguard_http::reply::Reply;
use runguard_http::reply::into_axum;
use std::sync::LazyLock;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                      frame-ancestors 'none'; form-action 'self'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! files {
    ($($name:literal, $kind:ident, $path:literal;)+) => {
        /// Name in the address, content type, content.
        const FILES: &[(&str, &str, Packed)] =
            &[$(($name, $kind, Packed(include_bytes!(concat!(env!("OUT_DIR"), "/dashboard/", $path, ".gz"))))),+];
    };
}

files! {
    "index.html", HTML, "index.html";
    "style.css", CSS, "style.css";
    "theme.js", SCRIPT, "theme.js";
    "app.js", SCRIPT, "app.js";
    "api.js", SCRIPT, "api.js";
    "budgets.js", SCRIPT, "budgets.js";
    "charts.js", SCRIPT, "charts.js";
    "docs.js", SCRIPT, "docs.js";
    "dom.js", SCRIPT, "dom.js";
    "words.js", SCRIPT, "words.js";
    "view-alerts.js", SCRIPT, "view-alerts.js";
    "view-decisions.js", SCRIPT, "view-decisions.js";
    "view-insights.js", SCRIPT, "view-insights.js";
    "view-overview.js", SCRIPT, "view-overview.js";
    "view-session.js", SCRIPT, "view-session.js";
    "view-sessions.js", SCRIPT, "view-sessions.js";
    "view-settings.js", SCRIPT, "view-settings.js";
    "view-spend.js", SCRIPT, "view-spend.js";
    "view-welcome.js", SCRIPT, "view-welcome.js";
    "uPlot.iife.min.js", SCRIPT, "vendor/uplot/uPlot.iife.min.js";
    "uPlot.min.css", CSS, "vendor/uplot/uPlot.min.css";
    "uPlot-LICENSE.txt", TEXT, "vendor/uplot/LICENSE";
}

/// The colours of all pages: what the style begins with.
pub(crate) fn colours() -> String {
    text("style.css").split_inclusive("\n}\n").next().unwrap_or_default().to_owned()
}

fn text(name: &str) -> String {
    FILES.iter().find(|(own, ..)| *own == name).map(|(.., packed)| packed.text()).unwrap_or_default()
}

struct File {
    name: &'static str,
    content_type: HeaderValue,
    packed: Packed,
    /// Of the file, however it is sent.
    tag: HeaderValue,
}

static SERVED: LazyLock<Vec<File>> = LazyLock::new(|| {
    let file = |(name, kind, packed): &(&'static str, &'static str, Packed)| File {
        name,
        content_type: HeaderValue::from_static(kind),
        packed: *packed,
        tag: HeaderValue::try_from(format!("W/\"{}\"", fingerprint::hex16(packed.0))).unwrap_or(HeaderValue::from_static("W/\"\"")),
    };
    FILES.iter().map(file).collect()
});

pub(crate) async fn page(headers: HeaderMap) -> Response {
    into_axum(find("index.html", &headers))
}

pub(crate) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    into_axum(find(&name, &headers))
}

fn find(name: &str, headers: &HeaderMap) -> Reply {
    let Some(file) = SERVED.iter().find(|file| file.name == name) else {
        return Problem::unknown("file").into_reply();
    };
    let known = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let same = known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim().as_bytes() == file.tag.as_bytes()));
    let packed = takes_gzip(headers.get(ACCEPT_ENCODING));
    let body = match (same, packed) {
        (true, _) => Bytes::new(),
        (false, true) => Bytes::from_static(file.packed.0),
        (false, false) => Bytes::from(file.packed.text()),
    };
    let mut response = Reply::new(Either::Left(Full::new(body)));
    let headers = response.headers_mut();
    if packed && !same {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(CONTENT_TYPE, file.content_type.clone());
    headers.insert(ETAG, file.tag.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if same {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use runguard_core::{GuardName, Reason};

    fn own_files() -> impl Iterator<Item = (&'static str, String)> {
        FILES.iter().filter(|(name, ..)| !name.starts_with("uPlot")).map(|(name, _, packed)| (*name, packed.text()))
    }

    #[test]
    fn the_page_is_light() {
        let bytes: usize = FILES.iter().map(|(.., packed)| packed.text().len()).sum();
        assert!(bytes <= 250 * 1024, "{bytes} bytes");
    }

    #[test]
    fn every_file_that_is_asked_for_is_there() {
        let names: Vec<&str> = FILES.iter().map(|(name, ..)| *name).collect();
        for (name, text) in own_files() {
            let imports = text.split("from './").chain(text.split("\"dashboard/")).filter_map(|rest| rest.split(['\'', '"']).next());
            for import in imports.filter(|import| import.len() < 40 && [".js", ".css"].iter().any(|end| import.ends_with(end))) {
                assert!(names.contains(&import), "{name} asks for {import}");
            }
        }
    }

    #[test]
    fn nothing_turns_text_into_markup_or_code() {
        for (name, text) in own_files() {
            for danger in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "javascript:",
                " style=\"",
                "http://",
                "https://",
            ] {
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(danger), "{name} has {danger}");
            }
        }
    }

    /// It shows what the service calls them.
    #[test]
    fn the_page_has_no_list_of_guards_and_reasons() {
        for code in GuardName::ALL.iter().map(|guard| guard.code()).chain(Reason::ALL.iter().map(|reason| reason.code())) {
            assert!(!text("words.js").contains(&format!("{code}:")), "words.js has {code}");
        }
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let first = find("app.js", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[ETAG].clone();
        assert_eq!(find("app.js", &HeaderMap::from_iter([(IF_NONE_MATCH, tag.clone())])).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(find("style.css", &HeaderMap::from_iter([(IF_NONE_MATCH, tag)])).status(), StatusCode::OK);
        assert_eq!(find("../Cargo.toml", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_file_is_the_same_packed_and_not() {
        let plain = find("app.js", &HeaderMap::new());
        let packed = find("app.js", &HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate, br"))]));
        assert_eq!((plain.headers().get(CONTENT_ENCODING), &packed.headers()[CONTENT_ENCODING]), (None, &HeaderValue::from_static("gzip")));
        assert_eq!(plain.headers()[ETAG], packed.headers()[ETAG]);
        assert_eq!(packed.headers()[VARY], "accept-encoding");
        let plain = plain.into_body().collect().await.unwrap().to_bytes();
        let packed = packed.into_body().collect().await.unwrap().to_bytes();
        assert!(packed.len() * 2 < plain.len() && packed.starts_with(b"\x1f\x8b"), "{} of {}", packed.len(), plain.len());
        assert_eq!(plain, include_bytes!("../../../../dashboard/app.js").as_slice());
    }
}
