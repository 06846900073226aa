//! Settings as trees of tables, before they become types.
//!
//! A dotted name is a tree as deep as it has parts, and names come from files, variables and callers. Trees are merged,
//! walked and dropped by recursion, so a name of some thousand parts would use up the stack of the thread that holds it. How
//! deep a tree may be is bounded here, where names become trees.

use super::SettingsProblem;
use serde_json::{Map, Value};

pub type Tree = Map<String, Value>;

/// Tables within tables. The deepest key there is stands twelve deep: one name of a scope, of one budget of one tenant.
pub const MOST_LEVELS: usize = 16;
/// Parts of a name that an error repeats.
const SHOWN_PARTS: usize = 4;
/// Characters of one part that an error repeats.
const SHOWN_CHARS: usize = 64;

/// A value under a path: `a`, `b` and 1 give `{a: {b: 1}}`.
pub fn nest<P: AsRef<str>>(path: &[P], value: Value) -> Result<Tree, SettingsProblem> {
    let Some((first, below)) = path.split_first() else { return Err(SettingsProblem::new(&[], "has no name")) };
    check_levels(path, levels(&value))?;
    let value = below.iter().rev().fold(value, |inner, part| Value::Object(Tree::from_iter([(part.as_ref().to_owned(), inner)])));
    Ok(Tree::from_iter([(first.as_ref().to_owned(), value)]))
}

/// `{"voiceflow.max_queries": 3}` says the same as a table in a table.
pub fn unfold(flat: &Tree) -> Result<Tree, SettingsProblem> {
    unfold_below(flat, &mut Vec::new())
}

fn unfold_below(flat: &Tree, above: &mut Vec<String>) -> Result<Tree, SettingsProblem> {
    let mut tree = Tree::new();
    for (key, value) in flat {
        let length = above.len();
        above.extend(key.split('.').take(MOST_LEVELS + 1).map(str::to_owned));
        check_levels(above, 0)?;
        let value = if let Value::Object(inner) = value { Value::Object(unfold_below(inner, above)?) } else { value.clone() };
        merge(&mut tree, &nest(&above[length..], value)?);
        above.truncate(length);
    }
    Ok(tree)
}

/// Whether a path with so many tables below it is within the bound.
pub fn check_levels<P: AsRef<str>>(path: &[P], below: usize) -> Result<(), SettingsProblem> {
    if path.len() + below <= MOST_LEVELS {
        return Ok(());
    }
    let mut shown: Vec<String> = path.iter().take(SHOWN_PARTS).map(|part| part.as_ref().chars().take(SHOWN_CHARS).collect()).collect();
    if path.len() > SHOWN_PARTS {
        shown.push("…".to_owned());
    }
    let problem = format!("stands too deep: a name has at most {MOST_LEVELS} parts, and no setting is nested deeper");
    Err(SettingsProblem { path: shown, problem })
}

/// Tables and lists within a value.
fn levels(value: &Value) -> usize {
    match value {
        Value::Object(table) => 1 + table.values().map(levels).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Lays `over` onto `base`: tables are merged, everything else is replaced.
pub fn merge(base: &mut Tree, over: &Tree) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn object(value: Value) -> Tree {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_dotted_name_is_a_table_in_a_table() {
        let flat = object(json!({"a.b": 1, "a": {"c.d": 2}, "e": [{"f.g": 3}]}));
        assert_eq!(Value::Object(unfold(&flat).unwrap()), json!({"a": {"b": 1, "c": {"d": 2}}, "e": [{"f.g": 3}]}));
        assert_eq!(Value::Object(nest(&["a", "b"], json!(1)).unwrap()), json!({"a": {"b": 1}}));
    }

    #[test]
    fn a_name_of_many_parts_is_refused_and_not_repeated_whole() {
        let long = vec!["a"; 100_000];
        for problem in [nest(&long, json!(1)).unwrap_err(), unfold(&object(json!({ long.join("."): 1 }))).unwrap_err()] {
            assert_eq!(problem.path, ["a", "a", "a", "a", "…"]);
            assert!(problem.problem.contains("at most 16"), "{}", problem.problem);
        }
        assert!(nest(&vec!["a"; MOST_LEVELS], json!(1)).is_ok());
        assert!(nest(&vec!["a"; MOST_LEVELS], json!({})).is_err(), "a table counts, also an empty one");
    }

    /// Tables whose names have dots, some of them deep.
    fn tables() -> impl Strategy<Value = Value> {
        let name = prop::collection::vec("[ab]", 1..6).prop_map(|parts| parts.join("."));
        let leaf = prop_oneof![Just(json!(1)), Just(json!([[1]])), Just(json!({}))];
        leaf.prop_recursive(6, 40, 4, move |inner| {
            prop::collection::vec((name.clone(), inner), 1..4).prop_map(|entries| Value::Object(entries.into_iter().collect()))
        })
    }

    fn deepest(value: &Value, above: usize) -> usize {
        match value {
            Value::Object(table) => {
                table.iter().map(|(key, value)| deepest(value, above + key.split('.').count())).max().unwrap_or(above + 1)
            }
            Value::Array(_) => above + levels(value),
            _ => above,
        }
    }

    proptest! {
        #[test]
        fn what_is_unfolded_is_within_the_bound_and_what_is_within_it_is_unfolded(table in tables()) {
            prop_assume!(table.is_object());
            match unfold(&object(table.clone())) {
                Ok(tree) => prop_assert!(levels(&Value::Object(tree)) <= MOST_LEVELS + 1),
                Err(_) => prop_assert!(deepest(&table, 0) > MOST_LEVELS),
            }
        }
    }
}
