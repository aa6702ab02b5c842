use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tollway_core::{
    Answer, Charge, ErrorKind, Grant, OnStoreError, ReservationId, Reserved, Settlement, Snapshot,
    Store, StoreError, StoreLimiter, Timestamp, Verdict,
};
use tollway_memory::{Capacity, MemoryStore};
use tollway_tower::keys::Everyone;
use tollway_tower::{Dialect, Limit, RateLimitLayer};
use tower::Service;

use crate::world::{call, clock, get, header, ok, policy, statuses};

/// A store that answers each question after a turn of the runtime, or fails while it is down.
pub(crate) struct Slow {
    memory: MemoryStore,
    pub(crate) down: Arc<AtomicBool>,
    misused: Arc<AtomicBool>,
    pub(crate) asked: AtomicUsize,
}

impl Default for Slow {
    fn default() -> Self {
        let memory = MemoryStore::new(Capacity::keys(100));
        let (down, misused, asked) = Default::default();
        Self { memory, down, misused, asked }
    }
}

impl Slow {
    fn later<T: Send + Unpin + 'static>(&self, answer: Answer<T>) -> Answer<T> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let Answer::Ready(result) = answer else { panic!("memory answers at once") };
        let (down, misused) = (Arc::clone(&self.down), Arc::clone(&self.misused));
        Answer::pending(async move {
            tokio::task::yield_now().await;
            if down.load(Ordering::SeqCst) {
                return Err(StoreError::new(ErrorKind::Unavailable, "down"));
            }
            if misused.load(Ordering::SeqCst) {
                return Err(StoreError::new(ErrorKind::Misuse, "no such policy"));
            }
            result
        })
    }
}

impl Store for Slow {
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        self.later(Store::check(&self.memory, charges, now))
    }

    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        self.later(Store::peek(&self.memory, charges, now))
    }

    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant> {
        self.later(Store::take(&self.memory, charge, now))
    }

    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot> {
        self.later(Store::refund(&self.memory, charge, now))
    }

    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()> {
        self.later(Store::reset(&self.memory, charge, now))
    }

    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved> {
        self.later(Store::reserve(&self.memory, charges, now))
    }

    fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Answer<Settlement> {
        self.later(Store::commit(&self.memory, id, costs, now))
    }

    fn cancel(&self, reservation: ReservationId, now: Timestamp) -> Answer<Settlement> {
        self.later(Store::cancel(&self.memory, reservation, now))
    }

    fn release(&self, reservation: ReservationId, now: Timestamp) {
        Store::release(&self.memory, reservation, now);
    }
}

#[tokio::test]
async fn a_store_that_answers_late_is_asked_once_per_request() {
    let store = Arc::new(Slow::default());
    let limiter = StoreLimiter::new([policy("api", "2/1m")], store.clone(), clock());
    let service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
    assert_eq!(statuses(&service, 3, || get("/")).await, [200, 200, 429]);
    assert_eq!(store.asked.load(Ordering::SeqCst), 3);
    let denied = call(&service, get("/")).await;
    assert_eq!(header(&denied, "ratelimit"), "\"api\";r=0;t=30");
}

#[tokio::test]
async fn a_layer_that_says_nothing_waits_for_its_store_too() {
    let store = Arc::new(Slow::default());
    let limiter = StoreLimiter::new([policy("api", "2/1m")], store.clone(), clock());
    let builder = RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone));
    let service = ok(builder.dialect(Dialect::Off));
    assert_eq!(statuses(&service, 3, || get("/")).await, [200, 200, 429]);
    assert_eq!(store.asked.load(Ordering::SeqCst), 3);
    store.down.store(true, Ordering::SeqCst);
    assert_eq!(call(&service, get("/")).await.status(), 503);
}

