//! Stops a run that gets nowhere, by what its calls gave: the stall detector behind a door.
//!
//! The caller tells each call with its result and hears how far the ladder has been climbed: go on, *steer* (give the
//! model the nudge), or refused: *block* (do not make this call again) and *stop* (end the run). A pair that is refused
//! has happened all the same, so it counts.

use super::judging::{Thresholds, Unenforced, Verdicts};
use super::{
    AnswerKind, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Route, RouteKind, Ruling,
    RulingOf, Slot, says, stored_in_one_part,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind, MAX_ID_CHARS};
use crate::lengths::{SoFar, what_is_long};
use crate::logged::{self, Doubt, Doubts, EachByItself, Logged, Retold, Shows, Terms, Traced, Traces};
use crate::policy::{GuardSettings, Mode, Policy, Section, Setting};
use runguard_core::detect::stall::{
    CallEffect, Ladder, Long, Outcome, StallSettings, StallState, Step, Verdict, error_fingerprint, result_fingerprint,
};
use runguard_core::fingerprint;
use runguard_core::limits::InvalidSetting;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::RowRef;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::ToolCall,
    billed: None,
    holds: Holds::Flow,
    shows,
    retelling: || Box::new(EachByItself(again)),
    traces: Some(Traces { rank: 1, read: traced }),
};

static SLOT: Slot = Slot::of::<Stall, 0>(11, Lasts::Log);

