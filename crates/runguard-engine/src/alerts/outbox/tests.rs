use super::*;
use runguard_core::notice::Severity;
use runguard_core::row::{Kind, Outcome, RowRef};
use runguard_core::{GuardName, Timestamp};
use runguard_insight::alert::When;

fn alert(number: usize, state: AlertState) -> Alert {
    Alert {
        rule: "r".into(),
        dedup_key: format!("r-{number}"),
        state,
        severity: Severity::Warning,
        at: Timestamp::from_millis(0),
        tenant: if number.is_multiple_of(2) { "even".into() } else { "odd".into() },
        guard: String::new(),
        reason: String::new(),
        subject: String::new(),
        session: String::new(),
        decision_id: format!("d{number}"),
        title: format!("Alert {number}"),
        text: String::new(),
    }
}

struct Story {
    folder: tempfile::TempDir,
    outbox: Outbox,
    upto: u64,
}

impl Story {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { outbox: Outbox::open(folder.path()).unwrap(), folder, upto: 0 }
    }

    fn post(&mut self, alerts: &[Alert]) -> usize {
        self.upto += 1;
        let postings: Vec<Posting<'_>> = alerts.iter().map(|alert| Posting { alert, target: "ops" }).collect();
        self.outbox.commit(self.upto, &[], &postings, 1000).unwrap()
    }

    fn next(&mut self, kind: TargetKind, now: i64) -> (AlertMessage, Vec<Waiting>) {
        match self.outbox.next("ops", kind, now).unwrap() {
            Next::Send { message, entries } => (message, entries),
            other => panic!("{other:?}"),
        }
    }

    fn crash(&mut self) {
        self.outbox = Outbox::open(self.folder.path()).unwrap();
    }
}

#[test]
fn a_message_stays_until_it_is_delivered_and_keeps_its_id_over_a_crash() {
    let mut story = Story::new();
    assert_eq!(story.post(&[alert(1, AlertState::Firing)]), 1);
    let (first, _) = story.next(TargetKind::Webhook, 1000);
    story.crash();
    let (second, entries) = story.next(TargetKind::Webhook, 1000);
    assert_eq!(first.id, second.id);
    assert_eq!(second.alerts, [alert(1, AlertState::Firing)]);
    story.outbox.delivered(&entries, 2000).unwrap();
    story.crash();
    assert!(matches!(story.outbox.next("ops", TargetKind::Webhook, 9000).unwrap(), Next::Nothing));
    assert_eq!(story.outbox.list(Status::Delivered, None, 10).unwrap()[0].message_id, first.id);
    assert_eq!(story.outbox.watermark().unwrap(), Some(1));
}

#[test]
fn states_and_the_place_in_the_log_are_kept_with_the_alerts() {
    let mut story = Story::new();
    let rule = Rule { name: "trips".into(), when: When::CircuitTrip, ..Rule::default() };
    let mut state = State::default();
    let row = RowRef {
        at: 5,
        tenant: "t",
        guard: GuardName::ApiCircuit.into(),
        kind: Kind::Record.into(),
        subject: "e",
        outcome: Outcome::Recorded.into(),
        answer: r#"{"tripped":true}"#,
        ..RowRef::default()
    };
    let fired = rule.judge(&mut state, &row, &runguard_guards::logged::shows(&row));
    let postings: Vec<Posting<'_>> = fired.iter().map(|alert| Posting { alert, target: "ops" }).collect();
    story.outbox.commit(77, &[(rule.clone(), state.clone())], &postings, 0).unwrap();
    story.crash();
    assert_eq!((story.outbox.watermark().unwrap(), story.outbox.state(&rule).unwrap()), (Some(77), state));
    let changed = Rule { tenant: Some("other".into()), ..rule };
    assert_eq!(story.outbox.state(&changed).unwrap(), State::default(), "a rule that means something else begins anew");
}

#[test]
fn the_same_word_waits_once_and_later_words_wait_for_earlier() {
    let mut story = Story::new();
    let (on, off) = (alert(1, AlertState::Firing), alert(1, AlertState::Resolved));
    assert_eq!(story.post(&[on.clone(), on.clone()]), 1);
    assert_eq!(story.post(&[off]), 1);
    assert_eq!(story.post(&[Alert { decision_id: "d9".into(), ..on }]), 1, "after the end it begins again");
    let mut told = Vec::new();
    let (_, entries) = story.next(TargetKind::Webhook, 1000);
    story.outbox.delayed(&[(entries[0], 5000)], "away").unwrap();
    assert!(matches!(story.outbox.next("ops", TargetKind::Webhook, 4999).unwrap(), Next::WaitUntil(5000)), "the end does not overtake");
    for _ in 0..3 {
        let (message, entries) = story.next(TargetKind::Webhook, 5000);
        told.push((message.alerts[0].state, message.alerts[0].decision_id.clone()));
        story.outbox.delivered(&entries, 5000).unwrap();
    }
    let told: Vec<(AlertState, &str)> = told.iter().map(|(state, id)| (*state, id.as_str())).collect();
    assert_eq!(told, [(AlertState::Firing, "d1"), (AlertState::Resolved, "d1"), (AlertState::Firing, "d9")]);
}

