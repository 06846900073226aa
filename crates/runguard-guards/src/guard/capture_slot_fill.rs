//! Stops a step that asks for a value again although the user has given it, only in words.
//!
//! "john at example dot com" is an e-mail address; asking for it once more with a generated sentence gets the same
//! words. So a value in words is answered with a fixed format hint, which costs no attempt. Hints are bounded too:
//! without that the user and the hint would go round for ever.

use super::asking_again::{DATE, SPOKEN_AT};
use super::{
    AnswerKind, Billed, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Probe, Route,
    RouteKind, Ruling, RulingOf, Slot, says, stored_in_one_part, times,
};
use crate::answer::Facts;
use crate::input::{Field, Kind};
use crate::logged::{self, Doubts, EachByItself, KnownText, Logged, Reading, Retold, Shows, Terms};
use crate::pattern::Pattern;
use crate::policy::{GuardSettings, Policy, Section, Setting, SettingsProblem, VisitPattern};
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::RowRef;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use runguard_core::window::Units;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::Question,
    billed: Some(Billed::AiStep),
    holds: Holds::Flow,
    shows,
    retelling: || Box::new(EachByItself(again)),
    traces: None,
};

static SLOT: Slot = Slot::of::<CaptureSlotFill, 0>(7, Lasts::Window);

