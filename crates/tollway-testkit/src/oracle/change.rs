//! Numbers that change: what a model leaves behind, and the model that is made of it.

use num_bigint::BigInt;
use num_rational::BigRational;
use tollway_core::{Algorithm, OnChange};

use super::concurrency::Holds;
use super::{
    Model, calendar_window, concurrency, fixed_window, gcra, leaky_bucket, sliding_window,
};

/// What is left of a model when its numbers change.
pub(super) enum Remains {
    /// Units, with a fraction.
    Units(BigRational),
    Drips {
        level: BigInt,
        interval: BigInt,
        next_drip: BigInt,
    },
    Window {
        start: BigInt,
        used: BigInt,
    },
    /// When, and how much.
    Admitted(Vec<(BigInt, BigInt)>),
    Holds(Holds),
}

impl Remains {
    fn units(&self, at: &BigInt) -> BigRational {
        let whole = BigRational::from_integer;
        match self {
            Self::Units(units) => units.clone(),
            Self::Drips { level, .. } => whole(level.clone()),
            Self::Window { used, .. } => whole(used.clone()),
            Self::Admitted(admitted) => whole(admitted.iter().map(|(_, units)| units).sum()),
            Self::Holds(holds) => whole(holds.held(at)),
        }
    }
}

/// The model of a key whose numbers were `old` under the newer numbers `new`.
pub(super) fn carried(
    model: &dyn Model,
    old: &Algorithm,
    new: &Algorithm,
    rule: OnChange,
    at: &BigInt,
) -> Box<dyn Model> {
    let at = &model.moment(at);
    let remains = model.remains(at);
    let used = remains.units(at);
    let share = BigRational::new(new.limit().into(), old.limit().into());
    let shared = |units: BigRational| match rule {
        OnChange::Proportional => units * &share,
        _ => units,
    };
    let is_bucket = matches!(new, Algorithm::Gcra(_) | Algorithm::LeakyBucket(_));
    let limit = BigRational::from_integer(new.limit().into());
    let mut wanted = shared(used);
    if is_bucket {
        wanted = wanted.min(limit);
    }
    let up = wanted.ceil().to_integer();
    match (new, remains) {
        (Algorithm::Gcra(new), _) => Box::new(gcra::Bucket::having_used(new, &wanted, at)),
        (Algorithm::LeakyBucket(new), Remains::Drips { level, interval, next_drip }) => {
            let phase = (level > BigInt::ZERO).then_some((interval, next_drip));
            Box::new(leaky_bucket::Bucket::having_used(new, up, phase, at))
        }
        (Algorithm::LeakyBucket(new), _) => {
            Box::new(leaky_bucket::Bucket::having_used(new, up, None, at))
        }
        (Algorithm::FixedWindow(new), Remains::Window { start, .. }) => {
            Box::new(fixed_window::Log::having_used(new, up, Some(start), at))
        }
        (Algorithm::FixedWindow(new), _) => {
            Box::new(fixed_window::Log::having_used(new, up, None, at))
        }
        (Algorithm::SlidingWindow(new), Remains::Admitted(admitted)) => {
            let (mut sum, mut before) = (BigRational::from_integer(BigInt::ZERO), BigInt::ZERO);
            let each = admitted.into_iter().map(|(taken_at, units)| {
                sum += BigRational::from_integer(units);
                let after = shared(sum.clone()).ceil().to_integer();
                let units = &after - &before;
                before = after;
                (taken_at, units)
            });
            let each = each.collect();
            Box::new(sliding_window::Log::having_admitted(new, each, false, at))
        }
        (Algorithm::SlidingWindow(new), _) => {
            let all = Vec::from([(at.clone(), up)]);
            Box::new(sliding_window::Log::having_admitted(new, all, true, at))
        }
        (Algorithm::Concurrency(new), Remains::Holds(holds)) => Box::new(holds.under(new)),
        (Algorithm::Concurrency(new), _) => Box::new(concurrency::Holds::idle(new, at)),
        (Algorithm::CalendarWindow(new), _) => {
            Box::new(calendar_window::Ledger::having_used(new, up, at))
        }
        (other, _) => unreachable!("the oracle has no model of {other:?}"),
    }
}
