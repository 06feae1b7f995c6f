//! All that one program tells the next: the core, and the shell around it. Owns the bytes in memory that has no name in any
//! file system, and the exec itself. Never looks into what the parts say.

use crate::core::Core;
use crate::core::freeze::{self, Unreadable};
use crate::ids::{ConnId, InstanceId};
use crate::limits::FROZEN_BYTES_MAX;
use crate::model::metrics::Turns;
use crate::os::children::database::CarriedDatabase;
use crate::os::children::pulls::CarriedPulls;
use crate::os::children::reap::Children;
use crate::os::event_loop::boot::carried::CarriedListener;
use crate::os::instances::carried::CarriedInstances;
use crate::os::net::clients::carried::CarriedClients;
use crate::os::net::ports::carried::CarriedPorts;
use crate::os::upgrade::carrying::{Carrying, adopt, set_kept};
use crate::os::upgrade::{Sealed, Started, TAKES_OVER};
use crate::shares::Shares;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// What is read of it. It is written from a `Whole` that only borrows the core.
#[derive(Deserialize)]
pub struct State {
    pub core: Core,
    pub shell: Shell,
}

#[derive(Serialize)]
#[serde(rename = "State")]
struct Whole<'a> {
    core: &'a Core,
    shell: &'a Shell,
}

#[derive(Serialize, Deserialize)]
pub struct Shell {
    /// The version of the program that has written this.
    pub version: String,
    /// The daemon's clock, and what the kernel's said then.
    pub mono_ms: u64,
    pub kernels_clock: Duration,
    /// Distinguishes containers of this daemon's life, which goes on.
    pub boot_id: String,
    /// Of the data directory.
    pub lock: RawFd,
    /// The client that has asked for this.
    pub asker: Option<ConnId>,
    pub listeners: Vec<CarriedListener>,
    pub clients: CarriedClients,
    pub shares: Shares,
    pub children: Children,
    pub instances: CarriedInstances,
    pub ports: CarriedPorts,
    pub pulls: CarriedPulls,
    pub database: CarriedDatabase,
    /// Links to external servers, which the next program makes anew.
    pub links: Vec<InstanceId>,
    pub turns: Turns,
}

/// A file in memory.
pub struct Memory(File);

impl Memory {
    fn new(bytes: &[u8]) -> io::Result<Memory> {
        let mut file = File::from(memfd_create("stdiod-state", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(bytes)?;
        file.rewind()?;
        Ok(Memory(file))
    }

    pub fn file(&self) -> &File {
        &self.0
    }
}

/// `carrying`: what the shell has named in `shell`.
pub fn seal(core: &Core, shell: &Shell, carrying: Carrying) -> Result<Sealed, String> {
    let told = |why: Unreadable| format!("the state cannot be written: {why}");
    let bytes = freeze::freeze(&Whole { core, shell }).map_err(told)?;
    let memory = Memory::new(&bytes).map_err(|e| format!("there is no memory for the state: {e}"))?;
    let shapes = freeze::shapes(&bytes).map_err(told)?;
    Ok(Sealed { memory, shapes, descriptors: carrying.descriptors })
}

/// Reads a state to its end, from wherever the file stands.
pub fn read(file: File) -> Result<State, String> {
    let mut bytes = Vec::new();
    let most = FROZEN_BYTES_MAX as u64 + 1024;
    file.take(most).read_to_end(&mut bytes).map_err(|e| format!("the state cannot be read: {e}"))?;
    freeze::thaw(&bytes).map_err(|why| why.to_string())
}

/// The state that the process before has left under this number.
pub fn taken_over(number: RawFd) -> Result<State, String> {
    read(adopt(number).map_err(|e| format!("there is no state to take over: {e}"))?.into())
}

/// Replaces this program by another one. Comes back only if that fails: everything is as it was then.
pub fn replace(program: &Path, started: &Started, sealed: &Sealed) -> io::Error {
    let state = sealed.memory.file().as_raw_fd();
    let kept = || sealed.descriptors.iter().copied().chain([state]);
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let exec = || -> io::Result<()> {
        let mut args = vec![c"stdiod".to_owned(), text(TAKES_OVER.as_bytes())?, text(state.to_string().as_bytes())?];
        for arg in &started.args {
            args.push(text(arg.as_bytes())?);
        }
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            environment.push(text(&[name.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
        let program = text(program.as_os_str().as_bytes())?;
        for number in kept() {
            set_kept(number, true)?;
        }
        nix::unistd::execve(&program, &args, &environment)?;
        Ok(())
    };
    let failed = exec().err().unwrap_or_else(|| io::ErrorKind::Other.into());
    kept().for_each(|number| _ = set_kept(number, false));
    failed
}
