//! What clients are refused before the core is asked: for want of memory, and definitions that name what this host does not
//! have. Looks at the disk once, for a new definition; owns nothing.

use crate::api::{mcp, rest};
use crate::limits::OVERLOAD_RETRY;
use crate::model::definition::{Definition, PullPolicy, Source as RootfsSource};
use crate::model::fault::{Code, Fault, Outcome};
use crate::sandbox::container::network;
use crate::sandbox::container::plan::Networking;
use crate::sandbox::image::Images;
use crate::sandbox::image::registry::reference::reference;
use crate::sandbox::image::registry::{PullError, Registries};
use crate::shares::Short;
use crate::wire::http_out::Response;

pub fn overloaded(short: Short) -> Response {
    let why = match short {
        Short::Owner => {
            "your other requests and connections take all that one token may have; end some, or send less at once"
        }
        Short::Whole => "requests of other clients fill the memory there is for them; try again, or send less at once",
    };
    rest::refuse(&Fault::new(Code::Overloaded, why).retry_after_ms(OVERLOAD_RETRY.as_millis() as u64))
}

/// For an answer that has no room, because its client does not read those that it has.
pub fn crowded(short: Short) -> Fault {
    let why = match short {
        Short::Owner => "answers and streams that you have not read take all that one token may have; read them first",
        Short::Whole => "answers that other clients have not read take all the memory there is for them; try again",
    };
    Fault::new(Code::Overloaded, why).retry_after_ms(OVERLOAD_RETRY.as_millis() as u64)
}

pub fn crowded_out(short: Short) -> Response {
    rest::refuse(&crowded(short))
}

/// The server has answered, so whatever it was asked to do is done.
pub fn crowded_call(short: Short) -> Response {
    rest::refuse(&crowded(short).outcome(Outcome::SentUnknown))
}

pub fn crowded_message(short: Short) -> Response {
    mcp::refuse(None, &crowded(short).outcome(Outcome::SentUnknown))
}

/// A definition must not be stored for a network that nobody has configured.
pub fn missing_network(definition: &Definition, networking: &Networking) -> Option<Fault> {
    let name = definition.network.as_ref().filter(|name| !network::exists(networking, name))?;
    let dirs: Vec<String> = networking.conf_dirs.iter().map(|dir| dir.display().to_string()).collect();
    let why = format!("there is no network {name}: no CNI configuration in {} has this name", dirs.join(" or "));
    Some(Fault::field("network", why))
}

/// Nor for an image that is not here and cannot come. One look at the disk, for a new
/// definition only; what a registry has is found out by the start.
pub fn missing_image(definition: &Definition, images: &Images, registries: &Registries) -> Option<Fault> {
    let RootfsSource::Image(name) = &definition.source else { return None };
    let can_come = match definition.pull_policy {
        PullPolicy::Missing | PullPolicy::Always => reference(name, registries.default.as_deref()).map(|r| r.is_some()),
        PullPolicy::Never => Ok(false),
    };
    let why = match (images.resolve(name), can_come, definition.pull_policy) {
        (Ok(Some(_)), _, PullPolicy::Missing | PullPolicy::Never) | (Ok(_), Ok(true), _) => return None,
        (Ok(_), Ok(false), PullPolicy::Missing | PullPolicy::Always) => {
            PullError::NoRegistry { image: name.clone() }.to_string()
        }
        (Ok(_), Ok(false), PullPolicy::Never) => {
            format!("{name} is not here, and pull_policy is never; `stdiod image import PATH --name {name}` brings it")
        }
        (Err(e), _, _) | (_, Err(e), _) => e.to_string(),
    };
    Some(Fault::new(Code::ImageNotFound, format!("image: {why}")).with("field", "image"))
}
