//! One question to one model: is it let through, is it paid for, what came of it.

use crate::answer;
use crate::beginning::FoundAgain;
use crate::circuit::{Circuit, is_unavailable};
use crate::dearer::Times;
use crate::earlier::Answer;
use crate::identity::RunName;
use crate::money::{Guards, NotSetAside, SetAside, Wanted};
use crate::passing::Passing;
use crate::pieces::{self, Events};
use crate::question::Question;
use crate::refusal::Refusal;
use crate::relay::{self, Passed, ToldLater};
use crate::serving::Payer;
use crate::upstream::{self, Address, Credentials};
use crate::{Gateway, MOST_ANSWER_BYTES, OWN_KEY, api::Dialect, refused, with_length, with_run};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use runguard_core::Reason;
use runguard_core::breaker::Phase;
use runguard_core::prices::{Prompt, USUAL_BYTES_A_TOKEN, Usage};
use runguard_core::reason::GatewayReason;
use runguard_core::run::Used;
use runguard_engine::settings::Settings;
use runguard_http::client::causes;
use runguard_http::reply::Reply;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a provider may take to begin its answer.
const BEGINS: Duration = Duration::from_secs(600);
/// An answer that is cut shorter than this is not worth having, unless it was asked for so short.
const SHORTEST_CUT: u64 = 256;

/// What all attempts at one question share.
pub(crate) struct Asking<'a> {
    pub(crate) gateway: &'a Arc<Gateway>,
    pub(crate) passing: &'a Passing,
    pub(crate) parts: &'a Parts,
    pub(crate) credentials: &'a Credentials<'a>,
    pub(crate) run: &'a RunName,
    pub(crate) settings: &'a Arc<Settings>,
    /// The answer that the question follows.
    pub(crate) earlier: Option<&'a Answer>,
    /// What its answer will be found by.
    pub(crate) found_again: &'a FoundAgain,
    pub(crate) has_left: &'a (dyn Fn() -> bool + Sync),
}

/// A model that may answer.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// What the provider calls it.
    pub(crate) model: String,
    pub(crate) address: Address,
    pub(crate) question: Question,
    pub(crate) body: Bytes,
}

/// What came of asking a model.
pub(crate) enum Attempt {
    Answered(Reply),
    /// It was not asked: what it costs stands against it, or the caller has gone.
    Refused(Reply),
    /// It cannot be asked just then, or has no room. Nothing was paid.
    Unavailable(Reply),
}

/// Whether a question that failed may have been paid for, and by whose fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was never sent.
    NotSent,
    /// Nobody took it.
    Unreachable,
    Unknown,
}

/// What an answer in one piece tells of the provider. Some tell of a mistake though the status says that all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It has the status that it came with.
    Answer(StatusCode),
    /// Nothing but a mistake.
    Instead(StatusCode),
    /// It broke off, or failed after something was answered or counted.
    Failed(StatusCode),
}

impl Told {
    const fn status(self) -> StatusCode {
        match self {
            Self::Answer(status) | Self::Instead(status) | Self::Failed(status) => status,
        }
    }
}

