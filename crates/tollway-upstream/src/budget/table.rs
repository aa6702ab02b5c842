//! Buckets by name and by slot, bounded, the idle ones forgotten.
//!
//! Pages instead of one vector: growth never copies, and memory is never twice what is used. The
//! index holds no names, because they are in the buckets already.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tollway_core::Timestamp;

use super::bucket::Bucket;
use super::index::Index;
use super::room::Share;

const PAGE: usize = 512;
/// Slots looked at for one that may be forgotten, when all are taken.
const SEARCH: usize = 64;

/// Buckets by name and by slot.
#[derive(Debug)]
pub(super) struct Table {
    pages: Vec<Vec<Option<Bucket>>>,
    free: Vec<u32>,
    index: Index,
    seed: RandomState,
    most: usize,
    share: Share,
    hand: usize,
}

impl Table {
    pub(super) fn new(most: usize) -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            index: Index::new(),
            seed: RandomState::new(),
            most: most.clamp(1, u32::MAX as usize - 1),
            share: Share::default(),
            hand: 0,
        }
    }

    /// An empty table whose buckets take of a room.
    pub(super) fn within(most: usize, share: Share) -> Self {
        Self { share, ..Self::new(most) }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Bucket> {
        self.pages.get(slot as usize / PAGE)?.get(slot as usize % PAGE)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Bucket> {
        self.pages.get_mut(slot as usize / PAGE)?.get_mut(slot as usize % PAGE)?.as_mut()
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let is_it = |slot| self.get(slot).is_some_and(|bucket| &*bucket.name == name);
        self.index.find(self.seed.hash_one(name), is_it)
    }

    /// The bucket of that name, made if it is new; none if all are taken and none can be forgotten.
    pub(super) fn entry(&mut self, name: &str, now: Timestamp) -> Option<u32> {
        if let Some(slot) = self.find(name) {
            return Some(slot);
        }
        if self.index.len() >= self.most {
            self.evict(now)?;
        }
        if !self.share.grow() {
            self.evict(now)?;
            // Somebody else may have taken it.
            self.share.grow().then_some(())?;
        }
        let slot = self.place(Bucket::new(name.into()));
        self.index.insert(self.seed.hash_one(name), slot);
        Some(slot)
    }

    /// Puts a bucket that is not there yet into the next slot; none if all are taken.
    #[cfg(feature = "redis")]
    pub(super) fn put(&mut self, bucket: Bucket) -> Option<u32> {
        if self.index.len() >= self.most || self.find(&bucket.name).is_some() {
            return None;
        }
        let hash = self.seed.hash_one(&*bucket.name);
        let slot = self.place(bucket);
        self.index.insert(hash, slot);
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(bucket) = self
            .pages
            .get_mut(slot as usize / PAGE)
            .and_then(|page| page.get_mut(slot as usize % PAGE))
            .and_then(Option::take)
        else {
            return;
        };
        self.index.remove(self.seed.hash_one(&*bucket.name), slot);
        self.share.shrink();
        self.free.push(slot);
    }

    /// Forgets some of what has long been idle: a few slots per call, so that no call is long.
    pub(super) fn sweep(&mut self, looks: usize, idle: Duration, now: Timestamp) {
        let idle = self.share.idle(idle);
        for _ in 0..looks.min(self.slots()) {
            let slot = self.advance();
            if let Some(bucket) = self.get_mut(slot) {
                bucket.settle(now);
                if bucket.is_stale(idle, now) {
                    self.remove(slot);
                }
            }
        }
    }

    /// Slots that were ever in use, for walking over them.
    pub(super) fn slots(&self) -> usize {
        self.pages.last().map_or(0, |last| (self.pages.len() - 1) * PAGE + last.len())
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    fn advance(&mut self) -> u32 {
        self.hand = (self.hand + 1) % self.slots().max(1);
        self.hand as u32
    }

    /// Makes room. What is spent or in use is never forgotten early: that would forgive it.
    fn evict(&mut self, now: Timestamp) -> Option<()> {
        for _ in 0..SEARCH {
            let slot = self.advance();
            let Some(bucket) = self.get_mut(slot) else { continue };
            bucket.settle(now);
            if bucket.is_forgettable(now) {
                self.remove(slot);
                return Some(());
            }
        }
        None
    }

    fn place(&mut self, bucket: Bucket) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.pages[slot as usize / PAGE][slot as usize % PAGE] = Some(bucket);
            return slot;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            // Most credentials have few buckets, and there may be thousands of credentials.
            let room = if self.pages.is_empty() { 0 } else { PAGE };
            self.pages.push(Vec::with_capacity(room));
        }
        let pages = self.pages.len();
        let page = &mut self.pages[pages - 1];
        page.push(Some(bucket));
        ((pages - 1) * PAGE + page.len() - 1) as u32
    }
}
