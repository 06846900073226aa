//! Reading, writing and listing files within one folder, and never outside it.
//!
//! Comparing path texts cannot confine anything: a symbolic link made between the check and the opening leads out. So the
//! folder is opened once, and everything is opened relative to that handle by `cap-std`, which lets the kernel refuse any
//! step out of it (`openat2` with `RESOLVE_BENEATH`; where that is missing it walks component by component with handles).
//! It adds nine small crates to the tree; the walk is easy to get wrong, and theirs has carried Wasmtime's file system for years.
//! Links within the folder work, absolute ones do not. Some places inside are left alone too: [`super::protected`].
//!
//! Pipes and devices are opened without blocking and then refused by what the handle says they are, so nothing hangs and
//! nothing can be exchanged between looking and reading. The calls block, so they run on the threads meant for that.

use super::arguments::Arguments;
use super::protected::{Protected, place_of};
use super::{Effect, Tool, ToolOutput, ToolSpec};
use crate::provider::BoxFuture;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, FileType, FileTypeExt, MetadataExt, OpenOptions, OpenOptionsExt, Permissions, PermissionsExt};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What one `read_file` shows at most; more is read with `offset`.
pub const MAX_READ_BYTES: usize = 1024 * 1024;
/// How far into a file `offset` may lead: the lines before it have to be counted.
const MAX_SKIPPED_BYTES: u64 = 512 * 1024 * 1024;
/// What one `write_file` takes; more is written with `append`.
pub const MAX_WRITE_BYTES: usize = 4 * 1024 * 1024;
/// What one `list_directory` shows.
pub const MAX_ENTRIES: usize = 1000;
/// What one `list_directory` looks at, to sort it and to say how much there is.
const MAX_SCANNED_ENTRIES: usize = 100_000;
const MAX_DEPTH: u64 = 5;
/// Linux takes no longer path.
const MAX_PATH_BYTES: usize = 4096;
/// Kept free for the note at the end of a page.
const NOTE_BYTES: usize = 256;

/// The folder the tools live in.
#[derive(Debug)]
struct Root {
    folder: Dir,
    /// Where it really is, and how it was named: a model that saw either as an absolute path may use it.
    names: [PathBuf; 2],
    protected: Protected,
}

impl Root {
    fn open(root: &Path, protected: &[PathBuf]) -> io::Result<Arc<Self>> {
        let real = root.canonicalize()?;
        Ok(Arc::new(Self {
            folder: Dir::open_ambient_dir(&real, ambient_authority())?,
            protected: Protected::new(&real, protected)?,
            names: [real, std::path::absolute(root)?],
        }))
    }

    /// Where something that was opened really is.
    fn place(&self, handle: &impl AsFd, path: &Path) -> io::Result<PathBuf> {
        place_of(handle, || Ok(self.names[0].join(self.folder.canonicalize(path)?)))
    }

    /// Opens a regular file to read it.
    fn open_file(&self, path: &Path) -> Result<File, String> {
        let fail = |error| failure("open", path, &error);
        let file = open_regular(&self.folder, path, OpenOptions::new().read(true))?;
        let place = self.place(&file, path).map_err(fail)?;
        match self.protected.refusal_of_file(&place, &file.metadata().map_err(fail)?) {
            Some(why) => Err(left_alone(path, &why)),
            None => Ok(file),
        }
    }

    fn open_folder(&self, path: &Path) -> Result<(Dir, PathBuf), String> {
        let fail = |error| failure("list", path, &error);
        let folder = self.folder.open_dir(path).map_err(fail)?;
        let place = self.place(&folder, path).map_err(fail)?;
        match self.protected.refusal(&place) {
            Some(why) => Err(left_alone(path, &why)),
            None => Ok((folder, place)),
        }
    }