pub static ROUTE: Route = Route {
    path: "/guard/capture-slot-fill",
    guard: GuardName::CaptureSlotFill,
    kind: RouteKind::Check,
    summary: "May a generated answer ask for this value again?",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"user-1\""),
        Field::required("capture_step", Kind::Id, "The Capture step.", "\"ask_email\""),
        Field::required("entity_type", Kind::Id, "What it captures: email, phone, date, order_id, or one of your own.", "\"email\""),
        Field::optional("user_utterance", Kind::Text, "What the user said.", "\"john at example dot com\""),
    ],
    answers: &[
        says("allow_ai_response", AnswerKind::Flag, "The same as allow."),
        says("capture_step", AnswerKind::Text, "The step asked about."),
        says("entity_type", AnswerKind::Text, "The entity asked about."),
        says("classification", AnswerKind::Text, "machine_format_extraction_failure, colloquial_format or unrecognized."),
        says("attempt_number", AnswerKind::Whole, "Allowed: which attempt this is."),
        says("remaining_attempts", AnswerKind::Whole, "Allowed: how many are left after it."),
        says("format_hint", AnswerKind::Text, "Value in words: the sentence to show."),
        says("attempts_in_window", AnswerKind::Whole, "Ceiling: attempts counted."),
        says("hints_given", AnswerKind::Whole, "Ceiling: hints given in the window."),
        says("ceiling", AnswerKind::Whole, "Ceiling: attempts allowed."),
    ],
    reasons: &[Reason::ColloquialFormatDetected, Reason::AttemptCeilingReached],
    read: |input| {
        Box::new(Request {
            session_id: input.text("session_id"),
            capture_step: input.text("capture_step"),
            entity_type: input.text("entity_type"),
            user_utterance: input.text("user_utterance"),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entity {
    #[serde(default = "no_pattern")]
    pub machine: Pattern,
    #[serde(default = "no_pattern")]
    pub colloquial: Pattern,
    #[serde(default)]
    pub hint: String,
}

fn no_pattern() -> Pattern {
    Pattern::of("")
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_attempts: u32,
    pub max_hints: u32,
    pub window: Span,
    pub entities: BTreeMap<String, Entity>,
}

impl Default for Settings {
    fn default() -> Self {
        // Word boundaries are ASCII, so words of other scripts stand apart.
        let digit = concat!(
            "(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple",
            "|null|eins|zwei|zwo|drei|vier|fünf|sechs|sieben|acht|neun|cero|uno|dos|tres|cuatro|cinco|seis|siete|ocho|nueve",
            "|zéro|un|deux|trois|quatre|cinq|sept|huit|neuf)"
        );
        let other_digit = concat!(
            "(?:ноль|нуль|один|два|три|четыре|пять|шесть|семь|восемь|девять|صفر|واحد|اثنان|اثنين|ثلاثة|[أا]ربعة|خمسة|ستة|سبعة|ثمانية|تسعة",
            "|शून्य|एक|दो|तीन|चार|पां?ँ?च|छह|छः|सात|आठ|नौ)"
        );
        let gap = r"[\s,-]+";
        let spoken_digits =
            format!(r"\b{digit}(?:{gap}{digit}){{2,}}\b|{other_digit}(?:{gap}{other_digit}){{2,}}|[零〇一二三四五六七八九幺两]{{3,}}");
        let day = "(?:mon|tues|wednes|thurs|fri|satur|sun)day";
        let ordinal = concat!(
            "(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth|fifteenth|",
            "sixteenth|seventeenth|eighteenth|nineteenth|twentieth|twenty[ -](?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)|",
            "thirtieth|thirty[ -]first)"
        );
        let other_date = concat!(
            r"\b(?:heute|morgen|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|hoy|mañana|lunes|martes|miércoles|jueves|viernes|sábado|domingo",
            r"|aujourd.hui|demain|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche)\b",
            "|сегодня|завтра|понедельник|вторник|сред[ау]|четверг|пятниц[ау]|суббот[ау]|воскресенье|اليوم|غدا|الأحد|الاثنين|الثلاثاء|الأربعاء|الخميس|الجمعة|السبت",
            "|आज|कल|परसों|(?:सोम|मंगल|बुध|गुरु|शुक्र|शनि|रवि)वार|今天|明天|后天|今日|明日|来週|下周|星期|周[一二三四五六日]|[月火水木金土日]曜"
        );
        let spoken_date = format!(
            r"\bthe\s+\d{{1,2}}(?:st|nd|rd|th)?\b|\bthe\s+{ordinal}\b|\b(?:next|this|coming|on)\s+(?:{day}|week|weekend|month)\b|\b(?:today|tomorrow)\b|\bin\s+\w+\s+(?:days?|weeks?)\b|{other_date}"
        );
        let spoken_email = format!(
            r"\w+\s+(?:at|@)\s+\w+(?:\s+\w+)?\s*(?:\bdot\b|\.)\s*\w{{2,}}|\w+\s*(?:\bat\b|ät|@|{SPOKEN_AT})\s*\w+(?:\s+\w+)?\s*(?:punkt|punto|точка|ドット|点|점|\.)\s*\w{{2,}}|\w+\s+arobase\s+\w+(?:\s+\w+)?\s+point\s+\w{{2,}}"
        );
        let entities = [
            (
                "email",
                r"[a-zA-Z0-9._%+\-]+@[a-zA-Z0-9.\-]+\.[a-zA-Z]{2,}",
                spoken_email.as_str(),
                "Please type the e-mail address in this form: name@example.com",
            ),
            ("phone", r"\b\d[\d\s\-().]{7,}\d\b", &spoken_digits, "Please type the phone number in digits, like 555-867-5309"),
            ("date", DATE, &spoken_date, "Please type the date as MM/DD/YYYY, like 06/21/2026"),
            (
                "order_id",
                r"(?:\bord(?:er)?|#)[-\s]?\d{5,}\b|\b\d{7,}\b",
                r"\b(?:my order|order number|order #|reference)\s+(?:number\s+)?(?:is\s+)?\w+|\bthe (?:order|one) (?:i|from|that|with)\b",
                "Please type the order number as it stands in the confirmation e-mail, like ORD-12345678",
            ),
        ]
        .into_iter()
        .map(|(name, machine, colloquial, hint)| {
            (
                name.to_owned(),
                Entity { machine: Pattern::built_in(machine), colloquial: Pattern::built_in(colloquial), hint: hint.to_owned() },
            )
        })
        .collect();
        Self { max_attempts: 4, max_hints: 10, window: Span::from_seconds(3600), entities }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::CaptureSlotFill;
    const SECTION: &'static [&'static str] = &["capture_slot_fill"];
    const SUBJECTS: &'static str = "steps";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_attempts", about: "Generated reprompts of one Capture step in one session within the window." },
        Setting { key: "max_hints", about: "Format hints before the step is given up." },
        Setting { key: "window", about: "Seconds (3600) or with a unit (\"1h\")." },
        Setting { key: "entities", about: "Per entity type: the form a machine reads, the form people say, and the hint to show." },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_attempts", self.max_attempts, 0..=1000)?;
        within("max_hints", self.max_hints, 0..=1000)?;
        lasting("window", self.window)
    }

    fn each_pattern(&mut self, visit: &mut VisitPattern<'_>) -> Result<(), SettingsProblem> {
        self.entities.iter_mut().try_for_each(|(name, entity)| {
            visit(&["entities", name, "machine"], &mut entity.machine)?;
            visit(&["entities", name, "colloquial"], &mut entity.colloquial)
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    attempts: Units,
    hints: Units,
}
stored_in_one_part!(State);

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    Attempted { keep: u32 },
    Hinted { keep: u32 },
}

#[derive(Debug)]
pub struct CaptureSlotFill;

impl Guard for CaptureSlotFill {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.capture_slot_fill
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        match event {
            Event::Attempted { keep } => state.attempts.take(at, *keep),
            Event::Hinted { keep } => state.hints.take(at, *keep),
        }
    }

    fn probes(section: &Section<Settings>, subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let settings = &section.for_subject(subject).settings;
        // Of no entity: what the user says next is not known.
        let request = Request {
            session_id: String::new(),
            capture_step: subject.to_owned(),
            entity_type: String::new(),
            user_utterance: String::new(),
        };
        let used = state.attempts.count(now, settings.window);
        vec![Probe { request: Box::new(request), used, ceiling: settings.max_attempts, window: settings.window }]
    }
}

#[derive(Debug)]
pub struct Request {
    pub session_id: String,
    pub capture_step: String,
    pub entity_type: String,
    pub user_utterance: String,
}

const MOST_KEPT_CHARS: usize = 200;

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow)]
    entity_type: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    user_utterance: Cow<'a, str>,
}

