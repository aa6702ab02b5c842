//! Where groups wait for their turn: by the time when they may start a job, or in a ring.

use std::collections::{BTreeMap, BTreeSet};

use tollway_core::Timestamp;

/// Where a group waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Nothing to do, or only an answer can tell when.
    Nowhere,
    /// Among those whose time will come.
    Heap(Timestamp),
    /// Among those whose turn will come, by ticket.
    Ring(u64),
}

/// The groups of a queue that have something to start, by number: each is in one of the two, or in
/// neither if only an answer, a resume or a cancellation can tell when.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// By the time when their limits allow their first job: one entry per group, no timer per job.
    heap: BTreeSet<(Timestamp, u32)>,
    /// Those whose first job may start, served in turn: deficit round robin.
    ring: BTreeMap<u64, u32>,
    next_ticket: u64,
}

impl Turns {
    /// The group whose time comes first.
    pub(crate) fn first_time(&self) -> Option<(Timestamp, u32)> {
        self.heap.first().copied()
    }

    /// The group that is served next, and its ticket.
    pub(crate) fn first_turn(&self) -> Option<(u64, u32)> {
        self.ring.first_key_value().map(|(ticket, number)| (*ticket, *number))
    }

    /// The end of the ring.
    pub(crate) const fn last(&self) -> Spot {
        Spot::Ring(self.next_ticket)
    }

    /// Moves a group from one spot to another.
    pub(crate) fn move_to(&mut self, number: u32, from: Spot, to: Spot) {
        match from {
            Spot::Heap(at) => drop(self.heap.remove(&(at, number))),
            Spot::Ring(ticket) => drop(self.ring.remove(&ticket)),
            Spot::Nowhere => {}
        }
        match to {
            Spot::Heap(at) => drop(self.heap.insert((at, number))),
            Spot::Ring(ticket) => {
                self.ring.insert(ticket, number);
                self.next_ticket = self.next_ticket.max(ticket + 1);
            }
            Spot::Nowhere => {}
        }
    }
}
