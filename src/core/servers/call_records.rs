//! Records of tool calls on their way to the store: behind the answers, in batches, bounded. Owns which of them wait and how
//! many were dropped because there was no room. Invariant: a batch is out at most once at a time, and is given again until it is
//! known to be stored or refused.

use crate::limits::{
    RECORD_ARGUMENTS_MAX, RECORDS_BATCH, RECORDS_BATCH_BYTES, RECORDS_WAITING_BYTES, RECORDS_WAITING_MAX,
};
use crate::model::external::ToolCallRecord;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

#[derive(Default, Serialize, Deserialize)]
pub struct CallRecords {
    /// Oldest first; those of the batch that is out stand at the front.
    waiting: VecDeque<ToolCallRecord>,
    bytes: usize,
    /// Of the batch that is out.
    out: usize,
    dropped: u64,
    /// Of arguments of calls that are under way.
    held: usize,
    /// The next batch waits for more to come.
    pausing: bool,
}

impl CallRecords {
    /// May arguments of so many bytes be kept until their call has ended? `let_go` must follow if they may.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let fits = self.bytes + self.held + bytes <= RECORDS_WAITING_BYTES;
        self.held += if fits { bytes } else { 0 };
        fits
    }

    pub fn let_go(&mut self, bytes: usize) {
        self.held -= bytes;
    }

    /// True: it begins now.
    pub fn begin_pause(&mut self) -> bool {
        !std::mem::replace(&mut self.pausing, true)
    }

    pub fn end_pause(&mut self) {
        self.pausing = false;
    }

    /// Arguments that are too long are left out. Without room the record is dropped, and counted.
    pub fn push(&mut self, mut record: ToolCallRecord) {
        record.arguments = record.arguments.filter(|text| text.len() <= RECORD_ARGUMENTS_MAX);
        let size = size_of_record(&record);
        if self.waiting.len() >= RECORDS_WAITING_MAX || self.bytes + size > RECORDS_WAITING_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += size;
        self.waiting.push_back(record);
    }

    /// The next batch, unless one is out. `done` or `failed` must follow.
    pub fn take_batch(&mut self) -> Option<Vec<ToolCallRecord>> {
        if self.out > 0 || self.waiting.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fits = |record: &&ToolCallRecord| {
            bytes += size_of_record(record);
            bytes <= RECORDS_BATCH_BYTES
        };
        let batch: Vec<ToolCallRecord> = self.waiting.iter().take(RECORDS_BATCH).take_while(fits).cloned().collect();
        self.out = batch.len();
        Some(batch)
    }

    /// The batch is stored.
    pub fn stored(&mut self) {
        self.end_batch();
    }

    /// The store will not have the batch, now or later.
    pub fn refused(&mut self) {
        self.dropped += self.end_batch();
    }

    /// It is not known what became of the batch: it is given again, and the store knows its records by their ids.
    pub fn unknown(&mut self) {
        self.out = 0;
    }

    fn end_batch(&mut self) -> u64 {
        let ended = std::mem::take(&mut self.out);
        for record in self.waiting.drain(..ended) {
            self.bytes -= size_of_record(&record);
        }
        ended as u64
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// What it takes in memory, about.
fn size_of_record(record: &ToolCallRecord) -> usize {
    let texts = [&record.server, &record.run_id, &record.arguments, &record.error_code];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    size_of::<ToolCallRecord>() + record.tool.len() + record.principal.len() + texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;
    use crate::model::external::{CallOutcome, ProjectId};

    fn record(number: usize, arguments: usize) -> ToolCallRecord {
        ToolCallRecord {
            id: Uuid::from_u128(number as u128),
            project: ProjectId::new("p").unwrap(),
            server: None,
            tool: "t".into(),
            run_id: None,
            principal: "a".into(),
            arguments: Some("x".repeat(arguments)),
            arguments_bytes: arguments as u64,
            is_error: false,
            error_code: None,
            outcome: CallOutcome::Answered,
            started_unix_ms: 0,
            duration_ms: 0,
            result_bytes: 0,
        }
    }

    #[test]
    fn batches_come_in_order_one_at_a_time_and_again_if_their_fate_is_unknown() {
        let mut records = CallRecords::default();
        assert_eq!(records.take_batch(), None);
        (0..RECORDS_BATCH + 1).for_each(|number| records.push(record(number, 1)));
        let first = records.take_batch().unwrap();
        assert_eq!((first.len(), first[0].id), (RECORDS_BATCH, Uuid::from_u128(0)));
        assert_eq!(records.take_batch(), None, "one is out");
        records.unknown();
        assert_eq!(records.take_batch().unwrap(), first);
        records.stored();
        assert_eq!(records.take_batch().unwrap().len(), 1);
        records.refused();
        assert_eq!((records.is_empty(), records.dropped(), records.bytes), (true, 1, 0));
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes_and_what_is_dropped_is_counted() {
        let mut records = CallRecords::default();
        (0..RECORDS_WAITING_MAX + 7).for_each(|number| records.push(record(number, 1)));
        assert_eq!((records.len(), records.dropped()), (RECORDS_WAITING_MAX, 7));
        let mut records = CallRecords::default();
        let twice = 2 * RECORDS_WAITING_BYTES / RECORD_ARGUMENTS_MAX;
        (0..twice).for_each(|number| records.push(record(number, RECORD_ARGUMENTS_MAX)));
        assert!(records.bytes <= RECORDS_WAITING_BYTES && records.dropped() > 0);
        let batch: usize = records.take_batch().unwrap().iter().map(size_of_record).sum();
        assert!(batch <= RECORDS_BATCH_BYTES);
    }

    #[test]
    fn arguments_that_are_too_long_are_left_out_and_their_length_is_kept() {
        let mut records = CallRecords::default();
        records.push(record(1, RECORD_ARGUMENTS_MAX + 1));
        let batch = records.take_batch().unwrap();
        assert_eq!((batch[0].arguments.as_ref(), batch[0].arguments_bytes), (None, RECORD_ARGUMENTS_MAX as u64 + 1));
    }
}