#[tokio::test]
async fn late_answers_settle_too() {
    let store = Arc::new(Slow::default());
    let limiter = StoreLimiter::new([policy("api", "2/1m")], store.clone(), clock());
    let limit = Limit::new("api", Everyone).charge_if(|response| response.status != 200);
    let service = ok(RateLimitLayer::builder(limiter).limit(limit));
    for _ in 0..5 {
        assert_eq!(call(&service, get("/")).await.status(), 200);
        // Let the settlement that was left to the runtime finish.
        tokio::task::yield_now().await;
    }
    assert_eq!(store.asked.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn a_request_dropped_while_the_store_answers_harms_nobody() {
    let store = Arc::new(Slow::default());
    let limiter = StoreLimiter::new([policy("api", "2/1m")], store.clone(), clock());
    let mut service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
    let waiting = service.call(get("/"));
    drop(service);
    drop(store);
    drop(waiting);
}

/// A service on a store that fails from the start, by that failure policy.
fn down(
    on_store_error: OnStoreError,
) -> (Arc<Slow>, StoreLimiter, Arc<tollway_core::VirtualClock>) {
    let (store, clock) = (Arc::new(Slow::default()), clock());
    store.down.store(true, Ordering::SeqCst);
    let api = policy("api", "1/1m").on_store_error(on_store_error);
    let limiter = StoreLimiter::new([api], store.clone(), clock.clone());
    (store, limiter, clock)
}

#[tokio::test]
async fn a_failing_store_denies_if_its_policy_says_so() {
    let (_store, limiter, _clock) = down(OnStoreError::Deny);
    let service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
    let refused = call(&service, get("/")).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.body().contains("#temporary-reduced-capacity"), "{}", refused.body());
}

#[tokio::test]
async fn a_failing_store_allows_for_as_long_as_its_policy_says() {
    let at_most = Duration::from_secs(10);
    let (store, limiter, clock) = down(OnStoreError::Allow { at_most });
    let service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
    let passed = call(&service, get("/")).await;
    assert_eq!(passed.status(), 200);
    assert!(!passed.headers().contains_key("ratelimit"));
    clock.advance(at_most);
    assert_eq!(call(&service, get("/")).await.status(), 200);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(call(&service, get("/")).await.status(), 503);
    // An outage that ended starts the time afresh.
    clock.advance(Duration::from_secs(120));
    store.down.store(false, Ordering::SeqCst);
    assert_eq!(call(&service, get("/")).await.status(), 200);
    store.down.store(true, Ordering::SeqCst);
    assert_eq!(call(&service, get("/")).await.status(), 200);
}

#[tokio::test]
async fn a_local_share_that_no_store_keeps_is_a_denial() {
    let (_store, limiter, _clock) = down(OnStoreError::Local { shares: 4 });
    let service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
    assert_eq!(statuses(&service, 3, || get("/")).await, [503, 503, 503]);
}

/// The Redis store answers by the policies itself; a client must not be told that it spent a quota
/// of which nobody knows.
#[tokio::test]
async fn a_denial_in_place_of_the_store_is_not_told_as_a_spent_quota() {
    let refuse = async |on_store_error| {
        let settings = tollway_redis::Settings::default();
        let gone = tollway_redis::RedisStore::connect("redis://127.0.0.1:1", settings).await;
        let api = policy("api", "1/1m").on_store_error(on_store_error);
        let limiter = StoreLimiter::new([api], Arc::new(gone.expect("it starts without")), clock());
        let service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
        statuses(&service, 2, || get("/")).await
    };
    assert_eq!(refuse(OnStoreError::Deny).await, [503, 503]);
    assert_eq!(refuse(OnStoreError::Local { shares: 1 }).await, [200, 429], "its share is spent");
}

#[tokio::test]
async fn a_question_that_was_wrong_is_excused_by_no_outage() {
    let at_most = Duration::from_secs(3600);
    let (store, limiter, _clock) = down(OnStoreError::Allow { at_most });
    store.down.store(false, Ordering::SeqCst);
    store.misused.store(true, Ordering::SeqCst);
    let service = ok(RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)));
    assert_eq!(call(&service, get("/")).await.status(), 503);
}
