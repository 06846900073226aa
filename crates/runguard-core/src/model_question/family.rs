//! Whose words `InvokeModel` speaks: each maker of models has its own.

/// Models that are asked and answer in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are the names of makers and of their models")]
pub enum Family {
    /// Claude, as Anthropic's own messages.
    Anthropic,
    /// Amazon's, as Converse.
    Nova,
    Titan,
    Llama,
    Mistral,
    Cohere,
    /// As `OpenAI`'s chat completions: Jamba, Qwen, `DeepSeek`.
    Chat,
    /// The same in `OpenAI`'s newer words.
    GptOss,
    TitanEmbeddings,
    CohereEmbeddings,
    /// Of which nobody here knows how long an answer may be, or what is billed.
    Unknown,
}

impl Family {
    /// The family of a model id, of an inference profile, or of the ARN of either.
    pub fn of(model: &str) -> Self {
        let model = model.to_ascii_lowercase();
        let id = match model.strip_prefix("arn:") {
            Some(arn) => arn.split_once(":foundation-model/").or_else(|| arn.split_once(":inference-profile/")).map_or("", |(_, id)| id),
            None => model.as_str(),
        };
        let Some((first, rest)) = id.split_once('.') else { return Self::Unknown };
        match Self::of_maker(first, rest) {
            // The part of the world of a profile stands in front of the maker.
            None => rest.split_once('.').and_then(|(maker, name)| Self::of_maker(maker, name)).unwrap_or(Self::Unknown),
            Some(family) => family,
        }
    }

    fn of_maker(maker: &str, name: &str) -> Option<Self> {
        let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
        let known = |is_known: bool, family: Self| Some(if is_known { family } else { Self::Unknown });
        match maker {
            // The first ones completed texts.
            "anthropic" => known(begins(&["claude-"]) && !begins(&["claude-v", "claude-instant"]), Self::Anthropic),
            "amazon" if begins(&["titan-text-"]) => Some(Self::Titan),
            "amazon" if begins(&["titan-embed-text-"]) => Some(Self::TitanEmbeddings),
            "amazon" => {
                let writes = !["canvas", "reel", "sonic", "embed"].iter().any(|other| name.contains(other));
                known(begins(&["nova-"]) && writes, Self::Nova)
            }
            "meta" => known(begins(&["llama"]), Self::Llama),
            "mistral" => known(begins(&["mistral-", "mixtral-", "pixtral-"]), Self::Mistral),
            "cohere" if begins(&["embed-"]) => Some(Self::CohereEmbeddings),
            "cohere" => known(begins(&["command-"]), Self::Cohere),
            "ai21" => known(begins(&["jamba-"]), Self::Chat),
            "deepseek" | "qwen" => Some(Self::Chat),
            "openai" => known(begins(&["gpt-oss-"]), Self::GptOss),
            "stability" | "luma" | "twelvelabs" | "writer" | "minimax" | "moonshot" | "moonshotai" | "zai" | "google" | "nvidia" => {
                Some(Self::Unknown)
            }
            _ => None,
        }
    }

    /// Members that bound the length of an answer, the one to use first; behind a point those inside of another.
    pub const fn length_members(self) -> &'static [&'static str] {
        match self {
            Self::Nova => &["inferenceConfig.maxTokens", "inferenceConfig.max_new_tokens"],
            Self::Titan => &["textGenerationConfig.maxTokenCount"],
            Self::Llama => &["max_gen_len"],
            Self::Anthropic | Self::Mistral | Self::Cohere => &["max_tokens"],
            Self::Chat => &["max_tokens", "max_completion_tokens"],
            Self::GptOss => &["max_completion_tokens", "max_tokens"],
            Self::TitanEmbeddings | Self::CohereEmbeddings | Self::Unknown => &[],
        }
    }

    /// Whether it writes nothing.
    pub const fn embeds(self) -> bool {
        matches!(self, Self::TitanEmbeddings | Self::CohereEmbeddings)
    }

    /// The member that says how many answers there are.
    pub const fn choices_member(self) -> Option<&'static str> {
        match self {
            Self::Cohere => Some("num_generations"),
            Self::Chat | Self::GptOss => Some("n"),
            Self::Anthropic
            | Self::Nova
            | Self::Titan
            | Self::Llama
            | Self::Mistral
            | Self::TitanEmbeddings
            | Self::CohereEmbeddings
            | Self::Unknown => None,
        }
    }

    /// The members of an answer, or of a piece of one, that the model has written.
    pub const fn written(self) -> &'static [&'static str] {
        match self {
            Self::Anthropic => &["content"],
            Self::Nova => &["output"],
            Self::Titan => &["results", "outputText"],
            Self::Llama => &["generation"],
            Self::Mistral => &["outputs", "choices"],
            Self::Cohere => &["generations", "text", "tool_calls"],
            Self::Chat | Self::GptOss => &["choices"],
            Self::TitanEmbeddings | Self::CohereEmbeddings | Self::Unknown => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_found_by_every_name_of_its_models() {
        for (model, family) in [
            ("anthropic.claude-sonnet-4-5-20250929-v1:0", Family::Anthropic),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", Family::Anthropic),
            ("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-3-haiku-20240307-v1:0", Family::Anthropic),
            ("arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova-lite-v1:0", Family::Nova),
            ("global.amazon.nova-2-lite-v1:0", Family::Nova),
            ("meta.llama3-1-70b-instruct-v1:0", Family::Llama),
            ("us.meta.llama4-scout-17b-instruct-v1:0", Family::Llama),
            ("mistral.mistral-large-2402-v1:0", Family::Mistral),
            ("amazon.titan-text-express-v1", Family::Titan),
            ("amazon.titan-embed-text-v2:0", Family::TitanEmbeddings),
            ("cohere.command-r-plus-v1:0", Family::Cohere),
            ("cohere.embed-english-v3", Family::CohereEmbeddings),
            ("deepseek.v3.2", Family::Chat),
            ("openai.gpt-oss-120b-1:0", Family::GptOss),
            ("anthropic.claude-v2:1", Family::Unknown),
            ("amazon.nova-canvas-v1:0", Family::Unknown),
            ("amazon.nova-2-multimodal-embeddings-v1:0", Family::Unknown),
            ("stability.sd3-large-v1:0", Family::Unknown),
            ("cohere.rerank-v3-5:0", Family::Unknown),
            ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3", Family::Unknown),
            ("arn:aws:bedrock:us-east-1:123456789012:imported-model/anthropic.claude-x", Family::Unknown),
            ("nobody", Family::Unknown),
        ] {
            assert_eq!(Family::of(model), family, "{model}");
        }
    }
}
