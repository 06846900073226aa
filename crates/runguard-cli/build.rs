//! Which source this is: the commit and its day, for `runguard --version`.
//!
//! From git, when this is the clone of the project; from `source.txt`, which `git archive` fills in, when it was unpacked. Nothing is
//! asked of a repository that merely contains the folder, and without either the version says no commit.

use std::path::Path;
use std::process::Command;

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let root = Path::new(&folder).join("../..");
    println!("cargo:rerun-if-changed=source.txt");
    println!("cargo:rerun-if-changed=build.rs");
    let source = of_clone(&root).or_else(|| of_archive(Path::new(&folder))).unwrap_or_default();
    println!("cargo:rustc-env=RUNGUARD_SOURCE={source}");
}

/// `COMMIT DAY`, with a mark where the code differs from the commit.
fn of_clone(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // A commit moves one of these; a change of the code is seen in the folder.
    for name in ["HEAD", "logs/HEAD"] {
        let file = root.join(git(root, &["rev-parse", "--git-path", name])?);
        if file.exists() {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    }
    println!("cargo:rerun-if-changed={}", root.join("crates").display());
    let commit = shortened(&git(root, &["log", "-1", "--format=%H %cs"])?);
    let changed = git(root, &["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock", "dashboard"])?;
    let mark = if changed.is_empty() { "" } else { ", changed since" };
    Some(format!("{commit}{mark}"))
}

/// As `git archive` wrote it; in a clone it holds a placeholder.
fn of_archive(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("source.txt")).ok()?;
    let text = text.trim();
    (!text.contains('$') && !text.is_empty()).then(|| shortened(text))
}

/// Twelve digits of the commit. Git's own abbreviations are longer where a clone holds more; so every clone and archive names it alike.
fn shortened(commit_and_day: &str) -> String {
    let (commit, day) = commit_and_day.split_once(' ').unwrap_or((commit_and_day, ""));
    format!("{} {day}", &commit[..commit.len().min(12)])
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").arg("-C").arg(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
