use super::*;

fn source_of(model: &str) -> Option<String> {
    Prices::bundled().price(model).map(|(_, source)| match source {
        PriceSource::Bundled(id) => id,
        PriceSource::Override(_) | PriceSource::Local | PriceSource::DefaultPrice | PriceSource::Free => {
            panic!("{model} is not priced by the table")
        }
    })
}

fn per_million(dollars: &str) -> PerMillion {
    PerMillion::parse(dollars).unwrap()
}

/// Worked out with `litellm.cost_per_token` 1.106.2, in nano-dollars.
#[test]
fn costs_agree_with_the_source_of_the_table() {
    let with_cache_writes = Usage {
        input_tokens: 12_345,
        output_tokens: 678,
        cached_tokens: 90_000,
        cache_write_tokens: 1_234,
        cache_write_1h_tokens: 567,
        ..Usage::default()
    };
    let large = Usage { input_tokens: 150_001, output_tokens: 777, cached_tokens: 120_000, ..Usage::default() };
    for (model, small_nanos, large_nanos) in [
        ("anthropic.claude-3-7-sonnet-20250219-v1:0", 80_958_750, 497_658_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 90_457_950, 1_088_437_350),
        ("anthropic.claude-3-5-haiku-20241022-v1:0", 21_589_000, 132_708_800),
        ("meta.llama3-1-70b-instruct-v1:0", 75_473_280, 194_960_160),
        ("amazon.nova-pro-v1:0", 31_486_400, 146_487_200),
        ("eu.amazon.nova-lite-v1:0", 3_069_924, 14_282_502),
        ("gpt-4o", 154_645_000, 532_772_500),
        ("gpt-5.4", 68_035_000, 416_657_500),
        ("claude-sonnet-4-5", 82_234_500, 497_658_000),
        ("claude-opus-4-5", 137_057_500, 829_430_000),
        ("gemini/gemini-2.5-pro", 35_712_500, 416_657_500),
        ("xai/grok-4.3", 37_377_500, 426_887_500),
        ("dashscope/qwen-flash", 5_478_500, 69_054_250),
        ("command-r-plus-08-2024", 267_145_000, 682_772_500),
    ] {
        let cost = |usage| Prices::bundled().cost(model, usage, &UnknownModel::Error).unwrap().0.as_nanos();
        assert_eq!((cost(&with_cache_writes), cost(&large)), (small_nanos, large_nanos), "{model}");
    }
}

/// Worked out with `litellm.cost_per_token` 1.106.2 with `service_tier`, batches with its `batch_cost_calculator`, in nano-dollars.
#[test]
fn service_tiers_sound_and_embeddings_cost_what_the_source_says() {
    let cost = |model: &str, usage: Usage| Prices::bundled().cost(model, &usage, &UnknownModel::Error).unwrap().0.as_nanos();
    let small = Usage { cached_tokens: 6_789, ..Usage::new(12_345, 678) };
    let large = Usage { cached_tokens: 6_789, ..Usage::new(300_001, 678) };
    for (model, tier, small_nanos, large_nanos) in [
        ("gpt-5.4", ServiceTier::Standard, 42_729_750, 1_518_654_500),
        ("gpt-5.4", ServiceTier::Flex, 21_398_820, 759_327_250),
        ("gpt-5-mini", ServiceTier::Priority, 8_301_555, 137_746_755),
        ("gpt-5-mini", ServiceTier::Flex, 2_305_988, 38_262_988),
        ("o3", ServiceTier::Priority, 58_639_875, 1_065_435_875),
        ("gpt-4o", ServiceTier::Priority, 78_418_875, 1_300_956_875),
        ("gpt-4o", ServiceTier::Flex, 46_128_750, 765_268_750),
        ("gemini/gemini-2.5-flash", ServiceTier::Flex, 2_902_920, 46_051_320),
    ] {
        let nanos = (cost(model, small.in_tier(tier)), cost(model, large.in_tier(tier)));
        assert_eq!(nanos, (small_nanos, large_nanos), "{model}, {tier:?}");
    }
    assert_eq!(cost("gpt-5.4", small.in_tier(ServiceTier::Priority)), 85_459_500);
    // The source takes the usual 1_518_654_500 here, which has a cheaper output than priority has for small prompts.
    assert_eq!(cost("gpt-5.4", large.in_tier(ServiceTier::Priority)), 1_523_739_500, "never less than for a small prompt");
    for (model, nanos) in [
        ("gpt-5.4", 20_516_250),
        ("gpt-4o", 18_821_250),
        ("claude-sonnet-4-5", 23_602_500),
        ("text-embedding-3-small", 123_450),
        ("gemini/gemini-2.5-flash", 2_699_250),
    ] {
        assert_eq!(cost(model, Usage::new(12_345, 678).in_tier(ServiceTier::Batch)), nanos, "{model} in a batch");
    }
    let sound = Usage { audio_input_tokens: 1_000, audio_output_tokens: 500, ..Usage::new(2_345, 178) };
    for (model, nanos) in
        [("gpt-4o-audio-preview-2025-06-03", 87_642_500), ("gpt-audio", 71_642_500), ("gemini/gemini-2.5-flash", 3_398_500)]
    {
        assert_eq!(cost(model, sound), nanos, "{model} with sound");
    }
    let heard = Usage { audio_input_tokens: 1_000, ..Usage::new(2_345, 678) };
    // The source's table has a price for it, 1.80 dollars, and its code takes the usual one: 5_317_300.
    assert_eq!(cost("gemini/gemini-2.5-flash", heard.in_tier(ServiceTier::Priority)), 6_117_300);
    for (model, nanos) in [
        ("text-embedding-3-small", 246_900),
        ("text-embedding-3-large", 1_604_850),
        ("gemini-embedding-001", 1_851_750),
        ("voyage/voyage-3-large", 2_222_100),
        ("mistral/mistral-embed", 1_234_500),
        ("azure/text-embedding-3-small", 271_590),
    ] {
        assert_eq!(cost(model, Usage::new(12_345, 0)), nanos, "{model}");
    }
    for (model, nanos) in [
        ("fireworks_ai/accounts/fireworks/models/deepseek-v3p1", 8_052_240),
        ("deepinfra/meta-llama/Llama-3.3-70B-Instruct", 3_110_550),
        ("databricks/databricks-claude-sonnet-4-5", 47_204_890),
        ("vercel_ai_gateway/anthropic/claude-sonnet-4.5", 47_205_000),
        ("sambanova/Meta-Llama-3.3-70B-Instruct", 8_220_600),
        ("watsonx/ibm/granite-3-8b-instruct", 2_604_600),
    ] {
        assert_eq!(cost(model, Usage::new(12_345, 678)), nanos, "{model}");
    }
}

