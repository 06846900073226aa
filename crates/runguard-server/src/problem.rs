//! Errors as callers of the guard service see them: the shell's form with this service's words. All of them are in this file.

use crate::streams::TooMany;
use hyper::StatusCode;
use runguard_engine::{Caller, ClockError, EngineError, Role};
use runguard_guards::input::{InputError, Problem as WrongField};
use runguard_http::FieldProblem;
use runguard_http::problem::{Kind, kinds};
use runguard_http::reply::Reply;
use runguard_store::StoreError;

runguard_http::problem_kinds! {
    TOO_MANY_STREAMS: "too-many-streams", "Too many event streams",
        "The key, or the service, has as many event streams open as it may (`server.max_streams_per_key`, `server.max_streams`). Close one, or share one among your readers.";
    BUSY: "busy", "One at a time",
        "Work that takes the whole machine (a preview, a page of insights) is done for one caller at a time. Ask again in a moment.";
    NO_TIME: "no-time", "The request has no time",
        "The service runs with `--virtual-clock`, for tests: each request says what time it is in the header `x-runguard-now`, in Unix milliseconds.";
    IDEMPOTENCY_KEY_REUSED: "idempotency-key-reused", "The idempotency key belongs to another request",
        "A repeat must be the same request, byte for byte, within 24 hours. Use another key for another request.";
    STILL_RUNNING: "still-running", "The first request is still running",
        "A request with the same idempotency key is under way. Its answer is given to a repeat in a moment: ask again after `Retry-After`.";
}

const NAME_ANOTHER_TENANT: &str = "Another tenant is named with `?tenant=NAME` (`--tenant NAME` on the command line).";

#[derive(Debug, Clone)]
pub(crate) struct Problem(runguard_http::Problem);

impl From<runguard_http::Problem> for Problem {
    fn from(problem: runguard_http::Problem) -> Self {
        Self(problem)
    }
}

impl Problem {
    fn new(status: StatusCode, kind: &'static Kind, detail: impl Into<String>) -> Self {
        Self(runguard_http::Problem::new(status, kind, detail))
    }

    /// As every service says it.
    pub(crate) fn plain(&self) -> &runguard_http::Problem {
        &self.0
    }

    fn retry_after(self, seconds: u64) -> Self {
        Self(self.0.retry_after(seconds))
    }

    pub(crate) fn not_found(path: &str) -> Self {
        Self(runguard_http::Problem::not_found(path, "/docs"))
    }

