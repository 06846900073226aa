//! Runs that stall, and runs that do not.

use super::*;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

fn step(tool: &str, args: u64, result: u64) -> Step<'_> {
    Step { tool, args, result: Some(result), error: None, round: None, effect: CallEffect::Unknown }
}

fn detector(preset: Preset) -> StallDetector {
    StallDetector::new(preset.settings()).unwrap()
}

fn first_stop(detector: &mut StallDetector, steps: &[Step<'_>]) -> Option<(usize, StallRule)> {
    steps.iter().enumerate().find_map(|(index, step)| {
        let verdict = detector.observe(*step);
        (verdict.rung == Rung::Stop).then(|| (index + 1, verdict.rule.unwrap()))
    })
}

#[test]
fn three_identical_pairs_are_told_and_the_fourth_stops() {
    let mut detector = detector(Preset::Coding);
    let rungs: Vec<Rung> = (0..4).map(|_| detector.observe(step("ls", 1, 1)).rung).collect();
    assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop]);
    assert!(detector.observe(step("ls", 1, 1)).nudge("ls").contains("5 times"));
}

#[test]
fn another_result_is_progress() {
    let mut detector = detector(Preset::Coding);
    let steps: Vec<Step<'_>> = (0..50).map(|result| step("get_job", 1, result)).collect();
    assert_eq!(first_stop(&mut detector, &steps), None);
}

#[test]
fn edit_and_test_is_work_and_the_same_edit_again_is_not() {
    let mut work = detector(Preset::Coding);
    let steps: Vec<Step<'_>> = (0..30).flat_map(|round| [step("edit_file", round, 1), step("run_tests", 0, 9)]).collect();
    assert_eq!(first_stop(&mut work, &steps), None, "every edit is another one");
    let mut stuck = detector(Preset::Coding);
    let steps: Vec<Step<'_>> = (0..30).flat_map(|_| [step("edit_file", 7, 1), step("run_tests", 0, 9)]).collect();
    let (stopped, rule) = first_stop(&mut stuck, &steps).unwrap();
    assert!(stopped <= 8, "stopped at {stopped} by {rule:?}");
}

#[test]
fn a_round_of_calls_made_three_times_stops() {
    let settings = StallSettings { novelty_window: 0, novelty_max_new: 0, ..Preset::Coding.settings() };
    for period in 2..=8_u64 {
        let mut detector = StallDetector::new(settings.clone()).unwrap();
        let steps: Vec<Step<'_>> = (0..period * 3).map(|index| step("tool", index % period, 1)).collect();
        assert_eq!(first_stop(&mut detector, &steps), Some((period as usize * 3, StallRule::Cycle)));
    }
    let mut detector = StallDetector::new(settings).unwrap();
    let steps: Vec<Step<'_>> = (0..40_u64).map(|index| step("tool", index % 9, 1)).collect();
    assert_eq!(first_stop(&mut detector, &steps), None, "longer than is looked for");
}

#[test]
fn hardly_anything_new_among_the_latest_stops() {
    let mut detector = detector(Preset::Coding);
    let known: Vec<Step<'_>> = (0..5).map(|index| step("read", index, index)).collect();
    assert_eq!(first_stop(&mut detector, &known), None);
    let again = [0, 2, 1, 4, 0, 3].map(|index| step("read", index, index));
    assert_eq!(first_stop(&mut detector, &again), Some((6, StallRule::Novelty)), "of six, the one before was new, and it was told once");
}

#[test]
fn the_same_error_with_other_arguments_is_told_and_then_stops() {
    let mut detector = detector(Preset::Coding);
    let failing = |args: u64, text: &str| Step {
        tool: "sql",
        args,
        result: Some(xxh3_64(text.as_bytes())),
        error: Some(error_fingerprint(text)),
        round: None,
        effect: CallEffect::Unknown,
    };
    let rungs: Vec<Rung> =
        (1..=5).map(|args| detector.observe(failing(args, &format!("no such column: 'c{args}' at line {args}"))).rung).collect();
    assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Steer, Rung::Stop]);
    assert_eq!(detector.observe(step("sql", 99, 5)).rung, Rung::GoOn, "a success starts the count anew");
    assert_eq!(detector.observe(failing(100, "no such column: 'c9' at line 3")).rung, Rung::GoOn);
}

#[test]
fn calls_side_by_side_are_one_attempt() {
    let failing =
        |round: u64, args: u64| Step { error: Some(7), round: Some(round), ..step("read", 100 * round + args, 1_000 * round + args) };
    let looking = |round: u64, args: u64| Step { effect: CallEffect::Looks, round: Some(round), ..step("grep", 100 * round + args, 5) };
    let mut failed = detector(Preset::Coding);
    let rungs: Vec<Rung> = (1..=5).map(|round| (0..6).map(|args| failed.observe(failing(round, args)).rung).max().unwrap()).collect();
    assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Steer, Rung::Stop], "a round of six failures is one");
    let mut found = detector(Preset::Coding);
    assert!((0..20).all(|args| found.observe(looking(1, args)).rung == Rung::GoOn), "twenty searches that find nothing, asked at once");
}

#[test]
fn polling_is_what_polling_tools_are_for() {
    let mut detector = detector(Preset::Browser);
    let steps: Vec<Step<'_>> = (0..100).map(|_| step("wait", 1, 1)).collect();
    assert_eq!(first_stop(&mut detector, &steps), None);
}

