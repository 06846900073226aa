//! Rules ask for no memory at a step, so a long run costs no more of it than a short one.

use runguard_core::Span;
use runguard_core::detect::stall::CallEffect;
use runguard_core::money::NanoDollars;
use runguard_guards::policy::Tree;
use runguard_replay::rules::{Caps, Guards, Presets, Watched};
use runguard_replay::trace::{Kind, ReadAt, Run, Step};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn run_of(steps: u64) -> Run {
    let step = |index: u64| Step {
        kind: if index % 7 == 6 { Kind::Message } else { Kind::Call },
        tool: ["bash", "read_file", "str_replace_editor"][index as usize % 3].into(),
        args: index,
        result: Some(index),
        error: index.is_multiple_of(5).then_some(index),
        effect: [CallEffect::Runs, CallEffect::Looks, CallEffect::Edits { file: index % 4, by: index }][index as usize % 3],
        tokens: 100,
        dollars: 0.01,
        at_millis: Some(index as i64 * 1000),
        round: Some(index),
        spoke: None,
        texts: None,
    };
    Run {
        task: "t".into(),
        model: "m".into(),
        agent: "a".into(),
        steps: (0..steps).map(step).collect(),
        ..Run::new("r".into(), "s", ReadAt::default())
    }
}

#[test]
fn a_step_asks_for_no_memory() {
    let caps = Caps {
        steps: Some(1_000_000),
        tokens: Some(1_000_000_000),
        usd: NanoDollars::parse("1000000").ok(),
        time: Some(Span::from_seconds(1_000_000)),
    };
    let guards = Guards::new(Presets::default(), &Tree::new(), &[Watched::Stall, Watched::Loop], caps).unwrap();
    let mut watch = guards.watch();
    let (short, long) = (run_of(300), run_of(30_000));
    watch.run(&short);
    let mut allocations_of = |run: &Run| {
        let region = Region::new(ALLOCATOR);
        assert_eq!(watch.run(run).ended, None);
        region.change().allocations
    };
    let (short, long) = (allocations_of(&short), allocations_of(&long));
    assert_eq!(short, long, "what a run asks for does not depend on its length");
    assert!(long < 30, "{long}");
}
