//! `runguard settings set`: values put into the settings file, where they belong; everything else in it stays as it is.

use crate::failure::Failure;
use crate::output;
use owo_colors::OwoColorize;
use runguard_engine::settings;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use toml_edit::{DocumentMut, Item, Key, Table, TableLike, Value};

/// One value that was put.
#[derive(Debug, PartialEq, Eq)]
struct Put {
    key: String,
    before: Option<String>,
    after: String,
}

pub(super) fn run(file: &Path, values: &[String]) -> Result<(), Failure> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::Usage(format!("cannot read the settings file {}: {error}", file.display()))),
    };
    let mut document: DocumentMut =
        text.parse().map_err(|error| Failure::Usage(format!("{} is no TOML, and nothing was changed:\n{error}", file.display())))?;
    let put: Vec<Put> = values.iter().map(|given| put(&mut document, given)).collect::<Result<_, _>>().map_err(Failure::Usage)?;
    let text = document.to_string();
    settings::check_text(file, &text).map_err(|error| Failure::Usage(format!("nothing was changed: {error}")))?;
    replace(file, &text).map_err(|error| Failure::Failed(format!("cannot write the settings file {}: {error}", file.display())))?;
    for Put { key, before, after } in put {
        let before = before.map_or_else(|| "not set".to_owned(), |before| output::clean(&before));
        output::line(&format!("{} = {}  {}", output::clean(&key).bold(), output::clean(&after), format!("# was {before}").dimmed()))?;
    }
    output::note(&format!("{} is written. `runguard settings show` tells what is in force.", file.display()));
    Ok(())
}

/// Puts one `KEY=VALUE` where it belongs. What is no TOML value is a text: lengths like 30s need no quotes.
fn put(document: &mut DocumentMut, given: &str) -> Result<Put, String> {
    let (path, value) = given.split_once('=').ok_or_else(|| format!("'{given}' has no value: write KEY=VALUE"))?;
    let (path, value) = (path.trim(), value.trim());
    let keys = Key::parse(path).map_err(|error| format!("'{path}' is no key: {}", error.message()))?;
    let [tables @ .., name] = keys.as_slice() else { return Err(format!("'{given}' has no key: write KEY=VALUE")) };
    let mut table: &mut dyn TableLike = document.as_table_mut();
    let mut walked: Vec<&str> = Vec::new();
    for key in tables {
        walked.push(key.get());
        let inner = table.entry(key.get()).or_insert_with(|| {
            let mut made = Table::new();
            // Without a heading of its own, unless something stands in it.
            made.set_implicit(true);
            Item::Table(made)
        });
        table = inner.as_table_like_mut().ok_or_else(|| format!("{} is no table: edit the file by hand", walked.join(".")))?;
    }
    let mut value: Value = value.parse().unwrap_or_else(|_| Value::from(value));
    let named: Vec<String> = keys.iter().map(|key| key.get().to_owned()).collect();
    let before = match table.get_mut(name.get()) {
        Some(Item::Value(before)) => {
            // What stands behind it on the line, a comment, stays.
            *value.decor_mut() = before.decor().clone();
            let shown = shown(&named, before);
            *before = value.clone();
            Some(shown)
        }
        Some(Item::None) | None => {
            table.insert(name.get(), Item::Value(value.clone()));
            None
        }
        Some(Item::Table(_) | Item::ArrayOfTables(_)) => return Err(format!("{path} is a table: name a value in it")),
    };
    Ok(Put { key: path.to_owned(), before, after: shown(&named, &value) })
}

/// As everywhere: an address without its password, and no secret.
fn shown(path: &[String], value: &Value) -> String {
    let plain = as_json(value);
    let shown = settings::shown(path, &plain);
    if shown == plain { value.clone().decorated("", "").to_string() } else { shown.to_string() }
}

fn as_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Array(items) => items.iter().map(as_json).collect(),
        Value::InlineTable(table) => table.iter().map(|(key, value)| (key.to_owned(), as_json(value))).collect(),
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => value.to_string().into(),
    }
}

