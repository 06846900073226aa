//! Which runs succeeded, told from outside: a file of labels, the reports that evaluations leave beside runs, an assumption.
//!
//! A file of labels is somebody's word and comes before what a run says of itself. A `report.json` (SWE-bench's harness and those
//! that follow it write one for all tasks, or one in the folder of each) only speaks where the run does not. What is still not
//! known may be assumed.

use crate::trace::Run;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A larger report is none.
const MAX_REPORT: u64 = 64 << 20;
/// Folders above a run in which its report may lie.
const FOLDERS_ABOVE: usize = 4;
/// What names a run, and what says how it ended, in tables and lists of objects.
const NAMES: [&str; 9] = ["run_id", "id", "run", "path", "file", "instance_id", "session_id", "task_id", "task"];
const VERDICTS: [&str; 8] = ["success", "resolved", "passed", "task_success", "succeeded", "reward", "label", "outcome"];

/// What a value says of a run: a flag, a reward of which 1 is success, or a word.
pub fn verdict_of(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(verdict) => Some(*verdict),
        Value::Number(reward) => reward.as_f64().map(|reward| reward > 1.0 - 1e-6),
        Value::String(word) => verdict_of_word(word),
        Value::Object(object) => VERDICTS.iter().find_map(|name| verdict_of(object.get(*name)?)),
        Value::Null | Value::Array(_) => None,
    }
}

fn verdict_of_word(word: &str) -> Option<bool> {
    let word = word.trim().to_lowercase();
    match word.as_str() {
        "true" | "yes" | "y" | "success" | "successful" | "succeeded" | "pass" | "passed" | "resolved" | "solved" | "good" | "ok" => {
            Some(true)
        }
        "false" | "no" | "n" | "failure" | "fail" | "failed" | "unresolved" | "unsolved" | "bad" | "error" => Some(false),
        _ => word.parse::<f64>().ok().filter(|reward| reward.is_finite()).map(|reward| reward > 1.0 - 1e-6),
    }
}

#[derive(Debug)]
struct Label {
    verdict: bool,
    is_used: AtomicBool,
}

/// What is known of runs besides what they say.
#[derive(Debug, Default)]
pub struct Labels {
    /// By the name they were given: a run's id, or the path of its file.
    named: HashMap<String, Label>,
    /// Of the names, those that end so as paths.
    by_file_name: HashMap<String, Vec<String>>,
    /// Of what nobody else says.
    pub assumed: Option<bool>,
    looks_for_reports: bool,
    reports: Mutex<HashMap<PathBuf, Option<Arc<Report>>>>,
}

type Report = HashMap<String, bool>;

impl Labels {
    /// Reports beside the runs count.
    pub fn beside_runs() -> Self {
        Self { looks_for_reports: true, ..Self::default() }
    }

    /// Adds a file of labels: a table (CSV, with commas, semicolons or tabs), a JSON object from runs to verdicts, a list or lines
    /// of objects, or a report of SWE-bench's harness.
    pub fn add_file(&mut self, path: &Path) -> Result<(), String> {
        let bytes = fs::read(path).map_err(|error| format!("{} could not be read: {error}", path.display()))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{}: these are no labels: not text in UTF-8", path.display()))?;
        let text = text.trim_start_matches('\u{feff}');
        let labels = if text.trim_start().starts_with(['{', '[']) { of_json(text) } else { of_table(text) };
        let labels = labels.map_err(|problem| format!("{}{problem}", path.display()))?;
        if labels.is_empty() {
            return Err(format!("{}: there is no label in it; a label is a run's id or path, and whether it succeeded", path.display()));
        }
        for (name, verdict) in labels {
            if let Some(end) = Path::new(&name).file_name().and_then(|end| end.to_str()) {
                self.by_file_name.entry(end.to_owned()).or_default().push(name.clone());
            }
            self.named.insert(name, Label { verdict, is_used: AtomicBool::new(false) });
        }
        Ok(())
    }

    /// Labels that were given, and of them those that no run was found for.
    pub fn unused(&self) -> (usize, usize) {
        (self.named.len(), self.named.values().filter(|label| !label.is_used.load(Ordering::Relaxed)).count())
    }

    /// Says of a run what is known of it.
    pub fn label(&self, run: &mut Run) {
        if let Some(label) = self.named(run) {
            label.is_used.store(true, Ordering::Relaxed);
            run.success = Some(label.verdict);
        }
        if run.success.is_none() && self.looks_for_reports {
            run.success = self.reported(run);
        }
        run.success = run.success.or(self.assumed);
    }

    fn named(&self, run: &Run) -> Option<&Label> {
        if self.named.is_empty() {
            return None;
        }
        let file = &run.place.file;
        let at_line = || self.named.get(&format!("{}:{}", file.display(), run.place.line));
        // Of a folder that is one run, the first file is its place.
        let of_path = || [Some(&**file), file.parent()].into_iter().flatten().find_map(|path| self.of_path(path));
        self.named.get(&run.id).or_else(at_line).or_else(of_path)
    }

