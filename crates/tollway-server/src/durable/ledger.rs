//! The states of keys whose policy is durable, by name, and what is reserved of them.
//!
//! Pure: no clock, no file. What an operation changed is in [`Changes`], for the file; the caller
//! sees to it that changes reach the file in the order in which they were made.
//!
//! ```text
//!   charge       state, usage of the window + cost
//!   refund       state, usage of the window - units
//!   reservation  state, usage + cost       settled: usage of the same window +- the difference,
//!                                          also when that window is over
//! ```
//!
//! **Invariants.** A denial changes nothing. Time does not go back: a reading before the last one
//! is taken for that. Room is bounded in bytes; keys that say nothing any more are forgotten as
//! others come.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use tollway_core::{
    Algorithm, Charge, Held, OnExpiry, Policy, ReservationId, Snapshot, State, Timestamp, Verdict,
    decide_all,
};

use super::rows::{
    CountTable, Period, reservation_name, state_name, usage_name, write_entry, write_reservation,
};

/// What an entry takes beside its name, with what a map needs for it.
const ENTRY_BYTES: usize = 256;
/// Keys that are looked at for room when one comes.
const SWEPT_PER_NEWCOMER: usize = 4;
/// Keys that are looked at for room when there is none.
const SWEPT_WHEN_FULL: usize = 1_024;
/// The most open reservations.
const RESERVATIONS_MAX: usize = 65_536;

/// The state of a key, and the numbers under which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) algorithm: Algorithm,
    pub(super) policy_id: u64,
    pub(super) state: State,
}

/// What is taken, to be settled later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenReservation {
    pub(super) expires_at: Timestamp,
    /// What the same request reserved of policies that are not durable. It is not in the file.
    pub(super) elsewhere: Option<Elsewhere>,
    pub(super) parts: Vec<ReservedUnits>,
}

/// A reservation in memory, and which charges of the request it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    pub(super) id: ReservationId,
    pub(super) charges: Vec<u32>,
}

/// What one charge of a reservation took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReservedUnits {
    pub(super) name: Box<str>,
    /// The number of the charge in its request.
    pub(super) charge: u32,
    pub(super) algorithm: Algorithm,
    pub(super) policy_id: u64,
    pub(super) held: Held,
    pub(super) on_expiry: OnExpiry,
    /// The window in which it was taken.
    pub(super) period: Option<Period>,
}

/// What the file is to be told.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Rows as they are now; `None` for one that is no more.
    pub(super) rows: Vec<(CountTable, String, Option<Vec<u8>>)>,
    pub(super) usage: Vec<UsageChange>,
}

/// Units that came to, or went from, what a key used in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsageChange {
    pub(super) name: String,
    pub(super) period: Period,
    pub(super) taken: u64,
    pub(super) given_back: u64,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.usage.is_empty()
    }
}

/// Why a charge cannot be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    Keys,
    Reservations,
}

/// What was decided about charges, and not done yet.
pub(super) struct Decided {
    pub(super) verdict: Verdict,
    names: Vec<String>,
    slots: Vec<usize>,
    /// For each charge the policy that decided it, if that is a newer one than its own.
    newer: Vec<Option<Policy>>,
    before: Vec<State>,
    after: Vec<State>,
    id: u128,
    now: Timestamp,
    at: Timestamp,
}

impl Decided {
    /// What there is to report of the charges if they are not taken after all.
    pub(super) fn untaken(&self, charges: &[Charge<'_>]) -> Vec<Snapshot> {
        let peek = |(charge, &slot): (&Charge<'_>, &usize)| {
            let snapshot = self.before[slot].peek(charge.policy.algorithm(), self.at);
            snapshot.told_at(self.now, self.at)
        };
        Charge::each_under(charges, &self.newer).iter().zip(&self.slots).map(peek).collect()
    }
}

/// All of it.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: BTreeMap<String, Entry>,
    bytes: usize,
    bytes_max: usize,
    open: BTreeMap<u128, OpenReservation>,
    by_expiry: BTreeSet<(Timestamp, u128)>,
    /// The numbers in force, by policy; see [`Self::renew`].
    in_force: HashMap<u64, HashSet<u64>>,
    last: Timestamp,
    swept_up_to: String,
    changes: Changes,
}

