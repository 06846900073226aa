use super::*;
use proptest::prelude::*;

static FIELDS: &[Field] = &[
    Field::required("session_id", Kind::Id, "the session", "\"s\""),
    Field::optional("note", Kind::Text, "a note", "\"n\""),
    Field::optional("share", Kind::Fraction, "a share", "0.5"),
    Field::optional("count", Kind::Whole(1), "a count", "1"),
    Field::optional("max_usd", Kind::Dollars, "money", "0.25"),
    Field::optional("credits", Kind::Amount, "an amount", "3"),
    Field::optional("points", Kind::Amount, "another", "3").instead_of("credits"),
    Field::optional("confidence", Kind::Confidence, "of an answer", "0.4"),
    Field::optional("error", Kind::Flag, "a flag", "true"),
    Field::optional("outcome", Kind::OneOf(&["success", "failure"]), "an outcome", "\"success\""),
    Field::optional("params", Kind::Any, "anything", "{}"),
    Field::optional("tools", Kind::Names, "names", "[]"),
    Field::optional("steps", Kind::Steps, "steps", "[]"),
];

#[test]
fn members_that_are_made_here_are_read_as_those_that_are_sent() {
    use serde_json::json;
    let read = |members: &[(&'static str, Value)]| {
        let text = Value::Object(members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()).to_string();
        let mut values = Input::read(text.as_bytes(), FIELDS).map(|input| format!("{:?}", sorted(input.values)));
        let own = Input::of_members(members, FIELDS).map(|input| format!("{:?}", sorted(input.values)));
        if let (Ok(values), Some(own)) = (&mut values, &own) {
            assert_eq!(own, values, "{text}");
        }
        (values.is_ok(), own.is_some())
    };
    let session = ("session_id", json!("s"));
    for (member, sent, own) in [
        (("note", json!("a \"word\"")), true, true),
        (("note", json!(7)), true, false),
        (("count", json!(1)), true, true),
        (("count", json!(MOST_WHOLE)), true, true),
        (("count", json!(0)), false, false),
        (("count", json!(MOST_WHOLE + 1)), false, false),
        (("count", json!("3")), true, false),
        (("error", json!(true)), true, true),
        (("outcome", json!("failure")), true, true),
        (("outcome", json!("other")), false, false),
        (("max_usd", json!(0.25)), true, false),
        (("steps", json!([{"id": "a", "tool": "t", "args": "x"}, {"id": "b", "user": true}])), true, true),
        (("steps", json!([{"tool": "t"}])), false, false),
        (("unknown", json!(1)), true, false),
        (("session_id", json!("x".repeat(MAX_ID_CHARS + 1))), false, false),
    ] {
        let members = if member.0 == "session_id" { vec![member] } else { vec![session.clone(), member] };
        assert_eq!(read(&members), (sent, own), "{members:?}");
    }
    assert_eq!(read(&[("note", json!("a"))]), (false, false), "what is required must be there");
    assert_eq!(read(&[session, ("points", json!(1)), ("credits", json!(1))]), (false, false));
}

fn sorted<'a>(mut values: Vec<(&'static str, Parsed<'a>)>) -> Vec<(&'static str, Parsed<'a>)> {
    values.sort_by_key(|(name, _)| *name);
    values
}

