//! A slot of 32 bytes for a state of two words, with a control word that is lock and version.
//!
//! ```text
//!   tag      which key, 0 = never used
//!   control  | vacant_at: 38 bits of 67 ms | version: 24 | limited | locked |
//!   words    the state
//! ```

use tollway_core::Timestamp;

use super::{Content, Slot, View, try_lock_word};
use crate::sync::{AtomicU64, Ordering, fence};

#[cfg_attr(tollway_loom, derive(Default))]
pub(crate) struct Double {
    tag: AtomicU64,
    control: AtomicU64,
    words: [AtomicU64; 2],
}

const LOCKED: u64 = 1;
const LIMITED: u64 = 1 << 1;
const VERSION: u64 = 1 << 2;
const VERSION_MASK: u64 = ((1 << 24) - 1) << 2;
const GRAIN_SHIFT: u32 = 26;

impl Double {
    fn load(&self, control: u64) -> View {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        View {
            tag: self.tag(),
            words: [word(&self.words[0]), word(&self.words[1])],
            vacant_at: Timestamp::from_nanos(control >> GRAIN_SHIFT << GRAIN_SHIFT),
            limited: control & LIMITED != 0,
            seen: control,
        }
    }
}

// SAFETY: made of atomic integers, for which all bits zero is a value.
#[cfg(not(tollway_loom))]
unsafe impl crate::pages::Zeroable for Double {}

impl Slot for Double {
    #[inline]
    fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    #[inline]
    fn try_read(&self) -> Option<View> {
        let control = self.control.load(Ordering::Acquire);
        if control & LOCKED != 0 {
            return None;
        }
        let view = self.load(control);
        fence(Ordering::Acquire);
        (self.control.load(Ordering::Relaxed) == control).then_some(view)
    }

    #[inline]
    fn try_lock(&self, seen: View) -> bool {
        try_lock_word(&self.control, seen.seen, LOCKED)
    }

    #[inline]
    fn write_locked(&self, seen: View, tag: u64, content: Content) {
        if tag != seen.tag {
            self.tag.store(tag, Ordering::Relaxed);
        }
        self.words[0].store(content.words[0], Ordering::Relaxed);
        self.words[1].store(content.words[1], Ordering::Relaxed);
        self.control.store(control_after(seen.seen, content), Ordering::Release);
    }

    fn unlock(&self, seen: View) {
        self.control.store(seen.seen, Ordering::Release);
    }
}

#[inline]
fn control_after(before: u64, content: Content) -> u64 {
    let version = (before & VERSION_MASK).wrapping_add(VERSION) & VERSION_MASK;
    // Up to the next grain: a slot reused a moment early would forgive its key.
    let grains = content.vacant_at.as_nanos().div_ceil(1 << GRAIN_SHIFT);
    let limited = if content.limited { LIMITED } else { 0 };
    grains.min(u64::MAX >> GRAIN_SHIFT) << GRAIN_SHIFT | version | limited
}
