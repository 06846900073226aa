//! Values behind a name: `password=…`, `"token": "…"`, "the password for the box is …".
//!
//! What kind of name it is, and the sign between the two, say how much the value must look like a secret ([`super::judgement`]).

use super::foreign::{self, Announces, is_written_without_spaces};
use super::judgement::{
    has_form_of_key, has_letters_and_digits, has_mixed_case, is_annotation, is_chosen, is_code, is_elsewhere, is_path, is_placeholder,
    is_said, is_strong, is_technical, is_type, looks_chosen,
};
use super::{ends_with, is_one_of, is_word_of, near, offset, starts_with};
use std::ops::Range;

/// How far a value is read before it is known to be one: a text full of beginnings is not read over and over. What is one is then
/// taken whole.
const MOST_BYTES: usize = 1024;
/// How far behind its name a password may stand in a sentence.
const MOST_SENTENCE_BYTES: usize = 160;
const MOST_SENTENCE_WORDS: usize = 8;

/// How surely a name says that a secret follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Somebody chose it, so it may look like anything.
    Password,
    /// The same, by a word that has other meanings too.
    Loose,
    /// A machine made it: no plain word.
    Token,
    /// Names that most often stand before something harmless: only what is long and mixed.
    Form,
    /// `Authorization: scheme value`.
    Header,
}

/// How names of passwords end.
const PASSWORDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "passwort",
    "kennwort",
    "wachtwoord",
    "paswoord",
    "passord",
    "losenord",
    "adgangskode",
    "salasana",
    "pwd",
];
/// Names of passwords where they stand alone or behind a dash.
const SHORT_PASSWORDS: &[&str] = &["pass", "passe", "pw", "psk", "senha", "mdp", "passin", "passout", "storepass", "keypass", "psw"];
/// Words that mean other things too.
const LOOSE_PASSWORDS: &[&str] = &[
    "heslo",
    "parola",
    "clave",
    "contrasena",
    "contrasenya",
    "kodeord",
    "lozinka",
    "geslo",
    "haslo",
    "jelszo",
    "sifre",
    "sifra",
    "sandi",
    "credential",
    "credentials",
    "creds",
];
/// How names of tokens and keys end.
const TOKENS: &[&str] = &[
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
    "accesskey",
    "secret_key",
    "secret-key",
    "secretkey",
    "private_key",
    "private-key",
    "privatekey",
    "auth_key",
    "account_key",
    "accountkey",
    "sharedaccesskey",
    "encryption_key",
    "signing_key",
    "master_key",
    "sessid",
    "klucz",
];
const FORMS: &[&str] = &["key", "auth", "sig", "signature", "hmac", "sas", "jwt", "otp_seed"];
/// What "key" must stand behind: "API key".
const KINDS_OF_KEY: &[&str] =
    &["api", "access", "secret", "private", "auth", "license", "licence", "signing", "encryption", "master", "account"];
/// What "phrase" must stand behind: "seed phrase".
const KINDS_OF_PHRASE: &[&str] = &["pass", "seed", "recovery", "mnemonic", "backup", "secret"];

pub(super) fn kind_of(word: &str, word_before: &str) -> Option<Kind> {
    let last = word.rsplit(['_', '-']).next().unwrap_or(word);
    if ends_with(word, "authorization") {
        return Some(Kind::Header);
    }
    let is_password = PASSWORDS.iter().any(|name| ends_with(word, name))
        || is_one_of(last, SHORT_PASSWORDS)
        || ["Pass", "Pw"]
            .iter()
            .any(|name| word.strip_suffix(name).is_some_and(|before| before.ends_with(|c: char| c.is_ascii_lowercase())))
        || (word.eq_ignore_ascii_case("phrase") && is_one_of(word_before, KINDS_OF_PHRASE));
    if is_password {
        return Some(Kind::Password);
    }
    if is_one_of(last, LOOSE_PASSWORDS) {
        return Some(Kind::Loose);
    }
    if TOKENS.iter().any(|name| ends_with(word, name)) || (word.eq_ignore_ascii_case("key") && is_one_of(word_before, KINDS_OF_KEY)) {
        return Some(Kind::Token);
    }
    let is_form =
        is_one_of(last, FORMS) || word.strip_suffix("Key").is_some_and(|before| before.ends_with(|c: char| c.is_ascii_lowercase()));
    let is_public =
        || word.to_ascii_lowercase().contains("pub") || is_one_of(word_before, &["public", "publishable", "gpg", "pgp", "host"]);
    (is_form && !is_public()).then_some(Kind::Form)
}