#[test]
fn what_says_the_same_in_two_units_is_said_once() {
    let both = problem(r#"{"session_id":"a","points":5,"credits":1}"#);
    assert_eq!(both.len(), 1);
    assert!(both[0].0 == "points" && both[0].1.contains("'credits'") && both[0].1.contains("send one of them"), "{both:?}");
    for one in [r#""points":5"#, r#""credits":1"#, r#""points":5,"credits":null"#, r#""points":"","credits":1"#] {
        assert!(Input::read(format!("{{\"session_id\":\"a\",{one}}}").as_bytes(), FIELDS).is_ok(), "{one}");
    }
}

fn problem(body: &str) -> Vec<(String, String)> {
    match Input::read(body.as_bytes(), FIELDS) {
        Err(InputError::Fields(problems)) => problems.into_iter().map(|problem| (problem.field, problem.problem)).collect(),
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn good_fields_are_read_and_unknown_ones_named() {
    let input =
        Input::read(br#"{"session_id":"a\u00e4","note":null,"share":1,"count":3.0,"error":true,"sesion_id":1,"zzz":{}}"#, FIELDS).unwrap();
    assert_eq!(input.text("session_id"), "aä");
    assert_eq!(input.text("note"), "");
    assert_eq!(input.fraction("share"), Some(1.0));
    assert_eq!(input.whole("count"), Some(3));
    assert!(input.flag("error"));
    assert_eq!(input.warnings.len(), 2);
    assert!(input.warnings[0].contains("did you mean 'session_id'"), "{:?}", input.warnings);
}

#[test]
fn a_text_for_a_number_may_be_a_quote() {
    for field in ["share", "count", "max_usd", "credits", "confidence", "error"] {
        let problems = problem(&format!(r#"{{"session_id":"s","{field}":"\""}}"#));
        assert_eq!(problems.len(), 1, "{field}: {problems:?}");
    }
}

#[test]
fn every_problem_is_named_at_once() {
    let problems = problem(r#"{"note":[5],"share":1.5,"count":0,"error":"yes","outcome":"maybe"}"#);
    let fields: Vec<&str> = problems.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["note", "share", "count", "error", "outcome", "session_id"]);
}

#[test]
fn a_required_field_under_another_name_is_named() {
    let problems = problem(r#"{"sessionId":"a"}"#);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].1.contains("is called 'sessionId'; did you mean 'session_id'?"), "{problems:?}");
    assert!(!problem(r#"{"zzz":"a"}"#)[0].1.contains("did you mean"));
}

#[test]
fn required_ids_are_strings_of_1_to_256_characters() {
    for bad in ["null", "\"\"", "\"  \"", &"7".repeat(257), "[\"a\"]", "{}", "true", &format!("\"{}\"", "ä".repeat(257)), "\"\\ud800\""] {
        assert_eq!(problem(&format!("{{\"session_id\":{bad}}}"))[0].0, "session_id", "{bad}");
    }
    let longest = format!("{{\"session_id\":\"{}\"}}", "ä".repeat(256));
    assert!(Input::read(longest.as_bytes(), FIELDS).is_ok());
}

#[test]
fn what_a_template_quotes_too_much_or_too_little_is_taken_and_named() {
    let body = br#"{"session_id":12345678901234567890,"note":0.50,"share":"0.4","count":" 2 ","error":"true","params":"7"}"#;
    let input = Input::read(body, FIELDS).unwrap();
    assert_eq!(input.text("session_id"), "12345678901234567890", "the digits as they stand");
    assert_eq!(input.text("note"), "0.50");
    assert_eq!((input.fraction("share"), input.whole("count"), input.flag("error")), (Some(0.4), Some(2), true));
    assert_eq!(input.json("params").map(RawValue::get), Some("\"7\""));
    let named =
        |warnings: &[String]| warnings.iter().filter_map(|warning| Some(warning.split('\'').nth(1)?.to_owned())).collect::<Vec<_>>();
    assert_eq!(named(&input.warnings), ["session_id", "note", "share", "count", "error"]);
    assert!(!input.warnings.iter().any(|warning| warning.contains("0.4")), "the value is nobody's business: {:?}", input.warnings);

    let input = Input::read(br#"{"session_id":"a","share":"","count":" ","error":"","note":""}"#, FIELDS).unwrap();
    assert_eq!((input.fraction("share"), input.whole("count"), input.flag("error")), (None, None, false), "not set in the flow");
    assert_eq!(named(&input.warnings), ["share", "count", "error"]);

    let input = Input::read(br#"{"session_id":"a","max_usd":" ","credits":""}"#, FIELDS).unwrap();
    assert_eq!((input.dollars("max_usd"), input.dollars("credits")), (None, None), "not set in the flow");
    assert_eq!(named(&input.warnings), ["max_usd", "credits"]);
    let input = Input::read(br#"{"session_id":"a","max_usd":"0.25","credits":"3.5"}"#, FIELDS).unwrap();
    assert_eq!((input.dollars("max_usd"), input.dollars("credits")), (NanoDollars::parse("0.25").ok(), NanoDollars::parse("3.5").ok()));
    assert_eq!(named(&input.warnings), ["credits"], "money is often text");
    for nothing in ["\"\"", "\" \"", "null"] {
        let body = format!("{{\"session_id\":\"a\",\"confidence\":{nothing}}}");
        let input = Input::read(body.as_bytes(), FIELDS).unwrap();
        assert_eq!((input.fraction("confidence"), named(&input.warnings)), (Some(0.0), vec!["confidence".to_owned()]), "{nothing}");
    }

    let input = Input::read(br#"{"session_id":7,"share":"0.4","session_id":"a","share":0.5}"#, FIELDS).unwrap();
    assert!(input.warnings.is_empty(), "the last of several counts: {:?}", input.warnings);

    for bad in [
        r#""share":"0,4""#,
        r#""share":"1.5""#,
        r#""share":"40%""#,
        r#""share":"NaN""#,
        r#""share":"true""#,
        r#""share":true"#,
        r#""count":"2.5""#,
        r#""max_usd":"five""#,
        r#""credits":"-1""#,
        r#""confidence":"1.5""#,
        r#""count":"0""#,
        r#""count":"two""#,
        r#""count":[2]"#,
        r#""error":"1""#,
        r#""error":1"#,
        r#""note":true"#,
        r#""outcome":1"#,
    ] {
        assert_eq!(problem(&format!("{{\"session_id\":\"a\",{bad}}}")).len(), 1, "{bad}");
    }
}

#[test]
fn names_come_as_a_list_or_with_commas() {
    let names = |tools: &str| Input::read(format!("{{\"session_id\":\"a\",\"tools\":{tools}}}").as_bytes(), FIELDS).unwrap().names("tools");
    assert_eq!(names(r#"["get_orders", "get profile"]"#), ["get_orders", "get profile"]);
    assert_eq!(names(r#"" get_orders, get profile,, ""#), ["get_orders", "get profile"]);
    assert!(names("[]").is_empty() && names("\"\"").is_empty() && names("null").is_empty());
    let many = format!("{:?}", vec!["a"; MAX_NAMES + 1]);
    let long = format!("[\"{}\"]", "a".repeat(MAX_ID_CHARS + 1));
    for bad in ["7", "{}", "[7]", "[\"\"]", "[[\"a\"]]", &many, &long] {
        assert_eq!(problem(&format!("{{\"session_id\":\"a\",\"tools\":{bad}}}"))[0].0, "tools", "{bad}");
    }
}

#[test]
fn what_is_no_object_has_no_fields() {
    for body in ["", "  ", "[]", "\"x\"", "1", "null", "{", "{\"a\":}", "{\"session_id\":\"a\"}x", "{'a':1}"] {
        assert!(matches!(Input::read(body.as_bytes(), FIELDS), Err(InputError::NotAnObject(_))), "{body}");
    }
    assert!(matches!(Input::read(b"{\"session_id\":\"\xff\"}", FIELDS), Err(InputError::NotAnObject(_))));
}

#[test]
fn nesting_and_length_are_bounded() {
    let deep = format!("{{\"session_id\":\"a\",\"params\":{}1{}}}", "[".repeat(65), "]".repeat(65));
    assert!(problem(&deep)[0].1.contains("nested"));
    let very_deep = format!("{{\"session_id\":\"a\",\"x\":{}", "[".repeat(500_000));
    assert!(matches!(Input::read(very_deep.as_bytes(), FIELDS), Err(InputError::NotAnObject(_))));
    let long = format!("{{\"session_id\":\"a\",\"note\":\"{}\"}}", "x".repeat(MAX_TEXT_BYTES + 1));
    assert!(problem(&long)[0].1.contains("bytes"));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Input::read(&body, FIELDS);
    }

    #[test]
    fn no_near_json_makes_it_panic(body in r#"\{("session_id"|"note"|"params"|"count"): ?("[a-z\\u0-9]*"|[0-9.eE+-]{0,6}|\[\{*\}*\]|null|true),?.{0,10}\}"#) {
        let _ = Input::read(body.as_bytes(), FIELDS);
    }
}
