//! Asking: one request to its server, within the budget of time.

use std::sync::Arc;
use std::time::Duration;

use redis::FromRedisValue as _;
use tokio::time::Instant;
use tollway_core::{ReservationId, Settlement, StoreError, Timestamp, Verdict};

use super::Inner;
use super::carry::Carried;
use crate::batch::{Manner, Outcome};
use crate::call::{Call, CallError, shut_down};
use crate::connection::{Failure, OutageRecord, unavailable, unknown};
use crate::degraded::degraded_verdict;
use crate::layout;
use crate::node::RoutedRequest;
use crate::open_reservations::Leg;
use crate::replay::Reply;
use crate::request::{KeyCharge, Op, Record, Request, name_in, parse_record, slot_of};

/// How often a request is asked, if there is time, while others carry its keys to other numbers.
/// Each of them was answered, so it is seldom more than once.
const TRIES: usize = 256;

impl Inner {
    /// Asks the store, and waits for the answer no longer than the budget. Keys that are kept under
    /// other numbers are carried on the way. Whoever needs the request afterwards keeps a reference
    /// to it.
    pub(super) async fn ask(
        &self,
        request: impl Into<Arc<Request>>,
        at: Timestamp,
    ) -> Result<Outcome, CallError> {
        Ok(self.ask_under(request, at).await?.0)
    }

    /// As [`Self::ask`]; also the request as it was answered: under newer numbers than it was asked
    /// under where a key is kept under these.
    pub(super) async fn ask_under(
        &self,
        request: impl Into<Arc<Request>>,
        at: Timestamp,
    ) -> Result<(Outcome, Arc<Request>), CallError> {
        let (asked, began): (Arc<Request>, _) = (request.into(), Instant::now());
        self.note_numbers_of(&asked).await;
        let mut request = Arc::clone(&asked);
        for _ in 0..TRIES {
            let left = self.settings.timeout.saturating_sub(began.elapsed());
            let outcome = self.ask_once(Arc::clone(&request), at, left).await?;
            match outcome.reply {
                Reply::AskAgain => {}
                Reply::OtherNumbers(values) => {
                    match self.under_other_numbers(&request, &values, outcome.now).await? {
                        Carried::Answer(answer) => return Ok((answer.to(&asked.op), request)),
                        Carried::Ask(again) => request = again,
                    }
                }
                // Units were given back under other numbers: what is left under those of the
                // question is to be looked at.
                Reply::Snapshot(_) if !asked.are_numbers_of(&request) => {
                    request = Arc::new(Request { op: Op::Peek, ..Request::clone(&asked) });
                }
                _ => return Ok((outcome.to(&asked.op), request)),
            }
        }
        Err(CallError::store(unavailable("others carry the key to other numbers all the time")))
    }

    async fn ask_once(
        &self,
        request: Arc<Request>,
        at: Timestamp,
        budget: Duration,
    ) -> Result<Outcome, CallError> {
        let slot = request.slot();
        let remember_ms = self.remember_ms(&request);
        let manner = Manner { at: self.obeys_caller.then_some(at), remember_ms, about: at };
        let question = RoutedRequest { request, manner, slot, hops: 0, asking: false };
        let note_late = |began, reason: &str| {
            self.router.with_outage(slot, |outage| outage.failed_by(began, reason));
        };
        let budget = (&self.runtime, budget);
        Call::ask(question, budget, |call| self.router.submit(call), note_late).await
    }

    /// What the policies answer in place of a store that is in failure.
    pub(super) fn degrade(
        &self,
        request: &Request,
        failure: CallError,
    ) -> Result<Verdict, StoreError> {
        degraded_verdict(request, &self.local, failure, self.outage_of(request))
    }

    /// How long the server of a request has not answered.
    pub(super) fn outage_of(&self, request: &Request) -> Duration {
        self.router.with_outage(request.slot(), OutageRecord::lasted)
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
            let op = Op::Settle { costs: costs.clone(), taken: Vec::new() };
            let request = Request { op, id: leg.id, parts: leg.parts };
            match self.ask(request, at).await {
                Ok(Outcome { reply: Reply::Settlement(Settlement::Settled), .. }) => {
                    answer = answer.map(|_| Settlement::Settled);
                }
                Ok(Outcome { reply: Reply::Settlement(Settlement::Unknown), .. }) => {}
                Ok(_) => answer = Err(strange_answer()),
                Err(failure) => answer = Err(failure.error),
            }
        }
        answer
    }

    /// The legs of a reservation that another process made, from their records.
    async fn fetch_legs(&self, id: ReservationId) -> Result<Vec<Leg>, StoreError> {
        let Some(Record { parts, slots, .. }) = self.fetch(id).await? else {
            return Ok(Vec::new());
        };
        let mut legs = vec![Leg { id: id.0, parts }];
        for slot in slots.into_iter().filter(|slot| *slot != slot_of(id)) {
            let id = name_in(slot, id.0);
            // A leg without a record is over.
            if let Some(Record { parts, .. }) = self.fetch(ReservationId(id)).await? {
                legs.push(Leg { id, parts });
            }
        }
        Ok(legs)
    }

    /// What the record of a reservation says of its slot.
    pub(super) async fn fetch(&self, id: ReservationId) -> Result<Option<Record>, StoreError> {
        let key = layout::record_key(&self.settings.prefix, 'r', slot_of(id), id.0);
        let absent = || unavailable("no server of the cluster holds the slot");
        let client = Arc::clone(&self.router.node(slot_of(id)).ok_or_else(absent)?.client);
        // On the store's runtime, which keeps the time: whoever awaits this need not run in one.
        let read = self.runtime.spawn(async move {
            let record = client.send(redis::cmd("GET").arg(key)).await?;
            Ok(<Option<Vec<u8>>>::from_redis_value(record).ok().flatten())
        });
        let record = read.await.map_err(|_| shut_down())?.map_err(|failure: Failure| {
            unavailable("the reservation could not be looked up").caused_by(failure)
        })?;
        Ok(record.and_then(|record| parse_record(&record)))
    }

    /// Something is given back: what was known of these keys need not hold any more.
    pub(super) fn forget_denials(&self, parts: &[KeyCharge]) {
        if let Some(denials) = &self.denials {
            denials.forget(parts);
        }
    }

    fn remember_ms(&self, request: &Request) -> Option<u64> {
        let remembered = self.settings.ask_again && request.op != Op::Peek;
        remembered.then(|| u64::try_from(self.settings.remember.as_millis()).unwrap_or(u64::MAX))
    }
}

pub(super) fn strange_answer() -> StoreError {
    unknown("the store gave an answer that does not fit the question")
}
