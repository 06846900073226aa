//! What kind of agent makes a run, by the calls it begins with.
//!
//! What a run is called says nothing of it; its tools do. Who clicks and scrolls sits in front of a browser, who talks with a person and has
//! neither shell nor files answers questions, and all others are taken for agents that work. It is told by the calls before a step, so
//! that whoever watches a run while it goes and whoever reads of it later come to the same.

use super::effect::CallEffect;
use super::fingerprints::words_of;
use super::settings::Preset;

/// Calls that are looked at; afterwards a run is what it was.
const FIRST_CALLS: u8 = 8;

/// Words in the names of tools by which one works with files and programs.
const WORK: [&str; 24] = [
    "bash",
    "shell",
    "sh",
    "terminal",
    "console",
    "exec",
    "execute",
    "command",
    "cmd",
    "process",
    "python",
    "ipython",
    "jupyter",
    "notebook",
    "sql",
    "code",
    "editor",
    "edit",
    "file",
    "files",
    "directory",
    "grep",
    "patch",
    "git",
];

/// Tools that look at files and say nothing else of it by their names.
const FILE_TOOLS: [&str; 10] = ["read", "write", "view", "open", "cat", "ls", "list_dir", "listdir", "glob", "find"];

/// How a tool begins that moves in a page, or in a file: who only scrolls may do either.
const MOVES: [&str; 4] = ["scroll", "goto", "page", "go"];

/// The kinds of calls that a run began with, or went on with after a person spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds {
    calls: u8,
    /// Of them actions on web pages.
    web: u8,
    /// One of them works with files or programs.
    works: bool,
    /// How often a person spoke, up to two: who begins a run need not stay with it.
    spoke: u8,
}

impl Kinds {
    /// How many bits it has when it is kept.
    pub(super) const BITS: u32 = 11;

    /// What a run like this is watched by.
    pub const fn preset(self) -> Preset {
        if self.web * 2 > self.calls {
            Preset::Browser
        } else if self.spoke > 1 && self.calls > 0 && !self.works {
            Preset::Chatbot
        } else {
            Preset::Coding
        }
    }

    /// Whether any call was made that does more than wait.
    pub(super) const fn has_calls(self) -> bool {
        self.calls > 0
    }

    /// Takes the next call.
    pub fn called(&mut self, tool: &str, effect: CallEffect) {
        if self.calls == FIRST_CALLS {
            return;
        }
        let words = words_of(tool);
        match effect {
            // One waits for everything.
            CallEffect::Waits => return,
            CallEffect::Acts { .. } if words.first().is_some_and(|first| MOVES.contains(&&**first)) => return,
            CallEffect::Acts { .. } => self.web += 1,
            CallEffect::Runs
            | CallEffect::Changes
            | CallEffect::Writes { .. }
            | CallEffect::Edits { .. }
            | CallEffect::Undoes { .. }
            | CallEffect::Restores => {
                self.works = true;
            }
            CallEffect::Unknown | CallEffect::Looks | CallEffect::LooksUp => {
                self.works =
                    self.works || words.iter().any(|word| WORK.contains(&&**word)) || FILE_TOOLS.contains(&words.join("_").as_str());
            }
        }
        self.calls += 1;
    }

    /// Another task may be another kind of work: its own calls tell.
    pub fn person_spoke(&mut self) {
        *self = Self { spoke: (self.spoke + 1).min(2), ..Self::default() };
    }

    /// A person answered what the agent said, as far as a record tells that does not say who spoke.
    pub const fn person_answered(&mut self) {
        self.spoke = 2;
    }

    pub(super) fn bits(self) -> u64 {
        u64::from(self.calls) | u64::from(self.web) << 4 | u64::from(self.works) << 8 | u64::from(self.spoke) << 9
    }

