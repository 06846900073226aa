//! One way to write what is written in many: digits of any script, letters with and without accents, wide and narrow forms.
//!
//! For comparing and for looking things up, not for showing: `ß` becomes `ss`, and the vowel signs of Arabic go.

use std::borrow::Cow;
use unicode_normalization::char::{compose, decompose_compatible};

/// The noughts of the scripts that people type numbers in; nine digits follow each.
const NOUGHTS: [u32; 23] = [
    0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040,
    0x17E0, 0x1810, 0x19D0, 0x1BB0, 0xA8D0, 0xFF10,
];

/// The ASCII digit that a digit of another script stands for.
pub fn digit(c: char) -> Option<char> {
    let behind = NOUGHTS.iter().map(|nought| (c as u32).wrapping_sub(*nought)).find(|distance| *distance < 10)?;
    char::from_digit(behind, 10)
}

/// A text with the digits of every script, wide signs and the dashes of word processors as ASCII has them, and without the marks that
/// only say in which direction to write.
pub fn digits(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii() || (digit(c).is_none() && sign(c) == Some(c));
    if text.is_ascii() || text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter_map(|c| digit(c).or_else(|| sign(c))).collect())
}

fn sign(c: char) -> Option<char> {
    match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0),
        '\u{3000}' | '\u{a0}' | '\u{202f}' => Some(' '),
        '\u{2010}'..='\u{2015}' | '\u{2212}' => Some('-'),
        '\u{66b}' => Some('.'),
        '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{2066}'..='\u{2069}' => None,
        _ => Some(c),
    }
}

/// Appends what a letter or digit outside ASCII counts as, in lower case; nothing for a sign.
pub(crate) fn letter_into(c: char, out: &mut String) {
    match c {
        // The voicing marks of kana, narrow or apart from their letter.
        '\u{3099}' | '\u{309a}' | '\u{ff9e}' | '\u{ff9f}' => {
            let mark = if matches!(c, '\u{3099}' | '\u{ff9e}') { '\u{3099}' } else { '\u{309a}' };
            if let Some(voiced) = out.chars().next_back().and_then(|last| compose(last, mark)) {
                out.pop();
                out.push(voiced);
            }
        }
        // Nasals before a consonant are written in two ways: हिन्दी, हिंदी.
        '\u{94d}' if out.ends_with(['\u{919}', '\u{91e}', '\u{923}', '\u{928}', '\u{92e}']) => {
            out.pop();
            out.push('\u{902}');
        }
        '\u{901}' => out.push('\u{902}'),
        '\u{3040}'..='\u{30ff}' | '\u{ac00}'..='\u{d7a3}' => out.push(c),
        '\u{3400}'..='\u{9fff}' => out.push(simplified(c)),
        _ => {
            if let Some(digit) = digit(c) {
                out.push(digit);
                return;
            }
            for lower in c.to_lowercase() {
                decompose_compatible(lower, |part| part_into(part, out));
            }
        }
    }
}

fn part_into(c: char, out: &mut String) {
    match c {
        '\u{300}'..='\u{36f}' | '\u{591}'..='\u{5c7}' | '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{65f}' | '\u{670}' => {}
        'ß' => out.push_str("ss"),
        'æ' => out.push_str("ae"),
        'œ' => out.push_str("oe"),
        'ø' => out.push('o'),
        'ł' => out.push('l'),
        'đ' | 'ð' => out.push('d'),
        'þ' => out.push_str("th"),
        'ı' => out.push('i'),
        'ς' => out.push('σ'),
        // Letters that keyboards of the same script exchange.
        '\u{649}' | '\u{6cc}' => out.push('\u{64a}'),
        '\u{629}' | '\u{6c1}' => out.push('\u{647}'),
        '\u{6a9}' => out.push('\u{643}'),
        '\u{671}' => out.push('\u{627}'),
        _ if c.is_alphanumeric() => out.extend(c.to_lowercase()),
        _ => {}
    }
}

/// Traditional characters and the simplified ones, in pairs: as far as queries have them.
const SIMPLIFIED: &str = "帳账號号無无沒没開开關关閉闭門门問问題题時时間间電电話话機机碼码訂订單单購购買买賣卖貨货運运費费價价錢钱銀银發发郵邮註注冊册錄录\
    證证驗验認认設设變变換换這这個个麼么嗎吗為为誰谁裡里裏里請请謝谢說说聯联絡络係系統统網网頁页連连線线斷断絕绝應应該该還还後后會会\
    員员點点數数據据務务優优減减遊游戲戏視视頻频圖图書书館馆車车飛飞場场東东廣广灣湾國国際际語语學学習习醫医藥药診诊約约預预護护簽签\
    處处條条遞递達达實实體体現现頭头樣样種种類类別别級级確确輸输傳传檔档閱阅讀读寫写刪删圍围歡欢樂乐氣气溫温熱热風风雲云";

fn simplified(c: char) -> char {
    // A table would be larger than all queries of a day; the pairs are few.
    let mut pairs = SIMPLIFIED.chars().filter(|c| !c.is_whitespace());
    while let (Some(from), Some(to)) = (pairs.next(), pairs.next()) {
        if from == c {
            return to;
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(text: &str) -> String {
        let mut out = String::new();
        text.chars().for_each(|c| letter_into(c, &mut out));
        out
    }

    #[test]
    fn digits_of_any_script_are_digits() {
        for (text, expected) in [
            ("٥٥٥-٨٦٧-٥٣٠٩", "555-867-5309"),
            ("１２３４５", "12345"),
            ("۱۲۳۴۵", "12345"),
            ("९४१०३", "94103"),
            ("ｊｏｈｎ＠ｅｘａｍｐｌｅ．ｃｏｍ", "john@example.com"),
            ("555\u{2011}867\u{2013}5309", "555-867-5309"),
            ("\u{200f}٢٠٢٦", "2026"),
            ("Größe 42", "Größe 42"),
        ] {
            assert_eq!(digits(text), expected);
        }
        assert!(matches!(digits("Größe 42"), Cow::Borrowed(_)), "nothing to fold, nothing copied");
    }

    #[test]
    fn letters_that_are_one_are_written_as_one() {
        for (left, right) in [
            ("naïve", "naive"),
            ("naı\u{308}ve", "naive"),
            ("Straße", "strasse"),
            ("счёт", "счет"),
            ("إلغاء", "الغاء"),
            ("مُشكلة", "مشكله"),
            ("ﾌﾟﾘﾝﾀｰ", "プリンター"),
            ("हिन्दी", "हिंदी"),
            ("वीज़ा", "वीजा"),
            ("हूँ", "हूं"),
            ("帳號", "账号"),
            ("ΣΊΣΥΦΟΣ", "σισυφοσ"),
        ] {
            assert_eq!(folded(left), folded(right));
        }
        for (left, right) in [("かき", "かぎ"), ("はは", "ぱぱ"), ("कल", "काल"), ("дом", "дым")] {
            assert_ne!(folded(left), folded(right));
        }
    }

    #[test]
    fn every_traditional_character_has_its_simplified_one() {
        assert_eq!(SIMPLIFIED.chars().filter(|c| !c.is_whitespace()).count() % 2, 0);
        for c in SIMPLIFIED.chars().filter(|c| !c.is_whitespace()) {
            assert_eq!(simplified(simplified(c)), simplified(c), "{c}");
        }
    }
}