/// A file is there whole, or as it was; whoever may read it still may.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    // A link stays one.
    let file = match fs::canonicalize(file) {
        Err(error) if fs::symlink_metadata(file).is_ok() => return Err(error),
        found => found.unwrap_or_else(|_| file.to_owned()),
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = tempfile::Builder::new().prefix(".runguard-").tempfile_in(folder)?;
    beside.write_all(text.as_bytes())?;
    beside.as_file().sync_all()?;
    match fs::metadata(&file) {
        Ok(known) => {
            owned_like(beside.as_file(), &known)?;
            beside.as_file().set_permissions(known.permissions())?;
        }
        Err(_) => readable(beside.as_file())?,
    }
    beside.persist(&file).map_err(|error| error.error)?;
    Ok(())
}

/// A service that reads the file as its group goes on reading it.
#[cfg(unix)]
fn owned_like(file: &fs::File, known: &fs::Metadata) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    let ours = file.metadata()?;
    if (ours.uid(), ours.gid()) == (known.uid(), known.gid()) { Ok(()) } else { fchown(file, Some(known.uid()), Some(known.gid())) }
}

#[cfg(not(unix))]
fn owned_like(_: &fs::File, _: &fs::Metadata) -> std::io::Result<()> {
    Ok(())
}

/// Settings hold no secrets: a service under another user reads them.
#[cfg(unix)]
fn readable(file: &fs::File) -> std::io::Result<()> {
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable(_: &fs::File) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# Ours.\n[guards.handoff]\nmode = \"observe\" # for a week\nmax_handoffs = 4\n\n[server]\nlisten = \"127.0.0.1:8100\"\n";

    fn after(given: &[&str]) -> String {
        let mut document: DocumentMut = FILE.parse().unwrap();
        for one in given {
            put(&mut document, one).unwrap();
        }
        document.to_string()
    }

    #[test]
    fn a_value_is_put_where_it_belongs_and_the_rest_stays() {
        assert_eq!(after(&["guards.handoff.mode=enforce"]), FILE.replace("\"observe\"", "\"enforce\""));
        assert_eq!(after(&["guards.handoff.max_handoffs = 6"]), FILE.replace("= 4", "= 6"));
        let added = after(&["guards.handoff.window=90m", "guards.handoff.max_visits_per_bot=3"]);
        assert_eq!(added, FILE.replace("= 4\n", "= 4\nwindow = \"90m\"\nmax_visits_per_bot = 3\n"));
        assert_eq!(after(&["guards.budget.max_usd=2.5"]).matches("[guards.budget]\nmax_usd = 2.5").count(), 1);
    }

    #[test]
    fn a_password_is_not_printed() {
        let mut document: DocumentMut = "[log]\ndatabase = \"postgres://u:old@h/db\"\n".parse().unwrap();
        let put = put(&mut document, "log.database=postgres://u:new@h/db").unwrap();
        assert!(put.before.as_deref().is_some_and(|before| before.contains("@h/db") && !before.contains("old")), "{:?}", put.before);
        assert!(put.after.contains("@h/db") && !put.after.contains("new"), "{}", put.after);
        assert!(document.to_string().contains("u:new@h"));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("runguard.toml");
        std::os::unix::fs::symlink("/nonexistent/there.toml", &link).unwrap();
        assert!(matches!(run(&link, &["guards.handoff.max_handoffs=3".to_owned()]), Err(Failure::Failed(_))));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_table_or_a_list_is_not_replaced() {
        let mut document: DocumentMut = "[guards.handoff]\nmode = \"off\"\n[[alerts.target]]\nname = \"a\"\n".parse().unwrap();
        for bad in ["guards.handoff=1", "guards.handoff.mode.x=1", "alerts.target=1", "alerts.target.name=b", "nothing", "=1"] {
            assert!(put(&mut document, bad).is_err(), "{bad}");
        }
        let put = put(&mut document, "guards.handoff.mode=observe").unwrap();
        assert_eq!((put.before.as_deref(), put.after.as_str()), (Some("\"off\""), "\"observe\""));
    }

    #[test]
    fn a_file_that_would_be_refused_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("runguard.toml");
        run(&file, &["guards.handoff.max_visits_per_bot=3".to_owned()]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "[guards.handoff]\nmax_visits_per_bot = 3\n");
        let Err(Failure::Usage(problem)) = run(&file, &["guards.handoff.max_visits=3".to_owned()]) else { panic!("taken") };
        assert!(problem.starts_with("nothing was changed: ") && problem.contains("max_visits"), "{problem}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "[guards.handoff]\nmax_visits_per_bot = 3\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
