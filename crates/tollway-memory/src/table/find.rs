//! Where a key is looked for: at its home, in the buckets after it, and where it was before.

use super::Table;
use crate::hash::Fingerprint;
use crate::slot::Slot;
use crate::sync::Ordering;

impl<S: Slot> Table<S> {
    /// The bucket in which a key is looked for first.
    #[inline]
    pub(crate) fn home(&self, fingerprint: Fingerprint) -> usize {
        self.home_of(fingerprint.tag)
    }

    /// The bucket in which the key with this tag is looked for first.
    #[inline(always)]
    pub(crate) fn home_of(&self, tag: u64) -> usize {
        self.home_under(tag, self.mask.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn find(&self, tag: u64, home: usize) -> Option<&S> {
        self.find_here(tag, home).or_else(|| self.find_behind(tag, home))
    }

    /// The slot of a key that is where it is to be.
    #[inline(always)]
    pub(super) fn find_here(&self, tag: u64, home: usize) -> Option<&S> {
        let bucket = &self.buckets[home];
        if let Some(slot) = bucket.find(tag) {
            return Some(slot);
        }
        self.find_beyond(tag, home)
    }

    #[inline(never)]
    fn find_beyond(&self, tag: u64, home: usize) -> Option<&S> {
        let reach = usize::from(self.beside[home].reach.load(Ordering::Relaxed));
        let bucket = |probe| &self.buckets[self.probed(home, probe)];
        (1..=reach).find_map(|probe| bucket(probe).find(tag))
    }

    /// The slot of a key that is still where it was before the table doubled.
    #[inline(never)]
    pub(super) fn find_behind(&self, tag: u64, home: usize) -> Option<&S> {
        self.find_here(tag, self.home_before(tag, home)?)
    }
}