    fn of_path(&self, path: &Path) -> Option<&Label> {
        let names = self.by_file_name.get(path.file_name()?.to_str()?)?;
        let is_it = |name: &str| {
            let name = name.trim_start_matches("./");
            path.ends_with(name) || (Path::new(name).is_absolute() && path.canonicalize().is_ok_and(|path| path == Path::new(name)))
        };
        names.iter().find(|name| is_it(name)).and_then(|name| self.named.get(name))
    }

    /// What the nearest report that knows the run says of it.
    fn reported(&self, run: &Run) -> Option<bool> {
        let folders = run.place.file.ancestors().skip(1).take(FOLDERS_ABOVE + 1);
        for folder in folders {
            let of_all = self.report(folder.join("report.json"));
            if let Some(verdict) = of_all.and_then(|report| report.get(&run.id).copied()) {
                return Some(verdict);
            }
            let of_each = folder.join("eval_outputs");
            if of_each.is_dir()
                && let Some(verdict) =
                    self.report(of_each.join(&run.id).join("report.json")).and_then(|report| report.get(&run.id).copied())
            {
                return Some(verdict);
            }
        }
        None
    }

    fn report(&self, path: PathBuf) -> Option<Arc<Report>> {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |path: &Path| {
            let is_small = fs::metadata(path).ok()?.len() <= MAX_REPORT;
            let value: Value = serde_json::from_slice(&fs::read(path).ok().filter(|_| is_small)?).ok()?;
            report_of(value.as_object()?).map(Arc::new)
        };
        reports.entry(path).or_insert_with_key(|path| read(path)).clone()
    }
}

/// A report of all tasks, by lists of their ids; or of single ones, by what is said of each.
fn report_of(object: &Map<String, Value>) -> Option<Report> {
    let each = || object.iter().filter_map(|(id, of)| Some((id.clone(), of.get("resolved")?.as_bool()?))).collect();
    report_by_lists(object).or_else(|| Some(each()).filter(|report: &Report| !report.is_empty()))
}

fn report_by_lists(object: &Map<String, Value>) -> Option<Report> {
    const RESOLVED: [&str; 2] = ["resolved_ids", "resolved"];
    const OTHERS: [&str; 12] = [
        "unresolved_ids",
        "completed_ids",
        "submitted_ids",
        "empty_patch_ids",
        "error_ids",
        "unresolved",
        "generated",
        "no_generation",
        "no_apply",
        "install_fail",
        "test_errored",
        "test_timeout",
    ];
    let ids = |name: &str| object.get(name).and_then(Value::as_array).map(|ids| ids.iter().filter_map(Value::as_str));
    if RESOLVED.iter().all(|name| ids(name).is_none()) {
        return None;
    }
    let others = OTHERS.iter().filter_map(|name| ids(name)).flatten().map(|id| (id.to_owned(), false));
    let resolved = RESOLVED.iter().filter_map(|name| ids(name)).flatten().map(|id| (id.to_owned(), true));
    Some(others.chain(resolved).collect())
}

type Read = Result<Vec<(String, bool)>, String>;

fn of_json(text: &str) -> Read {
    let values: Vec<Value> = serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| format!(":{}: not JSON: {error}", error.line()))?;
    let values = match <[Value; 1]>::try_from(values) {
        Ok([Value::Array(values)]) | Err(values) => values,
        Ok([Value::Object(object)]) if !NAMES.iter().any(|name| object.get(*name).is_some_and(Value::is_string)) => {
            if let Some(report) = report_by_lists(&object) {
                return Ok(report.into_iter().collect());
            }
            let verdict = |(name, value): (&String, &Value)| match verdict_of(value) {
                Some(verdict) => Ok((name.clone(), verdict)),
                None => Err(format!(": `{name}` is said to be {value}, which is neither success nor failure; write true or false")),
            };
            return object.iter().filter(|(_, value)| !value.is_null()).map(verdict).collect();
        }
        Ok([value]) => vec![value],
    };
    let label = |value: &Value| {
        let name = NAMES.iter().find_map(|name| match value.get(*name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        match name.zip(verdict_of(value)) {
            Some(label) => Ok(label),
            None => Err(format!(": {value} is no label; it takes a run ({}) and a verdict ({})", NAMES.join(", "), VERDICTS.join(", "))),
        }
    };
    values.iter().map(label).collect()
}

/// The first line may name the columns.
fn of_table(text: &str) -> Read {
    let mut labels = Vec::new();
    let (mut name_at, mut verdict_at) = (0, 1);
    let mut is_first = true;
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let cells = cells(line);
        if std::mem::take(&mut is_first) {
            let column =
                |names: &[&str]| names.iter().find_map(|name| cells.iter().position(|cell| cell.trim().eq_ignore_ascii_case(name)));
            if let Some((name, verdict)) = column(&NAMES).zip(column(&VERDICTS)) {
                (name_at, verdict_at) = (name, verdict);
                continue;
            }
        }
        let (Some(name), Some(word)) = (cells.get(name_at), cells.get(verdict_at)) else {
            return Err(format!(":{number}: a label needs a run and whether it succeeded"));
        };
        if word.trim().is_empty() {
            continue;
        }
        let Some(verdict) = verdict_of_word(word) else {
            return Err(format!(":{number}: `{}` is neither success nor failure; write true or false", word.trim()));
        };
        labels.push((name.trim().to_owned(), verdict));
    }
    Ok(labels)
}

