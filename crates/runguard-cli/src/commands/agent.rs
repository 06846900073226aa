//! `runguard agent`: one run of the loop, or a chat, in the terminal.

pub(crate) mod serve;
pub(crate) mod sessions;
mod terminal;

use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use runguard_agent::agent::{BuildError, Interrupted};
use runguard_agent::demo::{self, DEMOS, Demo};
use runguard_agent::session::Recovered;
use runguard_agent::session::disk::{SessionError, SessionFolder};
use runguard_agent::settings::{SETTINGS_FILE, SessionSettings, SettingsError};
use runguard_agent::{AgentState, Event, Input, Observer, Report, RunOptions, Session, Settings, Stop};
use runguard_core::money::NanoDollars;
use runguard_core::time::Span;
use std::io::{BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terminal::{Shared, Show, TICK, Terminal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Where settings are looked for when none are named.
/// The longest prompt that is read from a pipe.
const MOST_PROMPT_BYTES: u64 = 1024 * 1024;
/// What is left running when all is said (a tool that does not listen) is waited for this long.
const TEARDOWN: Duration = Duration::from_secs(2);

/// Run an agent that cannot run away: in the terminal, or behind HTTP
///
/// The model works with its tools until it is done, and never past its limits: steps, time, tokens and dollars. A step that
/// comes again and again is told to the model, then ends the run. Every end says why, what it cost and how to go on.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub(crate) struct Agent {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// What the agent is to do [on a terminal without it: a chat; from a pipe: what comes in]
    prompt: Option<String>,
    /// Settings: the model, its tools and the limits [default: agent.toml, if there is one]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Go on with a session, the last one when no ID (or beginning of one) is given; with its own settings unless --config names others
    #[arg(long, short, value_name = "ID", num_args = 0..=1, default_missing_value = LAST, conflicts_with_all = ["demo", "list_demos"])]
    resume: Option<String>,
    /// Watch a scripted model walk into a trap; needs no key
    #[arg(long, value_name = "NAME")]
    demo: Option<String>,
    /// List the demos
    #[arg(long)]
    list_demos: bool,
    /// The most the session may cost; 0 is no limit
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    budget: Option<f64>,
    /// The most tokens, in and out; 0 is no limit
    #[arg(long, value_name = "N")]
    token_budget: Option<u64>,
    /// The most questions to the model
    #[arg(long, value_name = "N")]
    max_steps: Option<u32>,
    /// The longest it may work: 90s, 15m, 1h; 0 is no limit
    #[arg(long, value_name = "SPAN", value_parser = Span::parse)]
    timeout: Option<Span>,
    /// Another model than the settings name
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The folder files are read and written in; nothing outside it is touched
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Let the model run shell commands (with all your rights, not only within --root)
    #[arg(long)]
    allow_shell: bool,
    /// Take answers in one piece
    #[arg(long)]
    no_stream: bool,
    /// Every event as a line of JSON on the standard output, and nothing else there
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Only the answer
    #[arg(long, short)]
    quiet: bool,
    /// With --resume: run tools again that were running when the process was killed (else the model is told, and decides)
    #[arg(long, requires = "resume")]
    rerun_interrupted: bool,
    /// The folder of the sessions [default: runguard-sessions]
    #[arg(long, value_name = "DIR")]
    sessions: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve runs over HTTP, with server-sent events
    Serve(serve::Serve),
    /// List the sessions, or show one
    Sessions(sessions::Sessions),
}

const LAST: &str = "last";

const AFTER_HELP: &str = "\
Examples:
  A model that loops, and the guard that stops it; needs no key:
    runguard agent --demo loop
  One task, streamed; then a chat, which Ctrl-D ends:
    runguard agent --config agents/ollama.toml \"summarise docs/\"
    runguard agent --config agents/openai.toml
  The prompt from a pipe, the answer to a file:
    git diff | runguard agent -q > review.txt
  Go on with the last session, with more to spend; go on with another, and say something:
    runguard agent --resume --budget 2
    runguard agent --resume ID \"now the tests\"
  What there is to go on with, and what was said:
    runguard agent sessions
    runguard agent sessions show ID
  Behind HTTP, with server-sent events:
    runguard agent serve --config agents/openai.toml

Ctrl-C ends a run and saves it; a second one ends at once.

Exit codes: 0 completed, 1 ended by a guard, a limit or the provider, 2 wrong usage or settings, 3 no such session, 130 cancelled";

fn dollars(text: &str) -> Result<f64, String> {
    NanoDollars::parse(text).map(NanoDollars::as_dollars).map_err(|problem| problem.to_string())
}

/// What a run is made of, whichever way it was asked for.
struct Plan {
    agent: runguard_agent::Agent,
    /// `None`: opened with the first prompt, so that a chat that says nothing leaves nothing.
    session: Option<Session>,
    folder: Option<SessionFolder>,
    recovered: Recovered,
    demo: Option<Demo>,
    input: Option<Input>,
}

impl Agent {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(verb) = self.verb {
            return match verb {
                Verb::Serve(serve) => serve.run(),
                Verb::Sessions(sessions) => sessions.run(),
            };
        }
        if self.list_demos {
            return DEMOS.iter().try_for_each(|(name, what)| output::line(&format!("{name:<10} {what}")));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(self.work());
        runtime.shutdown_timeout(TEARDOWN);
        result
    }

    async fn work(self) -> Result<(), Failure> {
        let cancel = CancellationToken::new();
        let prompt = self.prompt()?;
        let settings = self.plan_settings()?;
        let terminal = Shared::new(Terminal::new(self.show(), settings.settings.limits.clone(), cancel.clone()));
        listen_for_signals(&cancel, &terminal)?;
        let mut plan = tokio::select! {
            plan = self.plan(settings, prompt) => plan?,
            () = cancel.cancelled() => return Err(Failure::Cancelled),
        };
        let result = self.talk(&mut plan, &cancel, &terminal).await;
        // MCP servers that do not end when asked are not waited for.
        let _ = tokio::time::timeout(TEARDOWN, plan.agent.close()).await;
        result
    }

    fn show(&self) -> Show {
        match (self.json, self.quiet) {
            (true, _) => Show::Json,
            (false, true) => Show::Quiet,
            (false, false) => Show::Everything,
        }
    }

    /// What the person said, on the command line or through a pipe.
    fn prompt(&self) -> Result<Option<String>, Failure> {
        // `--resume "go on"`: what has a blank in it is no id.
        let in_place_of_id = self.resume.as_ref().filter(|id| id.contains(char::is_whitespace));
        let prompt = match (&self.prompt, in_place_of_id) {
            (Some(_), Some(text)) => {
                return Err(Failure::Usage(format!(
                    "'{}' is no id of a session; --resume without one takes the last",
                    output::clean(text)
                )));
            }
            (Some(prompt), None) | (None, Some(prompt)) => Some(prompt.clone()),
            (None, None) if self.resume.is_some() || self.demo.is_some() || std::io::stdin().is_terminal() => None,
            (None, None) => Some(from_pipe(std::io::stdin().lock())?),
        };
        match prompt {
            Some(prompt) if prompt.trim().is_empty() => Err(Failure::Usage("the prompt is empty: say what the agent is to do".to_owned())),
            prompt => Ok(prompt),
        }
    }
}

/// Settings, and the session they go on with.
struct Planned {
    settings: Settings,
    folder: Option<SessionFolder>,
    session: Option<(Session, Recovered)>,
    demo: Option<Demo>,
}

impl Agent {
    fn plan_settings(&self) -> Result<Planned, Failure> {
        let mut planned = if let Some(name) = &self.demo {
            let demo = demo::demo(name).ok_or_else(|| {
                let names: Vec<&str> = DEMOS.iter().map(|(name, _)| *name).collect();
                Failure::Usage(format!("there is no demo '{}'; there are: {}", output::clean(name), names.join(", ")))
            })?;
            Planned { settings: demo.settings.clone(), folder: None, session: None, demo: Some(demo) }
        } else if let Some(id) = &self.resume {
            self.resumed(id)?
        } else {
            let settings = configured(self.config.as_deref())?.ok_or_else(no_settings)?;
            Planned { settings, folder: None, session: None, demo: None }
        };
        self.override_settings(&mut planned.settings);
        planned.settings.check().map_err(settings_failure)?;
        // The demos leave nothing behind unless they are told to.
        if planned.folder.is_none() && (planned.demo.is_none() || self.sessions.is_some()) {
            planned.folder = Some(SessionFolder::open(&planned.settings.sessions).map_err(session_failure)?);
        }
        Ok(planned)
    }

    fn resumed(&self, id: &str) -> Result<Planned, Failure> {
        let configured = configured(self.config.as_deref())?;
        let folder = session_settings(self.sessions.as_deref(), configured.as_ref());
        if !folder.folder.is_dir() {
            let text = format!("there are no sessions in {}; --sessions names another folder", folder.folder.display());
            return Err(Failure::NotFound(text));
        }
        let folder = SessionFolder::open(&folder).map_err(session_failure)?;
        let id = if id.contains(char::is_whitespace) { LAST } else { id };
        let loaded = folder.resume(id).map_err(session_failure)?;
        let settings = configured.filter(|_| self.config.is_some()).unwrap_or(loaded.settings);
        let demo = demo::demo_of(&settings);
        Ok(Planned { settings, folder: Some(folder), session: Some((loaded.session, loaded.recovered)), demo })
    }

    fn override_settings(&self, settings: &mut Settings) {
        let limits = &mut settings.limits;
        limits.cost_limit = self.budget.unwrap_or(limits.cost_limit);
        limits.token_budget = self.token_budget.unwrap_or(limits.token_budget);
        limits.max_steps = self.max_steps.unwrap_or(limits.max_steps);
        limits.timeout = self.timeout.unwrap_or(limits.timeout);
        if let Some(model) = &self.model {
            settings.provider.model.clone_from(model);
            // It was the price of the other model.
            settings.provider.price_as = None;
        }
        if let Some(root) = &self.root {
            settings.tools.root.clone_from(root);
        }
        if self.allow_shell && !settings.tools.allow.iter().any(|tool| tool == "shell") {
            settings.tools.allow.push("shell".to_owned());
        }
        if self.no_stream {
            settings.provider.streaming = false;
        }
        if let Some(folder) = &self.sessions {
            settings.sessions.folder.clone_from(folder);
        }
        // The session may be taken up again in another folder, and must work in the same place.
        make_absolute(&mut settings.tools.root);
        if let Some(script) = settings.provider.script.as_mut().filter(|script| demo::name_of(script).is_none()) {
            make_absolute(script);
        }
    }

    async fn plan(&self, planned: Planned, prompt: Option<String>) -> Result<Plan, Failure> {
        let Planned { settings, folder, session, mut demo } = planned;
        let agent = match &mut demo {
            Some(demo) => runguard_agent::Agent::with_parts(settings, demo.provider.clone(), demo.tools.clone()).map_err(build_failure)?,
            None => runguard_agent::Agent::build(settings).await.map_err(build_failure)?,
        };
        let input = match (prompt, &session, &demo) {
            (Some(prompt), _, _) => Some(Input::Prompt(prompt)),
            // Nothing is left to do in it: the person is asked, if there is one.
            (None, Some((session, _)), _) if is_turn_over(session.state()) && std::io::stdin().is_terminal() => None,
            (None, Some(_), _) => Some(Input::Continue),
            (None, None, Some(demo)) => Some(Input::Prompt(demo.prompt.clone())),
            (None, None, None) => None,
        };
        let (session, recovered) = session.map_or((None, Recovered::default()), |(session, recovered)| (Some(session), recovered));
        Ok(Plan { agent, session, folder, recovered, demo, input })
    }

    /// Runs once, or for as long as the person goes on.
    async fn talk(&self, plan: &mut Plan, cancel: &CancellationToken, terminal: &Shared) -> Result<(), Failure> {
        let interactive = plan.input.is_none();
        let interrupted = if self.rerun_interrupted { Interrupted::RunAgain } else { Interrupted::Tell };
        let options = RunOptions { interactive, interrupted };
        if let Some(demo) = &plan.demo {
            let mut terminal = terminal.lock();
            terminal.say(demo.explanation);
            if let Some(Input::Prompt(prompt)) = &plan.input {
                terminal.say(&format!("\n> {}\n", output::clean(prompt)));
            }
        }
        if let Some(session) = &plan.session {
            terminal.lock().carry_on(session.counters());
        }
        self.tell_recovered(&plan.recovered, terminal);
        let mut lines = None;
        let mut input = plan.input.take();
        let mut last_report = None;
        loop {
            let said = match input.take() {
                Some(input) => input,
                None => match next_line(lines.get_or_insert_with(typed_lines), cancel, terminal).await {
                    Some(line) => Input::Prompt(line),
                    None => break,
                },
            };
            let session = opened(&mut plan.session, plan.folder.as_ref(), &plan.agent)?;
            let report = run_once(&plan.agent, session, said, options, cancel, terminal).await;
            let is_over = !interactive || report.state != AgentState::WaitingForInput;
            last_report = Some(report);
            if is_over {
                break;
            }
        }
        self.end(plan, last_report, cancel, terminal)
    }

    fn tell_recovered(&self, recovered: &Recovered, terminal: &Shared) {
        let mut watcher = terminal.clone();
        let mut told = recovered.clone();
        if self.rerun_interrupted {
            for tool in std::mem::take(&mut told.interrupted) {
                watcher.event(Event::Notice { message: format!("{tool} was running when the run ended. It is run again.") });
            }
        }
        told.notices().into_iter().for_each(|notice| watcher.event(notice));
    }

    fn end(&self, plan: &Plan, report: Option<Report>, cancel: &CancellationToken, terminal: &Shared) -> Result<(), Failure> {
        let Some(report) = report else {
            terminal.lock().pause();
            return if cancel.is_cancelled() { Err(Failure::Cancelled) } else { Ok(()) };
        };
        let mut terminal = terminal.lock();
        let resume = plan.folder.as_ref().map(|_| resume_command(&report, self.sessions.as_deref()));
        terminal.finish(&report, resume.as_deref());
        if let Some(demo) = &plan.demo {
            terminal.say(&format!("\n{}", demo.closing(&report)));
        }
        if terminal.output_closed() {
            return Err(Failure::OutputClosed);
        }
        match report.state {
            AgentState::WaitingForInput if cancel.is_cancelled() => Err(Failure::Cancelled),
            AgentState::Completed | AgentState::WaitingForInput => Ok(()),
            AgentState::Cancelled => Err(Failure::Cancelled),
            AgentState::TimedOut
            | AgentState::MaxSteps
            | AgentState::BudgetExceeded
            | AgentState::Error
            | AgentState::Running
            | AgentState::WaitingForTool => Err(Failure::AlreadyTold),
        }
    }
}

fn make_absolute(path: &mut PathBuf) {
    if let Ok(whole) = std::path::absolute(&*path) {
        *path = whole;
    }
}

const fn is_turn_over(state: AgentState) -> bool {
    matches!(state, AgentState::Completed | AgentState::WaitingForInput)
}

/// The session; opened when there is none.
fn opened<'a>(
    session: &'a mut Option<Session>,
    folder: Option<&SessionFolder>,
    agent: &runguard_agent::Agent,
) -> Result<&'a mut Session, Failure> {
    let fresh = match (&session, folder) {
        (Some(_), _) => None,
        (None, Some(folder)) => Some(folder.create(agent.settings()).map_err(session_failure)?),
        (None, None) => Some(Session::in_memory("demo")),
    };
    if fresh.is_some() {
        *session = fresh;
    }
    session.as_mut().ok_or_else(|| Failure::Failed("the session could not be opened".to_owned()))
}

