//! Growth: a table uses no more of its address space than its keys need.
//!
//! ```text
//!   home = r + base · (tag & mask),  r = base · t / 2^20,  t = the highest 20 bits of the tag
//!
//!   mask 0     | base |
//!   mask 1     | base | base |                     a doubling leaves a key where it is,
//!   mask 0b11  | base | base | base | base |       or moves it up by the size before
//! ```
//!
//! Memory is touched up to the size in use and no further, so it follows the most keys that there
//! were at once. A table that is seen to be crowded doubles by changing its mask. Its keys are
//! moved afterwards: every newcomer moves those of a few homes of its own stripe, under the lock
//! that it holds anyway, and so does who charges a key that has not been moved. There is no sweep
//! and no pause, and the next doubling waits until all have been moved.
//!
//! **Lookups.** Until then a key is at its new home or at the one before, and is looked for at
//! both, in this order. A key that is moved between the two looks is missed: therefore a miss
//! counts only under the lock of the key's stripe, without which nobody moves it. That is where
//! newcomers look anyway; a mere reader takes the lock only while the table has not reached its
//! full size.
//!
//! **Moves.** A key is written to its new slot while the old one is locked, and only then is the
//! old one emptied. So who finds the old slot waits and looks again, and no charge is lost. The
//! second lock is only tried: a mover that waited for one slot with another locked could wait in a
//! circle.
//!
//! A table never shrinks: what is gained by giving pages back is lost when the next flood comes,
//! and keys would have to be moved while it does.

use tollway_core::{Policy, Timestamp};

use super::{PROBES, SLOTS, STRIPES, Table};
use crate::slot::{Content, Locked, Slot};
use crate::sync::Ordering;

/// How a table of a given size grows.
pub(super) struct TableSizes {
    /// Buckets in use at first.
    pub(super) base: usize,
    /// The mask of the full size.
    pub(super) mask_max: u64,
    /// All buckets, the last of which are nobody's home.
    pub(super) len: usize,
}

impl TableSizes {
    /// At most `buckets`, of which at most `base_max` are used at first.
    pub(super) fn new(buckets: usize, base_max: usize) -> Self {
        let homes = buckets.saturating_sub(PROBES - 1);
        if homes <= base_max {
            return Self { base: buckets, mask_max: 0, len: buckets };
        }
        let mut doublings = 0;
        while homes >> doublings > base_max {
            doublings += 1;
        }
        // Whole stripes: so a key keeps its stripe wherever it is moved.
        let base = (homes >> doublings) / STRIPES * STRIPES;
        // No home is so near to the end that its keys would begin again at the front: when the
        // table has doubled they would not be found there.
        Self { base, mask_max: (1 << doublings) - 1, len: (base << doublings) + PROBES - 1 }
    }
}

/// How far the homes of one stripe have been moved; under the stripe's lock.
#[derive(Default)]
pub(super) struct Moving {
    /// The mask under which its keys are at home, or will be.
    mask: u64,
    /// The next home that has not been moved.
    next: usize,
    /// Newcomers since the table was last looked over.
    newcomers: usize,
}

/// Buckets that a table uses at first: 1 MiB of narrow slots, 2 MiB of double ones.
pub(super) const BASE: usize = 16_384;
/// The lowest bit above the mark of the numbers, and above the mask of any size.
const MARKED_BELOW: u32 = 64 - Policy::NUMBERS_MARK.leading_zeros();
/// Homes that a newcomer moves: all are moved long before the table is crowded again.
const MOVED: usize = 4;
/// How often a stripe looks whether the table is crowded: eight times while it fills.
const LOOKS: usize = 8;
/// What it looks at: as many buckets in as many places.
const SPOTS: usize = 16;
const SPOT_BUCKETS: usize = 16;
/// From which part of slots on it is crowded.
const CROWDED_PERCENT: usize = 70;

impl<S: Slot> Table<S> {
    /// The home of a key under a mask.
    #[inline]
    pub(super) fn home_under(&self, tag: u64, mask: u64) -> usize {
        // The bits below are the mark of the numbers, which must not say where a key is at home.
        let first = ((tag >> MARKED_BELOW) as usize * self.base) >> (64 - MARKED_BELOW);
        first + self.base * (tag & mask) as usize
    }

    /// Whether no key will ever be moved again.
    pub(super) fn is_settled(&self) -> bool {
        let mask = self.mask.load(Ordering::Acquire);
        mask == self.mask_max && self.lagging.load(Ordering::Acquire) == 0
    }

    /// Buckets that may be in use.
    pub(super) fn in_use(&self) -> usize {
        let homes = self.base * (self.mask.load(Ordering::Acquire) + 1) as usize;
        (homes + PROBES - 1).min(self.buckets.len())
    }

    /// Where a key was at home before the table doubled, if it may still be there.
    pub(super) fn home_before(&self, tag: u64, home: usize) -> Option<usize> {
        // The mask first: whoever changed it had counted the stripes before.
        let mask = self.mask.load(Ordering::Acquire);
        let before = self.home_under(tag, mask >> 1);
        (self.lagging.load(Ordering::Relaxed) > 0 && before != home).then_some(before)
    }

