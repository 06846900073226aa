//! Whether thresholds chosen on some tasks of the benchmark hold on others, and what other rules do for the same price.
//!
//! The detector's rules do not hear of each other, so a combination ends a run where the first of its parts would ([`crate::front`]): each
//! run is watched once for every value of every rule, and the combinations are made of that.

use crate::evaluate::{
    ALL, FOLDS, FRONTIER_RUNS, Lengths, NATIVE, Order, Progress, Reading, Recorded, Tally, Worker, each_run, fold_of, groups, tokens_of,
};
use crate::front::only;
use crate::labels::Labels;
use crate::rules::{Caps, Contender, Guards, Presets, Rule, Watched as Guard};
use crate::trace::{Detail, Kind, Run, Step};
use runguard_core::detect::loops::{Called, LoopSettings, Trail};
use runguard_core::detect::stall::{CallEffect, StallRule, StallSettings};
use runguard_core::limits::InvalidSetting;
use runguard_core::time::Timestamp;
use runguard_guards::policy::Tree;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What part of the good runs of a class may be ended before their end.
pub const PRICES: [(&str, f64); 3] = [(FRONTIER_RUNS, 0.005), (NATIVE, 0.01), ("intercode", 0.005)];
/// What part of the runs that the agent's own detector called stuck are to be found, if any thresholds that keep the prices find it.
const RECALL: f64 = 0.95;

/// Limits that runs are held against beside the detector; one of them, or of what follows them here, at a time.
const LIMITS_OF_STEPS: [u64; 8] = [3, 6, 9, 12, 16, 20, 23, 25];
const LIMITS_OF_TOKENS: [u64; 6] = [50_000, 100_000, 200_000, 400_000, 800_000, 1_600_000];
/// How often the loop detector lets one tool come in a row, whatever it is asked.
const TOOL_IN_A_ROW: [u32; 5] = [5, 6, 8, 10, 12];
/// How often it lets calls come in a row that only look, whatever they look at.
const LOOKS_IN_A_ROW: [u32; 5] = [5, 6, 7, 8, 10];
/// Rules whose stop comes early: for prices at which others end a fifth or half of the good runs.
const EAGER: [(StallRule, u32); 7] = [
    (StallRule::Identical, 2),
    (StallRule::SameError, 2),
    (StallRule::Unmoved, 3),
    (StallRule::Unmoved, 5),
    (StallRule::LongRun, 8),
    (StallRule::LongRun, 14),
    (StallRule::LongRun, 20),
];
/// How often the loop detector lets the same calls come round, whatever they give, and how many calls a round may have.
const ROUNDS: [(u32, u32); 4] = [(3, 1), (3, 4), (5, 1), (5, 5)];

/// Why no trial can be made: a setting that cannot be.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// One value of one rule, or of a limit: its name, and what watches runs by it alone. Without that it is off.
struct Value {
    name: String,
    contender: Option<Contender>,
}

/// The values of a rule; a combination has one of each.
struct Axis {
    name: &'static str,
    values: Vec<Value>,
}

fn off() -> Value {
    Value { name: "off".into(), contender: None }
}

/// A rule with another stop, and all others off.
fn alone(rule: StallRule, stop: u32) -> Result<Contender, InvalidSetting> {
    Contender::runguard(rule.code(), |mut settings: StallSettings| {
        set_stop(rule, stop, &mut settings);
        only(rule, settings)
    })
}

fn axis_of(rule: StallRule, can_be_off: bool, stops: &[u32]) -> Result<Axis, InvalidSetting> {
    let value = |stop: &u32| Ok(Value { name: stop.to_string(), contender: Some(alone(rule, *stop)?) });
    let values = stops.iter().map(value).collect::<Result<Vec<_>, InvalidSetting>>()?;
    Ok(Axis { name: rule.code(), values: can_be_off.then(off).into_iter().chain(values).collect() })
}

/// Of novelty the window is tuned. The same for every preset, so that few numbers meet many runs.
fn set_stop(rule: StallRule, stop: u32, settings: &mut StallSettings) {
    if let Some(ladder) = settings.ladder_mut(rule) {
        ladder.stop = stop;
    } else {
        settings.novelty_window = stop;
    }
}

