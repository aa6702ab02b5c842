//! One key under one policy, driven through the core's public functions, and what to do to it.

use std::time::Duration;

use proptest::prelude::*;
use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{
    Algorithm, Charge, Cost, Decision, Policy, Quota, Snapshot, State, Timestamp, decide_all,
};

/// A moment in the middle of things, on no boundary of anything.
pub(crate) const START: Timestamp = Timestamp::from_nanos(1_700_000_000_123_456_789);

/// One nanosecond.
pub(crate) const TICK: Duration = Duration::from_nanos(1);

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) algorithm: Algorithm,
    pub(crate) state: State,
    policy: Policy,
    asked: u128,
}

impl Key {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        let policy = Policy::new("policy", algorithm).expect("the name is printable");
        Self { algorithm, state: State::vacant(&algorithm), policy, asked: 0 }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.algorithm.limit()
    }

    pub(crate) fn check(&mut self, units: u64, now: Timestamp) -> Decision {
        self.asked += 1;
        let key = tollway_core::Key::new("key").expect("it is not empty");
        let charge = Charge::new(&self.policy, key).cost(cost(units));
        let states = std::slice::from_mut(&mut self.state);
        decide_all(&[charge], &[0], states, self.asked, now).decisions()[0]
    }

    /// What a check would decide, with nothing changed.
    pub(crate) fn would(&self, units: u64, now: Timestamp) -> Decision {
        self.clone().check(units, now)
    }

    pub(crate) fn allows(&self, units: u64, now: Timestamp) -> bool {
        self.would(units, now).is_allowed()
    }

    pub(crate) fn peek(&self, now: Timestamp) -> Snapshot {
        self.state.peek(&self.algorithm, now)
    }

    pub(crate) fn refund(&mut self, units: u64, now: Timestamp) {
        self.state.refund(&self.algorithm, units, None, now);
    }

    pub(crate) fn count(&mut self, units: u64, now: Timestamp) {
        self.asked += 1;
        let _ = self.state.count(&self.algorithm, cost(units), self.asked, now);
    }

    /// Whether `next_after` is when more remains, and not a nanosecond later than that.
    pub(crate) fn next_is_exact(&self, now: Timestamp) -> bool {
        let shown = self.peek(now);
        if shown.remaining() == shown.limit() {
            return shown.next_after().is_zero();
        }
        let next = now.after(shown.next_after());
        self.peek(next).remaining() > shown.remaining()
            && self.peek(next.before(TICK)).remaining() == shown.remaining()
    }

    /// Whether `reset_after` is when the key is as good as new, and not a nanosecond later.
    pub(crate) fn reset_is_exact(&self, now: Timestamp) -> bool {
        let reset_after = self.peek(now).reset_after();
        let is_new = |at: Timestamp| self.peek(at) == Self::new(self.algorithm).peek(at);
        let reset = now.after(reset_after);
        is_new(reset) && (reset_after.is_zero() || !is_new(reset.before(TICK)))
    }

    /// How long an exhausted key takes to be as good as new, at most.
    pub(crate) fn fill(&self) -> Duration {
        let nanos = match self.algorithm {
            Algorithm::Gcra(gcra) => {
                let quota = gcra.quota();
                let ticks = u128::from(quota.burst()) * quota.period().as_nanos();
                ticks.div_ceil(quota.units().into())
            }
            Algorithm::LeakyBucket(bucket) => {
                let drips = bucket.size().div_ceil(bucket.drip_size());
                u128::from(drips) * bucket.interval().as_nanos()
            }
            Algorithm::Concurrency(limit) => limit.lease().as_nanos(),
            other => other.window().expect("windows have one").1.as_nanos(),
        };
        Duration::from_nanos(u64::try_from(nanos).expect("a century fits"))
    }

    /// Does what `step` says at `now`.
    pub(crate) fn act(&mut self, act: Act, now: Timestamp) {
        match act {
            Act::Check(units) => drop(self.check(units, now)),
            Act::Count(units) => self.count(units, now),
            Act::Refund(units) => self.refund(units, now),
        }
    }

    /// Does everything in `script` from `start` on; when it ended.
    pub(crate) fn play(&mut self, script: &[Beat], start: Timestamp) -> Timestamp {
        let mut now = start;
        for beat in script {
            now = now.after(beat.pause.of(self.fill()));
            self.act(beat.act, now);
        }
        now
    }
}

