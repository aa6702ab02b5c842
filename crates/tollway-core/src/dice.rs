//! A small seeded generator: the same seed throws the same numbers on every machine.

/// SplitMix64, the generator of Steele, Lea and Flood.
///
/// Written here because results must not change with a dependency's version. Not for secrets.
///
/// ```
/// use tollway_core::dice::Dice;
///
/// let (mut one, mut other) = (Dice::new(7), Dice::new(7));
/// assert_eq!(one.next_u64(), other.next_u64());
/// assert!((0.0..1.0).contains(&one.unit()));
/// ```
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// The generator that `seed` names.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator for the actor `index`, independent of this one and of its other children.
    pub fn child(&self, index: u64) -> Self {
        // Hash the seed before adding the index: children of neighbouring seeds would otherwise
        // be the same streams, shifted by one actor.
        let mut parent = Self { state: self.state };
        let base = parent.next_u64();
        let mut child = Self { state: base ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03) };
        Self { state: child.next_u64() }
    }

    /// Sixty-four random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to but not including 1, of 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // Reference output of SplitMix64 for the seed 1234567.
        let mut dice = Dice::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| dice.next_u64()).collect();
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn children_of_neighbouring_seeds_do_not_share_streams() {
        let mut first: Vec<u64> = Vec::new();
        for seed in 0..50 {
            for index in 0..50 {
                first.push(Dice::new(seed).child(index).next_u64());
            }
        }
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 2_500);
    }
}
