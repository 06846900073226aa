//! Reads a request body against a table of fields.
//!
//! The table of a route is written once and serves four times: it validates, it names unknown fields, it is the
//! OpenAPI schema, and it is the documentation. All problems are collected, so a caller mends them in one go.
//!
//! A template of a low-code tool puts quotes around everything, or around nothing. So a number that comes as text is taken, and a name
//! that comes as a number, as long as there is one way to read it; the answer's warnings say which field it was.

use runguard_core::ledger::{Limits, MOST_SCOPES, Scope, SentScope};
pub use runguard_core::limits::MAX_ID_CHARS;
use runguard_core::money::NanoDollars;
use runguard_core::nearest::closest;
use runguard_core::object::Object;
pub use runguard_core::text::MAX_TEXT_BYTES;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Deepest nesting of a JSON value.
pub const MAX_DEPTH: usize = 64;
/// Longest list of names.
pub const MAX_NAMES: usize = 256;
/// The largest whole number that every JSON reader reads as it is.
const MOST_WHOLE: u64 = 9_007_199_254_740_991;
/// Unknown fields named one by one; the rest are only counted.
const MAX_WARNINGS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name: 1 to 256 characters, not blank.
    Id,
    /// A name that may be empty, up to 64 KiB.
    Name,
    /// A name as [`Kind::Id`] that the caller makes of what a user said.
    Label,
    /// Free text, up to 64 KiB. Null counts as empty.
    Text,
    /// A hash the caller makes of what a user said, up to 64 KiB.
    Hash,
    /// A number from 0 to 1.
    Fraction,
    /// The same of an answer. Empty or null is 0: a flow has nothing there when there was no answer, and that counts too.
    Confidence,
    /// A whole number of at least this.
    Whole(u64),
    /// An amount of money of at least 0: a number, or a decimal number as text.
    Dollars,
    /// An amount of something else, of at least 0.
    Amount,
    Flag,
    OneOf(&'static [&'static str]),
    /// Any JSON value, nested at most 64 deep.
    Any,
    /// Names as [`Kind::Id`]: a list, or a text with commas between them.
    Names,
    /// What a budget draws on: a list of objects.
    Scopes,
    /// What a run did, oldest first: a list of objects, of hashes and names.
    Steps,
}

/// What is kept of a field, in the log and in states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// A name, a number or a choice: kept as it is.
    AsItIs,
    /// What people said: cut, and kept as `store_text` says.
    AsStoreTextSays,
    /// What tells things apart and may hold what people said: as it is, or its digest, as `store_text` says.
    AsNameOrDigest,
    /// Only what it is compared by: a hash, and for a search its words as `store_text` says.
    AsDigest,
}

impl Keeping {
    pub const ALL: [Self; 4] = [Self::AsItIs, Self::AsStoreTextSays, Self::AsNameOrDigest, Self::AsDigest];

    pub const fn code(self) -> &'static str {
        match self {
            Self::AsItIs => "as it is",
            Self::AsStoreTextSays => "as store_text says",
            Self::AsNameOrDigest => "name or digest",
            Self::AsDigest => "digest",
        }
    }

    pub const fn meaning(self) -> &'static str {
        match self {
            Self::AsItIs => "A name, a number or a choice, kept whatever `store_text` says: choose names that are nobody's words.",
            Self::AsStoreTextSays => {
                "What people said. `full`: cut to a length; `redacted`: without what is personal or secret; `none`: nothing, or a digest where things are told apart by it."
            }
            Self::AsNameOrDigest => {
                "A name or hash you make of what people said. `full`: as it is; `redacted`: its digest if something in it would be redacted; `none`: always its digest."
            }
            Self::AsDigest => {
                "Never kept. What is compared is a hash of it; of a search, its words too: redacted, and with `none` not at all."
            }
        }
    }
}

