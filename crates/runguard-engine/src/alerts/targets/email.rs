//! Alerts by mail: one message handed to a mail server (SMTP), over TLS.
//!
//! `smtps://` is TLS from the first byte, `smtp://` begins it with STARTTLS and goes on without only to a server of one's own that does not
//! offer it (`allow_private`). Everything that comes from users stands in base64, so that none of it can end a header or the message.

use super::{Failed, MOST_ANSWER_BYTES, TIMEOUT, all_public, shown};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use runguard_core::notice;
use runguard_http::address::is_public;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Lines of encoded text, as mail has them.
const LINE: usize = 76;
/// Bytes of one encoded word of a header.
const WORD: usize = 45;
pub(super) const MOST_RECEIVERS: usize = 20;
const MOST_ADDRESS: usize = 254;

/// Who it is from and for, and how the server knows us.
pub(super) struct Mailbox {
    pub(super) from: String,
    pub(super) to: Vec<String>,
    pub(super) login: Option<(String, String)>,
    pub(super) tls: Arc<ClientConfig>,
}

/// Where the server is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Server<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    /// From the first byte.
    pub(super) is_tls: bool,
    pub(super) allow_private: bool,
}

/// A plain address: what a server takes without extensions.
pub(super) fn is_address(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_graphic() && !"<>(),;:\\\"[]".contains(c);
    let parts: Vec<&str> = text.split('@').collect();
    text.len() <= MOST_ADDRESS && text.chars().all(is_plain) && parts.len() == 2 && parts.iter().all(|part| !part.is_empty())
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// What a server said.
struct ServerReply {
    code: u16,
    lines: Vec<String>,
}

impl ServerReply {
    fn offers(&self, extension: &str) -> Option<&str> {
        let is_named = |line: &&String| line.split(' ').next().is_some_and(|name| name.eq_ignore_ascii_case(extension));
        self.lines.iter().skip(1).find(is_named).map(|line| line.split_once(' ').map_or("", |(_, more)| more))
    }
}

struct Talk<'a> {
    host: &'a str,
    stream: Box<dyn Stream>,
    read: Vec<u8>,
}

impl Talk<'_> {
    fn broken(&self, problem: &dyn std::fmt::Display) -> Failed {
        Failed::later(format!("{} broke off: {}", self.host, shown(&problem.to_string())))
    }

    async fn answer(&mut self) -> Result<ServerReply, Failed> {
        let mut lines = Vec::new();
        loop {
            while let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.read.drain(..end + 2).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                let code = line.get(..3).and_then(|code| code.parse().ok());
                let code: u16 = code.ok_or_else(|| Failed::later(format!("{} does not speak SMTP: {}", self.host, shown(&line))))?;
                let goes_on = line.as_bytes().get(3) == Some(&b'-');
                lines.push(line.get(4..).unwrap_or_default().to_owned());
                if !goes_on {
                    return Ok(ServerReply { code, lines });
                }
            }
            if self.read.len() > MOST_ANSWER_BYTES || lines.len() > MOST_ANSWER_BYTES {
                return Err(Failed::later(format!("{} says more than a mail server does", self.host)));
            }
            let mut piece = [0; 1024];
            let count = self.stream.read(&mut piece).await.map_err(|error| self.broken(&error))?;
            if count == 0 {
                return Err(self.broken(&"it closed the connection"));
            }
            self.read.extend_from_slice(&piece[..count]);
        }
    }

    async fn send(&mut self, text: &str) -> Result<(), Failed> {
        let sent = async {
            self.stream.write_all(text.as_bytes()).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| self.broken(&error))
    }

    /// Waits for an answer of this hundred: 2 is well, 3 is to go on. `what` is in place of what was said, which may be a secret.
    async fn expect(&mut self, hundred: u16, what: &str) -> Result<ServerReply, Failed> {
        let answer = self.answer().await?;
        if answer.code / 100 == hundred {
            return Ok(answer);
        }
        let advice = match answer.code {
            530 | 534 | 535 | 538 => " (check username_env and password_env)",
            550 | 551 | 553 => " (check `from` and `to`)",
            _ => "",
        };
        let message = format!("{} answered {} to {what}: {}{advice}", self.host, answer.code, shown(&answer.lines.join(" ")));
        Err(if answer.code >= 500 { Failed::never(message) } else { Failed::later(message) })
    }

    async fn say(&mut self, line: &str, what: &str, hundred: u16) -> Result<ServerReply, Failed> {
        self.send(&format!("{line}\r\n")).await?;
        self.expect(hundred, what).await
    }

    async fn login(&mut self, (user, password): &(String, String), offered: &str) -> Result<(), Failed> {
        let has = |name: &str| offered.split(' ').any(|word| word.eq_ignore_ascii_case(name));
        if has("PLAIN") {
            let secret = STANDARD.encode(format!("\0{user}\0{password}"));
            return self.say(&format!("AUTH PLAIN {secret}"), "AUTH", 2).await.map(drop);
        }
        if has("LOGIN") {
            self.say("AUTH LOGIN", "AUTH", 3).await?;
            self.say(&STANDARD.encode(user), "the user name", 3).await?;
            return self.say(&STANDARD.encode(password), "the password", 2).await.map(drop);
        }
        Err(Failed::never(format!(
            "{} takes no password (it offers no AUTH PLAIN or LOGIN); leave out username_env and password_env",
            self.host
        )))
    }
}

