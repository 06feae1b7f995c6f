//! An authorization server as far as a resource server sees it: metadata, keys, and tokens with whatever claims and
//! signatures a test wants. Counts who asks it for what; can be slow, and can be gone while its address stays.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub enum Signer {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub fn p256() -> Signer {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        Signer::P256(pair.expect("just made"))
    }

    pub fn ed25519() -> Signer {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Signer::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("just made"))
    }

    pub fn algorithm(&self) -> &'static str {
        match self {
            Signer::P256(_) => "ES256",
            Signer::Ed25519(_) => "EdDSA",
        }
    }

    pub fn public(&self, kid: &str) -> Value {
        let coded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Signer::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": coded(&point[1..33]), "y": coded(&point[33..])})
            }
            Signer::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": coded(pair.public_key().as_ref())})
            }
        }
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let text = unsigned(header, claims);
        let signature = match self {
            Signer::P256(pair) => pair.sign(&SystemRandom::new(), text.as_bytes()).expect("signed").as_ref().to_vec(),
            Signer::Ed25519(pair) => pair.sign(text.as_bytes()).as_ref().to_vec(),
        };
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

pub fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

#[derive(Default)]
struct State {
    keys: Mutex<Vec<Value>>,
    asked: AtomicUsize,
    keys_told: AtomicUsize,
    slow_ms: AtomicU64,
    gone: AtomicBool,
    over: AtomicBool,
}

pub struct Issuer {
    pub url: String,
    state: Arc<State>,
}

impl Issuer {
    pub fn start(keys: Vec<Value>) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(State { keys: Mutex::new(keys), ..State::default() });
        let (shared, issuer) = (Arc::clone(&state), url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                shared.asked.fetch_add(1, Ordering::SeqCst);
                if !shared.gone.load(Ordering::SeqCst) {
                    _ = shared.answer(stream, &issuer);
                }
            }
        });
        Issuer { url, state }
    }

    pub fn publish(&self, keys: Vec<Value>) {
        *self.state.keys.lock().expect("not poisoned") = keys;
    }

    /// Every answer takes so long.
    pub fn slow_down(&self, by: Duration) {
        self.state.slow_ms.store(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Connections are closed without an answer.
    pub fn go(&self) {
        self.state.gone.store(true, Ordering::SeqCst);
    }

    pub fn come_back(&self) {
        self.state.gone.store(false, Ordering::SeqCst);
    }

    pub fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    pub fn keys_told(&self) -> usize {
        self.state.keys_told.load(Ordering::SeqCst)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream, issuer: &str) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        for line in lines.by_ref() {
            if line?.is_empty() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(self.slow_ms.load(Ordering::SeqCst)));
        let body = match first.split(' ').nth(1) {
            Some("/.well-known/openid-configuration") => {
                json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")})
            }
            Some("/keys") => {
                self.keys_told.fetch_add(1, Ordering::SeqCst);
                json!({"keys": *self.keys.lock().expect("not poisoned")})
            }
            _ => return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        };
        let body = body.to_string();
        let length = body.len();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
        stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())
    }
}
