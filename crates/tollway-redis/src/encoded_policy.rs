//! A policy as scripts take it: its kind, its constants, and what its values mean.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use tollway_core::civil::Window;
use tollway_core::gcra::Gcra;
use tollway_core::{Algorithm, Policy, State, Timestamp};

use crate::numbers::Mark;
use crate::packed_bytes::put_double;
use crate::script_numbers::{Amount, amount, pair, units};
use crate::state_value::{self, Return, constants};

/// A policy, and what a script must be told of it.
#[derive(Debug)]
pub(crate) struct EncodedPolicy {
    pub(crate) policy: Policy,
    /// The number of the algorithm, as the scripts count them.
    pub(crate) kind: u8,
    /// The constants that are the same at any time; see [`Self::constants_at`].
    pub(crate) constants: Vec<u8>,
    /// Names its numbers in values.
    mark: Mark,
    /// See [`Mark::believing`].
    believes: bool,
    made: Instant,
    /// When its numbers were noted in the store: seconds after it was made, and one; 0 if never.
    noted_s: AtomicU64,
    is_mixed: AtomicBool,
    /// Held by whoever notes the numbers first: the others wait for that.
    pub(crate) noting: tokio::sync::Mutex<()>,
    /// How often a window was found that was opened by other rules of its time zone.
    by_other_rules: AtomicU64,
}

/// How urgently numbers are to be noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing may be kept under them before that.
    First,
    /// So that they are not forgotten while they are in use.
    Again,
}

/// For how long they need not be noted again.
const NOTED_FOR_S: u64 = 60;

/// The encoded forms of policies seen before.
#[derive(Debug, Default)]
pub(crate) struct EncodedPolicies(RwLock<HashMap<(u64, Mark), Arc<EncodedPolicy>>>);

/// The kind whose states share ledgers.
pub(crate) const GCRA: u8 = 1;

/// The most that are kept; more are worked out each time.
const KNOWN_MAX: usize = 4_096;

impl EncodedPolicies {
    /// The encoded form of `policy`.
    pub(crate) fn of(&self, policy: &Policy) -> Arc<EncodedPolicy> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // The identity alone does not tell: one whose numbers come with the call is one policy.
        let key = (policy.id(), Mark::of(policy));
        if let Some(encoded) = known.get(&key)
            && encoded.policy.change_rule() == policy.change_rule()
        {
            return Arc::clone(encoded);
        }
        drop(known);
        let encoded = Arc::new(EncodedPolicy::new(policy));
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < KNOWN_MAX || known.contains_key(&key) {
            known.insert(key, Arc::clone(&encoded));
        }
        encoded
    }

    /// How often a window was found that was opened by other rules of its time zone.
    pub(crate) fn windows_by_other_rules(&self) -> u64 {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|encoded| encoded.by_other_rules.load(Ordering::Relaxed)).sum()
    }
}

impl EncodedPolicy {
    pub(crate) fn new(policy: &Policy) -> Self {
        let believes = matches!(policy.algorithm(), Algorithm::Gcra(gcra) if gcra.is_per_call());
        Self::with(policy, believes)
    }

    fn with(policy: &Policy, believes: bool) -> Self {
        let (kind, numbers) = constants(policy.algorithm(), believes);
        let mark = Mark::of(policy);
        let mut constants = Vec::with_capacity(numbers.len() * size_of::<f64>());
        numbers.iter().for_each(|number| put_double(&mut constants, *number));
        Self {
            policy: policy.clone(),
            kind,
            constants,
            mark: if believes { mark.believing() } else { mark },
            believes,
            made: Instant::now(),
            noted_s: AtomicU64::new(0),
            is_mixed: AtomicBool::new(false),
            noting: tokio::sync::Mutex::default(),
            by_other_rules: AtomicU64::new(0),
        }
    }

