//! The audit log on disk: `<data_dir>/audit.log` (0600) and the one before it, a JSON object a line. One thread writes and
//! reads it; the loop never waits for it. Lines that the disk does not take wait, and what no longer fits is counted and told
//! in a line of its own (`audit.gap`). Invariant: the two files are never larger than twice `max_bytes`, and one line more.

use crate::api::audit::{AuditOutcome, AuditQuery, Line};
use crate::config::{Audit as Settings, OnAuditError};
use crate::ids::ConnId;
use crate::limits::{
    AUDIT_CHANNEL, AUDIT_QUESTIONS_MAX, AUDIT_RETRY, AUDIT_WAITING_MAX, HANDOVER_DISK_WAIT, LOG_CLOSE_WAIT,
};
use crate::wire::times::rfc3339;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

enum Job {
    Write(Box<Line>),
    /// So many were not handed over.
    Lost(u64),
    Read {
        conn: ConnId,
        query: AuditQuery,
    },
    /// All before it was given to the disk.
    Settle(SyncSender<()>),
}

enum Told {
    /// Why the disk does not take lines; none: it does.
    Disk(Option<String>),
    Lines(ConnId, Result<Vec<u8>, String>),
}

pub struct Audit {
    settings: Settings,
    jobs: Option<SyncSender<Job>>,
    told: Receiver<Told>,
    over: Receiver<()>,
    /// Why the disk does not take lines.
    failing: Option<String>,
    lost: u64,
    questions: usize,
}

impl Audit {
    pub fn spawn(data_dir: &Path, settings: Settings, wake: impl Fn() + Send + 'static) -> io::Result<Audit> {
        let (jobs, todo) = sync_channel(AUDIT_CHANNEL);
        let (tell, told) = sync_channel(AUDIT_CHANNEL);
        let (end, over) = sync_channel(1);
        let writer = Writer {
            files: Files { current: data_dir.join("audit.log"), before: data_dir.join("audit.log.1") },
            max_bytes: settings.max_bytes,
            open: None,
            waiting: VecDeque::new(),
            lost: 0,
            failing: false,
        };
        std::thread::Builder::new().name("audit".to_string()).spawn(move || {
            writer.run(&todo, &tell, wake);
            _ = end.send(());
        })?;
        Ok(Audit { settings, jobs: Some(jobs), told, over, failing: None, lost: 0, questions: 0 })
    }

    pub fn has_calls(&self) -> bool {
        self.settings.calls
    }

    /// Why nothing may be done now that has to be written down.
    pub fn refuses(&self) -> Option<&str> {
        match self.settings.on_error {
            OnAuditError::Refuse => self.failing.as_deref(),
            OnAuditError::Continue => None,
        }
    }

    pub fn write(&mut self, line: Line) {
        let Some(jobs) = &self.jobs else { return };
        if self.lost > 0 && jobs.try_send(Job::Lost(self.lost)).is_ok() {
            self.lost = 0;
        }
        if jobs.try_send(Job::Write(Box::new(line))).is_err() {
            self.lost += 1;
            if self.lost.is_power_of_two() {
                log::error!("{} lines of the audit log are lost: its disk is too slow for them", self.lost);
            }
        }
    }

    /// False: too many others wait for the same.
    pub fn ask(&mut self, conn: ConnId, query: AuditQuery) -> bool {
        let sent = self.questions < AUDIT_QUESTIONS_MAX
            && self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Read { conn, query }).is_ok());
        self.questions += usize::from(sent);
        sent
    }

    /// Answers to what was asked: a JSON array, or why there is none.
    pub fn heard(&mut self) -> Vec<(ConnId, Result<Vec<u8>, String>)> {
        let mut answers = Vec::new();
        for told in self.told.try_iter() {
            match told {
                Told::Disk(why) => self.failing = why,
                Told::Lines(conn, lines) => {
                    self.questions -= 1;
                    answers.push((conn, lines));
                }
            }
        }
        answers
    }

    /// Nobody waits for an answer.
    pub fn is_at_rest(&self) -> bool {
        self.questions == 0
    }

    /// Everything that was said so far was given to the disk, or that is slower. Waits, bounded, and only before the daemon
    /// hands itself over.
    pub fn settle(&mut self) {
        let (told, settled) = sync_channel(1);
        if self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Settle(told)).is_ok()) {
            _ = settled.recv_timeout(HANDOVER_DISK_WAIT);
        }
    }

    /// Lets the thread finish. This waits, bounded, and only at the very end.
    pub fn close(&mut self) {
        if self.jobs.take().is_some() {
            _ = self.over.recv_timeout(LOG_CLOSE_WAIT);
        }
    }
}

