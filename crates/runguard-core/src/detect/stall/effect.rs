//! What a call does, as far as its arguments tell: whether it looks, runs something, or changes a file, and what of it.
//!
//! A detector that knows calls by fingerprints alone takes every edit for progress. What it needs to see a file put back is
//! little: which file, and a number for what is in it. That number is the sum of the lines' hashes, so an edit adds those of
//! the new lines and takes away those of the old ones: whoever undoes it comes back to the number that was there before,
//! whatever else of the file was quoted, and without anybody having read the file.

mod shell;
mod web;

use super::fingerprints::words_of;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64;

/// Arguments longer than this are not looked into: what they do is not known.
const LONGEST: usize = 1 << 20;

/// What a call does. Files and what is in them are fingerprints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallEffect {
    /// The arguments do not tell, or are not at hand.
    #[default]
    Unknown,
    /// Reads, lists or searches.
    Looks,
    /// Runs something: a test, a script, a build.
    Runs,
    /// Changes something, and what it leaves is not known.
    Changes,
    /// Leaves this in the file.
    Writes {
        /// Which file.
        file: u64,
        /// What is in it then; 0 is what was there when the run began.
        leaves: u64,
    },
    /// Puts lines in the place of others.
    Edits {
        /// Which file.
        file: u64,
        /// What is added to what was in it.
        by: u64,
    },
    /// Takes back the last change.
    Undoes {
        /// Of which file.
        file: u64,
    },
    /// Brings every file back to what it was when the run began.
    Restores,
    /// Looks one thing up, by its id.
    LooksUp,
    /// Acts on a web page.
    Acts {
        /// What is done and to which element, whatever is typed into it.
        on: u64,
    },
    /// Waits, asks how something goes on, or looks at the page that is there: neither progress nor, for a while, a stall.
    Waits,
}

impl CallEffect {
    /// Of a call, by its arguments as JSON text.
    pub fn of(tool: &str, arguments: &str) -> Self {
        if arguments.len() > LONGEST {
            return Self::Unknown;
        }
        match web::action(tool, arguments) {
            Some(web::Action::On(on)) => return Self::Acts { on },
            Some(web::Action::Waits) => return Self::Waits,
            None => {}
        }
        if asks_how_it_goes(tool, arguments) {
            return Self::Waits;
        }
        let Ok(read) = serde_json::from_str::<Arguments<'_>>(arguments) else { return Self::Unknown };
        match read.effect(tool) {
            Self::Looks if read.path.is_none() && read.command.is_none() && has_an_id(arguments) => Self::LooksUp,
            effect => effect,
        }
    }

    /// As one text, to be sent: `looks`, `writes 9f2c 77ab`.
    pub fn text(self) -> String {
        match self {
            Self::Unknown => String::new(),
            Self::Looks => "looks".to_owned(),
            Self::Runs => "runs".to_owned(),
            Self::Changes => "changes".to_owned(),
            Self::Writes { file, leaves } => format!("writes {file:x} {leaves:x}"),
            Self::Edits { file, by } => format!("edits {file:x} {by:x}"),
            Self::Undoes { file } => format!("undoes {file:x}"),
            Self::Restores => "restores".to_owned(),
            Self::LooksUp => "looks_up".to_owned(),
            Self::Acts { on } => format!("acts {on:x}"),
            Self::Waits => "waits".to_owned(),
        }
    }

    /// Of such a text; of anything else nothing is known.
    pub fn from_text(text: &str) -> Self {
        let number = |word: &str| u64::from_str_radix(word, 16).ok();
        let known = match text.split(' ').collect::<Vec<_>>()[..] {
            ["looks"] => Some(Self::Looks),
            ["runs"] => Some(Self::Runs),
            ["changes"] => Some(Self::Changes),
            ["writes", file, leaves] => number(file).zip(number(leaves)).map(|(file, leaves)| Self::Writes { file, leaves }),
            ["edits", file, by] => number(file).zip(number(by)).map(|(file, by)| Self::Edits { file, by }),
            ["undoes", file] => number(file).map(|file| Self::Undoes { file }),
            ["restores"] => Some(Self::Restores),
            ["looks_up"] => Some(Self::LooksUp),
            ["acts", on] => number(on).map(|on| Self::Acts { on }),
            ["waits"] => Some(Self::Waits),
            _ => None,
        };
        known.unwrap_or_default()
    }

    /// Whether it leaves something else than was there.
    pub const fn changes(self) -> bool {
        match self {
            Self::Unknown | Self::Looks | Self::LooksUp | Self::Runs | Self::Acts { .. } | Self::Waits => false,
            Self::Changes | Self::Writes { .. } | Self::Edits { .. } | Self::Undoes { .. } | Self::Restores => true,
        }
    }
}

