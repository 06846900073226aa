//! Where settings come from: a file, the environment, flags. Each is a tree that knows where its keys stand.

use super::{ENVIRONMENT_PREFIX, SettingsError, SettingsSource};
use runguard_guards::policy::{Tree, check_levels, merge, nest};
use runguard_insight::insight::digest::Savings;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use toml::de::{DeArray, DeTable, DeValue};

/// A tree and where each of its keys stands.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) tree: Tree,
    pub(super) sources: HashMap<Vec<String>, SettingsSource>,
}

pub(super) fn merged(layers: &[Layer]) -> Tree {
    let mut tree = Tree::new();
    for layer in layers {
        merge(&mut tree, &layer.tree);
    }
    tree
}

/// A credit has one price. What budgets book it at is what the credits of an operation cost, unless the operation is given a price itself.
pub(super) fn price_of_operations(layers: &[Layer]) -> Layer {
    const CREDIT: [&str; 3] = ["guards", "budget", "credit_usd"];
    const OPERATION: [&str; 2] = ["savings", "usd_per_operation"];
    let tree = merged(layers);
    let set = |path: &[&str]| path[1..].iter().try_fold(tree.get(path[0])?, |value, part| value.get(part))?.as_f64();
    let credits = set(&["savings", "credits_per_operation"]).unwrap_or_else(|| Savings::default().credits_per_operation);
    let mut layer = Layer::default();
    if let Some(credit_usd) = set(&CREDIT) {
        let [table, key] = OPERATION;
        layer.tree = Tree::from_iter([(table.to_owned(), serde_json::json!({ key: credits * credit_usd }))]);
        layer.sources.insert(OPERATION.map(str::to_owned).to_vec(), source_of(layers, &CREDIT.map(str::to_owned)));
    }
    layer
}

/// The source of a path, or of the nearest thing above it that stands somewhere.
pub(super) fn source_of(layers: &[Layer], path: &[String]) -> SettingsSource {
    (1..=path.len())
        .rev()
        .find_map(|length| layers.iter().rev().find_map(|layer| layer.sources.get(&path[..length])))
        .cloned()
        .unwrap_or(SettingsSource::Default)
}

pub(super) fn file_layer(path: &Path, text: &str) -> Result<Layer, SettingsError> {
    // Every key asks for its line: a file with many tenants has many of both.
    let line_ends: Vec<usize> = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(offset, _)| offset).collect();
    let line_at = |offset: usize| line_ends.partition_point(|end| *end < offset) + 1;
    let at = |offset: usize| SettingsSource::File { path: path.to_owned(), line: line_at(offset) };
    let table = DeTable::parse(text).map_err(|error| {
        SettingsError::new(at(error.span().map_or(0, |span| span.start)), String::new(), format!("not TOML: {}", error.message()))
    })?;
    let mut layer = Layer::default();
    layer.tree = walk(table.get_ref(), &mut Vec::new(), &mut layer.sources, &at)?;
    Ok(layer)
}

fn walk(
    table: &DeTable<'_>,
    path: &mut Vec<String>,
    sources: &mut HashMap<Vec<String>, SettingsSource>,
    at: &dyn Fn(usize) -> SettingsSource,
) -> Result<Tree, SettingsError> {
    let mut tree = Tree::new();
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        check_levels(path, 0).map_err(|deep| SettingsError::new(at(key.span().start), deep.path.join("."), deep.problem))?;
        sources.insert(path.clone(), at(key.span().start));
        let converted = match value.get_ref() {
            DeValue::Table(inner) => Value::Object(walk(inner, path, sources, at)?),
            DeValue::Array(items) if items.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_))) => {
                walk_list(items, path, sources, at)?
            }
            other => scalar(other).map_err(|problem| SettingsError::new(at(value.span().start), path.join("."), problem))?,
        };
        tree.insert(key.get_ref().to_string(), converted);
        path.pop();
    }
    Ok(tree)
}

/// A list of tables: each is walked under its number, so that an error in it has its line.
fn walk_list(
    items: &DeArray<'_>,
    path: &mut Vec<String>,
    sources: &mut HashMap<Vec<String>, SettingsSource>,
    at: &dyn Fn(usize) -> SettingsSource,
) -> Result<Value, SettingsError> {
    let mut list = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let DeValue::Table(table) = item.get_ref() else {
            let problem = "tables and other values do not mix in a list".into();
            return Err(SettingsError::new(at(item.span().start), path.join("."), problem));
        };
        path.push(number.to_string());
        sources.insert(path.clone(), at(item.span().start));
        list.push(Value::Object(walk(table, path, sources, at)?));
        path.pop();
    }
    Ok(Value::Array(list))
}

fn scalar(value: &DeValue<'_>) -> Result<Value, String> {
    match value {
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        DeValue::Boolean(flag) => Ok(Value::Bool(*flag)),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).map(Value::from).map_err(|_| "the number is too large".into())
        }
        DeValue::Float(float) => {
            let number: f64 = float.as_str().parse().map_err(|_| "not a number".to_owned())?;
            serde_json::Number::from_f64(number).map(Value::Number).ok_or_else(|| "must be a finite number".into())
        }
        DeValue::Array(items) => items.iter().map(|item| scalar(item.get_ref())).collect::<Result<Vec<_>, _>>().map(Value::Array),
        DeValue::Datetime(_) => Err("a date makes no sense here".into()),
        DeValue::Table(_) => Err("a table makes no sense in a list".into()),
    }
}

/// `RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS=8` sets `guards.handoff.max_handoffs`. The value is read as TOML, else as text.
pub(super) fn environment_layer(environment: &[(String, String)]) -> Result<Layer, SettingsError> {
    let mut layer = Layer::default();
    for (name, text) in environment {
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX).filter(|rest| rest.contains("__")) else { continue };
        let path: Vec<String> = rest.split("__").map(str::to_lowercase).collect();
        let value = DeValue::parse(text).ok().and_then(|value| scalar(value.get_ref()).ok()).unwrap_or_else(|| Value::String(text.clone()));
        insert(&mut layer, path, value, SettingsSource::Environment(name.clone()))?;
    }
    Ok(layer)
}

pub(super) fn flag_layer(flags: &[(Vec<&'static str>, Value, &'static str)]) -> Result<Layer, SettingsError> {
    let mut layer = Layer::default();
    for (path, value, flag) in flags {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        insert(&mut layer, path, value.clone(), SettingsSource::Flag((*flag).to_owned()))?;
    }
    Ok(layer)
}

fn insert(layer: &mut Layer, path: Vec<String>, value: Value, source: SettingsSource) -> Result<(), SettingsError> {
    match nest(&path, value) {
        Ok(nested) => merge(&mut layer.tree, &nested),
        Err(deep) => return Err(SettingsError::new(source.cut(), deep.path.join("."), deep.problem)),
    }
    for length in 1..=path.len() {
        layer.sources.insert(path[..length].to_vec(), source.clone());
    }
    Ok(())
}