impl Kind {
    pub const fn keeping(self) -> Keeping {
        match self {
            Self::Id
            | Self::Name
            | Self::Fraction
            | Self::Confidence
            | Self::Whole(_)
            | Self::Dollars
            | Self::Amount
            | Self::Flag
            | Self::OneOf(_)
            | Self::Scopes
            | Self::Steps => Keeping::AsItIs,
            Self::Text | Self::Names => Keeping::AsStoreTextSays,
            Self::Label | Self::Hash => Keeping::AsNameOrDigest,
            Self::Any => Keeping::AsDigest,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    pub about: &'static str,
    /// An example value, as JSON.
    pub example: &'static str,
    /// The field that says the same in another unit: only one of them can be given.
    pub instead_of: Option<&'static str>,
}

impl Field {
    pub const fn required(name: &'static str, kind: Kind, about: &'static str, example: &'static str) -> Self {
        Self { name, kind, required: true, about, example, instead_of: None }
    }

    pub const fn optional(name: &'static str, kind: Kind, about: &'static str, example: &'static str) -> Self {
        Self { name, kind, required: false, about, example, instead_of: None }
    }

    #[must_use]
    pub const fn instead_of(self, other: &'static str) -> Self {
        Self { instead_of: Some(other), ..self }
    }
}

/// Every guard route takes this one as well.
pub const REQUEST_ID: Field =
    Field::optional("request_id", Kind::Id, "Idempotency key, for callers that cannot send the Idempotency-Key header.", "\"turn-42\"");

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub field: String,
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputError {
    /// Not JSON, or not an object: there are no fields to speak of.
    NotAnObject(String),
    Fields(Vec<Problem>),
}

#[derive(Debug, Clone)]
enum Parsed<'a> {
    Text(Cow<'a, str>),
    Number(f64),
    Whole(u64),
    Dollars(NanoDollars),
    Flag(bool),
    Json(&'a RawValue),
    Names(Vec<String>),
    Scopes(Vec<Scope>),
    Steps(Vec<SentStep>),
}

/// The fields of one request, checked.
#[derive(Debug)]
pub struct Input<'a> {
    values: Vec<(&'static str, Parsed<'a>)>,
    pub warnings: Vec<String>,
    /// The public id of the key that it was asked with, if any.
    pub asked_with: Option<&'a str>,
    /// The model call it belongs to, where it comes from a door that passes such calls on.
    pub call: Option<&'a PassedCall>,
}

/// What a door that passes model calls on knows of one, beside what is asked about it. No caller can say it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PassedCall {
    /// Who is asked: `openai`, `anthropic`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub upstream: Box<str>,
    /// By what the run was recognised.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub found_by: Box<str>,
    /// The same call asked before, and was to ask for less or to wait. Logs of earlier versions have such rows: by now only the last one is kept.
    #[serde(skip_serializing_if = "is_not")]
    pub again: bool,
    /// Of a call that failed: of the latest calls to its model, as the door saw them, most did not.
    #[serde(skip_serializing_if = "is_not")]
    pub mostly_works: bool,
    /// Of a call that failed: how many failed lately while the model mostly worked, as the door saw them. None of them was counted then.
    #[serde(skip_serializing_if = "is_none")]
    pub uncounted: u32,
    /// Why it is given back without having been made: the door refused it after all.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub refused: Box<str>,
    /// What of it has a price that nobody here knows.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub unmetered: Box<str>,
    /// The model that answered, where it is named otherwise.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub answered_by: Box<str>,
    /// The model that was wanted, where another was asked because it could not be.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub instead_of: Box<str>,
    /// What was asked for: `chat`, `embeddings`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub operation: Box<str>,
    /// Why the answer ended, in the provider's word; of several, each, with commas.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub finish: Box<str>,
    /// What was used is not counted by the provider.
    #[serde(skip_serializing_if = "is_not")]
    pub is_estimated: bool,
    /// Hashes of the names that later questions call the answer by, with blanks.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub answers: Box<str>,
    /// From the question to the end of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millis: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form in which serde asks")]
fn is_not(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form in which serde asks")]
fn is_none(count: &u32) -> bool {
    *count == 0
}

impl<'a> Input<'a> {
    pub fn read(body: &'a [u8], fields: &'static [Field]) -> Result<Self, InputError> {
        let text = std::str::from_utf8(body).map_err(|_| InputError::NotAnObject("the body is not UTF-8 text".into()))?;
        let Object(members) = serde_json::from_str(text).map_err(|error| InputError::NotAnObject(not_an_object(text, &error)))?;
        let mut input = Self { values: Vec::with_capacity(members.len()), warnings: Vec::new(), asked_with: None, call: None };
        let mut problems = Vec::new();
        let mut misquoted: Vec<(&'static str, Misquoted)> = Vec::new();
        let mut unknown = 0_usize;
        let mut strangers = Vec::new();
        for (name, raw) in members {
            let Some(field) = fields.iter().chain([&REQUEST_ID]).find(|field| field.name == name) else {
                unknown += 1;
                if unknown <= MAX_WARNINGS {
                    input.warnings.push(unknown_field(&name, fields));
                    strangers.push(name);
                }
                continue;
            };
            // The last of several members with one name wins, as in every common JSON reader.
            input.values.retain(|(known, _)| *known != field.name);
            problems.retain(|problem: &Problem| problem.field != field.name);
            misquoted.retain(|(known, _)| *known != field.name);
            match read_value(field, raw) {
                Ok((value, how)) => {
                    input.values.extend(value.map(|value| (field.name, value)));
                    misquoted.extend(how.map(|how| (field.name, how)));
                }
                Err(problem) => problems.push(Problem { field: field.name.into(), problem }),
            }
        }
        input.warnings.extend(misquoted.into_iter().map(|(name, how)| format!("'{name}' {}", how.advice())));
        if unknown > MAX_WARNINGS {
            input.warnings.push(format!("and {} more unknown fields", unknown - MAX_WARNINGS));
        }
        for field in fields.iter().filter(|field| field.required) {
            let is_there = input.find(field.name).is_some() || problems.iter().any(|problem| problem.field == field.name);
            if !is_there {
                problems.push(Problem { field: field.name.into(), problem: missing_field(field, &strangers) });
            }
        }
        for field in fields {
            if let Some(other) = field.instead_of.filter(|other| input.find(field.name).is_some() && input.find(other).is_some()) {
                let problem = format!("says the same as '{other}' in another unit, and both are there: send one of them");
                problems.push(Problem { field: field.name.into(), problem });
            }
        }
        if problems.is_empty() { Ok(input) } else { Err(InputError::Fields(problems)) }
    }

    /// The same of members that another part of this program made, as they are. Nothing where one of them would have to be read as text is.
    pub fn of_members(members: &'a [(&'static str, Value)], fields: &'static [Field]) -> Option<Self> {
        let mut input = Self { values: Vec::with_capacity(members.len()), warnings: Vec::new(), asked_with: None, call: None };
        for (name, value) in members {
            let field = fields.iter().chain([&REQUEST_ID]).find(|field| field.name == *name)?;
            input.values.push((field.name, as_it_is(field, value)?));
        }
        let is_there = |field: &Field| !field.required || input.find(field.name).is_some();
        let is_twice =
            |field: &Field| field.instead_of.is_some_and(|other| input.find(field.name).is_some() && input.find(other).is_some());
        fields.iter().all(|field| is_there(field) && !is_twice(field)).then_some(input)
    }

    fn find(&self, name: &str) -> Option<&Parsed<'a>> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// A text or id; empty when absent.
    pub fn text(&self, name: &str) -> String {
        self.optional_text(name).unwrap_or_default()
    }

    pub fn optional_text(&self, name: &str) -> Option<String> {
        match self.find(name) {
            Some(Parsed::Text(text)) => Some(text.as_ref().to_owned()),
            _ => None,
        }
    }

    pub fn fraction(&self, name: &str) -> Option<f64> {
        match self.find(name) {
            Some(Parsed::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn whole(&self, name: &str) -> Option<u64> {
        match self.find(name) {
            Some(Parsed::Whole(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn dollars(&self, name: &str) -> Option<NanoDollars> {
        match self.find(name) {
            Some(Parsed::Dollars(amount)) => Some(*amount),
            _ => None,
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.find(name), Some(Parsed::Flag(true)))
    }

    /// Empty when absent.
    pub fn names(&self, name: &str) -> Vec<String> {
        match self.find(name) {
            Some(Parsed::Names(names)) => names.clone(),
            _ => Vec::new(),
        }
    }

    /// Empty when absent.
    pub fn scopes(&self, name: &str) -> Vec<Scope> {
        match self.find(name) {
            Some(Parsed::Scopes(scopes)) => scopes.clone(),
            _ => Vec::new(),
        }
    }

    /// Empty when absent.
    pub fn steps(&self, name: &str) -> &[SentStep] {
        match self.find(name) {
            Some(Parsed::Steps(steps)) => steps,
            _ => &[],
        }
    }

    pub fn json(&self, name: &str) -> Option<&'a RawValue> {
        match self.find(name) {
            Some(Parsed::Json(raw)) => Some(raw),
            _ => None,
        }
    }
}

fn not_an_object(text: &str, error: &serde_json::Error) -> String {
    if text.trim().is_empty() {
        return "the body is empty; send a JSON object".into();
    }
    if error.is_data() {
        return "the body is JSON, but not an object".into();
    }
    // The position helps; the text around it might be private.
    let kind = if error.is_eof() { "it ends too early" } else { "syntax error" };
    format!("the body is not JSON: {kind} at line {}, column {}", error.line(), error.column())
}

fn unknown_field(name: &str, fields: &[Field]) -> String {
    let shown: String = name.chars().take(64).collect();
    match closest(name, fields.iter().map(|field| field.name)) {
        Some(known) => format!("unknown field '{shown}' was ignored; did you mean '{known}'?"),
        None => format!("unknown field '{shown}' was ignored"),
    }
}

/// What came under another name is most likely what is missing.
fn missing_field(field: &Field, strangers: &[Cow<'_, str>]) -> String {
    let Field { name, about, .. } = field;
    let likely = closest(name, strangers.iter().map(|stranger| &**stranger).filter(|stranger| stranger.len() <= 64));
    likely.map_or_else(
        || format!("is required: {about}"),
        |stranger| format!("is required: {about} What came is called '{stranger}'; did you mean '{name}'?"),
    )
}

/// How a value was written that is taken all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misquoted {
    NumberAsText,
    TextAsNumber,
    TextAsFlag,
    NothingAsText,
    NothingAsNone,
}

impl Misquoted {
    const fn advice(self) -> &'static str {
        match self {
            Self::NumberAsText => "is a number and was taken as text: put it in quotes",
            Self::TextAsNumber => "is text and was taken as the number in it: leave out the quotes",
            Self::TextAsFlag => "is text and was taken as the true or false in it: leave out the quotes",
            Self::NothingAsText => "is an empty text and was taken as not given: leave it out, or send null",
            Self::NothingAsNone => "is empty and was taken as 0, as if there was no answer: send its confidence",
        }
    }
}

/// A value, `None` when it is not given, and how it was written if otherwise than it should be.
fn read_value<'a>(field: &Field, raw: &'a RawValue) -> Result<(Option<Parsed<'a>>, Option<Misquoted>), String> {
    let text = raw.get();
    if text == "null" && field.kind == Kind::Confidence {
        return not_given(field);
    }
    if text == "null" {
        // An optional value that is null is absent: low-code tools send what they have not set as null.
        return if field.required { Err("is required and must not be null".into()) } else { Ok((None, None)) };
    }
    match field.kind {
        Kind::Id | Kind::Label | Kind::Text | Kind::Name | Kind::Hash if number(text).is_some() => {
            Ok((Some(read_text(field, Cow::Borrowed(text))?), Some(Misquoted::NumberAsText)))
        }
        Kind::Id | Kind::Label | Kind::Text | Kind::Name | Kind::Hash => Ok((Some(read_text(field, string(text)?)?), None)),
        Kind::Fraction | Kind::Confidence | Kind::Whole(_) | Kind::Amount | Kind::Flag if text.starts_with('"') => {
            let inside = string(text)?;
            let inside = inside.trim();
            if inside.is_empty() {
                return not_given(field);
            }
            let how = if field.kind == Kind::Flag { Misquoted::TextAsFlag } else { Misquoted::TextAsNumber };
            Ok((Some(read_bare(field, inside)?), Some(how)))
        }
        Kind::Fraction | Kind::Confidence | Kind::Whole(_) | Kind::Amount | Kind::Flag => Ok((Some(read_bare(field, text)?), None)),
        Kind::Dollars if text.starts_with('"') && string(text)?.trim().is_empty() => not_given(field),
        Kind::Dollars => Ok((Some(Parsed::Dollars(dollars(text)?)), None)),
        Kind::OneOf(choices) => {
            let value = string(text)?;
            if !choices.contains(&value.as_ref()) {
                return Err(format!("must be one of {}", choices.join(", ")));
            }
            Ok((Some(Parsed::Text(value)), None))
        }
        Kind::Any => {
            if depth(text) > MAX_DEPTH {
                return Err(format!("is nested deeper than {MAX_DEPTH} levels"));
            }
            Ok((Some(Parsed::Json(raw)), None))
        }
        Kind::Names => Ok((Some(Parsed::Names(names(text)?)), None)),
        Kind::Scopes => scopes(text).map(|(scopes, how)| (Some(Parsed::Scopes(scopes)), how)),
        Kind::Steps => Ok((Some(Parsed::Steps(steps(text)?)), None)),
    }
}

/// A value that is of its field's kind and need not be read from text.
fn as_it_is<'a>(field: &Field, value: &'a Value) -> Option<Parsed<'a>> {
    match field.kind {
        Kind::Id | Kind::Label | Kind::Text | Kind::Name | Kind::Hash => read_text(field, Cow::Borrowed(value.as_str()?)).ok(),
        Kind::OneOf(choices) => value.as_str().filter(|text| choices.contains(text)).map(|text| Parsed::Text(Cow::Borrowed(text))),
        Kind::Whole(at_least) => value.as_u64().filter(|number| (at_least..=MOST_WHOLE).contains(number)).map(Parsed::Whole),
        Kind::Flag => value.as_bool().map(Parsed::Flag),
        Kind::Steps => {
            let steps = value.as_array()?.iter().map(SentStep::deserialize).collect::<Result<_, _>>().ok()?;
            checked_steps(steps).ok().map(Parsed::Steps)
        }
        Kind::Fraction | Kind::Confidence | Kind::Dollars | Kind::Amount | Kind::Any | Kind::Names | Kind::Scopes => None,
    }
}

/// A value whose quotes are empty.
fn not_given<'a>(field: &Field) -> Result<(Option<Parsed<'a>>, Option<Misquoted>), String> {
    if field.kind == Kind::Confidence {
        return Ok((Some(Parsed::Number(0.0)), Some(Misquoted::NothingAsNone)));
    }
    if field.required { Err("must not be empty".into()) } else { Ok((None, Some(Misquoted::NothingAsText))) }
}

/// A name or a text, without its quotes.
fn read_text<'a>(field: &Field, value: Cow<'a, str>) -> Result<Parsed<'a>, String> {
    let is_name = matches!(field.kind, Kind::Id | Kind::Label);
    if (is_name || field.required) && value.trim().is_empty() {
        return Err("must not be empty".into());
    }
    if is_name {
        let chars = if value.len() > MAX_ID_CHARS { value.chars().count() } else { 0 };
        if chars > MAX_ID_CHARS {
            return Err(format!("is {chars} characters long; at most {MAX_ID_CHARS} are taken"));
        }
    } else if value.len() > MAX_TEXT_BYTES {
        return Err(format!("is {} bytes long; at most {MAX_TEXT_BYTES} are taken", value.len()));
    }
    Ok(Parsed::Text(value))
}

/// What is written without quotes.
fn read_bare<'a>(field: &Field, text: &str) -> Result<Parsed<'a>, String> {
    if let Kind::Whole(at_least) = field.kind {
        return Ok(Parsed::Whole(whole(text, at_least)?));
    }
    if field.kind == Kind::Amount {
        return Ok(Parsed::Dollars(dollars(text)?));
    }
    if field.kind == Kind::Flag {
        return match text {
            "true" | "True" => Ok(Parsed::Flag(true)),
            "false" | "False" => Ok(Parsed::Flag(false)),
            _ => Err("must be true or false".into()),
        };
    }
    let number = number(text).ok_or("must be a number from 0 to 1")?;
    if !(0.0..=1.0).contains(&number) {
        return Err("must be from 0 to 1".into());
    }
    Ok(Parsed::Number(number))
}

fn names(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = if text.starts_with('"') {
        string(text)?.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    } else {
        serde_json::from_str(text).map_err(|_| "must be a list of names, or a text with commas between them")?
    };
    if names.len() > MAX_NAMES {
        return Err(format!("has {} names; at most {MAX_NAMES} are taken", names.len()));
    }
    match names.iter().find(|name| name.trim().is_empty() || name.chars().count() > MAX_ID_CHARS) {
        Some(_) => Err(format!("has a name that is empty or longer than {MAX_ID_CHARS} characters")),
        None => Ok(names),
    }
}

/// One step of a run, as it is sent: a call and what it gave, a message and what was answered to it, or a person who spoke.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SentStep {
    /// Tells it from the others of the run; one that was told before is not counted again.
    pub id: String,
    pub tool: String,
    /// A hash, as are the others.
    pub args: String,
    pub result: Option<String>,
    pub error: Option<String>,
    /// The model's turn.
    pub round: Option<String>,
    /// What the call does: `looks`, `runs`, `edits FILE BY` (see `/guard/stall`).
    pub does: Option<String>,
    /// What the model said without calling anything.
    pub said: Option<String>,
    /// A person has spoken.
    pub user: bool,
}

