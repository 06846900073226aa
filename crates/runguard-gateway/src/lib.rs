//! The gateway: in front of the providers of models, with a cap that holds.
//!
//! A question is passed on only when the most it may cost is set aside, in everything that limits it; its answer is metered on its way
//! back and settled once. Bytes are passed on as they came, but for the bound of the answer's length and what a stream says of its usage.
//!
//! Each question is handled by a task of its own: a caller who hangs up ends neither the settling nor the books.

mod answer;
mod api;
mod attempt;
mod bedrock;
mod beginning;
mod circuit;
mod dearer;
mod earlier;
mod elsewhere;
mod enclosed;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod history;
mod identity;
mod money;
mod passing;
mod pieces;
mod question;
mod refusal;
mod relay;
mod retried;
mod serving;
mod thinking;
mod upstream;

pub use self::passing::{Passing, astray, find};

use crate::answer::Account;
use crate::api::{Api, Kind};
use crate::attempt::{Asking, Attempt, Candidate, is_packed, send};
use crate::beginning::{Firsts, FoundAgain};
use crate::earlier::{Answers, Named, filed, filed_of_caller};
use crate::elsewhere::{KeptItems, Referred};
use crate::history::Before;
use crate::identity::{Follows, RunName, Says};
use crate::members::{BadBody, Members};
use crate::money::{Books, Guards, Runs, became_safe};
use crate::question::{KnownAs, Question};
use crate::refusal::Refusal;
use crate::retried::Retried;
use crate::serving::{Payer, Serving};
use crate::upstream::{Address, Credentials, presented_key};
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, StatusCode};
use runguard_core::calendar::Zone;
pub(crate) use runguard_core::members;
use runguard_core::prices::ServiceTier;
use runguard_core::reason::GatewayReason;
use runguard_core::{GuardName, Reason};
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::secret_files::SecretFiles;
use runguard_engine::settings::{GatewaySettings, OnLoop, OnStop, Settings, Upstream};
use runguard_engine::telemetry::TraceContext;
use runguard_engine::{Answered, Caller, Engine, Role, Safe};
use runguard_guards::input::PassedCall;
use runguard_http::load::Share;
use runguard_http::reply::Reply;
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, watch};

/// The longest answer that is read as a whole.
const MOST_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The header that carries a key of ours beside one of the provider's.
static OWN_KEY: HeaderName = HeaderName::from_static("x-runguard-key");

/// Who counts what the guards decide for the gateway, as it does for those who ask them directly.
pub trait Hears: std::fmt::Debug + Send + Sync {
    /// `spares` says how many billed operations a refusal of this guard spares.
    fn decided(&self, guard: GuardName, answered: &Answered, spares: &dyn Fn() -> u32);
}

/// What all requests to the gateway share.
#[derive(Debug, Default)]
pub struct Gateway {
    hears: Option<Arc<dyn Hears>>,
    runs: Runs,
    lately: circuit::Lately,
    answers: Mutex<Answers>,
    /// Whether answers of before this process began were looked for.
    log_read: OnceCell<()>,
    firsts: Mutex<Firsts>,
    keys: SecretFiles,
    aws: bedrock::Signer,
    serving: Serving,
    retried: Arc<Retried>,
    kept_items: Mutex<KeptItems>,
    /// Turns true when the service stops.
    stopping: Option<watch::Receiver<bool>>,
}

/// The key of ours that a request to a provider carries, wherever it stands.
pub fn own_key(headers: &HeaderMap) -> Option<&str> {
    let own = headers.get(&OWN_KEY).and_then(|key| key.to_str().ok()).map(str::trim);
    own.or_else(|| presented_key(headers)).or_else(|| bedrock::signers_key(headers))
}

/// Whether a caller pays with a key of its own: beside ours, or where there are none of ours. Else everyone on this machine would pay with the
/// operator's.
fn pays_itself(headers: &HeaderMap, caller: &Caller) -> bool {
    // One of ours in both places pays for nothing.
    let is_providers = |key: &str| !key.starts_with("rg_");
    caller.is_anyone() || (headers.contains_key(&OWN_KEY) && presented_key(headers).is_some_and(is_providers))
}

/// Whether what a caller asks for at the provider is its own: it came with a key by which the provider knows it. Where none is needed, one
/// that is sent all the same says nothing.
fn asks_for_its_own(headers: &HeaderMap, caller: &Caller, upstream: Option<&Upstream>) -> bool {
    pays_itself(headers, caller) && (caller.is_anyone() || !upstream.is_some_and(wants_no_key))
}

