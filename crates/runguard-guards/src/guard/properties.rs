//! How the guards are tested: stories with the times written out, and properties that hold for any history.

use super::{Decide, Guard, Moment, Notice, Operation, Outcome, ROUTES, RulingOf, SettingsOf, Slot, StateOf, Stored, api_circuit, replay};
use crate::answer::{Answer, Value};
use crate::input::Input;
use crate::lengths::LongRuns;
use crate::policy::{Policy, Tree};
use proptest::prelude::*;
use runguard_core::ledger::Account;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::text::StoreText;
use runguard_core::time::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub(crate) fn moment(now: i64, decision_id: &str) -> Moment<'_> {
    Moment { now: Timestamp::from_millis(now), decision_id, store_text: StoreText::Redacted, long_runs: None }
}

pub(crate) fn ask<C: Decide>(check: &C, settings: &SettingsOf<C>, state: &StateOf<C>, now: i64) -> RulingOf<C> {
    check.decide(settings, state, moment(now, "id"))
}

/// A request of a route, from its JSON.
pub(crate) fn operation(path: &str, body: serde_json::Value) -> Box<dyn Operation> {
    let route = ROUTES.iter().find(|route| route.path == path).unwrap();
    let body = body.to_string();
    (route.read)(&Input::read(body.as_bytes(), route.fields).unwrap())
}

type Address = (super::Scope, String, u8, String);

/// A little world: states, a clock, and the log of what happened.
#[derive(Default)]
pub(crate) struct Story {
    policy: Policy,
    states: BTreeMap<Address, Vec<u8>>,
    log: Vec<(Timestamp, Address, Vec<u8>)>,
    now: i64,
    decisions: u64,
    answer: Option<Answer>,
    warnings: Vec<String>,
    /// What is known to be long.
    pub(crate) long_runs: LongRuns,
}

impl Story {
    pub(crate) fn with_settings_of(path: &[&str], settings: serde_json::Value) -> Self {
        let tree = path.iter().rev().fold(settings, |inner, part| json!({ *part: inner }));
        Self::with_policy(tree)
    }

    pub(crate) fn with_settings(settings: serde_json::Value) -> Self {
        Self::with_settings_of(&["agent_action"], settings)
    }

    pub(crate) fn with_rules(rules: serde_json::Value) -> Self {
        Self::with_settings(json!({ "rules": rules }))
    }

    fn with_policy(tree: serde_json::Value) -> Self {
        let tree: Tree = tree.as_object().unwrap().clone();
        Self { policy: Policy::build(&tree, &["guards"]).unwrap(), ..Self::default() }
    }

    pub(crate) fn at(&mut self, millis: i64) -> &mut Self {
        self.now = millis;
        self
    }

    fn addresses(&self, operation: &dyn Operation) -> Vec<Address> {
        operation
            .places_by(&self.policy)
            .into_iter()
            .map(|place| (place.scope, place.name.to_owned(), place.slot.number, place.subject.to_owned()))
            .collect()
    }

    fn peek(&self, operation: &dyn Operation, now: i64) -> Outcome {
        let states: Vec<Option<&[u8]>> =
            self.addresses(operation).iter().map(|address| self.states.get(address).map(Vec::as_slice)).collect();
        let decision_id = format!("id-{}", self.decisions);
        operation.run(&self.policy, &states, Moment { long_runs: Some(&self.long_runs), ..moment(now, &decision_id) })
    }

    pub(crate) fn run(&mut self, operation: &dyn Operation) -> Outcome {
        let outcome = self.peek(operation, self.now);
        self.decisions += 1;
        let addresses = self.addresses(operation);
        for change in &outcome.changes {
            let address = addresses[change.place].clone();
            self.log.push((Timestamp::from_millis(self.now), address.clone(), change.events.clone()));
            self.states.insert(address, change.state.clone());
        }
        self.answer = Some(outcome.answer.clone());
        self.warnings.clone_from(&outcome.warnings);
        outcome
    }

    /// What the rules would find, with nothing done.
    pub(crate) fn ruling<C: Decide>(&self, check: &C) -> RulingOf<C> {
        let states: Vec<Option<&[u8]>> = self.addresses(check).iter().map(|address| self.states.get(address).map(Vec::as_slice)).collect();
        let settings = &C::Guard::section(&self.policy).for_subject(check.subject()).settings;
        ask(check, settings, &StateOf::<C>::load(&states), self.now)
    }

    pub(crate) fn allows(&mut self, operation: &dyn Operation) -> bool {
        self.run(operation).answer.allow == Some(true)
    }