/// Steps that one question may tell of.
pub const MOST_STEPS: usize = 256;

fn steps(text: &str) -> Result<Vec<SentStep>, String> {
    let steps: Vec<SentStep> = serde_json::from_str(text).map_err(|error| {
        format!("must be a list such as [{{\"id\": \"call_1\", \"tool\": \"search\", \"args\": \"9f2c\", \"result\": \"77ab\"}}]: {error}")
    })?;
    checked_steps(steps)
}

fn checked_steps(steps: Vec<SentStep>) -> Result<Vec<SentStep>, String> {
    if steps.len() > MOST_STEPS {
        return Err(format!("has {} steps; at most {MOST_STEPS} are taken: leave out the oldest", steps.len()));
    }
    let is_long = |text: &str| text.len() > 4 * MAX_ID_CHARS || text.chars().count() > MAX_ID_CHARS;
    for step in &steps {
        let SentStep { id, tool, args, result, error, round, does, said, user } = step;
        if id.trim().is_empty() {
            return Err("has a step without an id: it tells a step that was told before from a new one".into());
        }
        if tool.trim().is_empty() && said.is_none() && !user {
            return Err("has a step that is nothing: give its tool, what was said, or \"user\": true".into());
        }
        let others = [result, error, round, does, said].into_iter().flatten();
        if [id, tool, args].into_iter().chain(others).any(|text| is_long(text)) {
            return Err(format!("has a name or a hash of more than {MAX_ID_CHARS} characters"));
        }
    }
    Ok(steps)
}

