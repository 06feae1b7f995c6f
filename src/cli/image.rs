//! `image import|ls|rm`: works on the data directory itself, with no daemon in between, so that images can be put in
//! place before the first start. What an image is, `sandbox/image.rs` knows.

use super::Common;
use super::error::Error;
use super::screen::{Form, Screen};
use super::table::{Table, size};
use crate::sandbox::image::{Images, StoredImage};
use crate::sandbox::plan::Layout;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Display;

#[derive(Subcommand)]
pub enum Image {
    /// Import an image from disk: an OCI layout (DIR, or DIR:TAG to choose one) or an archive
    #[command(after_help = "Example:
  stdiod image import ./notes-oci --name notes:1")]
    Import {
        /// Where it is
        path: String,
        /// What to call it here
        #[arg(long, value_name = "NAME:TAG")]
        name: String,
    },
    /// List the images that are here
    Ls,
    /// Remove an image
    Rm {
        /// As shown by `stdiod image ls`
        #[arg(value_name = "NAME:TAG")]
        name: String,
    },
}

pub fn image(common: &Common, screen: &mut Screen, command: &Image) -> Result<(), Error> {
    let images = Images::of(&Layout::of(common.load_config()?.data_dir));
    match command {
        Image::Import { path, name } => import(&images, screen, path, name),
        Image::Ls => ls(&images, screen),
        Image::Rm { name } => rm(&images, screen, name),
    }
}

fn import(images: &Images, screen: &mut Screen, source: &str, name: &str) -> Result<(), Error> {
    let imported = images.import(source, name, &mut |step| eprintln!("{step}")).map_err(fault)?;
    match screen.form {
        Form::Json => screen.json(&as_json(&imported).to_string())?,
        Form::Human => screen.line(&format!("imported {} ({})", imported.name, size(imported.packed_bytes)))?,
    }
    Ok(())
}

fn ls(images: &Images, screen: &mut Screen) -> Result<(), Error> {
    let images = images.list().map_err(fault)?;
    if screen.form == Form::Json {
        return Ok(screen.json(&Value::Array(images.iter().map(as_json).collect()).to_string())?);
    }
    let mut table = Table::new(&["name", "size", "digest"]);
    for one in &images {
        table.row(vec![one.name.clone(), size(one.packed_bytes), one.digest.clone()]);
    }
    Ok(screen.table(&table)?)
}

fn rm(images: &Images, screen: &mut Screen, name: &str) -> Result<(), Error> {
    if !images.remove(name).map_err(fault)? {
        return Err(Error::Fault(format!("there is no image {name}; `stdiod image ls` lists those that are here")));
    }
    match screen.form {
        Form::Json => Ok(()),
        Form::Human => Ok(screen.line(&format!("removed {name}"))?),
    }
}

fn as_json(image: &StoredImage) -> Value {
    json!({ "name": image.name, "digest": image.digest, "bytes": image.packed_bytes })
}

fn fault(why: impl Display) -> Error {
    Error::Fault(why.to_string())
}
