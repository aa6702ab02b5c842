//! A request over several slots of a cluster: reserved everywhere, then committed, or rolled back.
//!
//! ```text
//!   slot a   reserve ──┐                  ┌── commit
//!   slot b   reserve ──┼─ all allowed? ───┼── commit       or cancel what was reserved
//!   slot c   reserve ──┘                  └── commit
//! ```
//!
//! What is reserved counts as taken from the first moment, so nothing is ever granted twice; others
//! may be denied by units that are rolled back a moment later. A check by a process that dies in
//! between leaves its units taken: the reservations expire and keep them. A reservation by the
//! caller stays in all its slots, under names that differ in the slot only, until it is settled;
//! each slot's record names the others, so that another process can settle it too.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::{
    Decision, Reservation, ReservationId, Reserved, StoreError, Timestamp, Verdict,
};

use super::Inner;
use super::ask::strange_answer;
use crate::call::{CallError, shut_down};
use crate::layout;
use crate::open_reservations::Leg;
use crate::replay::Reply;
use crate::request::{KeyCharge, Op, Request, name_in};

/// What each slot answered.
type LegAnswers = Vec<Result<Verdict, CallError>>;

impl Inner {
    /// Decides a check whose charges are in several slots.
    pub(super) async fn check_across(
        self: &Arc<Self>,
        request: Arc<Request>,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        // Long enough for both halves, however slow the store is.
        let expires_after = self.settings.timeout * 4 + Duration::from_secs(1);
        let op = |slots| Op::Reserve { expires_after, slots };
        let legs = self.legs(&request, op, |_| false);
        let answers = self.ask_legs(&legs, now).await;
        let costs = are_allowed(&answers).then(Vec::new);
        self.settle_legs(&legs, &answers, costs, now).await;
        self.join_legs(&request, &legs, answers)
    }

    /// Reserves charges in several slots; in all of them or in none.
    pub(super) async fn reserve_across(
        self: &Arc<Self>,
        request: Arc<Request>,
        now: Timestamp,
    ) -> Result<Reserved, StoreError> {
        let Op::Reserve { expires_after, .. } = request.op else { return Err(strange_answer()) };
        let op = |slots| Op::Reserve { expires_after, slots };
        let returns = |part: &KeyCharge| part.returns && !part.expires_by_itself(expires_after);
        let legs = self.legs(&request, op, returns);
        let answers = self.ask_legs(&legs, now).await;
        if !are_allowed(&answers) {
            self.settle_legs(&legs, &answers, None, now).await;
        }
        let verdict = self.join_legs(&request, &legs, answers)?;
        let first = legs.first().filter(|_| verdict.is_allowed());
        let id = first.map(|leg| ReservationId(leg.id));
        let reservation = id.map(|id| Reservation { id, expires_after });
        if let (Some(reservation), false) = (reservation, verdict.is_degraded()) {
            let legs = legs.into_iter().map(Arc::unwrap_or_clone);
            let legs = legs.map(|leg| Leg { id: leg.id, parts: leg.parts });
            self.reservations.put(reservation, legs.collect());
        }
        Ok(Reserved { verdict, reservation })
    }

    /// Looks at charges in several slots, at each by itself: there is nothing to roll back.
    pub(super) async fn peek_across(
        self: &Arc<Self>,
        request: Arc<Request>,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let legs = self.legs(&request, |_| Op::Peek, |part| part.returns);
        let answers = self.ask_legs(&legs, now).await;
        self.join_legs(&request, &legs, answers)
    }

    /// The request as one per slot, with names that differ in the slot only.
    fn legs(
        &self,
        request: &Request,
        op: impl FnOnce(Vec<u16>) -> Op,
        returns: impl Fn(&KeyCharge) -> bool,
    ) -> Vec<Arc<Request>> {
        let mut slots: Vec<u16> = Vec::new();
        let mut legs: Vec<Vec<KeyCharge>> = Vec::new();
        for part in &request.parts {
            let slot = layout::slot(&part.key);
            let part = KeyCharge { returns: returns(part), ..part.clone() };
            match slots.iter().position(|known| *known == slot) {
                Some(leg) => legs[leg].push(part),
                None => {
                    slots.push(slot);
                    legs.push(vec![part]);
                }
            }
        }
        let (random, op) = (self.ids.next(), op(slots.clone()));
        let leg = |(slot, parts): (u16, Vec<KeyCharge>)| {
            Arc::new(Request { op: op.clone(), id: name_in(slot, random), parts })
        };
        slots.into_iter().zip(legs).map(leg).collect()
    }

    /// Asks all slots at once.
    async fn ask_legs(self: &Arc<Self>, legs: &[Arc<Request>], now: Timestamp) -> LegAnswers {
        let asked: Vec<_> = legs
            .iter()
            .map(|leg| {
                let (inner, request) = (Arc::clone(self), Arc::clone(leg));
                self.runtime.spawn(async move { inner.ask(request, now).await })
            })
            .collect();
        let mut answers = Vec::with_capacity(legs.len());
        for answer in asked {
            answers.push(match answer.await {
                Ok(Ok(outcome)) => match outcome.reply {
                    Reply::Verdict(verdict) => Ok(verdict),
                    _ => Err(CallError::store(strange_answer())),
                },
                Ok(Err(failure)) => Err(failure),
                Err(_) => Err(CallError::store(shut_down())),
            });
        }
        answers
    }

    /// Commits or cancels every leg that may be reserved; one whose outcome is unknown may be, too.
    async fn settle_legs(
        self: &Arc<Self>,
        legs: &[Arc<Request>],
        answers: &LegAnswers,
        costs: Option<Vec<u64>>,
        now: Timestamp,
    ) {
        let reserved = legs
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.as_ref().map_or(true, Verdict::is_allowed));
        let settling: Vec<_> = reserved
            .map(|(leg, _)| {
                let op = Op::Settle { costs: costs.clone(), taken: Vec::new() };
                let request = Request { op, id: leg.id, parts: leg.parts.clone() };
                let inner = Arc::clone(self);
                self.runtime.spawn(async move { inner.ask(request, now).await })
            })
            .collect();
        for settled in settling {
            // A commit that is lost keeps the units anyway; a cancel that is lost wastes them.
            let _ = settled.await;
        }
    }

    fn join_legs(
        &self,
        request: &Request,
        legs: &[Arc<Request>],
        answers: LegAnswers,
    ) -> Result<Verdict, StoreError> {
        let mut decisions: Vec<Option<Decision>> = vec![None; request.parts.len()];
        for (leg, answer) in legs.iter().zip(answers) {
            let verdict = match answer {
                Ok(verdict) => verdict,
                Err(failure) => return self.degrade(request, failure),
            };
            for (part, decision) in leg.parts.iter().zip(verdict.decisions()) {
                decisions[usize::from(part.place)] = Some(*decision);
            }
        }
        Ok(Verdict::new(decisions.into_iter().flatten().collect()))
    }
}

fn are_allowed(answers: &LegAnswers) -> bool {
    answers.iter().all(|answer| answer.as_ref().is_ok_and(Verdict::is_allowed))
}