async fn connect(server: Server<'_>) -> Result<TcpStream, Failed> {
    let Server { host, port, allow_private, .. } = server;
    let away = |problem: &dyn std::fmt::Display| Failed::later(format!("cannot connect to {host}: {}", shown(&problem.to_string())));
    let name = host.trim_matches(['[', ']']);
    let addresses: Vec<SocketAddr> = match name.parse::<IpAddr>() {
        Ok(address) => vec![(address, port).into()],
        Err(_) => tokio::net::lookup_host((name, port)).await.map_err(|error| away(&error))?.collect(),
    };
    if !allow_private {
        all_public(host, &addresses).map_err(|refused| Failed::never(refused.to_string()))?;
    }
    TcpStream::connect(&addresses[..]).await.map_err(|error| away(&error))
}

async fn secured(tcp: impl Stream + 'static, host: &str, tls: &Arc<ClientConfig>) -> Result<Box<dyn Stream>, Failed> {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| Failed::never(format!("{host} is no name")))?;
    let stream = TlsConnector::from(tls.clone()).connect(name, tcp).await;
    Ok(Box::new(stream.map_err(|error| Failed::later(format!("no TLS with {host}: {}", shown(&error.to_string()))))?))
}

/// Hands one message over. It is taken when the server says so: what breaks before that is tried again under the same id.
pub(super) async fn send(server: Server<'_>, mailbox: &Mailbox, message: &notice::Message<'_>, now_seconds: i64) -> Result<(), Failed> {
    let handed = tokio::time::timeout(TIMEOUT, hand_over(server, mailbox, message, now_seconds)).await;
    handed.unwrap_or_else(|_| Err(Failed::later(format!("{} did not answer within {} s", server.host, TIMEOUT.as_secs()))))
}

