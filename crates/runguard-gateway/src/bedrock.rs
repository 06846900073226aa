//! Bedrock: the model stands in the path, the answer comes in frames, and a request is signed for the host it goes to.
//!
//! A caller's signature names this gateway, so it cannot travel: what it asks is signed anew with the operator's credentials. A Bedrock
//! API key is no signature, and passes.

pub(crate) mod answers;

use crate::OWN_KEY;
use crate::api::{Api, Kind};
use crate::members::{BadBody, Members};
use crate::question::{KnownAs, Question};
use crate::refusal::Refusal;
use crate::upstream::Credentials;
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, Method, StatusCode};
pub(crate) use runguard_core::model_question::Family;
use runguard_core::prices::Prompt;
use runguard_core::reason::GatewayReason;
use runguard_engine::Caller;
use runguard_engine::settings::Upstream;
use runguard_http::aws::{self, Access, ToSign};
use runguard_http::door;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a path of Bedrock's asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BedrockPath {
    pub(crate) model: String,
    pub(crate) api: Api,
    pub(crate) streams: bool,
    /// Where it is signed for; nobody may have said it.
    region: Option<String>,
    /// The address before the path.
    base: String,
    operation: &'static str,
}

impl BedrockPath {
    pub(crate) fn uri(&self) -> String {
        format!("{}{}", self.base, aws::model_path(&self.model, self.operation))
    }

    /// The same for another model; one of another maker would not understand the words of this one.
    pub(crate) fn with_model(&self, model: &str) -> Option<Self> {
        let is_understood = match self.api {
            Api::Invoke(family) => family == Family::of(model),
            Api::Chat | Api::Completions | Api::Responses | Api::Embeddings | Api::Messages | Api::Converse => true,
        };
        (is_understood && model_of(model).as_deref() == Some(model)).then(|| Self { model: model.to_owned(), ..self.clone() })
    }
}

/// What a request is, by its method and the path behind the name of the upstream; nothing where that is not understood. What is in the
/// query travels nowhere: no operation has one.
pub(crate) fn find(upstream: &Upstream, method: &Method, path: &str) -> Option<(Kind, BedrockPath)> {
    let (model, operation) = path.strip_prefix("/model/").and_then(|rest| rest.split_once('/'))?;
    let model = model_of(model).filter(|_| method == Method::POST)?;
    let invoke = Api::Invoke(Family::of(&model));
    let (kind, api, streams, operation) = match operation {
        "converse" => (Kind::Metered(Api::Converse), Api::Converse, false, "converse"),
        "converse-stream" => (Kind::Metered(Api::Converse), Api::Converse, true, "converse-stream"),
        "invoke" => (Kind::Metered(invoke), invoke, false, "invoke"),
        "invoke-with-response-stream" => (Kind::Metered(invoke), invoke, true, "invoke-with-response-stream"),
        "count-tokens" => (Kind::Free, Api::Converse, false, "count-tokens"),
        _ => return None,
    };
    let region = region(upstream);
    let base = match &region {
        _ if !upstream.url.is_empty() => upstream.url.trim_end_matches('/').to_owned(),
        Some(region) => aws::bedrock_url(region),
        None => String::new(),
    };
    Some((kind, BedrockPath { model, api, streams, region, base, operation }))
}

/// The model that a segment of a path names. Letters that no id has may be read in two ways.
fn model_of(segment: &str) -> Option<String> {
    let model = percent_encoding::percent_decode_str(segment).decode_utf8().ok()?;
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/');
    let has_parts = model.split('/').all(|part| !matches!(part, "" | "." | ".."));
    (has_parts && model.bytes().all(is_known)).then(|| model.into_owned())
}

/// The region that is signed for: as settings say, as the address does, or as AWS's own tools are told.
fn region(upstream: &Upstream) -> Option<String> {
    static OF_ENVIRONMENT: LazyLock<Option<String>> = LazyLock::new(|| {
        let get = |name| std::env::var(name).ok().map(|region| region.trim().to_owned()).filter(|region| aws::is_region(region));
        get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION"))
    });
    if !upstream.region.is_empty() {
        return Some(upstream.region.clone());
    }
    region_of_host(&upstream.url).or_else(|| OF_ENVIRONMENT.clone())
}

/// `bedrock-runtime.REGION.amazonaws.com`, and the same behind the name of a private endpoint.
fn region_of_host(url: &str) -> Option<String> {
    let host = url.split("://").nth(1)?.split(['/', ':']).next()?;
    if !host.ends_with(".amazonaws.com") && !host.ends_with(".api.aws") {
        return None;
    }
    let mut labels = host.split('.').skip_while(|label| !label.starts_with("bedrock-runtime"));
    labels.nth(1).filter(|label| aws::is_region(label)).map(str::to_owned)
}

