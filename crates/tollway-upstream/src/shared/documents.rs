//! The documents of a group of buckets, and what a transition does to them: pure.
//!
//! ```text
//!   group     look | counter of old clients | whose waiters and permits are whose | budgets
//!   account   what counts every request of the credential
//! ```
//!
//! Buckets that requests may move between are in one group, because the upstream's names for them
//! change: those of one major parameter, or all of them where limits of the credential are told.
//! So every decision is one transition of two documents, the group's and the account's, and
//! whoever makes it makes it for all processes: it grants the places of others too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::counter::{Counter, Mirror};
use crate::budget::document::Terms;
use crate::budget::encoding::{Encoded, Reader, Writer, encoded};
use crate::budget::{Budgets, Claim, Correction, Reason, Refusal, Ticket, Waiter};
use crate::profile::Observation;

/// Requests in flight in one document.
const FLIGHTS_MAX: usize = 8_192;
/// Processes know the time less exactly than this; within it, whoever came to the documents first
/// was first.
const CLOCKS_APART_US: u64 = 100_000;
/// A request of a process: a place in the line first, a permit later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Owner {
    /// The process.
    pub(super) process: u64,
    /// Its number for the request.
    pub(super) number: u64,
}

encoded!(Owner { process, number });

#[derive(Clone, Copy, Debug)]
pub(super) enum Standing {
    Waits(Waiter),
    Flies(Ticket),
}

/// Who is to look again, and when, as was last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) process: u64,
    pub(super) at: Option<Timestamp>,
}

encoded!(Look { process, at });

/// The documents of a group.
#[derive(Debug)]
pub(super) struct Documents {
    pub(super) budgets: Budgets,
    pub(super) look: Look,
    /// What the counter of Spectacles clients says, in a fleet that has some.
    pub(super) mirror: Mirror,
    pub(super) bucket: Option<Arc<str>>,
    pub(super) terms: Arc<Terms>,
    /// By the number of a waiter or a ticket in the budgets.
    pub(super) owners: BTreeMap<u64, Owner>,
    standing: HashMap<Owner, Standing>,
}

/// What a process asks of the documents.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A request joins the line; refused at the end if it still waits at its deadline.
    Stand {
        number: u64,
        claim: Claim,
        stamp: u64,
        deadline: Option<Timestamp>,
        /// What the upstream calls the bucket of its route elsewhere.
        hint: Option<Arc<str>>,
    },
    /// It leaves the line, or was granted and never sent.
    Leave { number: u64 },
    /// What became of a request.
    Settle { number: u64, claim: Claim, left: Timestamp, end: End },
    /// A request that left without the documents.
    Adopt { number: u64, claim: Claim, left: Timestamp },
    /// A process is gone.
    Bury { process: u64 },
    /// Others say that the credential has to wait.
    Block { wait: Duration },
    /// The counter says something that the documents did not.
    Beside { counter: Counter },
    /// A request took something else than what it was let go for.
    Correct { correction: Correction },
    /// Forget what blocks a bucket.
    Unlock { bucket: Box<str> },
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(super) enum End {
    Answered { observation: Arc<Observation>, at: Timestamp },
    Abandoned,
    NeverSent,
}

/// What a transition decided.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) granted: Vec<Owner>,
    pub(super) refused: Vec<(u64, Refusal)>,
    pub(super) unlocked: bool,
}

impl Documents {
    /// Reads both documents; empty ones if there is nothing, or nothing that makes sense.
    pub(super) fn read(
        terms: &Arc<Terms>,
        bucket: Option<&Arc<str>>,
        [account, group]: [&[u8]; 2],
        now: Timestamp,
    ) -> Self {
        let read = Self::try_read(terms, bucket, [account, group], now);
        read.unwrap_or_else(|| Self::empty(terms, bucket))
    }

    fn empty(terms: &Arc<Terms>, bucket: Option<&Arc<str>>) -> Self {
        Self {
            budgets: terms.budgets(),
            look: Look::default(),
            mirror: Mirror::default(),
            bucket: bucket.map(Arc::clone),
            terms: Arc::clone(terms),
            owners: BTreeMap::new(),
            standing: HashMap::new(),
        }
    }