/// The arguments that editors, shells and readers take, by the names that are in use.
#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow, alias = "file_path", alias = "filename", alias = "file", alias = "target_file", alias = "filepath")]
    path: Option<&'a RawValue>,
    #[serde(borrow, alias = "cmd", alias = "script")]
    command: Option<&'a RawValue>,
    #[serde(borrow, alias = "file_text", alias = "contents")]
    content: Option<&'a RawValue>,
    #[serde(borrow, alias = "old_string", alias = "old_text")]
    old_str: Option<&'a RawValue>,
    #[serde(borrow, alias = "new_string", alias = "new_text", alias = "insert_text")]
    new_str: Option<&'a RawValue>,
    #[serde(borrow, alias = "diff", alias = "input")]
    patch: Option<&'a RawValue>,
}

impl Arguments<'_> {
    fn effect(&self, tool: &str) -> CallEffect {
        let command = text(self.command);
        let Some(path) = text(self.path) else {
            return match (command, text(self.patch)) {
                (Some(command), _) => shell::effect(&command),
                (None, Some(patch)) if tool.contains("patch") || tool.contains("diff") => patched(&patch),
                (None, _) => by_name(tool),
            };
        };
        let file = xxh3_64(path.as_bytes());
        let (old, new, content) = (text(self.old_str), text(self.new_str), text(self.content));
        match (command.as_deref(), old, new, content) {
            (Some("view" | "read" | "open"), ..) => CallEffect::Looks,
            (Some("undo_edit" | "undo"), ..) => CallEffect::Undoes { file },
            (Some("create" | "write"), _, _, Some(content)) => CallEffect::Writes { file, leaves: lines(&content) },
            (Some("insert"), _, Some(new), _) => CallEffect::Edits { file, by: lines(&new) },
            (_, Some(old), new, _) => CallEffect::Edits { file, by: lines(new.as_deref().unwrap_or_default()).wrapping_sub(lines(&old)) },
            (None, None, _, Some(content)) if writes(tool) => CallEffect::Writes { file, leaves: lines(&content) },
            (Some(command), ..) if command.contains(' ') => shell::effect(command),
            (Some(_), ..) => CallEffect::Unknown,
            (None, ..) => by_name(tool),
        }
    }
}

/// A number for what is in a text: the same however its lines are ordered, so that changes to it can be added and taken away.
fn lines(text: &str) -> u64 {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).fold(0, |sum, line| sum.wrapping_add(xxh3_64(line.as_bytes())))
}

/// Of a patch, unified or as `apply_patch` takes it, for its first file.
fn patched(patch: &str) -> CallEffect {
    let mut file = None;
    let mut by = 0_u64;
    for line in patch.lines() {
        let named =
            ["*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ b/", "+++ "].iter().find_map(|head| line.strip_prefix(head));
        if let Some(name) = named {
            file = file.or_else(|| Some(xxh3_64(name.trim().as_bytes())));
        } else if line.starts_with("--- ") || line.starts_with("***") {
        } else if let Some(added) = line.strip_prefix('+') {
            by = by.wrapping_add(lines(added));
        } else if let Some(removed) = line.strip_prefix('-') {
            by = by.wrapping_sub(lines(removed));
        }
    }
    file.map_or(CallEffect::Changes, |file| CallEffect::Edits { file, by })
}

/// Names of tools that only look, by how they begin.
const LOOKS: [&str; 14] =
    ["read", "view", "list", "ls", "search", "grep", "glob", "find", "get", "fetch", "browse", "cat", "open_file", "look"];

fn by_name(tool: &str) -> CallEffect {
    let name = tool.rsplit(['.', ':', '/']).next().unwrap_or(tool).to_ascii_lowercase();
    if LOOKS.iter().any(|begin| name.strip_prefix(begin).is_some_and(|rest| rest.is_empty() || !rest.starts_with(char::is_alphanumeric))) {
        CallEffect::Looks
    } else {
        CallEffect::Unknown
    }
}

/// Words in the names of tools that wait.
const WAITS: [&str; 5] = ["wait", "sleep", "poll", "polling", "await"];
/// What the names of tools end with that tell how something goes on.
const GOES_ON: [&str; 9] = ["status", "state", "progress", "ready", "finished", "done", "complete", "completed", "running"];
/// How such names begin where they are about something that was begun, whatever the arguments are.
const ASKS: [&str; 9] = ["get", "check", "query", "fetch", "read", "is", "job", "task", "describe"];
/// What a status is of that changes only when the run itself changes something.
const OWN_WORK: [&str; 6] = ["git", "repo", "repository", "workspace", "tree", "todo"];

