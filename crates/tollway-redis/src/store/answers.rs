//! The store behind the [`Store`] trait.

use std::sync::Arc;

use tollway_core::{
    Answer, Charge, Grant, Outage, Policy, Reservation, ReservationId, Reserved, Settlement,
    Snapshot, Store, StoreError, Timestamp, Verdict,
};

use super::ask::strange_answer;
use super::check::Check;
use super::{Inner, RedisStore};
use crate::batch::Outcome;
use crate::degraded::degraded_grant;
use crate::open_reservations::Leg;
use crate::replay::Reply;
use crate::request::{KeyCharge, Op, Request, name_in};

impl Store for RedisStore {
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        if charges.is_empty() {
            return Answer::Ready(Ok(Verdict::new(Vec::new())));
        }
        self.checked(
            (Op::Check, charges),
            move |inner, check| async move { inner.check(check, now).await },
            move |inner, request| async move { inner.check_across(request, now).await },
        )
    }

    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        if charges.is_empty() {
            return Answer::Ready(Ok(Verdict::new(Vec::new())));
        }
        self.checked(
            (Op::Peek, charges),
            move |inner, check| async move { inner.peek(check.request, now).await },
            move |inner, request| async move { inner.peek_across(request, now).await },
        )
    }

    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant> {
        if charge.policy.shares().is_some() {
            return self.single(Op::Peek, charge, move |inner, request| async move {
                inner.take_shared(request, now).await
            });
        }
        self.single(Op::Take, charge, move |inner, request| async move {
            inner.take(request, now).await
        })
    }

    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot> {
        if charge.policy.shares().is_some() {
            return self.single(Op::Peek, charge, move |inner, request| async move {
                inner.refund_shared(request, now).await
            });
        }
        let op = Op::Refund { taken_at: None };
        self.single(
            op,
            charge,
            move |inner, request| async move { inner.refund(request, now).await },
        )
    }

    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()> {
        match self.inner.all_shares(charge) {
            Ok(parts) => self.later(move |inner| async move { inner.reset(parts, now).await }),
            Err(error) => Answer::Ready(Err(error)),
        }
    }

    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved> {
        let terms = charges.iter().map(|charge| charge.policy.reservation_terms());
        let expires_after = terms.map(|terms| terms.ttl).min().unwrap_or_default();
        let op = Op::Reserve { expires_after, slots: Vec::new() };
        self.checked(
            (op, charges),
            move |inner, check| async move { inner.reserve(check.request, now).await },
            move |inner, request| async move { inner.reserve_across(request, now).await },
        )
    }

    fn commit(
        &self,
        reservation: ReservationId,
        costs: &[u64],
        now: Timestamp,
    ) -> Answer<Settlement> {
        let costs = costs.to_vec();
        self.later(move |inner| async move { inner.settle(reservation, Some(costs), now).await })
    }

    fn cancel(&self, reservation: ReservationId, now: Timestamp) -> Answer<Settlement> {
        self.later(move |inner| async move { inner.settle(reservation, None, now).await })
    }

    fn release(&self, reservation: ReservationId, now: Timestamp) {
        let inner = Arc::clone(&self.inner);
        self.inner.runtime.spawn(async move {
            // A release that is lost is made good when the reservation expires.
            let _ = inner.settle(reservation, None, now).await;
        });
    }

    fn outage(&self) -> Option<Outage> {
        self.inner.router.outage()
    }

    fn windows_by_other_rules(&self) -> u64 {
        self.inner.encoded_policies.windows_by_other_rules()
    }

    fn renew(&self, policies: &[&Policy], _now: Timestamp) {
        self.inner.renew(policies);
    }
}

impl RedisStore {
    /// The answer that `ask` will give.
    fn later<T, F>(&self, ask: impl FnOnce(Arc<Inner>) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        Answer::pending(ask(Arc::clone(&self.inner)))
    }

