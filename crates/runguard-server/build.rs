//! Packs what the binary brings for browsers and readers: a quarter of the size, and sent as it lies to whoever takes gzip.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let crate_folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    println!("cargo:rerun-if-changed=build.rs");
    pack_folder(&crate_folder.join("../../dashboard"), &out.join("dashboard"))?;
    let document = crate_folder.join("../../docs/openapi.json");
    println!("cargo:rerun-if-changed={}", document.display());
    pack(&without_spaces(&fs::read(document)?), &out.join("openapi.json.gz"))
}

fn pack_folder(from: &Path, to: &Path) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", from.display());
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_dir() {
            pack_folder(&path, &to.join(&name))?;
        } else {
            println!("cargo:rerun-if-changed={}", path.display());
            pack(&fs::read(path)?, &to.join(format!("{}.gz", name.display())))?;
        }
    }
    Ok(())
}

/// JSON that is written for people to compare is half as large again as it need be, packed as well.
fn without_spaces(json: &[u8]) -> Vec<u8> {
    let (mut in_text, mut is_escaped) = (false, false);
    let is_kept = |byte: &u8| {
        let is_quote = *byte == b'"' && !is_escaped;
        is_escaped = in_text && *byte == b'\\' && !is_escaped;
        in_text ^= is_quote;
        in_text || !byte.is_ascii_whitespace()
    };
    json.iter().copied().filter(is_kept).collect()
}

/// The same bytes each time: nothing of the machine or the hour is in it.
fn pack(content: &[u8], to: &Path) -> io::Result<()> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(content)?;
    fs::write(to, packed.finish()?)
}
