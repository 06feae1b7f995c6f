//! Which images may be run: those that `allowed_images` names, and those that one of `image_keys` has signed, in the form in
//! which cosign keeps signatures beside an image (ECDSA P-256 over the SHA-256 of a small document that names its digest).
//! Without either, all. Judges names and documents; what a registry has is fetched by `session`.

use crate::limits::{SIGNATURE_BYTES_MAX, SIGNATURES_MAX};
use crate::sandbox::image::registry::PullError;
use crate::sandbox::image::registry::fetch::hex;
use crate::sandbox::image::registry::reference::{Reference, Version, is_sha256_hex, reference};
use crate::sandbox::image::registry::session::Session;
use crate::sandbox::image::{ImageError, StoredImage};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;

/// What cosign calls its document, and where its signature stands beside it.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const KIND: &str = "cosign container image signature";
/// What stands before the point in every public key for P-256: the algorithm, the curve, and how long the point is.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const POINT_BYTES: usize = 65;
const UNCOMPRESSED: u8 = 4;

/// One of `allowed_images`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allowed {
    /// `HOST[:PORT]`, or that and the beginning of a repository, up to a slash.
    Below(String),
    /// `sha256:…`, wherever it comes from.
    Digest(String),
}

impl Allowed {
    pub fn parse(text: &str) -> Option<Allowed> {
        if text.strip_prefix("sha256:").is_some_and(is_sha256_hex) {
            return Some(Allowed::Digest(text.to_owned()));
        }
        let is_place = !text.contains('@') && reference(&format!("{text}/x"), None).is_ok_and(|found| found.is_some());
        is_place.then(|| Allowed::Below(text.to_owned()))
    }

    fn covers(&self, asked: &Reference) -> bool {
        match self {
            Allowed::Below(place) => {
                let whole = format!("{}/{}", asked.registry, asked.repository);
                whole.strip_prefix(place.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Allowed::Digest(digest) => matches!(&asked.version, Version::Digest(asked) if asked == digest),
        }
    }
}

/// A public key of whoever signs images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKey {
    point: Vec<u8>,
}

impl SigningKey {
    /// As `cosign generate-key-pair` writes it to `cosign.pub`, or `openssl pkey -pubout`.
    pub fn of_pem(text: &[u8]) -> Result<SigningKey, &'static str> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(text).map_err(|_| "holds no public key in PEM")?;
        match der.strip_prefix(&P256_HEAD) {
            Some(point) if point.len() == POINT_BYTES && point[0] == UNCOMPRESSED => {
                Ok(SigningKey { point: point.to_vec() })
            }
            Some(_) | None => Err("holds a public key that is not for ECDSA on P-256"),
        }
    }

    /// Its name in the record of an image.
    pub fn id(&self) -> String {
        hex(&Sha256::digest(&self.point))
    }

