//! `runguard demo`: the real service, on this machine, with traffic that walks into every trap.
//!
//! Nothing is made up but the conversations: the engine, the store, the server and the requests are those of `serve`. Each
//! conversation asks before each step and obeys; what it would have cost without a guard is added up from the same steps.

mod scenarios;
mod traffic;

use super::local::{Http, Service};
use super::serve::stop_signal;
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::Args;
use owo_colors::OwoColorize;
use runguard_core::money::NanoDollars;
use runguard_core::nearest;
use runguard_core::text::{grouped, times};
use runguard_core::{Span, Timestamp};
use runguard_engine::KeyRing;
use runguard_engine::clock::system_now;
use scenarios::SCENARIOS;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use traffic::{Door, Live, Mix, Plan, Reply, Stop, Tallies, Tally};

/// Decisions are kept for 30 days: older ones would be removed again.
const MOST_HISTORY_DAYS: u64 = 29;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard demo                                    a minute of traffic, a week of history, the dashboard
  runguard demo --exit                             the same, and it ends when the traffic does
  runguard demo --scenario handoff-cycle,healthy=5 --seconds 20
  runguard demo --seconds 3 --json --no-open       for scripts")]
pub(crate) struct Demo {
    /// How long traffic comes
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Requests a second, about
    #[arg(long, value_name = "REQUESTS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    rate: u64,
    /// Port on this machine; 0 takes any that is free
    #[arg(long, default_value_t = 8100)]
    port: u16,
    /// Folder for the data, which stays [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep the temporary folder
    #[arg(long)]
    keep: bool,
    /// The same seed, the same conversations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these scenarios, with their weights (see --list)
    #[arg(long, value_name = "NAME[=WEIGHT],…", value_delimiter = ',')]
    scenario: Vec<String>,
    /// List the scenarios, and end
    #[arg(long)]
    list: bool,
    /// Days of past traffic to write first; 0 for none
    #[arg(long, value_name = "LENGTH", default_value = "7d")]
    history: String,
    /// What one billed operation costs, in dollars
    #[arg(long, value_name = "DOLLARS", default_value = "0.01")]
    usd_per_operation: String,
    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
    /// Go on serving until Ctrl-C [default: on a terminal]
    #[arg(long, conflicts_with = "exit")]
    stay: bool,
    /// End when the traffic does [default: where the output is no terminal, or JSON]
    #[arg(long)]
    exit: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.list {
            return self.list();
        }
        let mix = self.mix()?;
        let days = self.days()?;
        let price = NanoDollars::parse(&self.usd_per_operation)
            .map_err(|error| Failure::Usage(format!("--usd-per-operation {}: {error}", self.usd_per_operation)))?;
        let folder = Folder::open(self.data.as_deref(), days)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let result = runtime.block_on(self.show(&folder, &mix, days, price));
        drop(runtime);
        if self.keep
            && let Some(kept) = folder.keep()
        {
            anstream::eprintln!("kept: {}", kept.display());
        }
        result
    }

    fn list(&self) -> Result<(), Failure> {
        let codes = |scenario: &scenarios::Scenario| -> Vec<&str> { scenario.reasons.iter().map(|reason| reason.code()).collect() };
        if self.json {
            let all: Vec<Value> = SCENARIOS
                .iter()
                .map(|scenario| json!({"name": scenario.name, "weight": scenario.weight, "about": scenario.about, "reasons": codes(scenario)}))
                .collect();
            return output::json(&json!({ "scenarios": all }));
        }
        // Where there is no room for both, what happens is read and the rest is left out.
        let has_room = output::terminal_columns().is_none_or(|columns| columns >= output::ROOM_FOR_WORDS);
        let headers = ["scenario", "weight", "what happens", "the guards say"];
        let mut table = output::table(if has_room { &headers } else { &headers[..3] });
        table.keep_whole(&[0, 1]);
        for scenario in SCENARIOS {
            let reasons = if scenario.is_healthy() { "nothing".to_owned() } else { codes(scenario).join(", ") };
            let weight = if scenario.weight == 0 { "if named".to_owned() } else { scenario.weight.to_string() };
            let words = has_room.then_some(reasons);
            table.add_row([scenario.name, &weight, scenario.about].map(Cell::new).into_iter().chain(words.map(Cell::new)));
        }
        output::show(&table)
    }

    fn mix(&self) -> Result<Mix, Failure> {
        if self.scenario.is_empty() {
            return Ok(traffic::default_mix());
        }
        let mut mix = Mix::new();
        for given in &self.scenario {
            let (name, weight) = given.split_once('=').map_or((given.as_str(), None), |(name, weight)| (name, Some(weight)));
            let name = name.trim();
            let known = SCENARIOS.iter().position(|scenario| scenario.name == name).ok_or_else(|| {
                let names = SCENARIOS.iter().map(|scenario| scenario.name);
                Failure::Usage(format!("--scenario: there is no scenario `{name}`; {}", nearest::hint(name, names)))
            })?;
            let weight = match weight {
                Some(text) => text.trim().parse::<u32>().ok().filter(|weight| *weight <= 1_000_000).ok_or_else(|| {
                    Failure::Usage(format!("--scenario {given}: a weight is a whole number from 0 to 1000000, as in {name}=5"))
                })?,
                None => SCENARIOS[known].weight,
            };
            if mix.iter().any(|(already, _)| *already == known) {
                return Err(Failure::Usage(format!("--scenario: `{name}` is there twice")));
            }
            mix.push((known, weight));
        }
        Ok(mix)
    }

    fn days(&self) -> Result<u64, Failure> {
        let span = Span::parse(&self.history).map_err(|problem| Failure::Usage(format!("--history: {problem}")))?;
        let days = span.as_millis().div_ceil(86_400_000);
        if days > MOST_HISTORY_DAYS {
            return Err(Failure::Usage(format!("--history {}: at most {MOST_HISTORY_DAYS}d, decisions are not kept longer", self.history)));
        }
        Ok(days)
    }

    async fn show(&self, folder: &Folder, mix: &Mix, days: u64, price: NanoDollars) -> Result<(), Failure> {
        let interrupted = Interrupt::listen();
        let service = Service::start(&traffic::settings(folder.path(), self.port, self.seconds, price), KeyRing::default())
            .await
            .map_err(|failure| failure.with_hint("Give another port with --port, or --port 0 for any"))?;
        let result = self.perform(&service, mix, days, price, &interrupted).await;
        service.stop().await;
        result
    }

    async fn perform(&self, service: &Service, mix: &Mix, days: u64, price: NanoDollars, interrupted: &Interrupt) -> Result<(), Failure> {
        let url = &service.url;
        self.say(&format!("RunGuard demo: {url}/"));
        let past = if days == 0 { None } else { Some(self.write_history(service, mix, days, interrupted).await?) };
        if !self.no_open {
            open_browser(url);
        }
        let plan = Plan::live(self.seed, self.seconds, self.rate, mix);
        let conversations = output::count(plan.len() as u64, "conversation");
        self.say(&format!("{conversations} in {} s, about {} a second", self.seconds, output::count(self.rate, "request")));
        let started = Instant::now();
        let tallies =
            self.send(plan, url, interrupted, price).await.map_err(|problem| Failure::Failed(format!("the demo stopped: {problem}")))?;
        let seconds = started.elapsed().as_secs_f64();
        let was_cut_short = interrupted.was_asked();
        self.tell(&Closing { url, tallies: &tallies, past: past.as_ref(), seconds, price }).await?;
        if was_cut_short {
            return Err(Failure::Cancelled);
        }
        let stays = self.stays();
        if !self.json {
            output::line(&next_steps(url, stays))?;
        }
        if stays {
            self.say(&format!("\n{url}/ stays until Ctrl-C"));
            interrupted.wait().await;
        }
        Ok(())
    }

    /// A person who watches wants to look around afterwards; a script wants its result.
    fn stays(&self) -> bool {
        self.stay || !(self.exit || self.json || output::terminal_columns().is_none())
    }

    async fn write_history(&self, service: &Service, mix: &Mix, days: u64, interrupted: &Interrupt) -> Result<Tallies, Failure> {
        let plan = Plan::history(self.seed, days, mix);
        let started = Instant::now();
        let base = Timestamp::from_millis(system_now().as_millis() - days as i64 * 86_400_000);
        let tallies = tokio::select! {
            written = traffic::replay(&plan, &service.engine, base) => written.map_err(Failure::Failed)?,
            () = interrupted.wait() => return Err(Failure::Cancelled),
        };
        let total = tallies.total();
        self.say(&format!(
            "{} of history: {}, {}, {} blocked, written in {:.1} s",
            output::count(days, "day"),
            output::count(total.conversations, "conversation"),
            output::count(total.asked, "decision"),
            grouped(total.blocked),
            started.elapsed().as_secs_f64()
        ));
        Ok(tallies)
    }

    /// Sends the traffic, on threads of its own, while a line on the terminal says how it goes.
    async fn send(&self, plan: Plan, url: &str, interrupted: &Interrupt, price: NanoDollars) -> Result<Tallies, String> {
        let workers = (self.rate as usize / 50).clamp(4, 32);
        let url = url.to_owned();
        let live = Arc::new(Live::default());
        let stop = interrupted.flag.clone();
        let shared = live.clone();
        let mut driving = tokio::task::spawn_blocking(move || traffic::drive(&plan, workers, &Http::new(&url)?, &shared, &stop));
        let moves = !self.json && std::io::stdout().is_terminal();
        let mut screen = Screen { moves, price, seen: BTreeSet::new() };
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        let tallies = loop {
            tokio::select! {
                ended = &mut driving => break ended.map_err(|error| error.to_string())?,
                _ = tick.tick(), if !self.json => screen.show(&live),
            }
        };
        if !self.json {
            screen.end(&live);
        }
        tallies
    }

    async fn tell(&self, told: &Closing<'_>) -> Result<(), Failure> {
        let url = told.url.to_owned();
        let insights = tokio::task::spawn_blocking(move || insights(&url)).await.unwrap_or_default();
        if self.json {
            output::json(&told.to_json(self, &insights))?;
        } else {
            told.print(&insights)?;
        }
        let stopped = told.tallies.total().false_stops;
        if stopped > 0 {
            return Err(Failure::Failed(format!(
                "{stopped} healthy conversations were stopped; that must not happen: please report it with --seed {}",
                self.seed
            )));
        }
        Ok(())
    }

    /// For people: beside the JSON, if that was asked for.
    fn say(&self, text: &str) {
        if self.json {
            output::note(text);
        } else {
            // Who does not read the output any more hears of it where it matters: with the sums.
            let _ = output::prose(text);
        }
    }
}

