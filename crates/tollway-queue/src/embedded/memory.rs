//! Payloads and results in memory.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::row_store::RowStore;
use crate::error::Error;
use crate::schedule::{Change, IdHash, QueueChange, Schedule};

/// Payloads and results by queue and job.
#[derive(Debug, Default)]
pub(super) struct MemoryRows {
    /// Few, mostly one: to find it in a tree costs less than a hash.
    queues: BTreeMap<u32, QueueRows>,
}

#[derive(Debug, Default)]
struct QueueRows {
    payloads: HashMap<u64, Bytes, IdHash>,
    results: HashMap<u64, Bytes, IdHash>,
}

impl RowStore for MemoryRows {
    fn store(&mut self, schedule: &mut Schedule) -> Result<(), Error> {
        for change in schedule.changes.drain(..) {
            let Change::Queue(queue, change) = change else { continue };
            match change {
                // An empty payload is told by its absence.
                QueueChange::Job(id, payload) if !payload.is_empty() => {
                    self.of(queue).payloads.insert(id, payload);
                }
                QueueChange::Gone(id) => {
                    let payloads = &mut self.of(queue).payloads;
                    payloads.remove(&id);
                    if payloads.is_empty() {
                        *payloads = HashMap::default();
                    }
                }
                QueueChange::Done(id, Some(result)) => {
                    self.of(queue).results.insert(id, result);
                }
                QueueChange::DoneGone(id) => drop(self.of(queue).results.remove(&id)),
                QueueChange::Removed => drop(self.queues.remove(&queue)),
                _ => {}
            }
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

impl MemoryRows {
    fn of(&mut self, queue: u32) -> &mut QueueRows {
        self.queues.entry(queue).or_default()
    }
}