/// Ends a run after so many steps more, which are known beforehand.
struct Ends {
    left: Option<usize>,
}

impl Rule for Ends {
    fn stops(&mut self, _step: &Step) -> bool {
        let is_last = self.left == Some(0);
        self.left = self.left.and_then(|left| left.checked_sub(1));
        is_last
    }
}

/// The loop detector, asked by a name of its caller's own for each call: that of the tool alone, or what kind of call it is.
struct InARow {
    settings: LoopSettings,
    trail: Trail,
    name: fn(&Step) -> Called<'_>,
}

impl InARow {
    fn value(name: String, times: u32, of: fn(&Step) -> Called<'_>) -> Value {
        let contender = Contender::new(&name, move |_| {
            let settings = LoopSettings::default().repeats(times).max_cycle_len(1);
            Box::new(Self { trail: Trail::new(&settings), settings, name: of })
        });
        Value { name, contender: Some(contender) }
    }
}

impl Rule for InARow {
    fn stops(&mut self, step: &Step) -> bool {
        step.kind == Kind::Call && self.trail.record(&self.settings, (self.name)(step), Timestamp::from_millis(0)).is_some()
    }
}

/// Whatever only looks goes by one name.
fn looks_alike(step: &Step) -> Called<'_> {
    if step.effect == CallEffect::Looks { Called::by_name("looks") } else { Called::with_arguments(&step.tool, step.args) }
}

/// What other guards than the stall detector do to a run, as `replay` tells it.
fn guarded(name: String, settings: Tree, watched: &[Guard], caps: Caps) -> Result<Value, Problem> {
    let guards = Guards::new(Presets::default(), &settings, watched, caps).map_err(|problem| problem.problem)?;
    let contender = Contender::new(&name, move |run| Box::new(Ends { left: guards.watch().run(run).ended.map(|(at, _)| at) }));
    Ok(Value { name, contender: Some(contender) })
}

/// A value first that is off, and then those that are there.
fn beside(name: &'static str, values: impl Iterator<Item = Result<Value, Problem>>) -> Result<Axis, Problem> {
    Ok(Axis { name, values: [Ok(off())].into_iter().chain(values).collect::<Result<_, _>>()? })
}

/// What is long for its kind, as a value of the rule for long runs.
fn axis_of_length(lengths: Lengths) -> Axis {
    let long = Contender::runguard_by_kind("long_run", move |run, settings| only(StallRule::LongRun, lengths.settings(run, settings)));
    let values = vec![off(), Value { name: "what is long for its kind".into(), contender: Some(long) }];
    Axis { name: StallRule::LongRun.code(), values }
}

/// Thresholds of the stall detector that might be its defaults.
fn thresholds(lengths: Lengths) -> Result<Vec<Axis>, Problem> {
    let of = axis_of;
    Ok(vec![
        of(StallRule::Identical, true, &[3, 4, 5])?,
        of(StallRule::Cycle, false, &[3])?,
        of(StallRule::Novelty, true, &[5, 6, 8])?,
        of(StallRule::SameError, true, &[4, 5, 6, 8])?,
        of(StallRule::Messages, false, &[3, 4])?,
        of(StallRule::Unmoved, true, &[8, 12])?,
        of(StallRule::PutBack, true, &[4])?,
        of(StallRule::SameResult, true, &[12])?,
        of(StallRule::Failing, true, &[6, 8])?,
        axis_of_length(lengths),
    ])
}

