//! Plans of keys, asked of a function of yours and kept for a while.
//!
//! The function may look into a database. What it says is kept, for so long and for so many keys,
//! so that hardly any decision asks it. It has no say in whether there is a limit: if it fails or
//! panics the plan that it named last stays in force, and without one the policy of everybody else.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollway_core::{PlanSource, Policy, Timestamp};

/// Threads that look up different keys rarely wait for each other.
const SHARDS: usize = 16;
/// The plan of a longer key is asked for every time: the number of keys would bound no memory.
const KEY_BYTES_MAX: usize = 1_024;
/// After a failure nothing is asked about the key for so long.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

type Source = dyn Fn(&[u8]) -> Result<Option<Arc<Policy>>, String> + Send + Sync;

/// Plans of keys: what a function says, kept for a while.
///
/// ```
/// use std::sync::Arc;
/// use tollway_core::Policy;
/// use tollway_memory::{Limiter, Plans};
///
/// let pro = Arc::new(Policy::parse("default", "1000/1h")?);
/// let plans = Plans::new(move |key| (key == b"acme").then(|| Arc::clone(&pro)));
/// let limiter = Limiter::new("2/1h")?.with_plans(Arc::new(plans));
/// assert_eq!(limiter.check("acme").snapshot().limit(), 1000);
/// assert_eq!(limiter.check("small").snapshot().limit(), 2);
/// # Ok::<(), tollway_core::PolicyError>(())
/// ```
pub struct Plans {
    source: Box<Source>,
    hasher: RandomState,
    shards: [Mutex<HashMap<Box<[u8]>, KeptPlan>>; SHARDS],
    kept_for: Duration,
    keys_max: usize,
    failures: AtomicU64,
    last_failure: Mutex<Option<String>>,
}

/// What was said of one key.
#[derive(Clone)]
struct KeptPlan {
    plan: Option<Arc<Policy>>,
    until: Timestamp,
}

impl Plans {
    /// Plans that `source` knows, kept for a minute and for at most 100,000 keys. A key of which it
    /// says nothing has the plan of everybody else.
    pub fn new(source: impl Fn(&[u8]) -> Option<Arc<Policy>> + Send + Sync + 'static) -> Self {
        Self::from_source(Box::new(move |key| Ok(source(key))))
    }

    /// The same of a source that may fail.
    pub fn fallible<E: fmt::Display>(
        source: impl Fn(&[u8]) -> Result<Option<Arc<Policy>>, E> + Send + Sync + 'static,
    ) -> Self {
        Self::from_source(Box::new(move |key| source(key).map_err(|error| error.to_string())))
    }

    fn from_source(source: Box<Source>) -> Self {
        Self {
            source,
            hasher: RandomState::new(),
            shards: Default::default(),
            kept_for: Duration::from_secs(60),
            keys_max: 100_000,
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
        }
    }

    /// The same, kept for so long and for at most so many keys, of which there is one at least.
    #[must_use]
    pub fn kept(self, kept_for: Duration, keys_max: usize) -> Self {
        Self { kept_for, keys_max, ..self }
    }

    /// Asks again about `key` at its next decision: its plan has changed.
    pub fn forget(&self, key: impl AsRef<[u8]>) {
        self.shard(key.as_ref()).remove(key.as_ref());
    }

    /// How often the source has failed or panicked.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Why it failed last, if it did.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keys of which a plan is kept.
    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<HashMap<_, _>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).len()
        };
        self.shards.iter().map(lock).sum()
    }

    /// Whether no plan is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, HashMap<Box<[u8]>, KeptPlan>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the source says; a panic is a failure like any other.
    fn ask(&self, key: &[u8]) -> Result<Option<Arc<Policy>>, String> {
        let asked = catch_unwind(AssertUnwindSafe(|| (self.source)(key)));
        let asked = asked.map(|said| said.map(|plan| plan.map(as_plan)));
        asked.unwrap_or_else(|_| Err("the source of plans panicked".to_owned())).inspect_err(
            |why| {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(why.clone());
            },
        )
    }

    fn keep(&self, key: &[u8], kept: KeptPlan, now: Timestamp) {
        let mut shard = self.shard(key);
        if shard.len() >= self.keys_max.div_ceil(SHARDS) && !shard.contains_key(key) {
            shard.retain(|_, kept| kept.until > now);
            // All are fresh: any of them makes room, and is asked for again.
            if shard.len() >= self.keys_max.div_ceil(SHARDS)
                && let Some(any) = shard.keys().next().cloned()
            {
                shard.remove(&any);
            }
        }
        shard.insert(key.into(), kept);
    }
}

fn as_plan(policy: Arc<Policy>) -> Arc<Policy> {
    if policy.is_plan() { policy } else { Arc::new(Arc::unwrap_or_clone(policy).as_plan()) }
}

impl PlanSource for Plans {
    fn plan(&self, key: &[u8], now: Timestamp) -> Option<Arc<Policy>> {
        let known = self.shard(key).get(key).cloned();
        if let Some(KeptPlan { plan, until }) = &known
            && *until > now
        {
            return plan.clone();
        }
        // Without the lock: others look up their plans meanwhile, and a source may be slow.
        let (plan, kept_for) = match self.ask(key) {
            Ok(plan) => (plan, self.kept_for),
            Err(_) => (known.and_then(|known| known.plan), ASKED_AGAIN_AFTER),
        };
        if key.len() <= KEY_BYTES_MAX {
            let kept = KeptPlan { plan: plan.clone(), until: now.after(kept_for) };
            self.keep(key, kept, now);
        }
        plan
    }
}