impl Asking<'_> {
    /// Asks one model.
    pub(crate) async fn attempt(&self, mut guards: Guards, candidate: Candidate) -> Attempt {
        let Candidate { model, address, mut question, body } = candidate;
        question.times_the_price = self.times_the_price(&question);
        question.most_prompt = self.most_read(&question);
        guards.call.unmetered = question.unmetered.unwrap_or_default().into();
        let circuit_guards = guards.clone();
        let new = || Circuit::new(&circuit_guards, &self.gateway.lately, &self.passing.upstream, &model, &self.run.name);
        let circuit = self.settings.gateway.circuits.then(new);
        let (phase, mut permit) = match &circuit {
            None => (Phase::Closed, None),
            Some(circuit) => match circuit.phase().await {
                Phase::Open => match circuit.enter().await {
                    Ok(permit) => (Phase::Closed, permit),
                    Err(refusal) => return Attempt::Unavailable(self.refuse(refusal, &question)),
                },
                phase @ (Phase::Closed | Phase::HalfOpen) => (phase, None),
            },
        };
        let set_aside = match self.set_aside(&guards, &question).await {
            Ok(set_aside) => set_aside,
            Err(refusal) => return Attempt::Refused(self.refuse(refusal, &question)),
        };
        if (self.has_left)() {
            Box::pin(self.gateway.runs.settle(&guards, set_aside, Used::Nothing)).await;
            return Attempt::Refused(self.refuse(Refusal::bad_request("The caller has gone."), &question));
        }
        // Whoever tests it has the money for it: else nobody would, for a while.
        if let Some(circuit) = circuit.as_ref().filter(|_| phase == Phase::HalfOpen) {
            permit = match circuit.enter().await {
                Ok(permit) => permit,
                Err(refusal) => {
                    guards.call.refused = refusal.code.as_str().into();
                    Box::pin(self.gateway.runs.settle(&guards, set_aside, Used::Nothing)).await;
                    return Attempt::Unavailable(self.refuse(refusal, &question));
                }
            };
        }
        let shortened = set_aside.max_output().map(|output| question.times_the_price.written_for(output));
        // Where nothing is limited the question stays as it is.
        let is_limited = set_aside.books.is_limited();
        let bound = shortened.or_else(|| (is_limited && !question.says_length).then(|| question.longest()));
        let paid_output = shortened.or(question.max_output).or(bound).filter(|_| is_limited);
        let began = Instant::now();
        let sent = match question.prepare(&body, bound) {
            Ok(prepared) => send(self.passing.dialect, &address.uri(), self.parts, self.credentials, prepared).await,
            Err(error) => Err((Refusal::bad_request(format!("{error}.")), Outcome::NotSent)),
        };
        let head = sent.as_ref().map(|response| (response.status(), response.headers()));
        // How an answer begins is not how it goes on: of one that began well the circuit hears later.
        let began_well = head.is_ok_and(|(status, headers)| status.is_success() && !is_packed(headers));
        let is_stream = began_well && head.is_ok_and(|(_, headers)| is_event_stream(self.passing.dialect, headers));
        let (took, is_own_key) = (began.elapsed(), self.brings_own_key());
        if let Some(circuit) = circuit.as_ref().filter(|_| !began_well && !matches!(sent, Err((_, Outcome::NotSent)))) {
            circuit.answered(permit.take(), head.ok(), took, is_own_key).await;
        }
        let response = match sent {
            Ok(response) => response,
            Err((refusal, outcome)) => {
                let worst = question.worst(paid_output);
                let used = match outcome {
                    Outcome::NotSent | Outcome::Unreachable => Used::Nothing,
                    Outcome::Unknown => Used::Counted { model: None, usage: &worst },
                };
                Box::pin(self.gateway.runs.settle(&guards, set_aside, used)).await;
                let reply = self.refuse(refusal, &question);
                return if outcome == Outcome::Unreachable { Attempt::Unavailable(reply) } else { Attempt::Answered(reply) };
            }
        };
        if response.status().is_redirection() || is_packed(response.headers()) {
            let worst = question.worst(paid_output);
            let used = if response.status().is_success() { Used::Counted { model: None, usage: &worst } } else { Used::Nothing };
            Box::pin(self.gateway.runs.settle(&guards, set_aside, used)).await;
            let refusal = Refusal::new(
                StatusCode::BAD_GATEWAY,
                GatewayReason::UnreadableAnswer,
                "The provider answered with a redirection, or with a packed answer though none was asked for: it cannot be metered, and is not passed on.",
            );
            return Attempt::Answered(self.refuse(refusal, &question));
        }
        let status = response.status();
        let when_caller_leaves = self.settings.gateway.when_caller_leaves;
        let mut passed = Box::new(Passed {
            question,
            run: self.run.clone(),
            set_aside,
            guards,
            when_caller_leaves,
            paid_output,
            shortened,
            circuit: None,
            found_again: self.found_again.clone(),
            payer: self.payer(),
        });
        if is_stream {
            let (head, body) = response.into_parts();
            let mut events = Events::of(passed.question.api, body);
            let first = tokio::select! {
                first = events.first() => first,
                () = self.is_left() => None,
            };
            let took = began.elapsed();
            // Said before anything was passed on, it is as good as the status that it would have been.
            if let Some(mistake) = first.and_then(|first| answer::mistake(passed.question.api, &first)) {
                if let Some(circuit) = &circuit {
                    circuit.answered(permit.take(), Some((mistake, &head.headers)), took, is_own_key).await;
                }
                let reply = Box::pin(self.nothing_answered(passed, head, events)).await;
                return if is_unavailable(mistake) { Attempt::Unavailable(reply) } else { Attempt::Answered(reply) };
            }
            let is_told = permit.is_some();
            if let Some(circuit) = circuit.as_ref().filter(|_| is_told) {
                circuit.answered(permit.take(), Some((status, &head.headers)), took, is_own_key).await;
            }
            passed.circuit = circuit.is_some().then_some(ToldLater { model, took, is_own_key, is_told });
            return Attempt::Answered(relay::stream(Arc::clone(self.gateway), passed, head, events));
        }
        let (reply, told) = Box::pin(self.whole(passed, response)).await;
        if let Some(circuit) = circuit.as_ref().filter(|_| began_well) {
            circuit.answered(permit.take(), Some((told.status(), &HeaderMap::new())), took, is_own_key).await;
        }
        match told {
            // Nothing was answered, so nothing was paid.
            Told::Instead(mistake) if is_unavailable(mistake) => Attempt::Unavailable(reply),
            Told::Answer(status) if is_unavailable(status) => Attempt::Unavailable(reply),
            Told::Answer(_) | Told::Instead(_) | Told::Failed(_) => Attempt::Answered(reply),
        }
    }

    /// Waits until the caller has gone.
    async fn is_left(&self) {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        while !(self.has_left)() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// A stream that has nothing but a mistake in it, as it came: nothing was answered, so nothing is paid.
    async fn nothing_answered(&self, passed: Box<Passed>, head: http::response::Parts, events: Events) -> Reply {
        let books = self.gateway.runs.settle(&passed.guards, passed.set_aside, Used::Nothing).await;
        let mut reply: Reply = Response::from_parts(head, Either::Left(Full::new(relay::all_of(events).await)));
        *reply.headers_mut() = upstream::without_hop(reply.headers());
        with_run(reply, &passed.run, Some(&books))
    }

    /// A refusal as the caller hears it.
    pub(crate) fn refuse(&self, refusal: Refusal, question: &Question) -> Reply {
        tracing::info!(
            run = self.run.name,
            found_by = self.run.found_by.name(),
            model = question.model,
            reason = refusal.code,
            "a question was refused"
        );
        with_run(refused(refusal, question, self.settings.gateway.on_stop, &self.run.name), self.run, None)
    }

    /// Whether the caller came with a key of the provider's beside one of ours.
    fn brings_own_key(&self) -> bool {
        matches!(self.credentials, Credentials::Callers) && self.parts.headers.contains_key(&OWN_KEY)
    }

    /// The most tokens that the model reads. All of which nobody here knows how much it is has together no more than the model reads.
    fn most_read(&self, question: &Question) -> u64 {
        let before = self.earlier.and_then(|earlier| earlier.tokens).filter(|_| question.follows);
        let (referred, unknown) = self.gateway.most_referred(&self.passing.upstream, question);
        let is_unseen = question.documents > 0 || unknown > 0 || (question.follows && before.is_none());
        let unseen = if is_unseen { question.longest_unseen } else { 0 };
        [before.unwrap_or(0), referred, unseen, question.added].into_iter().fold(question.most_prompt, u64::saturating_add)
    }

    /// What leaves to the provider how it is served is taken for as dear as it can be, until that provider has said how it serves.
    fn times_the_price(&self, question: &Question) -> Times {
        if self.gateway.serves_as_usual(self.payer()) { question.times_the_price } else { question.times_if_first }
    }

    /// Whoever a provider knows by one key, and by the project of it that is named, it serves alike.
    pub(crate) fn payer(&self) -> Payer {
        let own = matches!(self.credentials, Credentials::Callers).then(|| upstream::presented_key(&self.parts.headers)).flatten();
        Payer::new(&self.passing.upstream, own, &upstream::project(&self.parts.headers, self.credentials))
    }

    async fn set_aside(&self, guards: &Guards, question: &Question) -> Result<SetAside, Refusal> {
        let times = question.times_the_price;
        // As many bytes as even the usual rule makes so many tokens of: what is set aside is never what is only usual.
        let bytes = times.of_read(question.most_prompt).saturating_mul(USUAL_BYTES_A_TOKEN);
        let wanted = Wanted {
            model: &question.model,
            prompt: Prompt::of_bytes(bytes),
            max_output: times.of_written(question.longest()),
            shortest: times.of_written(shortest(question)),
            longest: question.longest(),
            longest_prompt: question.most_prompt,
            choices: question.choices,
            patience: Duration::from_millis(self.settings.gateway.patience.as_millis()),
        };
        self.gateway.runs.set_aside(guards, &self.run.name, wanted).await.map_err(|refused| match refused {
            NotSetAside::Refused { code, message } if code == Reason::UnknownModel.code() => {
                let (upstream, model) = (&self.passing.upstream, &question.model);
                Refusal::stop(
                    code,
                    format!(
                        "{message} In the settings: `guards.budget.unknown_models` for all of them, or `gateway.upstreams.{upstream}.models.\"{model}\" = \"gpt-4o\"` where this one is another's deployment."
                    ),
                )
            }
            NotSetAside::Refused { code, message } => Refusal::stop(code, message),
            NotSetAside::Busy { code, message } => Refusal::busy(&code, &message),
            NotSetAside::Unavailable => Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Reason::StateUnavailable,
                "RunGuard cannot say how the budget stands, so the question is not passed on. Try again shortly.",
            ),
        })
    }

    /// An answer that comes in one piece.
    async fn whole(&self, mut passed: Box<Passed>, response: Response<Incoming>) -> (Reply, Told) {
        let set_aside = passed.set_aside;
        let (question, run, guards, found_again) = (&passed.question, &passed.run, &mut passed.guards, &passed.found_again);
        let (shortened, paid_output, payer) = (passed.shortened, passed.paid_output, passed.payer);
        let (head, body) = response.into_parts();
        let Some(body) = pieces::whole(body, MOST_ANSWER_BYTES).await else {
            let worst = question.worst(paid_output);
            let used = if head.status.is_success() { Used::Counted { model: None, usage: &worst } } else { Used::Nothing };
            self.gateway.runs.settle(guards, set_aside, used).await;
            let refusal = Refusal::new(
                StatusCode::BAD_GATEWAY,
                GatewayReason::BrokenAnswer,
                "The provider's answer broke off. What it may have cost was booked.",
            );
            let told = if head.status.is_success() { Told::Failed(StatusCode::BAD_GATEWAY) } else { Told::Answer(head.status) };
            return (self.refuse(refusal, question), told);
        };
        let account = answer::read(question.api, &head.headers, &body).whole_within(most_output(question, paid_output));
        let names = if head.status.is_success() { found_again.names(&account) } else { Vec::new() };
        account.tell(&mut guards.call, &names);
        self.gateway.learn(&self.passing.upstream, &guards.caller.tenant, payer, question, &account);
        let mut counted = Usage::default();
        let told = match account.mistake.filter(|_| head.status.is_success()) {
            Some(mistake) if account.usage.is_none() && account.bytes == 0 => Told::Instead(mistake),
            Some(mistake) => Told::Failed(mistake),
            None => Told::Answer(head.status),
        };
        let is_paid = head.status.is_success() && !matches!(told, Told::Instead(_));
        let used = if is_paid { account.used(question, paid_output, &mut counted) } else { Used::Nothing };
        let is_estimated = is_paid && account.is_estimated();
        let books = self.gateway.runs.settle(guards, set_aside, used).await;
        self.gateway.remember(guards, &account, &run.name, &names, found_again).await;
        let mut reply: Reply = Response::from_parts(head, Either::Left(Full::new(body)));
        *reply.headers_mut() = upstream::without_hop(reply.headers());
        (with_run(with_length(reply, shortened, is_estimated), run, Some(&books)), told)
    }
}

