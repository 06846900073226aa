//! A question to a model, as far as it must be known before it is sent: which interface it is of, how long an answer may be, how many there are,
//! and what in it has a price that nobody here knows. The same for the gateway and for the clients that the SDKs watch.

mod family;

use crate::members::{BadBody, Members};
use crate::prices::ServiceTier;
pub use family::Family;
use memchr::memmem::Finder;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::LazyLock;

/// A family of interfaces: how a question, an answer and a refusal look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are named as they are")]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Bedrock,
}

/// An interface that is billed, and understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `OpenAI`'s chat completions, and everybody's who speaks like it.
    Chat,
    /// `OpenAI`'s older completions of a text.
    Completions,
    /// Its newer interface, which may keep what was said.
    Responses,
    /// Vectors of texts: nothing is written.
    Embeddings,
    /// Anthropic's messages.
    Messages,
    /// Bedrock's one interface for all models.
    Converse,
    /// Bedrock's models in the words of their makers.
    Invoke(Family),
}

impl Api {
    /// Whose words it speaks.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Chat | Self::Completions | Self::Responses | Self::Embeddings => Dialect::OpenAi,
            Self::Messages => Dialect::Anthropic,
            Self::Converse | Self::Invoke(_) => Dialect::Bedrock,
        }
    }

    /// What OpenTelemetry calls it.
    pub fn operation(self) -> &'static str {
        if self == Self::Embeddings {
            "embeddings"
        } else if self == Self::Completions {
            "text_completion"
        } else {
            "chat"
        }
    }

    /// Members that bound the length of an answer, the one to use first; behind a point those inside of another. None where nothing is
    /// written.
    pub const fn length_members(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &[NEWER_LENGTH, OLDER_LENGTH],
            Self::Completions | Self::Messages => &[OLDER_LENGTH],
            Self::Responses => &["max_output_tokens"],
            Self::Embeddings => &[],
            Self::Converse => &["inferenceConfig.maxTokens"],
            Self::Invoke(family) => family.length_members(),
        }
    }
}

/// What bounds an answer in a chat by `OpenAI`'s newer name, which its models that think want; most others read the older one alone.
pub const NEWER_LENGTH: &str = "max_completion_tokens";
/// The older one.
pub const OLDER_LENGTH: &str = "max_tokens";

/// The member that names the answer to go on from.
pub const PREVIOUS: &str = "previous_response_id";
/// The one that names a conversation that the provider keeps.
pub const CONVERSATION: &str = "conversation";
/// Said of how a question is to be served, it leaves that to the provider.
pub const LEFT_TO_THEM: &str = "auto";
/// Names that must be written as they are.
const KNOWN: [&str; 11] = [
    "model",
    "stream",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "service_tier",
    "background",
    PREVIOUS,
    CONVERSATION,
];
/// Tools that the caller runs itself, by the beginning of their type; a provider's own add to the prompt, and have fees.
const CALLERS_TOOLS: [&str; 8] = ["function", "custom", "bash", "text_editor", "computer", "memory", "local_shell", "apply_patch"];
/// What the names of models have that search, or run tools of their own, without being told to.
const SEARCHING: [&str; 6] = ["-search", "deep-research", "sonar", ":online", "groq/compound", "compound-beta"];
const FUNCTION: &str = "function";
/// Members of a tool of the caller's that may be objects.
const OBJECTS_OF_TOOLS: [&str; 11] = [
    FUNCTION,
    "custom",
    "parameters",
    "parameter_definitions",
    "input_schema",
    "inputSchema",
    "output_schema",
    "format",
    "cache_control",
    "annotations",
    "metadata",
];
/// Members whose own members a server may take for those of the question.
const OF_OTHERS: [&str; 3] = ["extra_body", "additionalModelRequestFields", "providerOptions"];
/// In how many objects inside of those models may be named.
const DEEPEST: u8 = 3;
/// Members that promise an answer, and are answered before it is written.
const LATER: [&str; 2] = ["background", "deferred"];
/// Members by which an answer is longer, one of several, dearer, or written later: without their signs and in small letters.
const OF_THE_PRICE: [&str; 15] = [
    "n",
    "bestof",
    "numcompletions",
    "maxtokens",
    "maxcompletiontokens",
    "maxoutputtokens",
    "maxnewtokens",
    "maxgenlen",
    "maxlength",
    "servicetier",
    "speed",
    "inferencegeo",
    "container",
    "background",
    "deferred",
];
/// How members begin, without their signs and in small letters, that are about models and name none.
const NO_MODELS: [&str; 3] = ["additionalmodel", "allow", "disable"];
/// Members by which a provider is told to search or to run something, for a fee of its own: as `OpenAI`, `OpenRouter`, xAI, Qwen, Cohere, Baidu,
/// Tencent and Groq call them. One that is off asks for nothing.
const WITH_FEES: [&str; 10] = [
    "plugins",
    "web_search_options",
    "mcp_servers",
    "search_parameters",
    "enable_search",
    "web_search",
    "connectors",
    "enable_enhancement",
    "enable_deep_search",
    "compound_custom",
];
/// The most an answer is bounded by; what is larger is meant as no bound.
const LONGEST: u64 = 1_000_000;
/// More answers to one question than any provider gives.
const MOST_CHOICES: u64 = 128;