pub static ROUTE: Route = Route {
    path: "/guard/stall",
    guard: GuardName::Stall,
    kind: RouteKind::Check,
    summary: "This call gave this result: does the run still make progress?",
    fields: &[
        Field::required("session_id", Kind::Id, "The run.", "\"run-1\""),
        Field::optional("tool", Kind::Name, "The tool that was called; left out for a message without a call.", "\"read_file\""),
        Field::optional("args", Kind::Any, "Its arguments.", "{\"path\":\"a.txt\"}"),
        Field::optional("args_hash", Kind::Hash, "A hash of the arguments, instead of them.", "\"9f2c\""),
        Field::optional("result", Kind::Any, "What it gave.", "\"3 lines\""),
        Field::optional("result_hash", Kind::Hash, "A hash of the result, instead of it.", "\"77ab\""),
        Field::optional("error", Kind::Text, "The error, when it failed.", "\"no such file\""),
        Field::optional("error_hash", Kind::Hash, "A hash of the error, instead of comparing it; also of one without words.", "\"51d0\""),
        Field::optional("round", Kind::Id, "The model's turn: the same call twice in one turn is one.", "\"7\""),
        Field::optional(
            "does",
            Kind::Text,
            "What the call does, where its arguments are not told: looks, looks_up (one thing, by its id), runs, changes, restores, waits, `writes FILE LEAVES`, `edits FILE BY`, `undoes FILE` or `acts TARGET` (on an element of a web page), in hex.",
            "\"runs\"",
        ),
        Field::optional(
            "tokens",
            Kind::Whole(0),
            "Tokens the model read and wrote since the last call that was told: for `long_run_tokens`.",
            "5200",
        ),
        Field::optional("message", Kind::Text, "What the model said without calling anything.", "\"Let me think.\""),
        Field::optional("message_hash", Kind::Hash, "A hash of the message, instead of it.", "\"c3a8\""),
        Field::optional("new_turn", Kind::Flag, "A person has spoken: everything starts anew.", "false"),
    ],
    answers: &[
        says("rung", AnswerKind::Text, "go_on, observe, steer, block or stop."),
        says("rule", AnswerKind::Text, "Which sign was seen."),
        says("count", AnswerKind::Whole, "What it counted."),
        says("nudge", AnswerKind::Text, "A sentence for the model."),
        SoFar::ANSWERS[0],
        SoFar::ANSWERS[1],
        SoFar::ANSWERS[2],
        SoFar::ANSWERS[3],
    ],
    reasons: &[
        Reason::StalledIdentical,
        Reason::StalledCycle,
        Reason::StalledNoNews,
        Reason::StalledSameError,
        Reason::StalledMessages,
        Reason::StalledUnmoved,
        Reason::StalledPutBack,
        Reason::StalledSameResult,
        Reason::StalledFailing,
        Reason::StalledLongRun,
    ],
    read: |input| Box::new(Request::read(input)),
};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(pub Thresholds);

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::Stall;
    const SECTION: &'static [&'static str] = &["stall"];
    const SUBJECTS: &'static str = "tools";
    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "identical",
            about: "The same call with the same result in a row: from how many on to steer, block, stop (0: never).",
        },
        Setting { key: "cycle", about: "The same round of calls and results: rounds that steer, block, stop." },
        Setting { key: "cycle_max_period", about: "Longest round that is looked for." },
        Setting { key: "novelty_window", about: "Latest calls that are looked at for something new; 0 switches it off." },
        Setting { key: "novelty_max_new", about: "At most this many new ones among them are a stall." },
        Setting { key: "novelty_rung", about: "What happens then: observe, steer, block or stop." },
        Setting { key: "novelty_nudges", about: "How often the model is told before that; 0 is at once." },
        Setting {
            key: "novelty_by_target",
            about: "Actions on web pages are compared by what is done and to which element, without what is typed and whatever came of it; what waits or looks at the page does not count.",
        },
        Setting { key: "same_error", about: "The same error in a row, whatever the arguments." },
        Setting { key: "messages", about: "The same message in a row, or rounds of two alternating ones." },
        Setting {
            key: "unmoved",
            about: "The same check with the same outcome although something was changed in between: times that steer, block, stop.",
        },
        Setting { key: "put_back", about: "A file that comes back to what it had been: times that steer, block, stop." },
        Setting {
            key: "same_result",
            about: "Calls in a row that look at different things and give the same: how many steer, block, stop.",
        },
        Setting { key: "failing", about: "Calls in a row that fail, whatever they say: how many steer, block, stop." },
        Setting {
            key: "long_run",
            about: "Calls of a run in which a check failed again after a change or a file was put back the third time: how many steer, block, stop. What is long depends on the kind of run: `runguard tune` says it.",
        },
        Setting {
            key: "long_run_tokens",
            about: "Tokens that such a run has used when it is a long one, however few its calls are (0: not looked at). The model is told from seven eighths of it on.",
        },
        Setting {
            key: "long_run_learned",
            about: "Where neither `long_run` stops nor `long_run_tokens` is set: the log says what is long for a kind of run (the same key, the same model), from 30 runs of it on.",
        },
        Setting { key: "polling", about: "Tools that wait for something; their repeats do not count." },
        Setting { key: "mutating", about: "Tools that change the world; after a success, trying again is a new experiment." },
        Setting {
            key: "volatile",
            about: "What is never news in results, beside times, durations and what is named as such: names (`etag`: the value behind it, in JSON and in text) and patterns with stars (`worker-*`, `ETA * left`).",
        },
        Setting { key: "highest", about: "The highest rung: observe watches and never interferes." },
    ];

    fn longest_window(&self) -> Span {
        Span::ZERO
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        self.0.all.check()
    }

    fn has_modes(&mut self, mode_of: &dyn Fn(Reason) -> Mode) {
        self.0 = Unenforced::of(mode_of).thresholds(std::mem::take(&mut self.0).all);
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    run: StallState,
}
stored_in_one_part!(State);

/// A call, as far as the state goes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeenCall {
    pub tool: String,
    pub args: u64,
    pub result: Option<u64>,
    pub error: Option<u64>,
    round: Option<u64>,
    /// What of the settings decides how the state changes.
    polling: bool,
    mutating: bool,
    cycle: Ladder,
    cycle_max_period: u32,
}

impl SeenCall {
    pub(super) fn round(&self) -> Option<u64> {
        self.round
    }

    fn step(&self, effect: CallEffect) -> Step<'_> {
        let Self { tool, args, result, error, round, .. } = self;
        Step { tool, args: *args, result: *result, error: *error, round: *round, effect }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    Called(SeenCall),
    Said {
        text: u64,
        messages: Ladder,
    },
    UserSpoke,
    /// A call of which it is known what it does.
    Did(SeenCall, CallEffect),
    /// Tokens were used, before what is told next.
    Spent(u64),
}

impl Event {
    /// A call, with what of the settings decides how it changes a state.
    pub(super) fn called(settings: &StallSettings, step: Step<'_>) -> Self {
        let seen = SeenCall {
            tool: step.tool.to_owned(),
            args: step.args,
            result: step.result,
            error: step.error,
            round: step.round,
            polling: settings.is_waiting(step.tool, step.effect),
            mutating: settings.mutating.iter().any(|tool| tool == step.tool),
            cycle: settings.cycle,
            cycle_max_period: settings.cycle_max_period,
        };
        if step.effect == CallEffect::Unknown { Self::Called(seen) } else { Self::Did(seen, step.effect) }
    }

