//! The many names of one model.
//!
//! The same model is called `gpt-4o`, `openai/gpt-4o`, `openai:gpt-4o` or `azure/gpt-4o-2024-08-06` by the frameworks, and a
//! Bedrock model has an id, a profile per part of the world, and an ARN of either. A name is turned into a list of spellings,
//! the closest first; the first that has a price wins.

use std::borrow::Cow;

/// How a provider is written in front of a model, and what the table writes there instead (`""`: nothing).
///
/// Whoever hosts the models of others has prices of its own: its models are never looked for under the bare name.
const PROVIDERS: &[(&str, &[&str])] = &[
    // Fireworks names its own models so: accounts/fireworks/models/….
    ("accounts", &["fireworks_ai/accounts/"]),
    ("ai21", &[""]),
    ("alibaba", &["dashscope/"]),
    ("amazon-bedrock", &["", "bedrock_mantle/"]),
    ("amazon-nova", &["amazon-nova/"]),
    ("amazon_bedrock", &["", "bedrock_mantle/"]),
    ("amazon_nova", &["amazon-nova/"]),
    ("anthropic", &[""]),
    ("azure", &["azure/", ""]),
    ("azure_ai", &["azure_ai/"]),
    ("azure_openai", &["azure/", ""]),
    ("bedrock", &["", "bedrock_mantle/"]),
    ("bedrock_converse", &["", "bedrock_mantle/"]),
    ("bedrock_mantle", &["bedrock_mantle/"]),
    ("cerebras", &["cerebras/"]),
    ("cohere", &[""]),
    ("converse", &["", "bedrock_mantle/"]),
    ("dashscope", &["dashscope/"]),
    ("databricks", &["databricks/"]),
    ("deepinfra", &["deepinfra/"]),
    ("deepseek", &["deepseek/", ""]),
    ("fireworks", &["fireworks_ai/"]),
    ("fireworks_ai", &["fireworks_ai/"]),
    ("gateway", FIRST_PARTY),
    ("gemini", &["gemini/", ""]),
    ("google", &["gemini/", "vertex_ai/", ""]),
    ("google-genai", &["gemini/", ""]),
    ("google-gla", &["gemini/", ""]),
    ("google-vertex", &["vertex_ai/", "", "gemini/"]),
    ("google_genai", &["gemini/", ""]),
    ("google_vertexai", &["vertex_ai/", "", "gemini/"]),
    ("groq", &["groq/"]),
    ("hyperbolic", &["hyperbolic/"]),
    ("invoke", &["", "bedrock_mantle/"]),
    ("lambda", &["lambda_ai/"]),
    ("lambda_ai", &["lambda_ai/"]),
    ("litellm", FIRST_PARTY),
    ("litellm_proxy", FIRST_PARTY),
    ("minimax", &["minimax/"]),
    ("mistral", &["mistral/"]),
    ("mistralai", &["mistral/"]),
    ("models", &["gemini/", ""]),
    ("moonshot", &["moonshot/"]),
    ("moonshotai", &["moonshot/"]),
    ("nebius", &["nebius/"]),
    ("novita", &["novita/"]),
    ("oci", &["oci/"]),
    ("openai", &[""]),
    ("openai-chat", &[""]),
    ("openai-responses", &[""]),
    ("openrouter", FIRST_PARTY),
    ("perplexity", &["perplexity/"]),
    ("replicate", &["replicate/"]),
    ("sambanova", &["sambanova/"]),
    ("scaleway", &["scaleway/"]),
    ("snowflake", &["snowflake/"]),
    ("together", &["together_ai/"]),
    ("together_ai", &["together_ai/"]),
    ("vercel", &["vercel_ai_gateway/"]),
    ("vercel_ai_gateway", &["vercel_ai_gateway/"]),
    ("vertex_ai", &["vertex_ai/", "", "gemini/"]),
    ("volcengine", &["volcengine/"]),
    ("voyage", &["voyage/"]),
    ("voyageai", &["voyage/"]),
    ("watsonx", &["watsonx/"]),
    ("x-ai", &["xai/"]),
    ("xai", &["xai/"]),
    ("z-ai", &["zai/"]),
    ("zai", &["zai/"]),
];

/// For a model without a provider: those who sell models of their own.
const FIRST_PARTY: &[&str] =
    &["", "gemini/", "mistral/", "xai/", "deepseek/", "moonshot/", "zai/", "minimax/", "perplexity/", "dashscope/", "amazon-nova/"];

/// The parts of the world of Bedrock's inference profiles.
const PROFILES: &[&str] = &["us.", "eu.", "apac.", "global.", "us-gov.", "au.", "jp.", "ca.", "sa.", "in.", "uk."];

/// A name as it stands, in lower case: the first of its spellings.
pub(super) fn plain(name: &str) -> Cow<'_, str> {
    let name = name.trim();
    if name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(name.to_lowercase())
    }
}

/// In lower case, the closest first, each once.
pub(super) fn spellings(name: &str) -> Vec<String> {
    let name = plain(name).into_owned();
    let mut list = Vec::new();
    add(&mut list, name.clone());
    let name = if name.starts_with("arn:") {
        let Some((region, id)) = model_of_arn(&name) else { return list };
        add(&mut list, format!("bedrock/{region}/{id}"));
        id.to_owned()
    } else {
        name
    };
    let (homes, bare) = without_provider(&name);
    let forms = forms(bare);
    for form in &forms {
        for home in homes {
            add(&mut list, format!("{home}{form}"));
        }
    }
    // Anthropic's own ids of retired models live on in the table as Bedrock's.
    for form in forms.iter().filter(|form| homes.contains(&"") && form.starts_with("claude-")) {
        add(&mut list, format!("anthropic.{form}"));
    }
    list
}