/// What of an answer is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoggedAnswer<'a> {
    #[serde(borrow)]
    classification: Option<Cow<'a, str>>,
}

pub(crate) fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let kept: LoggedInput<'a> = logged::read(row.input);
    let is_hint = row.gives(Reason::ColloquialFormatDetected);
    let entity = (!kept.entity_type.is_empty()).then_some(logged::Entity { name: kept.entity_type, is_hint });
    Shows { entity, ..Shows::default() }
}

pub(crate) fn again(logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Retold {
    let row = logged.row;
    let (kept, said): (LoggedInput<'_>, LoggedAnswer<'_>) = (logged::read(&row.input), logged::read(&row.answer));
    let classification = said.classification.map(|code| Classification::from_code(&code));
    let known = if classification.is_some() { KnownText::Finding } else { KnownText::Nothing };
    let reading = terms.reading(known, &kept.user_utterance, MOST_KEPT_CHARS, doubts);
    let user_utterance = match (reading, classification.flatten()) {
        (Reading::Text, _) => kept.user_utterance.into_owned(),
        (Reading::Word, Some(Classification::MachineFormat)) => logged::SIGNAL.to_owned(),
        (Reading::Word, Some(Classification::Colloquial)) => logged::SPOKEN.to_owned(),
        (Reading::Word, Some(Classification::Unrecognized) | None) => logged::NOTHING.to_owned(),
    };
    let (session_id, capture_step, entity_type) = (row.session.clone(), row.subject.clone(), kept.entity_type.into_owned());
    Retold::by(reading, Request { session_id, capture_step, entity_type, user_utterance })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Classification {
    MachineFormat,
    Colloquial,
    Unrecognized,
}

impl Classification {
    const fn code(self) -> &'static str {
        match self {
            Self::MachineFormat => "machine_format_extraction_failure",
            Self::Colloquial => "colloquial_format",
            Self::Unrecognized => "unrecognized",
        }
    }

    fn from_code(code: &str) -> Option<Self> {
        [Self::MachineFormat, Self::Colloquial, Self::Unrecognized].into_iter().find(|known| known.code() == code)
    }
}

#[derive(Debug)]
pub enum Block {
    Colloquial { hint: String },
    CeilingReached { attempts: u32, hints: u32 },
}

#[derive(Debug)]
pub struct Pass {
    attempt: u32,
    remaining: u32,
    classification: &'static str,
}

impl Request {
    fn classify(&self, settings: &Settings) -> Classification {
        match settings.entities.get(&self.entity_type) {
            Some(entity) if entity.machine.is_in(&self.user_utterance) => Classification::MachineFormat,
            Some(entity) if entity.colloquial.is_in(&self.user_utterance) => Classification::Colloquial,
            Some(_) | None => Classification::Unrecognized,
        }
    }
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.capture_step
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, &self.capture_step)]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedInput {
            entity_type: Cow::Borrowed(&self.entity_type),
            user_utterance: store_text.keep(&self.user_utterance, MOST_KEPT_CHARS).into(),
        })
    }
}