/// What stands between a name and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Equals,
    Colon,
    Is,
    /// `--password value`.
    Flag,
    Nothing,
}

pub(super) fn named_value(text: &str, position: usize, word: &str, words_before: &[&str; 3]) -> Option<Range<usize>> {
    let behind = &text[position + word.len()..];
    if is_one_of(word, &["bearer", "basic"]) {
        return scheme_value(text, text.len() - behind.len());
    }
    // `IDENTIFIED BY 'value'`, `SecureString 'value'`: nothing but a secret is quoted there.
    if word.eq_ignore_ascii_case("identified") || ends_with(word, "securestring") {
        let clause = near(behind, MOST_SENTENCE_BYTES);
        let string = &behind[clause.find(['\'', '"', '\n', ';'])?..];
        return quoted(text, string).filter(|value| !is_placeholder(&text[value.clone()]));
    }
    if is_one_of(word, &["pin", "cvv", "cvc", "cvv2", "cvc2"]) {
        return short_number(text, word, behind);
    }
    let kind = kind_of(word, words_before[0])?;
    if let Some(part) = element(text, position, kind, behind).or_else(|| encoded_value(text, behind)).or_else(|| value_beside(text, behind))
    {
        return Some(part);
    }
    let rest = strip_quotes(behind).trim_start_matches([' ', '\t']);
    let Some((sign, rest)) = sign(word, rest, behind) else {
        return called_with(text, word, kind, behind);
    };
    // `password=` in quotes: what stands behind the sign closes them.
    let quote_before = text[..position].chars().next_back().filter(|c| matches!(c, '"' | '\'' | '`'));
    if quote_before.is_some_and(|quote| rest.starts_with(quote) && !behind.starts_with(quote)) {
        return None;
    }
    if let Some(part) = (kind == Kind::Header).then(|| credentials(text, rest)).flatten() {
        return Some(part);
    }
    if sign == Sign::Nothing && text[..position].ends_with(['$', '{']) {
        return None;
    }
    // `ALTER USER app PASSWORD 'value'`.
    let is_keyword = sign == Sign::Nothing && kind == Kind::Password && !word.bytes().any(|byte| byte.is_ascii_lowercase());
    if let Some(value) = is_keyword.then(|| quoted(text, rest)).flatten().filter(|value| !is_placeholder(&text[value.clone()])) {
        return Some(value);
    }
    // "Pass" is what people do with salt and programs with values.
    let is_verb = is_one_of(word, &["pass", "passe"]) && !is_one_of(words_before[0], &["de", "the", "my", "with", "wifi", "user"]);
    let is_login = is_one_of(words_before[1], &["login", "user", "username"]) && !is_one_of(words_before[0], &["and", "or", "the", "with"]);
    if is_verb && sign == Sign::Nothing && !is_login {
        return None;
    }
    direct_value(text, kind, sign, rest, is_login).or_else(|| phrase(text, word, sign, rest)).or_else(|| {
        let may_be_far = matches!(sign, Sign::Nothing | Sign::Is) || sign == Sign::Colon && kind == Kind::Loose;
        may_be_far.then(|| in_sentence(text, kind, behind, false)).flatten()
    })
}

