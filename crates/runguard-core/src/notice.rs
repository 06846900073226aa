//! What people are told, as each receiver takes it: Slack, Teams, PagerDuty. The service and both SDKs send these bodies.
//!
//! The words come from users and models. A receiver refuses a whole message for one field that is too long, so every field is cut
//! to its limit, after escaping and between two characters as people see them: never inside an entity, a surrogate pair or an
//! emoji that is made of several. Receivers do not say what they count as a character; a UTF-16 unit is the smallest of what they
//! may mean, so that is counted.

use crate::fingerprint::hex16;
use crate::shown::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use unicode_segmentation::UnicodeSegmentation as _;

/// What a link is called.
const LOOK: &str = "Open the dashboard";
/// Notices that a message of several names; the rest is counted.
const MOST_LISTED: usize = 10;
/// Of a fact beside the text; the rest are the receivers' limits. In UTF-16 units.
const FACT: usize = 200;
const SLACK_HEADER: usize = 150;
const SLACK_TEXT: usize = 3000;
const SLACK_FIELD: usize = 2000;
const EMAIL_SUBJECT: usize = 200;
const EMAIL_TEXT: usize = 20_000;
const PAGERDUTY_SUMMARY: usize = 1024;
const PAGERDUTY_DEDUP_KEY: usize = 255;
/// An event may have 512 KB; a text among its details has no limit of its own.
const PAGERDUTY_DETAIL: usize = 4096;
/// A card may have 28 KB.
const TEAMS_TEXT: usize = 1500;

/// The words of incident services, from the least to the most urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AlertSeverity"))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For the record.
    Info,
    /// Worth a look.
    Warning,
    /// Something does not work.
    Error,
    /// Someone must come.
    Critical,
}

impl Severity {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Info, Self::Warning, Self::Error, Self::Critical];

    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        }
    }
}

/// Whether the trouble lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// It began, or goes on.
    Firing,
    /// It is over.
    Resolved,
}

impl AlertState {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Firing, Self::Resolved];

    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// One thing that is told.
#[derive(Debug, Clone)]
pub struct Notice {
    /// Whether it began or is over.
    pub state: AlertState,
    /// How urgent it is.
    pub severity: Severity,
    /// The same for everything that is told of one trouble, and of nothing else.
    pub dedup_key: String,
    /// In one line.
    pub title: String,
    /// In sentences.
    pub text: String,
    /// RFC 3339.
    pub time: String,
    /// What it is about, by name; what is empty is not shown.
    pub facts: Vec<(&'static str, String)>,
    /// Where it comes from, and three names that incident services sort by.
    pub source: String,
    /// The part that has the trouble.
    pub component: String,
    /// What the part belongs to.
    pub group: String,
    /// The kind of trouble.
    pub class: String,
    /// For programs.
    pub details: Map<String, Value>,
}

/// One message: a notice, or several that came at once.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Shown below it, so that what people see can be found again.
    pub id: &'a str,
    /// In the order they came.
    pub notices: &'a [Notice],
    /// Where more of it is seen.
    pub link: Option<&'a str>,
}

impl Notice {
    /// A run that was stopped. `facts` are what the SDKs send to webhooks: `kind`, `reason`, `message`, `run_id`, `time`, and more.
    pub fn of_trip(facts: Map<String, Value>, source: &str) -> Self {
        let text = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, reason, run_id) = (text("kind"), text("reason"), text("run_id"));
        Self {
            state: AlertState::Firing,
            severity: Severity::Error,
            // All alerts of one run and reason are one incident.
            dedup_key: format!("runguard/{}/{reason}", if run_id.is_empty() { source } else { &run_id }),
            title: format!("RunGuard stopped a run: {reason}"),
            text: text("message"),
            time: text("time"),
            facts: vec![("Run", run_id), ("Kind", kind.clone()), ("Source", source.to_owned())],
            source: source.to_owned(),
            component: "runguard".to_owned(),
            group: kind,
            class: reason,
            details: facts,
        }
    }

    /// Title and text in one.
    fn summary(&self) -> String {
        if self.text.is_empty() { self.title.clone() } else { format!("{}. {}", self.title, self.text) }
    }

    fn headline(&self) -> String {
        let mark = match (self.state, self.severity) {
            (AlertState::Resolved, _) => "✅",
            (AlertState::Firing, Severity::Info) => "ℹ️",
            (AlertState::Firing, Severity::Warning) => "⚠️",
            (AlertState::Firing, Severity::Error | Severity::Critical) => "🚨",
        };
        format!("{mark} {}", self.title)
    }

    fn shown_facts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let facts = self.facts.iter().map(|(name, value)| (*name, value.as_str()));
        [("Severity", self.severity.code())]
            .into_iter()
            .chain(facts)
            .chain([("Time", self.time.as_str())])
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name, fact(value)))
    }
}

