//! Who shares a credential: how many, and which place this process has among them.
//!
//! Known from heartbeats, from what others say when they come, and from the documents. While the
//! store is gone it decides which part of the limits is this process's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The processes that share a credential, as this one knows them.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    me: u64,
    least: u32,
    of_credential: Arc<Mutex<BTreeSet<u64>>>,
    /// Those of any credential on the store: whoever has never been told of a credential's takes it
    /// that all of them share it.
    of_store: Arc<Mutex<BTreeSet<u64>>>,
}

impl Peers {
    /// Those of the first credential of a process; `least` are there at least.
    pub(super) fn new(process: &str, least: u32) -> Self {
        let me = number(process).unwrap_or_default();
        Self { me, least: least.max(1), of_credential: Arc::default(), of_store: Arc::default() }
    }

    /// The same for another credential.
    pub(super) fn of_another(&self) -> Self {
        Self { of_credential: Arc::default(), ..self.clone() }
    }

    /// These share it, as the store says.
    pub(super) fn are(&self, names: impl IntoIterator<Item = u64>) {
        let told: BTreeSet<u64> = names.into_iter().collect();
        let mut of_store = lock(&self.of_store);
        if told.len() >= of_store.len() {
            of_store.clone_from(&told);
        }
        drop(of_store);
        *lock(&self.of_credential) = told;
    }

    /// How many share it, as far as is known.
    pub(super) fn count(&self) -> u32 {
        self.place(&BTreeSet::new()).0
    }

    /// How many share it, and the place of this process among them; `others` have something in the
    /// documents.
    pub(super) fn place(&self, others: &BTreeSet<u64>) -> (u32, u32) {
        let mut known = lock(&self.of_credential).clone();
        if known.is_empty() {
            known.clone_from(&lock(&self.of_store));
        }
        known.extend(others);
        known.insert(self.me);
        let place = known.range(..self.me).count();
        let whole = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (whole(known.len()).max(self.least), whole(place))
    }
}

/// A process's name as a number.
pub(super) fn number(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok()
}

/// The processes that `beat.lua` tells of when one of them is new.
pub(super) fn read_message(text: &str) -> Option<BTreeSet<u64>> {
    text.strip_prefix("\np\n").map(|names| names.split(' ').filter_map(number).collect())
}

fn lock(set: &Mutex<BTreeSet<u64>>) -> MutexGuard<'_, BTreeSet<u64>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_in_the_documents_count_before_a_heartbeat_has_told_of_them() {
        let peers = Peers::new("0b", 1);
        assert_eq!(peers.place(&BTreeSet::new()), (1, 0));
        assert_eq!(peers.place(&BTreeSet::from([3, 0x0b])), (2, 1));
        peers.are(read_message("\np\n01 02 0b").expect("it is one"));
        assert_eq!((peers.count(), peers.place(&BTreeSet::from([9]))), (3, (4, 3)));
    }

    #[test]
    fn a_credential_of_which_nothing_was_told_is_taken_for_everybodys() {
        let first = Peers::new("02", 1);
        first.are([1, 2, 3]);
        let second = first.of_another();
        assert_eq!(second.place(&BTreeSet::new()), (3, 1));
        second.are([2]);
        assert_eq!((second.count(), first.count()), (1, 3));
    }

    #[test]
    fn no_fewer_are_counted_than_the_settings_say() {
        assert_eq!(Peers::new("01", 4).count(), 4);
    }
}