/// The command that goes on, with the limit that ended it raised to twice what it is. Empty when there is nothing to go on with.
fn resume_command(report: &Report, folder: Option<&Path>) -> String {
    let further = match &report.stop {
        Stop::Completed => return String::new(),
        Stop::CostLimit { limit, .. } => format!(" --budget {}", limit.as_dollars() * 2.0),
        Stop::TokenBudget { limit, .. } => format!(" --token-budget {}", limit.saturating_mul(2)),
        Stop::MaxSteps { limit } => format!(" --max-steps {}", limit.saturating_mul(2)),
        Stop::TimedOut { limit_ms } => format!(" --timeout {}", Span::from_millis(limit_ms.saturating_mul(2))),
        Stop::WaitingForInput | Stop::Repetition { .. } | Stop::Cycle { .. } | Stop::Stalled { .. } => " \"…\"".to_owned(),
        Stop::Cancelled | Stop::Provider { .. } | Stop::NotSaved => String::new(),
    };
    let place = folder.map(|folder| format!(" --sessions {}", folder.display())).unwrap_or_default();
    format!("runguard agent --resume {}{place}{further}", report.session)
}

/// One run, with the status line looked after beside it.
async fn run_once(
    agent: &runguard_agent::Agent,
    session: &mut Session,
    input: Input,
    options: RunOptions,
    cancel: &CancellationToken,
    terminal: &Shared,
) -> Report {
    let mut watcher = terminal.clone();
    terminal.lock().begin();
    let run = agent.run(session, input, options, cancel, &mut watcher);
    tokio::pin!(run);
    let mut clock = tokio::time::interval(TICK);
    let report = loop {
        tokio::select! {
            report = &mut run => break report,
            _ = clock.tick() => terminal.lock().tick(),
        }
    };
    terminal.lock().pause();
    report
}

