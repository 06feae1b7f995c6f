//! What a daemon has said so far, for tests that wait for a line of it.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Log {
    pub lines: Mutex<Vec<String>>,
    grown: Condvar,
}

impl Log {
    pub fn push(&self, line: String) {
        self.lines.lock().expect("not poisoned").push(line);
        self.grown.notify_all();
    }

    pub fn len(&self) -> usize {
        self.lines.lock().expect("not poisoned").len()
    }

    /// The first thing that `find` finds in a line from `from` on, unless the time or the daemon ends before.
    pub fn wait<T>(
        &self,
        from: usize,
        patience: Duration,
        mut alive: impl FnMut() -> bool,
        find: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut lines = self.lines.lock().expect("not poisoned");
        loop {
            if let Some(found) = lines[from..].iter().find_map(|line| find(line)) {
                return Some(found);
            }
            if Instant::now() >= deadline || !alive() {
                return None;
            }
            lines = self.grown.wait_timeout(lines, Duration::from_millis(100)).expect("not poisoned").0;
        }
    }

    pub fn tail(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}
