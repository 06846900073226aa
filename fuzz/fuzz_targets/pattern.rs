//! No pattern makes its compiler panic, or take more than its bound; none makes the search panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_guards::policy::{Policy, Tree};
use serde_json::{Value, json};

fuzz_target!(|data: (&str, &str)| {
    let (source, text) = data;
    let Value::Object(guards) = json!({"ai_task_retry": {"patterns": {"t": source}}}) else { return };
    let guards: Tree = guards;
    if let Ok(policy) = Policy::build(&guards, &["guards"]) {
        let patterns = &policy.ai_task_retry.for_subject("t").settings.patterns;
        let _ = patterns.get("t").map(|pattern| pattern.is_in(text));
    }
});
