//! What a history is drawn from: policies with telling numbers, verbs by weight.

use std::time::Duration;

use tollway_core::calendar_window::CalendarWindow;
use tollway_core::concurrency::Concurrency;
use tollway_core::dice::Dice;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::shares::{Owner, Percent};
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, OnExpiry, Policy, Quota, ReservationTerms};

use super::Kind;
use crate::conformance::Verb;

/// A number below `bound`, or zero if that is zero. The bias is of no consequence here.
pub(super) fn below(dice: &mut Dice, bound: u64) -> u64 {
    dice.next_u64() % bound.max(1)
}

pub(super) fn one_of<'a, T>(dice: &mut Dice, choices: &'a [T]) -> &'a T {
    &choices[below(dice, choices.len() as u64) as usize]
}

pub(super) fn verb(dice: &mut Dice) -> Verb {
    match below(dice, 32) {
        0..=13 => Verb::Check,
        14..=15 => Verb::Peek,
        16..=18 => Verb::Take,
        19..=20 => Verb::Refund,
        21 => Verb::Reset,
        22..=26 => Verb::Reserve,
        27..=29 => Verb::Commit,
        _ => Verb::Cancel,
    }
}

/// The time over which the algorithm's answers change.
pub(super) fn scale(algorithm: &Algorithm) -> Duration {
    match algorithm {
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            quota.period().mul_f64(quota.burst() as f64 / quota.units() as f64)
        }
        Algorithm::LeakyBucket(bucket) => {
            bucket.interval().mul_f64(bucket.size() as f64 / bucket.drip_size() as f64)
        }
        Algorithm::Concurrency(limit) => limit.lease(),
        other => other.window().map_or(Duration::from_secs(1), |(_, period)| period),
    }
}

pub(super) fn policy(kind: Kind, era: Duration, dice: &mut Dice) -> Policy {
    let policy = match kind {
        Kind::Shares => shares(era, dice),
        _ => Policy::new(format!("{kind:?}"), algorithm(kind, era, dice))
            .expect("the name is printable"),
    };
    let on_expiry = *one_of(dice, &[OnExpiry::Return, OnExpiry::Keep]);
    // A whole number of milliseconds, so that stores with coarser clocks can keep to it.
    let ttl_ms = scale(policy.algorithm()).as_millis() as u64;
    let ttl = Duration::from_millis(1 + below(dice, ttl_ms.saturating_mul(2)));
    policy.reservations(ReservationTerms { ttl, on_expiry })
}

/// The same policy under another name.
pub(super) fn renamed(policy: &Policy, name: &str) -> Policy {
    let other = Policy::new(name, *policy.algorithm()).expect("the name is printable");
    other.reservations(policy.reservation_terms())
}

fn algorithm(kind: Kind, era: Duration, dice: &mut Dice) -> Algorithm {
    let valid = "drawn numbers are within bounds";
    match kind {
        Kind::Gcra => Algorithm::from(quota(era, dice)),
        Kind::FixedWindow => {
            let anchor = *one_of(dice, &[Anchor::Epoch, Anchor::FirstRequest]);
            FixedWindow::new(quota(era, dice), anchor).into()
        }
        Kind::SlidingWindow => {
            let (quota, buckets) = (quota(era, dice), 1 + below(dice, 12));
            let exact = SlidingWindow::exact(quota).ok().filter(|_| below(dice, 3) == 0);
            exact.unwrap_or(SlidingWindow::new(quota, buckets).expect(valid)).into()
        }
        Kind::LeakyBucket => {
            let (size, drip_size) = (1 + below(dice, 20), 1 + below(dice, 4));
            LeakyBucket::new(size, drip_size, period(era, dice)).expect(valid).into()
        }
        Kind::Concurrency => {
            Concurrency::new(1 + below(dice, 6), period(era, dice)).expect(valid).into()
        }
        Kind::CalendarWindow => calendar_window(era, dice).into(),
        Kind::Shares => unreachable!("a tree is a policy, not an algorithm alone"),
    }
}

