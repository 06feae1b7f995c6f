//! Servers' logs on disk: `<data_dir>/logs/<id>.log` and the one before it, a JSON object a line, so that the last words
//! before a crash outlive the daemon. One thread writes; the loop never waits for it, and what the disk cannot take is
//! dropped and counted. Invariant: a server's two files are never larger than twice `LOG_FILE_MAX`.

use crate::ids::{InstanceId, ServerId};
use crate::limits::{
    HANDOVER_DISK_WAIT, LOG_CHANNEL, LOG_CLOSE_WAIT, LOG_FILE_MAX, LOG_FILES_OPEN, LOG_RESTORED_BYTES,
};
use crate::model::log::{LogEntry, LogSource};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

enum Job {
    Keep {
        server: ServerId,
        entry: LogEntry,
    },
    Restore {
        server: ServerId,
    },
    Remove {
        server: ServerId,
    },
    /// All before it is in the files.
    Settle {
        told: SyncSender<()>,
    },
}

type Restored = (ServerId, Vec<LogEntry>);

pub struct LogFiles {
    jobs: Option<SyncSender<Job>>,
    restored: Receiver<Restored>,
    /// Says that the thread has written everything.
    over: Receiver<()>,
    dropped: u64,
    /// Asked for and not read back.
    restoring: usize,
}

impl LogFiles {
    pub fn spawn(data_dir: &Path, wake: impl Fn() + Send + 'static) -> io::Result<LogFiles> {
        let dir = data_dir.join("logs");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let (jobs, todo) = sync_channel(LOG_CHANNEL);
        let (tell, restored) = sync_channel(LOG_CHANNEL);
        let (end, over) = sync_channel(1);
        std::thread::Builder::new().name("logs".to_string()).spawn(move || {
            Writer { dir, open: HashMap::new(), failing: false }.run(&todo, &tell, wake);
            _ = end.send(());
        })?;
        Ok(LogFiles { jobs: Some(jobs), restored, over, dropped: 0, restoring: 0 })
    }

    pub fn keep(&mut self, server: ServerId, entry: LogEntry) {
        self.hand_over(Job::Keep { server, entry });
    }

    pub fn restore(&mut self, server: ServerId) {
        self.restoring += 1;
        self.hand_over(Job::Restore { server });
    }

    pub fn remove(&mut self, server: ServerId) {
        self.hand_over(Job::Remove { server });
    }

    fn hand_over(&mut self, job: Job) {
        let Some(jobs) = &self.jobs else { return };
        if jobs.try_send(job).is_err() {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                log::warn!("{} entries of servers' logs are not on disk: it is too slow for them", self.dropped);
            }
        }
    }

    /// What has been read back since the last call.
    pub fn restored(&mut self) -> Vec<Restored> {
        let restored: Vec<Restored> = self.restored.try_iter().collect();
        self.restoring = self.restoring.saturating_sub(restored.len());
        restored
    }

    /// Nothing is being read back.
    pub fn is_at_rest(&self) -> bool {
        self.restoring == 0
    }

    /// Everything that was said so far is in the files, or the disk is slower than that. Waits, bounded, and only before the
    /// daemon hands itself over.
    pub fn settle(&mut self) {
        let (told, settled) = sync_channel(1);
        if self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Settle { told }).is_ok()) {
            _ = settled.recv_timeout(HANDOVER_DISK_WAIT);
        }
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Lets the thread finish. This waits, bounded, and only at the very end.
    pub fn close(&mut self) {
        if self.jobs.take().is_some() {
            _ = self.over.recv_timeout(LOG_CLOSE_WAIT);
        }
    }
}

// --- the thread -------------------------------------------------------------------------------------------------------

struct Writer {
    dir: PathBuf,
    /// The files that are being written, and how long they are.
    open: HashMap<ServerId, (File, u64)>,
    /// The last write failed; said once, not for every line.
    failing: bool,
}

impl Writer {
    fn run(mut self, todo: &Receiver<Job>, tell: &SyncSender<Restored>, wake: impl Fn()) {
        while let Ok(first) = todo.recv() {
            // Everything that is there already goes out with one write per server.
            let mut batch: HashMap<ServerId, Vec<u8>> = HashMap::new();
            let mut settled = Vec::new();
            for job in std::iter::once(first).chain(todo.try_iter().take(LOG_CHANNEL)) {
                match job {
                    Job::Keep { server, entry } => append(batch.entry(server).or_default(), &entry),
                    Job::Restore { server } => {
                        if tell.send((server, read_back(&self.dir, server))).is_err() {
                            return;
                        }
                        wake();
                    }
                    Job::Settle { told } => settled.push(told),
                    Job::Remove { server } => {
                        batch.remove(&server);
                        self.open.remove(&server);
                        for file in both(&self.dir, server) {
                            _ = fs::remove_file(file);
                        }
                    }
                }
            }
            for (server, bytes) in batch {
                self.write(server, &bytes);
            }
            settled.into_iter().for_each(|told| _ = told.send(()));
        }
    }

    fn write(&mut self, server: ServerId, bytes: &[u8]) {
        let written = self.try_write(server, bytes);
        if let Err(e) = &written {
            self.open.remove(&server);
            if !self.failing {
                log::warn!("servers' logs cannot be written to {}: {e}", self.dir.display());
            }
        }
        self.failing = written.is_err();
    }

