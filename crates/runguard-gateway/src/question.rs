//! A question to a model, as far as it must be known here: which model, how long a prompt, how long an answer, whether it streams.

use crate::api::{self, Api};
use crate::dearer::{self, Times};
use crate::earlier::is_name;
use crate::elsewhere::{self, Referred};
use crate::enclosed::{self, Enclosed};
use crate::members::{BadBody, Members};
use crate::thinking;
use bytes::Bytes;
use memchr::memmem::Finder;
pub(crate) use runguard_core::model_question::model_of;
use runguard_core::model_question::{self, CONVERSATION, PREVIOUS};
use runguard_core::prices::{LONGEST_ANSWER, Prices, Prompt, ServiceTier, Usage, most_words, tokens_of_an_image};
use std::borrow::Cow;
use std::sync::LazyLock;

/// Longest name of a model that anybody has; a longer one is refused, so that no log line is made of it.
const LONGEST_MODEL: usize = 256;

/// What is asked, beside the body itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) api: Api,
    pub(crate) model: String,
    pub(crate) streams: bool,
    /// Whether the caller wants to hear in the stream what it used.
    pub(crate) wants_usage: bool,
    /// The longest answer the caller asks for; of several, each.
    pub(crate) max_output: Option<u64>,
    pub(crate) choices: u64,
    pub(crate) prompt: Prompt,
    /// The most tokens of its words: in what is no plain text a token has hardly more than a byte.
    pub(crate) most_words: u64,
    /// The most tokens of each image.
    of_an_image: u64,
    /// The most tokens of its prompt: what the provider adds is among them once that is known.
    pub(crate) most_prompt: u64,
    /// What a model may think before it answers, which a bound of the answer must leave room for.
    pub(crate) thinking: u64,
    /// The provider adds what was said before.
    pub(crate) follows: bool,
    /// What is somewhere else: nobody here knows how much it is.
    pub(crate) documents: u64,
    /// The most tokens that anything of which nobody here knows how much it is may have.
    pub(crate) longest_unseen: u64,
    /// Tokens that the provider adds by itself, as many as it can: they are set aside, and not among the words.
    pub(crate) added: u64,
    /// Items that it names and does not carry.
    pub(crate) referred: Referred,
    /// What makes its price unknowable; such a question is not passed on while dollars are limited.
    pub(crate) unmetered: Option<&'static str>,
    /// How many times the usual price its tokens may cost.
    pub(crate) times_the_price: Times,
    /// The same where the provider serves it before others, which it leaves to the provider.
    pub(crate) times_if_first: Times,
    /// It says nothing of how it is to be served, and that has several prices.
    pub(crate) leaves_service_open: bool,
    /// The longest answer of the model, where it is known.
    pub(crate) longest_of_model: Option<u64>,
    /// The member that bounds the length of the answer, of those that mean the same: not all servers read all of them.
    length_member: Option<&'static str>,
    /// That one is there, or one that is as good.
    pub(crate) says_length: bool,
    /// The model may think before it answers, and nobody sees how much.
    pub(crate) thinks: bool,
}

/// What a model is called here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownAs<'a> {
    /// In limits and in the log.
    pub(crate) model: Cow<'a, str>,
    /// Whose price it has.
    pub(crate) priced: Cow<'a, str>,
}

#[cfg(test)]
impl<'a> KnownAs<'a> {
    /// By its own name.
    pub(crate) fn itself(model: &'a str) -> Self {
        Self { model: Cow::Borrowed(model), priced: Cow::Borrowed(model) }
    }
}

/// Whether an image in it is to be looked at as it is.
fn shows_originals(text: &str) -> bool {
    static ORIGINALS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"original\""));
    ORIGINALS.find(text.as_bytes()).is_some()
}

/// What of a question is enclosed and not counted as words, in tokens as [`most_words`] has it, at the least.
fn prompt_bytes_left_out(prompt: &Prompt, text: &str) -> u64 {
    (text.len() as u64).saturating_sub(prompt.bytes) / 2
}

