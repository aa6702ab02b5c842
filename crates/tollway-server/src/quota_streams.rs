//! Quotas that gateways enforce by themselves: who holds which portion, over all connections.
//!
//! Each bucket of each stream is a *holder*. All holders whose bucket leads to the same limit and
//! key share one [`Division`]. Time is this process's own, which nobody can set: a lifetime that
//! ended early because a clock was set would be given away twice.
//!
//! ```text
//!   stream task --report, acknowledge, leave--> QuotaStreams: one lock
//!        ^                                        key -> Division
//!        `---- Told, by the stream's queue <------ instruct
//! ```
//!
//! Nothing here waits: whoever has a stream calls [`QuotaStreams::tick`] every so often.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tollway_core::Timestamp;
use tollway_core::division::{Divisible, Division, Instruction};
use tollway_http::metrics::{Counter, Exposition};

/// Buckets of all streams together.
pub(crate) const HOLDERS_MAX: usize = 200_000;
/// How long a portion is good, if the configuration does not say.
pub(crate) const LIFETIME_DEFAULT: Duration = Duration::from_secs(15);
/// Divisions looked at in one go: others wait for the lock.
const TURNS_MAX: usize = 256;
/// How often to look whether a division that nobody uses has refilled.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The time at which the process began, so that what was before has a time, too.
const BEGAN: Timestamp = Timestamp::from_millis(86_400_000);

/// The portions of all streams.
#[derive(Debug)]
pub(crate) struct QuotaStreams {
    began: Instant,
    table: Mutex<Table>,
    ids: AtomicU64,
    pub(crate) counts: Counts,
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Streams ended because of what they sent.
    pub(crate) refused: Counter,
    /// Connections closed because they acknowledged nothing.
    pub(crate) unacknowledged: Counter,
    /// Assignments sent.
    pub(crate) assignments: Counter,
}

#[derive(Debug, Default)]
struct Table {
    divisions: HashMap<Arc<[u8]>, Divided>,
    wakes: BTreeSet<(Timestamp, Arc<[u8]>)>,
    streams: HashMap<u64, UnboundedSender<Told>>,
    holders: usize,
}

#[derive(Debug)]
struct Divided {
    division: Division,
    places: HashMap<u64, Recipient>,
    wake_at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Recipient {
    stream: u64,
    bucket: usize,
}

/// An instruction for a bucket of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The stream's own number for its bucket.
    pub bucket: usize,
    /// What it is told.
    pub instruction: Instruction,
}

/// A bucket that holds a portion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Holding {
    /// Who holds.
    pub holder: u64,
    /// Under which key.
    pub key: Arc<[u8]>,
    /// Of what.
    pub terms: Divisible,
}

impl Default for QuotaStreams {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            table: Mutex::default(),
            ids: AtomicU64::new(1),
            counts: Counts::default(),
        }
    }
}

impl QuotaStreams {
    /// A number that nobody else has.
    pub(crate) fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on the stream is told there.
    pub(crate) fn open(&self, stream: u64, sender: UnboundedSender<Told>) {
        self.table().streams.insert(stream, sender);
    }