/// Whether a call waits for something, or asks how something goes on that others do: by the words of its name, and by what it asks about.
fn asks_how_it_goes(tool: &str, arguments: &str) -> bool {
    let own = tool.rsplit("__").next().unwrap_or(tool);
    // One word says little without what stands before it.
    let words = match words_of(own.rsplit(['.', ':', '/']).next().unwrap_or(own)) {
        words if words.len() > 1 => words,
        _ => words_of(own),
    };
    let is_one_of = |known: &[&str], word: &Cow<'_, str>| known.contains(&&**word);
    if words.iter().any(|word| is_one_of(&WAITS, word)) {
        return true;
    }
    let (Some(first), Some(last)) = (words.first(), words.last()) else { return false };
    words.len() > 1
        && is_one_of(&GOES_ON, last)
        && !words.iter().any(|word| is_one_of(&OWN_WORK, word))
        && (is_one_of(&ASKS, first) || has_an_id(arguments))
}

/// Names of arguments that say what is looked for, whatever it looks like.
const LOOKED_FOR: [&str; 10] = ["q", "query", "search", "pattern", "regex", "glob", "url", "uri", "text", "name"];

/// Names of arguments by which one searches. An id beside them says where: it stays the same while the words change.
const SEARCHED: [&str; 9] = ["q", "query", "search", "pattern", "regex", "glob", "keyword", "keywords", "term"];

/// Whether one of the arguments is the id of a thing, by its name or by its form: orders, customers, days. What is known of one thing may well be
/// known of the next: whoever looks up forty orders and hears "delivered" of each has not gone round.
fn has_an_id(arguments: &str) -> bool {
    let Ok(arguments) = serde_json::from_str::<std::collections::BTreeMap<Cow<'_, str>, &RawValue>>(arguments) else { return false };
    if arguments.keys().any(|name| SEARCHED.contains(&name.to_ascii_lowercase().as_str())) {
        return false;
    }
    arguments.iter().any(|(name, value)| {
        let is_scalar = !value.get().starts_with(['{', '[']);
        let words = words_of(name);
        let is_id =
            words.last().is_some_and(|word| matches!(&**word, "id" | "ids" | "uuid" | "email" | "sku" | "number" | "symbol" | "ticker"));
        is_id && !value.get().starts_with('{')
            || is_scalar
                && !LOOKED_FOR.contains(&name.to_ascii_lowercase().as_str())
                && text(Some(value)).is_some_and(|value| has_form_of_id(&value))
    })
}

/// "#W5490111", "2026-05-17", "9f2c51d0-…", "ann@example.org": one word with several digits, or an address.
fn has_form_of_id(value: &str) -> bool {
    let is_word =
        value.len() >= 4 && value.len() <= 64 && value.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"#-_:@.+".contains(&letter));
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    is_word && (digits >= 3 || value.contains('@'))
}

fn writes(tool: &str) -> bool {
    let tool = tool.to_ascii_lowercase();
    ["write", "create", "save", "edit"].iter().any(|word| tool.contains(word))
}