    /// Where a path that need not exist would be, from the nearest folder on the way that does.
    fn future_place(&self, path: &Path) -> Result<PathBuf, String> {
        for ancestor in path.ancestors().skip(1) {
            let there = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
            let folder = match self.folder.open_dir(there) {
                Ok(folder) => folder,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failure("open the folder", ancestor, &error)),
            };
            let mut place = self.place(&folder, there).map_err(|error| failure("open the folder", ancestor, &error))?;
            for part in path.strip_prefix(ancestor).unwrap_or(path).components() {
                match part {
                    Component::Normal(name) => place.push(name),
                    Component::CurDir => {}
                    Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                        return Err(format!("{} goes up from a folder that does not exist: name the path without '..'", shown(path)));
                    }
                }
            }
            return Ok(place);
        }
        Ok(self.names[0].join(path))
    }

    /// The path relative to the root. Only for the words of the answer: what keeps it inside is the handle.
    fn relative(&self, path: &str) -> Result<PathBuf, String> {
        if path.is_empty() || path.len() > MAX_PATH_BYTES || path.contains('\0') {
            return Err(format!("'path' must be 1 to {MAX_PATH_BYTES} bytes long, without a zero byte"));
        }
        let path = Path::new(path);
        if !path.is_absolute() {
            return Ok(path.to_owned());
        }
        let Some(inside) = self.names.iter().find_map(|name| path.strip_prefix(name).ok()) else {
            return Err(outside(path));
        };
        Ok(if inside.as_os_str().is_empty() { PathBuf::from(".") } else { inside.to_owned() })
    }
}

fn left_alone(path: &Path, why: &str) -> String {
    format!(
        "{} {why}: this tool neither shows nor changes it. Work on the other files of the folder; if this one must change, ask the user to change it",
        shown(path)
    )
}

fn outside(path: &Path) -> String {
    format!(
        "{} leads outside the folder this tool is confined to: use a path relative to that folder, such as 'notes/plan.md'",
        shown(path)
    )
}

/// A path for a message, on one line whatever is in it.
fn shown(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().escape_debug())
}

fn failure(action: &str, path: &Path, error: &io::Error) -> String {
    let path_text = shown(path);
    match error.kind() {
        // Only a step out of the root is refused without the system having said so.
        ErrorKind::PermissionDenied if error.raw_os_error().is_none() => outside(path),
        ErrorKind::NotFound => format!("{path_text} does not exist: list_directory shows what is there"),
        ErrorKind::NotADirectory => format!("{path_text}: a part of the path is a file and not a folder"),
        ErrorKind::IsADirectory => format!("{path_text} is a folder and not a file"),
        _ if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => not_a_file(path, "a pipe, a socket or a device"),
        _ => format!("cannot {action} {path_text}: {error}"),
    }
}

fn not_a_file(path: &Path, kind: &str) -> String {
    format!("{} is {kind} and not a regular file", shown(path))
}

fn kind_of(file_type: FileType) -> &'static str {
    match file_type {
        _ if file_type.is_dir() => "a folder",
        _ if file_type.is_symlink() => "a symbolic link",
        _ if file_type.is_fifo() => "a pipe",
        _ if file_type.is_socket() => "a socket",
        _ if file_type.is_block_device() || file_type.is_char_device() => "a device",
        _ => "a file",
    }
}

/// Opens a regular file and nothing else, without waiting for the other end of a pipe.
fn open_regular(folder: &Dir, path: &Path, options: &mut OpenOptions) -> Result<File, String> {
    let fail = |error| failure("open", path, &error);
    let file = folder.open_with(path, options.custom_flags(OFlags::NONBLOCK.bits() as i32)).map_err(fail)?;
    let file_type = file.metadata().map_err(fail)?.file_type();
    match file_type {
        _ if file_type.is_file() => Ok(file),
        _ if file_type.is_dir() => Err(format!("{} is a folder: list_directory shows what is in it", shown(path))),
        _ => Err(not_a_file(path, kind_of(file_type))),
    }
}