/// What may be held against rules of others, whatever their price is: fewer thresholds, and beside them the loop detector and limits.
fn against_others(lengths: Lengths) -> Result<Vec<Axis>, Problem> {
    let of = axis_of;
    let steps = LIMITS_OF_STEPS.iter().map(|steps| {
        let caps = Caps { steps: Some(*steps), ..Caps::default() };
        guarded(format!("{steps} steps"), Tree::new(), &[], caps)
    });
    let tokens = LIMITS_OF_TOKENS.iter().map(|tokens| {
        let caps = Caps { tokens: Some(*tokens), ..Caps::default() };
        guarded(format!("{tokens} tokens"), Tree::new(), &[], caps)
    });
    let loops = ROUNDS.iter().map(|(repeats, longest)| {
        let settings = serde_json::json!({"repeats": repeats, "max_cycle_len": longest});
        let tree = Tree::from_iter([(Guard::Loop.code().to_owned(), settings)]);
        guarded(format!("{repeats} rounds of up to {longest}"), tree, &[Guard::Loop], Caps::default())
    });
    let tools = TOOL_IN_A_ROW.into_iter().map(|times| Ok(InARow::value(times.to_string(), times, |step| Called::by_name(&step.tool))));
    let looks = LOOKS_IN_A_ROW.into_iter().map(|times| Ok(InARow::value(times.to_string(), times, looks_alike)));
    let eager =
        EAGER.into_iter().map(|(rule, stop)| Ok(Value { name: format!("{} {stop}", rule.code()), contender: Some(alone(rule, stop)?) }));
    Ok(vec![
        of(StallRule::Identical, true, &[3, 4])?,
        of(StallRule::Cycle, true, &[3])?,
        of(StallRule::Novelty, true, &[6])?,
        of(StallRule::SameError, true, &[5, 8])?,
        of(StallRule::Messages, false, &[3])?,
        of(StallRule::Unmoved, true, &[12])?,
        of(StallRule::PutBack, true, &[4])?,
        of(StallRule::SameResult, false, &[12])?,
        of(StallRule::Failing, true, &[8])?,
        axis_of_length(lengths),
        beside("loop", loops)?,
        beside("one tool in a row", tools)?,
        beside("looks in a row", looks)?,
        beside("limit", steps.chain(tokens).chain(eager))?,
    ])
}

/// What a combination did to some runs.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    costly: u32,
    stuck_found: u32,
    saved_steps: u32,
    saved_tokens: u64,
}

/// Where each value stops a run, in the order of all values of all axes; [`GOES_ON`] where it does not.
struct Watched {
    run: Run,
    stops: Vec<u32>,
}

const GOES_ON: u32 = u32::MAX;

/// Combinations whose sums are looked at together.
const BLOCK: usize = 1 << 12;

/// What is needed of a run to add it up.
struct Ended {
    groups: Vec<usize>,
    fold: usize,
    success: Option<bool>,
    stuck: bool,
    /// By axis, then by value.
    ends: Vec<Vec<u32>>,
    /// What an end after each step would have spared: steps and tokens.
    spared: Vec<(u32, u64)>,
}

/// Which value of each axis a combination has.
fn parts_of(combination: usize, axes: &[Axis]) -> Vec<usize> {
    let mut rest = combination;
    let mut parts = vec![0; axes.len()];
    for (part, axis) in parts.iter_mut().zip(axes).rev() {
        (*part, rest) = (rest % axis.values.len(), rest / axis.values.len());
    }
    parts
}

/// All combinations on all runs.
pub struct Trial {
    axes: Vec<Axis>,
    runs: Vec<Watched>,
    /// By group, then by combination, then by fold.
    sums: BTreeMap<String, Vec<[Sums; FOLDS]>>,
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

/// A combination that was chosen without looking at a fold; `None` where nothing keeps the price: then no run is stopped.
#[derive(Debug, Clone, Copy)]
pub struct HeldOut {
    pub chosen: Option<usize>,
    pub fold: usize,
}

/// What is to be saved of failed runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    Steps,
    Tokens,
}

struct Watches<'a> {
    values: &'a [&'a Contender],
    runs: Vec<Watched>,
}

impl Worker for Watches<'_> {
    fn run(&mut self, run: Run, _: Order) {
        let stops = self.values.iter().map(|value| value.stop(&run).map_or(GOES_ON, |at| at as u32)).collect();
        self.runs.push(Watched { run, stops });
    }
}

/// Tells of every combination when it ends a run: of parts that stand one after the other, the last changes first.
fn each_end(axes: &[&[u32]], until: u32, index: &mut usize, tell: &mut impl FnMut(usize, u32)) {
    let Some((first, rest)) = axes.split_first() else {
        if until != GOES_ON {
            tell(*index, until);
        }
        *index += 1;
        return;
    };
    for end in *first {
        each_end(rest, until.min(*end), index, tell);
    }
}