/// Members by which the provider is told to add to the prompt.
const UNSEEN: [&str; 2] = [PREVIOUS, CONVERSATION];
impl Question {
    pub(crate) fn read(api: Api, known_as: &KnownAs<'_>, body: &Members<'_>) -> Result<Self, BadBody> {
        let model = known_as.model.as_ref();
        let choices = model_question::choices(api, body)?;
        if model.trim().is_empty() || model.len() > LONGEST_MODEL {
            return Err(BadBody::Member { name: "model", problem: "must be the name of a model" });
        }
        let max_output = model_question::max_output(api, body)?;
        let text = body.whole_text();
        let Enclosed { bytes, images, documents } = enclosed::find(api, body);
        let prompt = Prompt { bytes: (text.len() as u64).saturating_sub(bytes), attachments: images, ..Prompt::default() };
        let wants_usage = body.object("stream_options")?.is_some_and(|options| options.get("include_usage") == Some("true"));
        let said_tier = body.text("service_tier")?;
        let words = most_words(text).saturating_sub(prompt_bytes_left_out(&prompt, text));
        let priced = known_as.priced.as_ref();
        let longest_of_model = Prices::bundled().longest_answer(priced);
        let recordings = elsewhere::recordings(api, body);
        // Of a prediction what does not come true is paid as what is written.
        let predicted =
            body.get("prediction").map_or(0, |prediction| dearer::predicted(priced, most_words(prediction)).saturating_mul(choices));
        let of_an_image = tokens_of_an_image(priced, shows_originals(text));
        let referred = body.get("input").filter(|_| api == Api::Responses).map(elsewhere::referred).unwrap_or_default();
        if referred.names().any(|name| !is_name(name)) {
            return Err(BadBody::Member { name: "input", problem: "names an item by what is not the id of anything" });
        }
        let (times_the_price, times_if_first) = dearer::times(priced, api, said_tier.as_deref(), recordings > 0, body);
        Ok(Self {
            api,
            streams: api != Api::Embeddings && body.flag("stream")?,
            wants_usage,
            max_output,
            choices,
            prompt,
            most_words: words,
            of_an_image,
            most_prompt: words.saturating_add(images.saturating_mul(of_an_image)),
            thinking: thinking::budget(body, max_output),
            follows: UNSEEN.iter().any(|name| body.get(name).is_some()),
            documents: documents.saturating_add(elsewhere::documents(api, body)),
            longest_unseen: elsewhere::longest_unseen(priced),
            referred,
            added: elsewhere::tokens_of_recordings(recordings, longest_of_model)
                .saturating_add(elsewhere::around_tools(api, body))
                .saturating_add(predicted),
            unmetered: model_question::unmetered(api, priced, body),
            times_the_price,
            times_if_first,
            leaves_service_open: times_if_first != times_the_price,
            length_member: api.length_members().first().copied(),
            says_length: max_output.is_some(),
            thinks: thinking::is_unseen(priced, body),
            longest_of_model,
            model: model.to_owned(),
        })
    }

    /// The longest answer there can be: what the caller asks for, or what the model gives. Where neither is known it is bounded here.
    pub(crate) fn longest(&self) -> u64 {
        if self.api.embeds() { 0 } else { self.max_output.or(self.longest_of_model).unwrap_or(LONGEST_ANSWER) }
    }

    /// Bounds the answer by the member that its server reads, of those that mean the same.
    pub(crate) fn bound_by(&mut self, name: &str, body: &Members<'_>) {
        if let Some(known) = self.api.length_members().iter().find(|known| **known == name) {
            self.length_member = Some(known);
            // A server that knows the newer name knows the older one too, and wants no more than one.
            self.says_length = self.max_output.is_some() && (*known == api::NEWER_LENGTH || body.has_at(known));
        }
    }

