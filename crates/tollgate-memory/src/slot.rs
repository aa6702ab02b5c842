//! One slot of the table: a tag, two words of state, and a control word that is lock and version.
//!
//! ```text
//!   tag      which key, 0 = never used
//!   control  | vacant_at: 38 bits of 67 ms | version: 24 | limited | locked |
//!   words    the state, two words
//! ```
//!
//! A writer locks by compare-and-swap on the control word it has seen, so a successful lock also
//! proves that nothing has changed since; it unlocks by storing a control word with the next
//! version. A reader takes no lock and writes nothing: it reads the control word before and after,
//! and starts over if that has changed or is locked (a sequence lock).

use tollgate_core::Timestamp;

use crate::sync::{AtomicU64, Ordering, fence, pause};

/// A slot. All zero is a slot that was never used.
pub(crate) struct Slot {
    tag: AtomicU64,
    control: AtomicU64,
    words: [AtomicU64; 2],
}

/// What a reader saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) tag: u64,
    pub(crate) words: [u64; 2],
    control: u64,
}

/// What a writer leaves behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) words: [u64; 2],
    /// From when on the slot may be used for another key.
    pub(crate) vacant_at: Timestamp,
    /// Whether the key has nothing left: such a key is the last to be forgotten.
    pub(crate) limited: bool,
}

impl Content {
    /// A slot that says nothing.
    pub(crate) const VACANT: Self =
        Self { words: [0; 2], vacant_at: Timestamp::MIN, limited: false };
}

const LOCKED: u64 = 1;
const LIMITED: u64 = 1 << 1;
const VERSION: u64 = 1 << 2;
const VERSION_MASK: u64 = ((1 << 24) - 1) << 2;
const GRAIN_SHIFT: u32 = 26;

impl View {
    /// From when on the slot may be used for another key, rounded up to 67 ms.
    pub(crate) const fn vacant_at(self) -> Timestamp {
        Timestamp::from_nanos(self.control >> GRAIN_SHIFT << GRAIN_SHIFT)
    }

    pub(crate) const fn is_limited(self) -> bool {
        self.control & LIMITED != 0
    }
}

impl Slot {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { tag: zero(), control: zero(), words: [zero(), zero()] }
    }

    /// The tag, which may change at any time.
    #[inline]
    pub(crate) fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    /// A consistent view, without writing.
    #[inline]
    pub(crate) fn read(&self) -> View {
        let mut spins = 0;
        loop {
            let control = self.control.load(Ordering::Acquire);
            if control & LOCKED == 0 {
                let view = self.load(control);
                fence(Ordering::Acquire);
                if self.control.load(Ordering::Relaxed) == control {
                    return view;
                }
            }
            pause(&mut spins);
        }
    }

    /// Locks the slot if it has not changed since `seen`.
    #[inline]
    pub(crate) fn try_lock(&self, seen: View) -> Option<Locked<'_>> {
        let locked = seen.control | LOCKED;
        self.control
            .compare_exchange(seen.control, locked, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // A reader that sees one of our stores must see the lock too.
        fence(Ordering::Release);
        Some(Locked { slot: self, seen })
    }

    /// Locks the slot as it is.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut spins = 0;
        loop {
            if let Some(locked) = self.try_lock(self.read()) {
                return locked;
            }
            pause(&mut spins);
        }
    }

    #[inline]
    fn load(&self, control: u64) -> View {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        View { tag: self.tag(), words: [word(&self.words[0]), word(&self.words[1])], control }
    }
}

/// A locked slot; dropped, it is unlocked unchanged.
pub(crate) struct Locked<'a> {
    slot: &'a Slot,
    seen: View,
}

impl Locked<'_> {
    /// What the slot held when it was locked.
    pub(crate) const fn view(&self) -> View {
        self.seen
    }

    /// Writes and unlocks.
    #[inline]
    pub(crate) fn write(mut self, tag: u64, content: Content) {
        if tag != self.seen.tag {
            self.slot.tag.store(tag, Ordering::Relaxed);
        }
        self.slot.words[0].store(content.words[0], Ordering::Relaxed);
        self.slot.words[1].store(content.words[1], Ordering::Relaxed);
        self.seen.control = control_after(self.seen.control, content);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.control.store(self.seen.control, Ordering::Release);
    }
}

#[inline]
fn control_after(before: u64, content: Content) -> u64 {
    let version = (before & VERSION_MASK).wrapping_add(VERSION) & VERSION_MASK;
    let nanos = content.vacant_at.as_nanos();
    // Up to the next grain: a slot reused a moment early would forgive its key.
    let grains = nanos.div_ceil(1 << GRAIN_SHIFT).min(u64::MAX >> GRAIN_SHIFT);
    let limited = if content.limited { LIMITED } else { 0 };
    grains << GRAIN_SHIFT | version | limited
}
