//! Machines that are network namespaces of the test's own, with wires between them: this host, and whoever is outside. A
//! namespace is held by a descriptor and by the threads in it; it has no name, so nothing is left of it.

use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

pub struct Machine {
    namespace: File,
}

impl Machine {
    /// With its loopback up, and nothing else.
    pub fn new() -> Machine {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            File::open("/proc/thread-self/ns/net").expect("our own")
        };
        let machine = Machine { namespace: std::thread::spawn(make).join().expect("a namespace") };
        machine.ip("link set lo up");
        machine
    }

    /// Runs `act` as a process of this machine would; what it starts is on this machine too.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let run = || {
                setns(&self.namespace, CloneFlags::CLONE_NEWNET).expect("our own namespace");
                act()
            };
            scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub fn ip(&self, words: &str) -> String {
        self.run("ip", &words.split(' ').collect::<Vec<_>>())
    }

    pub fn run(&self, program: &str, words: &[&str]) -> String {
        let output = self.inside(|| Command::new(program).args(words).output().expect("scripts/setup installs it"));
        assert!(output.status.success(), "{program} {words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A wire from `here` to `there`, both up.
    pub fn wire(&self, here: &str, other: &Machine, there: &str) {
        self.ip(&format!("link add {here} type veth peer name {there}"));
        let path = format!("/proc/{}/fd/{}", std::process::id(), other.namespace.as_raw_fd());
        self.run("ip", &["link", "set", there, "netns", &path]);
        self.ip(&format!("link set {here} up"));
        other.ip(&format!("link set {there} up"));
    }

    /// A service that says hello to whoever connects, until the test's process ends.
    pub fn greeter(&self, address: &str) -> u16 {
        let listener = self.inside(|| TcpListener::bind(address).expect("a port"));
        let port = listener.local_addr().expect("bound").port();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|mut s| drop(s.write_all(b"hello"))));
        port
    }

    /// A service that sends every datagram back.
    pub fn echo(&self, address: &str) {
        let socket = self.inside(|| UdpSocket::bind(address).expect("a port"));
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                _ = socket.send_to(&buffer[..length], from);
            }
        });
    }

    /// What somebody on this machine hears from there: nothing, if nobody answers.
    pub fn hear(&self, address: SocketAddr) -> Option<String> {
        self.inside(|| {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).ok()?;
            Some(String::from_utf8_lossy(&heard).into_owned())
        })
    }
}

/// This host and a machine beside it that is its router, the internet, the company and the cloud in one: it has an address of
/// each kind, and knows the way to every container network of this host.
pub struct Neighbourhood {
    pub host: Machine,
    pub outside: Machine,
}

pub const HOST: &str = "203.0.113.1";
pub const HOST_V6: &str = "2001:db8:1::1";
pub const PUBLIC: &str = "198.51.100.7";
pub const PUBLIC_V6: &str = "2001:db8:2::7";
pub const METADATA: &str = "169.254.169.254";
pub const PRIVATE: [&str; 4] = ["10.77.0.2", "172.20.0.2", "192.168.77.2", "100.64.0.2"];
pub const PRIVATE_V6: &str = "fd77::2";
pub const RESOLVER: &str = "192.168.77.53";

impl Neighbourhood {
    pub fn new() -> Neighbourhood {
        let (host, outside) = (Machine::new(), Machine::new());
        host.wire("up0", &outside, "eth0");
        host.ip(&format!("addr add {HOST}/24 dev up0"));
        host.ip(&format!("addr add {HOST_V6}/64 dev up0 nodad"));
        outside.ip("addr add 203.0.113.2/24 dev eth0");
        outside.ip("addr add 2001:db8:1::2/64 dev eth0 nodad");
        host.ip("route add default via 203.0.113.2");
        host.ip("-6 route add default via 2001:db8:1::2");
        for address in [&PRIVATE[..], &[PUBLIC, METADATA, RESOLVER]].concat() {
            outside.ip(&format!("addr add {address}/32 dev lo"));
        }
        for address in [PUBLIC_V6, PRIVATE_V6] {
            outside.ip(&format!("addr add {address}/128 dev lo nodad"));
        }
        // The subnets of daemons, and of the networks that tests make.
        outside.ip(&format!("route add 10.128.0.0/9 via {HOST}"));
        outside.ip(&format!("-6 route add fd51::/32 via {HOST_V6}"));
        Neighbourhood { host, outside }
    }
}
