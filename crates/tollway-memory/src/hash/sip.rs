//! SipHash-1-3 with 128 bits of output: a keyed pseudo-random function of bytes.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// SipHash-1-3-128 of the eight bytes of `first` followed by `bytes`.
pub(crate) fn siphash([k0, k1]: [u64; 2], first: u64, bytes: &[u8]) -> [u64; 2] {
    let mut hasher = SipHasher13::new_with_keys(k0, k1);
    hasher.write(&first.to_le_bytes());
    hasher.write(bytes);
    halves(&hasher)
}

/// A running SipHash-1-3-128 of words, with no secret: it guards against accidents, not against who
/// can write a file.
pub(crate) struct Checksum(SipHasher13);

impl Checksum {
    pub(crate) fn new() -> Self {
        let mut checksum = Self(SipHasher13::new());
        // As it was in the first versions of the file, so that those are told from damaged ones.
        checksum.absorb(0);
        checksum
    }

    #[inline]
    pub(crate) fn absorb(&mut self, word: u64) {
        // Bytes of a fixed order: a file is read on machines of either.
        self.0.write(&word.to_le_bytes());
    }

    pub(crate) fn finish(self) -> [u64; 2] {
        halves(&self.0)
    }
}

fn halves(hasher: &SipHasher13) -> [u64; 2] {
    let hash = hasher.finish128();
    [hash.h1, hash.h2]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: [u64; 2] = [0xcd66_06f4_f63c_1aee, 0xa4b4_98c8_fc9f_be3b];
    const LONG: [u64; 2] = [0xb930_e177_b500_63f0, 0x9440_ec09_9111_f9d8];

    /// Computed by the implementation that wrote the first snapshot files: another value would make
    /// every file in use look damaged.
    #[test]
    fn the_hash_is_the_one_that_files_were_written_with() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(siphash([1, 2], 3, b""), EMPTY);
        assert_eq!(siphash([u64::MAX, 7], u64::MAX, &bytes), LONG);
    }

    proptest! {
        #[test]
        fn a_running_checksum_is_the_hash_of_all_words_at_once(words: Vec<u64>) {
            let mut checksum = Checksum::new();
            words.iter().for_each(|word| checksum.absorb(*word));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            prop_assert_eq!(checksum.finish(), siphash([0, 0], 0, &bytes));
        }
    }
}