/// Whether an upstream is asked without a key. One that stands on this machine may want none.
fn wants_no_key(upstream: &Upstream) -> bool {
    upstream.key_env.is_empty() && upstream.key_file.is_empty()
}

/// How long streams go on when the service stops, in less than the time that connections have.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Gateway {
    /// One that settles what streams once `stopping` turns true, and tells somebody of what is decided for its calls.
    pub fn new(stopping: watch::Receiver<bool>, hears: Arc<dyn Hears>) -> Self {
        Self { stopping: Some(stopping), hears: Some(hears), ..Self::default() }
    }

    /// Ready when the service stops, and streams have had their time.
    async fn has_to_stop(&self) {
        let Some(mut stopping) = self.stopping.clone() else { return std::future::pending().await };
        if stopping.wait_for(|is_stopping| *is_stopping).await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(LAST_WORDS).await;
    }

    /// Whether who pays so is served as usual where that is left to the provider, as far as its answers have said.
    fn serves_as_usual(&self, payer: Payer) -> bool {
        self.serving.is_as_usual(payer)
    }

    /// Of items that a question names: the most tokens of those that came by here, and how many documents the others may be.
    fn most_referred(&self, upstream: &str, question: &Question) -> (u64, u64) {
        if question.referred == Referred::default() {
            return (0, 0);
        }
        self.kept_items.lock().unwrap_or_else(PoisonError::into_inner).most(upstream, &question.referred)
    }

    /// An item that a question names and that was answered to another tenant alone.
    fn item_of_another<'a>(&self, upstream: &str, caller: &Caller, referred: &'a Referred) -> Option<&'a str> {
        if *referred == Referred::default() {
            return None;
        }
        self.kept_items.lock().unwrap_or_else(PoisonError::into_inner).of_another(upstream, &caller.tenant, referred)
    }

    /// Learns from an answer how its upstream serves what leaves that to it, and how long its items can be.
    fn learn(&self, upstream: &str, tenant: &Arc<str>, payer: Payer, question: &Question, account: &Account) {
        if let Some(usage) = account.usage.filter(|_| !account.items.is_empty()) {
            let mut kept = self.kept_items.lock().unwrap_or_else(PoisonError::into_inner);
            for name in &account.items {
                kept.remember(filed(upstream, name), usage.output_tokens, tenant);
            }
        }
        // What was asked for in words, or has one price, says nothing of how others are served.
        let served = account.usage.map(|usage| usage.service_tier);
        // One that nobody counted, and broke off, says so much at least.
        let served = served.or(account.served.filter(|tier| *tier == ServiceTier::Priority));
        if let Some(tier) = served.filter(|_| question.leaves_service_open) {
            self.serving.learn(payer, tier);
        }
    }

    /// Reads the keys of the providers that stand in files, so that what is wrong with them is said at the start.
    pub fn look_at_keys(&self, settings: &GatewaySettings) {
        for upstream in settings.upstreams.values().filter(|_| settings.enabled) {
            drop(self.key_of(upstream));
        }
    }

    /// The key that the operator pays an upstream with.
    fn key_of(&self, upstream: &Upstream) -> Option<String> {
        if !upstream.key_file.is_empty() {
            return self.keys.get(&upstream.key_file);
        }
        let key = std::env::var(&upstream.key_env).ok().filter(|_| !upstream.key_env.is_empty())?;
        Some(key.trim().to_owned()).filter(|key| !key.is_empty())
    }

    /// Whose key pays: the operator's where the caller came with one of ours in its place.
    fn credentials<'a>(
        &'a self,
        headers: &HeaderMap,
        caller: &Caller,
        passing: &'a Passing,
        settings: &'a GatewaySettings,
    ) -> Result<Credentials<'a>, Refusal> {
        if let Address::Bedrock(asked) = &passing.address {
            return bedrock::credentials(&self.aws, headers, caller, &passing.upstream, asked);
        }
        if pays_itself(headers, caller) {
            return Ok(Credentials::Callers);
        }
        let upstream = settings.upstreams.get(&passing.upstream);
        match (upstream, upstream.and_then(|upstream| self.key_of(upstream))) {
            (Some(upstream), Some(key)) => Ok(Credentials::Ours { key, header: &upstream.key_header }),
            (Some(upstream), None) if wants_no_key(upstream) => Ok(Credentials::Callers),
            (_, _) => Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                GatewayReason::NoProviderKey,
                format!(
                    "This gateway has no key for the provider. Put it into the environment variable that `gateway.upstreams.{name}.key_env` names or the file that `gateway.upstreams.{name}.key_file` does, or send your own in the usual header and RunGuard's in `x-runguard-key`.",
                    name = passing.upstream
                ),
            )),
        }
    }

    /// Answers a request to a provider. It is under way, for its caller's share, until it is answered, or the caller has gone: a stream, until it
    /// has all of it.
    pub async fn answer(
        self: Arc<Self>,
        engine: Arc<Engine>,
        caller: Arc<Caller>,
        mut share: Share,
        passing: Passing,
        request: Request<Bytes>,
    ) -> Reply {
        let dialect = passing.dialect;
        let is_metered = matches!(passing.kind, Kind::Metered(_));
        let asks = is_metered.then(|| self.retried.asks(request.headers(), &caller, &passing, request.body())).flatten();
        if let Some(asks) = &asks
            && let Some(reply) = self.retried.answer_of_first(asks).await
        {
            return reply;
        }
        let (answering, reply) = self.retried.begin(asks);
        let held = share.take_bytes();
        // Whoever leaves gives its place back; what is read on for nobody has none.
        let place = Arc::new(share);
        let under_way = Arc::downgrade(&place);
        let now = request.headers().get(NOW_HEADER).map(|value| Bytes::copy_from_slice(value.as_bytes()));
        // Boxed, so that it is not moved with all the room it needs later.
        tokio::spawn(Box::pin(async move {
            let trace = request.headers().get("traceparent").and_then(|header| TraceContext::parse(header.as_bytes()));
            let guards = Guards {
                engine,
                caller,
                now,
                call: PassedCall::default(),
                began: Instant::now(),
                trace,
                hears: self.hears.clone(),
                under_way,
            };
            let reply = self.handle(guards, &passing, request, &|| answering.is_left()).await;
            drop(held);
            // A caller who is gone needs no reply, unless it asks again; a stream notices it by itself.
            answering.answered(reply.unwrap_or_else(|refusal| refusal.into_reply(passing.dialect)));
        }));
        let reply = reply.taken().await.unwrap_or_else(|| {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, GatewayReason::Stopping, "The gateway is stopping. Try again.")
                .into_reply(dialect)
        });
        drop(place);
        reply
    }

    async fn handle(
        self: Arc<Self>,
        mut guards: Guards,
        passing: &Passing,
        request: Request<Bytes>,
        has_left: &(dyn Fn() -> bool + Sync),
    ) -> Result<Reply, Refusal> {
        let caller = &Arc::clone(&guards.caller);
        if !(caller.is_anyone() || caller.roles.contains(&Role::Guard)) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                GatewayReason::WrongKey,
                "This key may not ask models: it needs the role `guard`. Make one with `runguard key create --role guard`.",
            ));
        }
        let settings = guards.engine.settings.load_full();
        let (parts, mut body) = request.into_parts();
        let api = match passing.kind {
            Kind::Unmetered => {
                return Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    GatewayReason::RouteNotMetered,
                    format!(
                        "RunGuard does not know what {} {} costs, so it is not passed on: no cap could hold. Ask the provider directly.",
                        parts.method,
                        parts.uri.path()
                    ),
                ));
            }
            Kind::Free => {
                let credentials = self.credentials(&parts.headers, caller, passing, &settings.gateway)?;
                if !passing.is_everyones && !asks_for_its_own(&parts.headers, caller, settings.gateway.upstreams.get(&passing.upstream)) {
                    return Err(Refusal::new(
                        StatusCode::NOT_FOUND,
                        GatewayReason::RouteNotShared,
                        "With a key of RunGuard's only models can be listed here: what others left at the provider is not everyone's. Ask the provider directly.",
                    ));
                }
                // How long it is, and whether it is there at all, is nobody else's business.
                let refers = Members::read(&body).is_ok_and(|members| identity::refers(&members));
                if refers && !asks_for_its_own(&parts.headers, caller, settings.gateway.upstreams.get(&passing.upstream)) {
                    return Err(Refusal::new(
                        StatusCode::NOT_FOUND,
                        GatewayReason::RouteNotShared,
                        "With a key of RunGuard's what is kept at the provider cannot be counted: it is not everyone's. Send the conversation itself.",
                    ));
                }
                let response = send(passing.dialect, &passing.address.uri(), &parts, &credentials, body).await;
                return response.map(relay::untouched).map_err(|(refusal, _)| refusal);
            }
            Kind::Metered(api) => api,
        };
        if is_packed(&parts.headers) {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                GatewayReason::InvalidRequest,
                "The body is packed; send it as it is, so that it can be metered.",
            ));
        }
        if let Some(refusal) = identity::unreadable(&parts.headers) {
            return Err(refusal);
        }
        let reading = Reading { api, upstream: &passing.upstream, headers: &parts.headers, settings: &settings };
        let members = Members::read(&body).map_err(unreadable)?;
        let model = match passing.address.model() {
            Some(model) => model.to_owned(),
            None => question::model_of(&members).map_err(unreadable)?.into_owned(),
        };
        let mut question = reading.question(&guards, &passing.address, &model, &members).map_err(unreadable)?;
        // Answers have names of their own; a conversation has one as long as it lasts.
        let [previous, conversation] = if api == Api::Responses { identity::followed(&members).map_err(unreadable)? } else { [None, None] };
        let asks_for_its_own = asks_for_its_own(&parts.headers, caller, settings.gateway.upstreams.get(&passing.upstream));
        let follows = previous.clone().or_else(|| conversation.clone());
        let mut earlier = None;
        for name in [&previous, &conversation].into_iter().flatten() {
            match Box::pin(self.named(&guards, &filed(&passing.upstream, name))).await {
                Named::Known(answer) if follows.as_ref() == Some(name) => earlier = Some(answer),
                // The provider would tell it to whoever has the operator's key.
                Named::Foreign if !asks_for_its_own => return Err(not_theirs(name)),
                Named::Known(_) | Named::Unknown | Named::Foreign => {}
            }
        }
        if earlier.is_none()
            && let Some(name) = conversation.as_ref().filter(|_| previous.is_none())
            && let Named::Known(answer) = Box::pin(self.named(&guards, &filed_of_caller(&passing.upstream, caller, name))).await
        {
            earlier = Some(answer);
        }
        if let Some(name) = self.item_of_another(&passing.upstream, caller, &question.referred).filter(|_| !asks_for_its_own) {
            return Err(Refusal::new(StatusCode::NOT_FOUND, GatewayReason::NotFound, format!("Item with id '{name}' not found.")));
        }
        let today = guards.now().map_or_else(String::new, |now| Zone::UTC.date(now));
        let follows = match (&earlier, &follows) {
            (Some(earlier), _) => Follows::Run(&earlier.run),
            (None, Some(name)) => Follows::Unknown(name),
            (None, None) => Follows::Nothing,
        };
        let mut found_again = FoundAgain::new(&passing.upstream, caller, conversation, earlier.as_deref());
        let run = match identity::run_of(&parts.headers, api, &members, &caller.key_id, &today, follows) {
            Says::Name(run) => run,
            // What the provider does not keep can only be sent whole.
            Says::Begins(begins) if api != Api::Responses || members.get("store") == Some("false") => begins.alike(),
            Says::Begins(begins) => Box::pin(self.run_of_beginning(&guards, &begins, &parts.headers, &members, &mut found_again)).await,
        };
        guards.call = PassedCall {
            upstream: passing.upstream.as_str().into(),
            found_by: run.found_by.name().into(),
            operation: api.operation().into(),
            ..PassedCall::default()
        };
        let before = match follows {
            Follows::Nothing => Before::default(),
            Follows::Unknown(name) => Before { name, ..Before::default() },
            Follows::Run(_) => earlier.as_ref().map(|earlier| earlier.before()).unwrap_or_default(),
        };
        let of_runs = settings.policies.for_tenant(&caller.tenant).agent_run.for_subject(&model);
        let steps = history::steps(api, &members, before, of_runs.settings.stall.volatile());
        drop(members);
        let credentials = self.credentials(&parts.headers, caller, passing, &settings.gateway)?;
        let asking = Asking {
            gateway: &self,
            passing,
            parts: &parts,
            credentials: &credentials,
            run: &run,
            settings: &settings,
            earlier: earlier.as_deref(),
            found_again: &found_again,
            has_left,
        };
        let (circles, followed) = match follow(&guards, &run, &question, steps, follows == Follows::Nothing).await {
            Ok(followed) => followed,
            Err(refusal) => {
                self.not_answered(&found_again);
                return Ok(asking.refuse(refusal, &question));
            }
        };
        if let Some(circles) = circles.as_ref().filter(|_| settings.gateway.on_loop == OnLoop::Nudge)
            && let Some(told) = circles.tell(api, &body)
        {
            body = told;
            let members = Members::read(&body).map_err(unreadable)?;
            question = reading.question(&guards, &passing.address, &model, &members).map_err(unreadable)?;
        }
        let first = Candidate { model: model.clone(), address: passing.address.clone(), question, body: body.clone() };
        let reply = ask_each(&asking, guards, first, &reading, &body).await;
        became_safe(AGENT_RUN, followed).await;
        if has_left() || !reply.status().is_success() {
            self.not_answered(&found_again);
        }
        Ok(match circles {
            Some(circles) => circles.said_in(reply),
            None => reply,
        })
    }
}