#[test]
fn who_asks_how_a_job_goes_on_is_patient_and_not_without_end() {
    let asks = |args| Step { effect: CallEffect::Waits, ..step("get_job_status", args, 1) };
    for preset in [Preset::Coding, Preset::Chatbot, Preset::Research] {
        let stop = preset.settings().identical.stop as usize;
        let steps: Vec<Step<'_>> = (0..100).map(|_| asks(1)).collect();
        assert_eq!(first_stop(&mut detector(preset), &steps), Some((5 * stop, StallRule::Identical)), "{preset:?}");
        let mut two = detector(preset);
        assert!((0..20).all(|at| two.observe(asks(at % 2)).rung < Rung::Stop), "two jobs side by side");
        assert_eq!(two.observe(step("get_result", 7, 7)).rung, Rung::GoOn, "what comes after it is news");
        let failing: Vec<Step<'_>> = (0..20).map(|_| Step { error: Some(3), ..asks(1) }).collect();
        assert!(first_stop(&mut detector(preset), &failing).is_some_and(|(at, _)| at <= stop + 1), "what fails is no answer");
    }
}

#[test]
fn parallel_duplicates_of_one_round_count_once() {
    let mut detector = detector(Preset::Coding);
    for round in 0..3 {
        for _ in 0..5 {
            let verdict = detector.observe(Step { round: Some(round), ..step("read", round, round) });
            assert_eq!(verdict.rung, Rung::GoOn);
        }
    }
}

#[test]
fn a_user_message_starts_anew() {
    let mut detector = detector(Preset::Coding);
    for _ in 0..10 {
        for _ in 0..2 {
            assert_eq!(detector.observe(step("status", 1, 1)).rung, Rung::GoOn);
        }
        detector.user_message();
    }
}

#[test]
fn repeated_and_alternating_messages_stop() {
    let mut same = detector(Preset::Coding);
    assert_eq!((0..3).map(|_| same.message(1).rung).collect::<Vec<_>>(), [Rung::GoOn, Rung::Steer, Rung::Stop]);
    let mut alternating = detector(Preset::Coding);
    let rungs: Vec<Rung> = (0..6).map(|index| alternating.message(index % 2).rung).collect();
    assert_eq!((rungs[3], rungs[5]), (Rung::Steer, Rung::Stop));
    assert_eq!(same.observe(step("act", 1, 1)).rung, Rung::GoOn);
    assert_eq!(same.message(1).rung, Rung::GoOn, "a call in between");
}

#[test]
fn observing_only_never_climbs_higher() {
    let mut detector = StallDetector::new(StallSettings { highest: Rung::Observe, ..Preset::Coding.settings() }).unwrap();
    let verdicts: Vec<Verdict> = (0..10).map(|_| detector.observe(step("ls", 1, 1))).collect();
    assert_eq!((verdicts[9].rung, verdicts[9].rule), (Rung::Observe, Some(StallRule::Identical)));
}

#[test]
fn counters_say_what_the_verdict_is_made_of() {
    let mut detector = detector(Preset::Coding);
    assert_eq!(detector.counters(), Counters::default());
    for count in 1..=6 {
        detector.observe(step("ls", 1, 1));
        let counters = detector.counters();
        assert_eq!((counters.identical, counters.pairs, counters.window, counters.window_new), (count, count, count, 1));
        assert_eq!((counters.latest_new, counters.cycle), (count == 1, None), "a round of one is no round");
    }
    let mut rounds = StallDetector::new(StallSettings { novelty_window: 0, ..Preset::Coding.settings() }).unwrap();
    let seen: Vec<_> = [1, 2, 2, 1, 2, 2, 1, 2, 2]
        .map(|args| {
            let verdict = rounds.observe(step("ls", args, args));
            (rounds.counters().cycle, verdict.rung)
        })
        .into();
    assert_eq!(seen[5], (Some((3, 2)), Rung::Steer));
    assert_eq!(seen[8], (Some((3, 3)), Rung::Stop), "the same round the verdict is about");
    let mut other = detector.clone();
    other.observe(Step { error: Some(4), ..step("sql", 1, 4) });
    other.observe(Step { error: Some(4), ..step("sql", 2, 5) });
    assert_eq!((other.counters().same_error, other.counters().identical), (2, 1));
    other.observe(step("wait", 1, 1));
    assert_eq!(other.counters().pairs, 8, "waiting is not counted");
    for text in [1, 2, 1, 2] {
        other.message(text);
    }
    assert_eq!((other.counters().messages, other.counters().message_rounds), (1, 2));
    other.user_message();
    assert_eq!(other.counters(), Counters::default());
}

#[test]
fn looking_ahead_changes_nothing() {
    let mut detector = detector(Preset::Coding);
    for _ in 0..3 {
        detector.observe(step("ls", 1, 1));
    }
    for _ in 0..3 {
        assert_eq!(detector.ahead(step("ls", 1, 1)).rung, Rung::Stop);
        assert_eq!(detector.ahead(step("ls", 2, 1)).rung, Rung::GoOn);
    }
}

