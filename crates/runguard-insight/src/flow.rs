//! Finds in a plan what the guards would find in production: circles of bots, targets that are not there, goals without an action.
//!
//! A plan is written by hand: which bot hands over to which, and which actions a goal needs. Circles are looked for by their handovers:
//! for each that lies on one, the shortest is told. So there are no more of them than handovers, and one more handover that closes
//! another circle is always seen.

use runguard_core::nearest::closest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One name, several, or none: as people write them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    One(String),
    Many(Vec<String>),
    Nothing,
}

/// Names, written as a list, or alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub struct Names(pub Vec<String>);

impl From<Written> for Names {
    fn from(written: Written) -> Self {
        Self(match written {
            Written::One(name) => vec![name],
            Written::Many(names) => names,
            Written::Nothing => Vec::new(),
        })
    }
}

/// How conversations are to be routed, and what goals need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// The bots a conversation may begin with.
    pub start: Names,
    /// Each bot with those it hands over to, its fallback among them.
    pub bots: BTreeMap<String, Names>,
    /// Targets that are no bots: a person, a ticket, the end.
    pub ends: Names,
    /// Circles that are known and stay.
    pub accepted_cycles: Vec<Names>,
    /// Each goal with the actions it needs.
    pub goals: BTreeMap<String, Names>,
    /// What the agent can call.
    pub actions: Names,
}

/// What a plan has, and whether it is names by a name, lists of names, or names.
const PARTS: [(&str, Shape); 6] = [
    ("start", Shape::Names),
    ("bots", Shape::NamesByName),
    ("ends", Shape::Names),
    ("accepted_cycles", Shape::ListsOfNames),
    ("goals", Shape::NamesByName),
    ("actions", Shape::Names),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Names,
    ListsOfNames,
    NamesByName,
}

impl Shape {
    const fn wanted(self) -> &'static str {
        match self {
            Self::Names => "a name or a list of names, such as [billing, person]",
            Self::ListsOfNames => "a list of circles, such as [[desk, billing]]",
            Self::NamesByName => "names with the names that belong to each, such as {desk: [billing, person]}",
        }
    }
}

/// What of something written is no plan, for whoever wrote it; `None` when all of it is.
pub fn misshapen(written: &Value) -> Option<String> {
    let Value::Object(parts) = written else {
        let has = PARTS.map(|(part, _)| part).join(", ");
        return Some(format!("a plan has {has}, each with a colon behind it, and this is {}", kind_of(written)));
    };
    parts.iter().find_map(|(part, value)| {
        if let Some((_, shape)) = PARTS.iter().find(|(known, _)| known == part) {
            return misshapen_part(part, *shape, value);
        }
        let known = PARTS.map(|(part, _)| part.to_owned());
        Some(format!("a plan has no part '{part}'{}; it has {}", meant(part, known.iter()), known.join(", ")))
    })
}

fn misshapen_part(part: &str, shape: Shape, value: &Value) -> Option<String> {
    let is_name = |value: &Value| value.is_string();
    let is_names = |value: &Value| value.is_null() || is_name(value) || value.as_array().is_some_and(|names| names.iter().all(is_name));
    let must_be = |place: &str, shape: Shape, value: &Value| {
        let inside = value.as_array().and_then(|names| names.iter().find(|name| !is_name(name)));
        let is = inside.map_or_else(|| format!("is {}", kind_of(value)), |inside| format!("has {} in it", kind_of(inside)));
        format!("'{place}' must be {}, and it {is}; a number that is a name needs quotes", shape.wanted())
    };
    match (shape, value) {
        (Shape::Names, value) => (!is_names(value)).then(|| must_be(part, shape, value)),
        (Shape::ListsOfNames, Value::Array(circles)) => {
            circles.iter().find(|circle| !is_names(circle)).map(|circle| must_be(part, shape, circle))
        }
        (Shape::NamesByName, Value::Object(entries)) => {
            entries.iter().find(|(_, names)| !is_names(names)).map(|(name, names)| must_be(&format!("{part}.{name}"), Shape::Names, names))
        }
        (Shape::ListsOfNames | Shape::NamesByName, value) => Some(must_be(part, shape, value)),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table of names",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    Cycle,
    UnknownTarget,
    UnreachableBot,
    NoWayOut,
    GoalWithoutAction,
    MissingAction,
}

impl FindingKind {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::UnknownTarget => "unknown_target",
            Self::UnreachableBot => "unreachable_bot",
            Self::NoWayOut => "no_way_out",
            Self::GoalWithoutAction => "goal_without_action",
            Self::MissingAction => "missing_action",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    /// The bot or the goal it is about.
    pub subject: String,
    /// The bots of a circle; the target or action that is not there.
    pub names: Vec<String>,
    pub message: String,
}

/// What there was to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Size {
    pub bots: usize,
    pub handovers: usize,
    pub goals: usize,
    pub actions: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Circles that the plan says are known.
    pub accepted_cycles: Vec<Vec<String>>,
    pub checked: Size,
}

