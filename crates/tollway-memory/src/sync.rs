//! Atomics, or loom's in their place when it explores every interleaving of the tables.

#[cfg(tollway_loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
#[cfg(tollway_loom)]
pub(crate) use loom::sync::{Mutex as StripeLock, MutexGuard as LoomGuard};
#[cfg(not(tollway_loom))]
pub(crate) use std::sync::Mutex as StripeLock;
#[cfg(not(tollway_loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(tollway_loom)]
pub(crate) type StripeGuard<'a, T> = LoomGuard<'a, T>;
#[cfg(not(tollway_loom))]
pub(crate) type StripeGuard<'a, T> = MutexGuard<'a, T>;

/// Locks; what a panicking thread left behind is as good as before, since states are written whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits a moment for another thread: busily at first, then giving the core away, because the
/// holder of a lock may be waiting for just this core.
#[cfg(not(tollway_loom))]
#[inline]
pub(crate) fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(tollway_loom)]
pub(crate) fn pause(_: &mut u32) {
    loom::thread::yield_now();
}

/// Asks the processor to fetch the line at `place` while we do something else.
#[inline]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint; it reads nothing that the program can see and cannot fault.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(place).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}