#[test]
fn a_result_that_is_not_known_is_taken_to_be_as_last_time() {
    let unknown = |args: u64| Step { result: None, ..step("ls", args, 0) };
    let mut same = detector(Preset::Coding);
    for _ in 0..3 {
        same.observe(step("ls", 1, 7));
    }
    assert_eq!(same.ahead(unknown(2)).rung, Rung::GoOn, "another call");
    assert_eq!(same.ahead(unknown(1)).rung, Rung::Stop);
    assert_eq!(same.observe(unknown(1)).rule, Some(StallRule::Identical));
    let mut alternating = detector(Preset::Coding);
    for index in 0..5 {
        assert!(alternating.observe(step("ls", index % 2, index % 2)).rung <= Rung::Steer);
    }
    assert_eq!(alternating.observe(unknown(1)).rule, Some(StallRule::Cycle));
    let mut never_told = detector(Preset::Coding);
    let rungs: Vec<Rung> = (0..4).map(|_| never_told.observe(unknown(1)).rung).collect();
    assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop], "nothing is known of any");
}

#[test]
fn a_guess_is_neither_news_nor_the_end_of_errors() {
    let unknown = |args: u64| Step { result: None, ..step("read", args, 0) };
    let mut reading = detector(Preset::Coding);
    for index in [0, 1, 2, 3, 0, 2, 1] {
        assert_eq!(reading.observe(step("read", index, index)).rung, Rung::GoOn);
    }
    assert_eq!(reading.ahead(step("read", 0, 0)).rung, Rung::GoOn, "two of six were new");
    assert_eq!(reading.observe(unknown(0)).rung, Rung::GoOn);
    assert_eq!(reading.ahead(unknown(3)).rung, Rung::GoOn, "guessed");
    assert_eq!(reading.ahead(step("read", 3, 3)).rule, Some(StallRule::Novelty), "told");
    let mut failing = detector(Preset::Coding);
    let failed = |args: u64| Step { error: Some(9), ..step("sql", args, args) };
    for args in 0..4 {
        failing.observe(failed(args));
    }
    failing.observe(Step { result: None, ..step("sql", 0, 0) });
    assert_eq!(failing.observe(failed(5)).rule, Some(StallRule::SameError));
}

#[test]
fn only_so_many_outcomes_are_remembered_and_the_least_recent_goes() {
    let mut seen = RecentPairs::default();
    for call in 0..OUTCOMES as u64 {
        seen.remember_result(call, call);
    }
    seen.remember_result(0, 100);
    seen.remember_result(99, 99);
    assert_eq!(
        (seen.outcomes.len(), seen.last_result(0), seen.last_result(1), seen.last_result(99)),
        (OUTCOMES, Some(100), None, Some(99))
    );
}

#[test]
fn a_state_from_before_there_were_outcomes_is_read() {
    let older: Vec<u8> = [5_u64, 6, 7].iter().flat_map(|pair| pair.to_le_bytes()).collect();
    let seen = RecentPairs::unpack(&older).unwrap();
    assert_eq!((&seen.pairs[..], &seen.outcomes[..]), (&[5, 6, 7][..], &[][..]));
    let newer = RecentPairs { outcomes: vec![(1, 2), (3, 4)], ..seen };
    assert_eq!(RecentPairs::unpack(&newer.pack()), Some(newer.clone()));
    assert_eq!(RecentPairs::unpack(&newer.pack()[2..]), None, "cut off");
    assert_eq!(RecentPairs::unpack(&[9]), None, "more outcomes than bytes");
    assert_eq!(RecentPairs::unpack(&[]), Some(RecentPairs::default()));
}

#[test]
fn what_changes_from_run_to_run_does_not_make_a_result_new() {
    let same = ["3 passed in 0.53s at 2026-01-02T03:04:05Z\nsee 0x7ffde2", "3 passed in 12.01s at 2026-11-15T23:59:59Z\n  see 0x7ffd00"];
    assert_eq!(result_fingerprint(same[0]), result_fingerprint(same[1]));
    assert_ne!(result_fingerprint("3 passed in 1s"), result_fingerprint("4 passed in 1s"));
    assert_ne!(result_fingerprint("9f2c51d0aa"), result_fingerprint("9f2c51d0ab"), "another commit is another result");
    assert_eq!(error_fingerprint("request 9f2c51d0aa failed"), error_fingerprint("request 77ab51d0ab failed"));
    assert_eq!(error_fingerprint("No such file: '/a/b.txt' (line 3)"), error_fingerprint("no such file: '/c.txt' (line 14)"));
    assert_ne!(error_fingerprint("No such file"), error_fingerprint("Permission denied"));
}

#[test]
fn thresholds_that_cannot_be_meant_are_refused() {
    let base = Preset::Coding.settings();
    for bad in [
        StallSettings { identical: Ladder { steer: 1, ..base.identical }, ..base.clone() },
        StallSettings { novelty_max_new: 6, ..base.clone() },
        StallSettings { novelty_window: 65, ..base.clone() },
        StallSettings { cycle_max_period: 17, ..base.clone() },
    ] {
        assert!(StallDetector::new(bad.clone()).is_err(), "{bad:?}");
    }
    assert!(Preset::ALL.iter().all(|preset| preset.settings().check().is_ok()));
}

fn did(tool: &str, args: u64, result: u64, effect: CallEffect) -> Step<'_> {
    Step { effect, ..step(tool, args, result) }
}

fn failing_check(error: u64) -> Step<'static> {
    Step { error: Some(error), effect: CallEffect::Runs, ..step("bash", 1, error) }
}

fn edit(number: u64) -> Step<'static> {
    did("bash", 100 + number, 0, CallEffect::Writes { file: 1, leaves: number + 1 })
}