async fn on_blocking_thread(work: impl FnOnce() -> Result<String, String> + Send + 'static) -> ToolOutput {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(text)) => ToolOutput::ok(text),
        Ok(Err(text)) => ToolOutput::error(text),
        Err(error) => ToolOutput::error(format!("the call did not finish: {error}")),
    }
}

fn cancelled() -> String {
    "the run was cancelled".to_owned()
}

// ---------------------------------------------------------------------------------------------------------------------
// read_file

#[derive(Debug)]
pub struct ReadFile {
    spec: ToolSpec,
    root: Arc<Root>,
    most_bytes: usize,
}

impl ReadFile {
    /// `protected`: files and folders inside the root that are left alone.
    pub fn new(root: &Path, protected: &[PathBuf]) -> io::Result<Self> {
        let spec = ToolSpec {
            name: "read_file".to_owned(),
            description: "Reads a text file of the working folder. A long file is shown in pages: the note at the end of a page says with \
                          which `offset` to go on. Binary files are refused."
                .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The file, relative to the working folder, such as \"docs/guide.md\"."},
                    "offset": {"type": "integer", "minimum": 1, "description": "The first line to show, counted from 1. Left out: 1."},
                    "limit": {"type": "integer", "minimum": 1, "description": "The most lines to show. Left out: as many as fit."},
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
            effect: Effect::ReadOnly,
            parallel: true,
        };
        Ok(Self { spec, root: Root::open(root, protected)?, most_bytes: MAX_READ_BYTES })
    }

    /// Makes the pages no longer than what the loop lets a result be: a page cut in its middle cannot be read on from.
    #[must_use]
    pub fn with_most_bytes(self, most_bytes: usize) -> Self {
        Self { most_bytes: most_bytes.min(MAX_READ_BYTES), ..self }
    }
}

impl Tool for ReadFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let parsed = Arguments::of(arguments, &["path", "offset", "limit"]).and_then(|arguments| {
                Ok((
                    self.root.relative(arguments.required_text("path")?)?,
                    arguments.number("offset", 1..=u64::MAX)?.unwrap_or(1),
                    arguments.number("limit", 1..=u64::MAX)?.unwrap_or(u64::MAX),
                ))
            });
            let (path, offset, limit) = match parsed {
                Ok(parsed) => parsed,
                Err(text) => return ToolOutput::error(text),
            };
            let (root, cancel) = (Arc::clone(&self.root), cancel.clone());
            let most_bytes = self.most_bytes.saturating_sub(NOTE_BYTES).max(1);
            on_blocking_thread(move || {
                let file = root.open_file(&path)?;
                let size = file.metadata().map_or(0, |metadata| metadata.size());
                let page = read_page(BufReader::new(file), offset, limit, most_bytes, &cancel);
                show_page(&path, offset, size, page.map_err(|error| failure("read", &path, &error))?)
            })
            .await
        })
    }
}

/// Some whole lines of a file, or the beginning of one that is too long.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    bytes: Vec<u8>,
    lines: u64,
    end: PageEnd,
}

#[derive(Debug, PartialEq, Eq)]
enum PageEnd {
    EndOfFile,
    /// There are further lines.
    More,
    /// The one line of this page goes on beyond it.
    MidLine,
    /// There is no such line: the file has so many.
    PastTheEnd(u64),
    /// The line lies too deep in the file.
    TooFar,
    Cancelled,
}