#[test]
fn a_burst_is_one_message_where_people_read_and_stays_one_over_a_crash() {
    let mut story = Story::new();
    let many: Vec<Alert> = (0..40).map(|number| alert(number, AlertState::Firing)).collect();
    story.post(&many);
    assert_eq!(story.next(TargetKind::Pagerduty, 1000).0.alerts.len(), 1);
    let (first, entries) = story.next(TargetKind::Slack, 1000);
    assert_eq!((first.alerts.len(), entries.len()), (40, 40));
    story.post(&[alert(99, AlertState::Firing)]);
    story.crash();
    let (second, entries) = story.next(TargetKind::Slack, 1000);
    assert_eq!((&second.id, second.alerts.len()), (&first.id, 40), "what came later is not in it");
    story.outbox.delivered(&entries, 1000).unwrap();
    assert_eq!(story.next(TargetKind::Slack, 1000).0.alerts, [alert(99, AlertState::Firing)]);
    let few: Vec<Alert> = (200..202).map(|number| alert(number, AlertState::Firing)).collect();
    story.post(&few);
    assert_eq!(story.next(TargetKind::Slack, 1000).0.alerts.len(), 1, "a few are told one by one");
}

#[test]
fn dead_letters_are_shown_and_can_be_tried_again() {
    let mut story = Story::new();
    story.post(&[alert(1, AlertState::Firing)]);
    let (first, entries) = story.next(TargetKind::Webhook, 1000);
    story.outbox.given_up(&entries, "gone", 2000).unwrap();
    let dead = story.outbox.list(Status::Dead, Some("odd"), 10).unwrap();
    let title = &dead[0].alert.as_ref().unwrap().title;
    assert_eq!((dead[0].problem.as_deref(), dead[0].attempts, title.as_str()), (Some("gone"), 1, "Alert 1"));
    assert!(story.outbox.list(Status::Dead, Some("even"), 10).unwrap().is_empty(), "another tenant's");
    let id: i64 = dead[0].id.parse().unwrap();
    assert_eq!(story.outbox.retry(id, Some("even")).unwrap(), None);
    assert_eq!(story.outbox.retry(id, None).unwrap().as_deref(), Some("ops"));
    assert_eq!(story.outbox.retry(id, None).unwrap(), None, "only what is dead");
    let (again, entries) = story.next(TargetKind::Webhook, 3000);
    assert_eq!((&again.id, entries[0].attempts, entries[0].created_ms), (&first.id, 0, 2000));
}

#[test]
fn the_queue_is_bounded_and_what_is_urgent_stays() {
    let mut story = Story::new();
    let urgent = Alert { severity: Severity::Critical, ..alert(0, AlertState::Firing) };
    story.post(&[urgent]);
    let many: Vec<Alert> = (1..=MOST_QUEUED as usize + 5).map(|number| alert(number, AlertState::Firing)).collect();
    story.post(&many);
    assert_eq!(story.outbox.count(None, Status::Queued).unwrap(), MOST_QUEUED);
    assert_eq!(story.outbox.dropped().unwrap(), 6);
    assert_eq!(story.next(TargetKind::Webhook, 1000).0.alerts[0].dedup_key, "r-0", "the oldest, and critical");
    let listed = story.outbox.list(Status::Queued, None, 20_000).unwrap();
    let is_listed = |key: &str| listed.iter().any(|message| message.alert.as_ref().is_some_and(|alert| alert.dedup_key == key));
    assert!(!is_listed("r-6") && is_listed("r-7"));
}

#[test]
fn an_erased_session_is_in_no_message() {
    let mut story = Story::new();
    let of = |session: &str, number| Alert { session: session.into(), ..alert(number, AlertState::Firing) };
    story.post(&[of("alice-secret", 1), of("bob", 3), of("alice-secret", 2)]);
    story.outbox.forget(&Gone::of("odd", "alice-secret")).unwrap();
    assert_eq!(story.outbox.count(None, Status::Queued).unwrap(), 2, "of another tenant, or of another session");
    story.outbox.forget(&Gone::of("even", "alice-secret")).unwrap();
    assert!(story.outbox.purge().unwrap());
    for file in std::fs::read_dir(story.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(12).any(|part| part == b"alice-secret"));
    }
}

#[test]
fn messages_for_unknown_targets_are_dead_letters() {
    let mut story = Story::new();
    story.post(&[alert(1, AlertState::Firing)]);
    assert_eq!(story.outbox.give_up_strangers(&["ops"], 0).unwrap(), 0);
    assert_eq!(story.outbox.give_up_strangers(&["other"], 0).unwrap(), 1);
    assert_eq!(story.outbox.count(Some("ops"), Status::Dead).unwrap(), 1);
}

#[test]
fn a_damaged_file_is_replaced_and_one_of_a_later_version_is_not() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), b"this is no database, and long enough to be taken for one by its size alone ....").unwrap();
    assert_eq!(Outbox::open(folder.path()).unwrap().watermark().unwrap(), None);
    Connection::open(folder.path().join(FILE)).unwrap().execute_batch("PRAGMA user_version = 9").unwrap();
    assert!(Outbox::open(folder.path()).unwrap_err().to_string().contains("later version"));
}