impl Ledger {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            bytes: 0,
            bytes_max,
            open: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            in_force: HashMap::new(),
            last: Timestamp::MIN,
            swept_up_to: String::new(),
            changes: Changes::default(),
        }
    }

    /// Puts an entry back that was in the file, whatever room there is.
    pub(super) fn restore(&mut self, name: &str, entry: Entry) {
        self.put(name.to_owned(), entry);
    }

    pub(super) fn restore_reservation(&mut self, id: u128, open: OpenReservation) {
        self.by_expiry.insert((open.expires_at, id));
        self.open.insert(id, open);
    }

    pub(super) fn restore_time(&mut self, last: Timestamp) {
        self.last = self.last.max(last);
    }

    /// The last time that anything was decided.
    pub(super) const fn last(&self) -> Timestamp {
        self.last
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What has changed since the last call.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Notes which numbers are in force: whoever still asks under others comes late, and is decided
    /// by those that the key is kept under if they are in force.
    pub(super) fn renew<'p>(&mut self, policies: impl Iterator<Item = &'p Policy>) {
        self.in_force.clear();
        for policy in policies.filter(|policy| policy.is_durable()) {
            self.in_force.entry(policy.name_id()).or_default().insert(policy.id());
        }
    }

    /// Decides without doing anything; see [`Self::apply`].
    pub(super) fn decide(
        &mut self,
        charges: &[Charge<'_>],
        id: u128,
        now: Timestamp,
    ) -> Result<Decided, NoRoom> {
        let at = self.advance(now);
        let (mut names, mut slots) = (Vec::with_capacity(charges.len()), Vec::new());
        let mut before = Vec::with_capacity(charges.len());
        let newer: Vec<Option<Policy>> =
            charges.iter().map(|charge| self.newer_policy(charge, at)).collect();
        let charges = Charge::each_under(charges, &newer);
        for charge in &charges {
            let name = state_name(charge.policy.name(), charge.key.as_bytes());
            let known = names.iter().position(|known| *known == name);
            slots.push(known.unwrap_or(names.len()));
            if known.is_none() {
                self.admit(&name, at)?;
                before.push(self.state(&name, charge.policy, at));
                names.push(name);
            }
        }
        let mut after = before.clone();
        let verdict = decide_all(&charges, &slots, &mut after, id, at).told_at(now, at);
        Ok(Decided { verdict, names, slots, newer, before, after, id, now, at })
    }

    /// Does what was decided.
    pub(super) fn apply(&mut self, decided: Decided, charges: &[Charge<'_>]) {
        let Decided { names, slots, newer, after, .. } = decided;
        let charges = &Charge::each_under(charges, &newer);
        for (charge, &slot) in charges.iter().zip(&slots) {
            let period = period(charge.policy, &after[slot]);
            self.note_usage(&names[slot], period, charge.cost.get(), 0);
        }
        self.keep_all(names, &slots, after, charges);
    }

    /// Does what was decided, to be settled later.
    pub(super) fn apply_reserved(
        &mut self,
        decided: Decided,
        charges: &[Charge<'_>],
        numbers: &[u32],
        (expires_at, elsewhere): (Timestamp, Option<Elsewhere>),
    ) {
        let Decided { names, slots, newer, before, after, id, at, .. } = decided;
        let charges = &Charge::each_under(charges, &newer);
        let held = Held::by_all(charges, &slots, &before, id, at);
        let mut parts = Vec::with_capacity(charges.len());
        for (((charge, &slot), held), &number) in charges.iter().zip(&slots).zip(held).zip(numbers)
        {
            let period = period(charge.policy, &after[slot]);
            self.note_usage(&names[slot], period, charge.cost.get(), 0);
            parts.push(ReservedUnits {
                name: names[slot].as_str().into(),
                charge: number,
                algorithm: *charge.policy.algorithm(),
                policy_id: charge.policy.id(),
                held,
                on_expiry: charge.policy.reservation_terms().on_expiry,
                period,
            });
        }
        self.keep_all(names, &slots, after, charges);
        let open = OpenReservation { expires_at, elsewhere, parts };
        let name = reservation_name(id);
        let row = write_reservation(&name, &open);
        self.changes.rows.push((CountTable::Reservations, name, Some(row)));
        self.restore_reservation(id, open);
    }

    /// Whether there is room for one more reservation.
    pub(super) fn admit_reservation(&mut self, now: Timestamp) -> Result<(), NoRoom> {
        self.advance(now);
        if self.open.len() < RESERVATIONS_MAX { Ok(()) } else { Err(NoRoom::Reservations) }
    }

    /// What there is to report of a key, with nothing taken.
    pub(super) fn peek(&mut self, charge: &Charge<'_>, now: Timestamp) -> Snapshot {
        let at = self.advance(now);
        let newer = self.newer_policy(charge, at);
        let policy = newer.as_ref().unwrap_or(charge.policy);
        let name = state_name(policy.name(), charge.key.as_bytes());
        self.state(&name, policy, at).peek(policy.algorithm(), at).told_at(now, at)
    }

    /// Gives units back; what is left then.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, now: Timestamp) -> Snapshot {
        let at = self.advance(now);
        let newer = self.newer_policy(charge, at);
        let policy = newer.as_ref().unwrap_or(charge.policy);
        let algorithm = policy.algorithm();
        let name = state_name(policy.name(), charge.key.as_bytes());
        if self.entries.contains_key(&name) {
            let mut state = self.state(&name, policy, at);
            let period = period(policy, &state).filter(|period| at < period.end);
            state.refund(algorithm, charge.cost.get(), None, at);
            self.note_usage(&name, period, 0, charge.cost.get());
            self.keep(name, Entry { algorithm: *algorithm, policy_id: policy.id(), state });
        }
        self.peek(charge, now)
    }

    /// Forgets what a key has taken of its quota. What it used stays used.
    pub(super) fn reset(&mut self, charge: &Charge<'_>, now: Timestamp) {
        let at = self.advance(now);
        let newer = self.newer_policy(charge, at);
        let policy = newer.as_ref().unwrap_or(charge.policy);
        let algorithm = policy.algorithm();
        let name = state_name(policy.name(), charge.key.as_bytes());
        if self.entries.contains_key(&name) {
            let mut state = self.state(&name, policy, at);
            state.clear(algorithm, at);
            self.keep(name, Entry { algorithm: *algorithm, policy_id: policy.id(), state });
        }
    }

    /// Settles a reservation at its real costs, one for each charge of its request; costs left out
    /// are as reserved. `None` if it is not open; otherwise what was reserved elsewhere.
    pub(super) fn settle(
        &mut self,
        id: u128,
        cost: impl Fn(u32) -> Option<u64>,
        now: Timestamp,
    ) -> Option<Option<Elsewhere>> {
        let at = self.advance(now);
        let open = self.close(id)?;
        for part in &open.parts {
            self.settle_part(part, cost(part.charge).unwrap_or(part.held.cost.get()), at);
        }
        Some(open.elsewhere)
    }

    /// The time as of which an operation is decided; settles what has expired by then.
    pub(super) fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.last = self.last.max(now);
        while let Some(&(expires_at, id)) = self.by_expiry.first()
            && expires_at <= self.last
        {
            // What was reserved elsewhere expires there.
            let Some(open) = self.close(id) else { break };
            for part in open.parts.iter().filter(|part| part.on_expiry == OnExpiry::Return) {
                self.settle_part(part, 0, self.last);
            }
        }
        self.last
    }

    fn close(&mut self, id: u128) -> Option<OpenReservation> {
        let open = self.open.remove(&id)?;
        self.by_expiry.remove(&(open.expires_at, id));
        self.changes.rows.push((CountTable::Reservations, reservation_name(id), None));
        Some(open)
    }

    /// Brings a part from what was reserved to what it really cost: its usage in the window in
    /// which it was reserved, its state under the numbers by which its key is kept now.
    fn settle_part(&mut self, part: &ReservedUnits, cost: u64, at: Timestamp) {
        let reserved = part.held.cost.get();
        let (more, less) = (cost.saturating_sub(reserved), reserved.saturating_sub(cost));
        self.note_usage(&part.name, part.period, more, less);
        let known = self.entries.get(&*part.name).cloned();
        let entry = known.or_else(|| {
            let state = State::vacant(&part.algorithm);
            let vacant = Entry { algorithm: part.algorithm, policy_id: part.policy_id, state };
            (more > 0).then_some(vacant)
        });
        let Some(mut entry) = entry else { return };
        match entry.policy_id == part.policy_id {
            true => entry.state.settle(&entry.algorithm, &part.held, cost, at),
            false => entry.state.settle_carried(&entry.algorithm, &part.held, cost, at),
        }
        self.keep(part.name.to_string(), entry);
    }

    /// The state under the numbers of `policy`.
    fn state(&self, name: &str, policy: &Policy, at: Timestamp) -> State {
        let algorithm = policy.algorithm();
        let Some(entry) = self.entries.get(name) else { return State::vacant(algorithm) };
        if entry.algorithm == *algorithm {
            return entry.state.clone();
        }
        entry.state.carry(&entry.algorithm, algorithm, policy.change_rule(), at)
    }

    /// The policy that decides a charge, if its key is kept under newer numbers than it asks by.
    fn newer_policy(&self, charge: &Charge<'_>, at: Timestamp) -> Option<Policy> {
        let policy = charge.policy;
        let in_force = self.in_force.get(&policy.name_id())?;
        if in_force.contains(&policy.id()) {
            return None;
        }
        let entry = self.entries.get(&state_name(policy.name(), charge.key.as_bytes()))?;
        let keeps = in_force.contains(&entry.policy_id)
            && entry.state.keeps_its_numbers(&entry.algorithm, policy.algorithm(), at);
        keeps.then(|| policy.with_numbers(entry.algorithm))
    }

    fn keep_all(
        &mut self,
        names: Vec<String>,
        slots: &[usize],
        after: Vec<State>,
        charges: &[Charge<'_>],
    ) {
        for (slot, (name, state)) in names.into_iter().zip(after).enumerate() {
            let asked = slots.iter().position(|of| *of == slot).unwrap_or(0);
            let policy = charges[asked].policy;
            let (algorithm, policy_id) = (*policy.algorithm(), policy.id());
            self.keep(name, Entry { algorithm, policy_id, state });
        }
    }

    fn keep(&mut self, name: String, entry: Entry) {
        let row = write_entry(&name, &entry);
        self.changes.rows.push((CountTable::States, name.clone(), Some(row)));
        self.put(name, entry);
    }

    fn put(&mut self, name: String, entry: Entry) {
        let bytes = name.len() + ENTRY_BYTES;
        if self.entries.insert(name, entry).is_none() {
            self.bytes += bytes;
        }
    }

    fn note_usage(&mut self, name: &str, period: Option<Period>, taken: u64, given_back: u64) {
        if let Some(period) = period.filter(|_| taken > 0 || given_back > 0) {
            let name = usage_name(name, period.start);
            self.changes.usage.push(UsageChange { name, period, taken, given_back });
        }
    }

    /// Whether there is room for the key, or it is here already.
    fn admit(&mut self, name: &str, at: Timestamp) -> Result<(), NoRoom> {
        if self.entries.contains_key(name) {
            return Ok(());
        }
        let fits = |ledger: &Self| ledger.bytes + name.len() + ENTRY_BYTES <= ledger.bytes_max;
        self.sweep(SWEPT_PER_NEWCOMER, at);
        if !fits(self) {
            self.sweep(SWEPT_WHEN_FULL, at);
        }
        if fits(self) { Ok(()) } else { Err(NoRoom::Keys) }
    }

    /// Looks at the next keys, and forgets those that say nothing any more.
    fn sweep(&mut self, most: usize, at: Timestamp) {
        let from = Bound::Excluded(self.swept_up_to.as_str());
        let seen = self.entries.range::<str, _>((from, Bound::Unbounded)).take(most);
        let (mut last, mut vacant) = (None, Vec::new());
        for (name, entry) in seen {
            last = Some(name);
            if entry.state.vacant_at(&entry.algorithm) <= at {
                vacant.push(name.clone());
            }
        }
        self.swept_up_to = last.cloned().unwrap_or_default();
        for name in vacant {
            self.entries.remove(&name);
            self.bytes -= name.len() + ENTRY_BYTES;
            self.changes.rows.push((CountTable::States, name, None));
        }
    }
}

/// The window that a state is in, if its policy has windows.
fn period(policy: &Policy, state: &State) -> Option<Period> {
    let (start, end) = match (policy.algorithm(), state) {
        (Algorithm::FixedWindow(window), State::FixedWindow(state)) => {
            let start = Timestamp::from_nanos(state.to_words()[0]);
            (start, start.after(window.quota().period()))
        }
        (Algorithm::CalendarWindow(_), State::CalendarWindow(state)) => {
            let window = state.window()?;
            (window.start, window.end)
        }
        _ => return None,
    };
    let kept_until = end.after(policy.durable_for().unwrap_or_default());
    Some(Period { start, end, kept_until })
}