/// The key of ours in the place of the access key id of a signature: `Credential=rg_…/20261116/us-east-1/bedrock/aws4_request`. It travels as
/// openly as a bearer token does. The signature is not looked at: whoever knows the key could make it.
pub(crate) fn signers_key(headers: &HeaderMap) -> Option<&str> {
    let signature = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let credential = signature.split(',').find_map(|part| part.trim().strip_prefix("Credential="))?;
    credential.split('/').next().filter(|id| id.starts_with("rg_"))
}

/// How long credentials of a file hold before it is looked at again: some are made anew every hour.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// What AWS was told of who pays, and when that was looked up.
type LookedUp = (Instant, Result<Arc<Access>, String>);

/// The operator's credentials.
#[derive(Debug, Default)]
pub(crate) struct Signer {
    looked_up: Mutex<Option<LookedUp>>,
}

/// Headers of the caller's own signature, which ends here.
static OF_SIGNATURE: [HeaderName; 5] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-amz-date"),
    HeaderName::from_static("x-amz-security-token"),
    HeaderName::from_static("x-amz-content-sha256"),
];

impl Signer {
    fn access(&self) -> Result<Arc<Access>, String> {
        let mut looked_up = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner);
        match &*looked_up {
            Some((at, access)) if at.elapsed() < LOOK_AGAIN => access.clone(),
            Some(_) | None => {
                let access = Access::from_environment(|name| std::env::var(name).ok()).map(Arc::new);
                *looked_up = Some((Instant::now(), access.clone()));
                access
            }
        }
    }

    /// Puts the operator's signature in the place of the caller's.
    pub(crate) fn sign(&self, region: &str, uri: &str, headers: &mut HeaderMap, body: &[u8]) -> Result<(), String> {
        for name in &OF_SIGNATURE {
            headers.remove(name);
        }
        // Whatever AWS would act on is signed; the rest may be changed by proxies.
        let is_signed = |name: &HeaderName| name.as_str().starts_with("x-amz") || *name == http::header::CONTENT_TYPE;
        let signed: Vec<(&str, &str)> = headers
            .iter()
            .filter(|(name, _)| is_signed(name))
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .collect();
        let ours = self.access()?.headers(&ToSign { region, url: uri, headers: &signed, body })?;
        for (name, value) in ours {
            headers.insert(name, value);
        }
        Ok(())
    }
}

/// Who pays: the caller, where it brings a key of Bedrock's that can travel, or the operator.
pub(crate) fn credentials<'a>(
    signer: &'a Signer,
    headers: &HeaderMap,
    caller: &Caller,
    upstream: &str,
    asked: &'a BedrockPath,
) -> Result<Credentials<'a>, Refusal> {
    let refused = |problem: String| Refusal::new(StatusCode::FORBIDDEN, GatewayReason::NoProviderKey, problem);
    if asked.region.is_none() {
        return Err(refused(format!(
            "This gateway does not know which region to ask. Set `gateway.upstreams.{upstream}.region`, or AWS_REGION where it is started."
        )));
    }
    let brings_own = headers.contains_key(&OWN_KEY) || caller.is_anyone();
    if brings_own && door::token(headers).is_some_and(|token| !token.starts_with("rg_")) {
        return Ok(Credentials::Callers);
    }
    signer.access().map_err(|problem| {
        refused(format!(
            "This gateway cannot sign for Bedrock: {problem}. Set them where it is started, or send a Bedrock API key of your own."
        ))
    })?;
    Ok(Credentials::Aws { signer, region: asked.region.as_deref().unwrap_or_default() })
}

/// Reads a question whose model stands in the path.
pub(crate) fn question(asked: &BedrockPath, known_as: &KnownAs<'_>, headers: &HeaderMap, body: &Members<'_>) -> Result<Question, BadBody> {
    let mut question = Question::read(asked.api, known_as, body)?;
    question.streams = asked.streams;
    if matches!(asked.api, Api::Converse | Api::Invoke(Family::Nova)) {
        let mut prompt = Prompt { bytes: body.whole_text().len() as u64, ..Prompt::default() };
        let documents = body.get("messages").map_or(0, |messages| enclosed(messages, DEEPEST, &mut prompt));
        question.enclose(body.whole_text(), prompt);
        question.documents = question.documents.max(documents);
    }
    let elsewhere = memchr::memmem::find_iter(body.whole_text().as_bytes(), b"\"s3Location\"").count() as u64;
    question.documents = question.documents.max(elsewhere);
    let more: Value = body.get("additionalModelRequestFields").and_then(|more| serde_json::from_str(more).ok()).unwrap_or_default();
    let thinking = ["thinking", "reasoning_config"].iter().find_map(|name| more.get(name)?.get("budget_tokens")?.as_u64());
    question.thinking = question.thinking.max(thinking.unwrap_or(0));
    question.unmetered = question.unmetered.or_else(|| unmetered(asked.api, headers, body, &more));
    Ok(question)
}

