//! Keys that are in the table under other numbers: seen by newcomers, and carried by one write.

use std::sync::PoisonError;

use tollway_core::{Policy, Timestamp};

use super::Table;
use crate::hash::Fingerprint;
use crate::numbers::Newcomer;
use crate::slot::{Content, Slot, View};
use crate::sync::Ordering;

impl<S: Slot> Table<S> {
    /// Whether a key that has no slot may not begin here. With the lock of its stripe held: without
    /// it, it could be moved meanwhile and be missed.
    pub(super) fn is_elsewhere(&self, fingerprint: Fingerprint, newcomer: Newcomer<'_>) -> bool {
        newcomer.is_elsewhere(|| self.find_marked(fingerprint, newcomer).is_some())
    }

    /// Under which other numbers of its family a key is kept here.
    pub(crate) fn other_mark(
        &self,
        fingerprint: Fingerprint,
        newcomer: Newcomer<'_>,
    ) -> Option<u64> {
        let stripe = self.stripe(self.home(fingerprint)).lock.lock();
        let _unmoved = stripe.unwrap_or_else(PoisonError::into_inner);
        self.find_marked(fingerprint, newcomer)
    }

    /// Waits until every newcomer is in that has begun to look for its slot.
    pub(crate) fn wait_for_newcomers(&self) {
        for stripe in &self.stripes {
            drop(stripe.lock.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Writes what `carry` makes of a key's words, and the mark of other numbers, to its slot. If
    /// the key has no slot any more, nothing.
    pub(crate) fn carry(
        &self,
        from: Fingerprint,
        to: Fingerprint,
        carry: impl Fn([u64; 2]) -> Content,
    ) {
        self.rewrite(from, |slot, view| slot.try_write_again(view, to.tag, carry(view.words)));
    }

    /// Takes a key out of the table: its words.
    pub(crate) fn take_out(&self, fingerprint: Fingerprint) -> Option<[u64; 2]> {
        let nothing = Content { words: [0; 2], vacant_at: Timestamp::MIN, limited: false };
        let words = self.rewrite(fingerprint, |slot, view| slot.try_write(view, 0, nothing))?;
        self.stripe(self.home(fingerprint)).used.fetch_sub(1, Ordering::Relaxed);
        Some(words)
    }

    /// Writes to the slot of a key, until `write` says that it did; the words before.
    fn rewrite(
        &self,
        fingerprint: Fingerprint,
        write: impl Fn(&S, View) -> bool,
    ) -> Option<[u64; 2]> {
        let stripe = self.stripe(self.home(fingerprint)).lock.lock();
        // With it nobody moves the key.
        let _unmoved = stripe.unwrap_or_else(PoisonError::into_inner);
        loop {
            let slot = self.find(fingerprint.tag, self.home(fingerprint))?;
            let view = slot.read();
            if view.tag == fingerprint.tag && write(slot, view) {
                return Some(view.words);
            }
        }
    }

    fn find_marked(&self, fingerprint: Fingerprint, newcomer: Newcomer<'_>) -> Option<u64> {
        let home = self.home(fingerprint);
        let found = self.find_marked_at(fingerprint, newcomer, home);
        let behind = || {
            let before = self.home_before(fingerprint.tag, home)?;
            self.find_marked_at(fingerprint, newcomer, before)
        };
        found.or_else(behind)
    }

    fn find_marked_at(
        &self,
        fingerprint: Fingerprint,
        newcomer: Newcomer<'_>,
        home: usize,
    ) -> Option<u64> {
        let reach = usize::from(self.beside[home].reach.load(Ordering::Relaxed));
        let buckets = (0..=reach).map(|probe| &self.buckets[self.probed(home, probe)]);
        let marks = buckets.flat_map(|bucket| &bucket.0).filter_map(|slot| {
            let tag = slot.tag();
            let is_like = (tag ^ fingerprint.tag) & !Policy::NUMBERS_MARK == 0;
            (is_like && tag != 0).then_some(tag ^ fingerprint.of_key())
        });
        marks.into_iter().find(|mark| newcomer.may_be(*mark))
    }
}