    /// The call it tells of, if it does.
    pub(super) fn call(self) -> Option<(SeenCall, CallEffect)> {
        match self {
            Self::Called(seen) => Some((seen, CallEffect::Unknown)),
            Self::Did(seen, effect) => Some((seen, effect)),
            Self::Said { .. } | Self::UserSpoke | Self::Spent(_) => None,
        }
    }

    /// Applies it, and gives the verdict by these settings.
    fn happen(&self, settings: &StallSettings, state: &mut StallState) -> Verdict {
        match self {
            Self::Called(seen) => state.observe(settings, seen.step(CallEffect::Unknown)),
            Self::Did(seen, effect) => state.observe(settings, seen.step(*effect)),
            Self::Said { text, .. } => state.message(settings, *text),
            Self::UserSpoke => {
                state.person_spoke();
                Verdict::default()
            }
            Self::Spent(tokens) => {
                state.spent(*tokens);
                Verdict::default()
            }
        }
    }

    /// Applies it, and gives the verdicts by these thresholds.
    pub(super) fn judged(&self, thresholds: &Thresholds, state: &mut StallState) -> Verdicts {
        thresholds.judge(state, |settings, state| self.happen(settings, state))
    }

    /// Settings that change a state as those did under which the event was made.
    pub(super) fn settings(&self) -> StallSettings {
        let only = |tool: &str, applies: bool| if applies { vec![tool.to_owned()] } else { Vec::new() };
        match self {
            Self::Called(seen) | Self::Did(seen, _) => StallSettings::silent()
                .polling(only(&seen.tool, seen.polling))
                .mutating(only(&seen.tool, seen.mutating))
                .cycle(seen.cycle)
                .cycle_max_period(seen.cycle_max_period),
            Self::Said { messages, .. } => StallSettings::silent().messages(*messages),
            Self::UserSpoke | Self::Spent(_) => StallSettings::silent(),
        }
    }
}

#[derive(Debug)]
pub struct Stall;

impl Guard for Stall {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.stall
    }

    fn apply(state: &mut State, event: &Event, _at: Timestamp) {
        event.happen(&event.settings(), &mut state.run);
    }
}

#[derive(Debug)]
enum What {
    Call { args: u64, result: Option<u64>, error: Option<u64>, round: Option<u64>, effect: CallEffect },
    Message(u64),
    UserMessage,
}

/// The words of a call's outcome, where they and no hashes were told.
#[derive(Debug, Default)]
struct Texts {
    result: Option<Box<str>>,
    error: Option<Box<str>>,
}

#[derive(Debug)]
pub struct Request {
    session_id: String,
    tool: String,
    what: What,
    error: String,
    /// What was told as text, to be compared as settings say.
    texts: Texts,
    /// Used since the last one.
    tokens: u64,
    asked_with: Option<String>,
    /// What was known to be long, where it is decided again.
    long: Option<Long>,
}

impl Request {
    fn read(input: &Input<'_>) -> Self {
        let tool = input.text("tool");
        let error = input.text("error");
        let mut texts = Texts::default();
        let text_or = |name: &str| input.optional_text(name).filter(|text| !text.is_empty()).map(|text| xxh3_64(text.as_bytes()));
        let what = if input.flag("new_turn") {
            What::UserMessage
        } else if tool.trim().is_empty() {
            What::Message(text_or("message_hash").unwrap_or_else(|| result_fingerprint(&input.text("message"))))
        } else {
            let args = text_or("args_hash").or_else(|| input.json("args").map(|args| xxh3_64(fingerprint::of_json(args).as_bytes())));
            let words = Some(error.as_str()).filter(|error| !error.is_empty());
            // A hash stands for all of the words, of which there may be but the beginning.
            let (result_hash, error_hash) = (text_or("result_hash"), text_or("error_hash"));
            let result = input.json("result").map(RawValue::get);
            let words = words.filter(|_| error_hash.is_none());
            let told = Outcome::of(result, words);
            // What failed and gave nothing has said something, too.
            texts = Texts { result: result.or(words).filter(|_| result_hash.is_none()).map(Box::from), error: words.map(Box::from) };
            let (result, error) = (result_hash.or(told.result), error_hash.or(told.error));
            let told = || CallEffect::from_text(&input.text("does"));
            let effect = input.json("args").map_or_else(told, |args| CallEffect::of(&tool, args.get()));
            What::Call { args: args.unwrap_or(0), result, error, round: text_or("round"), effect }
        };
        Self {
            session_id: input.text("session_id"),
            tool: runguard_core::text::cut(&tool, MAX_ID_CHARS).to_owned(),
            what,
            error,
            texts,
            tokens: input.whole("tokens").unwrap_or(0),
            asked_with: input.asked_with.map(str::to_owned),
            long: None,
        }
    }

