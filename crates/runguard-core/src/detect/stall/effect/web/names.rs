//! The names of actions on web pages and of their arguments, as agents have them.

use super::super::super::fingerprints::words_of;

/// What is done, as far as it decides where the target stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Clicks, hovers, checks, chooses: on an element.
    Points,
    /// Drags from one element to another.
    Drags,
    /// Types into an element.
    Types,
    /// Presses keys, on an element or where the focus is.
    Presses,
    /// Opens an address.
    Opens,
    /// Goes to another tab.
    Turns,
    /// Acts on the page as a whole.
    Moves,
    Scrolls,
    Waits,
}

/// Names that mean an action on a page wherever they stand.
const CLEAR: &[(&str, Verb)] = &[
    ("click", Verb::Points),
    ("click_element", Verb::Points),
    ("click_element_by_index", Verb::Points),
    ("click_by_index", Verb::Points),
    ("click_xy", Verb::Points),
    ("left_click", Verb::Points),
    ("right_click", Verb::Points),
    ("middle_click", Verb::Points),
    ("double_click", Verb::Points),
    ("triple_click", Verb::Points),
    ("dblclick", Verb::Points),
    ("hover", Verb::Points),
    ("hover_element", Verb::Points),
    ("mouse_click", Verb::Points),
    ("mouse_click_xy", Verb::Points),
    ("mouse_dblclick", Verb::Points),
    ("mouse_move", Verb::Points),
    ("mouse_move_xy", Verb::Points),
    ("mouse_down", Verb::Points),
    ("mouse_up", Verb::Points),
    ("left_mouse_down", Verb::Points),
    ("left_mouse_up", Verb::Points),
    ("select_option", Verb::Points),
    ("select_dropdown", Verb::Points),
    ("select_dropdown_option", Verb::Points),
    ("dropdown_options", Verb::Points),
    ("get_dropdown_options", Verb::Points),
    ("uncheck", Verb::Points),
    ("drag_and_drop", Verb::Drags),
    ("drag_drop", Verb::Drags),
    ("left_click_drag", Verb::Drags),
    ("mouse_drag_and_drop", Verb::Drags),
    ("mouse_drag", Verb::Drags),
    ("mouse_drag_xy", Verb::Drags),
    ("type", Verb::Types),
    ("type_text", Verb::Types),
    ("fill", Verb::Types),
    ("fill_text", Verb::Types),
    ("fill_form", Verb::Types),
    ("input_text", Verb::Types),
    ("press_sequentially", Verb::Types),
    ("keyboard_type", Verb::Presses),
    ("keyboard_press", Verb::Presses),
    ("keyboard_insert_text", Verb::Presses),
    ("press_key", Verb::Presses),
    ("send_keys", Verb::Presses),
    ("keypress", Verb::Presses),
    ("hold_key", Verb::Presses),
    ("goto", Verb::Opens),
    ("go_to_url", Verb::Opens),
    ("open_url", Verb::Opens),
    ("visit_url", Verb::Opens),
    ("new_tab", Verb::Opens),
    ("open_tab", Verb::Opens),
    ("open_new_tab", Verb::Opens),
    ("tab_focus", Verb::Turns),
    ("tab_select", Verb::Turns),
    ("tab_close", Verb::Turns),
    ("switch_tab", Verb::Turns),
    ("close_tab", Verb::Turns),
    ("go_back", Verb::Moves),
    ("go_forward", Verb::Moves),
    ("navback", Verb::Moves),
    ("navigate_back", Verb::Moves),
    ("navigate_forward", Verb::Moves),
    ("noop", Verb::Moves),
    ("scroll", Verb::Scrolls),
    ("scroll_down", Verb::Scrolls),
    ("scroll_up", Verb::Scrolls),
    ("scroll_page", Verb::Scrolls),
    ("scroll_into_view", Verb::Scrolls),
    ("mouse_wheel", Verb::Scrolls),
    ("page_down", Verb::Scrolls),
    ("page_up", Verb::Scrolls),
];