    /// The answer that `ask` will give to the charges if they are in one slot, or `ask_across` if
    /// they are in several of a cluster and may be; or why there is none.
    fn checked<T, F, G>(
        &self,
        (op, charges): (Op, &[Charge<'_>]),
        ask: impl FnOnce(Arc<Inner>, Check) -> F,
        ask_across: impl FnOnce(Arc<Inner>, Arc<Request>) -> G,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
        G: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let check = match self.inner.check_of(op, charges) {
            Ok(check) => check,
            Err(error) => return Answer::Ready(Err(error)),
        };
        match self.inner.one_slot(&check.request) {
            Ok(()) => self.later(|inner| ask(inner, check)),
            Err(_) if check.across_slots => self.later(|inner| ask_across(inner, check.request)),
            Err(error) => Answer::Ready(Err(error)),
        }
    }

    /// The answer that `ask` will give to the request that one charge makes, in the share whose
    /// turn it is if its policy is split; or why there is no request. One charge is in one slot.
    fn single<T, F>(
        &self,
        op: Op,
        charge: &Charge<'_>,
        ask: impl FnOnce(Arc<Inner>, Arc<Request>) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        match self.inner.check_of(op, std::slice::from_ref(charge)) {
            Ok(check) => self.later(|inner| ask(inner, check.request)),
            Err(error) => Answer::Ready(Err(error)),
        }
    }
}

impl Inner {
    async fn peek(&self, request: Arc<Request>, now: Timestamp) -> Result<Verdict, StoreError> {
        match self.ask(Arc::clone(&request), now).await {
            Ok(Outcome { reply: Reply::Verdict(verdict), .. }) => Ok(verdict),
            Ok(_) => Err(strange_answer()),
            Err(failure) => self.degrade(&request, failure),
        }
    }

    async fn take(&self, request: Arc<Request>, now: Timestamp) -> Result<Grant, StoreError> {
        match self.ask(Arc::clone(&request), now).await {
            Ok(Outcome { reply: Reply::Grant(grant), .. }) => Ok(grant),
            Ok(_) => Err(strange_answer()),
            Err(failure) => {
                degraded_grant(&request, &self.local, failure, self.outage_of(&request))
            }
        }
    }

    async fn refund(&self, request: Arc<Request>, now: Timestamp) -> Result<Snapshot, StoreError> {
        self.forget_denials(&request.parts);
        match self.ask(request, now).await {
            Ok(Outcome { reply: Reply::Snapshot(snapshot), .. }) => Ok(snapshot),
            Ok(_) => Err(strange_answer()),
            Err(failure) => Err(failure.error),
        }
    }

    /// Resets every share of a key; each is reset for itself.
    async fn reset(&self, parts: Vec<KeyCharge>, now: Timestamp) -> Result<(), StoreError> {
        self.forget_denials(&parts);
        for part in parts {
            let request = Request { op: Op::Reset, id: self.ids.next(), parts: vec![part] };
            self.ask(request, now).await.map_err(|failure| failure.error)?;
        }
        Ok(())
    }

    async fn reserve(&self, request: Arc<Request>, now: Timestamp) -> Result<Reserved, StoreError> {
        let Op::Reserve { expires_after, .. } = request.op else { return Err(strange_answer()) };
        if request.parts.is_empty() {
            return Ok(Reserved { verdict: Verdict::new(Vec::new()), reservation: None });
        }
        let id = name_in(request.slot(), request.id);
        let mut request = Request { id, ..Arc::unwrap_or_clone(request) };
        for part in &mut request.parts {
            part.returns &= !part.expires_by_itself(expires_after);
        }
        let request = Arc::new(request);
        let (verdict, request) = match self.ask_under(Arc::clone(&request), now).await {
            Ok((Outcome { reply: Reply::Verdict(verdict), .. }, under)) => (verdict, under),
            Ok(_) => return Err(strange_answer()),
            Err(failure) => (self.degrade(&request, failure)?, request),
        };
        let Op::Reserve { expires_after, .. } = request.op else { return Err(strange_answer()) };
        if !verdict.is_allowed() {
            return Ok(Reserved { verdict, reservation: None });
        }
        let reservation = Reservation { id: ReservationId(id), expires_after };
        if !verdict.is_degraded() {
            self.reservations
                .put(reservation, vec![Leg { id, parts: Arc::unwrap_or_clone(request).parts }]);
        }
        Ok(Reserved { verdict, reservation: Some(reservation) })
    }
}
