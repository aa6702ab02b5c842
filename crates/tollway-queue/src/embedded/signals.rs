//! Waking who waits for a queue to have something earlier than it said.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::{QueueName, Wake};

/// Who is to be woken, by queue. Only queues that somebody waits for are here.
#[derive(Debug, Default)]
pub(super) struct Signals(Mutex<HashMap<QueueName, watch::Sender<Wake>>>);

impl Signals {
    pub(super) fn publish(&self, woken: impl IntoIterator<Item = (QueueName, Wake)>) {
        let mut senders = None;
        for (name, wake) in woken {
            let senders = senders.get_or_insert_with(|| self.lock());
            if let Some(sender) = senders.get(&name) {
                sender.send_if_modified(|told| {
                    let newer = wake.seen > told.seen;
                    if newer {
                        *told = wake;
                    }
                    newer
                });
            }
        }
    }

    /// Hears of wakes later than `current`.
    pub(super) fn subscribe(&self, name: &QueueName, current: Wake) -> watch::Receiver<Wake> {
        let mut senders = self.lock();
        // Nobody waits for these any more.
        if senders.len() > 64 {
            senders.retain(|_, sender| sender.receiver_count() > 0);
        }
        let sender = senders.entry(name.clone()).or_insert_with(|| watch::Sender::new(current));
        sender.subscribe()
    }

    /// Wakes everybody who waits for a queue that is gone.
    pub(super) fn end(&self, name: &QueueName) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, watch::Sender<Wake>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
