use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/notices.json");

fn chars(value: &Value) -> usize {
    value.as_str().unwrap().encode_utf16().count()
}

/// The published limits of Block Kit.
fn check_slack(message: &Value) {
    assert!((1..=40_000).contains(&chars(&message["text"])));
    for block in message["blocks"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "header" => assert!(block["text"]["type"] == "plain_text" && (1..=150).contains(&chars(&block["text"]["text"]))),
            "section" => match block["fields"].as_array() {
                Some(fields) => {
                    assert!((1..=10).contains(&fields.len()));
                    assert!(fields.iter().all(|field| (1..=2000).contains(&chars(&field["text"]))));
                }
                None => assert!((1..=3000).contains(&chars(&block["text"]["text"]))),
            },
            "context" => assert!((1..=3000).contains(&chars(&block["elements"][0]["text"]))),
            other => panic!("{other}"),
        }
    }
    let text = message.to_string();
    assert!(!text.contains(['<', '>']), "{text}");
    assert!(!text.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "").contains('&'), "no entity is cut in half");
}

/// The published limits of Events API v2.
fn check_pagerduty(event: &Value) {
    assert!((1..=255).contains(&chars(&event["dedup_key"])));
    assert!((1..=1024).contains(&chars(&event["payload"]["summary"])));
    assert!(chars(&event["payload"]["source"]) > 0 && event.to_string().len() < 512 * 1024);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the file is not the core's, but that of the SDKs")]
fn the_bodies_in_the_file_that_every_sdk_plays_are_the_cores() {
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let written = file.clone();
    for case in file["cases"].as_array_mut().unwrap() {
        let mut error = case["trip"]["fields"].clone();
        for (name, value) in [("kind", &case["trip"]["kind"]), ("message", &case["trip"]["message"]), ("time", &case["facts"]["time"])] {
            error[name] = value.clone();
        }
        let (facts, source) = (trip_facts(&error.to_string()).unwrap(), case["source"].as_str().unwrap().to_owned());
        case["facts"] = serde_json::from_str(&facts).unwrap();
        case["slack"] = serde_json::from_str(&trip_to_slack(&facts, &source).unwrap()).unwrap();
        case["pagerduty"] = serde_json::from_str(&trip_to_pagerduty(&facts, &source, "R0UT1NGK3Y").unwrap()).unwrap();
        check_slack(&case["slack"]);
        check_pagerduty(&case["pagerduty"]);
    }
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(FILE, format!("{}\n", serde_json::to_string_pretty(&file).unwrap())).unwrap();
    } else {
        assert_eq!(file, written);
    }
}

#[test]
fn what_is_too_long_ends_between_two_characters() {
    assert_eq!(escaped("a&b", 6), "a&amp;");
    assert_eq!(escaped("a&b", 5), "a");
    assert_eq!(plain("a😀b", 2), "a");
    assert_eq!(plain("a😀b", 3), "a😀");
    assert_eq!(plain("e\u{301}e\u{301}", 3), "e\u{301}");
    let family = "👩‍👩‍👧‍👦";
    assert_eq!(plain(&family.repeat(2), 2 * family.encode_utf16().count() - 1), family);
}

#[test]
fn no_text_is_too_long_or_too_odd_for_a_receiver() {
    let odd = ["&", "<!channel>", "é", "e\u{301}", "😀", "👩‍👩‍👧‍👦", "🇩🇪", "\u{202e}", "\n", "\u{301}"];
    for (unit, times) in odd.iter().flat_map(|unit| [0, 1, 149, 1000, 20_000].map(|times| (unit, times))) {
        let text = unit.repeat(times);
        let facts = json!({"kind": text, "reason": text, "message": text, "run_id": text, "time": "2027-01-15T08:00:00Z", "tool": text});
        check_slack(&serde_json::from_str(&trip_to_slack(&facts.to_string(), &text).unwrap()).unwrap());
        check_pagerduty(&serde_json::from_str(&trip_to_pagerduty(&facts.to_string(), &text, "key").unwrap()).unwrap());
    }
}

