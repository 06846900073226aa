use super::*;
use runguard_core::Timestamp;

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

/// What hostile callers put into names, as long as the log takes it.
fn hostile() -> Alert {
    let text = format!("<!channel> & <https://evil.example|click> *b* [x](https://evil.example) {}", "<&>é🚨".repeat(2000));
    Alert { title: text.clone(), text: text.clone(), subject: text.clone(), tenant: text.clone(), session: text, ..alert() }
}

fn parcel(alerts: Vec<Alert>) -> Parcel {
    Parcel { id: "msg_1".into(), alerts }
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
    serde_json::from_str(&Target::new(&settings(kind), &environment).unwrap().body(&parcel(alerts))).unwrap()
}

/// The published shape of Events API v2.
fn check_pagerduty(event: &Value) {
    assert_eq!(event["routing_key"], "R0UT1NGK3Y");
    let dedup_key = event["dedup_key"].as_str().unwrap();
    assert!((1..=255).contains(&dedup_key.chars().count()));
    match event["event_action"].as_str().unwrap() {
        "trigger" => {
            let payload = &event["payload"];
            let summary = payload["summary"].as_str().unwrap();
            assert!((1..=1024).contains(&summary.chars().count()), "{}", summary.chars().count());
            assert!(!payload["source"].as_str().unwrap().is_empty());
            assert!(["critical", "error", "warning", "info"].contains(&payload["severity"].as_str().unwrap()));
            payload["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
            assert!(payload["custom_details"].is_object());
            for text in ["component", "group", "class"] {
                assert!(payload[text].is_string());
            }
        }
        "resolve" => assert!(event.get("payload").is_none()),
        other => panic!("{other}"),
    }
}

#[test]
fn pagerduty_gets_the_published_shape() {
    for severity in [Severity::Info, Severity::Warning, Severity::Error, Severity::Critical] {
        check_pagerduty(&body(TargetKind::Pagerduty, vec![Alert { severity, ..alert() }]));
    }
    check_pagerduty(&body(TargetKind::Pagerduty, vec![hostile()]));
    let (opened, closed) = (alert(), Alert { state: AlertState::Resolved, ..alert() });
    let (opened, closed) = (body(TargetKind::Pagerduty, vec![opened]), body(TargetKind::Pagerduty, vec![closed]));
    check_pagerduty(&closed);
    assert_eq!((&closed["event_action"], &closed["dedup_key"]), (&json!("resolve"), &opened["dedup_key"]));
}

fn check_slack(message: &Value) {
    let chars = |value: &Value| value.as_str().unwrap().chars().count();
    assert!((1..=40_000).contains(&chars(&message["text"])));
    let blocks = message["blocks"].as_array().unwrap();
    assert!((1..=50).contains(&blocks.len()));
    for block in blocks {
        match block["type"].as_str().unwrap() {
            "header" => {
                assert_eq!(block["text"]["type"], "plain_text");
                assert!((1..=150).contains(&chars(&block["text"]["text"])));
            }
            "section" => {
                if let Some(fields) = block["fields"].as_array() {
                    assert!((1..=10).contains(&fields.len()));
                    assert!(fields.iter().all(|field| field["type"] == "mrkdwn" && (1..=2000).contains(&chars(&field["text"]))));
                } else {
                    assert!((1..=3000).contains(&chars(&block["text"]["text"])));
                }
            }
            "context" => assert!((1..=10).contains(&block["elements"].as_array().unwrap().len())),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn slack_gets_blocks_within_its_limits_and_no_markup_of_users() {
    check_slack(&body(TargetKind::Slack, vec![alert()]));
    let message = body(TargetKind::Slack, vec![hostile()]);
    check_slack(&message);
    let text = message.to_string();
    assert!(!text.contains("<!channel>") && !text.contains("<https"), "{text}");
    assert!(text.contains("&lt;!channel&gt; &amp; "));
    assert!(!text.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "").contains('&'), "no entity is cut in half");
    assert!(body(TargetKind::Slack, vec![alert()])["text"].as_str().unwrap().contains("'orders' is open"));
}

#[test]
fn many_alerts_become_one_message_that_counts_the_rest() {
    let many: Vec<Alert> = (0..47).map(|number| Alert { title: format!("Alert {number}"), ..alert() }).collect();
    for kind in [TargetKind::Slack, TargetKind::Teams] {
        let message = body(kind, many.clone());
        let text = message.to_string();
        assert!(
            text.contains("47 alerts at once") && text.contains("Alert 9") && !text.contains("Alert 10") && text.contains("and 37 more"),
            "{text}"
        );
    }
    check_slack(&body(TargetKind::Slack, vec![hostile(); 100]));
    check_teams(&body(TargetKind::Teams, vec![hostile(); 100]));
    assert!(!body(TargetKind::Slack, many[..10].to_vec()).to_string().contains("more"));
}

fn check_teams(message: &Value) {
    assert_eq!(message["type"], "message");
    let attachments = message["attachments"].as_array().unwrap();
    assert_eq!(attachments.len(), 1);
    assert_eq!(attachments[0]["contentType"], "application/vnd.microsoft.card.adaptive");
    let card = &attachments[0]["content"];
    assert_eq!((&card["type"], &card["version"]), (&json!("AdaptiveCard"), &json!("1.4")));
    let blocks = card["body"].as_array().unwrap();
    assert!(!blocks.is_empty());
    for block in blocks {
        // A run of text has no markup; a text block would.
        assert_eq!(block["type"], "RichTextBlock");
        let run = &block["inlines"][0];
        assert_eq!(run["type"], "TextRun");
        assert!(!run["text"].as_str().unwrap().is_empty());
        assert!(["Lighter", "Default", "Bolder"].contains(&run["weight"].as_str().unwrap()));
        assert!(["Small", "Default", "Large"].contains(&run["size"].as_str().unwrap()));
    }
}

#[test]
fn teams_gets_an_adaptive_card() {
    check_teams(&body(TargetKind::Teams, vec![alert()]));
    let hostile = body(TargetKind::Teams, vec![hostile()]);
    check_teams(&hostile);
    // A Workflows webhook takes 28 KB.
    assert!(hostile.to_string().len() < 28 * 1024, "{}", hostile.to_string().len());
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
        let failed = Target::new(&settings, &environment).unwrap().send(&parcel(vec![alert()]), 0).await.unwrap_err();
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
