//! `LangSmith` exports: runs as the SDK lists them (`list_runs`, bulk exports), one a line, in a list, or nested; and batches as the
//! SDK sends them (`post`, `patch`), where a run that goes on is told when it begins and again when it ends.
//!
//! What `LangSmith` calls a run is a span here, and what it calls a trace is a run. Tools and retrievers are calls, `llm` runs are
//! turns, chains only name the agent.

use super::conversation::{Spent, ToolCall, args_of_text, millis_of};
use super::grouped::{Grouped, MOST_HELD};
use super::json::{Map, Value};
use super::message::{answered, args, asked, owned, result_text, text};
use super::spans::{Span, Spans, What};
use super::{Out, Reader};
use runguard_core::prices::Usage;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct LangSmith {
    runs: Grouped<Spans>,
    /// Steps of batches that have begun and whose end was not told yet, by id, with the line of their beginning.
    begun: BTreeMap<String, (u64, Value<'static>)>,
}

/// A number, or the text of one: money is a decimal, which JSON writes as text.
fn number(object: &Map<'_>, name: &str) -> Option<f64> {
    let value = object.get(name)?;
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn count(object: &Map<'_>, name: &str) -> u64 {
    object.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// An input or output under the one name that wraps it.
fn unwrapped<'a, 'b>(value: Option<&'a Value<'b>>, name: &str) -> Option<&'a Value<'b>> {
    let value = value.filter(|value| !value.is_null())?;
    match value.as_object() {
        Some(object) if object.len() == 1 => object.get(name).or(Some(value)),
        Some(_) | None => Some(value),
    }
}

fn tool(run: &Map<'_>) -> What {
    let output = unwrapped(run.get("outputs"), "output");
    // A tool of LangChain answers with a message; its id names the call.
    let message = output.and_then(Value::as_object).map(|output| output.get("kwargs").and_then(Value::as_object).unwrap_or(output));
    let id = message.map(|message| text(message, &["tool_call_id"])).unwrap_or_default();
    let result = message.filter(|message| message.contains_key("tool_call_id")).and_then(|message| message.get("content")).or(output);
    let error = text(run, &["error"]);
    let said_error = message.is_some_and(|message| text(message, &["status"]) == "error");
    let failed = !error.is_empty() || text(run, &["status"]) == "error" || said_error;
    let result = result.map(|result| result_text(Some(result)).into_owned()).or_else(|| failed.then(|| error.to_owned()));
    What::Tool {
        call: ToolCall {
            id: id.to_owned(),
            tool: text(run, &["name"]).to_owned(),
            args: match unwrapped(run.get("inputs"), "input") {
                Some(Value::String(text)) => python(text).unwrap_or_else(|| args_of_text(text)),
                given => args(given),
            },
        },
        result,
        failed: Some(failed),
    }
}

/// A value as Python prints it, which is how `LangChain` hands on the arguments of a tool: `{'path': "it's", 'deep': True}`.
fn python(text: &str) -> Option<serde_json::Value> {
    let mut json = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let mut inside = String::new();
                loop {
                    match letters.next()? {
                        '\\' => inside.push(match letters.next()? {
                            'n' => '\n',
                            't' => '\t',
                            'r' => '\r',
                            // Two, four or eight digits of the letter's number.
                            kind @ ('x' | 'u' | 'U') => {
                                let length = match kind {
                                    'x' => 2,
                                    'u' => 4,
                                    _ => 8,
                                };
                                let digits: String = letters.by_ref().take(length).collect();
                                char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                            }
                            other => other,
                        }),
                        end if end == letter => break,
                        other => inside.push(other),
                    }
                }
                json.push_str(&serde_json::Value::String(inside).to_string());
            }
            '(' => json.push('['),
            ')' => json.push(']'),
            letter if letter.is_ascii_alphabetic() => {
                let mut word = String::from(letter);
                while let Some(more) = letters.next_if(char::is_ascii_alphabetic) {
                    word.push(more);
                }
                json.push_str(match word.as_str() {
                    "True" => "true",
                    "False" => "false",
                    "None" => "null",
                    other => other,
                });
            }
            other => json.push(other),
        }
    }
    serde_json::from_str(&json).ok()
}

fn model(run: &Map<'_>) -> What {
    let extra = run.get("extra");
    let named = |pointer: &str| extra.and_then(|extra| extra.pointer(pointer)?.as_str());
    let names = ["/metadata/ls_model_name", "/invocation_params/model", "/invocation_params/model_name", "/invocation_params/model_id"];
    let answered = run.get("outputs").map(|outputs| owned(answered(outputs))).unwrap_or_default();
    let said = answered.iter().map(|message| message.model.as_str()).find(|model| !model.is_empty());
    let model = names.iter().find_map(|name| named(name)).or(said).unwrap_or_default().to_owned();
    let details = |name: &str| run.get("prompt_token_details").and_then(|details| details.get(name)?.as_u64()).unwrap_or(0);
    let (input, output) = (count(run, "prompt_tokens"), count(run, "completion_tokens"));
    let usage = if input.max(output) > 0 {
        let cached_tokens = details("cache_read").min(input);
        let cache_write_tokens = details("cache_creation").min(input - cached_tokens);
        Usage { cached_tokens, cache_write_tokens, ..Usage::new(input - cached_tokens - cache_write_tokens, output) }
    } else {
        answered.iter().find_map(|message| message.usage).unwrap_or_else(|| Usage::new(count(run, "total_tokens"), 0))
    };
    let cost = number(run, "total_cost").filter(|cost| *cost > 0.0);
    let failed = !text(run, &["error"]).is_empty();
    What::Model {
        asked: run.get("inputs").map(|inputs| owned(asked(inputs))).unwrap_or_default(),
        answered: if failed { Vec::new() } else { answered },
        spent: Spent::of(&model, &usage, cost),
        model,
    }
}

