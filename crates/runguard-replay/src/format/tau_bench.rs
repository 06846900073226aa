//! Results of tau-bench: a list of `{task_id, trial, reward, info, traj}`, each a run, and `traj` its messages as `OpenAI` has them.
//!
//! A reward of 1 is success. Tasks are numbered in each domain, so the domain, which the policy in front of a conversation names, is
//! part of a task's name.

use super::json::Value;
use super::message::{Ear, Message};
use super::{Out, Reader};
use crate::labels::verdict_of;

pub(super) struct TauBench;

/// The first word of a policy's heading: `# Airline Agent Policy`.
fn domain(messages: &[Value<'_>]) -> Option<String> {
    let policy = messages.first().filter(|message| message.get("role").and_then(Value::as_str) == Some("system"))?;
    let heading = policy.get("content")?.as_str()?.trim_start().strip_prefix('#')?;
    heading.split_whitespace().next().map(str::to_lowercase)
}

fn number(value: Option<&Value<'_>>) -> String {
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default()
}

impl Reader for TauBench {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let Some(messages) = record.get("traj").and_then(Value::as_array) else {
            out.broken(line, "not a result of tau-bench: it has no `traj`");
            return;
        };
        let (task, trial) = (number(record.get("task_id")), number(record.get("trial")));
        let stem = out.file.file_stem().map(|stem| stem.to_string_lossy().trim_end_matches(".json").to_owned()).unwrap_or_default();
        let mut conversation = out.conversation(format!("{stem}/{task}-{trial}").trim_end_matches('-').to_owned(), line);
        conversation.run.agent = "tau-bench".into();
        conversation.run.task = domain(messages).map_or_else(|| task.clone(), |domain| format!("{domain}-{task}"));
        conversation.run.success = record.get("reward").and_then(|reward| verdict_of(&reward.to_value()));
        let mut ear = Ear::default();
        let (mut strays, mut unknown) = (0, 0);
        for message in messages {
            match Message::read(message) {
                Some(message) => strays += ear.hear(&mut conversation, message),
                None => unknown += 1,
            }
        }
        out.strays(line, strays);
        if unknown > 0 {
            out.broken(line, format!("{unknown} of its messages are in no shape that is known"));
        }
        out.run(conversation.finish());
    }

    fn end(&mut self, _out: &mut Out) {}
}