impl Trial {
    /// Combinations of thresholds alone.
    pub fn of_thresholds(files: &[PathBuf], lengths: Lengths, threads: usize) -> Result<Self, Problem> {
        Ok(Self::of(files, thresholds(lengths)?, threads))
    }

    /// Combinations to be held against rules of others.
    pub fn against_others(files: &[PathBuf], lengths: Lengths, threads: usize) -> Result<Self, Problem> {
        Ok(Self::of(files, against_others(lengths)?, threads))
    }

    fn of(files: &[PathBuf], axes: Vec<Axis>, threads: usize) -> Self {
        let values: Vec<&Contender> = axes.iter().flat_map(|axis| &axis.values).filter_map(|value| value.contender.as_ref()).collect();
        let labels = Labels::default();
        let reading =
            Reading { recorded: Recorded::of(files, &labels), detail: Detail::FINGERPRINTS, threads, progress: &Progress::default() };
        let workers = each_run(&reading, || Watches { values: &values, runs: Vec::new() }).0;
        let runs = workers.into_iter().flat_map(|worker| worker.runs).collect();
        let mut trial = Self { axes, runs, sums: BTreeMap::new() };
        trial.add_up();
        trial
    }

    /// How many combinations there are.
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where each value of each axis ends a run.
    fn ends(&self, watched: &Watched) -> Vec<Vec<u32>> {
        let mut stops = watched.stops.iter();
        let end = |value: &Value, stops: &mut std::slice::Iter<'_, u32>| match &value.contender {
            Some(_) => stops.next().copied().unwrap_or(GOES_ON),
            None => GOES_ON,
        };
        self.axes.iter().map(|axis| axis.values.iter().map(|value| end(value, &mut stops)).collect()).collect()
    }

    /// A block of combinations after the other, so that its sums stay near while all runs pass by.
    fn add_up(&mut self) {
        let mut names: Vec<String> = Vec::new();
        let mut place = |group: &str| {
            names.iter().position(|name| name == group).unwrap_or_else(|| {
                names.push(group.to_owned());
                names.len() - 1
            })
        };
        let runs: Vec<Ended> = self
            .runs
            .iter()
            .map(|watched| {
                let run = &watched.run;
                let spared = (0..run.steps.len()).map(|at| run.spared(at)).map(|steps| (steps.len() as u32, tokens_of(steps))).collect();
                let groups = groups(run).into_iter().map(&mut place).collect();
                let stuck = run.stuck == Some(true);
                Ended { groups, fold: fold_of(&run.task), success: run.success, stuck, ends: self.ends(watched), spared }
            })
            .collect();
        let mut sums = vec![vec![[Sums::default(); FOLDS]; self.len()]; names.len()];
        let (split, block) = self.blocks();
        let (head, tail) = self.axes.split_at(split);
        debug_assert_eq!(block, tail.iter().map(|axis| axis.values.len()).product::<usize>());
        for index in 0..head.iter().map(|axis| axis.values.len()).product() {
            let parts = parts_of(index, head);
            for run in &runs {
                let (first, rest) = run.ends.split_at(split);
                let until = first.iter().zip(&parts).map(|(ends, part)| ends[*part]).min().unwrap_or(GOES_ON);
                let rest: Vec<&[u32]> = rest.iter().map(Vec::as_slice).collect();
                each_end(&rest, until, &mut (index * block), &mut |combination, end| {
                    let (steps, tokens) = run.spared[end as usize];
                    for group in &run.groups {
                        let sums = &mut sums[*group][combination][run.fold];
                        sums.stuck_found += u32::from(run.stuck);
                        match run.success {
                            Some(true) => sums.costly += u32::from(steps > 0),
                            Some(false) => {
                                sums.saved_steps += steps;
                                sums.saved_tokens += tokens;
                            }
                            None => {}
                        }
                    }
                });
            }
        }
        self.sums = names.into_iter().zip(sums).collect();
    }

    /// How many axes lead, and how many combinations the others have.
    fn blocks(&self) -> (usize, usize) {
        let mut block = 1;
        for (place, axis) in self.axes.iter().enumerate().rev() {
            if block * axis.values.len() > BLOCK {
                return (place + 1, block);
            }
            block *= axis.values.len();
        }
        (0, block)
    }

    /// The values of a combination, in words: what is on.
    pub fn name(&self, combination: Option<usize>) -> String {
        let Some(combination) = combination else { return "nothing".to_owned() };
        let parts = self.parts(combination).into_iter().zip(&self.axes);
        parts.map(|(part, axis)| format!("{} {}", axis.name, axis.values[part].name)).collect::<Vec<_>>().join(", ")
    }

    fn parts(&self, combination: usize) -> Vec<usize> {
        parts_of(combination, &self.axes)
    }

    fn sums(&self, group: &str, combination: usize, wanted: impl Fn(usize) -> bool) -> Sums {
        let mut sum = Sums::default();
        let folds = self.sums.get(group).and_then(|combinations| combinations.get(combination));
        for (_, sums) in folds.into_iter().flatten().enumerate().filter(|(fold, _)| wanted(*fold)) {
            sum.costly += sums.costly;
            sum.stuck_found += sums.stuck_found;
            sum.saved_steps += sums.saved_steps;
            sum.saved_tokens += sums.saved_tokens;
        }
        sum
    }

    /// What stopping the runs of a group so comes to; where nothing stops it, at its end.
    fn tally(&self, group: &str, wanted: impl Fn(usize) -> bool, stop: impl Fn(&Watched) -> Option<usize>) -> Tally {
        let mut sum = Tally::default();
        for watched in self.runs.iter().filter(|watched| wanted(fold_of(&watched.run.task)) && groups(&watched.run).contains(&group)) {
            let run = &watched.run;
            sum += &Tally::of(run, stop(watched).map(|at| run.spared(at)));
        }
        sum
    }

    fn stop(&self, watched: &Watched, combination: usize) -> Option<usize> {
        let parts = self.parts(combination);
        let end = self.ends(watched).iter().zip(parts).map(|(ends, part)| ends[part]).min().unwrap_or(GOES_ON);
        (end != GOES_ON).then_some(end as usize)
    }

    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.sums.keys().map(String::as_str)
    }

    /// For every fold the thresholds that save most on the others while every class keeps its price there and enough of the stuck runs are
    /// found. Long runs of one source must not outvote the others, so shares count alike: steps of two sources, tokens of frontier models.
    pub fn cross_validate(&self) -> Vec<HeldOut> {
        let choose = |fold: usize| {
            let wanted = |other: usize| other != fold;
            let whole = |group: &str| self.tally(group, wanted, |_| None);
            let prices = PRICES.map(|(group, price)| (group, price * whole(group).successful as f64));
            let keeps =
                |combination: &usize| prices.iter().all(|(group, most)| f64::from(self.sums(group, *combination, wanted).costly) <= *most);
            let enough = RECALL * whole(ALL).stuck as f64;
            let finds = |combination: usize| f64::from(self.sums(ALL, combination, wanted).stuck_found) >= enough;
            let [swe, inter, frontier] = ["openhands_swebench", "intercode", FRONTIER_RUNS].map(whole);
            let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
            let worth = |combination: usize| {
                let saved = |group: &str| self.sums(group, combination, wanted);
                share(saved("openhands_swebench").saved_steps.into(), swe.failed_steps)
                    + share(saved("intercode").saved_steps.into(), inter.failed_steps)
                    + share(saved(FRONTIER_RUNS).saved_tokens, frontier.failed_tokens)
            };
            let worths = (0..self.len()).filter(keeps).map(|combination| (finds(combination), worth(combination), combination));
            let best = worths.max_by(|left, right| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)));
            HeldOut { chosen: best.map(|(_, _, chosen)| chosen), fold }
        };
        (0..FOLDS).map(choose).collect()
    }

    /// What the chosen ones do on the folds they were chosen without, together.
    pub fn held_out(&self, chosen: &[HeldOut], group: &str) -> Tally {
        let mut sum = Tally::default();
        for HeldOut { chosen, fold } in chosen {
            sum += &self.tally(group, |at| at == *fold, |watched| self.stop(watched, (*chosen)?));
        }
        sum
    }

    /// What a rule of others does to a group.
    pub fn of_rival(&self, rival: &Contender, group: &str) -> Tally {
        self.tally(group, |_| true, |watched| rival.stop(&watched.run))
    }

    /// For every fold the thresholds that save most of one class on the others at its price, whatever they do to other classes.
    pub fn at_its_own_price(&self, group: &str, price: f64, saved: Saved) -> Vec<HeldOut> {
        let whole = |fold: usize| self.tally(group, |other| other != fold, |_| None).successful as f64;
        self.priced(group, saved).at(|fold| (price * whole(fold)) as usize)
    }

    /// What saves most of a group at every price.
    pub fn priced(&self, group: &str, saved: Saved) -> Priced {
        let combinations = self.sums.get(group).map(Vec::as_slice).unwrap_or_default();
        let best_without = |fold: usize| {
            let mut best: Vec<Option<Best>> = Vec::new();
            for (combination, folds) in combinations.iter().enumerate() {
                let others = folds.iter().enumerate().filter(|(other, _)| *other != fold).map(|(_, sums)| sums);
                let (costly, worth) = others.fold((0, 0), |(costly, worth), sums| {
                    let more = if saved == Saved::Steps { sums.saved_steps.into() } else { sums.saved_tokens };
                    (costly + sums.costly as usize, worth + more)
                });
                if best.len() <= costly {
                    best.resize(costly + 1, None);
                }
                if best[costly].is_none_or(|best| worth >= best.worth) {
                    best[costly] = Some(Best { worth, combination });
                }
            }
            // What costs less is as good at a higher price.
            for costly in 1..best.len() {
                let cheaper = best[costly - 1];
                if cheaper.is_some_and(|cheaper| best[costly].is_none_or(|best| best.worth <= cheaper.worth)) {
                    best[costly] = cheaper;
                }
            }
            best
        };
        Priced { best: (0..FOLDS).map(best_without).collect() }
    }

    /// How many good runs of a group a rule of others ends before their end, without those of a fold.
    pub fn price_of(&self, rival: &Contender, group: &str, without: usize) -> usize {
        self.tally(group, |fold| fold != without, |watched| rival.stop(&watched.run)).costly_stops as usize
    }
}

