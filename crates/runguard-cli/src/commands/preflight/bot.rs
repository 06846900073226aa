//! The bot that is talked to, over the HTTP interface of its platform.

use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder};
use runguard_http::client::{WithoutCertificates, causes, trust_system};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::time::{Duration, Instant};

/// How a bot is talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Platform {
    /// The Chat API of Botpress: --url <https://chat.botpress.cloud/WEBHOOK_ID>
    Botpress,
    /// The Dialog API of Voiceflow: --url <https://general-runtime.voiceflow.com>, --bot-key VF.DM…
    Voiceflow,
    /// One POST a message, to --url, with --body
    Generic,
}

/// How often a bot that answers later is looked at, and how long it is quiet when it has said all.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const QUIET_FOR: Duration = Duration::from_millis(1_000);
/// Of an answer that was not expected.
const SHOWN_CHARS: usize = 200;
/// More than any answer to one message has.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Bot {
    pub(super) platform: Platform,
    pub(super) url: String,
    pub(super) key: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    /// How long an answer may take.
    pub(super) patience: Duration,
    client: Client,
}

/// One conversation.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// What a flow may call the session: the conversation, the user.
    pub(super) sessions: Vec<String>,
    pub(super) said: usize,
    pub(super) replies: usize,
    /// The bot has ended it.
    pub(super) is_over: bool,
    user_key: String,
    user: String,
    heard: BTreeSet<String>,
}