    fn has_signed(&self, document: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(document, signature).is_ok()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// None: all.
    pub allowed: Vec<Allowed>,
    /// None: nothing need be signed.
    pub keys: Vec<SigningKey>,
}

impl Trust {
    /// Whether an image of this name may be run. One without a registry was imported here, by whoever runs this daemon.
    pub fn admits(&self, name: &str, default_registry: Option<&str>) -> Result<(), PullError> {
        match reference(name, default_registry)? {
            Some(asked) if !self.allowed.is_empty() && !self.allowed.iter().any(|one| one.covers(&asked)) => {
                let Reference { registry, repository, .. } = asked;
                Err(PullError::NotAllowed { image: name.to_owned(), place: format!("{registry}/{repository}") })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether an image that is here was signed by one of the keys when it came, if it had to be.
    pub fn vouches_for(&self, image: &StoredImage, default_registry: Option<&str>) -> Result<bool, ImageError> {
        if self.keys.is_empty() || reference(&image.name, default_registry)?.is_none() {
            return Ok(true);
        }
        Ok(image.signed_by.as_ref().is_some_and(|by| self.keys.iter().any(|key| key.id() == *by)))
    }

    /// The key that has signed the image with this digest; none, if nothing need be signed.
    pub fn signer(&self, session: &Session<'_>, digest: &str) -> Result<Option<String>, PullError> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let unsigned = |why: &str| PullError::Unsigned { digest: digest.to_owned(), why: why.to_owned() };
        let text = match session.manifest(&format!("{}.sig", digest.replace(':', "-"))) {
            Ok((text, _)) => text,
            Err(PullError::NotFound { .. }) => return Err(unsigned("the registry has no signature of it")),
            Err(error) => return Err(error),
        };
        let listed: Listed =
            serde_json::from_slice(&text).map_err(|_| unsigned("the list of its signatures is none"))?;
        for layer in listed.layers.iter().filter(|layer| layer.media_type == PAYLOAD).take(SIGNATURES_MAX) {
            let Some(signature) = layer.annotations.get(SIGNATURE).and_then(|text| STANDARD.decode(text).ok()) else {
                continue;
            };
            let document = document(session, layer)?;
            let key = self.keys.iter().find(|key| key.has_signed(&document, &signature));
            if let Some(key) = key.filter(|_| is_of(&document, digest)) {
                return Ok(Some(key.id()));
            }
        }
        Err(unsigned("none of its signatures is by one of these keys and for this digest"))
    }
}

/// The manifest that stands for the signatures of an image.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    layers: Vec<ListedLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedLayer {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// What was signed, if it is what the list says.
fn document(session: &Session<'_>, layer: &ListedLayer) -> Result<Vec<u8>, PullError> {
    let wrong = |why: &str| PullError::Image(ImageError::Unreadable(format!("a signature of it: {why}")));
    if !layer.digest.strip_prefix("sha256:").is_some_and(is_sha256_hex) || layer.size > SIGNATURE_BYTES_MAX {
        return Err(wrong("it is too large, or names no SHA-256"));
    }
    let answer = session.blob(&layer.digest, None)?;
    let mut document = Vec::new();
    let read = answer.body.take(SIGNATURE_BYTES_MAX + 1).read_to_end(&mut document);
    read.map_err(|e| PullError::unreachable(&answer.url.authority(), &e))?;
    match format!("sha256:{}", hex(&Sha256::digest(&document))) == layer.digest {
        true => Ok(document),
        false => Err(wrong("it is not what its digest says")),
    }
}

/// A document that was signed says which image it is for: one for another is worth nothing here.
fn is_of(document: &[u8], digest: &str) -> bool {
    #[derive(Deserialize)]
    struct Document {
        critical: Critical,
    }
    #[derive(Deserialize)]
    struct Critical {
        #[serde(rename = "type")]
        kind: String,
        image: Image,
    }
    #[derive(Deserialize)]
    struct Image {
        #[serde(rename = "docker-manifest-digest")]
        digest: String,
    }
    let read = serde_json::from_slice::<Document>(document);
    read.is_ok_and(|document| document.critical.kind == KIND && document.critical.image.digest == digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn trust(allowed: &[&str]) -> Trust {
        let allowed = allowed.iter().map(|text| Allowed::parse(text).unwrap_or_else(|| panic!("{text}"))).collect();
        Trust { allowed, keys: Vec::new() }
    }

    #[test]
    fn a_list_is_of_places_and_digests_and_a_place_ends_at_a_slash() {
        let listed = trust(&["r.example:5000", "s.example/team", DIGEST]);
        let admits = |name: &str| listed.admits(name, None).is_ok();
        let here = ["r.example:5000/a", "r.example:5000/b/c:1", "s.example/team:1", "s.example/team/a", "imported:1"];
        for name in here {
            assert!(admits(name), "{name}");
        }
        for name in ["r.example/a", "r.example:50/a", "s.example/teams/a", "s.example/other", "t.example/team/a"] {
            assert!(!admits(name), "{name}");
        }
        // Its digest says what it is, wherever it comes from; a tag does not.
        assert!(admits(&format!("t.example/a@{DIGEST}")));
        assert!(!admits(&format!("t.example/a@{}b", &DIGEST[..DIGEST.len() - 1])));
        // Where names without a registry come from decides about them.
        assert!(listed.admits("a:1", Some("r.example:5000")).is_ok());
        assert!(listed.admits("a:1", Some("t.example")).is_err());
        assert!(trust(&[]).admits("t.example/a", None).is_ok());
        for wrong in ["", "team", "r.example/", "r.example/a@x", "sha256:abc", "https://r.example", "r.example/A"] {
            assert_eq!(Allowed::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_key_is_one_for_p256_in_pem_and_nothing_else() {
        let pem =
            |der: &[u8]| format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
        let good = [&P256_HEAD[..], &[UNCOMPRESSED], &[1; 64]].concat();
        let key = SigningKey::of_pem(pem(&good).as_bytes()).unwrap();
        assert_eq!((key.point.len(), key.id().len()), (POINT_BYTES, 64));
        let mut compressed = good.clone();
        compressed[P256_HEAD.len()] = 2;
        for wrong in [&good[..80], &compressed, &good[1..], b""] {
            assert!(SigningKey::of_pem(pem(wrong).as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(SigningKey::of_pem(b"no PEM").is_err());
    }

    #[test]
    fn a_signed_document_is_for_one_image() {
        let document = |kind: &str, digest: &str| {
            let image = json!({"docker-manifest-digest": digest});
            json!({"critical": {"identity": {}, "image": image, "type": kind}, "optional": null}).to_string()
        };
        assert!(is_of(document(KIND, DIGEST).as_bytes(), DIGEST));
        assert!(!is_of(document(KIND, "sha256:b").as_bytes(), DIGEST));
        assert!(!is_of(document("another kind", DIGEST).as_bytes(), DIGEST));
        assert!(!is_of(b"{}", DIGEST));
    }
}
