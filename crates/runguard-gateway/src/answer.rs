//! What an answer used: read from one that came whole, or followed while it streams.

mod ended;
mod frames;
mod open_item;

use self::ended::Reasons;
use self::open_item::OpenItem;
use crate::api::Api;
use crate::bedrock::Family;
use crate::bedrock::answers::{self, Counted, End};
use crate::elsewhere;
use crate::history::{self, OpenCall};
use crate::identity;
use crate::members::Members;
use crate::question::Question;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use runguard_core::prices::{ServiceTier, USUAL_BYTES_A_TOKEN, Usage, raise_counts, usual_tokens};
use runguard_core::run::Used;
use runguard_guards::input::PassedCall;
use runguard_http::events::Event;
use serde_json::{Map, Value, json};

/// No answer has more tokens: a provider that says so says something else.
const MOST_TOKENS: u64 = 100_000_000;

/// What is known of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Account {
    /// The model that answered, as the provider names it.
    pub(crate) model: Option<String>,
    /// What the provider counted, if it did.
    pub(crate) usage: Option<Usage>,
    /// It counted, and what it said cannot be.
    pub(crate) is_miscounted: bool,
    /// Of what was written.
    pub(crate) bytes: u64,
    /// The provider's name for the answer, where questions can refer to it.
    pub(crate) id: Option<String>,
    /// Calls that the answer asks for, where the next question may tell only what they gave.
    pub(crate) calls: Vec<OpenCall>,
    /// The hash of its words, where it asks for no call and questions can refer to it.
    pub(crate) said: Option<String>,
    /// By what it is found again in a conversation that has it, where questions can refer to it.
    pub(crate) marks: Vec<String>,
    /// What its items can be referred to by.
    pub(crate) items: Vec<String>,
    /// The conversation that it belongs to, where the provider keeps it.
    pub(crate) conversation: Option<String>,
    /// How it was served, where that is known.
    pub(crate) served: Option<ServiceTier>,
    /// Why it ended, in the provider's word.
    pub(crate) finish: String,
    /// The mistake that it tells of though it came as an answer, as the status that it would have been.
    pub(crate) mistake: Option<StatusCode>,
}

/// More items of one answer are not remembered.
const MOST_ITEMS: usize = 256;

/// Members of answers that are not written by the model.
const NOT_WRITTEN: [&str; 14] = [
    "role",
    "type",
    "id",
    "object",
    "status",
    "call_id",
    "item_id",
    "toolUseId",
    "finish_reason",
    "stop_reason",
    "completionReason",
    "signature",
    "encrypted_content",
    answers::METRICS,
];

