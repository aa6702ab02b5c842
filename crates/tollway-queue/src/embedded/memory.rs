//! Payloads and results in memory.

use std::collections::HashMap;

use bytes::Bytes;

use super::row_store::RowStore;
use crate::error::Error;
use crate::schedule::{Change, IdHash, QueueChange, Schedule};

/// Payloads and results by queue and job.
#[derive(Debug, Default)]
pub(super) struct MemoryRows {
    queues: HashMap<u32, QueueRows, IdHash>,
}

#[derive(Debug, Default)]
struct QueueRows {
    payloads: HashMap<u64, Bytes, IdHash>,
    results: HashMap<u64, Bytes, IdHash>,
}

impl RowStore for MemoryRows {
    fn store(&mut self, schedule: &mut Schedule) -> Result<(), Error> {
        // Most changes of a call are of one queue, which is looked up once.
        let mut last: Option<(u32, &mut QueueRows)> = None;
        let mut removed = Vec::new();
        for change in schedule.changes.drain(..) {
            let Change::Queue(queue, change) = change else { continue };
            if matches!(change, QueueChange::Removed) {
                removed.push(queue);
                continue;
            }
            let rows = match last.take() {
                Some((number, rows)) if number == queue => rows,
                _ => self.queues.entry(queue).or_default(),
            };
            rows.apply(change);
            last = Some((queue, rows));
        }
        // No number is given twice: nothing that came after was of another queue.
        for queue in removed {
            self.queues.remove(&queue);
        }
        Ok(())
    }

    fn payload(&mut self, queue: u32, id: u64) -> Result<Bytes, Error> {
        Ok(self.of(queue).payloads.get(&id).cloned().unwrap_or_default())
    }

    fn result(&mut self, queue: u32, id: u64) -> Result<Option<Bytes>, Error> {
        Ok(self.of(queue).results.get(&id).cloned())
    }
}

impl QueueRows {
    fn apply(&mut self, change: QueueChange) {
        match change {
            // An empty payload is told by its absence.
            QueueChange::Job(id, payload) if !payload.is_empty() => {
                self.payloads.insert(id, payload);
            }
            QueueChange::Gone(id) => {
                self.payloads.remove(&id);
                if self.payloads.is_empty() {
                    self.payloads = HashMap::default();
                }
            }
            QueueChange::Done(id, Some(result)) => {
                self.results.insert(id, result);
            }
            QueueChange::DoneGone(id) => drop(self.results.remove(&id)),
            _ => {}
        }
    }
}

impl MemoryRows {
    fn of(&mut self, queue: u32) -> &mut QueueRows {
        self.queues.entry(queue).or_default()
    }
}