    fn try_read(
        terms: &Arc<Terms>,
        bucket: Option<&Arc<str>>,
        [account, group]: [&[u8]; 2],
        now: Timestamp,
    ) -> Option<Self> {
        let mut this = Self::empty(terms, bucket);
        if !account.is_empty() {
            this.budgets.read_account(&mut Reader::new(account))?;
        }
        if !group.is_empty() {
            let mut from = Reader::new(group);
            this.look = Encoded::read(&mut from)?;
            this.mirror = Encoded::read(&mut from)?;
            for (id, owner) in Vec::<(u64, Owner)>::read(&mut from)? {
                this.owners.insert(id, owner);
            }
            this.budgets.read_group(&mut from, !terms.is_one_group, now)?;
            for (id, owner) in &this.owners {
                let standing = match this.budgets.is_waiting(Waiter(*id)) {
                    true => Standing::Waits(Waiter(*id)),
                    false => Standing::Flies(Ticket(*id)),
                };
                this.standing.insert(*owner, standing);
            }
        }
        Some(this)
    }

    /// What the documents hold now: the account's and the group's.
    pub(super) fn bodies(&mut self) -> [Vec<u8>; 2] {
        let mut account = Writer::default();
        self.budgets.write_account(self.terms.is_one_group, &mut account);
        let mut group = Writer::default();
        self.look.write(&mut group);
        self.mirror.write(&mut group);
        let owners: Vec<(u64, Owner)> = self.owners.iter().map(|(id, it)| (*id, *it)).collect();
        owners.write(&mut group);
        self.budgets.write_group(&mut group);
        [account.bytes, group.bytes]
    }

    /// The process whose request is first in the line.
    pub(super) fn first_in_line(&self) -> Option<u64> {
        self.budgets.first_in_line().and_then(|it| self.owners.get(&it.0)).map(|it| it.process)
    }

    /// What the documents have of a process: its numbers, and whether they are permits.
    pub(super) fn of_process(&self, process: u64) -> Vec<(u64, bool)> {
        let its = self.standing.iter().filter(|(owner, _)| owner.process == process);
        let mut its: Vec<_> = its
            .map(|(owner, standing)| (owner.number, matches!(standing, Standing::Flies(_))))
            .collect();
        its.sort_unstable();
        its
    }

    /// When a permit was granted.
    pub(super) fn left_at(&self, owner: Owner) -> Timestamp {
        match self.standing.get(&owner) {
            Some(Standing::Flies(ticket)) => self.budgets.left_at(*ticket),
            _ => Timestamp::MIN,
        }
    }

    /// Everybody who has something in the documents.
    pub(super) fn processes(&self) -> BTreeSet<u64> {
        self.owners.values().map(|owner| owner.process).collect()
    }

    /// Does what a process asks, and lets go whoever may go then.
    pub(super) fn apply(&mut self, process: u64, inputs: &[Input], now: Timestamp) -> Decided {
        let mut decided = Decided::default();
        self.forget_old_clients(now);
        for input in inputs {
            self.take(process, input, now, &mut decided);
        }
        self.grant(now, &mut decided);
        for input in inputs {
            if let Input::Stand { number, deadline: Some(at), .. } = input
                && *at <= now
                && let Some(Standing::Waits(waiter)) =
                    self.remove(Owner { process, number: *number }, true)
            {
                let wait = self.budgets.give_up(waiter, now);
                let refusal = Refusal { reason: Reason::Patience, wait: Some(wait) };
                decided.refused.push((*number, refusal));
            }
        }
        decided
    }