// --- the thread -----------------------------------------------------------------------------------------------------

struct Files {
    current: PathBuf,
    before: PathBuf,
}

struct Writer {
    files: Files,
    max_bytes: u64,
    /// With its length.
    open: Option<(File, u64)>,
    /// What the disk has not taken, the oldest first.
    waiting: VecDeque<Vec<u8>>,
    lost: u64,
    failing: bool,
}

/// A line with its number, as it stands in the file.
#[derive(Serialize)]
struct Numbered<'a> {
    audit_id: uuid::Uuid,
    #[serde(flatten)]
    line: &'a Line,
}

impl Writer {
    fn run(mut self, todo: &Receiver<Job>, tell: &SyncSender<Told>, wake: impl Fn()) {
        loop {
            let first = match self.waiting.is_empty() {
                true => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => todo.recv_timeout(AUDIT_RETRY),
            };
            let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
            let (mut questions, mut settled) = (Vec::new(), Vec::new());
            for job in first.into_iter().chain(todo.try_iter().take(AUDIT_CHANNEL)) {
                match job {
                    Job::Write(line) => self.keep(&line),
                    Job::Lost(count) => self.lost += count,
                    Job::Read { conn, query } => questions.push((conn, query)),
                    Job::Settle(told) => settled.push(told),
                }
            }
            let written = self.write_waiting();
            let why = written.as_ref().err().map(ToString::to_string);
            if why.is_some() != self.failing {
                self.failing = why.is_some();
                match &why {
                    Some(why) => log::error!("the audit log {} cannot be written: {why}", self.files.current.display()),
                    None => log::info!("the audit log is written again"),
                }
                _ = tell.send(Told::Disk(why));
                wake();
            }
            for (conn, query) in questions {
                let lines = read(&self.files, &query).map_err(|e| e.to_string());
                _ = tell.send(Told::Lines(conn, lines));
                wake();
            }
            settled.into_iter().for_each(|told| _ = told.send(()));
            if ended {
                return;
            }
        }
    }

    fn keep(&mut self, line: &Line) {
        if self.waiting.len() >= AUDIT_WAITING_MAX {
            self.lost += 1;
            return;
        }
        let numbered = Numbered { audit_id: uuid::Uuid::new_v4(), line };
        let mut text = serde_json::to_vec(&numbered).expect("strings and numbers into memory");
        text.push(b'\n');
        self.waiting.push_back(text);
    }

    /// Each line whole, or it stays.
    fn write_waiting(&mut self) -> io::Result<()> {
        while let Some(line) = self.waiting.front() {
            self.files.append(&mut self.open, line, self.max_bytes)?;
            self.waiting.pop_front();
        }
        if self.lost > 0 {
            let data = serde_json::json!({ "lines": self.lost });
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let line = Line {
                logged_at: rfc3339(now.as_millis() as u64),
                kind: "audit.gap".into(),
                outcome: AuditOutcome::Failed,
                source: "stdiod".to_string(),
                subject: "stdiod".to_string(),
                target: "audit.log".to_string(),
                data,
            };
            self.lost = 0;
            self.keep(&line);
            return self.write_waiting();
        }
        Ok(())
    }
}

impl Files {
    fn opened<'o>(&self, open: &'o mut Option<(File, u64)>) -> io::Result<&'o mut (File, u64)> {
        if open.is_none() {
            let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&self.current)?;
            let length = file.metadata()?.len();
            *open = Some((file, length));
        }
        Ok(open.as_mut().expect("just opened"))
    }

    fn append(&self, open: &mut Option<(File, u64)>, line: &[u8], max_bytes: u64) -> io::Result<()> {
        let full = |length: u64| length > 0 && length + line.len() as u64 > max_bytes;
        if full(self.opened(open)?.1) {
            *open = None;
            fs::rename(&self.current, &self.before)?;
        }
        let (file, length) = self.opened(open)?;
        // The last line may be torn, by a crash: this one must not become part of it.
        if *length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last))?;
            if last != [b'\n'] {
                file.write_all(b"\n")?;
                *length += 1;
            }
        }
        if let Err(e) = file.write_all(line) {
            // Half a line is none: a disk that is full takes what it can.
            _ = file.set_len(*length);
            *open = None;
            return Err(e);
        }
        *length += line.len() as u64;
        Ok(())
    }
}

