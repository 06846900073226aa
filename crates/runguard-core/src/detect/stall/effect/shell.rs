//! What a line for the shell does. Not a shell: a few forms that agents use, and everything else runs something.

use super::{CallEffect, lines};
use xxhash_rust::xxh3::xxh3_64;

/// Commands that only look, whatever they are told.
const LOOKS: [&str; 27] = [
    "cat", "ls", "grep", "rg", "egrep", "find", "head", "tail", "pwd", "cd", "echo", "wc", "awk", "which", "tree", "less", "more", "nl",
    "file", "stat", "type", "sort", "uniq", "cut", "tr", "true", "diff",
];
/// Commands that change files, and what they leave is not known.
const CHANGES: [&str; 14] =
    ["rm", "mv", "cp", "mkdir", "touch", "patch", "tee", "chmod", "ln", "unzip", "tar", "dd", "truncate", "install"];
const GIT_LOOKS: [&str; 9] = ["diff", "log", "status", "show", "blame", "grep", "branch", "remote", "ls-files"];

/// How statements for a database begin that only look.
const QUERIES: [&str; 5] = ["select", "show", "describe", "desc", "explain"];
/// And those that change something.
const STATEMENTS: [&str; 8] = ["insert", "update", "delete", "replace", "create", "drop", "alter", "truncate"];

/// The effect of a whole script: what changes something counts for more than what runs, and that more than what looks.
pub(super) fn effect(script: &str) -> CallEffect {
    if let Some(effect) = of_statements(script) {
        return effect;
    }
    let mut words = script.split_whitespace();
    if words.next() == Some("sleep")
        && words.next().is_some_and(|time| time.starts_with(|letter: char| letter.is_ascii_digit()))
        && words.next().is_none()
    {
        return if script.contains([';', '&', '|']) { CallEffect::Runs } else { CallEffect::Waits };
    }
    let mut worst = CallEffect::Looks;
    let mut rest = script;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        rest = after;
        let heredoc = delimiter(line);
        let mut body = "";
        if let Some(end) = heredoc {
            (body, rest) = until(rest, end);
        }
        let here = if heredoc.is_some() { with_body(line, body) } else { in_line(line) };
        worst = worse(worst, here);
    }
    worst
}

/// What is asked of a database, through tools that take its language where others take the shell's. A shell has no command of these
/// names but `truncate`, which is known by its dash.
fn of_statements(script: &str) -> Option<CallEffect> {
    let is_one_of = |verbs: &[&str], text: &str| {
        let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        verbs.iter().any(|known| known.eq_ignore_ascii_case(verb)) && !rest.trim_start().is_empty() && !rest.trim_start().starts_with('-')
    };
    let script = script.trim_start();
    if is_one_of(&STATEMENTS, script) {
        return Some(CallEffect::Changes);
    }
    if !is_one_of(&QUERIES, script) {
        return None;
    }
    let changes = script.split(';').any(|statement| is_one_of(&STATEMENTS, statement.trim_start()));
    Some(if changes { CallEffect::Changes } else { CallEffect::Looks })
}

/// Of two parts of a script. Two changes of different files are a change of which no more is known.
fn worse(left: CallEffect, right: CallEffect) -> CallEffect {
    let rank = |effect: CallEffect| match effect {
        CallEffect::Looks | CallEffect::LooksUp => 0,
        CallEffect::Unknown | CallEffect::Runs | CallEffect::Acts { .. } | CallEffect::Waits => 1,
        CallEffect::Changes | CallEffect::Writes { .. } | CallEffect::Edits { .. } | CallEffect::Undoes { .. } | CallEffect::Restores => 2,
    };
    match (left, right) {
        (left, right) if left.changes() && right.changes() && left != right => CallEffect::Changes,
        (left, right) if rank(right) > rank(left) => right,
        (left, _) => left,
    }
}

/// `EOF` of `cat > a <<'EOF'`.
fn delimiter(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("<<")?;
    let after = after.strip_prefix('-').unwrap_or(after);
    if after.starts_with('<') {
        return None;
    }
    let word = after.trim_start().trim_start_matches(['\'', '"', '\\']);
    let end = word.find(|letter: char| !(letter.is_alphanumeric() || letter == '_')).unwrap_or(word.len());
    (end > 0).then(|| &word[..end])
}

/// The lines before the one that is the delimiter, and those after it.
fn until<'a>(text: &'a str, delimiter: &str) -> (&'a str, &'a str) {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim() == delimiter {
            return (&text[..at], &text[at + line.len()..]);
        }
        at += line.len();
    }
    (text, "")
}

