//! The table: slots up to a fixed number, found by fingerprint, reused on sight, never swept.
//!
//! ```text
//!   tag  ->  home bucket   | slot | slot | slot | slot |   one cache line, or two
//!            next bucket   | slot | slot | slot | slot |   ... up to PROBES buckets in all
//!   beside[bucket]: how many buckets past this home a key has ever been put; whose each slot is
//! ```
//!
//! All address space is reserved when the table is made: that is the hard bound. It is used as keys
//! come: a part of it that doubles (`growth.rs`), a few keys being moved by each newcomer, so there
//! is no pause. A slot whose state says nothing any more (`vacant_at` has passed) is taken by the
//! next newcomer that sees it, so there is nothing to sweep.
//!
//! **Time.** A state in a slot never moves back, so who comes late (his reading of the clock is
//! older than what others have done since) gains nothing. What is gone cannot say so: therefore the
//! table knows the newest reading at which a slot was taken from its key, and a newcomer whose own
//! reading is older is decided as of that one. Otherwise a key whose slot was reused could begin
//! anew in the past, and spend the time in between twice.
//!
//! When no slot within reach is free, somebody near gives way: `room.rs` says who. Within one
//! policy that is the key nearest to saying nothing, but not a key that has nothing left; if all of
//! them have nothing left, [`WhenFull`] decides.
//!
//! **Locks.** A newcomer is inserted under the lock of its home (one of a few stripes), so that no
//! key is ever in two slots. Slots are locked one at a time, or, for several charges, in order of
//! their index, after the stripes of all their homes. Nobody waits for a stripe with a slot of the
//! same table locked.

mod fill;
mod find;
mod growth;
mod locked_slots;
mod marks;
mod room;

use std::sync::PoisonError;
use std::sync::atomic::AtomicU8 as StdAtomicU8;

use tollway_core::Timestamp;

use crate::capacity::{Pressure, WhenFull};
use crate::hash::Fingerprint;
use crate::numbers::Newcomer;
use crate::owners::Owners;
#[cfg(not(tollway_loom))]
use crate::pages::{Pages, Zeroable};
use crate::slot::{Content, Narrow, Slot, View};
use crate::sync::{AtomicU8, AtomicU64, Ordering, StripeLock, fence, prefetch};

use growth::{BASE, Moving, TableSizes};
pub(crate) use locked_slots::{FEW, LockedSlots};

pub(crate) struct Table<S> {
    buckets: Buckets<S>,
    beside: Zeros<Beside>,
    /// Buckets in use at first, and how many times as many are now, less one.
    base: usize,
    mask: AtomicU64,
    mask_max: u64,
    /// Stripes with keys that are not yet where they are at home under the mask.
    lagging: AtomicU64,
    stripes: Box<[Stripe]>,
    owners: Owners,
    when_full: WhenFull,
    /// The newest reading of the clock at which a slot was taken from a key.
    newest_reuse_ns: AtomicU64,
}

/// What is known of a bucket beside its slots: nothing that the shortest way reads.
#[derive(Default)]
struct Beside {
    /// How many buckets past this home a key has ever been put.
    reach: AtomicU8,
    /// Whose each slot is ([`Owners::number`]); written with the slot locked.
    owners: [StdAtomicU8; SLOTS],
}

#[repr(align(64))]
struct Bucket<S>([S; SLOTS]);

impl<S: Slot> Bucket<S> {
    /// The slot with this tag. All tags are compared before any branch: which slot it is cannot be
    /// predicted, that it is one of them can, and so the processor goes on while memory is slow.
    #[inline]
    fn find(&self, tag: u64) -> Option<&S> {
        let mut found = 0u32;
        for (position, slot) in self.0.iter().enumerate() {
            found |= u32::from(slot.tag() == tag) << position;
        }
        (found != 0).then(|| &self.0[found.trailing_zeros() as usize % SLOTS])
    }
}

/// One lock for the newcomers of many homes, on a cache line of its own.
#[repr(align(64))]
struct Stripe {
    lock: StripeLock<Moving>,
    used: AtomicU64,
}

#[cfg(not(tollway_loom))]
const SLOTS: usize = 4;
#[cfg(tollway_loom)]
const SLOTS: usize = 1;
/// Of thirty million random keys in tables three quarters full, eight in a million found no slot in
/// 32 buckets, and none needed more than 51.
#[cfg(not(tollway_loom))]
const PROBES: usize = 64;
#[cfg(tollway_loom)]
const PROBES: usize = 2;
#[cfg(not(tollway_loom))]
const STRIPES: usize = 64;
#[cfg(tollway_loom)]
const STRIPES: usize = 1;

