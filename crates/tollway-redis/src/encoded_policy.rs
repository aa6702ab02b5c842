//! A policy as scripts take it: its kind, its constants, and what its values mean.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tollway_core::calendar_window;
use tollway_core::civil::Window;
use tollway_core::concurrency::{self, Hold};
use tollway_core::fixed_window::{self, Anchor};
use tollway_core::gcra::{self, Gcra};
use tollway_core::leaky_bucket;
use tollway_core::sliding_window::{self, Cell, SlidingWindow};
use tollway_core::{Algorithm, Policy, SKEW, State, Timestamp};

use crate::packed_bytes::{Reader, put_double};
use crate::script_numbers::{Amount, Scale, UNITS_MAX, amount, gcd, moment, nanos, pair, units};

/// A policy, and what a script must be told of it.
#[derive(Debug)]
pub(crate) struct EncodedPolicy {
    pub(crate) policy: Policy,
    /// The number of the algorithm, as the scripts count them.
    pub(crate) kind: u8,
    /// The constants that are the same at any time; see [`Self::constants_at`].
    pub(crate) constants: Vec<u8>,
    /// How often a window was found that was opened by other rules of its time zone.
    by_other_rules: AtomicU64,
}

/// The encoded forms of policies seen before.
#[derive(Debug, Default)]
pub(crate) struct EncodedPolicies(RwLock<HashMap<u64, Arc<EncodedPolicy>>>);

/// The kind whose states share ledgers.
pub(crate) const GCRA: u8 = 1;

/// The most that are kept; more are worked out each time.
const KNOWN_MAX: usize = 4_096;

impl EncodedPolicies {
    /// The encoded form of `policy`.
    pub(crate) fn of(&self, policy: &Policy) -> Arc<EncodedPolicy> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // The identity alone does not tell: one whose numbers come with the call is one policy.
        if let Some(encoded) = known.get(&policy.id())
            && encoded.algorithm() == policy.algorithm()
        {
            return Arc::clone(encoded);
        }
        drop(known);
        let encoded = Arc::new(EncodedPolicy::new(policy));
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < KNOWN_MAX || known.contains_key(&policy.id()) {
            known.insert(policy.id(), Arc::clone(&encoded));
        }
        encoded
    }

    /// How often a window was found that was opened by other rules of its time zone.
    pub(crate) fn windows_by_other_rules(&self) -> u64 {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|encoded| encoded.by_other_rules.load(Ordering::Relaxed)).sum()
    }
}

/// Units of an open reservation that come back if nobody settles it in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) id: u128,
    pub(crate) units: u64,
    pub(crate) expires_at: Timestamp,
    pub(crate) taken_at: Timestamp,
}

impl EncodedPolicy {
    pub(crate) fn new(policy: &Policy) -> Self {
        let (kind, numbers) = constants(policy.algorithm());
        let mut constants = Vec::with_capacity(numbers.len() * size_of::<f64>());
        numbers.iter().for_each(|number| put_double(&mut constants, *number));
        Self { policy: policy.clone(), kind, constants, by_other_rules: AtomicU64::new(0) }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        self.policy.algorithm()
    }

    /// The constants, as the second argument of a script has them. Those of a calendar window are
    /// for `moment` and the windows around it.
    pub(crate) fn constants_at(&self, moment: Timestamp) -> Cow<'_, [u8]> {
        let Algorithm::CalendarWindow(window) = self.algorithm() else {
            return Cow::Borrowed(&self.constants);
        };
        let mut constants = self.constants.clone();
        for edge in window.calendar().edges_around(moment) {
            put_double(&mut constants, pair(edge.as_nanos())[0]);
        }
        Cow::Owned(constants)
    }

    /// Notes a window that was opened by a process with other rules for the zone of its calendar:
    /// by those here it ends at another moment.
    fn note_other_rules(&self, state: &State) {
        if let (Algorithm::CalendarWindow(own), State::CalendarWindow(state)) =
            (self.algorithm(), state)
            && let Some(Window { start, end }) = state.window()
            && own.calendar().window_at(start).end != end
        {
            self.by_other_rules.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `units` as a script adds them.
    pub(crate) fn amount(&self, units: u64) -> Amount {
        amount(self.algorithm(), units)
    }

    /// Whether its states share a ledger with those of the same key under other policies.
    pub(crate) const fn shares(&self) -> bool {
        self.kind == GCRA
    }

    /// What a value in the store says; `None` if it is not of this policy's making.
    pub(crate) fn parse(&self, value: &[u8]) -> Option<(State, Vec<Return>)> {
        if value.is_empty() {
            return Some((State::vacant(self.algorithm()), Vec::new()));
        }
        let mut reader = Reader::new(value);
        if reader.byte()? != self.kind {
            return None;
        }
        let state = parse_state(self.algorithm(), &mut reader)?;
        self.note_other_rules(&state);
        let mut returns = Vec::new();
        while !reader.is_empty() {
            returns.push(self.parse_return(&mut reader)?);
        }
        Some((state, returns))
    }

    fn parse_return(&self, reader: &mut Reader<'_>) -> Option<Return> {
        let id = reader.id()?;
        let limbs = [reader.number(7)?, reader.number(2)?, reader.number(7)?];
        let expires_at = parse_moment(reader)?;
        let taken_at = parse_moment(reader)?;
        Some(Return { id, units: units(self.algorithm(), limbs), expires_at, taken_at })
    }
}

/// The kind of an algorithm and its constants, in the order that its script names them.
fn constants(algorithm: &Algorithm) -> (u8, Vec<u64>) {
    match algorithm {
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            let mut constants = amount(algorithm, quota.burst()).to_vec();
            constants.push(Scale::of(quota).ticks);
            constants.push(believed_us(gcra));
            (1, constants)
        }
        Algorithm::LeakyBucket(bucket) => {
            let [us, ns] = pair(nanos(bucket.interval()));
            (2, vec![bucket.size(), bucket.drip_size(), us, ns])
        }
        Algorithm::FixedWindow(window) => {
            let [us, ns] = pair(nanos(window.quota().period()));
            let anchor = u64::from(window.anchor() == Anchor::FirstRequest);
            (3, vec![window.quota().units(), us, ns, anchor])
        }
        Algorithm::SlidingWindow(window) => {
            let period_ns = nanos(window.period());
            let common = gcd(period_ns, window.buckets());
            let ([us, ns], [whole_us, whole_ns]) = (pair(period_ns), pair(period_ns / common));
            (4, vec![window.limit(), us, ns, window.buckets() / common, whole_us, whole_ns])
        }
        Algorithm::Concurrency(limit) => {
            let [us, ns] = pair(nanos(limit.lease()));
            (5, vec![limit.limit(), us, ns])
        }
        Algorithm::CalendarWindow(window) => {
            (6, vec![window.units(), window.carry(), window.grace()])
        }
        // No script knows a tree of owners: its buckets are of other kinds, and another service
        // that is the store takes the policy's name.
        Algorithm::Shares(_) => (0, Vec::new()),
        _ => unreachable_kind(),
    }
}

