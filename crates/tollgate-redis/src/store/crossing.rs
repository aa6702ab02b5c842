//! A request over several slots of a cluster: reserved everywhere, then committed, or rolled back.
//!
//! ```text
//!   slot a   reserve ──┐                  ┌── commit
//!   slot b   reserve ──┼─ all allowed? ───┼── commit       or cancel what was reserved
//!   slot c   reserve ──┘                  └── commit
//! ```
//!
//! What is reserved counts as taken from the first moment, so nothing is ever granted twice; others
//! may be denied by units that are rolled back a moment later. A process that dies in between
//! leaves its units taken: the reservations expire and keep them.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, StoreError, Timestamp, Verdict};

use super::Inner;
use super::ask::strange_answer;
use crate::job::Trouble;
use crate::layout;
use crate::replay::Reply;
use crate::request::{Op, Part, Request, name_in};

/// The charges of one slot, and their places in the request.
struct Leg {
    request: Request,
    places: Vec<usize>,
}

impl Inner {
    /// Decides a check whose charges are in several slots.
    pub(super) async fn check_across(
        self: &Arc<Self>,
        request: Request,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let legs = self.legs(&request);
        let asked: Vec<_> = legs
            .iter()
            .map(|leg| {
                let (inner, request) = (Arc::clone(self), leg.request.clone());
                self.runtime.spawn(async move { inner.ask(request, now).await })
            })
            .collect();
        let mut answers = Vec::with_capacity(legs.len());
        for answer in asked {
            answers.push(match answer.await {
                Ok(Ok(outcome)) => match outcome.reply {
                    Reply::Verdict(verdict) => Ok(verdict),
                    _ => Err(Trouble::store(strange_answer())),
                },
                Ok(Err(trouble)) => Err(trouble),
                Err(_) => Err(Trouble::store(Self::shut_down())),
            });
        }
        let is_allowed =
            |answer: &Result<Verdict, _>| answer.as_ref().is_ok_and(Verdict::is_allowed);
        let costs = answers.iter().all(is_allowed).then(Vec::new);
        self.settle_legs(&legs, &answers, costs, now).await;
        self.join_legs(&request, &legs, answers)
    }

    /// The request in one reservation per slot.
    fn legs(&self, request: &Request) -> Vec<Leg> {
        // Long enough for both halves, however slow the store is.
        let expires_after = self.settings.timeout * 4 + Duration::from_secs(1);
        let mut legs: Vec<(u16, Leg)> = Vec::new();
        for (place, part) in request.parts.iter().enumerate() {
            let slot = layout::slot(&part.key);
            let part = Part { returns: false, ..part.clone() };
            match legs.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, leg)) => {
                    leg.request.parts.push(part);
                    leg.places.push(place);
                }
                None => {
                    let id = name_in(slot, self.names.next());
                    let op = Op::Reserve { expires_after };
                    let request = Request { op, id, parts: vec![part] };
                    legs.push((slot, Leg { request, places: vec![place] }));
                }
            }
        }
        legs.into_iter().map(|(_, leg)| leg).collect()
    }

    /// Commits or cancels every leg that may be reserved; one whose outcome is unknown may be, too.
    async fn settle_legs(
        self: &Arc<Self>,
        legs: &[Leg],
        answers: &[Result<Verdict, Trouble>],
        costs: Option<Vec<u64>>,
        now: Timestamp,
    ) {
        let reserved = legs
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.as_ref().map_or(true, Verdict::is_allowed));
        let settling: Vec<_> = reserved
            .map(|(leg, _)| {
                let op = Op::Settle { costs: costs.clone() };
                let request = Request { op, ..leg.request.clone() };
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
        legs: &[Leg],
        answers: Vec<Result<Verdict, Trouble>>,
    ) -> Result<Verdict, StoreError> {
        let mut decisions: Vec<Option<Decision>> = vec![None; request.parts.len()];
        for (leg, answer) in legs.iter().zip(answers) {
            let verdict = match answer {
                Ok(verdict) => verdict,
                Err(trouble) => return self.degrade(request, trouble),
            };
            for (place, decision) in leg.places.iter().zip(verdict.decisions()) {
                decisions[*place] = Some(*decision);
            }
        }
        Ok(Verdict::new(decisions.into_iter().flatten().collect()))
    }
}