/// Why there is nothing to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unclear {
    Empty,
    NoStart,
    TooLarge,
}

/// A plan that people write is smaller; each handover is looked at in the light of all others.
const MOST_BOTS: usize = 500;
const MOST_HANDOVERS: usize = 4_000;
const MOST_ACTIONS: usize = 2_000;

impl Unclear {
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Empty => {
                "there is nothing to check: name bots with their targets under `bots`, or goals with their actions under `goals`"
            }
            Self::TooLarge => {
                "it is larger than is looked at: at most 500 bots with 4,000 handovers, and 2,000 goals and as many actions. Check its parts one by one"
            }
            Self::NoStart => "it does not say where a conversation begins: name the first bot under `start`",
        }
    }
}

pub fn check(plan: &Plan) -> Result<Report, Unclear> {
    if plan.bots.is_empty() && plan.goals.is_empty() {
        return Err(Unclear::Empty);
    }
    if !plan.bots.is_empty() && plan.start.0.is_empty() {
        return Err(Unclear::NoStart);
    }
    let mut report = Report {
        checked: Size {
            bots: plan.bots.len(),
            handovers: plan.bots.values().map(|targets| targets.0.len()).sum(),
            goals: plan.goals.len(),
            actions: plan.actions.0.len(),
        },
        ..Report::default()
    };
    let Size { bots, handovers, goals: planned, actions } = report.checked;
    if bots > MOST_BOTS || handovers > MOST_HANDOVERS || planned.max(actions) > MOST_ACTIONS {
        return Err(Unclear::TooLarge);
    }
    cycles(plan, &mut report);
    unknown_targets(plan, &mut report.findings);
    unreachable(plan, &mut report.findings);
    no_way_out(plan, &mut report.findings);
    goals(plan, &mut report.findings);
    Ok(report)
}

impl Plan {
    fn is_end(&self, name: &str) -> bool {
        self.ends.0.iter().any(|end| end == name)
    }

    /// The bots a bot hands over to, as far as there are such.
    fn next<'a>(&'a self, bot: &str) -> impl Iterator<Item = &'a str> {
        let targets = self.bots.get(bot).into_iter().flat_map(|targets| &targets.0);
        targets.filter_map(|target| self.bots.get_key_value(target)).map(|(bot, _)| bot.as_str())
    }

    /// The shortest way from one bot to another, both named.
    fn way<'a>(&'a self, from: &'a str, to: &str) -> Option<Vec<String>> {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting = VecDeque::from([from]);
        while let Some(bot) = waiting.pop_front() {
            if bot == to {
                let mut way = vec![bot.to_owned()];
                let mut at = bot;
                while let Some(before) = came_from.get(at).filter(|_| at != from) {
                    way.push((*before).to_owned());
                    at = before;
                }
                way.reverse();
                return Some(way);
            }
            for next in self.next(bot) {
                if next != from && !came_from.contains_key(next) {
                    came_from.insert(next, bot);
                    waiting.push_back(next);
                }
            }
        }
        None
    }
}