/// Names that mean one in a browser; elsewhere only where an element is named beside them.
const VAGUE: &[(&str, Verb)] = &[
    ("check", Verb::Points),
    ("clear", Verb::Points),
    ("focus", Verb::Points),
    ("select", Verb::Points),
    ("tap", Verb::Points),
    ("move", Verb::Points),
    ("move_mouse", Verb::Points),
    ("upload_file", Verb::Points),
    ("file_upload", Verb::Points),
    ("drag", Verb::Drags),
    ("input", Verb::Types),
    ("set_value", Verb::Types),
    ("press", Verb::Presses),
    ("key", Verb::Presses),
    ("keys", Verb::Presses),
    ("navigate", Verb::Opens),
    ("visit", Verb::Opens),
    ("launch", Verb::Opens),
    ("open", Verb::Opens),
    ("switch", Verb::Turns),
    ("tabs", Verb::Turns),
    ("close", Verb::Turns),
    ("back", Verb::Moves),
    ("forward", Verb::Moves),
    ("reload", Verb::Moves),
    ("refresh", Verb::Moves),
    ("swipe", Verb::Scrolls),
];

/// What waits is known by its name wherever it stands; what looks at a page, in a browser only.
const WAITS: &[&str] =
    &["wait", "sleep", "wait_for", "wait_for_selector", "wait_for_navigation", "wait_for_load_state", "take_screenshot", "screenshot"];
const LOOKS_AT_PAGE: &[&str] = &["snapshot", "view", "state", "get_state", "get_browser_state", "aria_tree", "cursor_position"];

/// What stands before the name of an action and says that it is one in a browser.
const IN_BROWSER: &[&str] = &[
    "browser",
    "browserbase",
    "playwright",
    "puppeteer",
    "selenium",
    "stagehand",
    "chrome",
    "computer",
    "browse",
    "web",
    "webpage",
    "browsergym",
    "webarena",
    "visualwebarena",
];
/// What stands behind it, or alone, where one tool makes all actions.
const HOLDS_ACTIONS: &[&str] =
    &["action", "actions", "act", "use", "call", "preview", "interactive", "tool", "control", "step", "agent", "output"];

/// What is done, by its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) name: &'static str,
    pub(super) verb: Verb,
    /// The name alone does not say that it is done to a page.
    pub(super) is_vague: bool,
}

/// What a name says of pages.
#[derive(Debug, Clone, Copy)]
pub(super) enum Says {
    Nothing,
    Done(Done),
    /// What is done stands in the arguments.
    HoldsActions,
}

pub(super) struct Name {
    pub(super) what: Says,
    pub(super) in_browser: bool,
}

impl Name {
    /// `mcp__playwright__browser_click`, `browser.click`, `clickElementByIndex`.
    pub(super) fn of(tool: &str) -> Self {
        let name = tool.rsplit(['.', ':', '/']).next().unwrap_or(tool);
        let name = name.rsplit("__").next().unwrap_or(name);
        let words = words_of(name);
        let mut words = &words[..];
        let mut in_browser =
            tool.len() > name.len() && words_of(&tool[..tool.len() - name.len()]).iter().any(|word| is_one(IN_BROWSER, word));
        loop {
            if let Some(done) = done(&words.join("_"), in_browser) {
                return Self { what: Says::Done(done), in_browser };
            }
            match words {
                [first, rest @ ..] if is_one(IN_BROWSER, first) => (words, in_browser) = (rest, true),
                _ => break,
            }
        }
        // The answer of browser-use, which holds its actions.
        in_browser = in_browser || matches!(words, [agent, output] if agent == "agent" && output == "output");
        let is_version = |word: &str| word.bytes().all(|digit| digit.is_ascii_digit());
        let holds_actions = (in_browser || !words.is_empty()) && words.iter().all(|word| is_one(HOLDS_ACTIONS, word) || is_version(word));
        Self { what: if holds_actions { Says::HoldsActions } else { Says::Nothing }, in_browser }
    }
}