/// `PIN: 4821`, "my pin is 4821", `cvv 123`. Without a sign "pin 12" is one of a plug's.
fn short_number(text: &str, word: &str, behind: &str) -> Option<Range<usize>> {
    let is_pin = word.eq_ignore_ascii_case("pin");
    let rest = strip_quotes(behind).trim_start_matches(' ');
    let rest = rest.strip_prefix("code ").or_else(|| rest.strip_prefix("number ")).unwrap_or(rest);
    let (_, rest) = sign("", rest, " ").filter(|(sign, _)| *sign != Sign::Nothing || !is_pin)?;
    let rest = rest.trim_start_matches([' ', '"', '\'']);
    let digits = rest.bytes().take(9).take_while(u8::is_ascii_digit).count();
    let is_whole = !rest[digits..].starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_');
    let start = offset(text, rest);
    (is_whole && if is_pin { 4..=8 } else { 3..=4 }.contains(&digits)).then_some(start..start + digits)
}

/// The value right behind the sign.
fn direct_value(text: &str, kind: Kind, sign: Sign, rest: &str, is_login: bool) -> Option<Range<usize>> {
    let rest = near(rest.trim_start_matches([' ', '\t']), MOST_BYTES);
    // `b"value"`, `f'value'`.
    let rest = rest.strip_prefix(['b', 'r', 'f', 'u', '@']).filter(|rest| rest.starts_with(['"', '\''])).unwrap_or(rest);
    // A key in PEM is a block of its own.
    if rest.trim_start_matches(['\\', '"', '\'']).starts_with("-----BEGIN") {
        return None;
    }
    let unescaped = rest.trim_start_matches('\\');
    let quote = opening_quote(unescaped);
    let is_escaped = unescaped.len() < rest.len();
    let value = whole_value(quote.map_or(rest, |_| strip_quotes_once(unescaped)), quote, sign, is_escaped);
    let core = value.trim_end_matches(['.', '!', '?', ',', ';', ')', ':']);
    let behind = &rest[(offset(text, value) - offset(text, rest) + core.len()).min(rest.len())..];
    let is_last = ends_sentence(behind);
    let is_word = core.chars().all(|c| c.is_alphanumeric() || c == '-');
    let looks_secret = || match (sign, quote, kind) {
        (Sign::Equals | Sign::Colon, _, Kind::Form) => has_form_of_key(value) && (quote.is_some() || !is_code(value)),
        (_, _, Kind::Form) | (Sign::Is | Sign::Nothing | Sign::Flag, _, Kind::Header) => false,
        (Sign::Equals, None, Kind::Token | Kind::Header) => !is_code(value) && (looks_chosen(value) || core.len() >= 12),
        (Sign::Equals, None, _) => !is_code(value),
        (Sign::Colon, None, _) if is_annotation(value, behind) => false,
        (Sign::Colon, None, Kind::Token | Kind::Loose | Kind::Header) if is_type(core) => false,
        (_, _, Kind::Header) => !value.contains(' ') && looks_chosen(value),
        (Sign::Equals | Sign::Colon, Some(_), _) | (Sign::Flag, _, _) => true,
        (Sign::Colon, None, _) if is_code(value) || value.contains("://") => false,
        (Sign::Colon, None, Kind::Password) => looks_chosen(value) && !is_technical(core) || (is_last && is_word && !is_said(core)),
        (Sign::Colon, None, _) => looks_chosen(value) && !is_technical(core),
        (Sign::Is, Some(_), Kind::Password | Kind::Loose) => !value.contains(' ') && !is_said(value) || looks_chosen(value),
        (Sign::Is, _, _) => {
            core.chars().count() >= 5
                && (looks_chosen(core) && !is_technical(core) || (is_last && is_word && kind == Kind::Password && !is_said(core)))
        }
        (Sign::Nothing, Some(_), Kind::Password | Kind::Loose) => value.len() >= 5 && looks_chosen(value),
        (Sign::Nothing, _, Kind::Password) if is_login => looks_chosen(core) || is_last && is_word && !is_said(core),
        (Sign::Nothing, _, Kind::Password) if is_last => {
            core.len() >= 6 && has_letters_and_digits(core) && !is_technical(core) && !is_elsewhere(core)
        }
        (Sign::Nothing, _, _) => core.len() >= 12 && has_letters_and_digits(core) && !is_technical(core) && !is_elsewhere(core),
    };
    // A flag follows, or what was taken for the opening quote closes another string.
    let is_none = sign == Sign::Nothing && value.starts_with('-') || quote.is_some() && value.starts_with([' ', ',', ')', ';']);
    let is_secret = !is_none && looks_secret() && !is_placeholder(value) && !is_path(value, kind);
    let start = offset(text, value);
    (is_secret && !value.is_empty()).then(|| {
        let value = whole_value(&text[start..], quote, sign, is_escaped);
        let end = if quote.is_some() { value } else { value.trim_end_matches([')', ']', '}', '.', ',', ';', '!', '?', '\'']) };
        start..start + end.len().max(value.chars().next().map_or(1, char::len_utf8))
    })
}