fn read_page(mut reader: impl BufRead, offset: u64, limit: u64, most_bytes: usize, cancel: &CancellationToken) -> io::Result<Page> {
    let nothing = |end| Ok(Page { bytes: Vec::new(), lines: 0, end });
    let (mut line, mut skipped_bytes, mut is_mid_line) = (1, 0, false);
    while line < offset {
        if cancel.is_cancelled() {
            return nothing(PageEnd::Cancelled);
        }
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return nothing(PageEnd::PastTheEnd(line - 1 + u64::from(is_mid_line)));
        }
        let newline = buffer.iter().position(|&byte| byte == b'\n');
        let used = newline.map_or(buffer.len(), |at| at + 1);
        is_mid_line = newline.is_none();
        line += u64::from(!is_mid_line);
        reader.consume(used);
        skipped_bytes += used as u64;
        if skipped_bytes > MAX_SKIPPED_BYTES {
            return nothing(PageEnd::TooFar);
        }
    }

    let (mut bytes, mut lines) = (Vec::new(), 0);
    while lines < limit {
        let line_start = bytes.len();
        let room = (most_bytes - line_start) as u64;
        reader.by_ref().take(room).read_until(b'\n', &mut bytes)?;
        if bytes.ends_with(b"\n") && bytes.len() > line_start {
            lines += 1;
        } else if reader.fill_buf()?.is_empty() {
            lines += u64::from(bytes.len() > line_start);
            let end = if lines == 0 && offset > 1 { PageEnd::PastTheEnd(offset - 1) } else { PageEnd::EndOfFile };
            return Ok(Page { bytes, lines, end });
        } else if lines == 0 {
            return Ok(Page { bytes, lines: 1, end: PageEnd::MidLine });
        } else {
            bytes.truncate(line_start);
            return Ok(Page { bytes, lines, end: PageEnd::More });
        }
    }
    let end = if reader.fill_buf()?.is_empty() { PageEnd::EndOfFile } else { PageEnd::More };
    Ok(Page { bytes, lines, end })
}

fn show_page(path: &Path, offset: u64, size: u64, mut page: Page) -> Result<String, String> {
    if page.bytes.contains(&0) {
        return Err(format!("{} is a binary file of {size} bytes and not text: it cannot be read with this tool", shown(path)));
    }
    let next = offset.saturating_add(page.lines);
    let mut notes = Vec::new();
    match page.end {
        PageEnd::Cancelled => return Err(cancelled()),
        PageEnd::PastTheEnd(lines) => {
            return Err(format!("'offset' {offset} is past the end: {} has {lines} lines", shown(path)));
        }
        PageEnd::TooFar => {
            return Err(format!("'offset' {offset} lies more than {MAX_SKIPPED_BYTES} bytes into {}: it cannot be reached", shown(path)));
        }
        PageEnd::EndOfFile if page.bytes.is_empty() => return Ok(format!("[{} is empty]", shown(path))),
        PageEnd::EndOfFile => {}
        PageEnd::More => notes.push(format!("lines {offset} to {} are shown; go on with offset {next}", next - 1)),
        PageEnd::MidLine => {
            // The cut may have split a character; only a split one is an error with nothing after it.
            if let Err(error) = str::from_utf8(&page.bytes)
                && error.error_len().is_none()
            {
                page.bytes.truncate(error.valid_up_to());
            }
            notes.push(format!("only the first {} bytes of line {offset} are shown; the next line has offset {next}", page.bytes.len()));
        }
    }
    // Old files in other encodings are still mostly readable, but must not be written back like this.
    let mut text = String::from_utf8(page.bytes).unwrap_or_else(|error| {
        notes.push("this file is not UTF-8: what could not be read is shown as \u{fffd}, so do not write it back".to_owned());
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    if !notes.is_empty() {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[{}]", notes.join("; ")));
    }
    Ok(text)
}

// ---------------------------------------------------------------------------------------------------------------------
// write_file

#[derive(Debug)]
pub struct WriteFile {
    spec: ToolSpec,
    root: Arc<Root>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteMode {
    Create,
    Overwrite,
    Append,
}

impl WriteFile {
    /// `protected`: files and folders inside the root that are left alone.
    pub fn new(root: &Path, protected: &[PathBuf]) -> io::Result<Self> {
        let spec = ToolSpec {
            name: "write_file".to_owned(),
            description:
                "Writes a text file of the working folder, and makes the folders on the way to it. The file is replaced as a whole, \
                          so give all of its content, or use mode \"append\" to add to its end."
                    .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The file, relative to the working folder, such as \"docs/guide.md\"."},
                    "content": {"type": "string", "description": "The text to write, at most 4 MiB."},
                    "mode": {
                        "type": "string",
                        "enum": ["create", "overwrite", "append"],
                        "description": "\"create\" fails when the file exists; \"overwrite\" replaces it or makes it; \"append\" adds to its end or makes it. Left out: \"overwrite\".",
                    },
                },
                "required": ["path", "content"],
                "additionalProperties": false,
            }),
            effect: Effect::Changes,
            parallel: false,
        };
        Ok(Self { spec, root: Root::open(root, protected)? })
    }

    fn parse(&self, arguments: &Value) -> Result<(PathBuf, String, WriteMode), String> {
        let arguments = Arguments::of(arguments, &["path", "content", "mode"])?;
        let path_text = arguments.required_text("path")?;
        let path = self.root.relative(path_text)?;
        if path.file_name().is_none() || path_text.ends_with('/') || path_text.ends_with("/.") {
            return Err(format!("{} names a folder and not a file", shown(&path)));
        }
        let content = arguments.required_text("content")?;
        if content.len() > MAX_WRITE_BYTES {
            return Err(format!(
                "'content' is {} bytes long: at most {MAX_WRITE_BYTES}, so write it in parts with mode \"append\"",
                content.len()
            ));
        }
        let mode = match arguments.text("mode")? {
            Some("create") => WriteMode::Create,
            None | Some("overwrite") => WriteMode::Overwrite,
            Some("append") => WriteMode::Append,
            Some(other) => {
                return Err(format!("'mode' must be \"create\", \"overwrite\" or \"append\", not \"{}\"", other.escape_debug()));
            }
        };
        Ok((path, content.to_owned(), mode))
    }
}