/// The same circle, wherever it is entered, begins with the same bot.
fn turned(mut circle: Vec<String>) -> Vec<String> {
    let first = circle.iter().enumerate().min_by_key(|(_, bot)| *bot).map_or(0, |(position, _)| position);
    circle.rotate_left(first);
    circle
}

fn cycles(plan: &Plan, report: &mut Report) {
    let accepted: BTreeSet<Vec<String>> = plan.accepted_cycles.iter().map(|circle| turned(circle.0.clone())).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for bot in plan.bots.keys() {
        found.extend(plan.next(bot).filter_map(|target| plan.way(target, bot)).map(turned));
    }
    let (known, open): (Vec<_>, Vec<_>) = found.into_iter().partition(|circle| accepted.contains(circle));
    report.accepted_cycles = known;
    report.findings.extend(open.into_iter().map(|circle| {
        let round = circle.iter().chain(circle.first()).map(String::as_str).collect::<Vec<_>>().join(" → ");
        Finding {
            kind: FindingKind::Cycle,
            subject: circle.first().cloned().unwrap_or_default(),
            message: format!(
                "{round}: a question that none of them owns goes round. Widen the domain of one, send the case to a bot of its own or to a person, or list the circle under accepted_cycles."
            ),
            names: circle,
        }
    }));
}

/// "; did you mean …?"
fn meant<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> String {
    closest(name, known.map(String::as_str)).map_or_else(String::new, |known| format!("; did you mean '{known}'?"))
}

fn unknown_targets(plan: &Plan, findings: &mut Vec<Finding>) {
    let known = || plan.bots.keys().chain(&plan.ends.0);
    let is_known = |name: &str| plan.bots.contains_key(name) || plan.is_end(name);
    let mut tell = |subject: &str, target: &str, message: String| {
        findings.push(Finding { kind: FindingKind::UnknownTarget, subject: subject.to_owned(), names: vec![target.to_owned()], message });
    };
    for start in plan.start.0.iter().filter(|start| !plan.bots.is_empty() && !plan.bots.contains_key(*start)) {
        let message = format!("conversations begin with '{start}', which is no bot{}", meant(start, plan.bots.keys()));
        tell("start", start, message);
    }
    // One that is misspelt would accept nothing, or what it was not meant for once there is such a bot.
    for bot in plan.accepted_cycles.iter().flat_map(|circle| &circle.0).filter(|bot| !plan.bots.contains_key(*bot)) {
        let message = format!("accepted_cycles names '{bot}', which is no bot{}", meant(bot, plan.bots.keys()));
        tell("accepted_cycles", bot, message);
    }
    for (bot, targets) in &plan.bots {
        for target in targets.0.iter().filter(|target| !is_known(target)) {
            let message = format!("'{bot}' hands over to '{target}', which is neither a bot nor an end{}", meant(target, known()));
            tell(bot, target, message);
        }
    }
}

/// All bots that are reached from these.
fn reached<'a>(from: impl Iterator<Item = &'a str>, next: impl Fn(&str) -> Vec<&'a str>) -> BTreeSet<&'a str> {
    let mut waiting: Vec<&str> = from.collect();
    let mut reached = BTreeSet::new();
    while let Some(bot) = waiting.pop() {
        if reached.insert(bot) {
            waiting.extend(next(bot));
        }
    }
    reached
}

fn unreachable(plan: &Plan, findings: &mut Vec<Finding>) {
    let reached = reached(plan.start.0.iter().map(String::as_str), |bot| plan.next(bot).collect());
    findings.extend(plan.bots.keys().filter(|bot| !reached.contains(bot.as_str())).map(|bot| Finding {
        kind: FindingKind::UnreachableBot,
        subject: bot.clone(),
        names: Vec::new(),
        message: format!("no handover leads from the start to '{bot}': it is never asked"),
    }));
}

