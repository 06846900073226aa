//! Which interface of a provider a path is, and what is to be done with a request to it.

use http::Method;
pub(crate) use runguard_core::model_question::{Api, Dialect, NEWER_LENGTH, OLDER_LENGTH};

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is paid for, and metered.
    Metered(Api),
    /// It costs nothing: it passes as it is.
    Free,
    /// It may be paid for, and nobody here could say how much.
    Unmetered,
}

/// Whether every reader of a path understands the same by it.
pub(crate) fn is_plain(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'~' | b'@');
    path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_plain))
}

/// What a request to a provider is, by its method and the path behind `/v1`.
pub(crate) fn kind_of(dialect: Dialect, method: &Method, path: &str) -> Kind {
    let path = path.strip_suffix('/').unwrap_or(path);
    if !is_plain(path) {
        return Kind::Unmetered;
    }
    if method == Method::POST {
        match (dialect, path) {
            (Dialect::OpenAi, "/chat/completions") => Kind::Metered(Api::Chat),
            (Dialect::OpenAi, "/completions") => Kind::Metered(Api::Completions),
            (Dialect::OpenAi, "/responses") => Kind::Metered(Api::Responses),
            (Dialect::OpenAi, "/embeddings") => Kind::Metered(Api::Embeddings),
            (Dialect::Anthropic, "/messages") => Kind::Metered(Api::Messages),
            // Moderation costs nothing, nor does counting, nor ending what was begun.
            (Dialect::Anthropic, "/messages/count_tokens") | (Dialect::OpenAi, "/moderations" | "/responses/input_tokens") => Kind::Free,
            (Dialect::OpenAi, path)
                if path.strip_prefix("/responses/").and_then(|rest| rest.strip_suffix("/cancel")).is_some_and(|id| !id.contains('/')) =>
            {
                Kind::Free
            }
            (_, _) => Kind::Unmetered,
        }
    } else if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE) {
        // Reading what is there and removing it is not billed by the token. A realtime session begins with a GET.
        if path.split('/').any(|part| part.eq_ignore_ascii_case("realtime")) { Kind::Unmetered } else { Kind::Free }
    } else {
        Kind::Unmetered
    }
}

/// Whether a free route may be asked with the operator's key: it shows what everyone may know, and nothing that others left there.
pub(crate) fn is_everyones(method: &Method, path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let is_models = path == "/models" || path.strip_prefix("/models/").is_some_and(|id| !id.contains('/'));
    (method == Method::GET && is_models)
        || (method == Method::POST && matches!(path, "/messages/count_tokens" | "/moderations" | "/responses/input_tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_and_may_be_billed_is_not_let_through() {
        let post = |dialect, path| kind_of(dialect, &Method::POST, path);
        assert_eq!(post(Dialect::OpenAi, "/chat/completions"), Kind::Metered(Api::Chat));
        assert_eq!(post(Dialect::OpenAi, "/chat/completions/"), Kind::Metered(Api::Chat));
        assert_eq!(post(Dialect::Anthropic, "/messages"), Kind::Metered(Api::Messages));
        assert_eq!(post(Dialect::Anthropic, "/messages/count_tokens"), Kind::Free);
        for path in ["/images/generations", "/audio/speech", "/batches", "/fine_tuning/jobs", "/messages", "", "/chat/completions/x"] {
            assert_eq!(post(Dialect::OpenAi, path), Kind::Unmetered, "{path}");
        }
        assert_eq!(post(Dialect::Anthropic, "/messages/batches"), Kind::Unmetered);
        assert_eq!(kind_of(Dialect::OpenAi, &Method::GET, "/models"), Kind::Free);
        for path in ["/realtime", "/Realtime", "/REALTIME/sessions", "/v1/Realtime"] {
            assert_eq!(kind_of(Dialect::OpenAi, &Method::GET, path), Kind::Unmetered, "{path}");
        }
        for path in ["/../../admin", "//realtime", "/./realtime", "/models/%2e%2e", "/a\\b", "/models//x"] {
            assert_eq!(kind_of(Dialect::OpenAi, &Method::GET, path), Kind::Unmetered, "{path}");
        }
        for path in ["/responses/../images/generations/cancel", "/responses/a/b/cancel", "/responses/..%2fimages/cancel"] {
            assert_eq!(post(Dialect::OpenAi, path), Kind::Unmetered, "{path}");
        }
        assert_eq!(post(Dialect::OpenAi, "/responses/resp_1/cancel"), Kind::Free);
        assert!(is_everyones(&Method::GET, "/models/gpt-4o") && !is_everyones(&Method::GET, "/files"));
        assert!(!is_everyones(&Method::DELETE, "/models/ft:x"));
        assert_eq!(kind_of(Dialect::OpenAi, &Method::PATCH, "/chat/completions"), Kind::Unmetered);
    }
}