    pub(crate) fn refuses(&mut self, operation: &dyn Operation) -> Reason {
        let answer = self.run(operation).answer;
        assert_eq!(answer.allow, Some(false), "{answer:?}");
        assert!(answer.message.as_deref().is_some_and(|message| message.len() > 40), "a refusal explains itself");
        answer.reason.unwrap()
    }

    pub(crate) fn tells(&mut self, operation: &dyn Operation) -> Option<Notice> {
        self.run(operation).notice
    }

    pub(crate) fn force(&mut self, endpoint: &str, control: api_circuit::Control, now: i64) {
        let address = (super::Scope::Endpoint, endpoint.to_owned(), api_circuit::endpoint_place(endpoint).slot.number, endpoint.to_owned());
        let change = api_circuit::control(self.states.get(&address).map(Vec::as_slice), control, Timestamp::from_millis(now));
        self.states.insert(address, change.state);
    }

    /// What is kept of a session's budget.
    pub(crate) fn account(&self, session: &str) -> Account {
        self.account_at((
            super::Scope::Session,
            session.to_owned(),
            super::GuardEntry::of(GuardName::Budget).slots[0].number,
            "default".to_owned(),
        ))
    }

    /// What is kept of a scope.
    pub(crate) fn scope(&self, label: &str, name: &str) -> Account {
        self.account_at((
            super::Scope::Account,
            name.to_owned(),
            super::GuardEntry::of(GuardName::Budget).slots[1].number,
            label.to_owned(),
        ))
    }

    fn account_at(&self, address: Address) -> Account {
        self.states.get(&address).map(|state| Account::from_bytes(state)).unwrap_or_default()
    }

    /// Other settings from here on.
    pub(crate) fn settings_become(&mut self, guards: serde_json::Value) {
        self.policy = Self::with_policy(guards).policy;
    }

    fn last(&self) -> &Answer {
        self.answer.as_ref().unwrap()
    }

    pub(crate) fn said_allow(&self) -> Option<bool> {
        self.last().allow
    }

    pub(crate) fn fact(&self, name: &str) -> Option<Value> {
        self.last().facts.get(name).cloned()
    }

    pub(crate) fn message(&self) -> &str {
        self.last().message.as_deref().unwrap_or_default()
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn signals(&self) -> Vec<Reason> {
        self.last().signals.iter().map(|signal| signal.reason).collect()
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.last().retry_after_seconds(Timestamp::from_millis(self.now))
    }
}

/// Any request of any route, over few names, so that histories meet.
fn request() -> impl Strategy<Value = (usize, serde_json::Value)> {
    let words = prop::sample::select(vec!["a", "b", "c", "d"]);
    let texts = prop::sample::select(vec![
        "how do refunds work",
        "how do the refunds work",
        "ORD-12345678",
        "john at example dot com",
        "three two one",
        "",
        "42",
    ]);
    (0..ROUTES.len(), words.clone(), words, texts, 0.0..=1.0_f64, any::<bool>(), 0_u64..3).prop_map(|(route, session, subject, text, share, flag, number)| {
        let body = json!({
            "session_id": session, "task_name": if flag { "extract_order_number" } else { subject }, "user_message": text, "source_bot": "o", "target_bot": subject,
            "topic_hash": subject, "last_confidence": share, "query": if text.is_empty() { "x" } else { text }, "prior_confidence": flag.then_some(share),
            "confidence_score": share, "retrieved_chunks": number, "action_name": subject, "action_params_hash": number.to_string(),
            "result_summary": text, "error": flag, "step_id": if flag { "capture_email" } else { subject }, "user_utterance": text, "capture_step": subject,
            "entity_type": if flag { "email" } else { "phone" }, "endpoint_key": "api", "outcome": if flag { "success" } else { "failure" },
            "tool": subject, "args": number, "result": number, "action_group": subject, "function": "f", "parameters": number, "failed": flag,
            "usd": share, "tokens": number * 1000, "key": flag.then_some(subject), "parent": subject, "reservation_id": format!("id-{}", (share * 40.0) as u32),
        });
        (route, suited(route, body, flag, number))
    })
}

/// Some routes give a field another meaning, or need a limit to have something to refuse.
fn suited(route: usize, mut body: serde_json::Value, flag: bool, number: u64) -> serde_json::Value {
    let path = ROUTES[route].path;
    if path == "/guard/agent-action" && number < 2 {
        // Two names more often than the others, or the same order would hardly ever come again.
        body["action_name"] = ["a", "b"][number as usize].into();
    }
    if path == "/guard/stall" {
        body["error"] = if flag { "no such file".into() } else { serde_json::Value::Null };
    }
    if path == "/guard/agent-run" {
        let step =
            |count: u64| json!({"id": format!("{}-{count}", body["usd"]), "tool": body["tool"], "args": "a", "result": number.to_string()});
        body["steps"] = (0..2 + number + u64::from(flag)).map(step).collect();
    }
    if path == "/guard/tool-call" && flag {
        body["tool"] = "search_knowledge".into();
        body["args"] = json!({ "query": body["query"] });
    }
    if path.starts_with("/guard/kb-requery/") && number > 0 {
        body["query"] = if number == 1 { "thremostat" } else { "thermostat" }.into();
    }
    if path.starts_with("/guard/action-group") {
        body["action_group"] = "orders".into();
        body["parameters"] = 7.into();
    }
    if path.starts_with("/guard/loop") {
        body["window_seconds"] = 600.into();
        body[if flag { "max_calls" } else { "repeats" }] = 2.into();
    }
    if path.starts_with("/guard/budget") {
        body["max_usd"] = 9.into();
        body["cap"] = 3.into();
        match number {
            0 => body["max_tokens"] = 9000.into(),
            1 => (body["model"], body["input_tokens"]) = ((if flag { "gpt-4o" } else { "no-such-model" }).into(), 1000.into()),
            _ => {
                // Not the budget itself.
                (body["max_usd"], body["max_tokens"], body["cap"]) = (1_000_000.into(), 1_000_000_000.into(), 1_000_000.into());
                let period = if flag { Some("day") } else { None };
                body["scopes"] = json!([{"per": "team", "name": "t", "period": period, "max_usd": 5, "cap": 4}, {"per": "tenant", "period": "week", "max_usd": 30}]);
            }
        }
        if number == 0 && flag {
            body["credits"] = body["usd"].take();
        }
        if number == 1 {
            body["usd"] = serde_json::Value::Null;
        }
    }
    ROUTES[route].complete(body.as_object_mut().unwrap());
    body
}

fn operation_of(route: usize, body: &serde_json::Value) -> Box<dyn Operation> {
    let bytes = serde_json::to_vec(body).unwrap();
    let input = Input::read(&bytes, ROUTES[route].fields).unwrap();
    (ROUTES[route].read)(&input)
}

/// Steps of a clock that mostly goes on, and sometimes jumps by an hour either way.
fn step() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0_i64..120_000, 2 => 0_i64..2_000_000, 1 => Just(3_600_000), 1 => Just(-3_600_000)]
}

