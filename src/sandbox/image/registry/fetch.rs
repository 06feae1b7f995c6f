//! Blobs of a registry into files: `<hex>.part` while they come, `<hex>` once size and digest are what was promised.
//! A part is taken up where it ended, also by another process and another day; nothing is believed before the end.

use crate::limits::FETCH_ATTEMPTS;
use crate::sandbox::image::ImageError;
use crate::sandbox::image::registry::PullError;
use crate::sandbox::image::registry::session::Session;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a descriptor promises.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// `sha256:` and 64 hex digits, checked.
    pub digest: String,
    pub size: u64,
}

impl Wanted {
    pub fn hex(&self) -> &str {
        self.digest.strip_prefix("sha256:").unwrap_or(&self.digest)
    }
}

/// Has the blob at `dir/<hex>` when it returns. `came` hears how much is there, and says whether to go on.
pub fn fetch(
    session: &Session<'_>,
    dir: &Path,
    wanted: &Wanted,
    came: &dyn Fn(u64) -> Result<(), PullError>,
) -> Result<(), PullError> {
    let home = dir.join(wanted.hex());
    if is_whole(&home, wanted) {
        return came(wanted.size);
    }
    let path = dir.join(format!("{}.part", wanted.hex()));
    let io = |e: io::Error| PullError::io("writing a blob", e);
    let Some(mut part) = Part::open(&path, &home, wanted).map_err(io)? else {
        return came(wanted.size);
    };
    let mut failures = 0;
    while part.have < wanted.size {
        came(part.have)?;
        let before = part.have;
        match part.more(session, wanted, came) {
            Ok(()) => {}
            // A connection that broke: what has come stays, and if something has come it is worth another try.
            Err(PullError::Unreachable { .. }) if part.have > before => failures = 0,
            Err(e @ PullError::Unreachable { .. }) => {
                failures += 1;
                if failures >= FETCH_ATTEMPTS {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
    }
    let found = format!("sha256:{}", hex(&part.sha.finalize_reset()));
    if found != wanted.digest {
        // It would be no better tomorrow.
        fs::remove_file(&path).map_err(io)?;
        let what = format!("blob {}", wanted.digest);
        return Err(PullError::Image(ImageError::Mismatch { what, expected: wanted.digest.clone(), found }));
    }
    fs::rename(&path, &home).map_err(io)?;
    came(wanted.size)
}

fn is_whole(home: &Path, wanted: &Wanted) -> bool {
    fs::metadata(home).is_ok_and(|meta| meta.len() == wanted.size)
}

/// A blob that is coming; nobody else writes it meanwhile.
struct Part {
    file: Flock<File>,
    have: u64,
    sha: Sha256,
}

impl Part {
    /// None: somebody else has brought it home meanwhile.
    fn open(path: &PathBuf, home: &Path, wanted: &Wanted) -> io::Result<Option<Part>> {
        loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| io::Error::from(e))?;
            if is_whole(home, wanted) {
                return Ok(None);
            }
            // Moved or removed while we waited: then this is no longer the file of that name.
            if fs::metadata(path).is_ok_and(|named| file.metadata().is_ok_and(|ours| ours.ino() == named.ino())) {
                let mut part = Part { file, have: 0, sha: Sha256::new() };
                part.take_up(wanted.size)?;
                return Ok(Some(part));
            }
        }
    }

    /// Hashes what an earlier pull has left.
    fn take_up(&mut self, size: u64) -> io::Result<()> {
        if self.file.metadata()?.len() > size {
            return self.restart();
        }
        self.have = io::copy(&mut &*self.file, &mut self.sha)?;
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.have, self.sha) = (0, Sha256::new());
        Ok(())
    }

    /// One request for what is missing.
    fn more(
        &mut self,
        session: &Session<'_>,
        wanted: &Wanted,
        came: &dyn Fn(u64) -> Result<(), PullError>,
    ) -> Result<(), PullError> {
        let io = |e: io::Error| PullError::io("writing a blob", e);
        let mut answer = session.blob(&wanted.digest, Some(self.have).filter(|have| *have > 0))?;
        let from_here = format!("bytes {}-", self.have);
        let resumes = answer.head.status == 206
            && answer.head.header("content-range").is_some_and(|range| range.starts_with(&from_here));
        match answer.head.status {
            206 if resumes => {}
            // It does not know ranges, or gave another one: the whole blob then, from its beginning.
            200 => self.restart().map_err(io)?,
            _ => {
                self.restart().map_err(io)?;
                return Err(PullError::unreachable(
                    &answer.url.authority(),
                    &io::Error::other("it gave another range"),
                ));
            }
        }
        let broken = |e: io::Error| PullError::unreachable(&answer.url.authority(), &e);
        let mut buf = vec![0; 128 * 1024];
        while self.have < wanted.size {
            let n = answer.body.read(&mut buf).map_err(broken)?;
            if n == 0 {
                return Err(broken(io::Error::from(io::ErrorKind::UnexpectedEof)));
            }
            let room = wanted.size - self.have;
            if n as u64 > room {
                return Err(longer(wanted));
            }
            self.file.write_all(&buf[..n]).map_err(io)?;
            self.sha.update(&buf[..n]);
            self.have += n as u64;
            came(self.have)?;
        }
        match answer.body.read(&mut buf) {
            Ok(n) if n > 0 => Err(longer(wanted)),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn longer(wanted: &Wanted) -> PullError {
    let (expected, found) = (format!("{} bytes", wanted.size), "more".to_owned());
    PullError::Image(ImageError::Mismatch { what: format!("blob {}", wanted.digest), expected, found })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
