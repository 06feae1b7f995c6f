//! What must not stand in the database or on disk in clear: sealed with a key that is in a file of its own (AEAD by `ring`).
//! Owns the form of a sealed text and the key file; never shows a key or a value. Invariants: a text opens only for what it
//! was sealed for, so that a row's secret cannot be put into another row; a key file is made once and never replaced.

use crate::limits::{KEY_FILE_MAX, SEALED_MAX};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How a sealed text begins. Another number would be another cipher, or another form.
const VERSION: &str = "sealed1";
/// How a key file begins.
const KEY_VERSION: &str = "stdiod-key-1";
const KEY_LEN: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealingError {
    /// There is none, and none may be made.
    NoKeyFile {
        path: String,
    },
    /// It cannot be read or made, or is not what a key file is.
    KeyFile {
        path: String,
        why: String,
    },
    /// The text was sealed with another key.
    WrongKey {
        sealed_with: String,
        have: String,
    },
    /// It is no sealed text, was changed, or was sealed for something else.
    Damaged,
    UnknownVersion {
        version: String,
    },
    TooLarge,
    /// The kernel gave no randomness.
    NoRandomness,
}

impl fmt::Display for SealingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SealingError::NoKeyFile { path } => {
                write!(f, "the key file {path} is gone, and what is sealed with it cannot be opened without it")
            }
            SealingError::KeyFile { path, why } => write!(f, "the key file {path}: {why}"),
            SealingError::WrongKey { sealed_with, have } => {
                write!(f, "this was sealed with the key {sealed_with}, and the key file has the key {have}")
            }
            SealingError::Damaged => write!(f, "what is sealed is damaged, or was sealed for something else"),
            SealingError::UnknownVersion { version } => {
                write!(f, "what is sealed has the form {version:?}, which this version does not know")
            }
            SealingError::TooLarge => write!(f, "more than {SEALED_MAX} bytes cannot be sealed"),
            SealingError::NoRandomness => write!(f, "the system gives no random bytes"),
        }
    }
}

impl std::error::Error for SealingError {}

/// One key, ready to use.
pub struct Sealer {
    id: String,
    key: LessSafeKey,
    random: SystemRandom,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Where the key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    File(PathBuf),
    /// Handed to the service by systemd, and read-only.
    Credential(PathBuf),
}

impl KeyPlace {
    pub fn path(&self) -> &Path {
        match self {
            KeyPlace::File(path) | KeyPlace::Credential(path) => path,
        }
    }
}

/// Whether a key file that is not there is made. Once something is sealed it is not: a new key would open none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Create,
    Refuse,
}

impl Sealer {
    /// The key in this file. Two that make it at the same time have the same key afterwards.
    pub fn from_file(path: &Path, missing: Missing) -> Result<Sealer, SealingError> {
        let shown = path.display().to_string();
        let failed = |e: io::Error| SealingError::KeyFile { path: shown.clone(), why: e.to_string() };
        loop {
            match read_key(path) {
                Ok(key) => return Sealer::with_key(key),
                Err(e) if e.kind() == io::ErrorKind::NotFound && missing == Missing::Create => {
                    create_key(path).map_err(failed)?;
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return Err(SealingError::NoKeyFile { path: shown.clone() });
                }
                Err(e) => return Err(failed(e)),
            }
        }
    }

    fn with_key(mut key: [u8; KEY_LEN]) -> Result<Sealer, SealingError> {
        // Of the key's hash: it tells keys apart, and nothing about them.
        let hash = digest(&SHA256, &[b"stdiod key id", &key[..]].concat());
        let id = hash.as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let unbound = UnboundKey::new(&CHACHA20_POLY1305, &key).map_err(|_| SealingError::Damaged)?;
        key.fill(0);
        Ok(Sealer { id, key: LessSafeKey::new(unbound), random: SystemRandom::new() })
    }

    /// What tells this key from others; no secret.
    pub fn key_id(&self) -> &str {
        &self.id
    }