/// An answer, or a conversation, that is another tenant's: as the provider says it of one that there is not.
fn not_theirs(name: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, GatewayReason::PreviousResponseNotFound, format!("Previous response with id '{name}' not found."))
}

/// How a refusal is told: as the provider would say it or, where the run is over and settings want it so, as a last answer.
fn refused(refusal: Refusal, question: &Question, on_stop: OnStop, run: &str) -> Reply {
    match on_stop {
        OnStop::Answer if is_end(&refusal) => relay::last_answer(question, &refusal, run),
        OnStop::Error | OnStop::Answer => refusal.into_reply(question.api.dialect()),
    }
}

/// Whether a refusal ends a run; a mistake in the question does not.
fn is_end(refusal: &Refusal) -> bool {
    [Reason::BudgetExceeded, Reason::CallCapReached, Reason::RunStalled, Reason::RunStopped]
        .iter()
        .any(|reason| reason.code() == refusal.code)
        && refusal.status == StatusCode::PAYMENT_REQUIRED
}

/// Asks the model that is wanted and, while that one cannot be asked, those that may answer instead. Who answered is said where somebody else
/// could have.
async fn ask_each(asking: &Asking<'_>, guards: Guards, first: Candidate, reading: &Reading<'_>, body: &Bytes) -> Reply {
    let wanted = first.model.clone();
    let fallbacks = asking.settings.gateway.fallbacks_of(&wanted);
    // Boxed, so that those who wait for it are not moved with all the room it needs.
    let unavailable = match Box::pin(asking.attempt(guards.clone(), first)).await {
        Attempt::Answered(reply) if fallbacks.is_empty() => return reply,
        Attempt::Answered(reply) => return answered_by(reply, &wanted),
        Attempt::Refused(reply) => return reply,
        Attempt::Unavailable(reply) => reply,
    };
    for model in fallbacks {
        let mut guards = guards.clone();
        guards.call.instead_of = wanted.as_str().into();
        let Some(candidate) = reading.candidate(&guards, &asking.passing.address, model, body) else { continue };
        match Box::pin(asking.attempt(guards, candidate)).await {
            // One that the provider does not know, or that does not understand this question: nothing was answered, so nothing is paid.
            Attempt::Answered(reply) if reply.status().is_client_error() => {}
            Attempt::Answered(reply) => return answered_by(reply, model),
            // It would be dearer than is allowed, or cannot be asked either.
            Attempt::Refused(_) | Attempt::Unavailable(_) => {}
        }
    }
    unavailable
}

