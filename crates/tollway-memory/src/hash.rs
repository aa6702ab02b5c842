//! Fingerprints of keys: a universal hash with a secret, halved to 64 bits.
//!
//! The bytes are read as pairs of words; a sum of products is halved to a tag:
//!
//! ```text
//!   sum  = Σ (a + r)·(b + r')  mod 2^128          for each pair (a, b), its own secret words r, r'
//!   tag  = ((r1 + low(sum))·(r2 + high(sum)) + r0)  mod 2^128  >> 64    r0, r1, r2: 128 bits each
//! ```
//!
//! The first line is NH, the hash inside UMAC and VMAC: over the choice of the secret, two
//! different inputs have the same sum with probability at most 2⁻⁶³. The second is
//! pair-multiply-shift of Dietzfelbinger and Thorup: different sums get independent, uniform
//! values. So this is a theorem and not a hope about mixing: no set of keys chosen without the
//! secret crowds a bucket more than a random one, and two of `n` keys share a state with
//! probability below `n² / 2^63`: 1.1·10⁻⁷ for a million keys, 1.1·10⁻⁵ for ten (pairs, times 2⁻⁶³
//! for equal sums and 2⁻⁶⁴ for equal tags of different ones). The secret never leaves the process
//! (but for its snapshot file), and no answer shows a hash.
//!
//! The tag is stored, with a mark of the policy's numbers added to it (`numbers.rs`), and the place
//! of a key follows from the rest of it: a slot tells by itself where its key is at home in a table
//! of any size. The mark is no part of what is hashed, and does not change the odds above: two
//! values that are uniform and independent differ by a given mark as seldom as they are equal.
//!
//! Keys longer than [`PAIRS`] pairs are first shortened to 128 bits by SipHash-1-3, a keyed
//! pseudo-random function.
//!
//! Rejected: a second half for the place (the sum's 2⁻⁶³ is there all the same, at an eighth of the
//! instructions of a check, and a table could not grow), SipHash for all keys (three times the
//! instructions), unproven fast hashes (hash flooding), the key itself in the table (twice the
//! memory, and a pointer to follow).

mod sip;

use std::hash::{BuildHasher, Hasher, RandomState};

pub(crate) use sip::{Checksum, siphash};

/// The secret that makes fingerprints unpredictable, and where it comes from.
#[derive(Clone)]
pub(crate) struct Seed {
    pub(crate) words: [u64; 2],
    secret: Box<Secret>,
}

/// What is drawn from the seed.
#[derive(Clone)]
struct Secret {
    /// For each pair of words: `r` and `r'`.
    pairs: [[u64; 2]; PAIRS + 1],
    /// `r0`, `r1` and `r2`.
    halving: [u128; 3],
}

/// What stands for a policy and a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    /// What is stored, and says where; never zero, which marks a slot that was never used.
    pub(crate) tag: u64,
    /// The part of the tag that stands for the policy's numbers:
    /// [`Policy::numbers_mark`](tollway_core::Policy::numbers_mark).
    pub(crate) mark: u64,
    /// Whose room the key takes: [`Policy::name_id`](tollway_core::Policy::name_id).
    pub(crate) owner: u64,
}

impl Fingerprint {
    /// What all fingerprints of this key have in common, whatever the numbers.
    pub(crate) const fn of_key(self) -> u64 {
        self.tag ^ self.mark
    }

    /// The same key under the numbers of another mark.
    pub(crate) const fn marked(self, mark: u64) -> Self {
        Self { tag: self.of_key() ^ mark, mark, owner: self.owner }
    }
}

/// The longest key that is hashed as it is, in pairs of words: 64 bytes.
const PAIRS: usize = 4;

impl Seed {
    /// A seed from the operating system's randomness.
    pub(crate) fn random() -> Self {
        let word = || RandomState::new().build_hasher().finish();
        Self::new([word(), word()])
    }

    /// The seed that `words` stand for: the secret is drawn from them by SipHash.
    pub(crate) fn new(words: [u64; 2]) -> Self {
        let mut count = 0;
        let mut draw = || {
            count += 1;
            siphash(words, count, b"secret")
        };
        let pairs = std::array::from_fn(|_| draw());
        let mut wide = || {
            let [low, high] = draw();
            u128::from(low) | u128::from(high) << 64
        };
        let halving = std::array::from_fn(|_| wide());
        Self { words, secret: Box::new(Secret { pairs, halving }) }
    }