    fn event(&self, settings: &StallSettings) -> Event {
        match self.what {
            What::Call { args, mut result, mut error, round, effect } => {
                if !settings.volatile.is_empty() {
                    let Texts { result: said, error: words } = &self.texts;
                    let told = settings.volatile.outcome(said.as_deref(), words.as_deref());
                    // What was told as a hash stays that.
                    (result, error) = (said.as_ref().and(told.result).or(result), told.error.or(error));
                }
                Event::called(settings, Step { tool: &self.tool, args, result, error, round, effect })
            }
            What::Message(text) => Event::Said { text, messages: settings.messages },
            What::UserMessage => Event::UserSpoke,
        }
    }
}

/// What of a request is kept beside its event.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    error: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    asked_with: Option<Cow<'a, str>>,
}

fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let kept: LoggedInput<'_> = logged::read(row.input);
    let length = SoFar::told(row).shown(GuardName::Stall, kept.asked_with.as_deref(), "");
    Shows { length, ..Shows::default() }
}

fn traced(logged: &Logged<'_>) -> Traced {
    let kept: LoggedInput<'_> = logged::read(&logged.row.input);
    let shown = kept.error.to_string();
    match told(logged).map(|(event, _)| event) {
        Some(Event::Called(SeenCall { args, result, error, round, .. })) => {
            Traced::Call { arguments: Some(args), result, error, shown, effect: CallEffect::Unknown, round }
        }
        Some(Event::Did(SeenCall { args, result, error, round, .. }, effect)) => {
            Traced::Call { arguments: Some(args), result, error, shown, effect, round }
        }
        Some(Event::Said { text, .. }) => Traced::Message(text),
        Some(Event::UserSpoke | Event::Spent(_)) => Traced::UserSpoke,
        None if logged.row.subject.is_empty() => Traced::UserSpoke,
        None => {
            let error = (!shown.is_empty()).then(|| error_fingerprint(&shown));
            Traced::Call { arguments: None, result: None, error, shown, effect: CallEffect::Unknown, round: None }
        }
    }
}

/// What a row's events tell of, and the tokens that were used before it.
fn told(logged: &Logged<'_>) -> Option<(Event, u64)> {
    let mut tokens = 0;
    for event in logged.events::<Event>()? {
        match event {
            Event::Spent(more) => tokens += more,
            Event::Called(_) | Event::Said { .. } | Event::UserSpoke | Event::Did(..) => return Some((event, tokens)),
        }
    }
    None
}

/// Its events tell all of it.
pub(crate) fn again(logged: &Logged<'_>, _terms: &Terms<'_>, doubts: &mut Doubts) -> Option<Retold> {
    let row = logged.row;
    let Some((event, tokens)) = told(logged) else {
        doubts.add(Doubt::NO_EVENTS);
        return None;
    };
    let what = match event {
        Event::Called(SeenCall { args, result, error, round, .. }) => {
            What::Call { args, result, error, round, effect: CallEffect::Unknown }
        }
        Event::Did(SeenCall { args, result, error, round, .. }, effect) => What::Call { args, result, error, round, effect },
        Event::Said { text, .. } => What::Message(text),
        Event::UserSpoke | Event::Spent(_) => What::UserMessage,
    };
    Some(Retold::of(Request {
        session_id: row.session.clone(),
        tool: row.subject.clone(),
        what,
        error: String::new(),
        texts: Texts::default(),
        tokens,
        asked_with: None,
        long: Some(logged::read::<SoFar>(&row.answer).long()),
    }))
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.tool
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }

    fn input(&self, store_text: StoreText) -> String {
        let asked_with = self.asked_with.as_deref().map(Cow::Borrowed);
        logged::write(&LoggedInput { error: store_text.keep(&self.error, 300).into(), asked_with })
    }
}

