//! Imports: a document is read by the look-up thread, and its request once more when that is done. Owns how many are read at
//! once, and which of them a finding is about: a client may have given up meanwhile and have asked for something else.

use super::{Clients, LookedUp};
use crate::api::import::body::{Candidate, Document};
use crate::api::request::Ask;
use crate::api::rest::ImportAsked;
use crate::core::Core;
use crate::core::contract::Now;
use crate::ids::ConnId;
use crate::limits::{IMPORTS_AT_ONCE, LOOK_UP_WAIT};
use crate::model::fault::{Code, Fault};
use crate::os::event_loop::lookups::Question;
use crate::os::net::client::Doing;
use crate::shares::Shares;
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Imports {
    minted: u64,
    /// Asked of the thread and not answered, whoever still waits.
    reading: usize,
    waiting: HashMap<ConnId, u64>,
}

impl Imports {
    pub(super) fn is_at_rest(&self) -> bool {
        self.reading == 0 && self.waiting.is_empty()
    }
}

impl Clients {
    /// Hands the document over. The copy is bounded by how many there may be.
    pub(super) fn read_document(&mut self, id: ConnId, document: Document, now: Now) -> Result<(), Fault> {
        if self.imports.reading >= IMPORTS_AT_ONCE {
            let why = format!("{IMPORTS_AT_ONCE} documents are being imported already");
            return Err(Fault::new(Code::Unavailable, why).retry_after_ms(1_000));
        }
        self.imports.minted += 1;
        self.imports.reading += 1;
        let ticket = self.imports.minted;
        self.imports.waiting.insert(id, ticket);
        self.questions.push(Question::Import { conn: id, ticket, document: Box::new(document) });
        let client = self.map.get_mut(&id).expect("it is being served");
        client.doing = Doing::LookingUp;
        client.deadline_ms = Some(now.mono_ms + LOOK_UP_WAIT.as_millis() as u64);
        self.touched.push(id);
        Ok(())
    }

    /// The thread has read a document.
    pub fn imported(
        &mut self,
        (id, ticket): (ConnId, u64),
        read: Result<Vec<Candidate>, Fault>,
        core: &mut Core,
        shares: &mut Shares,
        now: Now,
    ) {
        self.imports.reading -= 1;
        if self.imports.waiting.get(&id) == Some(&ticket) {
            self.imports.waiting.remove(&id);
            self.looked(id, LookedUp::Import(read), core, shares, now);
        }
    }
}

/// What is asked of the core, now that the document is read.
pub(super) fn ask(import: ImportAsked<'_>, candidates: Vec<Candidate>) -> Ask<'static> {
    Ask::Import { dry_run: import.dry_run, project: import.project, candidates }
}
