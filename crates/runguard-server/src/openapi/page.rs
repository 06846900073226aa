//! The readable page: every route with its fields, their types, answers, reasons and an example, and a way to try it.
//!
//! It is the same for everyone. What is the reader's own, the address of the service and the answers of a try, a script fills in
//! (`dashboard/docs.js`); without it the page is as complete.

use crate::problem;
use crate::routes::dashboard::colours;
use runguard_core::shown::html;
use runguard_guards::guard::{AnswerKind, ROUTES, Route};
use runguard_guards::input::{Field, Kind};
use runguard_http::problem::kinds;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What names of types begin with in an address.
const TYPE: &str = "type-";

/// Where the service is, for those without a script.
const BASE: &str = "<span class=\"base\">http://127.0.0.1:8100</span>";

const HEAD: &str = concat!(
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>RunGuard API</title>",
    "<style>",
    include_str!("page.css"),
    "</style><script src=\"/dashboard/docs.js\" defer></script>",
);

const WORDS: &str = concat!(
    "<p>Ask a guard before a step that costs money. <b>200</b>: go on. <b>429</b>: stop; <code>reason</code> says why and <code>message</code> what to do instead.",
    " With <code class=\"whole\">?status=200</code> a block is answered 200; with <code class=\"whole\">?flat=1</code> the answer has scalars only. Machines read <a href=\"/openapi.json\">/openapi.json</a>.</p>",
);

/// Every route, and how it is found.
pub(crate) fn page(document: &Value) -> String {
    let paths = document["paths"].as_object().into_iter().flatten();
    let is_guards = |path: &str| ROUTES.iter().any(|route| route.path == path);
    let operations: Vec<(&str, String, &Value)> = paths
        .filter(|(path, _)| !is_guards(path))
        .flat_map(|(path, methods)| {
            methods.as_object().into_iter().flatten().map(|(method, operation)| (path.as_str(), method.to_uppercase(), operation))
        })
        .collect();
    let mut out = format!("{HEAD}<style>{}</style></head><body>", colours());
    out.push_str("<nav aria-label=\"Routes\"><ul><li><a href=\"/\">Dashboard</a></ul><b>Guards</b><ul>");
    for route in ROUTES {
        entry(&mut out, "POST", route.path);
    }
    out.push_str("</ul><b>The log and operations</b><ul>");
    for (path, method, _) in &operations {
        entry(&mut out, method, path);
    }
    out.push_str("</ul><ul><li><a href=\"#types\">Types</a><li><a href=\"#problems\">Problems</a></ul></nav><main><h1>RunGuard API</h1>");
    out.push_str(WORDS);
    let _ = write!(
        out,
        "<p>This service: <code>{BASE}</code></p><form id=\"key\" hidden><label>Key for trying, once keys were made <input name=\"key\" type=\"password\" autocomplete=\"off\"></label></form>"
    );
    for route in ROUTES {
        guard(&mut out, route, &document["paths"][route.path]["post"]);
    }
    for (path, method, operation) in &operations {
        operation_section(&mut out, path, method, operation);
    }
    types(&mut out, &document["components"]["schemas"]);
    out.push_str("<section><h2 id=\"problems\"><a href=\"#problems\">Problems</a></h2><p>An error is <code>application/problem+json</code> (RFC 9457); its <code>type</code> is the address of a page.</p><div class=\"wide\" tabindex=\"0\"><table><tr><th>type<th>what</tr>");
    for kind in kinds::ALL.iter().chain(problem::ALL) {
        let address = format!("{}{}", kinds::PAGES, kind.code);
        row(&mut out, &[&format!("<a href=\"{address}\"><code>{address}</code></a>"), &html(kind.title)]);
    }
    out.push_str("</table></div></section></main></body></html>");
    out
}

/// What a route is called in an address.
fn anchor(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method.to_lowercase().as_str()).chain(words).collect::<Vec<_>>().join("-")
}

fn entry(out: &mut String, method: &str, path: &str) {
    // Where a long one may go on in the next line.
    let shown = path.replace('/', "/<wbr>");
    let _ = write!(out, "<li><a href=\"#{}\"><i>{method}</i> <span>{shown}</span></a>", anchor(method, path));
}

