//! What a loop costs, and what a guard leaves of it: the arithmetic, in whole numbers.
//!
//! Published designs argue with examples: so many conversations, such a share of them in a loop, so many
//! attempts each. The same sum serves anybody's numbers. Shares and averages are kept in millionths and money in
//! nano-dollars; each result is rounded once, at its end, so an example comes out to the digit, and where a design has
//! miscounted, [`Figure::document`] and [`Figure::right`] say so.

mod tokens;

pub use tokens::{TOKEN_EXAMPLES, TokenLine, TokenLoop, Tokens, estimate_tokens};

use runguard_core::breaker::CircuitSettings;
use runguard_core::limits::InvalidSetting;
use runguard_core::money::NanoDollars;
use runguard_core::reason::GuardName;
use runguard_guards::guard::{agent_action, ai_task_retry, capture_slot_fill, handoff, kb_requery, no_match_reprompt};
use std::fmt;

const MILLION: u64 = 1_000_000;
/// Beyond these a product could leave 128 bits, and a number would be a typing error.
const MOST_CONVERSATIONS: u64 = 1_000_000_000_000;
const MOST: u64 = MILLION;

/// A number with up to six decimals, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Millionths(u64);

impl Millionths {
    pub const ZERO: Self = Self(0);
    pub const ONE: Self = Self(MILLION);

    pub const fn from_whole(whole: u64) -> Self {
        Self(whole.saturating_mul(MILLION))
    }

    pub const fn as_millionths(self) -> u64 {
        self.0
    }

    /// Reads `2.3` or `10,000`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no number like 5 or 2.3, with at most six decimals");
        let plain = text.trim().replace([',', '_'], "");
        let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || fraction.len() > 6 {
            return Err(bad());
        }
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| bad())?;
        whole.checked_mul(MILLION).and_then(|whole| whole.checked_add(fraction)).map(Self).ok_or_else(bad)
    }

    /// Reads a share: `30` or `30%` is 0.3.
    pub fn parse_percent(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no percentage from 0 to 100 with at most four decimals");
        let Self(percent) = Self::parse(text.trim().trim_end_matches('%').trim_end()).map_err(|_| bad())?;
        if percent > 100 * MILLION || !percent.is_multiple_of(100) { Err(bad()) } else { Ok(Self(percent / 100)) }
    }

    pub const fn from_percent(percent: u64) -> Self {
        Self(percent * 10_000)
    }
}

impl fmt::Display for Millionths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, u128::from(self.0))
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, millionths: u128) -> fmt::Result {
    let million = u128::from(MILLION);
    let (whole, fraction) = (millionths / million, millionths % million);
    if fraction == 0 {
        return write!(f, "{whole}");
    }
    let fraction = format!("{fraction:06}");
    write!(f, "{whole}.{}", fraction.trim_end_matches('0'))
}

/// What the number of conversations is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Day,
    Month,
    /// One event, or one conversation.
    Once,
}

impl Period {
    pub const ALL: [Self; 3] = [Self::Day, Self::Month, Self::Once];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
            Self::Once => "once",
        }
    }
}

/// What a loop is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inputs {
    pub conversations: u64,
    pub period: Period,
    pub days_per_month: u64,
    /// Share of the conversations that get into the loop.
    pub affected: Millionths,
    /// Rounds of the loop in each of them, on average, with nobody to stop it.
    pub attempts: Millionths,
    pub operations_per_attempt: u64,
    /// Operations of every conversation besides.
    pub base_operations: u64,
    /// Rounds the guard lets pass in one conversation.
    pub allowed: u64,
    /// Operations that are billed although the round is refused, such as the model call that chose it.
    pub refused_operations: u64,
    /// Share of the affected conversations in which the guard sees at the first round that no round can help.
    pub hopeless: Millionths,
    /// Rounds the guard lets pass in all conversations together, for a circuit they share.
    pub allowed_in_all: Option<u64>,
    pub credits_per_operation: Millionths,
    pub usd_per_operation: NanoDollars,
}