/// What of a question to Bedrock has a price that nobody here knows.
fn unmetered(api: Api, headers: &HeaderMap, body: &Members<'_>, more: &Value) -> Option<&'static str> {
    /// Members by which a model's own fields could say again how long its answer may be, or ask for more than one.
    const AGAIN: [&str; 11] = [
        "max_tokens",
        "max_completion_tokens",
        "max_new_tokens",
        "max_gen_len",
        "maxTokens",
        "max_tokens_to_sample",
        "inferenceConfig",
        "textGenerationConfig",
        "n",
        "num_generations",
        "mcp_servers",
    ];
    #[derive(Deserialize)]
    struct Typed {
        #[serde(alias = "latency")]
        r#type: String,
    }
    let says = |member: &str, header: &str, usual: &[&str]| {
        let said = body.get(member).map(|value| serde_json::from_str::<Typed>(value).map_or_else(|_| String::new(), |typed| typed.r#type));
        let said = said.or_else(|| headers.get(header).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()));
        said.is_some_and(|said| !usual.contains(&said.to_ascii_lowercase().as_str()))
    };
    let has = |text: &str, name: &[u8]| memchr::memmem::find(text.as_bytes(), name).is_some();
    if api == Api::Invoke(Family::Unknown) {
        return Some("a model whose own format is not understood here; ask it with Converse, which is the same for all");
    }
    if body.get("guardrailConfig").is_some() || headers.contains_key("x-amzn-bedrock-guardrailidentifier") {
        return Some("a guardrail, which has a price of its own");
    }
    if says("performanceConfig", "x-amzn-bedrock-performanceconfig-latency", &["standard"]) {
        return Some("a speed (`performanceConfig`) whose price is not known");
    }
    // What is served later costs less than what is booked.
    if says("serviceTier", "x-amzn-bedrock-service-tier", &["default", "flex"]) {
        return Some("a `serviceTier` whose price is not known");
    }
    if body.get("promptVariables").is_some() {
        return Some("a prompt that is stored at Bedrock: nobody here sees how long it is");
    }
    if body.get("toolConfig").is_some_and(|tools| has(tools, b"\"systemTool\"")) {
        return Some("a tool that the provider runs itself: it adds to the prompt, and has a fee of its own");
    }
    if more.as_object().is_some_and(|more| AGAIN.iter().any(|name| more.contains_key(*name))) {
        return Some("`additionalModelRequestFields` that say again how long the answer may be; say it in `inferenceConfig.maxTokens`");
    }
    if api == Api::Invoke(Family::CohereEmbeddings) && ["images", "inputs"].iter().any(|name| body.get(name).is_some()) {
        return Some("images to embed, which are priced one by one");
    }
    None
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Block<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    image: Option<&'a RawValue>,
    #[serde(borrow)]
    document: Option<&'a RawValue>,
    #[serde(borrow)]
    video: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_result: Option<&'a RawValue>,
}

/// Messages have content, which may have what a tool gave, which has content again.
const DEEPEST: u8 = 3;

/// Takes what is enclosed in messages out of the words: an image is one, a document has pages that nobody counts here. How many there are
/// of those. What is not understood stays among the words.
fn enclosed(list: &str, depth: u8, prompt: &mut Prompt) -> u64 {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let items: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    let mut documents = 0;
    for item in items.into_iter().filter_map(|item| serde_json::from_str::<Block<'_>>(item.get()).ok()) {
        if let Some(image) = item.image {
            prompt.attachments = prompt.attachments.saturating_add(1);
            prompt.bytes = prompt.bytes.saturating_sub(data_of(image));
        }
        for document in [item.document, item.video, item.audio].into_iter().flatten() {
            documents += 1;
            prompt.bytes = prompt.bytes.saturating_sub(data_of(document));
        }
        let given = item.tool_result.and_then(|result| serde_json::from_str::<Block<'_>>(result.get()).ok()?.content);
        for list in [item.content, given].into_iter().flatten() {
            documents += enclosed(list.get(), depth, prompt);
        }
    }
    documents
}

/// How long the data of an image or a document is; what stands beside it may be read.
fn data_of(part: &RawValue) -> u64 {
    #[derive(Deserialize)]
    struct Part<'a> {
        #[serde(borrow)]
        source: Source<'a>,
    }
    #[derive(Deserialize)]
    struct Source<'a> {
        #[serde(borrow)]
        bytes: &'a RawValue,
    }
    serde_json::from_str::<Part<'_>>(part.get()).map_or(0, |part| part.source.bytes.get().len() as u64)
}

#[cfg(test)]
mod tests;