/// The shortest answer that is worth having: it has something beside what the model thinks.
fn shortest(question: &Question) -> u64 {
    SHORTEST_CUT.min(question.max_output.unwrap_or(u64::MAX)).max(question.thinking.saturating_add(1))
}

/// The most tokens that all answers to a question may have together, where that is limited.
pub(crate) fn most_output(question: &Question, paid_output: Option<u64>) -> Option<u64> {
    paid_output.map(|output| output.saturating_mul(question.choices))
}

/// Sends a question as it is.
pub(crate) async fn send(
    dialect: Dialect,
    uri: &str,
    parts: &Parts,
    credentials: &Credentials<'_>,
    body: Bytes,
) -> Result<Response<Incoming>, (Refusal, Outcome)> {
    let unsent = |message: String| (Refusal::new(StatusCode::BAD_GATEWAY, GatewayReason::NotSent, message), Outcome::NotSent);
    let connections = upstream::connections().map_err(unsent)?;
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() =
        uri.parse().map_err(|_| (Refusal::bad_request("The path has characters that no address can have."), Outcome::NotSent))?;
    *request.headers_mut() = upstream::travelling(&parts.headers, dialect, credentials).map_err(unsent)?;
    if let Credentials::Aws { signer, region } = credentials {
        let signed = signer.sign(region, uri, request.headers_mut(), &body);
        signed.map_err(|problem| unsent(format!("The question cannot be signed for Bedrock: {problem}.")))?;
    }
    let Ok(answered) = tokio::time::timeout(BEGINS, connections.request(request)).await else {
        let message = "The provider did not begin to answer within ten minutes.";
        return Err((Refusal::new(StatusCode::GATEWAY_TIMEOUT, GatewayReason::ProviderSlow, message), Outcome::Unknown));
    };
    let answered = answered.map_err(|error| {
        let outcome = if error.is_connect() { Outcome::Unreachable } else { Outcome::Unknown };
        let host = uri.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let message = format!("The provider at {host} did not answer: {}.", causes(&error));
        (Refusal::new(StatusCode::BAD_GATEWAY, GatewayReason::ProviderAway, message), outcome)
    })?;
    // Nobody asked for another protocol, and what comes in it is no answer. Whoever was told of it would wait for one.
    if answered.status().is_informational() {
        let message = format!("The provider answered with {}, which is no answer.", answered.status());
        return Err((Refusal::new(StatusCode::BAD_GATEWAY, GatewayReason::UnreadableAnswer, message), Outcome::Unreachable));
    }
    Ok(answered)
}

/// Whether a body comes in a form that nobody here looks into.
pub(crate) fn is_packed(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|encoding| encoding != "identity")
}

fn is_event_stream(dialect: Dialect, headers: &HeaderMap) -> bool {
    let kind_of_stream = match dialect {
        Dialect::OpenAi | Dialect::Anthropic => "text/event-stream",
        Dialect::Bedrock => pieces::FRAMES,
    };
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with(kind_of_stream))
}
