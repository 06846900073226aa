//! One line a file, in ARCHITECTURE.md: what a file says of itself at its top.

use std::path::{Path, PathBuf};

const FOLDERS: &[(&str, &str)] = &[
    ("crates/runguard-core/src", "rs"),
    ("crates/runguard-guards/src", "rs"),
    ("crates/runguard-insight/src", "rs"),
    ("crates/runguard-store/src", "rs"),
    ("crates/runguard-engine/src", "rs"),
    ("crates/runguard-http/src", "rs"),
    ("crates/runguard-gateway/src", "rs"),
    ("crates/runguard-server/src", "rs"),
    ("crates/runguard-agent/src", "rs"),
    ("crates/runguard-replay/src", "rs"),
    ("crates/runguard-cli/src", "rs"),
    ("sdk/python/src", "rs"),
    ("sdk/python/python/runguard", "py"),
    ("sdk/typescript/wasm/src", "rs"),
    ("sdk/typescript/src", "ts"),
    ("dashboard", "js"),
];
/// They say what belongs to the whole of a package, not what is in the file.
const DOORS: &[&str] = &["lib.rs", "index.ts"];
/// The core as text, made when the package is built.
const BUILT: &str = "wasm-bytes.ts";
const BEGIN: &str = "<!-- files: made from the first sentence of each -->\n";

/// The document with the list in it.
pub(crate) fn listed(root: &Path, document: &str) -> String {
    let (before, _) = document.split_once(BEGIN).expect("the mark in ARCHITECTURE.md");
    let mut out = format!("{before}{BEGIN}");
    for (folder, extension) in FOLDERS {
        out += &format!("\n`{folder}`\n\n");
        let mut files = Vec::new();
        collect(&root.join(folder), extension, &mut files);
        files.sort();
        for file in files {
            let name = file.strip_prefix(root.join(folder)).expect("a file of the folder").display().to_string();
            let text = std::fs::read_to_string(&file).expect("a text");
            let sentence = first_sentence(&text).unwrap_or_else(|| panic!("{folder}/{name} does not say at its top what it is"));
            out += &format!("- `{name}`: {sentence}\n");
        }
    }
    out
}

fn collect(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["tests", "vendor", "__pycache__", "generated"].contains(&name.as_str()) {
                collect(&path, extension, files);
            }
        } else if path.extension().is_some_and(|known| known == extension)
            && name != "tests.rs"
            && !DOORS.contains(&name.as_str())
            && name != BUILT
        {
            files.push(path);
        }
    }
}

/// Of the comment that a file begins with.
fn first_sentence(text: &str) -> Option<String> {
    let mut words = String::new();
    for line in text.lines().take(12) {
        let line = line.trim();
        let said = ["//!", "//", "/**", "*", "\"\"\""].iter().find_map(|mark| line.strip_prefix(mark));
        let said = match said {
            Some(said) => said.trim(),
            None if words.is_empty() => return None,
            None => line,
        };
        let said = said.trim_end_matches("*/").trim_end_matches("\"\"\"").trim();
        if said.is_empty() && !words.is_empty() {
            break;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words += said;
        if let Some(end) = words.find(". ") {
            words.truncate(end);
            break;
        }
        if words.ends_with('.') {
            break;
        }
    }
    let sentence = words.trim().trim_end_matches('.').to_owned();
    (!sentence.is_empty()).then_some(sentence)
}

/// Names that the document says are in a file, and files that it names: a file between backticks, and right behind it names, as in
/// ``| what | `file` | `name`, `name` |`` and ``1. `file` `name` and `name`: …``.
pub(crate) fn names_in_files(root: &Path, document: &str) -> Vec<(PathBuf, Vec<String>)> {
    let (document, _) = document.split_once(BEGIN).expect("the mark in ARCHITECTURE.md");
    let mut known = Vec::new();
    every_file(root, &mut known);
    let mut said: Vec<(PathBuf, Vec<String>)> = Vec::new();
    for line in document.lines() {
        // What stands between backticks is every other part.
        let parts: Vec<&str> = line.split('`').collect();
        let mut is_behind_a_file = false;
        // A short name means a file beside the one that was named before it, where there is one.
        let mut beside: Option<PathBuf> = None;
        for (between, part) in parts.chunks_exact(2).map(|pair| (pair[0], pair[1])) {
            if is_file(part) {
                let file = find(&known, beside.as_deref(), part).unwrap_or_else(|| panic!("ARCHITECTURE.md names {part}: {line}"));
                beside = file.parent().map(Path::to_owned);
                said.push((root.join(file), Vec::new()));
                is_behind_a_file = true;
            } else if is_behind_a_file && [" ", " | ", ", ", " and "].contains(&between) {
                said.last_mut().expect("a file").1.extend(part.split("::").map(str::to_owned));
            } else {
                is_behind_a_file = false;
            }
        }
    }
    said
}

/// Not one that stands for many.
fn is_file(part: &str) -> bool {
    let endings = ["rs", "py", "ts", "js", "json", "toml", "lua", "md"];
    let is_one = |name: &str| name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_-/.".contains(letter));
    part.rsplit_once('.').is_some_and(|(name, ending)| !name.is_empty() && endings.contains(&ending) && is_one(name))
}

fn find<'a>(known: &'a [PathBuf], beside: Option<&Path>, named: &str) -> Option<&'a Path> {
    let at = |path: PathBuf| known.iter().find(|known| **known == path);
    let found = beside.and_then(|folder| at(folder.join(named))).or_else(|| at(Path::new("crates").join(named)));
    found.or_else(|| known.iter().find(|known| known.ends_with(named))).map(PathBuf::as_path)
}

/// What is there without having been built or fetched, by its path below the root.
fn every_file(root: &Path, known: &mut Vec<PathBuf>) {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if (!name.starts_with('.') || name == ".cargo") && !["target", "node_modules", "dist"].contains(&name.as_str()) {
                    folders.push(entry.path());
                }
            } else if let Ok(path) = entry.path().strip_prefix(root) {
                known.push(path.to_owned());
            }
        }
    }
    known.sort();
}
