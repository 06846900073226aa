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

/// Names that the document says are in a file: ``| what | `file` | `name`, `name` |`` and ``1. `file` `name`, `name`: …``.
pub(crate) fn names_in_files(document: &str) -> Vec<(String, Vec<String>)> {
    let (document, _) = document.split_once(BEGIN).expect("the mark in ARCHITECTURE.md");
    let line = |line: &str| {
        let after = line.split_once("`runguard-")?.1;
        let (file, names) = after.split_once('`')?;
        let names = if line.starts_with('|') { names } else { names.split_once(':')?.0 };
        let names = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        file.contains("/src/").then(|| (format!("crates/runguard-{file}"), names))
    };
    document.lines().filter_map(line).collect()
}
