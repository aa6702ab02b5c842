//! GCRA as what it is equivalent to: a bucket of tokens that fills continuously, in fractions.

use num_bigint::BigInt;
use num_rational::BigRational;
use tollgate_core::gcra::Gcra;

use super::Model;

pub(super) struct Bucket {
    burst: BigRational,
    tokens_per_ns: BigRational,
    tokens: BigRational,
    filled_at: BigInt,
}

impl Bucket {
    pub(super) fn new(gcra: &Gcra) -> Self {
        let quota = gcra.quota();
        let burst = BigRational::from_integer(quota.burst().into());
        let period_ns = BigInt::from(quota.period().as_nanos());
        Self {
            tokens_per_ns: BigRational::new(quota.units().into(), period_ns),
            tokens: burst.clone(),
            burst,
            filled_at: BigInt::ZERO,
        }
    }

    fn tokens(&self, at: &BigInt) -> BigRational {
        let elapsed = BigRational::from_integer(at - &self.filled_at);
        (&self.tokens + elapsed * &self.tokens_per_ns).min(self.burst.clone())
    }

    fn set(&mut self, tokens: BigRational, at: &BigInt) {
        let empty = BigRational::from_integer(BigInt::ZERO);
        self.tokens = tokens.clamp(empty, self.burst.clone());
        self.filled_at = at.clone();
    }
}

impl Model for Bucket {
    fn free(&self, at: &BigInt) -> BigInt {
        self.tokens(at).floor().to_integer()
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.tokens(at) == self.burst
    }

    fn take(&mut self, units: &BigInt, _hold: u64, at: &BigInt) -> BigInt {
        let taken = units.clone().min(self.free(at));
        self.set(self.tokens(at) - BigRational::from_integer(units.clone()), at);
        taken
    }

    fn give_back(&mut self, units: &BigInt, _taken_at: Option<&BigInt>, at: &BigInt) {
        self.set(self.tokens(at) + BigRational::from_integer(units.clone()), at);
    }
}