/// Rounds of the loop, operations of each and of a refused one; and the rounds the guard lets pass by default. Of guards that a published
/// design has numbers for: of others nothing is known, so nothing is reckoned.
const LOOPS: [(GuardName, [u64; 3], fn() -> u32); 7] = [
    (GuardName::AiTaskRetry, [5, 1, 0], || ai_task_retry::Settings::default().max_retries),
    // From one bot to the other and back: each is visited so often.
    (GuardName::Handoff, [12, 2, 1], || 2 * handoff::Settings::default().max_visits_per_bot),
    (GuardName::KbRequery, [10, 2, 0], || kb_requery::BotpressSettings::default().max_queries),
    (GuardName::AgentAction, [20, 1, 1], || agent_action::Settings::default().max_consecutive),
    (GuardName::NoMatchReprompt, [8, 2, 0], || no_match_reprompt::Settings::default().max_reprompts),
    (GuardName::CaptureSlotFill, [15, 1, 0], || capture_slot_fill::Settings::default().max_attempts),
    (GuardName::ApiCircuit, [3, 1, 0], || CircuitSettings::default().max_attempts_per_session),
];

impl Inputs {
    /// The guard's ceilings as they are by default, and the loop as the published designs describe it. `None` for guards they have no
    /// numbers for.
    pub fn of(guard: GuardName) -> Option<Self> {
        let (_, [attempts, operations_per_attempt, refused_operations], allowed) =
            LOOPS.iter().find(|(known, ..)| *known == guard).copied()?;
        Some(Self {
            conversations: 10_000,
            period: Period::Day,
            days_per_month: 30,
            affected: Millionths::from_percent(30),
            attempts: Millionths::from_whole(attempts),
            operations_per_attempt,
            base_operations: 0,
            allowed: u64::from(allowed()),
            refused_operations,
            hopeless: Millionths::ZERO,
            allowed_in_all: (guard == GuardName::ApiCircuit).then(|| u64::from(CircuitSettings::default().failure_threshold)),
            credits_per_operation: Millionths::ONE,
            usd_per_operation: NanoDollars::ZERO,
        })
    }

    /// The name of what is out of range, and why.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let within = |name, value: u64, most: u64| {
            if value <= most { Ok(()) } else { Err(InvalidSetting::new(name, format!("must be at most {most}, is {value}"))) }
        };
        within("conversations", self.conversations, MOST_CONVERSATIONS)?;
        within("attempts", self.attempts.0 / MILLION, MOST)?;
        within("operations-per-attempt", self.operations_per_attempt, MOST)?;
        within("base-operations", self.base_operations, MOST)?;
        within("allowed", self.allowed, MOST)?;
        within("refused-operations", self.refused_operations, MOST)?;
        within("credits-per-operation", self.credits_per_operation.0 / MILLION, MOST)?;
        if !(1..=31).contains(&self.days_per_month) {
            return Err(InvalidSetting::new("days-per-month", format!("must be from 1 to 31, is {}", self.days_per_month)));
        }
        if self.affected > Millionths::ONE || self.hopeless > Millionths::ONE {
            return Err(InvalidSetting::new("affected", "and hopeless are shares: at most 100 %".to_owned()));
        }
        Ok(())
    }

    /// Conversations in the loop, in millionths.
    fn affected_millionths(&self) -> u128 {
        u128::from(self.conversations) * u128::from(self.affected.0)
    }

    /// Operations of the loop in the period without a guard, times a million squared.
    fn without_scaled(&self) -> u128 {
        self.affected_millionths() * u128::from(self.attempts.0) * u128::from(self.operations_per_attempt)
    }

    fn with_scaled(&self) -> u128 {
        let hopeful = MILLION - self.hopeless.0.min(MILLION);
        let allowed = self.allowed.saturating_mul(MILLION).min(self.attempts.0);
        // Whoever would go on past the ceiling is refused once; whoever is hopeless, at the first round.
        let refused = |is_refused: bool| if is_refused { u128::from(self.refused_operations) * u128::from(MILLION) } else { 0 };
        let of_hopeful = u128::from(allowed) * u128::from(self.operations_per_attempt) + refused(self.attempts.0 > allowed);
        let of_hopeless = refused(self.attempts.0 > 0);
        let one = of_hopeful * u128::from(hopeful) + of_hopeless * u128::from(MILLION - hopeful);
        let each = self.affected_millionths() * one / u128::from(MILLION);
        let scale = u128::from(MILLION) * u128::from(MILLION);
        let together = self.allowed_in_all.map(|rounds| u128::from(rounds) * u128::from(self.operations_per_attempt) * scale);
        // A guard never adds a round: what a refusal costs would have been billed as a part of the round.
        each.min(together.unwrap_or(u128::MAX)).min(self.without_scaled())
    }
}

