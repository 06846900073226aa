//! The alerts as the API shows them, and what of them a caller may see.

use super::outbox::{MOST_QUEUED, Outbox, OutboxError, Status};
use super::targets::TargetKind;
use super::{AlertSettings, Alerts};
use crate::clock::time_text;
use crate::engine::Engine;
use crate::keys::Caller;
use runguard_core::notice::{AlertState, Severity};
use runguard_insight::alert::{Alert, Firing, Rule};
use serde::Serialize;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Messages of a kind in one answer.
const MOST_SHOWN: usize = 100;

/// Rules with what is firing, targets, messages.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownAlerts {
    /// Whether there is a target to tell.
    enabled: bool,
    /// Decisions that are logged and not yet looked at.
    behind_rows: u64,
    rules: Vec<ShownRule>,
    /// Empty for whoever is not an admin of all tenants.
    targets: Vec<ShownTarget>,
    queued: Vec<ShownMessage>,
    delivered: Vec<ShownMessage>,
    dead: Vec<ShownMessage>,
    queue_limit: u64,
    /// Messages lost to the limit of the queue; null for whoever is not an admin of all tenants.
    dropped: Option<u64>,
}

/// A rule in force.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownRule {
    /// What is told of: with the percentages that it goes by, and empty `to` for whoever is not an admin of all tenants.
    #[serde(flatten)]
    rule: Rule,
    window_seconds: u64,
    cooldown_seconds: u64,
    firing: Vec<ShownFiring>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownFiring {
    dedup_key: String,
    tenant: String,
    title: String,
    since: String,
    since_ms: i64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownTarget {
    name: String,
    kind: TargetKind,
    host: String,
    queued: u64,
    dead: u64,
    /// The last failure; null after a success.
    problem: Option<String>,
}

/// A message, and what it says unless that cannot be read any more.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownMessage {
    #[serde(flatten)]
    pub(super) alert: Option<ShownAlert>,
    pub(super) id: String,
    pub(super) message_id: String,
    /// null for whoever is not an admin of all tenants.
    pub(super) target: Option<String>,
    pub(super) attempts: u32,
    pub(super) created: String,
    pub(super) next_attempt: Option<String>,
    pub(super) finished: Option<String>,
    /// null for whoever is not an admin of all tenants.
    pub(super) problem: Option<String>,
}

/// An alert as programs read it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownAlert {
    rule: String,
    pub(super) dedup_key: String,
    state: AlertState,
    severity: Severity,
    pub(super) title: String,
    text: String,
    tenant: String,
    guard: String,
    reason: String,
    subject: String,
    session_id: String,
    decision_id: String,
    time: String,
    time_ms: i64,
}

impl From<Alert> for ShownAlert {
    fn from(alert: Alert) -> Self {
        Self {
            rule: alert.rule,
            dedup_key: alert.dedup_key,
            state: alert.state,
            severity: alert.severity,
            title: alert.title,
            text: alert.text,
            tenant: alert.tenant,
            guard: alert.guard,
            reason: alert.reason,
            subject: alert.subject,
            session_id: alert.session,
            decision_id: alert.decision_id,
            time: time_text(alert.at.as_millis()),
            time_ms: alert.at.as_millis(),
        }
    }
}

impl Alerts {
    /// What the caller may see.
    pub fn view(&self, engine: &Engine, caller: &Caller) -> Result<ShownAlerts, OutboxError> {
        let shared = &self.shared;
        let tenant = (!caller.sees_all()).then_some(&*caller.tenant);
        let firing = shared.firing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outbox = shared.outbox();
        let messages = |status: Status| -> Result<Vec<ShownMessage>, OutboxError> {
            let mut messages = outbox.list(status, tenant, MOST_SHOWN)?;
            if !caller.is_admin_of_all() {
                messages.iter_mut().for_each(hide_target);
            }
            Ok(messages)
        };
        let newest = engine.store.follower().committed();
        Ok(ShownAlerts {
            enabled: true,
            behind_rows: newest.saturating_sub(shared.read_upto.load(Ordering::Relaxed)),
            rules: shared.rules.iter().zip(firing).filter_map(|(rule, firing)| show_rule(rule, &firing, caller)).collect(),
            targets: if caller.is_admin_of_all() { self.show_targets(&outbox)? } else { Vec::new() },
            queued: messages(Status::Queued)?,
            delivered: messages(Status::Delivered)?,
            dead: messages(Status::Dead)?,
            queue_limit: MOST_QUEUED,
            dropped: if caller.is_admin_of_all() { Some(outbox.dropped()?) } else { None },
        })
    }

    fn show_targets(&self, outbox: &Outbox) -> Result<Vec<ShownTarget>, OutboxError> {
        let problems = self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut targets = Vec::new();
        for (target, problem) in self.shared.targets.iter().zip(problems) {
            let count = |status| outbox.count(Some(&target.name), status);
            targets.push(ShownTarget {
                name: target.name.clone(),
                kind: target.kind,
                host: target.host().to_owned(),
                queued: count(Status::Queued)?,
                dead: count(Status::Dead)?,
                problem,
            });
        }
        Ok(targets)
    }
}

impl ShownAlerts {
    /// Of a service that tells nobody.
    pub fn of_none(settings: &AlertSettings, caller: &Caller) -> Self {
        Self {
            enabled: false,
            behind_rows: 0,
            rules: settings.rules().iter().filter_map(|rule| show_rule(rule, &[], caller)).collect(),
            targets: Vec::new(),
            queued: Vec::new(),
            delivered: Vec::new(),
            dead: Vec::new(),
            queue_limit: MOST_QUEUED,
            dropped: Some(0),
        }
    }
}

/// Who is told, and what kept them from hearing it, is the operator's business.
fn hide_target(message: &mut ShownMessage) {
    (message.target, message.problem) = (None, None);
}

/// `None`: a rule about a tenant that the caller does not see.
fn show_rule(rule: &Rule, firing: &[Firing], caller: &Caller) -> Option<ShownRule> {
    if rule.tenant.as_deref().is_some_and(|tenant| !caller.sees(tenant)) {
        return None;
    }
    let show = |firing: &Firing| ShownFiring {
        dedup_key: firing.dedup_key.clone(),
        tenant: firing.tenant.clone(),
        title: firing.title.clone(),
        since: time_text(firing.since.as_millis()),
        since_ms: firing.since.as_millis(),
    };
    let mut shown = rule.clone();
    shown.at = Some(rule.thresholds().to_vec());
    if !caller.is_admin_of_all() {
        shown.to.clear();
    }
    Some(ShownRule {
        window_seconds: rule.window.as_seconds(),
        cooldown_seconds: rule.cooldown.as_seconds(),
        firing: firing.iter().filter(|firing| caller.sees(&firing.tenant)).map(show).collect(),
        rule: shown,
    })
}
