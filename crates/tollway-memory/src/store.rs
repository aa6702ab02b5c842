//! The store: decides charges on states in memory, synchronously and without failing.

mod answers;
mod carry;
mod changed_numbers;
mod dump;
mod fill;
mod narrow_charges;
mod request;
mod reserve;
mod shares;

use std::sync::Mutex;

use tollway_core::gcra::{Gcra, Word};
use tollway_core::{
    Algorithm, Charge, Clock, Cost, Decision, Grant, Mode, Retry, Snapshot, State, Timestamp,
    Verdict,
};

use crate::capacity::{Capacity, slots};
use crate::hash::{Fingerprint, Seed, siphash};
use crate::numbers::{Asked, Lineage, Newcomer, Numbers};
use crate::packed::{self, Layout};
use crate::reservations::Reservations;
use crate::slot::{Double, Narrow};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Change, Full, Miss, Table};
use crate::variable_states::VariableStates;

use changed_numbers::{LOCKS, Refused};
pub use dump::{DumpError, DumpErrorKind, DumpFile};
pub use fill::Fill;

/// States in memory.
///
/// ```
/// use tollway_core::{Charge, Key, Policy, Timestamp};
/// use tollway_memory::{Capacity, MemoryStore};
///
/// let store = MemoryStore::new(Capacity::keys(1_000));
/// let per_user = Policy::parse("per-user", "2/1m")?;
/// let everyone = Policy::parse("everyone", "1000/1s")?;
/// let request = [
///     Charge::new(&per_user, Key::new("alice")?),
///     Charge::new(&everyone, Key::new("*")?),
/// ];
/// let now = Timestamp::from_millis(1_000);
/// assert!(store.check_all(&request, now).is_allowed());
/// assert!(store.check_all(&request, now).is_allowed());
/// let verdict = store.check_all(&request, now);
/// assert_eq!(verdict.denied_by(), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStore {
    seed: Seed,
    narrow: Table<Narrow>,
    double: Table<Double>,
    variable: VariableStates,
    reservations: Reservations,
    /// Makes the names of reservations and permits: fresh for every store, a restored one too.
    naming: [u64; 2],
    named: AtomicU64,
    capacity: Capacity,
    /// When the file was written from which this was restored.
    written_at: Option<Timestamp>,
    /// Keys of the snapshot for which there was no room.
    dropped: u64,
    /// Held while a state is carried from one table to another.
    carrying: Mutex<()>,
    numbers: Numbers,
    /// Held by who carries a key to other numbers, until his question is answered.
    carried: [Mutex<()>; LOCKS],
    /// Held while a dump is made and put in place: of two at once the older must not come last.
    dumping: Mutex<()>,
}

/// Charges whose homes are fetched together: enough to hide one memory latency behind the others.
const BATCH: usize = 32;

impl MemoryStore {
    /// An empty store.
    ///
    /// # Panics
    ///
    /// If the system has no address space for the capacity.
    pub fn new(capacity: Capacity) -> Self {
        Self::with_seed(capacity, Seed::random())
    }

    fn with_seed(capacity: Capacity, seed: Seed) -> Self {
        Self {
            seed,
            narrow: Table::new(slots(capacity.keys), capacity.when_full),
            double: Table::new(slots(capacity.wide_keys), capacity.when_full),
            variable: VariableStates::new(capacity.variable_bytes, capacity.when_full),
            reservations: Reservations::new(capacity.reservations),
            naming: Seed::random().words,
            named: AtomicU64::new(0),
            capacity,
            written_at: None,
            dropped: 0,
            carrying: Mutex::default(),
            numbers: Numbers::new(),
            carried: [const { Mutex::new(()) }; LOCKS],
            dumping: Mutex::default(),
        }
    }

    /// What the store may hold.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Takes the charge if it is allowed.
    #[inline]
    pub fn check(&self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        self.settle_expired(now);
        let tag = self.tag(charge);
        self.check_at(tag, self.narrow.home_of(tag), charge, now)
    }

    /// As [`Self::check`], but reads the clock while the state is on its way from memory.
    #[inline(always)]
    pub(crate) fn check_by(&self, charge: &Charge<'_>, clock: &dyn Clock) -> Decision {
        let tag = self.tag(charge);
        let home = self.narrow.home_of(tag);
        // Of no use to other algorithms than the commonest, and no harm.
        self.narrow.prefetch(home);
        let now = clock.now();
        self.settle_expired(now);
        self.check_at(tag, home, charge, now)
    }

