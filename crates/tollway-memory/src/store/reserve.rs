//! Reservations: taken now, settled later by commit, cancel or expiry.

use std::time::Duration;

use tollway_core::{
    Algorithm, Charge, Held, OnExpiry, Reservation, ReservationId, Reserved, Settlement, State,
    Timestamp, Verdict,
};

use super::changed_numbers::Refused;
use super::request::RequestParts;
use super::{MemoryStore, refuse};
use crate::numbers::Asked;
use crate::reservations::{Entry, ReservedCharge};
use crate::table::Full;

impl MemoryStore {
    /// Takes every charge if all are allowed, to be settled later.
    pub fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Reserved {
        self.settle_expired(now);
        let parts = RequestParts::new(charges);
        let asked = self.asked_together(parts.charges());
        let fingerprints: Vec<_> = asked.iter().map(|asked| asked.fingerprint).collect();
        if let Err(free_at) = self.reservations.promise(&fingerprints) {
            let refuse =
                |charge: &Charge<'_>| refuse(charge.policy.algorithm(), Full { free_at }, now);
            let verdict = Verdict::new(charges.iter().map(refuse).collect());
            return Reserved { verdict, reservation: None };
        }
        let id = self.new_id();
        let mut held = Vec::new();
        let verdict = self.request_by(&parts, now, |slots, states, at| {
            held = parts.held(slots, states, id, at);
            parts.decide(slots, states, id, at)
        });
        let Some(verdict) = verdict else {
            self.reservations.decline(&fingerprints);
            return self.under_newer(charges, now, |charges| self.reserve(charges, now));
        };
        if !verdict.is_allowed() || charges.is_empty() {
            self.reservations.decline(&fingerprints);
            return Reserved { verdict, reservation: None };
        }
        let terms = charges.iter().map(|charge| charge.policy.reservation_terms());
        let expires_after = terms.map(|terms| terms.ttl).min().unwrap_or_default();
        let part = |(index, (asked, held)): (usize, (Asked<'_>, Held))| {
            let charge = parts.charge_of(index);
            ReservedCharge {
                fingerprint: asked.fingerprint,
                algorithm: *asked.algorithm,
                lineage: asked.lineage,
                charge,
                held,
                on_expiry: on_expiry(&charges[charge], expires_after),
            }
        };
        let parts = asked.into_iter().zip(held).enumerate().map(part).collect();
        let expires_at = now.after(expires_after);
        self.reservations.open(ReservationId(id), Entry { expires_at, parts });
        Reserved {
            verdict,
            reservation: Some(Reservation { id: ReservationId(id), expires_after }),
        }
    }

    /// Settles a reservation at its real costs, one per charge; costs left out are as reserved.
    pub fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Settlement {
        self.settle_expired(now);
        let Some(entry) = self.reservations.close(id, now) else { return Settlement::Unknown };
        for part in &entry.parts {
            let cost = costs.get(part.charge).copied().unwrap_or(part.held.cost.get());
            self.settle(part, cost, now);
        }
        Settlement::Settled
    }

    /// Settles a reservation by giving everything back.
    pub fn cancel(&self, id: ReservationId, now: Timestamp) -> Settlement {
        self.settle_expired(now);
        let Some(entry) = self.reservations.close(id, now) else { return Settlement::Unknown };
        for part in &entry.parts {
            self.settle(part, 0, now);
        }
        Settlement::Settled
    }

    /// Brings one part of a reservation from what was reserved to what it really cost: under the
    /// numbers by which its key is kept now, which may be others than when it was reserved.
    fn settle(&self, part: &ReservedCharge, cost: u64, now: Timestamp) {
        let ReservedCharge { fingerprint, ref algorithm, lineage, .. } = *part;
        let asked = Asked { fingerprint, algorithm, lineage };
        let mut is_settled = false;
        self.amend(&asked, now, |kept_under, state, at| {
            // A state that says nothing is as good as none: then these numbers are as good.
            let says_nothing = kept_under != algorithm && state.vacant_at(kept_under) <= at;
            if says_nothing && cost > part.held.cost.get() {
                return;
            }
            is_settled = true;
            if kept_under == algorithm {
                state.settle(kept_under, &part.held, cost, at);
            } else {
                state.settle_carried(kept_under, &part.held, cost, at);
            }
        });
        if !is_settled && cost > part.held.cost.get() {
            let settle = |state: &mut State, at| state.settle(algorithm, &part.held, cost, at);
            match self.change(asked, now, settle) {
                // Full: the key was forgotten and there is no room for it; so it stays forgotten.
                Ok(()) | Err(Refused::Full(_)) => {}
                // It has just begun under newer numbers.
                Err(Refused::Older) => self.settle(part, cost, now),
            }
        }
    }

    /// Returns the units of expired reservations, if their policy says so.
    #[inline]
    pub(super) fn settle_expired(&self, now: Timestamp) {
        if self.reservations.may_have_expired(now) {
            self.settle_expired_now(now);
        }
    }

    #[cold]
    fn settle_expired_now(&self, now: Timestamp) {
        while let Some(entry) = self.reservations.next_expired(now) {
            for part in entry.parts.iter().filter(|part| part.on_expiry == OnExpiry::Return) {
                self.settle(part, 0, now);
            }
        }
    }
}

/// What becomes of a charge when its reservation expires after `ttl`. Permits whose lease is as
/// long end by themselves, a lease after they were taken: who comes late has taken them later than
/// his reading, from which the reservation counts, and others would get them before their lease has
/// ended.
fn on_expiry(charge: &Charge<'_>, ttl: Duration) -> OnExpiry {
    match charge.policy.algorithm() {
        Algorithm::Concurrency(limit) if limit.lease() <= ttl => OnExpiry::Keep,
        _ => charge.policy.reservation_terms().on_expiry,
    }
}
