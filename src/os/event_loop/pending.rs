//! Decisions that the store does not have yet, on disk: `<data_dir>/pending`, for a daemon that is killed before the store
//! is back. One thread writes; the loop never waits for it. The file has two places, made at boot and written in turns, so
//! that a full disk has room for it and a torn write leaves the last one whole. Invariant: what was acknowledged last is what
//! the next daemon finds, or something newer.

use crate::limits::{DECISION_DISK_WAIT, DECISIONS_BYTES_MAX};
use crate::model::records::Decision;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

type Kept = (u64, Result<(), String>);

pub struct Pending {
    jobs: Option<SyncSender<(u64, Vec<Decision>)>>,
    kept: Receiver<Kept>,
    /// Handed over, and not said to be on disk.
    out: usize,
}

impl Pending {
    /// Also what an earlier daemon has left.
    pub fn spawn(data_dir: &Path, wake: impl Fn() + Send + 'static) -> io::Result<(Pending, Vec<Decision>)> {
        let mut file = PendingFile { path: data_dir.join("pending"), open: None };
        let found = match file.read() {
            Ok(found) => found,
            // Everything else works without it.
            Err(e) => {
                log::error!("{}: {e}; decisions cannot be kept while the database is away", file.path.display());
                Vec::new()
            }
        };
        // The core has one on its way at most.
        let (jobs, todo) = sync_channel::<(u64, Vec<Decision>)>(1);
        let (tell, kept) = sync_channel(1);
        std::thread::Builder::new().name("pending".to_string()).spawn(move || {
            while let Ok((version, decisions)) = todo.recv() {
                let outcome = file.write(&decisions).map_err(|e| e.to_string());
                if tell.send((version, outcome)).is_err() {
                    return;
                }
                wake();
            }
        })?;
        Ok((Pending { jobs: Some(jobs), kept, out: 0 }, found))
    }

    /// An outcome: it could not even be handed over.
    pub fn keep(&mut self, version: u64, decisions: Vec<Decision>) -> Option<Result<(), String>> {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send((version, decisions)).is_ok());
        self.out += usize::from(sent);
        (!sent).then(|| Err("the disk is busy".to_string()))
    }

    pub fn kept(&mut self) -> Vec<Kept> {
        let kept: Vec<Kept> = self.kept.try_iter().collect();
        self.out -= kept.len();
        kept
    }

    /// Nothing is being written.
    pub fn is_at_rest(&self) -> bool {
        self.out == 0
    }

    /// Lets the thread finish. This waits, bounded, and only at the very end.
    pub fn close(&mut self) {
        self.jobs = None;
        loop {
            match self.kept.recv_timeout(DECISION_DISK_WAIT) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return,
            }
        }
    }
}

// --- the file -------------------------------------------------------------------------------------------------------

const MAGIC: &[u8; 8] = b"stdiod1\n";
/// The magic, the number of the write, the length of what follows, and a hash of all of it.
const HEAD: usize = 8 + 8 + 8 + 32;

struct PendingFile {
    path: PathBuf,
    /// With the number of the last write.
    open: Option<(File, u64)>,
}

impl PendingFile {
    fn read(&mut self) -> io::Result<Vec<Decision>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        let newest = [0, 1].into_iter().filter_map(|place| read_place(&file, place)).max_by_key(|(number, _)| *number);
        let whole = 2 * DECISIONS_BYTES_MAX as u64;
        let length = file.metadata()?.len();
        if length < whole {
            // Written and not only reserved: it is the writing that must not need room later.
            let zeros = vec![0; (whole - length) as usize];
            file.write_all_at(&zeros, length)?;
            file.sync_all()?;
        }
        let (number, text) = newest.unwrap_or_default();
        self.open = Some((file, number));
        serde_json::from_slice(if text.is_empty() { b"[]" } else { &text }).map_err(io::Error::other)
    }

    fn write(&mut self, decisions: &[Decision]) -> io::Result<()> {
        if self.open.is_none() {
            self.read()?;
        }
        let Some((file, number)) = &mut self.open else { return Err(ErrorKind::NotFound.into()) };
        let text = serde_json::to_vec(decisions)?;
        if HEAD + text.len() > DECISIONS_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::StorageFull, "there are too many of them"));
        }
        let next = *number + 1;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&next.to_le_bytes());
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&hash(next, &text));
        bytes.extend_from_slice(&text);
        file.write_all_at(&bytes, next % 2 * DECISIONS_BYTES_MAX as u64)?;
        file.sync_data()?;
        *number = next;
        Ok(())
    }
}

fn hash(number: u64, text: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(number.to_le_bytes()).chain_update(text).finalize().into()
}

/// None: there is nothing whole.
fn read_place(file: &File, place: u64) -> Option<(u64, Vec<u8>)> {
    let from = place * DECISIONS_BYTES_MAX as u64;
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, from).ok()?;
    let number = u64::from_le_bytes(head[8..16].try_into().expect("8 of them"));
    let length = u64::from_le_bytes(head[16..24].try_into().expect("8 of them"));
    if head[..8] != MAGIC[..] || length > (DECISIONS_BYTES_MAX - HEAD) as u64 {
        return None;
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, from + HEAD as u64).ok()?;
    (head[24..] == hash(number, &text)).then_some((number, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ServerId, Uuid};
    use crate::limits::{DECISIONS_KEPT_MAX, NAME_MAX};

    fn decisions(count: usize) -> Vec<Decision> {
        (0..count).map(|n| Decision::Revoke { name: format!("{n:0NAME_MAX$}"), hash: [255; 32] }).collect()
    }

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("stdiod-pending-{}-{name}", std::process::id()));
            Place(path)
        }

        fn open(&self) -> (PendingFile, Vec<Decision>) {
            let mut file = PendingFile { path: self.0.clone(), open: None };
            let found = file.read().expect("a file");
            (file, found)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_next_daemon_finds_what_was_written_last() {
        let place = Place::new("last");
        assert_eq!(place.open().1, []);
        let (mut file, _) = place.open();
        let server = ServerId(Uuid::from_u128(7));
        let delete = Decision::Delete { server, name: "a".to_string(), volumes: true };
        for kept in [decisions(3), vec![], vec![delete, Decision::Stop { server }], decisions(DECISIONS_KEPT_MAX)] {
            file.write(&kept).expect("it fits");
            assert_eq!(place.open().1, kept);
        }
        assert_eq!(
            std::fs::metadata(&place.0).expect("a file").len(),
            2 * DECISIONS_BYTES_MAX as u64,
            "it never grows"
        );
    }

    #[test]
    fn a_torn_write_leaves_the_one_before_it() {
        let place = Place::new("torn");
        let (mut file, _) = place.open();
        file.write(&decisions(1)).expect("it fits");
        file.write(&decisions(2)).expect("it fits");
        let raw = OpenOptions::new().write(true).open(&place.0).expect("a file");
        // The third write was begun in the place of the first.
        for at in [0, 8, 16, 24, HEAD as u64] {
            raw.write_all_at(&[0xff; 4], DECISIONS_BYTES_MAX as u64 + at).expect("our own file");
            assert_eq!(place.open().1, decisions(2));
        }
        raw.write_all_at(&[0xff; 4], 0).expect("our own file");
        assert_eq!(place.open().1, [], "and nothing of nothing");
    }
}
