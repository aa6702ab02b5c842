//! A slot of 16 bytes for a state that is one moment: GCRA's arrival time in nanoseconds.
//!
//! ```text
//!   tag   which key, 0 = never used
//!   word  | locked | limited | moment: 62 bits, until the year 2116 |
//! ```
//!
//! The moment is the state, the time at which the slot is vacant, and its own version: a charge
//! moves it forward, and a newcomer does not leave the word as it was. A thread that holds an old
//! word of an evicted, moved or reset key could meet the same nanosecond again only if another
//! key's charges in the same slot land on it while that thread stands between its load and its
//! swap; then one charge goes to the wrong key. A version would rule that out and cost eight bytes
//! per key.

use tollway_core::Timestamp;
use tollway_core::gcra::Gcra;

use super::{Content, Slot, View, try_lock_word};
use crate::sync::{AtomicU64, Ordering, fence};

#[cfg_attr(tollway_loom, derive(Default))]
pub(crate) struct Narrow {
    tag: AtomicU64,
    word: AtomicU64,
}

const LOCKED: u64 = 1 << 63;
const LIMITED: u64 = Gcra::WORD_END;

impl Narrow {
    /// Moves the moment of the key with this tag: the shortest way, for what is asked most. `None`
    /// if the slot is another's, locked, or changed meanwhile.
    #[inline(always)]
    pub(crate) fn move_on<R>(
        &self,
        tag: u64,
        decide: impl FnOnce(u64) -> (R, u64, bool),
    ) -> Option<R> {
        let word = self.word.load(Ordering::Acquire);
        if word & LOCKED != 0 || self.tag.load(Ordering::Relaxed) != tag {
            return None;
        }
        let before = word & (LIMITED - 1);
        let (answer, after, limited) = decide(before);
        let unchanged = if after == before {
            // A denial only reads; that it has read one key's word is shown by reading it again.
            fence(Ordering::Acquire);
            self.word.load(Ordering::Relaxed) == word
        } else {
            let next = after | if limited { LIMITED } else { 0 };
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            self.word.compare_exchange(word, next, success, failure).is_ok()
        };
        unchanged.then_some(answer)
    }
}

// SAFETY: made of atomic integers, for which all bits zero is a value.
#[cfg(not(tollway_loom))]
unsafe impl crate::pages::Zeroable for Narrow {}

impl Slot for Narrow {
    #[inline]
    fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    #[inline]
    fn try_read(&self) -> Option<View> {
        let word = self.word.load(Ordering::Acquire);
        let tag = self.tag.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if word & LOCKED != 0 || self.word.load(Ordering::Relaxed) != word {
            return None;
        }
        let moment = word & (LIMITED - 1);
        let (vacant_at, limited) = (Timestamp::from_nanos(moment), word & LIMITED != 0);
        Some(View { tag, words: [moment, 0], vacant_at, limited, seen: word })
    }

    #[inline]
    fn try_write(&self, seen: View, tag: u64, content: Content) -> bool {
        // One swap writes the whole state, so only a slot that changes its key is locked.
        if tag == seen.tag {
            let word = word_of(content);
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            return self.word.compare_exchange(seen.seen, word, success, failure).is_ok();
        }
        let locked = self.try_lock(seen);
        if locked {
            self.write_locked(seen, tag, content);
        }
        locked
    }

    fn try_write_again(&self, seen: View, tag: u64, content: Content) -> bool {
        let locked = self.try_lock(seen);
        if locked {
            self.tag.store(tag, Ordering::Relaxed);
            // The moment may be the same, and one nanosecond more could be a unit less. Who still
            // holds the old word has decided by the old numbers, and is as good as come before.
            self.word.store(word_of(content), Ordering::Release);
        }
        locked
    }

    fn try_lock(&self, seen: View) -> bool {
        try_lock_word(&self.word, seen.seen, LOCKED)
    }

    fn write_locked(&self, seen: View, tag: u64, content: Content) {
        let mut word = word_of(content);
        if tag != seen.tag {
            self.tag.store(tag, Ordering::Relaxed);
            // Whoever still holds the old key's word must not take it for this one's.
            word += u64::from(word == seen.seen);
        }
        self.word.store(word, Ordering::Release);
    }

    fn unlock(&self, seen: View) {
        self.word.store(seen.seen, Ordering::Release);
    }
}

#[inline]
fn word_of(content: Content) -> u64 {
    // A slot that is claimed before its state is known says so by its time alone.
    let moment = content.words[0].max(content.vacant_at.as_nanos()).min(LIMITED - 1);
    moment | if content.limited { LIMITED } else { 0 }
}