    pub(crate) fn unknown(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, &kinds::UNKNOWN, format!("Nothing is known of this {what}."))
    }

    /// The same of what is filed under its tenant: whoever may look in others is told where was looked.
    pub(crate) fn unknown_in(tenant: &str, what: &str, caller: &Caller) -> Self {
        if !caller.sees_all() {
            return Self::unknown(what);
        }
        // Where nobody needs a key there is nothing but one tenant, and whoever asks need not know the word.
        if caller.is_anyone() && tenant == caller.tenant.as_ref() {
            return Self::unknown(what);
        }
        let detail = format!("Nothing is known of this {what} in tenant '{tenant}'. {NAME_ANOTHER_TENANT}");
        Self::new(StatusCode::NOT_FOUND, &kinds::UNKNOWN, detail)
    }

    /// For a key of all tenants that asks for what is filed under one.
    pub(crate) fn tenant_not_named(what: &str) -> Self {
        Self::query(
            "tenant",
            format!(
                "is missing: this key is of all tenants, and {what} is looked up in one. Name it with `tenant=NAME` (`--tenant NAME` on the command line); sessions of keys that were made without a tenant are in 'default'"
            ),
        )
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        Self(runguard_http::Problem::method(allow))
    }

    pub(crate) fn query(field: &str, problem: impl Into<String>) -> Self {
        Self::look_at("", vec![FieldProblem { field: field.into(), problem: problem.into() }])
    }

    pub(crate) fn fields(errors: Vec<FieldProblem>) -> Self {
        Self::look_at("Nothing was counted. ", errors)
    }

    fn look_at(before: &str, errors: Vec<FieldProblem>) -> Self {
        let names: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let detail = format!("{before}Look at: {}.", names.join(", "));
        let problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, &kinds::INVALID_FIELDS, detail);
        Self(problem.0.with_errors(errors))
    }

    pub(crate) fn unauthorized() -> Self {
        Self(runguard_http::Problem::unauthorized(
            "Send a key made with `runguard key create` as `Authorization: Bearer rg_…`. The one that came is missing, wrong or revoked.",
        ))
    }

    /// Names the least that would do: an admin of all tenants is not needed for the caller's own.
    pub(crate) fn forbidden(caller: &Caller, role: Role) -> Self {
        let (role, whose) = (role.name(), own(caller));
        let detail = format!("This needs the role `{role}`; make such a key with `runguard key create {whose} --role {role}`.");
        Self(runguard_http::Problem::forbidden(detail))
    }

    pub(crate) fn no_figures(caller: &Caller) -> Self {
        let whose = own(caller);
        Self(runguard_http::Problem::forbidden(format!(
            "The figures of its own tenant are for a key with the role `read` (`runguard key create {whose} --role read`), those of the whole service for one with `metrics` (`runguard key create --role metrics`)."
        )))
    }

    /// `role` is what it takes there.
    pub(crate) fn other_tenant(role: Role) -> Self {
        let role = role.name();
        Self(runguard_http::Problem::forbidden(format!(
            "This key is of one tenant and sees no other. Use a key of that tenant, or one of all tenants: `runguard key create --role {role} --all-tenants`."
        )))
    }

    pub(crate) fn needs_admin_of_all() -> Self {
        Self(runguard_http::Problem::forbidden(
            "This is about the service and not about one tenant: it needs an admin of all tenants (`runguard key create --role admin --all-tenants`).",
        ))
    }

    pub(crate) fn not_ready(detail: impl Into<String>) -> Self {
        Self(runguard_http::Problem::not_ready(detail))
    }

    pub(crate) fn too_many_streams(too_many: TooMany) -> Self {
        let detail = match too_many {
            TooMany::OfKey(limit) => format!(
                "The key has {limit} event streams open, as many as it may (`server.max_streams_per_key`). Close one, or share one among your readers."
            ),
            TooMany::Overall(limit) => {
                format!("The service has {limit} event streams open, as many as it may (`server.max_streams`). Try again shortly.")
            }
        };
        Self::new(StatusCode::TOO_MANY_REQUESTS, &TOO_MANY_STREAMS, detail).retry_after(10)
    }

    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, &BUSY, detail).retry_after(1)
    }

    pub(crate) fn into_reply(self) -> Reply {
        self.0.into_reply()
    }
}

/// How a key is made for those that the caller's key is for.
fn own(caller: &Caller) -> String {
    if caller.sees_all() { "--all-tenants".to_owned() } else { format!("--tenant '{}'", caller.tenant) }
}

impl From<InputError> for Problem {
    fn from(error: InputError) -> Self {
        match error {
            InputError::NotAnObject(detail) => Self(runguard_http::Problem::not_an_object(detail)),
            InputError::Fields(errors) => {
                Self::fields(errors.into_iter().map(|WrongField { field, problem }| FieldProblem { field, problem }).collect())
            }
        }
    }
}

impl From<ClockError> for Problem {
    fn from(error: ClockError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, &NO_TIME, error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // Logged where it happened; the caller needs to know only that nothing was counted.
        let detail = match error {
            StoreError::Write(_) => {
                "The decision could not be written down, so it was not made and nothing was counted. Is the disk full? Try again shortly."
            }
            StoreError::Read(_) => "The log could not be read. Try again shortly.",
            StoreError::NotErased(_) => {
                "The session was not erased, and nothing of it will be: the shared state or the log is away or behind, another node erases it at the same time, or the disk is full. Try again shortly."
            }
            StoreError::Stopping => "The service is stopping. Try again shortly.",
        };
        Self::not_ready(detail)
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                &IDEMPOTENCY_KEY_REUSED,
                "A repeat must be the same request, byte for byte. Use a new key for a new request.",
            ),
            EngineError::StillRunning => {
                Self::new(StatusCode::CONFLICT, &STILL_RUNNING, "Its answer will be given to a repeat in a moment.").retry_after(1)
            }
            EngineError::Store(error) => error.into(),
        }
    }
}
