//! `image import|ls|rm`: works on the data directory itself, with no daemon in between, so that images can be put in
//! place before the first start. What an image is, `sandbox/image.rs` knows.

use super::Common;
use super::error::Error;
use super::screen::{Form, Screen};
use super::table::{Table, size};
use crate::sandbox::image;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::Path;

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
    let data_dir = common.load_config()?.data_dir;
    match command {
        Image::Import { path, name } => import(&data_dir, screen, path, name),
        Image::Ls => ls(&data_dir, screen),
        Image::Rm { name } => rm(&data_dir, screen, name),
    }
}

fn import(data_dir: &Path, screen: &mut Screen, source: &str, name: &str) -> Result<(), Error> {
    let imported = image::import(data_dir, source, name).map_err(fault)?;
    match screen.form {
        Form::Json => screen.json(&as_json(&imported).to_string())?,
        Form::Human => screen.line(&format!("imported {} ({})", imported.name, size(imported.bytes)))?,
    }
    Ok(())
}

fn ls(data_dir: &Path, screen: &mut Screen) -> Result<(), Error> {
    let images = image::list(data_dir).map_err(fault)?;
    if screen.form == Form::Json {
        return Ok(screen.json(&Value::Array(images.iter().map(as_json).collect()).to_string())?);
    }
    let mut table = Table::new(&["name", "size", "digest"]);
    for one in &images {
        table.row(vec![one.name.clone(), size(one.bytes), one.digest.clone()]);
    }
    Ok(screen.table(&table)?)
}

fn rm(data_dir: &Path, screen: &mut Screen, name: &str) -> Result<(), Error> {
    image::remove(data_dir, name).map_err(fault)?;
    match screen.form {
        Form::Json => Ok(()),
        Form::Human => Ok(screen.line(&format!("removed {name}"))?),
    }
}

fn as_json(image: &image::Imported) -> Value {
    json!({ "name": image.name, "digest": image.digest, "bytes": image.bytes })
}

fn fault(why: impl Display) -> Error {
    Error::Fault(why.to_string())
}
