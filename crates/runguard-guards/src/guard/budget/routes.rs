//! The five routes: what a request may carry, what the answers say.

use super::Request;
use crate::guard::{AnswerField, AnswerKind, Route, RouteKind, says};
use crate::input::{Field, Kind};
use runguard_core::ledger::{Act, REFUSED_IS_FORGOTTEN, UNSETTLED_IS_SPENT};
use runguard_core::reason::{GuardName, Reason};

/// The route of an act.
pub(super) fn route_of(act: Act) -> &'static Route {
    match act {
        Act::Check => &CHECK_ROUTE,
        Act::Record => &RECORD_ROUTE,
        Act::Reserve => &RESERVE_ROUTE,
        Act::Commit => &COMMIT_ROUTE,
        Act::Release => &RELEASE_ROUTE,
    }
}

/// Fields of every route, and then those of one.
macro_rules! fields {
    ($($more:expr),* $(,)?) => {
        &[
            Field::required("session_id", Kind::Id, "Whose budget: a run, a session, a user.", "\"run-1\""),
            Field::optional("budget", Kind::Id, "Which of its budgets; one is enough for most.", "\"default\""),
            Field::optional("parent", Kind::Id, "The session whose budget of the same name this one draws on.", "\"team-7\""),
            Field::optional("max_usd", Kind::Dollars, "The caller's own limit in dollars; it stays until another is given in a question that is not refused, and cannot be above the limit of the settings.", "5.00"),
            Field::optional("max_credits", Kind::Amount, "The same in credits, at the price the settings have for one (credit_usd); the lower of it and max_usd holds.", "60"),
            Field::optional("max_tokens", Kind::Whole(0), "The same in tokens.", "200000"),
            Field::optional("cap", Kind::Whole(0), "The same in calls of one key.", "2"),
            Field::optional("scopes", Kind::Scopes, "What it draws on besides: at most 16 of {per, name, period, max_usd, max_credits, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same.", "[{\"per\":\"team\",\"name\":\"search\",\"period\":\"day\"}]"),
            $($more),*
        ]
    };
}

/// The same with what a step costs.
macro_rules! cost_fields {
    ($($more:expr),* $(,)?) => {
        fields![
            Field::optional("usd", Kind::Dollars, "Dollars.", "0.012"),
            Field::optional("credits", Kind::Amount, "The same in credits of a platform, in place of usd: booked at the price the settings have for one (credit_usd).", "3").instead_of("usd"),
            Field::optional("tokens", Kind::Whole(0), "Tokens, if no model is named.", "1200"),
            Field::optional("key", Kind::Id, "What is counted against the cap, such as a step or a task.", "\"capture_email\""),
            Field::optional("model", Kind::Id, "The model, to price its tokens from the table.", "\"gpt-4o\""),
            Field::optional("input_tokens", Kind::Whole(0), "Input tokens, without cached ones.", "900"),
            Field::optional("output_tokens", Kind::Whole(0), "Output tokens.", "300"),
            Field::optional("cached_tokens", Kind::Whole(0), "Input tokens read from a cache.", "0"),
            Field::optional("cache_write_tokens", Kind::Whole(0), "Input tokens written to a cache.", "0"),
            Field::optional("cache_write_1h_tokens", Kind::Whole(0), "Input tokens written to a cache for an hour, not among the others.", "0"),
            Field::optional("audio_input_tokens", Kind::Whole(0), "Input tokens of sound, not among input_tokens.", "0"),
            Field::optional("audio_output_tokens", Kind::Whole(0), "Output tokens of sound, not among output_tokens.", "0"),
            Field::optional(
                "service_tier",
                Kind::Id,
                "How it was served, as the provider says: priority, flex or batch; anything else is the standard.",
                "\"default\"",
            ),
            $($more),*
        ]
    };
}

const RESERVATION: Field = Field::required("reservation_id", Kind::Id, "As the reserve route gave it.", "\"01JF8Z6Q0V3N1W2X4Y5Z6A7B8C\"");

/// What every route says, and then what one does.
macro_rules! answers {
    ($($more:expr),*) => {
        &[
            says("budget", AnswerKind::Text, "The budget."),
            says("cost_usd", AnswerKind::Number, "Dollars asked for, recorded or committed."),
            says("spent_usd", AnswerKind::Number, "Dollars spent."),
            says("reserved_usd", AnswerKind::Number, "Dollars set aside."),
            says(
                "overdue_usd",
                AnswerKind::Number,
                "Dollars that somebody set aside and did not settle in time, taken as paid at the most they can be (if_unsettled): among spent_usd, and not booked before this.",
            ),
            says("limit_usd", AnswerKind::Number, "Dollars allowed, if there is a limit."),
            says("remaining_usd", AnswerKind::Number, "Dollars left, in all it draws on, if there is a limit."),
            says("spent_tokens", AnswerKind::Whole, "Tokens spent."),
            says("reserved_tokens", AnswerKind::Whole, "Tokens set aside."),
            says("limit_tokens", AnswerKind::Whole, "Tokens allowed, if there is a limit."),
            says("remaining_tokens", AnswerKind::Whole, "Tokens left, in all it draws on, if there is a limit."),
            $($more),*
        ]
    };
}

