//! Names → addresses, outside the loop: the system's resolver blocks for as long as a name server is silent. Each lookup has
//! a thread of its own, so that one that hangs holds up nobody else; there is a bound on those threads and on those who wait
//! for one. Answers come back through a channel and a wake-up. Also reads what TLS needs from disk, for the same reason.

use crate::ids::OutgoingId;
use crate::limits::{LOOKUP_STACK, LOOKUPS_AT_ONCE, LOOKUPS_WAITING_MAX};
use crate::os::net::outgoing::tls::Trust;
use rustls::ClientConfig;
use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What is to be found out for one connection.
pub struct Question {
    pub id: OutgoingId,
    pub host: String,
    pub port: u16,
    /// Whom to trust, if TLS is to be spoken.
    pub tls: Option<Option<PathBuf>>,
}

pub struct Found {
    pub id: OutgoingId,
    pub addresses: Result<Vec<SocketAddr>, String>,
    pub tls: Option<Result<Arc<ClientConfig>, String>>,
}

/// The system's resolver, or one of a test. May block for as long as it likes.
pub type Lookup = Arc<dyn Fn(&str, u16) -> Result<Vec<SocketAddr>, String> + Send + Sync>;
/// Wakes the loop up.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

pub struct Resolver {
    lookup: Lookup,
    wake: Wake,
    trust: Arc<Trust>,
    answers: (Sender<Found>, Receiver<Found>),
    waiting: VecDeque<Question>,
    /// Threads at work, those included whose answer nobody waits for any more.
    at_work: usize,
}

/// There are as many lookups as may be.
pub struct Full;

impl Resolver {
    pub fn new(lookup: Lookup, wake: Wake) -> Resolver {
        let trust = Arc::default();
        Resolver { lookup, wake, trust, answers: channel(), waiting: VecDeque::new(), at_work: 0 }
    }

    pub fn ask(&mut self, question: Question) -> Result<(), Full> {
        if self.waiting.len() >= LOOKUPS_WAITING_MAX {
            return Err(Full);
        }
        self.waiting.push_back(question);
        self.start();
        Ok(())
    }

    /// Nobody waits for it any more. A thread that is at work on it goes on until the resolver lets it go.
    pub fn forget(&mut self, id: OutgoingId) {
        self.waiting.retain(|question| question.id != id);
    }

    /// What has been found out since this was last asked.
    pub fn take(&mut self) -> Vec<Found> {
        let found: Vec<Found> = self.answers.1.try_iter().collect();
        self.at_work -= found.len();
        self.start();
        found
    }

    fn start(&mut self) {
        while self.at_work < LOOKUPS_AT_ONCE
            && let Some(question) = self.waiting.pop_front()
        {
            let id = question.id;
            let (lookup, wake, trust) = (Arc::clone(&self.lookup), Arc::clone(&self.wake), Arc::clone(&self.trust));
            let answers = self.answers.0.clone();
            let thread = std::thread::Builder::new().name("lookup".to_string()).stack_size(LOOKUP_STACK);
            let spawned = thread.spawn(move || {
                let Question { id, host, port, tls } = question;
                let addresses = lookup(&host, port);
                let tls = tls.map(|ca| trust.config(ca.as_ref()));
                // The loop may be gone.
                _ = answers.send(Found { id, addresses, tls });
                wake();
            });
            self.at_work += 1;
            if let Err(e) = spawned {
                let why = format!("no thread for looking up a name: {e}");
                _ = self.answers.0.send(Found { id, addresses: Err(why), tls: None });
                (self.wake)();
                return;
            }
        }
    }
}

/// `getaddrinfo`.
pub fn system_lookup() -> Lookup {
    Arc::new(|host, port| match (host, port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(e) => Err(e.to_string()),
    })
}
