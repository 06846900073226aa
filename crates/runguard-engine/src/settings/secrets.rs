//! What of a setting may be shown.
//!
//! One rule for the command line, the API, the log and errors, and it names what is harmless instead of what is secret:
//! addresses are written in more ways than anyone thinks of (a password with an `@`, a `/` or a comma in it, as an option, as
//! `key=value`), and a part that does not look like what should stand there is not shown.

use serde_json::Value;

/// Stands for a value that is not shown.
const HIDDEN: &str = "(hidden)";
/// Stands for a part of an address.
const MASK: &str = "***";

const SCHEMES: [&str; 12] = [
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+cluster",
    "valkeys+cluster",
    "postgres",
    "postgresql",
    "http",
    "https",
];

/// Options of an address whose values say nothing secret.
const HARMLESS_OPTIONS: [&str; 6] = ["application_name", "cluster", "connect_timeout", "dbname", "sslmode", "target_session_attrs"];

/// Settings that hold the address of a database, with its password.
const DATABASES: [[&str; 2]; 2] = [["store", "state"], ["log", "database"]];

/// A value of the settings as it may be shown.
pub fn shown(path: &[String], value: &Value) -> Value {
    let name = path.last().map_or("", String::as_str);
    match value {
        Value::String(text) if text.is_empty() => value.clone(),
        Value::String(text) if DATABASES.iter().any(|database| path == *database) => shown_address(text).into(),
        // Where a provider is, without a login and without a key behind it.
        Value::String(text) if path.first().is_some_and(|table| table == "gateway") && name == "url" && !text.contains(['@', '?']) => {
            value.clone()
        }
        Value::String(text) if name == "url" || name.ends_with("_url") || name.ends_with("_endpoint") => shown_receiver(text).into(),
        Value::String(text) if name.ends_with("_env") => shown_variable(text).into(),
        Value::String(text) if name == "key_file" && !text.contains(['/', '\\', '.']) => shown_variable(text).into(),
        // A key in place of its file.
        Value::String(text) if is_secret(name) || text.contains("-----BEGIN") => HIDDEN.into(),
        Value::Array(items) => items.iter().map(|item| shown(path, item)).collect(),
        Value::Object(table) => {
            let below = |key: &String| [path, std::slice::from_ref(key)].concat();
            table.iter().map(|(key, value)| (key.clone(), shown(&below(key), value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn is_secret(name: &str) -> bool {
    ["secret", "password", "token", "routing_key", "api_key", "headers"].iter().any(|word| name.contains(word))
}

/// The address of a database without what could be its password: `redis://me:***@host:6379/0`.
pub fn shown_address(address: &str) -> String {
    if address.is_empty() {
        return String::new();
    }
    let Some((scheme, rest)) = scheme_of(address) else { return HIDDEN.into() };
    let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
    // Where a login holds what ends one, it is not clear which of the parts are the login.
    if login.is_some_and(|login| login.contains(['/', '?', '#'])) {
        return format!("{scheme}://{MASK}");
    }
    let login = match login.map(|login| login.split_once(':')) {
        None => String::new(),
        Some(Some((user, _))) if is_plain(user) => format!("{user}:{MASK}@"),
        Some(_) => format!("{MASK}@"),
    };
    let (rest, options) = rest.split_once('?').map_or((rest, None), |(rest, options)| (rest, Some(options)));
    let (hosts, path) = rest.split_once('/').map_or((rest, None), |(hosts, path)| (hosts, Some(path)));
    let hosts: Vec<&str> = hosts.split(',').map(|host| if is_host(host) { host } else { MASK }).collect();
    let path = path.map_or(String::new(), |path| format!("/{}", if is_plain(path) { path } else { MASK }));
    let options = options.map_or(String::new(), |options| {
        let option = |option: &str| match option.split_once('=') {
            Some((name, value)) if HARMLESS_OPTIONS.contains(&name) && is_plain(value) => option.to_owned(),
            _ => MASK.to_owned(),
        };
        format!("?{}", options.split('&').map(option).collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{login}{}{path}{options}", hosts.join(","))
}

/// The address of a receiver is often its key: only the host is shown.
pub fn shown_receiver(url: &str) -> String {
    let Some((scheme, rest)) = scheme_of(url) else { return HIDDEN.into() };
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = if is_host(host) && !path.contains('@') { host } else { MASK };
    format!("{scheme}://{host}{}", if path.trim_end_matches('/').is_empty() { "" } else { "/…" })
}

/// The name of an environment variable, unless the secret itself was put in its place.
pub fn shown_variable(name: &str) -> &str {
    /// Keys are this long and longer, and without an underscore.
    const KEY_CHARS: usize = 20;
    let is_name = name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_name && (name.contains('_') || name.len() < KEY_CHARS) && !name.starts_with("whsec_") { name } else { HIDDEN }
}

fn scheme_of(address: &str) -> Option<(&str, &str)> {
    address.split_once("://").filter(|(scheme, _)| SCHEMES.contains(scheme))
}

fn is_plain(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// A name or an address, and a port.
fn is_host(host: &str) -> bool {
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((inner, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_address = inner.parse::<std::net::Ipv6Addr>().is_ok();
        return is_address && port.strip_prefix(':').map_or(port.is_empty(), is_port);
    }
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    is_plain(name) && is_port(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn addresses_are_shown_without_their_passwords() {
        for (address, shown) in [
            ("redis://me:hunter2@host:6379/0", "redis://me:***@host:6379/0"),
            ("redis://:hunter2@a:1,b:2", "redis://:***@a:1,b:2"),
            ("redis://hunter2@a", "redis://***@a"),
            ("redis://me:hun@ter2@[::1]:6379", "redis://me:***@[::1]:6379"),
            ("redis://me:hun/ter2@a", "redis://***"),
            ("redis://me:hun?ter2@a/0", "redis://***"),
            ("redis://u:hunter2@a,v:hunter2@b", "redis://u:***@b"),
            ("redis://me%3Ahunter2@a", "redis://***@a"),
            ("redis://me:hunter2", "redis://***"),
            ("postgres://me@h/db?password=hunter2&sslmode=require", "postgres://***@h/db?***&sslmode=require"),
            ("postgres://h/db?password=hun@ter2", "postgres://***"),
            ("postgres://h/db?sslmode=hunter2%26", "postgres://h/db?***"),
            ("host=h password=hunter2 user=me", "(hidden)"),
            ("hunter2", "(hidden)"),
            ("hunter2://a", "(hidden)"),
            ("", ""),
        ] {
            assert_eq!(shown_address(address), shown, "{address}");
        }
    }

    #[test]
    fn of_a_receiver_the_host_is_shown() {
        for (url, shown) in [
            ("https://user:pw@hooks.example.com/services/T0/B0/xyz?key=1", "https://hooks.example.com/…"),
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318"),
            ("https://c/?api-key=1", "https://c/…"),
            ("https://u:1/23@c/x", "https://***/…"),
            ("xoxb-1-2", "(hidden)"),
        ] {
            assert_eq!(shown_receiver(url), shown, "{url}");
        }
    }

    #[test]
    fn secrets_are_shown_to_nobody() {
        let targets = json!([{
            "name": "ops", "url": "https://user:pw@hooks.example.com/services/T0", "routing_key": "abc", "routing_key_env": "PD_KEY",
            "secret_env": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "url_env": "https://hooks.slack.com/services/T0",
        }]);
        assert_eq!(
            shown(&["alerts".to_owned(), "target".to_owned()], &targets),
            json!([{
                "name": "ops", "url": "https://hooks.example.com/…", "routing_key": "(hidden)", "routing_key_env": "PD_KEY",
                "secret_env": "(hidden)", "url_env": "(hidden)",
            }])
        );
        assert_eq!(shown(&["max_tokens".to_owned()], &json!(5)), 5);
        for (file, seen) in [("/run/secrets/openai", "/run/secrets/openai"), ("sk-proj-0123456789abcdef", HIDDEN)] {
            assert_eq!(shown(&["gateway".to_owned(), "upstreams".to_owned(), "a".to_owned(), "key_file".to_owned()], &json!(file)), seen);
        }
        assert_eq!(shown_variable("R0123456789ABCDEF0123456789ABCDE"), HIDDEN);
    }

    /// A secret no four characters of which stand in the rest of an address.
    fn secret() -> impl Strategy<Value = String> {
        "[Q-Z5-9@:/?#%,&='\" ]{6,24}"
            .prop_filter("characters that tell it", |secret| secret.bytes().filter(u8::is_ascii_alphanumeric).count() >= 4)
    }

    fn leaks(shown: &str, secret: &str) -> bool {
        let chars: Vec<char> = secret.chars().collect();
        chars.windows(4).any(|piece| {
            let piece: String = piece.iter().collect();
            piece.chars().any(|c| c.is_ascii_alphanumeric()) && shown.contains(&piece)
        })
    }

    proptest! {
        #[test]
        fn no_piece_of_a_password_is_shown(secret in secret(), scheme in prop::sample::select(vec!["redis", "rediss+cluster", "postgres"])) {
            let encoded: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
            for written in [&secret, &encoded] {
                for address in [
                    format!("{scheme}://me:{written}@host:6379/0"),
                    format!("{scheme}://:{written}@a:1,b:2/db?sslmode=require"),
                    format!("{scheme}://me:{written}@a,me:{written}@b"),
                    // With a colon it is a name and a password.
                    format!("{scheme}://{}@host", written.replace(':', "%3A")),
                    format!("{scheme}://host/db?user=me&password={written}"),
                    format!("{scheme}://host/db?password={written}&sslmode=require"),
                    format!("host=h user=me password='{written}' dbname=d"),
                    written.clone(),
                ] {
                    let shown = shown_address(&address);
                    prop_assert!(!leaks(&shown, &secret) && !leaks(&shown, written), "{address} is shown as {shown}");
                }
                for url in [format!("https://hooks.slack.com/services/{written}"), format!("https://u:{written}@hooks.slack.com/x"), format!("https://c?k={written}")] {
                    let shown = shown_receiver(&url);
                    prop_assert!(!leaks(&shown, &secret) && !leaks(&shown, written), "{url} is shown as {shown}");
                }
            }
        }
    }
}