/// What a change to a slot comes to: an answer, and what to write, if anything.
pub(crate) struct Change<R> {
    pub(crate) answer: R,
    pub(crate) content: Option<Content>,
}

/// No slot was to be had; the first comes free then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) free_at: Timestamp,
}

/// Why a key has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// There is none to be had.
    Full(Full),
    /// It is kept under other numbers, or may be.
    Elsewhere,
}

impl From<Full> for Miss {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl<S: Slot> Table<S> {
    /// A table of about `slots` slots: no more than a bucket above, or one in a hundred below.
    pub(crate) fn new(slots: usize, when_full: WhenFull) -> Self {
        Self::with_base(slots, BASE, when_full)
    }

    /// As [`Self::new`], with at most `base_max` buckets in use at first.
    fn with_base(slots: usize, base_max: usize, when_full: WhenFull) -> Self {
        let TableSizes { base, mask_max, len } =
            TableSizes::new(slots.div_ceil(SLOTS).max(1), base_max);
        let stripe =
            || Stripe { lock: StripeLock::new(Moving::default()), used: AtomicU64::new(0) };
        Self {
            buckets: zeroes(len),
            beside: zeroes(len),
            base,
            mask: AtomicU64::new(0),
            mask_max,
            lagging: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            owners: Owners::new(),
            when_full,
            newest_reuse_ns: AtomicU64::new(0),
        }
    }

    /// Bytes taken by a table of `slots` slots.
    pub(crate) const fn bytes(slots: usize) -> usize {
        let buckets = slots.div_ceil(SLOTS);
        buckets * (size_of::<Bucket<S>>() + size_of::<Beside>()) + STRIPES * size_of::<Stripe>()
    }

    /// Brings the home of a key closer while something else is done.
    #[inline]
    pub(crate) fn prefetch(&self, home: usize) {
        let bucket = &self.buckets[home];
        prefetch(&bucket.0[0]);
        if size_of::<Bucket<S>>() > 64 {
            prefetch(&bucket.0[SLOTS / 2]);
        }
        // Where most are that found their home full.
        if let Some(next) = self.buckets.get(home + 1) {
            prefetch(&next.0[0]);
        }
    }

    /// The words of a key, if it has any.
    pub(crate) fn read(&self, fingerprint: Fingerprint) -> Option<[u64; 2]> {
        let is_settled = self.is_settled();
        let words = self.look(fingerprint);
        if words.is_some() || is_settled {
            return words;
        }
        let stripe = self.stripe(self.home(fingerprint)).lock.lock();
        let _unmoved = stripe.unwrap_or_else(PoisonError::into_inner);
        self.look(fingerprint)
    }

    /// As [`Self::read`], but misses a key that is moved meanwhile.
    fn look(&self, fingerprint: Fingerprint) -> Option<[u64; 2]> {
        loop {
            let view = self.find(fingerprint.tag, self.home(fingerprint))?.read();
            if view.tag == fingerprint.tag {
                return Some(view.words);
            }
        }
    }

    /// Changes the words of a key, which are zero if there is no such key. `change` is told as of
    /// when: `now`, or later for a newcomer that comes late. It may be called several times; the
    /// last call counts. If it writes nothing then nothing is written.
    #[inline]
    pub(crate) fn update<R>(
        &self,
        fingerprint: Fingerprint,
        now: Timestamp,
        change: impl FnMut([u64; 2], Timestamp) -> Change<R>,
    ) -> Result<R, Full> {
        let anybody = || (fingerprint, None);
        let updated = self.update_unless_elsewhere(fingerprint.tag, anybody, now, change);
        updated.map_err(|miss| match miss {
            Miss::Full(full) => full,
            Miss::Elsewhere => unreachable!("nobody asked for a look at other numbers"),
        })
    }

    /// As [`Self::update`], but no key begins here that is kept under other numbers. `newcomer`
    /// says who would begin, and whether that is to be looked at; who is known pays for neither.
    #[inline]
    pub(crate) fn update_unless_elsewhere<'n, R>(
        &self,
        tag: u64,
        newcomer: impl Fn() -> (Fingerprint, Option<Newcomer<'n>>),
        now: Timestamp,
        mut change: impl FnMut([u64; 2], Timestamp) -> Change<R>,
    ) -> Result<R, Miss> {
        loop {
            let Some(slot) = self.find_or_help(tag, now) else {
                match self.try_insert(&newcomer, now, &mut change)? {
                    Some(answer) => return Ok(answer),
                    None => continue,
                }
            };
            let view = slot.read();
            // Taken from the key between the search and the reading: another key's words would be
            // changed.
            if view.tag != tag {
                continue;
            }
            let Change { answer, content } = change(view.words, now);
            let Some(content) = content else { return Ok(answer) };
            // Somebody else was first: what was decided on the old words does not hold for the new.
            if slot.try_write(view, tag, content) {
                return Ok(answer);
            }
        }
    }

