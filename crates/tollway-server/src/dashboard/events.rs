//! What the page is told every second.

use bytes::Bytes;

use super::sample::Tick;
use crate::auth::Role;
use crate::channel_body::ChannelBody;
use crate::http::{Trouble, Viewer, event_stream};
use crate::worker::Worker;

/// Events for somebody with `role`.
pub(crate) fn events(worker: &Worker, role: Role) -> Result<ChannelBody, Trouble> {
    event_stream::open(worker, |viewer| feed(viewer, role))
}

async fn feed(viewer: Viewer, role: Role) {
    let mut ticks = viewer.service.dashboard.ticks.subscribe();
    // A service that had stopped by now will not tell it again.
    if ticks.borrow().last {
        return;
    }
    // The head of the answer is sent with the first bytes: the page learns that it is connected.
    let mut next = Bytes::from_static(b"retry: 1000\n\n");
    while viewer.send(next).await {
        tokio::select! {
            changed = ticks.changed() => if changed.is_err() { return },
            () = viewer.left() => return,
        }
        let Tick { reader, admin, last, .. } = ticks.borrow_and_update().clone();
        // While the service drains, that is what there is to tell.
        if last || viewer.is_judged_anew() {
            return;
        }
        next = if role == Role::Admin { admin } else { reader };
    }
}