    /// The same numbers in their other form, if they have one: see [`Mark::believing`].
    pub(crate) fn twin(&self) -> Option<Self> {
        let twin = match self.algorithm() {
            Algorithm::Gcra(gcra) if self.believes => self.under(Gcra::new(gcra.quota()).into()),
            Algorithm::Gcra(gcra) => self.under(Gcra::per_call(gcra.quota()).into()),
            Algorithm::Concurrency(_) => Self::with(&self.policy, !self.believes),
            _ => return None,
        };
        if self.is_mixed() {
            twin.now_mixed();
        }
        Some(twin)
    }

    /// Whether a state may be further in the future than the numbers allow for.
    pub(crate) const fn believes(&self) -> bool {
        self.believes
    }

    /// The same policy under other numbers.
    pub(crate) fn under(&self, algorithm: Algorithm) -> Self {
        let policy = Policy::new(self.policy.name(), algorithm).map(|policy| {
            policy
                .on_change(self.policy.change_rule())
                .on_store_error(self.policy.store_error())
                .reservations(self.policy.reservation_terms())
        });
        Self::new(&policy.unwrap_or_else(|_| self.policy.clone()))
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

    /// The units that [`Self::amount`] was given.
    pub(crate) fn units(&self, amount: Amount) -> u64 {
        units(self.algorithm(), amount)
    }

    /// Whether its states are in ledgers, with those of the same key under other policies.
    pub(crate) const fn is_in_ledger(&self) -> bool {
        self.kind == GCRA
    }

    /// What a value in the store says; `None` if it is not of this policy's making.
    pub(crate) fn parse(&self, value: &[u8]) -> Option<(State, Vec<Return>)> {
        if value.is_empty() {
            return Some((State::vacant(self.algorithm()), Vec::new()));
        }
        if state_value::head(value)? != self.head() {
            return None;
        }
        let (state, returns) = state_value::parse(self.algorithm(), value)?;
        self.note_other_rules(&state);
        Some((state, returns))
    }

    /// What its values begin with.
    pub(crate) const fn head(&self) -> (u8, Mark) {
        (self.kind, self.mark)
    }

    /// What names its states in ledgers beside their family, and in the script's answers.
    pub(crate) fn id(&self, family: [u8; 5]) -> [u8; 8] {
        let ([a, b, c, d, e], [f, g, h]) = (family, self.mark.0);
        [a, b, c, d, e, f, g, h]
    }

    /// What is to be noted, if it has not been noted lately. Of those who ask in a while one is
    /// told so, and sees to it.
    pub(crate) fn needs_note(&self) -> Option<Need> {
        let now_s = self.made.elapsed().as_secs() + 1;
        match self.noted_s.load(Ordering::Acquire) {
            0 => Some(Need::First),
            noted_s if now_s < noted_s + NOTED_FOR_S => None,
            noted_s => {
                let swapped = self.noted_s.compare_exchange(
                    noted_s,
                    now_s,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                swapped.is_ok().then_some(Need::Again)
            }
        }
    }

    /// The numbers have been noted; `is_mixed` says whether its family has others whose states are
    /// in keys of the other sort.
    pub(crate) fn noted(&self, is_mixed: bool) {
        self.is_mixed.store(is_mixed, Ordering::Release);
        self.noted_s.store(self.made.elapsed().as_secs() + 1, Ordering::Release);
    }

    /// They could not be noted: to be tried again soon. Until then there may be anything.
    pub(crate) fn not_noted(&self) {
        let now_s = self.made.elapsed().as_secs() + 1;
        self.is_mixed.store(true, Ordering::Release);
        self.noted_s.store((now_s + 1).saturating_sub(NOTED_FOR_S).max(1), Ordering::Release);
    }

    /// Whether states of its family may be in keys of the other sort; as long as its own numbers
    /// are not noted, nobody knows.
    pub(crate) fn may_be_mixed(&self) -> bool {
        self.is_mixed() || self.noted_s.load(Ordering::Acquire) == 0
    }

    /// Whether there are states of its family in keys of the other sort.
    pub(crate) fn is_mixed(&self) -> bool {
        self.is_mixed.load(Ordering::Acquire)
    }

    /// A state of the other sort was found.
    pub(crate) fn now_mixed(&self) {
        self.is_mixed.store(true, Ordering::Release);
    }
}
