//! The core as a subject: states in a map, decided by `decide_all`.
//!
//! It is also the plainest store there can be, and so says in code what every store must do:
//! reservations that expired are settled before anything else is looked at, and a settlement gives
//! back what was taken *then*, not now.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollway_core::shares::Expanded;
use tollway_core::{
    Algorithm, Charge, Decision, Grant, Held, OnExpiry, Policy, Settlement, Snapshot, State,
    Timestamp, Verdict, decide_all,
};

use super::on_store::granted;
use super::{Ask, Capabilities, Failure, Operation, Outcome, Subject};

/// The address of a state: the policy, by its identity, and the key.
type Address = (u64, Vec<u8>);

/// States in a map.
#[derive(Debug, Default)]
pub struct OnCore {
    manner: Manner,
    states: BTreeMap<Address, State>,
    reservations: BTreeMap<String, Open>,
    /// What the last request took, or would have.
    held: Vec<Held>,
    operations: u128,
}

/// How states are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Manner {
    #[default]
    ForEver,
    UntilVacant,
    ByServerClock,
}

/// A reservation that is not settled yet.
#[derive(Debug)]
struct Open {
    parts: Vec<StatePart>,
    expires_at: Timestamp,
}

/// What an ask took of one state.
#[derive(Debug)]
struct StatePart {
    ask: Ask,
    /// The number of the ask.
    charge: usize,
    /// The ask, as to that state.
    part: Ask,
    held: Held,
}

impl OnCore {
    /// Keeps every state for ever.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets every state as soon as it claims to say nothing: nobody may notice.
    pub fn forgetful() -> Self {
        Self { manner: Manner::UntilVacant, ..Self::default() }
    }

    /// Decides by a clock that may be set back, as a Redis server's: one request at a time, each at
    /// the time of its turn, so that a state in the future can only have been left there by the
    /// clock.
    pub fn by_server_clock() -> Self {
        Self { manner: Manner::ByServerClock, ..Self::default() }
    }

    /// Decides on copies; `keep` says whether what was taken is kept.
    fn decide(&mut self, asks: &[Ask], keep: bool, now: Timestamp) -> Verdict {
        let charges: Vec<Charge<'_>> = asks.iter().map(Ask::charge).collect();
        let expanded = Expanded::of(&charges);
        let parts = parts(asks);
        let mut addresses: Vec<Address> = Vec::new();
        let slots: Vec<usize> = parts.iter().map(|(_, ask)| slot(&mut addresses, ask)).collect();
        let mut states = self.load(&addresses, &slots, &parts);
        let id = self.operations;
        let verdict = match Expanded::is_needed(&charges) {
            true => {
                self.held = expanded.held(&slots, &states, id, now);
                match keep {
                    true => expanded.decide(&slots, &mut states, id, now),
                    false => return expanded.peek(&slots, &states, now),
                }
            }
            false => {
                self.held = Held::by_all(&charges, &slots, &states, id, now);
                decide_all(&charges, &slots, &mut states, id, now)
            }
        };
        if keep {
            self.states.extend(addresses.into_iter().zip(states));
        }
        verdict
    }

    fn load(&self, addresses: &[Address], slots: &[usize], asks: &[(usize, Ask)]) -> Vec<State> {
        let vacant = |slot: usize| {
            let ask = slots.iter().position(|other| *other == slot).map(|index| &asks[index].1);
            ask.map(|ask| State::vacant(ask.policy().algorithm()))
        };
        let stored = |address: &Address| self.states.get(address).cloned();
        let slots = addresses.iter().enumerate();
        slots.filter_map(|(slot, address)| stored(address).or_else(|| vacant(slot))).collect()
    }

    fn state(&mut self, ask: &Ask) -> &mut State {
        let vacant = || State::vacant(ask.policy().algorithm());
        self.states.entry(address(ask)).or_insert_with(vacant)
    }

