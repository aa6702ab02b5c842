//! What the store is asked: charges of durable policies in the ledger, the others in memory.

use tollway_core::{
    Answer, Charge, Cost, Decision, Grant, Key, OnStoreError, Outage, Policy, Reservation,
    ReservationId, Reserved, Settlement, Snapshot, Store, Timestamp, Verdict,
};

use super::degraded::denied;
use super::ledger::{Decided, Elsewhere, Ledger};
use super::{DurableStore, Failure, Pending, stored};

/// The charges of a request, in two lists, and where each was.
struct Split<'a> {
    durable: Vec<Charge<'a>>,
    places: Vec<usize>,
    others: Vec<Charge<'a>>,
}

impl<'a> Split<'a> {
    /// `None` if no charge is durable.
    fn of(charges: &[Charge<'a>]) -> Option<Self> {
        if !charges.iter().any(|charge| charge.policy.is_durable()) {
            return None;
        }
        let (mut durable, mut places, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (place, charge) in charges.iter().enumerate() {
            if charge.policy.is_durable() {
                durable.push(*charge);
                places.push(place);
            } else {
                others.push(*charge);
            }
        }
        Some(Self { durable, places, others })
    }

    /// The decisions of both in the order of the request.
    fn together(&self, durable: &[Decision], others: &[Decision]) -> Verdict {
        if others.is_empty() {
            return Verdict::new(durable.to_vec());
        }
        let (mut durable, mut others) = (durable.iter(), others.iter());
        let decision = |place: usize| {
            let of = if self.places.contains(&place) { &mut durable } else { &mut others };
            of.next().copied()
        };
        let all = self.durable.len() + self.others.len();
        Verdict::new((0..all).filter_map(decision).collect())
    }
}

/// What is needed if a commit fails of which the request waits.
struct IfLost {
    /// What the policies say then: those that deny, by their place and their limit.
    denials: Vec<(usize, u64)>,
    /// What was taken in memory beside it, and is to be given back if the request is denied.
    others: Vec<(Policy, Box<[u8]>, Cost)>,
}

impl IfLost {
    fn of(split: &Split<'_>) -> Self {
        let denies = |(charge, place): (&Charge<'_>, &usize)| {
            let policy = charge.policy;
            let is_denied = !matches!(
                policy.store_error(),
                OnStoreError::Allow { .. }
                    | OnStoreError::AllowThenLocal { .. }
                    | OnStoreError::Local { .. }
            );
            is_denied.then(|| (*place, policy.algorithm().limit()))
        };
        let denials = split.durable.iter().zip(&split.places).filter_map(denies).collect();
        let owned = |charge: &Charge<'_>| {
            (charge.policy.clone(), Box::from(charge.key.as_bytes()), charge.cost)
        };
        Self { denials, others: split.others.iter().map(owned).collect() }
    }

    /// The verdict in place of `verdict`, which is not on the disk.
    fn verdict(&self, verdict: &Verdict, failure: &Failure) -> Verdict {
        let mut decisions = verdict.decisions().to_vec();
        for &(place, limit) in &self.denials {
            if let Some(decision) = decisions.get_mut(place) {
                *decision = denied(limit);
            }
        }
        Verdict::new(decisions).degraded_by(failure.kind)
    }

    fn give_back(&self, memory: &tollway_memory::MemoryStore, now: Timestamp) {
        for (policy, key, cost) in &self.others {
            if let Ok(key) = Key::new(key) {
                let _ = memory.refund(&Charge::new(policy, key).cost(*cost), now);
            }
        }
    }
}

impl Store for DurableStore {
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        let Some(split) = Split::of(charges) else {
            return Answer::Ready(Ok(self.memory().check_all(charges, now)));
        };
        match self.check_split(&split, now) {
            Ok((verdict, None)) => Answer::Ready(Ok(verdict)),
            Ok((verdict, pending)) => {
                let (if_lost, memory) = (IfLost::of(&split), self.memory().clone());
                Answer::pending(async move {
                    let Err(failure) = stored(pending).await else { return Ok(verdict) };
                    let verdict = if_lost.verdict(&verdict, &failure);
                    if !verdict.is_allowed() {
                        if_lost.give_back(&memory, now);
                    }
                    Ok(verdict)
                })
            }
            Err(failure) => Answer::Ready(Ok(self.degraded(charges, now, &failure, true))),
        }
    }

    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        let Some(split) = Split::of(charges) else {
            return Answer::Ready(Ok(self.memory().peek_all(charges, now)));
        };
        let looked = self.with_ledger(now, |ledger| {
            let decided = ledger.decide(&split.durable, 0, now)?;
            Ok((decided.verdict.is_allowed(), decided))
        });
        match looked {
            Ok((is_allowed, decided)) => {
                let durable = match is_allowed {
                    true => untaken(&decided, &split),
                    false => decided.verdict.decisions().to_vec(),
                };
                let others = self.peek_others(&split, now);
                Answer::Ready(Ok(split.together(&durable, others.decisions())))
            }
            Err(failure) => Answer::Ready(Ok(self.degraded(charges, now, &failure, false))),
        }
    }

    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant> {
        if !charge.policy.is_durable() {
            return Answer::Ready(Ok(self.memory().take(charge, now)));
        }
        let remaining = self.with_ledger(now, |ledger| Ok(ledger.peek(charge, now).remaining()));
        // Between the two the key may have been charged: then less is granted, or nothing.
        let cost = remaining.map_or(charge.cost, |left| Grant::affordable(charge.cost, left));
        let answer = self.check(&[charge.cost(cost)], now);
        Answer::pending(async move {
            let verdict = answer.await?;
            let decision = verdict.decisions().first().copied();
            let decision = decision.ok_or_else(|| Failure::stopped().error())?;
            let store_failure = verdict.store_failure();
            Ok(Grant { store_failure, ..Grant::new(decision, cost) })
        })
    }

    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot> {
        if !charge.policy.is_durable() {
            return Answer::Ready(Ok(self.memory().refund(charge, now)));
        }
        self.change(now, |ledger| ledger.refund(charge, now))
    }

    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()> {
        if !charge.policy.is_durable() {
            self.memory().reset(charge, now);
            return Answer::Ready(Ok(()));
        }
        self.change(now, |ledger| ledger.reset(charge, now))
    }

    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved> {
        let Some(split) = Split::of(charges) else {
            return Answer::Ready(Ok(self.memory().reserve(charges, now)));
        };
        match self.reserve_split(&split, now) {
            Ok((reserved, None)) => Answer::Ready(Ok(reserved)),
            Ok((reserved, pending)) => Answer::pending(async move {
                match stored(pending).await {
                    Ok(()) => Ok(reserved),
                    // What was reserved in memory beside it expires.
                    Err(failure) => Err(failure.error()),
                }
            }),
            Err(failure) => {
                let verdict = self.degraded(charges, now, &failure, true);
                let terms = charges.iter().map(|charge| charge.policy.reservation_terms().ttl);
                let expires_after = terms.min().unwrap_or_default();
                // Nothing is kept of it: to settle it changes nothing.
                let id = self.new_id().ok().filter(|_| verdict.is_allowed());
                let reservation = id.map(|id| Reservation { id: ReservationId(id), expires_after });
                Answer::Ready(Ok(Reserved { verdict, reservation }))
            }
        }
    }

    fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Answer<Settlement> {
        let cost = |charge: u32| costs.get(charge as usize).copied();
        self.settle(id, cost, now, |elsewhere| match elsewhere {
            // Costs are numbered by the request: those of these charges are among them, the first
            // ones first.
            Some(Elsewhere { id, charges }) => {
                let costs: Vec<u64> = charges.iter().filter_map(|charge| cost(*charge)).collect();
                self.memory().commit(*id, &costs, now)
            }
            None => self.memory().commit(id, costs, now),
        })
    }

    fn cancel(&self, id: ReservationId, now: Timestamp) -> Answer<Settlement> {
        self.settle(
            id,
            |_| Some(0),
            now,
            |elsewhere| self.memory().cancel(elsewhere.map_or(id, |elsewhere| elsewhere.id), now),
        )
    }

    fn release(&self, id: ReservationId, now: Timestamp) {
        // Handed to the thread before the answer is dropped.
        drop(self.cancel(id, now));
    }

    fn outage(&self) -> Option<Outage> {
        let books = self.shared.books();
        let failure = books.failure.clone().or_else(|| Self::check_space(&books).err())?;
        Some(Outage { lasted: failure.since.elapsed(), reason: failure.reason })
    }

    fn renew(&self, policies: &[&Policy], now: Timestamp) {
        Store::renew(self.memory().as_ref(), policies, now);
        self.note_in_force(policies);
    }
}

