//! Trajectories of SWE-agent (`.traj`) and of mini-swe-agent (`.traj.json`): one document, one run.
//!
//! SWE-agent's actions are command lines; the tool is the command, where it is one of SWE-agent's own, and else the shell. Whether
//! one failed is said by what it printed, and by nothing else. It keeps tokens and cost for the run as a whole: they are spread
//! evenly over the steps. mini-swe-agent keeps messages; an action is the shell block in what the model said, and the exit code
//! stands in the observation. A turn without exactly one block is refused: no call was made, and what the harness answers is no
//! result of one.

use super::conversation::{Conversation, Spent, ToolCall, ToolResult, Turn, has_price};
use super::json::{Map, Value};
use super::message::{Message, Role, text, usage};
use super::{Out, Reader};
use memchr::memmem;
use runguard_core::detect::stall::says_error;
use serde_json::json;
use std::path::Path;

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

fn trajectory(conversation: &mut Conversation, steps: &[Value<'_>]) {
    for step in steps.iter().filter_map(Value::as_object) {
        let action = text(step, &["action"]);
        let observation = text(step, &["observation"]);
        if action.trim().is_empty() {
            conversation.turn(&Turn { text: text(step, &["response", "thought"]).into(), ..Turn::default() });
            conversation.told(observation);
            continue;
        }
        let came = step.contains_key("observation").then(|| (observation, Some(says_failure(observation))));
        conversation.executed(&command(action), came, None);
    }
}

/// What SWE-agent's tools and shells print when something went wrong: nothing else tells of it.
fn says_failure(observation: &str) -> bool {
    const BEGINNINGS: [&str; 12] = [
        "your proposed edit has introduced new syntax error",
        "your edit was not applied",
        "no replacement was performed",
        "invalid `",
        "invalid command",
        "usage: ",
        "execution timed out",
        "command timed out",
        "the command timed out",
        "command failed",
        "exit due to",
        "no file open",
    ];
    const ENDINGS: [&str; 9] = [
        "command not found",
        "no such file or directory",
        "permission denied",
        "is a directory",
        "not a directory",
        "unexpected end of file",
        "missing operand",
        "cannot be accessed",
        "not a git repository (or any of the parent directories): .git",
    ];
    if says_error(observation) {
        return true;
    }
    let first = observation.trim_start().lines().next().unwrap_or_default().trim_end();
    let starts = |beginning: &&str| first.get(..beginning.len()).is_some_and(|start| start.eq_ignore_ascii_case(beginning));
    // "cat: a.txt: No such file or directory", as shells and their commands complain.
    let complains = || {
        let ends = |end: &&str| {
            first.len().checked_sub(end.len()).and_then(|at| first.get(at..)).is_some_and(|rest| rest.eq_ignore_ascii_case(end))
        };
        first.contains(": ") && (ENDINGS.iter().any(ends) || first.contains("syntax error near") || first.contains("cannot access"))
    };
    let is_missing = first.starts_with("File ") && first.ends_with(" not found");
    let is_cancelled = first.starts_with("The command '") && observation.contains("was cancelled because it took more than");
    // A listing of a log has line numbers, or something else, in front of it.
    let has_traceback = || observation.lines().any(|line| line.starts_with("Traceback (most recent call last)"));
    BEGINNINGS.iter().any(starts) || complains() || is_missing || is_cancelled || has_traceback()
}

/// The model that is named in the folders above a trajectory, as SWE-agent writes them: `CONFIG__MODEL__t-0.00__…/TASK/TASK.traj`.
fn model_of_folders(file: &Path) -> Option<&str> {
    let folders = file.ancestors().skip(1).take(3).filter_map(|folder| folder.file_name()?.to_str());
    folders.flat_map(|name| name.split("__")).find(|part| has_price(part))
}

/// What is known of the whole run.
fn whole(info: &Map<'_>) -> Spent {
    let stats = info.get("model_stats").and_then(Value::as_object);
    let number = |name: &str| stats.and_then(|stats| stats.get(name)?.as_f64()).filter(|number| *number >= 0.0).unwrap_or(0.0);
    Spent { tokens: (number("tokens_sent") + number("tokens_received")) as u64, dollars: number("instance_cost") }
}

/// The shell blocks of a message, as the harness cuts them out.
fn shell_blocks(said: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let mut rest = said;
    while let Some(at) = memmem::find(rest.as_bytes(), b"```") {
        rest = &rest[at + 3..];
        let Some(body) = rest.strip_prefix("bash").or_else(|| rest.strip_prefix("mswea_bash_command")) else { continue };
        let Some((head, body)) = body.split_once('\n') else { break };
        if !head.trim().is_empty() {
            continue;
        }
        let Some((block, after)) = body.split_once("\n```") else { break };
        blocks.push(block.trim());
        rest = after;
    }
    blocks
}

/// `<returncode>1</returncode>`.
fn exit_code(observation: &str) -> Option<i64> {
    const BEGIN: &str = "<returncode>";
    let rest = &observation[memmem::find(observation.as_bytes(), BEGIN.as_bytes())? + BEGIN.len()..];
    rest.split_once("</returncode>")?.0.trim().parse().ok()
}

/// What the harness says instead of making a call: the wrong number of actions, or a person who refused it.
fn is_refusal(answer: &str) -> bool {
    let start = answer.trim_start();
    memmem::find(start.as_bytes(), b"EXACTLY ONE action").is_some()
        || start.starts_with("Command not executed")
        || start.starts_with("Interrupted by user")
}

/// A turn of the model, of which the next message tells how it ended.
struct ModelTurn<'a> {
    turn: Turn<'a>,
}

