//! Whether the upstream can be connected to, and who finds out when it cannot.
//!
//! ```text
//!  up ── a connection fails ──► down ── the prober connects ──► up: all who waited go on
//!                                │ ▲
//!                                └─┘ each try later than the one before, up to PAUSE_MAX
//! ```
//!
//! While it is down, nobody but one prober tries, however many requests wait: a service that comes
//! back is not met by all of them at the same time, nor does each wait for a timeout of its own.
//! Nothing was sent, so nothing is counted, and each request waits within its own patience.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use tokio::sync::watch;
use tokio::time::Instant;
use tollway_http::connect::Connector;
use tower_service::Service as _;

/// The first pause between tries; each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Whether the upstream can be connected to, as the last try showed.
pub(super) struct Reachability {
    connector: Connector,
    upstream: Uri,
    is_up: watch::Sender<bool>,
    tries: Mutex<Tries>,
}

#[derive(Debug, Default)]
struct Tries {
    /// Failures since the upstream answered last.
    failures: u32,
    failed_at: Option<Instant>,
    is_probed: bool,
}

impl Reachability {
    pub(super) fn new(connector: Connector, upstream: Uri) -> Self {
        Self { connector, upstream, is_up: watch::Sender::new(true), tries: Mutex::default() }
    }

    pub(super) fn is_up(&self) -> bool {
        *self.is_up.borrow()
    }

    /// Takes note that a connection could not be made.
    pub(super) fn failed(&self) {
        let mut tries = self.tries();
        // Those that were on their way together are one failure.
        if self.is_up.send_replace(false) || tries.failures == 0 {
            tries.failures = tries.failures.saturating_add(1);
        }
        tries.failed_at = Some(Instant::now());
    }

    /// Takes note of an answer.
    pub(super) fn answered(&self) {
        if self.is_up() && self.tries().failures == 0 {
            return;
        }
        self.tries().failures = 0;
        self.is_up.send_replace(true);
    }

    /// Waits until the upstream can be connected to, as far as is known; false if that is not
    /// before `deadline`.
    pub(super) async fn wait(self: &Arc<Self>, deadline: Instant) -> bool {
        let mut is_up = self.is_up.subscribe();
        if *is_up.borrow() {
            return true;
        }
        if !std::mem::replace(&mut self.tries().is_probed, true) {
            tokio::spawn(Arc::clone(self).probe());
        }
        tokio::time::timeout_at(deadline, is_up.wait_for(|up| *up)).await.is_ok()
    }

    /// Tries again and again for as long as somebody waits, once at least.
    async fn probe(self: Arc<Self>) {
        loop {
            tokio::time::sleep_until(self.next_try()).await;
            let found = self.connector.clone().call(self.upstream.clone()).await;
            let mut tries = self.tries();
            if found.is_err() {
                tries.failures = tries.failures.saturating_add(1);
                tries.failed_at = Some(Instant::now());
            }
            // An answer to what was on its way may have told it first.
            let is_over = found.is_ok() || self.is_up() || self.is_up.receiver_count() == 0;
            if is_over {
                tries.is_probed = false;
                drop(tries);
                if found.is_ok() {
                    self.is_up.send_replace(true);
                }
                return;
            }
        }
    }

    fn next_try(&self) -> Instant {
        let tries = self.tries();
        let doubled = PAUSE_MIN.saturating_mul(1 << tries.failures.saturating_sub(1).min(16));
        tries.failed_at.unwrap_or_else(Instant::now) + jittered(doubled.min(PAUSE_MAX))
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Three to five quarters of a pause, so that the proxies of a fleet do not try together.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_024;
    pause.mul_f64(0.75 + random as f64 / 2_048.0)
}
