//! Tokens that a link shows to its server, fetched with client credentials (RFC 6749, 4.4) from whoever gives them out. Owns
//! the request and what is believed of its answer; a redirect is not followed, because it would carry the secret elsewhere.
//! Invariants: one request at a time; no token, no secret and nothing that the other side writes freely stands in an error.

use crate::limits::{
    LINK_TOKEN_ANSWER_MAX, LINK_TOKEN_LIFE_ASSUMED, LINK_TOKEN_LIFE_MAX, LINK_TOKEN_MAX, LINK_TOKEN_WAIT,
};
use crate::model::endpoint::{ClientCredentials, LinkFault, LinkFaultKind};
use crate::wire::http::response::Head;
use crate::wire::http::url::Url;
use crate::wire::remote::exchanges::{Ask, Exchanges, Step};
use crate::wire::remote::{Channel, Command, Heard, verdict};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Channels of the link's own are numbered from 1.
const FIRST_CHANNEL: u64 = 1 << 62;

#[derive(Clone, PartialEq, Eq)]
pub struct Bearer {
    text: String,
    pub fetched_ms: u64,
    /// Shortly before it ends.
    pub until_ms: u64,
}

impl Bearer {
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.text)
    }
}

pub struct Fetch {
    exchanges: Exchanges,
    head: Option<Head>,
    body: Vec<u8>,
}

pub enum Fetched {
    NotYet,
    Bearer(Bearer),
    Failed(LinkFault),
}

impl Fetch {
    pub fn is_for(channel: Channel) -> bool {
        channel.0 >= FIRST_CHANNEL
    }

    /// `nth`: of this link, so that no channel is used twice.
    pub fn begin(credentials: &ClientCredentials, nth: u64, now_ms: u64) -> Result<Fetch, LinkFault> {
        let url = Url::parse(&credentials.token_url)
            .ok_or_else(|| LinkFault::new(LinkFaultKind::Invalid, "auth.token_url: is no http or https address"))?;
        let login = format!("{}:{}", form_encoded(&credentials.client_id), form_encoded(&credentials.client_secret));
        let headers = [
            ("Content-Type", "application/x-www-form-urlencoded".to_string()),
            ("Accept", "application/json".to_string()),
            ("Authorization", format!("Basic {}", STANDARD.encode(login))),
        ];
        let mut form = "grant_type=client_credentials".to_string();
        for (name, value) in [("scope", &credentials.scope), ("resource", &credentials.resource)] {
            if let Some(value) = value {
                form += &format!("&{name}={}", form_encoded(value));
            }
        }
        let mut exchanges = Exchanges::numbered_from(url.clone(), FIRST_CHANNEL + (nth << 16));
        exchanges.begin(Ask {
            method: "POST",
            path: url.path,
            headers: headers.map(|(name, value)| (name.to_string(), value)).into(),
            body: Some(form.into_bytes()),
            by_ms: Some(now_ms + LINK_TOKEN_WAIT.as_millis() as u64),
        });
        Ok(Fetch { exchanges, head: None, body: Vec::new() })
    }

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) -> Fetched {
        self.exchanges.heard(channel, heard, now_ms);
        self.follow(now_ms)
    }

    pub fn tick(&mut self, now_ms: u64) -> Fetched {
        self.exchanges.tick(now_ms);
        self.follow(now_ms)
    }

    fn follow(&mut self, now_ms: u64) -> Fetched {
        while let Some((_, step)) = self.exchanges.next_step() {
            match step {
                Step::Head(head) => self.head = Some(head),
                Step::Body(bytes) if self.body.len() + bytes.len() > LINK_TOKEN_ANSWER_MAX => {
                    let message =
                        format!("auth: the answer with the token is larger than {LINK_TOKEN_ANSWER_MAX} bytes");
                    return Fetched::Failed(LinkFault::new(LinkFaultKind::Protocol, message));
                }
                Step::Body(bytes) => self.body.extend_from_slice(&bytes),
                Step::End => {
                    let Some(head) = self.head.take() else { continue };
                    return match read(&head, &self.body, now_ms) {
                        Ok(bearer) => Fetched::Bearer(bearer),
                        Err(why) => Fetched::Failed(why),
                    };
                }
                Step::Failed { why, .. } => {
                    let message = format!("auth: no token could be fetched: {}", why.message);
                    return Fetched::Failed(LinkFault { message, ..why });
                }
            }
        }
        Fetched::NotYet
    }

    pub fn poll(&mut self) -> Option<Command> {
        self.exchanges.poll()
    }

    pub fn close(&mut self) {
        self.exchanges.close_all();
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.exchanges.next_deadline()
    }

    pub fn held(&self) -> usize {
        self.exchanges.held() + self.body.capacity()
    }
}

