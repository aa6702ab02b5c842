//! The table: a fixed number of slots, found by fingerprint, reused on sight, never grown or swept.
//!
//! ```text
//!   place -> home bucket   | slot | slot | slot | slot |   one cache line, or two
//!            next bucket   | slot | slot | slot | slot |   ... up to PROBES buckets in all
//!   reach[home]: how many buckets past its home a key has ever been put
//! ```
//!
//! All memory is allocated when the table is made: that is the hard bound, and why there is no
//! growth, no rehashing and no pause. A slot whose state says nothing any more (`vacant_at` has
//! passed) is taken by the next newcomer that sees it, so there is nothing to sweep.
//!
//! **Time.** A state in a slot never moves back, so who comes late (his reading of the clock is older
//! than what others have done since) gains nothing. What is gone cannot say so: therefore the table
//! knows the newest reading at which a slot was taken from its key, and a newcomer whose own reading
//! is older is decided as of that one. Otherwise a key whose slot was reused could begin anew in the
//! past, and spend the time in between twice.
//!
//! When no slot within reach is free, the key nearest to saying nothing is forgotten, but not a key
//! that has nothing left; if all of them have nothing left, [`WhenFull`] decides.
//!
//! **Locks.** A newcomer is inserted under the lock of its home (one of a few stripes), so that no
//! key is ever in two slots. Slots are locked one at a time, or, for several charges, in order of
//! their index, after the stripes of all their homes. Nobody waits for a stripe with a slot of the
//! same table locked.

mod together;

use std::sync::PoisonError;

use tollgate_core::Timestamp;

use crate::hash::Fingerprint;
#[cfg(not(tollgate_loom))]
use crate::pages::{Pages, Zeroable};
use crate::slot::{Content, Locked, Narrow, Slot, View};
use crate::sync::{AtomicU8, AtomicU64, Ordering, StripeLock, fence, prefetch};

pub(crate) use together::{FEW, LockedSlots};

/// What to do with a newcomer when every key near it is being limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Deny it until the first of them is free again: no key is forgiven early.
    #[default]
    Deny,
    /// Forget the one nearest to being free: no newcomer is turned away.
    Forget,
}

/// How the table is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Slots that hold or have held a key.
    pub used: u64,
    /// Keys that were forgotten before their time.
    pub forgotten: u64,
    /// Newcomers denied because every key near them was being limited.
    pub refused: u64,
}

pub(crate) struct Table<S> {
    buckets: Buckets<S>,
    reach: Box<[AtomicU8]>,
    stripes: Box<[Stripe]>,
    when_full: WhenFull,
    /// The newest reading of the clock at which a slot was taken from a key.
    newest_reuse_ns: AtomicU64,
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
    lock: StripeLock<()>,
    used: AtomicU64,
    forgotten: AtomicU64,
    refused: AtomicU64,
}

