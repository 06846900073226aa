use super::*;
use runguard_core::Timestamp;
use runguard_core::notice::{AlertState, Severity};
use serde_json::json;

fn alert() -> Alert {
    Alert {
        rule: "circuit_trip".into(),
        dedup_key: "circuit_trip-0123456789abcdef0123456789abcdef".into(),
        state: AlertState::Firing,
        severity: Severity::Error,
        at: Timestamp::from_millis(1_800_000_000_123),
        tenant: "acme".into(),
        guard: "api_circuit".into(),
        reason: String::new(),
        subject: "orders".into(),
        session: String::new(),
        decision_id: "01JF8Z6Q0V3N1W2X4Y5Z6A7B8C".into(),
        title: "The circuit of 'orders' is open".into(),
        text: "Calls are refused.".into(),
    }
}

fn message(alerts: Vec<Alert>) -> AlertMessage {
    AlertMessage { id: "msg_1".into(), alerts }
}

fn settings(kind: TargetKind) -> TargetSettings {
    TargetSettings {
        name: "t".into(),
        kind,
        url: Some("https://example.com/hook".into()),
        routing_key_env: Some("KEY".into()),
        secret_env: Some("SECRET".into()),
        ..TargetSettings::default()
    }
}

fn environment(name: &str) -> Option<String> {
    match name {
        "KEY" => Some("R0UT1NGK3Y".into()),
        // Of the published example of Standard Webhooks.
        "SECRET" => Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()),
        "TWO" => Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw  whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".into()),
        _ => None,
    }
}

fn body(kind: TargetKind, alerts: Vec<Alert>) -> Value {
    serde_json::from_str(&Target::new(&settings(kind), &environment).unwrap().body(&message(alerts))).unwrap()
}