/// Edits, looks and checks so often, and gives what was said of each check.
fn checked(detector: &mut StallDetector, checks: impl Iterator<Item = Step<'static>>) -> Vec<(Rung, Option<StallRule>)> {
    let mut said = Vec::new();
    for (number, check) in (0..).zip(checks) {
        let between = [edit(number), did("read_file", number, number, CallEffect::Looks)];
        assert!(between.map(|step| detector.observe(step).rung).iter().all(|rung| *rung < Rung::Stop), "edits and looks end no run");
        let verdict = detector.observe(check);
        said.push((verdict.rung, verdict.rule));
    }
    said
}

#[test]
fn a_check_that_fails_after_every_change_is_told_and_stopped() {
    let said = checked(&mut detector(Preset::Coding), (0..12).map(|_| failing_check(7)));
    assert_eq!(said[1..3], [(Rung::GoOn, None), (Rung::Steer, Some(StallRule::Unmoved))]);
    assert_eq!(said[10..], [(Rung::Steer, Some(StallRule::Unmoved)), (Rung::Stop, Some(StallRule::Unmoved))]);
}

#[test]
fn a_check_that_fails_otherwise_each_time_gets_somewhere() {
    let said = checked(&mut detector(Preset::Coding), (0..30).map(failing_check));
    assert!(said.iter().all(|said| *said == (Rung::GoOn, None)), "{said:?}");
}

#[test]
fn a_check_that_succeeds_after_every_change_is_told_at_most() {
    let green = |_| did("bash", 1, 7, CallEffect::Runs);
    let said = checked(&mut detector(Preset::Coding), (0..80).map(green));
    assert_eq!(said.iter().map(|(rung, _)| *rung).max(), Some(Rung::Steer));
}

#[test]
fn a_file_that_is_put_back_the_third_time_is_a_sign_of_a_long_run_too() {
    let never = Ladder { steer: 0, block: 0, stop: 0 };
    let settings = Preset::Coding.settings().put_back(never).long_run(Ladder { steer: 8, block: 0, stop: 10 });
    let rungs = |times_back: u64| -> Vec<Rung> {
        let mut detector = StallDetector::new(settings.clone()).unwrap();
        let by = |number: u64| if number.is_multiple_of(2) { 7 } else { 7_u64.wrapping_neg() };
        let edits = (0..=times_back).map(|number| did("edit_file", number, number, CallEffect::Edits { file: 1, by: by(number) }));
        let looks = (50..60).map(|number| did("grep", number, number, CallEffect::Looks));
        edits.chain(looks).map(|step| detector.observe(step).rung).collect()
    };
    assert!(rungs(2).iter().all(|rung| *rung == Rung::GoOn), "twice is no sign: {:?}", rungs(2));
    assert_eq!(rungs(3)[6..10], [Rung::GoOn, Rung::Steer, Rung::GoOn, Rung::Stop]);
}

#[test]
fn a_long_run_in_which_a_check_failed_again_is_told_first_and_ended_where_somebody_says_what_is_long() {
    let settings = Preset::Coding.settings().unmoved(Ladder { steer: 0, block: 0, stop: 0 });
    let settings = settings.long_run(Ladder { steer: 39, block: 0, stop: 51 });
    let long = |rung| (rung, Some(StallRule::LongRun));
    let mut failing = StallDetector::new(settings.clone()).unwrap();
    let said = checked(&mut failing, (0..17).map(failing_check));
    assert_eq!(said[11..14], [(Rung::GoOn, None), long(Rung::Steer), long(Rung::Steer)], "whatever the errors say");
    assert_eq!(said[16], long(Rung::Stop));

    let green = |number: u64| did("bash", 1, 60 + number, CallEffect::Runs);
    let mut good = StallDetector::new(settings.clone()).unwrap();
    let said = checked(&mut good, (0..40).map(|number| if number % 2 == 0 { failing_check(7) } else { green(number) }));
    assert!(said.iter().all(|said| *said == (Rung::GoOn, None)), "what failed succeeds after the next change: {said:?}");

    // However long it is by then, it is told first.
    let mut late = StallDetector::new(settings).unwrap();
    let said = checked(&mut late, (0..32).map(|number| if number < 30 { green(number) } else { failing_check(7) }));
    assert_eq!(said[30..], [(Rung::GoOn, None), long(Rung::Steer)]);
    assert_eq!(late.observe(edit(50)).rung, Rung::Stop);

    let said = checked(&mut detector(Preset::Coding), (0..200).map(failing_check));
    assert_eq!(said.iter().map(|(rung, _)| *rung).max(), Some(Rung::Steer), "nobody says what is long");
}