fn scopes(text: &str) -> Result<(Vec<Scope>, Option<Misquoted>), String> {
    let sent: Vec<SentScope<&RawValue>> = serde_json::from_str(text)
        .map_err(|error| format!("must be a list such as [{{\"per\": \"team\", \"name\": \"search\", \"period\": \"day\"}}]: {error}"))?;
    if sent.len() > MOST_SCOPES {
        return Err(format!("has {} scopes; at most {MOST_SCOPES} are taken", sent.len()));
    }
    let mut misquoted = None;
    let scopes = sent.into_iter().map(|sent| scope(sent, &mut misquoted)).collect::<Result<_, _>>()?;
    Ok((scopes, misquoted))
}

fn scope(sent: SentScope<&RawValue>, misquoted: &mut Option<Misquoted>) -> Result<Scope, String> {
    let SentScope { per, name, period, max_usd, max_credits, max_tokens, cap } = sent;
    // As the fields of the same names, beside the scopes, are read.
    let mut limit = |name: &'static str, kind: Kind, sent: Option<&RawValue>| {
        let Some(sent) = sent else { return Ok((None, None)) };
        let (limit, how) = read_value(&Field::optional(name, kind, "", ""), sent).map_err(|problem| format!("{name} {problem}"))?;
        *misquoted = misquoted.or(how);
        Ok::<_, String>(match limit {
            Some(Parsed::Dollars(amount)) => (Some(amount), None),
            Some(Parsed::Whole(number)) => (None, Some(number)),
            _ => (None, None),
        })
    };
    let (usd, _) = limit("max_usd", Kind::Dollars, max_usd)?;
    let (max_credits, _) = limit("max_credits", Kind::Amount, max_credits)?;
    let (_, tokens) = limit("max_tokens", Kind::Whole(0), max_tokens)?;
    let (_, cap) = limit("cap", Kind::Whole(0), cap)?;
    let limits = Limits { usd, tokens, cap: cap.map(|cap| u32::try_from(cap).unwrap_or(u32::MAX)) };
    let scope = Scope::new(&per, &name.unwrap_or_default(), period, limits).map_err(|problem| problem.to_string())?;
    Ok(scope.credits(max_credits))
}

