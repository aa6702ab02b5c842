//! Server-sent events: a body that goes on for as long as somebody watches.
//!
//! A viewer that stops reading is let go: what waits for it is one event, never a growing queue.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::sample::Tick;
use crate::auth::{Auth, Role};
use crate::http::Trouble;
use crate::service::Service;
use crate::worker::Worker;

/// Viewers at once.
const VIEWERS_MAX: usize = 64;

/// The events for one viewer.
#[derive(Debug)]
pub(crate) struct Events {
    frames: mpsc::Receiver<Bytes>,
}

impl Events {
    /// The media type.
    pub(crate) const CONTENT_TYPE: &'static str = "text/event-stream";

    /// Events for somebody with `role`.
    pub(crate) fn open(worker: &Worker, role: Role) -> Result<Self, Trouble> {
        let viewer = Viewer::enter(&worker.service).ok_or(Trouble::TooMany)?;
        let (sender, frames) = mpsc::channel(1);
        let auth = Arc::clone(&worker.service.auth());
        tokio::task::spawn_local(feed(viewer, sender, role, auth));
        Ok(Self { frames })
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.frames.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Somebody who watches, counted for as long as they do.
struct Viewer(Arc<Service>);

impl Viewer {
    fn enter(service: &Arc<Service>) -> Option<Self> {
        let viewers = &service.dashboard.viewers;
        let entered = viewers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |viewers| {
            (viewers < VIEWERS_MAX).then_some(viewers + 1)
        });
        entered.ok().map(|_| Self(Arc::clone(service)))
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.dashboard.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn feed(viewer: Viewer, sender: mpsc::Sender<Bytes>, role: Role, auth: Arc<Auth>) {
    let service = &viewer.0;
    let patience = service.settings().limits.slow_client_after;
    let mut ticks = service.dashboard.ticks.subscribe();
    // A service that had stopped by now will not tell it again.
    if ticks.borrow().last {
        return;
    }
    // The head of the answer is sent with the first bytes: the page learns that it is connected.
    let mut next = Bytes::from_static(b"retry: 1000\n\n");
    loop {
        match timeout(patience, sender.send(next)).await {
            Ok(Ok(())) => {}
            _ => return,
        }
        tokio::select! {
            changed = ticks.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
        }
        let Tick { reader, admin, last, .. } = ticks.borrow_and_update().clone();
        // With other tokens in force nobody knows what this viewer may see: the page asks again.
        if last || service.is_draining() || !Arc::ptr_eq(&auth, &service.auth()) {
            return;
        }
        next = if role == Role::Admin { admin } else { reader };
    }
}
