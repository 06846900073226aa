//! How a value looks: chosen by somebody, made by a machine, said about a password, or written by a programmer.

use super::values::{Kind, kind_of};
use super::{ends_with, is_word_of, near, starts_with};

/// How far a value is judged.
const MOST_BYTES: usize = 256;

/// What programs and people write where no value is.
const NOTHING: &str = "null nil none undefined true false yes no required optional missing invalid wrong incorrect expired empty unknown hidden string str \
    text needed forgotten bearer basic digest token help option varchar secretstr securestring boolean bool int number any object \
    redacted masked removed n/a todo tbd auth value &str &'static u8 u16 u32 u64 usize i8 i16 i32 i64 f32 f64 int32 int64 uint32 uint64 \
    impl dyn char byte bytes []byte float double void c_int c_uint c_ulong";
/// Words that are said about passwords and tokens rather than being one.
const SAID: &str = "too not never always also only still now wrong right correct short long weak strong safe secure bad good great fine okay here there \
    below above mine yours gone public private secret unique simple easy hard complex blank null unset shown known broken stolen lost \
    found kept sent same different case-sensitive enough ready due something nothing anything everything someone used out-of-date \
    up-to-date stale fresh old new yes no north south east west required mandatory optional obsolete valid invalid incorrect false true \
    where what which this that these those yesterday today tomorrow soon again later alone unsafe insecure sensible plain plaintext \
    clear cleartext reset changed field manager policy falsch richtig abgelaufen ung\u{fc}ltig geheim sicher bekannt incorrecte \
    incorrecta obligatoire obligatoria username password login string number text";
/// And how such words end.
const ENDINGS: &str = "ed ing able ible ive ory ary ful ent ant ous less tic ly ical ired otten itten oken olen id ern";
/// How names of methods and formats begin that have digits and signs as passwords do.
const TECHNICAL: &str = "base64 base32 sha1 sha2 sha3 sha5 sha- md5 utf- utf8 utf16 argon2 pbkdf2 aes- aes1 aes2 hs256 rs256 es256 ed25519 rsa- x509 oauth2 \
    oauth1 2fa k8s pkcs ipv4 ipv6 rfc iso- fido2 totp http";

/// What stands where a value will be put later.
pub(super) fn is_variable(value: &str) -> bool {
    value.starts_with(['<', '$', '{', '%', '*', '\u{2022}', '[', '(', '@'])
        || value.starts_with("...")
        || value.starts_with("xxx")
        || value.contains('\u{2026}')
}

