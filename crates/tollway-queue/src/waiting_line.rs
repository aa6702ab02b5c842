//! Who waits in this process for jobs of one queue: the first in line asks, the others stand
//! behind it and ask nobody.
//!
//! ```text
//!   first: sleeps until something may start -> asks -> has a job, and lets the next one be first
//!   next:  knows what the first was told: sleeps until then, or asks at once if more may start
//! ```
//!
//! So a job costs one call, however many wait for it. Without the line each of them would sleep
//! until the same moment, and all but one would ask for nothing.
//!
//! **Invariants.** Whoever is first knows what the backend told last, or asks. What was told is
//! forgotten when nobody is left in line: nobody has listened since.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::Wake;

/// The line of those who wait in this process for jobs of one queue.
#[derive(Debug, Default)]
pub struct WaitingLine {
    /// What the first in line was told; `None` if it must ask. The mutex is fair: who waits for it
    /// longest has it next.
    told: Arc<Mutex<Option<Wake>>>,
    length: AtomicUsize,
}

/// The turn of whoever is first in line, and what is known then.
pub(crate) type Turn = OwnedMutexGuard<Option<Wake>>;

/// One who stands in the line. To drop it is to leave.
#[derive(Debug)]
pub(crate) struct Waiter(Arc<WaitingLine>);

impl Waiter {
    /// Enters the line at its end.
    pub(crate) fn at_the_end_of(line: Arc<WaitingLine>) -> Self {
        line.length.fetch_add(1, Ordering::SeqCst);
        Self(line)
    }

    /// Waits to be first. Once the turn is dropped, the next one is, and this one is last.
    pub(crate) async fn turn(&self) -> Turn {
        Arc::clone(&self.0.told).lock_owned().await
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let is_last = self.0.length.fetch_sub(1, Ordering::SeqCst) == 1;
        // Whoever has it already has come this very moment.
        if is_last && let Ok(mut told) = self.0.told.try_lock() {
            *told = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Option<Wake> = Some(Wake { next: None, seen: 7 });

    fn enter(line: &Arc<WaitingLine>) -> Waiter {
        Waiter::at_the_end_of(Arc::clone(line))
    }

    #[tokio::test]
    async fn the_next_in_line_knows_what_the_first_was_told() {
        let line = Arc::new(WaitingLine::default());
        let (first, second) = (enter(&line), enter(&line));
        let mut turn = first.turn().await;
        assert_eq!(*turn, None, "nobody has asked yet");
        *turn = TOLD;
        drop((turn, first));
        assert_eq!(*second.turn().await, TOLD);
    }

    #[tokio::test]
    async fn what_was_told_is_forgotten_when_nobody_is_left() {
        let line = Arc::new(WaitingLine::default());
        let alone = enter(&line);
        *alone.turn().await = TOLD;
        assert_eq!(*alone.turn().await, TOLD, "it is still there");
        drop(alone);
        assert_eq!(*enter(&line).turn().await, None);
    }

    #[tokio::test]
    async fn who_had_its_turn_stands_behind_the_others() {
        let line = Arc::new(WaitingLine::default());
        let (first, second) = (enter(&line), enter(&line));
        let turn = first.turn().await;
        let mut waits = Box::pin(second.turn());
        let is_second = std::future::poll_fn(|context| {
            std::task::Poll::Ready(waits.as_mut().poll(context).is_pending())
        });
        assert!(is_second.await);
        drop(turn);
        let mut again = Box::pin(first.turn());
        let is_last = std::future::poll_fn(|context| {
            std::task::Poll::Ready(again.as_mut().poll(context).is_pending())
        });
        assert!(is_last.await);
        drop(waits.await);
        drop(again.await);
    }
}
