//! The keys most often allowed and most often denied, by a sketch of bounded size.
//!
//! A count-min sketch estimates how often a key was seen (never too low, too high by at most
//! `e * seen / WIDTH` with probability `1 - 1/e^2`), and a short list keeps the keys with the
//! highest estimates. Halving all counts now and then lets yesterday's keys fall off.
//!
//! ```text
//!   key --hash--> row 0 [ . . 7 . ]   estimate = min over rows
//!             \-> row 1 [ 9 . . . ]   if above the smallest on the list, the key is on the list
//! ```
//!
//! Each worker has its own; a view adds them up. Rejected: a counter per key (unbounded), sampling
//! (a short flood is exactly what one wants to see).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

const WIDTH: usize = 4_096;
const ROWS: usize = 2;
/// Keys on the list.
const KEPT: usize = 64;
/// Longer keys are listed by their first bytes.
const KEY_BYTES_SHOWN: usize = 128;
/// After this many sightings all counts are halved.
const HALVE_AFTER: u64 = 1 << 22;

/// Keys and how often they were seen, most often first.
pub type Ranking = Vec<(Vec<u8>, u64)>;

/// The most frequent keys of a stream.
#[derive(Debug)]
pub struct Top {
    counts: Box<[[u32; WIDTH]; ROWS]>,
    kept: Vec<Kept>,
    /// The smallest estimate on a full list: what a newcomer must exceed.
    floor: u32,
    seen: u64,
    hasher: RandomState,
}

#[derive(Debug)]
struct Kept {
    hash: u64,
    key: Box<[u8]>,
    count: u32,
}

impl Default for Top {
    fn default() -> Self {
        Self {
            counts: Box::new([[0; WIDTH]; ROWS]),
            kept: Vec::with_capacity(KEPT),
            floor: 0,
            seen: 0,
            hasher: RandomState::new(),
        }
    }
}

impl Top {
    /// Counts one sighting of `key`.
    pub fn see(&mut self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        let estimate = self.count(hash);
        if estimate > self.floor {
            self.keep(hash, key, estimate);
        }
        self.seen += 1;
        if self.seen.is_multiple_of(HALVE_AFTER) {
            self.halve();
        }
    }

    /// The list, unordered.
    pub fn listed(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.kept.iter().map(|kept| (&*kept.key, u64::from(kept.count)))
    }

    fn count(&mut self, hash: u64) -> u32 {
        let mut estimate = u32::MAX;
        for (row, counts) in self.counts.iter_mut().enumerate() {
            let count = &mut counts[(hash >> (row * 32)) as usize % WIDTH];
            *count = count.saturating_add(1);
            estimate = estimate.min(*count);
        }
        estimate
    }

    fn keep(&mut self, hash: u64, key: &[u8], estimate: u32) {
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.hash == hash) {
            kept.count = estimate;
        } else {
            let key = key[..key.len().min(KEY_BYTES_SHOWN)].into();
            let newcomer = Kept { hash, key, count: estimate };
            let smallest = self.kept.iter_mut().min_by_key(|kept| kept.count);
            match smallest {
                Some(kept) if self.floor > 0 => *kept = newcomer,
                _ => self.kept.push(newcomer),
            }
        }
        if self.kept.len() == KEPT {
            self.floor = self.kept.iter().map(|kept| kept.count).min().unwrap_or(0);
        }
    }

    fn halve(&mut self) {
        self.counts.iter_mut().flatten().for_each(|count| *count /= 2);
        self.kept.iter_mut().for_each(|kept| kept.count /= 2);
        self.floor /= 2;
    }
}

/// The first `most` keys of several lists added up.
#[must_use]
pub fn ranking<'a>(tops: impl IntoIterator<Item = &'a Top>, most: usize) -> Ranking {
    let mut sums: HashMap<&[u8], u64> = HashMap::new();
    for (key, count) in tops.into_iter().flat_map(Top::listed) {
        *sums.entry(key).or_default() += count;
    }
    let mut ranking: Ranking = sums.into_iter().map(|(key, sum)| (key.to_vec(), sum)).collect();
    ranking.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    ranking.truncate(most);
    ranking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_keys_are_found_among_very_many_light_ones() {
        let mut top = Top::default();
        for round in 0..100_000u32 {
            top.see(format!("light-{round}").as_bytes());
            if round % 10 == 0 {
                top.see(b"heavy-1");
            }
            if round % 20 == 0 {
                top.see(b"heavy-2");
            }
        }
        let ranking = ranking([&top], 2);
        assert_eq!(ranking[0].0, b"heavy-1");
        assert_eq!(ranking[1].0, b"heavy-2");
        assert!((10_000..10_200).contains(&ranking[0].1), "{ranking:?}");
    }

    #[test]
    fn lists_of_several_workers_add_up() {
        let (mut one, mut two) = (Top::default(), Top::default());
        (0..3).for_each(|_| one.see(b"a"));
        (0..4).for_each(|_| two.see(b"b"));
        (0..2).for_each(|_| two.see(b"a"));
        let expected = vec![(b"a".to_vec(), 5), (b"b".to_vec(), 4)];
        assert_eq!(ranking([&one, &two], 10), expected);
    }

    #[test]
    fn the_list_and_its_keys_are_bounded() {
        let mut top = Top::default();
        for key in 0..10_000u32 {
            top.see(&[key.to_le_bytes().as_slice(), &[0; 1_000]].concat());
        }
        assert!(top.listed().count() <= KEPT);
        assert!(top.listed().all(|(key, _)| key.len() <= KEY_BYTES_SHOWN));
    }
}