    /// The stream is gone: so are its holders.
    pub(crate) fn close<'a>(&self, stream: u64, holdings: impl Iterator<Item = &'a Holding>) {
        let now = self.now();
        let mut table = self.table();
        table.streams.remove(&stream);
        for holding in holdings {
            table.leave(holding, now);
        }
    }

    /// A bucket had so many requests since the last report. `false` if there are too many buckets.
    pub(crate) fn report(
        &self,
        stream: u64,
        bucket: usize,
        holding: &Holding,
        requests: u64,
    ) -> bool {
        let now = self.now();
        let mut table = self.table();
        if table.holders >= HOLDERS_MAX && !table.has(holding) {
            return false;
        }
        table.report(Recipient { stream, bucket }, holding, requests, now);
        true
    }

    /// A client has obeyed instructions.
    pub(crate) fn acknowledge(&self, holding: &Holding, number: u64) {
        let now = self.now();
        let mut table = self.table();
        table.with(&holding.key, now, |divided| {
            divided.division.acknowledge(holding.holder, number, now);
        });
    }

    /// A bucket holds nothing any more.
    pub(crate) fn leave(&self, holding: &Holding) {
        self.table().leave(holding, self.now());
    }

    /// Does what is due.
    pub(crate) fn tick(&self) {
        let now = self.now();
        let mut table = self.table();
        for _ in 0..TURNS_MAX {
            let Some((at, key)) = table.wakes.first().cloned() else { return };
            if at > now {
                return;
            }
            table.with(&key, now, |_| ());
        }
    }

    /// Writes what is counted.
    pub(crate) fn write(&self, text: &mut Exposition) {
        let table = self.table();
        let (streams, holders) = (table.streams.len() as f64, table.holders as f64);
        text.gauge("tollway_quota_streams", "Quota streams of gateways, open now.", streams);
        text.gauge(
            "tollway_quota_buckets",
            "Buckets of quota streams that hold a portion.",
            holders,
        );
        drop(table);
        let help = "Quota streams ended because of what they sent.";
        text.counter("tollway_quota_streams_refused_total", help, self.counts.refused.get());
        let help = "Connections closed because assignments were not acknowledged.";
        let unacknowledged = self.counts.unacknowledged.get();
        text.counter("tollway_quota_streams_unacknowledged_total", help, unacknowledged);
        let help = "Portions assigned to buckets of quota streams, renewals included.";
        text.counter("tollway_quota_assignments_total", help, self.counts.assignments.get());
    }

    fn now(&self) -> Timestamp {
        BEGAN.after(self.began.elapsed())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn has(&self, holding: &Holding) -> bool {
        let divided = self.divisions.get(&holding.key);
        divided.is_some_and(|divided| divided.places.contains_key(&holding.holder))
    }

    fn report(&mut self, place: Recipient, holding: &Holding, requests: u64, now: Timestamp) {
        let divided = self.divisions.entry(Arc::clone(&holding.key)).or_insert_with(|| Divided {
            division: Division::new(holding.terms.clone(), BEGAN),
            places: HashMap::new(),
            wake_at: Timestamp::MAX,
        });
        if *divided.division.terms() != holding.terms {
            // All that was given of the old quota may be in force until it has expired.
            divided.division = Division::new(holding.terms.clone(), now);
        }
        if divided.places.insert(holding.holder, place).is_none() {
            self.holders += 1;
        }
        self.with(&holding.key, now, |divided| {
            divided.division.report(holding.holder, requests, now);
        });
    }

    fn leave(&mut self, holding: &Holding, now: Timestamp) {
        let mut has_left = false;
        self.with(&holding.key, now, |divided| {
            has_left = divided.places.remove(&holding.holder).is_some();
            divided.division.leave(holding.holder, now);
        });
        self.holders -= usize::from(has_left);
    }

    /// Changes a division, tells its holders what follows, and notes when to look again.
    fn with(&mut self, key: &Arc<[u8]>, now: Timestamp, change: impl FnOnce(&mut Divided)) {
        let Some(divided) = self.divisions.get_mut(key) else { return };
        change(divided);
        let mut instructions = Vec::new();
        divided.division.instruct(now, &mut instructions);
        for instruction in instructions {
            let Some(place) = divided.places.get(&instruction.holder) else { continue };
            if let Some(sender) = self.streams.get(&place.stream) {
                // A stream that is gone leaves a moment later.
                let _ = sender.send(Told { bucket: place.bucket, instruction });
            }
        }
        self.wakes.remove(&(divided.wake_at, Arc::clone(key)));
        if divided.places.is_empty() && divided.division.is_idle(now) {
            self.divisions.remove(key);
            return;
        }
        divided.wake_at = divided.division.wake_at(now).min(now.after(LOOK_AGAIN_AFTER));
        self.wakes.insert((divided.wake_at, Arc::clone(key)));
    }
}