#[test]
fn a_run_that_used_many_tokens_is_long_too_once_a_check_failed_again() {
    let never = Ladder { steer: 0, block: 0, stop: 0 };
    let settings = Preset::Coding.settings().unmoved(never).long_run(never).long_run_tokens(8_000);
    let spend_and_check = |detector: &mut StallDetector, tokens: u64, number: u64| {
        detector.spent(tokens);
        detector.observe(edit(number));
        let verdict = detector.observe(failing_check(number));
        (verdict.rung, verdict.rule)
    };
    let long = |rung| (rung, Some(StallRule::LongRun));
    let mut spends = StallDetector::new(settings.clone()).unwrap();
    let said: Vec<_> =
        [3_000, 3_000, 1_500, 400].into_iter().zip(0..).map(|(tokens, number)| spend_and_check(&mut spends, tokens, number)).collect();
    assert_eq!(said, [(Rung::GoOn, None), (Rung::GoOn, None), long(Rung::Steer), long(Rung::Steer)], "told from 7,000 on");
    assert_eq!((spends.counters().tokens, spend_and_check(&mut spends, 101, 9)), (7_900, long(Rung::Stop)));

    let mut at_once = StallDetector::new(settings.clone()).unwrap();
    at_once.spent(1 << 40);
    let said: Vec<_> = (0..3).map(|number| spend_and_check(&mut at_once, 0, number)).collect();
    assert_eq!(said[..2], [(Rung::GoOn, None), long(Rung::Steer)], "without the sign the spend says nothing, and it is told first");
    assert_eq!(said[2].0, Rung::Stop);

    // Calls side by side are asked for before the model hears what was said of the first.
    let mut side_by_side = StallDetector::new(settings.clone()).unwrap();
    side_by_side.spent(1 << 40);
    spend_and_check(&mut side_by_side, 0, 0);
    side_by_side.observe(edit(1));
    let in_round = |round: u64, step: Step<'static>| Step { round: Some(round), ..step };
    let said: Vec<Rung> = [(9, failing_check(1)), (9, edit(2)), (10, edit(3))]
        .into_iter()
        .map(|(round, step)| side_by_side.observe(in_round(round, step)).rung)
        .collect();
    assert_eq!(said, [Rung::Steer, Rung::GoOn, Rung::Stop]);

    let mut kept = StallDetector::new(settings.clone()).unwrap();
    (0..2).for_each(|number| _ = spend_and_check(&mut kept, 3_600, number));
    let bytes = postcard::to_allocvec(&kept.into_state()).unwrap();
    let mut kept = StallDetector::resume(settings, postcard::from_bytes(&bytes).unwrap()).unwrap();
    assert_eq!(spend_and_check(&mut kept, 900, 5), long(Rung::Stop), "what was used, and that it was told, is kept");
}

#[test]
fn a_state_that_was_carried_on_under_other_settings_ends_a_long_run_too() {
    let settings =
        Preset::Coding.settings().unmoved(Ladder { steer: 0, block: 0, stop: 0 }).long_run(Ladder { steer: 3, block: 0, stop: 5 });
    let mut state = StallState::default();
    let mut rungs = Vec::new();
    for step in (0..3).flat_map(|number| [edit(number), failing_check(number)]) {
        rungs.push(state.clone().observe(&settings, step).rung);
        state.observe(&StallSettings::silent(), step);
    }
    assert_eq!(rungs[3..], [Rung::Steer, Rung::Stop, Rung::Stop]);
}

#[test]
fn programs_and_changes_that_end_with_mistakes_are_not_calls_that_get_nothing() {
    let mut detector = detector(Preset::Coding);
    for number in 0..30 {
        let effect = if number % 2 == 0 { CallEffect::Runs } else { CallEffect::Changes };
        let failed = Step { error: Some(number), effect, ..step("bash", number, number) };
        assert_eq!(detector.observe(failed).rung, Rung::GoOn);
    }
}

#[test]
fn calls_that_all_fail_are_told_and_stopped_whatever_they_say() {
    let mut detector = detector(Preset::Coding);
    let failed = |number: u64| Step { error: Some(number), ..step("sql", number, number) };
    let rungs: Vec<Rung> = (0..8).map(|number| detector.observe(failed(number)).rung).collect();
    assert_eq!(rungs[3..], [Rung::GoOn, Rung::Steer, Rung::Steer, Rung::Steer, Rung::Stop]);
    detector.observe(step("sql", 100, 100));
    assert_eq!(detector.observe(failed(101)).rung, Rung::GoOn, "one that succeeds begins anew");
}

#[test]
fn what_a_shell_writes_makes_trying_again_an_experiment() {
    let mut detector = detector(Preset::Coding);
    for number in 0..6 {
        detector.observe(did("bash", 100 + number, 0, CallEffect::Writes { file: 1, leaves: number + 1 }));
        assert_ne!(detector.observe(did("bash", 1, 7, CallEffect::Looks)).rung, Rung::Stop, "each after another change");
    }
    let mut circle = StallDetector::new(Preset::Coding.settings()).unwrap();
    let same = [did("bash", 100, 0, CallEffect::Writes { file: 1, leaves: 1 }), did("bash", 1, 7, CallEffect::Looks)];
    assert!((0..6).any(|index| circle.observe(same[index % 2]).rung == Rung::Stop), "the same change again is none");
}

#[test]
fn a_check_that_moves_is_progress_and_without_changes_it_is_none_of_this_rule() {
    let mut moving = detector(Preset::Coding);
    for number in 0..60 {
        moving.observe(did("bash", 100 + number, 0, CallEffect::Changes));
        assert_eq!(moving.observe(did("bash", 1, number, CallEffect::Runs)).rung, Rung::GoOn);
    }
    let never = Ladder { steer: 0, block: 0, stop: 0 };
    let settings = Preset::Coding.settings().identical(never).same_error(never).failing(never);
    let mut still = StallDetector::new(settings.novelty_window(0)).unwrap();
    for _ in 0..60 {
        assert_eq!(still.observe(failing_check(1)).rung, Rung::GoOn);
    }
}