#[test]
fn keys_that_are_too_long_stay_apart() {
    let (first, second) = (format!("{}1", "r".repeat(300)), format!("{}2", "r".repeat(300)));
    assert_ne!(bounded_key(&first), bounded_key(&second));
    assert_eq!(bounded_key(&first).len(), PAGERDUTY_DEDUP_KEY);
    assert_eq!(bounded_key("runguard/run-7/loop_detected"), "runguard/run-7/loop_detected");
}

fn notice(title: &str) -> Notice {
    Notice { title: title.to_owned(), ..Notice::of_trip(Map::new(), "worker-7") }
}

#[test]
fn many_notices_become_one_message_that_counts_the_rest() {
    let notices: Vec<Notice> = (0..47).map(|number| notice(&format!("Alert {number}"))).collect();
    for body in [slack, teams] {
        let text = body(&Message { id: "msg_1", notices: &notices, link: None }).to_string();
        assert!(text.contains("47 alerts at once") && text.contains("Alert 9") && !text.contains("Alert 10"), "{text}");
        assert!(text.contains("and 37 more"), "{text}");
    }
    assert!(!slack(&Message { id: "msg_1", notices: &notices[..10], link: None }).to_string().contains("more"));
    check_slack(&slack(&Message { id: "msg_1", notices: &vec![notice(&"<&>é🚨".repeat(2000)); 100], link: None }));
}

/// The published shape of an Adaptive Card behind a Workflows webhook, which takes 28 KB.
#[test]
fn teams_gets_a_card_of_plain_text() {
    let hostile = "[x](https://evil.example) <&>é🚨".repeat(500);
    let facts = vec![("Tenant", hostile.clone()), ("Subject", hostile.clone()), ("Session", hostile.clone())];
    for notice in [notice("Stopped"), Notice { text: hostile.clone(), facts, ..notice(&hostile) }] {
        let message = teams(&Message { id: "msg_1", notices: &[notice], link: None });
        let card = &message["attachments"][0]["content"];
        assert_eq!((&message["type"], &card["type"], &card["version"]), (&json!("message"), &json!("AdaptiveCard"), &json!("1.4")));
        for block in card["body"].as_array().unwrap() {
            assert_eq!((&block["type"], &block["inlines"][0]["type"]), (&json!("RichTextBlock"), &json!("TextRun")));
        }
        assert!(message.to_string().len() < 28 * 1024, "{}", message.to_string().len());
    }
}

#[test]
fn an_incident_is_resolved_by_its_key() {
    let resolved = pagerduty(&Notice { state: AlertState::Resolved, ..notice("Stopped") }, "key", Some("https://x/"));
    let firing = pagerduty(&notice("Stopped"), "key", Some("https://x/"));
    assert_eq!((&resolved["event_action"], &resolved["dedup_key"]), (&json!("resolve"), &firing["dedup_key"]));
    assert!(resolved.get("payload").is_none());
}

#[test]
fn a_link_leads_where_it_says_or_is_not_there() {
    let notices = [notice("Stopped")];
    let told = |link| Message { id: "msg_1", notices: &notices, link };
    let link = "https://runguard.example/?view=session&session=a";
    let mut body = slack(&told(Some(link)));
    assert!(body.to_string().contains("<https://runguard.example/?view=session&amp;session=a|Open the dashboard>"), "{body}");
    body["blocks"].as_array_mut().unwrap().retain(|block| !block.to_string().contains(LOOK));
    check_slack(&body);
    let long = format!("https://runguard.example/?session={}", "a".repeat(4000));
    check_slack(&slack(&told(Some(&long))));
    assert!(!slack(&told(Some(&long))).to_string().contains("runguard.example"), "a link that is cut leads elsewhere");
    assert_eq!(teams(&told(Some(link)))["attachments"][0]["content"]["actions"][0]["url"], link);
    assert!(teams(&told(None))["attachments"][0]["content"].get("actions").is_none());
    let event = pagerduty(&notices[0], "key", Some(link));
    assert_eq!((&event["client_url"], &event["links"][0]["href"]), (&json!(link), &json!(link)));
}