fn text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(raw?.get()).ok().map(|Text(text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn effect(tool: &str, arguments: &Value) -> CallEffect {
        CallEffect::of(tool, &arguments.to_string())
    }

    fn by(effect: CallEffect) -> u64 {
        let CallEffect::Edits { by, .. } = effect else { panic!("an edit: {effect:?}") };
        by
    }

    #[test]
    fn an_edit_and_its_inverse_add_up_to_nothing() {
        let there =
            effect("str_replace_editor", &json!({"command": "str_replace", "path": "/a.py", "old_str": "x = 1\n", "new_str": "x = 2\n"}));
        let back = effect(
            "edit",
            &json!({"file_path": "/a.py", "old_string": "def f():\n    pass\nx = 2", "new_string": "def f():\n    pass\nx = 1"}),
        );
        assert_eq!(by(there).wrapping_add(by(back)), 0, "what else was quoted does not matter");
        let patch = effect(
            "apply_patch",
            &json!({"input": "*** Begin Patch\n*** Update File: /a.py\n@@\n def f():\n-x = 2\n+x = 1\n*** End Patch"}),
        );
        assert_eq!(by(patch), by(back));
        let inserted = effect("str_replace_editor", &json!({"command": "insert", "path": "/a.py", "insert_line": 3, "new_str": "y"}));
        let removed = effect("str_replace_editor", &json!({"command": "str_replace", "path": "/a.py", "old_str": "y"}));
        assert_eq!(by(inserted).wrapping_add(by(removed)), 0);
    }

    #[test]
    fn a_written_file_is_known_whole() {
        let written = effect("write_file", &json!({"path": "a", "content": "1\n2\n"}));
        assert_eq!(written, effect("str_replace_editor", &json!({"command": "create", "path": "a", "file_text": "1\n2"})));
        assert_eq!(written, effect("execute_bash", &json!({"command": "cat > a <<'EOF'\n1\n2\nEOF"})));
        assert_ne!(written, effect("write_file", &json!({"path": "a", "content": "1\n3\n"})));
        assert_ne!(written, effect("write_file", &json!({"path": "b", "content": "1\n2\n"})));
    }

    #[test]
    fn what_is_sent_as_text_comes_back() {
        let file = u64::MAX;
        for effect in [
            CallEffect::Unknown,
            CallEffect::Looks,
            CallEffect::Runs,
            CallEffect::Changes,
            CallEffect::Writes { file, leaves: 0 },
            CallEffect::Edits { file, by: 7 },
            CallEffect::Undoes { file },
            CallEffect::Restores,
            CallEffect::LooksUp,
            CallEffect::Acts { on: file },
            CallEffect::Waits,
        ] {
            assert_eq!(CallEffect::from_text(&effect.text()), effect);
        }
        for text in ["writes", "writes x 1", "edits 1", "sings", "looks "] {
            assert_eq!(CallEffect::from_text(text), CallEffect::Unknown, "{text}");
        }
    }

    #[test]
    fn who_asks_how_something_goes_on_waits() {
        for (tool, arguments) in [
            ("get_job_status", json!({"job_id": "7"})),
            ("checkDeploymentStatus", json!({"name": "web"})),
            ("job_status", json!({})),
            ("build.progress", json!({"build_id": 12})),
            ("training_state", json!({"run": "run-20261118-7"})),
            ("wait_for_build", json!({"timeout": 30})),
            ("mcp__ci__poll_pipeline", json!({})),
            ("is_ready", json!({"host": "db"})),
            ("bash", json!({"command": "sleep 30"})),
        ] {
            assert_eq!(effect(tool, &arguments), CallEffect::Waits, "{tool} {arguments}");
        }
        for (tool, arguments) in [
            ("git_status", json!({})),
            ("get_git_status", json!({"id": 7})),
            ("status", json!({"id": 7})),
            ("git.status", json!({"id": 7})),
            ("pause_campaign", json!({"id": 7})),
            ("order_status", json!({"query": "mine"})),
            ("get_order", json!({"order_id": "#W5490111"})),
            ("set_status_done_for", json!({"id": 7})),
            ("search", json!({"q": "wait"})),
            ("bash", json!({"command": "sleep 5; make test"})),
        ] {
            assert_ne!(effect(tool, &arguments), CallEffect::Waits, "{tool} {arguments}");
        }
    }

    #[test]
    fn who_looks_a_thing_up_names_it_by_its_id() {
        for (tool, arguments) in [
            ("get_order_details", json!({"order_id": "#W5490111"})),
            ("get_order", json!({"id": 7})),
            ("fetch_customer", json!({"customer": "ann@example.org"})),
            ("list_meetings", json!({"day": "2026-05-17"})),
            ("get_quote", json!({"symbol": "ACME"})),
            ("get_orders", json!({"orderIds": ["a", "b"]})),
        ] {
            assert_eq!(effect(tool, &arguments), CallEffect::LooksUp, "{tool} {arguments}");
            assert!(!effect(tool, &arguments).changes());
        }
        for (tool, arguments) in [
            ("fetch", json!({"url": "https://example.org/page/1234"})),
            ("search", json!({"query": "order-12345"})),
            ("search_orders", json!({"customer_id": "c-4711", "query": "late"})),
            ("grep", json!({"repo_id": 7, "pattern": "TODO"})),
            ("list_directory", json!({"path": "/src", "depth": 4})),
            ("read_file", json!({"path": "/a1234.py"})),
            ("list", json!({"page": 3, "limit": 5000})),
            ("get", json!({"id": {"of": 1}})),
        ] {
            assert_eq!(effect(tool, &arguments), CallEffect::Looks, "{tool} {arguments}");
        }
    }

    #[test]
    fn who_only_looks_changes_nothing() {
        for (tool, arguments) in [
            ("str_replace_editor", json!({"command": "view", "path": "/a.py", "view_range": [1, 20]})),
            ("read_file", json!({"path": "/a.py"})),
            ("mcp.files/list_directory", json!({"path": "/"})),
            ("search", json!({"query": "x"})),
        ] {
            assert_eq!(effect(tool, &arguments), CallEffect::Looks, "{tool} {arguments}");
        }
        for (tool, arguments) in [("getter_of_orders", json!({"id": 1})), ("book_flight", json!({"content": "x"})), ("x", json!([1]))] {
            assert_eq!(effect(tool, &arguments), CallEffect::Unknown, "{tool} {arguments}");
        }
        assert_eq!(CallEffect::of("write_file", "no json"), CallEffect::Unknown);
        assert!(effect("str_replace_editor", &json!({"command": "undo_edit", "path": "/a.py"})).changes());
    }
}
