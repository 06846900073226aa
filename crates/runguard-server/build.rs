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
    pack(&crate_folder.join("../../docs/openapi.json"), &out.join("openapi.json.gz"))
}

fn pack_folder(from: &Path, to: &Path) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", from.display());
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_dir() {
            pack_folder(&path, &to.join(&name))?;
        } else {
            pack(&path, &to.join(format!("{}.gz", name.display())))?;
        }
    }
    Ok(())
}

/// The same bytes each time: nothing of the machine or the hour is in it.
fn pack(from: &Path, to: &Path) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", from.display());
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&fs::read(from)?)?;
    fs::write(to, packed.finish()?)
}