/// The bytes of what a model has written, in whatever form.
fn written(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(written).sum(),
        Value::Object(fields) => {
            fields.iter().filter(|(name, _)| !NOT_WRITTEN.contains(&name.as_str())).map(|(_, value)| written(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn usage_of(api: Api, usage: &Value, tier: Option<&str>) -> Option<Usage> {
    let usage = match api {
        Api::Messages => Usage::from_anthropic(usage).ok(),
        Api::Chat | Api::Completions | Api::Responses | Api::Embeddings => {
            Usage::from_openai(usage).ok().map(|usage| usage.in_tier(tier.map_or_else(ServiceTier::default, ServiceTier::named)))
        }
        Api::Converse | Api::Invoke(_) => frames::usage_of(api, usage),
    };
    usage.filter(|usage| usage.total_tokens() <= MOST_TOKENS)
}

/// How an answer is served, where it says so: that the provider may choose says nothing. Of a chat every piece says it where there is a choice.
fn served(api: Api, said: Option<&str>) -> Option<ServiceTier> {
    match said {
        Some("auto") => None,
        Some(tier) => Some(ServiceTier::named(tier)),
        None => matches!(api, Api::Chat | Api::Completions).then_some(ServiceTier::Standard),
    }
}

/// Whether a report has counts, whatever they are.
fn has_counts(usage: &Value) -> bool {
    let is_count = |(name, value): (&String, &Value)| name.to_ascii_lowercase().contains("token") && !value.is_null() && !value.is_object();
    usage.as_object().is_some_and(|counts| counts.iter().any(is_count))
}

impl Account {
    /// Takes another item of it: what questions that follow it need to know, hashes and names. Items may be long, and are not kept. Calls side by
    /// side are one attempt, wherever they stand.
    fn take_item(&mut self, item: &Value) {
        let item = format!("[{item}]");
        let calls = history::calls(self.id.as_deref().unwrap_or_default(), &item, self.calls.first());
        self.calls.extend(calls.into_iter().take(MOST_ITEMS.saturating_sub(self.calls.len())));
        self.said = if self.calls.is_empty() { history::said(&item).or(self.said.take()) } else { None };
        if self.marks.is_empty() {
            self.marks = history::marks(&item);
        }
        self.items.extend(elsewhere::names(&item).into_iter().take(MOST_ITEMS.saturating_sub(self.items.len())));
    }

    /// No more words than are paid for: a provider that pays no attention to its bound has been cut, or should have been.
    pub(crate) fn within(&self, most_tokens: Option<u64>) -> Self {
        let most = most_tokens.map_or(u64::MAX, |tokens| tokens.saturating_mul(USUAL_BYTES_A_TOKEN));
        Self { bytes: self.bytes.min(most), ..self.clone() }
    }

    /// The same of one that came whole, which nobody can cut: what it certainly has beyond its bound was written, and is billed.
    pub(crate) fn whole_within(self, most_tokens: Option<u64>) -> Self {
        if most_tokens.is_some_and(|tokens| self.is_beyond(tokens)) { self } else { self.within(most_tokens) }
    }

    /// Whether certainly more was written than so many tokens: hardly any token has so many bytes.
    fn is_beyond(&self, tokens: u64) -> bool {
        const MOST_BYTES_A_TOKEN: u64 = 12;
        self.bytes > tokens.saturating_mul(MOST_BYTES_A_TOKEN).saturating_add(512)
    }

    /// Whether the provider has counted all of it: it counts at the end.
    pub(crate) fn is_counted(&self) -> bool {
        self.usage.is_some() && !self.finish.is_empty()
    }

    /// Whether nobody has counted it.
    pub(crate) fn is_estimated(&self) -> bool {
        // Words that were counted as nothing were counted by nobody.
        self.usage.is_none_or(|usage| usage.total_tokens() == 0 && self.bytes > 0)
    }

    /// What the log keeps of it.
    pub(crate) fn tell(&self, call: &mut PassedCall, names: &[String]) {
        call.answered_by = self.model.as_deref().unwrap_or_default().into();
        call.finish = self.finish.as_str().into();
        call.is_estimated = self.is_estimated();
        call.answers = names.join(" ").into();
    }

    /// What it used: as the provider counted, where that can be; the most there can be where it counted what cannot; else by its size.
    pub(crate) fn used<'a>(&self, question: &Question, paid_output: Option<u64>, room: &'a mut Usage) -> Used<'a> {
        let by_size = question.uncounted(usual_tokens(self.bytes), self.served, paid_output.is_some());
        match self.usage {
            None if self.is_miscounted && paid_output.is_some() => {
                *room = question.worst(paid_output);
                Used::Counted { model: None, usage: room }
            }
            None => {
                *room = by_size;
                Used::Counted { model: None, usage: room }
            }
            Some(_) if self.is_estimated() => {
                *room = by_size;
                Used::Counted { model: None, usage: room }
            }
            Some(usage) if usage.output_tokens == 0 && usage.audio_output_tokens == 0 && self.bytes > 0 => {
                *room = usage;
                Used::BrokenOff { model: None, usage: room, bytes: self.bytes }
            }
            // Which name it is priced by is for the books to say.
            Some(usage) => {
                *room = usage;
                Used::Counted { model: None, usage: room }
            }
        }
    }
}

/// What a whole answer says of itself. One that cannot be read has as many bytes as it has.
pub(crate) fn read(api: Api, headers: &HeaderMap, body: &[u8]) -> Account {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return Account { bytes: body.len() as u64, ..Account::default() };
    };
    let mut reasons = Reasons::default();
    match api {
        Api::Responses => reasons.note_response(&answer),
        Api::Chat | Api::Completions | Api::Embeddings | Api::Messages | Api::Converse | Api::Invoke(_) => reasons.note(&answer),
    }
    let finish = reasons.text();
    if let Api::Invoke(family) = api {
        // Some say it in a part of the answer, some beside their words.
        let usage = usage_of(api, answer.get("usage").unwrap_or(&answer), None).or_else(|| frames::usage_of_headers(headers));
        let mistake = ended::mistake(&answer);
        let is_miscounted = usage.is_none() && has_counts(answer.get("usage").unwrap_or(&answer));
        return Account { usage, is_miscounted, bytes: frames::written_by(family, &answer), finish, mistake, ..Account::default() };
    }
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let parts = ["choices", "output", "content"].into_iter().filter_map(|name| answer.get(name));
    let usage = answer.get("usage").and_then(|usage| usage_of(api, usage, text("service_tier")));
    let mut account = Account {
        model: text("model").map(str::to_owned),
        is_miscounted: usage.is_none() && answer.get("usage").is_some_and(has_counts),
        usage,
        bytes: parts.map(written).sum(),
        id: text("id").filter(|_| api == Api::Responses).map(str::to_owned),
        conversation: answer.get("conversation").filter(|_| api == Api::Responses).and_then(identity::name_of_conversation),
        served: served(api, text("service_tier")),
        finish,
        mistake: ended::mistake(&answer),
        ..Account::default()
    };
    let output = answer.get("output").filter(|_| api == Api::Responses).and_then(Value::as_array);
    output.into_iter().flatten().for_each(|item| account.take_item(item));
    account
}

/// The mistake that an event of a stream tells of, as the status that it would have been.
pub(crate) fn mistake(api: Api, event: &[u8]) -> Option<StatusCode> {
    let mut meter = Meter::new(api, false);
    meter.take(event);
    meter.mistake()
}

/// What becomes of an event that came from the provider.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    AsItCame,
    Instead(Bytes),
    /// It was asked for here, not by the caller.
    Nothing,
}