/// Asks the person. `None`: there is nothing further to say (Ctrl-D), or no time to (Ctrl-C).
async fn next_line(lines: &mut mpsc::Receiver<String>, cancel: &CancellationToken, terminal: &Shared) -> Option<String> {
    loop {
        terminal.lock().ask("> ");
        let line = tokio::select! {
            line = lines.recv() => line,
            () = cancel.cancelled() => None,
        };
        match line {
            Some(line) if line.trim().is_empty() => {}
            Some(line) => return Some(line),
            None => {
                terminal.lock().leave();
                return None;
            }
        }
    }
}

/// What is typed. On a thread of its own: reading a terminal cannot be taken back, and must not hold up the end.
fn typed_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn from_pipe(pipe: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    pipe.take(MOST_PROMPT_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|problem| Failure::Usage(format!("cannot read the prompt from the standard input: {problem}")))?;
    if text.len() as u64 > MOST_PROMPT_BYTES {
        return Err(Failure::Usage(format!(
            "the prompt is longer than {MOST_PROMPT_BYTES} bytes: put it into a file, and let the agent read that"
        )));
    }
    Ok(text)
}

/// The first signal cancels, and the run ends on its own; the second does not wait for it.
fn listen_for_signals(cancel: &CancellationToken, terminal: &Shared) -> Result<(), Failure> {
    let (cancel, terminal) = (cancel.clone(), terminal.clone());
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        signals.next().await;
        cancel.cancel();
        signals.next().await;
        terminal.wipe_if_free();
        std::process::exit(130);
    });
    Ok(())
}

struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// The settings of the file that is named, or of the one that is there.
fn configured(file: Option<&Path>) -> Result<Option<Settings>, Failure> {
    let file = match file {
        Some(file) => file,
        None if Path::new(SETTINGS_FILE).is_file() => Path::new(SETTINGS_FILE),
        None => return Ok(None),
    };
    Settings::load(file).map(Some).map_err(settings_failure)
}

/// Where the sessions are: as told, as set, as usual.
fn session_settings(folder: Option<&Path>, settings: Option<&Settings>) -> SessionSettings {
    let mut sessions = settings.map_or_else(SessionSettings::default, |settings| settings.sessions.clone());
    if let Some(folder) = folder {
        folder.clone_into(&mut sessions.folder);
    }
    sessions
}

fn no_settings() -> Failure {
    let mut text = format!("no settings: there is no {SETTINGS_FILE} here, and --config names none. Ways to go on:");
    let samples = std::fs::read_dir("agents").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut samples: Vec<PathBuf> = samples.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    samples.sort();
    for sample in &samples {
        text.push_str(&format!("\n  runguard agent --config {} \"…\"", sample.display()));
    }
    if samples.is_empty() {
        text.push_str("\n  runguard agent --config FILE \"…\"     samples are in the folder agents/ of the project");
    }
    text.push_str("\n  runguard agent --demo loop              needs no key and no settings");
    Failure::Usage(text)
}

