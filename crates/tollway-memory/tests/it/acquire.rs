use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Waker};
use std::time::Duration;

use tollway_core::{Clock, Cost, Policy, Retry, Timestamp};
use tollway_memory::{Capacity, Limiter, MemoryStore};

/// Tokio's paused time as a clock.
struct Paused(tokio::time::Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000).after(self.0.elapsed())
    }
}

fn limiter(quota: &str) -> Limiter {
    let store = Arc::new(MemoryStore::new(Capacity::keys(100)));
    let clock = Arc::new(Paused(tokio::time::Instant::now()));
    Limiter::with_store(Policy::parse("test", quota).unwrap(), store, clock)
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_not_one_too_early() {
    let limiter = limiter("10/s burst 1");
    let started = tokio::time::Instant::now();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..20 {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            assert!(limiter.acquire("alice").await.is_allowed());
            served.lock().unwrap().push((number, started.elapsed().as_millis()));
        }));
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let served = served.lock().unwrap();
    let expected: Vec<_> = (0..20).map(|number| (number, 100 * number as u128)).collect();
    // Tokio's timer is true to a millisecond, never early.
    for ((number, at), (expected, due)) in served.iter().zip(expected) {
        assert_eq!(*number, expected);
        assert!((due..due + 40).contains(at), "{number} at {at}, due {due}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_is_denied_at_once_and_never_is_never() {
    let limiter = limiter("1/1m");
    assert!(limiter.acquire("alice").await.is_allowed());
    let denied = limiter.acquire_within("alice", Cost::ONE, Duration::from_secs(59)).await;
    assert_eq!(denied.retry(), Some(Retry::After(Duration::from_secs(60))));
    let never = limiter.acquire_within("alice", Cost::new(2).unwrap(), Duration::MAX).await;
    assert_eq!(never.retry(), Some(Retry::Never));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_leaves_the_queue_and_takes_nothing() {
    let limiter = limiter("1/1m");
    assert!(limiter.check("alice").is_allowed());
    {
        let waiting = limiter.acquire("alice");
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_secs(30), &mut waiting).await.is_err());
    }
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(limiter.check("alice").is_allowed());
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_is_told_what_is_true_then() {
    let limiter = limiter("1/1m");
    assert!(limiter.check("alice").is_allowed());
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("alice").await }
    });
    tokio::task::yield_now().await;
    let late = limiter.acquire_within("alice", Cost::ONE, Duration::from_secs(70)).await;
    assert!(first.await.unwrap().is_allowed());
    // Ten seconds ago the first waiter got the unit that was one minute in the making.
    let Some(Retry::After(wait)) = late.retry() else { panic!("{late:?}") };
    assert!((Duration::from_secs(49)..=Duration::from_secs(50)).contains(&wait), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn one_waiter_too_many_is_denied_at_once() {
    let limiter = limiter("1/1h");
    assert!(limiter.check("alice").is_allowed());
    let mut waiting: Vec<_> =
        (0..Limiter::WAITERS_MAX).map(|_| Box::pin(limiter.acquire("alice"))).collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.iter_mut().all(|waiter| waiter.as_mut().poll(&mut context).is_pending()));
    let started = tokio::time::Instant::now();
    assert!(!limiter.acquire("alice").await.is_allowed());
    assert_eq!(started.elapsed(), Duration::ZERO);
}
