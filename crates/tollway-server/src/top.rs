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
//! Each worker has its own; a view adds them up. Rejected: a counter per key (unbounded), sampling
//! (a short flood is exactly what one wants to see), one count since the start that is halved now
//! and then (who left long ago stays on top of who is here).

mod sketch;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use sketch::Sketch;
use tollway_core::Timestamp;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranked {
    /// Its first bytes.
    pub key: Vec<u8>,
    /// How often it was seen.
    pub seen: Seen,
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
    /// Sightings per minute over the last five minutes.
    pub(crate) fn five_minute_rate(self) -> f64 {
        self.five_minutes as f64 / 5.0
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
            hasher: RandomState::new(),
        }
    }
}

impl Top {
    /// Counts one sighting of `key`.
    #[inline]
    pub(crate) fn see(&mut self, key: &[u8], now: Timestamp) {
        let bucket = now.as_nanos() / BUCKET_NS;
        if bucket != self.bucket {
            self.turn(bucket);
        }
        let hash = self.hasher.hash_one(key);
        match self.index.find(hash, &self.kept) {
            Some(place) => self.kept[place].see(self.bucket),
            None => {
                let estimate = self.sketch.add(hash, 1);
                if estimate > self.floor {
                    self.admit(hash, key, estimate);
                }
            }
        }
    }

    /// The list, unordered, without those that were not seen in either window.
    pub(crate) fn listed(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Seen)> {
        let seen = move |kept: &ListedKey| Seen {
            minute: self.seen(kept, MINUTE, now),
            five_minutes: self.seen(kept, FIVE_MINUTES, now),
        };
        let all = self.kept.iter().map(move |kept| (&*kept.key, seen(kept)));
        all.filter(|(_, seen)| seen.five_minutes > 0)
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
    fn admit(&mut self, hash: u64, key: &[u8], estimate: u32) {
        let key = &key[..key.len().min(KEY_BYTES_SHOWN)];
        if self.kept.len() < KEPT {
            self.kept.push(ListedKey::new(hash, key, estimate, self.bucket));
            self.index.insert(hash, self.kept.len() - 1);
        } else {
            // Scores grow without the floor being told.
            let Some((place, lowest)) = self.lowest() else { return };
            if estimate <= lowest {
                self.floor = lowest.max(1);
                return;
            }
            let newcomer = ListedKey::new(hash, key, estimate, self.bucket);
            let gone = std::mem::replace(&mut self.kept[place], newcomer);
            // So that it can come back.
            self.sketch.add(gone.hash, gone.minute);
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
        self.kept.retain(|kept| kept.five_minutes > 0);
        self.index = Index::of(&self.kept);
        self.bucket = bucket;
        self.raise_floor();
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
    fn new(hash: u64, key: &[u8], estimate: u32, bucket: u64) -> Self {
        let mut ring = [0; RING];
        ring[bucket as usize % RING] = 1;
        let (credit, credit_ends) = (estimate - 1, bucket + MINUTE);
        Self { hash, key: key.into(), credit, credit_ends, minute: 1, five_minutes: 1, ring }
    }

    #[inline]
    fn see(&mut self, bucket: u64) {
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

/// The first `most` keys of several lists added up.
pub(crate) fn ranking<'a>(
    tops: impl IntoIterator<Item = &'a Top>,
    most: usize,
    now: Timestamp,
) -> Ranking {
    let mut sums: HashMap<&[u8], Seen> = HashMap::new();
    for (key, seen) in tops.into_iter().flat_map(|top| top.listed(now)) {
        let sum = sums.entry(key).or_default();
        sum.minute += seen.minute;
        sum.five_minutes += seen.five_minutes;
    }
    let ranked = |(key, seen): (&[u8], Seen)| Ranked { key: key.to_vec(), seen };
    let mut ranking: Ranking = sums.into_iter().map(ranked).collect();
    ranking.sort_by(|a, b| b.seen.cmp(&a.seen).then_with(|| a.key.cmp(&b.key)));
    ranking.truncate(most);
    ranking
}

#[cfg(test)]
mod tests;