impl Decide for Request {
    type Guard = Stall;
    type Block = Judgement;
    type Pass = Judgement;

    fn decide(&self, Settings(thresholds): &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let kind = (GuardName::Stall, self.asked_with.as_deref(), "");
        let long = what_is_long(self.long, moment.long_runs, kind, &thresholds.all);
        let thresholds = &*thresholds.knowing(long);
        let spent = (self.tokens > 0).then_some(Event::Spent(self.tokens));
        let events: Vec<Event> = spent.into_iter().chain([self.event(&thresholds.all)]).collect();
        let mut run = state.run.clone();
        let verdicts = events.iter().map(|event| event.judged(thresholds, &mut run)).last().unwrap_or_default();
        let so_far = SoFar::of(&run, long);
        let finding = |verdict: Verdict| {
            let rule = verdict.refuses()?;
            Some(Finding { events: events.clone(), ..Finding::new(rule.reason(), Judgement { verdict, so_far }, None) })
        };
        Ruling { findings: verdicts.each().filter_map(finding).collect(), pass: Judgement { verdict: verdicts.all, so_far }, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, found: &Judgement, _moment: Moment<'_>) -> (Facts, String) {
        (self.facts(*found), found.verdict.sentences())
    }

    fn pass(&self, found: Judgement, _moment: Moment<'_>) -> Facts {
        self.facts(found)
    }
}

/// What the detector says, and how long the run is.
#[derive(Debug, Clone, Copy)]
pub struct Judgement {
    verdict: Verdict,
    so_far: SoFar,
}

impl Request {
    fn facts(&self, Judgement { verdict, so_far }: Judgement) -> Facts {
        let facts = Facts::new().with("rung", verdict.rung.code());
        let facts = match verdict.rule {
            Some(rule) => facts.with("rule", rule.code()).with("count", verdict.count).with("nudge", verdict.nudge(&self.tool)),
            None => facts,
        };
        so_far.facts(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::{Story, operation};
    use serde_json::json;

    #[test]
    fn what_is_volatile_by_settings_is_no_news() {
        let mut story = Story::with_settings_of(&["stall"], json!({"volatile": ["etag", "worker-*"]}));
        let asks = |number: usize, hash: Option<&str>| {
            let result = json!({"rows": [1], "etag": format!("a{number}x"), "by": format!("worker-{number}q")});
            let told = match hash {
                Some(hash) => json!({"result_hash": hash}),
                None => json!({"result": result}),
            };
            let mut body = json!({"session_id": "s", "tool": "read", "args": {"path": "a"}});
            body.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
            operation("/guard/stall", body)
        };
        assert!((0..3).all(|number| story.at(0).allows(&*asks(number, None))));
        assert_eq!(story.refuses(&*asks(3, None)), Reason::StalledIdentical);
        let mut plain = Story::default();
        assert!((0..6).all(|number| plain.at(0).allows(&*asks(number, None))), "without the setting each is another");
        let mut hashed = Story::with_settings_of(&["stall"], json!({"volatile": ["etag"]}));
        assert!((0..6).all(|number| hashed.at(0).allows(&*asks(0, Some(&format!("{number}"))))), "of a hash nothing can be left out");
        let failing = |number: usize| {
            operation("/guard/stall", json!({"session_id": "s", "tool": "get", "args": 1, "error": format!("refused by worker-{number}q")}))
        };
        let mut failed = Story::with_settings_of(&["stall"], json!({"volatile": ["worker-*"], "same_error": {"stop": 0, "steer": 0}}));
        assert!((0..3).all(|number| failed.at(0).allows(&*failing(number))));
        assert_eq!(failed.refuses(&*failing(3)), Reason::StalledIdentical, "what failed has said something, too");
    }

    #[test]
    fn the_third_equal_pair_is_told_and_the_fourth_refused() {
        let mut story = Story::default();
        let pair = operation("/guard/stall", json!({"session_id": "s", "tool": "read", "args": {"path": "a"}, "result": "3 lines"}));
        assert!(story.at(0).allows(&*pair) && story.at(0).allows(&*pair) && story.at(0).allows(&*pair));
        assert_eq!(story.fact("rung"), Some(Value::from("steer")));
        assert_eq!(story.at(0).refuses(&*pair), Reason::StalledIdentical);
        let other = operation("/guard/stall", json!({"session_id": "s", "tool": "read", "args": {"path": "a"}, "result": "4 lines"}));
        assert!(story.at(0).allows(&*other), "another result is news");
    }

    #[test]
    fn a_web_agent_is_told_by_what_it_acts_on_where_that_is_asked_for() {
        let web = json!({"novelty_by_target": true, "novelty_window": 8, "novelty_max_new": 3});
        let mut refused = Vec::new();
        for settings in [json!({}), web] {
            let mut story = Story::with_settings_of(&["stall"], settings);
            // The arguments, or what was made of them by whoever does not tell them.
            let target = |number: u64| match number % 2 {
                0 => json!({"args": {"element": "Search", "ref": "e3", "text": format!("wording {number}")}}),
                _ => json!({"args_hash": format!("a{number}"), "does": "acts 9f2c"}),
            };
            refused.push((0..12).find(|number| {
                let mut asked = json!({"session_id": "s", "tool": "browser_type", "result": format!("page {number}")});
                asked.as_object_mut().unwrap().extend(target(*number).as_object().unwrap().clone());
                story.at(0).run(&*operation("/guard/stall", asked)).answer.is_block()
            }));
        }
        assert_eq!(refused, [None, Some(8)], "the ninth, after it was told at the eighth");
    }

    #[test]
    fn a_person_starts_it_anew() {
        let mut story = Story::default();
        let pair = operation("/guard/stall", json!({"session_id": "s", "tool": "read", "args": 1, "result": 1}));
        for _ in 0..3 {
            story.run(&*pair);
        }
        story.run(&*operation("/guard/stall", json!({"session_id": "s", "new_turn": true})));
        assert!(story.at(0).allows(&*pair));
        assert_eq!(story.fact("rung"), Some(Value::from("go_on")));
    }

    #[test]
    fn a_run_that_used_what_is_much_for_its_kind_is_told_and_then_ended() {
        let mut story = Story::with_settings_of(&["stall"], json!({"long_run_tokens": 8000, "unmoved": {"steer": 0}}));
        let check = |number: u64| {
            let error = format!("{} failed", ["one", "two", "three", "four"][number as usize]);
            json!({"session_id": "s", "tool": "bash", "args": {"command": "pytest"}, "error": error, "tokens": 2000})
        };
        let change = |number: u64| json!({"session_id": "s", "tool": "bash", "args": {"command": format!("echo {number} > a")}, "result": "", "tokens": 200});
        for number in 0..3 {
            assert!(
                story.at(0).allows(&*operation("/guard/stall", change(number)))
                    && story.at(0).allows(&*operation("/guard/stall", check(number)))
            );
        }
        assert_eq!(story.fact("rung"), Some(Value::from("go_on")), "6,600");
        assert!(story.at(0).allows(&*operation(
            "/guard/stall",
            json!({"tokens": 500, "session_id": "s", "tool": "bash", "args": {"command": "echo 9 > a"}, "result": ""})
        )));
        assert_eq!((story.fact("rung"), story.fact("rule")), (Some(Value::from("steer")), Some(Value::from("long_run"))), "7,100");
        assert_eq!(story.at(0).refuses(&*operation("/guard/stall", check(3))), Reason::StalledLongRun);
    }

    #[test]
    fn repeated_messages_are_refused() {
        let mut story = Story::default();
        let message = operation("/guard/stall", json!({"session_id": "s", "message": "Let me think."}));
        for _ in 0..2 {
            assert!(story.at(0).allows(&*message));
        }
        assert_eq!(story.at(0).refuses(&*message), Reason::StalledMessages);
    }

    #[test]
    fn hashes_stand_for_errors_and_messages() {
        let mut story = Story::default();
        for number in 0..4 {
            let failed = json!({"session_id": "s", "tool": "read", "args": number, "error": "", "error_hash": "e"});
            assert!(story.at(0).allows(&*operation("/guard/stall", failed)));
        }
        let failed = json!({"session_id": "s", "tool": "read", "args": 5, "error": "other words", "error_hash": "e"});
        assert_eq!(story.at(0).refuses(&*operation("/guard/stall", failed)), Reason::StalledSameError);
        let said =
            |hash: &str| operation("/guard/stall", json!({"session_id": "t", "message": "The same beginning", "message_hash": hash}));
        for hash in ["a", "b", "c", "d", "d"] {
            assert!(story.at(0).allows(&*said(hash)));
        }
        assert_eq!(story.at(0).refuses(&*said("d")), Reason::StalledMessages);
    }
}
