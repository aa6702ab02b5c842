//! How full the store is, and what that has cost.

use tollway_core::{Policy, Timestamp};

use super::MemoryStore;
use crate::capacity::Pressure;

/// What share of each part of a [`Capacity`](crate::Capacity) is taken, 0 to 1. Only states of
/// variable size may be above 1, by one state for each shard.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fill {
    /// Of the slots for [`Capacity::keys`](crate::Capacity::keys).
    pub keys: f64,
    /// Of the slots for [`Capacity::wide_keys`](crate::Capacity::wide_keys).
    pub wide_keys: f64,
    /// Of [`Capacity::variable_bytes`](crate::Capacity::variable_bytes).
    pub variable_bytes: f64,
}

impl MemoryStore {
    /// How full it is.
    pub fn pressure(&self) -> Pressure {
        self.narrow.pressure().plus(self.double.pressure()).plus(self.variable.pressure())
    }

    /// What pressure has cost the policies of this name: keys forgotten and newcomers refused. How
    /// many keys they have is not counted, so `used` is zero.
    pub fn pressure_of(&self, policy: &Policy) -> Pressure {
        let owner = policy.name_id();
        let tables = self.narrow.pressure_of(owner).plus(self.double.pressure_of(owner));
        tables.plus(self.variable.pressure_of(owner))
    }

    /// What share of its room is taken at `now`: of fixed size by a sample, with an error of about
    /// one percent, of variable size exactly.
    pub fn fill(&self, now: Timestamp) -> Fill {
        let (mut bytes, mut bytes_max) = (0, 0);
        for shard in self.variable.shards() {
            let (taken, most) = shard.bytes();
            bytes += taken;
            bytes_max += most;
        }
        Fill {
            keys: self.narrow.fill(now),
            wide_keys: self.double.fill(now),
            variable_bytes: bytes as f64 / bytes_max.max(1) as f64,
        }
    }
}
