//! One slot of a table: a tag, a state, and what is needed to change both without a lock held long.
//!
//! Two layouts: [`Narrow`] for states that are one moment in time, [`Double`] for two words.
//!
//! A writer changes a slot by compare-and-swap on a word it has seen, so success also proves that
//! nothing has changed since. A reader takes no lock and writes nothing: it reads that word before
//! and after the rest, and starts over if it has changed or is locked.

mod double;
mod narrow;

/// Loom's atomics are not made of zeroed memory, so there a slot is made by its default.
#[cfg(tollway_loom)]
pub(crate) use Default as Zeroed;
use tollway_core::Timestamp;

#[cfg(not(tollway_loom))]
pub(crate) use crate::pages::Zeroable as Zeroed;

use crate::sync::{AtomicU64, Ordering, fence, pause};

pub(crate) use double::Double;
pub(crate) use narrow::Narrow;

/// A slot. All zero is a slot that was never used.
pub(crate) trait Slot: Zeroed {
    /// The tag, which may change at any time.
    fn tag(&self) -> u64;

    /// A consistent view, without writing; `None` if the slot is locked or changes meanwhile.
    fn try_read(&self) -> Option<View>;

    /// A consistent view, without writing.
    #[inline]
    fn read(&self) -> View {
        let mut spins = 0;
        loop {
            if let Some(view) = self.try_read() {
                return view;
            }
            pause(&mut spins);
        }
    }

    /// Writes if nothing has changed since `seen`.
    #[inline]
    fn try_write(&self, seen: View, tag: u64, content: Content) -> bool {
        let locked = self.try_lock(seen);
        if locked {
            self.write_locked(seen, tag, content);
        }
        locked
    }

    /// Writes the same key under other numbers, and so with another tag, if nothing has changed
    /// since `seen`.
    #[inline]
    fn try_write_again(&self, seen: View, tag: u64, content: Content) -> bool {
        self.try_write(seen, tag, content)
    }

    /// Locks if nothing has changed since `seen`.
    fn try_lock(&self, seen: View) -> bool;

    /// Writes a locked slot and unlocks it.
    fn write_locked(&self, seen: View, tag: u64, content: Content);

    /// Unlocks a slot as it was.
    fn unlock(&self, seen: View);
}

/// What a reader saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) tag: u64,
    pub(crate) words: [u64; 2],
    /// From when on the slot may be used for another key.
    pub(crate) vacant_at: Timestamp,
    /// Whether the key had nothing left: such a key is the last to be forgotten.
    pub(crate) limited: bool,
    /// The word that changes with every write.
    seen: u64,
}

/// What a writer leaves behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) words: [u64; 2],
    pub(crate) vacant_at: Timestamp,
    pub(crate) limited: bool,
}

/// Sets the bit `locked` of the word that changes with every write, if that is still `seen`.
#[inline]
fn try_lock_word(word: &AtomicU64, seen: u64, locked: u64) -> bool {
    let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
    let held = word.compare_exchange(seen, seen | locked, success, failure).is_ok();
    // A reader that sees one of our stores must see the lock too.
    fence(Ordering::Release);
    held
}

/// A locked slot; dropped, it is unlocked unchanged.
pub(crate) struct Locked<'a, S: Slot> {
    slot: &'a S,
    seen: View,
    written: bool,
}

impl<'a, S: Slot> Locked<'a, S> {
    /// Locks the slot as it is.
    pub(crate) fn new(slot: &'a S) -> Self {
        let mut spins = 0;
        loop {
            let seen = slot.read();
            if slot.try_lock(seen) {
                return Self { slot, seen, written: false };
            }
            pause(&mut spins);
        }
    }

    /// What the slot held when it was locked.
    pub(crate) const fn view(&self) -> View {
        self.seen
    }

    /// Writes and unlocks.
    pub(crate) fn write(mut self, tag: u64, content: Content) {
        self.slot.write_locked(self.seen, tag, content);
        self.written = true;
    }
}

impl<S: Slot> Drop for Locked<'_, S> {
    fn drop(&mut self) {
        if !self.written {
            self.slot.unlock(self.seen);
        }
    }
}