pub(crate) fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap_or(Cost::ONE)
}

/// Something to do to a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Check(u64),
    Count(u64),
    Refund(u64),
}

/// A wait, relative to how long a key takes to recover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    thousandths: u32,
    extra_ns: u8,
}

impl Pause {
    pub(crate) const NONE: Self = Self { thousandths: 0, extra_ns: 0 };

    pub(crate) fn of(self, whole: Duration) -> Duration {
        let nanos = whole.as_nanos() * u128::from(self.thousandths) / 1_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX) + u64::from(self.extra_ns))
    }
}

/// Something to do after a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) pause: Pause,
    pub(crate) act: Act,
}

pub(crate) fn pause() -> impl Strategy<Value = Pause> {
    let thousandths = prop_oneof![5 => Just(0), 5 => 0..300u32, 1 => 0..2_500u32];
    (thousandths, 0..3u8).prop_map(|(thousandths, extra_ns)| Pause { thousandths, extra_ns })
}

/// Checks only: what is admitted then is what was taken.
pub(crate) fn checks() -> impl Strategy<Value = Vec<Beat>> {
    let beat =
        (pause(), 1..=4u64).prop_map(|(pause, units)| Beat { pause, act: Act::Check(units) });
    prop::collection::vec(beat, 1..60)
}

/// Checks, counts and refunds.
pub(crate) fn script() -> impl Strategy<Value = Vec<Beat>> {
    let act = prop_oneof![
        6 => (1..=4u64).prop_map(Act::Check),
        1 => (1..=4u64).prop_map(Act::Count),
        1 => (1..=4u64).prop_map(Act::Refund),
    ];
    let beat = (pause(), act).prop_map(|(pause, act)| Beat { pause, act });
    prop::collection::vec(beat, 0..30)
}

/// Any algorithm whose bounds can be reached by a short script.
pub(crate) fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        quota().prop_map(|quota| Gcra::new(quota).into()),
        (1..=20u64, 1..=5u64, period()).prop_map(|(size, drip_size, interval)| {
            LeakyBucket::new(size, drip_size, interval).expect("small numbers").into()
        }),
        (quota(), 1..=13u64).prop_map(|(quota, buckets)| {
            SlidingWindow::new(quota, buckets).expect("few buckets").into()
        }),
        quota().prop_map(|quota| SlidingWindow::exact(quota).expect("few units").into()),
        (quota(), any::<bool>()).prop_map(|(quota, epoch)| {
            let anchor = if epoch { Anchor::Epoch } else { Anchor::FirstRequest };
            FixedWindow::new(quota, anchor).into()
        }),
        (1..=10u64, period())
            .prop_map(|(limit, lease)| Concurrency::new(limit, lease).expect("few").into()),
    ]
}

/// A quota of few units, so that its bounds are reached, and of a period that rarely divides.
pub(crate) fn quota() -> impl Strategy<Value = Quota> {
    (1..=20u64, period(), 1..=25u64).prop_map(|(units, period, burst)| {
        Quota::with_burst(units, period, burst).expect("small numbers")
    })
}

fn period() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (20..5_000u64).prop_map(Duration::from_nanos),
        (1..3_000_000_000u64).prop_map(|nanos| Duration::from_nanos(nanos + 20)),
        Just(Duration::from_secs(1)),
        Just(Duration::from_secs(30 * 86_400)),
    ]
}

/// How many cases a property tries.
pub(crate) fn config() -> ProptestConfig {
    let cases = crate::size::sized(4_000, 100_000);
    ProptestConfig { cases: u32::try_from(cases).unwrap_or(u32::MAX), ..ProptestConfig::default() }
}