    /// What a newcomer does for the table, with the lock of its stripe held and no slot locked:
    /// moves a few homes, and now and then looks whether the table is crowded.
    pub(super) fn tend(&self, home: usize, moving: &mut Moving, now: Timestamp) {
        if self.is_settled() {
            return;
        }
        self.move_some(home, moving, now);
        moving.newcomers += 1;
        let slots_of_stripe = self.base * (moving.mask + 1) as usize * SLOTS / STRIPES;
        // Where every interleaving is explored, a look over so many slots would never end.
        if moving.newcomers > slots_of_stripe / LOOKS && !cfg!(tollway_loom) {
            moving.newcomers = 0;
            if self.is_crowded(home, now) {
                self.grow();
            }
        }
    }

    /// Doubles the part in use, unless keys are still being moved or there is no more. Whether it
    /// did.
    pub(super) fn grow(&self) -> bool {
        if self.mask.load(Ordering::Acquire) == self.mask_max {
            return false;
        }
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        if self.lagging.compare_exchange(0, STRIPES as u64, success, failure).is_err() {
            return false;
        }
        // Read again: since the first look it may have doubled, and all have been moved.
        let mask = (self.mask.load(Ordering::Acquire) << 1 | 1).min(self.mask_max);
        #[cfg(not(tollway_loom))]
        {
            let homes = self.base * (mask + 1) as usize;
            self.buckets.advise_huge(homes / 2, homes);
            self.beside.advise_huge(homes / 2, homes);
        }
        self.mask.store(mask, Ordering::Release);
        true
    }

    /// Whether so many slots say something that keys are no longer near their homes. Only who says
    /// something counts: others make room for newcomers without growth.
    fn is_crowded(&self, home: usize, now: Timestamp) -> bool {
        let homes = self.base * (self.mask.load(Ordering::Acquire) + 1) as usize;
        let spot = |number: usize| home + number * homes / SPOTS;
        let buckets = (0..SPOTS)
            .flat_map(|number| (0..SPOT_BUCKETS).map(move |next| (spot(number) + next) % homes));
        let slots = buckets.flat_map(|bucket| &self.buckets[bucket].0);
        let saying =
            slots.map(S::read).filter(|view| view.tag != 0 && view.vacant_at > now).count();
        saying * 100 >= SPOTS * SPOT_BUCKETS * SLOTS * CROWDED_PERCENT
    }

    /// Moves the home that a known key had before, with a few others of its stripe: if no newcomers
    /// come any more, its callers would always have to look for it at both. If the stripe is locked
    /// it can wait until the next call.
    pub(super) fn help(&self, tag: u64, now: Timestamp) {
        let home = self.home_of(tag);
        let Ok(mut moving) = self.stripe(home).lock.try_lock() else { return };
        if let Some(before) = self.home_before(tag, home) {
            self.move_some(home, &mut moving, now);
            self.move_home(before, moving.mask, now);
        }
    }

    /// The slot of a key. One that is not where it is to be is moved there on the way, if nobody
    /// else moves keys of its stripe.
    pub(super) fn find_or_help(&self, tag: u64, now: Timestamp) -> Option<&S> {
        let home = self.home_of(tag);
        self.find_here(tag, home).or_else(|| {
            self.find_behind(tag, home)?;
            self.help(tag, now);
            self.find(tag, self.home_of(tag))
        })
    }

    fn move_some(&self, home: usize, moving: &mut Moving, now: Timestamp) {
        let mask = self.mask.load(Ordering::Acquire);
        if moving.mask != mask {
            *moving = Moving { mask, next: home % STRIPES, newcomers: 0 };
        }
        let homes_before =
            if moving.mask == 0 { 0 } else { self.base * (moving.mask >> 1) as usize + self.base };
        if moving.next >= homes_before {
            return;
        }
        for _ in 0..MOVED {
            if moving.next < homes_before {
                self.move_home(moving.next, moving.mask, now);
                moving.next += STRIPES;
            }
        }
        if moving.next >= homes_before {
            self.lagging.fetch_sub(1, Ordering::Release);
        }
    }

    /// Moves the keys of one home to where they are at home under `mask`.
    fn move_home(&self, home: usize, mask: u64, now: Timestamp) {
        let reach = usize::from(self.beside[home].reach.load(Ordering::Relaxed));
        for probe in 0..=reach {
            let first = self.probed(home, probe) * SLOTS;
            for index in first..first + SLOTS {
                while !self.try_move(index, home, mask, now) {}
            }
        }
    }

    /// Moves the key in a slot if it is one of this home's and is to be moved; whether that is
    /// settled.
    fn try_move(&self, index: usize, home: usize, mask: u64, now: Timestamp) -> bool {
        let seen = self.slot(index).read();
        let goes_to = self.home_under(seen.tag, mask);
        let is_ours = seen.tag != 0 && self.home_under(seen.tag, mask >> 1) == home;
        if !is_ours || goes_to == home {
            return true;
        }
        let owner = self.owner_of(index);
        let free = self.victim(goes_to, owner, now, |_| false);
        let from = Locked::new(self.slot(index));
        let view = from.view();
        if view.tag != seen.tag {
            return false;
        }
        if let Ok((to, in_place_of)) = free {
            let slot = self.slot(to);
            self.extend_reach(goes_to, to);
            if !slot.try_lock(in_place_of) {
                return false;
            }
            self.note_claim(goes_to, to, in_place_of, owner, now);
            let content =
                Content { words: view.words, vacant_at: view.vacant_at, limited: view.limited };
            slot.write_locked(in_place_of, view.tag, content);
        } else {
            // Not one of 256 slots at half the load: it is forgotten as under pressure.
            self.note_gone(index, view, now);
        }
        from.write(0, Content { words: [0; 2], vacant_at: Timestamp::MIN, limited: false });
        self.stripe(home).used.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, not(tollway_loom)))]
mod tests;