const QUOTES: [(&str, char); 10] = [
    ("\"", '"'),
    ("'", '\''),
    ("`", '`'),
    ("\u{201c}", '\u{201d}'),
    ("\u{2018}", '\u{2019}'),
    ("\u{201e}", '\u{201c}'),
    ("\u{ab}", '\u{bb}'),
    ("\u{300c}", '\u{300d}'),
    ("\u{300e}", '\u{300f}'),
    ("&quot;", '&'),
];

/// What closes the quote a text begins with.
fn opening_quote(text: &str) -> Option<char> {
    QUOTES.iter().find(|(opening, _)| text.starts_with(opening)).map(|(_, closing)| *closing)
}

fn strip_quotes_once(text: &str) -> &str {
    QUOTES.iter().find_map(|(opening, _)| text.strip_prefix(opening)).unwrap_or(text)
}

/// Without what closes the name: quotes, brackets, and quotes as HTML and JSON in JSON write them.
fn strip_quotes(text: &str) -> &str {
    let text = text.strip_prefix("&quot;").or_else(|| text.strip_prefix("&#34;")).unwrap_or(text);
    text.trim_start_matches(['"', '\'', '`', '\\', ']', '*'])
}

/// The quoted string a text begins with, without its quotes.
fn quoted(text: &str, rest: &str) -> Option<Range<usize>> {
    let rest = near(rest, MOST_BYTES);
    let closing = opening_quote(rest)?;
    let value = strip_quotes_once(rest);
    let value = &value[..value.find([closing, '\n'])?];
    let start = offset(text, value);
    (!value.is_empty() && !value.starts_with(' ')).then_some(start..start + value.len())
}

/// `PASSWORD('value')`, `setPassword("value")`.
fn called_with(text: &str, word: &str, kind: Kind, behind: &str) -> Option<Range<usize>> {
    let inside = behind.strip_prefix('(')?;
    let value = quoted(text, inside).filter(|_| kind == Kind::Password && !word.eq_ignore_ascii_case("pass"))?;
    let is_constant = word.bytes().all(|byte| !byte.is_ascii_lowercase());
    (is_constant || looks_chosen(&text[value.clone()])).then_some(value)
}

/// `<password>value</password>`.
fn element(text: &str, position: usize, kind: Kind, behind: &str) -> Option<Range<usize>> {
    let value = behind.strip_prefix('>')?;
    let (value, closing) = value.split_at(value.find('<')?);
    let is_element = text[..position].ends_with(['<', ':']) && closing.starts_with("</") && (kind != Kind::Form || has_form_of_key(value));
    let start = offset(text, value);
    (is_element && !value.trim().is_empty() && !is_placeholder(value)).then_some(start..start + value.len())
}

