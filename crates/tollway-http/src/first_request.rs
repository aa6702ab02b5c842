//! Whether a connection has asked anything yet.
//!
//! One that never does costs a file and a place for as long as it likes: a part of HTTP/2's
//! preface, or all of it, is no request, and pings prove only that somebody is there.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::{Instant, sleep_until};

/// Notes the first request of a connection.
#[derive(Clone, Debug, Default)]
pub struct FirstRequest(Arc<AtomicBool>);

impl FirstRequest {
    /// There is a request.
    pub fn is_there(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Waits until the first request should have been there and was not.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub async fn is_missing_at(&self, deadline: Instant) {
        sleep_until(deadline).await;
        if self.0.load(Ordering::Relaxed) {
            pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_connection_that_has_not_asked_by_then_is_missed() {
        let (first, soon) = (FirstRequest::default(), Duration::from_secs(10));
        let begun = Instant::now();
        first.is_missing_at(begun + soon).await;
        assert_eq!(begun.elapsed(), soon);
        first.is_there();
        let deadline = Instant::now() + soon;
        assert!(timeout(soon * 10, first.is_missing_at(deadline)).await.is_err());
    }
}