/// A combination, and what it saves of the runs it was chosen on.
#[derive(Debug, Clone, Copy)]
struct Best {
    worth: u64,
    combination: usize,
}

/// What saves most of a group at every price, chosen without each fold.
#[derive(Debug)]
pub struct Priced {
    /// By fold, then by how many good runs may be ended before their end.
    best: Vec<Vec<Option<Best>>>,
}

impl Priced {
    /// For every fold what was chosen on the others, where so many good runs of theirs may be ended.
    pub fn at(&self, most_costly: impl Fn(usize) -> usize) -> Vec<HeldOut> {
        let of_fold = |(fold, best): (usize, &Vec<Option<Best>>)| {
            let at_most = best.len().checked_sub(1).map(|last| last.min(most_costly(fold)));
            HeldOut { chosen: at_most.and_then(|costly| best[costly]).map(|best| best.combination), fold }
        };
        self.best.iter().enumerate().map(of_fold).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Other;
    use std::io::Write;

    /// All of them would be too many for a test.
    fn some_against_others(files: &[PathBuf]) -> Trial {
        let mut axes = against_others(Lengths::of(files, 2)).unwrap();
        axes.retain(|axis| ["identical", "loop", "looks in a row"].contains(&axis.name));
        assert_eq!(axes.len(), 3);
        Trial::of(files, axes, 2)
    }

    /// Runs of failing tasks that repeat one call eight times, and of successful ones that repeat it three times.
    fn traces() -> tempfile::NamedTempFile {
        let step = r#"{"kind":"call","tool":"sh","args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false}"#;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for index in 0..100 {
            let success = index % 2 == 0;
            let mut steps = vec![step; if success { 3 } else { 8 }];
            let other = step.replace("\"1\"", "\"3\"");
            steps.push(&other);
            let steps = steps.join(",");
            writeln!(
                file,
                r#"{{"run_id":"{index}","source":"intercode","task":"t{index}","success":{success},"labels":{{"native_tool_calls":true}},"steps":[{steps}]}}"#
            )
            .unwrap();
        }
        file
    }