    /// The most it can have cost: whoever may have been paid is taken to have been. Where nothing is limited, what its prompt usually does.
    pub(crate) fn worst(&self, paid_output: Option<u64>) -> Usage {
        self.worst_at(self.times_the_price, paid_output)
    }

    /// The same at so many times the price.
    pub(crate) fn worst_at(&self, times: Times, paid_output: Option<u64>) -> Usage {
        match paid_output {
            Some(output) => Usage::new(times.of_read(self.most_prompt), times.of_written(output.saturating_mul(self.choices))),
            None => Usage::new(self.prompt.usual_tokens(), 0),
        }
    }

    /// How many times the usual price it may cost, now that it is known how it was served: before others, though it was not taken to be.
    pub(crate) fn times_served(&self, served: Option<ServiceTier>) -> Times {
        if served == Some(ServiceTier::Priority) { self.times_the_price.max(self.times_if_first) } else { self.times_the_price }
    }

    /// Tokens that nobody has counted, at the price of how they were served. Where that is not known and something is limited, at the dearest.
    pub(crate) fn uncounted(&self, output: u64, served: Option<ServiceTier>, is_limited: bool) -> Usage {
        let read = self.prompt.usual_tokens();
        match served {
            None if is_limited => Usage::new(self.times_the_price.of_read(read), self.times_the_price.of_written(output)),
            served => Usage::new(read, output).in_tier(served.unwrap_or_default()),
        }
    }

    /// Takes another measure of the prompt, by one who knows where in this text something is enclosed.
    pub(crate) fn enclose(&mut self, text: &str, prompt: Prompt) {
        self.prompt = prompt;
        self.most_words = most_words(text).saturating_sub(prompt_bytes_left_out(&prompt, text));
        self.most_prompt = self.most_words.saturating_add(prompt.attachments.saturating_mul(self.of_an_image));
    }

    /// Whether the stream has to be asked for what it used: the caller does not want to know, and else nobody is told.
    pub(crate) fn must_ask_for_usage(&self) -> bool {
        self.streams && !self.wants_usage && matches!(self.api, Api::Chat | Api::Completions)
    }

    /// The body with an answer of at most so many tokens, and with its usage at the end of a stream.
    pub(crate) fn prepare(&self, body: &Bytes, max_output: Option<u64>) -> Result<Bytes, BadBody> {
        let mut text: Option<String> = None;
        if let Some(max_output) = max_output {
            for name in self.length_members(&Members::read(body)?) {
                let members = Members::read(text.as_deref().map_or(&body[..], str::as_bytes))?;
                text = Some(members.set_at(name, &max_output.to_string())?);
            }
        }
        if self.must_ask_for_usage() {
            let members = Members::read(text.as_deref().map_or(&body[..], str::as_bytes))?;
            text = Some(members.set_at("stream_options.include_usage", "true")?);
        }
        Ok(text.map_or_else(|| body.clone(), Bytes::from))
    }