fn whole(text: &str, at_least: u64) -> Result<u64, String> {
    let number = number(text).filter(|number| number.fract() == 0.0).ok_or("must be a whole number")?;
    if number < at_least as f64 || number > MOST_WHOLE as f64 {
        return Err(format!("must be a whole number of at least {at_least}"));
    }
    Ok(number as u64)
}

fn dollars(text: &str) -> Result<NanoDollars, String> {
    if text.starts_with('"') {
        return NanoDollars::parse(&string(text)?).map_err(|error| error.to_string());
    }
    let number = number(text).ok_or("must be an amount of dollars, such as 0.25")?;
    // The digits as they stand; a number in another form (1e-3) by its value.
    NanoDollars::parse(text).or_else(|_| NanoDollars::from_dollars(number)).map_err(|error| error.to_string())
}

fn string(text: &str) -> Result<Cow<'_, str>, String> {
    // A text that stands for a number (`"\""`) was taken out of its quotes already, and may be anything.
    let inside = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or("must be a string")?;
    if !inside.contains('\\') {
        return Ok(Cow::Borrowed(inside));
    }
    serde_json::from_str::<String>(text).map(Cow::Owned).map_err(|_| "contains an escape that is no character".into())
}

fn number(text: &str) -> Option<f64> {
    let first = *text.as_bytes().first()?;
    if !(first == b'-' || first.is_ascii_digit()) {
        return None;
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests;
