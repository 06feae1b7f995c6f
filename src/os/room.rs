//! The room for requests that are still coming in, over all clients. Counts memory, not bytes received, since that is what
//! an attacker wants of us. Invariant: what each client has taken adds up to `taken`, and `taken` stays within the bound.

use crate::limits::{BUFFER_KEPT_MAX, REQUESTS_BYTES_MAX};

/// A client's part of the room; it goes back with `Room::give_back`.
#[derive(Debug, Default)]
pub struct Share(usize);

#[derive(Debug, Default)]
pub struct Room {
    taken: usize,
}

impl Room {
    /// The client's buffer has this size now. False: it has grown beyond what there is, and must be given up.
    /// What every connection may keep anyway is not counted, so that small requests always find room.
    #[must_use]
    pub fn fits(&mut self, share: &mut Share, buffer: usize) -> bool {
        let wanted = buffer.saturating_sub(BUFFER_KEPT_MAX);
        let others = self.taken - share.0;
        if wanted > share.0 && others + wanted > REQUESTS_BYTES_MAX {
            return false;
        }
        self.taken = others + wanted;
        share.0 = wanted;
        true
    }

    pub fn give_back(&mut self, share: &mut Share) {
        self.taken -= std::mem::take(&mut share.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BODY_MAX;

    #[test]
    fn the_one_that_outgrows_the_room_is_told_and_the_others_keep_theirs() {
        let mut room = Room::default();
        let mut shares: Vec<Share> = Vec::new();
        loop {
            let mut share = Share::default();
            if !room.fits(&mut share, BODY_MAX) {
                room.give_back(&mut share);
                break;
            }
            shares.push(share);
        }
        assert!((REQUESTS_BYTES_MAX / BODY_MAX..2 * REQUESTS_BYTES_MAX / BODY_MAX).contains(&shares.len()));
        let full = room.taken;
        assert!(room.fits(&mut Share::default(), BUFFER_KEPT_MAX), "a small request needs no room");
        assert!(room.fits(&mut shares[0], BODY_MAX / 2), "to shrink is always allowed");
        assert!(room.fits(&mut Share::default(), BODY_MAX / 4));
        for share in &mut shares {
            room.give_back(share);
            room.give_back(share);
        }
        assert!(room.taken < full && room.taken == BODY_MAX / 4 - BUFFER_KEPT_MAX, "{}", room.taken);
    }
}
