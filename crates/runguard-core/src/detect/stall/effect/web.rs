//! What an action on a web page acts on: the element, without what is typed into it.
//!
//! A page is seldom the same twice, so results say little of a web agent, and neither does what it types: who searches for one
//! thing in eight wordings has not moved. What tells a stuck one is that it comes back to the same few elements. Agents write
//! down their actions in many ways: a tool for each (`click`, `browser_type`, `click_element_by_index`), one tool for all
//! (`computer {"action": "left_click"}`), or a line of text (`click [1234]`, `fill('b12', 'text')`). All of them end here.
//!
//! Where the element is not named, as when one types where the focus is, nothing but the whole call tells one action from
//! another: those have no target.

mod names;
mod written;

use names::{AS_TEXT, BESIDE, Done, ELEMENT, ELEMENT_OF_PAGE, Name, PLACE, Says, TYPED, Verb, WHICH, WITHIN, done_in_browser, is_one, key};
use serde_json::{Map, Value};
use std::borrow::Cow;
use written::{Argument, arguments};
use xxhash_rust::xxh3::xxh3_64;

/// Actions in one call, and levels of one in another, that are looked at.
const MOST_ACTIONS: usize = 64;
const DEEPEST: u32 = 4;

/// What a call does to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// It acts on this: a number for what is done and its target.
    On(u64),
    /// It waits, or looks at what is there.
    Waits,
}

/// Of a call, by its arguments as JSON or plain text; `None` when it is no action on a page, or does not say on what.
pub(super) fn action(tool: &str, arguments: &str) -> Option<Action> {
    let mut found = ActedOn::default();
    if tool.contains(['(', '[']) {
        // The whole action as a name.
        found.text(tool);
        return found.action();
    }
    // Nearly every call is of another kind, and its arguments need not be read.
    let name = Name::of(tool);
    if matches!(name.what, Says::Nothing) {
        return None;
    }
    // Some tools take plain text.
    let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments));
    match name.what {
        Says::Nothing => {}
        Says::Done(done) => found.called(done, name.in_browser, &arguments),
        Says::HoldsActions => {
            found.in_browser = name.in_browser;
            found.held(&arguments, 0);
        }
    }
    found.action()
}

/// A value as it would be written between brackets: `5` and `"5"` name the same element, `[3, 4]` and `"3,4"` the same place.
fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text.trim()),
        Value::Array(items) => Cow::Owned(items.iter().map(plain).collect::<Vec<_>>().join(",")),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Cow::Owned(value.to_string()),
    }
}

/// What the actions of a call act on.
#[derive(Default)]
struct ActedOn {
    /// Whether the tool that makes all actions is one in front of a browser.
    in_browser: bool,
    actions: usize,
    /// What is done and to what, one after the other.
    targets: String,
    waits: bool,
}

impl ActedOn {
    fn action(self) -> Option<Action> {
        if self.targets.is_empty() { self.waits.then_some(Action::Waits) } else { Some(Action::On(xxh3_64(self.targets.as_bytes()))) }
    }

    fn is_empty(&self) -> bool {
        self.targets.is_empty() && !self.waits
    }

