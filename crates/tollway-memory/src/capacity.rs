//! How much a store may hold, in keys or in bytes, and how it does when it is full.

use crate::slot::{Double, Narrow, Slot};
use crate::table::Table;

/// How much a store may hold. All of it is a hard bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Keys under GCRA with a unit worth a whole number of nanoseconds, which is nearly every quota
    /// that people write: 23 bytes each.
    pub keys: usize,
    /// Keys under other GCRA quotas, leaky buckets and fixed windows: 45 bytes each.
    pub wide_keys: usize,
    /// Bytes for states of variable size: sliding windows, permits.
    pub variable_bytes: usize,
    /// Open reservations.
    pub reservations: usize,
    /// What happens to a newcomer when every key near it is being limited.
    pub when_full: WhenFull,
}

impl Default for Capacity {
    fn default() -> Self {
        Self::keys(100_000)
    }
}

/// What to do with a newcomer when every key near it is being limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Deny it until the first of them is free again: no key is forgiven early.
    #[default]
    Deny,
    /// Forget the one nearest to being free: no newcomer is turned away.
    Forget,
}

/// How the table is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Slots that hold or have held a key.
    pub used: u64,
    /// Keys that were forgotten before their time.
    pub forgotten: u64,
    /// Newcomers denied because every key near them was being limited.
    pub refused: u64,
}

impl Pressure {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            forgotten: self.forgotten + other.forgotten,
            refused: self.refused + other.refused,
        }
    }
}

impl Capacity {
    /// Room for `keys` keys under GCRA, as many in slots of 32 bytes, 64 MiB of states of variable
    /// size and 65,536 reservations. What is not used costs address space, not memory.
    pub const fn keys(keys: usize) -> Self {
        Self {
            keys,
            wide_keys: keys,
            variable_bytes: 64 << 20,
            reservations: 65_536,
            when_full: WhenFull::Deny,
        }
    }

    /// At most `bytes` for states: half for keys under GCRA, a quarter for slots of 32 bytes, a
    /// quarter for states of variable size.
    pub fn bytes(bytes: usize) -> Self {
        Self {
            keys: keys_within::<Narrow>(bytes / 2),
            wide_keys: keys_within::<Double>(bytes / 4),
            variable_bytes: bytes / 4,
            ..Self::default()
        }
    }
}

/// Slots for `keys`: a third more, so that nearly every key is at home.
pub(crate) const fn slots(keys: usize) -> usize {
    keys.saturating_add(keys / 3)
}

fn keys_within<S: Slot>(bytes: usize) -> usize {
    let per_slots = Table::<S>::bytes(1_024) - Table::<S>::bytes(0);
    bytes.saturating_sub(Table::<S>::bytes(0)) / per_slots * 1_024 / 4 * 3
}
