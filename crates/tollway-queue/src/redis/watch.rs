//! Waiting for a queue to have something earlier than it said: blocked on its marker, not polling.
//!
//! One task per queue and process blocks on the marker (`BZPOPMIN`) while somebody waits here. The
//! marker wakes one process: it asks for leases, and leaves a marker if it leaves work. A marker
//! that was taken while the last who waited had gone is put back. If a process dies between taking
//! a marker and asking, the others look by themselves after [`LOOK_AGAIN`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tollway_redis::connection::Client;

use super::decode::{list, text};
use super::encode::moment;
use crate::{Wake, error::Error};

/// How long a wait on the marker takes at most.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// Who waits for one queue.
pub(super) struct Watch {
    wakes: watch::Sender<Wake>,
    waiting: AtomicUsize,
    /// The last wake that somebody has heard.
    heard: AtomicU64,
    somebody: Notify,
}

impl Watch {
    /// Starts the task that blocks on `marker`, over a connection of its own.
    pub(super) fn start(runtime: &Handle, client: Arc<Client>, marker: Vec<u8>) -> Arc<Self> {
        let wake = Wake { next: None, seen: 1 };
        let watch = Arc::new(Self {
            wakes: watch::Sender::new(wake),
            waiting: AtomicUsize::new(0),
            heard: AtomicU64::new(wake.seen),
            somebody: Notify::new(),
        });
        runtime.spawn(block(Arc::downgrade(&watch), client, marker));
        watch
    }

    /// What to compare with from now on.
    pub(super) fn seen(&self) -> u64 {
        self.wakes.borrow().seen
    }

    /// Waits until something was told after `seen`.
    pub(super) async fn changed(&self, seen: u64) -> Result<Wake, Error> {
        let mut wakes = self.wakes.subscribe();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _leave = Leave(&self.waiting);
        self.somebody.notify_one();
        let told = wakes.wait_for(|wake| wake.seen > seen).await;
        // The sender lives as long as this.
        let told = told.map_or(Wake { next: None, seen }, |wake| *wake);
        self.heard.fetch_max(told.seen, Ordering::SeqCst);
        Ok(told)
    }

    /// Tells everybody who waits here what a marker said; whether there is somebody. If not, nobody
    /// must hear of it: the marker is put back, and would wake twice.
    fn tell(&self, next_us: u64) -> bool {
        self.wakes.send_if_modified(|wake| {
            // Nobody can hear of it before this ends, so whoever waits now will.
            let is_heard = self.waiting.load(Ordering::SeqCst) > 0;
            if is_heard {
                self.put(wake, next_us);
            }
            is_heard
        })
    }

    /// Makes everybody ask anew, also those who are about to wait: a marker may have been lost.
    fn alarm(&self) {
        self.wakes.send_modify(|wake| self.put(wake, 0));
    }

    fn put(&self, wake: &mut Wake, next_us: u64) {
        // What was told before and not heard counts as well.
        let unheard = wake.next.filter(|_| self.heard.load(Ordering::SeqCst) < wake.seen);
        wake.next = unheard.into_iter().chain([moment(next_us)]).min();
        wake.seen += 1;
    }
}

/// One who waits less, however the wait ends.
struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn block(watch: std::sync::Weak<Watch>, client: Arc<Client>, marker: Vec<u8>) {
    loop {
        {
            let Some(watch) = watch.upgrade() else { return };
            while watch.waiting.load(Ordering::SeqCst) == 0 {
                // Looks up now and then whether anybody can still come.
                let somebody = watch.somebody.notified();
                if tokio::time::timeout(LOOK_AGAIN, somebody).await.is_err()
                    && Arc::strong_count(&watch) == 1
                {
                    return;
                }
            }
        }
        let taken = take(&client, &marker).await;
        let Some(watch) = watch.upgrade() else { return };
        match taken {
            Ok(Some(next_us)) => {
                if !watch.tell(next_us) {
                    put_back(&client, &marker, next_us).await;
                }
            }
            // Nothing for a while, or the connection broke: whoever waits asks anew, to be sure.
            Ok(None) => watch.alarm(),
            Err(()) => {
                watch.alarm();
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Blocks until there is a marker; its time.
async fn take(client: &Client, marker: &[u8]) -> Result<Option<u64>, ()> {
    let mut command = redis::cmd("BZPOPMIN");
    command.arg(marker).arg(LOOK_AGAIN.as_secs());
    let until = Instant::now() + LOOK_AGAIN + Duration::from_secs(5);
    match client.send_until(&command, until).await.map_err(|_| ())? {
        Value::Nil => Ok(None),
        value => {
            let parts = list(value).map_err(|_| ())?;
            let score = parts.get(2).ok_or(())?;
            let number = match score {
                Value::Double(number) => *number,
                score => text(score).map_err(|_| ())?.parse().map_err(|_| ())?,
            };
            Ok(Some(number as u64))
        }
    }
}

async fn put_back(client: &Client, marker: &[u8], next_us: u64) {
    // At one go: a marker without TTL would stay for ever.
    let script = "redis.call('ZADD', KEYS[1], 'LT', ARGV[1], '1') \
                  return redis.call('PEXPIRE', KEYS[1], 3600000)";
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(1).arg(marker).arg(next_us);
    // If this fails the marker was lost with the connection, and everybody asks anew.
    let _ = client.send_until(&command, Instant::now() + Duration::from_secs(1)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        let wake = Wake { next: None, seen: 1 };
        Watch {
            wakes: watch::Sender::new(wake),
            waiting: AtomicUsize::new(0),
            heard: AtomicU64::new(1),
            somebody: Notify::new(),
        }
    }

    #[tokio::test]
    async fn a_marker_wakes_who_waits_once_and_is_left_to_others_if_nobody_does() {
        let watch = watch();
        assert!(!watch.tell(5), "it is to be put back");
        assert_eq!(watch.seen(), 1, "and wakes nobody who comes");
        let waiter = async { watch.changed(1).await.map(|wake| (wake.next, wake.seen)) };
        let (told, heard) = tokio::join!(biased; waiter, async { watch.tell(7) });
        assert_eq!((told.ok(), heard), (Some((Some(moment(7)), 2)), true));
    }

    #[tokio::test]
    async fn of_times_that_nobody_has_heard_yet_the_earliest_counts() {
        let watch = watch();
        let waiter = async { watch.changed(1).await.map(|wake| wake.next) };
        let teller = async { (watch.tell(7), watch.tell(3), watch.tell(9)) };
        let (told, _) = tokio::join!(biased; waiter, teller);
        assert_eq!(told.ok(), Some(Some(moment(3))));
        // What was heard is over.
        let waiter = async { watch.changed(4).await.map(|wake| wake.next) };
        let (told, _) = tokio::join!(biased; waiter, async { watch.tell(11) });
        assert_eq!(told.ok(), Some(Some(moment(11))));
    }
}