    #[test]
    fn the_best_keeps_the_price_and_holds_where_it_was_not_chosen() {
        let file = traces();
        let files = [file.path().to_owned()];
        let trial = Trial::of_thresholds(&files, Lengths::of(&files, 2), 2).unwrap();
        let chosen = trial.cross_validate();
        assert_eq!(chosen.len(), FOLDS);
        let is_four = |held: &HeldOut| trial.name(held.chosen).starts_with("identical 4, ");
        assert!(chosen.iter().all(is_four), "three would stop every good run, five would save less: {}", trial.name(chosen[0].chosen));
        let tally = trial.held_out(&chosen, ALL);
        assert_eq!((tally.failed, tally.stopped, tally.false_stops, tally.saved_steps), (50, 50, 0, 250));
        let tally = trial.held_out(&trial.at_its_own_price(NATIVE, 0.01, Saved::Steps), NATIVE);
        assert_eq!((tally.false_stops, tally.saved_steps), (0, 250));
        let trial = some_against_others(&files);
        let rival = Other::GeminiCli.contender();
        let at = trial.priced(ALL, Saved::Steps).at(|fold| trial.price_of(&rival, ALL, fold));
        let tally = trial.held_out(&at, ALL);
        assert_eq!((tally.false_stops, tally.saved_steps), (0, 250), "for a rival that ends no good run");
    }