    /// `what_for` must be the same when it is opened, such as `secret/PROJECT/NAME`. The nonce is random: one key may seal
    /// some billions of texts before two of them could be the same.
    pub fn seal(&self, what_for: &str, clear: &[u8]) -> Result<String, SealingError> {
        if clear.len() > SEALED_MAX {
            return Err(SealingError::TooLarge);
        }
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| SealingError::NoRandomness)?;
        let mut sealed = clear.to_vec();
        let bound = Aad::from(bound_to(&self.id, what_for));
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), bound, &mut sealed)
            .map_err(|_| SealingError::TooLarge)?;
        let bytes = [&nonce[..], &sealed].concat();
        Ok(format!("{VERSION}:{}:{}", self.id, URL_SAFE_NO_PAD.encode(bytes)))
    }

    pub fn open(&self, what_for: &str, sealed: &str) -> Result<Vec<u8>, SealingError> {
        let Parts { key_id, bytes } = parts(sealed)?;
        if key_id != self.id {
            return Err(SealingError::WrongKey { sealed_with: key_id.to_string(), have: self.id.clone() });
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(bytes).map_err(|_| SealingError::Damaged)?;
        let (nonce, text) = bytes.split_first_chunk_mut::<NONCE_LEN>().ok_or(SealingError::Damaged)?;
        let bound = Aad::from(bound_to(&self.id, what_for));
        let clear = self.key.open_in_place(Nonce::assume_unique_for_key(*nonce), bound, text);
        Ok(clear.map_err(|_| SealingError::Damaged)?.to_vec())
    }
}

/// The key that a text was sealed with, whether it is here or not.
pub fn key_id_of(sealed: &str) -> Result<&str, SealingError> {
    parts(sealed).map(|parts| parts.key_id)
}

struct Parts<'a> {
    key_id: &'a str,
    bytes: &'a str,
}

fn parts(sealed: &str) -> Result<Parts<'_>, SealingError> {
    // Longer than anything that was ever sealed here, with what base64 adds.
    if sealed.len() > 2 * SEALED_MAX {
        return Err(SealingError::TooLarge);
    }
    let mut parts = sealed.splitn(3, ':');
    let (version, key_id, bytes) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let (Some(key_id), Some(bytes)) = (key_id, bytes) else { return Err(SealingError::Damaged) };
    if version != VERSION {
        let is_ours = version.starts_with("sealed") && version.len() < 16;
        return Err(if is_ours {
            SealingError::UnknownVersion { version: version.to_string() }
        } else {
            SealingError::Damaged
        });
    }
    let is_id = key_id.len() == 12 && key_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { Ok(Parts { key_id, bytes }) } else { Err(SealingError::Damaged) }
}

/// The form and the key are bound too: nobody can make an older form of a newer text.
fn bound_to(key_id: &str, what_for: &str) -> Vec<u8> {
    format!("{VERSION}:{key_id}:{what_for}").into_bytes()
}

// --- the key file ---------------------------------------------------------------------------------------------------

fn read_key(path: &Path) -> io::Result<[u8; KEY_LEN]> {
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why.to_string()));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return refuse("it is no file");
    }
    if about.mode() & 0o077 != 0 {
        return refuse("others than its owner may read it; make it 0600, and replace the key if others have read it");
    }
    let mut text = String::new();
    file.take(KEY_FILE_MAX).read_to_string(&mut text)?;
    let decoded = match text.trim_end().split_once(' ') {
        Some((KEY_VERSION, key)) => STANDARD.decode(key).ok(),
        Some(_) | None => None,
    };
    match decoded.and_then(|bytes| bytes.try_into().ok()) {
        Some(key) => Ok(key),
        None => refuse("it holds no key of this version"),
    }
}

