//! `image pull|import|ls|inspect|rm|prune`: works on the data directory itself, with no daemon in between, so that images
//! can be put in place before the first start. What an image is, `sandbox/image.rs` knows.

use super::Common;
use super::error::Error;
use super::progress::Progress;
use super::screen::{Form, Screen};
use super::table::{Table, size};
use crate::sandbox::container::plan::Layout;
use crate::sandbox::image::registry::{self, Registries};
use crate::sandbox::image::{Images, StoredImage};
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Display;

#[derive(Subcommand)]
pub enum Image {
    /// Pull an image from a registry; one that is here is made current
    #[command(after_help = "Examples:
  stdiod image pull registry.example/notes:1
  stdiod image pull registry.example/notes@sha256:…

Credentials come from the auth file of podman or docker (REGISTRY_AUTH_FILE, or where `podman login` and `docker login`
write them). An interrupted pull goes on where it ended.")]
    Pull {
        #[arg(value_name = "REGISTRY/NAME:TAG")]
        name: String,
    },
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
    /// Show everything about one image
    Inspect {
        /// As shown by `stdiod image ls`
        #[arg(value_name = "NAME:TAG")]
        name: String,
    },
    /// Remove what nobody needs: unused layers and downloads that were not finished
    Prune {
        /// Also every image that no running server uses; servers that are stopped pull theirs again, if they can
        #[arg(long)]
        all: bool,
    },
    /// Remove an image that no running server uses
    Rm {
        /// As shown by `stdiod image ls`
        #[arg(value_name = "NAME:TAG")]
        name: String,
    },
}

pub fn image(common: &Common, screen: &mut Screen, command: &Image) -> Result<(), Error> {
    let config = common.load_config()?;
    let registries = config.registries().map_err(fault)?;
    let images = Images::of(&Layout::of(config.data_dir));
    match command {
        Image::Pull { name } => pull(&images, &registries, screen, name),
        Image::Inspect { name } => inspect(&images, screen, name),
        Image::Prune { all } => prune(&images, screen, *all),
        Image::Import { path, name } => import(&images, screen, path, name),
        Image::Ls => ls(&images, screen),
        Image::Rm { name } => rm(&images, screen, name),
    }
}

fn pull(images: &Images, registries: &Registries, screen: &mut Screen, name: &str) -> Result<(), Error> {
    let mut progress = Progress::new();
    let pulled = registry::pull::pull(images, name, registries, &mut |step| progress.show(step));
    progress.end();
    let pulled = pulled.map_err(fault)?;
    match screen.form {
        Form::Json => screen.json(&as_json(&pulled).to_string())?,
        Form::Human => screen.line(&format!("{} is here, {}", pulled.name, pulled.digest))?,
    }
    Ok(())
}

fn inspect(images: &Images, screen: &mut Screen, name: &str) -> Result<(), Error> {
    let found = images.resolve(name).map_err(fault)?.ok_or_else(|| no_image(name))?;
    let mut shown = serde_json::to_value(&found).map_err(fault)?;
    shown["in_use"] = images.in_use().map_err(fault)?.contains(&found.name).into();
    Ok(screen.json(&shown.to_string())?)
}

fn prune(images: &Images, screen: &mut Screen, all: bool) -> Result<(), Error> {
    let pruned = images.prune(all).map_err(fault)?;
    if screen.form == Form::Json {
        let shown = json!({ "images": pruned.images, "partial_bytes": pruned.partial_bytes });
        return Ok(screen.json(&shown.to_string())?);
    }
    for name in &pruned.images {
        screen.line(&format!("removed {name}"))?;
    }
    Ok(screen.line(&format!("removed {} of unfinished downloads", size(pruned.partial_bytes)))?)
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
        return Err(no_image(name));
    }
    match screen.form {
        Form::Json => Ok(()),
        Form::Human => Ok(screen.line(&format!("removed {name}"))?),
    }
}

fn no_image(name: &str) -> Error {
    Error::Fault(format!("there is no image {name}; `stdiod image ls` lists those that are here"))
}

fn as_json(image: &StoredImage) -> Value {
    json!({ "name": image.name, "digest": image.digest, "bytes": image.packed_bytes })
}

fn fault(why: impl Display) -> Error {
    Error::Fault(why.to_string())
}
