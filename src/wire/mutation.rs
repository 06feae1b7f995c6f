//! Hostile input for tests: a seeded mutator, so that a failure can be replayed.

pub struct Mutator(u64);

impl Mutator {
    pub fn new(seed: u64) -> Mutator {
        Mutator(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// One of `seeds` with a few bytes changed, dropped, doubled, inserted or spliced in from another.
    pub fn mutate(&mut self, seeds: &[&[u8]]) -> Vec<u8> {
        const SPICE: &[u8] = b"\"\\{}[]:,0919-+.eE nullid\0\n\r\t\x7f\x80\xc3\xff";
        let mut bytes = seeds[self.below(seeds.len())].to_vec();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] = SPICE[self.below(SPICE.len())],
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.truncate(at),
                3 => bytes.insert(at, SPICE[self.below(SPICE.len())]),
                4 => {
                    let from = self.below(at + 1);
                    let copy = bytes[from..at].to_vec();
                    bytes.splice(at..at, copy);
                }
                _ => {
                    let other = seeds[self.below(seeds.len())];
                    let from = self.below(other.len() + 1);
                    bytes.splice(at..at, other[from..].iter().copied());
                }
            }
        }
        bytes
    }
}