impl DurableStore {
    /// Decides a request and does it; what is to be waited for if anything was taken.
    fn check_split(
        &self,
        split: &Split<'_>,
        now: Timestamp,
    ) -> Result<(Verdict, Pending), Failure> {
        let mut books = self.shared.books();
        let is_full = Self::check_space(&books);
        let decided = self.usable(&mut books, now)?.decide(&split.durable, 0, now)?;
        if !decided.verdict.is_allowed() {
            self.submit_unwatched(&mut books, now);
            let others = self.peek_others(split, now);
            return Ok((split.together(decided.verdict.decisions(), others.decisions()), None));
        }
        is_full?;
        let others = match split.others.is_empty() {
            true => Verdict::new(Vec::new()),
            false => self.memory().check_all(&split.others, now),
        };
        if !others.is_allowed() {
            self.submit_unwatched(&mut books, now);
            return Ok((split.together(&untaken(&decided, split), others.decisions()), None));
        }
        let verdict = split.together(decided.verdict.decisions(), others.decisions());
        if let Some(ledger) = &mut books.ledger {
            ledger.apply(decided, &split.durable);
        }
        let pending = self.submit(&mut books, now).inspect_err(|_| {
            IfLost::of(split).give_back(self.memory(), now);
        })?;
        Ok((verdict, pending))
    }

