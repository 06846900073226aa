use super::reading::sum;
use super::thresholds::caps;
use super::times::date_time;
use super::*;
use crate::insight::{
    Action, BudgetSeen, Chain, Counted, Edge, Endpoint, Entity, Goal, GoalAction, Handoffs, Hours, Outcomes, ReasonCount, Series,
    SubjectCount, Topic, Totals,
};
use proptest::prelude::*;
use runguard_core::reason::Reason;
use runguard_guards::policy::{Tree, sections};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

const HOUR: i64 = 3_600_000;

fn policy(guards: Value) -> Policy {
    let Value::Object(tree) = guards else { panic!("a table") };
    Policy::build(&tree, &["guards"]).unwrap()
}

fn told_with(overview: &Overview, policy: &Policy) -> Vec<Insight> {
    advise(overview, &Facts { policy, savings: Savings { usd_per_operation: 0.01, ..Savings::default() } })
}

/// Its patterns are compiled once.
static STANDARD: LazyLock<Policy> = LazyLock::new(Policy::default);

fn told(overview: &Overview) -> Vec<Insight> {
    told_with(overview, &STANDARD)
}

/// The advice of one kind, which must be there once.
fn only(insights: Vec<Insight>, id: &str) -> Insight {
    let mut of_kind: Vec<Insight> = insights.into_iter().filter(|insight| insight.id == id).collect();
    assert_eq!(of_kind.len(), 1, "{id}: {of_kind:?}");
    of_kind.remove(0)
}