/// Operations, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    pub operations: u64,
    /// In millionths.
    credits: u128,
    pub usd: NanoDollars,
}

impl Amount {
    /// As decimal text, exactly.
    pub fn credits(&self) -> String {
        struct Credits(u128);
        impl fmt::Display for Credits {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_decimal(f, self.0)
            }
        }
        Credits(self.credits).to_string()
    }
}

/// One length of time: before, after, and the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    pub period: Period,
    /// Operations that no guard changes.
    pub base: Amount,
    pub without: Amount,
    pub with: Amount,
    pub saved: Amount,
}

/// By day and by month, or once.
pub fn estimate(inputs: &Inputs) -> Result<Vec<Line>, InvalidSetting> {
    inputs.check()?;
    let days = u128::from(inputs.days_per_month);
    let periods: &[(Period, u128, u128)] = match inputs.period {
        Period::Day => &[(Period::Day, 1, 1), (Period::Month, days, 1)],
        Period::Month => &[(Period::Day, 1, days), (Period::Month, 1, 1)],
        Period::Once => &[(Period::Once, 1, 1)],
    };
    let scale = u128::from(MILLION) * u128::from(MILLION);
    let base = u128::from(inputs.conversations) * u128::from(inputs.base_operations) * scale;
    periods
        .iter()
        .map(|&(period, times, parts)| {
            let amount = |scaled: u128| amount(inputs, rounded(scaled * times, scale * parts));
            let (without, with) = (amount(inputs.without_scaled())?, amount(inputs.with_scaled())?);
            let saved = self::amount(inputs, u128::from(without.operations - with.operations))?;
            Ok(Line { period, base: amount(base)?, without, with, saved })
        })
        .collect()
}

/// To the nearest whole, up when two are as near.
fn rounded(numerator: u128, denominator: u128) -> u128 {
    numerator / denominator + u128::from(numerator % denominator >= denominator.div_ceil(2))
}

fn amount(inputs: &Inputs, operations: u128) -> Result<Amount, InvalidSetting> {
    let too_many = || InvalidSetting::new("conversations", "comes to more than can be counted; is it the right number?");
    let operations = u64::try_from(operations).map_err(|_| too_many())?;
    let credits = u128::from(operations) * u128::from(inputs.credits_per_operation.0);
    let usd = inputs
        .usd_per_operation
        .checked_mul(operations)
        .ok_or_else(|| InvalidSetting::new("usd-per-operation", "comes to more than nine billion dollars; is it in dollars?"))?;
    Ok(Amount { operations, credits, usd })
}

/// A published number, worked out again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    pub what: &'static str,
    /// As it was published; `None`: it was not.
    pub document: Option<u64>,
    pub right: u64,
    /// Why they differ, or what the number leaves out.
    pub note: &'static str,
}

impl Figure {
    pub fn agrees(&self) -> bool {
        self.document.is_none_or(|document| document == self.right)
    }
}

/// A worked example that was published.
#[derive(Debug)]
pub struct Example {
    pub name: &'static str,
    /// By whom.
    pub source: &'static str,
    pub about: &'static str,
    /// `None`: numbers that compare no before and after.
    pub inputs: fn() -> Option<Inputs>,
    pub figures: fn() -> Vec<Figure>,
}

const BOTPRESS: &str = "Botpress cost control";
const VOICEFLOW: &str = "Voiceflow cost control";

fn example(guard: GuardName, change: fn(&mut Inputs)) -> Option<Inputs> {
    let one = Inputs { conversations: 1, period: Period::Once, affected: Millionths::ONE, ..Inputs::of(guard)? };
    let mut inputs = one;
    change(&mut inputs);
    Some(inputs)
}

/// Operations of the first period, without and with the guard.
fn first(inputs: Option<Inputs>) -> (u64, u64) {
    let lines = inputs.and_then(|inputs| estimate(&inputs).ok()).unwrap_or_default();
    lines.first().map_or((0, 0), |line| (line.without.operations, line.with.operations))
}