fn answered_by(mut reply: Reply, model: &str) -> Reply {
    if let Ok(model) = HeaderValue::from_str(model) {
        reply.headers_mut().insert("x-runguard-model", model);
    }
    reply
}

/// What must be known to read a question.
struct Reading<'a> {
    api: Api,
    upstream: &'a str,
    headers: &'a HeaderMap,
    settings: &'a Settings,
}

impl Reading<'_> {
    /// The question to a model, which may be known by another name than it is asked by.
    fn question(&self, guards: &Guards, address: &Address, model: &str, body: &Members<'_>) -> Result<Question, BadBody> {
        let named = self.settings.gateway.upstreams.get(self.upstream).and_then(|upstream| upstream.models.get(model));
        let named = named.map_or(model, String::as_str);
        let known_as = KnownAs { model: Cow::Borrowed(named), priced: guards.priced_as(named) };
        match address {
            Address::Bedrock(asked) => bedrock::question(asked, &known_as, self.headers, body),
            Address::Fixed(_) | Address::Deployment { .. } => {
                let mut question = Question::read(self.api, &known_as, body)?;
                if let Some(upstream) = self.settings.gateway.upstreams.get(self.upstream) {
                    question.bound_by(upstream::length_field(upstream, named), body);
                }
                Ok(question)
            }
        }
    }

    /// The same question to another model; nothing where that one would not understand it.
    fn candidate(&self, guards: &Guards, address: &Address, model: &str, body: &Bytes) -> Option<Candidate> {
        let address = address.with_model(model)?;
        let members = Members::read(body).ok()?;
        let body = match &address {
            Address::Bedrock(_) => body.clone(),
            Address::Deployment { .. } if members.get("model").is_none() => body.clone(),
            Address::Fixed(_) | Address::Deployment { .. } => members.set("model", &serde_json::Value::from(model).to_string()).into(),
        };
        let question = self.question(guards, &address, model, &Members::read(&body).ok()?).ok()?;
        Some(Candidate { model: model.to_owned(), address, question, body })
    }
}

