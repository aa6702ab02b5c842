//! The numbers under which states are kept, so that a state can be carried when they change.
//!
//! ```text
//!   tag of a slot  =  hash of family and key  ^  mark of the numbers (24 bits in the middle)
//! ```
//!
//! The mark has no part in where a key is at home: under whatever numbers a key is kept, it is in
//! one place, under one lock, and whoever does not find it under his own numbers sees it there in
//! the same look. What a mark stands for is listed here, once for each set of numbers.
//!
//! **Two tables.** Numbers of one family may need states of different forms, and those are kept in
//! different tables. Such a family is `mixed`: its newcomers are let in under the lock of their key
//! only, after a look at every table. A family becomes mixed before the first state of another form
//! is made, and waits then for newcomers that are under way.
//!
//! **Editions.** Of two sets of numbers the one of the later edition is the newer: who asks under
//! the older one is decided by the newer. Each gets the next edition when it is seen first. Sets
//! that are renewed together have one edition: a key goes from one to another and back. So it does
//! where one of the two is a plan ([`Policy::as_plan`]): plans have [`NO_EDITION`].
//!
//! Bounded: beyond [`SETS_MAX`] sets, states under a set that is not listed start afresh when their
//! numbers change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64 as StdAtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use tollway_core::{Algorithm, OnChange, Policy};

use crate::hash::Fingerprint;
use crate::packed::Layout;
use crate::sync::lock;

/// What a key is asked under.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) algorithm: &'a Algorithm,
    pub(crate) lineage: Lineage,
}

/// Among which numbers a state is carried, and by which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) family: u64,
    pub(crate) rule: OnChange,
    pub(crate) is_plan: bool,
}

impl Lineage {
    #[inline]
    pub(crate) const fn of(policy: &Policy) -> Self {
        Self { family: policy.family_id(), rule: policy.change_rule(), is_plan: policy.is_plan() }
    }
}

/// One set of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) algorithm: Algorithm,
    pub(crate) edition: u64,
}

/// The sets that a store has seen.
pub(crate) struct Numbers {
    sets: RwLock<Sets>,
    /// Sets noted lately, by a hash: a newcomer need not look at the list.
    recent: Box<[StdAtomicU64; RECENT]>,
    /// Families with several sets, and with states of several forms: filters by a few bits of the
    /// family, so that a family is never missed and others are seldom taken for it.
    several: Filter,
    mixed: Filter,
    /// Held while a set is noted, until newcomers that were under way are in.
    noting: Mutex<()>,
}

#[derive(Default)]
struct Sets {
    by_mark: HashMap<(u64, u64), Known>,
    families: HashMap<u64, Family>,
    edition: u64,
}

#[derive(Clone, Copy, Default)]
struct Family {
    sets: u32,
    layouts: u8,
}

/// The most sets of numbers.
pub(crate) const SETS_MAX: usize = 65_536;
/// The edition of plans, of which none is newer than another.
const NO_EDITION: u64 = 0;
const RECENT: usize = 1_024;

impl Numbers {
    pub(crate) fn new() -> Self {
        Self {
            sets: RwLock::default(),
            recent: Box::new(std::array::from_fn(|_| StdAtomicU64::new(0))),
            several: Filter::default(),
            mixed: Filter::default(),
            noting: Mutex::default(),
        }
    }

    /// Notes the numbers of a policy if they are new. `wait_for_newcomers` is called when its
    /// family has become mixed.
    pub(crate) fn note(
        &self,
        Lineage { family, is_plan, .. }: Lineage,
        mark: u64,
        algorithm: &Algorithm,
        layout: Layout,
        wait_for_newcomers: impl FnOnce(),
    ) {
        let _noting = lock(&self.noting);
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = !sets.by_mark.contains_key(&(family, mark));
        if is_new && sets.by_mark.len() < SETS_MAX {
            sets.edition += 1;
            let known = Known { algorithm: *algorithm, edition: sets.edition };
            sets.by_mark.insert((family, mark), known);
        }
        // A file does not say the zone of a calendar: whoever asks does.
        if let Some(known) = sets.by_mark.get_mut(&(family, mark)) {
            known.algorithm = *algorithm;
            if is_plan {
                known.edition = NO_EDITION;
            }
        }
        let of_family = sets.families.entry(family).or_default();
        let was_mixed = of_family.layouts.count_ones() > 1;
        of_family.sets += u32::from(is_new);
        of_family.layouts |= 1 << layout as u8;
        let Family { sets: count, layouts } = *of_family;
        drop(sets);
        // A mixed family is among these, too: newcomers ask by this filter first.
        if count > 1 || layouts.count_ones() > 1 {
            self.several.add(family);
        }
        if layouts.count_ones() > 1 && !was_mixed {
            self.mixed.add(family);
            wait_for_newcomers();
        }
        let hash = Self::hash(family, mark);
        self.recent[hash as usize % RECENT].store(hash, Ordering::Release);
    }