fn retries() -> Option<Inputs> {
    example(GuardName::AiTaskRetry, |inputs| {
        (inputs.conversations, inputs.period) = (10_000, Period::Day);
        inputs.affected = Millionths::from_percent(30);
        inputs.base_operations = 3;
        inputs.hopeless = Millionths::ONE;
    })
}

fn one_message() -> Option<Inputs> {
    example(GuardName::AiTaskRetry, |inputs| {
        inputs.base_operations = 1;
        inputs.hopeless = Millionths::ONE;
    })
}

fn six_bots() -> Option<Inputs> {
    example(GuardName::Handoff, |inputs| {
        inputs.attempts = Millionths::from_whole(6);
        inputs.allowed = 6;
    })
}

fn kb_gap() -> Option<Inputs> {
    example(GuardName::KbRequery, |_| {})
}

fn launch() -> Option<Inputs> {
    example(GuardName::KbRequery, |inputs| inputs.conversations = 5_000)
}

fn spiral() -> Option<Inputs> {
    example(GuardName::AgentAction, |_| {})
}

fn two_in_turn() -> Option<Inputs> {
    // Six of each: the seventh of the first is the thirteenth of all.
    example(GuardName::AgentAction, |inputs| inputs.allowed = 12)
}

fn three_attempts() -> Option<Inputs> {
    example(GuardName::NoMatchReprompt, |inputs| inputs.attempts = Millionths::from_whole(3))
}

fn reprompts_month() -> Option<Inputs> {
    example(GuardName::NoMatchReprompt, |inputs| {
        (inputs.conversations, inputs.period) = (50_000, Period::Month);
        inputs.affected = Millionths::from_percent(15);
        inputs.attempts = Millionths(2_300_000);
        inputs.operations_per_attempt = 1;
    })
}

fn spoken_email() -> Option<Inputs> {
    example(GuardName::CaptureSlotFill, |inputs| inputs.hopeless = Millionths::ONE)
}

fn ceiling_of_five() -> Option<Inputs> {
    example(GuardName::CaptureSlotFill, |inputs| {
        inputs.attempts = Millionths::from_whole(5);
        inputs.hopeless = Millionths::ONE;
    })
}

fn kb_chain() -> Option<Inputs> {
    example(GuardName::KbRequery, |inputs| {
        inputs.attempts = Millionths::from_whole(3);
        inputs.allowed = 1;
    })
}

fn storm() -> Option<Inputs> {
    example(GuardName::ApiCircuit, |inputs| inputs.conversations = 100)
}

const fn said(what: &'static str, document: u64, right: u64, note: &'static str) -> Figure {
    Figure { what, document: Some(document), right, note }
}

const fn unsaid(what: &'static str, right: u64, note: &'static str) -> Figure {
    Figure { what, document: None, right, note }
}

