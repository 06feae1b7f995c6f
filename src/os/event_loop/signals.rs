//! Signals as bytes on a socket, so that the loop sees them like everything else. The handlers only write.

use mio::net::UnixStream;
use nix::sys::signal::{SigSet, Signal};
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ALL: [i32; 6] = [SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2];

/// Those that come to the loop wait from here on, in this thread and in those that it starts. Only the thread of the loop is
/// to get them, or one could get lost with another thread when the daemon hands itself over.
pub fn hold_back() -> io::Result<()> {
    set().thread_block().map_err(Into::into)
}

/// In this thread they come, also those that have waited.
pub fn let_come() -> io::Result<()> {
    set().thread_unblock().map_err(Into::into)
}

fn set() -> SigSet {
    ALL.iter().filter_map(|number| Signal::try_from(*number).ok()).collect()
}

pub struct Signals {
    socket: UnixStream,
    stop: Count,
    reload: Count,
    summary: Count,
    upgrade: Count,
}

/// What has come since the signals were last cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signalled {
    /// SIGTERM and SIGINT; each counts, because the second one means `now`.
    pub stop: usize,
    /// SIGHUP: read the configuration again.
    pub reload: bool,
    /// SIGUSR1: say in the log how everything is.
    pub summary: bool,
    /// SIGUSR2: go on as the program that is on disk now.
    pub upgrade: bool,
}

/// A handler adds, the loop looks how much.
struct Count {
    so_far: Arc<AtomicUsize>,
    seen: usize,
}

impl Count {
    fn of(signals: &[i32]) -> io::Result<Count> {
        let so_far = Arc::new(AtomicUsize::new(0));
        for signal in signals {
            let so_far = Arc::clone(&so_far);
            // SAFETY: the handler only adds to an atomic.
            unsafe { signal_hook::low_level::register(*signal, move || _ = so_far.fetch_add(1, Ordering::SeqCst))? };
        }
        Ok(Count { so_far, seen: 0 })
    }

    fn fresh(&mut self) -> usize {
        let so_far = self.so_far.load(Ordering::SeqCst);
        so_far - std::mem::replace(&mut self.seen, so_far)
    }
}

impl Signals {
    pub fn install() -> io::Result<Signals> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        // The counts first: a byte on the socket must find its signal counted.
        let (stop, reload, summary) = (Count::of(&[SIGTERM, SIGINT])?, Count::of(&[SIGHUP])?, Count::of(&[SIGUSR1])?);
        let upgrade = Count::of(&[SIGUSR2])?;
        for signal in ALL {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Signals { socket: UnixStream::from_std(read), stop, reload, summary, upgrade })
    }

    pub fn socket(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// Empties the socket and says what has come. Must come before reaping: a child that dies in between rings again.
    pub fn clear(&mut self) -> Signalled {
        let mut scratch = [0; 256];
        while matches!(self.socket.read(&mut scratch), Ok(n) if n > 0) {}
        Signalled {
            stop: self.stop.fresh(),
            reload: self.reload.fresh() > 0,
            summary: self.summary.fresh() > 0,
            upgrade: self.upgrade.fresh() > 0,
        }
    }
}
/// Before there is a loop: only whether it is asked to stop. SIGHUP has nothing to read again yet, and ends nobody.
pub struct StopSignals {
    stop: Arc<AtomicUsize>,
    registered: Vec<SigId>,
}

impl StopSignals {
    pub fn install() -> io::Result<StopSignals> {
        let (stop, ignored) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let wanted = [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &ignored), (SIGUSR1, &ignored), (SIGUSR2, &ignored)];
        let registered = wanted.map(|(signal, flag)| signal_hook::flag::register_usize(signal, Arc::clone(flag), 1));
        Ok(StopSignals { stop, registered: registered.into_iter().collect::<io::Result<_>>()? })
    }

    pub fn came(&self) -> bool {
        self.stop.load(Ordering::SeqCst) > 0
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.registered.iter().for_each(|id| _ = signal_hook::low_level::unregister(*id));
    }
}