/// What is seen of the traffic while it comes: each kind of stop when it first happens, on a terminal some of the others too, and there
/// a line that counts.
struct Screen {
    /// The output is a terminal, on which a line can be drawn again.
    moves: bool,
    price: NanoDollars,
    seen: BTreeSet<&'static str>,
}

impl Screen {
    fn show(&mut self, live: &Live) {
        let mut shown = 0;
        for stop in live.take_stops() {
            let is_new = self.seen.insert(stop.reason.code());
            if is_new || (self.moves && shown == 0) {
                shown += 1;
                self.clear();
                anstream::println!("{}", self.line(&stop));
            }
        }
        if self.moves {
            let [asked, blocked, saved] = [&live.asked, &live.blocked, &live.saved_operations].map(|count| count.load(Ordering::Relaxed));
            let (asked, saved_usd) = (output::count(asked, "decision"), dollars(self.price, saved));
            print!("\r\x1b[K{asked}, {blocked} blocked, {} saved ({saved_usd})", output::count(saved, "operation"));
            let _ = std::io::stdout().flush();
        }
    }

    fn end(&mut self, live: &Live) {
        self.show(live);
        self.clear();
    }

    fn clear(&self) {
        if self.moves {
            print!("\r\x1b[K");
        }
    }

    fn line(&self, stop: &Stop) -> String {
        let (session, reason) = (output::cut(&stop.session, 20), output::cut(stop.reason.code(), 31));
        let saved = format!("{} saved", dollars(self.price, stop.saved_operations));
        format!("{}  {session:<20}  {reason:<31}  {}", "blocked".red(), saved.green())
    }
}

