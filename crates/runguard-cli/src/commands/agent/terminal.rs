//! What a person sees of a run.
//!
//! The answer goes to the standard output and everything else to the other stream, so that `runguard agent … > answer.txt`
//! holds the answer. On a terminal both share one cursor, and the status line must never be caught between two words: it is
//! drawn only where a line begins, wiped before anything else is written, and comes back when the stream has been silent for
//! a moment. Carriage return and "clear to the end of the line" are all it needs; nothing is scrolled or moved.
//!
//! What the model and the tools say is data. No byte of it reaches the terminal that could steer it.

use crate::output;
use owo_colors::OwoColorize;
use runguard_agent::event::{GuardAction, GuardEvent, Spent, StreamChunk};
use runguard_agent::message::ToolCall;
use runguard_agent::settings::Limits;
use runguard_agent::{AgentState, Event, Observer, Report};
use runguard_core::money::NanoDollars;
use runguard_core::shown::steers;
use runguard_core::text::grouped;
use serde_json::Value;
use std::io::{IsTerminal, Stderr, Stdout, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long the stream must be silent before the status comes back: shorter, and it would flicker between two words.
const SILENCE: Duration = Duration::from_millis(250);
/// How often the status is looked after.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// What is shown of one argument of a call, and of all of them.
const ARGUMENT_CHARS: usize = 60;
const ARGUMENTS_CHARS: usize = 160;
/// What is shown of a message of a guard, a provider or a tool that failed.
const MESSAGE_CHARS: usize = 600;
const WIPE: &str = "\r\x1b[K";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    Everything,
    /// The answer; beside it only how the run ended, if it did not end well.
    Quiet,
    /// Every event as a line of JSON on the standard output.
    Json,
}

/// What the streams can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    /// Both streams are one screen with one cursor.
    pub(crate) shared: bool,
    /// The other stream is a screen on which a line can be drawn again.
    pub(crate) redraw: bool,
    pub(crate) colour: bool,
    /// `None`: asked of the terminal whenever the status is drawn.
    pub(crate) columns: Option<usize>,
}

/// Whether both write into the same pipe or file, as behind `2>&1`.
#[cfg(unix)]
fn lead_to_one_place(first: &impl std::os::fd::AsFd, second: &impl std::os::fd::AsFd) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |stream: &dyn Fn() -> std::io::Result<std::os::fd::OwnedFd>| {
        let file = std::fs::File::from(stream().ok()?).metadata().ok()?;
        Some((file.dev(), file.ino()))
    };
    let places = [place(&|| first.as_fd().try_clone_to_owned()), place(&|| second.as_fd().try_clone_to_owned())];
    places[0].is_some() && places[0] == places[1]
}

#[cfg(not(unix))]
fn lead_to_one_place<A, B>(_: &A, _: &B) -> bool {
    false
}

impl Streams {
    fn detect() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let redraw = std::io::stderr().is_terminal() && !is_dumb;
        let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
        let are_screens = std::io::stderr().is_terminal() && std::io::stdout().is_terminal();
        Self { shared: are_screens || lead_to_one_place(&std::io::stdout(), &std::io::stderr()), redraw, colour, columns: None }
    }

    fn columns(self) -> usize {
        let asked = || terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| usize::from(width.0));
        self.columns.or_else(asked).unwrap_or(80)
    }
}

#[derive(Debug, Clone, Copy)]
enum Paint {
    Plain,
    Dim,
    Good,
    Warn,
    Bad,
}

/// Writes a run down for a person.
#[derive(Debug)]
pub(crate) struct Terminal<O = Stdout, E = Stderr> {
    out: O,
    err: E,
    show: Show,
    streams: Streams,
    limits: Limits,
    /// Set when nobody reads the answer any more: a run for nobody is stopped.
    cancel: CancellationToken,
    output_closed: bool,