    /// The tag of `key` in a family of policies, under the numbers of a mark. The mark is asked for
    /// last: held in a register while the key is hashed, it would push something else out.
    #[inline(always)]
    pub(crate) fn tag(&self, family: u64, key: &[u8], mark: impl FnOnce() -> u64) -> u64 {
        let hash = self.hash(family, key);
        // Zero once in 2^64; then the key has the place of another, as any may.
        (hash ^ mark()).max(1)
    }

    #[inline(always)]
    fn hash(&self, policy_id: u64, key: &[u8]) -> u64 {
        let [of_head, of_tail, of_first, ..] = &self.secret.pairs;
        let mut sum = 0;
        add(&mut sum, of_head, [policy_id, key.len() as u64]);
        if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
            // The last bytes overlap the others; together with the length they say it all.
            add(&mut sum, of_tail, pair(last));
            add(&mut sum, of_first, pair(first));
            if key.len() > 32 {
                return self.tag_long(sum, policy_id, key);
            }
        } else {
            add(&mut sum, of_tail, short(key));
        }
        self.halve(sum)
    }

    /// Adds what lies between the first and the last sixteen bytes, and has the last word: keys of
    /// usual length do not pay for the registers this takes.
    #[inline(never)]
    fn tag_long(&self, mut sum: u128, policy_id: u64, key: &[u8]) -> u64 {
        let of_middle = &self.secret.pairs[3..];
        if key.len() > PAIRS * 16 {
            add(&mut sum, &of_middle[0], siphash(self.words, policy_id, key));
            return self.halve(sum);
        }
        let (middle, _) = key[16..key.len() - 1].as_chunks();
        for (chunk, secret) in middle.iter().zip(of_middle) {
            add(&mut sum, secret, pair(chunk));
        }
        self.halve(sum)
    }

    #[inline]
    fn halve(&self, sum: u128) -> u64 {
        let [r0, r1, r2] = &self.secret.halving;
        let (low, high) = (u128::from(sum as u64), sum >> 64);
        let mixed = r1.wrapping_add(low).wrapping_mul(r2.wrapping_add(high)).wrapping_add(*r0);
        (mixed >> 64) as u64
    }
}

#[inline]
fn add(sum: &mut u128, [r, s]: &[u64; 2], [a, b]: [u64; 2]) {
    let product = u128::from(a.wrapping_add(*r)) * u128::from(b.wrapping_add(*s));
    *sum = sum.wrapping_add(product);
}

#[inline]
fn pair(bytes: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*bytes);
    [both as u64, (both >> 64) as u64]
}

/// Fewer than sixteen bytes as a pair, overlapping where there are more than eight.
#[inline]
fn short(key: &[u8]) -> [u64; 2] {
    match (key.first_chunk(), key.last_chunk()) {
        (Some(first), Some(last)) => [u64::from_le_bytes(*first), u64::from_le_bytes(*last)],
        _ => [key.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn different_keys_and_policies_have_different_tags(
            one in proptest::collection::vec(any::<u8>(), 1..80),
            other in proptest::collection::vec(any::<u8>(), 1..80),
            ids: [u64; 2],
        ) {
            let seed = Seed::new([1, 2]);
            let tag = seed.hash(ids[0], &one);
            prop_assert_eq!(one == other, tag == seed.hash(ids[0], &other));
            prop_assert_eq!(ids[0] == ids[1], tag == seed.hash(ids[1], &one));
        }
    }

    #[test]
    fn every_length_and_every_single_bit_count() {
        let seed = Seed::random();
        let mut seen = HashSet::new();
        let mut distinct = 0;
        for len in 1..100 {
            let mut key = vec![0; len];
            distinct += 1 + len * 8;
            seen.insert(seed.hash(0, &key));
            for bit in 0..len * 8 {
                key[bit / 8] ^= 1 << (bit % 8);
                seen.insert(seed.hash(0, &key));
                key[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(seen.len(), distinct);
    }

    #[test]
    fn consecutive_keys_spread_over_places_like_random_ones() {
        let seed = Seed::new([3, 4]);
        let mut counts = [0u32; 256];
        for number in 0..256_000u32 {
            let key = format!("user:{number:08}");
            counts[(seed.hash(7, key.as_bytes()) >> 56) as usize] += 1;
        }
        // A thousand each on average; a random one deviates by more than 200 once in 10^9 runs.
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn two_seeds_disagree() {
        let (one, other) = (Seed::random(), Seed::random());
        assert_ne!(one.hash(1, b"alice"), other.hash(1, b"alice"));
    }
}