/// Follows an answer while it streams.
#[derive(Debug)]
pub(crate) struct Meter {
    api: Api,
    /// The caller did not ask for usage in the stream.
    hides_usage: bool,
    account: Account,
    /// As the provider counts while it goes on: of each kind the most it has said.
    counted: Map<String, Value>,
    tier: Option<String>,
    /// The provider has said that this was all.
    is_complete: bool,
    /// The latest piece, or what names the answer, to end it in the provider's own words.
    latest: String,
    /// The block that is being written, where answers have blocks.
    open_block: Option<u64>,
    events: u64,
    /// What Bedrock counted beside what the model's maker says.
    metrics: Option<Usage>,
    /// What the prompt usually has, where nobody has counted it.
    prompt_tokens: u64,
    reasons: Reasons,
    mistake: Option<StatusCode>,
    /// It is cut where nothing more is paid for.
    may_be_cut: bool,
    /// The item of a response that is being written, where that may be cut.
    open_item: Option<OpenItem>,
}

impl Meter {
    pub(crate) fn new(api: Api, hides_usage: bool) -> Self {
        Self {
            api,
            hides_usage,
            account: Account::default(),
            counted: Map::new(),
            tier: None,
            is_complete: false,
            latest: String::new(),
            open_block: None,
            events: 0,
            metrics: None,
            prompt_tokens: 0,
            reasons: Reasons::default(),
            mistake: None,
            may_be_cut: false,
            open_item: None,
        }
    }

    /// Knows how long the prompt probably is.
    pub(crate) fn with_prompt(self, tokens: u64) -> Self {
        Self { prompt_tokens: tokens, ..self }
    }

