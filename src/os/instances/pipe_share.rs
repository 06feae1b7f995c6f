//! What the pipes of one instance have taken of the shares: what its server has not read yet, and the line that it is in the
//! middle of. Both belong to the server, however many instances it has. Owns no pipe and no buffer; never decides who has to
//! make room. Invariant: what it says it has is what the ledger counts for its server.

use crate::limits::PIPE_BUFFER_FREE;
use crate::shares::{Owner, Resource, Shares, Short};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
pub struct PipeShare {
    owner: Owner,
    unread: usize,
    lines: usize,
    /// Since when some of what waits for it is counted.
    behind_since_ms: u64,
}

impl PipeShare {
    pub fn new(owner: Owner) -> PipeShare {
        PipeShare { owner, unread: 0, lines: 0, behind_since_ms: 0 }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What is counted of what its server has not read.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// For so long its server has not read all that waits for it.
    pub fn behind_ms(&self, now_ms: u64) -> u64 {
        if self.unread > 0 { now_ms.saturating_sub(self.behind_since_ms) } else { 0 }
    }

    /// So many bytes are to wait for its server; with an error it may not be more than before. Whoever has little, and had
    /// little, costs two comparisons.
    pub fn count_unread(&mut self, bytes: usize, shares: &mut Shares, now_ms: u64) -> Result<(), Short> {
        if bytes <= PIPE_BUFFER_FREE && self.unread == 0 {
            return Ok(());
        }
        if self.unread == 0 {
            self.behind_since_ms = now_ms;
        }
        shares.resize(&self.owner, Resource::Unread, &mut self.unread, bytes.saturating_sub(PIPE_BUFFER_FREE))
    }

    /// The same for the buffer of its lines.
    pub fn count_lines(&mut self, bytes: usize, shares: &mut Shares) -> Result<(), Short> {
        let wanted = bytes.saturating_sub(PIPE_BUFFER_FREE);
        if wanted == self.lines {
            return Ok(());
        }
        shares.resize(&self.owner, Resource::Lines, &mut self.lines, wanted)
    }

    /// The instance is over.
    pub fn give_back(&mut self, shares: &mut Shares) {
        shares.give_back(&self.owner, Resource::Unread, std::mem::take(&mut self.unread));
        shares.give_back(&self.owner, Resource::Lines, std::mem::take(&mut self.lines));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ServerId, Uuid};

    fn of(number: u128) -> PipeShare {
        PipeShare::new(Owner::Server(ServerId(Uuid::from_u128(number))))
    }

    #[test]
    fn little_is_not_counted_and_much_is_until_it_is_read() {
        let (mut shares, mut share) = (Shares::default(), of(1));
        share.count_unread(PIPE_BUFFER_FREE, &mut shares, 5).unwrap();
        share.count_lines(PIPE_BUFFER_FREE, &mut shares).unwrap();
        assert_eq!((shares.taken(Resource::Unread), shares.taken(Resource::Lines)), (0, 0));
        share.count_unread(PIPE_BUFFER_FREE + 10, &mut shares, 100).unwrap();
        share.count_unread(PIPE_BUFFER_FREE + 7, &mut shares, 200).unwrap();
        share.count_lines(PIPE_BUFFER_FREE + 3, &mut shares).unwrap();
        assert_eq!((shares.taken(Resource::Unread), shares.taken(Resource::Lines)), (7, 3));
        assert_eq!(share.behind_ms(300), 200, "reading a little is not reading all");
        share.count_unread(0, &mut shares, 300).unwrap();
        assert_eq!(share.behind_ms(9_000), 0);
        share.give_back(&mut shares);
        share.give_back(&mut shares);
        assert_eq!((shares.taken(Resource::Unread), shares.taken(Resource::Lines)), (0, 0));
    }

    #[test]
    fn instances_of_one_server_have_one_share() {
        let (mut shares, [mut a, mut b, mut other]) = (Shares::default(), [of(1), of(1), of(2)]);
        let most = Resource::Lines.caps().server + PIPE_BUFFER_FREE;
        a.count_lines(most, &mut shares).unwrap();
        assert_eq!(b.count_lines(PIPE_BUFFER_FREE + 1, &mut shares), Err(Short::Owner));
        other.count_lines(most, &mut shares).unwrap();
        a.give_back(&mut shares);
        b.count_lines(most, &mut shares).unwrap();
    }
}