#[test]
fn a_file_that_is_put_back_is_told_at_the_second_time_and_stops_at_the_fourth() {
    let mut detector = detector(Preset::Coding);
    let rungs: Vec<Rung> = (0..8_u64)
        .map(|number| {
            let by = if number % 2 == 0 { 7 } else { 7_u64.wrapping_neg() };
            detector.observe(did("str_replace_editor", number, number, CallEffect::Edits { file: 1, by })).rung
        })
        .collect();
    // There, back (1), there again (2), back again (3), …
    assert_eq!(rungs[..5], [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Steer, Rung::Stop]);
    let mut failed = StallDetector::new(Preset::Coding.settings()).unwrap();
    for number in 0..8_u64 {
        let edit = did(
            "str_replace_editor",
            number,
            number,
            CallEffect::Edits { file: 1, by: if number % 2 == 0 { 7 } else { 7_u64.wrapping_neg() } },
        );
        assert_ne!(failed.observe(Step { error: Some(number), ..edit }).rule, Some(StallRule::PutBack), "what failed changed nothing");
    }
}

#[test]
fn looks_that_give_the_same_for_other_arguments_are_told_early_and_stop_late_and_writes_never() {
    let rung_of = |effect: CallEffect| {
        let mut detector = detector(Preset::Coding);
        let rungs: Vec<Rung> = (0..14).map(|page| detector.observe(did("fetch", page, 7, effect)).rung).collect();
        (rungs.iter().position(|rung| *rung == Rung::Steer), rungs.iter().position(|rung| *rung == Rung::Stop))
    };
    assert_eq!(rung_of(CallEffect::Looks), (Some(3), Some(11)));
    assert_eq!(rung_of(CallEffect::Changes), (None, None), "\"ok\" from many writes is a batch");
    assert_eq!(rung_of(CallEffect::LooksUp), (None, None), "and so is \"delivered\" of many orders");
    let with_others = |other: Step<'static>| {
        let mut detector = detector(Preset::Coding);
        (0..30).all(|page| {
            let look = if page % 3 == 2 { other } else { did("fetch", page, 7, CallEffect::Looks) };
            detector.observe(Step { args: page, ..look }).rule != Some(StallRule::SameResult)
        })
    };
    assert!(
        with_others(did("bash", 1, 5, CallEffect::Runs)) && with_others(did("x", 1, 5, CallEffect::Unknown)),
        "something else was done in between"
    );
    assert!(with_others(Step { error: Some(3), ..did("fetch", 1, 3, CallEffect::Looks) }), "one gave something else");
    assert_eq!(rung_of(CallEffect::Unknown), (None, None));
}

#[test]
fn before_every_stop_there_is_a_nudge() {
    let silent = || Ladder { steer: 0, block: 0, stop: 0 };
    // Novelty: of six pairs one new, twice in succession.
    let settings = Preset::Coding.settings().identical(silent()).cycle(silent());
    let mut novelty = StallDetector::new(settings.clone()).unwrap();
    let rungs: Vec<Rung> = (0..8).map(|_| novelty.observe(step("ls", 1, 1)).rung).collect();
    assert_eq!(rungs[4..], [Rung::GoOn, Rung::Steer, Rung::Stop, Rung::Stop]);
    let mut at_once = StallDetector::new(settings.novelty_nudges(0)).unwrap();
    assert_eq!((0..6).map(|_| at_once.observe(step("ls", 1, 1)).rung).last(), Some(Rung::Stop), "where settings say so");
    let mut cycle = StallDetector::new(Preset::Coding.settings().novelty_window(0)).unwrap();
    let rungs: Vec<Rung> = (0..6).map(|index| cycle.observe(step("ls", index % 2, index % 2)).rung).collect();
    assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Steer, Rung::Stop]);
}

#[test]
fn a_wait_that_begins_to_fail_is_counted_from_there() {
    let asks = |error: Option<u64>| Step { effect: CallEffect::Waits, error, ..step("job_state", 1, 1) };
    let mut waits = detector(Preset::Coding);
    let patient: Vec<Rung> = (0..7).map(|_| waits.observe(asks(None)).rung).collect();
    assert_eq!(patient, [Rung::GoOn; 7]);
    let failing: Vec<Rung> = (0..4).map(|_| waits.observe(asks(Some(7))).rung).collect();
    assert_eq!(failing, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop]);
}