/// Every worked example of two published designs, in their order.
pub static EXAMPLES: &[Example] = &[
    Example {
        name: "botpress-retries",
        source: BOTPRESS,
        about: "10,000 conversations a day, 30 % without an order number, an AI Task that retries 5 times, 3 operations besides",
        inputs: retries,
        figures: || {
            let affected = retries().map_or(0, |inputs| inputs.conversations * inputs.affected.0 / MILLION);
            vec![
                said(
                    "model calls for retries, a day",
                    75_000,
                    first(retries()).0,
                    "3,000 conversations of 5 retries are 15,000; published is that five times more",
                ),
                unsaid(
                    "operations of these conversations besides, a day",
                    affected * retries().map_or(0, |inputs| inputs.base_operations),
                    "less than the retries, as published",
                ),
            ]
        },
    },
    Example {
        name: "botpress-one-message",
        source: BOTPRESS,
        about: "one message without an order number, 5 retries",
        inputs: one_message,
        figures: || {
            vec![
                said("credits for retries", 5, first(one_message()).0, "with the first call, which is not guarded, 6 are spent"),
                said("credits that suffice", 1, one_message().map_or(0, |inputs| inputs.base_operations) + first(one_message()).1, ""),
            ]
        },
    },
    Example {
        name: "botpress-six-bots",
        source: BOTPRESS,
        about: "one conversation goes once through six bots, each handing back to the orchestrator",
        inputs: six_bots,
        figures: || {
            vec![said(
                "model calls",
                12,
                first(six_bots()).0,
                "six transfers are allowed by default, so the first tour passes; a second one is blocked at its first transfer",
            )]
        },
    },
    Example {
        name: "botpress-kb-gap",
        source: BOTPRESS,
        about: "one question that nobody documented, 10 re-queries of two operations",
        inputs: kb_gap,
        figures: || vec![said("credits", 20, first(kb_gap()).0, "")],
    },
    Example {
        name: "botpress-launch",
        source: BOTPRESS,
        about: "5,000 questions about an undocumented feature, 10 re-queries of two operations each",
        inputs: launch,
        figures: || vec![said("credits", 100_000, first(launch()).0, "")],
    },
    Example {
        name: "botpress-spiral",
        source: BOTPRESS,
        about: "an agent without the action it needs, stopped at 20 turns",
        inputs: spiral,
        figures: || {
            vec![
                said("credits without the guard", 20, first(spiral()).0, ""),
                said(
                    "credits with it, the same action in a row",
                    3,
                    first(spiral()).1,
                    "three are allowed and the fourth is blocked; the model call that chose the fourth is billed",
                ),
                said(
                    "credits with it, two actions in turn",
                    6,
                    first(two_in_turn()).1,
                    "six of the same are allowed; with another between them the seventh is the 13th turn",
                ),
            ]
        },
    },
    Example {
        name: "voiceflow-three-attempts",
        source: VOICEFLOW,
        about: "three failed recognitions, each with a generated clarification and a classification",
        inputs: three_attempts,
        figures: || {
            vec![
                said("model calls", 6, first(three_attempts()).0, "the ceiling is three: it passes; without the signal none would"),
                unsaid("with a generated escalation at the end", first(three_attempts()).0 + 1, "a fixed sentence there costs nothing"),
            ]
        },
    },
    Example {
        name: "voiceflow-reprompts-month",
        source: VOICEFLOW,
        about: "50,000 sessions a month, 15 % with a No Match, 2.3 reprompts each",
        inputs: reprompts_month,
        figures: || {
            vec![said(
                "generated clarifications, a month",
                17_250,
                first_of(reprompts_month(), Period::Month),
                "an average below the ceiling says nothing of those above it: set --hopeless to the share without a signal",
            )]
        },
    },
    Example {
        name: "voiceflow-spoken-email",
        source: VOICEFLOW,
        about: "an e-mail address in words, asked for 15 times",
        inputs: spoken_email,
        figures: || vec![said("generated clarifications", 15, first(spoken_email()).0, "a value in words is answered with a fixed hint")],
    },
    Example {
        name: "voiceflow-ceiling-of-five",
        source: VOICEFLOW,
        about: "the same with a ceiling of 5 in the flow",
        inputs: ceiling_of_five,
        figures: || vec![said("generated clarifications", 5, first(ceiling_of_five()).0, "")],
    },
    Example {
        name: "voiceflow-kb-chain",
        source: VOICEFLOW,
        about: "one unanswerable question put to the knowledge base three times",
        inputs: kb_chain,
        figures: || {
            vec![
                said("operations", 6, first(kb_chain()).0, ""),
                said("operations that suffice", 1, first(kb_chain()).1, "one query suffices, and a query is two operations"),
            ]
        },
    },
    Example {
        name: "voiceflow-storm",
        source: VOICEFLOW,
        about: "100 sessions at once, 3 retries each, on an upstream that is down",
        inputs: storm,
        figures: || {
            vec![
                said("requests for retries", 300, first(storm()).0, ""),
                unsaid("with the first request of each session", first(storm()).0 + 100, "published are retries only"),
                unsaid("failures that open the circuit", first(storm()).1, "calls that are under way by then come on top"),
            ]
        },
    },
    Example {
        name: "voiceflow-threshold",
        source: VOICEFLOW,
        about: "is 10 failures in 60 s the right threshold?",
        inputs: || None,
        figures: || {
            let (threshold, window_seconds, timeout_seconds, retries) = (10, 60, 5, 3);
            vec![
                said("percent of 50 sessions", 20, threshold * 100 / 50, ""),
                said("percent of 500 sessions", 2, threshold * 100 / 500, ""),
                said("seconds of one session's tries", 15, timeout_seconds * retries, ""),
                said("such rounds in the window", 4, window_seconds / (timeout_seconds * retries), ""),
            ]
        },
    },
];