    fn take(&mut self, process: u64, input: &Input, now: Timestamp, decided: &mut Decided) {
        let owner = |number: &u64| Owner { process, number: *number };
        match input {
            Input::Stand { number, claim, stamp, hint, .. } => {
                let owner = owner(number);
                if self.standing.contains_key(&owner) {
                    return;
                }
                if let Some(hint) = hint {
                    self.budgets.hint(&claim.route, hint, now);
                }
                let stamp = self.budgets.place_in_line(*stamp, CLOCKS_APART_US);
                match self.budgets.stand(claim, stamp, now) {
                    Ok(waiter) => self.put(owner, waiter.0, Standing::Waits(waiter)),
                    Err(refusal) => decided.refused.push((*number, refusal)),
                }
            }
            Input::Leave { number } => self.leave(owner(number), now),
            Input::Settle { number, claim, left, end } => {
                self.settle(owner(number), claim, *left, end, now);
            }
            Input::Adopt { number, claim, left } => {
                let owner = owner(number);
                if !self.standing.contains_key(&owner)
                    && let Some(ticket) = self.budgets.adopt(claim, *left, true, now)
                {
                    self.put(owner, ticket.0, Standing::Flies(ticket));
                }
            }
            Input::Bury { process } => {
                for (number, _) in self.of_process(*process) {
                    let owner = Owner { process: *process, number };
                    match self.remove(owner, false) {
                        Some(Standing::Waits(waiter)) => self.budgets.leave(waiter, now),
                        Some(Standing::Flies(ticket)) => self.budgets.bury(ticket, now),
                        None => {}
                    }
                }
            }
            Input::Beside { counter } => self.beside(counter, now),
            Input::Block { wait } => self.budgets.block_account(*wait, now),
            Input::Correct { correction } => self.budgets.correct(correction, now),
            Input::Unlock { bucket } => decided.unlocked |= self.budgets.unlock(bucket, now),
        }
    }

    fn leave(&mut self, owner: Owner, now: Timestamp) {
        match self.remove(owner, false) {
            Some(Standing::Waits(waiter)) => self.budgets.leave(waiter, now),
            Some(Standing::Flies(ticket)) => self.budgets.cancel(ticket, now),
            None => {}
        }
    }

    fn settle(&mut self, owner: Owner, claim: &Claim, left: Timestamp, end: &End, now: Timestamp) {
        let known = match self.remove(owner, false) {
            Some(Standing::Flies(ticket)) => Some(ticket),
            Some(Standing::Waits(waiter)) => {
                self.budgets.leave(waiter, now);
                None
            }
            None => None,
        };
        match (end, known) {
            (End::Answered { observation, at }, known) => {
                // Let go without the documents, or given up by the others: what it says counts.
                let ticket = known.or_else(|| self.budgets.adopt(claim, left, false, now));
                if let Some(ticket) = ticket {
                    self.budgets.observe(ticket, observation, *at);
                    self.count_old_clients(left, now);
                }
            }
            (End::Abandoned, Some(ticket)) => self.budgets.abandon(ticket, now),
            (End::NeverSent, Some(ticket)) => self.budgets.cancel(ticket, now),
            (_, None) => {}
        }
    }

    fn grant(&mut self, now: Timestamp, decided: &mut Decided) {
        while self.budgets.in_flight() < FLIGHTS_MAX
            && let Some((waiter, ticket)) = self.budgets.next(now)
        {
            match self.owners.remove(&waiter.0) {
                Some(owner) => {
                    self.put(owner, ticket.0, Standing::Flies(ticket));
                    decided.granted.push(owner);
                }
                None => self.budgets.cancel(ticket, now),
            }
        }
    }

    pub(super) fn put(&mut self, owner: Owner, id: u64, standing: Standing) {
        self.owners.insert(id, owner);
        self.standing.insert(owner, standing);
    }

    /// Takes what the documents have of a request; only a place in the line if `only_waiting`.
    pub(super) fn remove(&mut self, owner: Owner, only_waiting: bool) -> Option<Standing> {
        let standing = *self.standing.get(&owner)?;
        let id = match standing {
            Standing::Waits(waiter) => waiter.0,
            Standing::Flies(_) if only_waiting => return None,
            Standing::Flies(ticket) => ticket.0,
        };
        self.owners.remove(&id);
        self.standing.remove(&owner);
        Some(standing)
    }
}