    /// Gives all of these sets one edition, later than any before.
    pub(crate) fn renew(&self, sets_of: impl IntoIterator<Item = (u64, u64)>) {
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        sets.edition += 1;
        let edition = sets.edition;
        for set in sets_of {
            if let Some(known) = sets.by_mark.get_mut(&set) {
                known.edition = edition;
            }
        }
    }

    /// Whether these numbers have been noted; if not in a while, it may say no.
    fn is_noted(&self, family: u64, mark: u64) -> bool {
        let hash = Self::hash(family, mark);
        self.recent[hash as usize % RECENT].load(Ordering::Acquire) == hash
    }

    /// Whether a key that is not kept under these numbers may be kept under others.
    pub(crate) fn may_be_elsewhere(&self, asked: &Asked<'_>) -> bool {
        let Lineage { family, rule, .. } = asked.lineage;
        let has_others =
            || self.several.has(family) || !self.is_noted(family, asked.fingerprint.mark);
        rule != OnChange::Reset && has_others()
    }

    /// The numbers that a mark stands for in a family.
    pub(crate) fn known(&self, family: u64, mark: u64) -> Option<Known> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.by_mark.get(&(family, mark)).copied()
    }

    /// Whether what is asked under is older than this.
    pub(crate) fn is_older(&self, asked: &Asked<'_>, than: Known) -> bool {
        let own = self.known(asked.lineage.family, asked.fingerprint.mark);
        own.is_some_and(|own| own.edition != NO_EDITION && own.edition < than.edition)
    }

    /// Every set: its family, its mark, its numbers and its edition.
    pub(crate) fn all(&self) -> Vec<(u64, u64, Known)> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.by_mark.iter().map(|((family, mark), known)| (*family, *mark, *known)).collect()
    }

    /// Notes a set as it was written to a file.
    pub(crate) fn restore(&self, family: u64, mark: u64, known: Known, layout: Layout) {
        let lineage = Lineage { family, rule: OnChange::AsIs, is_plan: false };
        self.note(lineage, mark, &known.algorithm, layout, || ());
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        sets.edition = sets.edition.max(known.edition);
        if let Some(noted) = sets.by_mark.get_mut(&(family, mark)) {
            noted.edition = known.edition;
        }
    }

    const fn hash(family: u64, mark: u64) -> u64 {
        (family ^ mark).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) | 1
    }
}

/// What a table asks about a key before it lets it begin.
#[derive(Clone, Copy)]
pub(crate) struct Newcomer<'a> {
    numbers: &'a Numbers,
    lineage: Lineage,
    mark: u64,
    /// Whether the caller holds the lock of the key, and has looked everywhere.
    is_alone: bool,
}

impl<'a> Newcomer<'a> {
    #[inline]
    pub(crate) const fn new(numbers: &'a Numbers, asked: &Asked<'_>, is_alone: bool) -> Self {
        Self { numbers, lineage: asked.lineage, mark: asked.fingerprint.mark, is_alone }
    }

    /// Whether it may begin where it is not under other numbers.
    pub(crate) fn may_begin(&self) -> bool {
        let Lineage { family, rule, .. } = self.lineage;
        self.is_alone
            || rule == OnChange::Reset
            || self.numbers.is_noted(family, self.mark) && !self.numbers.mixed.has(family)
    }

    /// Whether it may not begin in a table in which it `is_here` under other numbers, or is not.
    pub(crate) fn is_elsewhere(&self, is_here: impl FnOnce() -> bool) -> bool {
        let Lineage { family, rule, .. } = self.lineage;
        if rule == OnChange::Reset {
            return false;
        }
        let is_unknown = !self.is_alone && !self.numbers.is_noted(family, self.mark);
        // Most families have one set of numbers: they pay for one look at one filter.
        let is_mixed = || !self.is_alone && self.numbers.mixed.has(family);
        is_unknown || self.numbers.several.has(family) && (is_mixed() || is_here())
    }

    /// Whether a key of its family may be kept under this mark.
    pub(crate) fn may_be(&self, mark: u64) -> bool {
        mark != self.mark && self.numbers.known(self.lineage.family, mark).is_some()
    }
}

#[derive(Default)]
struct Filter([StdAtomicU64; 4]);

impl Filter {
    fn add(&self, family: u64) {
        self.0[(family >> 6) as usize % 4].fetch_or(1 << (family % 64), Ordering::AcqRel);
    }

    #[inline]
    fn has(&self, family: u64) -> bool {
        self.0[(family >> 6) as usize % 4].load(Ordering::Acquire) >> (family % 64) & 1 == 1
    }
}
