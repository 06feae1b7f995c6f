//! Randomness from the kernel, for what nobody may guess: seeds of the daemon, nonces of its clients. Blocks at most while
//! the machine has just been started.

use std::fs::File;
use std::io::{self, Read};

pub fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map(|()| bytes)
}