    /// Knows whether the answer may have to be ended here.
    pub(crate) fn may_be_cut(self, may_be_cut: bool) -> Self {
        Self { may_be_cut, ..self }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The mistake that the stream told of, as the status that it would have been.
    pub(crate) fn mistake(&self) -> Option<StatusCode> {
        self.mistake
    }

    /// Whether certainly more was written than so many tokens.
    pub(crate) fn is_beyond(&self, tokens: u64) -> bool {
        self.account.is_beyond(tokens)
    }

    pub(crate) fn account(&self) -> Account {
        let usage = (!self.counted.is_empty()).then(|| Value::Object(self.counted.clone()));
        let usage = usage.and_then(|usage| usage_of(self.api, &usage, self.tier.as_deref()));
        let usage = match (usage, self.metrics) {
            (Some(usage), Some(metrics)) => Some(Usage { output_tokens: usage.output_tokens.max(metrics.output_tokens), ..usage }),
            (usage, metrics) => usage.or(metrics),
        };
        let is_miscounted = usage.is_none() && !self.counted.is_empty();
        let served = if self.events > 0 { served(self.api, self.tier.as_deref()) } else { None };
        Account { usage, is_miscounted, served, finish: self.reasons.text(), ..self.account.clone() }
    }

    /// Takes the next event.
    pub(crate) fn take(&mut self, event: &[u8]) -> Pass {
        self.events += 1;
        if matches!(self.api, Api::Converse | Api::Invoke(_)) {
            self.take_frame(event);
            return Pass::AsItCame;
        }
        let Some(Event { data, .. }) = Event::read(event) else {
            self.not_understood(event);
            return Pass::AsItCame;
        };
        if data == "[DONE]" {
            self.is_complete = true;
            return Pass::AsItCame;
        }
        let Ok(piece) = serde_json::from_str::<Value>(&data) else {
            self.not_understood(event);
            return Pass::AsItCame;
        };
        self.mistake = self.mistake.or_else(|| ended::mistake(&piece));
        match self.api {
            Api::Chat | Api::Completions | Api::Embeddings => self.take_chunk(&piece, &data),
            Api::Messages => self.take_message_event(&piece),
            Api::Responses => self.take_response_event(&piece),
            // In frames, which were read above.
            Api::Converse | Api::Invoke(_) => Pass::AsItCame,
        }
    }

    /// What nobody here can read may be words all the same. Comments keep a connection alive.
    pub(crate) fn not_understood(&mut self, bytes: &[u8]) {
        if bytes.iter().any(|byte| !matches!(byte, b'\n' | b'\r')) && !bytes.starts_with(b":") {
            self.account.bytes = self.account.bytes.saturating_add(bytes.len() as u64);
        }
    }

    fn count(&mut self, usage: Option<&Value>) {
        raise_counts(&mut self.counted, usage.unwrap_or(&Value::Null));
    }

    /// So much came that it cannot be read. Where an answer is bounded it has cost all of its bound; else nobody can say what of it were words.
    pub(crate) fn too_long(&mut self, bytes: u64, most: Option<u64>) {
        if most.is_some() {
            self.account.bytes = self.account.bytes.saturating_add(bytes);
        }
    }

    fn write(&mut self, part: &Value) {
        self.account.bytes = self.account.bytes.saturating_add(written(part));
    }

    fn take_chunk(&mut self, chunk: &Value, data: &str) -> Pass {
        if let Some(model) = chunk.get("model").and_then(Value::as_str).filter(|model| !model.is_empty()) {
            self.account.model = Some(model.to_owned());
        }
        if let Some(tier) = chunk.get("service_tier").and_then(Value::as_str) {
            self.tier = Some(tier.to_owned());
        }
        let choices = chunk.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for choice in choices {
            for part in ["delta", "text"].into_iter().filter_map(|name| choice.get(name)) {
                self.write(part);
            }
        }
        self.reasons.note(chunk);
        let usage = chunk.get("usage").filter(|usage| usage.is_object());
        self.count(usage);
        if !choices.is_empty() {
            data.clone_into(&mut self.latest);
        }
        if !self.hides_usage || chunk.get("usage").is_none() {
            return Pass::AsItCame;
        }
        if choices.is_empty() && usage.is_some() {
            return Pass::Nothing;
        }
        // What was asked for here makes every piece say that there is none yet.
        match Members::read(data.as_bytes()).ok().and_then(|members| members.without("usage")) {
            Some(text) => Pass::Instead(Bytes::from(format!("data: {text}\n\n"))),
            None => Pass::AsItCame,
        }
    }

    fn take_message_event(&mut self, event: &Value) -> Pass {
        match event.get("type").and_then(Value::as_str) {
            Some("message_start") => {
                let message = event.get("message").unwrap_or(&Value::Null);
                self.account.model = message.get("model").and_then(Value::as_str).map(str::to_owned);
                self.count(message.get("usage"));
            }
            Some("content_block_start") => {
                self.open_block = event.get("index").and_then(Value::as_u64);
                // What a tool of the provider's gave is not written by the model.
                let block = event
                    .get("content_block")
                    .filter(|block| !block.get("type").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("_result")));
                self.write(block.unwrap_or(&Value::Null));
            }
            Some("content_block_delta") => {
                let delta = event.get("delta").filter(|delta| delta.get("type").and_then(Value::as_str) != Some("citations_delta"));
                self.write(delta.unwrap_or(&Value::Null));
            }
            Some("content_block_stop") => self.open_block = None,
            Some("message_delta") => {
                self.count(event.get("usage"));
                self.reasons.note(event.get("delta").unwrap_or(&Value::Null));
            }
            Some("message_stop") => self.is_complete = true,
            Some(_) | None => {}
        }
        Pass::AsItCame
    }

