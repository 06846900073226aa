//! What recorded runs may come in and are not read from here, packed or written in another way: who names such a file, or a folder with some,
//! is told what to do.

use crate::trace::{self, Cancelled};
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// How such a file is called, where it says by itself what it is, and what makes runs of it that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrapping {
    what: &'static str,
    to_do: &'static str,
    ends: &'static [&'static str],
    at: usize,
    mark: &'static [u8],
}

/// Text of two bytes a letter, which some shells write a program's output in. Not each of those files says so at its beginning, but JSON begins with
/// one of two signs.
const fn utf_16(mark: &'static [u8]) -> Wrapping {
    Wrapping { what: "text in UTF-16", to_do: "write it as UTF-8 (iconv -f UTF-16 -t UTF-8)", ends: &[], at: 0, mark }
}

const WRAPPINGS: [Wrapping; 13] = [
    Wrapping { what: "a tar archive", to_do: "unpack it (tar xf)", ends: &[".tar", ".tgz"], at: 257, mark: b"ustar" },
    Wrapping { what: "a zip archive", to_do: "unpack it (unzip)", ends: &[".zip"], at: 0, mark: b"PK\x03\x04" },
    Wrapping { what: "a 7z archive", to_do: "unpack it (7z x)", ends: &[".7z"], at: 0, mark: b"7z\xbc\xaf\x27\x1c" },
    Wrapping { what: "packed by zstd", to_do: "unpack it (unzstd)", ends: &[".zst"], at: 0, mark: b"\x28\xb5\x2f\xfd" },
    Wrapping { what: "packed by xz", to_do: "unpack it (unxz)", ends: &[".xz"], at: 0, mark: b"\xfd7zXZ\0" },
    Wrapping { what: "packed by bzip2", to_do: "unpack it (bunzip2)", ends: &[".bz2"], at: 0, mark: b"BZh" },
    Wrapping { what: "a Parquet table", to_do: "write it as lines of JSON", ends: &[".parquet"], at: 0, mark: b"PAR1" },
    utf_16(b"\xff\xfe"),
    utf_16(b"\xfe\xff"),
    utf_16(b"{\0"),
    utf_16(b"[\0"),
    utf_16(b"\0{"),
    utf_16(b"\0["),
];

impl fmt::Display for Wrapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} and read what comes of it", self.what, self.to_do)
    }
}

/// Whether a file is called like one, so that it is not passed over in a folder without a word.
pub(super) fn is_called_so(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    WRAPPINGS.iter().any(|wrapping| wrapping.ends.iter().any(|end| name.ends_with(end)))
}

/// What a file is by what it holds, once gzip is taken off. Of a pipe nothing is taken: it can be read but once.
pub(super) fn of(path: &Path) -> Option<Wrapping> {
    if !path.is_file() {
        return None;
    }
    let mut start = Vec::new();
    trace::unpacked(path, &Arc::default(), &Cancelled::default()).ok()?.take(512).read_to_end(&mut start).ok()?;
    WRAPPINGS.into_iter().find(|wrapping| start.get(wrapping.at..).is_some_and(|start| start.starts_with(wrapping.mark)))
}
