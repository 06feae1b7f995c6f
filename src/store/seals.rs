//! The keys that the store seals and opens values with: one, and during a rotation a second, `<key>.next`. They are read when
//! they are first needed. Invariants: a key file is made only as long as nothing in the database is known to be sealed, a lost
//! key is never replaced by a new one; and a key file is replaced only when nothing is left that the old key alone opens.

use crate::sealing::{KeyPlace, Missing, Sealer, SealingError, key_id_of, put_in_place};
use std::path::{Path, PathBuf};

pub struct Seals {
    place: KeyPlace,
    current: Option<Sealer>,
    /// Of a rotation that has begun: whatever is sealed from then on is sealed with it.
    next: Option<Sealer>,
    missing: Missing,
}

impl Seals {
    pub fn new(place: KeyPlace) -> Seals {
        Seals { place, current: None, next: None, missing: Missing::Create }
    }

    /// Something in the database is sealed.
    pub fn expect_key(&mut self) {
        self.missing = Missing::Refuse;
    }

    /// `what_for` must be the same when it is opened.
    pub fn seal(&mut self, what_for: &str, clear: &str) -> Result<String, SealingError> {
        let sealer = match &self.next {
            Some(next) => next,
            None => self.current()?,
        };
        let sealed = sealer.seal(what_for, clear.as_bytes())?;
        self.missing = Missing::Refuse;
        Ok(sealed)
    }

    pub fn open(&mut self, what_for: &str, sealed: &str) -> Result<String, SealingError> {
        self.missing = Missing::Refuse;
        let id = key_id_of(sealed)?;
        let sealer = match &self.next {
            Some(next) if next.key_id() == id => next,
            Some(_) | None => self.current()?,
        };
        String::from_utf8(sealer.open(what_for, sealed)?).map_err(|_| SealingError::Damaged)
    }

    /// Tried again each time until there is one: an operator may bring it back.
    fn current(&mut self) -> Result<&Sealer, SealingError> {
        let sealer = match self.current.take() {
            Some(sealer) => sealer,
            None => Sealer::from_file(self.place.path(), self.missing)?,
        };
        Ok(self.current.insert(sealer))
    }

    // --- rotation -------------------------------------------------------------------------------------------------

    /// Was a daemon killed in the middle of a rotation? Then both keys are needed, and it can be finished.
    pub fn resume(&mut self) -> Result<(), SealingError> {
        self.next = match Sealer::from_file(&next_to(self.place.path()), Missing::Refuse) {
            Ok(next) => Some(next),
            Err(SealingError::NoKeyFile { .. }) => None,
            Err(e) => return Err(e),
        };
        Ok(())
    }

    pub fn is_rotating(&self) -> bool {
        self.next.is_some()
    }

    /// From here on the next key seals, and both open.
    pub fn begin_rotation(&mut self) -> Result<(), SealingError> {
        if let KeyPlace::Credential(path) = &self.place {
            return Err(SealingError::KeyFile {
                path: path.display().to_string(),
                why: "it is a credential, which only systemd can replace; to rotate, name a `secret_key_file`"
                    .to_string(),
            });
        }
        self.current()?;
        if self.next.is_none() {
            self.next = Some(Sealer::from_file(&next_to(self.place.path()), Missing::Create)?);
        }
        Ok(())
    }

    /// Everything that the old key opened is sealed with the next one, for good.
    pub fn finish_rotation(&mut self) -> Result<(), SealingError> {
        let path = self.place.path();
        put_in_place(&next_to(path), path)
            .map_err(|e| SealingError::KeyFile { path: path.display().to_string(), why: e.to_string() })?;
        self.current = self.next.take();
        Ok(())
    }
}

fn next_to(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".next");
    PathBuf::from(name)
}