    // Where the cursors are.
    /// The last byte of the answer was a line end (or there was none).
    answer_at_line_start: bool,
    /// The same of what is on the screen, or of the other stream where they are apart.
    screen_at_line_start: bool,
    status_shown: bool,
    /// The status as it was drawn last: what has not changed is not drawn again.
    drawn: String,
    /// The latest piece of a stream, while it is open.
    last_piece: Option<Instant>,
    /// Something happened since the last words, so that further ones begin on a line of their own. An answer that was cut at
    /// `max_tokens` and goes on has nothing between.
    is_apart: bool,
    /// The words since the last stream began: what a retry throws away.
    stream_has_text: bool,
    tools_of_step: usize,

    // What the status says.
    is_running: bool,
    step: u32,
    tokens: u64,
    cost: NanoDollars,
    estimated: bool,
    elapsed: (Duration, Instant),
}

impl Terminal {
    pub(crate) fn new(show: Show, limits: Limits, cancel: CancellationToken) -> Self {
        Self::over(std::io::stdout(), std::io::stderr(), show, Streams::detect(), limits, cancel)
    }
}

impl<O: Write, E: Write> Terminal<O, E> {
    fn over(out: O, err: E, show: Show, streams: Streams, limits: Limits, cancel: CancellationToken) -> Self {
        Self {
            out,
            err,
            show,
            streams,
            limits,
            cancel,
            output_closed: false,
            answer_at_line_start: true,
            screen_at_line_start: true,
            status_shown: false,
            drawn: String::new(),
            last_piece: None,
            is_apart: false,
            stream_has_text: false,
            tools_of_step: 0,
            is_running: false,
            step: 0,
            tokens: 0,
            cost: NanoDollars::ZERO,
            estimated: false,
            elapsed: (Duration::ZERO, Instant::now()),
        }
    }

    /// What an earlier run of the session has used.
    pub(crate) fn carry_on(&mut self, counters: &runguard_agent::spend::Counters) {
        self.step = counters.steps;
        self.tokens = counters.input_tokens + counters.output_tokens;
        self.cost = counters.cost;
        self.estimated = counters.estimated;
        self.elapsed.0 = Duration::from_millis(counters.elapsed_ms);
    }

    /// A run begins: the status is there from here to [`Self::pause`].
    pub(crate) fn begin(&mut self) {
        self.is_running = true;
        self.elapsed.1 = Instant::now();
        self.draw();
    }

    /// The run is over, or waits for a person: no status.
    pub(crate) fn pause(&mut self) {
        self.wipe();
        self.is_running = false;
        self.last_piece = None;
        self.end_line();
    }

    pub(crate) fn output_closed(&self) -> bool {
        self.output_closed
    }

    /// Looks after the status line.
    pub(crate) fn tick(&mut self) {
        if self.last_piece.is_none_or(|at| at.elapsed() >= SILENCE) {
            self.draw();
        }
    }

    /// Takes the status away.
    pub(crate) fn wipe(&mut self) {
        if self.status_shown {
            self.write_err(WIPE);
            self.status_shown = false;
        }
    }

    fn draw(&mut self) {
        if !self.is_running || !self.streams.redraw || self.show != Show::Everything || !self.screen_at_line_start {
            return;
        }
        let room = self.streams.columns().saturating_sub(1);
        let status: String = self.status().chars().take(room).collect();
        if self.status_shown && status == self.drawn {
            return;
        }
        let painted = self.paint(Paint::Dim, &status);
        self.write_err(&format!("{WIPE}{painted}"));
        self.status_shown = true;
        self.drawn = status;
    }

    fn status(&self) -> String {
        let step = format!("step {}/{}", self.step, self.limits.max_steps);
        let tokens = match self.limits.tokens() {
            // A budget that is far away would only make the line longer.
            Some(budget) if self.tokens.saturating_mul(2) >= budget => format!("{} of {} tokens", grouped(self.tokens), grouped(budget)),
            Some(_) | None => format!("{} tokens", grouped(self.tokens)),
        };
        let about = ABOUT[usize::from(self.estimated)];
        let cost = match self.limits.cost() {
            Some(limit) => format!("{about}{} of {limit}", money(self.cost)),
            None => format!("{about}{}", money(self.cost)),
        };
        let elapsed = self.elapsed.0 + self.elapsed.1.elapsed();
        [step, tokens, cost, clock(elapsed)].join(" · ")
    }