/// Whole or not at all, and never over one that is there: a key that was half written would be lost with what it sealed.
fn create_key(path: &Path) -> io::Result<()> {
    let mut key = [0; KEY_LEN];
    SystemRandom::new().fill(&mut key).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    let directory = directory_of(path);
    let mark = key[..4].iter().fold(0u32, |mark, byte| mark << 8 | u32::from(*byte)) ^ std::process::id();
    let draft = directory.join(format!(".key-{mark:08x}.draft"));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).and_then(|mut file| {
        file.write_all(format!("{KEY_VERSION} {}\n", STANDARD.encode(key)).as_bytes())?;
        file.sync_all()
    });
    key.fill(0);
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft).or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
    match linked {
        Ok(()) => File::open(directory)?.sync_all(),
        // Somebody else was quicker; theirs is the key.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// The key in `next` takes the place of the one at `path`, whole, and stays there whatever happens to the machine.
pub fn put_in_place(next: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(next, path)?;
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("stdiod-sealing-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Place(path)
        }

        fn key(&self) -> PathBuf {
            self.0.join("key")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn sealer(byte: u8) -> Sealer {
        Sealer::with_key([byte; KEY_LEN]).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_for_the_same_thing_and_for_nothing_else() {
        let sealer = sealer(1);
        for clear in [&b""[..], b"hunter2", &[0xff; 5000]] {
            let sealed = sealer.seal("secret/p/NAME", clear).unwrap();
            assert!(!sealed.contains("hunter2") && sealed.is_ascii());
            assert_eq!(sealer.open("secret/p/NAME", &sealed).unwrap(), clear);
            assert_eq!(sealer.open("secret/p/OTHER", &sealed), Err(SealingError::Damaged));
            assert_ne!(sealer.seal("secret/p/NAME", clear).unwrap(), sealed, "two seals of one value differ");
            assert_eq!(key_id_of(&sealed), Ok(sealer.key_id()));
        }
        assert_eq!(sealer.seal("x", &vec![0; SEALED_MAX + 1]), Err(SealingError::TooLarge));
    }

    #[test]
    fn a_wrong_key_is_named_and_damage_is_told_from_it() {
        let (one, two) = (sealer(1), sealer(2));
        let sealed = one.seal("x", b"value").unwrap();
        let wrong = two.open("x", &sealed).unwrap_err();
        assert_eq!(wrong, SealingError::WrongKey { sealed_with: one.id.clone(), have: two.id.clone() });
        assert!(wrong.to_string().contains(one.key_id()) && wrong.to_string().contains(two.key_id()));
        let start = VERSION.len() + 1 + one.id.len() + 1;
        for at in start..sealed.len() {
            let mut damaged = sealed.clone().into_bytes();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            let damaged = String::from_utf8(damaged).unwrap();
            assert_eq!(one.open("x", &damaged), Err(SealingError::Damaged), "byte {at}");
        }
        for length in 0..sealed.len() {
            assert_eq!(one.open("x", &sealed[..length]), Err(SealingError::Damaged), "{length} bytes");
        }
        for text in ["", "::", "plain", "a:b:c", "sealed1:é:x", &sealed.replace(':', ";"), &format!("{sealed}\n")] {
            assert_eq!(one.open("x", text), Err(SealingError::Damaged), "{text:?}");
        }
        let newer = sealed.replace(VERSION, "sealed2");
        assert_eq!(one.open("x", &newer), Err(SealingError::UnknownVersion { version: "sealed2".to_string() }));
    }

    #[test]
    fn a_key_file_is_made_once_for_its_owner_alone() {
        let place = Place::new("once");
        assert!(matches!(Sealer::from_file(&place.key(), Missing::Refuse), Err(SealingError::NoKeyFile { .. })));
        assert!(!place.key().exists(), "nothing is put in the place of a lost key");
        let made = Sealer::from_file(&place.key(), Missing::Create).unwrap();
        assert_eq!(std::fs::metadata(place.key()).unwrap().permissions().mode() & 0o777, 0o600);
        let sealed = made.seal("x", b"value").unwrap();
        for missing in [Missing::Create, Missing::Refuse] {
            let again = Sealer::from_file(&place.key(), missing).unwrap();
            assert_eq!(again.open("x", &sealed).unwrap(), b"value");
        }
        assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 1, "no draft is left");
        let text = std::fs::read_to_string(place.key()).unwrap();
        assert!(!format!("{made:?}").contains(text.split(' ').nth(1).unwrap().trim()));
    }

    #[test]
    fn many_that_make_the_key_at_the_same_time_have_one_key() {
        let place = Place::new("race");
        let ids: Vec<String> = std::thread::scope(|scope| {
            let make = || Sealer::from_file(&place.key(), Missing::Create).unwrap().id;
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn a_key_file_that_others_read_or_that_holds_no_key_is_refused_and_left_alone() {
        let place = Place::new("bad");
        let refused = || match Sealer::from_file(&place.key(), Missing::Create).unwrap_err() {
            SealingError::KeyFile { why, .. } => why,
            other => panic!("{other}"),
        };
        for text in ["", "stdiod-key-1", "stdiod-key-1 AAAA", "stdiod-key-9 x", "\u{0}", &"x".repeat(100_000)] {
            std::fs::write(place.key(), text).unwrap();
            std::fs::set_permissions(place.key(), std::fs::Permissions::from_mode(0o600)).unwrap();
            assert!(refused().contains("no key"), "{text:?}");
            assert_eq!(std::fs::read_to_string(place.key()).unwrap(), text);
        }
        std::fs::set_permissions(place.key(), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(refused().contains("0600"));
        std::fs::remove_file(place.key()).unwrap();
        std::fs::create_dir(place.key()).unwrap();
        assert!(refused().contains("no file"));
        std::fs::remove_dir(place.key()).unwrap();
        std::os::unix::fs::symlink("/dev/null", place.key()).unwrap();
        assert!(!refused().is_empty());
    }
}
