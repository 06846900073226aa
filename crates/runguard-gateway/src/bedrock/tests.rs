use super::*;
use http::HeaderValue;
use serde_json::json;

const NOVA: &str = "amazon.nova-lite-v1:0";

fn upstream() -> Upstream {
    Upstream { region: "eu-west-1".into(), ..Upstream::default() }
}

fn found(path: &str) -> (Kind, BedrockPath) {
    find(&upstream(), &Method::POST, path).unwrap_or_else(|| panic!("{path}"))
}

fn asked(path: &str) -> BedrockPath {
    found(path).1
}

fn read(operation: &str, model: &str, headers: &[(&'static str, &'static str)], body: &Value) -> Question {
    let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
    let text = body.to_string();
    let asked = asked(&aws::model_path(model, operation));
    question(&asked, &KnownAs::itself(model), &headers, &Members::read(text.as_bytes()).unwrap()).unwrap()
}

#[test]
fn a_path_says_the_model_and_what_is_asked() {
    let (kind, converse) = found("/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream");
    assert_eq!(
        converse.uri(),
        "https://bedrock-runtime.eu-west-1.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
    );
    assert_eq!(kind, Kind::Metered(Api::Converse));
    assert_eq!((converse.model.as_str(), converse.streams), ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", true));
    let uri = |path: &str| asked(path).uri();
    assert_eq!(uri("/model/amazon.nova-lite-v1:0/invoke"), uri("/model/amazon.nova-lite-v1%3A0/invoke"), "either spelling");
    assert_eq!(found("/model/amazon.nova-lite-v1:0/invoke").0, Kind::Metered(Api::Invoke(Family::Nova)));
    assert_eq!(found("/model/amazon.nova-lite-v1:0/count-tokens").0, Kind::Free);
    let arn = uri("/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.amazon.nova-lite-v1%3A0/converse");
    assert!(arn.contains("inference-profile%2Fus.amazon"), "{arn}");
    for path in [
        "/model/a/converse/x",
        "/model/a/batch",
        "/model/a",
        "/model//converse",
        "/model/a%2F..%2Fb/converse",
        "/model/%FF/converse",
        "/model/a%3Fb/converse",
        "/model/a%20b/converse",
        "/async-invoke",
        "/guardrail/a/version/1/apply",
        "/",
    ] {
        assert_eq!(find(&upstream(), &Method::POST, path), None, "{path}");
    }
    assert_eq!(find(&upstream(), &Method::GET, "/model/a/converse"), None);
}

#[test]
fn another_model_is_asked_only_if_it_understands_the_same_words() {
    let converse = asked("/model/amazon.nova-pro-v1:0/converse");
    let other = converse.with_model("meta.llama3-70b-instruct-v1:0").unwrap();
    assert!(other.uri().ends_with("/model/meta.llama3-70b-instruct-v1%3A0/converse"), "{}", other.uri());
    let invoke = asked("/model/amazon.nova-pro-v1:0/invoke");
    assert!(invoke.with_model(NOVA).is_some());
    assert_eq!(invoke.with_model("meta.llama3-70b-instruct-v1:0"), None);
    assert_eq!(converse.with_model("a/../b"), None);
}

#[test]
fn the_region_is_what_somebody_said() {
    let with = |url: &str, region: &str| super::region(&Upstream { url: url.into(), region: region.into(), ..Upstream::default() });
    assert_eq!(with("https://bedrock-runtime.us-west-2.amazonaws.com", "").as_deref(), Some("us-west-2"));
    assert_eq!(with("https://vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com", "").as_deref(), Some("us-east-1"));
    assert_eq!(with("https://bedrock-runtime-fips.us-east-1.amazonaws.com/", "us-east-2").as_deref(), Some("us-east-2"));
    assert_eq!(region_of_host("http://bedrock-runtime.us-west-2.evil.example"), None);
    assert_eq!(region_of_host("http://127.0.0.1:9000"), None);
}

#[test]
fn a_key_of_ours_may_stand_where_the_access_key_does() {
    let key = |value: &'static str| {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
        signers_key(&headers).map(str::to_owned)
    };
    let signature = "AWS4-HMAC-SHA256 Credential=rg_a_b/20261116/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0";
    assert_eq!(key(signature).as_deref(), Some("rg_a_b"));
    assert_eq!(key("AWS4-HMAC-SHA256 Credential=AKID/20261116/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0"), None);
    assert_eq!(key("Bearer rg_a_b"), None);
}