    fn try_write(&mut self, server: ServerId, bytes: &[u8]) -> io::Result<()> {
        let [current, before] = both(&self.dir, server);
        if self.open.get(&server).is_some_and(|(_, length)| length + bytes.len() as u64 > LOG_FILE_MAX) {
            self.open.remove(&server);
            fs::rename(&current, &before)?;
        }
        if self.open.len() >= LOG_FILES_OPEN && !self.open.contains_key(&server) {
            self.open.clear();
        }
        let (file, length) = match self.open.entry(server) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&current)?;
                let length = file.metadata()?.len();
                if length > 0 {
                    // Its last line may be torn, by a crash or a full disk: this one must not become part of it.
                    file.write_all(b"\n")?;
                }
                entry.insert((file, length + 1))
            }
        };
        file.write_all(bytes)?;
        *length += bytes.len() as u64;
        Ok(())
    }
}

fn both(dir: &Path, server: ServerId) -> [PathBuf; 2] {
    [dir.join(format!("{server}.log")), dir.join(format!("{server}.log.1"))]
}

#[derive(Serialize, Deserialize)]
struct Line {
    at_ms: u64,
    instance: Option<u64>,
    source: char,
    text: String,
}

fn append(out: &mut Vec<u8>, entry: &LogEntry) {
    let source = match entry.source {
        LogSource::Stderr => 'e',
        LogSource::Noise => 'n',
        LogSource::Lifecycle => 'l',
        LogSource::Health => 'h',
    };
    let line =
        Line { at_ms: entry.at_unix_ms, instance: entry.instance.map(|i| i.0), source, text: entry.text.clone() };
    serde_json::to_writer(&mut *out, &line).expect("strings and numbers into memory");
    out.push(b'\n');
}

/// The end of what is there. Lines that are torn are skipped.
fn read_back(dir: &Path, server: ServerId) -> Vec<LogEntry> {
    let [current, before] = both(dir, server);
    let mut text = end_of(&current, LOG_RESTORED_BYTES);
    let room = LOG_RESTORED_BYTES.saturating_sub(text.len() as u64);
    if room > 0 {
        text = [end_of(&before, room), text].concat();
    }
    text.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

fn end_of(path: &Path, max: u64) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
        let mut text = Vec::new();
        file.take(max).read_to_end(&mut text)?;
        Ok(text)
    };
    read().unwrap_or_default()
}

fn parse(line: &[u8]) -> Option<LogEntry> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let source = match line.source {
        'e' => LogSource::Stderr,
        'n' => LogSource::Noise,
        'l' => LogSource::Lifecycle,
        'h' => LogSource::Health,
        _ => return None,
    };
    Some(LogEntry { at_unix_ms: line.at_ms, instance: line.instance.map(InstanceId), source, text: line.text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("stdiod-logs-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("logs")).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    fn entry(at_unix_ms: u64, text: &str) -> LogEntry {
        LogEntry { at_unix_ms, instance: Some(InstanceId(3)), source: LogSource::Stderr, text: text.to_string() }
    }

    const ONE: ServerId = ServerId(Uuid::from_u128(1));

    #[test]
    fn what_is_kept_is_read_back_by_the_next_one() {
        let scratch = Scratch::new("back");
        let mut files = LogFiles::spawn(&scratch.0, || {}).unwrap();
        files.keep(ONE, entry(1, "first \"quoted\" é"));
        files.keep(ONE, entry(2, "second"));
        files.close();
        // A daemon that was killed in the middle of a line.
        let current = &both(&scratch.0.join("logs"), ONE)[0];
        OpenOptions::new().append(true).open(current).unwrap().write_all(b"{\"at_ms\":3,\"te").unwrap();
        let mut files = LogFiles::spawn(&scratch.0, || {}).unwrap();
        files.keep(ONE, entry(4, "after"));
        files.close();
        let texts: Vec<String> = read_back(&scratch.0.join("logs"), ONE).into_iter().map(|e| e.text).collect();
        assert_eq!(texts, ["first \"quoted\" é", "second", "after"]);
    }

    #[test]
    fn a_chatty_server_has_two_files_of_bounded_size() {
        let scratch = Scratch::new("cap");
        let dir = scratch.0.join("logs");
        let mut writer = Writer { dir: dir.clone(), open: HashMap::new(), failing: false };
        for n in 0..3_000 {
            let mut bytes = Vec::new();
            append(&mut bytes, &entry(n, &"x".repeat(2_000)));
            writer.write(ONE, &bytes);
        }
        let sizes = both(&dir, ONE).map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|size| *size > 0 && *size <= LOG_FILE_MAX), "{sizes:?}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        let back = read_back(&dir, ONE);
        assert_eq!(back.last().unwrap().at_unix_ms, 2_999);
        assert!(back.len() < 40);
    }

    #[test]
    fn a_directory_that_cannot_be_written_costs_nothing_but_the_lines() {
        let mut writer = Writer { dir: "/proc/no-such-directory".into(), open: HashMap::new(), failing: false };
        writer.write(ONE, b"{}\n");
        assert!(writer.failing && writer.open.is_empty());
        assert_eq!(read_back(&writer.dir, ONE), []);
    }
}
