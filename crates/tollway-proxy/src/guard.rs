//! The budget of invalid requests: an upstream bans an address that sends too many.
//!
//! It is an ordinary policy in an ordinary store, so that it is shared by the proxies of a fleet
//! (Redis) or survives a restart (a snapshot). Requests in flight count as invalid until the
//! contrary is known, and the nearer the end, the fewer may try:
//!
//! ```text
//!  0 ─────────────────────────────────── 90 % ──────── 95 % ──────── 100 %
//!  all                                    not low       high only     nobody
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollway_core::{Charge, Key, StoreError, StoreLimiter, Verdict};

use tollway_upstream::budget::Priority;

/// All proxies behind one address share this key.
const KEY: &[u8] = b"egress";

/// The invalid requests that may still be sent.
pub struct Guard {
    limiter: StoreLimiter,
    policy: String,
    limit: u64,
    remaining: AtomicU64,
    next_ns: AtomicU64,
    in_flight: AtomicU64,
}

/// A request under way that may turn out to be invalid.
#[derive(Debug)]
pub(super) struct Suspect(Arc<Guard>);

impl Guard {
    /// A guard by the policy named `policy` of `limiter`; `None` if there is none of that name.
    #[must_use]
    pub fn new(limiter: StoreLimiter, policy: &str) -> Option<Self> {
        let limit = limiter.policy(policy)?.algorithm().limit();
        let remaining = AtomicU64::new(limit);
        let (next_ns, in_flight) = (AtomicU64::new(0), AtomicU64::new(0));
        let policy = policy.to_owned();
        Some(Self { limiter, policy, limit, remaining, next_ns, in_flight })
    }

    /// Lets a request try, or says how long not.
    pub(super) fn admit(self: &Arc<Self>, priority: Priority) -> Result<Suspect, Duration> {
        let reserve = match priority {
            Priority::High => 0,
            Priority::Normal => self.limit / 20,
            Priority::Low => self.limit / 10,
        };
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let suspect = Suspect(Arc::clone(self));
        let left = self.remaining.load(Ordering::Relaxed).saturating_sub(in_flight);
        if left > reserve {
            return Ok(suspect);
        }
        Err(Duration::from_nanos(self.next_ns.load(Ordering::Relaxed)).max(Duration::from_secs(1)))
    }

    /// Counts an invalid request.
    ///
    /// # Errors
    ///
    /// If the store fails; the request is counted here nevertheless.
    pub(super) async fn count(&self) -> Result<(), StoreError> {
        // At once, so that what leaves before the store has answered knows of it.
        let lower = |remaining: u64| Some(remaining.saturating_sub(1));
        let _ = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
        let Some(charge) = self.charge() else { return Ok(()) };
        let verdict = self.limiter.check(&[charge]).await?;
        self.learn(&verdict);
        Ok(())
    }

    /// Looks what others have counted meanwhile.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let Some(charge) = self.charge() else { return Ok(()) };
        let verdict = self.limiter.peek(&[charge]).await?;
        self.learn(&verdict);
        Ok(())
    }

    /// Invalid requests that may still be sent.
    pub(super) fn remaining(&self) -> u64 {
        self.remaining.load(Ordering::Relaxed)
    }

    fn charge(&self) -> Option<Charge<'_>> {
        Some(Charge::new(self.limiter.policy(&self.policy)?, Key::new(KEY).ok()?))
    }

    fn learn(&self, verdict: &Verdict) {
        // A store that is gone denies by its policy: that says nothing about what was counted.
        if verdict.is_degraded() {
            return;
        }
        let Some(snapshot) = verdict.decisions().first().map(|decision| decision.snapshot()) else {
            return;
        };
        self.remaining.store(snapshot.remaining(), Ordering::Relaxed);
        let next_ns = u64::try_from(snapshot.next_after().as_nanos()).unwrap_or(u64::MAX);
        self.next_ns.store(next_ns, Ordering::Relaxed);
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tollway_core::{Clock, Policy, VirtualClock};
    use tollway_redis::{RedisStore, Settings};

    use super::*;

    #[tokio::test]
    async fn a_store_that_is_gone_stops_nobody_and_invalid_requests_are_counted_here() {
        // Nobody listens there: port 1 is nobody's.
        let settings = Settings { start_without: true, ..Settings::default() };
        let gone = RedisStore::connect("redis://127.0.0.1:1", settings).await.unwrap();
        let policy = Policy::parse("invalid", "20/10m").unwrap();
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::default());
        let limiter = StoreLimiter::new([policy], Arc::new(gone), clock);
        let guard = Arc::new(Guard::new(limiter, "invalid").unwrap());
        guard.refresh().await.unwrap();
        assert!(guard.admit(Priority::Normal).is_ok());
        for _ in 0..19 {
            guard.count().await.unwrap();
        }
        assert_eq!(guard.remaining(), 1);
        assert!(guard.admit(Priority::Normal).is_err());
        assert!(guard.admit(Priority::High).is_ok());
    }
}