    /// A whole line beside the answer.
    fn line(&mut self, paint: Paint, text: &str) {
        self.wipe();
        self.end_screen_line();
        let text = if self.streams.redraw { output::wrapped(text, self.streams.columns()) } else { text.to_owned() };
        let painted = self.paint(paint, &text);
        self.write_err(&format!("{painted}\n"));
        self.draw();
    }

    /// Words that are not part of a run: what a demo explains, how to go on.
    pub(crate) fn say(&mut self, text: &str) {
        if self.show == Show::Everything {
            self.line(Paint::Plain, text);
        }
    }

    pub(crate) fn ask(&mut self, prompt: &str) {
        self.wipe();
        self.end_screen_line();
        self.write_err(prompt);
    }

    /// Nothing was typed: what comes next is not to stand behind the prompt.
    pub(crate) fn leave(&mut self) {
        self.write_err("\n");
    }

    fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.streams.colour {
            return text.to_owned();
        }
        match paint {
            Paint::Plain => text.to_owned(),
            Paint::Dim => text.dimmed().to_string(),
            Paint::Good => text.green().to_string(),
            Paint::Warn => text.yellow().bold().to_string(),
            Paint::Bad => text.red().bold().to_string(),
        }
    }

    /// Nobody may be there to read it; the run goes on all the same.
    fn write_err(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }

    fn write_out(&mut self, text: &str) {
        if self.output_closed {
            return;
        }
        if self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).is_err() {
            self.output_closed = true;
            self.cancel.cancel();
        }
    }

    /// Ends a line that words have begun on the screen, without a byte in the answer.
    fn end_screen_line(&mut self) {
        if !self.screen_at_line_start {
            self.write_err("\n");
            self.screen_at_line_start = true;
        }
    }

    /// Ends the line of the answer. On a shared screen the cursor may be on a fresh line already.
    fn end_line(&mut self) {
        let is_on_fresh_line = self.streams.shared && self.screen_at_line_start;
        if !self.answer_at_line_start && !is_on_fresh_line {
            self.write_out("\n");
        }
        self.answer_at_line_start = true;
        if self.streams.shared {
            self.screen_at_line_start = true;
        } else {
            self.end_screen_line();
        }
    }

    fn chunk(&mut self, chunk: &StreamChunk) {
        if chunk.finished {
            self.last_piece = None;
            // Thoughts may end anywhere; a line that begins with them ends with them.
            if !self.streams.shared {
                self.end_screen_line();
            }
            return;
        }
        if chunk.text.is_empty() || (chunk.thinking && self.show == Show::Quiet) {
            return;
        }
        self.wipe();
        let text = output::clean_lines(&chunk.text);
        if chunk.thinking {
            if self.streams.shared && !self.answer_at_line_start {
                self.end_line();
            }
            // Painted line by line: a style that is left open would run on into the next line.
            let painted: Vec<String> =
                text.split('\n').map(|line| if line.is_empty() { String::new() } else { self.paint(Paint::Dim, line) }).collect();
            self.write_err(&painted.join("\n"));
            self.screen_at_line_start = text.ends_with('\n');
        } else {
            if std::mem::take(&mut self.is_apart) {
                self.end_line();
            }
            // Thoughts that stand on the same screen, or on a stream of their own, end before the answer begins.
            if self.answer_at_line_start || !self.streams.shared {
                self.end_screen_line();
            }
            self.write_out(&text);
            self.stream_has_text = true;
            self.answer_at_line_start = text.ends_with('\n');
            if self.streams.shared {
                self.screen_at_line_start = self.answer_at_line_start;
            }
        }
        self.last_piece = Some(Instant::now());
    }

    fn spent(&mut self, spent: &Spent) {
        self.step = spent.step;
        self.tokens = spent.total_tokens;
        self.cost = spent.total_cost;
        self.estimated |= spent.estimated;
        self.elapsed = (Duration::from_millis(spent.elapsed_ms), Instant::now());
        let text = format!(
            "step {}/{}: {} tokens in, {} out, {}{} (total {}{})",
            spent.step,
            self.limits.max_steps,
            grouped(spent.input_tokens),
            grouped(spent.output_tokens),
            ABOUT[usize::from(spent.estimated)],
            money(spent.cost),
            ABOUT[usize::from(self.estimated)],
            money(spent.total_cost)
        );
        self.line(Paint::Dim, &text);
    }

    fn guard(&mut self, guard: &GuardEvent) {
        let message = shortened(&guard.message, MESSAGE_CHARS);
        let (paint, what) = match guard.action {
            GuardAction::Nudge => (Paint::Warn, "the model was told"),
            GuardAction::Block => (Paint::Warn, "the call was not run"),
            GuardAction::Stop => (Paint::Bad, "the run was stopped"),
        };
        self.line(paint, &format!("guard: {} ({}×): {what}: {message}", guard.rule, guard.count));
    }

    fn handle(&mut self, event: &Event) {
        if self.show == Show::Json {
            let line = json_line(event);
            self.write_out(&line);
            return;
        }
        if let Event::Chunk(chunk) = event {
            return self.chunk(chunk);
        }
        if let Event::StepStarted { step } = event {
            self.step = *step;
            self.stream_has_text = false;
        }
        if let Event::ToolStarted { .. } | Event::ToolFinished { .. } | Event::Retry { .. } | Event::Guard(_) = event {
            self.is_apart = true;
        }
        if self.show == Show::Quiet {
            return;
        }
        match event {
            Event::Started { session, model, resumed } => {
                let word = if *resumed { "resumed" } else { "session" };
                self.line(Paint::Dim, &format!("{word} {} · {}", output::clean(session), output::clean(model)));
            }
            Event::StepStarted { .. } => {
                self.tools_of_step = 0;
                self.draw();
            }
            Event::Spent(spent) => self.spent(spent),
            Event::Retry { attempt, of, after_ms, kind, message } => {
                let half = if std::mem::take(&mut self.stream_has_text) { "; the answer begins again" } else { "" };
                let message = shortened(message, MESSAGE_CHARS);
                let wait = span(Duration::from_millis(*after_ms));
                self.line(Paint::Warn, &format!("retry {attempt} of {of} in {wait}: {kind}: {message}{half}"));
            }
            Event::ContextTrimmed { left_out, kept } => {
                self.line(Paint::Dim, &format!("context: {left_out} earlier messages are not sent any more, {kept} are"));
            }
            Event::ToolStarted { id, name, arguments } => {
                self.tools_of_step += 1;
                let call = ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() };
                self.line(Paint::Plain, &call_line(&call));
            }
            Event::ToolFinished { name, ok, ran, bytes, cut, millis, preview, .. } => {
                // Of several at once it must be said which.
                let name = if self.tools_of_step > 1 { format!("{} ", output::clean(name)) } else { String::new() };
                let took = span(Duration::from_millis(*millis));
                let cut = if *cut { ", cut" } else { "" };
                match (ran, ok) {
                    (false, _) => self.line(Paint::Warn, &format!("✗ {name}not run: {}", shortened(preview, MESSAGE_CHARS))),
                    (true, true) => self.line(Paint::Good, &format!("✓ {name}{}{cut} {took}", size(*bytes))),
                    (true, false) => self.line(Paint::Bad, &format!("✗ {name}{} {took}", shortened(preview, MESSAGE_CHARS))),
                }
            }
            Event::Guard(guard) => self.guard(guard),
            Event::NearBudget { tokens_left, cost_left } => {
                let tokens = tokens_left.map(|left| format!("{} tokens", grouped(left)));
                let cost = cost_left.map(|left| left.to_string());
                let left: Vec<String> = cost.into_iter().chain(tokens).collect();
                self.line(Paint::Warn, &format!("near the budget: {} left", left.join(" and ")));
            }
            Event::Notice { message } => self.line(Paint::Plain, &format!("note: {}", output::clean(message))),
            // The states show in everything else, and the end has a block of its own.
            Event::Chunk(_) | Event::State { .. } | Event::Ended(_) => {}
        }
    }

    /// How it ended: why, what it cost, how to go on. `resume` is the command that does; `None`: the session is not kept.
    pub(crate) fn finish(&mut self, report: &Report, resume: Option<&str>) {
        self.pause();
        let is_good = matches!(report.state, AgentState::Completed | AgentState::WaitingForInput);
        // Programs have the last event; a run that did not end well says so to people too.
        if self.show == Show::Json || (self.show == Show::Quiet && is_good) {
            return;
        }
        let paint = if is_good { Paint::Good } else { Paint::Bad };
        let reason = if is_good { String::new() } else { format!(" ({})", report.stop.code()) };
        let message = shortened(&report.message, MESSAGE_CHARS);
        let colon = if message.is_empty() { "" } else { ": " };
        self.line(Paint::Plain, "");
        self.line(paint, &format!("{}{reason}{colon}{message}", report.state.code()));
        let sums = [
            output::count(u64::from(report.steps), "step"),
            format!("{} tokens", grouped(report.total_tokens())),
            format!("{}{}", ABOUT[usize::from(report.estimated)], money(report.cost)),
            clock(Duration::from_millis(report.elapsed_ms)),
            output::count(u64::from(report.tool_runs), "tool run"),
        ];
        self.line(Paint::Plain, &sums.join(" · "));
        let Some(resume) = resume else {
            return self.line(Paint::Dim, "session not kept: --sessions DIR keeps the session of a demo");
        };
        self.line(Paint::Plain, &format!("session {}", output::clean(&report.session)));
        if !resume.is_empty() {
            let how = shortened(&report.how_to_resume, MESSAGE_CHARS);
            self.line(Paint::Plain, &format!("to go on: {how}\n  {resume}"));
        }
    }
}