/// Who runs models on the user's own machine. `vllm` is not among them: it serves models wherever they are hosted.
const LOCAL: &[&str] = &["ollama", "ollama_chat", "lm_studio", "lmstudio", "llamafile"];

/// Whether a name says that its model runs on the user's own machine.
pub(super) fn runs_locally(name: &str) -> bool {
    plain(name).split_once(['/', ':']).is_some_and(|(provider, model)| {
        LOCAL.contains(&provider) && !model.is_empty() && !model.ends_with("-cloud") && !model.ends_with(":cloud")
    })
}

fn add(list: &mut Vec<String>, spelling: String) {
    if !list.contains(&spelling) {
        list.push(spelling);
    }
}

/// Region and model id of `arn:aws:bedrock:REGION:ACCOUNT:KIND/ID`, where the kind says the model. An application profile, a
/// provisioned, custom or imported model has an id that says nothing.
fn model_of_arn(arn: &str) -> Option<(&str, &str)> {
    let mut parts = arn.splitn(6, ':');
    let region = parts.nth(3)?;
    let (kind, id) = parts.nth(1)?.split_once('/')?;
    matches!(kind, "foundation-model" | "inference-profile").then_some((region, id))
}

fn without_provider(name: &str) -> (&'static [&'static str], &str) {
    let (mut homes, mut bare) = (FIRST_PARTY, name);
    while homes.contains(&"")
        && let Some((provider, rest)) = bare.find(['/', ':']).map(|at| (&bare[..at], &bare[at + 1..]))
    {
        if let Some((_, prefixes)) = PROVIDERS.iter().find(|(known, _)| *known == provider) {
            homes = prefixes;
        } else if !is_region(provider) {
            break;
        }
        bare = rest;
    }
    (homes, bare)
}

/// `us-east-1`, `ap-southeast-2`, `us-gov-west-1`.
fn is_region(text: &str) -> bool {
    let mut parts = text.split('-');
    parts.next().is_some_and(|part| part.len() == 2)
        && text.matches('-').count() >= 2
        && parts.next_back().is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Each form says less than the one before it.
fn forms(bare: &str) -> Vec<String> {
    let mut list = vec![bare.to_owned()];
    let mut say_less = |shorter: &dyn Fn(&str) -> Option<String>| {
        if let Some(form) = list.last().and_then(|last| shorter(last)) {
            list.push(form);
        }
    };
    say_less(&without_context_size);
    say_less(&|name| name.strip_prefix("ft:")?.split_once(':').map(|(base, _)| format!("ft:{base}")));
    say_less(&|name| name.strip_suffix("@default").map(str::to_owned));
    say_less(&|name| name.contains('@').then(|| name.replace('@', "-")));
    say_less(&|name| (name.starts_with("claude-") && name.contains('.')).then(|| name.replace('.', "-")));
    say_less(&|name| PROFILES.iter().find_map(|profile| name.strip_prefix(profile)).map(str::to_owned));
    say_less(&|name| name.strip_suffix("-latest").map(str::to_owned));
    say_less(&|name| without_date(name).map(str::to_owned));
    list
}

/// `…-v1:0:200k` is `…-v1:0` with a context size.
fn without_context_size(name: &str) -> Option<String> {
    let (rest, size) = name.rsplit_once(':')?;
    let digits = size.strip_suffix('k')?;
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| rest.to_owned())
}

/// The name before a date (`…-2024-08-06`, `…-20250219`).
pub(super) fn without_date(name: &str) -> Option<&str> {
    let has_shape = |byte: u8, shape: u8| if shape == b'0' { byte.is_ascii_digit() } else { byte == shape };
    ["-0000-00-00", "-00000000"].into_iter().find_map(|date| {
        let (rest, found) = name.split_at_checked(name.len().checked_sub(date.len())?)?;
        let is_date = found.starts_with("-20") && found.bytes().zip(date.bytes()).all(|(byte, shape)| has_shape(byte, shape));
        (is_date && !rest.is_empty()).then_some(rest)
    })
}

/// The id before a Bedrock version (`…-v1:0`, `…-v2`).
pub(super) fn without_version(id: &str) -> Option<&str> {
    let (rest, version) = id.rsplit_once("-v")?;
    version.bytes().all(|byte| byte.is_ascii_digit() || byte == b':').then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_of_a_name_are_told_apart() {
        assert_eq!(without_date("gpt-4o-2024-08-06"), Some("gpt-4o"));
        assert_eq!(without_date("claude-3-7-sonnet-20250219"), Some("claude-3-7-sonnet"));
        assert_eq!(without_date("model-12345678"), None, "no date of this century");
        assert_eq!(without_version("meta.llama3-1-70b-instruct-v1:0"), Some("meta.llama3-1-70b-instruct"));
        assert_eq!(without_version("gemini-vision"), None);
        assert!(is_region("us-east-1") && is_region("us-gov-west-1") && !is_region("gpt-4o-1") && !is_region("us-east"));
        assert_eq!(
            model_of_arn("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-v2:1"),
            Some(("us-east-1", "anthropic.claude-v2:1"))
        );
        assert_eq!(model_of_arn("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"), None);
        assert_eq!(model_of_arn("arn:aws"), None);
    }

    #[test]
    fn who_hosts_the_models_of_others_is_not_asked_for_their_price() {
        assert_eq!(spellings("groq:openai/gpt-oss-120b"), ["groq:openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"]);
    }

    proptest! {
        #[test]
        fn any_name_has_itself_as_first_spelling(name in "\\PC{0,40}") {
            prop_assert_eq!(&spellings(&name)[0], &name.trim().to_lowercase());
        }
    }
}
