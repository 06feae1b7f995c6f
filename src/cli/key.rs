//! `key rotate`: the daemon seals all that is secret in its database with a new key. No key ever comes here.

use super::api::{Api, Wait};
use super::error::Error;
use super::screen::{Form, Screen};
use crate::api::route::KEY_ROTATION;
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Key {
    /// Seal all secrets with a new key, which takes the place of the old one
    Rotate,
}

pub fn key(api: &Api, screen: &mut Screen, command: &Key) -> Result<(), Error> {
    match command {
        Key::Rotate => {
            api.post(KEY_ROTATION, None, Wait::Quick)?;
            match screen.form {
                Form::Json => {}
                Form::Human => screen.line("the key was rotated; keep a copy of the new one where you keep backups")?,
            }
            Ok(screen.flush()?)
        }
    }
}
