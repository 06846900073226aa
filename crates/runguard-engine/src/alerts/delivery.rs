//! One task a target: takes what is due, tries, and writes down how it went.
//!
//! A receiver that is slow or away holds up its own task and nothing else. It is not asked more often than its own limit
//! allows, and after a failure it is left alone for a while that doubles, whatever waits for it.

use super::outbox::{Next, Waiting};
use super::targets::{Again, Failed, Target};
use super::{Count, Shared};
use crate::clock::system_now;
use runguard_http::again::full_jitter;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// A message is tried for about a day.
const MOST_AGE_MILLIS: i64 = 24 * 3600 * 1000;
/// Between two attempts for one message.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(2 * 3600);
/// A receiver that is away is asked at least this often whether it is back.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// When the file cannot be used.
const AFTER_TROUBLE: Duration = Duration::from_secs(5);
/// Nothing is due: looked again, although every new message wakes the task.
const IDLE: Duration = Duration::from_secs(60);
/// At the end: how long a message that is on its way is waited for.
const LAST_WORD: Duration = Duration::from_secs(2);

pub(super) async fn deliver(shared: Arc<Shared>, number: usize, mut stopping: watch::Receiver<bool>) {
    let target = &shared.targets[number];
    let mut failures = 0_u32;
    loop {
        let mut step = pin!(step(&shared, number, &mut failures));
        let pause = tokio::select! {
            pause = &mut step => pause,
            _ = stopping.changed() => {
                // What is on its way may have been taken already: unless that is written down, it is told again after the start.
                let _ = timeout(LAST_WORD, step).await;
                return;
            }
        };
        tokio::select! {
            () = sleep(pause.at_least) => {}
            _ = stopping.changed() => return,
        }
        if let Some(longest) = pause.unless_woken {
            tokio::select! {
                () = sleep(longest) => {}
                () = shared.woken[number].notified() => {}
                _ = stopping.changed() => return,
            }
        }
        tracing::trace!(target = target.name, "looking for alerts to deliver");
    }
}

struct Pause {
    at_least: Duration,
    unless_woken: Option<Duration>,
}

async fn step(shared: &Shared, number: usize, failures: &mut u32) -> Pause {
    let target = &shared.targets[number];
    let now = system_now().as_millis();
    let next = shared.outbox().next(&target.name, target.kind, now);
    let (message, entries) = match next {
        Ok(Next::Send { message, entries }) => (message, entries),
        Ok(Next::WaitUntil(at)) => {
            let wait = Duration::from_millis(at.saturating_sub(now).max(1) as u64).min(IDLE);
            return Pause { at_least: Duration::ZERO, unless_woken: Some(wait) };
        }
        Ok(Next::Nothing) => return Pause { at_least: Duration::ZERO, unless_woken: Some(IDLE) },
        Err(error) => {
            tracing::error!(%error, "the alerts' queue cannot be read");
            return Pause { at_least: AFTER_TROUBLE, unless_woken: None };
        }
    };
    let sent = target.send(&message, now / 1000).await;
    let now = system_now().as_millis();
    let (written, at_least) = match sent {
        Ok(()) => {
            *failures = 0;
            shared.count(target.kind, Count::Delivered, entries.len());
            shared.set_problem(number, None);
            (shared.outbox().delivered(&entries, now), target.kind.interval())
        }
        Err(failed) => {
            shared.count(target.kind, Count::Failed, 1);
            shared.set_problem(number, Some(failed.message.clone()));
            let pause = match failed.again {
                // The receiver is there; it is this message that it does not take.
                Again::Never => target.kind.interval(),
                Again::Later => {
                    *failures = failures.saturating_add(1);
                    let random = getrandom::u64().unwrap_or(0);
                    let pause = full_jitter(shared.settings.first_wait(), LONGEST_PAUSE, *failures, random);
                    pause.max(failed.retry_after.unwrap_or_default()).max(target.kind.interval())
                }
            };
            (write_failure(shared, target, &entries, &failed, now), pause)
        }
    };
    if let Err(error) = written {
        // It stays in the queue and is sent again: better twice than not at all.
        tracing::error!(%error, "how an alert was delivered could not be written down");
        return Pause { at_least: AFTER_TROUBLE.max(at_least), unless_woken: None };
    }
    Pause { at_least, unless_woken: None }
}

fn write_failure(
    shared: &Shared,
    target: &Target,
    entries: &[Waiting],
    failed: &Failed,
    now: i64,
) -> Result<(), super::outbox::OutboxError> {
    let is_over = |entry: &Waiting| {
        failed.again == Again::Never || entry.attempts + 1 >= shared.settings.max_attempts || now - entry.created_ms >= MOST_AGE_MILLIS
    };
    let (dead, alive): (Vec<Waiting>, Vec<Waiting>) = entries.iter().copied().partition(is_over);
    if !dead.is_empty() {
        shared.count(target.kind, Count::Dead, dead.len());
        tracing::error!(
            target = target.name,
            problem = failed.message,
            alerts = dead.len(),
            "alerts were given up; `runguard alerts` shows them, `runguard alerts retry ID` tries again"
        );
        shared.outbox().given_up(&dead, &failed.message, now)?;
    }
    if let Some(first) = alive.first() {
        tracing::warn!(
            target = target.name,
            problem = failed.message,
            attempt = first.attempts + 1,
            "an alert was not taken; it is tried again"
        );
        // One wait for all of a digest, so that they stay together.
        let random = getrandom::u64().unwrap_or(0);
        let wait =
            full_jitter(shared.settings.first_wait(), LONGEST_BACK_OFF, first.attempts, random).max(failed.retry_after.unwrap_or_default());
        let next = now.saturating_add(wait.as_millis() as i64);
        let delayed: Vec<(Waiting, i64)> = alive.into_iter().map(|entry| (entry, next)).collect();
        shared.outbox().delayed(&delayed, &failed.message)?;
    }
    Ok(())
}