proptest! {
    /// Whatever a run does, by the thresholds of every preset the model was told before it is ended.
    #[test]
    fn no_run_is_stopped_that_was_not_told(
        steps in prop::collection::vec((0_usize..8, 0_u64..3, 0_u64..3, 0_u64..4), 1..120),
        long in prop::option::of(8_u32..40),
    ) {
        for preset in Preset::ALL {
            let mut settings = preset.settings();
            if let Some(calls) = long {
                settings = settings.long_run(Ladder { steer: calls - calls / 8, block: 0, stop: calls + 1 });
            }
            let mut detector = StallDetector::new(settings).unwrap();
            let mut was_told = false;
            for (what, args, result, error) in &steps {
                let effect = [
                    CallEffect::Unknown,
                    CallEffect::Runs,
                    CallEffect::Looks,
                    CallEffect::LooksUp,
                    CallEffect::Changes,
                    CallEffect::Edits { file: *args, by: result.wrapping_sub(1) },
                    CallEffect::Acts { on: *args },
                    CallEffect::Waits,
                ][*what];
                let step = Step { effect, error: (*error == 0).then_some(7), ..step(["a", "b", "c", "d", "e", "f", "g", "h"][*what], *args, *result) };
                let verdict = detector.observe(step);
                prop_assert!(verdict.rung < Rung::Stop || was_told, "{:?}: {:?}", preset, verdict);
                was_told |= verdict.rung == Rung::Steer;
            }
        }
    }

    /// A run whose every pair is new never stalls, whatever else it looks like.
    #[test]
    fn news_never_stalls(steps in prop::collection::vec((0_u64..4, 0_u64..3), 0..300)) {
        for preset in Preset::ALL {
            let mut detector = detector(preset);
            for (index, (tool, args)) in steps.iter().enumerate() {
                let verdict = detector.observe(step(["a", "b", "edit_file", "wait"][*tool as usize], *args, index as u64 + 1));
                prop_assert_eq!(verdict.rung, Rung::GoOn);
            }
        }
    }

    /// Used again for another run, it says what one made for that run says.
    #[test]
    fn a_cleared_state_is_as_good_as_another(steps in prop::collection::vec((0_u64..4, 0_u64..3, 0_u64..4), 0..200), cut in 0_usize..200) {
        let settings = Preset::Coding.settings();
        let (mut used, mut fresh) = (StallState::default(), StallState::default());
        for (index, (tool, args, result)) in steps.iter().enumerate() {
            if index == cut {
                used.clear();
                fresh = StallState::default();
            }
            let effect = [CallEffect::Unknown, CallEffect::Runs, CallEffect::Edits { file: *args, by: *result }, CallEffect::Looks][*tool as usize];
            let step = Step { result: (*result < 3).then_some(*result), effect, ..step(["a", "b", "edit_file", "wait"][*tool as usize], *args, *result) };
            prop_assert_eq!(used.observe(&settings, step), fresh.observe(&settings, step));
            if *result == 3 {
                prop_assert_eq!(used.message(&settings, *args), fresh.message(&settings, *args));
            }
        }
    }

    /// Kept and read back at any moment, it goes on as if nothing had happened.
    #[test]
    fn a_kept_state_goes_on(steps in prop::collection::vec((0_u64..3, 0_u64..3, 0_u64..3), 0..120)) {
        let mut whole = detector(Preset::Coding);
        let mut kept = whole.clone();
        for (tool, args, result) in steps {
            let effect = [CallEffect::Looks, CallEffect::Runs, CallEffect::Edits { file: args, by: result }][tool as usize];
            let step = Step { result: (result < 2).then_some(result), effect, ..step(["a", "b", "edit_file"][tool as usize], args, result) };
            let bytes = postcard::to_stdvec(&kept.into_state()).unwrap();
            kept = StallDetector::resume(Preset::Coding.settings(), postcard::from_bytes(&bytes).unwrap()).unwrap();
            prop_assert_eq!(whole.observe(step), kept.observe(step));
        }
    }
}

#[test]
fn calls_and_tokens_of_a_long_run_are_shown_side_by_side() {
    let shown = |long_run: u32, limit: u64| {
        let counters = Counters { long_run, tokens: 930, ..Counters::default() };
        counters.with_share_of_tokens(format!("{long_run}/51"), &Preset::Coding.settings().long_run_tokens(limit))
    };
    assert_eq!([shown(12, 1_000), shown(12, 0), shown(0, 1_000)], ["12/51, 93 %", "12/51", "0/51"]);
}

/// Calls of a web agent as they were made, each with a page that was never seen before.
fn on_pages(calls: &[(&str, String)]) -> Option<(usize, StallRule)> {
    let mut detector = detector(Preset::Browser);
    let steps: Vec<Step<'_>> = calls
        .iter()
        .enumerate()
        .map(|(page, (tool, arguments))| {
            let effect = CallEffect::of(tool, arguments);
            Step { tool, args: xxh3_64(arguments.as_bytes()), result: Some(page as u64), error: None, round: None, effect }
        })
        .collect();
    first_stop(&mut detector, &steps)
}

fn lines(tool: &'static str, name: &str, lines: &[&str]) -> Vec<(&'static str, String)> {
    lines.iter().map(|line| (tool, serde_json::json!({ name: line }).to_string())).collect()
}