fn heading(out: &mut String, method: &str, path: &str) {
    let anchor = anchor(method, path);
    let _ = write!(out, "<section><h2 id=\"{anchor}\"><a href=\"#{anchor}\"><i>{method}</i> <code>{path}</code></a></h2>");
}

fn row(out: &mut String, cells: &[&str]) {
    let _ = write!(out, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
}

fn table(out: &mut String, headers: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "<div class=\"wide\" tabindex=\"0\"><table><tr><th>{}</tr>", headers.join("<th>"));
    for cells in rows {
        row(out, &cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    out.push_str("</table></div>");
}

fn guard(out: &mut String, route: &Route, operation: &Value) {
    heading(out, "POST", route.path);
    let _ = write!(out, "<p>{} {}</p>", html(route.summary), html(route.guard.meaning()));
    let code = |name: &str| format!("<code>{}</code>", html(name));
    let fields = |field: &Field| {
        vec![code(field.name), html(&type_of(field.kind)), if field.required { "yes" } else { "" }.to_owned(), html(field.about)]
    };
    table(out, &["field", "type", "required", "what"], &route.fields.iter().map(fields).collect::<Vec<_>>());
    let answers = route.answers.iter().map(|field| vec![code(field.name), answer_type(field.kind).to_owned(), html(field.about)]);
    table(out, &["answer", "type", "what"], &answers.collect::<Vec<_>>());
    let reasons = route.reasons.iter().map(|reason| vec![code(reason.code()), html(reason.meaning())]);
    table(out, &["reason", "what"], &reasons.collect::<Vec<_>>());
    let request = asked(operation).unwrap_or_default();
    let _ = write!(out, "<pre>curl -s {BASE}{} -d '{}'</pre>", route.path, html(&request.replace('\'', "'\\''")));
    shown_answers(out, operation);
    try_form(out, "POST", route.path, Some(&request));
    out.push_str("</section>");
}

fn operation_section(out: &mut String, path: &str, method: &str, operation: &Value) {
    heading(out, method, path);
    let _ = write!(out, "<p>{}</p>", html(operation["summary"].as_str().unwrap_or_default()));
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = |parameter: &Value| {
        let text = |name: &str| html(parameter[name].as_str().unwrap_or_default());
        vec![format!("<code>{}</code>", text("name")), schema_type(&parameter["schema"]), text("in"), text("description")]
    };
    table(out, &["parameter", "type", "in", "what"], &parameters.iter().map(shown).collect::<Vec<_>>());
    let address = address(path, parameters);
    let body = asked(operation);
    members(out, "field", &operation["requestBody"]["content"]["application/json"]["schema"]);
    let answers =
        operation["responses"].as_object().into_iter().flatten().map(|(_, answer)| &answer["content"]["application/json"]["schema"]);
    let answers: Vec<String> = answers.filter(|schema| schema["$ref"].is_string()).map(schema_type).collect();
    if !answers.is_empty() {
        let _ = write!(out, "<p>Answers {}.</p>", answers.join(" or "));
    }
    let how = if method == "GET" { String::new() } else { format!(" -X {method}") };
    let data = body.as_ref().map(|body| format!(" -d '{}'", html(body))).unwrap_or_default();
    let _ = write!(out, "<pre>curl -s{how} '{BASE}{}'{data}</pre>", html(&address));
    shown_answers(out, operation);
    // What changes or removes something is not a click away, and a stream does not end.
    if method == "GET" && path != "/v1/events" {
        try_form(out, method, &address, None);
    }
    out.push_str("</section>");
}

/// The request of the example, if one is needed.
fn asked(operation: &Value) -> Option<String> {
    let example = &operation["requestBody"]["content"]["application/json"]["example"];
    (!example.is_null()).then(|| example.to_string())
}

/// The path with its parts filled in by the example, and the rest behind it.
fn address(path: &str, parameters: &[Value]) -> String {
    let mut address = path.to_owned();
    let mut query = Vec::new();
    for parameter in parameters.iter().filter(|parameter| !parameter["example"].is_null()) {
        let (name, example) = (parameter["name"].as_str().unwrap_or_default(), &parameter["example"]);
        let value = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
        if parameter["in"] == "path" {
            address = address.replace(&format!("{{{name}}}"), &value);
        } else {
            query.push(format!("{name}={value}"));
        }
    }
    if query.is_empty() { address } else { format!("{address}?{}", query.join("&")) }
}

fn shown_answers(out: &mut String, operation: &Value) {
    // What is asked for comes first.
    let by_status: BTreeMap<_, _> = operation["responses"].as_object().into_iter().flatten().collect();
    for (status, answer) in by_status {
        let example = answer["content"].as_object().into_iter().flatten().find_map(|(_, content)| content.get("example"));
        let text = match example {
            Some(Value::String(text)) => text.clone(),
            Some(other) => serde_json::to_string_pretty(other).unwrap_or_default(),
            None if status == "204" => "nothing".to_owned(),
            None => continue,
        };
        let open = if text.lines().count() <= 25 { " open" } else { "" };
        let _ = write!(out, "<details{open}><summary>Answers {status}</summary><pre>{}</pre></details>", html(&text));
    }
}

/// Shown by the script that makes it work.
fn try_form(out: &mut String, method: &str, address: &str, body: Option<&str>) {
    let _ = write!(
        out,
        "<form class=\"try\" data-method=\"{method}\" hidden><label>Address <input name=\"address\" value=\"{}\"></label>",
        html(address)
    );
    if let Some(body) = body {
        let _ = write!(out, "<label>Body <textarea name=\"body\">{}</textarea></label>", html(body));
    }
    out.push_str("<button>Try it</button><pre hidden role=\"status\"></pre></form>");
}

fn type_of(kind: Kind) -> String {
    match kind {
        Kind::Id | Kind::Label => "name, 1 to 256 characters".to_owned(),
        Kind::Name | Kind::Text | Kind::Hash => "text".to_owned(),
        Kind::Fraction | Kind::Confidence => "number from 0 to 1".to_owned(),
        Kind::Whole(least) => format!("whole number from {least}"),
        Kind::Dollars => "dollars".to_owned(),
        Kind::Amount => "number from 0".to_owned(),
        Kind::Flag => "true or false".to_owned(),
        Kind::OneOf(choices) => choices.join(" or "),
        Kind::Any => "any JSON".to_owned(),
        Kind::Names => "list of names".to_owned(),
        Kind::Scopes | Kind::Steps => "list of objects".to_owned(),
    }
}

const fn answer_type(kind: AnswerKind) -> &'static str {
    match kind {
        AnswerKind::Text => "text",
        AnswerKind::Whole => "whole number",
        AnswerKind::Number => "number",
        AnswerKind::Flag => "true or false",
        AnswerKind::List => "list",
        AnswerKind::Counts => "object of counts",
    }
}

/// What is asked and answered beside the guards, each with its members.
fn types(out: &mut String, schemas: &Value) {
    out.push_str("<section><h2 id=\"types\"><a href=\"#types\">Types</a></h2>");
    for (name, schema) in schemas.as_object().into_iter().flatten() {
        let _ = write!(out, "<h3 id=\"{TYPE}{name}\"><a href=\"#{TYPE}{name}\">{name}</a></h3>");
        if let Some(about) = schema["description"].as_str() {
            let _ = write!(out, "<p>{}</p>", prose(about));
        }
        if schema["properties"].is_object() {
            members(out, "member", schema);
        } else {
            let _ = write!(out, "<p>{}</p>", schema_type(schema));
        }
    }
    out.push_str("</section>");
}

/// The members of an object; of a type that stands elsewhere a link to it.
fn members(out: &mut String, title: &str, schema: &Value) {
    if schema["$ref"].is_string() {
        let _ = write!(out, "<p>Asked with {}.</p>", schema_type(schema));
    }
    let about = |member: &Value| member["description"].as_str().map(prose);
    let members = || schema["properties"].as_object().into_iter().flatten();
    let is_told = members().any(|(_, member)| about(member).is_some());
    let row = |(name, member): (&String, &Value)| {
        let what = is_told.then(|| about(member).unwrap_or_default());
        [format!("<code>{}</code>", html(name)), schema_type(member)].into_iter().chain(what).collect()
    };
    let headers: &[&str] = if is_told { &[title, "type", "what"] } else { &[title, "type"] };
    table(out, headers, &members().map(row).collect::<Vec<_>>());
}

/// A sentence with names in it that stand between backticks.
fn prose(text: &str) -> String {
    let parts = text.split('`').map(html).enumerate();
    parts.map(|(number, part)| if number % 2 == 1 { format!("<code>{part}</code>") } else { part }).collect()
}

/// What a value is, in words; of a type with a name, its name, which leads there.
fn schema_type(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|address| address.rsplit('/').next()) {
        return format!("<a href=\"#{TYPE}{name}\">{name}</a>");
    }
    let list = |name: &str| schema[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let choices = match (list("enum"), list("anyOf"), &schema["const"]) {
        ([], [], Value::Null) => match &schema["type"] {
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).map(|kind| kind_of(kind, schema)).collect(),
            kind => vec![kind_of(kind.as_str().unwrap_or_default(), schema)],
        },
        ([], [], constant) => vec![value(constant)],
        ([], any, _) => any.iter().map(schema_type).collect(),
        (values, ..) => values.iter().map(value).collect(),
    };
    let kind = choices.join(" or ");
    match &schema["default"] {
        Value::Null => kind,
        usual => format!("{kind}; {} unless told", value(usual)),
    }
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => kind_of("null", value),
        Value::String(text) => html(text),
        other => html(&other.to_string()),
    }
}

