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
    /// Those of the fleet: they may use the credential for the first time while the store is gone.
    of_fleet: Arc<Mutex<BTreeSet<u64>>>,
}

impl Peers {
    /// Those of a fleet; `least` are there at least.
    pub(super) fn new(process: &str, least: u32) -> Self {
        let me = number(process).unwrap_or_default();
        Self { me, least: least.max(1), of_credential: Arc::default(), of_fleet: Arc::default() }
    }

    /// The same for a credential.
    pub(super) fn of_credential(&self) -> Self {
        Self { of_credential: Arc::default(), ..self.clone() }
    }

    /// These share the credential, as the store says.
    pub(super) fn share_it(&self, processes: BTreeSet<u64>) {
        *lock(&self.of_credential) = processes;
    }

    /// These are the fleet.
    pub(super) fn are_the_fleet(&self, processes: BTreeSet<u64>) {
        *lock(&self.of_fleet) = processes;
    }

    /// How many share the credential, as last counted.
    pub(super) fn sharing(&self) -> u32 {
        whole(lock(&self.of_credential).len()).max(self.least)
    }

    /// How many may share it while nobody can be asked.
    pub(super) fn count(&self) -> u32 {
        self.place(&BTreeSet::new()).0
    }

    /// The same, and the place of this process among them; `others` have something in the
    /// documents.
    pub(super) fn place(&self, others: &BTreeSet<u64>) -> (u32, u32) {
        let mut known = lock(&self.of_credential).clone();
        known.extend(&*lock(&self.of_fleet));
        known.extend(others);
        known.insert(self.me);
        (whole(known.len()).max(self.least), whole(known.range(..self.me).count()))
    }
}

fn whole(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
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

    fn told(text: &str) -> BTreeSet<u64> {
        read_message(text).expect("it is one")
    }

    #[test]
    fn those_in_the_documents_count_before_a_heartbeat_has_told_of_them() {
        let peers = Peers::new("0b", 1);
        assert_eq!(peers.place(&BTreeSet::new()), (1, 0));
        assert_eq!(peers.place(&BTreeSet::from([3, 0x0b])), (2, 1));
        peers.share_it(told("\np\n01 02 0b"));
        assert_eq!((peers.sharing(), peers.place(&BTreeSet::from([9]))), (3, (4, 3)));
    }

    /// They may use it for the first time when the store is gone.
    #[test]
    fn those_of_the_fleet_count_though_they_have_not_used_the_credential() {
        let fleet = Peers::new("02", 1);
        let credential = fleet.of_credential();
        credential.share_it(told("\np\n02"));
        fleet.are_the_fleet(told("\np\n01 02 03"));
        assert_eq!((credential.sharing(), credential.count()), (1, 3));
    }

    #[test]
    fn no_fewer_are_counted_than_the_settings_say() {
        assert_eq!(Peers::new("01", 4).count(), 4);
    }
}