#[test]
fn a_signature_of_the_callers_ends_here() {
    let signer =
        Signer { looked_up: Mutex::new(Some((Instant::now(), Ok(Arc::new(Access::keys("AKID", "secret", Some("token".into()))))))) };
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("authorization", "AWS4-HMAC-SHA256 Credential=rg_a_b/x"),
        ("x-amz-security-token", "callers"),
        ("x-amz-date", "20000101T000000Z"),
        ("x-amz-content-sha256", "0"),
        ("x-amzn-bedrock-accept", "application/json"),
        ("content-type", "application/json"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    signer.sign("eu-west-1", "https://bedrock-runtime.eu-west-1.amazonaws.com/model/a/converse", &mut headers, b"{}").unwrap();
    let signed = headers["authorization"].to_str().unwrap();
    assert!(signed.contains("Credential=AKID/") && signed.contains("/eu-west-1/bedrock/aws4_request"), "{signed}");
    assert!(signed.contains("SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amzn-bedrock-accept"), "{signed}");
    assert_eq!(headers["x-amz-security-token"], "token");
    assert!(!headers.contains_key("x-amz-content-sha256"));
}

#[test]
fn every_family_says_in_its_own_words_how_long_an_answer_may_be() {
    for (operation, model, body, bounded) in [
        (
            "converse",
            NOVA,
            json!({"inferenceConfig": {"maxTokens": 9, "topP": 1}}),
            json!({"inferenceConfig": {"maxTokens": 5, "topP": 1}}),
        ),
        ("invoke", NOVA, json!({"inferenceConfig": {"max_new_tokens": 9}}), json!({"inferenceConfig": {"max_new_tokens": 5}})),
        ("invoke", "anthropic.claude-sonnet-4-5-20250929-v1:0", json!({"max_tokens": 9}), json!({"max_tokens": 5})),
        ("invoke", "meta.llama3-1-70b-instruct-v1:0", json!({"max_gen_len": 9}), json!({"max_gen_len": 5})),
        ("invoke", "mistral.mistral-large-2402-v1:0", json!({"max_tokens": 9}), json!({"max_tokens": 5})),
        ("invoke", "cohere.command-r-v1:0", json!({"max_tokens": 9}), json!({"max_tokens": 5})),
        (
            "invoke",
            "amazon.titan-text-express-v1",
            json!({"textGenerationConfig": {"maxTokenCount": 9}}),
            json!({"textGenerationConfig": {"maxTokenCount": 5}}),
        ),
    ] {
        let question = read(operation, model, &[], &body);
        assert_eq!((question.max_output, question.unmetered), (Some(9), None), "{model}");
        let prepared = question.prepare(&body.to_string().into(), Some(5)).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&prepared).unwrap(), bounded, "{model}");
    }
    let without = json!({"messages": []});
    let prepared = read("converse", NOVA, &[], &without).prepare(&without.to_string().into(), Some(5)).unwrap();
    assert_eq!(prepared, "{\"messages\":[],\"inferenceConfig\":{\"maxTokens\":5}}");
    let embedding = read("invoke", "amazon.titan-embed-text-v2:0", &[], &json!({"inputText": "a"}));
    assert_eq!((embedding.max_output, embedding.unmetered), (None, None));
    assert_eq!(read("invoke", "cohere.command-text-v14", &[], &json!({"prompt": "a", "num_generations": 3})).choices, 3);
}

#[test]
fn what_has_no_known_price_is_noticed() {
    let plain = json!({"messages": [], "performanceConfig": {"latency": "standard"}, "serviceTier": {"type": "default"}});
    assert_eq!(read("converse", NOVA, &[], &plain).unmetered, None);
    for body in [
        json!({"guardrailConfig": {"guardrailIdentifier": "g"}}),
        json!({"performanceConfig": {"latency": "optimized"}}),
        json!({"serviceTier": {"type": "priority"}}),
        json!({"promptVariables": {"a": {"text": "b"}}}),
        json!({"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}}),
        json!({"additionalModelRequestFields": {"max_tokens": 100_000}}),
    ] {
        assert!(read("converse", NOVA, &[], &body).unmetered.is_some(), "{body}");
    }
    for header in ["x-amzn-bedrock-guardrailidentifier", "x-amzn-bedrock-performanceconfig-latency", "x-amzn-bedrock-service-tier"] {
        assert!(read("invoke", NOVA, &[(header, "priority")], &json!({})).unmetered.is_some(), "{header}");
    }
    assert!(read("invoke", "stability.sd3-large-v1:0", &[], &json!({"prompt": "a"})).unmetered.is_some());
    assert!(read("invoke", "cohere.embed-english-v3", &[], &json!({"images": ["a"]})).unmetered.is_some());
    assert_eq!(read("converse", NOVA, &[], &json!({"additionalModelRequestFields": {"thinking": {"budget_tokens": 7}}})).thinking, 7);
    assert_eq!(
        read("converse", NOVA, &[], &json!({"system": [{"text": "a"}, {"cachePoint": {"type": "default"}}]})).times_the_price.of_read(10),
        20
    );
}

#[test]
fn what_is_enclosed_counts_where_it_stands_and_words_are_words() {
    let data = "iVBORw0KGgo".repeat(500);
    let of = |content: Value| read("converse", NOVA, &[], &json!({"messages": [{"role": "user", "content": content}]}));
    let image = json!({"image": {"format": "png", "source": {"bytes": data}}});
    let given = json!({"toolResult": {"toolUseId": "t", "content": [image, {"text": "a"}]}});
    let question = of(json!([image, given]));
    assert_eq!(question.prompt.attachments, 2);
    assert!(question.prompt.bytes < 400 && question.documents == 0);
    let page = of(json!([{"document": {"format": "pdf", "name": "a", "source": {"bytes": data}}}]));
    assert!(page.prompt.bytes < 400 && page.documents == 1);
    assert!(of(json!([{"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://a/b"}}}}])).documents == 1);
    for words in [
        json!({"image": data}),
        json!({"image": {"source": {"bytes": "QUJD"}, "words": data}}),
        json!({"document": {"format": "txt", "name": "a", "source": {"text": data}}}),
    ] {
        assert!(of(json!([words])).prompt.bytes > data.len() as u64, "only what is data is none: {words:.60}");
    }
    let words = of(json!([{"text": data}, {"toolUse": {"toolUseId": "t", "name": "f", "input": {"image": {"bytes": data}}}}]));
    assert!(words.prompt.attachments == 0 && words.prompt.bytes > 2 * data.len() as u64 && words.most_words > data.len() as u64);
}
