//! AWS's signature, version 4: a digest of the request in a fixed form, under a key made for its day, region and service.

use super::{RESERVED, ToSign};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Uri;
use http::uri::Authority;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

const SERVICE: &str = "bedrock";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// A path is encoded once more as it stands, all but its slashes.
const PATH: &AsciiSet = &RESERVED.remove(b'/');

pub(super) struct Keys<'a> {
    pub(super) id: &'a str,
    pub(super) secret: &'a str,
    pub(super) session_token: Option<&'a str>,
}

/// The headers that a POST needs beside its own.
pub(super) fn sign(request: &ToSign<'_>, keys: &Keys<'_>, now: Timestamp) -> Result<Vec<(&'static str, String)>, String> {
    let uri: Uri = request.url.parse().map_err(|problem| format!("'{}' is no address: {problem}", request.url))?;
    let host = host(&uri).ok_or_else(|| format!("'{}' names no host", request.url))?;
    let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = &time[..8];

    let mut headers: Vec<(String, String)> =
        request.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), single_spaced(value))).collect();
    headers.extend([("host".to_owned(), host.to_owned()), ("x-amz-date".to_owned(), time.clone())]);
    headers.extend(keys.session_token.map(|token| ("x-amz-security-token".to_owned(), single_spaced(token))));
    // What is sent twice is one line, its values in the order in which they go.
    headers.sort_by(|(name, _), (other, _)| name.cmp(other));
    headers.dedup_by(|(name, value), (before, values)| {
        let is_same = name == before;
        if is_same {
            values.push(',');
            values.push_str(value);
        }
        is_same
    });
    let names = headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");

    let mut canonical = format!("POST\n{}\n{}\n", path(uri.path()), query(uri.query().unwrap_or_default()));
    for (name, value) in &headers {
        canonical.push_str(name);
        canonical.push(':');
        canonical.push_str(value);
        canonical.push('\n');
    }
    canonical.push_str(&format!("\n{names}\n{}", hex(&Sha256::digest(request.body))));

    let scope = format!("{day}/{}/{SERVICE}/aws4_request", request.region);
    let to_sign = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let mut key = mac(format!("AWS4{}", keys.secret).as_bytes(), day);
    for part in [request.region, SERVICE, "aws4_request"] {
        key = mac(&key, part);
    }
    let signature = hex(&mac(&key, &to_sign));
    let authorization = format!("{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", keys.id);

    let mut signed = vec![("x-amz-date", time), ("authorization", authorization)];
    signed.extend(keys.session_token.map(|token| ("x-amz-security-token", token.to_owned())));
    Ok(signed)
}

/// As it is sent: a port that goes without saying is not said.
fn host(uri: &Uri) -> Option<&str> {
    let is_usual = matches!((uri.scheme_str(), uri.port_u16()), (Some("http"), Some(80)) | (Some("https"), Some(443)));
    if is_usual { uri.host() } else { uri.authority().map(Authority::as_str) }
}

/// Without empty segments and dots, and encoded once more.
fn path(path: &str) -> String {
    let encoded = |path: &str| utf8_percent_encode(path, PATH).to_string();
    if !path.contains('.') && !path.contains("//") {
        return encoded(path);
    }
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let is_folder = !segments.is_empty() && ["/", "/.", "/./", "/..", "/../"].iter().any(|end| path.ends_with(end));
    encoded(&format!("/{}{}", segments.join("/"), if is_folder { "/" } else { "" }))
}

/// Sorted, and each name and value encoded one way.
fn query(query: &str) -> String {
    let encoded = |text: &str| {
        let text = text.replace('+', " ");
        utf8_percent_encode(&percent_decode_str(&text).decode_utf8_lossy(), RESERVED).to_string()
    };
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn single_spaced(value: &str) -> String {
    value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    // A key may have any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_credential_types::Credentials;
    use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings};
    use aws_sigv4::sign::v4;
    use proptest::prelude::*;
    use std::time::SystemTime;

    /// As AWS's own library does it.
    fn theirs(request: &ToSign<'_>, keys: &Keys<'_>, now: Timestamp) -> Vec<(String, String)> {
        let identity = Credentials::new(keys.id, keys.secret, keys.session_token.map(str::to_owned), None, "test").into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(request.region)
            .name(SERVICE)
            .time(SystemTime::from(now))
            .settings(SigningSettings::default())
            .build()
            .unwrap()
            .into();
        let headers = request.headers.iter().copied();
        let signable = SignableRequest::new("POST", request.url, headers, SignableBody::Bytes(request.body)).unwrap();
        let (instructions, _) = aws_sigv4::http_request::sign(signable, &parameters).unwrap().into_parts();
        let mut headers: Vec<_> = instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        headers.sort();
        headers
    }

    fn ours(request: &ToSign<'_>, keys: &Keys<'_>, now: Timestamp) -> Vec<(String, String)> {
        let mut headers: Vec<_> = sign(request, keys, now).unwrap().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        headers.sort();
        headers
    }

    #[test]
    fn signed_as_aws_signs() {
        let keys = Keys { id: "AKIDEXAMPLE", secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", session_token: None };
        let token = Keys { session_token: Some("to ken=="), ..Keys { ..keys } };
        let now = Timestamp::from_second(1_440_938_160).unwrap();
        for url in [
            "https://bedrock-runtime.eu-central-1.amazonaws.com/model/anthropic.claude%3A0/converse",
            "https://h/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fx/invoke-with-response-stream",
            "http://127.0.0.1:8100",
            "http://127.0.0.1:8100/a//b/./c/../d/",
            "http://h:80/a/..",
            "https://h/~a-b_c.d/%20?b=2&a=1&a=%20&c&d=+x",
        ] {
            let headers = [
                ("content-type", "application/json"),
                ("X-Amzn-Bedrock-Trace", "  EN   ABLED "),
                ("x-amz-twice", "b"),
                ("X-Amz-Twice", "a"),
            ];
            let request = ToSign { region: "eu-central-1", url, headers: &headers, body: b"{}" };
            for keys in [&keys, &token] {
                assert_eq!(ours(&request, keys, now), theirs(&request, keys, now), "{url}");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_signed_is_signed_as_aws_signs(
            segments in proptest::collection::vec("[A-Za-z0-9._~%: -]{0,8}", 0..4),
            region in "[a-z0-9-]{1,12}",
            value in "[ -~]{0,20}",
            body in proptest::collection::vec(any::<u8>(), 0..64),
            second in 0_i64..4_000_000_000,
        ) {
            let segments: Vec<String> = segments.iter().map(|segment| utf8_percent_encode(segment, RESERVED).to_string()).collect();
            let url = format!("https://bedrock-runtime.{region}.amazonaws.com/{}", segments.join("/"));
            let headers = [("x-amzn-bedrock-guardrailidentifier", value.as_str())];
            let request = ToSign { region: &region, url: &url, headers: &headers, body: &body };
            let keys = Keys { id: "AKID", secret: "secret", session_token: None };
            let now = Timestamp::from_second(second).unwrap();
            prop_assert_eq!(ours(&request, &keys, now), theirs(&request, &keys, now));
        }
    }
}