impl Api {
    /// The interface that a path is of, by its end; Bedrock's have the model in theirs.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let path = path.strip_suffix('/').unwrap_or(path);
        let known = [
            ("/chat/completions", Self::Chat),
            ("/completions", Self::Completions),
            ("/responses", Self::Responses),
            ("/embeddings", Self::Embeddings),
            ("/messages", Self::Messages),
        ];
        known.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, api)| api)
    }

    /// Whether it writes nothing.
    pub const fn embeds(self) -> bool {
        match self {
            Self::Embeddings => true,
            Self::Invoke(family) => family.embeds(),
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Converse => false,
        }
    }
}

/// A question, as far as a run has to know it.
///
/// ```
/// use runguard_core::model_question::Asked;
///
/// let body = r#"{"model": "gpt-5", "messages": [], "max_tokens": 100, "max_completion_tokens": 900, "best_of": 3, "web_search_options": {}}"#;
/// let asked = Asked::read("/v1/chat/completions", "gpt-5", body).unwrap();
/// assert_eq!((asked.max_output, asked.choices), (Some(900), 3));
/// assert_eq!(asked.bounds, ["max_completion_tokens", "max_tokens"], "both are lowered where it is");
/// assert!(asked.unmetered.unwrap().contains("`web_search_options`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// The longest answer that it asks for, of several each; `None` where it leaves that to the model.
    pub max_output: Option<u64>,
    /// How many answers it asks for.
    pub choices: u64,
    /// The members by which an answer is made shorter: those that are there, or the one that the model's server reads.
    pub bounds: Vec<&'static str>,
    /// Why it cannot be held within a limit in dollars, where that is so: what in it has a price that nobody knows, or cannot be read.
    pub unmetered: Option<String>,
}

impl Asked {
    /// By the path and the body that are sent to a provider; `None` where nothing is known of that path. Of a number that is none the provider says
    /// what is wrong with it.
    pub fn read(path: &str, model: &str, body: &str) -> Option<Self> {
        let api = Api::of_path(path)?;
        let body = match Members::read(body.as_bytes()) {
            Ok(body) => body,
            Err(problem) => return Some(Self { max_output: None, choices: 1, bounds: Vec::new(), unmetered: Some(not_read(&problem)) }),
        };
        let misspelt = body.misspelt(&KNOWN).map(|_| not_read(&MISSPELT));
        let why = || unmetered(api, model, &body).map(not_metered);
        Some(Self {
            max_output: if api.embeds() { Some(0) } else { max_output(api, &body).unwrap_or_else(|_| length_as_written(api, &body)) },
            choices: choices(api, &body).unwrap_or_else(|_| choices_as_written(api, &body)),
            bounds: bounds(api, model, &body),
            unmetered: misspelt.or_else(why),
        })
    }
}

fn not_metered(what: &str) -> String {
    format!(
        "What this request asks for has a price that nobody here knows: {what}. So it cannot be held within a limit in dollars, and the run has \
         one. Leave it out; or send it outside of the run, or with the hooks off, and record there what it cost."
    )
}

