//! Who waits for a queue, and waking who waits for it to have something earlier than it said.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::{QueueName, WaitingLine, Wake};

/// Of more queues than this, those that nobody waits for are forgotten.
const IDLE_MAX: usize = 64;

/// The lines of those who wait, by queue.
#[derive(Debug, Default)]
pub(super) struct WaitingLines(Mutex<HashMap<QueueName, Arc<WaitingLine>>>);

impl WaitingLines {
    /// The line of a queue.
    pub(super) fn of(&self, name: &QueueName) -> Arc<WaitingLine> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() > IDLE_MAX {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        Arc::clone(lines.entry(name.clone()).or_default())
    }
}

/// Who is to be woken, by queue. Only queues that somebody waits for are here.
#[derive(Debug, Default)]
pub(super) struct Wakes(Mutex<HashMap<QueueName, watch::Sender<Wake>>>);

impl Wakes {
    /// Tells those who wait for these queues; without a wake, that the queue is gone.
    pub(super) fn publish(&self, woken: impl IntoIterator<Item = (QueueName, Option<Wake>)>) {
        let mut senders = None;
        for (name, wake) in woken {
            let senders = senders.get_or_insert_with(|| self.lock());
            let Some(wake) = wake else {
                senders.remove(&name);
                continue;
            };
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
        if senders.len() > IDLE_MAX {
            senders.retain(|_, sender| sender.receiver_count() > 0);
        }
        let sender = senders.entry(name.clone()).or_insert_with(|| watch::Sender::new(current));
        sender.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, watch::Sender<Wake>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
