//! What can happen to a service: any request of any route, an operator's word, an erasure, other settings, somebody who looks.

use proptest::prelude::*;
use proptest::sample::select;
use runguard_core::GuardName;
use runguard_guards::answer::Shape;
use runguard_guards::guard::api_circuit::Control;
use runguard_guards::guard::{ROUTES, Route};
use serde_json::{Value, json};

pub(crate) const TENANTS: [&str; 2] = ["acme", "ключ"];
/// Few, so that requests meet; some that a database could take amiss. The last one is a parent, and hardly speaks itself.
pub(crate) const SESSIONS: [&str; 5] = ["a", "b", "команда 🤖", "n\0l", "team"];
const SUBJECTS: [&str; 4] = ["x", "y", "naïve\u{7f}\"'%_\\", "x\0y"];
const ENDPOINTS: [&str; 3] = ["api", "api\0eu", "注文"];
const KEYS: [&str; 4] = ["k1", "k2", "k\0", "ключ"];
const TEXTS: [&str; 7] =
    ["how do refunds work", "how do the refunds work", "ORD-12345678", "john at example dot com", "three two one", "", "\u{0}\u{1F600}"];

/// Settings that are taken over while the service runs.
pub(crate) const SETTINGS: [&str; 6] = [
    "",
    "[guards.budget]\nmax_usd = 2.0\ncap = 3\n[guards.api_circuit]\nfailure_threshold = 2\n[guards.loop]\nmax_calls = 3\n",
    "[guards.handoff]\nmode = \"observe\"\n[guards.ai_task_retry]\nmode = \"off\"\n[guards.api_circuit]\nmode = \"observe\"\nfailure_threshold = 3\n",
    "[log]\nstore_text = \"none\"\n[guards.ai_task_retry.rules]\ninput_missing_prerequisite_signal = \"observe\"\n",
    "[log]\nstore_text = \"full\"\n[guards.agent_action]\nmax_total = 3\npolling = [\"x\"]\n[guards.kb_requery.voiceflow]\ntopic_match = \"exact\"\n",
    "[tenants.acme.guards.no_match_reprompt]\nmax_reprompts = 1\n[guards.stall]\nmode = \"observe\"\n[guards.tool_call]\nmode = \"off\"\n",
];

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) tenant: &'static str,
    pub(crate) route: usize,
    pub(crate) body: Value,
    pub(crate) key: Option<&'static str>,
    pub(crate) shape: Shape,
    /// Takes the permit or the reservation of an earlier answer, counted from the latest.
    pub(crate) refers: Option<usize>,
}

