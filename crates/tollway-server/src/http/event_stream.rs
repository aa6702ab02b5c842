//! Server-sent events: a body that goes on for as long as somebody watches.
//!
//! A viewer that stops reading is let go: what waits for it is one event, never a growing queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::problem::Trouble;
use crate::auth::Auth;
use crate::channel_body::ChannelBody;
use crate::service::Service;
use crate::worker::Worker;

/// Viewers at once, of all streams.
const VIEWERS_MAX: usize = 64;

/// The media type.
pub(crate) const CONTENT_TYPE: &str = "text/event-stream";

/// Events that `feed` sends to the viewer, until it ends or the viewer leaves.
pub(crate) fn open<F: Future<Output = ()> + 'static>(
    worker: &Worker,
    feed: impl FnOnce(Viewer) -> F,
) -> Result<ChannelBody, Trouble> {
    let (sender, frames) = mpsc::channel(1);
    let viewer = Viewer::enter(&worker.service, sender).ok_or(Trouble::TooMany)?;
    tokio::task::spawn_local(feed(viewer));
    Ok(ChannelBody(frames))
}

/// Somebody who watches, counted for as long as they do.
pub(crate) struct Viewer {
    pub(crate) service: Arc<Service>,
    frames: mpsc::Sender<Bytes>,
    /// The tokens by which it was let in.
    auth: Arc<Auth>,
    patience: Duration,
}

impl Viewer {
    fn enter(service: &Arc<Service>, frames: mpsc::Sender<Bytes>) -> Option<Self> {
        let enter = |viewers| (viewers < VIEWERS_MAX).then_some(viewers + 1);
        service.dashboard.viewers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).ok()?;
        Some(Self {
            service: Arc::clone(service),
            frames,
            auth: Arc::clone(&service.auth()),
            patience: service.settings().limits.slow_client_after,
        })
    }

    /// Sends `bytes`; whether the viewer took what was sent before, in time.
    pub(crate) async fn send(&self, bytes: Bytes) -> bool {
        matches!(timeout(self.patience, self.frames.send(bytes)).await, Ok(Ok(())))
    }

    /// Waits until the viewer has left.
    pub(crate) async fn left(&self) {
        self.frames.closed().await;
    }

    /// Whether the service has other tokens than when the viewer came, by which nobody knows what
    /// it may see.
    pub(crate) fn is_judged_anew(&self) -> bool {
        !Arc::ptr_eq(&self.auth, &self.service.auth())
    }

    /// Whether nothing more is to be sent: the service is about to stop, or has other tokens.
    pub(crate) fn is_over(&self) -> bool {
        self.service.is_draining() || self.is_judged_anew()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.service.dashboard.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}