impl Bot {
    pub(super) fn new(platform: Platform, url: &str, patience: Duration) -> Result<Self, String> {
        let scheme = url.split(':').next().unwrap_or_default();
        if !matches!(scheme, "http" | "https") {
            return Err(format!("--url {url}: must begin with http:// or https://"));
        }
        let client = Client::builder()
            .tls_backend_preconfigured(trust_system(WithoutCertificates::for_scheme(scheme))?)
            .timeout(patience)
            // What the bot's own address is told, keys and headers, is for nobody else.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("cannot set up the HTTP client: {}", causes(&error)))?;
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { platform, url, key: None, headers: Vec::new(), body: String::new(), patience, client })
    }

    /// Begins a conversation. The name is the caller's, where the platform lets it choose one.
    pub(super) fn open(&self, name: &str) -> Result<Talk, String> {
        let mut talk = Talk { sessions: vec![name.to_owned()], ..Talk::default() };
        match self.platform {
            Platform::Generic => {}
            Platform::Voiceflow => self.interact(&mut talk, &json!({"type": "launch"}))?,
            Platform::Botpress => {
                let user = self.ask(&To::post("/users"), &json!({}))?;
                talk.user = text_of(&user, &["user", "id"])?;
                talk.user_key = text_of(&user, &["key"])?;
                let conversation = self.ask(&To::post("/conversations").with_user(&talk), &json!({}))?;
                talk.sessions = vec![text_of(&conversation, &["conversation", "id"])?, talk.user.clone()];
            }
        }
        Ok(talk)
    }

    /// Says something, and waits for what the bot says to it.
    pub(super) fn say(&self, talk: &mut Talk, message: &str) -> Result<(), String> {
        talk.said += 1;
        match self.platform {
            Platform::Voiceflow => self.interact(talk, &json!({"type": "text", "payload": message})),
            Platform::Generic => {
                let fill = |text: &str, value: &str| {
                    let quoted = Value::from(value).to_string();
                    (text.to_owned(), quoted[1..quoted.len() - 1].to_owned())
                };
                let body = [fill("{session}", &talk.sessions[0]), fill("{message}", message)]
                    .iter()
                    .fold(self.body.clone(), |body, (place, value)| body.replace(place, value));
                let body: Value =
                    serde_json::from_str(&body).map_err(|error| format!("--body is no JSON once it is filled in: {error}"))?;
                self.ask(&To::post(""), &body)?;
                talk.replies += 1;
                Ok(())
            }
            Platform::Botpress => {
                let body = json!({"conversationId": talk.sessions[0], "payload": {"type": "text", "text": message}});
                self.ask(&To::post("/messages").with_user(talk), &body)?;
                self.listen(talk)
            }
        }
    }

    /// One turn at Voiceflow: its answer is all that the agent says to it.
    fn interact(&self, talk: &mut Talk, action: &Value) -> Result<(), String> {
        let to = To::post(&format!("/state/user/{}/interact", crate::client::segment(&talk.sessions[0])));
        let answer = self.ask(&to, &json!({"action": action, "config": {"tts": false, "stripSSML": true}}))?;
        let traces = answer.as_array().or_else(|| answer["traces"].as_array()).ok_or("the answer is no list of traces")?;
        for trace in traces {
            match trace["type"].as_str() {
                Some("text" | "speak") => talk.replies += 1,
                Some("end") => talk.is_over = true,
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Botpress answers later: its messages are looked at until they stop coming. A bot that says nothing has said nothing.
    fn listen(&self, talk: &mut Talk) -> Result<(), String> {
        let began = Instant::now();
        let mut newest: Option<Instant> = None;
        while began.elapsed() < self.patience && newest.is_none_or(|at| at.elapsed() < QUIET_FOR) {
            std::thread::sleep(LOOK_EVERY);
            let path = format!("/conversations/{}/messages", crate::client::segment(&talk.sessions[0]));
            let answer = self.ask(&To { method: Method::GET, ..To::post(&path).with_user(talk) }, &Value::Null)?;
            for message in answer["messages"].as_array().ok_or("the answer has no `messages`")? {
                let is_bots = message["userId"].as_str() != Some(&talk.user);
                if is_bots && talk.heard.insert(text_of(message, &["id"])?) {
                    talk.replies += 1;
                    newest = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    fn ask(&self, to: &To, body: &Value) -> Result<Value, String> {
        let place = format!("{}{}", self.url, to.path);
        let failed = |problem: String| format!("{} {place}: {problem}", to.method);
        let response = self.prepared(to, &place, body).send().map_err(|error| failed(causes(&error)))?;
        let status = response.status();
        let mut bytes = Vec::new();
        response.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(causes(&error)))?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(failed(format!("the answer has more than {MOST_BYTES} bytes")));
        }
        let text = String::from_utf8_lossy(&bytes);
        if !status.is_success() {
            let shown: String = text.chars().take(SHOWN_CHARS).collect();
            return Err(failed(format!("answered {status}: {}", crate::output::clean(&shown))));
        }
        // One's own bot may answer with anything.
        match (self.platform, serde_json::from_str(&text)) {
            (_, Ok(value)) => Ok(value),
            (Platform::Generic, Err(_)) => Ok(Value::Null),
            (Platform::Botpress | Platform::Voiceflow, Err(_)) => Err(failed("the answer is not JSON".to_owned())),
        }
    }

    fn prepared(&self, to: &To, place: &str, body: &Value) -> RequestBuilder {
        let mut request = self.client.request(to.method.clone(), place).header("accept", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        if !to.user_key.is_empty() {
            request = request.header("x-user-key", &to.user_key);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if body.is_null() { request } else { request.header("content-type", "application/json").body(body.to_string()) }
    }
}

/// Where a request goes, and for whom.
#[derive(Debug)]
struct To {
    method: Method,
    path: String,
    user_key: String,
}

impl To {
    fn post(path: &str) -> Self {
        Self { method: Method::POST, path: path.to_owned(), user_key: String::new() }
    }

    fn with_user(self, talk: &Talk) -> Self {
        Self { user_key: talk.user_key.clone(), ..self }
    }
}

fn text_of(answer: &Value, path: &[&str]) -> Result<String, String> {
    let found = path.iter().fold(answer, |value, name| &value[*name]);
    found
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("the answer has no text at `{}`; is it the Chat API of Botpress?", path.join(".")))
}