    /// Every key with its slot, as it is now: what [`Self::restore`] of a table of any size takes.
    /// A key that is changed meanwhile may be seen twice, and then the second view is the newer.
    pub(crate) fn views(&self) -> impl Iterator<Item = (Fingerprint, View)> + '_ {
        // Keys are moved up only: who is not yet seen is still ahead, if the end moves up as well.
        let buckets = (0..self.buckets.len()).take_while(|bucket| *bucket < self.in_use());
        let slots = buckets.flat_map(|bucket| &self.buckets[bucket].0).map(S::read).enumerate();
        let owner = |index| self.owners.id(self.owner_of(index));
        slots.filter(|(_, view)| view.tag != 0).map(move |(index, view)| {
            (Fingerprint { tag: view.tag, mark: 0, owner: owner(index) }, view)
        })
    }

    /// Puts a key in, in place of what is known of it. Under pressure, at `now`, it is a newcomer
    /// like any other.
    pub(crate) fn restore(
        &self,
        fingerprint: Fingerprint,
        content: Content,
        now: Timestamp,
    ) -> Result<(), Full> {
        self.update(fingerprint, now, |_, _| Change { answer: (), content: Some(content) })
    }

    pub(crate) fn pressure(&self) -> Pressure {
        // A key may be counted in one stripe and leave from another: only the sum says something.
        let used = self.stripes.iter().map(|stripe| stripe.used.load(Ordering::Relaxed));
        let used = used.fold(0, u64::wrapping_add).cast_signed().max(0).cast_unsigned();
        Pressure { used, ..self.owners.pressure_of_all() }
    }

    /// Counts anew what pressure costs.
    pub(crate) fn start_over(&self) {
        self.owners.start_over();
    }

    /// What pressure has cost one owner; how many slots it uses is not counted.
    pub(crate) fn pressure_of(&self, owner: u64) -> Pressure {
        self.owners.pressure(self.owners.number(owner))
    }

    /// Puts a newcomer into a slot; `None` if another thread was faster and all is to be looked at
    /// again.
    #[cold]
    #[inline(never)]
    fn try_insert<'n, R>(
        &self,
        newcomer: &impl Fn() -> (Fingerprint, Option<Newcomer<'n>>),
        now: Timestamp,
        change: &mut impl FnMut([u64; 2], Timestamp) -> Change<R>,
    ) -> Result<Option<R>, Miss> {
        let (fingerprint, newcomer) = newcomer();
        let stripe = self.stripe(self.home(fingerprint)).lock.lock();
        let mut moving = stripe.unwrap_or_else(PoisonError::into_inner);
        // Only now: under the lock it is known how far the keys of this stripe have been moved.
        let home = self.home(fingerprint);
        if self.find(fingerprint.tag, home).is_some() {
            return Ok(None);
        }
        if newcomer.is_some_and(|newcomer| self.is_elsewhere(fingerprint, newcomer)) {
            return Err(Miss::Elsewhere);
        }
        let at = self.newcomer_at(now);
        let Change { answer, content } = change([0; 2], at);
        let Some(content) = content else { return Ok(Some(answer)) };
        self.tend(home, &mut moving, now);
        let home = self.home(fingerprint);
        let owner = self.owners.number(fingerprint.owner);
        let (index, view) = match self.free_slot(home, at, |_| false) {
            Some(free) => free,
            // Before anybody is pushed out: room that is not in use yet costs no key its state.
            None if self.grow() => return Ok(None),
            None => self.take_over(home, owner, at, |_| false)?,
        };
        // Before the key can be seen there: who looks for it must look far enough.
        self.extend_reach(home, index);
        let slot = self.slot(index);
        if !slot.try_lock(view) {
            return Ok(None);
        }
        self.note_claim(home, index, view, owner, at);
        slot.write_locked(view, fingerprint.tag, content);
        Ok(Some(answer))
    }

    /// As of when a key is decided that was looked for and not found: its slot may have been taken
    /// from it after its caller had read the clock.
    pub(crate) fn newcomer_at(&self, now: Timestamp) -> Timestamp {
        // Who saw another key in the slot sees when it came there.
        fence(Ordering::Acquire);
        now.max(Timestamp::from_nanos(self.newest_reuse_ns.load(Ordering::Relaxed)))
    }

    fn extend_reach(&self, home: usize, index: usize) {
        // Never lowered: who looks for a key meanwhile would stop short of it, and the key would be
        // put in twice, with a full quota.
        let probe = (index / SLOTS + self.buckets.len() - home) % self.buckets.len();
        self.beside[home].reach.fetch_max(probe as u8, Ordering::Relaxed);
    }

