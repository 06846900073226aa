//! The built-in tools, with real files, links, pipes, processes and servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use proptest::prelude::*;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use runguard_agent::tool::files::{ListDirectory, MAX_ENTRIES, MAX_READ_BYTES, MAX_WRITE_BYTES, ReadFile, WriteFile};
use runguard_agent::tool::http_get::{HttpGet, MAX_BODY_BYTES};
use runguard_agent::tool::shell::{MAX_OUTPUT_BYTES, Shell};
use runguard_agent::tool::{Effect, Tool, ToolOutput, ToolSet};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

async fn call(tool: &dyn Tool, arguments: Value) -> ToolOutput {
    // Nothing here may hang, whatever it is pointed at.
    tokio::time::timeout(Duration::from_secs(30), tool.call(&arguments, &CancellationToken::new())).await.expect("the tool hangs")
}

async fn ok(tool: &dyn Tool, arguments: Value) -> String {
    let output = call(tool, arguments).await;
    assert!(!output.is_error, "{}", output.text);
    output.text
}

async fn error(tool: &dyn Tool, arguments: Value) -> String {
    let output = call(tool, arguments.clone()).await;
    assert!(output.is_error, "{arguments} gave {}", output.text);
    output.text
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn specs_fit_together() {
    let folder = TempDir::new().unwrap();
    let mut set = ToolSet::new();
    set.add(Arc::new(ReadFile::new(folder.path(), &[]).unwrap())).unwrap();
    set.add(Arc::new(WriteFile::new(folder.path(), &[]).unwrap())).unwrap();
    set.add(Arc::new(ListDirectory::new(folder.path(), &[]).unwrap())).unwrap();
    set.add(Arc::new(Shell::new(folder.path()).unwrap())).unwrap();
    set.add(Arc::new(HttpGet::new(&[]).unwrap())).unwrap();
    let seen: Vec<_> = set.specs().iter().map(|spec| (spec.name.as_str(), spec.effect, spec.parallel)).collect();
    assert_eq!(
        seen,
        [
            ("read_file", Effect::ReadOnly, true),
            ("write_file", Effect::Changes, false),
            ("list_directory", Effect::ReadOnly, true),
            ("shell", Effect::Changes, false),
            ("http_get", Effect::ReadOnly, true),
        ]
    );
    for spec in set.specs() {
        assert_eq!(spec.input_schema["type"], "object");
        assert_eq!(spec.input_schema["additionalProperties"], false);
    }
    let missing = folder.path().join("missing");
    assert!(ReadFile::new(&missing, &[]).is_err() && Shell::new(&missing).is_err());
}

// ---------------------------------------------------------------------------------------------------------------------
// Files

const CANARY: &str = "the secret outside";

/// A root with files in it, beside a folder it must never touch, and every way out we could think of.
struct Grounds {
    top: TempDir,
    root: PathBuf,
    outside: PathBuf,
    read: ReadFile,
    write: WriteFile,
    list: ListDirectory,
}

impl Grounds {
    fn new() -> Self {
        let top = TempDir::new().unwrap();
        let (root, outside) = (top.path().join("root"), top.path().join("outside"));
        fs::create_dir_all(root.join("sub/deep")).unwrap();
        fs::create_dir_all(outside.join("sub")).unwrap();
        fs::write(root.join("plain.txt"), "one\ntwo\nthree\n").unwrap();
        fs::write(root.join("sub/inner.txt"), "inner").unwrap();
        fs::write(outside.join("secret.txt"), CANARY).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink("../outside/secret.txt", root.join("secret_link")).unwrap();
        symlink(outside.join("secret.txt"), root.join("absolute_link")).unwrap();
        symlink("../../outside", root.join("sub/out")).unwrap();
        symlink("sub/../../outside", root.join("winding")).unwrap();
        symlink("/", root.join("slash")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("loop_b", root.join("loop_a")).unwrap();
        symlink("loop_a", root.join("loop_b")).unwrap();
        symlink("../outside/made.txt", root.join("dangling")).unwrap();
        symlink("sub", root.join("inside_link")).unwrap();
        let (read, write, list) =
            (ReadFile::new(&root, &[]).unwrap(), WriteFile::new(&root, &[]).unwrap(), ListDirectory::new(&root, &[]).unwrap());
        Self { top, root, outside, read, write, list }
    }

    /// Everything outside the root, with its content and mode.
    fn snapshot(&self) -> BTreeMap<PathBuf, (u32, Option<String>)> {
        fn add(folder: &Path, root: &Path, found: &mut BTreeMap<PathBuf, (u32, Option<String>)>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                found.insert(path.clone(), (metadata.permissions().mode(), metadata.is_file().then(|| fs::read_to_string(&path).unwrap())));
                if metadata.is_dir() && path != root {
                    add(&path, root, found);
                }
            }
        }
        let mut found = BTreeMap::new();
        add(self.top.path(), &self.root, &mut found);
        found
    }
}

#[tokio::test]
async fn a_file_is_read_whole_or_in_pages() {
    let place = Grounds::new();
    assert_eq!(ok(&place.read, json!({"path": "plain.txt"})).await, "one\ntwo\nthree\n");
    assert_eq!(ok(&place.read, json!({"path": "./sub/../plain.txt", "offset": 3})).await, "three\n");
    assert_eq!(
        ok(&place.read, json!({"path": "plain.txt", "offset": null, "limit": 2})).await,
        "one\ntwo\n[lines 1 to 2 are shown; go on with offset 3]"
    );
    assert_eq!(
        ok(&place.read, json!({"path": "plain.txt", "offset": 2, "limit": 1})).await,
        "two\n[lines 2 to 2 are shown; go on with offset 3]"
    );
    assert_eq!(error(&place.read, json!({"path": "plain.txt", "offset": 9})).await, "'offset' 9 is past the end: 'plain.txt' has 3 lines");
    // Named from the outside, as the model may have seen it.
    let absolute = place.root.join("sub/inner.txt");
    assert_eq!(ok(&place.read, json!({"path": absolute.to_str().unwrap()})).await, "inner");
    assert_eq!(ok(&place.read, json!({"path": "inside_link/inner.txt"})).await, "inner");

    fs::write(place.root.join("empty"), "").unwrap();
    assert_eq!(ok(&place.read, json!({"path": "empty"})).await, "['empty' is empty]");
    fs::write(place.root.join("binary"), b"\x7fELF\0\x01").unwrap();
    assert!(error(&place.read, json!({"path": "binary"})).await.contains("is a binary file of 6 bytes"));
    fs::write(place.root.join("latin"), b"caf\xe9\n").unwrap();
    let text = ok(&place.read, json!({"path": "latin"})).await;
    assert!(text.starts_with("caf\u{fffd}\n[this file is not UTF-8"), "{text}");
    assert!(error(&place.read, json!({"path": "missing.txt"})).await.contains("does not exist: list_directory"));
    assert!(error(&place.read, json!({"path": "sub"})).await.contains("is a folder: list_directory"));
    assert!(error(&place.read, json!({"path": "plain.txt/x"})).await.contains("is a file and not a folder"));
}

#[tokio::test]
async fn a_long_file_is_read_to_its_end_page_by_page() {
    let place = Grounds::new();
    let whole = (1..=60_000).fold(String::new(), |text, number| text + &format!("line {number} with some text in it é\n"));
    assert!(whole.len() > 2 * MAX_READ_BYTES - 200_000);
    fs::write(place.root.join("long.txt"), &whole).unwrap();
    for most_bytes in [MAX_READ_BYTES, 700_000] {
        let read = ReadFile::new(&place.root, &[]).unwrap().with_most_bytes(most_bytes);
        let (mut joined, mut offset) = (String::new(), 1_u64);
        loop {
            let text = ok(&read, json!({"path": "long.txt", "offset": offset})).await;
            assert!(text.len() <= most_bytes, "{} bytes", text.len());
            let Some((page, note)) = text.rsplit_once("[lines ") else {
                joined.push_str(&text);
                break;
            };
            joined.push_str(page);
            offset = note.trim_end_matches(']').rsplit(' ').next().unwrap().parse().unwrap();
        }
        assert!(joined == whole, "the pages are not the file");
    }
    // One endless line: its beginning, cut between characters.
    fs::write(place.root.join("line.txt"), format!("{}\nnext\n", "é".repeat(MAX_READ_BYTES))).unwrap();
    let text = ok(&place.read, json!({"path": "line.txt"})).await;
    assert!(text.len() <= MAX_READ_BYTES && !text.contains('\u{fffd}'));
    assert!(text.ends_with("bytes of line 1 are shown; the next line has offset 2]"));
    assert_eq!(ok(&place.read, json!({"path": "line.txt", "offset": 2})).await, "next\n");
}

#[tokio::test]
async fn wrong_arguments_are_told() {
    let place = Grounds::new();
    for (tool, arguments, told) in [
        (&place.read as &dyn Tool, json!([]), "the arguments must be an object"),
        (&place.read, json!({}), "'path' is missing"),
        (&place.read, json!({"path": 1}), "'path' must be a string, not a number"),
        (&place.read, json!({"path": ""}), "'path' must be 1 to 4096 bytes long"),
        (&place.read, json!({"path": "a\0b"}), "without a zero byte"),
        (&place.read, json!({"path": "x".repeat(5000)}), "'path' must be 1 to 4096 bytes long"),
        (&place.read, json!({"path": "x", "ofset": 1}), "there is no argument 'ofset': this tool takes 'path', 'offset', 'limit'"),
        (&place.read, json!({"path": "x", "offset": 0}), "'offset' must be a whole number of at least 1, not 0"),
        (&place.read, json!({"path": "x", "limit": "9"}), "'limit' must be a whole number of at least 1, not a string"),
        (&place.write, json!({"path": "x"}), "'content' is missing"),
        (
            &place.write,
            json!({"path": "x", "content": "", "mode": "w"}),
            "'mode' must be \"create\", \"overwrite\" or \"append\", not \"w\"",
        ),
        (&place.write, json!({"path": "x/", "content": ""}), "names a folder"),
        (&place.write, json!({"path": "..", "content": ""}), "names a folder"),
        (&place.write, json!({"path": "x", "content": "a".repeat(MAX_WRITE_BYTES + 1)}), "'content' is 4194305 bytes long"),
        (&place.list, json!({"depth": 6}), "'depth' must be a whole number from 1 to 5, not 6"),
        (&place.list, json!({"path": true}), "'path' must be a string, not true or false"),
    ] {
        let text = error(tool, arguments).await;
        assert!(text.contains(told), "{text}");
    }
    assert!(!place.root.join("x").exists());
}

#[tokio::test]
async fn nothing_leads_out_of_the_root() {
    let place = Grounds::new();
    let before = place.snapshot();
    let absolute = place.outside.join("secret.txt");
    let doubled = format!("{}/../outside/secret.txt", place.root.display());
    for path in [
        "../outside/secret.txt",
        "sub/../../outside/secret.txt",
        "sub/deep/../../../outside/secret.txt",
        "out/secret.txt",
        "./out//secret.txt",
        "sub/out/secret.txt",
        "inside_link/out/secret.txt",
        "winding/secret.txt",
        "up/outside/secret.txt",
        "secret_link",
        "absolute_link",
        "dangling",
        "loop_a",
        "loop_a/x",
        "slash/etc/passwd",
        "/etc/passwd",
        "/dev/zero",
        "/proc/self/environ",
        "//etc/passwd",
        "~/.ssh/id_rsa",
        absolute.to_str().unwrap(),
        &doubled,
    ] {
        let text = error(&place.read, json!({"path": path})).await;
        assert!(!text.contains(CANARY), "{path}: {text}");
    }
    assert!(error(&place.read, json!({"path": "../outside/secret.txt"})).await.contains("leads outside the folder"));
    assert!(error(&place.read, json!({"path": "absolute_link"})).await.contains("leads outside the folder"));

    for path in [
        "../outside/made.txt",
        "../made.txt",
        "out/made.txt",
        "out/new/made.txt",
        "sub/out/made.txt",
        "winding/made.txt",
        "up/made.txt",
        "secret_link",
        "absolute_link",
        "dangling",
        "loop_a",
        "loop_a/x",
        "slash/runguard-made.txt",
        "/runguard-made.txt",
        absolute.to_str().unwrap(),
        &doubled,
    ] {
        for mode in ["create", "overwrite", "append"] {
            error(&place.write, json!({"path": path, "content": "made", "mode": mode})).await;
        }
    }
    assert!(!Path::new("/runguard-made.txt").exists());
    for path in ["..", "out", "sub/out", "winding", "up", "slash", "/", "/etc", "../outside", "loop_a"] {
        let text = error(&place.list, json!({"path": path})).await;
        assert!(!text.contains("secret.txt"), "{path}: {text}");
    }
    assert_eq!(place.snapshot(), before);
}

/// A link put in the place of a folder between the check and the opening.
#[test]
fn exchanging_folders_for_links_leads_nowhere() {
    let place = Grounds::new();
    // In the outside folder stand the same names as in the one exchanged.
    fs::create_dir(place.root.join("door")).unwrap();
    fs::write(place.root.join("door/secret.txt"), "harmless").unwrap();
    symlink("../outside", place.root.join("other")).unwrap();
    let before = place.snapshot();
    let over = Arc::new(AtomicBool::new(false));
    let (root, stop) = (place.root.clone(), Arc::clone(&over));
    let swapper = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            renameat_with(CWD, root.join("door"), CWD, root.join("other"), RenameFlags::EXCHANGE).unwrap();
        }
    });
    let (mut read, mut refused, mut written) = (0, 0, 0);
    runtime().block_on(async {
        for turn in 0..400 {
            let output = call(&place.read, json!({"path": "door/secret.txt"})).await;
            assert!(!output.text.contains(CANARY), "{}", output.text);
            if output.is_error {
                refused += 1;
            } else {
                read += 1;
            }
            let mode = ["overwrite", "append", "create"][turn % 3];
            let path = if turn % 3 == 2 { format!("door/made-{turn}/x.txt") } else { format!("door/made-{}.txt", turn % 2) };
            written += u32::from(!call(&place.write, json!({"path": path, "content": "made", "mode": mode})).await.is_error);
            let output = call(&place.list, json!({"path": "door", "depth": 2})).await;
            assert!(output.is_error || !output.text.contains("sub/"), "{}", output.text);
        }
    });
    over.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert_eq!(place.snapshot(), before);
    assert!(read > 0 && refused > 0 && written > 0, "the race was not run: {read} read, {refused} refused, {written} written");
}