/// Only where the plan says how conversations end.
fn no_way_out(plan: &Plan, findings: &mut Vec<Finding>) {
    if plan.ends.0.is_empty() {
        return;
    }
    let leads_out = |bot: &&String| plan.bots[*bot].0.iter().any(|target| plan.is_end(target));
    let before = |bot: &str| plan.bots.keys().map(String::as_str).filter(|other| plan.next(other).any(|next| next == bot)).collect();
    let out = reached(plan.bots.keys().filter(leads_out).map(String::as_str), before);
    findings.extend(plan.bots.keys().filter(|bot| !out.contains(bot.as_str())).map(|bot| Finding {
        kind: FindingKind::NoWayOut,
        subject: bot.clone(),
        names: Vec::new(),
        message: format!("from '{bot}' no conversation gets to an end ({}): give it a fallback to one", plan.ends.0.join(", ")),
    }));
}

fn goals(plan: &Plan, findings: &mut Vec<Finding>) {
    for (goal, needed) in &plan.goals {
        if needed.0.is_empty() {
            findings.push(Finding {
                kind: FindingKind::GoalWithoutAction,
                subject: goal.clone(),
                names: Vec::new(),
                message: format!("the goal '{goal}' names no action that reaches it: an agent would try all it has"),
            });
        }
        for action in needed.0.iter().filter(|action| !plan.actions.0.contains(action)) {
            findings.push(Finding {
                kind: FindingKind::MissingAction,
                subject: goal.clone(),
                names: vec![action.clone()],
                message: format!(
                    "the goal '{goal}' needs '{action}', which is not among the actions{}",
                    meant(action, plan.actions.0.iter())
                ),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn plan(value: serde_json::Value) -> Plan {
        serde_json::from_value(value).unwrap()
    }

    fn found(value: serde_json::Value) -> Vec<(FindingKind, String, Vec<String>)> {
        check(&plan(value)).unwrap().findings.into_iter().map(|finding| (finding.kind, finding.subject, finding.names)).collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_plan_without_gaps_is_clean() {
        let report = check(&plan(json!({
            "start": "desk",
            "bots": {"desk": ["billing", "plans"], "billing": "person", "plans": ["person"]},
            "ends": ["person"],
            "goals": {"order status": ["lookup_order"]},
            "actions": ["lookup_order", "get_profile"],
        })))
        .unwrap();
        assert_eq!(report.findings, []);
        assert_eq!(report.checked, Size { bots: 3, handovers: 4, goals: 1, actions: 2 });
    }

    #[test]
    fn every_circle_is_told_once_and_those_that_are_known_are_not() {
        let bots = json!({"desk": ["billing", "plans"], "billing": ["desk", "plans"], "plans": ["desk", "plans"]});
        let circles = [
            (FindingKind::Cycle, "billing".to_owned(), names(&["billing", "desk"])),
            (FindingKind::Cycle, "billing".to_owned(), names(&["billing", "plans", "desk"])),
            (FindingKind::Cycle, "desk".to_owned(), names(&["desk", "plans"])),
            (FindingKind::Cycle, "plans".to_owned(), names(&["plans"])),
        ];
        assert_eq!(found(json!({"start": "desk", "bots": bots})), circles);
        let accepted = json!([["desk", "billing"], ["plans", "desk", "billing"]]);
        let report = check(&plan(json!({"start": ["desk"], "bots": bots, "accepted_cycles": accepted}))).unwrap();
        assert_eq!(report.findings.len(), 2);
        assert_eq!(report.accepted_cycles, [names(&["billing", "desk"]), names(&["billing", "plans", "desk"])]);
        assert!(report.findings[0].message.starts_with("desk → plans → desk:"), "{}", report.findings[0].message);
    }

    #[test]
    fn a_circle_that_is_accepted_has_bots_of_the_plan() {
        let bots = json!({"desk": ["billing"], "billing": ["desk"]});
        let report = check(&plan(json!({"start": "desk", "bots": bots, "accepted_cycles": [["desk", "biling"]]}))).unwrap();
        assert_eq!(
            report.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(),
            [FindingKind::Cycle, FindingKind::UnknownTarget]
        );
        let unknown = &report.findings[1];
        assert_eq!((unknown.subject.as_str(), &unknown.names), ("accepted_cycles", &names(&["biling"])));
        assert_eq!(unknown.message, "accepted_cycles names 'biling', which is no bot; did you mean 'billing'?");
    }

    #[test]
    fn gaps_are_named() {
        let seen = found(json!({
            "start": "desk",
            "bots": {"desk": ["biling", "person"], "billing": ["person"], "legal": null, "vault": ["safe"], "safe": "vault"},
            "ends": "person",
        }));
        assert_eq!(
            seen,
            [
                (FindingKind::Cycle, "safe".into(), names(&["safe", "vault"])),
                (FindingKind::UnknownTarget, "desk".into(), names(&["biling"])),
                (FindingKind::UnreachableBot, "billing".into(), vec![]),
                (FindingKind::UnreachableBot, "legal".into(), vec![]),
                (FindingKind::UnreachableBot, "safe".into(), vec![]),
                (FindingKind::UnreachableBot, "vault".into(), vec![]),
                (FindingKind::NoWayOut, "legal".into(), vec![]),
                (FindingKind::NoWayOut, "safe".into(), vec![]),
                (FindingKind::NoWayOut, "vault".into(), vec![]),
            ]
        );
        let report = check(&plan(json!({"start": "dsk", "bots": {"desk": ["biling"], "billing": []}}))).unwrap();
        assert!(report.findings[0].message.ends_with("did you mean 'desk'?"), "{:?}", report.findings);
        assert!(report.findings[1].message.ends_with("did you mean 'billing'?"), "{:?}", report.findings);
    }

    #[test]
    fn goals_need_actions_that_are_there() {
        let seen = found(json!({
            "goals": {"tier and discount": ["get_tier", "get_customer_profil"], "small talk": [], "profile": "get_customer_profile"},
            "actions": ["get_customer_profile", "get_recent_orders"],
        }));
        assert_eq!(
            seen,
            [
                (FindingKind::GoalWithoutAction, "small talk".into(), vec![]),
                (FindingKind::MissingAction, "tier and discount".into(), names(&["get_tier"])),
                (FindingKind::MissingAction, "tier and discount".into(), names(&["get_customer_profil"])),
            ]
        );
    }

    #[test]
    fn what_cannot_be_checked_is_said() {
        assert_eq!(check(&plan(json!({"actions": ["a"]}))), Err(Unclear::Empty));
        assert_eq!(check(&plan(json!({"bots": {"a": []}}))), Err(Unclear::NoStart));
        let all: Vec<String> = (0..100).map(|bot| format!("b{bot}")).collect();
        let crowd: BTreeMap<&String, &Vec<String>> = all.iter().map(|bot| (bot, &all)).collect();
        assert_eq!(check(&plan(json!({"start": "b0", "bots": crowd}))), Err(Unclear::TooLarge));
        assert!(serde_json::from_value::<Plan>(json!({"bot": {}})).is_err(), "a typing error must not pass");
    }

    proptest! {
        /// A bot lies on a circle that is told exactly if it can be reached from itself.
        #[test]
        fn circles_are_those_of_the_plan(handovers in prop::collection::btree_set((0_u8..6, 0_u8..6), 0..14)) {
            let mut bots: BTreeMap<String, Names> = (0..6).map(|bot| (bot.to_string(), Names::default())).collect();
            for (from, to) in &handovers {
                bots.entry(from.to_string()).or_default().0.push(to.to_string());
            }
            let plan = Plan { start: Names(vec!["0".into()]), bots, ..Plan::default() };
            let report = check(&plan).unwrap();
            let circles: Vec<&Finding> = report.findings.iter().filter(|finding| finding.kind == FindingKind::Cycle).collect();
            for circle in &circles {
                let names = &circle.names;
                let steps = names.iter().zip(names.iter().cycle().skip(1));
                prop_assert!(steps.clone().take(names.len()).all(|(from, to)| plan.next(from).any(|next| next == to)));
                prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "the shortest visits nobody twice");
            }
            prop_assert!(circles.len() <= handovers.len());
            for bot in plan.bots.keys() {
                let comes_back = reached(plan.next(bot), |at| plan.next(at).collect()).contains(bot.as_str());
                prop_assert_eq!(comes_back, circles.iter().any(|circle| circle.names.contains(bot)));
            }
        }
    }
}
