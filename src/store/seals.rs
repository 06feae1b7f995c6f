//! The key that the store seals and opens values with. It is read when it is first needed. Invariant: a key file is made only
//! as long as nothing in the database is known to be sealed; a lost key is never replaced by a new one.

use crate::sealing::{Missing, Sealer, SealingError};
use std::path::PathBuf;

pub struct Seals {
    key_file: PathBuf,
    sealer: Option<Sealer>,
    missing: Missing,
}

impl Seals {
    pub fn new(key_file: PathBuf) -> Seals {
        Seals { key_file, sealer: None, missing: Missing::Create }
    }

    /// `what_for` must be the same when it is opened.
    pub fn seal(&mut self, what_for: &str, clear: &str) -> Result<String, SealingError> {
        let sealed = self.sealer()?.seal(what_for, clear.as_bytes())?;
        self.missing = Missing::Refuse;
        Ok(sealed)
    }

    pub fn open(&mut self, what_for: &str, sealed: &str) -> Result<String, SealingError> {
        self.missing = Missing::Refuse;
        let clear = self.sealer()?.open(what_for, sealed)?;
        String::from_utf8(clear).map_err(|_| SealingError::Damaged)
    }

    /// Tried again each time until there is one: an operator may bring it back.
    fn sealer(&mut self) -> Result<&Sealer, SealingError> {
        let sealer = match self.sealer.take() {
            Some(sealer) => sealer,
            None => Sealer::from_file(&self.key_file, self.missing)?,
        };
        Ok(self.sealer.insert(sealer))
    }
}
