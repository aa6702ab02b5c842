//! How much the ledgers of all credentials of a program may remember together.
//!
//! Each ledger has bounds of its own. Whoever can make credentials up can make ledgers, so the sum
//! is bounded as well: at the bound a ledger forgets what is idle, and refuses a further bucket if
//! nothing is. What is spent or in use is never forgotten: that would forgive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a bucket is remembered that nobody uses, when room is scarce.
const SCARCE_IDLE: Duration = Duration::from_secs(10);

/// Buckets, and the upstream's names for them, that several ledgers may remember together. Clones
/// are the same room.
///
/// ```
/// use tollway_upstream::budget::{BucketRoom, LocalLedger, Settings};
/// use tollway_upstream::profile::Profile;
///
/// let profile = Profile::builtin("discord").expect("it is shipped");
/// let room = BucketRoom::new(10_000);
/// let one = LocalLedger::new(profile.clone(), Settings::default()).within(&room);
/// let other = LocalLedger::new(profile, Settings::default()).within(&room);
/// # let _ = (one, other);
/// ```
#[derive(Clone, Debug)]
pub struct BucketRoom {
    buckets: Arc<Pool>,
    names: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    most: usize,
    taken: AtomicUsize,
}

/// What one ledger has taken of a room; it goes back when this is dropped. By default of a room
/// without bounds.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pool: Option<Arc<Pool>>,
    count: usize,
}

impl BucketRoom {
    /// Room for so many buckets, and for as many names.
    #[must_use]
    pub fn new(buckets_max: usize) -> Self {
        let pool = || Arc::new(Pool { most: buckets_max.max(1), taken: AtomicUsize::new(0) });
        Self { buckets: pool(), names: pool() }
    }

    /// Buckets that are remembered.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.buckets.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn of_buckets(&self) -> Share {
        Share { pool: Some(Arc::clone(&self.buckets)), count: 0 }
    }

    pub(crate) fn of_names(&self) -> Share {
        Share { pool: Some(Arc::clone(&self.names)), count: 0 }
    }
}

impl Share {
    /// Takes one more; false if there is no room.
    pub(crate) fn grow(&mut self) -> bool {
        if let Some(pool) = &self.pool {
            let taken = pool.taken.fetch_add(1, Ordering::Relaxed);
            if taken >= pool.most {
                pool.taken.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
        }
        self.count += 1;
        true
    }

    pub(crate) fn shrink(&mut self) {
        if let Some(pool) = self.pool.as_ref().filter(|_| self.count > 0) {
            pool.taken.fetch_sub(1, Ordering::Relaxed);
        }
        self.count = self.count.saturating_sub(1);
    }

    /// What was found to be there already, such as in a document that others write: it counts,
    /// whether there is room or not.
    #[cfg(feature = "redis")]
    pub(crate) fn set(&mut self, count: usize) {
        if let Some(pool) = &self.pool {
            pool.taken.fetch_add(count, Ordering::Relaxed);
            pool.taken.fetch_sub(self.count, Ordering::Relaxed);
        }
        self.count = count;
    }

    /// How long what is idle may be remembered.
    pub(crate) fn idle(&self, usual: Duration) -> Duration {
        let is_scarce = |pool: &Arc<Pool>| {
            let taken = pool.taken.load(Ordering::Relaxed);
            taken >= pool.most - pool.most / 8
        };
        if self.pool.as_ref().is_some_and(is_scarce) { usual.min(SCARCE_IDLE) } else { usual }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.taken.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_room_add_up_to_no_more_than_it_has_and_go_back() {
        let room = BucketRoom::new(8);
        let (mut one, mut other) = (room.of_buckets(), room.of_buckets());
        assert!((0..6).all(|_| one.grow()) && (0..2).all(|_| other.grow()));
        assert!(!one.grow() && !other.grow());
        assert_eq!(other.idle(Duration::from_secs(600)), SCARCE_IDLE);
        one.shrink();
        assert!(other.grow());
        drop(one);
        assert_eq!(room.taken(), 3);
        assert_eq!(other.idle(Duration::from_secs(600)), Duration::from_secs(600));
        assert!(Share::default().grow(), "a ledger alone has its own bound only");
    }
}