impl Decide for Request {
    type Guard = CaptureSlotFill;
    type Block = Block;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let classification = self.classify(settings);
        let attempts = state.attempts.count(moment.now, settings.window);
        let hints = state.hints.count(moment.now, settings.window);
        let mut findings = Vec::new();
        if classification == Classification::Colloquial && hints < settings.max_hints {
            let hint = settings.entities.get(&self.entity_type).map(|entity| entity.hint.clone()).unwrap_or_default();
            let mut finding = Finding::new(Reason::ColloquialFormatDetected, Block::Colloquial { hint }, None);
            finding.events.push(Event::Hinted { keep: settings.max_hints });
            findings.push(finding);
        }
        let attempts_used_up = attempts >= settings.max_attempts;
        let hints_used_up = hints >= settings.max_hints;
        if attempts_used_up || hints_used_up {
            let attempts_free = attempts_used_up.then(|| state.attempts.frees_at(settings.window, settings.max_attempts));
            let hints_free = hints_used_up.then(|| state.hints.frees_at(settings.window, settings.max_hints));
            // Both must be free again; one that never frees makes the whole never.
            let clears_at = match (attempts_free, hints_free) {
                (Some(attempts), Some(hints)) => attempts.zip(hints).map(|(attempts, hints)| attempts.max(hints)),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => None,
            };
            findings.push(Finding::new(Reason::AttemptCeilingReached, Block::CeilingReached { attempts, hints }, clears_at));
        }
        Ruling {
            findings,
            pass: Pass {
                attempt: attempts + 1,
                remaining: settings.max_attempts.saturating_sub(attempts + 1),
                classification: classification.code(),
            },
            events: vec![Event::Attempted { keep: settings.max_attempts }],
        }
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Block, _moment: Moment<'_>) -> (Facts, String) {
        let step = &self.capture_step;
        let facts = Facts::new().with("capture_step", step.clone()).with("entity_type", self.entity_type.clone());
        match block {
            Block::Colloquial { hint } => (
                facts.with("classification", Classification::Colloquial.code()).with("format_hint", hint.clone()),
                format!(
                    "The user gave the {} in words, and believes that it is right. Show the fixed format hint instead of a generated reprompt, then capture again.",
                    self.entity_type
                ),
            ),
            Block::CeilingReached { attempts, hints } => (
                facts
                    .with("classification", self.classify(settings).code())
                    .with("attempts_in_window", *attempts)
                    .with("hints_given", *hints)
                    .with("ceiling", settings.max_attempts),
                format!(
                    "Step '{step}' was tried {} (ceiling {}) and {hints} format hints were given (ceiling {}) in the last {}. Hand over to a person, or go on without the {}.",
                    times(*attempts),
                    settings.max_attempts,
                    settings.max_hints,
                    settings.window,
                    self.entity_type
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("capture_step", self.capture_step.clone())
            .with("entity_type", self.entity_type.clone())
            .with("classification", pass.classification)
            .with("attempt_number", pass.attempt)
            .with("remaining_attempts", pass.remaining)
    }

    fn always(&self, allow: bool) -> Facts {
        Facts::new().with("allow_ai_response", allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;

    fn request(entity: &str, utterance: &str) -> Request {
        Request { session_id: "s".into(), capture_step: "ask".into(), entity_type: entity.into(), user_utterance: utterance.into() }
    }

    #[test]
    fn words_are_recognised_for_what_they_are() {
        let settings = Settings::default();
        assert_eq!(settings.entities.len(), 4);
        for (entity, utterance, expected) in [
            ("email", "john at example dot com", Classification::Colloquial),
            ("email", "sure, john at example dot com", Classification::Colloquial),
            ("email", "user@domain.com", Classification::MachineFormat),
            ("email", "I have no mail", Classification::Unrecognized),
            ("phone", "three two one", Classification::Colloquial),
            ("phone", "five five five, eight six seven", Classification::Colloquial),
            ("phone", "555-867-5309", Classification::MachineFormat),
            ("phone", "one moment", Classification::Unrecognized),
            ("date", "the fifteenth", Classification::Colloquial),
            ("date", "next Saturday", Classification::Colloquial),
            ("date", "the 15th", Classification::Colloquial),
            ("date", "06/21/2026", Classification::MachineFormat),
            ("date", "whenever", Classification::Unrecognized),
            ("order_id", "#12345678", Classification::MachineFormat),
            ("order_id", "my order is late", Classification::Colloquial),
            ("shoe_size", "42", Classification::Unrecognized),
            ("phone", "٥٥٥-٨٦٧-٥٣٠٩", Classification::MachineFormat),
            ("phone", "cinco cinco cinco ocho seis siete", Classification::Colloquial),
            ("phone", "пять пять пять восемь", Classification::Colloquial),
            ("phone", "八六七五三零九", Classification::Colloquial),
            ("phone", "einen Moment", Classification::Unrecognized),
            ("email", "maría arroba ejemplo punto es", Classification::Colloquial),
            ("email", "hans at beispiel punkt de", Classification::Colloquial),
            ("email", "иван собака пример точка ру", Classification::Colloquial),
            ("email", "look at this point again", Classification::Unrecognized),
            ("date", "завтра", Classification::Colloquial),
            ("date", "el próximo lunes", Classification::Colloquial),
            ("date", "２０２６-０６-２１", Classification::MachineFormat),
            ("date", "6月21日", Classification::MachineFormat),
        ] {
            assert_eq!(request(entity, utterance).classify(&settings), expected, "{entity}: {utterance}");
        }
    }

    #[test]
    fn hints_cost_no_attempt_and_end() {
        let mut story = Story::default();
        let in_words = request("email", "john at example dot com");
        for second in 0..10 {
            assert_eq!(story.at(second * 1000).refuses(&in_words), Reason::ColloquialFormatDetected, "{second}");
            assert_eq!(story.retry_after_seconds(), None);
        }
        assert_eq!(story.at(10_000).refuses(&in_words), Reason::AttemptCeilingReached);
        assert_eq!(story.fact("hints_given"), Some(Value::Int(10)));
        assert_eq!(story.fact("attempts_in_window"), Some(Value::Int(0)));
        assert_eq!(story.fact("allow_ai_response"), Some(Value::Bool(false)));
    }

    #[test]
    fn four_attempts_then_a_person() {
        let mut story = Story::default();
        for _ in 0..4 {
            assert!(story.at(0).allows(&request("email", "hm")));
            assert_eq!(story.fact("allow_ai_response"), Some(Value::Bool(true)));
        }
        assert_eq!(story.at(0).refuses(&request("email", "hm")), Reason::AttemptCeilingReached);
        assert_eq!(story.retry_after_seconds(), Some(3600));
        assert!(story.at(3_600_000).allows(&request("email", "hm")));
    }
}