#[test]
fn what_people_read_of_an_alert() {
    let firing = body(TargetKind::Pagerduty, vec![alert()]);
    assert_eq!(firing["payload"]["summary"], "The circuit of 'orders' is open. Calls are refused.");
    assert_eq!((&firing["routing_key"], &firing["payload"]["source"]), (&json!("R0UT1NGK3Y"), &json!("runguard/acme")));
    assert_eq!(firing["payload"]["custom_details"]["message_id"], "msg_1");
    firing["payload"]["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let resolved = body(TargetKind::Pagerduty, vec![Alert { state: AlertState::Resolved, ..alert() }]);
    assert_eq!((&resolved["event_action"], &resolved["dedup_key"]), (&json!("resolve"), &firing["dedup_key"]));
    for kind in [TargetKind::Slack, TargetKind::Teams] {
        let text = body(kind, vec![Alert { session: "s-1".into(), ..alert() }]).to_string();
        for shown in ["🚨 The circuit of 'orders' is open", "Calls are refused.", "acme", "api_circuit", "s-1", "RunGuard · msg_1"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        assert!(!text.contains("Reason"), "what an alert does not have is not shown: {text}");
        assert!(body(kind, vec![alert(), alert()]).to_string().contains("2 alerts at once"));
    }
}

#[test]
fn alerts_link_to_what_they_are_about() {
    let linked = |public_url: &str, alerts: Vec<Alert>| {
        let target = Target::new(&settings(TargetKind::Webhook), &environment).unwrap().linking(public_url);
        let body: Value = serde_json::from_str(&target.body(&message(alerts))).unwrap();
        body["data"]["link"].clone()
    };
    let of_session = Alert { session: "chat 1&2".into(), ..alert() };
    assert_eq!(linked("https://runguard.example", vec![of_session]), "https://runguard.example/?view=session&session=chat+1%262&of=acme");
    assert_eq!(
        linked("https://runguard.example/guard/", vec![alert()]),
        "https://runguard.example/guard/?view=decisions&guard=api_circuit&tenant=acme"
    );
    assert_eq!(linked("https://runguard.example", vec![alert(), alert()]), "https://runguard.example/?view=alerts");
    assert_eq!(linked("", vec![alert()]), Value::Null);
}

#[test]
fn webhooks_are_signed_as_the_standard_says() {
    let target = Target::new(&settings(TargetKind::Webhook), &environment).unwrap();
    // The example of the specification.
    let headers = target.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
    let header = |headers: &[(&'static str, String)], name: &str| headers.iter().find(|(known, _)| *known == name).unwrap().1.clone();
    assert_eq!(header(&headers, "webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert_eq!(header(&headers, "webhook-id"), "msg_p5jXN8AQM9LWM0D4loKWxJek");
    let rotating = Target::new(&TargetSettings { secret_env: Some("TWO".into()), ..settings(TargetKind::Webhook) }, &environment).unwrap();
    let both = header(&rotating.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#), "webhook-signature");
    let signatures: Vec<&str> = both.split(' ').collect();
    assert_eq!(signatures.len(), 2);
    assert_eq!(signatures[0], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert!(signatures[1].starts_with("v1,") && signatures[1] != signatures[0]);
    let event = body(TargetKind::Webhook, vec![alert()]);
    assert_eq!(
        (&event["type"], &event["timestamp"], &event["data"]["id"]),
        (&json!("alert.firing"), &json!("2027-01-15T08:00:00.123Z"), &json!("msg_1"))
    );
}

#[test]
fn secrets_are_nowhere_but_where_they_belong() {
    let target = Target::new(&TargetSettings { url: None, url_env: Some("HOOK".into()), ..settings(TargetKind::Slack) }, &|name| {
        (name == "HOOK").then(|| "https://hooks.slack.com/services/T000/B000/sEcReT".into())
    })
    .unwrap();
    assert!(!format!("{target:?}").contains("sEcReT"));
    assert_eq!(target.host(), "hooks.slack.com");
    let problem = Target::new(&TargetSettings { url: None, url_env: Some("HOOK".into()), ..settings(TargetKind::Slack) }, &|_| {
        Some("ftp://sEcReT".into())
    });
    let problem = problem.unwrap_err();
    assert!(problem.contains("`t`") && !problem.contains("sEcReT"), "{problem}");
    let missing =
        Target::new(&TargetSettings { secret_env: Some("NONE".into()), ..settings(TargetKind::Webhook) }, &environment).unwrap_err();
    assert!(missing.contains("NONE") && missing.contains("is not set"), "{missing}");
    for bad in ["whsec_short", "whsec_c2hvcnQ=", "whsec_!!!!"] {
        let problem = Target::new(&settings(TargetKind::Webhook), &|_| Some(bad.into())).unwrap_err();
        assert!(problem.contains("signing secret") && !problem.contains(bad), "{problem}");
    }
}

#[test]
fn addresses_are_https_unless_they_may_be_private() {
    for (url, allow_private, good) in [
        ("https://example.com/x", false, true),
        ("http://example.com/x", false, false),
        ("http://127.0.0.1:1/x", true, true),
        ("file:///etc/passwd", true, false),
        ("https://user:pass@example.com/", false, false),
        ("nonsense", false, false),
    ] {
        let settings = TargetSettings { url: Some(url.into()), allow_private, ..settings(TargetKind::Slack) };
        assert_eq!(settings.check().is_ok(), good, "{url}");
    }
    let public: SocketAddr = "93.184.216.34:443".parse().unwrap();
    let private: SocketAddr = "10.0.0.1:443".parse().unwrap();
    assert!(all_public("a", &[public]).is_ok() && all_public("a", &[public, private]).is_err(), "one private address is enough");
}

#[tokio::test]
async fn private_addresses_are_not_connected_to() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1"] {
        let settings = TargetSettings { url: Some(format!("https://{host}:{port}/")), ..settings(TargetKind::Slack) };
        let failed = Target::new(&settings, &environment).unwrap().send(&message(vec![alert()]), 0).await.unwrap_err();
        assert_eq!(failed.again, Again::Never, "{host}: {failed:?}");
        assert!(failed.message.contains("allow_private"), "{host}: {failed:?}");
    }
    assert!(tokio::time::timeout(Duration::from_millis(50), listener.accept()).await.is_err(), "nobody has connected");
}

#[test]
fn what_a_status_means_for_another_attempt() {
    for (status, again) in [
        (500, Again::Later),
        (503, Again::Later),
        (429, Again::Later),
        (408, Again::Later),
        (302, Again::Never),
        (400, Again::Never),
        (404, Again::Never),
        (410, Again::Never),
    ] {
        assert_eq!(super::again(StatusCode::from_u16(status).unwrap()), again, "{status}");
    }
}

#[test]
fn the_page_of_metrics_names_every_kind() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md"));
    let line = page.lines().find(|line| line.contains("`runguard_alerts_total`")).unwrap();
    let kinds: Vec<&str> = line.split_once('(').and_then(|(_, rest)| rest.split_once(')')).unwrap().0.split(", ").collect();
    assert_eq!(kinds, TargetKind::ALL.map(|kind| format!("`{}`", kind.code())));
}