/// `cat > file <<EOF` writes, `>>` adds; with anything else the lines are somebody's input.
fn with_body(line: &str, body: &str) -> CallEffect {
    let Some((file, adds)) = target(line) else { return in_line(line.split("<<").next().unwrap_or(line)) };
    let (file, lines) = (xxh3_64(file.as_bytes()), lines(body));
    if adds { CallEffect::Edits { file, by: lines } } else { CallEffect::Writes { file, leaves: lines } }
}

/// The file that a line's output goes to, and whether it is added to it.
fn target(line: &str) -> Option<(&str, bool)> {
    let (mut rest, mut in_double, mut in_single) = (line, false, false);
    while let Some(at) = rest.find('>') {
        for letter in rest[..at].bytes() {
            in_double ^= letter == b'"';
            in_single ^= letter == b'\'';
        }
        if in_double || in_single {
            rest = &rest[at + 1..];
            continue;
        }
        let before = rest[..at].chars().next_back();
        let after = &rest[at + 1..];
        let (after, adds) = after.strip_prefix('>').map_or((after, false), |after| (after, true));
        let name = after.trim_start().split([' ', ';', '&', '|', '<', '>', ')']).next().unwrap_or("").trim_matches(['"', '\'']);
        // `2>&1`, `->`, `=>`, and `/dev/null` are no files.
        let is_file = !name.is_empty() && name != "/dev/null" && !matches!(before, Some('-' | '=' | '2' | '&' | '<' | '\\'));
        if is_file && name.contains(|letter: char| letter.is_alphabetic()) {
            return Some((name, adds));
        }
        rest = after;
    }
    None
}

fn in_line(line: &str) -> CallEffect {
    let mut worst = CallEffect::Looks;
    for part in commands(line) {
        worst = worse(worst, command(part));
    }
    worst
}

/// The commands of a line, cut at `&&`, `||`, `;` and `|` that stand outside of quotes, up to a comment.
fn commands(line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    // Whether nothing but blanks stands between the last cut and here.
    let (mut from, mut quote, mut begins) = (0, None, true);
    for (at, letter) in line.char_indices() {
        if let Some(open) = quote {
            quote = quote.filter(|_| open != letter);
            continue;
        }
        let is_first = begins;
        begins &= letter.is_whitespace();
        match letter {
            '\'' | '"' => quote = Some(letter),
            '#' if is_first => return parts,
            // `2>&1` is no end.
            ';' | '|' | '&' if !(letter == '&' && line[..at].ends_with('>')) => {
                parts.push(&line[from..at]);
                (from, begins) = (at + 1, true);
            }
            _ => {}
        }
    }
    parts.push(&line[from..]);
    parts
}

fn command(text: &str) -> CallEffect {
    let mut words = text.split_whitespace().skip_while(|word| is_assignment(word) || matches!(*word, "sudo" | "time" | "(" | "{"));
    let Some(first) = words.next() else { return CallEffect::Looks };
    let name = first.rsplit('/').next().unwrap_or(first);
    if name == "sed" {
        return sed(text);
    }
    if name == "git" {
        return git(&words.filter(|word| !word.starts_with("--no-pager")).collect::<Vec<_>>());
    }
    if CHANGES.contains(&name) {
        return CallEffect::Changes;
    }
    if target(text).is_some() {
        return CallEffect::Changes;
    }
    if LOOKS.contains(&name) { CallEffect::Looks } else { CallEffect::Runs }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_'))
}

/// `sed -i 's/old/new/' file` is an edit; other changes in place are changes; without `-i` it looks.
fn sed(text: &str) -> CallEffect {
    if !text.split_whitespace().any(|word| word.starts_with("-i") || word == "--in-place") {
        return if target(text).is_some() { CallEffect::Changes } else { CallEffect::Looks };
    }
    let known = || -> Option<CallEffect> {
        let quote = text.find(['\'', '"'])?;
        let mark = text[quote..].chars().next()?;
        let script = text[quote + 1..].strip_prefix('s')?;
        let delimiter = script.chars().next()?;
        let mut parts = script[delimiter.len_utf8()..].split(delimiter);
        let (old, new) = (parts.next()?, parts.next()?);
        let (flags, file) = parts.next()?.split_once(mark)?;
        let mut files = file.split_whitespace();
        let file = files.next()?;
        let is_plain = parts.next().is_none() && files.next().is_none() && flags.chars().all(|flag| matches!(flag, 'g' | 'i' | 'I'));
        is_plain.then(|| CallEffect::Edits { file: xxh3_64(file.as_bytes()), by: lines(new).wrapping_sub(lines(old)) })
    };
    known().unwrap_or(CallEffect::Changes)
}