#[tokio::test]
async fn pipes_sockets_and_devices_are_refused_at_once() {
    let place = Grounds::new();
    mknodat(CWD, place.root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _listener = UnixListener::bind(place.root.join("socket")).unwrap();
    for path in ["pipe", "socket"] {
        let started = Instant::now();
        assert!(error(&place.read, json!({"path": path})).await.contains("not a regular file"));
        for mode in ["create", "overwrite", "append"] {
            assert!(error(&place.write, json!({"path": path, "content": "x", "mode": mode})).await.contains("not a regular file"));
        }
        error(&place.list, json!({"path": path})).await;
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    // With somebody at the other end it opens, and is still no file.
    let _reader =
        rustix::fs::open(place.root.join("pipe"), rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK, Mode::empty()).unwrap();
    assert!(error(&place.read, json!({"path": "pipe"})).await.contains("is a pipe and not a regular file"));
    let listed = ok(&place.list, json!({})).await;
    assert!(listed.contains("pipe  a pipe\n") && listed.contains("socket  a socket\n"), "{listed}");
    // Making a device takes rights the test may not have.
    if mknodat(CWD, place.root.join("zero"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 5)).is_ok() {
        error(&place.read, json!({"path": "zero"})).await;
    }
}

#[tokio::test]
async fn writing_replaces_the_whole_file_and_keeps_its_mode() {
    let place = Grounds::new();
    let path = place.root.join("plain.txt");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4750)).unwrap();
    let old = fs::File::open(&path).unwrap();
    assert_eq!(ok(&place.write, json!({"path": "plain.txt", "content": "four\n"})).await, "replaced 'plain.txt': 5 bytes written");
    assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
    // The mode stays; the bit that lends rights does not.
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
    // Whoever has the old file open reads it to its end.
    assert_eq!(std::io::read_to_string(old).unwrap(), "one\ntwo\nthree\n");

    assert_eq!(
        ok(&place.write, json!({"path": "plain.txt", "content": "five\n", "mode": "append"})).await,
        "appended 5 bytes to 'plain.txt'"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "four\nfive\n");
    assert!(error(&place.write, json!({"path": "plain.txt", "content": "x", "mode": "create"})).await.contains("exists already"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "four\nfive\n");

    assert_eq!(
        ok(&place.write, json!({"path": "made/on/the/way.txt", "content": "é", "mode": "create"})).await,
        "created 'made/on/the/way.txt': 2 bytes written"
    );
    assert_eq!(fs::read_to_string(place.root.join("made/on/the/way.txt")).unwrap(), "é");
    ok(&place.write, json!({"path": "made/log", "content": "first\n", "mode": "append"})).await;
    assert_eq!(fs::read_to_string(place.root.join("made/log")).unwrap(), "first\n");
    let absolute = place.root.join("made/absolute");
    ok(&place.write, json!({"path": absolute.to_str().unwrap(), "content": "a".repeat(MAX_WRITE_BYTES)})).await;
    assert_eq!(fs::metadata(absolute).unwrap().len(), MAX_WRITE_BYTES as u64);
    ok(&place.write, json!({"path": "inside_link/through.txt", "content": "x"})).await;
    assert_eq!(fs::read_to_string(place.root.join("sub/through.txt")).unwrap(), "x");

    assert!(error(&place.write, json!({"path": "sub", "content": "x"})).await.contains("is a folder"));
    assert!(error(&place.write, json!({"path": "plain.txt/below", "content": "x"})).await.contains("plain.txt"));
    assert!(error(&place.write, json!({"path": "inside_link", "content": "x"})).await.contains("write to the file it leads to"));
    let listed = ok(&place.list, json!({"depth": 5})).await;
    assert!(!listed.contains(".runguard-"), "a draft was left: {listed}");

    let cancel = CancellationToken::new();
    cancel.cancel();
    let output = place.write.call(&json!({"path": "plain.txt", "content": "late"}), &cancel).await;
    assert!(output.is_error);
    assert_eq!(fs::read_to_string(&path).unwrap(), "four\nfive\n");
}

#[tokio::test]
async fn listing_is_sorted_bounded_and_follows_no_link() {
    let top = TempDir::new().unwrap();
    let root = top.path();
    fs::create_dir_all(root.join("b/c/d/e/f/g")).unwrap();
    fs::write(root.join("a.txt"), "12345").unwrap();
    fs::write(root.join("b/c/x"), "").unwrap();
    fs::write(root.join("line\nbreak"), "").unwrap();
    symlink("b", root.join("to_b")).unwrap();
    let list = ListDirectory::new(root, &[]).unwrap();
    assert_eq!(ok(&list, json!({})).await, "a.txt  5 bytes\nb/\nline\\nbreak  0 bytes\nto_b  a symbolic link to 'b'");
    assert_eq!(ok(&list, json!({"path": "b"})).await, "c/");
    assert_eq!(ok(&list, json!({"path": "b", "depth": 2})).await, "c/\nc/d/\nc/x  0 bytes");
    assert_eq!(ok(&list, json!({"path": "b", "depth": 5})).await, "c/\nc/d/\nc/d/e/\nc/d/e/f/\nc/d/e/f/g/\nc/x  0 bytes");
    assert_eq!(ok(&list, json!({"path": "b/c/d/e/f/g"})).await, "['b/c/d/e/f/g' is an empty folder]");
    assert!(error(&list, json!({"path": "missing"})).await.contains("does not exist"));
    error(&list, json!({"path": "a.txt"})).await;

    fs::create_dir_all(root.join("many/0000_folder")).unwrap();
    for number in 1..=MAX_ENTRIES + 2 {
        fs::write(root.join(format!("many/{number:04}")), "").unwrap();
    }
    fs::write(root.join("many/0000_folder/inner"), "").unwrap();
    let listed = ok(&list, json!({"path": "many"})).await;
    assert_eq!(listed.lines().nth(MAX_ENTRIES - 1), Some("0999  0 bytes"));
    assert!(listed.lines().nth(MAX_ENTRIES).unwrap().starts_with("[3 further entries"));
    let listed = ok(&list, json!({"path": "many", "depth": 2})).await;
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), MAX_ENTRIES + 1);
    assert_eq!(&lines[..3], ["0000_folder/", "0000_folder/inner  0 bytes", "0001  0 bytes"]);
    assert_eq!(lines[MAX_ENTRIES - 1], "0998  0 bytes");
    assert_eq!(lines[MAX_ENTRIES], "[4 further entries are not shown: list a folder further down, or less depth]");
}