fn kind_of(kind: &str, schema: &Value) -> String {
    match kind {
        "integer" if schema["minimum"] == 0 => "whole number from 0".to_owned(),
        "integer" => "whole number".to_owned(),
        "string" => "text".to_owned(),
        "boolean" => "true or false".to_owned(),
        "null" => "nothing".to_owned(),
        "array" => format!("list of {}", schema_type(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => format!("object, each {}", schema_type(&schema["additionalProperties"])),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_link_within_the_page_leads_somewhere_and_no_name_is_there_twice() {
        let page = page(&crate::openapi::published());
        let parts = |before: &str| -> Vec<String> {
            page.split(before).skip(1).map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect()
        };
        let names = parts(" id=\"");
        let unique: std::collections::HashSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        let links = parts("href=\"#");
        assert!(links.len() > 90 && links.iter().all(|link| names.contains(link)), "{links:?}");
        assert!(page.find("Answers 200").is_some_and(|good| page.find("Answers 429").is_some_and(|blocked| good < blocked)));
        assert!(page.contains("<h2 id=\"post-guard-handoff\">") && page.contains("<h2 id=\"get-v1-sessions-session-id\">"));
    }

    #[test]
    fn types_are_told_in_words_and_lead_to_each_other() {
        let told = |schema: Value| schema_type(&schema);
        let link = "<a href=\"#type-Circuit\">Circuit</a>";
        assert_eq!(told(json!({"type": "array", "items": {"$ref": "#/components/schemas/Circuit"}})), format!("list of {link}"));
        assert_eq!(told(json!({"anyOf": [{"$ref": "#/components/schemas/Circuit"}, {"type": "null"}]})), format!("{link} or nothing"));
        assert_eq!(told(json!({"type": ["integer", "null"], "minimum": 0})), "whole number from 0 or nothing");
        assert_eq!(told(json!({"type": ["string", "null"], "enum": ["open", "closed", null]})), "open or closed or nothing");
        assert_eq!(told(json!({"type": "boolean", "const": true})), "true");
        assert_eq!(told(json!({"type": "object", "additionalProperties": {"type": "number"}})), "object, each number");
        assert_eq!(prose("What `a<b` is."), "What <code>a&lt;b</code> is.");
        let page = page(&crate::openapi::published());
        assert!(page.contains("<p>Answers <a href=\"#type-Erased\">Erased</a> or <a href=\"#type-BeingErased\">BeingErased</a>.</p>"));
        assert!(page.contains("<p>Asked with <a href=\"#type-SnoozeAsked\">SnoozeAsked</a>.</p>"));
    }

    #[test]
    fn addresses_are_filled_in() {
        let parameters = json!([
            {"name": "session_id", "in": "path", "example": "s"}, {"name": "limit", "in": "query", "example": 2}, {"name": "cursor", "in": "query"}
        ]);
        assert_eq!(address("/v1/sessions/{session_id}", parameters.as_array().unwrap()), "/v1/sessions/s?limit=2");
    }
}