fn silent(insights: &[Insight], id: &str) {
    assert!(insights.iter().all(|insight| insight.id != id), "{id} should say nothing: {insights:?}");
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn reason(reason: Reason, blocked: u64, subjects: &[(&str, u64)]) -> ReasonCount {
    ReasonCount {
        guard: reason.guard().code().into(),
        reason: reason.code().into(),
        blocked,
        would_block: 0,
        subjects: subjects.iter().map(|(subject, count)| Counted { subject: (*subject).into(), count: *count }).collect(),
        sessions: names(&["s1", "s2", "s3"]),
    }
}

fn subject(guard: GuardName, name: &str, allowed: u64, blocked: u64) -> SubjectCount {
    SubjectCount { guard: guard.code().into(), subject: name.into(), allowed, would_block: 0, blocked, sessions: names(&["t1", "t2"]) }
}

fn week() -> Overview {
    Overview {
        since_ms: 0,
        until_ms: 7 * 24 * HOUR,
        bucket_seconds: 3600,
        totals: Totals { decisions: 10_000, allowed: 10_000, ..Totals::default() },
        ..Overview::default()
    }
}

fn series(guard: GuardName, allowed: &[u64], blocked: &[u64]) -> Series {
    Series {
        starts_ms: (0..allowed.len() as i64).map(|index| 1_800_000_000_000 + index * HOUR).collect(),
        by_guard: BTreeMap::from([(
            guard.code().to_owned(),
            Outcomes { allowed: allowed.to_vec(), would_block: vec![0; allowed.len()], blocked: blocked.to_vec() },
        )]),
    }
}

#[test]
fn a_quiet_service_hears_nothing() {
    assert_eq!(told(&Overview::default()), []);
    // Healthy traffic: every guard is asked, a few are refused, upstreams answer.
    let mut overview = week();
    for guard in GuardName::ALL {
        overview.series.by_guard.extend(series(*guard, &[200; 24], &[0; 24]).by_guard);
        overview.subjects.push(subject(*guard, "flow", 4800, 3));
    }
    overview.series.starts_ms = (0..24).map(|hour| hour * HOUR).collect();
    overview.reasons = Reason::ALL.iter().map(|code| reason(*code, 3, &[("flow", 3)])).collect();
    overview.actions = vec![
        Action { action: "search".into(), runs: 4000, blocked: 1, share: 0.8 },
        Action { action: "book".into(), runs: 800, ..Action::default() },
    ];
    overview.action_skew = 0.7;
    overview.topics = vec![Topic {
        topic: "t".into(),
        queries: 500,
        best_confidence: 0.93,
        histogram: [0, 0, 0, 0, 0, 0, 0, 20, 80, 0],
        ..Topic::default()
    }];
    overview.endpoints = vec![Endpoint {
        endpoint: "orders".into(),
        calls: 4800,
        failures: 12,
        mean_ms: Some(180.0),
        failures_over_time: vec![1; 24],
        ..Endpoint::default()
    }];
    overview.entities = vec![Entity { entity: "date".into(), hints: 4, ..Entity::default() }];
    overview.budgets = vec![BudgetSeen { budget: "usd".into(), spent_usd: 3.0, limit_usd: Some(5.0), refused: 2, ..BudgetSeen::default() }];
    overview.hours = vec![Hours { guard: "no_match_reprompt".into(), subject: "flow".into(), by_hour_of_day: [20; 24], total: 480 }];
    assert_eq!(told(&overview), []);
}

#[test]
fn a_task_asked_for_what_people_do_not_say() {
    let mut overview = week();
    overview.reasons = vec![reason(Reason::InputMissingPrerequisiteSignal, 10, &[("extract_order_number", 10)])];
    overview.subjects = vec![subject(GuardName::AiTaskRetry, "extract_order_number", 40, 10)];
    let insight = only(told(&overview), "missing_signal");
    assert_eq!(insight.setting.as_deref(), Some("guards.ai_task_retry.patterns.extract_order_number"));
    assert_eq!((insight.evidence["refused"].clone(), insight.evidence["share"].clone()), (json!(10), json!(0.2)));
    assert_eq!(insight.sessions, ["t1", "t2"]);
    assert_eq!(insight.saves, Saves { operations: 10, usd: 0.1 });
    assert!(insight.advice.starts_with("20 % of the messages lack"), "{}", insight.advice);
    overview.subjects[0].allowed = 41;
    silent(&told(&overview), "missing_signal");
    overview.subjects[0].allowed = 0;
    overview.reasons[0].subjects[0].count = 9;
    silent(&told(&overview), "missing_signal");
    overview.reasons = vec![reason(Reason::EntitySignalAbsent, 10, &[("capture.e-mail \"x\"", 10)])];
    let insight = only(told(&overview), "missing_signal");
    assert_eq!(insight.setting.as_deref(), Some(r#"guards.no_match_reprompt.patterns."capture.e-mail \"x\"""#));
}

#[test]
fn a_circle_of_bots() {
    let chain = |count, bots: &[&str]| Chain { chain: names(bots), count, sessions: names(&["c1", "c2"]) };
    let mut overview = week();
    overview.handoffs = Handoffs { edges: vec![Edge::default()], chains: vec![chain(3, &["front", "billing", "returns", "billing"])] };
    let insight = only(told(&overview), "handoff_gap");
    assert_eq!(insight.subject.as_deref(), Some("billing"));
    assert_eq!(insight.title, "Conversations circle between \"front\" and \"billing\" and \"returns\"");
    assert!(insight.advice.contains("3 conversations went front → billing → returns → billing."), "{}", insight.advice);
    assert_eq!(insight.evidence["chain"], json!(["front", "billing", "returns", "billing"]));
    assert_eq!((insight.saves.operations, insight.sessions.len()), (9, 2));
    overview.handoffs.chains[0].count = 2;
    silent(&told(&overview), "handoff_gap");
    overview.handoffs.chains = vec![chain(50, &["front", "billing", "person"])];
    silent(&told(&overview), "handoff_gap");
}

#[test]
fn documentation_gaps_come_by_traffic() {
    let topic = |name: &str, queries, best: f64| Topic {
        topic: name.into(),
        label: format!("how do I {name}"),
        queries,
        best_confidence: best,
        mean_confidence: best / 2.0,
        histogram: [1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        sessions: names(&["k"]),
        ..Topic::default()
    };
    let mut overview = week();
    overview.topics = vec![topic("return", 5, 0.31), topic("cancel", 90, 0.49), topic("pay", 400, 0.5), topic("rare", 4, 0.1)];
    let gaps: Vec<Insight> = told(&overview).into_iter().filter(|insight| insight.id == "documentation_gap").collect();
    let topics: Vec<&str> = gaps.iter().filter_map(|insight| insight.subject.as_deref()).collect();
    assert_eq!(topics, ["cancel", "return"]);
    assert_eq!(gaps[0].title, "The knowledge base does not answer \"how do I cancel\"");
    assert_eq!((gaps[0].saves.operations, gaps[0].evidence["best_confidence"].clone()), (180, json!(0.49)));
    // A topic of which no answer is known says nothing of the documents.
    overview.topics = vec![Topic { histogram: [2, 0, 0, 0, 0, 0, 0, 0, 0, 0], ..topic("return", 50, 0.0) }];
    silent(&told(&overview), "documentation_gap");
}

#[test]
fn a_topic_that_many_sessions_get_a_poor_answer_to() {
    let topic = |low: u64, share: f64| Topic {
        topic: "3f2a".into(),
        label: "how do I cancel".into(),
        phrasings: 3,
        queries: 40,
        best_confidence: 0.45,
        histogram: [0, 0, 10, 10, 5, 0, 0, 0, 0, 0],
        asked_sessions: low,
        low_sessions: low,
        unanswered_sessions: low - 1,
        low_share: share,
        sessions: names(&["k"]),
        ..Topic::default()
    };
    let mut overview = week();
    overview.topic_sessions = 100;
    overview.topics = vec![topic(12, 0.12)];
    let insight = only(told(&overview), "low_confidence_topic");
    assert_eq!(insight.title, "12 % of the sessions get a poor answer to \"how do I cancel\"");
    assert!(insight.advice.contains("asked in 3 wordings, and"), "{}", insight.advice);
    overview.topics[0].phrasings = 1;
    let once = only(told(&overview), "low_confidence_topic");
    assert!(once.advice.contains("asked in one wording, and"), "{}", once.advice);
    assert_eq!((insight.evidence["share"].clone(), insight.evidence["phrasings"].clone()), (json!(0.12), json!(3)));
    assert_eq!((insight.evidence["low_sessions"].clone(), insight.evidence["sessions"].clone()), (json!(12), json!(100)));
    // It is said once.
    silent(&told(&overview), "documentation_gap");
    overview.topics = vec![topic(10, 0.1)];
    silent(&told(&overview), "low_confidence_topic");
    only(told(&overview), "documentation_gap");
    (overview.topic_sessions, overview.topics) = (19, vec![topic(12, 0.63)]);
    silent(&told(&overview), "low_confidence_topic");
    (overview.topic_sessions, overview.topics) = (20, vec![topic(4, 0.2)]);
    silent(&told(&overview), "low_confidence_topic");
}

#[test]
fn a_flow_that_asks_after_a_good_answer() {
    let mut overview = week();
    overview.reasons = vec![reason(Reason::ConfidenceAlreadyMet, 10, &[])];
    let insight = only(told(&overview), "asked_after_good_answer");
    assert_eq!(insight.setting.as_deref(), Some("guards.kb_requery.botpress.confidence_threshold"));
    overview.reasons[0].blocked = 9;
    silent(&told(&overview), "asked_after_good_answer");
}

#[test]
fn an_agent_without_the_action_it_needs() {
    let action = |name: &str, runs| Action { action: name.into(), runs, ..Action::default() };
    let mut overview = week();
    overview.actions = vec![action("search", 90), action("book", 5), action("pay", 5)];
    overview.action_skew = 0.6;
    overview.reasons = vec![reason(Reason::ConsecutiveSameActionSpiral, 10, &[])];
    let insight = only(told(&overview), "missing_action");
    assert_eq!(insight.subject.as_deref(), Some("search"));
    assert_eq!((insight.evidence["spirals"].clone(), insight.evidence["top_action_share"].clone()), (json!(10), json!(0.9)));
    assert!(insight.advice.contains("\"search\" makes 90 % of all runs."), "{}", insight.advice);
    for change in [
        |overview: &mut Overview| overview.action_skew = 0.59,
        |overview: &mut Overview| overview.reasons[0].blocked = 9,
        |overview: &mut Overview| overview.actions[0].runs = 89,
        |overview: &mut Overview| drop(overview.actions.pop()),
    ] {
        let mut less = overview.clone();
        change(&mut less);
        silent(&told(&less), "missing_action");
    }
    // The ceiling alone says it too.
    overview.action_skew = 0.0;
    overview.reasons = vec![reason(Reason::TotalActionCeiling, 5, &[])];
    assert_eq!(only(told(&overview), "missing_action").evidence["ceilings_reached"], json!(5));
    overview.reasons[0].blocked = 4;
    silent(&told(&overview), "missing_action");
}

#[test]
fn goals_that_spiral_and_goals_that_lack_an_action() {
    let action = |name: &str, spirals, not_offered| GoalAction { action: name.into(), runs: 9, spirals, not_offered };
    let goal = Goal {
        goal: "9f".into(),
        label: "find the tier".into(),
        runs: 20,
        spirals: 5,
        ceilings: 0,
        actions: vec![action("profile", 4, 0), action("orders", 1, 0), action("mail", 0, 0)],
        offered: names(&["profile", "orders", "mail"]),
        sessions: names(&["g1"]),
    };
    let mut overview = week();
    overview.goals = vec![goal.clone()];
    let insight = only(told(&overview), "goal_spiral");
    assert_eq!((insight.subject.as_deref(), &insight.evidence["actions"]), (Some("profile"), &json!({"profile": 4, "orders": 1})));
    assert!(insight.title.contains("find the tier") && insight.advice.contains("\"profile\" (4×), \"orders\" (1×)"), "{insight:?}");
    silent(&told(&overview), "goal_lacks_action");
    overview.goals = vec![Goal { spirals: 4, ..goal.clone() }];
    silent(&told(&overview), "goal_spiral");

    overview.goals = vec![Goal { spirals: 0, actions: vec![action("lookup_tier", 0, 3), action("profile", 0, 0)], ..goal.clone() }];
    let insight = only(told(&overview), "goal_lacks_action");
    assert_eq!((insight.subject.as_deref(), &insight.evidence["missing"]), (Some("lookup_tier"), &json!(["lookup_tier"])));
    assert!(insight.advice.contains("asked for \"lookup_tier\" (3×)"), "{}", insight.advice);
    overview.goals[0].actions[0].not_offered = 2;
    silent(&told(&overview), "goal_lacks_action");
    // Or everything was tried.
    overview.goals = vec![Goal { ceilings: 3, label: String::new(), ..goal }];
    let insight = only(told(&overview), "goal_lacks_action");
    assert!(insight.subject.is_none() && insight.advice.contains("It has: profile, orders, mail."), "{}", insight.advice);
    assert!(insight.title.contains("\"9f\""), "{}", insight.title);
}

#[test]
fn values_in_words() {
    let mut overview = week();
    overview.entities = vec![Entity { entity: "date".into(), hints: 10, blocked: 1, sessions: names(&["e"]) }];
    let insight = only(told(&overview), "colloquial_format");
    assert_eq!(insight.setting.as_deref(), Some("guards.capture_slot_fill.entities.date.hint"));
    assert_eq!((insight.saves.operations, insight.sessions), (10, names(&["e"])));
    overview.entities[0].hints = 9;
    silent(&told(&overview), "colloquial_format");
    overview.entities = vec![Entity { entity: "gone_from_settings".into(), hints: 10, ..Entity::default() }];
    assert_eq!(only(told(&overview), "colloquial_format").setting, None);
}

#[test]
fn an_upstream_that_gets_worse_before_it_trips() {
    let guard = GuardName::ApiCircuit;
    let endpoint = |failures: &[u64]| Endpoint {
        endpoint: "orders".into(),
        calls: 800,
        failures: sum(failures),
        failures_over_time: failures.to_vec(),
        ..Endpoint::default()
    };
    let mut overview = week();
    overview.series = series(guard, &[100; 8], &[0; 8]);
    overview.endpoints = vec![endpoint(&[1, 1, 1, 1, 1, 1, 3, 3])];
    overview.subjects = vec![subject(guard, "orders", 800, 0)];
    let insight = only(told(&overview), "upstream_degrades");
    assert_eq!(
        (insight.severity, insight.evidence["failures_late"].clone(), insight.evidence["failures_before"].clone()),
        (Severity::High, json!(6), json!(6))
    );
    assert_eq!(insight.setting.as_deref(), Some("guards.api_circuit.failure_threshold"));
    // Fewer; less steep; too short; busier in the same measure; tripped already.
    for failures in [&[1, 1, 1, 1, 1, 1, 3, 2][..], &[2, 1, 1, 1, 1, 1, 3, 3], &[0, 0, 0, 0, 0, 0, 9]] {
        overview.endpoints = vec![endpoint(failures)];
        silent(&told(&overview), "upstream_degrades");
    }
    overview.endpoints = vec![endpoint(&[1, 1, 1, 1, 1, 1, 3, 3])];
    overview.series = series(guard, &[100, 100, 100, 100, 100, 100, 301, 301], &[0; 8]);
    silent(&told(&overview), "upstream_degrades");
    overview.series = series(guard, &[100; 8], &[0; 8]);
    assert!(insight.advice.contains("has blocked no call"), "{}", insight.advice);
    for told_by in [Reason::CircuitJustTripped, Reason::CircuitOpen] {
        overview.reasons = vec![reason(told_by, 1, &[("orders", 1)])];
        silent(&told(&overview), "upstream_degrades");
    }
}

#[test]
fn retries_that_never_help() {
    let mut overview = week();
    overview.reasons = vec![reason(Reason::RetryCapReached, 10, &[("classify", 10)])];
    overview.subjects = vec![subject(GuardName::AiTaskRetry, "classify", 20, 10)];
    let insight = only(told(&overview), "retries_never_succeed");
    assert_eq!(insight.setting.as_deref(), Some("guards.ai_task_retry.tasks.classify.max_retries"));
    assert_eq!((insight.saves.operations, insight.evidence["tries"].clone()), (10, json!(20)));
    assert!(insight.advice.contains("Set max_retries of \"classify\" to 1"), "{}", insight.advice);
    // One session that ended well; too few; one session that was refused over and over.
    overview.subjects[0].allowed = 21;
    silent(&told(&overview), "retries_never_succeed");
    overview.subjects[0].allowed = 9;
    silent(&told(&overview), "retries_never_succeed");
    overview.subjects[0].allowed = 18;
    overview.reasons[0].subjects[0].count = 9;
    silent(&told(&overview), "retries_never_succeed");
    // The cap in force is the one that counts, an override included.
    overview.reasons[0].subjects[0].count = 10;
    overview.subjects[0].allowed = 50;
    let loose = policy(json!({"ai_task_retry": {"tasks": {"classify": {"max_retries": 5}}}}));
    assert_eq!(only(told_with(&overview, &loose), "retries_never_succeed").saves.operations, 40);
}

#[test]
fn a_guard_that_only_watches() {
    let mut overview = week();
    overview.reasons = vec![ReasonCount { would_block: 10, ..reason(Reason::KbQueryCapReached, 0, &[]) }];
    let watching = policy(json!({"kb_requery": {"mode": "observe"}}));
    let insight = only(told_with(&overview, &watching), "observe_would_save");
    assert_eq!(insight.setting.as_deref(), Some("guards.kb_requery.mode"));
    assert_eq!(insight.title, "Knowledge base only watches, and would have saved 20 operations ($0.20)");
    assert_eq!((insight.saves, insight.sessions.len()), (Saves { operations: 20, usd: 0.2 }, 3));
    overview.reasons[0].would_block = 9;
    silent(&told_with(&overview, &watching), "observe_would_save");
    // Enforced since.
    overview.reasons[0].would_block = 1000;
    silent(&told(&overview), "observe_would_save");
    // One rule alone.
    overview.reasons = vec![ReasonCount { would_block: 10, ..reason(Reason::IdenticalCallSpiral, 0, &[]) }];
    assert_eq!(only(told(&overview), "observe_would_save").setting.as_deref(), Some("guards.agent_action.rules.identical_call_spiral"));
    silent(&told_with(&overview, &policy(json!({"agent_action": {"mode": "off"}}))), "observe_would_save");
}

#[test]
fn one_hour_of_the_day() {
    let mut by_hour = [0; 24];
    (by_hour[9], by_hour[14]) = (15, 15);
    let mut overview = week();
    overview.hours = vec![Hours { guard: "no_match_reprompt".into(), subject: "capture_zip".into(), by_hour_of_day: by_hour, total: 30 }];
    overview.subjects = vec![subject(GuardName::NoMatchReprompt, "capture_zip", 60, 30)];
    // Two days, with the same little traffic in every hour.
    let even = |each: u64, hours: i64| {
        let mut series = series(GuardName::Handoff, &vec![each; hours as usize], &vec![0; hours as usize]);
        series.starts_ms = (0..hours).map(|hour| hour * HOUR).collect();
        series
    };
    overview.series = even(3, 48);
    let insight = only(told(&overview), "concentrated_in_one_hour");
    assert_eq!(insight.title, "\"capture_zip\" is tried again mostly between 14:00 and 15:00 UTC");
    assert_eq!((insight.evidence["in_that_hour"].clone(), insight.sessions.len()), (json!(15), 2));
    overview.hours[0].by_hour_of_day[3] = 1;
    silent(&told(&overview), "concentrated_in_one_hour");
    overview.hours[0].by_hour_of_day = [0; 24];
    overview.hours[0].by_hour_of_day[23] = 29;
    silent(&told(&overview), "concentrated_in_one_hour");
    overview.hours[0].by_hour_of_day[23] = 30;
    assert!(only(told(&overview), "concentrated_in_one_hour").title.ends_with("between 23:00 and 00:00 UTC"));
    // One day alone; too little other traffic; an hour that is busy for everything; days as buckets.
    overview.series = even(30, 24);
    silent(&told(&overview), "concentrated_in_one_hour");
    overview.series = even(2, 48);
    silent(&told(&overview), "concentrated_in_one_hour");
    overview.series = even(3, 48);
    overview.series.by_guard.get_mut("handoff").unwrap().allowed[23] = 200;
    silent(&told(&overview), "concentrated_in_one_hour");
    overview.series = even(3, 48);
    overview.bucket_seconds = 86_400;
    silent(&told(&overview), "concentrated_in_one_hour");
}

#[test]
fn refusals_that_began_with_a_release() {
    let guard = GuardName::NoMatchReprompt;
    let mut overview = week();
    overview.series = series(guard, &[50, 50, 45, 45, 45], &[0, 0, 5, 5, 10]);
    overview.reasons = vec![reason(Reason::RepromptCeilingReached, 20, &[("capture_zip", 16), ("capture_date", 4)])];
    let insight = only(told(&overview), "began_at_one_moment");
    assert_eq!(insight.title, "Blocks of \"capture_zip\" began at 2027-01-15 10:00 UTC");
    assert_eq!((insight.evidence["share_before"].clone(), insight.evidence["refused_after"].clone()), (json!(0.0), json!(20)));
    // Too little before it; refused before as well; too few; a burst that ended; a share like ever.
    for (allowed, blocked) in [
        (&[50, 49, 45, 45, 45][..], &[0, 0, 5, 5, 10][..]),
        (&[50, 50, 45, 45, 45], &[1, 1, 5, 5, 10]),
        (&[50, 50, 45, 45, 45], &[0, 0, 5, 5, 9]),
        (&[50, 50, 10, 50, 50, 50, 40], &[0, 0, 30, 0, 0, 0, 0]),
        (&[50, 50, 45, 90, 90], &[0, 0, 5, 5, 10]),
    ] {
        overview.series = series(guard, allowed, blocked);
        silent(&told(&overview), "began_at_one_moment");
    }
}

#[test]
fn budgets_that_refuse_and_budgets_nobody_needs() {
    let guard = GuardName::Budget;
    let mut overview = week();
    overview.budgets =
        vec![BudgetSeen { budget: "run".into(), spent_usd: 4.9, limit_usd: Some(5.0), refused: 10, ..BudgetSeen::default() }];
    assert_eq!(only(told(&overview), "budget_refused").setting, None, "the caller sets this limit");
    let limited = policy(json!({"budget": {"max_usd": 5}}));
    assert_eq!(only(told_with(&overview, &limited), "budget_refused").setting.as_deref(), Some("guards.budget.max_usd"));
    overview.budgets[0].refused = 9;
    silent(&told(&overview), "budget_refused");
    overview.budgets[0] = BudgetSeen { refused: 0, spent_usd: 0.5, ..overview.budgets[0].clone() };
    overview.subjects = vec![subject(guard, "run", 200, 0)];
    let insight = only(told_with(&overview, &limited), "budget_hardly_used");
    assert_eq!((insight.evidence["could_be_usd"].clone(), insight.setting.as_deref()), (json!(1.5), Some("guards.budget.max_usd")));
    overview.subjects[0].allowed = 199;
    silent(&told(&overview), "budget_hardly_used");
    overview.subjects[0].allowed = 200;
    overview.budgets[0].spent_usd = 0.51;
    silent(&told(&overview), "budget_hardly_used");
    overview.reasons = vec![reason(Reason::UnknownModel, 5, &[])];
    assert_eq!(only(told(&overview), "unpriced_model").setting.as_deref(), Some("guards.budget.unknown_models"));
    overview.reasons[0].blocked = 4;
    silent(&told(&overview), "unpriced_model");
}

#[test]
fn endpoints_that_fail_or_drag() {
    let mut overview = week();
    overview.endpoints = vec![Endpoint {
        endpoint: "crm/v2".into(),
        calls: 50,
        failures: 10,
        mean_ms: Some(2000.0),
        max_ms: Some(9000.0),
        ..Endpoint::default()
    }];
    let insight = only(told(&overview), "endpoint_fails");
    assert_eq!(insight.title, "20 % of the calls to \"crm/v2\" fail");
    assert_eq!(insight.setting.as_deref(), Some("guards.api_circuit.endpoints.\"crm/v2\".failure_rate"));
    let insight = only(told(&overview), "endpoint_slow");
    assert_eq!(insight.setting.as_deref(), Some("guards.api_circuit.endpoints.\"crm/v2\".slow_call_ms"));
    assert!(insight.advice.starts_with("A call takes 2.0 seconds on average."), "{}", insight.advice);
    let watched = policy(json!({"api_circuit": {"failure_rate": 0.5, "slow_call_ms": 900, "slow_rate": 0.5}}));
    assert!(told_with(&overview, &watched).iter().all(|insight| insight.setting.is_none()));
    overview.endpoints[0].failures = 9;
    overview.endpoints[0].mean_ms = Some(1999.0);
    assert_eq!(told(&overview), []);
    overview.endpoints[0] = Endpoint { calls: 49, failures: 49, mean_ms: Some(9000.0), ..overview.endpoints[0].clone() };
    assert_eq!(told(&overview), []);
}

#[test]
fn one_session_that_does_not_stop() {
    let mut overview = week();
    overview.reasons = vec![ReasonCount { sessions: names(&["stuck"]), ..reason(Reason::LoopDetected, 20, &[]) }];
    let insight = only(told(&overview), "one_session");
    assert_eq!((insight.evidence["session"].clone(), insight.sessions), (json!("stuck"), names(&["stuck"])));
    overview.reasons[0].blocked = 19;
    silent(&told(&overview), "one_session");
    overview.reasons[0] = ReasonCount { blocked: 900, sessions: names(&["stuck", "other"]), ..overview.reasons[0].clone() };
    silent(&told(&overview), "one_session");
}

#[test]
fn a_threshold_that_never_fires() {
    let mut overview = week();
    overview.series = series(GuardName::Handoff, &[250, 250], &[0, 0]);
    silent(&told(&overview), "threshold_never_fires");
    let loose = policy(json!({"handoff": {"max_handoffs": 50}}));
    let insight = only(told_with(&overview, &loose), "threshold_never_fires");
    assert_eq!((insight.setting.as_deref(), insight.evidence["could_be"].clone()), (Some("guards.handoff.max_handoffs"), json!(6)));
    overview.handoffs.chains = vec![Chain { chain: names(&["a", "b", "c", "d", "e", "f"]), count: 1, sessions: Vec::new() }];
    assert_eq!(only(told_with(&overview, &loose), "threshold_never_fires").evidence["could_be"], json!(10), "twice the longest chain");
    overview.reasons = vec![reason(Reason::HandoffCeilingReached, 1, &[])];
    silent(&told_with(&overview, &loose), "threshold_never_fires");
    overview.reasons.clear();
    overview.series = series(GuardName::Handoff, &[250, 249], &[0, 0]);
    silent(&told_with(&overview, &loose), "threshold_never_fires");
    // Failures of two neighbouring hours are the most a window can have seen.
    overview.series = series(GuardName::ApiCircuit, &[500, 500], &[0, 0]);
    overview.endpoints =
        vec![Endpoint { endpoint: "o".into(), calls: 1000, failures: 24, failures_over_time: vec![1, 8, 11, 4], ..Endpoint::default() }];
    let loose = policy(json!({"api_circuit": {"failure_threshold": 100}}));
    assert_eq!(only(told_with(&overview, &loose), "threshold_never_fires").evidence["could_be"], json!(38));
}

#[test]
fn one_flow_or_the_setting_of_all() {
    let guard = GuardName::AiTaskRetry;
    let mut overview = week();
    overview.series = series(guard, &[80], &[20]);
    overview.reasons = vec![reason(Reason::RetryCapReached, 20, &[("classify", 16), ("b", 2), ("c", 2)])];
    overview.subjects = ["classify", "b", "c"].map(|name| subject(guard, name, 400, 7)).to_vec();
    let insight = only(told(&overview), "one_flow");
    assert_eq!((insight.subject.as_deref(), insight.evidence["share"].clone()), (Some("classify"), json!(0.8)));
    assert_eq!(insight.title, "\"classify\" makes 80 % of what was blocked for \"Retries used up\"");
    silent(&told(&overview), "general_setting");
    overview.reasons[0].subjects[0].count = 15;
    silent(&told(&overview), "one_flow");
    let spread = [("classify", 8), ("b", 3), ("c", 3), ("d", 3), ("e", 3)];
    overview.reasons = vec![reason(Reason::RetryCapReached, 20, &spread)];
    let insight = only(told(&overview), "general_setting");
    assert_eq!((insight.setting.as_deref(), insight.evidence["subjects"].clone()), (Some("guards.ai_task_retry.max_retries"), json!(5)));
    overview.series = series(guard, &[81], &[20]);
    silent(&told(&overview), "general_setting");
    overview.series = series(guard, &[10], &[20]);
    overview.reasons = vec![reason(Reason::RetryCapReached, 20, &[("classify", 9), ("b", 3), ("c", 3), ("d", 3), ("e", 2)])];
    silent(&told(&overview), "general_setting");
    overview.reasons = vec![reason(Reason::RetryCapReached, 19, &spread)];
    silent(&told(&overview), "general_setting");
    overview.reasons = vec![reason(Reason::RetryCapReached, 20, &spread[..4])];
    silent(&told(&overview), "general_setting");
}

#[test]
fn a_flow_is_told_of_once() {
    let guard = GuardName::AiTaskRetry;
    let mut overview = week();
    overview.reasons = vec![reason(Reason::RetryCapReached, 20, &[("classify", 20)])];
    overview.subjects = ["classify", "b", "c"].map(|name| subject(guard, name, 40, 20)).to_vec();
    let ids: Vec<String> = told(&overview).into_iter().map(|insight| insight.id).collect();
    assert_eq!(ids, ["retries_never_succeed"]);
}

#[test]
fn advice_is_ranked_and_bounded() {
    let mut overview = week();
    overview.topics = (0..50)
        .map(|number| Topic {
            topic: format!("t{number}"),
            queries: 10 + number,
            histogram: [5; 10],
            best_confidence: 0.2,
            ..Topic::default()
        })
        .collect();
    overview.entities = vec![Entity { entity: "date".into(), hints: 1000, ..Entity::default() }];
    let told = told(&overview);
    assert_eq!((told.len(), told[0].id.as_str(), told[0].severity), (1 + MAX_OF_A_KIND, "colloquial_format", Severity::High));
    assert_eq!(told[1].subject.as_deref(), Some("t49"));
    assert!(told.windows(2).all(|pair| pair[0].score >= pair[1].score));
}

#[test]
fn moments_are_written_as_people_do() {
    for (millis, text) in [
        (0, "1970-01-01 00:00 UTC"),
        (-1, "1969-12-31 23:59 UTC"),
        (951_782_400_000, "2000-02-29 00:00 UTC"),
        (1_800_000_000_000, "2027-01-15 08:00 UTC"),
        (4_107_542_399_000, "2100-02-28 23:59 UTC"),
    ] {
        assert_eq!(date_time(millis), text);
    }
}

// -- whatever the log says ------------------------------------------------------------------------

/// The parts of a settings path as TOML reads them.
fn parts(path: &str) -> Vec<String> {
    let (mut parts, mut part, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = path.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => match chars.next().unwrap() {
                'u' => part.push(char::from_u32(u32::from_str_radix(&chars.by_ref().take(4).collect::<String>(), 16).unwrap()).unwrap()),
                escaped => part.push(escaped),
            },
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            c => part.push(c),
        }
    }
    assert!(!quoted, "{path}");
    parts.push(part);
    parts
}

/// Whether the settings take a value at this path: the value that stands there by default, put there alone.
fn exists(path: &str) -> bool {
    let parts = parts(path);
    let Some(("guards", below)) = parts.split_first().map(|(first, below)| (first.as_str(), below)) else { return false };
    if below.len() < 2 {
        return false;
    }
    let section =
        sections().into_iter().find(|section| below.len() > section.path.len() && section.path.iter().zip(below).all(|(a, b)| a == b));
    let key = below.last().unwrap().as_str();
    let value = match (&section, key) {
        (_, "mode") => json!("enforce"),
        (_, _) if below[below.len() - 2] == "rules" => json!("enforce"),
        (_, _) if below[below.len() - 2] == "patterns" => json!("a"),
        (_, "hint") => json!("a"),
        (Some(section), key) => match section.defaults.get(key) {
            Some(value) => value.clone(),
            None => return false,
        },
        (None, _) => return false,
    };
    let nested = below.iter().rev().fold(value, |inner, part| Value::Object(Tree::from_iter([(part.clone(), inner)])));
    let Value::Object(tree) = nested else { return false };
    Policy::build(&tree, &["guards"]).is_ok()
}

#[test]
fn the_test_of_paths_can_fail() {
    for there in [
        "guards.handoff.max_handoffs",
        "guards.kb_requery.mode",
        "guards.ai_task_retry.patterns.\"a.b\"",
        "guards.agent_action.rules.action_cycle",
    ] {
        assert!(exists(there), "{there}");
    }
    for missing in [
        "guards.handoff.max_handofs",
        "guards.handoff",
        "handoff.mode",
        "guards.handoff.rules.action_cycle",
        "guards.handoff.tasks.x.window",
        "guards.handoff.patterns.x",
    ] {
        assert!(!exists(missing), "{missing}");
    }
    assert!(caps(&Policy::default()).iter().all(|cap| exists(cap.setting)));
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just(String::new()),
        Just("(other)".to_owned()),
        Just("date".to_owned()),
        "\\PC{1,12}",
        "[\"\\\\.\u{0}-\u{1f}]{1,4}"
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, 0..60_u64, 0..2000_u64, Just(u64::MAX)]
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..1.0, 0.0..9000.0, Just(0.0), Just(f64::NAN), Just(f64::INFINITY), Just(-1.0)]
}

fn few<T: std::fmt::Debug>(element: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::vec(element, 0..6)
}

prop_compose! {
    fn a_reason()(known in 0..Reason::ALL.len(), blocked in number(), would_block in number(), subjects in few((name(), number())), sessions in few(name())) -> ReasonCount {
        let known = Reason::ALL[known];
        ReasonCount {
            would_block,
            subjects: subjects.into_iter().map(|(subject, count)| Counted { subject, count }).collect(),
            sessions,
            ..reason(known, blocked, &[])
        }
    }
}

prop_compose! {
    fn a_subject()(guard in 0..GuardName::ALL.len(), name in name(), allowed in number(), blocked in number(), sessions in few(name())) -> SubjectCount {
        SubjectCount { sessions, ..subject(GuardName::ALL[guard], &name, allowed, blocked) }
    }
}

prop_compose! {
    fn a_topic()(topic in name(), label in name(), queries in number(), low in number(), low_share in float(), best in float(), mean in float(), cell in number(), sessions in few(name())) -> Topic {
        Topic { topic, label, queries, best_confidence: best, mean_confidence: mean, histogram: [cell; 10], low_sessions: low, low_share, sessions, ..Topic::default() }
    }
}

prop_compose! {
    fn an_endpoint()(endpoint in name(), calls in number(), failures in number(), mean in proptest::option::of(float()), over_time in proptest::collection::vec(number(), 0..20)) -> Endpoint {
        Endpoint { endpoint, calls, failures, failure_rate: 0.0, mean_ms: mean, max_ms: mean, blocked: 0, failures_over_time: over_time }
    }
}

prop_compose! {
    fn any_lists()(
        reasons in few(a_reason()),
        subjects in few(a_subject()),
        topics in few(a_topic()),
        endpoints in few(an_endpoint()),
        chains in few((few(name()), number(), few(name()))),
        actions in few((name(), number())),
        skew in float(),
        entities in few((name(), number(), few(name()))),
        budgets in few((name(), float(), proptest::option::of(float()), number())),
        (hours, topic_sessions) in (few((0..GuardName::ALL.len(), name(), number())), number()),
    ) -> Overview {
        Overview {
            reasons,
            subjects,
            topics,
            topic_sessions,
            endpoints,
            handoffs: Handoffs { edges: Vec::new(), chains: chains.into_iter().map(|(chain, count, sessions)| Chain { chain, count, sessions }).collect() },
            actions: actions.into_iter().map(|(action, runs)| Action { action, runs, ..Action::default() }).collect(),
            action_skew: skew,
            entities: entities.into_iter().map(|(entity, hints, sessions)| Entity { entity, hints, blocked: 0, sessions }).collect(),
            budgets: budgets.into_iter().map(|(budget, spent_usd, limit_usd, refused)| BudgetSeen { budget, spent_usd, limit_usd, refused, spent_tokens: 0, limit_tokens: None }).collect(),
            hours: hours.into_iter().map(|(guard, subject, most)| {
                let mut by_hour_of_day = [1; 24];
                by_hour_of_day[7] = most;
                Hours { guard: GuardName::ALL[guard].code().into(), subject, by_hour_of_day, total: 0 }
            }).collect(),
            ..Overview::default()
        }
    }
}

prop_compose! {
    fn any_overview()(
        mut overview in any_lists(),
        decisions in number(),
        since in any::<i64>(),
        until in any::<i64>(),
        guard in 0..GuardName::ALL.len(),
        counts in proptest::collection::vec((number(), number(), number()), 0..12),
        starts in proptest::collection::vec(any::<i64>().prop_map(|millis| millis / 1000), 0..12),
    ) -> Overview {
        overview.totals.decisions = decisions;
        (overview.since_ms, overview.until_ms) = (since, until);
        let outcomes = Outcomes {
            allowed: counts.iter().map(|counts| counts.0).collect(),
            would_block: counts.iter().skip(1).map(|counts| counts.1).collect(),
            blocked: counts.iter().map(|counts| counts.2).collect(),
        };
        overview.series = Series { starts_ms: starts, by_guard: BTreeMap::from([(GuardName::ALL[guard].code().to_owned(), outcomes)]) };
        overview
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn advice_stands_on_the_overview(overview in any_overview(), loose in any::<bool>()) {
        static LOOSE: LazyLock<Policy> = LazyLock::new(|| {
            policy(json!({"handoff": {"max_handoffs": 900, "mode": "observe"}, "agent_action": {"max_total": 900}, "ai_task_retry": {"mode": "observe"}}))
        });
        let policy = if loose { &LOOSE } else { &STANDARD };
        let insights = told_with(&overview, policy);
        prop_assert!(insights.len() <= MAX_INSIGHTS);
        let written = serde_json::to_value(&overview).unwrap();
        let mut texts = BTreeSet::new();
        collect(&written, &mut texts);
        for insight in insights {
            prop_assert!(!insight.title.is_empty() && !insight.advice.is_empty());
            prop_assert!(insight.sessions.len() <= MAX_SESSIONS && !insight.evidence.is_empty());
            prop_assert!(insight.sessions.iter().all(|session| texts.contains(session)), "{insight:?}");
            prop_assert!(insight.subject.iter().all(|subject| texts.contains(subject) && !subject.is_empty()), "{insight:?}");
            prop_assert!(insight.guard.iter().all(|guard| GuardName::from_code(guard).is_some()));
            prop_assert!(insight.setting.iter().all(|setting| stands(setting, insight.subject.as_deref())), "{insight:?}");
            prop_assert!(insight.setting.is_some() || insight.subject.is_some() || !insight.sessions.is_empty() || insight.id != "missing_signal");
            prop_assert!(serde_json::to_string(&insight).is_ok());
        }
    }
}

/// Whether a setting exists; its subject's name is taken out first, so that few trees have to be built.
fn stands(setting: &str, subject: Option<&str>) -> bool {
    static KNOWN: LazyLock<Mutex<BTreeMap<String, bool>>> = LazyLock::new(Mutex::default);
    let shape: Vec<String> =
        parts(setting).into_iter().map(|part| if Some(part.as_str()) == subject { "date".to_owned() } else { part }).collect();
    let shape = shape.join(".");
    *KNOWN.lock().unwrap().entry(shape.clone()).or_insert_with(|| exists(&shape))
}

/// Every text in a value.
fn collect(value: &Value, texts: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => drop(texts.insert(text.clone())),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Object(entries) => entries.values().for_each(|item| collect(item, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