async fn hand_over(server: Server<'_>, mailbox: &Mailbox, message: &notice::Message<'_>, now_seconds: i64) -> Result<(), Failed> {
    let host = server.host;
    let tcp = connect(server).await?;
    let here = tcp.local_addr().map_or_else(
        |_| "[127.0.0.1]".to_owned(),
        |address| match address.ip() {
            IpAddr::V4(ip) => format!("[{ip}]"),
            IpAddr::V6(ip) => format!("[IPv6:{ip}]"),
        },
    );
    let is_near = tcp.peer_addr().is_ok_and(|peer| !is_public(peer.ip()));
    let hello = format!("EHLO {here}");
    let mut is_secure = server.is_tls;
    let stream = if is_secure { secured(tcp, host, &mailbox.tls).await? } else { Box::new(tcp) };
    let mut talk = Talk { host, stream, read: Vec::new() };
    talk.expect(2, "our call").await?;
    let mut offers = talk.say(&hello, "EHLO", 2).await?;
    if !is_secure && offers.offers("STARTTLS").is_some() {
        talk.say("STARTTLS", "STARTTLS", 2).await?;
        if !talk.read.is_empty() {
            return Err(Failed::never(format!("{host} goes on without TLS after it was asked for it: somebody is in between")));
        }
        talk = Talk { stream: secured(talk.stream, host, &mailbox.tls).await?, ..talk };
        offers = talk.say(&hello, "EHLO", 2).await?;
        is_secure = true;
    }
    let may_do_without = server.allow_private && is_near;
    if !is_secure && !may_do_without {
        return Err(Failed::never(format!(
            "{host} offers no TLS (STARTTLS); nothing was sent. A server in your own network may do without, with allow_private = true"
        )));
    }
    if let Some(login) = &mailbox.login {
        talk.login(login, offers.offers("AUTH").unwrap_or_default()).await?;
    }
    talk.say(&format!("MAIL FROM:<{}>", mailbox.from), "MAIL FROM", 2).await?;
    // Somebody who is not known there any more keeps the message from nobody else.
    let (mut is_taken, mut refused) = (false, None);
    for to in &mailbox.to {
        match talk.say(&format!("RCPT TO:<{to}>"), "RCPT TO", 2).await {
            Ok(_) => is_taken = true,
            Err(problem) => refused = Some(problem),
        }
    }
    if let Some(refused) = refused.filter(|_| !is_taken) {
        return Err(refused);
    }
    talk.say("DATA", "DATA", 3).await?;
    talk.say(&format!("{}.", mail(mailbox, message, now_seconds)), "the message", 2).await?;
    // It is taken: whether the goodbye is heard does not matter.
    let _ = talk.send("QUIT\r\n").await;
    Ok(())
}

/// The message as it travels. No line begins with a dot: headers have names, and base64 has no dots.
fn mail(mailbox: &Mailbox, message: &notice::Message<'_>, now_seconds: i64) -> String {
    let (subject, text) = notice::email(message);
    let date = jiff::Timestamp::from_second(now_seconds).unwrap_or_default().strftime("%a, %d %b %Y %H:%M:%S +0000");
    let home = mailbox.from.split_once('@').map_or("localhost", |(_, home)| home);
    let id: String = message.id.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
    let headers = [
        ("From", format!("RunGuard <{}>", mailbox.from)),
        ("To", mailbox.to.join(",\r\n ")),
        ("Subject", encoded_words(&subject)),
        ("Date", date.to_string()),
        ("Message-ID", format!("<{id}@{home}>")),
        ("Auto-Submitted", "auto-generated".to_owned()),
        ("MIME-Version", "1.0".to_owned()),
        ("Content-Type", "text/plain; charset=utf-8".to_owned()),
        ("Content-Transfer-Encoding", "base64".to_owned()),
    ];
    let headers: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let body = STANDARD.encode(text.replace('\n', "\r\n"));
    let lines: String = body.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line).into_owned() + "\r\n").collect();
    format!("{}\r\n\r\n{lines}", headers.join("\r\n"))
}

/// A header's text, in words of which each is decoded by itself: none ends inside of a character.
fn encoded_words(text: &str) -> String {
    let mut words = vec![String::new()];
    for letter in text.chars() {
        if words.last().is_some_and(|word| word.len() + letter.len_utf8() > WORD) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(letter);
        }
    }
    words.iter().map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word))).collect::<Vec<_>>().join("\r\n ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cannot_end_a_line_or_name_another() {
        for good in ["ops@example.com", "a.b+alerts@mail.example.co"] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "ops",
            "@x",
            "ops@",
            "a@b@c",
            "Ops <ops@example.com>",
            "a@b\r\nRCPT TO:<c@d>",
            "a b@c",
            "ä@b.de",
            &format!("{}@b", "a".repeat(300)),
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn a_subject_is_encoded_in_words_that_stand_alone() {
        let text = "🚨 The circuit of 'orders\r\nBcc: x@y' is open, and a long title that needs more than one word of a header";
        let encoded = encoded_words(text);
        let mut decoded = String::new();
        for line in encoded.split("\r\n ") {
            assert!(line.len() <= LINE, "{line}");
            let word = line.strip_prefix("=?utf-8?B?").and_then(|word| word.strip_suffix("?=")).unwrap();
            decoded += &String::from_utf8(STANDARD.decode(word).unwrap()).unwrap();
        }
        assert_eq!(decoded, text);
    }
}
