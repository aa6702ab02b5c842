//! The keys most often allowed and most often denied in the last minute and the last five, bounded.
//!
//! A short list counts its keys exactly, in buckets of ten seconds. A key that is not on it is
//! counted in a sketch of bounded size, and takes the place of the least busy one once the sketch
//! says that it is busier:
//!
//! ```text
//!   key --on the list?-- yes --> its ring   [ 3 0 7 | 9 9 8 8 9 4 ]      one count per ten seconds
//!                  \                          five minutes  '-- minute
//!                   `-- no ----> sketch --estimate above the lowest of the list--> on the list
//! ```
//!
//! **Invariants.** The list never holds more than `KEPT` keys. What is shown is never too high: it
//! counts from when the key came on the list, so it is too low by at most what the least busy key
//! had then. A key that is no longer seen is gone when its last bucket has left the window.
//!
//! Beside each key stand its last decisions ([`trail`]), so that a denial can be explained later;
//! of denied keys that are not on the list, the last one ([`recent`]).
//!
//! Each worker has its own, of about half a megabyte at most; a view adds them up. Rejected: a
//! counter per key (unbounded), sampling (a short flood is exactly what one wants to see), one
//! count since the start that is halved now and then (who left long ago stays on top).

mod recent;
mod shown;
mod sketch;
mod trail;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use recent::Recent;
pub(crate) use shown::{Names, bytes_of_hex, hex, list, rates, record};
use sketch::Sketch;
use tollway_core::Timestamp;
pub(crate) use trail::Record;
use trail::Trail;

/// Keys on the list.
const KEPT: usize = 64;
/// Longer keys are listed by their first bytes.
const KEY_BYTES_SHOWN: usize = 128;
const BUCKET_MS: u64 = 10_000;
const BUCKET_NS: u64 = BUCKET_MS * 1_000_000;
/// Whole buckets in each window.
const MINUTE: u64 = 6;
const FIVE_MINUTES: u64 = 30;
/// The whole buckets of the longest window, the one that runs and the one that is leaving.
const RING: usize = 32;
/// Buckets in a generation of the sketch: what it knows is half a minute to a minute old.
const GENERATION: u64 = 3;

/// Keys and how often they were seen, most often in the last minute first.
pub(crate) type Ranking = Vec<Ranked>;

/// One key of a ranking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranked {
    /// Its first bytes.
    pub key: Vec<u8>,
    /// How it was allowed.
    pub allowed: Activity,
    /// How it was denied.
    pub denied: Activity,
}

/// How often a key was allowed, or denied, and what came of it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// How often.
    pub seen: Seen,
    /// The last time.
    pub last: Option<Record>,
}

/// The keys of one worker: those that were allowed and those that were denied.
#[derive(Debug)]
pub(crate) struct Tops {
    allowed: Top,
    denied: Top,
}

/// How often a key was seen in each window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    /// In the last minute.
    pub minute: u64,
    /// In the last five.
    pub five_minutes: u64,
}

impl Seen {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            minute: self.minute + other.minute,
            five_minutes: self.five_minutes + other.five_minutes,
        }
    }
}

impl Activity {
    fn plus(self, other: Self) -> Self {
        let last = [self.last, other.last].into_iter().flatten().max_by_key(|last| last.at);
        Self { seen: self.seen.plus(other.seen), last }
    }
}

impl Default for Tops {
    fn default() -> Self {
        Self {
            allowed: Top::default(),
            denied: Top { recent: Some(Recent::default()), ..Top::default() },
        }
    }
}

impl Tops {
    /// Counts a decision on `key`.
    #[inline]
    pub(crate) fn see(&mut self, key: &[u8], record: Record) {
        if record.reason.is_none() { &mut self.allowed } else { &mut self.denied }.see(key, record)
    }

    /// How often this key was allowed and denied.
    pub(crate) fn seen(&self, key: &[u8], now: Timestamp) -> [Seen; 2] {
        [&self.allowed, &self.denied].map(|top| top.seen_of(key, now))
    }

