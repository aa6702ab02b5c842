//! Who waits for a queue, and waking who waits for it to have something earlier than it said.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::{EndWatch, QueueName, Wake};

/// Of more queues than this, those that nobody waits for are forgotten.
const IDLE_MAX: usize = 64;

/// What there is one of for each queue that somebody waits for.
#[derive(Debug)]
pub(super) struct ByQueue<T>(Mutex<HashMap<QueueName, Arc<T>>>);

impl<T> ByQueue<T> {
    /// That of a queue, which `make` makes if need be.
    pub(super) fn of(&self, name: &QueueName, make: impl FnOnce() -> T) -> Arc<T> {
        let mut known = self.lock();
        if known.len() > IDLE_MAX {
            known.retain(|_, one| Arc::strong_count(one) > 1);
        }
        Arc::clone(known.entry(name.clone()).or_insert_with(|| Arc::new(make())))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ByQueue<EndWatch> {
    /// Tells those who wait for jobs of these queues to end.
    pub(super) fn tell(&self, ended: impl IntoIterator<Item = QueueName>) {
        let mut known = None;
        for name in ended {
            let known = known.get_or_insert_with(|| self.lock());
            if let Some(watch) = known.get(&name) {
                watch.tell();
            }
        }
    }
}

impl<T> Default for ByQueue<T> {
    fn default() -> Self {
        Self(Mutex::default())
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