pub(super) fn is_one(names: &[&str], name: &str) -> bool {
    names.contains(&name)
}

fn done(name: &str, in_browser: bool) -> Option<Done> {
    let known = |names: &[(&'static str, Verb)], is_vague: bool| {
        names.iter().find(|(known, _)| *known == name).map(|(name, verb)| Done { name, verb: *verb, is_vague })
    };
    let waits = || is_one(WAITS, name) || (in_browser && is_one(LOOKS_AT_PAGE, name));
    (known(CLEAR, false).or_else(|| known(VAGUE, true)))
        .or_else(|| waits().then_some(Done { name: "", verb: Verb::Waits, is_vague: false }))
}

/// Names of arguments that say which element, without what separates their words.
pub(super) const ELEMENT: &[&str] = &[
    "element",
    "elementid",
    "elementindex",
    "ref",
    "index",
    "id",
    "bid",
    "uid",
    "selector",
    "cssselector",
    "css",
    "xpath",
    "locator",
    "target",
    "targetid",
    "node",
    "nodeid",
    "backendnodeid",
    "role",
    "label",
    "mark",
    "field",
    "frame",
    "startelement",
    "startref",
    "endelement",
    "endref",
    "frombid",
    "tobid",
    "from",
    "to",
    "source",
    "destination",
    "path",
];
/// Those that say where on the page.
pub(super) const PLACE: &[&str] = &[
    "coordinate",
    "coordinates",
    "position",
    "point",
    "x",
    "y",
    "box",
    "bbox",
    "startbox",
    "endbox",
    "startcoordinate",
    "endcoordinate",
    "startx",
    "starty",
    "endx",
    "endy",
    "x1",
    "y1",
    "x2",
    "y2",
];
/// Those that have no other meaning: beside a vague name they say that it is done to a page.
pub(super) const ELEMENT_OF_PAGE: &[&str] =
    &["element", "ref", "bid", "selector", "cssselector", "xpath", "coordinate", "startcoordinate", "elementindex"];
/// What is typed or chosen, and how.
pub(super) const TYPED: &[&str] = &[
    "text",
    "value",
    "values",
    "content",
    "string",
    "characters",
    "input",
    "option",
    "options",
    "query",
    "key",
    "keys",
    "submit",
    "slowly",
    "enter",
    "pressenter",
    "pressenterafter",
    "clear",
    "append",
];
/// How it is done, and what the model thinks of it.
pub(super) const BESIDE: &[&str] = &[
    "button",
    "modifiers",
    "doubleclick",
    "clickcount",
    "clicks",
    "numclicks",
    "count",
    "timeout",
    "delay",
    "duration",
    "reason",
    "reasoning",
    "thought",
    "thoughts",
    "explanation",
    "intent",
    "memory",
    "confidence",
];
/// Where the arguments themselves stand below one name, or the action as a line of text.
pub(super) const WITHIN: &[&str] = &["args", "arguments", "positional", "params", "parameters", "kwargs"];
pub(super) const AS_TEXT: &[&str] = &["raw", "action", "actionstr", "rawaction", "code", "browseractions", "command"];
/// Where one tool makes all actions: the names under which it is told which.
pub(super) const WHICH: &[&str] =
    &["action", "actions", "action_type", "type", "command", "code", "browser_actions", "action_str", "name", "action_name"];

/// The name of an argument as it stands in the lists above.
pub(super) fn key(name: &str) -> String {
    name.chars().filter(|letter| !matches!(letter, '_' | '-')).flat_map(char::to_lowercase).collect()
}

pub(super) fn done_in_browser(name: &str) -> Option<Done> {
    match Name::of(name).what {
        Says::Done(done) => Some(done),
        // What a tool in front of a browser is told to look at.
        Says::Nothing | Says::HoldsActions => done(&words_of(name).join("_"), true),
    }
}