    /// Of such bits; what stands above them is not looked at. A damaged file may say anything.
    pub(super) fn from_bits(bits: u64) -> Self {
        let calls = (bits & 15).min(u64::from(FIRST_CALLS)) as u8;
        Self { calls, web: ((bits >> 4 & 15) as u8).min(calls), works: bits >> 8 & 1 == 1, spoke: (bits >> 9 & 3).min(2) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLICK: (&str, CallEffect) = ("click", CallEffect::Acts { on: 7 });
    const SHELL: (&str, CallEffect) = ("bash", CallEffect::Looks);
    const ORDER: (&str, CallEffect) = ("get_order_details", CallEffect::LooksUp);

    fn of(calls: &[(&str, CallEffect)], answers: u32) -> Kinds {
        let mut kinds = Kinds::default();
        (0..answers).for_each(|_| kinds.person_spoke());
        for (tool, effect) in calls {
            kinds.called(tool, *effect);
        }
        kinds
    }

    #[test]
    fn a_run_is_what_most_of_its_first_calls_are() {
        assert_eq!(of(&[], 2).preset(), Preset::Coding, "nothing is known yet");
        assert_eq!(of(&[CLICK], 0).preset(), Preset::Browser);
        assert_eq!(of(&[CLICK, SHELL], 0).preset(), Preset::Coding, "half of them are not most");
        assert_eq!(of(&[SHELL, CLICK, CLICK], 2).preset(), Preset::Browser);
        assert_eq!(of(&[SHELL, SHELL, CLICK], 0).preset(), Preset::Coding, "an agent that works looks at a page");
        assert_eq!(of(&[CLICK, ("wait", CallEffect::Waits), ("wait", CallEffect::Waits)], 0).preset(), Preset::Browser);
        assert_eq!(of(&[[CLICK; 8], [SHELL; 8]].concat(), 0).preset(), Preset::Browser, "it stays what it was");
    }

    #[test]
    fn who_scrolls_through_a_file_sits_in_front_of_no_browser() {
        let windowed = [("open", CallEffect::Looks), ("scroll_down", CallEffect::Acts { on: 1 }), ("goto", CallEffect::Acts { on: 2 })];
        assert_eq!(of(&[&windowed[..], &[windowed[1]; 6]].concat(), 0).preset(), Preset::Coding);
        assert_eq!(of(&[windowed[1], CLICK], 0).preset(), Preset::Browser);
        assert_eq!(of(&[("browser_scroll", CallEffect::Acts { on: 1 })], 0).preset(), Preset::Browser);
    }

    #[test]
    fn who_reads_files_is_no_chatbot() {
        for tool in ["Read", "Glob", "LS", "view", "list_dir", "open"] {
            assert_eq!(of(&[(tool, CallEffect::Looks)], 2).preset(), Preset::Coding, "{tool}");
        }
        assert_eq!(of(&[("view_order", CallEffect::LooksUp)], 2).preset(), Preset::Chatbot);
    }

    #[test]
    fn who_talks_with_a_person_and_has_no_shell_is_a_chatbot() {
        assert_eq!(
            [0, 1, 2, 9].map(|answers| of(&[ORDER], answers).preset()),
            [Preset::Coding, Preset::Coding, Preset::Chatbot, Preset::Chatbot]
        );
        assert_eq!(of(&[ORDER, SHELL], 2).preset(), Preset::Coding);
        for (tool, effect) in [
            ("sql", CallEffect::Looks),
            ("execute_bash", CallEffect::Unknown),
            ("deploy", CallEffect::Runs),
            ("readFile", CallEffect::Looks),
        ] {
            assert_eq!(of(&[ORDER, (tool, effect)], 2).preset(), Preset::Coding, "{tool}");
        }
        let mut another_task = of(&[CLICK; 8], 0);
        another_task.person_spoke();
        another_task.called(SHELL.0, SHELL.1);
        assert_eq!(another_task.preset(), Preset::Coding, "it is told anew when a person has spoken");
        let mut answered = of(&[ORDER], 0);
        answered.person_answered();
        assert_eq!(answered.preset(), Preset::Chatbot);
    }

    #[test]
    fn what_is_kept_comes_back_and_anything_can_be_read() {
        for kinds in [of(&[], 0), of(&[CLICK; 9], 1), of(&[SHELL, CLICK, ORDER], 3)] {
            assert_eq!(Kinds::from_bits(kinds.bits()), kinds);
            assert_eq!(Kinds::from_bits(kinds.bits() | u64::MAX << Kinds::BITS), kinds);
            assert!(kinds.bits() < 1 << Kinds::BITS);
        }
        assert_eq!(Kinds::from_bits(u64::MAX).preset(), Preset::Browser);
    }
}