/// What stands where no value is, and what is said about one.
pub(super) fn is_placeholder(value: &str) -> bool {
    let value = value.trim_end_matches(['.', '!', '?', ')', ']', '}', ',', ';', ':']);
    // With its type: `1000u32`.
    let number = value.trim_end_matches("u32").trim_end_matches("i32").trim_end_matches('_');
    let is_number = (value.len() < 6 || number.len() < value.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_name_again = kind_of(value, "").is_some_and(|kind| kind != Kind::Form)
        && value.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_.-".contains(&byte));
    let is_constant = number.strip_prefix("0x").is_some_and(|hex| hex.len() <= 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_number || is_constant || is_variable(value) || is_name_again || is_word_of(value, NOTHING) || starts_with(value, "your")
}

/// Whether a word of a sentence without quotes is said about a password rather than being one.
pub(super) fn is_said(word: &str) -> bool {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    is_word_of(word, SAID) || is_plain && ENDINGS.split_ascii_whitespace().any(|ending| ends_with(word, ending)) || word.len() < 4
}

/// `getenv(…)`, `tokens[0]`, `Token![;]`, `user.password`, `{{ value }}`: what a program puts there, not what it is.
pub(super) fn is_code(value: &str) -> bool {
    let value = value.trim_end_matches([',', ';']);
    let is_reference = value.strip_prefix('&').is_some_and(|rest| rest.starts_with(|c: char| c.is_alphabetic() || c == '\''));
    let is_constant = || value.matches('_').count() > 1 && value.bytes().all(|byte| byte.is_ascii_uppercase() || b"_,;".contains(&byte));
    let is_member = || value.starts_with("self.") || value.starts_with("this.");
    if is_reference || value.contains("::") || value.contains("->") || is_member() || is_constant() {
        return true;
    }
    let Some(bracket) = value.find(['(', '[', '{', '<']) else { return is_dotted_name(value) };
    let before = value[..bracket].trim_end_matches('!');
    let is_template = value[bracket..].starts_with('{');
    before.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_.:$&*".contains(&byte) || byte.is_ascii_digit() && !is_template)
}

/// `token: TokenKind = …`, `key: Key<'a>`.
pub(super) fn is_annotation(value: &str, behind: &str) -> bool {
    let opens = |c: char| c.is_ascii_uppercase() || c == '\'' || c == '_';
    behind.starts_with(" =") || behind.strip_prefix('<').is_some_and(|inside| inside.starts_with(opens)) || value.starts_with("__")
}

/// `AuthorizationRef`: capitals that begin words, and nothing else.
pub(super) fn is_type(value: &str) -> bool {
    let bytes = value.as_bytes();
    let is_hump =
        |place: usize| bytes.get(place + 1).is_some_and(u8::is_ascii_lowercase) && bytes.get(place + 2).is_some_and(u8::is_ascii_lowercase);
    value.starts_with(|c: char| c.is_ascii_uppercase())
        && bytes.iter().all(u8::is_ascii_alphabetic)
        && (0..bytes.len()).all(|place| !bytes[place].is_ascii_uppercase() || is_hump(place))
}

/// `request.form.password`.
pub(super) fn is_dotted_name(value: &str) -> bool {
    let mut parts = value.split('.');
    value.contains('.')
        && parts.all(|part| part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'))
        && value.rsplit('.').next().is_some_and(|last| kind_of(last, "").is_some())
}

/// `PWD=/home/jane` is where somebody works.
pub(super) fn is_path(value: &str, kind: Kind) -> bool {
    matches!(kind, Kind::Password | Kind::Loose)
        && (value.starts_with('/') && value[1..].contains('/') || value.starts_with("~/") || value.starts_with("./"))
}

/// Names of methods and formats that have digits and signs as passwords do, and what else is not chosen by anybody.
pub(super) fn is_technical(value: &str) -> bool {
    let has_letters = value.chars().any(char::is_alphabetic);
    // "OPS-1427".
    let is_ticket = || {
        let digits = value.trim_start_matches(|c: char| c.is_ascii_uppercase()).strip_prefix('-');
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    // "64-bit", "12-character".
    let is_counted = || {
        let rest = value.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < value.len() && rest.strip_prefix('-').is_some_and(|unit| unit.bytes().all(|byte| byte.is_ascii_lowercase()))
    };
    !has_letters && value.chars().all(|c| c.is_ascii_digit() || ".,:/-+%".contains(c))
        || TECHNICAL.split_ascii_whitespace().any(|beginning| starts_with(value, beginning))
        || is_counted()
        || is_ticket()
}

/// Addresses, paths, files and code: they have their own rules or are nothing to hide.
pub(super) fn is_elsewhere(value: &str) -> bool {
    const FILES: [&str; 19] =
        ["md", "txt", "pdf", "json", "yaml", "yml", "toml", "env", "py", "js", "ts", "rs", "go", "sh", "sql", "csv", "html", "zip", "conf"];
    let is_file = || value.rsplit_once('.').is_some_and(|(_, ending)| FILES.contains(&ending));
    let is_call = || {
        value
            .find(['(', '['])
            .is_some_and(|bracket| value[..bracket].bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte)))
    };
    let is_address = || value.contains('@') && value.contains('.');
    value.contains("://")
        || value.contains("::")
        || value.contains("](")
        || value.contains(['<', '>', '{', '}'])
        || value.starts_with('/')
        || value.starts_with("--")
        || is_address()
        || is_file()
        || is_call()
}

/// No word of a sentence: with a digit, a sign or a capital inside.
pub(super) fn looks_chosen(value: &str) -> bool {
    let value = value.trim_end_matches(['.', '!', '?', ')', ',', ';', ':', '\'']);
    value.chars().any(|c| c.is_ascii_digit() || (!c.is_alphabetic() && !" -'/.\u{2019}".contains(c))) || has_mixed_case(value)
}

/// Letters with a digit or a sign among them; capitals may be a name's.
pub(super) fn is_chosen(value: &str) -> bool {
    value.chars().any(char::is_alphabetic)
        && value.chars().any(|c| c.is_ascii_digit() || (c.is_ascii() && !c.is_alphanumeric() && !" -'/.,:()".contains(c)))
}

/// Three of small letters, capitals, digits and signs.
pub(super) fn is_strong(value: &str) -> bool {
    let kinds = [
        value.chars().any(char::is_lowercase),
        value.chars().any(char::is_uppercase),
        value.chars().any(|c| c.is_ascii_digit()),
        value.chars().any(|c| c.is_ascii() && !c.is_alphanumeric()),
    ];
    value.chars().count() >= 8 && kinds.iter().filter(|kind| **kind).count() >= 3 && is_chosen(value)
}

/// Long, and letters and digits in one stretch.
pub(super) fn has_form_of_key(value: &str) -> bool {
    let value = near(value, MOST_BYTES);
    value.split(|c: char| !c.is_ascii_alphanumeric()).any(|stretch| stretch.len() >= 16 && has_letters_and_digits(stretch))
        || value.len() >= 24 && has_letters_and_digits(value) && has_mixed_case(value) && !value.contains([' ', ':', '(', '.'])
}

pub(super) fn has_letters_and_digits(value: &str) -> bool {
    value.bytes().any(|byte| byte.is_ascii_digit()) && value.bytes().any(|byte| byte.is_ascii_alphabetic())
}

pub(super) fn has_mixed_case(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_lowercase()) && text.bytes().skip(1).any(|byte| byte.is_ascii_uppercase())
}
