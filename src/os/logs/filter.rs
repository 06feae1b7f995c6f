//! The daemon's own log: a filter that can be changed while it runs (SIGHUP), and a thread that writes the lines. Whoever
//! logs never waits: stderr may be a pipe that nobody empties, and then lines are dropped and counted instead. Everything
//! else about a line — its time, its form — is `env_logger`'s.

use crate::limits::{LOG_CLOSE_WAIT, OWN_LOG_CHANNEL};
use env_logger::{Target, WriteStyle};
use log::{Log, Metadata, Record};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

pub struct LogFilter {
    logger: RwLock<env_logger::Logger>,
    lines: Lines,
    /// Of a terminal. Asked once: it stays what it is, and the loop need not ask again.
    colours: WriteStyle,
}

/// Makes sure of the last lines, however the daemon ends.
pub struct Flushed(&'static LogFilter);

impl Drop for Flushed {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl LogFilter {
    /// Installs the process's logger; there is one, and it is never removed.
    pub fn install(filter: &str) -> &'static LogFilter {
        let lines = Lines::written_by_a_thread(io::stderr());
        let colours = if io::stderr().is_terminal() { WriteStyle::Always } else { WriteStyle::Never };
        let logger = RwLock::new(build(filter, lines.clone(), colours));
        let logger: &'static LogFilter = Box::leak(Box::new(LogFilter { logger, lines, colours }));
        // Fails only if there is a logger already; whoever installed it wins.
        _ = log::set_logger(logger);
        logger.adjust();
        logger
    }

    pub fn flushed_at_the_end(&'static self) -> Flushed {
        Flushed(self)
    }

    pub fn set(&self, filter: &str) {
        let built = build(filter, self.lines.clone(), self.colours);
        *self.logger.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = built;
        self.adjust();
    }

    /// What no filter lets through is not even formatted.
    fn adjust(&self) {
        log::set_max_level(self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).filter());
    }
}

impl Log for LogFilter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).log(record);
    }

    fn flush(&self) {
        self.lines.drain(LOG_CLOSE_WAIT);
    }
}

fn build(filter: &str, lines: Lines, colours: WriteStyle) -> env_logger::Logger {
    env_logger::Builder::new()
        .parse_filters(filter)
        // The database client logs the parameters of its statements, and those are definitions with their secrets.
        .filter_module("tokio_postgres", log::LevelFilter::Warn)
        .filter_module("postgres", log::LevelFilter::Warn)
        .format_timestamp_millis()
        .format_target(false)
        .write_style(colours)
        .target(Target::Pipe(Box::new(lines)))
        .build()
}

// --- the thread that writes -----------------------------------------------------------------------------------------

enum Word {
    Line(Vec<u8>),
    /// Everything before this has been written.
    Drained(SyncSender<()>),
}

/// The near end of the thread's channel.
#[derive(Clone)]
struct Lines {
    todo: SyncSender<Word>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    fn written_by_a_thread(out: impl Write + Send + 'static) -> Lines {
        let (todo, words) = sync_channel(OWN_LOG_CHANNEL);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let thread = std::thread::Builder::new().name("log".to_string());
        thread.spawn(move || write_lines(&words, &counted, out)).expect("a process can have a second thread");
        Lines { todo, dropped }
    }

    /// Waits until all is written, or the time is over.
    fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let (tell, told) = sync_channel(1);
        let mut word = Word::Drained(tell);
        // Full: whoever reads our log is slow, and the thread waits for them.
        while let Err(TrySendError::Full(back)) = self.todo.try_send(word) {
            if Instant::now() >= deadline {
                return;
            }
            word = back;
            std::thread::sleep(Duration::from_millis(10));
        }
        _ = told.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Write for Lines {
    /// `env_logger` gives whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.todo.try_send(Word::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(words: &Receiver<Word>, dropped: &AtomicU64, mut out: impl Write) {
    for word in words {
        // Nobody is left to be told that the log cannot be written.
        match word {
            Word::Line(line) => _ = out.write_all(&line),
            Word::Drained(tell) => _ = out.flush().and_then(|()| tell.try_send(()).map_err(io::Error::other)),
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            _ = writeln!(out, "stdiod: {lost} lines of this log were dropped: they came faster than they were read");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn whoever_logs_never_waits_and_what_is_lost_is_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::written_by_a_thread(writer);
        let line = [b'x'; 1024];
        // Nobody reads: the pipe fills, then the channel.
        for _ in 0..OWN_LOG_CHANNEL + 1024 {
            lines.write_all(&line).unwrap();
        }
        assert!(lines.dropped.load(Ordering::Relaxed) > 0);
        lines.drain(Duration::from_millis(20));
        let reading = std::thread::spawn(move || {
            let mut all = String::new();
            reader.read_to_string(&mut all).unwrap();
            all
        });
        lines.drain(Duration::from_secs(60));
        drop(lines);
        let all = reading.join().unwrap();
        assert!(all.contains("lines of this log were dropped"), "{}", &all[all.len() - 200..]);
        assert!(all.len() >= OWN_LOG_CHANNEL * line.len(), "what was taken is written: {}", all.len());
    }
}