/// `password%3Dvalue%26`, `%22password%22%3A%22value%22`.
fn encoded_value(text: &str, behind: &str) -> Option<Range<usize>> {
    let rest = behind.strip_prefix("%22").unwrap_or(behind);
    let rest = ["%3D", "%3A"].iter().find(|sign| starts_with(rest, sign)).map(|_| &rest[3..])?;
    let rest = ["%20%22", "%20", "%22"].iter().find_map(|before| rest.strip_prefix(before)).unwrap_or(rest);
    let length = |text: &str| {
        let is_end = |at: usize, c: char| {
            c.is_whitespace() || "&\"'<>".contains(c) || ["%26", "%22", "%2C", "%7D", "%3B"].iter().any(|end| starts_with(&text[at..], end))
        };
        text.char_indices().find(|(at, c)| is_end(*at, *c)).map_or(text.len(), |(at, _)| at)
    };
    let start = offset(text, rest);
    let seen = near(rest, MOST_BYTES);
    let value = &seen[..length(seen)];
    (!value.is_empty() && !is_placeholder(value)).then(|| start..start + length(rest))
}

/// `"name": "DB_PASSWORD", "value": "…"`, `key="password" value="…"`.
fn value_beside(text: &str, behind: &str) -> Option<Range<usize>> {
    let rest = near(behind, 64).trim_start_matches(['"', '\'', '\\', ',', ' ', '\t', '\r', '\n']);
    if !behind.starts_with(['"', '\'', '\\', '\n']) || !starts_with(rest, "value") {
        return None;
    }
    let rest = rest["value".len()..].trim_start_matches(['"', '\'', '\\', ' ']);
    let rest = &text[offset(text, rest.strip_prefix([':', '='])?)..];
    direct_value(text, Kind::Password, Sign::Equals, rest, false)
}

/// `Bearer value` and the like, behind the name of the header.
fn credentials(text: &str, rest: &str) -> Option<Range<usize>> {
    const SCHEMES: [&str; 10] = ["bearer", "token", "apikey", "api-key", "basic", "key", "jwt", "bot", "oauth", "negotiate"];
    let rest = near(rest.trim_start_matches([' ', '\t', '"', '\'']), MOST_BYTES);
    let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'-').count();
    let (scheme, behind) = rest.split_at(length);
    let value = behind.strip_prefix(' ').filter(|_| length > 0)?.trim_start_matches(' ');
    let is_end = |c: char| c.is_whitespace() || "\"'`,;<>\\".contains(c);
    let value = &value[..value.find(is_end).unwrap_or(value.len())];
    let is_last = text[offset(text, value) + value.len()..].chars().next().is_none_or(|c| "\"'`\n\\".contains(c));
    let is_secret = if is_one_of(scheme, &SCHEMES) {
        value.len() >= 6 && (looks_chosen(value) || is_last && !is_said(value))
    } else {
        value.len() >= 8 && has_letters_and_digits(value) && !value.ends_with('=')
    };
    let start = offset(text, value);
    (is_secret && !is_placeholder(value)).then(|| start..start + text[start..].find(is_end).unwrap_or(text.len() - start))
}

/// Several plain words behind "passphrase:".
fn phrase(text: &str, word: &str, sign: Sign, rest: &str) -> Option<Range<usize>> {
    const FUNCTION_WORDS: &str = "the a an is not at to of and for with you your please must be in on from that this it or should";
    if !ends_with(word, "phrase") || !matches!(sign, Sign::Colon | Sign::Is | Sign::Equals) {
        return None;
    }
    let line = near(rest.trim_start_matches([' ', '"', '\'']), MOST_BYTES);
    let line = &line[..line.find(['\n', '"', '\'', '.', ',', ';']).unwrap_or(line.len())].trim_end();
    let words = line.split(' ').count();
    let are_plain = line
        .split(' ')
        .all(|word| !word.is_empty() && word.chars().all(|c| c.is_alphabetic() && !c.is_uppercase()) && !is_word_of(word, FUNCTION_WORDS));
    let start = offset(text, line);
    ((3..=24).contains(&words) && are_plain).then_some(start..start + line.len())
}

