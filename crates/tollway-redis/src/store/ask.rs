//! Asking: one request to its server, within the budget of time.

use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};
use tollway_core::{Grant, ReservationId, Settlement, StoreError, Timestamp, Verdict};

use super::Inner;
use crate::address::unavailable;
use crate::batch::{Manner, Outcome};
use crate::failure::{Absence, degraded_grant, degraded_verdict};
use crate::job::{Job, Ticket, Trouble, unknown};
use crate::layout;
use crate::outage::OutageRecord;
use crate::remembered::Leg;
use crate::replay::Reply;
use crate::request::{Op, Part, Request, name_in, parse_record, slot_of};

impl Inner {
    /// Asks the store, and waits for the answer no longer than the budget.
    pub(super) async fn ask(&self, request: Request, at: Timestamp) -> Result<Outcome, Trouble> {
        let (answer, receive) = oneshot::channel();
        let ticket = Arc::new(Ticket::default());
        let (slot, began) = (request.slot(), Instant::now());
        let manner =
            Manner { at: self.obeys_caller.then_some(at), remember_ms: self.remember_ms(&request) };
        let job = Job {
            request,
            manner,
            slot,
            began,
            ticket: Arc::clone(&ticket),
            answer,
            hops: 0,
            asking: false,
        };
        self.router.submit(job);
        tokio::select! {
            biased;
            outcome = receive => outcome.unwrap_or_else(|_| Err(Trouble::store(Self::shut_down()))),
            () = self.budget() => {
                let error = ticket.abandon();
                let reason = error.to_string();
                self.router.with_outage(slot, |outage| outage.failed_by(began, &reason));
                Err(Trouble::store(error))
            }
        }
    }

    /// What the policies answer in place of a store that is in trouble.
    pub(super) fn degrade(
        &self,
        request: &Request,
        trouble: Trouble,
    ) -> Result<Verdict, StoreError> {
        if !trouble.degrades {
            return Err(trouble.error);
        }
        Ok(degraded_verdict(request, &self.local, self.absence(request, &trouble)))
    }

    /// The same for a partial grant.
    pub(super) fn degrade_grant(
        &self,
        request: &Request,
        trouble: Trouble,
    ) -> Result<Grant, StoreError> {
        if !trouble.degrades {
            return Err(trouble.error);
        }
        Ok(degraded_grant(request, &self.local, self.absence(request, &trouble)))
    }

    /// Settles a reservation, whoever made it.
    pub(super) async fn settle(
        &self,
        id: ReservationId,
        costs: Option<Vec<u64>>,
        at: Timestamp,
    ) -> Result<Settlement, StoreError> {
        let legs = match self.reservations.take(id) {
            Some(legs) => legs,
            None => self.fetch_legs(id).await?,
        };
        let mut answer = Ok(Settlement::Unknown);
        for leg in legs {
            self.forget_denials(&leg.parts);
            let op = Op::Settle { costs: costs.clone() };
            let request = Request { op, id: leg.id, parts: leg.parts };
            match self.ask(request, at).await {
                Ok(Outcome { reply: Reply::Settlement(Settlement::Settled), .. }) => {
                    answer = answer.map(|_| Settlement::Settled);
                }
                Ok(Outcome { reply: Reply::Settlement(Settlement::Unknown), .. }) => {}
                Ok(_) => answer = Err(strange_answer()),
                Err(trouble) => answer = Err(trouble.error),
            }
        }
        answer
    }

    /// The legs of a reservation that another process made, from their records.
    async fn fetch_legs(&self, id: ReservationId) -> Result<Vec<Leg>, StoreError> {
        let Some((parts, slots)) = self.fetch(id).await? else { return Ok(Vec::new()) };
        let mut legs = vec![Leg { id: id.0, parts }];
        for slot in slots.into_iter().filter(|slot| *slot != slot_of(id)) {
            let id = name_in(slot, id.0);
            // A leg without a record is over.
            if let Some((parts, _)) = self.fetch(ReservationId(id)).await? {
                legs.push(Leg { id, parts });
            }
        }
        Ok(legs)
    }

    /// What the record of a reservation says: its parts in that slot, and all of its slots.
    async fn fetch(&self, id: ReservationId) -> Result<Option<(Vec<Part>, Vec<u16>)>, StoreError> {
        let key = layout::record_key(&self.settings.prefix, 'r', slot_of(id), id.0);
        let down = || unavailable("the store is down; it is being probed");
        let link = self.router.link(slot_of(id)).ok_or_else(down)?;
        let (mut connection, _) = link.current().ok_or_else(down)?;
        let mut command = redis::cmd("GET");
        command.arg(key);
        let record = tokio::select! {
            biased;
            record = command.query_async::<Option<Vec<u8>>>(&mut connection) => record,
            () = self.budget() => return Err(unavailable("the store did not answer in time")),
        };
        let record = record.map_err(|error| {
            unavailable("the reservation could not be looked up").caused_by(error)
        })?;
        Ok(record.and_then(|record| parse_record(&record)))
    }

    /// Something is given back: what was known of these keys need not hold any more.
    pub(super) fn forget_denials(&self, parts: &[Part]) {
        if let Some(denials) = &self.denials {
            denials.forget(parts);
        }
    }

    /// Why the server of a request does not answer, and how long it has not.
    fn absence(&self, request: &Request, trouble: &Trouble) -> Absence {
        let lasted = self.router.with_outage(request.slot(), OutageRecord::lasted);
        Absence { kind: trouble.error.kind(), lasted }
    }

    fn remember_ms(&self, request: &Request) -> Option<u64> {
        let remembered = self.settings.ask_again && request.op != Op::Peek;
        remembered.then(|| u64::try_from(self.settings.remember.as_millis()).unwrap_or(u64::MAX))
    }

    /// The budget of time, kept by the runtime that the store was made in: whoever awaits an answer
    /// need not run in one.
    fn budget(&self) -> Sleep {
        let _runtime = self.runtime.enter();
        tokio::time::sleep(self.settings.timeout)
    }
}

pub(super) fn strange_answer() -> StoreError {
    unknown("the store answered something else than was asked")
}