fn path_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => Just("..".to_owned()),
        1 => Just(".".to_owned()),
        1 => Just(String::new()),
        6 => prop::sample::select(vec![
            "out", "sub", "deep", "up", "winding", "slash", "secret_link", "absolute_link", "dangling", "inside_link", "loop_a", "outside",
            "root", "secret.txt", "plain.txt", "made.txt",
        ])
        .prop_map(str::to_owned),
        1 => "[ -~é\\\\]{1,8}",
        1 => any::<String>(),
    ];
    (prop_oneof![6 => Just("rel"), 1 => Just("root"), 1 => Just("outside"), 1 => Just("top")], prop::collection::vec(part, 1..7))
        .prop_map(|(start, parts)| format!("{start}\u{1}{}", parts.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the path is, nothing outside the root is read, listed, written or made.
    #[test]
    fn no_path_leads_out(paths in prop::collection::vec(path_text(), 1..4)) {
        let place = Grounds::new();
        let before = place.snapshot();
        runtime().block_on(async {
            for path in paths {
                let (start, rest) = path.split_once('\u{1}').unwrap();
                let path = match start {
                    "root" => format!("{}/{rest}", place.root.display()),
                    "outside" => format!("{}/{rest}", place.outside.display()),
                    "top" => format!("{}/{rest}", place.top.path().display()),
                    _ => rest.to_owned(),
                };
                let output = call(&place.read, json!({"path": path})).await;
                prop_assert!(!output.text.contains(CANARY), "{} reads {}", path, output.text);
                let output = call(&place.list, json!({"path": path, "depth": 3})).await;
                prop_assert!(output.is_error || !output.text.lines().any(|line| line.contains("secret.txt") && line.contains("18 bytes")), "{} lists {}", path, output.text);
                for mode in ["append", "create", "overwrite"] {
                    call(&place.write, json!({"path": path, "content": "made", "mode": mode})).await;
                }
            }
            Ok(())
        })?;
        prop_assert_eq!(place.snapshot(), before);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Shell

fn is_alive(pid: &str) -> bool {
    // A zombie runs no longer; who reaps it is the affair of whoever started the test.
    fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

/// The kernel needs a moment to take a killed process away.
async fn gone(pid: &str) -> bool {
    for _ in 0..500 {
        if !is_alive(pid) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

/// A shell that starts a grandchild, says who it is, and waits.
const FAMILY: &str = "sh -c 'sleep 300 & echo $! > grandchild; wait' & echo $! > child; echo started; echo $$ > shell; wait";

async fn family(root: &Path) -> Vec<String> {
    let names = ["shell", "child", "grandchild"];
    for _ in 0..1000 {
        let found: Vec<String> =
            names.iter().filter_map(|name| fs::read_to_string(root.join(name)).ok()).filter(|pid| pid.ends_with('\n')).collect();
        if found.len() == names.len() {
            assert!(found.iter().all(|pid| is_alive(pid)));
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the processes did not start");
}

#[tokio::test]
async fn a_command_gives_its_output_and_exit_code() {
    let folder = TempDir::new().unwrap();
    let shell = Shell::new(folder.path()).unwrap();
    fs::write(folder.path().join("here.txt"), "in the root").unwrap();
    assert_eq!(ok(&shell, json!({"command": "cat here.txt"})).await, "in the root\n[exit code 0]");
    assert_eq!(ok(&shell, json!({"command": "true"})).await, "[exit code 0]");
    assert_eq!(ok(&shell, json!({"command": "echo a; echo b >&2; echo c; echo d >&2"})).await, "a\nb\nc\nd\n[exit code 0]");
    assert_eq!(error(&shell, json!({"command": "echo bad; exit 3"})).await, "bad\n[exit code 3]");
    assert_eq!(error(&shell, json!({"command": "kill -9 $$"})).await, "[killed by signal 9]");
    assert!(error(&shell, json!({"command": "no-such-command-at-all"})).await.contains("[exit code 127]"));
    // Nobody answers: reading ends at once.
    assert_eq!(ok(&shell, json!({"command": "cat; echo done"})).await, "done\n[exit code 0]");
    assert_eq!(ok(&shell, json!({"command": "printf '\\377\\n'"})).await, "\u{fffd}\n[exit code 0]");
    for (arguments, told) in [
        (json!({}), "'command' is missing"),
        (json!({"command": " "}), "'command' must be 1 to"),
        (json!({"command": "a\0b"}), "without a zero byte"),
        (json!({"command": "true", "timeout_seconds": 601}), "'timeout_seconds' must be a whole number from 1 to 600, not 601"),
        (json!({"command": "true", "timeout": 1}), "there is no argument 'timeout'"),
    ] {
        let text = error(&shell, arguments).await;
        assert!(text.contains(told), "{text}");
    }
}

#[tokio::test]
async fn output_without_end_is_bounded() {
    let folder = TempDir::new().unwrap();
    let shell = Shell::new(folder.path()).unwrap();
    let text = ok(&shell, json!({"command": "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last"})).await;
    assert!(text.starts_with("first\nxxx") && text.ends_with("xxx\nlast\n[exit code 0]"));
    assert!(text.contains(" bytes left out …]") && text.len() < MAX_OUTPUT_BYTES + 200);
    let text = error(&shell, json!({"command": "yes", "timeout_seconds": 1})).await;
    assert!(text.ends_with("y\n[killed after 1 seconds: `timeout_seconds` may be up to 600]") && text.len() < MAX_OUTPUT_BYTES + 200);
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_with_all_it_started() {
    let folder = TempDir::new().unwrap();
    let shell = Shell::new(folder.path()).unwrap();
    let arguments = json!({"command": FAMILY, "timeout_seconds": 2});
    let (text, pids) = tokio::join!(error(&shell, arguments), family(folder.path()));
    assert_eq!(text, "started\n[killed after 2 seconds: `timeout_seconds` may be up to 600]");
    for pid in pids {
        assert!(gone(&pid).await, "{pid} outlived its command");
    }
}

#[tokio::test]
async fn cancelling_kills_all_of_it() {
    let folder = TempDir::new().unwrap();
    let shell = Shell::new(folder.path()).unwrap();
    let cancel = CancellationToken::new();
    let arguments = json!({"command": FAMILY});
    let cancelled = async {
        let pids = family(folder.path()).await;
        cancel.cancel();
        pids
    };
    let (output, pids) = tokio::join!(shell.call(&arguments, &cancel), cancelled);
    assert_eq!(output, ToolOutput::error("started\n[killed: the run was cancelled]"));
    for pid in pids {
        assert!(gone(&pid).await, "{pid} outlived its command");
    }
    // Too late to start.
    fs::remove_file(folder.path().join("shell")).unwrap();
    assert!(shell.call(&arguments, &cancel).await.is_error && !folder.path().join("shell").exists());
}

#[tokio::test]
async fn dropping_the_call_kills_all_of_it() {
    let folder = TempDir::new().unwrap();
    let shell = Shell::new(folder.path()).unwrap();
    let cancel = CancellationToken::new();
    let arguments = json!({"command": FAMILY});
    let pids = tokio::select! {
        output = shell.call(&arguments, &cancel) => panic!("{}", output.text),
        pids = family(folder.path()) => pids,
    };
    for pid in pids {
        assert!(gone(&pid).await, "{pid} outlived its command");
    }
}

#[tokio::test]
async fn background_processes_end_with_the_command() {
    let folder = TempDir::new().unwrap();
    let shell = Shell::new(folder.path()).unwrap();
    let started = Instant::now();
    let text = ok(&shell, json!({"command": "sleep 300 & echo $! > pid; echo left"})).await;
    assert_eq!(text, "left\n[exit code 0]");
    assert!(gone(&fs::read_to_string(folder.path().join("pid")).unwrap()).await);
    // One that left the group keeps the pipe, and still does not keep the call.
    let command = "setsid sh -c 'echo $$ > escaped; exec sleep 300' & until [ -s escaped ]; do sleep 0.01; done; echo left";
    let text = ok(&shell, json!({"command": command})).await;
    let escaped: i32 = fs::read_to_string(folder.path().join("escaped")).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(escaped).unwrap(), rustix::process::Signal::KILL).unwrap();
    assert_eq!(text, "left\n[exit code 0]");
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// Runs one test of this file in a process of its own, with other variables.
fn again(test: &str, variables: &[(&str, &str)]) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tools::{test}"), "--nocapture"])
        .env("RUNGUARD_INNER", "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn is_inner() -> bool {
    std::env::var_os("RUNGUARD_INNER").is_some()
}

#[test]
fn secrets_do_not_reach_the_command() {
    if is_inner() {
        let shell = Shell::new(Path::new(".")).unwrap();
        println!("{}", runtime().block_on(ok(&shell, json!({"command": "env"}))));
        return;
    }
    let text = again(
        "secrets_do_not_reach_the_command",
        &[
            ("OPENAI_API_KEY", "canary-1"),
            ("my_secret", "canary-2"),
            ("DATABASE_URL", "postgres://u:canary-3@h/d"),
            ("HARMLESS", "passed-on"),
        ],
    );
    assert!(text.contains("HARMLESS=passed-on") && text.contains("PATH="), "{text}");
    assert!(!text.contains("canary-"), "{text}");
}

// ---------------------------------------------------------------------------------------------------------------------
// http_get

/// Answers every path with what `answer` makes of it, one request a connection.
async fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
                while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                    match stream.read(&mut chunk).await {
                        Ok(read @ 1..) => request.extend_from_slice(&chunk[..read]),
                        Ok(_) | Err(_) => return,
                    }
                }
                let request = String::from_utf8(request).unwrap();
                let _ = stream.write_all(&answer(request.split(' ').nth(1).unwrap())).await;
            });
        }
    });
    address
}

fn response(status: &str, content_type: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len()).into_bytes();
    if !content_type.is_empty() {
        bytes.extend_from_slice(format!("content-type: {content_type}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

fn redirect(location: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nconnection: close\r\ncontent-length: 0\r\nlocation: {location}\r\n\r\n").into_bytes()
}

/// Listens and never accepts: whoever connects waits in its queue, to be counted.
struct Trap(TcpListener);

impl Trap {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    fn connections(&self) -> usize {
        std::iter::from_fn(|| self.0.accept().ok()).count()
    }
}

/// Answers every name with the same addresses.
#[derive(Debug)]
struct Answers(Vec<IpAddr>);

impl Resolve for Answers {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Vec<SocketAddr> = self.0.iter().map(|&address| SocketAddr::new(address, 0)).collect();
        Box::pin(async move { Ok(Box::new(addresses.into_iter()) as Addrs) })
    }
}

fn answers(addresses: &[&str]) -> Arc<Answers> {
    Arc::new(Answers(addresses.iter().map(|address| address.parse().unwrap()).collect()))
}

#[tokio::test]
async fn pages_are_fetched_and_shown_as_text() {
    let address = serve(|path| match path {
        "/html" => response("200 OK", "text/html; charset=utf-8", "<title>T</title><script>evil()</script><p>Tom &amp; <b>Jerry</b></p>"),
        "/json" => response("200 OK", "application/json", "{\"a\":  1}"),
        "/untyped" => response("200 OK", "", "plain"),
        "/untyped-binary" => response("200 OK", "", b"a\0b"),
        "/empty" => response("200 OK", "text/plain", ""),
        "/pdf" => response("200 OK", "application/pdf", "%PDF-1.7"),
        "/long" => response("200 OK", "text/plain", "a".repeat(MAX_BODY_BYTES + 1)),
        "/full" => response("200 OK", "text/plain", "a".repeat(MAX_BODY_BYTES)),
        "/broken" => response("500 Internal Server Error", "text/plain", format!("why: {}", "x".repeat(9000))),
        "/moved" => redirect("elsewhere?x=1"),
        "/elsewhere?x=1" => response("200 OK", "text/plain", "arrived"),
        "/again" => redirect("/again"),
        "/lost" => redirect("http://"),
        path if path.starts_with("/hops/") => match path.trim_start_matches("/hops/").parse::<u32>().unwrap() {
            0 => response("200 OK", "text/plain", "landed"),
            more => redirect(&format!("/hops/{}", more - 1)),
        },
        "/cut" => b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf".to_vec(),
        _ => response("404 Not Found", "text/plain", "no such page"),
    })
    .await;
    let tool = HttpGet::new(&[address.to_string()]).unwrap();
    let url = |path: &str| json!({"url": format!("http://{address}{path}")});

    assert_eq!(ok(&tool, url("/html")).await, format!("HTTP 200 OK · text/html · http://{address}/html\n\nT\n\nTom & Jerry"));
    assert_eq!(ok(&tool, url("/json")).await, format!("HTTP 200 OK · application/json · http://{address}/json\n\n{{\"a\":  1}}"));
    assert!(ok(&tool, url("/untyped")).await.ends_with("\n\nplain"));
    assert!(ok(&tool, url("/empty")).await.ends_with("\n\n[no text]"));
    assert!(error(&tool, url("/untyped-binary")).await.ends_with("[the body is not text (3 bytes) and is not shown]"));
    let text = error(&tool, url("/pdf")).await;
    assert!(text.contains("· application/pdf ·") && text.ends_with("[the body is not text (8 bytes) and is not shown]"), "{text}");
    assert!(!ok(&tool, url("/full")).await.contains("[cut"));
    let text = ok(&tool, url("/long")).await;
    assert!(
        text.ends_with(&format!("a\n[cut: only the first {MAX_BODY_BYTES} bytes of the body were read]"))
            && text.len() < MAX_BODY_BYTES + 300
    );
    let text = ok(&tool, json!({"url": format!("http://{address}/long"), "max_bytes": 10})).await;
    assert!(text.ends_with("\n\naaaaaaaaaa\n[cut: only the first 10 bytes of the body were read]"), "{text}");
    let text = error(&tool, url("/broken")).await;
    assert!(text.starts_with("HTTP 500") && text.contains("why: xxx") && text.len() < 5000, "{text}");
    assert!(error(&tool, url("/nowhere")).await.ends_with("no such page"));

    assert_eq!(ok(&tool, url("/moved")).await, format!("HTTP 200 OK · text/plain · http://{address}/elsewhere?x=1\n\narrived"));
    assert!(ok(&tool, url("/hops/5")).await.ends_with("landed"));
    assert!(error(&tool, url("/hops/6")).await.contains("more than 5 redirects"));
    assert!(error(&tool, url("/again")).await.contains("more than 5 redirects"));
    assert!(error(&tool, url("/lost")).await.contains("not a URL"));
    assert!(error(&tool, url("/cut")).await.starts_with(&format!("cannot fetch http://{address}/cut:")));
    // TLS against a server that speaks none: an error with a cause, not a panic for want of a crypto provider.
    let text = error(&tool, json!({"url": format!("https://{address}/html")})).await;
    assert!(text.contains("cannot connect:"), "{text}");
}

#[tokio::test]
async fn private_addresses_are_refused_without_a_connection() {
    let trap = Trap::new();
    let port = trap.port();
    let tool = HttpGet::new(&[]).unwrap();
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "127.0.0.1.",
        "127.255.0.9",
        "0.0.0.0",
        "0",
        "①②⑦.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
    ] {
        let text = error(&tool, json!({"url": format!("http://{host}:{port}/")})).await;
        assert!(text.contains("is not an address of the public internet"), "{host}: {text}");
        error(&tool, json!({"url": format!("https://{host}:{port}/")})).await;
    }
    for (url, told) in [
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "is not an address of the public internet"),
        ("http://[fd00:ec2::254]/".to_owned(), "is not an address of the public internet"),
        ("http://10.0.0.1/".to_owned(), "is not an address of the public internet"),
        (format!("http://user:word@127.0.0.1:{port}/"), "must not carry a user name or password"),
        (format!("http://user@127.0.0.1:{port}/"), "must not carry a user name or password"),
        ("file:///etc/passwd".to_owned(), "only http and https"),
        (format!("gopher://127.0.0.1:{port}/x"), "only http and https"),
        (format!("127.0.0.1:{port}"), "'url' is not a URL"),
        ("http://".to_owned(), "'url' is not a URL"),
        (format!("http://{}/", "a".repeat(9000)), "'url' is 9008 bytes long"),
    ] {
        let text = error(&tool, json!({"url": url})).await;
        assert!(text.contains(told), "{url}: {text}");
    }
    for (arguments, told) in [
        (json!({}), "'url' is missing"),
        (json!({"url": 1}), "'url' must be a string"),
        (json!({"url": "http://x", "max_bytes": 0}), "'max_bytes' must be a whole number from 1 to 262144, not 0"),
        (json!({"url": "http://x", "method": "POST"}), "there is no argument 'method'"),
    ] {
        let text = error(&tool, arguments).await;
        assert!(text.contains(told), "{text}");
    }
    assert_eq!(trap.connections(), 0);
    // The trap does count.
    let _connection = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(trap.connections(), 1);
}

#[tokio::test]
async fn a_name_with_a_private_address_is_refused_without_a_connection() {
    let trap = Trap::new();
    let port = trap.port();
    for addresses in [&["127.0.0.1"][..], &["93.184.216.34", "127.0.0.1"], &["::1"], &["::ffff:127.0.0.1"], &["2606:4700::1", "10.0.0.1"]] {
        let tool = HttpGet::with_resolver(&[], answers(addresses)).unwrap();
        let text = error(&tool, json!({"url": format!("http://innocent.example:{port}/")})).await;
        assert!(text.starts_with("innocent.example leads to ") && text.contains("is not an address of the public internet"), "{text}");
    }
    assert_eq!(trap.connections(), 0);
    // The same name, when it is allowed, goes where the resolver says.
    let address = serve(|_| response("200 OK", "text/plain", "inside")).await;
    let allowed = format!("innocent.example:{}", address.port());
    let tool = HttpGet::with_resolver(std::slice::from_ref(&allowed), answers(&["127.0.0.1"])).unwrap();
    assert!(ok(&tool, json!({"url": format!("http://{allowed}/")})).await.ends_with("inside"));
    error(&tool, json!({"url": format!("http://innocent.example:{port}/")})).await;
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn redirects_are_checked_like_the_first_url() {
    let trap = Trap::new();
    let port = trap.port();
    let address = serve(move |path| match path {
        "/literal" => redirect(&format!("http://127.0.0.1:{port}/")),
        "/odd" => redirect(&format!("//0x7f.1:{port}/")),
        "/name" => redirect(&format!("http://localhost:{port}/")),
        "/rebound" => redirect(&format!("http://rebound.example:{port}/")),
        "/credentials" => redirect(&format!("http://user:word@127.0.0.1:{port}/")),
        "/file" => redirect("file:///etc/passwd"),
        _ => response("404 Not Found", "", ""),
    })
    .await;
    let system = HttpGet::new(&[address.to_string()]).unwrap();
    let rebinding = HttpGet::with_resolver(&[address.to_string()], answers(&["127.0.0.1"])).unwrap();
    for (tool, path, told) in [
        (&system, "/literal", "127.0.0.1 is not an address of the public internet"),
        (&system, "/odd", "127.0.0.1 is not an address of the public internet"),
        (&system, "/name", "is not an address of the public internet"),
        (&rebinding, "/rebound", "rebound.example leads to 127.0.0.1"),
        (&system, "/credentials", "must not carry a user name or password"),
        (&system, "/file", "only http and https"),
    ] {
        let text = error(tool, json!({"url": format!("http://{address}{path}")})).await;
        assert!(text.contains(told), "{path}: {text}");
    }
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn private_hosts_are_allowed_exactly() {
    let address = serve(|_| response("200 OK", "text/plain", "inside")).await;
    let port = address.port();
    let (numbers, name) = (json!({"url": format!("http://127.0.0.1:{port}/")}), json!({"url": format!("http://localhost:{port}/")}));
    let tool = HttpGet::new(&[format!("localhost:{port}")]).unwrap();
    assert!(ok(&tool, name.clone()).await.ends_with("inside"));
    error(&tool, numbers.clone()).await;
    let tool = HttpGet::new(&["127.0.0.1".to_owned()]).unwrap();
    assert!(ok(&tool, numbers.clone()).await.ends_with("inside"));
    error(&tool, name.clone()).await;
    let tool = HttpGet::new(&[format!("127.0.0.1:{}", port.wrapping_add(1)), format!("localhost:{}", port.wrapping_add(1))]).unwrap();
    error(&tool, numbers).await;
    error(&tool, name).await;
    assert!(HttpGet::new(&["http://localhost".to_owned()]).unwrap_err().contains("private host 'http://localhost' must be a host"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up() {
    let trap = Trap::new();
    let tool = HttpGet::new(&["127.0.0.1".to_owned()]).unwrap();
    let url = json!({"url": format!("http://127.0.0.1:{}/", trap.port())});
    let started = tokio::time::Instant::now();
    let output = tool.call(&url, &CancellationToken::new()).await;
    assert_eq!(output, ToolOutput::error("the answer was not complete after 20 seconds"));
    assert_eq!(started.elapsed().as_secs(), 20);

    let cancel = CancellationToken::new();
    let (output, ()) = tokio::join!(tool.call(&url, &cancel), async { cancel.cancel() });
    assert_eq!(output, ToolOutput::error("the run was cancelled"));
    assert_eq!(started.elapsed().as_secs(), 20);
}

#[test]
fn the_systems_proxy_is_not_used() {
    if is_inner() {
        let text = runtime().block_on(async {
            let address = serve(|_| response("200 OK", "text/plain", "direct")).await;
            let tool = HttpGet::with_resolver(&[address.to_string()], answers(&["127.0.0.1"])).unwrap();
            let private = ok(&tool, json!({"url": format!("http://{address}/")})).await;
            // Through a proxy the name would never be resolved here.
            private + &error(&tool, json!({"url": "http://innocent.example/"})).await
        });
        println!("{text}");
        return;
    }
    let trap = Trap::new();
    let proxy = format!("http://127.0.0.1:{}", trap.port());
    let text =
        again("the_systems_proxy_is_not_used", &[("http_proxy", &proxy), ("HTTP_PROXY", &proxy), ("ALL_PROXY", &proxy), ("no_proxy", "")]);
    assert!(text.contains("direct") && text.contains("innocent.example leads to 127.0.0.1"), "{text}");
    assert_eq!(trap.connections(), 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// What is left alone

/// A root with all that steers an agent in it, and every way to it we could think of.
struct Guarded {
    root: TempDir,
    read: ReadFile,
    write: WriteFile,
    list: ListDirectory,
}

const STEERS: [&str; 5] =
    ["agent.toml", "runguard-sessions/one/session.jsonl", "data/keys.json", ".git/config", "sub/.git/hooks/pre-commit"];

impl Guarded {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let at = |path: &str| root.path().join(path);
        for folder in ["runguard-sessions/one", "data", ".git", "sub/.git/hooks", "notes"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for path in STEERS {
            fs::write(at(path), CANARY).unwrap();
        }
        fs::write(at("data/runguard.db"), CANARY).unwrap();
        fs::write(at("notes/plan.md"), "plan").unwrap();
        symlink("../agent.toml", at("notes/settings_link")).unwrap();
        symlink("../runguard-sessions", at("notes/sessions_link")).unwrap();
        symlink("../.git", at("notes/git_link")).unwrap();
        symlink("../data", at("notes/data_link")).unwrap();
        fs::hard_link(at("agent.toml"), at("notes/settings_twin")).unwrap();
        fs::hard_link(at("runguard-sessions/one/session.jsonl"), at("notes/session_twin")).unwrap();
        let protected = [at("agent.toml"), at("runguard-sessions"), at("unborn.toml")];
        let read = ReadFile::new(root.path(), &protected).unwrap();
        let write = WriteFile::new(root.path(), &protected).unwrap();
        let list = ListDirectory::new(root.path(), &protected).unwrap();
        Self { root, read, write, list }
    }
}

#[tokio::test]
async fn what_steers_the_agent_is_neither_shown_nor_changed() {
    let place = Guarded::new();
    let absolute = place.root.path().join("agent.toml");
    let spellings = [
        absolute.to_str().unwrap(),
        "./agent.toml",
        "notes/../agent.toml",
        "notes/settings_link",
        "notes/settings_twin",
        "notes/session_twin",
        "notes/sessions_link/one/session.jsonl",
        "runguard-sessions//one/./session.jsonl",
        "notes/git_link/config",
        "notes/data_link/keys.json",
        "notes/data_link/runguard.db",
        "data/runguard.db",
    ];
    for path in STEERS.into_iter().chain(spellings) {
        let shown = call(&place.read, json!({"path": path})).await;
        assert!(shown.is_error && !shown.text.contains(CANARY), "{path}: {}", shown.text);
        for mode in ["overwrite", "append", "create"] {
            let arguments = json!({"path": path, "content": "allow = [\"shell\"]", "mode": mode});
            let written = call(&place.write, arguments).await;
            assert!(written.is_error, "{path}, {mode}: {}", written.text);
        }
    }
    for path in STEERS {
        assert_eq!(fs::read_to_string(place.root.path().join(path)).unwrap(), CANARY, "{path}");
    }
    let refused = call(&place.read, json!({"path": "agent.toml"})).await;
    assert!(refused.text.contains("Work on the other files") && refused.text.contains("ask the user"), "{}", refused.text);
}

#[tokio::test]
async fn what_would_steer_the_next_start_is_not_made() {
    let place = Guarded::new();
    let paths = [
        "unborn.toml",
        "UNBORN.TOML",
        "notes/../unborn.toml",
        "runguard-sessions/two/session.jsonl",
        "RunGuard-Sessions/two/session.jsonl",
        "data/new.json",
        "runguard-data/keys.json",
        ".git/hooks/post-commit",
        ".GIT/hooks/post-commit",
        "fresh/.git/config",
        "fresh/deep/.git",
        "new/../.git/config",
        "notes/git_link/hooks/post-commit",
    ];
    for path in paths {
        let written = call(&place.write, json!({"path": path, "content": "x"})).await;
        assert!(written.is_error, "{path}: {}", written.text);
        assert!(!place.root.path().join(path).exists(), "{path}");
    }
    for folder in ["fresh", "new", "runguard-data", "runguard-sessions/two", ".git/hooks"] {
        assert!(!place.root.path().join(folder).exists(), "{folder} was made on the way to something that is left alone");
    }
    for path in ["notes/next.md", "src/deep/main.rs", ".gitignore", ".github/ci.yml", "agent.toml.md"] {
        let written = call(&place.write, json!({"path": path, "content": "x"})).await;
        assert!(!written.is_error, "{path}: {}", written.text);
    }
}

#[tokio::test]
async fn a_list_names_what_is_left_alone_and_does_not_look_into_it() {
    let place = Guarded::new();
    let listed = call(&place.list, json!({"depth": 5})).await;
    assert!(!listed.is_error, "{}", listed.text);
    for hidden in ["session.jsonl", "keys.json", "hooks", "config"] {
        assert!(!listed.text.contains(hidden), "{}", listed.text);
    }
    assert!(listed.text.contains(".git/  left alone") && listed.text.contains("notes/plan.md"), "{}", listed.text);
    for path in [".git", "sub/.git", "runguard-sessions", "runguard-sessions/one", "data", "notes/git_link", "notes/sessions_link"] {
        let listed = call(&place.list, json!({"path": path})).await;
        assert!(listed.is_error, "{path}: {}", listed.text);
    }
}

#[tokio::test]
async fn http_get_reads_no_files() {
    let place = Guarded::new();
    let tool = HttpGet::new(&["localhost".to_owned()]).unwrap();
    let file = place.root.path().join("agent.toml");
    for url in [format!("file://{}", file.display()), format!("FILE://localhost{}", file.display()), format!("file:{}", file.display())] {
        let got = call(&tool, json!({"url": url})).await;
        assert!(got.is_error && !got.text.contains(CANARY), "{url}: {}", got.text);
    }
}