    fn take_response_event(&mut self, event: &Value) -> Pass {
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Some(response) = event.get("response") {
            let text = |name: &str| response.get(name).and_then(Value::as_str).map(str::to_owned);
            self.account.model = text("model").or(self.account.model.take());
            self.account.id = text("id").or(self.account.id.take());
            let conversation = response.get("conversation").and_then(identity::name_of_conversation);
            self.account.conversation = conversation.or(self.account.conversation.take());
            self.tier = text("service_tier").or(self.tier.take());
            self.count(response.get("usage"));
            self.reasons.note_response(response);
            self.latest = response.to_string();
        }
        match (kind, &mut self.open_item) {
            ("response.output_item.added", open) if self.may_be_cut => *open = OpenItem::of(event),
            ("response.output_item.done", open) => {
                *open = None;
                event.get("item").into_iter().for_each(|item| self.account.take_item(item));
            }
            ("response.content_part.added", Some(open)) => open.begin_part(event),
            ("response.output_text.delta", Some(open)) => open.write(event),
            _ => {}
        }
        if kind.rsplit('.').next() == Some("delta") {
            self.write(event.get("delta").unwrap_or(&Value::Null));
        }
        if matches!(kind, "response.completed" | "response.incomplete" | "response.failed") {
            self.is_complete = true;
        }
        Pass::AsItCame
    }

    /// Ends the answer here as the provider does when the bound of its length is reached.
    pub(crate) fn cut(&mut self) -> Bytes {
        self.is_complete = true;
        let usage = self.account().usage;
        let counted = Counted {
            input: usage.map_or(self.prompt_tokens, |usage| usage.prompt_tokens()),
            output: usage.map_or(0, |usage| usage.output_tokens).max(usual_tokens(self.account.bytes)),
        };
        let events = match self.api {
            Api::Chat | Api::Completions | Api::Embeddings | Api::Invoke(Family::Chat | Family::GptOss) => self.cut_chunks(counted),
            Api::Messages | Api::Invoke(Family::Anthropic) => {
                let closed = self.open_block.take().map(|index| json!({"type": "content_block_stop", "index": index}));
                let delta = json!({"stop_reason": "max_tokens", "stop_sequence": null});
                let delta = json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": counted.output}});
                let end = [("message_delta", delta), ("message_stop", json!({"type": "message_stop"}))];
                closed.map(|closed| ("content_block_stop", closed)).into_iter().chain(end).collect()
            }
            Api::Responses => {
                let mut response: Value = serde_json::from_str(&self.latest).unwrap_or_else(|_| json!({"object": "response"}));
                let (item, mut events) = self.open_item.take().map(|open| open.end(self.events)).unzip();
                let events = events.get_or_insert_default();
                if let Some(fields) = response.as_object_mut() {
                    let Counted { input, output } = counted;
                    fields.insert("status".into(), json!("incomplete"));
                    fields.insert("incomplete_details".into(), json!({"reason": "max_output_tokens"}));
                    fields.insert(
                        "usage".into(),
                        json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": output,
                        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input.saturating_add(output)}),
                    );
                    if let Some(item) = item {
                        fields.insert("output".into(), json!([item]));
                    }
                }
                let number = self.events.saturating_add(events.len() as u64);
                let event = json!({"type": "response.incomplete", "sequence_number": number, "response": response});
                events.push(("response.incomplete", event));
                std::mem::take(events)
            }
            Api::Converse | Api::Invoke(_) => answers::ending(self.api, End::Length, counted, self.open_block.take()),
        };
        for (_, event) in &events {
            for said in [Some(event), event.get("delta"), event.get("messageStop")].into_iter().flatten() {
                self.reasons.note(said);
            }
            self.reasons.note_response(event.get("response").unwrap_or(&Value::Null));
        }
        on_the_wire(self.api, events, counted)
    }

    fn cut_chunks(&self, Counted { input, output }: Counted) -> Vec<(&'static str, Value)> {
        let mut chunk: Value = serde_json::from_str(&self.latest).unwrap_or_else(|_| json!({"object": "chat.completion.chunk"}));
        let indexes: Vec<u64> = chunk
            .get("choices")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|choice| choice.get("index").and_then(Value::as_u64))
            .collect();
        let end = |index: u64| match self.api {
            Api::Completions => json!({"index": index, "text": "", "finish_reason": "length"}),
            Api::Chat | Api::Embeddings | Api::Responses | Api::Messages | Api::Converse | Api::Invoke(_) => {
                json!({"index": index, "delta": {}, "finish_reason": "length"})
            }
        };
        if let Some(fields) = chunk.as_object_mut() {
            fields.remove("usage");
            let indexes = if indexes.is_empty() { vec![0] } else { indexes };
            fields.insert("choices".into(), indexes.into_iter().map(end).collect());
        }
        let mut events = vec![("", chunk.clone())];
        // A caller who asked for it has it at the end of what is cut, too.
        if let Some(fields) = chunk.as_object_mut().filter(|_| !self.hides_usage && matches!(self.api, Api::Chat | Api::Completions)) {
            fields.insert("choices".into(), json!([]));
            let total = input.saturating_add(output);
            fields.insert("usage".into(), json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": total}));
            events.push(("", chunk));
        }
        events
    }
}