/// One terminal, for the run and for the clock beside it.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<Terminal>>);

impl Shared {
    pub(crate) fn new(terminal: Terminal) -> Self {
        Self(Arc::new(Mutex::new(terminal)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Terminal> {
        // What was half written stays so; the run goes on.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a program that must end at once: the status goes if nobody is writing.
    pub(crate) fn wipe_if_free(&self) {
        if let Ok(mut terminal) = self.0.try_lock() {
            terminal.wipe();
        }
    }
}

impl Observer for Shared {
    fn event(&mut self, event: Event) {
        self.lock().handle(&event);
    }
}

/// An event as a line of JSON, in which nothing steers a terminal it is shown on.
fn json_line(event: &Event) -> String {
    let json = serde_json::to_string(event).unwrap_or_default();
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        // JSON escapes the low ones itself, and these can only be within its strings.
        if steers(c) { line.push_str(&format!("\\u{:04x}", u32::from(c))) } else { line.push(c) }
    }
    line.push('\n');
    line
}

/// `→ read_file path=README.md`
pub(crate) fn call_line(call: &ToolCall) -> String {
    let arguments = match call.parsed() {
        Ok(Value::Object(fields)) => {
            let shown = fields.iter().map(|(name, value)| {
                let value = match value {
                    Value::String(text) if !text.is_empty() && !text.contains(char::is_whitespace) => text.clone(),
                    other => other.to_string(),
                };
                format!("{}={}", output::clean(name), shortened(&value, ARGUMENT_CHARS))
            });
            shown.collect::<Vec<_>>().join(" ")
        }
        Ok(_) | Err(_) => call.arguments.clone(),
    };
    format!("→ {} {}", output::clean(&call.name), shortened(&arguments, ARGUMENTS_CHARS)).trim_end().to_owned()
}

/// One harmless line of at most `most` characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let text = output::clean(text.trim());
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Dollars to a hundredth of a cent.
pub(crate) fn money(amount: NanoDollars) -> String {
    format!("${:.4}", amount.as_dollars())
}

/// Stands before money that was counted from bytes.
const ABOUT: [&str; 2] = ["", "~"];

/// `0:42`, `1:05:00`
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// `3 ms`, `1.2 s`
fn span(span: Duration) -> String {
    if span < Duration::from_secs(1) { format!("{} ms", span.as_millis()) } else { format!("{:.1} s", span.as_secs_f64()) }
}

/// `512 bytes`, `2.1 KB`
fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests;