/// The same of a step that costs something.
macro_rules! cost_answers {
    ($($more:expr),*) => {
        answers![LEVEL, SCOPE, SCOPE_NAME, RENEWS, MODEL, CREDITS_LEFT, CALLS, REMAINING_CALLS, $($more),*]
    };
}

macro_rules! route {
    ($name:ident, $act:ident, $summary:literal, $fields:expr, $answers:expr, $reasons:expr) => {
        pub static $name: Route = Route {
            path: Act::$act.path(),
            guard: GuardName::Budget,
            kind: RouteKind::Check,
            summary: $summary,
            fields: $fields,
            answers: $answers,
            reasons: $reasons,
            read: |input| Box::new(Request::read(input, Act::$act)),
        };
    };
}

route!(
    CHECK_ROUTE,
    Check,
    "Is there enough left for this? Nothing is counted.",
    cost_fields![],
    cost_answers![CAP],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RECORD_ROUTE,
    Record,
    "This was spent. It counts, also when it passes the limit. A key without a cost asks for a call: blocked, it is not counted.",
    cost_fields![],
    cost_answers![CAP, NEAREST, NEAREST_NAME, NEAREST_PERCENT, NEAREST_RENEWS, PASSED],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
const UNSETTLED: Field = Field::optional(
    "if_unsettled",
    Kind::OneOf(&["free", UNSETTLED_IS_SPENT]),
    "What becomes of it when nobody settles it in its time: free again, or spent, because whoever held it may have paid.",
    "\"free\"",
);
const REFUSED: Field = Field::optional(
    "if_refused",
    Kind::OneOf(&["kept", REFUSED_IS_FORGOTTEN]),
    "What becomes of a refusal: it is in the log, or nothing is left of it, because whoever asks will ask for less, or wait. Who gives up asks a last time without it, so that the log says what was refused.",
    "\"kept\"",
);

route!(
    RESERVE_ROUTE,
    Reserve,
    "Set this aside for a step, if there is enough.",
    cost_fields![UNSETTLED, REFUSED],
    cost_answers![CAP, RESERVATION_ID],
    &[Reason::UnknownModel, Reason::NotMetered, Reason::CallCapReached, Reason::BudgetExceeded, Reason::TooManyReservations]
);
route!(
    COMMIT_ROUTE,
    Commit,
    "The step is done and cost this much; without a cost, what was reserved.",
    cost_fields![RESERVATION],
    cost_answers![CAP, NEAREST, NEAREST_NAME, NEAREST_PERCENT, NEAREST_RENEWS, PASSED, KNOWN, OVERDUE_SETTLED],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RELEASE_ROUTE,
    Release,
    "The step was not done: what was reserved is free again.",
    fields![RESERVATION, Field::optional("model", Kind::Id, "The model that was named to reserve, where it has a scope.", "\"gpt-4o\"")],
    answers![KNOWN, OVERDUE_SETTLED],
    &[]
);

const LEVEL: AnswerField = says("level", AnswerKind::Text, "Blocked: whether this budget, the parent or a scope is used up.");
const SCOPE: AnswerField = says("scope", AnswerKind::Text, "Blocked by a scope: which, such as team/day.");
const SCOPE_NAME: AnswerField = says("scope_name", AnswerKind::Text, "Blocked by a scope: whose, such as the name of the team.");
const RENEWS: AnswerField = says("renews_in_seconds", AnswerKind::Whole, "Blocked by a limit of a period: when the next one begins.");
const MODEL: AnswerField = says("model", AnswerKind::Text, "Unknown model: its name.");
const CREDITS_LEFT: AnswerField =
    says("remaining_credits", AnswerKind::Number, "Dollars left as credits, where the question is in credits.");
const CALLS: AnswerField = says("calls", AnswerKind::Whole, "Calls of the key.");
const REMAINING_CALLS: AnswerField =
    says("remaining_calls", AnswerKind::Whole, "Calls of the key left, in all it draws on, if there is a cap.");
const CAP: AnswerField = says("cap", AnswerKind::Whole, "Cap reached: calls allowed.");
const OVERDUE_SETTLED: AnswerField = says(
    "overdue_settled_usd",
    AnswerKind::Number,
    "Dollars that were booked for it because its time was over, and are taken back: what it cost stands in their place.",
);
const RESERVATION_ID: AnswerField = says("reservation_id", AnswerKind::Text, "To commit or release it.");
const NEAREST: AnswerField = says(
    "nearest_scope",
    AnswerKind::Text,
    "Allowed: the scope that has come to another twentieth of its limit with this, or else the one that is nearest to it, such as tenant/month.",
);
const NEAREST_NAME: AnswerField = says("nearest_scope_name", AnswerKind::Text, "Whose it is.");
const NEAREST_PERCENT: AnswerField = says("nearest_scope_percent", AnswerKind::Number, "How much of its limit is spent.");
const NEAREST_RENEWS: AnswerField =
    says("nearest_scope_renews_in_seconds", AnswerKind::Whole, "When its next period begins, if it has one.");
const PASSED: AnswerField = says(
    "scopes_passed",
    AnswerKind::List,
    "Allowed: the other scopes that have come to another twentieth of their limit with this, each as `85 3600 tenant/day:NAME`: percent, seconds until its next period (- without one), scope and name.",
);
const KNOWN: AnswerField = says("known", AnswerKind::Flag, "Whether the reservation was still open.");
