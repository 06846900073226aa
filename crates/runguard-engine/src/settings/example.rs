//! A settings file to start from.

use super::default_tree;
use super::tables::SERVICE_KEYS;
use runguard_guards::policy;
use serde_json::Value;

/// A settings file with every key, its default and what it is for; everything that is a default is commented out.
pub fn example() -> String {
    use std::fmt::Write as _;
    let mut out = String::from(
        "# RunGuard settings. Every line that is commented out shows a default.\n\
         # Changes are taken over while the service runs, but for what says that it needs a restart.\n\
         # Any key can come from the environment: RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS=8\n",
    );
    let defaults = default_tree();
    let shown = |path: &[&str]| {
        path.iter()
            .flat_map(|part| part.split('.'))
            .try_fold(Value::Object(defaults.clone()), |value, part| value.get(part).cloned())
            .map_or_else(String::new, |value| toml_text(&value))
    };
    let mut current = "";
    for (table, key, about, live) in SERVICE_KEYS {
        if *table != current {
            let _ = write!(out, "\n[{table}]\n");
            current = table;
        }
        let _ = write!(out, "# {about}{}\n# {key} = {}\n", if *live { "" } else { " (Needs a restart.)" }, shown(&[table, key]));
    }
    out.push_str(ALERTS_EXAMPLE);
    let _ = write!(
        out,
        "\n# Guards. Each takes mode = \"enforce\" | \"observe\" (decide and log, but allow) | \"off\",\n# and a table `rules` with a mode for each of its reasons.\n"
    );
    for section in policy::sections() {
        let name = section.path.join(".");
        let _ = write!(out, "\n# {}\n[guards.{name}]\n# mode = \"enforce\"\n", section.guard.meaning());
        for setting in section.settings {
            let value = section.defaults.get(setting.key).cloned().unwrap_or(Value::Null);
            let _ = writeln!(out, "# {}", setting.about);
            match &value {
                Value::Object(entries) => {
                    for (entry, value) in entries {
                        let _ = writeln!(out, "# {}.{} = {}", setting.key, toml_key(entry), toml_text(value));
                    }
                }
                _ => drop(writeln!(out, "# {} = {}", setting.key, toml_text(&value))),
            }
        }
        for reason in runguard_core::Reason::of(section.guard) {
            let mode = serde_json::json!(policy::default_rule_mode(reason));
            let _ = writeln!(out, "# rules.{} = {}", reason.code(), toml_text(&mode));
        }
        let first = section.settings.first().map_or("window", |setting| setting.key);
        let value = section.defaults.get(first).map_or_else(String::new, toml_text);
        let _ = writeln!(out, "# An override for one of its {}:\n# {}.\"name\".{first} = {value}", section.subjects, section.subjects);
    }
    out.push_str("\n# Overrides for one tenant (the tenant of the API key):\n# [tenants.acme.guards.handoff]\n# max_handoffs = 10\n");
    out
}

/// Who is told, and of what: lists, so they stand apart from the keys with defaults.
const ALERTS_EXAMPLE: &str = r#"# Who is told. (Needs a restart.) kind = "slack" | "pagerduty" | "teams" | "webhook"; secrets come from environment variables:
#   [[alerts.target]]
#     name = "ops"
#     kind = "slack"
#     url_env = "SLACK_WEBHOOK_URL"
#   [[alerts.target]]
#     name = "on-call"
#     kind = "pagerduty"
#     routing_key_env = "PAGERDUTY_ROUTING_KEY"
#   [[alerts.target]]
#     name = "mail"
#     kind = "email"
#     url = "smtps://mail.example.com"
#     from = "runguard@example.com"
#     to = ["ops@example.com"]
#     username_env = "SMTP_USER"
#     password_env = "SMTP_PASSWORD"
# Of what, beside circuit trips, 20 blocks of a reason in 5 minutes, budgets at 50, 80 and 100 %, degraded answers:
#   [[alerts.rule]]
#     name = "many-handoff-cycles"
#     when = "blocks"
#     reason = "cycle_detected"
#     count = 50
#     window = "10m"
#     to = ["ops"]
"#;

fn toml_key(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { toml_text(&Value::String(key.to_owned())) }
}

/// A value as TOML writes it.
pub fn toml_text(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        // A literal string keeps the backslashes of a pattern readable.
        Value::String(text) if text.contains('\\') && !text.contains('\'') && !text.contains('\n') => format!("'{text}'"),
        Value::String(text) => toml::Value::String(text.clone()).to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => format!(
            "{{ {} }}",
            entries.iter().map(|(key, value)| format!("{} = {}", toml_key(key), toml_text(value))).collect::<Vec<_>>().join(", ")
        ),
    }
}