/// Not a question: nobody asks again whether it may have happened.
fn tells_of_what_was_paid(route: usize) -> bool {
    matches!(ROUTES[route].path, "/guard/budget/record" | "/guard/budget/commit")
}

/// Mostly a kind of state that there is, sometimes one of a version to come.
fn any_slot() -> impl Strategy<Value = u8> {
    let known: Vec<u8> = (0..=u8::MAX).filter(|number| Slot::from_number(*number).is_some()).collect();
    prop_oneof![9 => prop::sample::select(known), 1 => any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A state replayed from the log equals the state that made it, for every guard and any clock.
    #[test]
    fn the_log_rebuilds_the_state(history in prop::collection::vec((request(), step()), 1..80)) {
        let mut story = Story::default();
        let mut now = 1_700_000_000_000;
        for ((route, body), millis) in history {
            now += millis;
            story.at(now).run(&*operation_of(route, &body));
        }
        let mut rebuilt: BTreeMap<Address, Vec<u8>> = BTreeMap::new();
        for (at, address, events) in &story.log {
            let state = replay(address.2, rebuilt.get(address).map(Vec::as_slice), events, *at).unwrap();
            rebuilt.insert(address.clone(), state);
        }
        prop_assert_eq!(rebuilt, story.states);
    }

    /// "Refused one moment before, allowed at it, if nothing else happens", for every guard and history.
    #[test]
    fn the_retry_time_is_true(history in prop::collection::vec((request(), step()), 1..60)) {
        let mut story = Story::default();
        let mut now = 1_700_000_000_000;
        for ((route, body), millis) in history {
            now += millis;
            let operation = operation_of(route, &body);
            let answer = story.at(now).run(&*operation).answer;
            if let Some(retry_at) = answer.retry_at {
                prop_assert!(answer.is_block());
                prop_assert!(retry_at.as_millis() > now);
                prop_assert_eq!(story.peek(&*operation, retry_at.as_millis() - 1).answer.allow, Some(false));
                prop_assert_eq!(story.peek(&*operation, retry_at.as_millis()).answer.allow, Some(true), "{:?}", answer);
            } else if answer.is_block() && !tells_of_what_was_paid(route) {
                // No time helps: ask far ahead. A confidence or a missing signal does not pass with time.
                let later = story.peek(&*operation, now + 400 * 86_400_000).answer;
                prop_assert_eq!(later.allow, Some(false), "{:?}", answer);
            }
        }
    }

    /// Never more than the cap in any window, whatever the clock does: against all admitted events ever.
    #[test]
    fn never_more_than_the_cap(history in prop::collection::vec((request(), step()), 1..80)) {
        let mut story = Story::default();
        let mut now = 1_700_000_000_000;
        let mut admitted: BTreeMap<(usize, String, String), Vec<i64>> = BTreeMap::new();
        for ((route, body), millis) in history {
            now += millis;
            let operation = operation_of(route, &body);
            let (cap, window, by_subject) = match ROUTES[route].path {
                "/guard/ai-task-retry" => (2, 3_600_000, true),
                "/guard/handoff" => (6, 1_800_000, false),
                "/guard/kb-requery" => (2, 900_000, true),
                "/guard/agent-action" => (20, 1_800_000, false),
                "/guard/no-match-reprompt" => (3, 3_600_000, true),
                "/guard/capture-slot-fill" => (4, 3_600_000, true),
                _ => { story.at(now).run(&*operation); continue; }
            };
            let subject = if by_subject { operation.subject().to_owned() } else { String::new() };
            let times = admitted.entry((route, operation.session_id().to_owned(), subject)).or_default();
            if story.at(now).allows(&*operation) {
                let counting = times.iter().filter(|&&at| now - at < window).count();
                prop_assert!(counting < cap, "{} of {cap} were taken at {now}", counting);
                times.push(now);
            }
        }
    }

    /// No bytes on disk make a guard panic, and what it cannot read counts as empty.
    #[test]
    fn damaged_states_are_survived(slot in any_slot(), bytes in prop::collection::vec(any::<u8>(), 0..60), (route, body) in request()) {
        static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);
        let operation = operation_of(route, &body);
        let states = vec![Some(bytes.as_slice()); operation.places_by(&POLICY).len()];
        let _ = operation.run(&POLICY, &states, moment(0, "id"));
        let _ = replay(slot, Some(&bytes), &bytes, Timestamp::from_millis(0));
        let _ = super::outlook(slot, &POLICY, "a", &bytes, Timestamp::from_millis(0));
    }
}