impl Message<'_> {
    fn headline(&self) -> String {
        match self.notices {
            [notice] => notice.headline(),
            notices => format!("{} alerts at once", notices.len()),
        }
    }

    /// The first of several by their headlines, and how many more there are.
    fn listed(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.notices.iter().take(MOST_LISTED).map(Notice::headline).collect();
        if let Some(rest) = self.notices.len().checked_sub(MOST_LISTED).filter(|rest| *rest > 0) {
            lines.push(format!("and {rest} more"));
        }
        lines
    }
}

/// As much of `text` as `most` UTF-16 units hold, each character in the form that `written` gives it.
fn fitted(text: &str, most: usize, written: fn(&str) -> Cow<'_, str>) -> String {
    let mut out = String::new();
    let mut length = 0;
    for character in text.graphemes(true) {
        let character = written(character);
        length += character.encode_utf16().count();
        if length > most {
            break;
        }
        out.push_str(&character);
    }
    out
}

fn plain(text: &str, most: usize) -> String {
    fitted(text, most, |character| Cow::Borrowed(character))
}

fn fact(text: &str) -> String {
    plain(&one_line(text), FACT)
}

/// With Slack's three special characters as it wants them.
fn escaped(text: &str, most: usize) -> String {
    fitted(text, most, |character| {
        if character.contains(['&', '<', '>']) {
            Cow::Owned(character.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
        } else {
            Cow::Borrowed(character)
        }
    })
}

/// A message of Block Kit. `text` is what notifications show, `blocks` what the channel shows.
pub fn slack(message: &Message<'_>) -> Value {
    let markup = |text: &str, most: usize| json!({"type": "mrkdwn", "text": escaped(text, most)});
    // A section without text is refused.
    let section =
        |text: &str| Some(markup(text, SLACK_TEXT)).filter(|text| text["text"] != "").map(|text| json!({"type": "section", "text": text}));
    let headline = message.headline();
    let mut blocks =
        vec![json!({"type": "header", "text": {"type": "plain_text", "text": escaped(&headline, SLACK_HEADER), "emoji": true}})];
    let text = if let [notice] = message.notices {
        blocks.extend(section(&notice.text));
        let fields: Vec<Value> = notice.shown_facts().map(|(name, value)| markup(&format!("*{name}*\n{value}"), SLACK_FIELD)).collect();
        blocks.push(json!({"type": "section", "fields": fields}));
        notice.summary()
    } else {
        blocks.extend(section(&message.listed().join("\n")));
        headline
    };
    if let Some(link) = message.link.map(|link| format!("<{}|{LOOK}>", escaped(link, SLACK_TEXT))) {
        // A link that is cut leads elsewhere.
        if link.encode_utf16().count() <= SLACK_TEXT {
            blocks.push(json!({"type": "section", "text": {"type": "mrkdwn", "text": link}}));
        }
    }
    blocks.push(json!({"type": "context", "elements": [markup(&format!("RunGuard · {}", message.id), SLACK_TEXT)]}));
    json!({"text": escaped(&text, SLACK_TEXT), "blocks": blocks})
}

/// A mail: its subject, and its text in lines.
pub fn email(message: &Message<'_>) -> (String, String) {
    let headline = message.headline();
    let mut lines = Vec::new();
    if let [notice] = message.notices {
        lines.push(notice.summary());
        lines.push(String::new());
        lines.extend(notice.shown_facts().map(|(name, value)| format!("{name}: {value}")));
    } else {
        lines.extend(message.listed());
    }
    if let Some(link) = message.link {
        lines.extend([String::new(), format!("{LOOK}: {link}")]);
    }
    lines.extend([String::new(), format!("RunGuard · {}", message.id)]);
    (plain(&one_line(&headline), EMAIL_SUBJECT), plain(&lines.join("\n"), EMAIL_TEXT))
}

/// An adaptive card. Text stands in runs, which are shown as they are: in a plain text block, Teams would read it as Markdown.
pub fn teams(message: &Message<'_>) -> Value {
    let block = |text: &str, weight: &str, size: &str| json!({"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": plain(text, TEAMS_TEXT), "weight": weight, "size": size}]});
    let headline = message.headline();
    let mut body = vec![block(&headline, "Bolder", "Large")];
    if let [notice] = message.notices {
        body.push(block(&notice.text, "Default", "Default"));
        body.extend(notice.shown_facts().map(|(name, value)| block(&format!("{name}: {value}"), "Default", "Small")));
    } else {
        body.extend(message.listed().iter().map(|line| block(line, "Default", "Default")));
    }
    body.push(block(&format!("RunGuard · {}", message.id), "Lighter", "Small"));
    let mut card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": plain(&headline, TEAMS_TEXT),
        "body": body,
    });
    if let Some(link) = message.link {
        card["actions"] = json!([{"type": "Action.OpenUrl", "title": LOOK, "url": link}]);
    }
    json!({"type": "message", "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": null, "content": card}]})
}

