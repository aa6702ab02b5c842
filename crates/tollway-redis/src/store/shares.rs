//! Charges to trees of owners beyond checks and reservations, which one script decides.

use std::sync::Arc;

use tollway_core::{Cost, Grant, Snapshot, StoreError, Timestamp, Verdict};

use super::Inner;
use super::ask::strange_answer;
use crate::batch::Outcome;
use crate::call::CallError;
use crate::degraded::degraded_grant;
use crate::replay::Reply;
use crate::request::{KeyCharge, Op, Request};

/// How often the units that were there a moment ago are asked for, if others are quicker.
const TRIES: usize = 4;

impl Inner {
    /// Takes as many units as there are: looks, and asks for what is there.
    pub(super) async fn take_shared(
        &self,
        request: Arc<Request>,
        now: Timestamp,
    ) -> Result<Grant, StoreError> {
        let units = request.parts.first().map_or(1, |part| part.units);
        let wanted = Cost::new(units).unwrap_or(Cost::ONE);
        let mut grant = None;
        for _ in 0..TRIES {
            let left = match self.asked_shared(&request, Op::Peek, units, now).await {
                Ok(verdict) => verdict.decisions()[0].snapshot().remaining(),
                Err(failure) => {
                    let outage = self.outage_of(&request);
                    return degraded_grant(&request, &self.local, failure, outage);
                }
            };
            let cost = Grant::affordable(wanted, left);
            let verdict = self.asked_shared(&request, Op::Check, cost.get(), now).await;
            let decision = verdict.map_err(|failure| failure.error)?.decisions()[0];
            grant = Some(Grant::new(decision, cost));
            if decision.is_allowed() || left == 0 {
                break;
            }
        }
        grant.ok_or_else(strange_answer)
    }

    /// Gives units back to every bucket, the root's first: a floor must not have more than what is
    /// above it.
    pub(super) async fn refund_shared(
        &self,
        request: Arc<Request>,
        now: Timestamp,
    ) -> Result<Snapshot, StoreError> {
        for part in request.parts.iter().rev() {
            let op = Op::Refund { taken_at: None };
            let refund = Request { op, id: self.ids.next(), parts: vec![part.clone()] };
            self.ask(refund, now).await.map_err(|failure| failure.error)?;
        }
        let units = request.parts.first().map_or(1, |part| part.units);
        let verdict = self.asked_shared(&request, Op::Peek, units, now).await;
        Ok(verdict.map_err(|failure| failure.error)?.decisions()[0].snapshot())
    }

    async fn asked_shared(
        &self,
        request: &Request,
        op: Op,
        units: u64,
        now: Timestamp,
    ) -> Result<Verdict, CallError> {
        let part = |part: &KeyCharge| KeyCharge { units, ..part.clone() };
        let parts = request.parts.iter().map(part).collect();
        match self.ask(Request { op, id: self.ids.next(), parts }, now).await? {
            Outcome { reply: Reply::Verdict(verdict), .. } => Ok(verdict),
            _ => Err(CallError::store(strange_answer())),
        }
    }
}
