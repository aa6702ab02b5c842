//! The store behind the [`Store`] trait: every answer is ready at once.

use tollway_core::{
    Answer, Charge, Grant, Policy, ReservationId, Reserved, Settlement, Snapshot, Store, Timestamp,
    Verdict,
};

use super::MemoryStore;

impl Store for MemoryStore {
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        Answer::Ready(Ok(self.check_all(charges, now)))
    }

    fn admit(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Answer<Verdict>> {
        self.settle_expired(now);
        let tag = self.tag(charge);
        let decision = match self.move_on(tag, self.narrow.home_of(tag), charge, now) {
            Some((_, word)) if word.is_allowed() => return None,
            Some((gcra, word)) => gcra.report(word),
            None => self.check_any(tag, charge, now),
        };
        (!decision.is_allowed()).then(|| Answer::Ready(Ok(Verdict::one(decision))))
    }

    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        Answer::Ready(Ok(self.peek_all(charges, now)))
    }

    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant> {
        Answer::Ready(Ok(self.take(charge, now)))
    }

    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot> {
        Answer::Ready(Ok(self.refund(charge, now)))
    }

    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()> {
        self.reset(charge, now);
        Answer::Ready(Ok(()))
    }

    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved> {
        Answer::Ready(Ok(self.reserve(charges, now)))
    }

    fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Answer<Settlement> {
        Answer::Ready(Ok(self.commit(id, costs, now)))
    }

    fn cancel(&self, reservation: ReservationId, now: Timestamp) -> Answer<Settlement> {
        Answer::Ready(Ok(self.cancel(reservation, now)))
    }

    fn release(&self, reservation: ReservationId, now: Timestamp) {
        self.cancel(reservation, now);
    }

    fn renew(&self, policies: &[&Policy], now: Timestamp) {
        self.renew(policies.iter().copied(), now);
    }
}
