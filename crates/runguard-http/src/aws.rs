//! What AWS asks of whoever calls it: credentials, a signature over the request (`SigV4`), and binary frames in its streams.
//!
//! Signature and frames are exact or worth nothing: tests hold them against AWS's own libraries.

pub mod frames;
mod signature;

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::fmt;
use std::path::PathBuf;

/// What requests are signed with, or a Bedrock API key.
#[derive(Clone)]
pub struct Access(Secret);

#[derive(Clone)]
enum Secret {
    Bearer(String),
    Keys { id: String, secret: String, session_token: Option<String> },
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Secret::Bearer(_) => f.write_str("Access(API key)"),
            Secret::Keys { id, .. } => write!(f, "Access(access key {id})"),
        }
    }
}

impl Access {
    /// A Bedrock API key.
    pub fn bearer(token: impl Into<String>) -> Self {
        Self(Secret::Bearer(token.into()))
    }

    pub fn keys(id: impl Into<String>, secret: impl Into<String>, session_token: Option<String>) -> Self {
        Self(Secret::Keys { id: id.into(), secret: secret.into(), session_token })
    }

    /// Looks where the AWS tools look first: the API key, the keys in the environment, the shared credentials file. Roles,
    /// single sign-on and programs that give credentials are left to the AWS command line, which can put them into the
    /// environment.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let get = |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        if let Some(token) = get("AWS_BEARER_TOKEN_BEDROCK") {
            return Ok(Self::bearer(token));
        }
        match (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => return Ok(Self::keys(id, secret, get("AWS_SESSION_TOKEN"))),
            (Some(_), None) => return Err("AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not: set both".to_owned()),
            (None, Some(_)) => return Err("AWS_SECRET_ACCESS_KEY is set and AWS_ACCESS_KEY_ID is not: set both".to_owned()),
            (None, None) => {}
        }
        let home = get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
        let file = match (get("AWS_SHARED_CREDENTIALS_FILE"), home) {
            (Some(file), Some(home)) if file.starts_with("~/") => Some(home.join(&file[2..])),
            (Some(file), _) => Some(PathBuf::from(file)),
            (None, home) => home.map(|home| home.join(".aws").join("credentials")),
        };
        let profile = get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let place = file.as_ref().map_or_else(|| "~/.aws/credentials".to_owned(), |file| file.display().to_string());
        let text =
            file.ok_or_else(|| "HOME is not set".to_owned()).and_then(|file| std::fs::read_to_string(file).map_err(|p| p.to_string()));
        let problem = match text.and_then(|text| Self::from_credentials_file(&text, &profile)) {
            Ok(access) => return Ok(access),
            Err(problem) => problem,
        };
        Err(format!(
            "there are no AWS credentials. Looked at: AWS_BEARER_TOKEN_BEDROCK (not set); AWS_ACCESS_KEY_ID with \
             AWS_SECRET_ACCESS_KEY (not set); the profile '{profile}' (AWS_PROFILE) in {place} ({problem}). Set one of them; for \
             roles and single sign-on: eval \"$(aws configure export-credentials --format env)\""
        ))
    }

    fn from_credentials_file(text: &str, profile: &str) -> Result<Self, String> {
        let (mut is_ours, mut is_there) = (false, false);
        let (mut id, mut secret, mut session_token) = (None, None, None);
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
                is_ours = name.trim() == profile;
                is_there |= is_ours;
            } else if is_ours && let Some((key, value)) = line.split_once('=') {
                let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
                match key.trim().to_ascii_lowercase().as_str() {
                    "aws_access_key_id" => id = value,
                    "aws_secret_access_key" => secret = value,
                    "aws_session_token" => session_token = value,
                    _ => {}
                }
            }
        }
        match (id, secret) {
            (Some(id), Some(secret)) => Ok(Self::keys(id, secret, session_token)),
            _ if is_there => Err("it has no aws_access_key_id with aws_secret_access_key; only plain keys are read".to_owned()),
            _ => Err("it has no such profile".to_owned()),
        }
    }

    /// Whether requests are signed, which names a region; an API key is the same everywhere.
    pub fn signs(&self) -> bool {
        matches!(self.0, Secret::Keys { .. })
    }

    /// The headers that make this a request of ours, marked as secrets.
    pub fn headers(&self, request: &ToSign<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let secret = |name: HeaderName, value: &str| {
            let mut value = HeaderValue::from_str(value).map_err(|problem| problem.to_string())?;
            value.set_sensitive(true);
            Ok((name, value))
        };
        match &self.0 {
            Secret::Bearer(token) => Ok(vec![secret(AUTHORIZATION, &format!("Bearer {token}"))?]),
            Secret::Keys { id, secret: key, session_token } => {
                let keys = signature::Keys { id, secret: key, session_token: session_token.as_deref() };
                let signed = signature::sign(request, &keys, Timestamp::now())?;
                signed.into_iter().map(|(name, value)| secret(HeaderName::from_static(name), &value)).collect()
            }
        }
    }
}

/// A POST to Bedrock as it will be sent.
#[derive(Debug, Clone, Copy)]
pub struct ToSign<'a> {
    pub region: &'a str,
    pub url: &'a str,
    /// Those the signature vouches for, beside the host; what proxies may change is left out.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

/// Whether this can be a region: it becomes part of a host's name.
pub fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Where Bedrock answers in a region.
pub fn bedrock_url(region: &str) -> String {
    format!("https://bedrock-runtime.{region}.amazonaws.com")
}

/// Everything but what AWS calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The path of one operation on a model. The `/` and `:` of an ARN are part of one segment.
pub fn model_path(model: &str, operation: &str) -> String {
    format!("/model/{}/{operation}", utf8_percent_encode(model, RESERVED))
}