    /// The last denials of this key.
    pub(crate) fn denials(&self, key: &[u8]) -> Vec<Record> {
        self.denied.records(key)
    }
}

/// The most frequent keys of a stream.
#[derive(Debug)]
pub(crate) struct Top {
    kept: Vec<ListedKey>,
    index: Index,
    sketch: Sketch,
    /// What a newcomer's estimate must exceed: 0 until the list is full, then at most the lowest
    /// score on it, and at least 1.
    floor: u32,
    /// The bucket that runs: its number since the epoch.
    bucket: u64,
    /// What came last of keys that are not on the list, if it is kept.
    recent: Option<Recent>,
    hasher: RandomState,
}

#[derive(Debug)]
struct ListedKey {
    hash: u64,
    key: Box<[u8]>,
    /// What the sketch said of it when it came: it counts against newcomers for a minute, so that
    /// keys which only seem busy do not replace each other in turn. Never shown.
    credit: u32,
    credit_ends: u64,
    minute: u32,
    five_minutes: u32,
    ring: [u32; RING],
    trail: Trail,
}

/// Where on the list a hash is: open addressing, an eighth full at most. Beside each place stand
/// eight bits of the hash, so that a key which is not on the list is told from those that are
/// without a look at them.
#[derive(Debug)]
struct Index([(u8, u8); Index::LEN]);

impl Default for Top {
    fn default() -> Self {
        Self {
            kept: Vec::with_capacity(KEPT),
            index: Index::default(),
            sketch: Sketch::default(),
            floor: 0,
            bucket: 0,
            recent: None,
            hasher: RandomState::new(),
        }
    }
}

impl Top {
    /// Counts one sighting of `key`, and what came of it.
    #[inline]
    fn see(&mut self, key: &[u8], record: Record) {
        let bucket = record.at.as_nanos() / BUCKET_NS;
        if bucket != self.bucket {
            self.turn(bucket);
        }
        let hash = self.hasher.hash_one(key);
        match self.index.find(hash, &self.kept) {
            Some(place) => self.kept[place].see(self.bucket, record),
            None => {
                let estimate = self.sketch.add(hash, 1);
                if estimate > self.floor {
                    self.admit(hash, key, estimate, record);
                } else if let Some(recent) = &mut self.recent {
                    recent.note(hash, record);
                }
            }
        }
    }

    /// How often this key was seen since it came on the list; never, if it is not on it.
    fn seen_of(&self, key: &[u8], now: Timestamp) -> Seen {
        let place = self.index.find(self.hasher.hash_one(key), &self.kept);
        place.map(|place| self.windows(&self.kept[place], now)).unwrap_or_default()
    }

    /// What came of this key's last sightings.
    fn records(&self, key: &[u8]) -> Vec<Record> {
        let hash = self.hasher.hash_one(key);
        let place = self.index.find(hash, &self.kept);
        let mut records: Vec<Record> =
            place.map(|place| self.kept[place].trail.records().collect()).unwrap_or_default();
        records.extend(self.recent.as_ref().and_then(|recent| recent.of(hash)));
        records
    }

    /// The list, unordered, without those that were not seen in either window.
    fn listed(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Activity)> {
        let activity = move |kept: &ListedKey| {
            let last = kept.trail.records().max_by_key(|record| record.at);
            Activity { seen: self.windows(kept, now), last }
        };
        let all = self.kept.iter().map(move |kept| (&*kept.key, activity(kept)));
        all.filter(|(_, activity)| activity.seen.five_minutes > 0)
    }

    fn windows(&self, kept: &ListedKey, now: Timestamp) -> Seen {
        Seen {
            minute: self.seen(kept, MINUTE, now),
            five_minutes: self.seen(kept, FIVE_MINUTES, now),
        }
    }