/// The newest first.
fn read(files: &Files, query: &AuditQuery) -> io::Result<Vec<u8>> {
    #[derive(Deserialize)]
    struct Known {
        #[serde(rename = "type")]
        kind: String,
        logged_at: String,
    }
    let since = query.since_unix_ms.map(rfc3339);
    let mut found: VecDeque<Vec<u8>> = VecDeque::new();
    for file in [&files.before, &files.current] {
        let file = match File::open(file) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            // A torn line is nobody's.
            let Ok(known) = serde_json::from_slice::<Known>(&line) else { continue };
            let is_kind = query.kind.as_ref().is_none_or(|kind| *kind == known.kind);
            if is_kind && since.as_ref().is_none_or(|since| known.logged_at >= *since) {
                found.push_back(line);
                if found.len() > query.limit {
                    found.pop_front();
                }
            }
        }
    }
    let newest_first: Vec<Vec<u8>> = found.into_iter().rev().collect();
    Ok([b"[".as_slice(), &newest_first.join(&b','), b"]"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::os::unix::fs::PermissionsExt;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("stdiod-audit-{}-{name}", std::process::id()));
            _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a directory");
            Place(path)
        }

        fn writer(&self, max_bytes: u64) -> Writer {
            let files = Files { current: self.0.join("audit.log"), before: self.0.join("audit.log.1") };
            Writer { files, max_bytes, open: None, waiting: VecDeque::new(), lost: 0, failing: false }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    fn line(kind: &'static str, number: u64) -> Line {
        let (source, subject) = ("127.0.0.1:1".to_string(), "admin".to_string());
        let (target, data) = (number.to_string(), json!({}));
        Line {
            logged_at: rfc3339(number * 1000),
            kind: kind.into(),
            outcome: AuditOutcome::Ok,
            source,
            subject,
            target,
            data,
        }
    }

    fn targets(writer: &Writer, query: &AuditQuery) -> Vec<String> {
        let lines: Value = serde_json::from_slice(&read(&writer.files, query).expect("files")).expect("an array");
        let target = |line: &Value| line["target"].as_str().expect("a word").to_string();
        lines.as_array().expect("an array").iter().map(target).collect()
    }

    fn all(limit: usize) -> AuditQuery {
        AuditQuery { since_unix_ms: None, limit, kind: None }
    }

    #[test]
    fn lines_are_read_newest_first_by_kind_and_time() {
        let place = Place::new("read");
        let mut writer = place.writer(1 << 20);
        for number in 0..10 {
            writer.keep(&line(if number % 2 == 0 { "auth" } else { "server.stop" }, number));
        }
        writer.write_waiting().expect("a disk");
        let mode = fs::metadata(&writer.files.current).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(targets(&writer, &all(3)), ["9", "8", "7"]);
        let auth = AuditQuery { kind: Some("auth".to_string()), ..all(100) };
        assert_eq!(targets(&writer, &auth), ["8", "6", "4", "2", "0"]);
        let late = AuditQuery { since_unix_ms: Some(8_000), ..all(100) };
        assert_eq!(targets(&writer, &late), ["9", "8"]);
    }

    #[test]
    fn the_files_are_bounded_and_the_newest_lines_are_kept() {
        let place = Place::new("rotate");
        let mut writer = place.writer(2_000);
        for number in 0..100 {
            writer.keep(&line("auth", number));
            writer.write_waiting().expect("a disk");
        }
        for file in [&writer.files.current, &writer.files.before] {
            assert!(fs::metadata(file).expect("a file").len() <= 2_000);
        }
        assert_eq!(targets(&writer, &all(2)), ["99", "98"]);
    }

    #[test]
    fn a_torn_line_spoils_no_other_and_a_disk_that_comes_back_has_the_gap_told() {
        let place = Place::new("torn");
        let mut writer = place.writer(1 << 20);
        fs::write(&writer.files.current, "{\"type\":\"auth\",\"logg").expect("our file");
        writer.keep(&line("auth", 1));
        writer.write_waiting().expect("a disk");
        assert_eq!(targets(&writer, &all(10)), ["1"]);
        // Nobody can write where a directory is.
        (writer.open, writer.files.current) = (None, place.0.clone());
        for number in 0..AUDIT_WAITING_MAX as u64 + 5 {
            writer.keep(&line("auth", number));
        }
        assert!(writer.write_waiting().is_err() && writer.lost == 5);
        writer.files.current = place.0.join("audit.log");
        writer.write_waiting().expect("it is back");
        let gap = read(&writer.files, &all(1)).expect("files");
        let gap: Value = serde_json::from_slice(&gap).expect("an array");
        assert_eq!((&gap[0]["type"], &gap[0]["data"]["lines"]), (&json!("audit.gap"), &json!(5)));
    }
}