impl Tool for WriteFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let (path, content, mode) = match self.parse(arguments) {
                Ok(parsed) => parsed,
                Err(text) => return ToolOutput::error(text),
            };
            let (root, cancel) = (Arc::clone(&self.root), cancel.clone());
            on_blocking_thread(move || write(&root, &path, content.as_bytes(), mode, &cancel)).await
        })
    }
}

fn write(root: &Root, path: &Path, content: &[u8], mode: WriteMode, cancel: &CancellationToken) -> Result<String, String> {
    let fail = |error| failure("write", path, &error);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(not_a_file(path, "a folder"));
    };
    if cancel.is_cancelled() {
        return Err(cancelled());
    }
    // Before the first folder is made.
    if let Some(why) = root.protected.refusal(&root.future_place(path)?) {
        return Err(left_alone(path, &why));
    }
    // From here on everything happens in the parent's handle: whatever is done to the path meanwhile, it stays that folder.
    let opened;
    let folder = if parent.as_os_str().is_empty() {
        &root.folder
    } else {
        root.folder.create_dir_all(parent).map_err(|error| failure("make the folder", parent, &error))?;
        opened = root.folder.open_dir(parent).map_err(|error| failure("open the folder", parent, &error))?;
        &opened
    };
    let place = root.place(folder, if parent.as_os_str().is_empty() { Path::new(".") } else { parent }).map_err(fail)?.join(name);
    if let Some(why) = root.protected.refusal(&place) {
        return Err(left_alone(path, &why));
    }
    let existing = match folder.symlink_metadata(name) {
        Ok(metadata) if metadata.is_symlink() => {
            return Err(format!("{} is a symbolic link: write to the file it leads to", shown(path)));
        }
        Ok(metadata) if !metadata.is_file() => return Err(not_a_file(path, kind_of(metadata.file_type()))),
        Ok(metadata) => match root.protected.refusal_of_file(&place, &metadata) {
            Some(why) => return Err(left_alone(path, &why)),
            None => Some(metadata),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(fail(error)),
    };
    let exists = || format!("{} exists already: use mode \"overwrite\" to replace it, or another path", shown(path));
    match mode {
        WriteMode::Create if existing.is_some() => return Err(exists()),
        WriteMode::Append => {
            let mut file = open_regular(folder, Path::new(name), OpenOptions::new().append(true).create(true))?;
            file.write_all(content)
                .and_then(|()| file.sync_all())
                .map_err(|error| format!("{}; a part may have been written: read the end of the file before you go on", fail(error)))?;
            return Ok(format!("appended {} bytes to {}", content.len(), shown(path)));
        }
        WriteMode::Create | WriteMode::Overwrite => {}
    }

    // The kernel takes special bits from a file somebody writes into; so do we.
    let permissions = existing.as_ref().map(|metadata| metadata.permissions().mode() & 0o777);
    let draft = Draft::write(folder, content, permissions).map_err(fail)?;
    if cancel.is_cancelled() {
        return Err(cancelled());
    }
    match mode {
        // A link is made only where nothing is. File systems without links get the check above.
        WriteMode::Create => match folder.hard_link(&draft.name, folder, name) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists()),
            Err(_) => folder.rename(&draft.name, folder, name).map_err(fail)?,
        },
        WriteMode::Overwrite | WriteMode::Append => folder.rename(&draft.name, folder, name).map_err(fail)?,
    }
    let done = if existing.is_some() { "replaced" } else { "created" };
    Ok(format!("{done} {}: {} bytes written", shown(path), content.len()))
}