impl Stripe {
    /// Counts a newcomer that took a slot in place of what was seen there.
    fn note_claim(&self, view: View, at: Timestamp) {
        if view.tag == 0 {
            self.used.fetch_add(1, Ordering::Relaxed);
        } else if view.vacant_at > at {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(not(tollgate_loom))]
const SLOTS: usize = 4;
#[cfg(tollgate_loom)]
const SLOTS: usize = 1;
const PROBES: usize = 32;
#[cfg(not(tollgate_loom))]
const STRIPES: usize = 64;
#[cfg(tollgate_loom)]
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

impl<S: Slot> Table<S> {
    /// A table of at least `slots` slots.
    pub(crate) fn new(slots: usize, when_full: WhenFull) -> Self {
        let buckets = slots.div_ceil(SLOTS).max(1);
        let stripe = || Stripe {
            lock: StripeLock::new(()),
            used: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        Self {
            buckets: zeroed(buckets),
            reach: (0..buckets).map(|_| AtomicU8::new(0)).collect(),
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            when_full,
            newest_reuse_ns: AtomicU64::new(0),
        }
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Bytes taken by a table of `slots` slots.
    pub(crate) const fn bytes(slots: usize) -> usize {
        let buckets = slots.div_ceil(SLOTS);
        buckets * (size_of::<Bucket<S>>() + size_of::<AtomicU8>()) + STRIPES * size_of::<Stripe>()
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
        let home = self.home(fingerprint);
        loop {
            let view = self.find(fingerprint, home)?.read();
            if view.tag == fingerprint.tag {
                return Some(view.words);
            }
        }
    }

    /// Changes the words of a key, which are zero if there is no such key. `change` is told as of
    /// when: `now`, or later for a newcomer that comes late. It may be called several times; the last
    /// call counts. If it writes nothing then nothing is written.
    #[inline]
    pub(crate) fn update<R>(
        &self,
        fingerprint: Fingerprint,
        now: Timestamp,
        mut change: impl FnMut([u64; 2], Timestamp) -> Change<R>,
    ) -> Result<R, Full> {
        let home = self.home(fingerprint);
        loop {
            let Some(slot) = self.find(fingerprint, home) else {
                match self.try_insert(fingerprint, home, now, &mut change)? {
                    Some(answer) => return Ok(answer),
                    None => continue,
                }
            };
            let view = slot.read();
            if view.tag != fingerprint.tag {
                continue;
            }
            let Change { answer, content } = change(view.words, now);
            let Some(content) = content else { return Ok(answer) };
            if slot.try_write(view, fingerprint.tag, content) {
                return Ok(answer);
            }
        }
    }

    /// Every slot with its index, as it is now.
    pub(crate) fn views(&self) -> impl Iterator<Item = (usize, View)> + '_ {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.0).map(S::read);
        slots.enumerate().filter(|(_, view)| view.tag != 0)
    }

    /// Puts a slot back where [`Self::views`] found it. Keys are found up to the full reach then.
    pub(crate) fn restore(&self, index: usize, tag: u64, content: Content) {
        self.stripes[0].used.fetch_add(1, Ordering::Relaxed);
        Locked::new(self.slot(index)).write(tag, content);
        for back in 0..PROBES.min(self.buckets.len()) {
            let home = (index / SLOTS + self.buckets.len() - back) % self.buckets.len();
            self.reach[home].fetch_max(back as u8, Ordering::Relaxed);
        }
    }

    pub(crate) fn pressure(&self) -> Pressure {
        let sum = |count: fn(&Stripe) -> &AtomicU64| {
            self.stripes.iter().map(|stripe| count(stripe).load(Ordering::Relaxed)).sum()
        };
        Pressure {
            used: sum(|stripe| &stripe.used),
            forgotten: sum(|stripe| &stripe.forgotten),
            refused: sum(|stripe| &stripe.refused),
        }
    }

    /// The bucket in which a key is looked for first.
    #[inline]
    pub(crate) fn home(&self, fingerprint: Fingerprint) -> usize {
        ((u128::from(fingerprint.place) * self.buckets.len() as u128) >> 64) as usize
    }

    #[inline(always)]
    fn find(&self, fingerprint: Fingerprint, home: usize) -> Option<&S> {
        let bucket = &self.buckets[home];
        if let Some(slot) = bucket.find(fingerprint.tag) {
            return Some(slot);
        }
        self.find_beyond(fingerprint, home)
    }

    #[inline(never)]
    fn find_beyond(&self, fingerprint: Fingerprint, home: usize) -> Option<&S> {
        let reach = usize::from(self.reach[home].load(Ordering::Relaxed));
        let bucket = |probe| &self.buckets[(home + probe) % self.buckets.len()];
        (1..=reach).find_map(|probe| bucket(probe).find(fingerprint.tag))
    }

    /// Puts a newcomer into a slot; `None` if another thread was faster and all is to be looked at
    /// again.
    #[cold]
    #[inline(never)]
    fn try_insert<R>(
        &self,
        fingerprint: Fingerprint,
        home: usize,
        now: Timestamp,
        change: &mut impl FnMut([u64; 2], Timestamp) -> Change<R>,
    ) -> Result<Option<R>, Full> {
        let stripe = self.stripe(home).lock.lock();
        let _inserting = stripe.unwrap_or_else(PoisonError::into_inner);
        if self.find(fingerprint, home).is_some() {
            return Ok(None);
        }
        let at = self.newcomer_at(now);
        let Change { answer, content } = change([0; 2], at);
        let Some(content) = content else { return Ok(Some(answer)) };
        let (index, view) = self.victim(home, at, |_| false)?;
        // Before the key can be seen there: who looks for it must look far enough.
        self.extend_reach(home, index);
        self.note_reuse(view, at);
        if !self.slot(index).try_write(view, fingerprint.tag, content) {
            return Ok(None);
        }
        self.stripe(home).note_claim(view, at);
        Ok(Some(answer))
    }

    /// As of when a key is decided that was looked for and not found: its slot may have been taken
    /// from it after its caller had read the clock.
    pub(crate) fn newcomer_at(&self, now: Timestamp) -> Timestamp {
        // Who saw another key in the slot sees when it came there.
        fence(Ordering::Acquire);
        now.max(Timestamp::from_nanos(self.newest_reuse_ns.load(Ordering::Relaxed)))
    }

    /// Notes that a slot is about to be taken from its key. Before it is: who misses the key then
    /// must know how late it is.
    fn note_reuse(&self, view: View, at: Timestamp) {
        if view.tag != 0 {
            self.newest_reuse_ns.fetch_max(at.as_nanos(), Ordering::Relaxed);
            fence(Ordering::Release);
        }
    }

    fn extend_reach(&self, home: usize, index: usize) {
        let probe = (index / SLOTS + self.buckets.len() - home) % self.buckets.len();
        self.reach[home].fetch_max(probe as u8, Ordering::Relaxed);
    }

    /// The slot that a newcomer takes: in the first bucket that has one, a slot never used or else
    /// one that says nothing (its key may come back and save itself an insertion); failing that the
    /// one nearest to saying nothing.
    fn victim(
        &self,
        home: usize,
        at: Timestamp,
        taken: impl Fn(usize) -> bool,
    ) -> Result<(usize, View), Full> {
        let mut nearest: Option<(usize, View)> = None;
        let mut free_at = Timestamp::MAX;
        for probe in 0..PROBES.min(self.buckets.len()) {
            let bucket = (home + probe) % self.buckets.len();
            let mut vacant = None;
            for (position, slot) in self.buckets[bucket].0.iter().enumerate() {
                let index = bucket * SLOTS + position;
                if taken(index) {
                    continue;
                }
                let view = slot.read();
                if view.tag == 0 {
                    return Ok((index, view));
                }
                if view.vacant_at <= at {
                    vacant = vacant.or(Some((index, view)));
                    continue;
                }
                free_at = free_at.min(view.vacant_at);
                let spared = view.limited && self.when_full == WhenFull::Deny;
                if !spared && nearest.is_none_or(|(_, best)| sooner(view, best)) {
                    nearest = Some((index, view));
                }
            }
            if let Some(vacant) = vacant {
                return Ok(vacant);
            }
        }
        nearest.ok_or_else(|| {
            self.stripe(home).refused.fetch_add(1, Ordering::Relaxed);
            Full { free_at }
        })
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
    /// Moves the moment of a key that is at home; `None` if it is not, or not undisturbed.
    #[inline(always)]
    pub(crate) fn move_on<R>(
        &self,
        fingerprint: Fingerprint,
        home: usize,
        decide: impl FnOnce(u64) -> (R, u64, bool),
    ) -> Option<R> {
        self.find(fingerprint, home)?.move_on(fingerprint.tag, decide)
    }
}

/// Whether `a` is rather forgotten than `b`.
fn sooner(a: View, b: View) -> bool {
    (a.limited, a.vacant_at) < (b.limited, b.vacant_at)
}

#[cfg(not(tollgate_loom))]
type Buckets<S> = Pages<Bucket<S>>;

#[cfg(not(tollgate_loom))]
fn zeroed<S: Slot>(buckets: usize) -> Buckets<S> {
    Pages::zeroed(buckets)
}

// SAFETY: these slots are made of atomic integers, for which all bits zero is a value.
#[cfg(not(tollgate_loom))]
unsafe impl<S: Slot> Zeroable for Bucket<S> {}

#[cfg(tollgate_loom)]
type Buckets<S> = Box<[Bucket<S>]>;

#[cfg(tollgate_loom)]
fn zeroed<S: Slot>(buckets: usize) -> Buckets<S> {
    (0..buckets).map(|_| Bucket(core::array::from_fn(|_| S::default()))).collect()
}

#[cfg(all(test, tollgate_loom))]
mod loom_tests;
#[cfg(all(test, not(tollgate_loom)))]
mod tests;
