//! Signals as bytes on a socket, so that the loop sees them like everything else. The handlers only write.

use mio::net::UnixStream;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Signals {
    socket: UnixStream,
    /// SIGTERM and SIGINT so far; each counts, because the second one means `now`.
    asked: Arc<AtomicUsize>,
    seen: usize,
}

impl Signals {
    pub fn install() -> io::Result<Signals> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        let asked = Arc::new(AtomicUsize::new(0));
        for signal in [SIGCHLD, SIGTERM, SIGINT] {
            if signal != SIGCHLD {
                let asked = Arc::clone(&asked);
                // SAFETY: the handler only adds to an atomic.
                unsafe { signal_hook::low_level::register(signal, move || _ = asked.fetch_add(1, Ordering::SeqCst))? };
            }
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Signals { socket: UnixStream::from_std(read), asked, seen: 0 })
    }

    pub fn socket(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// Empties the socket and says how often the daemon was asked to stop. Must come before reaping: a child that
    /// dies in between rings again.
    pub fn clear(&mut self) -> usize {
        let mut scratch = [0; 256];
        while matches!(self.socket.read(&mut scratch), Ok(n) if n > 0) {}
        let asked = self.asked.load(Ordering::SeqCst);
        asked - std::mem::replace(&mut self.seen, asked)
    }
}