/// A file beside the one to be written, gone again unless it was renamed: readers see the old content or the whole of the other.
struct Draft<'a> {
    folder: &'a Dir,
    name: String,
}

impl<'a> Draft<'a> {
    fn write(folder: &'a Dir, content: &[u8], permissions: Option<u32>) -> io::Result<Self> {
        let name = format!(".runguard-{:016x}.tmp", getrandom::u64().map_err(io::Error::other)?);
        // What the old file hides must not be open to others for a moment.
        let mode = if permissions.is_some() { 0o600 } else { 0o666 };
        let mut file = folder.open_with(&name, OpenOptions::new().write(true).create_new(true).mode(mode))?;
        let draft = Self { folder, name };
        file.write_all(content)?;
        if let Some(permissions) = permissions {
            file.set_permissions(Permissions::from_mode(permissions))?;
        }
        file.sync_all()?;
        Ok(draft)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // Already gone when it was renamed.
        let _ = self.folder.remove_file(&self.name);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// list_directory

#[derive(Debug)]
pub struct ListDirectory {
    spec: ToolSpec,
    root: Arc<Root>,
}

impl ListDirectory {
    /// `protected`: files and folders inside the root that are left alone.
    pub fn new(root: &Path, protected: &[PathBuf]) -> io::Result<Self> {
        let spec = ToolSpec {
            name: "list_directory".to_owned(),
            description:
                "Lists a folder of the working folder, sorted by name, with the kind of every entry and the size of files. `depth` \
                          above 1 also lists the folders in it. Symbolic links are shown and not followed. At most 1000 entries are shown."
                    .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The folder, relative to the working folder. Left out: the working folder itself."},
                    "depth": {"type": "integer", "minimum": 1, "maximum": MAX_DEPTH, "description": "How many levels to list. Left out: 1."},
                },
                "additionalProperties": false,
            }),
            effect: Effect::ReadOnly,
            parallel: true,
        };
        Ok(Self { spec, root: Root::open(root, protected)? })
    }
}