    /// Notes whose a locked slot is from now on, and what became of whom was seen there.
    fn note_claim(&self, home: usize, index: usize, view: View, owner: u8, at: Timestamp) {
        if view.tag == 0 {
            self.stripe(home).used.fetch_add(1, Ordering::Relaxed);
        } else {
            self.note_gone(index, view, at);
        }
        self.beside[index / SLOTS].owners[index % SLOTS].store(owner, Ordering::Relaxed);
    }

    /// Notes that a locked slot is about to be taken from the key that was seen there. Before it
    /// is: who misses the key then must know how late it is.
    fn note_gone(&self, index: usize, view: View, at: Timestamp) {
        self.newest_reuse_ns.fetch_max(at.as_nanos(), Ordering::Relaxed);
        fence(Ordering::Release);
        if view.vacant_at > at {
            self.owners.note_forgotten(self.owner_of(index));
        }
    }

    /// The slot that a newcomer takes: a free one, or else one that somebody gives up.
    fn victim(
        &self,
        home: usize,
        owner: u8,
        at: Timestamp,
        taken: impl Fn(usize) -> bool,
    ) -> Result<(usize, View), Full> {
        let free = self.free_slot(home, at, &taken);
        free.map_or_else(|| self.take_over(home, owner, at, taken), Ok)
    }

    /// In the first bucket that has one, a slot never used or else one that says nothing: its key
    /// may come back and save itself an insertion.
    fn free_slot(
        &self,
        home: usize,
        at: Timestamp,
        taken: impl Fn(usize) -> bool,
    ) -> Option<(usize, View)> {
        for probe in 0..PROBES.min(self.buckets.len()) {
            let bucket = self.probed(home, probe);
            let mut vacant = None;
            for (position, slot) in self.buckets[bucket].0.iter().enumerate() {
                let index = bucket * SLOTS + position;
                if taken(index) {
                    continue;
                }
                let view = slot.read();
                if view.tag == 0 {
                    return Some((index, view));
                }
                if view.vacant_at <= at {
                    vacant = vacant.or(Some((index, view)));
                }
            }
            if vacant.is_some() {
                return vacant;
            }
        }
        None
    }

    /// The bucket that is looked at after `probe` others.
    #[inline]
    fn probed(&self, home: usize, probe: usize) -> usize {
        (home + probe) % self.buckets.len()
    }

    fn owner_of(&self, index: usize) -> u8 {
        self.beside[index / SLOTS].owners[index % SLOTS].load(Ordering::Relaxed)
    }

    fn slot(&self, index: usize) -> &S {
        &self.buckets[index / SLOTS].0[index % SLOTS]
    }

    fn index(&self, slot: &S) -> usize {
        let bytes = core::ptr::from_ref(slot).addr() - self.buckets.as_ptr().addr();
        let (bucket, within) = (bytes / size_of::<Bucket<S>>(), bytes % size_of::<Bucket<S>>());
        bucket * SLOTS + within / size_of::<S>()
    }

    fn stripe(&self, home: usize) -> &Stripe {
        &self.stripes[home % self.stripes.len()]
    }
}

impl Table<Narrow> {
    /// Moves the moment of a key that is where it is to be; `None` if it is not, or not
    /// undisturbed.
    #[inline(always)]
    pub(crate) fn move_on<R>(
        &self,
        tag: u64,
        home: usize,
        decide: impl FnOnce(u64) -> (R, u64, bool),
    ) -> Option<R> {
        self.find_here(tag, home)?.move_on(tag, decide)
    }
}

type Buckets<S> = Zeros<Bucket<S>>;

// SAFETY: made of atomic integers, for which all bits zero is a value.
#[cfg(not(tollway_loom))]
unsafe impl Zeroable for Beside {}
// SAFETY: an array of slots, for which all bits zero is a value.
#[cfg(not(tollway_loom))]
unsafe impl<S: Zeroable> Zeroable for Bucket<S> {}

#[cfg(not(tollway_loom))]
type Zeros<T> = Pages<T>;
#[cfg(not(tollway_loom))]
fn zeroes<T: Zeroable>(len: usize) -> Zeros<T> {
    Pages::zeroed(len)
}

#[cfg(tollway_loom)]
type Zeros<T> = Box<[T]>;
#[cfg(tollway_loom)]
fn zeroes<T: Default>(len: usize) -> Zeros<T> {
    (0..len).map(|_| T::default()).collect()
}
#[cfg(tollway_loom)]
impl<S: Slot> Default for Bucket<S> {
    fn default() -> Self {
        Self(core::array::from_fn(|_| S::default()))
    }
}

#[cfg(all(test, tollway_loom))]
mod loom_tests;
#[cfg(all(test, not(tollway_loom)))]
mod tests;