#[test]
fn a_service_without_a_price_costs_what_it_always_does() {
    let price = |text: &str| serde_json::from_str::<Price>(text).unwrap();
    let ours = price(
        r#"{"input": 2, "output": 8, "cache_read": 1, "above": [{"tokens": 100, "input": 4}],
            "flex": [{"tokens": 0, "input": 1}], "priority": [{"tokens": 0, "input": 5, "output": 10}]}"#,
    );
    let cost = |tier, input| ours.cost(&Usage { cached_tokens: 10, ..Usage::new(input, 1) }.in_tier(tier)).as_nanos();
    assert_eq!(cost(ServiceTier::Flex, 10), 10 * 1_000 + 8_000 + 10 * 1_000, "of flex only the input is cheaper");
    assert_eq!(cost(ServiceTier::Flex, 100), 100 * 4_000 + 8_000 + 10 * 1_000, "of large prompts flex says nothing");
    assert_eq!(cost(ServiceTier::Priority, 100), 100 * 5_000 + 10_000 + 10 * 1_000, "the dearer of the two");
    assert_eq!(cost(ServiceTier::Batch, 10), cost(ServiceTier::Standard, 10));
}

#[test]
fn a_model_is_found_under_all_of_its_names() {
    for (name, id) in [
        ("gpt-4o", "gpt-4o"),
        (" GPT-4o ", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openai:gpt-4o", "gpt-4o"),
        ("openrouter/openai/gpt-4o", "gpt-4o"),
        ("azure/gpt-4o", "azure/gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o-2024-08-06"),
        ("gpt-4o-2031-01-31", "gpt-4o"),
        ("ft:gpt-4o-mini-2024-07-18:acme::b1c2", "ft:gpt-4o-mini-2024-07-18"),
        ("gpt-4o-audio-preview", "gpt-4o-audio-preview-2025-06-03"),
        ("anthropic:claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20311231", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5-20250929"),
        ("claude-3-7-sonnet-20250219", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("claude-3-7-sonnet-latest", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("anthropic.claude-3-7-sonnet-20250219-v1:0:200k", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("apac.anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("bedrock/us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("bedrock:us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("bedrock/converse/anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("bedrock/eu-west-3/anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("meta.llama3-1-70b-instruct", "meta.llama3-1-70b-instruct-v1:0"),
        (
            "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-3-7-sonnet-20250219-v1:0",
            "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
        ),
        ("arn:aws:bedrock:eu-west-1::foundation-model/amazon.nova-pro-v1:0", "amazon.nova-pro-v1:0"),
        ("arn:aws:bedrock:sa-east-1::foundation-model/meta.llama3-70b-instruct-v1:0", "bedrock/sa-east-1/meta.llama3-70b-instruct-v1:0"),
        ("google-gla:gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("models/gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("mistral-large-latest", "mistral/mistral-large-latest"),
        ("grok-4.3", "xai/grok-4.3"),
        ("accounts/fireworks/models/deepseek-v3p1", "fireworks_ai/accounts/fireworks/models/deepseek-v3p1"),
        ("fireworks:accounts/fireworks/models/deepseek-v3p1", "fireworks_ai/accounts/fireworks/models/deepseek-v3p1"),
        ("deepinfra:meta-llama/Llama-3.3-70B-Instruct", "deepinfra/meta-llama/Llama-3.3-70B-Instruct"),
        ("vercel:anthropic/claude-sonnet-4.5", "vercel_ai_gateway/anthropic/claude-sonnet-4.5"),
        ("voyageai:voyage-3-large", "voyage/voyage-3-large"),
        ("openai:text-embedding-3-small", "text-embedding-3-small"),
    ] {
        assert_eq!(source_of(name).as_deref(), Some(id), "{name}");
    }
}

#[test]
fn what_is_not_known_is_not_guessed() {
    for name in [
        "",
        "   ",
        "gpt",
        "my-model",
        "openai/",
        "ollama/gpt-oss:120b-cloud",
        "hosted_vllm/llama3.1",
        "groq/gpt-4o",
        "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3",
        "arn:",
    ] {
        assert_eq!(source_of(name), None, "{name}");
    }
}

#[test]
fn what_an_unknown_model_costs_is_the_users_choice() {
    let prices = Prices::bundled();
    let usage = Usage::new(1_000, 1_000);
    let error = prices.cost("gpt-4o-mnii", &usage, &UnknownModel::Error).unwrap_err();
    assert_eq!(error.suggestions[0], "gpt-4o-mini");
    assert!(error.to_string().starts_with("no price is known for the model `gpt-4o-mnii` (near names: gpt-4o-mini"), "{error}");
    let arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3";
    assert!(prices.cost(arn, &usage, &UnknownModel::Error).unwrap_err().to_string().contains("does not name the model"));
    assert!(prices.cost(&"x".repeat(10_000_000), &usage, &UnknownModel::Error).unwrap_err().to_string().len() < 400);
    let default = UnknownModel::DefaultPrice(Price::new(per_million("10"), per_million("30")));
    let (cost, source) = prices.cost("my-model", &usage, &default).unwrap();
    assert_eq!((cost.to_string().as_str(), source), ("$0.04", PriceSource::DefaultPrice));
    assert_eq!(prices.cost("my-model", &usage, &UnknownModel::Free).unwrap(), (NanoDollars::ZERO, PriceSource::Free));
    assert_ne!(prices.cost("gpt-4o", &usage, &UnknownModel::Free).unwrap().0, NanoDollars::ZERO, "known models are never free");
}

#[test]
fn the_users_prices_go_first_and_are_taken_over_all_or_none() {
    let mut prices = Prices::bundled();
    prices.set_from_json(r#"{"Gpt-4o": {"input": 1, "output": "2.5"}, "house-model": {"input": 0, "output": 0}}"#).unwrap();
    let (price, source) = prices.price("azure_openai:GPT-4O-2031-01-01").unwrap();
    assert_eq!(source, PriceSource::Bundled("azure/gpt-4o".into()), "the closer spelling wins");
    assert_ne!(price.input, per_million("1"));
    let (price, source) = prices.price("openai/gpt-4o").unwrap();
    assert_eq!((price.input, source), (per_million("1"), PriceSource::Override("Gpt-4o".into())));
    let nothing = prices.cost("house-model", &Usage::new(5, 5), &UnknownModel::Error).unwrap();
    assert_eq!(nothing, (NanoDollars::ZERO, PriceSource::Override("house-model".into())), "a price of zero that was set is a price");
    let mut fresh = Prices::empty();
    for bad in [
        r#"{"a": {"input": 1, "output": 1}, "b": {"input": -1, "output": 1}}"#,
        r#"{"a": {"input": 1}}"#,
        r#"{"a": {"input": 1, "output": 1, "ouput": 2}}"#,
        "[]",
    ] {
        assert!(fresh.set_from_json(bad).is_err(), "{bad}");
        assert!(fresh.price("a").is_none(), "{bad}");
    }
}

#[test]
fn a_cost_is_rounded_once_and_never_wraps_around() {
    let price = Price::new(per_million("0.0375"), per_million("0.0005"));
    assert_eq!(price.cost(&Usage::new(1, 0)).as_nanos(), 38, "37.5 nano-dollars");
    assert_eq!(price.cost(&Usage::new(1, 1)).as_nanos(), 38, "38 exactly, not 38 and 1");
    assert_eq!(price.cost(&Usage::new(u64::MAX, u64::MAX)), NanoDollars::MAX);
    let dearest = Price::new(PerMillion::new(NanoDollars::MAX), PerMillion::new(NanoDollars::MAX));
    let most = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, cached_tokens: u64::MAX, ..Usage::default() };
    assert_eq!(dearest.cost(&most), NanoDollars::MAX);
}

#[test]
fn of_many_tiers_the_largest_that_is_reached_counts() {
    let mut prices = Prices::empty();
    let text = r#"{"m": {"input": "1", "output": "1", "cache_read": "0.5", "above": [
            {"tokens": 100, "input": "2"}, {"tokens": 200, "input": "3", "output": "4", "cache_read": "0.25"}]}}"#;
    prices.set_from_json(text).unwrap();
    let cost = |input_tokens, cached_tokens| {
        let usage = Usage { input_tokens, output_tokens: 1, cached_tokens, ..Usage::default() };
        prices.cost("m", &usage, &UnknownModel::Error).unwrap().0.as_nanos()
    };
    assert_eq!(cost(100, 0), 100 * 1_000 + 1_000);
    assert_eq!(cost(51, 50), 51 * 2_000 + 50 * 500 + 1_000, "cached tokens are part of the prompt");
    assert_eq!(cost(1, 200), 3_000 + 200 * 250 + 4_000);
}

#[test]
fn the_table_is_whole_and_small() {
    let packed = include_bytes!("../../data/prices.json.z");
    assert!(packed.len() <= 60_000);
    let unpacked = miniz_oxide::inflate::decompress_to_vec_zlib(packed).unwrap();
    assert!(unpacked == include_bytes!("../../data/prices.json"), "scripts/update-prices writes both");
    assert!(Prices::bundled_len() > 3_000);
    assert_eq!(Prices::origin().date.len(), "2026-10-21".len());
    let whole: serde_json::Value = serde_json::from_str(include_str!("../../data/prices.json")).unwrap();
    assert_eq!(whole["models"].as_object().unwrap().len(), TABLE.models.len(), "a line is a model");
    assert!(TABLE.models.is_sorted_by(|one, other| one.order(&other.id.to_ascii_lowercase()).is_lt()), "in the order of ids in lower case");
    for model in &TABLE.models {
        let id = model.id;
        let price = model.price();
        assert_eq!(serde_json::from_str::<serde_json::Value>(model.json).unwrap(), whole["models"][model.id], "{id}");
        let writes = price.max_output != Some(0);
        assert!(price.input > PerMillion::default() && (price.output > PerMillion::default()) >= writes, "{id} is free");
        assert!(price.output < per_million("1000") && price.input < per_million("1000"), "{id} costs more than any model");
        for tiers in [&price.above, &price.priority, &price.flex, &price.batch] {
            assert!(tiers.is_sorted_by_key(|tier| tier.tokens), "{id}");
        }
        assert_eq!(source_of(id).as_deref(), Some(id));
    }
}

/// `data/price_names.tsv` has names of all providers of the source, with the source's own prices of a token.
#[test]
fn nearly_all_names_of_the_source_have_its_own_price() {
    let nanos_for_a_million = |dollars: &str| (dollars.parse::<f64>().unwrap() * 1e15).round() as i64;
    let (mut all, mut unknown) = (0, Vec::new());
    for line in include_str!("../../data/price_names.tsv").lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, input, output, cache_read] = columns[..] else { panic!("{line}") };
        all += 1;
        let prices = Prices::bundled();
        let Some((price, source)) = prices.price(name) else {
            unknown.push(name);
            continue;
        };
        let read = price.cache_read.filter(|_| cache_read != "0").unwrap_or_default();
        for (ours, theirs) in [(price.input, input), (price.output, output), (read, cache_read)] {
            assert_eq!(ours.nano_dollars().as_nanos(), nanos_for_a_million(theirs), "{name} by {source}");
        }
    }
    assert!(all > 300 && unknown.len() * 20 <= all, "{} of {all} have no price: {unknown:?}", unknown.len());
}

#[test]
fn a_stored_price_comes_back() {
    for price in TABLE.models.iter().map(Model::price) {
        assert_eq!(&serde_json::from_str::<Price>(&serde_json::to_string(price).unwrap()).unwrap(), price);
    }
}
