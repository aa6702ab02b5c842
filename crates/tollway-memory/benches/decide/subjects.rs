//! What is compared. Each runs a stream through one limiter and counts what was allowed.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState as FoldHash;
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use tollway_core::{Charge, Clock, Key, Policy};
use tollway_memory::{Capacity, Limiter, SystemClock};

use crate::stream::{Mix, Stream};

pub(crate) trait Subject: Sync {
    fn name(&self) -> &'static str;
    fn run(&self, stream: &Stream<'_>) -> usize;
}

/// Every subject with room for `keys`.
pub(crate) fn all(keys: usize, mix: Mix) -> Vec<Box<dyn Subject>> {
    NAMES.iter().map(|name| named(name, keys, mix)).collect()
}

pub(crate) const NAMES: [&str; 7] = [
    "floor: hash, array, clock",
    "tollway String",
    "tollway String, batch",
    "tollway [u8; 20]",
    "governor String",
    "governor [u8; 20]",
    "governor [u8; 20] foldhash",
];

pub(crate) fn named(name: &str, keys: usize, mix: Mix) -> Box<dyn Subject> {
    let quota = governor_quota(mix);
    match name {
        "floor: hash, array, clock" => Box::new(Floor::new(keys)),
        "tollway String" => Box::new(Tollway::new(keys, mix)),
        "tollway [u8; 20]" => Box::new(TollwayArray(Tollway::new(keys, mix).0)),
        "tollway String, batch" => {
            Box::new(TollwayBatch { limiter: Tollway::new(keys, mix).0, clock: SystemClock::new() })
        }
        "governor String" => Box::new(GovernorString(RateLimiter::dashmap(quota))),
        "governor [u8; 20]" => Box::new(GovernorArray(RateLimiter::dashmap(quota))),
        _ => Box::new(GovernorFold(RateLimiter::dashmap_with_hasher(quota, FoldHash::default()))),
    }
}

/// Allow: a burst larger than the stream, refilled slowly, so that every key has a state worth
/// keeping. Deny: one per key and hour.
fn governor_quota(mix: Mix) -> Quota {
    let number = |number| NonZeroU32::new(number).expect("not zero");
    match mix {
        Mix::Allow => Quota::per_hour(number(1_000)).allow_burst(number(100_000_000)),
        Mix::Deny => Quota::per_hour(NonZeroU32::MIN),
    }
}

fn tollway_quota(mix: Mix) -> &'static str {
    if mix == Mix::Allow { "1000/1h burst 100000000" } else { "1/1h" }
}

/// The least that any keyed limiter does: hash the key, read a clock, write one word.
struct Floor {
    words: Vec<AtomicU64>,
    hash: FoldHash,
    clock: SystemClock,
}

impl Floor {
    fn new(keys: usize) -> Self {
        let words = (0..(keys * 2).next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
        Self { words, hash: FoldHash::default(), clock: SystemClock::new() }
    }
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        NAMES[0]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        use std::hash::BuildHasher;
        for key in stream.strings.iter() {
            let at = self.hash.hash_one(key.as_bytes()) as usize & (self.words.len() - 1);
            self.words[at].fetch_max(self.clock.now().as_nanos(), Ordering::Relaxed);
        }
        stream.len()
    }
}

struct Tollway(Limiter);

impl Tollway {
    fn new(keys: usize, mix: Mix) -> Self {
        let policy = Policy::parse("bench", tollway_quota(mix)).expect("the quota is valid");
        Self(Limiter::with_policy(policy, Capacity::keys(keys)))
    }
}

impl Subject for Tollway {
    fn name(&self) -> &'static str {
        NAMES[1]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        stream.strings.iter().filter(|key| self.0.check(key).is_allowed()).count()
    }
}

struct TollwayArray(Limiter);

impl Subject for TollwayArray {
    fn name(&self) -> &'static str {
        NAMES[3]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        stream.arrays.iter().filter(|key| self.0.check(key).is_allowed()).count()
    }
}

struct TollwayBatch {
    limiter: Limiter,
    clock: SystemClock,
}

impl Subject for TollwayBatch {
    fn name(&self) -> &'static str {
        NAMES[2]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        let mut decisions = Vec::with_capacity(64);
        let mut charges = Vec::with_capacity(64);
        let mut allowed = 0;
        for keys in stream.strings.chunks(64) {
            let key = |key| Key::new(key).expect("keys are not empty");
            charges.clear();
            charges.extend(keys.iter().map(|name| Charge::new(self.limiter.policy(), key(name))));
            decisions.clear();
            self.limiter.store().check_batch(&charges, self.clock.now(), &mut decisions);
            allowed += decisions.iter().filter(|decision| decision.is_allowed()).count();
        }
        allowed
    }
}

type Governor<K, S> = RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>;
type SipHash = std::hash::RandomState;

struct GovernorString(Governor<String, SipHash>);
struct GovernorArray(Governor<[u8; 20], SipHash>);
struct GovernorFold(Governor<[u8; 20], FoldHash>);

impl Subject for GovernorString {
    fn name(&self) -> &'static str {
        NAMES[4]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        stream.strings.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}

impl Subject for GovernorArray {
    fn name(&self) -> &'static str {
        NAMES[5]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        stream.arrays.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}

impl Subject for GovernorFold {
    fn name(&self) -> &'static str {
        NAMES[6]
    }

    fn run(&self, stream: &Stream<'_>) -> usize {
        stream.arrays.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}