/// How far beyond what the bucket holds an arrival time is believed.
pub(crate) const fn believed_us(gcra: &Gcra) -> u64 {
    if gcra.is_per_call() { UNITS_MAX } else { SKEW.as_micros() as u64 }
}

/// The core has six algorithms; another one comes with its script.
fn unreachable_kind() -> ! {
    unreachable!("every algorithm of the core has a script")
}

fn parse_state(algorithm: &Algorithm, reader: &mut Reader<'_>) -> Option<State> {
    Some(match algorithm {
        Algorithm::Gcra(gcra) => State::Gcra(parse_gcra(gcra, reader)?),
        Algorithm::LeakyBucket(_) => {
            let level = reader.number(7)?;
            State::LeakyBucket(leaky_bucket::State::new(level, parse_moment(reader)?))
        }
        Algorithm::FixedWindow(_) => {
            let start = parse_moment(reader)?.as_nanos();
            State::FixedWindow(fixed_window::State::from_words([start, reader.number(7)?]))
        }
        Algorithm::SlidingWindow(window) => State::SlidingWindow(parse_cells(window, reader)?),
        Algorithm::Concurrency(_) => State::Concurrency(parse_holds(reader)?),
        Algorithm::CalendarWindow(_) => {
            let [start, end] = [moment(reader.number(7)?, 0), moment(reader.number(7)?, 0)];
            let words = [start.as_nanos(), end.as_nanos(), reader.number(7)?];
            State::CalendarWindow(calendar_window::State::from_words(words))
        }
        _ => unreachable_kind(),
    })
}

fn parse_gcra(gcra: &Gcra, reader: &mut Reader<'_>) -> Option<gcra::State> {
    let limbs = [reader.number(7)?, reader.number(2)?, reader.number(7)?];
    let tat = Scale::of(gcra.quota()).ticks_of(limbs);
    Some(gcra::State::from_words([tat as u64, (tat >> 64) as u64]))
}

fn parse_cells(window: &SlidingWindow, reader: &mut Reader<'_>) -> Option<sliding_window::State> {
    let (buckets, period_ns) = (u128::from(window.buckets()), window.period().as_nanos());
    let count = reader.number(4)?;
    let cells = (0..count).map(|_| {
        let start_ns = u128::from(parse_moment(reader)?.as_nanos());
        // A cell is named by the first nanosecond of its tick, which lies in that tick.
        let tick = start_ns * buckets / period_ns;
        Some(Cell { tick: u64::try_from(tick).ok()?, units: reader.number(7)? })
    });
    Some(sliding_window::State::from_cells(cells.collect::<Option<Vec<_>>>()?))
}

fn parse_holds(reader: &mut Reader<'_>) -> Option<concurrency::State> {
    let count = reader.number(4)?;
    let holds = (0..count).map(|_| {
        let (id, units) = (reader.id()?, reader.number(7)?);
        Some(Hold { id, units, expires_at: parse_moment(reader)? })
    });
    Some(concurrency::State::from_holds(holds.collect::<Option<Vec<_>>>()?))
}

pub(crate) fn parse_moment(reader: &mut Reader<'_>) -> Option<Timestamp> {
    let micros = reader.number(7)?;
    Some(moment(micros, reader.number(2)?))
}