fn read(head: &Head, body: &[u8], now_ms: u64) -> Result<Bearer, LinkFault> {
    #[derive(Deserialize)]
    struct Wire {
        access_token: Option<String>,
        token_type: Option<String>,
        expires_in: Option<f64>,
        error: Option<String>,
    }
    let answer = serde_json::from_slice::<Wire>(body);
    if head.status != 200 {
        // One of a few words that the standard has; whatever else stands there is not repeated.
        let is_word = |error: &String| error.len() <= 64 && error.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let word = answer.ok().and_then(|answer| answer.error).filter(is_word);
        let word = word.map_or(String::new(), |word| format!(" ({word})"));
        let message = format!("auth: {} is answered for the client credentials{word}", head.status);
        let kind = match head.status {
            400 | 401 | 403 => LinkFaultKind::Unauthorized(head.status),
            status => LinkFaultKind::Status(status),
        };
        return Err(LinkFault { kind, message, retry_after_ms: verdict::retry_after_ms(head) });
    }
    let broken = |why: &str| LinkFault::new(LinkFaultKind::Protocol, format!("auth: {why}"));
    let wire = answer.map_err(|_| broken("the answer with the token is no JSON object of the expected kind"))?;
    let text = wire.access_token.ok_or_else(|| broken("there is no access_token in the answer"))?;
    if text.is_empty() || text.len() > LINK_TOKEN_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(broken("the access_token cannot be sent in a header"));
    }
    if wire.token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err(broken("the token is no bearer token"));
    }
    let life_ms = match wire.expires_in {
        Some(seconds) if seconds.is_finite() && seconds > 0.0 => (seconds * 1000.0) as u64,
        Some(_) | None => LINK_TOKEN_LIFE_ASSUMED.as_millis() as u64,
    };
    let life_ms = life_ms.min(LINK_TOKEN_LIFE_MAX.as_millis() as u64);
    // A tenth of it, and at most half a minute, for the way there and for clocks.
    let early_ms = (life_ms / 10).min(30_000);
    Ok(Bearer { text, fetched_ms: now_ms, until_ms: now_ms + life_ms - early_ms })
}

/// `application/x-www-form-urlencoded`.
fn form_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => out.push(byte as char),
            b' ' => out.push('+'),
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str) -> Result<Bearer, LinkFault> {
        let credentials = ClientCredentials {
            token_url: "http://t.test/token?a=b".to_string(),
            client_id: "me: é".to_string(),
            client_secret: "hidden&".to_string(),
            scope: Some("a b".to_string()),
            resource: None,
        };
        let mut fetch = Fetch::begin(&credentials, 1, 0).unwrap();
        let Some(Command::Open { channel, .. }) = fetch.poll() else { panic!("it connects") };
        assert!(Fetch::is_for(channel));
        assert!(matches!(fetch.heard(channel, Heard::Connected { proxy: None }, 0), Fetched::NotYet));
        let Some(Command::Write { bytes, .. }) = fetch.poll() else { panic!("it asks") };
        let words = String::from_utf8(bytes).unwrap();
        assert!(words.starts_with("POST /token?a=b HTTP/1.1\r\n"), "{words}");
        assert!(words.ends_with("\r\n\r\ngrant_type=client_credentials&scope=a+b"), "{words}");
        assert!(words.contains(&format!("Authorization: Basic {}\r\n", STANDARD.encode("me%3A+%C3%A9:hidden%26"))));
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        match fetch.heard(channel, Heard::Bytes(text.into_bytes()), 1_000) {
            Fetched::Bearer(bearer) => Ok(bearer),
            Fetched::Failed(why) => Err(why),
            Fetched::NotYet => panic!("all of it is there"),
        }
    }

    #[test]
    fn a_token_is_believed_until_shortly_before_its_end() {
        let bearer = answered(200, r#"{"access_token":"t0","token_type":"bearer","expires_in":100}"#).unwrap();
        assert_eq!((bearer.authorization().as_str(), bearer.until_ms), ("Bearer t0", 91_000));
        let long = answered(200, r#"{"access_token":"t0","expires_in":1e300}"#).unwrap();
        assert!(long.until_ms <= 1_000 + LINK_TOKEN_LIFE_MAX.as_millis() as u64);
        let silent = answered(200, r#"{"access_token":"t0","expires_in":-1}"#).unwrap();
        assert!(silent.until_ms > 1_000);
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_and_never_repeated() {
        for (status, body) in [
            (200, "[]"),
            (200, "{}"),
            (200, r#"{"access_token":"hid\r\nden"}"#),
            (200, r#"{"access_token":""}"#),
            (200, r#"{"access_token":"hidden","token_type":"mac"}"#),
            (400, r#"{"error":"HIDDEN hidden"}"#),
            (302, ""),
            (500, "hidden"),
        ] {
            let why = answered(status, body).err().unwrap_or_else(|| panic!("{body} is refused"));
            assert!(!why.message.to_ascii_lowercase().contains("hid"), "{}", why.message);
            assert!(why.message.starts_with("auth: "), "{}", why.message);
        }
        let why = answered(401, r#"{"error":"invalid_client"}"#).err().unwrap();
        assert_eq!(why.kind, LinkFaultKind::Unauthorized(401));
        assert!(why.message.contains("invalid_client"));
    }
}