/// What brings files back is known as such; the rest changes or looks.
fn git(words: &[&str]) -> CallEffect {
    match words {
        ["checkout", "--", "."]
        | ["checkout" | "restore", "."]
        | ["reset", "--hard", ..]
        | ["stash"]
        | ["stash", "push" | "save" | "-u", ..] => CallEffect::Restores,
        ["checkout", "--", file] | ["checkout", "HEAD", "--", file] | ["restore", file] => original(file),
        ["checkout", file] if file.contains('.') || file.contains('/') => original(file),
        [first, ..] if GIT_LOOKS.contains(first) => CallEffect::Looks,
        [] => CallEffect::Looks,
        _ => CallEffect::Changes,
    }
}

fn original(file: &str) -> CallEffect {
    CallEffect::Writes { file: xxh3_64(file.as_bytes()), leaves: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> u64 {
        xxh3_64(name.as_bytes())
    }

    #[test]
    fn what_looks_what_runs_and_what_changes() {
        for script in [
            "ls -la",
            "cd /repo && grep -rn 'a > b; rm x' src | head -5",
            "git --no-pager diff HEAD",
            "sed -n '1,20p' a.py",
            "# a note\ncat a 2>/dev/null",
            "",
        ] {
            assert_eq!(effect(script), CallEffect::Looks, "{script}");
        }
        for script in [
            "python test.py",
            "cd /repo && python -m pytest tests 2>&1 | tail -3",
            "FLAG=1 ./run.sh",
            "python - <<'EOF'\nopen('x')\nEOF",
            "./a.out <<< 'x'",
        ] {
            assert_eq!(effect(script), CallEffect::Runs, "{script}");
        }
        for script in ["rm -rf build", "python gen.py > out.txt", "sed -i '5d' a.py", "git commit -am x", "ls && mv a b"] {
            assert_eq!(effect(script), CallEffect::Changes, "{script}");
        }
    }

    #[test]
    fn what_is_asked_of_a_database() {
        for script in ["SELECT a || b FROM t WHERE c > 1", "show tables;", "desc t", "EXPLAIN SELECT 1"] {
            assert_eq!(effect(script), CallEffect::Looks, "{script}");
        }
        for script in ["insert into t values (1)", "SELECT 1; DROP TABLE t", "truncate table t", "truncate -s 0 log"] {
            assert_eq!(effect(script), CallEffect::Changes, "{script}");
        }
        for script in ["show", "./select x", "python update.py"] {
            assert_eq!(effect(script), CallEffect::Runs, "{script}");
        }
    }

    /// A minute at least where each letter looks at all before it.
    #[test]
    fn a_long_line_is_read_once() {
        let (blanks, arrows) = (" ".repeat(1 << 20), "\"a\" -> ".repeat(1 << 17));
        assert_eq!(effect(&blanks), CallEffect::Looks);
        assert_eq!(effect(&format!("echo {arrows}")), CallEffect::Looks);
        assert_eq!(effect(&format!("ls '{}'", "<p>".repeat(1 << 18))), CallEffect::Looks);
    }

    #[test]
    fn files_that_are_written_edited_and_brought_back() {
        assert_eq!(effect("cat <<'EOF' > a.py\nx\nEOF"), CallEffect::Writes { file: file("a.py"), leaves: lines("x") });
        assert_eq!(effect("cat >> a.py << EOF\nx\nEOF\npython a.py"), CallEffect::Edits { file: file("a.py"), by: lines("x") });
        let (there, back) = (effect("sed -i 's/old/new/g' a.py"), effect("cd /repo && sed -i \"s|new|old|\" a.py"));
        let (CallEffect::Edits { file: one, by: there }, CallEffect::Edits { file: other, by: back }) = (there, back) else {
            panic!("{there:?} {back:?}")
        };
        assert_eq!((one, there.wrapping_add(back)), (other, 0));
        for script in ["git checkout a.py", "git checkout -- a.py", "git restore a.py && python t.py"] {
            assert_eq!(effect(script), CallEffect::Writes { file: file("a.py"), leaves: 0 }, "{script}");
        }
        for script in ["git stash", "git reset --hard HEAD", "git checkout ."] {
            assert_eq!(effect(script), CallEffect::Restores, "{script}");
        }
        assert_eq!(effect("git checkout main"), CallEffect::Changes);
    }
}