    /// What a check would decide, with figures that show the keys as they are.
    fn peek(&mut self, asks: &[Ask], now: Timestamp) -> Verdict {
        let verdict = self.decide(asks, false, now);
        if asks.iter().any(|ask| ask.policy().shares().is_some()) {
            return verdict;
        }
        let untouched = asks.iter().zip(verdict.decisions()).map(|(ask, decision)| {
            let snapshot = self.state(ask).peek(ask.policy().algorithm(), now);
            match *decision {
                Decision::Allow(_) => Decision::Allow(snapshot),
                Decision::Deny { retry, .. } => Decision::Deny { snapshot, retry },
            }
        });
        Verdict::new(untouched.collect())
    }

    fn take(&mut self, ask: &Ask, now: Timestamp) -> Grant {
        let remaining = self.left(ask, now).remaining();
        let cost = Grant::affordable(ask.cost(), remaining);
        let verdict = self.decide(&[ask.at_cost(cost)], true, now);
        Grant::new(verdict.decisions()[0], cost)
    }

    fn left(&mut self, ask: &Ask, now: Timestamp) -> Snapshot {
        self.peek(core::slice::from_ref(ask), now).decisions()[0].snapshot()
    }

    fn reserve(&mut self, operation: &Operation, label: &str, now: Timestamp) -> Outcome {
        let asks = operation.asks();
        let verdict = self.decide(asks, true, now);
        let outcome = Outcome::of_verdict(&verdict, operation);
        let terms = asks.iter().map(|ask| ask.policy().reservation_terms());
        let Some(ttl) = terms.map(|terms| terms.ttl).min().filter(|_| verdict.is_allowed()) else {
            return outcome;
        };
        let parts = parts(asks).into_iter().zip(self.held.iter().copied());
        let parts = parts.map(|((charge, part), held)| StatePart {
            ask: asks[charge].clone(),
            charge,
            part,
            held,
        });
        let parts = parts.collect();
        self.reservations.insert(label.to_owned(), Open { parts, expires_at: now.after(ttl) });
        Outcome { expires_after: Some(ttl), ..outcome }
    }

    /// Settles at the costs that `cost` says, given each ask and its index.
    fn settle(&mut self, open: &Open, cost: impl Fn(usize, &Ask) -> u64, now: Timestamp) {
        for StatePart { ask, charge, part, held } in &open.parts {
            let real = cost(*charge, ask);
            self.state(part).settle(part.policy().algorithm(), held, real, now);
        }
    }

    /// Settles what expired, as its policies say.
    fn catch_up(&mut self, now: Timestamp) {
        let expired = self.reservations.extract_if(.., |_, open| open.expires_at <= now);
        for (_, mut open) in expired.collect::<Vec<_>>() {
            // Permits whose lease is as long as the reservation end with it, by themselves.
            let ttls = open.parts.iter().map(|part| part.ask.policy().reservation_terms().ttl);
            let ttl = ttls.min();
            open.parts.retain(|part| match part.ask.policy().algorithm() {
                Algorithm::Concurrency(limit) => Some(limit.lease()) > ttl,
                _ => true,
            });
            let kept = |_, ask: &Ask| match ask.policy().reservation_terms().on_expiry {
                OnExpiry::Return => 0,
                OnExpiry::Keep => ask.cost().get(),
            };
            self.settle(&open, kept, now);
        }
    }

    /// Only a state that was asked about is looked at: another policy's algorithm is not known.
    fn forget(&mut self, asks: &[Ask], now: Timestamp) {
        for (_, ask) in &parts(asks) {
            let vacant_at = |state: &State| state.vacant_at(ask.policy().algorithm());
            if self.states.get(&address(ask)).is_some_and(|state| vacant_at(state) <= now) {
                self.states.remove(&address(ask));
            }
        }
    }
}

impl Subject for OnCore {
    fn capabilities(&self) -> Capabilities {
        let declines: &[_] = match self.manner {
            Manner::ForEver => &["clock-steps-back"],
            // What is forgotten cannot tell that somebody comes late: that takes a store.
            Manner::UntilVacant => &["clock-steps-back", "late-reading"],
            Manner::ByServerClock => &["late-reading"],
        };
        Capabilities { declines, ..Capabilities::FULL }
    }

