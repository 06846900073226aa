use super::*;
use std::cell::RefCell;
use std::rc::Rc;

const HOSTILE: &str = "a\x1b[2J\x1b]0;title\x07b\u{9b}31m\u{9d}c\u{202e}d\u{2066}e\u{200f}f\rg\x08h\x7fi\u{2028}j";

/// Both streams on one screen, and what came over each.
#[derive(Clone, Default)]
struct Pipe(Rc<RefCell<Vec<u8>>>, Rc<RefCell<Vec<u8>>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        self.1.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Pipe {
    fn text(&self) -> String {
        String::from_utf8(self.1.borrow().clone()).unwrap()
    }
}

struct Watched {
    terminal: Terminal<Pipe, Pipe>,
    out: Pipe,
    err: Pipe,
}

impl Watched {
    fn new(show: Show, streams: Streams) -> Self {
        let screen = Rc::new(RefCell::new(Vec::new()));
        let (out, err) = (Pipe(screen.clone(), Rc::default()), Pipe(screen, Rc::default()));
        let terminal = Terminal::over(out.clone(), err.clone(), show, streams, Limits::default(), CancellationToken::new());
        Self { terminal, out, err }
    }

    fn on_a_screen() -> Self {
        Self::new(Show::Everything, Streams { shared: true, redraw: true, colour: false, columns: Some(80) })
    }

    fn on_a_pipe(show: Show) -> Self {
        Self::new(show, Streams { shared: false, redraw: false, colour: false, columns: None })
    }

    /// What a person sees at this moment.
    fn screen(&self) -> String {
        screen(&String::from_utf8(self.out.0.borrow().clone()).unwrap())
    }

    fn say(&mut self, text: &str) {
        self.terminal.handle(&piece(text, false));
    }

    fn after_a_silence(&mut self) {
        self.terminal.last_piece = self.terminal.last_piece.and_then(|at| at.checked_sub(SILENCE));
        self.terminal.tick();
    }
}

fn piece(text: &str, thinking: bool) -> Event {
    Event::Chunk(StreamChunk { stream: 1, text: text.to_owned(), thinking, finished: false })
}

fn finished() -> Event {
    Event::Chunk(StreamChunk { stream: 1, text: String::new(), thinking: false, finished: true })
}

fn tool_started(name: &str, arguments: &str) -> Event {
    Event::ToolStarted { id: "1".to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

fn tool_finished(ok: bool, preview: &str) -> Event {
    let (id, name) = ("1".to_owned(), "read_file".to_owned());
    Event::ToolFinished { id, name, ok, ran: true, bytes: 2100, cut: false, millis: 3, preview: preview.to_owned() }
}

fn spent() -> Event {
    let cost = NanoDollars::from_dollars(0.0123).unwrap();
    Event::Spent(Spent {
        step: 3,
        input_tokens: 12_000,
        output_tokens: 345,
        cost,
        total_tokens: 12_345,
        total_cost: cost,
        elapsed_ms: 42_000,
        estimated: false,
    })
}

/// A terminal that knows what the status line needs, and nothing else.
fn screen(bytes: &str) -> String {
    let (mut lines, mut column) = (vec![Vec::<char>::new()], 0);
    let mut rest = bytes;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let row = lines.len() - 1;
        match c {
            '\r' => column = 0,
            '\n' => {
                lines.push(Vec::new());
                column = 0;
            }
            '\x1b' => {
                rest = rest.strip_prefix("[K").expect("only `clear to the end of the line` is used");
                lines[row].truncate(column);
            }
            c => {
                if column < lines[row].len() {
                    lines[row][column] = c;
                } else {
                    lines[row].push(c);
                }
                column += 1;
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_status_vanishes_before_words_and_comes_back_when_a_line_is_done() {
    let mut watched = Watched::on_a_screen();
    watched.terminal.begin();
    assert_eq!(watched.screen(), "step 0/50 · 0 tokens · $0.0000 of $1.00 · 0:00");
    watched.say("Hello");
    assert_eq!(watched.screen(), "Hello");
    // In mid-line it stays away, however long the silence is.
    watched.after_a_silence();
    watched.say(" world.\n");
    assert_eq!(watched.screen(), "Hello world.\n");
    // Just after a word it stays away too: it would flicker.
    watched.terminal.tick();
    assert_eq!(watched.screen(), "Hello world.\n");
    watched.after_a_silence();
    assert_eq!(watched.screen(), "Hello world.\nstep 0/50 · 0 tokens · $0.0000 of $1.00 · 0:00");
    watched.say("More");
    assert_eq!(watched.screen(), "Hello world.\nMore");
    watched.terminal.handle(&finished());
    watched.terminal.handle(&spent());
    let line = "step 3/50: 12,000 tokens in, 345 out, $0.0123 (total $0.0123)";
    assert_eq!(watched.screen(), format!("Hello world.\nMore\n{line}\nstep 3/50 · 12,345 tokens · $0.0123 of $1.00 · 0:42"));
    watched.terminal.pause();
    assert_eq!(watched.screen(), format!("Hello world.\nMore\n{line}\n"));
    assert_eq!(watched.out.text(), "Hello world.\nMore");
}

#[test]
fn the_status_never_wraps() {
    let mut watched = Watched::on_a_screen();
    watched.terminal.streams.columns = Some(20);
    watched.terminal.begin();
    assert_eq!(watched.screen().chars().count(), 19);
}

#[test]
fn words_after_a_tool_begin_a_line_and_words_after_a_cut_do_not() {
    for mut watched in [Watched::on_a_screen(), Watched::on_a_pipe(Show::Everything), Watched::on_a_pipe(Show::Quiet)] {
        watched.say("I look");
        watched.terminal.handle(&finished());
        watched.terminal.handle(&spent());
        // Cut at max_tokens: it goes on in another stream.
        watched.say(" it up.");
        watched.terminal.handle(&finished());
        watched.terminal.handle(&spent());
        watched.terminal.handle(&tool_started("read_file", "{}"));
        watched.terminal.handle(&tool_finished(true, ""));
        watched.say("Done.");
        watched.terminal.handle(&finished());
        watched.terminal.pause();
        // On a screen the line between was ended by what stands between.
        let expected = if watched.terminal.streams.shared { "I look it up.Done.\n" } else { "I look it up.\nDone.\n" };
        assert_eq!(watched.out.text(), expected);
        assert!(watched.screen().lines().any(|line| line == "Done."), "{}", watched.screen());
    }
}

#[test]
fn on_a_pipe_there_are_plain_lines_and_the_answer_is_alone() {
    let mut watched = Watched::on_a_pipe(Show::Everything);
    watched.terminal.begin();
    watched.terminal.handle(&piece("Hm.", true));
    watched.say("The answer.");
    watched.terminal.handle(&finished());
    watched.terminal.handle(&tool_started("read_file", r#"{"path":"README.md","lines":3,"note":"two words"}"#));
    watched.terminal.handle(&tool_finished(true, ""));
    watched.terminal.handle(&tool_finished(false, "no such file"));
    watched.terminal.tick();
    watched.terminal.pause();
    assert_eq!(watched.out.text(), "The answer.\n");
    let expected = "Hm.\n→ read_file path=README.md lines=3 note=\"two words\"\n✓ 2.1 KB 3 ms\n✗ no such file 3 ms\n";
    assert_eq!(watched.err.text(), expected);
}

#[test]
fn a_guard_says_what_it_told_the_model() {
    let mut watched = Watched::on_a_pipe(Show::Everything);
    let guard = |action| Event::Guard(GuardEvent { action, rule: "repetition", count: 3, message: "Try\nanother way.".to_owned() });
    watched.terminal.handle(&guard(GuardAction::Nudge));
    watched.terminal.handle(&guard(GuardAction::Stop));
    let expected = "guard: repetition (3×): the model was told: Try·another way.\n\
                        guard: repetition (3×): the run was stopped: Try·another way.\n";
    assert_eq!(watched.err.text(), expected);
}

#[test]
fn what_models_and_tools_say_never_steers_the_terminal() {
    for show in [Show::Everything, Show::Quiet, Show::Json] {
        let mut watched = Watched::on_a_pipe(show);
        watched.say(HOSTILE);
        watched.terminal.handle(&piece(HOSTILE, true));
        watched.terminal.handle(&finished());
        watched.terminal.handle(&tool_started(HOSTILE, &format!("{{{HOSTILE}")));
        let arguments = serde_json::to_string(&serde_json::json!({ HOSTILE: HOSTILE })).unwrap();
        watched.terminal.handle(&tool_started(HOSTILE, &arguments));
        watched.terminal.handle(&tool_finished(false, HOSTILE));
        watched.terminal.handle(&Event::Notice { message: HOSTILE.to_owned() });
        let guard = GuardEvent { action: GuardAction::Nudge, rule: "r", count: 1, message: HOSTILE.to_owned() };
        watched.terminal.handle(&Event::Guard(guard));
        let message = HOSTILE.to_owned();
        watched.terminal.handle(&Event::Retry { attempt: 1, of: 2, after_ms: 1, kind: "timeout", message });
        watched.terminal.handle(&Event::Started { session: HOSTILE.to_owned(), model: HOSTILE.to_owned(), resumed: false });
        let shown = watched.out.text() + &watched.err.text();
        assert!(shown.contains("title"), "{shown}");
        // Named one by one: what is asked must not be what answers.
        let named = ['\x1b', '\x07', '\u{9b}', '\u{9d}', '\u{202e}', '\u{2066}', '\u{200f}', '\r', '\x08', '\x7f', '\u{2028}'];
        assert!(named.iter().all(|c| HOSTILE.contains(*c)));
        let steering: Vec<char> = shown.chars().filter(|c| named.contains(c)).collect();
        assert!(steering.is_empty(), "{steering:?} in {shown}");
    }
}

#[test]
fn line_ends_and_tabs_of_the_answer_stay() {
    let mut watched = Watched::on_a_pipe(Show::Everything);
    watched.say("a\tb\r\nc\rd\n");
    assert_eq!(watched.out.text(), "a\tb\nc·d\n");
}

#[test]
fn json_lines_are_json_and_say_the_same() {
    let mut watched = Watched::on_a_pipe(Show::Json);
    watched.say(HOSTILE);
    watched.terminal.handle(&spent());
    let text = watched.out.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[0]["text"].as_str()), (2, Some(HOSTILE)));
    assert_eq!(watched.err.text(), "");
}

#[test]
fn numbers_read_well() {
    assert_eq!([grouped(0), grouped(999), grouped(1_000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
    assert_eq!([clock(Duration::from_secs(42)), clock(Duration::from_secs(3900))], ["0:42", "1:05:00"]);
    assert_eq!([size(512), size(2100), size(3_400_000)], ["512 bytes", "2.1 KB", "3.4 MB"]);
    assert_eq!(shortened("abcdef", 3), "abc…");
    assert_eq!(shortened("abc", 3), "abc");
}

#[test]
fn a_run_for_nobody_is_stopped() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let cancel = CancellationToken::new();
    let streams = Streams { shared: false, redraw: false, colour: false, columns: None };
    let mut terminal = Terminal::over(Closed, Vec::new(), Show::Everything, streams, Limits::default(), cancel.clone());
    terminal.handle(&piece("word", false));
    assert!(cancel.is_cancelled() && terminal.output_closed());
}
