//! SipHash-1-3 with 128 bits of output: a keyed pseudo-random function of bytes.

/// SipHash-1-3-128 of the eight bytes of `first` followed by `bytes`.
pub(crate) fn siphash(key: [u64; 2], first: u64, bytes: &[u8]) -> [u64; 2] {
    let mut state = Sip::new(key);
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

/// A running SipHash-1-3-128 of words, with no secret: it guards against accidents, not against who
/// can write a file.
pub(crate) struct Checksum {
    state: Sip,
    bytes: u64,
}

impl Checksum {
    pub(crate) const fn new() -> Self {
        let mut checksum = Self { state: Sip::new([0, 0]), bytes: 0 };
        // As it was in the first versions of the file, so that those are told from damaged ones.
        checksum.absorb(0);
        checksum
    }

    #[inline]
    pub(crate) const fn absorb(&mut self, word: u64) {
        self.state.absorb(word);
        self.bytes = self.bytes.wrapping_add(8);
    }

    pub(crate) const fn finish(mut self) -> [u64; 2] {
        self.state.absorb(self.bytes << 56);
        self.state.finish()
    }
}

struct Sip([u64; 4]);

impl Sip {
    const fn new([k0, k1]: [u64; 2]) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    const fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

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

    const fn squeeze(&mut self) -> u64 {
        self.round();
        self.round();
        self.round();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    const fn finish(mut self) -> [u64; 2] {
        self.0[2] ^= 0xee;
        let first = self.squeeze();
        self.0[1] ^= 0xdd;
        [first, self.squeeze()]
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip128::{Hasher128, SipHasher13};

    use super::*;

    proptest! {
        #[test]
        fn the_hash_is_siphash_1_3_with_128_bits(
            key: [u64; 2],
            first: u64,
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut reference = SipHasher13::new_with_keys(key[0], key[1]);
            reference.write(&first.to_le_bytes());
            reference.write(&bytes);
            let expected = reference.finish128();
            prop_assert_eq!(siphash(key, first, &bytes), [expected.h1, expected.h2]);
        }

        #[test]
        fn a_running_checksum_is_the_hash_of_all_words_at_once(words: Vec<u64>) {
            let mut checksum = Checksum::new();
            words.iter().for_each(|word| checksum.absorb(*word));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            prop_assert_eq!(checksum.finish(), siphash([0, 0], 0, &bytes));
        }
    }
}
