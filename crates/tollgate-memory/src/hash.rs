//! Fingerprints of keys: SipHash-1-3 with 128 bits of output and a secret seed.
//!
//! Keys are chosen by strangers, so the hash is a keyed pseudo-random function: who does not know
//! the seed can neither crowd one bucket nor find two keys that share a limit. 64 of the bits are
//! stored as a tag and the other 64 choose the bucket, so two of `n` keys share a state with
//! probability below `n² / 2^(64 + log2(buckets / reach))`: 10⁻¹¹ for ten million keys.
//!
//! Rejected: a faster unkeyed hash (hash flooding), 64 bits in all (a collision in a few hundred
//! million pairs is certain), the key itself in the table (twice the memory, and a pointer to
//! follow).

use std::hash::{BuildHasher, Hasher, RandomState};

/// The secret that makes fingerprints unpredictable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) [u64; 2]);

/// 128 bits that stand for a policy and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    /// What is stored; never zero, which marks a slot that was never used.
    pub(crate) tag: u64,
    /// What chooses the place.
    pub(crate) place: u64,
}

impl Seed {
    /// A seed from the operating system's randomness.
    pub(crate) fn random() -> Self {
        let word = || RandomState::new().build_hasher().finish();
        Self([word(), word()])
    }

    /// The fingerprint of `key` under the policy with this id.
    #[inline]
    pub(crate) fn fingerprint(self, policy_id: u64, key: &[u8]) -> Fingerprint {
        let [tag, place] = self.hash(policy_id, key);
        Fingerprint { tag: tag.max(1), place }
    }

    /// SipHash-1-3-128 of the eight bytes of `first` followed by `bytes`.
    #[inline]
    pub(crate) fn hash(self, first: u64, bytes: &[u8]) -> [u64; 2] {
        let mut state = Sip::new(self.0);
        state.absorb(first);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state.absorb(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length modulo 256 goes on top: the rest has at most seven bytes.
        last[7] = (bytes.len() as u64).wrapping_add(8) as u8;
        state.absorb(u64::from_le_bytes(last));
        state.finish()
    }
}

struct Sip([u64; 4]);

impl Sip {
    #[inline]
    const fn new([k0, k1]: [u64; 2]) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    const fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    #[inline]
    const fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }

    #[inline]
    const fn squeeze(&mut self) -> u64 {
        self.round();
        self.round();
        self.round();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    #[inline]
    const fn finish(mut self) -> [u64; 2] {
        self.0[2] ^= 0xee;
        let first = self.squeeze();
        self.0[1] ^= 0xdd;
        [first, self.squeeze()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use siphasher::sip128::{Hasher128, SipHasher13};

    use super::*;

    proptest! {
        #[test]
        fn the_hash_is_siphash_1_3_with_128_bits(
            seed: [u64; 2],
            first: u64,
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut reference = SipHasher13::new_with_keys(seed[0], seed[1]);
            reference.write(&first.to_le_bytes());
            reference.write(&bytes);
            let expected = reference.finish128();
            prop_assert_eq!(Seed(seed).hash(first, &bytes), [expected.h1, expected.h2]);
        }
    }

    #[test]
    fn two_seeds_disagree() {
        let (one, other) = (Seed::random(), Seed::random());
        assert_ne!(one.hash(1, b"alice"), other.hash(1, b"alice"));
    }
}
