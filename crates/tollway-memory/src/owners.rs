//! Owners of room: a byte stands for each policy, and what pressure has cost it is counted.
//!
//! A table is shared by policies, and the room in it is shared fairly ([`crate::table`]): for that
//! a slot says in one byte whose it is. Bytes are handed out as owners come, in a table of open
//! addresses that is only ever added to, so that a look takes no lock. Policies are few, and one
//! whose numbers change keeps its name and so its byte; beyond 256 names, names share bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::capacity::Pressure;

/// Which byte stands for which owner.
pub(crate) struct Owners(Box<[Owner; NUMBERS]>);

struct Owner {
    /// Zero while the number is free.
    id: AtomicU64,
    forgotten: AtomicU64,
    refused: AtomicU64,
}

pub(crate) const NUMBERS: usize = 256;

impl Owners {
    pub(crate) fn new() -> Self {
        let owner = |_| Owner {
            id: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        Self(Box::new(std::array::from_fn(owner)))
    }

    /// The number of an owner, given to it now if it has none.
    pub(crate) fn number(&self, owner: u64) -> u8 {
        let owner = owner.max(1);
        let first = owner as usize % NUMBERS;
        for step in 0..NUMBERS {
            let at = (first + step) % NUMBERS;
            let known = &self.0[at].id;
            let mut id = known.load(Ordering::Relaxed);
            if id == 0 {
                let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
                id = known
                    .compare_exchange(0, owner, success, failure)
                    .map_or_else(|id| id, |_| owner);
            }
            if id == owner {
                return at as u8;
            }
        }
        first as u8
    }

    /// Who has this number, or the first of those who share it.
    pub(crate) fn id(&self, number: u8) -> u64 {
        self.0[usize::from(number)].id.load(Ordering::Relaxed)
    }

    /// Counts a key that was forgotten before its time.
    pub(crate) fn note_forgotten(&self, number: u8) {
        self.0[usize::from(number)].forgotten.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a newcomer that was denied for want of room.
    pub(crate) fn note_refused(&self, number: u8) {
        self.0[usize::from(number)].refused.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted of one number.
    pub(crate) fn pressure(&self, number: u8) -> Pressure {
        let owner = &self.0[usize::from(number)];
        Pressure {
            used: 0,
            forgotten: owner.forgotten.load(Ordering::Relaxed),
            refused: owner.refused.load(Ordering::Relaxed),
        }
    }

    /// Counts anew.
    pub(crate) fn start_over(&self) {
        for owner in self.0.iter() {
            owner.forgotten.store(0, Ordering::Relaxed);
            owner.refused.store(0, Ordering::Relaxed);
        }
    }

    /// What was counted of all.
    pub(crate) fn pressure_of_all(&self) -> Pressure {
        (0..=u8::MAX).map(|number| self.pressure(number)).fold(Pressure::default(), Pressure::plus)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn up_to_256_owners_have_a_number_each_and_keep_it() {
        let owners = Owners::new();
        let ids: Vec<u64> = (0..256).map(|id| id * 7_919 * 256).collect();
        let numbers: Vec<u8> = ids.iter().map(|id| owners.number(*id)).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 256);
        for (id, number) in ids.iter().zip(&numbers) {
            assert_eq!((owners.number(*id), owners.id(*number)), (*number, (*id).max(1)));
        }
        assert_eq!(owners.number(u64::MAX), 255, "one more shares a number");
    }
}