/// Up to the quote it began with, or to what ends a value without quotes.
fn whole_value(text: &str, quote: Option<char>, sign: Sign, is_escaped: bool) -> &str {
    let end = match quote {
        // In a string within a string the backslash belongs to the closing quote.
        Some(quote) if is_escaped => text.find([quote, '\\', '\n']),
        Some(quote) => {
            let mut is_taken = false;
            text.find(|c: char| {
                let ends = !is_taken && c == quote || c == '\n';
                is_taken = !is_taken && c == '\\';
                ends
            })
        }
        None if sign == Sign::Equals => text.find(|c: char| c.is_whitespace() || "&;,\"'`<>".contains(c)),
        None => text.find(|c: char| c.is_whitespace() || "\"`<>\\，。；、".contains(c)),
    };
    &text[..end.unwrap_or(text.len())]
}

/// Whether nothing follows in the sentence.
fn ends_sentence(behind: &str) -> bool {
    let rest = behind.trim_start_matches(['.', '!', '?']);
    let has_stop = rest.len() < behind.len();
    rest.chars().next().is_none_or(|c| c == '\n' || has_stop && c == ' ')
}

fn sign<'a>(word: &str, rest: &'a str, behind: &str) -> Option<(Sign, &'a str)> {
    if ["==", "!=", "::"].iter().any(|mark| rest.starts_with(mark)) {
        return None;
    }
    for mark in ["=>", ":=", "=", "->", "\u{2192}"] {
        if let Some(rest) = rest.strip_prefix(mark) {
            return Some((Sign::Equals, rest));
        }
    }
    if let Some(rest) = rest.strip_prefix(':').or_else(|| rest.strip_prefix('\u{ff1a}')) {
        return Some((Sign::Colon, rest));
    }
    if !behind.starts_with([' ', '\t']) {
        return None;
    }
    let verb = &rest[..rest.find(' ').unwrap_or(0)];
    if is_verb(verb) || verb == "on" && ends_with(word, "salasana") {
        return Some((Sign::Is, rest[verb.len()..].trim_start_matches([' ', ':'])));
    }
    if word.starts_with('-') {
        return (!rest.starts_with('-')).then_some((Sign::Flag, rest));
    }
    Some((Sign::Nothing, rest))
}

/// "is", in some languages.
fn is_verb(word: &str) -> bool {
    const VERBS: &str =
        "is was are equals ist lautet war es era est sera sar\u{e0} \u{e8} \u{e9} jest brzmi \u{e4}r er luidt je = -> \u{2014} \u{2013} -";
    word.len() < 8 && is_word_of(word, VERBS)
}

/// What may stand between the verb and the value: "is now", "ist jetzt".
fn is_adverb(word: &str) -> bool {
    is_one_of(word, &["now", "still", "currently", "just", "set", "jetzt", "nun", "ahora", "agora", "maintenant", "nu", "ora", "teraz"])
}

/// What makes another thing of a password: "password reset", "token bucket".
const THINGS: &str = "reset manager policy policies error length strength rotation field prompt generator hash hashing protected protection authentication \
    encoder rules requirements expiry expiration history hint complexity recovery input column parameter variable file form page link \
    bucket count limit type ring change based";

fn is_another_thing(word: &str) -> bool {
    is_word_of(word.trim_end_matches([':', ',', '.']), THINGS)
}