fn settings_failure(error: SettingsError) -> Failure {
    Failure::Usage(error.to_string())
}

fn build_failure(error: BuildError) -> Failure {
    match error {
        BuildError::Settings(_) | BuildError::Provider(_) | BuildError::Price(_) | BuildError::Tool(_) | BuildError::BuiltIn { .. } => {
            Failure::Usage(error.to_string())
        }
        BuildError::Mcp { .. } => Failure::Failed(error.to_string()),
    }
}

fn session_failure(error: SessionError) -> Failure {
    match error {
        SessionError::Unknown { .. } | SessionError::BadId { .. } | SessionError::Ambiguous { .. } => Failure::NotFound(error.to_string()),
        SessionError::Io { .. }
        | SessionError::InUse { .. }
        | SessionError::NeverBegan { .. }
        | SessionError::Damaged { .. }
        | SessionError::Version { .. }
        | SessionError::Settings { .. } => Failure::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_from_a_pipe_has_a_bound() {
        let most = MOST_PROMPT_BYTES as usize;
        assert_eq!(from_pipe("x".repeat(most).as_bytes()).unwrap().len(), most);
        assert!(matches!(from_pipe("x".repeat(most + 1).as_bytes()), Err(Failure::Usage(_))));
        assert!(matches!(from_pipe(&b"\xff"[..]), Err(Failure::Usage(_))));
    }

    #[test]
    fn the_command_that_goes_on_raises_what_ended_it() {
        let limit = NanoDollars::from_dollars(0.25).unwrap();
        let command = |stop| {
            let report = Report {
                session: "20260101-abc".to_owned(),
                state: AgentState::Error,
                stop,
                message: String::new(),
                how_to_resume: String::new(),
                text: String::new(),
                steps: 1,
                input_tokens: 1,
                output_tokens: 1,
                cost: limit,
                estimated: false,
                tool_runs: 0,
                elapsed_ms: 1,
            };
            resume_command(&report, Some(Path::new("kept")))
        };
        let begin = "runguard agent --resume 20260101-abc --sessions kept";
        assert_eq!(command(Stop::CostLimit { spent: limit, limit }), format!("{begin} --budget 0.5"));
        assert_eq!(command(Stop::TokenBudget { spent: 7, limit: 5 }), format!("{begin} --token-budget 10"));
        assert_eq!(command(Stop::TimedOut { limit_ms: 90_000 }), format!("{begin} --timeout 3m"));
        assert_eq!(command(Stop::Repetition { repeats: 3 }), format!("{begin} \"…\""));
        assert_eq!(command(Stop::Cancelled), begin);
        assert_eq!(command(Stop::Completed), "");
    }
}