fn not_read(problem: &BadBody) -> String {
    format!(
        "What this request may cost cannot be read: {problem}. So it cannot be held within a limit in dollars, and the run has one. Mend it, or send \
         it outside of the run."
    )
}

/// The largest of these members, of numbers in whatever form: no provider should take some of them, and a few do.
fn largest_as_written(names: &[&str], body: &Members<'_>) -> Option<u64> {
    let number = |text: &str| text.trim_matches('"').parse::<f64>().ok().filter(|number| *number >= 1.0);
    names.iter().filter_map(|name| number(body.get(name)?)).map(|number| number.ceil() as u64).max()
}

/// The longest answer that is asked for, in whatever form.
fn length_as_written(api: Api, body: &Members<'_>) -> Option<u64> {
    largest_as_written(api.length_members(), body).map(|bound| bound.min(LONGEST))
}

/// How many answers are asked for, in whatever form.
fn choices_as_written(api: Api, body: &Members<'_>) -> u64 {
    let each = largest_as_written(&["n", "best_of"], body).unwrap_or(1);
    if api == Api::Completions { each.saturating_mul(prompts(body)) } else { each }
}

/// The members that bound the length of the answer: those that are there, or the one that is to be put in.
fn bounds(api: Api, model: &str, body: &Members<'_>) -> Vec<&'static str> {
    let names = api.length_members();
    let given: Vec<&'static str> = names.iter().copied().filter(|name| body.has_at(name)).collect();
    if !given.is_empty() {
        return given;
    }
    // Models that think refuse the older name, and servers that only speak like `OpenAI` may not know the newer one.
    let own = model.rsplit('/').next().unwrap_or(model);
    let is_openai = ["gpt-", "chatgpt-", "o1", "o3", "o4"].iter().any(|name| own.starts_with(name));
    match api {
        Api::Chat => vec![if is_openai { NEWER_LENGTH } else { OLDER_LENGTH }],
        Api::Completions | Api::Responses | Api::Embeddings | Api::Messages | Api::Converse | Api::Invoke(_) => {
            names.first().copied().into_iter().collect()
        }
    }
}

/// The longest answer that is asked for; of several, each. Nothing is as good as no bound to some servers; of two, nobody knows which one counts.
pub fn max_output(api: Api, body: &Members<'_>) -> Result<Option<u64>, BadBody> {
    let mut longest = None;
    for name in api.length_members() {
        longest = longest.max(body.whole_at(name)?.filter(|bound| *bound > 0).map(|bound| bound.min(LONGEST)));
    }
    Ok(longest)
}

/// How many answers are asked for.
pub fn choices(api: Api, body: &Members<'_>) -> Result<u64, BadBody> {
    if body.misspelt(&KNOWN).is_some() {
        return Err(MISSPELT);
    }
    let choices = match api {
        Api::Chat => answers(body)?,
        // Each of several prompts is answered.
        Api::Completions => prompts(body).saturating_mul(answers(body)?),
        Api::Invoke(family) => match family.choices_member() {
            Some("n") => answers(body)?,
            Some(name) => body.whole(name)?.unwrap_or(1),
            None => 1,
        },
        Api::Responses | Api::Embeddings | Api::Messages | Api::Converse => 1,
    };
    if choices > MOST_CHOICES && api == Api::Completions && prompts(body) > 1 {
        return Err(BadBody::Member {
            name: "prompt",
            problem: "asks for more than 128 answers: every text of the list has its own, `n` times",
        });
    }
    if !(1..=MOST_CHOICES).contains(&choices) {
        let name = if body.whole("best_of")?.is_some_and(|several| !(1..=MOST_CHOICES).contains(&several)) { "best_of" } else { "n" };
        return Err(BadBody::Member { name, problem: "must be from 1 to 128" });
    }
    Ok(choices)
}

/// The model that a body names.
pub fn model_of<'a>(body: &Members<'a>) -> Result<Cow<'a, str>, BadBody> {
    if body.misspelt(&["model"]).is_some() {
        return Err(MISSPELT);
    }
    body.text("model")?.ok_or(BadBody::Member { name: "model", problem: "is missing" })
}