/// An event of Events API v2, which takes one notice, and a link to where more of it is seen.
pub fn pagerduty(notice: &Notice, routing_key: &str, link: Option<&str>) -> Value {
    let dedup_key = bounded_key(&notice.dedup_key);
    // An event without a source is refused.
    let source = Some(fact(&notice.source)).filter(|source| !source.is_empty()).unwrap_or_else(|| "runguard".to_owned());
    let mut event = match notice.state {
        AlertState::Resolved => json!({"routing_key": routing_key, "event_action": "resolve", "dedup_key": dedup_key}),
        AlertState::Firing => json!({
            "routing_key": routing_key,
            "event_action": "trigger",
            "dedup_key": dedup_key,
            "client": "RunGuard",
            "payload": {
                "summary": plain(&notice.summary(), PAGERDUTY_SUMMARY),
                "source": source,
                "severity": notice.severity.code(),
                "timestamp": notice.time,
                "component": fact(&notice.component),
                "group": fact(&notice.group),
                "class": fact(&notice.class),
                "custom_details": notice.details.iter().map(|(name, value)| (name.clone(), detail(value))).collect::<Map<_, _>>(),
            },
        }),
    };
    if let Some(link) = link.filter(|_| notice.state == AlertState::Firing) {
        event["client_url"] = json!(link);
        event["links"] = json!([{"href": link, "text": LOOK}]);
    }
    event
}

fn detail(value: &Value) -> Value {
    value.as_str().map_or_else(|| value.clone(), |text| plain(text, PAGERDUTY_DETAIL).into())
}

/// A key that is cut would be that of other troubles, too: its end becomes a hash of all of it.
fn bounded_key(key: &str) -> Cow<'_, str> {
    if key.encode_utf16().count() <= PAGERDUTY_DEDUP_KEY {
        return Cow::Borrowed(key);
    }
    let hash = hex16(key.as_bytes());
    Cow::Owned(format!("{}-{hash}", plain(key, PAGERDUTY_DEDUP_KEY - 1 - hash.len())))
}

/// What webhooks get of a trip: flat, without the arguments of any call. `error` is a JSON object: `kind`, `reason`, `message`, `run_id`, `time`,
/// and whatever else the error says, of which the rounds of a loop are put into one text, and what is for the model alone is left out.
pub fn trip_facts(error: &str) -> Result<String, serde_json::Error> {
    /// What is counted, by all kinds of trips.
    const COUNTED: [&str; 9] = ["repeats", "spent", "limit", "unit", "rule", "count", "tool", "endpoint", "retry_after_seconds"];
    let mut error: Map<String, Value> = serde_json::from_str(error)?;
    let mut facts = Map::from_iter([("event".to_owned(), Value::from("trip"))]);
    for name in ["kind", "reason", "message", "run_id", "time"] {
        facts.insert(name.to_owned(), error.remove(name).unwrap_or_default());
    }
    if let Some(Value::Array(cycle)) = error.get("cycle") {
        let tools: Vec<&str> = cycle.iter().filter_map(Value::as_str).collect();
        facts.insert("pattern".to_owned(), tools.join(" → ").into());
        facts.insert("cycle_len".to_owned(), tools.len().into());
    }
    facts.extend(COUNTED.into_iter().filter_map(|name| Some((name.to_owned(), error.remove(name)?))));
    Ok(Value::Object(facts).to_string())
}

/// What the SDKs send of a trip to Slack. `facts` is a JSON object, see [`Notice::of_trip`].
pub fn trip_to_slack(facts: &str, source: &str) -> Result<String, serde_json::Error> {
    let notice = Notice::of_trip(serde_json::from_str(facts)?, source);
    Ok(slack(&Message { id: &notice.dedup_key, notices: std::slice::from_ref(&notice), link: None }).to_string())
}

/// What the SDKs send of a trip to PagerDuty.
pub fn trip_to_pagerduty(facts: &str, source: &str, routing_key: &str) -> Result<String, serde_json::Error> {
    Ok(pagerduty(&Notice::of_trip(serde_json::from_str(facts)?, source), routing_key, None).to_string())
}

#[cfg(test)]
mod tests;
