//! Concurrency, with every hold kept for ever.

use num_bigint::BigInt;
use tollgate_core::concurrency::Concurrency;

use super::Model;

pub(super) struct Holds {
    limit: BigInt,
    lease: BigInt,
    /// In order of expiry, because time does not run backwards and leases are equally long.
    holds: Vec<Hold>,
}

struct Hold {
    name: u64,
    units: BigInt,
    expires_at: BigInt,
}

impl Holds {
    pub(super) fn new(limit: &Concurrency) -> Self {
        Self {
            limit: limit.limit().into(),
            lease: limit.lease().as_nanos().into(),
            holds: Vec::new(),
        }
    }

    fn held(&self, at: &BigInt) -> BigInt {
        let live = self.holds.iter().filter(|hold| hold.expires_at > *at);
        live.map(|hold| &hold.units).sum()
    }
}

impl Model for Holds {
    fn free(&self, at: &BigInt) -> BigInt {
        &self.limit - self.held(at)
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.held(at) == BigInt::ZERO
    }

    fn take(&mut self, units: &BigInt, hold: u64, at: &BigInt) -> BigInt {
        let units = units.clone().min(self.free(at));
        let taken = units.clone();
        self.holds.push(Hold { name: hold, units, expires_at: at + &self.lease });
        taken
    }

    fn give_back(&mut self, units: &BigInt, _taken_at: Option<&BigInt>, at: &BigInt) {
        let mut left = units.clone();
        for hold in self.holds.iter_mut().filter(|hold| hold.expires_at > *at) {
            let back = left.clone().min(hold.units.clone());
            hold.units -= &back;
            left -= back;
        }
    }

    fn release(&mut self, hold: u64) -> bool {
        self.holds.retain(|other| other.name != hold);
        true
    }
}