fn is_step(run: &Map<'_>) -> bool {
    matches!(text(run, &["run_type"]), "tool" | "retriever" | "llm")
}

impl LangSmith {
    fn posted(&mut self, line: u64, run: &Map<'_>, out: &mut Out) {
        let goes_on = run.get("end_time").is_none_or(Value::is_null);
        if goes_on && is_step(run) && self.begun.len() < MOST_HELD {
            self.begun.insert(text(run, &["id"]).to_owned(), (line, serde_json::Value::Object(run.to_value()).into()));
        } else {
            self.run(line, run, out);
        }
    }

    /// What a patch leaves out is as it was posted. One without a type is of a run that is no step.
    fn patched(&mut self, line: u64, patch: &Map<'_>, out: &mut Out) {
        let Some((line, Value::Object(mut run))) = self.begun.remove(text(patch, &["id"])) else {
            if patch.contains_key("run_type") {
                self.run(line, patch, out);
            }
            return;
        };
        for (name, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
            run.insert(name.to_owned(), value.to_value().into());
        }
        self.run(line, &run, out);
    }

    fn run(&mut self, line: u64, run: &Map<'_>, out: &mut Out) {
        let own = text(run, &["id"]);
        let trace = text(run, &["trace_id", "id"]);
        let kind = text(run, &["run_type"]);
        if kind.is_empty() || trace.is_empty() {
            out.broken(line, "not a run of LangSmith: run_type and id or trace_id are needed");
            return;
        }
        let what = match kind {
            "llm" => Some(model(run)),
            _ => is_step(run).then(|| tool(run)),
        };
        let at_millis = run.get("start_time").and_then(|at| at.as_i64().or_else(|| millis_of(at.as_str()?)));
        let parent = text(run, &["parent_run_id"]);
        let span = what.map(|what| Span {
            id: own.to_owned(),
            parent: parent.to_owned(),
            began: at_millis.map_or(0, i128::from),
            at_millis,
            telling: None,
            what,
        });
        let begin = |out: &Out| Spans::new(out.conversation(trace.to_owned(), line));
        self.runs.tell(trace, line, out, begin, |spans| {
            if parent.is_empty() {
                text(run, &["name"]).clone_into(&mut spans.conversation.run.agent);
            }
            spans.spans.extend(span);
        });
        for child in run.get("child_runs").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
            let mut child = child.clone();
            for (name, value) in [("trace_id", trace), ("parent_run_id", own)] {
                if !child.contains_key(name) {
                    child.insert(name, value.to_owned().into());
                }
            }
            self.run(line, &child, out);
        }
    }
}

impl Reader for LangSmith {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let of_batch = |name: &str| record.get(name).and_then(Value::as_array);
        if record.get("run_type").is_none() && (of_batch("post").is_some() || of_batch("patch").is_some()) {
            let runs = |name: &str| of_batch(name).into_iter().flatten().filter_map(Value::as_object);
            runs("post").for_each(|run| self.posted(line, run, out));
            runs("patch").for_each(|run| self.patched(line, run, out));
            return;
        }
        match (record.get("runs").and_then(Value::as_array), record.as_object()) {
            (Some(runs), _) => runs.iter().filter_map(Value::as_object).for_each(|run| self.run(line, run, out)),
            (None, Some(run)) => self.run(line, run, out),
            (None, None) => out.broken(line, "not a run of LangSmith"),
        }
    }

    fn end(&mut self, out: &mut Out) {
        for (line, run) in std::mem::take(&mut self.begun).into_values() {
            run.as_object().into_iter().for_each(|run| self.run(line, run, out));
        }
        self.runs.close_all(out);
    }
}

#[cfg(test)]
mod tests {
    use super::python;
    use serde_json::json;

    #[test]
    fn values_as_python_prints_them() {
        let text = r#"{'path': "it's", 'deep': True, 'more': None, 'list': [1, -2.5e-3], 'pair': (1, 'a\n\xe9\'')}"#;
        let value = json!({"path": "it's", "deep": true, "more": null, "list": [1, -0.0025], "pair": [1, "a\né'"]});
        assert_eq!(python(text), Some(value));
        for other in ["{'a': ", "{'a", "ls -la", "'\\x", "<object>"] {
            assert_eq!(python(other), None, "{other}");
        }
        assert_eq!(python("{\"a\": true}"), Some(json!({"a": true})), "JSON is read too");
    }
}
