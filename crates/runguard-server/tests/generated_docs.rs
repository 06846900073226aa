//! The files that are made from the code (under `docs/`, and the clients' methods) must be what the code says. When this fails after a
//! change that was meant: `UPDATE_DOCS=1 cargo test -p runguard-server --test generated_docs`.

#[path = "generated_docs/clients.rs"]
mod clients;
#[path = "generated_docs/files.rs"]
mod files;

use runguard_core::reason::{AgentEnd, GatewayReason, GuardName, Reason, RunReason};
use runguard_engine::settings;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::{Keeping, Kind};
use runguard_guards::policy::{self, Mode};
use std::path::Path;

fn check(name: &str, content: &str) {
    check_file(&format!("docs/{name}"), content);
}

fn check_file(name: &str, content: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, content).expect("files can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == content, "{name} is stale; run UPDATE_DOCS=1 cargo test -p runguard-server --test generated_docs");
}

#[test]
fn files_are_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    check_file("ARCHITECTURE.md", &files::listed(&root, &document));
}

#[test]
fn what_is_said_to_be_in_a_file_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let said = files::names_in_files(&root, &document);
    let names: usize = said.iter().map(|(_, names)| names.len()).sum();
    assert!(said.len() > 100 && names > 100, "the index and the walks are read: {} files, {names} names", said.len());
    for (file, names) in said.iter().filter(|(_, names)| !names.is_empty()) {
        let text = std::fs::read_to_string(file).expect("a text");
        for name in names {
            let is_there = ["fn", "struct", "enum", "trait", "macro_rules!"].iter().any(|kind| {
                let defined = format!("{kind} {name}");
                text.match_indices(&defined)
                    .any(|(at, _)| !text[at + defined.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_'))
            });
            assert!(is_there, "ARCHITECTURE.md says that {} has `{name}`", file.display());
        }
    }
}

#[test]
fn reasons_are_listed() {
    let mut out = String::from(
        "# Reasons\n\nWhy a guard blocked. Codes are added, never renamed; pages and tables show the words beside them. (Made from the code.)\n",
    );
    for guard in GuardName::ALL {
        out += &format!(
            "\n## `{guard}`\n\n*{}*: {}\n\n| reason | shown as | meaning | mode |\n|---|---|---|---|\n",
            guard.label(),
            guard.meaning()
        );
        for reason in Reason::of(*guard) {
            let mode = serde_json::to_value(policy::default_rule_mode(reason)).unwrap();
            out += &format!("| `{reason}` | {} | {} | {} |\n", reason.label(), reason.meaning(), mode.as_str().unwrap());
        }
        for route in ROUTES.iter().filter(|route| route.guard == *guard) {
            out += &format!("\n`POST {}`: {}\n", route.path, route.summary);
        }
    }
    let mut others = |title: &str, about: &str, reasons: &mut dyn Iterator<Item = (&'static str, &'static str)>| {
        out += &format!("\n## {title}\n\n{about}\n\n| reason | meaning |\n|---|---|\n");
        for (code, meaning) in reasons {
            out += &format!("| `{code}` | {meaning} |\n");
        }
    };
    let of_run = &mut RunReason::ALL.iter().map(|reason| (reason.code(), reason.meaning()));
    others("A run", "Why a run of the SDKs was stopped without a guard.", of_run);
    let of_gateway = &mut GatewayReason::ALL.iter().map(|reason| (reason.code(), reason.meaning()));
    let about = "Why the gateway passed no question on, or no answer, without a guard: `x-runguard-reason`, and `error.code` where the interface has one.";
    others("The gateway", about, of_gateway);
    let of_agent = &mut AgentEnd::ALL.iter().map(|end| (end.code(), end.meaning()));
    others("The agent", "How a run of the agent ended (`stop.reason`).", of_agent);
    check("reasons.md", &out);
}

/// The page of guards is written by hand, but for what the code knows of each: its name and its reasons. A guard without a row gets one.
#[test]
fn the_page_of_guards_has_all_of_them_under_the_dashboards_names() {
    let row = |guard: GuardName, cells: [&str; 3]| {
        let named = |mode: Mode| {
            Reason::of(guard).filter(move |reason| policy::default_rule_mode(*reason) == mode).map(|reason| format!("`{reason}`"))
        };
        let [enforced, noted] = [Mode::Enforce, Mode::Observe].map(|mode| named(mode).collect::<Vec<_>>().join(", "));
        let noted = if noted.is_empty() { noted } else { format!("; only noted until enforced: {noted}") };
        let [asks, stops, default] = cells;
        format!("| `{guard}` ({}) | {asks} | {stops} | {default} | {enforced}{noted} |", guard.label())
    };
    let page = include_str!("../../../docs/guards.md");
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    for guard in GuardName::ALL {
        let begins = format!("| `{guard}` ");
        if let Some(line) = lines.iter_mut().find(|line| line.starts_with(&begins)) {
            let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
            let [_, asks, stops, default, _] = cells[..] else { panic!("five cells: {line}") };
            *line = row(*guard, [asks, stops, default]);
            continue;
        }
        let routes: Vec<String> =
            ROUTES.iter().filter(|route| route.guard == *guard).map(|route| format!("`POST {}`", route.path)).collect();
        let last = lines.iter().rposition(|line| line.starts_with("| `") && line.contains("`POST /guard/")).expect("a table of guards");
        lines.insert(last + 1, row(*guard, [&routes.join(", "), guard.meaning(), "[settings.md](settings.md)"]));
    }
    check("guards.md", &(lines.join("\n") + "\n"));
}

#[test]
fn settings_are_listed() {
    let mut out = String::from(
        "# Settings\n\nOne TOML file, the environment, flags; later ones win. `runguard settings example` prints this as a file to start from. (Made from the code.)\n",
    );
    out += "\n| key | default | |\n|---|---|---|\n";
    let defaults = settings::check_text(Path::new("none"), "").unwrap().values();
    let default =
        |key: &str| defaults.iter().find(|(name, ..)| name == key).map(|(_, value, _)| settings::toml_text(value)).unwrap_or_default();
    for (table, key, about, live) in settings::SERVICE_KEYS {
        out += &format!(
            "| `{table}.{key}` | `{}` | {about}{} |\n",
            default(&format!("{table}.{key}")),
            if *live { "" } else { " Needs a restart." }
        );
    }
    for section in policy::sections() {
        let name = section.path.join(".");
        out += &format!(
            "\n## `[guards.{name}]`\n\n{} Overrides: `[guards.{name}.{}.\"NAME\"]`.\n\n| key | default | |\n|---|---|---|\n",
            section.guard.meaning(),
            section.subjects
        );
        for setting in section.settings {
            let value = section.defaults.get(setting.key).map(settings::toml_text).unwrap_or_default();
            let value = if value.len() > 60 { "built in".to_owned() } else { format!("`{value}`") };
            out += &format!("| `{}` | {value} | {} |\n", setting.key, setting.about);
        }
        out += "| `mode` | `\"enforce\"` | `enforce`, `observe` (decide and log, but allow) or `off`. |\n| `rules.REASON` | | The mode of one rule; it is never stricter than its guard. |\n";
    }
    check("settings.md", &out);
}

#[test]
fn what_is_kept_is_listed() {
    let mut out = String::from(
        "# What is kept of what people say\n\n\
         `log.store_text` decides: `none`, `redacted` (the default) or `full`. It holds for the log, the states, the insights, alerts,\n\
         telemetry and the answers kept for repeated requests. (Made from the code.)\n",
    );
    out += "\n| kept | what that means |\n|---|---|\n";
    for keeping in Keeping::ALL {
        out += &format!("| {} | {} |\n", keeping.code(), keeping.meaning());
    }
    out += "\n| route | field | kept |\n|---|---|---|\n";
    for route in ROUTES {
        for field in route.fields {
            // Numbers and choices are nobody's words.
            if matches!(
                field.kind,
                Kind::Id | Kind::Name | Kind::Label | Kind::Text | Kind::Hash | Kind::Any | Kind::Names | Kind::Scopes | Kind::Steps
            ) {
                out += &format!("| `{}` | `{}` | {} |\n", route.path, field.name, field.kind.keeping().code());
            }
        }
    }
    out += include_str!("generated_docs/kept.md");
    check("kept.md", &out);
}

#[test]
fn the_openapi_document_is_there() {
    let document = runguard_server::openapi::document();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let numbered: Vec<&String> = schemas.keys().filter(|name| name.ends_with(|end: char| end.is_ascii_digit())).collect();
    assert!(numbered.is_empty(), "two types have one name: give one of them another with schemars(rename = …): {numbered:?}");
    let circuit = &schemas["Circuit"]["properties"];
    assert_eq!(circuit["opened_at"]["format"], "date-time");
    assert_eq!(circuit["warnings"]["type"], "array", "it is left out, and never null");
    assert_eq!(schemas["Phase"]["enum"], serde_json::json!(["closed", "open", "half_open"]), "choices are one list of words");
    assert!(schemas["Phase"].get("properties").is_none() && schemas["Phase"].get("oneOf").is_none());
    let mut document = serde_json::to_string_pretty(&document).unwrap();
    document.push('\n');
    check("openapi.json", &document);
}

#[test]
fn the_clients_have_a_method_for_every_route() {
    check_file("sdk/python/python/runguard/_routes.py", &clients::python());
    check_file("sdk/typescript/src/routes.ts", &clients::typescript());
}
