//! Files that only their owner can read, whatever the mode of the folder they are in.
//!
//! What users said is in them. SQLite gives the files beside a database (`-wal`, `-shm`) the mode of the database, so it is enough
//! that the database is there with the right one before it is opened.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The bits of everyone but the owner.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

/// Ends the name of a file that is being written.
pub const UNFINISHED: &str = "new";

/// What SQLite may put beside a database.
const BESIDE_DATABASE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// One that we make is for its owner only.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, FOLDER_MODE);
    builder.create(path)
}

/// Options that make a file for its owner only.
pub fn private_file() -> fs::OpenOptions {
    let mut options = fs::File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, FILE_MODE);
    options
}

/// Writes a file that is there whole, or as it was. Nobody else may read it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    create_private_folder(folder)?;
    let unfinished = path.with_extension(UNFINISHED);
    let mut file = private_file().write(true).create(true).truncate(true).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    // The name, too, must be on the disk.
    fs::File::open(folder)?.sync_all()
}

/// Makes a file that is there private.
pub fn make_private(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mut permissions = fs::metadata(path)?.permissions();
        if permissions.mode() & OTHERS != 0 {
            permissions.set_mode(FILE_MODE);
            fs::set_permissions(path, permissions)?;
        }
    }
    Ok(())
}

/// Before a database is opened: it, and what is beside it, is private. One that is not there is made, empty.
pub fn make_database_private(path: &Path) -> io::Result<()> {
    match private_file().write(true).create_new(true).open(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    // By name, not by opening: to close a file that SQLite has open in this process lets go of its locks.
    make_private(path)?;
    for beside in database_files(path).into_iter().skip(1) {
        match make_private(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// A database and everything SQLite may have put beside it.
pub fn database_files(path: &Path) -> Vec<PathBuf> {
    let beside = BESIDE_DATABASE.iter().map(|suffix| PathBuf::from(format!("{}{suffix}", path.display())));
    std::iter::once(path.to_owned()).chain(beside).collect()
}

/// Removes a database for good, with what is beside it.
pub fn remove_database(path: &Path) -> io::Result<()> {
    for file in database_files(path) {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The data folder of a service: there, its files private, and a word of what is not.
pub fn open_private_folder(path: &Path) -> io::Result<()> {
    create_private_folder(path)?;
    make_files_private(path)?;
    warn_of_others(path);
    Ok(())
}

/// Makes every file in a folder private, also those of parts that are switched off or open theirs later. What a link leads to is
/// somebody else's.
fn make_files_private(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            match make_private(&entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Says so when others can look into a folder: the files in it are private, their names and sizes are not, and who may write there
/// may put others in their place.
fn warn_of_others(folder: &Path) {
    if let Some(mode) = mode_for_others(folder) {
        let folder = folder.display();
        tracing::warn!(
            %folder,
            mode,
            "others can look into the data folder, or write there; its files are private, the folder is not: run `chmod 700 {folder}`"
        );
    }
}

/// Says so when others can read a file with a secret in it. It is not ours, so it stays as it is.
pub fn warn_of_readers(file: &Path) {
    if let Some(mode) = mode_for_others(file) {
        let file = file.display();
        tracing::warn!(%file, mode, "others can read the file, which has a secret in it, or write to it: run `chmod 600 {file}`");
    }
}

/// The mode of what others than its owner may do something with.
#[cfg(unix)]
fn mode_for_others(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & OTHERS != 0).then(|| format!("{mode:04o}"))
}

#[cfg(not(unix))]
fn mode_for_others(_path: &Path) -> Option<String> {
    None
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_database_is_private_before_it_is_opened_and_keeps_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.db");
        make_database_private(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        for file in database_files(&path) {
            fs::write(&file, "kept").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        make_database_private(&path).unwrap();
        for file in database_files(&path) {
            assert_eq!((mode(&file), fs::read_to_string(&file).unwrap()), (0o600, "kept".to_owned()), "{}", file.display());
        }
        remove_database(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        remove_database(&path).unwrap();
    }
}