/// What there is to do with a demo, and after it.
fn next_steps(url: &str, stays: bool) -> String {
    let ask = format!("curl -s {url}/guard/ai-task-retry \\\n      -d '{{\"session_id\":\"me\",\"task_name\":\"classify\"}}'");
    let here = [
        (format!("{url}/"), "the dashboard, with all of it"),
        (format!("runguard decisions --url {url}"), "what was decided"),
        (format!("runguard insights --url {url}"), "what to change, and what it saves"),
        (ask, "ask a guard yourself, three times"),
    ];
    let own = [
        ("runguard serve".to_owned(), "a service of your own, on this machine"),
        ("runguard run --max-usd 1 -- python agent.py".to_owned(), "a cap on what your program spends"),
    ];
    let steps: Vec<String> = here
        .into_iter()
        .filter(|_| stays)
        .chain(own)
        .map(|(command, why)| format!("  {}\n    {command}", format!("{why}:").dimmed()))
        .collect();
    format!("\n{}\n{}", "What next:".bold(), steps.join("\n"))
}

/// Where the data lies.
enum Folder {
    Given(PathBuf),
    /// Removed when it goes out of scope.
    Temporary(tempfile::TempDir),
}

impl Folder {
    fn open(given: Option<&Path>, history_days: u64) -> Result<Self, Failure> {
        let Some(path) = given else {
            let temporary = tempfile::Builder::new().prefix("runguard-demo-").tempdir();
            return temporary.map(Self::Temporary).map_err(|error| {
                Failure::Failed(format!("cannot make a temporary folder: {error}. Give one that can be written with --data"))
            });
        };
        // The past cannot be written behind what is there already.
        if history_days > 0 && path.join("runguard.db").exists() {
            return Err(Failure::Usage(format!(
                "{} has decisions already, and a history can only be written before them. Give an empty folder, or --history 0",
                path.display()
            )));
        }
        Ok(Self::Given(path.to_owned()))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }

    /// Where it stays.
    fn keep(self) -> Option<PathBuf> {
        match self {
            Self::Given(_) => None,
            Self::Temporary(folder) => Some(folder.keep()),
        }
    }
}

/// Ctrl-C and SIGTERM, for threads and for tasks.
struct Interrupt {
    flag: Arc<AtomicBool>,
    asked: watch::Receiver<bool>,
    listening: JoinHandle<()>,
}

impl Interrupt {
    fn listen() -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let (sender, asked) = watch::channel(false);
        let raised = flag.clone();
        let stop = stop_signal();
        let listening = tokio::spawn(async move {
            stop.await;
            raised.store(true, Ordering::Relaxed);
            let _ = sender.send(true);
        });
        Self { flag, asked, listening }
    }

    fn was_asked(&self) -> bool {
        *self.asked.borrow()
    }

    async fn wait(&self) {
        let mut asked = self.asked.clone();
        let _ = asked.wait_for(|asked| *asked).await;
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Door for Http {
    fn send(&self, path: &str, body: &str) -> Result<Reply, String> {
        let request = self.client.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        let (status, answer) = self.ask(request.body(body.to_owned()))?;
        Reply::read(status, &answer).map_err(|problem| format!("{path}: {problem}"))
    }
}

/// The three strongest insights, once the log has been looked at; none if the service has no such route.
fn insights(url: &str) -> Vec<Value> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let Ok(door) = Http::new(url) else { return Vec::new() };
    let started = Instant::now();
    loop {
        let Ok((200, body)) = door.ask(door.client.get(format!("{url}/v1/insights"))) else { return Vec::new() };
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if answer["behind_rows"].as_u64().unwrap_or(0) == 0 || started.elapsed() > PATIENCE {
            return answer["insights"].as_array().map(|all| all.iter().take(3).cloned().collect()).unwrap_or_default();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Everything the end says.
struct Closing<'a> {
    url: &'a str,
    tallies: &'a Tallies,
    past: Option<&'a Tallies>,
    seconds: f64,
    price: NanoDollars,
}

impl Closing<'_> {
    fn rows(&self) -> impl Iterator<Item = (&'static str, &Tally)> {
        SCENARIOS.iter().zip(&self.tallies.0).map(|(scenario, tally)| (scenario.name, tally)).filter(|(_, tally)| tally.asked > 0)
    }

    fn print(&self, insights: &[Value]) -> Result<(), Failure> {
        let mut table = output::table(&["scenario", "sessions", "asked", "blocked", "without", "with", "saved", "%", "$", "false"]);
        let total = self.tallies.total();
        for (name, tally) in self.rows().chain([("all", &total)]) {
            let saved = tally.saved_operations();
            let numbers = [tally.conversations, tally.asked, tally.blocked, tally.unguarded_operations, tally.guarded_operations, saved];
            let cells = numbers.map(|number| number.to_string()).into_iter().chain([
                percent(saved, tally.unguarded_operations),
                dollars(self.price, saved),
                tally.false_stops.to_string(),
            ]);
            let cells = cells.map(|text| Cell::new(text).right());
            table.add_row(std::iter::once(Cell::new(name)).chain(cells));
        }
        table.keep_whole(&[0, 8]);
        output::show(&table)?;
        output::prose(&format!(
            "Without a guard and with it: billed operations (model and upstream calls) of the same sessions, at {} each. False: healthy sessions that were stopped.",
            self.price
        ))?;
        if total.would_block > 0 {
            output::prose(&format!("{} more were seen by rules that only watch (mode observe) and let pass.", total.would_block))?;
        }
        if total.trips > 0 {
            output::prose(&format!(
                "{}: the circuit opened {}, {} tested it, {} were turned away although it was back.",
                scenarios::OUTAGE_ENDPOINT,
                times(total.trips),
                output::count(total.probes, "probe"),
                output::count(total.turned_away, "call")
            ))?;
        }
        for insight in insights {
            output::prose(&format!("\n* {}\n  {}", output::text(&insight["title"]), output::text(&insight["advice"])))?;
        }
        Ok(())
    }

    fn to_json(&self, demo: &Demo, insights: &[Value]) -> Value {
        let of = |tally: &Tally| {
            let saved = tally.saved_operations();
            json!({
                "conversations": tally.conversations,
                "asked": tally.asked,
                "allowed": tally.allowed,
                "would_block": tally.would_block,
                "blocked": tally.blocked,
                "told": tally.told,
                "operations_without_guard": tally.unguarded_operations,
                "operations_with_guard": tally.guarded_operations,
                "operations_saved": saved,
                "percent_saved": share(saved, tally.unguarded_operations),
                "usd_saved": self.price.checked_mul(saved).unwrap_or(NanoDollars::MAX).as_dollars(),
                "false_stops": tally.false_stops,
                "turned_away": tally.turned_away,
                "trips": tally.trips,
                "probes": tally.probes,
                "reasons": tally.reasons,
            })
        };
        let scenarios: serde_json::Map<String, Value> = self.rows().map(|(name, tally)| (name.to_owned(), of(tally))).collect();
        json!({
            "url": self.url,
            "seed": demo.seed,
            "seconds": self.seconds,
            "rate": demo.rate,
            "usd_per_operation": self.price.as_dollars(),
            "scenarios": scenarios,
            "total": of(&self.tallies.total()),
            "history": self.past.map(|past| of(&past.total())),
            "insights": insights,
        })
    }
}

fn share(part: u64, whole: u64) -> f64 {
    (part * 1000).checked_div(whole).unwrap_or(0) as f64 / 10.0
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", share(part, whole))
}

fn dollars(price: NanoDollars, operations: u64) -> String {
    price.checked_mul(operations).map_or_else(|| "a lot".to_owned(), |sum| format!("${:.2}", sum.as_dollars()))
}

/// Only where a person sits before a desktop.
fn open_browser(url: &str) {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if set("CI") || set("SSH_CONNECTION") || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return;
    }
    let program = if cfg!(target_os = "macos") {
        "open"
    } else if cfg!(unix) && (set("DISPLAY") || set("WAYLAND_DISPLAY")) {
        "xdg-open"
    } else {
        return;
    };
    let quiet = std::process::Stdio::null;
    // Without one there is the address to click on.
    let _ = std::process::Command::new(program).arg(format!("{url}/")).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
}