fn unreadable(error: BadBody) -> Refusal {
    Refusal::bad_request(format!("{error}."))
}

/// Signs that a run goes round in circles, before it is stopped for them or where that is only observed.
#[derive(Debug)]
struct Circles {
    /// Which sign, and how often.
    seen: String,
    /// A sentence for the model.
    nudge: String,
}

impl Circles {
    /// The question with the sentence behind the latest result.
    fn tell(&self, api: Api, body: &Bytes) -> Option<Bytes> {
        let members = Members::read(body).ok()?;
        history::nudge::append(api, &members, &self.nudge).filter(|_| !self.nudge.is_empty()).map(Bytes::from)
    }

    fn said_in(&self, mut reply: Reply) -> Reply {
        if let Ok(seen) = HeaderValue::from_str(&self.seen) {
            reply.headers_mut().insert("x-runguard-loop", seen);
        }
        reply
    }
}

/// The guard that hears what a run did.
const AGENT_RUN: &str = "/guard/agent-run";

#[derive(Default, Deserialize)]
#[serde(default)]
struct HowARunStands {
    allow: Option<bool>,
    reason: Option<String>,
    message: Option<String>,
    rule: Option<String>,
    count: Option<u64>,
    nudge: Option<String>,
}

/// Tells the guard what the run did, and hears whether it gets anywhere. What it says of a run that goes on need not be safe before the money is
/// set aside: that is written behind it, and no sooner safe.
async fn follow(
    guards: &Guards,
    run: &RunName,
    question: &Question,
    steps: Vec<serde_json::Value>,
    whole: bool,
) -> Result<(Option<Circles>, Safe), Refusal> {
    // Of the question, as long as it usually is.
    let tokens = question.prompt.usual_tokens();
    let did = [
        ("session_id", run.name.as_str().into()),
        ("model", question.model.as_str().into()),
        ("steps", serde_json::Value::Array(steps)),
        ("whole", whole.into()),
        ("tokens", tokens.into()),
    ];
    // Nobody who is away stops a run: money has a guard of its own.
    let Some((answer, safe)) = guards.decide(AGENT_RUN, &did).await else { return Ok((None, Safe::default())) };
    let stands: HowARunStands = serde_json::from_str(&answer).unwrap_or_default();
    if stands.allow == Some(false) {
        if became_safe(AGENT_RUN, safe).await {
            return Err(Refusal::stop(stands.reason.unwrap_or_default(), stands.message.unwrap_or_default()));
        }
        return Ok((None, Safe::default()));
    }
    let circles = stands
        .rule
        .filter(|rule| !rule.is_empty())
        .map(|rule| Circles { seen: format!("{rule} {}", stands.count.unwrap_or_default()), nudge: stands.nudge.unwrap_or_default() });
    Ok((circles, safe))
}

/// What the caller may want to know beside the provider's answer.
fn with_run(mut reply: Reply, run: &RunName, books: Option<&Books>) -> Reply {
    let headers = reply.headers_mut();
    let mut say = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    say("x-runguard-run", run.name.clone());
    say("x-runguard-run-by", run.found_by.name().to_owned());
    if let Some(books) = books {
        say("x-runguard-spent-usd", format!("{:.6}", books.spent_usd));
        say("x-runguard-reserved-usd", format!("{:.6}", books.reserved_usd));
        if let Some(left) = books.remaining_usd {
            say("x-runguard-remaining-usd", format!("{left:.6}"));
        }
        if !books.decision_id.is_empty() {
            say("x-runguard-decision", books.decision_id.clone());
        }
    }
    reply
}

fn with_length(mut reply: Reply, shortened: Option<u64>, is_estimated: bool) -> Reply {
    if let Some(tokens) = shortened {
        reply.headers_mut().insert("x-runguard-max-output", HeaderValue::from(tokens));
    }
    if is_estimated {
        reply.headers_mut().insert("x-runguard-estimated", HeaderValue::from_static("true"));
    }
    reply
}