/// Some servers would read it, and others not.
const MISSPELT: BadBody =
    BadBody::Member { name: "model", problem: "or another known one is written in other letters; names are in small ones" };

/// How many answers to each prompt are written: of several the longest may be all that is passed on, and each is billed.
fn answers(body: &Members<'_>) -> Result<u64, BadBody> {
    Ok([body.whole("n")?, body.whole("best_of")?].into_iter().flatten().max().unwrap_or(1))
}

/// How many prompts of completions there are: a list of texts, or of lists of tokens, is as many.
fn prompts(body: &Members<'_>) -> u64 {
    let list: Vec<Value> = body.get("prompt").and_then(|prompt| serde_json::from_str(prompt).ok()).unwrap_or_default();
    list.iter().filter(|one| !one.is_number()).count().max(1) as u64
}

/// Whether plain letters are written as `\u0041`, which nobody does who has nothing to hide: what is looked for here is looked for as it is
/// usually written.
fn hides_letters(text: &str) -> bool {
    static ESCAPED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\\u00"));
    ESCAPED.find_iter(text.as_bytes()).any(|at| {
        let backslashes = text.as_bytes()[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        let letter = text.get(at + 4..at + 6).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        backslashes % 2 == 0 && letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    })
}

/// Whether a member that asks for something asks for nothing: one that is off, an empty list, a search that is not to be made.
fn is_nothing(value: &str) -> bool {
    let is_off = |search: &Members<'_>| search.get("mode") == Some("\"off\"");
    value == "false" || is_empty_list(value) || Members::read(value.as_bytes()).is_ok_and(|search| is_off(&search))
}

/// How a text goes on with a list that has nothing in it.
fn is_empty_list(text: &str) -> bool {
    text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(']'))
}

/// Whether there are tools anywhere in it.
fn has_tools(text: &str) -> bool {
    const NAME: &str = "\"tools\"";
    text.match_indices(NAME).any(|(at, _)| {
        let value = text[at + NAME.len()..].trim_start().strip_prefix(':').map(str::trim_start);
        value.is_some_and(|value| !is_empty_list(value) && !value.starts_with("null"))
    })
}

/// What of a question has a price that nobody here knows.
pub fn unmetered(api: Api, model: &str, body: &Members<'_>) -> Option<&'static str> {
    if LATER.iter().any(|name| body.get(name).is_some_and(|later| later != "false")) {
        return Some("`background` or `deferred`: the answer is written after it was promised, so nobody sees what it costs");
    }
    let more: Vec<Members<'_>> = OF_OTHERS.iter().filter_map(|name| Members::read(body.get(name)?.as_bytes()).ok()).collect();
    if more.iter().any(|more| says_what_is_paid(more, 1)) {
        return Some(
            "inside of `extra_body` or the like what decides on the price of the answer (`max_tokens`, `n`, `service_tier`, `speed` …): say it beside it, where it is read",
        );
    }
    if names_models(body, Some("model"), 0) || more.iter().any(|more| names_models(more, None, DEEPEST)) {
        return Some(
            "`models`, `fallbacks` or another member that names models: which of them answers, and so the price, is left to the provider",
        );
    }
    let asks_for = |body: &Members<'_>| WITH_FEES.iter().copied().find(|name| body.get(name).is_some_and(|value| !is_nothing(value)));
    if asks_for(body).or_else(|| more.iter().find_map(asks_for)).is_some() {
        return Some(
            "`plugins`, `mcp_servers`, `web_search_options`, `search_parameters`, `enable_search` or the like: what the provider does for them has a price of its own",
        );
    }
    if ["extra_body", "google"].iter().filter_map(|name| body.get(name)).any(has_tools) {
        return Some("tools inside of `extra_body`: some that the provider runs itself have a fee of its own");
    }
    if body.get("inference_geo").is_some_and(|place| place != "\"global\"") {
        return Some("an `inference_geo` whose price is not known");
    }
    if let Ok(Some(tier)) = body.text("service_tier")
        && tier != LEFT_TO_THEM
        && !ServiceTier::is_known(&tier)
    {
        return Some("a `service_tier` whose price is not known");
    }
    if body.get("speed").is_some_and(|speed| speed != "\"standard\"") {
        return Some("a `speed` whose price is not known");
    }
    if matches!(api, Api::Messages | Api::Invoke(Family::Anthropic)) && body.get("container").is_some() {
        return Some("a `container`: what the provider keeps and runs in it adds to the prompt, and has a fee of its own");
    }
    if api == Api::Responses && body.get("prompt").is_some() && body.get("tools").is_none() {
        return Some(
            "a stored `prompt` without `tools` beside it: those that are stored with it may have fees; send `tools`, an empty list will do",
        );
    }
    if hides_letters(body.whole_text()) {
        return Some("plain letters that are written as `\\u…`: what it asks for cannot be told");
    }
    let name = model.to_ascii_lowercase();
    if SEARCHING.iter().any(|part| name.contains(part)) {
        return Some("a model that searches by itself: each search has a fee of its own");
    }
    let Ok(tools) = body.get("tools").map_or(Ok(Vec::new()), serde_json::from_str::<Vec<&RawValue>>) else {
        return Some(UNREADABLE_TOOLS);
    };
    let kinds: Option<Vec<WhoseTool>> = tools.iter().map(|tool| WhoseTool::of(&Members::read(tool.get().as_bytes()).ok()?)).collect();
    match kinds {
        None => Some(UNREADABLE_TOOLS),
        Some(kinds) if kinds.contains(&WhoseTool::Providers) => {
            Some("a tool that the provider runs itself: it adds to the prompt, and has a fee of its own")
        }
        Some(_) => None,
    }
}

const UNREADABLE_TOOLS: &str = "`tools` that cannot be read";

/// Who runs a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhoseTool {
    Callers,
    Providers,
}