impl Tool for ListDirectory {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let parsed = Arguments::of(arguments, &["path", "depth"]).and_then(|arguments| {
                let path = self.root.relative(arguments.text("path")?.unwrap_or("."))?;
                Ok((path, arguments.number("depth", 1..=MAX_DEPTH)?.unwrap_or(1)))
            });
            let (path, depth) = match parsed {
                Ok(parsed) => parsed,
                Err(text) => return ToolOutput::error(text),
            };
            let (root, cancel) = (Arc::clone(&self.root), cancel.clone());
            on_blocking_thread(move || {
                let (folder, place) = root.open_folder(&path)?;
                let mut listing = Listing { protected: &root.protected, lines: Vec::new(), scanned: 0, left_out: 0, cancel };
                listing.add(&folder, &place, Path::new(""), depth).map_err(|error| failure("list", &path, &error))?;
                if listing.cancel.is_cancelled() { Err(cancelled()) } else { Ok(listing.show(&path)) }
            })
            .await
        })
    }
}

struct Listing<'a> {
    protected: &'a Protected,
    lines: Vec<String>,
    scanned: usize,
    left_out: usize,
    cancel: CancellationToken,
}

/// What is shown of an entry, beside its name.
enum Entry {
    Folder,
    File(u64),
    Link,
    Other(&'static str),
}

impl Listing<'_> {
    fn is_over(&self) -> bool {
        self.scanned >= MAX_SCANNED_ENTRIES || self.cancel.is_cancelled()
    }

    fn add(&mut self, folder: &Dir, place: &Path, above: &Path, depth: u64) -> io::Result<()> {
        // Only the first names that still have room are kept: a folder of millions costs time (to a bound) and no memory.
        let room = MAX_ENTRIES - self.lines.len();
        let mut entries: BTreeMap<OsString, Entry> = BTreeMap::new();
        for entry in folder.entries()? {
            if self.is_over() {
                break;
            }
            let entry = entry?;
            self.scanned += 1;
            let name = entry.file_name();
            if entries.len() == room && entries.last_key_value().is_none_or(|(last, _)| *last < name) {
                self.left_out += 1;
                continue;
            }
            // It may have gone since its name was read.
            let Ok(metadata) = entry.metadata() else { continue };
            let shown = match metadata.file_type() {
                kind if kind.is_dir() => Entry::Folder,
                kind if kind.is_symlink() => Entry::Link,
                kind if kind.is_file() => Entry::File(metadata.len()),
                kind => Entry::Other(kind_of(kind)),
            };
            entries.insert(name, shown);
            if entries.len() > room {
                entries.pop_last();
                self.left_out += 1;
            }
        }
        for (name, entry) in entries {
            if self.lines.len() == MAX_ENTRIES {
                // The folders before this one took the room.
                self.left_out += 1;
                continue;
            }
            let path = above.join(&name);
            let path_text = path.to_string_lossy();
            let path_text = path_text.escape_debug();
            self.lines.push(match entry {
                Entry::Folder => format!("{path_text}/"),
                Entry::File(bytes) => format!("{path_text}  {bytes} bytes"),
                Entry::Link => link_line(folder, &name, &path_text.to_string()),
                Entry::Other(kind) => format!("{path_text}  {kind}"),
            });
            let at = self.lines.len() - 1;
            let inner_place = place.join(&name);
            if self.protected.refusal(&inner_place).is_some() {
                self.lines[at].push_str("  left alone by the file tools");
                continue;
            }
            if matches!(entry, Entry::Folder) && depth > 1 && !self.is_over() {
                // A folder that cannot be looked into is still listed by its name.
                if let Err(error) = folder.open_dir(&name).and_then(|inner| self.add(&inner, &inner_place, &path, depth - 1)) {
                    self.lines[at].push_str(&format!("  cannot be listed: {error}"));
                }
            }
        }
        Ok(())
    }

    fn show(mut self, path: &Path) -> String {
        if self.lines.is_empty() {
            return format!("[{} is an empty folder]", shown(path));
        }
        if self.left_out > 0 || self.is_over() {
            let more = if self.is_over() { "at least " } else { "" };
            self.lines.push(format!("[{more}{} further entries are not shown: list a folder further down, or less depth]", self.left_out));
        }
        self.lines.join("\n")
    }
}