impl Request {
    pub(crate) fn route(&self) -> &'static Route {
        ROUTES[self.route]
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Sight {
    /// Rows page by page, and what they did to states.
    Rows {
        filter: usize,
        tenant: Option<&'static str>,
        page: usize,
    },
    Session {
        tenant: &'static str,
        session: &'static str,
    },
    Circuits {
        tenant: Option<&'static str>,
    },
    Stats {
        tenant: Option<&'static str>,
        guard: Option<&'static str>,
        minutes: i64,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Ask(Request),
    /// An earlier request with a key, once more; counted from the latest.
    Again(usize),
    Control {
        tenant: &'static str,
        endpoint: &'static str,
        control: Control,
    },
    Erase {
        tenant: &'static str,
        session: &'static str,
    },
    Settings(usize),
    Look(Sight),
}

/// What a request is made of.
#[derive(Debug, Clone, Copy)]
struct Stuff {
    route: usize,
    tenant: &'static str,
    session: &'static str,
    subject: &'static str,
    endpoint: &'static str,
    text: &'static str,
    twentieths: u32,
    flag: bool,
    other: bool,
    number: u64,
    refers: usize,
    key: Option<&'static str>,
    way: usize,
}

fn stuff() -> impl Strategy<Value = Stuff> {
    let names = (select(&TENANTS[..]), select(&SESSIONS[..]), select(&SUBJECTS[..]), select(&ENDPOINTS[..]), select(&TEXTS[..]));
    let values = (0_u32..=20, any::<bool>(), any::<bool>(), 0_u64..3, 0_usize..4);
    let ways = (prop::option::weighted(0.25, select(&KEYS[..])), 0_usize..8);
    (0..ROUTES.len(), names, values, ways).prop_map(|(route, names, values, (key, way))| {
        let (tenant, session, subject, endpoint, text) = names;
        let (twentieths, flag, other, number, refers) = values;
        Stuff { route, tenant, session, subject, endpoint, text, twentieths, flag, other, number, refers, key, way }
    })
}

fn request(stuff: Stuff) -> Request {
    let Stuff { route, tenant, session, subject, endpoint, text, twentieths, flag, other, number, refers, key, way } = stuff;
    let share = f64::from(twentieths) / 20.0;
    let path = ROUTES[route].path;
    let mut body = json!({
        "session_id": session, "task_name": if flag { "extract_order_number" } else { subject }, "user_message": text,
        "validation_error": other.then_some(text), "source_bot": "o", "target_bot": subject, "topic_hash": subject, "query_text": text,
        "last_confidence": share, "query": if text.is_empty() { "x" } else { text }, "prior_confidence": flag.then_some(share),
        "confidence_score": share, "retrieved_chunks": number, "action_name": subject, "action_params": {"n": number, "a": [subject]},
        "result_summary": text, "error": flag, "step_id": if flag { "capture_email" } else { subject }, "user_utterance": text,
        "capture_step": subject, "entity_type": if flag { "email" } else { "phone" }, "endpoint_key": endpoint,
        "outcome": if flag && other { "success" } else { "failure" }, "latency_ms": number * 400, "tool": subject, "args": {"q": number},
        "result": number, "action_group": subject, "function": "f", "parameters": number / 2, "failed": flag, "turn_id": number.to_string(),
        "usd": share, "tokens": number * 1000, "key": flag.then_some(subject), "round": twentieths.to_string(), "message": text,
    });
    if path == "/guard/stall" {
        body["error"] = if flag { "no such file".into() } else { Value::Null };
    }
    if path.starts_with("/guard/loop") && other {
        body["window_seconds"] = 600.into();
        body[if flag { "max_calls" } else { "repeats" }] = 2.into();
    }
    if path.starts_with("/guard/budget") {
        if other {
            body["parent"] = if session == "team" { "b" } else { "team" }.into();
        }
        body["budget"] = [Value::Null, "b\0c".into(), "credits".into()][number as usize].clone();
        body["max_usd"] = if flag { 2.5.into() } else { Value::Null };
        body["reservation_id"] = "unknown".into();
    }
    let known = |name: &str| ROUTES[route].fields.iter().any(|field| field.name == name);
    let members = body.as_object_mut().unwrap();
    members.retain(|name, value| known(name) && !value.is_null());
    ROUTES[route].complete(members);
    if way == 0 {
        members.insert("typo".into(), true.into());
    }
    let shape = if way == 1 { Shape::Flat } else { Shape::Full };
    Request { tenant, route, body, key, shape, refers: refers.checked_sub(1) }
}

pub(crate) const FILTERS: usize = 10;

fn sight() -> impl Strategy<Value = Sight> {
    let tenant = || prop::option::of(select(&TENANTS[..]));
    let guards: Vec<Option<&'static str>> = GuardName::ALL.iter().map(|guard| Some(guard.code())).chain([None]).collect();
    prop_oneof![
        3 => (0..FILTERS, tenant(), select(vec![1_usize, 3, 100])).prop_map(|(filter, tenant, page)| Sight::Rows { filter, tenant, page }),
        3 => (select(&TENANTS[..]), select(&SESSIONS[..])).prop_map(|(tenant, session)| Sight::Session { tenant, session }),
        1 => tenant().prop_map(|tenant| Sight::Circuits { tenant }),
        1 => (tenant(), select(guards), select(vec![1_i64, 7, 60])).prop_map(|(tenant, guard, minutes)| Sight::Stats { tenant, guard, minutes }),
    ]
}

/// By how much the clock moves before a step: mostly a little, at times not at all, past a window, or back.
fn pause() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0_i64),
        8 => 1_i64..30_000,
        2 => Just(60_000),
        1 => 600_000_i64..4_000_000,
        1 => Just(86_400_000),
        1 => -5_000_i64..0,
        1 => Just(-3_600_000),
    ]
}