    /// Good runs that were ended at their fourth equal call: three is too early, and five, which costs as little, finds none of them.
    #[test]
    fn what_finds_the_stuck_runs_goes_before_what_saves_as_much() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let step = r#"{"kind":"call","tool":"sh","args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false}"#;
        let steps = [step; 4].join(",");
        for index in 0..40 {
            writeln!(
                file,
                r#"{{"run_id":"{index}","source":"s","task":"t{index}","success":true,"labels":{{"native_tool_calls":true,"openhands_stuck_in_loop":true}},"steps":[{steps}]}}"#
            )
            .unwrap();
        }
        let files = [file.path().to_owned()];
        let trial = Trial::of_thresholds(&files, Lengths::of(&files, 2), 2).unwrap();
        let tally = trial.held_out(&trial.cross_validate(), ALL);
        assert_eq!((tally.stuck, tally.stuck_found, tally.lost_steps), (40, 40, 0));
    }

    /// Failing tasks repeat one call that gives something else each time, which is no standstill; good ones are as long, and new throughout.
    #[test]
    fn for_a_rival_that_looks_at_calls_alone_the_loop_detector_is_taken() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for index in 0..40 {
            let success = index % 2 == 0;
            let step = |at: usize| {
                let args = if success { at } else { 0 };
                format!(
                    r#"{{"kind":"call","tool":"sh","args_hash":"{args}","result":"x{at}","result_hash":"{at}","result_len":2,"error":false}}"#
                )
            };
            let steps: Vec<String> = (0..8).map(step).collect();
            writeln!(file, r#"{{"run_id":"{index}","source":"s","task":"t{index}","success":{success},"steps":[{}]}}"#, steps.join(","))
                .unwrap();
        }
        let files = [file.path().to_owned()];
        let trial = some_against_others(&files);
        let rival = Other::Roo.contender();
        let at = trial.priced(ALL, Saved::Steps).at(|fold| trial.price_of(&rival, ALL, fold));
        assert!(at.iter().all(|held| trial.name(held.chosen).contains("loop 3 rounds")), "{}", trial.name(at[0].chosen));
        let tally = trial.held_out(&at, ALL);
        assert_eq!((tally.failed, tally.stopped, tally.false_stops, tally.saved_steps), (20, 20, 0, 100));
        let thresholds = Trial::of_thresholds(&files, Lengths::of(&files, 2), 2).unwrap();
        assert_eq!(thresholds.held_out(&thresholds.cross_validate(), ALL).stopped, 0, "it is no threshold");
    }
}