fn cells(line: &str) -> Vec<String> {
    let separator = [',', '\t', ';'].into_iter().find(|separator| line.contains(*separator)).unwrap_or(',');
    let mut cells = vec![String::new()];
    let (mut quoted, mut characters) = (false, line.chars().peekable());
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                push(&mut cells, '"');
            }
            '"' => quoted = !quoted,
            _ if character == separator && !quoted => cells.push(String::new()),
            _ => push(&mut cells, character),
        }
    }
    cells
}

fn push(cells: &mut [String], character: char) {
    if let Some(cell) = cells.last_mut() {
        cell.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ReadAt;
    use serde_json::json;

    fn run(id: &str, file: &Path) -> Run {
        Run::new(id.into(), "s", ReadAt { file: file.into(), line: 7 })
    }

    fn labelled(labels: &Labels, id: &str, file: &Path) -> Option<bool> {
        let mut run = run(id, file);
        labels.label(&mut run);
        run.success
    }

    #[test]
    fn files_of_labels_in_every_form() {
        let folder = tempfile::tempdir().unwrap();
        let forms = [
            "run_id,success\na,true\nruns/b.json,no\n",
            "a,1.0\n./runs/b.json,0\nc,\n",
            "model;outcome;id\nm;passed;a\nm;failed;\"runs/b.json\"\n",
            r#"{"a": true, "runs/b.json": {"resolved": false}}"#,
            r#"[{"id": "a", "reward": 1.0}, {"path": "runs/b.json", "task_success": "failure"}]"#,
            "{\"run_id\": \"a\", \"success\": true}\n{\"run_id\": \"runs/b.json\", \"success\": false}\n",
            r#"{"resolved_ids": ["a"], "unresolved_ids": ["runs/b.json"], "total_instances": 2}"#,
        ];
        for form in forms {
            let path = folder.path().join("labels");
            fs::write(&path, form).unwrap();
            let mut labels = Labels::default();
            labels.add_file(&path).unwrap_or_else(|problem| panic!("{form}: {problem}"));
            assert_eq!(labelled(&labels, "a", Path::new("x.json")), Some(true), "{form}");
            assert_eq!(labels.unused(), (2, 1), "{form}");
            assert_eq!(labelled(&labels, "other", Path::new("/data/runs/b.json")), Some(false), "{form}: by its path");
            assert_eq!(labelled(&labels, "other", Path::new("/data/runs/b.json/1.json")), Some(false), "{form}: a folder");
            assert_eq!(labelled(&labels, "other", Path::new("/data/b.json")), None, "{form}: another folder's");
            assert_eq!(labels.unused(), (2, 0), "{form}");
        }
        for (wrong, told) in
            [("a,perhaps\n", "labels:1: `perhaps`"), ("{\"a\": [1]}", "`a`"), ("[{\"x\": 1}]", "no label"), ("", "no label")]
        {
            let path = folder.path().join("labels");
            fs::write(&path, wrong).unwrap();
            let problem = Labels::default().add_file(&path).unwrap_err();
            assert!(problem.contains(told), "{wrong}: {problem}");
        }
    }

    #[test]
    fn a_label_comes_before_the_run_and_a_report_after_it_and_an_assumption_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("llm_completions/a__a-1/1.json");
        fs::create_dir_all(folder.path().join("eval_outputs/a__a-2")).unwrap();
        fs::write(
            folder.path().join("report.json"),
            json!({"resolved_ids": ["a__a-1"], "submitted_ids": ["a__a-1", "a__a-3"]}).to_string(),
        )
        .unwrap();
        let each = folder.path().join("eval_outputs/a__a-2/report.json");
        fs::write(each, json!({"a__a-2": {"patch_exists": true, "resolved": true}}).to_string()).unwrap();
        let mut labels = Labels::beside_runs();
        let known = |labels: &Labels| ["a__a-1", "a__a-2", "a__a-3", "a__a-4"].map(|id| labelled(labels, id, &file));
        assert_eq!(known(&labels), [Some(true), Some(true), Some(false), None]);
        labels.assumed = Some(false);
        assert_eq!(labelled(&labels, "a__a-4", &file), Some(false));
        fs::write(folder.path().join("l.csv"), "a__a-1,false\n").unwrap();
        labels.add_file(&folder.path().join("l.csv")).unwrap();
        assert_eq!(labelled(&labels, "a__a-1", &file), Some(false));
        let mut run = Run { success: Some(false), ..run("a__a-2", &file) };
        labels.label(&mut run);
        assert_eq!(run.success, Some(false), "the run's own word");
        assert_eq!(known(&Labels::default()), [None; 4], "reports are looked for when asked to");
    }
}