    /// Takes each charge that is allowed, independently of the others, and appends the decisions to
    /// `out` in order: many requests at once, with their memory latencies overlapped.
    pub fn check_batch(&self, charges: &[Charge<'_>], now: Timestamp, out: &mut Vec<Decision>) {
        self.settle_expired(now);
        out.reserve(charges.len());
        let mut found = [(0, 0); BATCH];
        for chunk in charges.chunks(BATCH) {
            for (charge, (tag, home)) in chunk.iter().zip(&mut found) {
                *tag = self.tag(charge);
                *home = self.narrow.home_of(*tag);
                self.prefetch(*tag, *home, charge.policy.algorithm(), now);
            }
            for (charge, &(tag, home)) in chunk.iter().zip(&found) {
                // One push for each way: a decision is written where it stays, and not copied
                // there.
                match self.move_on(tag, home, charge, now) {
                    Some((gcra, word)) => out.push(gcra.report(word)),
                    None => out.push(self.check_any(tag, charge, now)),
                }
            }
        }
    }

    /// Takes every charge if all are allowed, or none.
    pub fn check_all(&self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        match charges {
            [charge] if !shares::is_shared(charge) => Verdict::one(self.check(charge, now)),
            charges => self.check_several(charges, now),
        }
    }

    /// Apart from a single charge, whose way is short and must not pay for this one's.
    #[inline(never)]
    fn check_several(&self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        self.settle_expired(now);
        let taken = self.take_known(charges, now);
        taken.unwrap_or_else(|| self.request(charges, self.hold_id(charges), now))
    }

    /// What [`Self::check_all`] would answer, with nothing taken.
    pub fn peek_all(&self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        self.settle_expired(now);
        self.peek_request(charges, now)
    }

    /// What there is to report about a key, with nothing taken.
    pub fn peek(&self, charge: &Charge<'_>, now: Timestamp) -> Snapshot {
        self.settle_expired(now);
        if shares::is_shared(charge) {
            return self.peek_request(core::slice::from_ref(charge), now).decisions()[0].snapshot();
        }
        let (state, algorithm, _) = self.state(&self.asked(charge), now);
        state.peek(&algorithm, now)
    }

    /// Takes as many units as there are, up to the cost of the charge.
    pub fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Grant {
        self.settle_expired(now);
        if shares::is_shared(charge) {
            return self.take_shared(charge, now);
        }
        let algorithm = charge.policy.algorithm();
        let hold_id = self.hold_id(core::slice::from_ref(charge));
        let taken = self.change(self.asked(charge), now, |state, at| {
            let remaining = state.peek(algorithm, at).remaining();
            let cost = Grant::affordable(charge.cost, remaining);
            Grant::new(state.charge(&charge.cost(cost), hold_id, at).told_at(now, at), cost)
        });
        match taken {
            Ok(grant) => grant,
            Err(Refused::Full(full)) => Grant::new(refuse(algorithm, full, now), Cost::ONE),
            Err(Refused::Older) => {
                let one = core::slice::from_ref(charge);
                self.under_newer(one, now, |charges| self.take(&charges[0], now))
            }
        }
    }

    /// Gives the charge's units back; what is left then.
    pub fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Snapshot {
        self.settle_expired(now);
        if shares::is_shared(charge) {
            return self.refund_shared(charge, now);
        }
        let (asked, units) = (self.asked(charge), charge.cost.get());
        self.amend(&asked, now, |algorithm, state, at| state.refund(algorithm, units, None, at));
        let (state, algorithm, _) = self.state(&asked, now);
        state.peek(&algorithm, now)
    }

    /// Forgets what the charge's key has taken under its policy.
    pub fn reset(&self, charge: &Charge<'_>, now: Timestamp) {
        // First, or what has expired would be given back to a key that has taken nothing.
        self.settle_expired(now);
        if shares::is_shared(charge) {
            return self.reset_shared(charge, now);
        }
        self.amend(&self.asked(charge), now, |algorithm, state, at| state.clear(algorithm, at));
    }

    // Always inlined: called, it would cost the shortest way a tenth of its instructions.
    #[inline(always)]
    fn tag(&self, charge: &Charge<'_>) -> u64 {
        let Charge { policy, key, .. } = charge;
        self.seed.tag(policy.family_id(), key.as_bytes(), || policy.numbers_mark())
    }

    fn fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        Self::fingerprint_of(self.tag(charge), charge)
    }

    /// Apart from the tag, which is all that the shortest way needs.
    #[inline]
    fn fingerprint_of(tag: u64, charge: &Charge<'_>) -> Fingerprint {
        Fingerprint { tag, mark: charge.policy.numbers_mark(), owner: charge.policy.name_id() }
    }

