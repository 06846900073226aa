//! Words of other scripts and with letters of their own that announce a password, a key or a spoken address.
//!
//! Each is found by its first letter outside ASCII, because that is what a look at a text stumbles over: the rest of it stands
//! before and behind that letter.

/// What a word announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announces {
    Password,
    Key,
    /// `@`, spoken.
    At,
}

/// What stands before the first letter outside ASCII, what begins with it, and what the two together announce.
const WORDS: &[(&str, &str, Announces)] = &[
    ("contrase", "ña", Announces::Password),
    ("has", "ło", Announces::Password),
    ("has", "łem", Announces::Password),
    ("has", "ła", Announces::Password),
    ("l", "ösenord", Announces::Password),
    ("jelsz", "ó", Announces::Password),
    ("m", "ật khẩu", Announces::Password),
    ("slapta", "žodis", Announces::Password),
    ("salas", "õna", Announces::Password),
    ("fjal", "ëkalim", Announces::Password),
    ("", "şifre", Announces::Password),
    ("", "пароль", Announces::Password),
    ("", "пароля", Announces::Password),
    ("", "паролем", Announces::Password),
    ("", "парола", Announces::Password),
    ("", "лозинк", Announces::Password),
    ("", "κωδικός", Announces::Password),
    ("", "κωδικό", Announces::Password),
    ("", "סיסמה", Announces::Password),
    ("", "סיסמא", Announces::Password),
    ("", "סיסמת", Announces::Password),
    ("", "كلمة المرور", Announces::Password),
    ("", "كلمة مرور", Announces::Password),
    ("", "كلمة السر", Announces::Password),
    ("", "رمز عبور", Announces::Password),
    ("", "گذرواژه", Announces::Password),
    ("", "पासवर्ड", Announces::Password),
    ("", "পাসওয়ার্ড", Announces::Password),
    ("", "รหัสผ่าน", Announces::Password),
    ("", "密码", Announces::Password),
    ("", "密碼", Announces::Password),
    ("", "口令", Announces::Password),
    ("", "パスワード", Announces::Password),
    ("", "パスフレーズ", Announces::Password),
    ("", "暗証番号", Announces::Password),
    ("", "비밀번호", Announces::Password),
    ("", "패스워드", Announces::Password),
    ("", "암호", Announces::Password),
    ("", "비번", Announces::Password),
    ("schl", "üssel", Announces::Key),
    ("cl", "é", Announces::Key),
    ("", "ключ", Announces::Key),
    ("", "токен", Announces::Key),
    ("", "密钥", Announces::Key),
    ("", "密鑰", Announces::Key),
    ("", "令牌", Announces::Key),
    ("", "トークン", Announces::Key),
    ("", "キー", Announces::Key),
    ("", "토큰", Announces::Key),
    ("ma", "łpa", Announces::At),
    ("zavin", "áč", Announces::At),
    ("", "äffchen", Announces::At),
    ("", "собака", Announces::At),
    ("", "собачка", Announces::At),
    ("", "равлик", Announces::At),
    ("", "παπάκι", Announces::At),
    ("", "שטרודל", Announces::At),
    ("", "アットマーク", Announces::At),
    ("", "アット", Announces::At),
    ("", "골뱅이", Announces::At),
    ("", "艾特", Announces::At),
];

/// Whether a word of the list may have this as its first letter outside ASCII: asked of every letter, so it must be quick.
fn may_begin(c: char) -> bool {
    matches!(
        c,
        'ñ' | 'Ñ'
            | 'ł'
            | 'Ł'
            | 'ö'
            | 'Ö'
            | 'ó'
            | 'Ó'
            | 'ậ'
            | 'ž'
            | 'õ'
            | 'ë'
            | 'ş'
            | 'Ş'
            | 'ü'
            | 'Ü'
            | 'é'
            | 'É'
            | 'á'
            | 'Á'
            | 'ä'
            | 'Ä'
            | 'п'
            | 'П'
            | 'л'
            | 'Л'
            | 'к'
            | 'К'
            | 'т'
            | 'Т'
            | 'с'
            | 'С'
            | 'р'
            | 'Р'
            | 'κ'
            | 'Κ'
            | 'π'
            | 'Π'
            | 'ס'
            | 'ש'
            | 'ك'
            | 'ر'
            | 'گ'
            | 'प'
            | 'প'
            | 'ร'
            | '密'
            | '口'
            | '令'
            | 'パ'
            | '暗'
            | 'ト'
            | 'キ'
            | 'ア'
            | '비'
            | '패'
            | '암'
            | '토'
            | '골'
            | '艾'
    )
}

/// The word whose first letter outside ASCII stands here: where it begins, where it ends, and what it announces.
pub(super) fn word_at(text: &str, position: usize) -> Option<(usize, usize, Announces)> {
    let first = text[position..].chars().next().filter(|c| may_begin(*c))?;
    let first = lower(first);
    WORDS.iter().find_map(|(before, from, announces)| {
        let length = from.starts_with(first).then(|| folded_length(&text[position..], from)).flatten()?;
        let start = position.checked_sub(before.len())?;
        text.as_bytes()[start..position].eq_ignore_ascii_case(before.as_bytes()).then_some((start, position + length, *announces))
    })
}

/// How many bytes of the text are this word, whose letters are small ones.
pub(super) fn folded_length(text: &str, word: &str) -> Option<usize> {
    let mut chars = text.chars();
    let is_same = word.chars().all(|letter| chars.next().is_some_and(|c| lower(c) == letter));
    is_same.then(|| text.len() - chars.as_str().len())
}

fn lower(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

/// Scripts that put no space between words: what stands behind a word may touch it.
pub(super) fn is_written_without_spaces(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}')
}