impl ModelTurn<'_> {
    /// `answer`: what came next, when the user spoke next.
    fn settle(self, conversation: &mut Conversation, answer: Option<&str>) {
        let Self { turn } = self;
        let blocks = shell_blocks(&turn.text);
        let code = answer.and_then(exit_code);
        let is_made = code.is_some() || (blocks.len() == 1 && !answer.is_some_and(is_refusal));
        let Some(block) = blocks.into_iter().next().filter(|_| is_made) else {
            conversation.turn(&turn);
            if let Some(answer) = answer {
                conversation.told(answer);
            }
            return;
        };
        conversation.spend(turn.spent);
        let call = ToolCall { id: String::new(), tool: "bash".into(), args: json!({"command": block}) };
        // A command that was killed has no exit code.
        let timed_out = answer.is_some_and(|answer| answer.starts_with("The last command") && answer.contains("timed out"));
        let failed = code.map(|code| code != 0).or(timed_out.then_some(true));
        conversation.executed(&call, answer.map(|answer| (answer, failed)), turn.at_millis);
    }
}

fn mini(conversation: &mut Conversation, messages: &[Value<'_>]) -> usize {
    let mut said: Option<ModelTurn<'_>> = None;
    let mut unknown = 0;
    for value in messages {
        let Some(message) = Message::read(value) else {
            // Its own marks at the end of a run are no messages of a model.
            unknown += usize::from(value.get("role").and_then(Value::as_str) != Some("exit"));
            continue;
        };
        match message.role {
            Role::Assistant => {
                if let Some(said) = said.take() {
                    said.settle(conversation, None);
                }
                let response = value.pointer("/extra/response");
                let reported = response.and_then(|response| usage(response.get("usage")?));
                let cost = value.pointer("/extra/cost").and_then(Value::as_f64);
                if let Some(model) = response.and_then(|response| response.get("model")?.as_str()) {
                    model.clone_into(&mut conversation.run.model);
                }
                let spent = if reported.is_some() || cost.is_some() {
                    Spent::of(&conversation.run.model, &reported.unwrap_or_default(), cost)
                } else {
                    message.spent()
                };
                let turn = Turn { text: message.text, calls: message.calls, spent, at_millis: message.at_millis, ..Turn::default() };
                if turn.calls.is_empty() {
                    said = Some(ModelTurn { turn });
                } else {
                    conversation.turn(&turn);
                }
            }
            // An observation stands where the user speaks.
            Role::User => {
                if let Some(said) = said.take() {
                    said.settle(conversation, Some(&message.text));
                } else {
                    let failed = exit_code(&message.text).map(|code| code != 0);
                    let answer = ToolResult { id: String::new(), text: message.text.clone(), failed };
                    if failed.is_none() || !conversation.answer(&answer) {
                        conversation.told(&message.text);
                    }
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
    if let Some(said) = said {
        said.settle(conversation, None);
    }
    unknown
}

impl Reader for SweAgent {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let Some(record) = record.as_object() else {
            out.broken(line, "not a trajectory");
            return;
        };
        let stem = out.file.file_stem().map(|stem| stem.to_string_lossy().trim_end_matches(".traj").to_owned()).unwrap_or_default();
        let named = text(record, &["instance_id"]);
        let task = if named.is_empty() { stem } else { named.to_owned() };
        let mut conversation = out.conversation(task.clone(), line);
        conversation.run.task = task;
        let empty = Map::default();
        let info = record.get("info").and_then(Value::as_object).unwrap_or(&empty);
        if let Some(steps) = record.get("trajectory").and_then(Value::as_array) {
            conversation.run.agent = "SWE-agent".into();
            let settings = record.get("replay_config").and_then(|settings| match settings {
                Value::String(text) => Value::parse(text.as_bytes()).ok(),
                other => Some(other.clone()),
            });
            let named = settings.as_ref().and_then(|settings| settings.pointer("/agent/model/name")?.as_str());
            named.or_else(|| model_of_folders(&out.file)).unwrap_or_default().clone_into(&mut conversation.run.model);
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
        conversation.spread(whole(info));
        out.run(conversation.finish());
    }

    fn end(&mut self, _out: &mut Out) {}
}