    fn begin(&mut self, _policies: &[Arc<Policy>], _base: Timestamp) -> Result<(), Failure> {
        *self = Self { manner: self.manner, ..Self::default() };
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        self.operations += 1;
        self.catch_up(at);
        match self.manner {
            Manner::ForEver => {}
            Manner::UntilVacant => self.forget(operation.asks(), at),
            // A look stores nothing, not even that the clock was set back.
            Manner::ByServerClock if matches!(operation, Operation::Peek(_)) => {
                let before = self.states.clone();
                self.rewind(operation.asks(), at);
                let shown = Outcome::of_verdict(&self.peek(operation.asks(), at), operation);
                self.states = before;
                return Ok(shown);
            }
            Manner::ByServerClock => self.rewind(operation.asks(), at),
        }
        Ok(match operation {
            Operation::Check(asks) => Outcome::of_verdict(&self.decide(asks, true, at), operation),
            Operation::Peek(asks) => Outcome::of_verdict(&self.peek(asks, at), operation),
            Operation::Take(ask) => granted(self.take(ask, at), ask),
            Operation::Refund(ask) => {
                let leaves_time = self.manner != Manner::ByServerClock;
                for (_, part) in parts(core::slice::from_ref(ask)) {
                    let algorithm = part.policy().algorithm();
                    let state = self.state(&part);
                    state.refund(algorithm, ask.cost().get(), None, at);
                    if !leaves_time {
                        state.forget_past(algorithm, at);
                    }
                }
                Outcome::of_snapshot(self.left(ask, at))
            }
            Operation::Reset(ask) => {
                for (_, part) in parts(core::slice::from_ref(ask)) {
                    // What is gone from a server leaves no time behind, and nobody there comes
                    // late.
                    match self.manner {
                        Manner::ByServerClock => drop(self.states.remove(&address(&part))),
                        _ => self.state(&part).clear(part.policy().algorithm(), at),
                    }
                }
                Outcome::default()
            }
            Operation::Reserve { label, .. } => self.reserve(operation, label, at),
            Operation::Commit { label, costs } => {
                Outcome::of_settlement(self.commit(label, costs, at))
            }
            Operation::Cancel { label } => Outcome::of_settlement(self.cancel(label, at)),
        })
    }
}

impl OnCore {
    fn rewind(&mut self, asks: &[Ask], now: Timestamp) {
        for (_, ask) in &parts(asks) {
            if let Some(state) = self.states.get_mut(&address(ask)) {
                state.rewind(ask.policy().algorithm(), now);
            }
        }
    }

    fn commit(&mut self, label: &str, costs: &[u64], now: Timestamp) -> Settlement {
        let Some(open) = self.reservations.remove(label) else { return Settlement::Unknown };
        let real = |index, ask: &Ask| costs.get(index).copied().unwrap_or(ask.cost().get());
        self.settle(&open, real, now);
        Settlement::Settled
    }

    fn cancel(&mut self, label: &str, now: Timestamp) -> Settlement {
        let Some(open) = self.reservations.remove(label) else { return Settlement::Unknown };
        self.settle(&open, |_, _| 0, now);
        Settlement::Settled
    }
}

/// The asks as to states, each with the number of the ask that it is of: what an owner in a tree
/// asks is asked of every bucket on the way to the root.
fn parts(asks: &[Ask]) -> Vec<(usize, Ask)> {
    let charges: Vec<Charge<'_>> = asks.iter().map(Ask::charge).collect();
    let expanded = Expanded::of(&charges);
    let part = |(index, charge): (usize, &Charge<'_>)| {
        let (policy, key) = (Arc::new(charge.policy.clone()), charge.key.as_bytes());
        let ask = Ask::new(policy, key, charge.cost, charge.mode);
        (expanded.charge_of(index), ask.expect("the key of a charge is one"))
    };
    expanded.charges().iter().enumerate().map(part).collect()
}

fn address(ask: &Ask) -> Address {
    (ask.policy().id(), ask.key().to_vec())
}

/// The index of the ask's address among `addresses`, added to them if it is new.
fn slot(addresses: &mut Vec<Address>, ask: &Ask) -> usize {
    let address = address(ask);
    addresses.iter().position(|other| *other == address).unwrap_or_else(|| {
        addresses.push(address);
        addresses.len() - 1
    })
}