    /// Sightings of a key in the last `window` buckets' time. The bucket that is leaving counts by
    /// the part of it that is still in the window, rounded up.
    fn seen(&self, kept: &ListedKey, window: u64, now: Timestamp) -> u64 {
        let now_ms = now.as_nanos() / 1_000_000;
        let last = (now_ms / BUCKET_MS).max(self.bucket);
        let leaving_ms = BUCKET_MS - now_ms.saturating_sub(last * BUCKET_MS).min(BUCKET_MS);
        let count_ms = |age: u64| {
            let bucket = last.checked_sub(age)?;
            let is_known = bucket <= self.bucket && self.bucket - bucket < RING as u64;
            let part_ms = if age == window { leaving_ms } else { BUCKET_MS };
            is_known.then(|| u64::from(kept.ring[bucket as usize % RING]) * part_ms)
        };
        (0..=window).filter_map(count_ms).sum::<u64>().div_ceil(BUCKET_MS)
    }

    /// Puts a newcomer on the list if there is room or it is busier than the least busy one.
    fn admit(&mut self, hash: u64, key: &[u8], estimate: u32, record: Record) {
        let key = &key[..key.len().min(KEY_BYTES_SHOWN)];
        if self.kept.len() < KEPT {
            self.kept.push(ListedKey::new(hash, key, estimate, self.bucket, record));
            self.index.insert(hash, self.kept.len() - 1);
        } else {
            // Scores grow without the floor being told.
            let Some((place, lowest)) = self.lowest() else { return };
            if estimate <= lowest {
                self.floor = lowest.max(1);
                if let Some(recent) = &mut self.recent {
                    recent.note(hash, record);
                }
                return;
            }
            let newcomer = ListedKey::new(hash, key, estimate, self.bucket, record);
            let gone = std::mem::replace(&mut self.kept[place], newcomer);
            // So that it can come back.
            self.sketch.add(gone.hash, gone.minute);
            self.remember(&gone);
            self.index = Index::of(&self.kept);
        }
        self.raise_floor();
    }

    /// Begins another bucket. A caller that read the clock before the last turn is counted in the
    /// bucket that runs; a clock that was set back by more starts the list anew.
    fn turn(&mut self, bucket: u64) {
        if bucket < self.bucket {
            if self.bucket - bucket == 1 {
                return;
            }
            self.kept.clear();
        }
        let generations = (bucket / GENERATION).abs_diff(self.bucket / GENERATION);
        (0..generations.min(2)).for_each(|_| self.sketch.turn());
        for kept in &mut self.kept {
            kept.turn(self.bucket, bucket);
        }
        let recent = &mut self.recent;
        self.kept.retain(|kept| {
            let stays = kept.five_minutes > 0;
            if !stays && let Some(recent) = recent {
                kept.trail.records().for_each(|record| recent.note(kept.hash, record));
            }
            stays
        });
        self.index = Index::of(&self.kept);
        self.bucket = bucket;
        self.raise_floor();
    }

    /// Keeps the last decision on a key that leaves the list.
    fn remember(&mut self, gone: &ListedKey) {
        if let Some(recent) = &mut self.recent {
            gone.trail.records().for_each(|record| recent.note(gone.hash, record));
        }
    }

    fn raise_floor(&mut self) {
        let lowest = self.lowest().filter(|_| self.kept.len() >= KEPT);
        self.floor = lowest.map_or(0, |(_, lowest)| lowest.max(1));
    }

    fn lowest(&self) -> Option<(usize, u32)> {
        let scores = self.kept.iter().map(|kept| kept.score(self.bucket)).enumerate();
        scores.min_by_key(|(_, score)| *score)
    }
}

impl ListedKey {
    /// A key at its first sighting on the list; the sketch has counted it until now.
    fn new(hash: u64, key: &[u8], estimate: u32, bucket: u64, record: Record) -> Self {
        let mut ring = [0; RING];
        ring[bucket as usize % RING] = 1;
        let (credit, credit_ends) = (estimate - 1, bucket + MINUTE);
        let trail = Trail::of(record);
        Self { hash, key: key.into(), credit, credit_ends, minute: 1, five_minutes: 1, ring, trail }
    }

