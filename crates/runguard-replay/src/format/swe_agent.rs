//! Trajectories of SWE-agent (`.traj`) and of mini-swe-agent (`.traj.json`): one document, one run.
//!
//! SWE-agent's actions are command lines; the tool is the command, where it is one of SWE-agent's own, and else the shell. It
//! keeps tokens and cost for the run as a whole: they are spread evenly over the steps. mini-swe-agent keeps messages; an action
//! is the shell block in what the model said, and the exit code stands in the observation.

use super::conversation::{Conversation, Spent, ToolCall, ToolResult, Turn};
use super::message::{Ear, Message, Role, text, usage};
use super::{Out, Reader};
use serde_json::{Map, Value, json};

/// The commands that SWE-agent gives its model besides the shell.
const COMMANDS: [&str; 17] = [
    "str_replace_editor",
    "open",
    "goto",
    "scroll_up",
    "scroll_down",
    "create",
    "edit",
    "insert",
    "search_dir",
    "search_file",
    "find_file",
    "find",
    "filemap",
    "submit",
    "exit_forfeit",
    "exit_error",
    "view_image",
];

pub(super) struct SweAgent;

fn command(action: &str) -> ToolCall {
    let action = action.trim();
    let word = action.split(char::is_whitespace).next().unwrap_or_default();
    let tool = if COMMANDS.contains(&word) { word } else { "bash" };
    ToolCall { id: String::new(), tool: tool.to_owned(), args: json!({"command": action}) }
}

fn trajectory(conversation: &mut Conversation, steps: &[Value]) {
    for step in steps.iter().filter_map(Value::as_object) {
        let action = text(step, &["action"]);
        let observation = text(step, &["observation"]);
        if action.trim().is_empty() {
            conversation.turn(&Turn { text: text(step, &["response", "thought"]).to_owned(), ..Turn::default() });
            conversation.reply(observation);
            continue;
        }
        conversation.turn(&Turn { calls: vec![command(action)], ..Turn::default() });
        if step.contains_key("observation") {
            conversation.answer(&ToolResult { id: String::new(), text: observation.to_owned(), failed: None });
        }
    }
}

/// What is known of the whole run, a share to each step.
fn spread(conversation: &mut Conversation, info: &Map<String, Value>) {
    let stats = info.get("model_stats").and_then(Value::as_object);
    let number = |name: &str| stats.and_then(|stats| stats.get(name)?.as_f64()).filter(|number| *number >= 0.0).unwrap_or(0.0);
    let tokens = (number("tokens_sent") + number("tokens_received")) as u64;
    let dollars = number("instance_cost");
    let steps = &mut conversation.run.steps;
    let count = steps.len() as u64;
    if count == 0 || steps.iter().any(|step| step.tokens > 0 || step.dollars > 0.0) {
        return;
    }
    for (index, step) in (0_u64..).zip(steps) {
        step.tokens = tokens / count + u64::from(index < tokens % count);
        step.dollars = dollars / count as f64;
    }
}

/// The one shell block of a message.
fn shell_block(said: &str) -> Option<&str> {
    let (_, block) = said.split_once("```bash\n").or_else(|| said.split_once("```mswea_bash_command\n"))?;
    let (block, _) = block.split_once("\n```")?;
    Some(block.trim())
}

/// `<returncode>1</returncode>`.
fn exit_code(observation: &str) -> Option<i64> {
    let (_, rest) = observation.split_once("<returncode>")?;
    rest.split_once("</returncode>")?.0.trim().parse().ok()
}

fn mini(conversation: &mut Conversation, messages: &[Value]) -> usize {
    let mut ear = Ear::default();
    let mut unknown = 0;
    for value in messages {
        let Some(mut message) = Message::read(value) else {
            // Its own marks at the end of a run are no messages of a model.
            unknown += usize::from(value.get("role").and_then(Value::as_str) != Some("exit"));
            continue;
        };
        let code = exit_code(&message.text);
        match message.role {
            Role::Assistant => {
                if message.calls.is_empty() {
                    let block = shell_block(&message.text);
                    let call = |block: &str| ToolCall { id: String::new(), tool: "bash".into(), args: json!({"command": block}) };
                    message.calls.extend(block.map(call));
                }
                let response = value.pointer("/extra/response");
                let reported = response.and_then(|response| usage(response.get("usage")?));
                let cost = value.pointer("/extra/cost").and_then(Value::as_f64);
                if let Some(model) = response.and_then(|response| response.get("model")?.as_str()) {
                    model.clone_into(&mut conversation.run.model);
                }
                if reported.is_some() || cost.is_some() {
                    conversation.spend(Spent::of(&conversation.run.model, &reported.unwrap_or_default(), cost));
                }
                ear.hear(conversation, message);
            }
            // An observation stands where the user speaks.
            Role::User => {
                let answer = ToolResult { id: String::new(), text: message.text.clone(), failed: code.map(|code| code != 0) };
                if code.is_none() || !conversation.answer(&answer) {
                    ear.hear(conversation, message);
                }
            }
            Role::Tool => {
                for mut answer in message.answers {
                    answer.failed = exit_code(&answer.text).map(|code| code != 0).or(answer.failed);
                    conversation.answer(&answer);
                }
            }
            Role::Other => {}
        }
    }
    unknown
}

impl Reader for SweAgent {
    fn record(&mut self, line: u64, record: Value, out: &mut Out) {
        let Some(record) = record.as_object() else {
            out.broken(line, "not a trajectory");
            return;
        };
        let stem = out.file.file_stem().map(|stem| stem.to_string_lossy().trim_end_matches(".traj").to_owned()).unwrap_or_default();
        let named = text(record, &["instance_id"]);
        let task = if named.is_empty() { stem } else { named.to_owned() };
        let mut conversation = out.conversation(task.clone(), line);
        conversation.run.task = task;
        let empty = Map::new();
        let info = record.get("info").and_then(Value::as_object).unwrap_or(&empty);
        if let Some(steps) = record.get("trajectory").and_then(Value::as_array) {
            conversation.run.agent = "SWE-agent".into();
            let settings: Option<Value> = record.get("replay_config").and_then(|settings| serde_json::from_str(settings.as_str()?).ok());
            let model = settings.as_ref().and_then(|settings| settings.pointer("/agent/model/name")?.as_str());
            model.unwrap_or_default().clone_into(&mut conversation.run.model);
            trajectory(&mut conversation, steps);
        } else if let Some(messages) = record.get("messages").and_then(Value::as_array) {
            format!("mini-swe-agent {}", text(info, &["mini_version"])).trim_end().clone_into(&mut conversation.run.agent);
            let model = info.get("config").and_then(|config| config.pointer("/model/model_name")?.as_str());
            model.unwrap_or_default().clone_into(&mut conversation.run.model);
            let unknown = mini(&mut conversation, messages);
            if unknown > 0 {
                out.broken(line, format!("{unknown} of its messages are in no shape that is known"));
            }
        } else {
            out.broken(line, "not a trajectory: neither `trajectory` nor `messages`");
            return;
        }
        spread(&mut conversation, info);
        out.run(conversation.finish());
    }

    fn end(&mut self, _out: &mut Out) {}
}