    /// Where the bound of the answer belongs: every member that is there, and the one that the server reads.
    fn length_members(&self, members: &Members<'_>) -> Vec<&'static str> {
        let names = self.api.length_members();
        let read = self.length_member.filter(|_| !self.says_length);
        names.iter().copied().filter(|name| members.has_at(name) || read == Some(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The model that a body names, which is known by that name.
    fn of_body(api: Api, body: &[u8]) -> Result<Question, BadBody> {
        let members = Members::read(body).unwrap();
        let model = model_of(&members)?;
        Question::read(api, &KnownAs::itself(&model), &members)
    }

    fn read(api: Api, body: &Value) -> Question {
        of_body(api, body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn each_interface_says_it_in_its_own_words() {
        let chat = read(Api::Chat, &json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "n": 2}));
        assert_eq!((chat.max_output, chat.choices, chat.streams), (Some(7), 2, false));
        let newer = json!({"model": "o3", "messages": [], "max_tokens": 7, "max_completion_tokens": 9, "stream": true});
        assert_eq!((read(Api::Chat, &newer).max_output, read(Api::Chat, &newer).must_ask_for_usage()), (Some(9), true));
        let responses =
            read(Api::Responses, &json!({"model": "gpt-5", "input": "hi", "max_output_tokens": 5, "previous_response_id": "r"}));
        assert_eq!((responses.max_output, responses.follows, responses.documents), (Some(5), true, 0));
        let embeddings = read(Api::Embeddings, &json!({"model": "text-embedding-3-small", "input": ["a", "b"]}));
        assert_eq!((embeddings.max_output, embeddings.choices), (None, 1));
        let messages = read(Api::Messages, &json!({"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [], "system": "four"}));
        assert_eq!((messages.max_output, messages.must_ask_for_usage()), (Some(100), false));
        let both = read(Api::Chat, &json!({"model": "m", "messages": [], "max_tokens": 90_000, "max_completion_tokens": 100}));
        assert_eq!(both.max_output, Some(90_000), "nobody knows which one counts");
        assert_eq!(read(Api::Chat, &json!({"model": "m", "max_tokens": 0})).max_output, None);
        assert_eq!(read(Api::Completions, &json!({"model": "m", "prompt": ["a", "b", "c"], "n": 2})).choices, 6);
        assert_eq!(read(Api::Completions, &json!({"model": "m", "prompt": [1, 2, 3]})).choices, 1, "one prompt of three tokens");
        let too_many = json!({"model": "m", "prompt": ["a", "b"], "n": u64::MAX / 2 + 2});
        assert!(of_body(Api::Completions, too_many.to_string().as_bytes()).is_err());
    }

    #[test]
    fn what_cannot_be_metered_is_refused() {
        for body in [json!({}), json!({"model": ""}), json!({"model": 7}), json!({"model": "m", "n": 0}), json!({"model": "m", "n": 1000})]
        {
            let text = body.to_string();
            assert!(of_body(Api::Chat, text.as_bytes()).is_err(), "{body}");
        }
        for body in [json!({"model": "m", "max_tokens": "9"}), json!({"model": "m", "max_tokens": -1}), json!({"model": "m", "stream": 1})]
        {
            let text = body.to_string();
            assert!(of_body(Api::Chat, text.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn a_prepared_body_differs_in_what_was_prepared() {
        let body = Bytes::from_static(br#"{"model":"gpt-4o", "messages":[],"stream":true}"#);
        let question = of_body(Api::Chat, &body).unwrap();
        assert_eq!(
            question.prepare(&body, Some(50)).unwrap(),
            &br#"{"model":"gpt-4o", "messages":[],"stream":true,"max_completion_tokens":50,"stream_options":{"include_usage":true}}"#[..]
        );
        let body = Bytes::from_static(br#"{"model":"m","messages":[],"max_tokens":90,"stream":true,"stream_options":{"x":1}}"#);
        let question = of_body(Api::Chat, &body).unwrap();
        assert_eq!(
            question.prepare(&body, Some(5)).unwrap(),
            &br#"{"model":"m","messages":[],"max_tokens":5,"stream":true,"stream_options":{"x":1,"include_usage":true}}"#[..]
        );
        let plain = Bytes::from_static(br#"{"model":"m","messages":[]}"#);
        let question = of_body(Api::Chat, &plain).unwrap();
        assert_eq!(question.prepare(&plain, None).unwrap(), plain);
    }

    #[test]
    fn everything_counts_but_images_where_images_stand() {
        let size = |body: &Value| read(Api::Messages, body).prompt;
        let picture = "iVBORw0KGgo".repeat(200);
        let image = json!({"model": "m", "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}},
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{picture}")}}]}]});
        assert_eq!(size(&image).attachments, 2);
        assert!(size(&image).bytes < 400);
        let page = json!({"model": "m", "messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": picture}}]}]});
        let read_page = read(Api::Messages, &page);
        assert!(size(&page).bytes < 400 && read_page.documents == 1, "nobody can say how many pages a small one has");
        for words in [picture.clone(), format!("data:image/png;base64,{picture}")] {
            let said = json!({"model": "m", "messages": [{"role": "user", "content": words}]});
            assert!(
                size(&said).attachments == 0 && size(&said).bytes > words.len() as u64,
                "what looks like an image and is said is words"
            );
        }
        let seen = read(Api::Messages, &image);
        assert_eq!(seen.worst(Some(0)).input_tokens, seen.most_words + 10_000, "an image is set aside as 5,000 tokens, and booked so");
        assert_eq!(seen.uncounted(7, None, false), Usage::new(seen.prompt.usual_tokens(), 7));
        for words in [json!({"url": format!("data:image/{picture}")}), json!({"mime": "image/png", "data": picture})] {
            let schema = json!({"model": "m", "messages": [], "tools": [{"name": "f", "input_schema": {"examples": [words]}}]});
            let called = json!({"model": "m", "messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": words}]}]});
            for body in [schema, called] {
                assert!(size(&body).bytes > picture.len() as u64 && size(&body).attachments == 0, "the model reads it as text: {body:.80}");
            }
        }
        let literals =
            json!({"model": "m", "messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": vec![true; 1000]}]}]});
        assert!(size(&literals).bytes > 4_000);
        assert!(size(&json!({"model": "m", "messages": [], "output_format": {"a": "x".repeat(5_000)}})).bytes > 5_000);
    }

    #[test]
    fn what_a_provider_adds_or_does_by_itself_is_noticed() {
        let question = |body: &Value| read(Api::Responses, body);
        let file = json!({"type": "input_file", "file_id": "f"});
        for (body, documents) in [
            (json!({"model": "m", "input": "a", "previous_response_id": "r"}), 0),
            (json!({"model": "m", "input": [file]}), 1),
            (
                json!({"model": "m", "input": [{"role": "user", "content": [file, file, {"type": "input_text", "text": "a"}]}, {"type": "item_reference", "id": "i"}]}),
                2,
            ),
            (
                json!({"model": "m", "input": [{"content": [{"type": "file", "file": {"file_data": "a"}}, {"type": "document", "source": {"type": "url", "url": "u"}}]}]}),
                2,
            ),
            (json!({"model": "m", "prompt": {"id": "p"}}), 1),
            (
                json!({"model": "m", "input": [{"content": [{"type": "video_url", "video_url": {"url": "u"}}, {"type": "audio_url", "audio_url": {"url": "u"}}]}]}),
                2,
            ),
        ] {
            assert_eq!(question(&body).documents, documents, "{body}");
        }
        assert!(question(&json!({"model": "m", "input": "a", "conversation": "c"})).follows);
        for body in [
            json!({"model": "m", "tools": [{"type": "web_search"}]}),
            json!({"model": "m", "tools": [{"type": "function", "name": "f"}, {"type": "code_interpreter"}]}),
            json!({"model": "m", "background": true}),
            json!({"model": "m", "models": ["a", "b"]}),
            json!({"model": "m", "tools": [{"type": "function", "google_search": {}}]}),
            json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f"}, "google_search": {}}]}),
            json!({"model": "m", "tools": [{"name": "f", "google_search": {}}]}),
            json!({"model": "m", "tools": [{"type": "function", "name": null}]}),
            json!({"model": "m", "service_tier": "ultra"}),
            json!({"model": "m", "service_tier": "Priority"}),
            json!({"model": "m", "tools": [{"type": "function", "name": "f"}, null]}),
            json!({"model": "m", "tools": [{"type": 7}]}),
            json!({"model": "m", "speed": "fast"}),
            json!({"model": "gpt-4o-search-preview"}),
            json!({"model": "m", "prompt": {"id": "p"}}),
            json!({"model": "m", "extra_body": {"tools": [{"type": "web_search"}]}}),
        ] {
            assert!(question(&body).unmetered.is_some(), "{body}");
        }
        for hidden in
            [r#"{"model":"m","tools":[{"type":"web_search","type":"function"}]}"#, r#"{"model":"m","input":[{"type":"input\u005ffile"}]}"#]
        {
            assert!(of_body(Api::Responses, hidden.as_bytes()).unwrap().unmetered.is_some(), "{hidden}");
        }
        let escaped = r#"{"model":"m","input":"a \\u0041, \u00e9 and \u003c","speed":"standard"}"#;
        assert_eq!(of_body(Api::Responses, escaped.as_bytes()).unwrap().unmetered, None);
        let own = json!({"model": "m", "tools": [{"type": "function", "name": "f"}, {"name": "g", "input_schema": {}}, {"type": "bash_20250124"}], "background": false});
        assert_eq!(question(&own).unmetered, None);
        assert_eq!(question(&json!({"model": "m", "prompt": {"id": "p"}, "tools": []})).unmetered, None);
        assert!(read(Api::Messages, &json!({"model": "m", "container": {"skills": []}})).unmetered.is_some());
        let written = |body: &Value| question(body).times_the_price.of_written(10);
        assert_eq!(written(&json!({"model": "gpt-5.4", "input": "a"})), 10);
        assert_eq!(written(&json!({"model": "gpt-5.4", "input": "a", "service_tier": "priority"})), 20);
        assert_eq!(written(&json!({"model": "gpt-5.4", "input": "a", "service_tier": "auto"})), 20);
        let first = |body: &Value| question(body).times_if_first.of_written(10);
        assert_eq!(first(&json!({"model": "gpt-5.4", "input": "a"})), 20, "the provider may decide");
        assert_eq!(first(&json!({"model": "gpt-5.4", "input": "a", "service_tier": "default"})), 10);
        let is_open = |body: &Value| question(body).leaves_service_open;
        assert!(
            is_open(&json!({"model": "gpt-5.4", "input": "a"}))
                && is_open(&json!({"model": "gpt-5.4", "input": "a", "service_tier": null}))
        );
        for said in ["default", "priority", "auto", "flex", "scale", "standard_only", "on_demand"] {
            assert_eq!(question(&json!({"model": "gpt-5.4", "input": "a", "service_tier": said})).unmetered, None, "{said}");
            assert!(!is_open(&json!({"model": "gpt-5.4", "input": "a", "service_tier": said})), "{said}");
        }
        assert!(!is_open(&json!({"model": "m", "input": "a"})), "one that has one price");
        assert!(!read(Api::Embeddings, &json!({"model": "text-embedding-3-small", "input": "a"})).leaves_service_open);
        let shorter = json!({"model": "m", "messages": [], "context_management": {"edits": [{"type": "compact_20260112"}]}});
        assert_eq!(read(Api::Messages, &shorter).times_the_price.of_read(10), 20, "all of it is read once more");
        let recorded = json!({"model": "gpt-4o-audio-preview", "messages": [{"role": "assistant", "audio": {"id": "a"}}]});
        let recorded = read(Api::Chat, &recorded);
        assert!(recorded.times_the_price.of_read(10) >= 80 && recorded.added >= 16_384);
        let predicted =
            read(Api::Chat, &json!({"model": "gpt-4o", "messages": [], "prediction": {"type": "content", "content": "A".repeat(900)}}));
        assert!((3_600..4_000).contains(&predicted.added), "as dear as what is written: {}", predicted.added);
        let spoken = json!({"model": "gpt-4o-audio-preview", "modalities": ["text", "audio"]});
        assert!(read(Api::Chat, &spoken).times_the_price.of_written(10) >= 80, "{:?}", read(Api::Chat, &spoken).times_the_price);
        assert_eq!(question(&json!({"model": "m", "input": [{"cache_control": {"type": "ephemeral"}}]})).times_the_price.of_read(10), 20);
    }

    #[test]
    fn an_image_that_is_looked_at_as_it_is_has_more_tokens() {
        let of = |detail: &str| {
            let image = json!({"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": detail}});
            let asked = read(Api::Chat, &json!({"model": "gpt-4o", "messages": [{"role": "user", "content": [image]}]}));
            asked.most_prompt - asked.most_words
        };
        assert_eq!((of("high"), of("original")), (5_000, 12_000));
    }

    #[test]
    fn a_question_names_one_model() {
        let unmetered = |api: Api, more: &Value| {
            let mut body = json!({"model": "gpt-4o", "messages": []});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(api, &body).unmetered
        };
        for more in [
            json!({"fallbacks": ["gpt-4"]}),
            json!({"fallbacks": [{"model": "gpt-4"}]}),
            json!({"Fallbacks": ["gpt-4"]}),
            json!({"fallback_models": ["gpt-4"]}),
            json!({"fallback_model": "gpt-4"}),
            json!({"context_window_fallbacks": [{"gpt-4o": ["gpt-4"]}]}),
            json!({"model_list": [{"model_name": "gpt-4o", "litellm_params": {"model": "gpt-4"}}]}),
            json!({"extra_body": {"fallbacks": ["gpt-4"]}}),
            json!({"extra_body": {"model": "gpt-4"}}),
            json!({"providerOptions": {"gateway": {"models": ["openai/gpt-4"]}}}),
        ] {
            for api in [Api::Chat, Api::Messages] {
                assert!(unmetered(api, &more).is_some_and(|said| said.contains("`fallbacks`")), "{more}");
            }
        }
        for more in [
            json!({"fallbacks": []}),
            json!({"fallbacks": null, "models": [ ]}),
            json!({"disable_fallbacks": true}),
            json!({"additionalModelRequestFields": {"top_k": 5}, "additionalModelResponseFieldPaths": ["/a"]}),
            json!({"provider": {"allow_fallbacks": true}, "extra_body": {"provider": {"allow_fallbacks": true}}}),
            json!({"providerOptions": {"gateway": {"order": ["azure"]}}}),
        ] {
            assert_eq!(unmetered(Api::Chat, &more), None, "{more}");
        }
    }

    #[test]
    fn each_answer_that_is_written_is_paid() {
        let choices = |body: Value| read(Api::Chat, &body).choices;
        assert_eq!(choices(json!({"model": "m", "messages": [], "best_of": 50})), 50);
        assert_eq!(choices(json!({"model": "m", "messages": [], "best_of": 2, "n": 3})), 3);
        let too_many = |body: Value| of_body(Api::Chat, body.to_string().as_bytes()).unwrap_err();
        let problem = "must be from 1 to 128";
        assert_eq!(too_many(json!({"model": "m", "best_of": 500})), BadBody::Member { name: "best_of", problem });
        assert_eq!(too_many(json!({"model": "m", "n": 500})), BadBody::Member { name: "n", problem });
        let no_object = BadBody::Member { name: "stream_options", problem: "must be an object" };
        assert_eq!(too_many(json!({"model": "m", "stream": true, "stream_options": 5})), no_object);
    }

    #[test]
    fn an_item_is_named_as_a_provider_names_it() {
        let of = |id: Value| {
            of_body(Api::Responses, json!({"model": "m", "input": [{"type": "item_reference", "id": id}]}).to_string().as_bytes())
        };
        assert_eq!(of(json!("msg_1")).unwrap().referred.items, ["msg_1"]);
        for id in [json!(" msg_1"), json!("msg_1\u{0}"), json!(["msg_1"]), json!({"a": "msg_1"})] {
            assert!(of(id.clone()).is_err(), "{id}");
        }
    }

    #[test]
    fn what_searches_or_has_a_price_of_its_own_is_refused() {
        let unmetered = |body: &Value| read(Api::Chat, body).unmetered;
        for body in [
            json!({"model": "sonar-pro"}),
            json!({"model": "perplexity/sonar"}),
            json!({"model": "openai/gpt-4o:online"}),
            json!({"model": "groq/compound-mini"}),
            json!({"model": "gemini-3-flash-preview-search"}),
            json!({"model": "grok-4", "search_parameters": {"mode": "auto"}}),
            json!({"model": "qwen-plus", "enable_search": true}),
            json!({"model": "qwen-plus", "extra_body": {"enable_search": true}}),
            json!({"model": "gemini-3-pro-preview", "tools": [{"google_search": {}}]}),
            json!({"model": "m", "web_search_options": {}}),
            json!({"model": "m", "plugins": [{"id": "web"}]}),
            json!({"model": "m", "extra_body": {"a": {"tools": []}, "b": {"tools": [{"google_search": {}}]}}}),
            json!({"model": "claude-opus-4-6", "inference_geo": "us"}),
            json!({"model": "grok-4", "deferred": true}),
            json!({"model": "m", "max_tokens": 10, "extra_body": {"max_tokens": 16_384}}),
            json!({"model": "m", "extra_body": {"n": 100}}),
            json!({"model": "m", "extra_body": {"service_tier": "priority"}}),
            json!({"model": "m", "providerOptions": {"openai": {"serviceTier": "priority"}}}),
        ] {
            assert!(unmetered(&body).is_some(), "{body}");
        }
        for body in [
            json!({"model": "qwen-plus", "enable_search": false}),
            json!({"model": "m", "plugins": [], "models": [ ], "mcp_servers": [], "tools": []}),
            json!({"model": "m", "search_parameters": {"mode": "off"}}),
            json!({"model": "m", "extra_body": {"plugins": [], "tools": []}, "google": {"tools": null}}),
            json!({"model": "m", "extra_body": {"top_k": 5, "reasoning": {"max_tokens": 2_000}}, "deferred": false}),
            json!({"model": "claude-opus-4-6", "inference_geo": "global"}),
            json!({"model": "nousresearch/hermes-2", "tools": [{"type": "function", "function": {"name": "web_search"}}]}),
        ] {
            assert_eq!(unmetered(&body), None, "{body}");
        }
    }

    #[test]
    fn an_answer_is_bounded_by_the_member_that_its_server_reads() {
        let bounded = |name: &str, body: &'static str, max: u64| {
            let body = Bytes::from_static(body.as_bytes());
            let members = Members::read(&body).unwrap();
            let mut question = of_body(Api::Chat, &body).unwrap();
            question.bound_by(name, &members);
            (question.says_length, String::from_utf8(question.prepare(&body, Some(max)).unwrap().to_vec()).unwrap())
        };
        let (older, newer) = (api::OLDER_LENGTH, api::NEWER_LENGTH);
        assert_eq!(bounded(older, r#"{"model":"m"}"#, 9), (false, r#"{"model":"m","max_tokens":9}"#.to_owned()));
        assert_eq!(bounded(newer, r#"{"model":"m"}"#, 9), (false, r#"{"model":"m","max_completion_tokens":9}"#.to_owned()));
        assert_eq!(
            bounded(older, r#"{"model":"m","max_completion_tokens":20}"#, 9),
            (false, r#"{"model":"m","max_completion_tokens":9,"max_tokens":9}"#.to_owned()),
            "a server that does not read the newer name hears it by the older one"
        );
        assert_eq!(
            bounded(newer, r#"{"model":"m","max_tokens":20}"#, 9),
            (true, r#"{"model":"m","max_tokens":9}"#.to_owned()),
            "OpenAI wants no more than one"
        );
        assert_eq!(read(Api::Chat, &json!({"model": "m"})).longest(), LONGEST_ANSWER, "a model of which nothing is known is bounded too");
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_measure(text in ".{0,60}") {
            let body = json!({"model": "m", "messages": [{"content": [{"type": text, "text": text}]}]});
            proptest::prop_assert!(read(Api::Chat, &body).prompt.bytes >= text.len() as u64);
        }
    }
}