fn first_of(inputs: Option<Inputs>, period: Period) -> u64 {
    let lines = inputs.and_then(|inputs| estimate(&inputs).ok()).unwrap_or_default();
    lines.iter().find(|line| line.period == period).map_or(0, |line| line.without.operations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(inputs: Option<Inputs>, period: Period) -> (u64, u64, u64) {
        let lines = estimate(&inputs.unwrap()).unwrap();
        let line = lines.iter().find(|line| line.period == period).unwrap();
        (line.without.operations, line.with.operations, line.saved.operations)
    }

    #[test]
    fn every_example_comes_out_to_the_digit() {
        assert_eq!(line(retries(), Period::Day), (15_000, 0, 15_000));
        assert_eq!(line(retries(), Period::Month), (450_000, 0, 450_000));
        assert_eq!(line(one_message(), Period::Once), (5, 0, 5));
        assert_eq!(line(six_bots(), Period::Once), (12, 12, 0));
        assert_eq!(line(kb_gap(), Period::Once), (20, 4, 16));
        assert_eq!(line(launch(), Period::Once), (100_000, 20_000, 80_000));
        assert_eq!(line(spiral(), Period::Once), (20, 4, 16));
        assert_eq!(line(two_in_turn(), Period::Once), (20, 13, 7));
        assert_eq!(line(three_attempts(), Period::Once), (6, 6, 0));
        assert_eq!(line(reprompts_month(), Period::Month), (17_250, 17_250, 0));
        assert_eq!(line(reprompts_month(), Period::Day), (575, 575, 0));
        assert_eq!(line(spoken_email(), Period::Once), (15, 0, 15));
        assert_eq!(line(ceiling_of_five(), Period::Once), (5, 0, 5));
        assert_eq!(line(kb_chain(), Period::Once), (6, 2, 4));
        assert_eq!(line(storm(), Period::Once), (300, 10, 290));
    }

    #[test]
    fn where_a_page_has_miscounted_it_is_said() {
        let wrong: Vec<(&str, Option<u64>, u64)> = EXAMPLES
            .iter()
            .flat_map(|example| (example.figures)().into_iter().map(|figure| (example.name, figure)))
            .filter(|(_, figure)| !figure.agrees())
            .inspect(|(name, figure)| assert!(!figure.note.is_empty(), "{name}: a difference needs its reason"))
            .map(|(name, figure)| (name, figure.document, figure.right))
            .collect();
        assert_eq!(
            wrong,
            [
                ("botpress-retries", Some(75_000), 15_000),
                ("botpress-spiral", Some(3), 4),
                ("botpress-spiral", Some(6), 13),
                ("voiceflow-kb-chain", Some(1), 2),
            ]
        );
        let right = |name: &str| (EXAMPLES.iter().find(|example| example.name == name).unwrap().figures)();
        assert_eq!(right("botpress-retries")[1].right, 9_000);
        assert_eq!(right("botpress-one-message")[1].right, 1);
        assert_eq!(right("voiceflow-three-attempts")[1].right, 7);
        assert_eq!(right("voiceflow-storm")[1].right, 400);
        assert_eq!(right("voiceflow-threshold").iter().map(|figure| figure.right).collect::<Vec<_>>(), [20, 2, 15, 4]);
    }

    #[test]
    fn credits_and_dollars_are_exact() {
        let inputs = Inputs {
            credits_per_operation: Millionths::parse("0.1").unwrap(),
            usd_per_operation: NanoDollars::parse("0.0123").unwrap(),
            ..retries().unwrap()
        };
        let lines = estimate(&inputs).unwrap();
        let cost = |amount: &Amount| (amount.credits(), amount.usd);
        assert_eq!(cost(&lines[0].without), ("1500".to_owned(), NanoDollars::parse("184.5").unwrap()));
        assert_eq!(cost(&lines[1].saved), ("45000".to_owned(), NanoDollars::parse("5535").unwrap()));
        let third = Inputs { credits_per_operation: Millionths::parse("0.000001").unwrap(), ..inputs };
        assert_eq!(estimate(&third).unwrap()[0].without.credits(), "0.015");
        assert_eq!((lines[0].base.operations, lines[1].base.operations), (30_000, 900_000));
    }

    #[test]
    fn halves_are_rounded_up_and_only_at_the_end() {
        let half = |attempts: &str| Inputs {
            affected: Millionths::from_percent(50),
            attempts: Millionths::parse(attempts).unwrap(),
            period: Period::Day,
            ..one_message().unwrap()
        };
        assert_eq!(line(Some(half("1")), Period::Day).0, 1);
        assert_eq!(line(Some(half("0.98")), Period::Day).0, 0);
        assert_eq!(line(Some(half("0.98")), Period::Month).0, 15, "0.49 a day are 14.7 a month");
    }

    #[test]
    fn whoever_stays_below_the_ceiling_is_not_refused() {
        let two = |attempts| Inputs {
            conversations: 2,
            attempts: Millionths::from_whole(attempts),
            hopeless: Millionths::from_percent(50),
            ..six_bots().unwrap()
        };
        // One of them is refused at once, for the orchestrator's call; the other does its six transfers of two.
        assert_eq!(line(Some(two(6)), Period::Once), (24, 13, 11));
        assert_eq!(line(Some(two(7)), Period::Once), (28, 14, 14));
    }

    #[test]
    fn numbers_are_read_exactly_or_not_at_all() {
        assert_eq!(Millionths::parse("2.3"), Ok(Millionths(2_300_000)));
        assert_eq!(Millionths::parse("10,000"), Ok(Millionths::from_whole(10_000)));
        assert_eq!(Millionths::parse_percent("30 %"), Ok(Millionths(300_000)));
        assert_eq!(Millionths::parse_percent("12.5"), Ok(Millionths(125_000)));
        assert_eq!(Millionths::parse_percent("100"), Ok(Millionths::ONE));
        assert_eq!(Millionths(2_300_000).to_string(), "2.3");
        assert_eq!(Millionths::from_whole(7).to_string(), "7");
        for bad in ["", ".5", "-1", "1e3", "1.2.3", "0.0000001", "99999999999999999999"] {
            assert!(Millionths::parse(bad).is_err(), "{bad}");
        }
        for bad in ["101", "100.01", "0.00001", "%"] {
            assert!(Millionths::parse_percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_refused_by_name() {
        let usual = retries().unwrap();
        let named = |inputs: Inputs| estimate(&inputs).unwrap_err().name;
        assert_eq!(named(Inputs { conversations: MOST_CONVERSATIONS + 1, ..usual }), "conversations");
        assert_eq!(named(Inputs { days_per_month: 0, ..usual }), "days-per-month");
        assert_eq!(named(Inputs { affected: Millionths(1_000_001), ..usual }), "affected");
        assert_eq!(named(Inputs { usd_per_operation: NanoDollars::MAX, ..usual }), "usd-per-operation");
        let most =
            Inputs { conversations: MOST_CONVERSATIONS, attempts: Millionths::from_whole(MOST), operations_per_attempt: MOST, ..usual };
        assert_eq!(named(most), "conversations");
    }

    proptest! {
        #[test]
        fn a_guard_never_costs_more_and_the_books_balance(
            conversations in 0..1_000_000_u64, affected in 0..=MILLION, attempts in 0..50_000_000_u64, operations in 0..10_u64,
            allowed in 0..60_u64, refused in 0..3_u64, hopeless in 0..=MILLION, together in proptest::option::of(0..100_u64),
            period in prop::sample::select(&Period::ALL[..]),
        ) {
            let inputs = Inputs {
                conversations, period, affected: Millionths(affected), attempts: Millionths(attempts), operations_per_attempt: operations,
                allowed, refused_operations: refused, hopeless: Millionths(hopeless), allowed_in_all: together, ..retries().unwrap()
            };
            for line in estimate(&inputs).unwrap() {
                prop_assert!(line.with.operations <= line.without.operations);
                prop_assert_eq!(line.without.operations - line.with.operations, line.saved.operations);
                prop_assert_eq!(line.without.credits, line.with.credits + line.saved.credits);
            }
            let higher = Inputs { allowed: allowed + 1, ..inputs };
            let with = |inputs: &Inputs| estimate(inputs).unwrap()[0].with.operations;
            // A refusal may cost as much as the round it spares, so only without that a higher ceiling is never cheaper.
            if refused == 0 {
                prop_assert!(with(&inputs) <= with(&higher));
            }
        }
    }
}
