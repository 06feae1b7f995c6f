//! `volume ls|inspect|rm`: what servers have kept. Reads the data directory itself, and asks the daemon whose volumes are
//! in use: a volume of a registered server is never removed, whether it runs or not.

use super::Common;
use super::api::{Api, server_path};
use super::error::Error;
use super::screen::{Form, Screen};
use super::table::{Table, size};
use crate::sandbox::cleanup::volumes::{self, Place, Volume};
use crate::sandbox::container::plan::Layout;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Display;

#[derive(Subcommand)]
pub enum Volumes {
    /// List the volumes that are here, with what they take on disk
    Ls,
    /// Show everything about one volume
    Inspect(Named),
    /// Remove a volume that no registered server has
    Rm(Named),
}

#[derive(clap::Args)]
pub struct Named {
    /// The server it belongs to
    server: String,
    /// Its path in the container, as in /data
    path: String,
}

pub fn volume(common: &Common, screen: &mut Screen, command: &Volumes) -> Result<(), Error> {
    let layout = Layout::of(common.load_config()?.data_dir);
    match command {
        Volumes::Ls => ls(common, screen, &layout),
        Volumes::Inspect(named) => {
            let volume = named.find(&layout)?;
            if screen.form == Form::Json {
                return Ok(screen.json(&as_json(common, &volume).to_string())?);
            }
            let (kind, place) = match &volume.place {
                Place::Image(path) => ("image", path),
                Place::Directory(path) => ("directory", path),
            };
            Ok(screen.pairs(&[
                ("server", volume.server.clone()),
                ("path", volume.path.clone()),
                ("size", size_of(&volume)),
                ("in use", in_use(common, &volume).map_or("unknown", yes_no).to_string()),
                (kind, place.display().to_string()),
            ])?)
        }
        Volumes::Rm(named) => rm(common, screen, &layout, &named.find(&layout)?),
    }
}

impl Named {
    fn find(&self, layout: &Layout) -> Result<Volume, Error> {
        let found = volumes::find(layout, &self.server, &self.path).map_err(fault)?;
        let Named { server, path } = self;
        found.ok_or_else(|| Error::Fault(format!("{server} has no volume {path}; `stdiod volume ls` lists them")))
    }
}

fn ls(common: &Common, screen: &mut Screen, layout: &Layout) -> Result<(), Error> {
    let all = volumes::list(layout).map_err(fault)?;
    if screen.form == Form::Json {
        let rows = all.iter().flat_map(|(server, found)| match found {
            Ok(volumes) => volumes.iter().map(|volume| as_json(common, volume)).collect(),
            Err(why) => vec![json!({"server": server, "path": null, "bytes": null, "error": why})],
        });
        return Ok(screen.json(&Value::Array(rows.collect()).to_string())?);
    }
    let mut table = Table::new(&["server", "path", "size", "in use"]);
    for (server, found) in &all {
        match found {
            Ok(volumes) => volumes.iter().for_each(|volume| {
                let used = in_use(common, volume).map_or("unknown", yes_no);
                table.row(vec![server.clone(), volume.path.clone(), size_of(volume), used.to_string()]);
            }),
            Err(why) => table.row(vec![server.clone(), "?".to_string(), why.clone(), "unknown".to_string()]),
        }
    }
    Ok(screen.table(&table)?)
}

/// Of one that cannot be measured, why not.
fn size_of(volume: &Volume) -> String {
    match &volume.size {
        Ok(found) if found.whole => size(found.bytes),
        Ok(found) => format!("over {}", size(found.bytes)),
        Err(why) => why.clone(),
    }
}

fn rm(common: &Common, screen: &mut Screen, layout: &Layout, volume: &Volume) -> Result<(), Error> {
    let Volume { server, path, .. } = volume;
    match in_use(common, volume) {
        Ok(false) => {}
        Ok(true) => {
            return Err(Error::Fault(format!("{path} belongs to {server}, which is registered; remove that first")));
        }
        Err(error) => {
            let why = error.message().unwrap_or_default();
            return Err(Error::Fault(format!("only the daemon knows whether {server} still needs it: {why}")));
        }
    }
    volumes::remove(layout, volume).map_err(fault)?;
    match screen.form {
        Form::Json => Ok(()),
        Form::Human => Ok(screen.line(&format!("removed {path} of {server}"))?),
    }
}

/// Has a registered server this volume?
fn in_use(common: &Common, volume: &Volume) -> Result<bool, Error> {
    let answer = match Api::new(common)?.get(&server_path(&volume.server, "")) {
        Ok(answer) => answer,
        Err(Error::Refused(refusal)) if refusal.status == 404 => return Ok(false),
        Err(error) => return Err(error),
    };
    let status: Value = serde_json::from_str(&answer).map_err(fault)?;
    let paths = status["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_it = |shown: &str| shown.strip_suffix(":ro").unwrap_or(shown) == volume.path;
    Ok(paths.iter().filter_map(Value::as_str).any(is_it))
}

fn as_json(common: &Common, volume: &Volume) -> Value {
    let (image, directory) = match &volume.place {
        Place::Image(path) => (Some(path), None),
        Place::Directory(path) => (None, Some(path)),
    };
    json!({
        "server": volume.server,
        "path": volume.path,
        "bytes": volume.size.as_ref().ok().map(|size| size.bytes),
        "whole": volume.size.as_ref().ok().map(|size| size.whole),
        "error": volume.size.as_ref().err(),
        "in_use": in_use(common, volume).ok(),
        "image": image,
        "directory": directory,
    })
}

fn yes_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn fault(why: impl Display) -> Error {
    Error::Fault(why.to_string())
}
