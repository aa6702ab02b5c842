//! What will happen, in order: a heap of time and sequence.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens to a process or to a task. The second number of a task's event is the
/// turn it belongs to: an event of an earlier turn is stale and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Join(u32),
    Leave(u32),
    /// A task that thought or was off duty wants to send.
    Want(u32, u32),
    /// A task that slept sends.
    Wake(u32, u32),
    /// A process's gate opens.
    Open(u32, u32),
    /// A request reaches the server.
    Arrive(u32, u32),
    /// An answer reaches its task.
    Reply(u32, u32),
    /// A task stops waiting for an answer.
    GiveUp(u32, u32),
    /// The witness looks.
    Tick,
}

/// The heap. Events of the same moment happen in the order in which they were put.
#[derive(Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    sequence: u64,
}

/// An event and its moment: the time, and below it the sequence. As one number it is compared at
/// once; comparisons are a third of a run.
struct Entry {
    moment: u128,
    event: Event,
}

impl Entry {
    const fn at_ns(&self) -> u64 {
        (self.moment >> 64) as u64
    }
}

/// The heap gives the greatest first: the earliest is the greatest.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.moment.cmp(&self.moment)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.moment == other.moment
    }
}

impl Eq for Entry {}

impl Agenda {
    pub(super) fn put(&mut self, at_ns: u64, event: Event) {
        let moment = u128::from(at_ns) << 64 | u128::from(self.sequence);
        self.heap.push(Entry { moment, event });
        self.sequence += 1;
    }

    /// The next event if it is not after `until_ns`.
    pub(super) fn next_until(&mut self, until_ns: u64) -> Option<(u64, Event)> {
        if self.heap.peek()?.at_ns() > until_ns {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at_ns(), entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_moment_happen_in_the_order_in_which_they_were_put() {
        let mut agenda = Agenda::default();
        agenda.put(5, Event::Tick);
        agenda.put(3, Event::Wake(9, 0));
        agenda.put(3, Event::Join(1));
        assert_eq!(agenda.next_until(4), Some((3, Event::Wake(9, 0))));
        assert_eq!(agenda.next_until(4), Some((3, Event::Join(1))));
        assert_eq!(agenda.next_until(4), None);
        assert_eq!(agenda.next_until(5), Some((5, Event::Tick)));
    }
}