impl fmt::Debug for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures = self.failures();
        f.debug_struct("Plans").field("failures", &failures).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(quota: &str) -> Option<Arc<Policy>> {
        Some(Arc::new(Policy::parse("api", quota).unwrap()))
    }

    fn limit(plans: &Plans, key: &[u8], now_s: u64) -> Option<u64> {
        let now = Timestamp::from_millis(now_s * 1_000);
        plans.plan(key, now).map(|plan| plan.algorithm().limit())
    }

    #[test]
    fn a_plan_is_asked_for_once_and_again_when_its_time_is_over_or_it_is_forgotten() {
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let plans = Plans::new(move |_| {
            let times = counted.fetch_add(1, Ordering::Relaxed) + 1;
            plan(&format!("{times}/1m"))
        });
        let plans = plans.kept(Duration::from_secs(10), 100);
        assert_eq!([0, 5, 9, 10, 19].map(|at| limit(&plans, b"k", at)), [1, 1, 1, 2, 2].map(Some));
        plans.forget("k");
        assert_eq!((limit(&plans, b"k", 19), plans.failures()), (Some(3), 0));
    }

    #[test]
    fn a_source_that_fails_or_panics_leaves_what_it_said_last_and_is_counted() {
        let plans = Plans::fallible(|key: &[u8]| match key {
            b"known" => Ok(plan("9/1m")),
            b"broken" => panic!("a mistake"),
            _ => Err("the database is away"),
        });
        assert_eq!((limit(&plans, b"known", 0), limit(&plans, b"other", 0)), (Some(9), None));
        assert_eq!(plans.last_failure().as_deref(), Some("the database is away"));
        assert_eq!((limit(&plans, b"broken", 0), plans.failures()), (None, 2));
        assert_eq!((limit(&plans, b"broken", 0), plans.failures()), (None, 2), "not at once again");
        assert_eq!((limit(&plans, b"broken", 1), plans.failures()), (None, 3));
        let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let away = Arc::clone(&is_away);
        let plans = Plans::fallible(move |_| match away.load(Ordering::Relaxed) {
            false => Ok(plan("9/1m")),
            true => Err("the database is away"),
        });
        assert_eq!(limit(&plans, b"k", 0), Some(9));
        is_away.store(true, Ordering::Relaxed);
        assert_eq!((limit(&plans, b"k", 100), plans.failures()), (Some(9), 1));
    }

    #[test]
    fn a_limiter_charges_a_key_by_its_plan_and_carries_over_what_it_used() {
        let limiter = crate::Limiter::new("10/1h").unwrap();
        (0..4).for_each(|_| assert!(limiter.check("acme").is_allowed()));
        let plans = Plans::new(|key| if key == b"acme" { named("100/1h") } else { None });
        let limiter = limiter.with_plans(Arc::new(plans));
        assert_eq!((limiter.peek("acme").limit(), limiter.peek("acme").remaining()), (100, 96));
        assert_eq!(limiter.check("acme").snapshot().remaining(), 95);
        assert_eq!(limiter.peek("other").limit(), 10);
    }

    /// Other customers had the large plan before: that makes it neither older nor newer.
    #[test]
    fn a_key_goes_from_plan_to_plan_and_has_the_difference_each_time() {
        let plan = Arc::new(Mutex::new("100/1h"));
        let said = Arc::clone(&plan);
        let plans = Plans::new(move |key| match key {
            b"large" => named("100/1h"),
            b"acme" => named(*said.lock().unwrap()),
            _ => None,
        });
        let plans = Arc::new(plans);
        let limiter = crate::Limiter::new("10/1h").unwrap().with_plans(Arc::clone(&plans) as _);
        assert!(limiter.check("large").is_allowed() && limiter.check("other").is_allowed());
        let change = |quota| {
            *plan.lock().unwrap() = quota;
            plans.forget("acme");
        };
        change("10/1h");
        (0..6).for_each(|_| assert!(limiter.check("acme").is_allowed()));
        for _ in 0..2 {
            change("100/1h");
            assert_eq!(limiter.check("acme").snapshot().limit(), 100);
            change("20/1h");
            assert_eq!(limiter.check("acme").snapshot().limit(), 20);
        }
        assert_eq!(limiter.peek("acme").remaining(), 10);
    }

    fn named(quota: &str) -> Option<Arc<Policy>> {
        Some(Arc::new(Policy::parse("default", quota).unwrap()))
    }

    #[test]
    fn no_more_plans_are_kept_than_there_may_be() {
        let plans = Plans::new(|_| plan("9/1m")).kept(Duration::from_secs(10), 64);
        for key in 0..10_000_u32 {
            assert_eq!(limit(&plans, &key.to_le_bytes(), 0), Some(9));
        }
        assert!((1..=64).contains(&plans.len()), "{}", plans.len());
        assert_eq!(limit(&plans, &[0; 2_000], 0), Some(9), "asked for, and not kept");
        assert!(plans.len() <= 64);
    }
}
