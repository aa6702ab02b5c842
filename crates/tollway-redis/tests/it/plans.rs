//! Plans of keys in the limiter over a store, on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::{Policy, StoreLimiter, Timestamp, VirtualClock};
use tollway_memory::Plans;
use tollway_testkit::servers::Engine;

use crate::caller::{connect, cost, settings};

/// What the source of plans does.
const SMALL: u8 = 0;
const BIG: u8 = 1;
const FAILS: u8 = 2;
const PANICS: u8 = 3;
const OTHER_KIND: u8 = 4;

fn plan(policy: Policy) -> Result<Option<Arc<Policy>>, &'static str> {
    Ok(Some(Arc::new(policy)))
}

/// Plans of `acme` alone, which do what `now` says.
fn source(now: &Arc<AtomicU8>) -> Arc<Plans> {
    let now = Arc::clone(now);
    Arc::new(Plans::fallible(move |key: &[u8]| match now.load(Ordering::Relaxed) {
        _ if key != b"acme" => Ok(None),
        SMALL => plan(Policy::parse("api", "5/1d").unwrap()),
        BIG => plan(Policy::parse("api", "100/1d").unwrap()),
        FAILS => Err("the database is away"),
        OTHER_KIND => {
            plan(Policy::new("api", Concurrency::new(9, Duration::from_secs(60)).unwrap()).unwrap())
        }
        _ => panic!("a mistake"),
    }))
}

async fn limiter(url: &str, plans: &Arc<Plans>) -> (StoreLimiter, Arc<VirtualClock>) {
    let store = Arc::new(connect(url, &settings()).await);
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    let policies = [Policy::parse("api", "2/1d").unwrap(), Policy::parse("web", "1/1d").unwrap()];
    let limiter = StoreLimiter::new(policies, store, Arc::clone(&clock) as _);
    (limiter.with_plans("api", Arc::clone(plans) as _).unwrap(), clock)
}

/// What is left of the limit.
async fn left(limiter: &StoreLimiter, key: &str) -> (u64, u64) {
    let verdict = limiter.peek(&[limiter.charge("api", key).unwrap()]).await.unwrap();
    let told = verdict.decisions()[0].snapshot();
    (told.remaining(), told.limit())
}

#[tokio::test]
async fn a_key_is_charged_by_its_plan_and_keeps_what_it_used_when_the_plan_changes() {
    for engine in Engine::available() {
        let server = engine.shared();
        let now = Arc::new(AtomicU8::new(SMALL));
        let plans = source(&now);
        let (limiter, _) = limiter(&server.url(), &plans).await;
        let acme = limiter.charge("api", "acme").unwrap();
        assert!(limiter.check(&[acme.cost(cost(4))]).await.unwrap().is_allowed());
        assert_eq!(left(&limiter, "acme").await, (1, 5));
        assert_eq!(left(&limiter, "other").await, (2, 2), "the policy of everybody else");
        now.store(BIG, Ordering::Relaxed);
        assert_eq!(left(&limiter, "acme").await, (1, 5), "what was said is kept for a while");
        plans.forget("acme");
        assert_eq!(left(&limiter, "acme").await, (96, 100));
        let web = limiter.charge("web", "acme").unwrap();
        assert!(limiter.check(&[acme, web]).await.unwrap().is_allowed());
        let denied = limiter.check(&[acme, web]).await.unwrap();
        assert_eq!(denied.denied_by(), Some(1), "plans are of one policy alone");
        assert_eq!(limiter.take(&acme.cost(cost(1_000))).await.unwrap().granted, 95);
        assert_eq!(limiter.refund(&acme.cost(cost(5))).await.unwrap().limit(), 100);
        let reserved = limiter.reserve(&[acme.cost(cost(5))]).await.unwrap();
        limiter.commit(reserved.reservation.unwrap().id, &[1]).await.unwrap();
        assert_eq!(left(&limiter, "acme").await, (4, 100));
        limiter.reset(&acme).await.unwrap();
        assert_eq!(left(&limiter, "acme").await, (100, 100));
    }
}

#[tokio::test]
async fn a_source_of_plans_that_fails_or_panics_or_names_another_kind_leaves_what_was_in_force() {
    for engine in Engine::available() {
        let server = engine.shared();
        for wrong in [FAILS, PANICS, OTHER_KIND] {
            let now = Arc::new(AtomicU8::new(wrong));
            let plans = source(&now);
            let (limiter, _) = limiter(&server.url(), &plans).await;
            assert_eq!(left(&limiter, "acme").await, (2, 2), "the policy of everybody else");
            assert_eq!(plans.failures(), u64::from(wrong != OTHER_KIND));
        }
        let now = Arc::new(AtomicU8::new(SMALL));
        let plans = Arc::new(Arc::into_inner(source(&now)).unwrap().kept(Duration::ZERO, 10));
        let (limiter, clock) = limiter(&server.url(), &plans).await;
        assert_eq!(left(&limiter, "acme").await, (5, 5));
        for (wrong, failures) in [(FAILS, 1), (PANICS, 2)] {
            now.store(wrong, Ordering::Relaxed);
            clock.advance(Duration::from_secs(2));
            let acme = limiter.charge("api", "acme").unwrap();
            assert!(limiter.check(&[acme]).await.unwrap().is_allowed());
            assert_eq!(left(&limiter, "acme").await.1, 5, "its last plan");
            assert_eq!(plans.failures(), failures, "it is not asked again at once");
        }
    }
}

#[tokio::test]
async fn plans_of_a_policy_that_is_not_there_are_refused_by_its_name() {
    let store = Arc::new(tollway_memory::MemoryStore::new(tollway_memory::Capacity::keys(1)));
    let clock = Arc::new(VirtualClock::at(Timestamp::MIN));
    let limiter = StoreLimiter::new([Policy::parse("api", "2/1d").unwrap()], store, clock);
    let wrong = limiter.with_plans("apu", source(&Arc::default())).unwrap_err();
    assert_eq!(wrong.to_string(), "unknown policy \"apu\"; did you mean \"api\"?");
}