/// A tree of a few owners, whose keys are those of histories; not every tree that is drawn is one.
fn shares(era: Duration, dice: &mut Dice) -> Policy {
    loop {
        let units = 1 + below(dice, 200);
        let burst = units / (1 + below(dice, 3)) + 1 + below(dice, units);
        let quota = Quota::with_burst(units, period(era, dice), burst);
        let owners = 1 + below(dice, 5);
        let part = |dice: &mut Dice, most: u64| {
            let hundredths = (1 + below(dice, most)) * *one_of(dice, &[1, 25, 100]);
            u16::try_from(hundredths).ok().and_then(Percent::from_hundredths)
        };
        let owner = |number: u64| Owner {
            key: format!("key {number}"),
            parent: (below(dice, 2) == 0 && number > 0)
                .then(|| format!("key {}", below(dice, number))),
            floor: if below(dice, 4) == 0 { None } else { part(dice, 100 / owners) },
            ceiling: if below(dice, 2) == 0 { None } else { part(dice, 100) },
        };
        let owners = (0..owners).map(owner).collect();
        let reclaim = (below(dice, 2) == 0).then(|| period(era, dice) / 3);
        let policy = Policy::shared(
            "Shares",
            quota.expect("drawn numbers are within bounds"),
            reclaim,
            owners,
        );
        if let Ok(policy) = policy {
            return policy;
        }
    }
}

/// Windows of months among policies that work in months, and of hours or days among all others.
fn calendar_window(era: Duration, dice: &mut Dice) -> CalendarWindow {
    let is_long = era > Duration::from_secs(86_400);
    let all: &[&str] = match is_long {
        true => &[
            "week anchor sun",
            "month",
            "month anchor 31",
            "month anchor 15 06:30",
            "quarter anchor 02-29",
            "year anchor 12-20",
        ],
        false => &["hour", "day", "day anchor 23:30"],
    };
    let zone = *one_of(dice, &["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"]);
    let units = 1 + below(dice, 8);
    let carry = [0, 1, units][below(dice, 3) as usize].min(units);
    let grace = [0, 1, 1_000][below(dice, 3) as usize];
    let unit = one_of(dice, all);
    let text = format!("{units}/{unit} tz {zone} carry {carry} grace {grace}");
    tollway_zones::calendar_window(&text).expect("drawn texts are right")
}

fn quota(era: Duration, dice: &mut Dice) -> Quota {
    let units = match below(dice, 12) {
        0 => 1_000_000,
        1 => Quota::UNITS_MAX,
        2 => 1 + below(dice, 1_000),
        _ => 1 + below(dice, 6),
    };
    let burst = match below(dice, 4) {
        0 => 1 + below(dice, units),
        1 => 1,
        2 if units < Quota::UNITS_MAX / 2 => units + below(dice, 3),
        _ => units,
    };
    Quota::with_burst(units, period(era, dice), burst).expect("drawn numbers are within bounds")
}

/// The time over which a history's policies work. They share it: a pause that matters to one that
/// works in months would otherwise be the end of everything for one that works in microseconds.
pub(super) fn era(dice: &mut Dice) -> Duration {
    match below(dice, 8) {
        0 => Duration::from_nanos(30 + below(dice, 1_000)),
        1 => Duration::from_nanos(30 + below(dice, 2_000_000_000)),
        2 => Duration::from_secs(30 * 86_400),
        3 => Duration::from_mins(1),
        4 => Duration::from_millis(1 + below(dice, 100)),
        _ => Duration::from_secs(1),
    }
}

fn period(era: Duration, dice: &mut Dice) -> Duration {
    match below(dice, 4) {
        0 => era,
        1 => era / 2,
        2 => era * 2,
        _ => era + Duration::from_nanos(below(dice, 100)),
    }
}
