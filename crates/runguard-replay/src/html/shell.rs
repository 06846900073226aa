//! What every page has that is sent around: a head that forbids it all but its own style, parts, and foreign words without markup.

use runguard_core::shown::{html as escaped, shortened};
use std::fmt::Write as _;

/// Characters shown of a name.
const MAX_NAME: usize = 80;

/// A page whose parts are ready.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    pub title: &'a str,
    pub heading: &'a str,
    /// Below the heading.
    pub below: &'a str,
    pub body: &'a str,
    /// Behind who made it.
    pub footer: &'a str,
    pub style: &'a str,
    /// SHA-256 of the style, so that no other can be slipped in.
    pub style_hash: &'a str,
}

impl Page<'_> {
    #[must_use]
    pub fn whole(&self) -> String {
        let Self { title, heading, below, body, footer, style, style_hash } = self;
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{style_hash}'; base-uri 'none'; form-action 'none'\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"referrer\" content=\"no-referrer\">\
             <title>{title}</title><style>{style}</style></head><body>\n<header><h1>{heading}</h1><p class=\"soft\">{below}</p></header>\n<main>{body}</main>\n\
             <footer>Made by RunGuard {}.{footer}</footer></body></html>\n",
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// A part of the page; one that has nothing to show is left out.
pub fn section(out: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        let _ = write!(out, "\n<section><h2>{title}</h2>{body}</section>");
    }
}

/// A name from outside: cut, without anything that steers, escaped, and kept apart from the direction of its surroundings.
#[must_use]
pub fn text(foreign: &str) -> String {
    format!("<bdi>{}</bdi>", escaped(&shortened(foreign, MAX_NAME)))
}

/// A column of a plot: classes and heights, the lowest first.
pub fn stack<'a>(out: &mut String, parts: impl IntoIterator<Item = (&'a str, f64)>, left: f64, width: f64, bottom: f64) {
    let mut y = bottom;
    for (class, height) in parts.into_iter().filter(|(_, height)| *height > 0.0) {
        y -= height;
        let _ = write!(out, "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>");
    }
}
