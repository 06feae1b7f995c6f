//! Attempts with an end: a command that is killed when its time is up, with everything it started, and a directory that
//! is gone afterwards. Nothing that is tried here can outlive the trial.

use crate::limits::REPORT_MAX;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);
/// For the last words of a process that is dead already.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Not always in the PATH of people.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// It ended well, and said this.
    Worked(String),
    Failed(String),
    TimedOut,
}

/// Runs the command as the leader of a process group of its own.
pub fn attempt(mut command: Command, limit: Duration) -> Trial {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) => return Trial::Failed(why.to_string()),
    };
    let (tell, told) = mpsc::channel();
    listen(child.stdout.take(), tell.clone());
    listen(child.stderr.take(), tell);
    let ended = wait(&mut child, Instant::now() + limit);
    let until = Instant::now() + LAST_WORDS;
    let mut text = String::new();
    while let Ok(words) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        text += &words;
    }
    let text = text.trim().to_string();
    match ended {
        Ok(Some(status)) if status.success() => Trial::Worked(text),
        Ok(Some(status)) if text.is_empty() => Trial::Failed(status.to_string()),
        Ok(Some(_)) => Trial::Failed(text),
        Ok(None) => Trial::TimedOut,
        Err(why) => Trial::Failed(why.to_string()),
    }
}

/// On a thread of its own, because a grandchild may keep the pipe open for ever; then the thread is left behind.
fn listen(pipe: Option<impl Read + Send + 'static>, tell: mpsc::Sender<String>) {
    let Some(pipe) = pipe else { return };
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let heard = pipe.take(REPORT_MAX as u64).read_to_end(&mut bytes);
        // A receiver that is gone has stopped waiting for these words.
        let _ = heard.map(|_| tell.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
}

/// None: its time was up, and it is dead now.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<std::process::ExitStatus>> {
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(POLL);
    }
    // The group may be gone already; the wait below tells.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    child.wait()?;
    Ok(None)
}

/// A command inside private mount and pid namespaces: its mounts and all its descendants go when it goes.
pub fn in_private_namespaces(script: &str, args: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-ec", script, "sh"]);
    command.args(args);
    command
}

/// Where a binary is, by its path or its name.
pub fn find(binary: &Path) -> Option<PathBuf> {
    if binary.is_absolute() {
        return is_executable(binary).then(|| binary.to_path_buf());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(SBIN.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(binary)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The first line of what `binary --version` says.
pub fn version(binary: &Path) -> String {
    let mut command = Command::new(binary);
    command.arg("--version");
    match attempt(command, Duration::from_secs(5)) {
        Trial::Worked(text) => text.lines().next().unwrap_or_default().to_string(),
        Trial::Failed(_) | Trial::TimedOut => "version unknown".to_string(),
    }
}

/// A directory for one trial.
pub struct Scratch(PathBuf);

impl Scratch {
    /// In `parent` if something can be made there, else in the directory for temporary files.
    pub fn new(parent: &Path, name: &str) -> io::Result<Scratch> {
        let name = format!(".stdiod-doctor-{}-{name}", std::process::id());
        let made = [parent.to_path_buf(), std::env::temp_dir()].into_iter().map(|dir| {
            let dir = dir.join(&name);
            std::fs::create_dir(&dir).map(|()| Scratch(dir))
        });
        made.reduce(|first, second| first.or(second)).unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing is mounted here: what was, was in a namespace that is gone.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_attempt_tells_what_was_said_and_how_it_ended() {
        let limit = Duration::from_secs(5);
        assert_eq!(attempt(shell("echo fine"), limit), Trial::Worked("fine".to_string()));
        assert_eq!(attempt(shell("echo broken >&2; exit 3"), limit), Trial::Failed("broken".to_string()));
        assert_eq!(attempt(shell("exit 3"), limit), Trial::Failed("exit status: 3".to_string()));
        assert!(matches!(attempt(Command::new("/nonexistent"), limit), Trial::Failed(_)));
    }

    #[test]
    fn an_attempt_that_hangs_is_over_in_time_with_all_it_started() {
        let begun = Instant::now();
        let dir = Scratch::new(&std::env::temp_dir(), "hang").unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 60 & echo $! > {}; wait", file.display());
        assert_eq!(attempt(shell(&script), Duration::from_millis(300)), Trial::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(5));
        let pid = std::fs::read_to_string(file).unwrap();
        // Killed it is; a loaded machine may take a moment to let it die.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let dead = || state().is_empty() || state().contains(") Z");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !dead() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(dead(), "the grandchild is dead: {}", state());
    }

    #[test]
    fn a_scratch_directory_is_gone_afterwards() {
        let scratch = Scratch::new(Path::new("/nonexistent"), "gone").unwrap();
        let path = scratch.path().to_path_buf();
        std::fs::write(path.join("x"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn binaries_are_found_by_name_and_by_path() {
        let shell = find(Path::new("sh")).unwrap();
        assert_eq!(find(&shell), Some(shell));
        assert_eq!(find(Path::new("no-such-binary-anywhere")), None);
        assert_eq!(find(Path::new("/etc/passwd")), None, "a file that cannot be executed is no binary");
    }
}
