//! GCRA as what it is equivalent to: a bucket of tokens that fills continuously, in fractions.

use num_bigint::BigInt;
use num_rational::BigRational;
use tollway_core::gcra::Gcra;

use super::Model;
use super::change::Remains;

pub(super) struct Bucket {
    burst: BigRational,
    ns_per_token: BigRational,
    /// When the bucket is full if nobody asks any more; `None` if nobody ever did.
    full_at: Option<BigRational>,
}

impl Bucket {
    pub(super) fn new(gcra: &Gcra) -> Self {
        let quota = gcra.quota();
        let period_ns = BigInt::from(quota.period().as_nanos());
        let ns_per_token = BigRational::new(period_ns, quota.units().into());
        Self::of(whole(&quota.burst().into()), ns_per_token)
    }

    /// A bucket of so many tokens.
    pub(super) fn of(burst: BigRational, ns_per_token: BigRational) -> Self {
        Self { burst, ns_per_token, full_at: None }
    }

    /// How many tokens it holds when it is full.
    pub(super) fn size(&self) -> BigInt {
        self.burst.to_integer()
    }

    /// Tokens that are there for somebody with the reading `at`: fewer if he comes late, because
    /// what was taken since is gone and what was filled since is not his.
    fn tokens(&self, at: &BigInt) -> BigRational {
        let until_full = (self.full_at(at) - whole(at)) / &self.ns_per_token;
        (&self.burst - until_full).max(whole(&BigInt::ZERO))
    }

    fn full_at(&self, at: &BigInt) -> BigRational {
        self.full_at.clone().unwrap_or_else(|| whole(at)).max(whole(at))
    }

    fn duration(&self, units: &BigInt) -> BigRational {
        whole(units) * &self.ns_per_token
    }
}

impl Bucket {
    /// The bucket of which so many tokens were used as of `at`. What a token takes is counted in
    /// whole ticks, of which a nanosecond has as many as there are units, both reduced.
    pub(super) fn having_used(gcra: &Gcra, used: &BigRational, at: &BigInt) -> Self {
        let bucket = Self::new(gcra);
        let tick = BigRational::new(1.into(), bucket.ns_per_token.denom().clone());
        let ticks = (used * &bucket.ns_per_token / &tick).ceil();
        Self { full_at: Some(whole(at) + ticks * tick), ..bucket }
    }
}

impl Model for Bucket {
    fn remains(&self, at: &BigInt) -> Remains {
        Remains::Units((self.full_at(at) - whole(at)) / &self.ns_per_token)
    }

    fn free(&self, at: &BigInt) -> BigInt {
        self.tokens(at).floor().to_integer()
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.full_at(at) == whole(at)
    }

    fn take(&mut self, units: &BigInt, _hold: u64, at: &BigInt) -> BigInt {
        let taken = units.clone().min(self.free(at));
        let before = self.full_at(at);
        let empty = whole(at) + &self.burst * &self.ns_per_token;
        self.full_at = Some((&before + self.duration(units)).min(empty.max(before)));
        taken
    }

    fn give_back(&mut self, units: &BigInt, _taken_at: Option<&BigInt>, at: &BigInt) {
        if !self.is_new(at) {
            self.full_at = Some((self.full_at(at) - self.duration(units)).max(whole(at)));
        }
    }

    fn clear(&mut self, at: &BigInt) {
        self.full_at = self.full_at.take().map(|_| whole(at));
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        at.clone()
    }
}

fn whole(number: &BigInt) -> BigRational {
    BigRational::from_integer(number.clone())
}