/// Events as they stand in a stream of this interface. Some have no name.
pub(crate) fn on_the_wire(api: Api, events: Vec<(&'static str, Value)>, counted: Counted) -> Bytes {
    let end = match api {
        Api::Converse | Api::Invoke(_) => return answers::frames(api, events, counted),
        Api::Chat | Api::Completions | Api::Embeddings => "data: [DONE]\n\n",
        Api::Messages | Api::Responses => "",
    };
    let mut text = String::new();
    for (name, data) in events {
        if !name.is_empty() {
            text += &format!("event: {name}\n");
        }
        text += &format!("data: {data}\n\n");
    }
    Bytes::from(text + end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::KnownAs;

    fn event(data: &Value) -> Vec<u8> {
        format!("data: {data}\n\n").into_bytes()
    }

    fn chunk(content: &str) -> Value {
        json!({"id": "c", "object": "chat.completion.chunk", "model": "gpt-4o-2024-08-06", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": null}], "usage": null})
    }

    #[test]
    fn a_whole_answer_says_what_it_used() {
        let chat = json!({"model": "gpt-4o-x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3}, "service_tier": "flex"});
        let account = read(Api::Chat, &HeaderMap::new(), chat.to_string().as_bytes());
        assert_eq!((account.model.as_deref(), account.usage), (Some("gpt-4o-x"), Some(Usage::new(9, 3).in_tier(ServiceTier::Flex))));
        assert_eq!(account.bytes, 5);
        let message =
            json!({"model": "claude", "content": [{"type": "text", "text": "Hi"}], "usage": {"input_tokens": 4, "output_tokens": 2}});
        assert_eq!(read(Api::Messages, &HeaderMap::new(), message.to_string().as_bytes()).usage, Some(Usage::new(4, 2)));
        assert_eq!(read(Api::Chat, &HeaderMap::new(), b"<html>").usage, None);
    }

    #[test]
    fn a_stream_is_counted_as_the_stories_of_all_languages_have_it() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/stories.json");
        let stories: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for expected in stories["usages"].as_array().unwrap().iter().filter(|usage| usage["path"] != "langchain") {
            let api = match expected["path"].as_str().unwrap() {
                "/chat/completions" => Api::Chat,
                "/responses" => Api::Responses,
                "/embeddings" => Api::Embeddings,
                "/messages" => Api::Messages,
                other => panic!("{other}"),
            };
            let mut meter = Meter::new(api, false);
            for (number, usage) in expected["reports"].as_array().unwrap().iter().enumerate() {
                let says = json!({"model": "m", "usage": usage, "service_tier": expected["service_tier"]});
                meter.take(&event(&match (api, number) {
                    (Api::Messages, 0) => json!({"type": "message_start", "message": says}),
                    (Api::Messages, _) => json!({"type": "message_delta", "usage": usage}),
                    (Api::Responses, _) => json!({"type": "response.in_progress", "response": says}),
                    (Api::Chat | Api::Completions | Api::Embeddings | Api::Converse | Api::Invoke(_), _) => says,
                }));
            }
            assert_eq!(meter.account().usage, serde_json::from_value(expected["used"].clone()).unwrap(), "{expected}");
        }
    }

    #[test]
    fn usage_that_nobody_asked_for_is_not_passed_on() {
        let mut meter = Meter::new(Api::Chat, true);
        let without = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-4o-2024-08-06\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n";
        assert_eq!(meter.take(&event(&chunk("Hi"))), Pass::Instead(Bytes::from(without)));
        let last = json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}});
        assert_eq!(meter.take(&event(&last)), Pass::Nothing);
        assert_eq!(meter.take(b"data: [DONE]\n\n"), Pass::AsItCame);
        assert!(meter.is_complete());
        assert_eq!(meter.account().usage, Some(Usage::new(7, 1)));
        assert_eq!(meter.account().model.as_deref(), Some("gpt-4o-2024-08-06"));
    }

    #[test]
    fn a_caller_who_asked_gets_every_byte() {
        let mut meter = Meter::new(Api::Chat, false);
        assert_eq!(meter.take(&event(&chunk("Hi"))), Pass::AsItCame);
        assert_eq!(meter.take(&event(&json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}))), Pass::AsItCame);
    }

    #[test]
    fn a_message_counts_while_it_goes_on() {
        let mut meter = Meter::new(Api::Messages, false);
        for piece in [
            json!({"type": "message_start", "message": {"model": "claude-sonnet-4-5", "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 42}}),
        ] {
            assert_eq!(meter.take(&event(&piece)), Pass::AsItCame);
        }
        assert!(!meter.is_complete());
        let usage = meter.account().usage.unwrap();
        assert_eq!((usage.input_tokens, usage.cached_tokens, usage.output_tokens), (10, 5, 42));
        assert_eq!(meter.account().bytes, 5);
    }

    #[test]
    fn a_stream_is_known_as_the_same_answer_in_one_piece_is_and_its_items_are_not_kept() {
        let words = "a long story ".repeat(100);
        let call = |number: u32| json!({"type": "function_call", "id": format!("fc_{number}"), "call_id": format!("c{number}"), "name": "f", "arguments": format!("{{\"q\":\"{words}{number}\"}}")});
        let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": words}]});
        for items in [vec![message.clone()], vec![message.clone(), call(1), call(2)], vec![call(1), call(2), message], Vec::new()] {
            let response = |items: &[Value]| json!({"id": "resp_1", "model": "gpt-5", "status": "completed", "conversation": {"id": "conv_1"}, "service_tier": "default", "output": items});
            let mut meter = Meter::new(Api::Responses, false);
            meter.take(&event(&json!({"type": "response.created", "response": response(&[])})));
            for item in &items {
                meter.take(&event(&json!({"type": "response.output_item.done", "item": item})));
            }
            assert!(!format!("{meter:?}").contains(&words), "what it said is not kept");
            let whole = read(Api::Responses, &HeaderMap::new(), response(&items).to_string().as_bytes());
            let streamed = meter.account();
            assert_eq!((&streamed.calls, &streamed.said), (&whole.calls, &whole.said));
            assert_eq!((&streamed.marks, &streamed.items), (&whole.marks, &whole.items));
            assert_eq!((streamed.conversation.as_deref(), whole.conversation.as_deref()), (Some("conv_1"), Some("conv_1")));
            assert_eq!((whole.calls.len(), whole.said.is_some()), (items.len().saturating_sub(1), items.len() == 1));
        }
        let mut many = Meter::new(Api::Responses, false);
        for number in 0..1_000 {
            many.take(&event(&json!({"type": "response.output_item.done", "item": call(number)})));
        }
        assert_eq!((many.account().calls.len(), many.account().items.len()), (MOST_ITEMS, MOST_ITEMS));
    }

    #[test]
    fn a_later_count_that_is_smaller_takes_nothing_away() {
        let mut meter = Meter::new(Api::Messages, false);
        for piece in [
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 1_500, "cache_creation": {"ephemeral_1h_input_tokens": 9}, "output_tokens": 90}}}),
            json!({"type": "message_delta", "delta": {}, "usage": {"input_tokens": 0, "cache_creation": {"ephemeral_1h_input_tokens": 0}, "output_tokens": 42}}),
            json!({"type": "message_delta", "delta": {}, "usage": {"input_tokens": "x", "output_tokens": -7}}),
        ] {
            meter.take(&event(&piece));
        }
        let usage = meter.account().usage.unwrap();
        assert_eq!((usage.input_tokens, usage.cache_write_1h_tokens, usage.output_tokens), (1_500, 9, 90));
    }

    #[test]
    fn counts_that_cannot_be_are_booked_as_the_most_there_can_be() {
        let body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}).to_string();
        let question = Question::read(Api::Chat, &KnownAs::itself("gpt-4o"), &Members::read(body.as_bytes()).unwrap()).unwrap();
        let booked = |usage: Value, paid: Option<u64>| {
            let answer = json!({"choices": [{"message": {"content": "Hi"}}], "usage": usage});
            let mut room = Usage::default();
            let account = read(Api::Chat, &HeaderMap::new(), answer.to_string().as_bytes());
            account.used(&question, paid, &mut room);
            room
        };
        let worst = question.worst(Some(100));
        assert_eq!((worst.output_tokens, worst.input_tokens), (100, question.most_words));
        for usage in [
            json!({"prompt_tokens": 1_000_000_000, "completion_tokens": 5}),
            json!({"prompt_tokens": -5, "completion_tokens": 5}),
            json!({"prompt_tokens": 10.5}),
            json!({"prompt_tokens": "10", "completion_tokens": "5"}),
        ] {
            assert_eq!(booked(usage.clone(), Some(100)), worst, "{usage}");
        }
        let by_size = Usage::new(question.prompt.usual_tokens(), 1);
        for (usage, paid) in [(json!(null), Some(100)), (json!({}), Some(100)), (json!({"prompt_tokens": -5}), None)] {
            assert_eq!(booked(usage, paid), by_size, "nobody counted, or nothing is limited");
        }
    }

    #[test]
    fn an_event_that_is_too_long_to_be_read_cost_all_that_is_paid_for() {
        let mut meter = Meter::new(Api::Chat, false);
        meter.take(&event(&chunk("Hi")));
        meter.too_long(8 * 1024 * 1024, Some(9));
        assert_eq!(usual_tokens(meter.account().within(Some(100)).bytes), 100);
    }

    #[test]
    fn an_answer_that_is_cut_ends_in_the_providers_own_way() {
        let mut chat = Meter::new(Api::Chat, true);
        for _ in 0..300 {
            chat.take(&event(&chunk("word")));
        }
        assert!(chat.is_beyond(50) && !chat.is_beyond(200));
        let end = chat.cut();
        let end = std::str::from_utf8(&end).unwrap();
        assert!(end.contains("\"finish_reason\":\"length\"") && end.ends_with("data: [DONE]\n\n") && !end.contains("usage"));
        let mut message = Meter::new(Api::Messages, false);
        message.take(&event(&json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}})));
        let end = message.cut();
        let end = std::str::from_utf8(&end).unwrap();
        let order = ["content_block_stop", "\"stop_reason\":\"max_tokens\"", "message_stop"].map(|part| end.find(part).unwrap());
        assert!(order.is_sorted());
        let mut response = Meter::new(Api::Responses, false);
        response.take(&event(&json!({"type": "response.created", "response": {"id": "r1", "model": "gpt-5", "status": "in_progress"}})));
        let end = response.cut();
        assert!(std::str::from_utf8(&end).unwrap().contains("\"reason\":\"max_output_tokens\""));
        assert_eq!(response.account().id.as_deref(), Some("r1"));
    }

    #[test]
    fn a_whole_answer_beyond_its_bound_was_written_all_the_same() {
        let of = |bytes: u64| Account { bytes, ..Account::default() }.whole_within(Some(100)).bytes;
        let most = 100 * USUAL_BYTES_A_TOKEN;
        assert_eq!((of(10), of(1_000), of(1_712), of(1_713)), (10, most, most, 1_713));
        assert_eq!(Account { bytes: 9_000, ..Account::default() }.whole_within(None).bytes, 9_000);
    }
}