    #[inline]
    fn see(&mut self, bucket: u64, record: Record) {
        self.trail.note(record);
        let count = &mut self.ring[bucket as usize % RING];
        *count = count.saturating_add(1);
        self.minute = self.minute.saturating_add(1);
        self.five_minutes = self.five_minutes.saturating_add(1);
    }

    /// The higher of its two rates: neither a burst that has just begun nor a steady key is lost.
    fn score(&self, bucket: u64) -> u32 {
        let credit = if bucket < self.credit_ends { self.credit } else { 0 };
        self.minute.saturating_add(credit).max(self.five_minutes / 5)
    }

    /// Empties the buckets from after `last` to `next`, and adds up what is left of each window.
    fn turn(&mut self, last: u64, next: u64) {
        for passed in (last + 1..=next).rev().take(RING) {
            self.ring[passed as usize % RING] = 0;
        }
        let sum = |buckets: u64| {
            let of_age = |age| next.checked_sub(age).map(|at| self.ring[at as usize % RING]);
            (0..buckets).filter_map(of_age).fold(0, u32::saturating_add)
        };
        (self.minute, self.five_minutes) = (sum(MINUTE), sum(FIVE_MINUTES + 1));
    }
}

impl Default for Index {
    fn default() -> Self {
        Self([(Self::NOBODY, 0); Self::LEN])
    }
}

impl Index {
    const LEN: usize = 8 * KEPT;
    const NOBODY: u8 = u8::MAX;

    fn of(kept: &[ListedKey]) -> Self {
        let mut index = Self::default();
        kept.iter().enumerate().for_each(|(place, kept)| index.insert(kept.hash, place));
        index
    }

    fn insert(&mut self, hash: u64, place: usize) {
        let free = Self::probes(hash).find(|&probe| self.0[probe].0 == Self::NOBODY);
        let free = free.expect("the list is shorter than its index");
        self.0[free] = (place as u8, Self::tag(hash));
    }

    #[inline]
    fn find(&self, hash: u64, kept: &[ListedKey]) -> Option<usize> {
        for probe in Self::probes(hash) {
            let (place, tag) = self.0[probe];
            if place == Self::NOBODY {
                return None;
            }
            if tag == Self::tag(hash) && kept[usize::from(place)].hash == hash {
                return Some(usize::from(place));
            }
        }
        None
    }

    /// Bits that choose neither the first probe nor a cell of the sketch.
    const fn tag(hash: u64) -> u8 {
        (hash >> 24) as u8
    }

    fn probes(hash: u64) -> impl Iterator<Item = usize> {
        (0..Self::LEN).map(move |step| (hash as usize).wrapping_add(step) % Self::LEN)
    }
}

/// The first `most` keys of several workers added up: by how often they were allowed, and by how
/// often they were denied.
pub(crate) fn rankings<'a>(
    workers: impl IntoIterator<Item = &'a Tops>,
    most: usize,
    now: Timestamp,
) -> [Ranking; 2] {
    let mut sums: HashMap<&[u8], [Activity; 2]> = HashMap::new();
    for tops in workers {
        for (index, top) in [&tops.allowed, &tops.denied].into_iter().enumerate() {
            for (key, activity) in top.listed(now) {
                let sum = &mut sums.entry(key).or_default()[index];
                *sum = sum.plus(activity);
            }
        }
    }
    [0, 1].map(|index| {
        let seen = |of: &[Activity; 2]| of[index].seen;
        let mut sorted: Vec<_> =
            sums.iter().filter(|(_, of)| seen(of) != Seen::default()).collect();
        sorted.sort_by(|(a, left), (b, right)| seen(right).cmp(&seen(left)).then_with(|| a.cmp(b)));
        let ranked = |(key, &[allowed, denied]): (&&[u8], &[Activity; 2])| Ranked {
            key: key.to_vec(),
            allowed,
            denied,
        };
        sorted.into_iter().take(most).map(ranked).collect()
    })
}

#[cfg(test)]
mod tests;
