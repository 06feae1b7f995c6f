//! The public keys of an authorization server (RFC 7517), and whether one of them has signed a token. Reads what the server
//! says within bounds; a key of a kind that is not known here, or too weak, is left out. Never fetches anything.

use crate::api::auth::jwt::{Algorithm, Jwt};
use crate::limits::{OAUTH_KEYS_MAX, OAUTH_KEYS_TRIED, OAUTH_WORD_MAX};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

/// Bytes of a modulus: 2048 to 8192 bits, as `ring` has it.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
const P256_COORDINATE: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(Vec<Key>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A point, as it goes over the wire.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Whose signature a token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    Good,
    Bad,
    /// Of a key that is not known; the server may have a new one by now.
    Unknown,
}

#[derive(Deserialize)]
struct Wire {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// An error says what is wrong, for the log.
    pub fn parse(text: &[u8]) -> Result<Keys, String> {
        let wire: Wire = serde_json::from_slice(text).map_err(|e| format!("its key set is no JWKS: {e}"))?;
        if wire.keys.len() > OAUTH_KEYS_MAX {
            return Err(format!("its key set has {} keys, and {OAUTH_KEYS_MAX} are the most", wire.keys.len()));
        }
        let keys: Vec<Key> = wire.keys.into_iter().filter_map(Key::of).collect();
        match keys.is_empty() {
            true => Err("its key set has no key for RS256, ES256 or EdDSA".to_string()),
            false => Ok(Keys(keys)),
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A key is used for the one algorithm that it is for, whatever the token says of it.
    pub fn look_at(&self, token: &Jwt<'_>) -> Signature {
        let fits = |key: &&Key| key.material.algorithm() == token.algorithm;
        let named = |key: &&Key| token.kid.is_none() || key.id == token.kid;
        let mut tried = self.0.iter().filter(fits).filter(named).take(OAUTH_KEYS_TRIED).peekable();
        if tried.peek().is_none() {
            return Signature::Unknown;
        }
        match (tried.any(|key| key.material.has_signed(token)), &token.kid) {
            (true, _) => Signature::Good,
            (false, Some(_)) => Signature::Bad,
            // It may be a new key that has no name either.
            (false, None) => Signature::Unknown,
        }
    }
}

impl Key {
    fn of(value: serde_json::Value) -> Option<Key> {
        let wire: WireKey = serde_json::from_value(value).ok()?;
        let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let material = match (wire.kty.as_str(), wire.crv.as_deref()) {
            ("RSA", _) => {
                let modulus = without_zeros(bytes(wire.n)?);
                let exponent = without_zeros(bytes(wire.e)?);
                let strong = RSA_BYTES.contains(&modulus.len()) && (1..=8).contains(&exponent.len());
                strong.then_some(Material::Rsa { modulus, exponent })?
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(wire.x)?, bytes(wire.y)?);
                let whole = x.len() == P256_COORDINATE && y.len() == P256_COORDINATE;
                whole.then(|| Material::P256([&[4], &x[..], &y[..]].concat()))?
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(wire.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        let for_signatures = wire.purpose.is_none_or(|purpose| purpose == "sig");
        let for_this = wire.alg.is_none_or(|alg| Algorithm::of(&alg) == Some(material.algorithm()));
        let named = wire.kid.as_ref().is_none_or(|kid| kid.len() <= OAUTH_WORD_MAX);
        (for_signatures && for_this && named).then_some(Key { id: wire.kid, material })
    }
}

fn without_zeros(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.drain(..zeros);
    number
}

impl Material {
    fn algorithm(&self) -> Algorithm {
        match self {
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn has_signed(&self, token: &Jwt<'_>) -> bool {
        let (signed, signature) = (token.signed, token.signature.as_slice());
        match self {
            Material::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature).is_ok()
            }
            Material::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature).is_ok()
            }
            Material::Ed25519(point) => UnparsedPublicKey::new(&ED25519, point).verify(signed, signature).is_ok(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::api::auth::jwt;
    use crate::api::auth::jwt::tests::unsigned;
    use crate::wire::mutation::Mutator;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::{Value, json};

    pub enum Signer {
        P256(EcdsaKeyPair),
        Ed25519(Ed25519KeyPair),
    }

    impl Signer {
        pub fn p256() -> Signer {
            let random = SystemRandom::new();
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
            Signer::P256(pair.unwrap())
        }

        pub fn ed25519() -> Signer {
            let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
            Signer::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
        }

        pub fn public(&self, kid: Option<&str>) -> Value {
            let coded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
            let mut key = match self {
                Signer::P256(pair) => {
                    let point = pair.public_key().as_ref();
                    json!({"kty": "EC", "crv": "P-256", "x": coded(&point[1..33]), "y": coded(&point[33..])})
                }
                Signer::Ed25519(pair) => {
                    json!({"kty": "OKP", "crv": "Ed25519", "x": coded(pair.public_key().as_ref())})
                }
            };
            if let Some(kid) = kid {
                key["kid"] = json!(kid);
            }
            key
        }

        pub fn sign(&self, header: &Value, claims: &Value) -> String {
            let text = unsigned(header, claims);
            let signature = match self {
                Signer::P256(pair) => pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap().as_ref().to_vec(),
                Signer::Ed25519(pair) => pair.sign(text.as_bytes()).as_ref().to_vec(),
            };
            format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
        }
    }

    /// A key of `openssl genrsa 2048`, and a token that `openssl dgst -sha256 -sign` has signed with it.
    const RSA_KEY: &str = include_str!("jwks/rsa.json");

    fn claims() -> Value {
        json!({"iss": "i", "aud": "a", "sub": "s", "exp": 1})
    }

    fn look(keys: &[Value], token: &str) -> Signature {
        let keys = Keys::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
        keys.look_at(&jwt::parse(token.as_bytes()).unwrap())
    }

    #[test]
    fn each_kind_of_key_knows_its_own_signature_and_no_other() {
        let (one, other, edwards) = (Signer::p256(), Signer::p256(), Signer::ed25519());
        let signed = |signer: &Signer, alg: &str, kid: &str| signer.sign(&json!({"alg": alg, "kid": kid}), &claims());
        let keys = [one.public(Some("1")), other.public(Some("2")), edwards.public(Some("3"))];
        assert_eq!(look(&keys, &signed(&one, "ES256", "1")), Signature::Good);
        assert_eq!(look(&keys, &signed(&edwards, "EdDSA", "3")), Signature::Good);
        assert_eq!(look(&keys, &signed(&one, "ES256", "2")), Signature::Bad);
        assert_eq!(look(&keys, &signed(&one, "ES256", "9")), Signature::Unknown);
        // A key is not used for what it is not for.
        assert_eq!(look(&keys, &signed(&edwards, "ES256", "3")), Signature::Unknown);
        assert_eq!(look(&keys, &signed(&one, "RS256", "1")), Signature::Unknown);
        let nameless = one.sign(&json!({"alg": "ES256"}), &claims());
        assert_eq!(look(&keys, &nameless), Signature::Good, "all that could be are tried");
        assert_eq!(look(&keys[1..], &nameless), Signature::Unknown);
        let mut changed = signed(&one, "ES256", "1").into_bytes();
        let at = changed.iter().position(|byte| *byte == b'.').unwrap() + 3;
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        if let Ok(token) = jwt::parse(&changed) {
            let keys = Keys::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
            assert_eq!(keys.look_at(&token), Signature::Bad);
        }
    }

    #[test]
    fn what_others_have_signed_with_rsa_is_known() {
        let fixture: Value = serde_json::from_str(RSA_KEY).unwrap();
        let token = fixture["token"].as_str().unwrap();
        assert_eq!(look(&[fixture["key"].clone()], token), Signature::Good);
        let mut padded = fixture["key"].clone();
        let modulus = URL_SAFE_NO_PAD.decode(padded["n"].as_str().unwrap()).unwrap();
        padded["n"] = json!(URL_SAFE_NO_PAD.encode([&[0], &modulus[..]].concat()));
        assert_eq!(look(&[padded], token), Signature::Good, "some write a zero in front");
        let broken = format!("{}A", &token[..token.len() - 1]);
        if let Ok(broken) = jwt::parse(broken.as_bytes()) {
            let keys = Keys::parse(json!({"keys": [fixture["key"]]}).to_string().as_bytes()).unwrap();
            assert_eq!(keys.look_at(&broken), Signature::Bad);
        }
    }

    #[test]
    fn keys_that_are_weak_or_for_something_else_are_left_out() {
        let good = Signer::p256().public(Some("1"));
        let kept = |keys: &[Value]| Keys::parse(json!({ "keys": keys }).to_string().as_bytes()).map(|keys| keys.len());
        assert_eq!(kept(std::slice::from_ref(&good)), Ok(1));
        let with = |field: &str, value: Value| {
            let mut key = good.clone();
            key[field] = value;
            key
        };
        let short = URL_SAFE_NO_PAD.encode([9; 128]);
        for bad in [
            with("use", json!("enc")),
            with("alg", json!("ES384")),
            with("alg", json!("RS256")),
            with("crv", json!("P-384")),
            with("kty", json!("oct")),
            with("x", json!("AAAA")),
            with("kid", json!(5)),
            json!({"kty": "RSA", "n": short, "e": "AQAB"}),
            json!({"kty": "oct", "k": "c2VjcmV0"}),
            json!(5),
        ] {
            assert_eq!(kept(&[good.clone(), bad.clone()]), Ok(1), "{bad}");
            assert!(kept(&[bad]).is_err());
        }
        assert!(kept(&vec![good; OAUTH_KEYS_MAX + 1]).is_err());
        for text in ["", "[]", "{}", r#"{"keys":5}"#] {
            assert!(Keys::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let seed = json!({"keys": [Signer::p256().public(Some("1")), Signer::ed25519().public(None)]}).to_string();
        let token = Signer::p256().sign(&json!({"alg": "ES256", "kid": "1"}), &claims());
        let token = jwt::parse(token.as_bytes()).unwrap();
        let mut mutator = Mutator::new(5);
        for _ in 0..5_000 {
            if let Ok(keys) = Keys::parse(&mutator.mutate(&[seed.as_bytes()])) {
                _ = keys.look_at(&token);
            }
        }
    }
}