fn link_line(folder: &Dir, name: &OsStr, path_text: &str) -> String {
    match folder.read_link_contents(name) {
        Ok(target) => format!("{path_text}  a symbolic link to {}", shown(&target)),
        Err(_) => format!("{path_text}  a symbolic link"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Page, PageEnd, read_page};
    use proptest::prelude::*;
    use std::io::BufReader;
    use tokio_util::sync::CancellationToken;

    /// Through a buffer so small that every line crosses its edge.
    fn page(text: &str, offset: u64, limit: u64, most_bytes: usize) -> (String, u64, PageEnd) {
        let reader = BufReader::with_capacity(3, text.as_bytes());
        let Page { bytes, lines, end } = read_page(reader, offset, limit, most_bytes, &CancellationToken::new()).unwrap();
        (String::from_utf8(bytes).unwrap(), lines, end)
    }

    #[test]
    fn pages_are_whole_lines() {
        use PageEnd::{EndOfFile, MidLine, More, PastTheEnd};
        for (text, offset, limit, most_bytes, expected) in [
            ("", 1, 9, 99, ("", 0, EndOfFile)),
            ("", 2, 9, 99, ("", 0, PastTheEnd(0))),
            ("\n", 1, 9, 99, ("\n", 1, EndOfFile)),
            ("one\ntwo\n", 1, 9, 99, ("one\ntwo\n", 2, EndOfFile)),
            ("one\ntwo", 1, 9, 99, ("one\ntwo", 2, EndOfFile)),
            ("one\ntwo\n", 1, 1, 99, ("one\n", 1, More)),
            ("one\ntwo\n", 1, 2, 99, ("one\ntwo\n", 2, EndOfFile)),
            ("one\ntwo\n", 2, 9, 99, ("two\n", 1, EndOfFile)),
            ("one\ntwo\n", 3, 9, 99, ("", 0, PastTheEnd(2))),
            ("one\ntwo\n", 4, 9, 99, ("", 0, PastTheEnd(2))),
            ("one\ntwo", 3, 9, 99, ("", 0, PastTheEnd(2))),
            ("one\ntwo", u64::MAX, 9, 99, ("", 0, PastTheEnd(2))),
            ("one\ntwo\n", 1, 9, 8, ("one\ntwo\n", 2, EndOfFile)),
            ("one\ntwo\n", 1, 9, 7, ("one\n", 1, More)),
            ("one\ntwo\n", 1, 9, 4, ("one\n", 1, More)),
            ("one\ntwo\n", 1, 9, 3, ("one", 1, MidLine)),
            ("one\ntwo", 2, 9, 3, ("two", 1, EndOfFile)),
            ("one\ntwo\n", 2, 9, 2, ("tw", 1, MidLine)),
        ] {
            let (expected_text, lines, end) = expected;
            assert_eq!(
                page(text, offset, limit, most_bytes),
                (expected_text.to_owned(), lines, end),
                "{text:?} {offset} {limit} {most_bytes}"
            );
        }
    }

    #[test]
    fn counting_lines_stops_when_the_run_is_cancelled() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        let page = read_page(&b"one\ntwo\n"[..], 2, 9, 99, &cancel).unwrap();
        assert_eq!(page.end, PageEnd::Cancelled);
    }

    proptest! {
        /// Going on where the last page ended gives the whole file: no line twice, none left out.
        #[test]
        fn pages_joined_are_the_file(lines in proptest::collection::vec("[a-z]{0,9}", 0..30), limit in 1_u64..5, most_bytes in 10_usize..60) {
            let text = lines.join("\n");
            let (mut joined, mut offset) = (String::new(), 1);
            loop {
                let (part, shown, end) = page(&text, offset, limit, most_bytes);
                prop_assert!(part.len() <= most_bytes && shown <= limit);
                joined.push_str(&part);
                offset += shown;
                match end {
                    PageEnd::More => {}
                    PageEnd::EndOfFile => break,
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            prop_assert_eq!(joined, text);
        }
    }
}
