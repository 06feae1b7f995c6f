//! Images from registries (OCI distribution API) into the image store. A pull fills a layout directory with verified
//! blobs, without any lock that others wait for, and then imports from it as from any other layout; so a pull that is
//! killed at any moment leaves the store as it was, and parts that the next one takes up. Blocks: runs in a child.

pub mod auth;
pub mod fetch;
pub mod http;
pub mod proxy;
pub mod pull;
pub mod reference;
pub mod session;
pub mod trust;

use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::plan::Layout;
use crate::sandbox::image::ImageError;
use crate::sandbox::image::registry::trust::Trust;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// What the configuration says of registries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registries {
    /// `HOST[:PORT]` that are spoken to without TLS.
    pub insecure: Vec<String>,
    /// Where names without a registry come from; none: nowhere.
    pub default: Option<String>,
    /// What of them may be run.
    pub trust: Trust,
}

/// What a puller is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PullOrder {
    pub image: String,
    pub layout: Layout,
    pub registries: Registries,
    /// Whose child the puller is, and with whom it dies.
    pub parent_pid: i32,
}

#[derive(Debug)]
pub enum PullError {
    /// The name says no registry, and neither does the configuration.
    NoRegistry {
        image: String,
    },
    /// It is not among `allowed_images`.
    NotAllowed {
        image: String,
        place: String,
    },
    /// None of `image_keys` has signed it.
    Unsigned {
        digest: String,
        why: String,
    },
    NotFound {
        registry: String,
        what: String,
        why: String,
    },
    Denied {
        registry: String,
        logged_in: bool,
        why: String,
    },
    /// No connection, or one that broke or stalled.
    Unreachable {
        registry: String,
        why: String,
    },
    /// It says what no registry should.
    Protocol {
        registry: String,
        why: String,
    },
    Helper {
        registry: String,
        file: String,
        helper: String,
    },
    AuthFile {
        file: String,
        why: String,
    },
    TooSlow {
        hours: u64,
    },
    /// Another layer has failed.
    Ended,
    Image(ImageError),
}

impl PullError {
    pub fn unreachable(registry: &str, why: &io::Error) -> PullError {
        let why = match why.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer any more".to_owned(),
            _ => why.to_string(),
        };
        PullError::Unreachable { registry: registry.to_owned(), why }
    }

    pub fn protocol(registry: &str, why: &str) -> PullError {
        PullError::Protocol { registry: registry.to_owned(), why: why.trim_end().to_owned() }
    }

    pub fn io(doing: &str, error: io::Error) -> PullError {
        PullError::Image(ImageError::io(doing, error))
    }

    /// As the daemon tells it.
    pub fn to_fault(&self, image: &str) -> LaunchFault {
        let kind = match self {
            PullError::NoRegistry { .. }
            | PullError::NotAllowed { .. }
            | PullError::Unsigned { .. }
            | PullError::NotFound { .. }
            | PullError::Denied { .. } => LaunchFaultKind::ImageNotFound,
            PullError::Unreachable { .. }
            | PullError::Protocol { .. }
            | PullError::Helper { .. }
            | PullError::AuthFile { .. }
            | PullError::TooSlow { .. }
            | PullError::Ended
            | PullError::Image(_) => LaunchFaultKind::Rootfs,
        };
        LaunchFault { kind, message: format!("pulling {image}: {self}") }
    }
}

impl From<ImageError> for PullError {
    fn from(error: ImageError) -> PullError {
        PullError::Image(error)
    }
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PullError::NoRegistry { image } => write!(
                f,
                "{image} is not here, and its name says no registry to pull it from: write REGISTRY/{image}, set \
                 default_registry, or bring it with `stdiod image import PATH --name {image}`"
            ),
            PullError::NotAllowed { image, place } => {
                write!(f, "{image} may not be run here: neither {place} nor its digest is among `allowed_images`")
            }
            PullError::Unsigned { digest, why } => {
                write!(f, "{digest} is not signed by one of `image_keys`: {why}; docs/images.md says how to sign it")
            }
            PullError::NotFound { registry, what, why } => write!(f, "{registry} has no {what} ({why})"),
            PullError::Denied { registry, logged_in: false, why } => {
                write!(f, "{registry} wants a login; `podman login {registry}` writes the auth file")?;
                if why.is_empty() { Ok(()) } else { write!(f, " ({why})") }
            }
            PullError::Denied { registry, logged_in: true, why } => {
                write!(f, "{registry} does not accept the credentials of the auth file for this image")?;
                if why.is_empty() { Ok(()) } else { write!(f, " ({why})") }
            }
            PullError::Unreachable { registry, why } => write!(f, "{registry} cannot be reached: {why}"),
            PullError::Protocol { registry, why } => write!(f, "{registry}: {why}"),
            PullError::Helper { registry, file, helper } => write!(
                f,
                "the credentials for {registry} are with the helper {helper:?} of {file}, and helpers are not run \
                 here; put them into an auth file and name it with REGISTRY_AUTH_FILE"
            ),
            PullError::AuthFile { file, why } => write!(f, "auth file {file}: {why}"),
            PullError::TooSlow { hours } => {
                write!(f, "it has not come within {hours} hours; the next pull goes on from here")
            }
            PullError::Ended => f.write_str("another layer has failed"),
            PullError::Image(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PullError {}
