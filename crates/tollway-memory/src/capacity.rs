//! How much a store may hold, in keys or in bytes.

use crate::slot::{Double, Narrow, Slot};
use crate::table::{Table, WhenFull};

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

impl Capacity {
    /// Room for `keys` keys under GCRA, as many in wide slots, 64 MiB of states of variable size
    /// and 65,536 reservations. What is not used costs address space, not memory.
    #[must_use]
    pub const fn keys(keys: usize) -> Self {
        Self {
            keys,
            wide_keys: keys,
            variable_bytes: 64 << 20,
            reservations: 65_536,
            when_full: WhenFull::Deny,
        }
    }

    /// At most `bytes` for states: half for keys under GCRA, a quarter for wide slots, a quarter
    /// for states of variable size.
    #[must_use]
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