    #[inline]
    fn asked<'a>(&self, charge: &Charge<'a>) -> Asked<'a> {
        Self::asked_at(self.fingerprint(charge), charge)
    }

    #[inline]
    fn asked_at<'a>(fingerprint: Fingerprint, charge: &Charge<'a>) -> Asked<'a> {
        let lineage = Lineage::of(charge.policy);
        Asked { fingerprint, algorithm: charge.policy.algorithm(), lineage }
    }

    #[inline]
    fn prefetch(&self, tag: u64, home: usize, algorithm: &Algorithm, now: Timestamp) {
        match Layout::of(algorithm, now) {
            Layout::Narrow => self.narrow.prefetch(home),
            Layout::Double => self.double.prefetch(self.double.home_of(tag)),
            Layout::Variable => {}
        }
    }

    #[inline(always)]
    fn check_at(&self, tag: u64, home: usize, charge: &Charge<'_>, now: Timestamp) -> Decision {
        match self.move_on(tag, home, charge, now) {
            Some((gcra, word)) => gcra.report(word),
            None => self.check_any(tag, charge, now),
        }
    }

    /// The shortest way, for what is asked most; `None` if it does not lead there.
    #[inline(always)]
    fn move_on<'a>(
        &self,
        tag: u64,
        home: usize,
        charge: &Charge<'a>,
        now: Timestamp,
    ) -> Option<(&'a Gcra, Word)> {
        let Algorithm::Gcra(gcra) = charge.policy.algorithm() else { return None };
        if now >= gcra.word_until() || charge.mode != Mode::Enforce {
            return None;
        }
        let decided = self.narrow.move_on(tag, home, |moment| {
            let word = gcra.decide_word(moment, charge.cost, now);
            (word, word.tat_ns(), gcra.is_spent(word))
        });
        decided.map(|word| (gcra, word))
    }

    /// Any charge, on any state, wherever it is.
    #[inline(never)]
    fn check_any(&self, tag: u64, charge: &Charge<'_>, now: Timestamp) -> Decision {
        let fingerprint = || Self::fingerprint_of(tag, charge);
        let decide = |words, at| {
            let (decision, content) = packed::charge(charge, words, at);
            Change { answer: decision.told_at(now, at), content }
        };
        let newcomer = || {
            let asked = Self::asked_at(fingerprint(), charge);
            (asked.fingerprint, Some(Newcomer::new(&self.numbers, &asked, false)))
        };
        let algorithm = charge.policy.algorithm();
        let decided = match self.layout(fingerprint, algorithm, now) {
            Layout::Narrow => self.narrow.update_unless_elsewhere(tag, newcomer, now, decide),
            Layout::Double => self.double.update_unless_elsewhere(tag, newcomer, now, decide),
            Layout::Variable if shares::is_shared(charge) => {
                return self.request(core::slice::from_ref(charge), 0, now).decisions()[0];
            }
            Layout::Variable => {
                let hold_id = self.hold_id(core::slice::from_ref(charge));
                let decide =
                    |state: &mut State, at| state.charge(charge, hold_id, at).told_at(now, at);
                self.variable.change(fingerprint(), || newcomer().1, algorithm, now, decide)
            }
        };
        match decided {
            Ok(decision) => decision,
            Err(Miss::Full(full)) => refuse(algorithm, full, now),
            Err(Miss::Elsewhere) => self.check_elsewhere(fingerprint(), charge, now),
        }
    }

    /// A charge on a key that is, or may be, kept under other numbers.
    #[cold]
    #[inline(never)]
    fn check_elsewhere(
        &self,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Decision {
        let hold_id = self.hold_id(core::slice::from_ref(charge));
        let asked = Self::asked_at(fingerprint, charge);
        let decide = |state: &mut State, at| state.charge(charge, hold_id, at).told_at(now, at);
        match self.change(asked, now, decide) {
            Ok(decision) => decision,
            Err(Refused::Full(full)) => refuse(charge.policy.algorithm(), full, now),
            Err(Refused::Older) => {
                let one = core::slice::from_ref(charge);
                self.under_newer(one, now, |charges| self.check(&charges[0], now))
            }
        }
    }

    /// Changes one state of any algorithm. `change` is told as of when: `now`, or later where a key
    /// is not known any more and its caller comes late.
    fn change<R>(
        &self,
        asked: Asked<'_>,
        now: Timestamp,
        mut change: impl FnMut(&mut State, Timestamp) -> R,
    ) -> Result<R, Refused> {
        self.ask(asked, now, |newcomer| self.change_here(&asked, Some(newcomer), now, &mut change))
    }

    /// Changes one state under the numbers that it is asked under.
    fn change_here<R>(
        &self,
        asked: &Asked<'_>,
        newcomer: Option<Newcomer<'_>>,
        now: Timestamp,
        change: &mut impl FnMut(&mut State, Timestamp) -> R,
    ) -> Result<R, Miss> {
        let Asked { fingerprint, algorithm, .. } = *asked;
        let layout = self.layout(|| fingerprint, algorithm, now);
        if layout == Layout::Variable {
            return self.variable.change(fingerprint, || newcomer, algorithm, now, change);
        }
        let (tag, newcomer) = (fingerprint.tag, || (fingerprint, newcomer));
        let change = |words, at| {
            let mut state = packed::unpack(algorithm, words);
            let answer = change(&mut state, at);
            let after = packed::pack(&state);
            // A state that says nothing may still be ahead of a reading that comes late.
            let moment = state.moment(algorithm, at);
            let snapshot = || state.peek(algorithm, moment);
            let content = (after != words).then(|| packed::content(after, snapshot(), moment));
            Change { answer, content }
        };
        match layout {
            Layout::Narrow => self.narrow.update_unless_elsewhere(tag, newcomer, now, change),
            _ => self.double.update_unless_elsewhere(tag, newcomer, now, change),
        }
    }

    /// Changes one state in a way that takes nothing: there is nothing to change for an absent key,
    /// and a full store is no obstacle. A key that is kept under other numbers is changed under
    /// those: `change` is told which.
    fn amend(
        &self,
        asked: &Asked<'_>,
        now: Timestamp,
        mut change: impl FnMut(&Algorithm, &mut State, Timestamp),
    ) {
        if !self.amend_here(asked, now, &mut change) {
            self.change_elsewhere(asked, |fingerprint, algorithm| {
                let asked = Asked { fingerprint, algorithm, ..*asked };
                self.amend_here(&asked, now, &mut change);
            });
        }
    }

    /// As [`Self::amend`], under these numbers alone; whether the key is kept under them.
    fn amend_here(
        &self,
        asked: &Asked<'_>,
        now: Timestamp,
        change: &mut impl FnMut(&Algorithm, &mut State, Timestamp),
    ) -> bool {
        let Asked { fingerprint, algorithm, .. } = *asked;
        let mut change = |state: &mut State, at| change(algorithm, state, at);
        let is_known = match self.layout(|| fingerprint, algorithm, now) {
            Layout::Narrow => self.narrow.read(fingerprint).is_some(),
            Layout::Double => self.double.read(fingerprint).is_some(),
            Layout::Variable => {
                return self.variable.amend(fingerprint, algorithm, now, change);
            }
        };
        // Full only if the key has just been forgotten by itself.
        is_known && self.change_here(asked, None, now, &mut change).is_ok()
    }

    /// The state as it is, under which numbers it would be decided, and as of when.
    fn state(&self, asked: &Asked<'_>, now: Timestamp) -> (State, Algorithm, Timestamp) {
        let (here, at) = self.state_here(asked.fingerprint, asked.algorithm, now);
        let here = here.map(|state| (state, *asked.algorithm));
        let known = here.or_else(|| self.state_elsewhere(asked, now));
        let (state, algorithm) =
            known.unwrap_or_else(|| (State::vacant(asked.algorithm), *asked.algorithm));
        (state, algorithm, at)
    }

    /// The state as it is kept under these numbers, if it is.
    fn state_here(
        &self,
        fingerprint: Fingerprint,
        algorithm: &Algorithm,
        now: Timestamp,
    ) -> (Option<State>, Timestamp) {
        let (words, newcomer_at) = match self.layout(|| fingerprint, algorithm, now) {
            Layout::Narrow => (self.narrow.read(fingerprint), self.narrow.newcomer_at(now)),
            Layout::Double => (self.double.read(fingerprint), self.double.newcomer_at(now)),
            Layout::Variable => return self.variable.read(fingerprint, now),
        };
        let at = if words.is_some() { now } else { newcomer_at };
        (words.map(|words| packed::unpack(algorithm, words)), at)
    }

    /// A name for what a request holds; only permits need one.
    fn hold_id(&self, charges: &[Charge<'_>]) -> u128 {
        let holds =
            |charge: &Charge<'_>| matches!(charge.policy.algorithm(), Algorithm::Concurrency(_));
        if charges.iter().any(holds) { self.new_id() } else { 0 }
    }

    /// A name that was not given before and cannot be guessed.
    fn new_id(&self) -> u128 {
        let count = self.named.fetch_add(1, Ordering::Relaxed);
        let [low, high] = siphash(self.naming, count, b"reservation");
        u128::from(low) | u128::from(high) << 64
    }
}

impl core::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MemoryStore").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// The denial of a newcomer for which there is no room.
#[cold]
fn refuse(algorithm: &Algorithm, full: Full, now: Timestamp) -> Decision {
    let snapshot = State::vacant(algorithm).peek(algorithm, now);
    let nothing =
        Snapshot::new(snapshot.limit(), 0, snapshot.reset_after(), full.free_at.since(now));
    let wait = full.free_at.since(now).max(core::time::Duration::from_nanos(1));
    Decision::Deny { snapshot: nothing, retry: Retry::After(wait) }
}