/// A password some words behind its name: "the password for the staging box is …". Right behind a verb or a colon it must look as if
/// somebody chose it; elsewhere it must look like nothing else.
fn in_sentence(text: &str, kind: Kind, behind: &str, is_glued: bool) -> Option<Range<usize>> {
    if matches!(kind, Kind::Form | Kind::Header) {
        return None;
    }
    let sentence = near(behind, MOST_SENTENCE_BYTES);
    let sentence = &sentence[..sentence.find('\n').unwrap_or(sentence.len())];
    let is_cut = sentence.len() < behind.len() && !behind[sentence.len()..].starts_with('\n');
    let mut is_told = is_glued;
    let mut rest = sentence;
    for place in 0..MOST_SENTENCE_WORDS {
        rest = rest.trim_start();
        if let Some(closing) = opening_quote(rest) {
            let value = strip_quotes_once(rest);
            let value = &value[..value.find(closing)?];
            let is_value = !value.is_empty() && !value.contains(' ') && !is_placeholder(value);
            if is_value && kind != Kind::Token && (is_told && !is_said(value) || is_strong(value)) {
                let start = offset(text, value);
                return Some(start..start + value.len());
            }
        }
        let length = word_length(rest, is_glued);
        if length == 0 || is_cut && length == rest.len() {
            return None;
        }
        let word = &rest[..length];
        rest = &rest[length..];
        let core = word.trim_start_matches(['"', '\'', '`', '(', '[', '*', ':', '=']);
        let core = core.trim_end_matches(['.', ',', '!', '?', ';', ':', ')', ']', '"', '\'', '`', '*']);
        if place == 0 && is_another_thing(core) {
            return None;
        }
        let looks_secret = match kind {
            Kind::Token => core.len() >= 12 && has_letters_and_digits(core) && (is_told || is_strong(core)),
            _ => is_strong(core) || is_told && core.chars().count() >= 5 && is_chosen(core),
        };
        if looks_secret && !is_placeholder(core) && !is_technical(core) && !is_elsewhere(core) {
            let start = offset(text, core);
            return Some(start..start + core.len());
        }
        if word.ends_with(['.', '!', '?', '。']) && !rest.is_empty() {
            return None;
        }
        let is_subject =
            is_one_of(core, &["user", "username", "login", "name", "email", "mail", "host", "server", "port", "url", "account", "id"]);
        let is_sign = word.ends_with([':', '=', '\u{ff1a}']) && !is_subject;
        is_told = is_sign || is_verb(core) || core == "to" || (is_told && is_adverb(core)) || (is_glued && !word.is_ascii());
    }
    None
}

/// How long the word is that a text begins with. Where words touch, letters of our own script are one of their own.
fn word_length(text: &str, is_glued: bool) -> usize {
    let is_ours = text.starts_with(|c: char| c.is_ascii());
    text.find(|c: char| c.is_whitespace() || is_glued && c.is_ascii() != is_ours).unwrap_or(text.len())
}

/// The value behind a word of another script.
pub(super) fn announced_value(text: &str, position: usize) -> Option<Range<usize>> {
    let (start, end, announces) = foreign::word_at(text, position)?;
    let kind = match announces {
        Announces::Password => Kind::Loose,
        Announces::Key => Kind::Token,
        Announces::At => return None,
    };
    if text[..start].ends_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let is_glued = text[..end].ends_with(is_written_without_spaces);
    let ending = |c: char| c.is_alphabetic() && !(is_glued && c.is_ascii());
    let behind = &text[end..];
    let suffix: usize = behind.chars().take(8).take_while(|c| ending(*c)).map(char::len_utf8).sum();
    let behind = &behind[suffix..];
    let rest = strip_quotes(behind).trim_start_matches([' ', '\t']);
    let told = sign("", rest, behind).filter(|(sign, _)| *sign != Sign::Nothing);
    told.and_then(|(sign, rest)| direct_value(text, kind, sign, rest, false)).or_else(|| in_sentence(text, kind, behind, is_glued))
}

/// `Bearer …`, `Basic …`.
fn scheme_value(text: &str, position: usize) -> Option<Range<usize>> {
    let rest = text[position..].strip_prefix(' ')?.trim_start_matches(' ');
    let start = text.len() - rest.len();
    let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte)).count();
    let value = rest[..length].trim_end_matches('.');
    let is_token = value.len() >= 8 && (value.bytes().any(|byte| byte.is_ascii_digit() || byte == b'=') || has_mixed_case(value));
    is_token.then(|| start..start + value.len())
}