/// Most requests of a history are of few guards, sessions and subjects, or no cap would ever be reached.
#[derive(Debug, Clone)]
struct Focus {
    guards: Vec<GuardName>,
    tenant: &'static str,
    session: &'static str,
    subject: &'static str,
    endpoint: &'static str,
}

fn focus() -> impl Strategy<Value = Focus> {
    let names = (select(&TENANTS[..]), select(&SESSIONS[..4]), select(&SUBJECTS[..]), select(&ENDPOINTS[..]));
    (prop::collection::vec(select(GuardName::ALL.to_vec()), 1..4), names).prop_map(|(guards, (tenant, session, subject, endpoint))| Focus {
        guards,
        tenant,
        session,
        subject,
        endpoint,
    })
}

impl Focus {
    fn narrow(&self, stuff: Stuff, strays: u8) -> Stuff {
        if strays == 0 {
            return stuff;
        }
        let routes: Vec<usize> = (0..ROUTES.len()).filter(|route| self.guards.contains(&ROUTES[*route].guard)).collect();
        let stuff = Stuff { route: routes[stuff.route % routes.len()], ..stuff };
        match strays {
            1 => Stuff { tenant: self.tenant, ..stuff },
            2 => Stuff { tenant: self.tenant, session: self.session, ..stuff },
            _ => Stuff { tenant: self.tenant, session: self.session, subject: self.subject, endpoint: self.endpoint, ..stuff },
        }
    }
}

fn step() -> impl Strategy<Value = Move> {
    let control = select(vec![Control::Open, Control::Close, Control::Reset]);
    prop_oneof![
        60 => (stuff(), 0_u8..8).prop_map(|(stuff, strays)| Move::Ask(stuff, strays)),
        6 => (0_usize..4).prop_map(|back| Move::Other(Step::Again(back))),
        2 => (select(&TENANTS[..]), select(&ENDPOINTS[..]), control)
            .prop_map(|(tenant, endpoint, control)| Move::Other(Step::Control { tenant, endpoint, control })),
        2 => (select(&TENANTS[..]), select(&SESSIONS[..])).prop_map(|(tenant, session)| Move::Other(Step::Erase { tenant, session })),
        2 => Just(Move::Erase),
        2 => (0..SETTINGS.len()).prop_map(|settings| Move::Other(Step::Settings(settings))),
        6 => sight().prop_map(|sight| Move::Other(Step::Look(sight))),
    ]
}

/// A step before the history's focus is known.
#[derive(Debug, Clone)]
enum Move {
    Ask(Stuff, u8),
    /// Of the session that speaks most.
    Erase,
    Other(Step),
}

/// Steps, each with the time that passes before it.
pub(crate) fn history(longest: usize) -> impl Strategy<Value = Vec<(i64, Step)>> {
    (focus(), prop::collection::vec((pause(), step()), 1..longest)).prop_map(|(focus, moves)| {
        let step = |(pause, one)| match one {
            Move::Ask(stuff, strays) => (pause, Step::Ask(request(focus.narrow(stuff, strays)))),
            Move::Erase => (pause, Step::Erase { tenant: focus.tenant, session: focus.session }),
            Move::Other(step) => (pause, step),
        };
        moves.into_iter().map(step).collect()
    })
}
