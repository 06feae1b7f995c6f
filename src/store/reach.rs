//! Asks whether a PostgreSQL answers at all, with a time limit on every step. The client library has one for the
//! connect alone: on a server that accepts and then says nothing (a stopped postmaster does, its kernel accepts for
//! it) it would wait for ever. Owns no connection beyond the question, and never sends a password.

use crate::limits::STORE_CONNECT_WAIT;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use postgres::Config;
use postgres::config::Host;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// `SSLRequest`: any server answers it with one byte, before it asks who is there.
const QUESTION: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Whether one of the hosts of `config` answers.
pub fn answers(config: &Config) -> Result<(), String> {
    let ports = config.get_ports();
    let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(5432);
    let mut last = Err("no host given".to_string());
    // An address takes the place of its host's name, as in libpq.
    if !config.get_hostaddrs().is_empty() {
        for (index, address) in config.get_hostaddrs().iter().enumerate() {
            last = ask_tcp((*address, port(index))).map_err(|e| format!("{address}: {e}"));
            if last.is_ok() {
                break;
            }
        }
        return last;
    }
    for (index, host) in config.get_hosts().iter().enumerate() {
        last = match host {
            Host::Tcp(name) => ask_tcp((name.as_str(), port(index))).map_err(|e| format!("{name}: {e}")),
            Host::Unix(dir) => {
                let path = dir.join(format!(".s.PGSQL.{}", port(index)));
                ask_unix(&path).map_err(|e| format!("{}: {e}", path.display()))
            }
        };
        if last.is_ok() {
            break;
        }
    }
    last
}

fn ask_tcp(host: impl ToSocketAddrs) -> io::Result<()> {
    let mut last = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in host.to_socket_addrs()? {
        last = TcpStream::connect_timeout(&address, STORE_CONNECT_WAIT).and_then(|stream| {
            stream.set_read_timeout(Some(STORE_CONNECT_WAIT))?;
            ask(stream)
        });
        if last.is_ok() {
            break;
        }
    }
    last
}

fn ask_unix(path: &Path) -> io::Result<()> {
    // A blocking connect would wait while the listener's backlog is full; this one fails with EAGAIN.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STORE_CONNECT_WAIT))?;
    ask(stream)
}

fn ask(mut stream: impl Read + Write) -> io::Result<()> {
    stream.write_all(&QUESTION)?;
    match stream.read(&mut [0u8; 1]) {
        Ok(1) => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_listener_that_never_speaks_is_given_up_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Config::new();
        config.host("127.0.0.1").port(listener.local_addr().unwrap().port());
        let begun = Instant::now();
        assert!(answers(&config).unwrap_err().contains("no answer"));
        assert!(begun.elapsed() < 2 * STORE_CONNECT_WAIT);
    }

    #[test]
    fn a_socket_that_is_not_there_is_named() {
        let mut config = Config::new();
        config.host("/nonexistent/dir");
        assert!(answers(&config).unwrap_err().contains("/nonexistent/dir/.s.PGSQL.5432"));
    }
}