impl WhoseTool {
    /// Nothing where that cannot be told.
    fn of(tool: &Members<'_>) -> Option<Self> {
        // What the caller runs has a name, there or in its function.
        let is_named = tool.get("name").is_some() || tool.get("function").is_some();
        match tool.text("type").ok()? {
            Some(kind) if !CALLERS_TOOLS.iter().any(|own| kind.starts_with(own)) => return Some(Self::Providers),
            Some(kind) if kind.starts_with(FUNCTION) && !is_named => return None,
            None if !is_named => return Some(Self::Providers),
            Some(_) | None => {}
        }
        // Some providers know their own tools by a member, whatever else stands beside it.
        let is_hidden = |(name, value): (&str, &str)| value.starts_with('{') && !OBJECTS_OF_TOOLS.contains(&name);
        (!tool.said().any(is_hidden)).then_some(Self::Callers)
    }
}

/// A name without its signs and in small letters: as different clients and servers write it.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Whether a member decides on the price of the answer; `deep` in how many objects inside of this one is looked.
fn says_what_is_paid(body: &Members<'_>, deep: u8) -> bool {
    let has_one = |value: &str| Members::read(value.as_bytes()).is_ok_and(|inner| says_what_is_paid(&inner, deep - 1));
    body.said().any(|(name, value)| {
        // How long it thinks is read elsewhere, and bounds nothing else.
        let is_of_thinking = ["reasoning", "thinking"].contains(&plain(name).as_str());
        OF_THE_PRICE.contains(&plain(name).as_str()) || (deep > 0 && !is_of_thinking && value.starts_with('{') && has_one(value))
    })
}

/// Whether a member names models that may answer as well, or instead, of which each has a price of its own. `own` is the name of the member that
/// names the one that is asked for; `deep` in how many objects inside of this one is looked.
fn names_models(body: &Members<'_>, own: Option<&str>, deep: u8) -> bool {
    let is_one = |name: &str| {
        let plain = plain(name);
        let is_of_models = plain.contains("fallback") || plain.contains("model");
        is_of_models && own != Some(name) && !NO_MODELS.iter().any(|other| plain.starts_with(other))
    };
    let has_one = |value: &str| Members::read(value.as_bytes()).is_ok_and(|inner| names_models(&inner, None, deep - 1));
    body.said().any(|(name, value)| (is_one(name) && !is_nothing(value)) || (deep > 0 && value.starts_with('{') && has_one(value)))
}
