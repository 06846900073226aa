//! The one look that most texts need: how many digits there are, and whether any three letters occur that an address or a
//! secret cannot be without.
//!
//! Every byte counts as its last five bits, so that upper and lower case are one letter and three of them are 15 bits: a table
//! of 4 KiB answers whether a place is worth a closer look. Other characters fall together with letters; that costs a look.

use super::foreign;
use super::numbers::is_digit;

pub(super) struct Glance {
    pub(super) digits: usize,
    /// Whether an address or a secret may be in it.
    pub(super) words: bool,
}

/// Three characters of everything [`super::secrets`] and [`super::addresses`] look for; rare ones where there is a choice.
const TELLING: [&[&str]; 5] = [ADDRESSES, KEYS, VALUES, LANGUAGES, PROGRAMS];
/// Addresses: written with a sign of their own, or spelled.
const ADDRESSES: &[&str] = &[
    "%40", "#64", "x40", "=40", "004", "at;", "at)", "at]", "at}", "at>", "(a)", "at-", "dot", "oba", "cci", "mai", "kla", "kuk", "sna",
    "aar",
];
/// Keys by their prefix.
const KEYS: &[&str] = &[
    "sk-", "sk_", "rk_", "pk_", "kia", "sia", "hp_", "ho_", "hu_", "hs_", "hr_", "at_", "xox", "pp-", "aiz", "pm_", "hf_", "sg.", "ec_",
    "rg_", "pi-", "pi_", "_v1", "29.", "r8_", "tt3", "ss_", "vs.", "vb.", "vr.", "ai-", "lx-", "sa_", "q0a", "q0c", "ak-", "igd", "tn_",
    "et_", "dap", "bp_", "ul-", "ys_", "yu_", "v2_", "ms_", "rak", "0c0", "tbb", "r13", "akc", "ua_", "io_", "fc-", "2b_", "gp_", "pa_",
    "lws", "tt-", "spx", "po_",
];
/// Values behind a name, headers, whole blocks, addresses of services.
const VALUES: &[&str] = &[
    "pas", "nnw", "pwd", "ecr", "oke", "key", "ede", "uth", "rer", "sic", "eyj", "---", "://", "ebh", "oks", "pw ", "pw:", "pw\"", "pw=",
    "psk", "psw", "ig=", "re=", "ac=", "jwt", "kie", "pin", "cvv", "cvc", "ds:", "ras", "tif", "rtt",
];
/// Names of passwords in other languages.
const LANGUAGES: &[&str] = &["htw", "nha", "mdp", "slo", "ola", "lav", "kod", "ozi", "asl", "lsz", "ifr", "kat", "dga", "asa", "ucz"];
/// Programs that take a password.
const PROGRAMS: &[&str] = &[" -p", "-cl", "lda", "url", "wge", "smb", "pcc", "udo", "ftp", "snm", "ryp"];

const WORDS: [u64; 512] = {
    let mut table = [0_u64; 512];
    let mut list = 0;
    while list < TELLING.len() {
        let mut entry = 0;
        while entry < TELLING[list].len() {
            let bytes = TELLING[list][entry].as_bytes();
            let place = place(bytes[0], bytes[1], bytes[2]);
            table[place / 64] |= 1 << (place % 64);
            entry += 1;
        }
        list += 1;
    }
    table
};

const fn place(first: u8, second: u8, third: u8) -> usize {
    ((first as usize & 31) << 10) | ((second as usize & 31) << 5) | (third as usize & 31)
}

/// Whether three telling characters occur.
pub(super) fn is_telling(bytes: &[u8]) -> bool {
    bytes.windows(3).any(|three| {
        let place = place(three[0], three[1], three[2]);
        WORDS[place / 64] >> (place % 64) & 1 == 1
    })
}

impl Glance {
    pub(super) fn of(text: &str) -> Self {
        let bytes = text.as_bytes();
        let (mut digits, mut beyond_ascii, mut at, mut told) = (0, 0_u8, false, 0_u64);
        let mut window = 0;
        for &byte in bytes {
            digits += usize::from(byte.is_ascii_digit());
            beyond_ascii |= byte;
            at |= byte == b'@';
            window = ((window << 5) | (byte as usize & 31)) & 0x7fff;
            told |= WORDS[window / 64] >> (window % 64);
        }
        let mut words = at || told & 1 == 1;
        if beyond_ascii >= 0x80 {
            for (position, c) in text.char_indices().filter(|(_, c)| !c.is_ascii()) {
                digits += usize::from(is_digit(c));
                words |= matches!(c, '\u{ff20}' | '\u{fe6b}') || foreign::word_at(text, position).is_some();
            }
        }
        Self { digits, words }
    }
}
