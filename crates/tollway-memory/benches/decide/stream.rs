//! Streams of keys as a server meets them: the bytes are at hand when the check is made.

use std::borrow::Cow;

/// Which keys come, and how often each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    Hot,
    Uniform10k,
    Zipf1M,
    Uniform10M,
}

/// Whether checks are allowed or denied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Allow,
    Deny,
}

impl Mix {
    pub(crate) fn name(self) -> &'static str {
        if self == Self::Allow { "allow" } else { "deny" }
    }
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "one hot",
            Self::Uniform10k => "10k uniform",
            Self::Zipf1M => "1M Zipf",
            Self::Uniform10M => "10M uniform",
        }
    }

    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Hot => 1,
            Self::Uniform10k => 10_000,
            Self::Zipf1M => 1_000_000,
            Self::Uniform10M => 10_000_000,
        }
    }
}

/// Keys of 20 bytes, as arrays and as strings, in the order in which they come.
pub(crate) struct Stream<'a> {
    keys: usize,
    pub(crate) arrays: Cow<'a, [[u8; 20]]>,
    pub(crate) strings: Cow<'a, [String]>,
}

const CHECKS: usize = 1 << 20;

impl Stream<'static> {
    pub(crate) fn new(workload: Workload) -> Self {
        let keys = workload.keys();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let zipf = Zipf::new(if workload == Workload::Zipf1M { keys } else { 1 });
        let next = |_| match workload {
            Workload::Zipf1M => zipf.sample(random.unit()),
            _ => (random.next() % keys as u64) as usize,
        };
        Self::of(keys, (0..CHECKS).map(next))
    }

    /// Every key of the workload once.
    pub(crate) fn every_key(&self) -> Self {
        Self::of(self.keys, 0..self.keys)
    }

    fn of(keys: usize, numbers: impl Iterator<Item = usize>) -> Self {
        let arrays: Vec<[u8; 20]> = numbers.map(key).collect();
        let string = |key: &[u8; 20]| String::from_utf8(key.to_vec()).expect("keys are ASCII");
        let strings: Vec<String> = arrays.iter().map(string).collect();
        Self { keys, arrays: Cow::Owned(arrays), strings: Cow::Owned(strings) }
    }
}

impl Stream<'_> {
    pub(crate) fn len(&self) -> usize {
        self.arrays.len()
    }

    /// One of `parts` equal parts.
    pub(crate) fn part(&self, at: usize, parts: usize) -> Stream<'_> {
        let range = self.len() * at / parts..self.len() * (at + 1) / parts;
        Stream {
            keys: self.keys,
            arrays: Cow::Borrowed(&self.arrays[range.clone()]),
            strings: Cow::Borrowed(&self.strings[range]),
        }
    }
}

/// Numbers are spread by a multiplication, so that popular keys are not neighbours.
fn key(number: usize) -> [u8; 20] {
    let spread = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("user{spread:016x}").into_bytes().try_into().expect("4 + 16 bytes")
}

/// Zipf's law with exponent 0.99, by a table of its cumulative weights.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: usize) -> Self {
        let weights = (1..=keys).map(|rank| (rank as f64).powf(-0.99));
        let mut total = 0.0;
        let sums: Vec<f64> = weights
            .map(|weight| {
                total += weight;
                total
            })
            .collect();
        Self(sums.into_iter().map(|sum| sum / total).collect())
    }

    fn sample(&self, unit: f64) -> usize {
        self.0.partition_point(|sum| *sum < unit).min(self.0.len() - 1)
    }
}

/// A small generator: the streams are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