fn calls(calls: &[(&'static str, serde_json::Value)]) -> Vec<(&'static str, String)> {
    calls.iter().map(|(tool, arguments)| (*tool, arguments.to_string())).collect()
}

#[test]
fn a_web_agent_that_comes_back_to_the_same_few_elements_is_stopped_whatever_it_types_and_sees() {
    let searches = lines(
        "action",
        "action",
        &[
            "click [8821]",
            "type [164] [running shoes] [1]",
            "scroll [down]",
            "type [164] [shoes for running] [1]",
            "scroll [down]",
            "type [164] [jogging shoes] [1]",
            "scroll [down]",
            "type [164] [trail running shoes] [1]",
            "scroll [up]",
            "type [164] [shoes men running] [1]",
        ],
    );
    assert_eq!(on_pages(&searches), Some((9, StallRule::Novelty)), "WebArena: one search box in eight wordings");
    let up_and_down: Vec<(&str, String)> = (0..12_i64)
        .map(|number| {
            (
                "browser",
                serde_json::json!({"code": format!("scroll(0, {})", if number % 2 == 0 { 500 + number } else { -500 })}).to_string(),
            )
        })
        .collect();
    assert_eq!(on_pages(&up_and_down), Some((9, StallRule::Novelty)), "BrowserGym: scrolling is not exempt");
    let mut dead_button = Vec::new();
    for number in 0..6 {
        dead_button.extend(calls(&[
            (
                "browser_type",
                serde_json::json!({"element": "Email", "ref": "e14", "text": format!("ann{number}@example.org"), "submit": false}),
            ),
            ("browser_click", serde_json::json!({"element": "Save button", "ref": "e21"})),
            ("browser_wait_for", serde_json::json!({"time": number})),
            ("browser_snapshot", serde_json::json!({})),
        ]));
    }
    assert_eq!(on_pages(&dead_button), Some((17, StallRule::Novelty)), "Playwright MCP: waiting and looking count for nothing");
    let boxes: Vec<(&str, String)> = (0..12)
        .map(|number| match number % 3 {
            0 => ("input_text", serde_json::json!({"index": 7, "text": format!("query {number}")}).to_string()),
            1 => ("click_element_by_index", serde_json::json!({"index": 9}).to_string()),
            _ => ("scroll_down", serde_json::json!({"amount": 100 * number}).to_string()),
        })
        .collect();
    assert_eq!(on_pages(&boxes), Some((9, StallRule::Novelty)), "browser-use");
    let clicks: Vec<(&str, String)> = (0..12)
        .map(|number| ("computer", serde_json::json!({"action": "left_click", "coordinate": [400 + 40 * (number % 3), 300]}).to_string()))
        .collect();
    assert_eq!(on_pages(&clicks), Some((9, StallRule::Novelty)), "computer use");
}

#[test]
fn a_web_agent_that_gets_on_is_not_stopped() {
    let form: Vec<(&str, String)> = (12..20)
        .map(|field| ("browser", serde_json::json!({"code": format!("fill('b{field}', 'value')")}).to_string()))
        .chain(lines("browser", "code", &["click('b20')", "scroll(0, 300)", "click('c4')", "send_msg_to_user('done')"]))
        .collect();
    assert_eq!(on_pages(&form), None, "a form with eight fields");
    let pages: Vec<(&str, String)> = (0..14)
        .map(|page| match page % 5 {
            3 => ("action", serde_json::json!({"action": "scroll [down]"}).to_string()),
            _ => ("action", serde_json::json!({"action": format!("click [{}]", 4000 + 37 * page)}).to_string()),
        })
        .collect();
    assert_eq!(on_pages(&pages), None, "results by different links, scrolled now and then");
    let mut shop = Vec::new();
    for product in 0..8 {
        shop.extend(calls(&[
            ("browser_click", serde_json::json!({"element": format!("Product {product}"), "ref": format!("e{}", 30 + product)})),
            ("browser_snapshot", serde_json::json!({})),
            ("browser_navigate_back", serde_json::json!({})),
        ]));
    }
    assert_eq!(on_pages(&shop), None, "one product after the other, and back");
    let mut tabbed = calls(&[("computer", serde_json::json!({"action": "left_click", "coordinate": [200, 180]}))]);
    for field in 0..8 {
        tabbed.extend(calls(&[
            ("computer", serde_json::json!({"action": "type", "text": format!("value {field}")})),
            ("computer", serde_json::json!({"action": "key", "text": "Tab"})),
            ("computer", serde_json::json!({"action": "screenshot"})),
        ]));
    }
    assert_eq!(on_pages(&tabbed), None, "a form that is filled by keys alone");
    let reading: Vec<(&str, String)> = (0..12)
        .map(|page| match page % 2 {
            0 => ("go_to_url", serde_json::json!({"url": format!("https://example.org/{page}")}).to_string()),
            _ => ("extract_content", serde_json::json!({"goal": "the price"}).to_string()),
        })
        .collect();
    assert_eq!(on_pages(&reading), None, "browser-use reads one page after the other");
}

#[test]
fn what_is_acted_on_counts_only_where_it_is_asked_for() {
    let click = |element: u64, page: u64| Step { effect: CallEffect::Acts { on: element }, ..step("click", element, page) };
    let steps: Vec<Step<'_>> = (0..30).map(|page| click(page % 3, page)).collect();
    assert_eq!(first_stop(&mut detector(Preset::Coding), &steps), None, "every page is another");
    assert_eq!(first_stop(&mut detector(Preset::Browser), &steps), Some((9, StallRule::Novelty)));
    // A state knows both, whoever asked before.
    let (coding, browser) = (Preset::Coding.settings(), Preset::Browser.settings());
    let mut state = StallState::default();
    for step in &steps[..10] {
        state.observe(&coding, *step);
    }
    assert_eq!((state.counters(&coding).window_new, state.counters(&browser).window_new), (6, 1));
    let mut mixed = StallState::default();
    for step in [step("search", 1, 1), step("search", 2, 2), click(1, 3), click(1, 4)] {
        mixed.observe(&browser, step);
    }
    assert_eq!(mixed.counters(&browser).window_new, 3, "what was before the first of them stays known");
    let unknown: Vec<Step<'_>> = (0..30).map(|page| Step { result: None, ..click(page % 3, 0) }).collect();
    assert!(first_stop(&mut detector(Preset::Browser), &unknown).is_some_and(|(at, _)| at <= 9), "what came of it need not be known");
}
