//! Checks: from what is known in process, from units in hand, or from the store.

use std::num::NonZeroU16;
use std::sync::Arc;

use tokio::time::Instant;
use tollway_core::{Algorithm, Charge, Grant, Mode, StoreError, Timestamp, Verdict};

use super::Inner;
use super::ask::strange_answer;
use crate::connection::misuse;
use crate::lease::Lease;
use crate::replay::Reply;
use crate::request::{KeyCharge, Op, Request};
use crate::settings::LeaseTerms;
use crate::split_policy::SplitPolicy;

/// How many split policies are known at a time: calls may make up their own. Forgotten, one only
/// begins with its first share again.
const SPLITS_MAX: usize = 4_096;

/// A check and how its policies want it done.
pub(super) struct Check {
    pub(super) request: Arc<Request>,
    /// The shares of its only charge's policy.
    split: Option<SplitKey>,
    /// The lease of its only charge's policy.
    lease: Option<LeaseTerms>,
    /// Whether it may go across slots.
    pub(super) across_slots: bool,
}

/// The key that is split, and the share that was chosen.
struct SplitKey {
    split: Arc<SplitPolicy>,
    key: Vec<u8>,
    index: usize,
}

impl Inner {
    /// The check that charges make.
    pub(super) fn check_of(&self, op: Op, charges: &[Charge<'_>]) -> Result<Check, StoreError> {
        let mut request = self.request(op, charges)?;
        let (mut split, mut lease, mut across_slots) = (None, None, false);
        let is_split = charges.iter().any(|charge| charge.policy.parts().is_some());
        if request.parts.iter().any(|part| part.shared.is_some()) {
            if charges.iter().any(|charge| self.parts_of(charge.policy).is_some()) {
                return Err(misuse("keys that are split and owners of shares do not go together"));
            }
        } else if is_split || !self.settings.policies.is_empty() {
            let settings: Vec<_> =
                charges.iter().map(|charge| self.policy_settings(charge.policy)).collect();
            across_slots = settings.iter().all(|settings| settings.across_slots);
            for (charge, part) in charges.iter().zip(&mut request.parts) {
                if let Some(count) = self.parts_of(charge.policy) {
                    let shares = self.split(charge.policy, count.get())?;
                    let (index, key) = (shares.next(), charge.key.as_bytes().to_vec());
                    *part = shares.part(&self.settings.prefix, &key, part, index);
                    split = Some(SplitKey { split: shares, key, index });
                }
            }
            request.parts = self.apart(std::mem::take(&mut request.parts));
            // Neither is for requests of several charges, which are decided together.
            match &request.parts[..] {
                [part] if part.mode == Mode::Enforce => {
                    let is_leased = !matches!(part.encoded.algorithm(), Algorithm::Concurrency(_));
                    lease = settings[0].lease.filter(|_| is_leased && split.is_none());
                }
                [_] => {}
                _ => split = None,
            }
        }
        Ok(Check { request: Arc::new(request), split, lease, across_slots })
    }

    /// Decides a check.
    pub(super) async fn check(&self, check: Check, now: Timestamp) -> Result<Verdict, StoreError> {
        if let Some(terms) = check.lease
            && let Some(lease) = self.leases.of(&check.request.parts[0], terms)
        {
            return self.check_leased(&lease, &check.request, now).await;
        }
        let verdict = self.check_once(&check.request, now).await?;
        match &check.split {
            Some(split) => self.check_other_share(split, &check.request, verdict, now).await,
            None => Ok(verdict),
        }
    }

    /// Asks the store, unless what is known already denies the request.
    async fn check_once(
        &self,
        request: &Arc<Request>,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        if let Some(verdict) = self.denials.as_ref().and_then(|denials| denials.deny(request)) {
            return Ok(verdict);
        }
        let asked_at = Instant::now();
        match self.ask_under(Arc::clone(request), now).await {
            Ok((outcome, answered)) => {
                if !Arc::ptr_eq(request, &answered) {
                    // What was denied under other numbers need not be any more.
                    self.forget_denials(&request.parts);
                }
                if let (Some(denials), false) = (&self.denials, outcome.states.is_empty()) {
                    denials.remember(&answered, &outcome, asked_at);
                }
                match outcome.reply {
                    Reply::Verdict(verdict) => Ok(verdict),
                    _ => Err(strange_answer()),
                }
            }
            Err(failure) => self.degrade(request, failure),
        }
    }

    /// A denial by one share is tried once more at the share that seems emptiest.
    async fn check_other_share(
        &self,
        tried: &SplitKey,
        request: &Request,
        verdict: Verdict,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let remaining = |verdict: &Verdict| verdict.decisions()[0].snapshot().remaining();
        tried.split.note(tried.index, remaining(&verdict));
        let other = tried.split.emptiest_but(tried.index);
        let Some(other) = other.filter(|_| !verdict.is_allowed() && !verdict.is_degraded()) else {
            return Ok(verdict);
        };
        let prefix = &self.settings.prefix;
        let part = tried.split.part(prefix, &tried.key, &request.parts[0], other);
        let (op, id) = (request.op.clone(), self.ids.next());
        let request = Arc::new(Request { op, id, parts: vec![part] });
        let second = self.check_once(&request, now).await?;
        tried.split.note(other, remaining(&second));
        let is_sooner = second.is_allowed() || second.retry() < verdict.retry();
        Ok(if is_sooner { second } else { verdict })
    }

    /// Spends units in hand, or fetches some.
    async fn check_leased(
        &self,
        lease: &Lease,
        request: &Arc<Request>,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let units = request.parts[0].units;
        if let Some(decision) = lease.spend(units) {
            return Ok(Verdict::one(decision));
        }
        let fetching = lease.fetching.lock().await;
        if let Some(decision) = lease.spend(units) {
            return Ok(Verdict::one(decision));
        }
        let wanted = lease.wanted(units);
        let grant = if wanted > units { self.fetch_units(lease, wanted, now).await } else { None };
        drop(fetching);
        if let (Some(grant), 1) = (&grant, units)
            && grant.granted == 0
        {
            return Ok(Verdict::one(grant.decision));
        }
        match lease.spend(units) {
            Some(decision) => Ok(Verdict::one(decision)),
            // One unit is asked for as such, and a denial must say when these units will be there.
            None => {
                let verdict = self.check_once(request, now).await?;
                if verdict.is_allowed() && !verdict.is_degraded() {
                    lease.note_demand(verdict.decisions()[0].snapshot());
                }
                Ok(verdict)
            }
        }
    }

    /// Takes units into hand; what was left of an earlier lease goes back first.
    async fn fetch_units(&self, lease: &Lease, wanted: u64, now: Timestamp) -> Option<Grant> {
        if lease.is_over() {
            self.give_back(lease, now).await;
        }
        let part = KeyCharge { units: wanted, ..lease.part.clone() };
        let request = Request { op: Op::Take, id: self.ids.next(), parts: vec![part] };
        let outcome = self.ask(request, now).await.ok()?;
        let Reply::Grant(grant) = outcome.reply else { return None };
        lease.receive(grant.granted, grant.decision.snapshot(), outcome.now);
        Some(grant)
    }

    /// Gives unused units back to the store. Lost on the way they are the loss that the bound
    /// names.
    pub(super) async fn give_back(&self, lease: &Lease, now: Timestamp) {
        let Some(unused) = lease.end() else { return };
        let part = KeyCharge { units: unused.units, ..lease.part.clone() };
        let op = Op::Refund { taken_at: Some(unused.taken_at) };
        let request = Request { op, id: self.ids.next(), parts: vec![part] };
        let _ = self.ask(request, now).await;
    }

    /// In how many parts the keys of a policy are: as the store was told, or as the policy says.
    pub(super) fn parts_of(&self, policy: &tollway_core::Policy) -> Option<NonZeroU16> {
        self.policy_settings(policy).split.or(policy.parts())
    }

    pub(super) fn split(
        &self,
        policy: &tollway_core::Policy,
        count: u16,
    ) -> Result<Arc<SplitPolicy>, StoreError> {
        let mut splits = self.splits.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let id = policy.id() ^ policy.numbers_mark();
        if let Some(split) = splits.get(&id) {
            return Ok(Arc::clone(split));
        }
        if splits.len() >= SPLITS_MAX {
            splits.clear();
        }
        let split = SplitPolicy::new(policy, count).ok_or_else(|| {
            misuse("a policy cannot be split into more shares than its limit has units")
        })?;
        let split = Arc::new(split);
        splits.insert(id, Arc::clone(&split));
        Ok(split)
    }

    /// Every share of a charge's key, if its policy is split; the key itself otherwise.
    pub(super) fn all_shares(&self, charge: &Charge<'_>) -> Result<Vec<KeyCharge>, StoreError> {
        let mut parts = self.request(Op::Reset, std::slice::from_ref(charge))?.parts;
        if charge.policy.shares().is_some() {
            // The root first: a floor must not have more than what is above it.
            parts.reverse();
            return Ok(parts);
        }
        let part = parts.remove(0);
        let Some(count) = self.parts_of(charge.policy) else { return Ok(vec![part]) };
        let split = self.split(charge.policy, count.get())?;
        let (prefix, key) = (&self.settings.prefix, charge.key.as_bytes());
        Ok((0..split.len()).map(|index| split.part(prefix, key, &part, index)).collect())
    }
}