    fn reserve_split(
        &self,
        split: &Split<'_>,
        now: Timestamp,
    ) -> Result<(Reserved, Pending), Failure> {
        let id = self.new_id()?;
        let mut books = self.shared.books();
        let is_full = Self::check_space(&books);
        let ledger = self.usable(&mut books, now)?;
        ledger.admit_reservation(now)?;
        let decided = ledger.decide(&split.durable, id, now)?;
        let denied = |verdict| Reserved { verdict, reservation: None };
        if !decided.verdict.is_allowed() {
            self.submit_unwatched(&mut books, now);
            let others = self.peek_others(split, now);
            let verdict = split.together(decided.verdict.decisions(), others.decisions());
            return Ok((denied(verdict), None));
        }
        is_full?;
        let mut others = denied(Verdict::new(Vec::new()));
        if !split.others.is_empty() {
            others = self.memory().reserve(&split.others, now);
        }
        if !others.verdict.is_allowed() {
            self.submit_unwatched(&mut books, now);
            let verdict = split.together(&untaken(&decided, split), others.verdict.decisions());
            return Ok((denied(verdict), None));
        }
        let terms = split.durable.iter().map(|charge| charge.policy.reservation_terms().ttl);
        let expires_after = terms.chain(others.reservation.map(|other| other.expires_after)).min();
        let expires_after = expires_after.unwrap_or_default();
        let verdict = split.together(decided.verdict.decisions(), others.verdict.decisions());
        let numbers: Vec<u32> = split.places.iter().map(|place| *place as u32).collect();
        let is_other = |place: &u32| !numbers.contains(place);
        let all = (split.durable.len() + split.others.len()) as u32;
        let charges = || (0..all).filter(is_other).collect();
        let elsewhere =
            others.reservation.map(|other| Elsewhere { id: other.id, charges: charges() });
        if let Some(ledger) = &mut books.ledger {
            let expires_at = ledger.last().after(expires_after);
            ledger.apply_reserved(decided, &split.durable, &numbers, (expires_at, elsewhere));
        }
        let pending = self.submit(&mut books, now)?;
        let reservation = Some(Reservation { id: ReservationId(id), expires_after });
        Ok((Reserved { verdict, reservation }, pending))
    }

    /// Settles a reservation of the ledger, and what the same request reserved in memory; one that
    /// the ledger does not know is the memory's, whole.
    fn settle(
        &self,
        id: ReservationId,
        cost: impl Fn(u32) -> Option<u64>,
        now: Timestamp,
        in_memory: impl Fn(Option<&Elsewhere>) -> Settlement,
    ) -> Answer<Settlement> {
        let mut books = self.shared.books();
        let settled = match self.usable(&mut books, now) {
            Ok(ledger) => ledger.settle(id.0, cost, now),
            // A reservation of the memory can be settled all the same.
            Err(failure) => match in_memory(None) {
                Settlement::Settled => return Answer::Ready(Ok(Settlement::Settled)),
                Settlement::Unknown => return Answer::Ready(Err(failure.error())),
            },
        };
        let pending = match self.submit(&mut books, now) {
            Ok(pending) => pending,
            Err(failure) => return Answer::Ready(Err(failure.error())),
        };
        drop(books);
        let Some(elsewhere) = settled else {
            return Answer::Ready(Ok(in_memory(None)));
        };
        if let Some(elsewhere) = &elsewhere {
            // Unknown, it has expired there.
            let _ = in_memory(Some(elsewhere));
        }
        Answer::pending(async move {
            stored(pending).await.map_err(|failure| failure.error())?;
            Ok(Settlement::Settled)
        })
    }

    /// Changes something that takes nothing.
    fn change<T: Send + Unpin + 'static>(
        &self,
        now: Timestamp,
        change: impl FnOnce(&mut Ledger) -> T,
    ) -> Answer<T> {
        let mut books = self.shared.books();
        let changed = self.usable(&mut books, now).map(change);
        let pending = changed.and_then(|told| Ok((told, self.submit(&mut books, now)?)));
        match pending {
            Ok((told, None)) => Answer::Ready(Ok(told)),
            Ok((told, pending)) => Answer::pending(async move {
                stored(pending).await.map_err(|failure| failure.error())?;
                Ok(told)
            }),
            Err(failure) => Answer::Ready(Err(failure.error())),
        }
    }

    /// Looks at the ledger.
    fn with_ledger<T>(
        &self,
        now: Timestamp,
        look: impl FnOnce(&mut Ledger) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut books = self.shared.books();
        let told = look(self.usable(&mut books, now)?);
        self.submit_unwatched(&mut books, now);
        told
    }

    fn peek_others(&self, split: &Split<'_>, now: Timestamp) -> Verdict {
        match split.others.is_empty() {
            true => Verdict::new(Vec::new()),
            false => self.memory().peek_all(&split.others, now),
        }
    }
}

/// What is told of durable charges that would be allowed, and were not taken.
fn untaken(decided: &Decided, split: &Split<'_>) -> Vec<Decision> {
    decided.untaken(&split.durable).into_iter().map(Decision::Allow).collect()
}