    fn acts_on<'t>(&mut self, name: &str, parts: impl IntoIterator<Item = &'t str>) {
        self.targets.push_str(name);
        for part in parts {
            self.targets.push('\0');
            self.targets.push_str(part);
        }
        self.targets.push('\n');
    }

    /// One tool for all actions: which one, is said by its arguments.
    fn held(&mut self, arguments: &Value, depth: u32) {
        self.actions += 1;
        if depth > DEEPEST || self.actions > MOST_ACTIONS {
            return;
        }
        match arguments {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().for_each(|item| self.held(item, depth + 1)),
            Value::Object(members) => self.held_by_name(members, depth),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn held_by_name(&mut self, members: &Map<String, Value>, depth: u32) {
        for which in WHICH {
            match members.get(*which) {
                Some(Value::String(text)) => match done_in_browser(text) {
                    Some(done) => return self.called_with(done, self.in_browser, members, which),
                    None => self.text(text),
                },
                Some(held @ (Value::Array(_) | Value::Object(_))) => self.held(held, depth + 1),
                Some(Value::Null | Value::Bool(_) | Value::Number(_)) | None => {}
            }
            if !self.is_empty() {
                return;
            }
        }
        // `{"click_element_by_index": {"index": 5}}`
        for (name, arguments) in members {
            if let Some(done) = done_in_browser(name) {
                self.called(done, self.in_browser, arguments);
            }
        }
    }

    fn called(&mut self, done: Done, in_browser: bool, arguments: &Value) {
        match arguments {
            Value::Object(members) => self.called_with(done, in_browser, members, ""),
            Value::Array(items) => self.called_by_place(done, in_browser, &items.iter().map(plain).collect::<Vec<_>>()),
            Value::String(text) => self.called_by_text(done, in_browser, text.trim()),
            Value::Number(_) => self.called_by_place(done, in_browser, &[plain(arguments)]),
            Value::Null | Value::Bool(_) => self.called_by_place(done, in_browser, &[]),
        }
    }

    /// By a text: the whole action, its arguments (`'b12', 'text'`, `[42] [text]`), or the only one.
    fn called_by_text(&mut self, done: Done, in_browser: bool, text: &str) {
        // What begins with its arguments holds no other action, whatever is typed.
        if text.starts_with('[') {
            return self.text(&format!("{} {text}", done.name));
        }
        if text.starts_with(['\'', '"']) {
            let by_place: Vec<_> = arguments(text).0.iter().map(|argument| Cow::Borrowed(argument.value)).collect();
            return self.called_by_place(done, in_browser, &by_place);
        }
        self.text(text);
        if self.is_empty() {
            self.called_by_place(done, in_browser, &[Cow::Borrowed(text)]);
        }
    }

    /// By arguments that have names; the one that said what is done is none.
    fn called_with(&mut self, done: Done, in_browser: bool, members: &Map<String, Value>, which: &str) {
        let mut named: Vec<(String, &Value)> =
            members.iter().filter(|(name, value)| *name != which && !value.is_null()).map(|(name, value)| (key(name), value)).collect();
        named.sort_by(|left, right| left.0.cmp(&right.0));
        let has = |names: &[&str]| named.iter().any(|(name, _)| is_one(names, name));
        if !has(ELEMENT) && !has(PLACE) {
            if let [(name, within)] = &named[..]
                && is_one(WITHIN, name)
            {
                return self.called(done, in_browser, within);
            }
            let as_text = named.iter().find(|(name, _)| is_one(AS_TEXT, name)).and_then(|(_, value)| value.as_str());
            if let Some(text) = as_text.filter(|text| text.contains(['(', '['])) {
                self.text(text);
                if !self.is_empty() {
                    return;
                }
            }
            let is_place = |name: &str| name.trim_start_matches("arg").bytes().all(|digit| digit.is_ascii_digit());
            if !named.is_empty() && named.iter().all(|(name, _)| is_place(name)) {
                return self.called_by_place(done, in_browser, &named.iter().map(|(_, value)| plain(value)).collect::<Vec<_>>());
            }
        }
        if done.is_vague && !in_browser && !has(ELEMENT_OF_PAGE) {
            return;
        }
        let of = |names: &[&[&str]]| {
            named
                .iter()
                .filter(|(name, _)| names.iter().any(|names| is_one(names, name)))
                .map(|(name, value)| (name.clone(), plain(value)))
                .collect()
        };
        let but = |names: &[&[&str]]| {
            named
                .iter()
                .filter(|(name, _)| !names.iter().any(|names| is_one(names, name)))
                .map(|(name, value)| (name.clone(), plain(value)))
                .collect()
        };
        let mut parts: Vec<(String, Cow<'_, str>)> = match done.verb {
            Verb::Waits => {
                self.waits = true;
                return;
            }
            Verb::Moves => return self.acts_on(done.name, []),
            Verb::Scrolls => {
                let element: Vec<(String, Cow<'_, str>)> = of(&[ELEMENT]);
                return self.acts_on("scroll", element.iter().flat_map(|(name, value)| [name.as_str(), value]));
            }
            Verb::Opens | Verb::Turns => {
                let all: Vec<(String, Cow<'_, str>)> = but(&[BESIDE]);
                return self.acts_on(done.name, all.iter().map(|(_, value)| &**value));
            }
            Verb::Points | Verb::Drags | Verb::Types | Verb::Presses => of(&[ELEMENT, PLACE]),
        };
        // `fill_form {"fields": [{"ref": "e1", "value": …}]}`
        for (_, fields) in named.iter().filter(|(name, _)| matches!(name.as_str(), "fields" | "elements")) {
            for field in fields.as_array().into_iter().flatten().filter_map(Value::as_object).take(MOST_ACTIONS) {
                let named = field.iter().map(|(name, value)| (key(name), value));
                parts.extend(named.filter(|(name, _)| is_one(ELEMENT, name) || name == "name").map(|(name, value)| (name, plain(value))));
            }
        }
        if parts.is_empty() {
            parts = match done.verb {
                // The element by its words.
                Verb::Points | Verb::Drags => but(&[BESIDE]),
                Verb::Types => but(&[BESIDE, TYPED, &["fields", "elements"]]),
                Verb::Presses | Verb::Opens | Verb::Turns | Verb::Moves | Verb::Scrolls | Verb::Waits => Vec::new(),
            };
        }
        if !parts.is_empty() {
            self.acts_on(done.name, parts.iter().flat_map(|(name, value)| [name.as_str(), value]));
        }
    }

    /// By arguments that have places: `click('a51')`, `type [42] [text]`.
    fn called_by_place(&mut self, done: Done, in_browser: bool, arguments: &[Cow<'_, str>]) {
        if done.is_vague && !in_browser && !arguments.first().is_some_and(|first| is_mark(first)) {
            return;
        }
        let is_number = |text: &Cow<'_, str>| text.parse::<f64>().is_ok();
        let elements = match done.verb {
            Verb::Waits => {
                self.waits = true;
                return;
            }
            Verb::Scrolls => return self.acts_on("scroll", []),
            Verb::Points if arguments.is_empty() => return,
            // Where there is but one, it is what is typed.
            Verb::Types | Verb::Presses if arguments.len() < 2 => return,
            Verb::Moves => 0,
            Verb::Drags => {
                if arguments.len() < 4 {
                    2
                } else {
                    4
                }
            }
            Verb::Points if arguments.len() >= 2 && arguments[..2].iter().all(is_number) => 2,
            Verb::Points | Verb::Types | Verb::Presses | Verb::Opens | Verb::Turns => 1,
        };
        self.acts_on(done.name, arguments.iter().take(elements).map(|argument| &**argument));
    }

    /// Actions as lines of text: `click [1234]`, or calls one after the other.
    fn text(&mut self, text: &str) {
        let mut rest = text;
        for _ in 0..MOST_ACTIONS {
            rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || matches!(letter, ';' | '`'));
            let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.');
            let (name, after) = rest.split_at(rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len()));
            let done = done_in_browser(name);
            let after = after.trim_start_matches(' ');
            match (done, after.chars().next()) {
                (_, Some('(')) if !name.is_empty() => {
                    let (arguments, end) = arguments(&after[1..]);
                    if let Some(done) = done {
                        let (named, by_place): (Vec<_>, Vec<_>) = arguments.into_iter().partition(|argument| argument.name.is_some());
                        if named.is_empty() || !by_place.is_empty() {
                            self.called_by_place(
                                done,
                                true,
                                &by_place.iter().map(|argument| Cow::Borrowed(argument.value)).collect::<Vec<_>>(),
                            );
                        } else {
                            let value = |argument: &Argument<'_>| Value::String(argument.value.to_owned());
                            let members =
                                named.iter().map(|argument| (argument.name.unwrap_or_default().to_owned(), value(argument))).collect();
                            self.called_with(done, true, &members, "");
                        }
                    }
                    rest = end;
                }
                // What is typed may hold anything, also what looks like another action: it is the only one.
                (Some(done), Some('[')) => {
                    let within = &after[1..];
                    let end = if done.verb == Verb::Opens { within.rfind(']') } else { within.find(']') };
                    let first = within[..end.unwrap_or(within.len())].trim();
                    let is_followed = end.is_some_and(|end| within[end + 1..].trim_start().starts_with('['));
                    let arguments = [Cow::Borrowed(first), Cow::Borrowed("")];
                    return self.called_by_place(done, true, &arguments[..if is_followed { 2 } else { 1 }]);
                }
                (Some(done), None | Some('\n' | '`')) if matches!(done.verb, Verb::Moves | Verb::Scrolls | Verb::Waits | Verb::Opens) => {
                    self.called_by_place(done, true, &[]);
                    rest = after;
                }
                _ => match rest.split_once('\n') {
                    Some((_, next)) => rest = next,
                    None => return,
                },
            }
        }
    }
}

/// The number or mark of an element, as agents are shown them: `42`, `a51`, `e12`.
fn is_mark(text: &str) -> bool {
    let number = text.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    text.len() - number.len() <= 3 && !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn on(tool: &str, arguments: &Value) -> u64 {
        match action(tool, &arguments.to_string()) {
            Some(Action::On(target)) => target,
            other => panic!("{tool} {arguments} acts on something: {other:?}"),
        }
    }

    /// A way to write down that a text is typed into an element, and that it is clicked, as agents do.
    type Written = (&'static str, fn(&str, &str) -> (&'static str, Value), fn(&str) -> (&'static str, Value));

    fn python(text: &str) -> String {
        format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
    }

    const WRITTEN: [Written; 16] = [
        (
            "BrowserGym, by tool and text",
            |element, text| ("fill", json!({"args": format!("{}, {}", python(element), python(text))})),
            |element| ("click", json!({"args": python(element)})),
        ),
        (
            "WebArena, by tool and text",
            |element, text| ("type", json!({"args": format!("[{element}] [{text}] [1]")})),
            |element| ("click", json!({"args": format!("[{element}]")})),
        ),
        (
            "WebArena, as a line",
            |element, text| ("action", json!({"action": format!("type [{element}] [{text}] [1]")})),
            |element| ("action", json!({"action": format!("click [{element}]")})),
        ),
        (
            "WebArena, by tool",
            |element, text| ("type", json!({"id": element, "text": text, "press_enter": 1})),
            |element| ("click", json!({"id": element})),
        ),
        (
            "WebArena, a tool and its line",
            |element, text| ("type", json!({"raw": format!("type [{element}] [{text}] [1]")})),
            |element| ("click", json!({"raw": format!("click [{element}]")})),
        ),
        (
            "BrowserGym, as code",
            |element, text| ("browser", json!({"code": format!("fill({}, {}, True)", python(element), python(text))})),
            |element| ("browser", json!({"code": format!("click({})", python(element))})),
        ),
        (
            "BrowserGym, below OpenHands",
            |element, text| {
                (
                    "browse_interactive",
                    json!({"browser_actions": format!("noop(500)\nfill(bid={}, value={})", python(element), python(text))}),
                )
            },
            |element| ("browse_interactive", json!({"browser_actions": format!("click({}, button='left')", python(element))})),
        ),
        (
            "BrowserGym, by tool",
            |element, text| ("fill", json!({"bid": element, "value": text})),
            |element| ("click", json!({"bid": element, "button": "left"})),
        ),
        (
            "BrowserGym, by tool and place",
            |element, text| ("fill", json!({"args": [element, text]})),
            |element| ("click", json!({"args": [element]})),
        ),
        ("by tool and a list", |element, text| ("fill", json!([element, text])), |element| ("click", json!([element]))),
        (
            "browser-use, by tool",
            |element, text| ("input_text", json!({"index": element, "text": text, "xpath": null})),
            |element| ("click_element_by_index", json!({"index": element})),
        ),
        (
            "browser-use, one answer with actions",
            |element, text| {
                (
                    "AgentOutput",
                    json!({"current_state": {"next_goal": text}, "action": [{"input_text": {"index": element, "text": text}}, {"send_keys": {"keys": "Enter"}}]}),
                )
            },
            |element| ("AgentOutput", json!({"action": [{"click_element": {"index": element}}]})),
        ),
        (
            "Playwright MCP",
            |element, text| ("mcp__playwright__browser_type", json!({"element": "Search", "ref": element, "text": text, "submit": true})),
            |element| ("mcp__playwright__browser_click", json!({"element": "Search", "ref": element})),
        ),
        (
            "Playwright MCP, a form",
            |element, text| ("browser_fill_form", json!({"fields": [{"name": "City", "type": "textbox", "ref": element, "value": text}]})),
            |element| ("browser_hover", json!({"element": "City", "ref": element})),
        ),
        (
            "Puppeteer",
            |element, text| ("puppeteer.puppeteer_fill", json!({"selector": element, "value": text})),
            |element| ("puppeteer.puppeteer_click", json!({"selector": element})),
        ),
        (
            "Cline",
            |element, text| ("browser_action", json!({"action": "type", "coordinate": element, "text": text})),
            |element| ("browser_action", json!({"action": "click", "coordinate": element})),
        ),
    ];

    proptest! {
        #[test]
        fn what_is_typed_never_changes_the_target_and_another_element_does(
            one in "[a-z]{0,2}[0-9]{1,5}",
            other in "[a-z]{0,2}[0-9]{1,5}",
            text in "\\PC{0,20}",
            more in prop_oneof!["\\PC{0,20}", Just("x') click('a1".to_owned()), Just("] [1]\nclick [7]".to_owned()), Just("')\nclick('a1')".to_owned())],
        ) {
            for (who, typed, clicked) in WRITTEN {
                let [(tool, first), (_, second), (_, elsewhere)] = [typed(&one, &text), typed(&one, &more), typed(&other, &text)];
                prop_assert_eq!(on(tool, &first), on(tool, &second), "{}: {} and {}", who, first, second);
                prop_assert_eq!(on(tool, &first) == on(tool, &elsewhere), one == other, "{}: {} and {}", who, first, elsewhere);
                let [(tool, here), (_, there)] = [clicked(&one), clicked(&other)];
                prop_assert_eq!(on(tool, &here) == on(tool, &there), one == other, "{}: {} and {}", who, here, there);
                prop_assert_ne!(on(tool, &here), on(typed(&one, &text).0, &first), "{}: a click is not what is typed", who);
            }
        }

        #[test]
        fn anything_can_be_read(tool in "(browser|action|click|fill|computer|press)", text in "\\PC{0,60}", names in proptest::collection::vec("[a-z]{1,8}", 0..3)) {
            let object: Map<String, Value> = names.into_iter().map(|name| (name, Value::from(text.clone()))).collect();
            for arguments in [json!(text), json!({"action": text}), json!([text, [text]]), Value::Object(object)] {
                let _ = action(&tool, &arguments.to_string());
            }
        }
    }

    #[test]
    fn pages_tabs_and_places_are_targets_too() {
        for (tool, one, other) in [
            ("goto", json!({"url": "https://a.example/?q=1"}), json!({"url": "https://a.example/?q=2"})),
            ("go_to_url", json!({"url": "https://a.example"}), json!({"url": "https://b.example"})),
            ("browser_navigate", json!({"url": "https://a.example"}), json!({"url": "https://b.example"})),
            ("action", json!("goto [https://a.example/[1]]"), json!("goto [https://a.example/[2]]")),
            ("browser", json!({"code": "goto('https://a.example')"}), json!({"code": "goto('https://b.example')"})),
            ("browser", json!({"code": "mouse_click(10, 20)"}), json!({"code": "mouse_click(10, 21)"})),
            ("browser", json!({"code": "drag_and_drop('a1', 'a2')"}), json!({"code": "drag_and_drop('a1', 'a3')"})),
            (
                "browser_drag",
                json!({"startElement": "A", "startRef": "e1", "endElement": "B", "endRef": "e2"}),
                json!({"startElement": "A", "startRef": "e1", "endElement": "B", "endRef": "e3"}),
            ),
            ("browser_tabs", json!({"action": "select", "index": 1}), json!({"action": "select", "index": 2})),
            ("switch_tab", json!({"page_id": 0}), json!({"page_id": 1})),
            ("computer", json!({"action": "left_click", "coordinate": [10, 20]}), json!({"action": "left_click", "coordinate": [20, 10]})),
            (
                "computer_20250124",
                json!({"action": "left_click", "coordinate": [10, 20]}),
                json!({"action": "right_click", "coordinate": [10, 20]}),
            ),
            (
                "computer_use_preview",
                json!({"type": "click", "x": 1, "y": 2, "button": "left"}),
                json!({"type": "click", "x": 2, "y": 2, "button": "left"}),
            ),
            (
                "computer_call",
                json!({"action": {"type": "double_click", "x": 1, "y": 2}}),
                json!({"action": {"type": "double_click", "x": 1, "y": 3}}),
            ),
            ("browser.click", json!({"text": "Sign in"}), json!({"text": "Sign out"})),
            ("browser_mouse_click_xy", json!({"element": "Map", "x": 10, "y": 20}), json!({"element": "Map", "x": 11, "y": 20})),
            (
                "AgentOutput",
                json!({"action": [{"navigate": {"url": "https://a.example"}}]}),
                json!({"action": [{"navigate": {"url": "https://b.example"}}]}),
            ),
            ("browser", json!({"name": "check", "arguments": {"id": 1}}), json!({"name": "check", "arguments": {"id": 2}})),
            ("press", json!({"bid": "a1", "key_comb": "Enter"}), json!({"bid": "a2", "key_comb": "Enter"})),
            ("check", json!(["a51"]), json!(["a52"])),
        ] {
            assert_eq!(on(tool, &one), on(tool, &one.clone()), "{tool} {one}");
            assert_ne!(on(tool, &one), on(tool, &other), "{tool} {one} {other}");
        }
        for (tool, one, other) in [
            ("computer", json!({"action": "left_click", "coordinate": [10, 20]}), json!({"action": "left_click", "coordinate": "10,20"})),
            ("click_element", json!({"index": 5}), json!({"index": "5", "xpath": null})),
            ("click", json!({"bid": "a1"}), json!({"bid": "a1", "button": "right"})),
            ("browser", json!({"code": "select_option('a1', 'blue')"}), json!({"code": "select_option('a1', ['red)', 'click(\"a2\")'])"})),
        ] {
            assert_eq!(on(tool, &one), on(tool, &other), "{tool} {one} {other}");
        }
        assert_eq!(action("action", "click [12]"), action("action", "{\"action\": \"click [12]\"}"), "plain text");
        assert_ne!(action("action", "click [12]"), action("action", "click [13]"));
        assert_eq!(action("click [12]", "{}"), action("action", "click [12]"), "the whole action as a name");
        assert_eq!(action("fill('b1', 'x')", "{}"), action("fill", "{\"args\": [\"b1\", \"y\"]}"));
    }

    #[test]
    fn to_scroll_is_to_act_on_the_page() {
        let scrolls = [
            ("scroll", json!({"direction": "down"})),
            ("scroll", json!({"coordinate": [4, 5], "scroll_direction": "up", "scroll_amount": 3})),
            ("action", json!({"action": "scroll [down]"})),
            ("action", json!({"action": "scroll [direction=up]"})),
            ("browser", json!({"code": "scroll(0, 200)"})),
            ("browser", json!({"code": "scroll(0, -600.5)"})),
            ("scroll_down", json!({"amount": 500})),
            ("scroll_up", json!({})),
            ("computer", json!({"action": "scroll", "coordinate": [1, 2], "scroll_direction": "down"})),
            ("browser_mouse_wheel", json!({"deltaX": 0, "deltaY": 100})),
        ];
        let page = on("scroll", &json!({}));
        for (tool, arguments) in scrolls {
            assert_eq!(on(tool, &arguments), page, "{tool} {arguments}");
        }
        assert_ne!(on("scroll", &json!({"index": 7, "down": true})), page, "a list on the page");
    }

    #[test]
    fn what_waits_or_looks_is_no_act() {
        for (tool, arguments) in [
            ("browser_snapshot", json!({})),
            ("browser_wait_for", json!({"time": 3})),
            ("browser_take_screenshot", json!({"filename": "a.png"})),
            ("wait", json!({"seconds": 3})),
            ("computer", json!({"action": "screenshot"})),
            ("computer", json!({"action": "wait", "duration": 2})),
            ("computer_call", json!({"action": {"type": "screenshot"}})),
            ("browser", json!({"code": "wait(3)"})),
        ] {
            assert_eq!(action(tool, &arguments.to_string()), Some(Action::Waits), "{tool} {arguments}");
        }
    }

    #[test]
    fn where_no_element_is_named_there_is_no_target() {
        for (tool, arguments) in [
            ("computer", json!({"action": "type", "text": "Rome"})),
            ("computer", json!({"action": "key", "text": "Return"})),
            ("computer", json!({"action": "left_click"})),
            ("browser_press_key", json!({"key": "Tab"})),
            ("action", json!({"action": "press [Enter]"})),
            ("browser", json!({"code": "keyboard_type('Rome')"})),
            ("send_keys", json!({"keys": "Enter"})),
            ("keypress", json!({"keys": ["CTRL", "A"]})),
            ("browser", json!({"code": "send_msg_to_user('click(\"a1\") did nothing')"})),
            ("action", json!({"action": "stop [42]"})),
            ("extract_content", json!({"goal": "prices"})),
            ("search_google", json!({"query": "rome"})),
        ] {
            assert_eq!(action(tool, &arguments.to_string()), None, "{tool} {arguments}");
        }
    }

    #[test]
    fn other_tools_are_none_of_a_browser() {
        for (tool, arguments) in [
            ("bash", json!({"command": "click [1]"})),
            ("execute_bash", json!({"command": "ls"})),
            ("str_replace_editor", json!({"command": "view", "path": "/a"})),
            ("select", json!({"query": "select 1"})),
            ("check", json!({"path": "/a.py"})),
            ("open", json!({"path": "/a.py"})),
            ("input", json!({"id": 7})),
            ("refresh", json!({})),
            ("back", json!({})),
            ("web_search", json!({"query": "x"})),
            ("browse", json!({"url": "https://a.example"})),
            ("action", json!({"action": "deploy", "id": 7})),
            ("call", json!({"name": "open", "arguments": {"path": "/a.py"}})),
            ("action", json!({"action": "select", "id": 7})),
            ("call", json!({"code": "print('click')"})),
            ("tool", json!("scrolling is fun")),
            ("painter.drawing_fillRectangle", json!({"x": 1, "y": 2})),
            ("get_order_details", json!({"order_id": "#W1"})),
        ] {
            assert_eq!(action(tool, &arguments.to_string()), None, "{tool} {arguments}");
        }
        assert_eq!(action("browser", "no action"), None);
    }
}
