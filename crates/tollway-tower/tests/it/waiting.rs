use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tollway_core::{Clock, StoreLimiter, Timestamp};
use tollway_tower::keys::Everyone;
use tollway_tower::{Builder, Limit, RateLimitLayer};
use tower::{Layer, Service, ServiceExt};

use crate::stores::Slow;
use crate::world::{START, call, get, header, memory, ok, one, policy};

/// The runtime's paused time, so that what sleeps and what decides agree.
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        START.after(self.0.elapsed())
    }
}

fn waiting(quota: &str, at_most: Duration, places: usize) -> Builder {
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let limiter = StoreLimiter::new([policy("api", quota)], memory(), clock);
    RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone)).wait(at_most, places)
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_waits_its_turn() {
    let service = ok(waiting("1/1s", Duration::from_secs(5), 10));
    let start = Instant::now();
    for turn in 0..4 {
        assert_eq!(call(&service, get("/")).await.status(), 200);
        let elapsed = start.elapsed();
        let due = Duration::from_secs(turn);
        assert!((due..due + Duration::from_millis(10)).contains(&elapsed), "{elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_miss_the_deadline_is_refused_at_once() {
    let service = ok(waiting("1/10s", Duration::from_secs(5), 10));
    let start = Instant::now();
    assert_eq!(call(&service, get("/")).await.status(), 200);
    let denied = call(&service, get("/")).await;
    assert_eq!((denied.status().as_u16(), header(&denied, "retry-after")), (429, "10"));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_holds_over_several_turns() {
    let service = ok(waiting("1/1s", Duration::from_millis(2500), 10));
    let start = Instant::now();
    let calls = (0..6).map(|_| {
        let service = service.clone();
        tokio::spawn(async move {
            let status = call(&service, get("/")).await.status();
            (status.as_u16(), start.elapsed())
        })
    });
    let mut answers = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        answers.push(call.await.expect("no panic"));
    }
    let passed = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(passed, 3, "{answers:?}");
    // The runtime's timers are good to a millisecond.
    assert!(answers.iter().all(|(_, elapsed)| *elapsed <= Duration::from_millis(2502)));
}

/// Sends requests one after the other and notes the order in which they are answered.
async fn order_of<S, R>(service: &S, requests: Vec<Request<String>>) -> Vec<(usize, u16)>
where
    S: Service<Request<String>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Error: std::fmt::Debug,
    S::Future: Send,
    R: http_body::Body<Data = Bytes> + Send,
    R::Error: std::fmt::Debug,
{
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for (index, request) in requests.into_iter().enumerate() {
        let (service, answered) = (service.clone(), answered.clone());
        tokio::spawn(async move {
            let status = call(&service, request).await.status().as_u16();
            let _ = answered.send((index, status));
        });
        // The next one comes after this one has begun to wait.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    drop(answered);
    let mut order = Vec::new();
    while let Some(answer) = answers.recv().await {
        order.push(answer);
    }
    order
}

#[tokio::test(start_paused = true)]
async fn who_waits_first_passes_first_and_newcomers_go_behind() {
    let service = ok(waiting("1/1s", Duration::from_secs(60), 20));
    let order = order_of(&service, (0..12).map(|_| get("/")).collect()).await;
    assert_eq!(order, (0..12).map(|index| (index, 200)).collect::<Vec<_>>());
    // A unit is there again, but so is a line: whoever comes now does not take it.
    let early = tokio::spawn({
        let service = service.clone();
        async move { order_of(&service, (0..3).map(|_| get("/")).collect()).await }
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let start = Instant::now();
    assert_eq!(call(&service, get("/")).await.status(), 200);
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(early.await.expect("no panic"), [(0, 200), (1, 200), (2, 200)]);
}

#[tokio::test(start_paused = true)]
async fn lines_of_different_keys_do_not_hold_each_other_up() {
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let limiter = StoreLimiter::new([policy("api", "1/10s")], memory(), clock);
    let limit = Limit::new("api", tollway_tower::keys::ClientAddress::peer());
    let builder = RateLimitLayer::builder(limiter).limit(limit);
    let service = ok(builder.wait(Duration::from_secs(60), 20));
    let requests = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"];
    let requests = requests.iter().map(|peer| crate::world::from(peer, "/")).collect();
    let order = order_of(&service, requests).await;
    assert_eq!(order, [(0, 200), (3, 200), (1, 200), (2, 200)]);
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_leaves_the_line_to_the_next() {
    let service = ok(waiting("1/1s", Duration::from_secs(60), 2));
    assert_eq!(call(&service, get("/")).await.status(), 200);
    let first = tokio::spawn({
        let service = service.clone();
        async move { call(&service, get("/")).await.status() }
    });
    tokio::task::yield_now().await;
    let second = tokio::spawn({
        let service = service.clone();
        async move { call(&service, get("/")).await.status() }
    });
    tokio::task::yield_now().await;
    first.abort();
    assert_eq!(second.await.expect("no panic"), 200);
    // Both places are free again, and no line is left behind.
    let order = order_of(&service, (0..2).map(|_| get("/")).collect()).await;
    assert_eq!(order, [(0, 200), (1, 200)]);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_there_are_places() {
    let service = ok(waiting("1/1s", Duration::from_secs(60), 2));
    let calls: Vec<_> = (0..6)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { call(&service, get("/")).await.status().as_u16() })
        })
        .collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.expect("no panic"));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    // Places are given back.
    assert_eq!(call(&service, get("/")).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_cost_no_wait_can_pay_does_not_wait() {
    let builder = waiting("1/1s", Duration::from_secs(60), 2);
    let service = ok(builder.limit(Limit::new("api", Everyone).cost(|_| 2)));
    let start = Instant::now();
    assert_eq!(call(&service, get("/")).await.status(), 429);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn waiting_works_with_a_store_that_answers_late() {
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let limiter = StoreLimiter::new([policy("api", "1/1s")], Arc::new(Slow::default()), clock);
    let builder = RateLimitLayer::builder(limiter).limit(Limit::new("api", Everyone));
    let service = ok(builder.wait(Duration::from_secs(5), 10));
    for _ in 0..3 {
        assert_eq!(call(&service, get("/")).await.status(), 200);
    }
}

/// A service that is never ready.
#[derive(Clone)]
struct Busy;

impl Service<Request<String>> for Busy {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Pending<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        std::future::pending()
    }
}

#[tokio::test]
async fn load_is_shed_uncharged_while_the_service_is_busy() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let layer = builder.shed_load().build().expect("a layer");
    let busy = layer.layer(Busy);
    for _ in 0..3 {
        let shed = call(&busy, get("/")).await;
        assert_eq!(shed.status(), 503);
        assert!(shed.body().contains("#temporary-reduced-capacity"), "{}", shed.body());
    }
    let idle = layer.layer(tower::service_fn(|_| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
    }));
    assert_eq!(call(&idle, get("/")).await.status(), 200);
    assert_eq!(call(&idle, get("/")).await.status(), 429);
}

#[tokio::test]
async fn without_shedding_the_callers_feel_the_back_pressure() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let mut busy = builder.build().expect("a layer").layer(Busy);
    let mut ready = std::pin::pin!(busy.ready());
    let waker = std::task::Waker::noop();
    assert!(ready.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
}