/// The answers carry what their route's table says, and nothing else.
#[test]
fn every_answer_field_is_documented() {
    const STEPS: usize = 21_000;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut story = Story::default();
    let mut seen: BTreeMap<&str, std::collections::BTreeSet<&str>> = BTreeMap::new();
    let mut now = 0;
    let requests = request();
    for step in 0..STEPS {
        use proptest::strategy::ValueTree;
        let (route, body) = requests.new_tree(&mut runner).unwrap().current();
        // Dense, then sparser: some rules need many requests in a window, others room between them.
        now += [300, 2_000, 20_000][step * 3 / STEPS];
        let outcome = story.at(now).run(&*operation_of(route, &body));
        let signals = outcome.answer.signals.iter().map(|signal| &signal.facts);
        for facts in [&outcome.answer.facts].into_iter().chain(signals) {
            for (name, _) in facts.iter() {
                let known =
                    ROUTES[route].kind == super::RouteKind::RecordSilently || ROUTES[route].answers.iter().any(|field| field.name == *name);
                assert!(known, "{} answers {name}, which its table does not have", ROUTES[route].path);
                seen.entry(ROUTES[route].path).or_default().insert(name);
            }
        }
        if let Some(reason) = outcome.answer.reason {
            assert!(ROUTES[route].reasons.contains(&reason), "{}: {reason}", ROUTES[route].path);
        }
    }
    // Said by whoever keeps the states, because a guard does not know how many there are; in a story that is long enough for it; and where
    // a log was learned from.
    let said_elsewhere = |name: &str| matches!(name, "watched" | "overdue_usd" | "overdue_settled_usd" | "long_calls" | "long_tokens");
    for route in ROUTES {
        for field in route.answers.iter().filter(|field| !said_elsewhere(field.name)) {
            assert!(seen[route.path].contains(field.name), "{} never answers {}", route.path, field.name);
        }
    }
}

/// What is on disk stays where it is.
#[test]
fn every_slot_number_is_known() {
    let numbers: Vec<u8> = (0..=u8::MAX).filter(|number| Slot::from_number(*number).is_some()).collect();
    assert_eq!(numbers[..14], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    for number in numbers {
        assert_eq!(Slot::from_number(number).map(|slot| slot.number), Some(number));
    }
}
