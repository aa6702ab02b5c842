//! Concurrency, with every hold kept for ever.

use num_bigint::BigInt;
use tollway_core::concurrency::Concurrency;

use super::Model;
use super::change::Remains;

#[derive(Clone)]
pub(super) struct Holds {
    limit: BigInt,
    lease: BigInt,
    /// In order of expiry.
    holds: Vec<Hold>,
    /// The moment of the last change.
    as_of: BigInt,
}

#[derive(Clone)]
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
            as_of: BigInt::ZERO,
        }
    }

    /// The same holds under another limit.
    pub(super) fn under(self, limit: &Concurrency) -> Self {
        Self { holds: self.holds, as_of: self.as_of, ..Self::new(limit) }
    }

    /// Nothing in flight as of `at`.
    pub(super) fn idle(limit: &Concurrency, at: &BigInt) -> Self {
        Self { as_of: at.clone(), ..Self::new(limit) }
    }

    pub(super) fn held(&self, at: &BigInt) -> BigInt {
        let moment = self.moment(at);
        let live = self.holds.iter().filter(|hold| hold.expires_at > moment);
        live.map(|hold| &hold.units).sum()
    }
}

impl Model for Holds {
    fn remains(&self, _: &BigInt) -> Remains {
        Remains::Holds(self.clone())
    }

    fn free(&self, at: &BigInt) -> BigInt {
        (&self.limit - self.held(at)).max(BigInt::ZERO)
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.held(at) == BigInt::ZERO
    }

    fn take(&mut self, units: &BigInt, hold: u64, at: &BigInt) -> BigInt {
        let units = units.clone().min(self.free(at));
        let taken = units.clone();
        if units > BigInt::ZERO {
            self.as_of = self.moment(at);
            self.holds.push(Hold { name: hold, units, expires_at: &self.as_of + &self.lease });
            self.holds.sort_by(|one, other| one.expires_at.cmp(&other.expires_at));
        }
        taken
    }

    fn give_back(&mut self, units: &BigInt, _taken_at: Option<&BigInt>, at: &BigInt) {
        let moment = self.moment(at);
        let mut left = units.clone();
        for hold in self.holds.iter_mut().filter(|hold| hold.expires_at > moment) {
            let back = left.clone().min(hold.units.clone());
            hold.units -= &back;
            left -= back;
        }
        if left < *units {
            self.as_of = moment;
        }
    }

    fn clear(&mut self, at: &BigInt) {
        let as_of = self.as_of.clone();
        if self.holds.iter().any(|hold| hold.expires_at > as_of && hold.units > BigInt::ZERO) {
            self.as_of = self.moment(at);
            self.holds.clear();
        }
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        at.clone().max(self.as_of.clone())
    }

    fn settle(&mut self, hold: u64, _reserved: &BigInt, _real: &BigInt, at: &BigInt) -> bool {
        let moment = self.moment(at);
        let is_meant = |other: &Hold| other.name == hold && other.units > BigInt::ZERO;
        if self.holds.iter().any(|other| is_meant(other) && other.expires_at > moment) {
            self.as_of = moment;
            self.holds.retain(|other| other.name != hold);
        }
        true
    }
}
