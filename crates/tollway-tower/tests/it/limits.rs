use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use http::{HeaderName, Method, Request, Response, StatusCode};
use tollway_core::concurrency::Concurrency;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{ChargeError, PlanSource, Policy, VirtualClock};
use tollway_memory::Plans;
use tollway_tower::keys::{ClientAddress, Everyone, Header, Route, from_fn};
use tollway_tower::{Builder, Dialect, Head, LayerErrorKind, Limit, RateLimitLayer, Reason};

use crate::world::{
    call, clock, from, get, header, limiter, ok, one, policy, raw, serve, statuses,
};

#[tokio::test]
async fn several_policies_are_taken_together_or_not_at_all() {
    let clock = clock();
    let policies = [policy("client", "1/1m"), policy("global", "3/1m")];
    let service = ok(RateLimitLayer::builder(limiter(policies, &clock))
        .limit(Limit::new("client", ClientAddress::peer()))
        .limit(Limit::new("global", Everyone)));
    for _ in 0..5 {
        call(&service, from("192.0.2.1", "/")).await;
    }
    // Four denials of the first client took nothing from the global quota: two are left.
    assert_eq!(call(&service, from("192.0.2.2", "/")).await.status(), 200);
    assert_eq!(call(&service, from("192.0.2.3", "/")).await.status(), 200);
    let denied = call(&service, from("192.0.2.4", "/")).await;
    assert_eq!(denied.status(), 429);
    assert!(denied.body().ends_with("\"violated-policies\":[\"global\"]}"), "{}", denied.body());
    assert!(header(&denied, "ratelimit").starts_with("\"client\";r=1, \"global\";r=0"));
}

#[tokio::test]
async fn one_policy_for_two_keys_is_named_once_and_stands_by_the_tighter() {
    let clock = clock();
    let service = ok(RateLimitLayer::builder(limiter([policy("api", "3/1m")], &clock))
        .limit(Limit::new("api", ClientAddress::peer()))
        .limit(Limit::new("api", Everyone)));
    assert_eq!(call(&service, from("192.0.2.1", "/")).await.status(), 200);
    let other = call(&service, from("192.0.2.2", "/")).await;
    assert_eq!(header(&other, "ratelimit-policy"), "\"api\";q=3;w=60");
    assert_eq!(header(&other, "ratelimit"), "\"api\";r=1;t=20");
    assert_eq!(statuses(&service, 2, || from("192.0.2.2", "/")).await, [200, 429]);
    assert_eq!(call(&service, from("192.0.2.2", "/")).await.status(), 429);
    clock.advance(Duration::from_secs(20));
    assert_eq!(statuses(&service, 2, || from("192.0.2.2", "/")).await, [200, 429]);
    let denied = call(&service, from("192.0.2.2", "/")).await;
    assert_eq!(header(&denied, "ratelimit"), "\"api\";r=0;t=20");
    assert!(denied.body().ends_with("\"violated-policies\":[\"api\"]}"), "{}", denied.body());
}

#[tokio::test]
async fn a_layer_that_says_nothing_decides_as_one_that_reports() {
    let window = SlidingWindow::new("3/2s".parse().expect("a quota"), 4).expect("a window");
    let policies = [
        policy("api", "3/1m"),
        policy("api", "7/1s burst 2"),
        Policy::new("api", window).expect("a policy"),
    ];
    for (api, dialect) in policies.iter().zip([Dialect::Off, Dialect::RetryAfter].iter().cycle()) {
        let clock = clock();
        let layer = |dialect| {
            let limiter = limiter([api.clone()], &clock);
            let limit = Limit::new("api", ClientAddress::peer());
            ok(RateLimitLayer::builder(limiter).limit(limit).dialect(dialect))
        };
        let (telling, silent) = (layer(Dialect::Draft10), layer(*dialect));
        let mut denied = 0;
        for step in 0..60 {
            let request = || from(["192.0.2.1", "2001:db8::1"][step % 2], "/");
            let told = call(&telling, request()).await;
            let quiet = call(&silent, request()).await;
            assert_eq!(quiet.status(), told.status(), "{api:?}, step {step}");
            let fields = if *dialect == Dialect::Off { "" } else { header(&told, "retry-after") };
            assert_eq!(header(&quiet, "retry-after"), fields);
            denied += usize::from(told.status() == 429);
            clock.advance(Duration::from_millis(10 * step as u64));
        }
        assert!((1..60).contains(&denied), "{api:?}: {denied} denied");
    }
}

#[tokio::test]
async fn retry_after_is_true() {
    let (builder, clock) = one("2/1m", Limit::new("api", ClientAddress::peer()));
    let service = ok(builder);
    assert_eq!(statuses(&service, 2, || get("/")).await, [200, 200]);
    clock.advance(Duration::from_millis(29_001));
    let denied = call(&service, get("/")).await;
    assert_eq!(header(&denied, "retry-after"), "1");
    clock.advance(Duration::from_secs(1));
    assert_eq!(call(&service, get("/")).await.status(), 200);
}

#[tokio::test]
async fn cost_is_a_function_of_the_request() {
    let cost = |head: &Head<'_>| if head.method == Method::POST { 5 } else { 1 };
    let (builder, _clock) = one("10/1m", Limit::new("api", Everyone).cost(cost));
    let service = ok(builder);
    let post = || Request::post("/").body(String::new()).expect("a request");
    assert!(header(&call(&service, post()).await, "ratelimit").starts_with("\"api\";r=5;"));
    assert!(header(&call(&service, get("/")).await, "ratelimit").starts_with("\"api\";r=4;"));
    let denied = call(&service, post()).await;
    assert_eq!((denied.status().as_u16(), header(&denied, "retry-after")), (429, "6"));
}

#[tokio::test]
async fn a_cost_no_wait_can_pay_is_refused_without_retry_after() {
    let (builder, _clock) = one("10/1m", Limit::new("api", Everyone).cost(|_| 11));
    let denied = call(&ok(builder), get("/")).await;
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_cost_of_zero_means_that_the_limit_does_not_apply() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone).cost(|_| 0));
    let service = ok(builder);
    assert_eq!(statuses(&service, 3, || get("/")).await, [200, 200, 200]);
    assert!(!call(&service, get("/")).await.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn policies_apply_by_route() {
    let clock = clock();
    let policies = [policy("all", "100/1m"), policy("search", "1/1m")];
    let service = ok(RateLimitLayer::builder(limiter(policies, &clock))
        .limit(Limit::new("all", Everyone))
        .limit(
            Limit::new("search", Everyone).only_if(|head| head.uri.path().starts_with("/search")),
        ));
    assert_eq!(statuses(&service, 2, || get("/search?q=a")).await, [200, 429]);
    let other = call(&service, get("/about")).await;
    assert_eq!(header(&other, "ratelimit-policy"), "\"all\";q=100;w=60");
    assert_eq!(header(&other, "ratelimit"), "\"all\";r=98;t=1");
}

#[tokio::test]
async fn the_route_template_is_the_key_and_not_the_path() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Route));
    let router = Router::new()
        .route("/users/{id}", route(|| async { "user" }))
        .route("/teams/{id}", route(|| async { "team" }))
        .layer(builder.build().expect("a layer"));
    let address = serve(router).await;
    assert!(raw(address, "GET /users/1 HTTP/1.1").await.starts_with("HTTP/1.1 200"));
    assert!(raw(address, "GET /users/2 HTTP/1.1").await.starts_with("HTTP/1.1 429"));
    assert!(raw(address, "GET /teams/2 HTTP/1.1").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn exempt_requests_are_neither_charged_nor_told() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let service = ok(builder.exempt_paths(["/healthz"]).exempt_preflight());
    let preflight = || {
        Request::options("/")
            .header("origin", "https://example.org")
            .header("access-control-request-method", "PUT")
            .body(String::new())
            .expect("a request")
    };
    assert_eq!(statuses(&service, 3, || get("/healthz")).await, [200; 3]);
    assert_eq!(statuses(&service, 3, preflight).await, [200; 3]);
    assert!(!call(&service, preflight()).await.headers().contains_key("ratelimit"));
    assert_eq!(statuses(&service, 2, || get("/healthz/")).await, [200, 429]);
    let options = || Request::options("/").body(String::new()).expect("a request");
    assert_eq!(call(&service, options()).await.status(), 429);
}

#[tokio::test]
async fn shadow_limits_count_and_are_observed_but_never_refuse() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone).shadow());
    let service = ok(builder.observe(move |seen| {
        let entry = (seen.policy.to_owned(), seen.decision.is_allowed(), seen.shadow);
        log.lock().expect("not poisoned").push(entry);
    }));
    assert_eq!(statuses(&service, 2, || get("/")).await, [200, 200]);
    assert!(!call(&service, get("/")).await.headers().contains_key("ratelimit"));
    let api = |allowed| ("api".to_owned(), allowed, true);
    assert_eq!(*seen.lock().expect("not poisoned"), [api(true), api(false), api(false)]);
}

#[tokio::test]
async fn a_shadow_that_denies_does_not_keep_the_others_from_counting() {
    let clock = clock();
    let policies = [policy("strict", "1/1m"), policy("real", "2/1m")];
    let service = ok(RateLimitLayer::builder(limiter(policies, &clock))
        .limit(Limit::new("strict", Everyone).shadow())
        .limit(Limit::new("real", Everyone)));
    assert_eq!(statuses(&service, 3, || get("/")).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_whole_layer_can_be_a_shadow() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    assert_eq!(statuses(&ok(builder.shadow()), 3, || get("/")).await, [200; 3]);
}

#[tokio::test]
async fn observers_hear_every_decision() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let service = ok(builder.observe(move |seen| {
        log.lock().expect("not poisoned").push((seen.decision.is_allowed(), seen.degraded));
    }));
    statuses(&service, 2, || get("/")).await;
    assert_eq!(*seen.lock().expect("not poisoned"), [(true, false), (false, false)]);
}

#[tokio::test]
async fn the_rejection_body_is_the_users_and_the_fields_are_ours() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let service = ok(builder.reject_with(|refusal| {
        let text = format!("{:?} {:?} {:?}", refusal.reason, refusal.violated, refusal.retry);
        Response::builder().status(refusal.status).body(text.into()).expect("a response")
    }));
    call(&service, get("/")).await;
    let denied = call(&service, get("/")).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.body(), r#"Quota ["api"] Some(60s)"#);
    assert_eq!(header(&denied, "retry-after"), "60");
    assert_eq!(header(&denied, "ratelimit"), "\"api\";r=0;t=60");
}

#[tokio::test]
async fn the_status_of_a_denial_can_be_another() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let service = ok(builder.status(StatusCode::FORBIDDEN));
    call(&service, get("/")).await;
    let denied = call(&service, get("/")).await;
    assert_eq!(denied.status(), 403);
    assert!(denied.body().contains("\"status\":403"), "{}", denied.body());
}

#[tokio::test]
async fn grpc_hears_of_a_refusal_by_grpc_status() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let service = ok(builder);
    let grpc = || {
        let request = Request::post("/p.Service/Method");
        request.header("content-type", "application/grpc+proto").body(String::new())
    };
    call(&service, grpc().expect("a request")).await;
    let denied = call(&service, grpc().expect("a request")).await;
    assert_eq!((denied.status().as_u16(), denied.body().as_str()), (200, ""));
    assert_eq!(header(&denied, "grpc-status"), "8");
    assert_eq!(header(&denied, "retry-after"), "60");
}

#[tokio::test]
async fn claims_make_a_key_by_a_function() {
    #[derive(Clone)]
    struct Claims(String);
    let subject =
        from_fn(|head: &Head<'_>| head.extensions.get::<Claims>().map(|claims| claims.0.clone()));
    let (builder, _clock) = one("1/1m", Limit::new("api", subject));
    let service = ok(builder);
    let with = |subject: &str| {
        let mut request = get("/");
        request.extensions_mut().insert(Claims(subject.to_owned()));
        request
    };
    assert_eq!(statuses(&service, 2, || with("alice")).await, [200, 429]);
    assert_eq!(statuses(&service, 2, || with("bob")).await, [200, 429]);
}

#[tokio::test]
async fn combined_keys_do_not_run_into_each_other() {
    let first = Header::from(HeaderName::from_static("a"));
    let second = Header::from(HeaderName::from_static("b"));
    let (builder, _clock) = one("1/1m", Limit::new("api", first.and(second)));
    let service = ok(builder);
    let with = |a: &str, b: &str| {
        Request::get("/").header("a", a).header("b", b).body(String::new()).expect("a request")
    };
    assert_eq!(call(&service, with("x", "yz")).await.status(), 200);
    assert_eq!(call(&service, with("xy", "z")).await.status(), 200);
    assert_eq!(call(&service, with("x", "yz")).await.status(), 429);
}

#[tokio::test]
async fn an_api_key_that_reads_like_an_address_is_another_key() {
    let key = Header::new("x-api-key").expect("a name").or(ClientAddress::peer());
    let (builder, _clock) = one("1/1m", Limit::new("api", key));
    let service = ok(builder);
    let mut forged = from("198.51.100.9", "/");
    forged.headers_mut().insert("x-api-key", "192.0.2.1".parse().expect("a value"));
    assert_eq!(call(&service, forged).await.status(), 200);
    assert_eq!(statuses(&service, 2, || from("192.0.2.1", "/")).await, [200, 429]);
}

#[tokio::test]
async fn two_policies_on_one_key_keep_separate_counts() {
    let clock = clock();
    let policies = [policy("minute", "3/1m"), policy("hour", "4/1h")];
    let service = ok(RateLimitLayer::builder(limiter(policies, &clock))
        .limit(Limit::new("minute", ClientAddress::peer()))
        .limit(Limit::new("hour", ClientAddress::peer())));
    assert_eq!(statuses(&service, 4, || get("/")).await, [200, 200, 200, 429]);
    clock.advance(Duration::from_secs(60));
    assert_eq!(statuses(&service, 2, || get("/")).await, [200, 429]);
    let denied = call(&service, get("/")).await;
    assert!(denied.body().contains("[\"hour\"]"), "{}", denied.body());
}

#[test]
fn mistakes_in_a_layer_are_named() {
    let build = |limits: Vec<Limit>| {
        let limiter = limiter([policy("api", "1/1m")], &clock());
        let builder = RateLimitLayer::builder(limiter);
        limits.into_iter().fold(builder, |builder, limit| builder.limit(limit)).build()
    };
    let kind = |limits| build(limits).expect_err("a mistake").kind();
    assert_eq!(kind(vec![]), LayerErrorKind::NoLimits);
    assert_eq!(kind(vec![Limit::new("apo", Everyone)]), LayerErrorKind::UnknownPolicy);
    let nine = (0..9).map(|_| Limit::new("api", Everyone)).collect();
    assert_eq!(kind(nine), LayerErrorKind::TooManyLimits);
    let error = build(vec![Limit::new("apo", Everyone)]).expect_err("a mistake");
    let told = "limit \"apo\": unknown policy \"apo\"; did you mean \"api\"?";
    assert_eq!(error.to_string(), told);
    let error = Header::new("x api key").expect_err("no name of a field");
    assert_eq!(error.kind(), LayerErrorKind::InvalidHeader);
    assert!(error.to_string().starts_with("header \"x api key\": expected"), "{error}");
}

#[tokio::test]
async fn every_reason_has_a_body_and_a_status() {
    let (builder, _clock) = one("1/1m", Limit::new("api", Everyone));
    let service = ok(builder.dialect(Dialect::Off).reject_with(|refusal| {
        assert_eq!(refusal.reason, Reason::Quota);
        Response::new(bytes::Bytes::from_static(b"custom"))
    }));
    call(&service, get("/")).await;
    let denied = call(&service, get("/")).await;
    assert_eq!((denied.status().as_u16(), denied.body().as_str()), (200, "custom"));
}

/// Three plans, and who has which: what an authenticating layer leaves in the request.
fn plans() -> (Builder, Arc<VirtualClock>) {
    let clock = clock();
    let policies = [policy("free", "1/1m"), policy("pro", "2/1m"), policy("team", "3/1m")];
    let limit = Limit::choose(
        "free",
        |head| head.extensions.get::<OnPlan>().map(|plan| plan.0),
        Header::new("x-api-key").expect("a name"),
    );
    (RateLimitLayer::builder(limiter(policies, &clock)).limit(limit), clock)
}

#[derive(Clone, Copy)]
struct OnPlan(&'static str);

fn on_plan(plan: Option<&'static str>, key: &str) -> Request<String> {
    let mut request = get("/");
    request.headers_mut().insert("x-api-key", key.parse().expect("a value"));
    plan.map(|plan| request.extensions_mut().insert(OnPlan(plan)));
    request
}

#[tokio::test]
async fn a_limit_may_choose_its_policy_by_the_request() {
    let (builder, _clock) = plans();
    let service = ok(builder);
    let statuses = async |plan, key| statuses(&service, 4, || on_plan(plan, key)).await;
    assert_eq!(statuses(Some("team"), "ada").await, [200, 200, 200, 429]);
    assert_eq!(statuses(Some("pro"), "bob").await, [200, 200, 429, 429]);
    let told = call(&service, on_plan(Some("pro"), "eve")).await;
    assert_eq!(header(&told, "ratelimit-policy"), "\"pro\";q=2;w=60");
    assert_eq!(header(&told, "ratelimit"), "\"pro\";r=1;t=30");
    let denied = call(&service, on_plan(Some("team"), "ada")).await;
    assert!(denied.body().contains("[\"team\"]"), "{}", denied.body());
}

#[tokio::test]
async fn whoever_has_no_plan_or_an_unknown_one_has_the_default() {
    let (builder, _clock) = plans();
    let service = ok(builder);
    for (plan, key) in [(None, "a"), (Some("gold"), "b"), (Some(""), "c")] {
        assert_eq!(statuses(&service, 2, || on_plan(plan, key)).await, [200, 429], "{plan:?}");
    }
    let bare = || {
        let mut request = get("/");
        request.extensions_mut().insert(OnPlan("free"));
        request
    };
    assert_eq!(
        statuses(&service, 2, bare).await,
        [200, 429],
        "nor is a request without a key free"
    );
}

#[tokio::test]
async fn a_plan_never_changes_how_a_layer_takes_units() {
    let clock = clock();
    let slots = Concurrency::new(9, Duration::from_secs(60)).expect("a limit");
    let policies = [policy("free", "1/1m"), Policy::new("slots", slots).expect("a policy")];
    let limit = Limit::choose("free", |_| Some("slots"), Everyone);
    let service = ok(RateLimitLayer::builder(limiter(policies, &clock)).limit(limit));
    assert_eq!(statuses(&service, 2, || get("/")).await, [200, 429]);
}

#[tokio::test]
async fn those_who_wait_for_other_plans_do_not_wait_in_one_line() {
    let clock = clock();
    let policies = [policy("free", "1/1h"), policy("pro", "9/1m")];
    let limit = Limit::choose(
        "free",
        |head| head.extensions.get::<OnPlan>().map(|plan| plan.0.to_owned()),
        Everyone,
    );
    let builder = RateLimitLayer::builder(limiter(policies, &clock)).limit(limit);
    let service = ok(builder.wait(Duration::from_secs(36_000), 4));
    assert_eq!(call(&service, on_plan(None, "k")).await.status(), 200);
    let late = tokio::spawn({
        let service = service.clone();
        async move { call(&service, on_plan(None, "k")).await.status() }
    });
    tokio::task::yield_now().await;
    assert_eq!(call(&service, on_plan(Some("pro"), "k")).await.status(), 200);
    assert!(!late.is_finished(), "it waits for an hour");
    late.abort();
}

#[tokio::test]
async fn a_choice_that_panics_is_refused() {
    let (builder, _clock) =
        one("9/1m", Limit::choose("api", |_| -> Option<&str> { panic!() }, Everyone));
    assert_eq!(call(&ok(builder), get("/")).await.status(), 500);
}

#[test]
fn an_unknown_policy_is_named_with_those_that_there_are() {
    let limiter = limiter([policy("search", "1/1m"), policy("upload", "1/1m")], &clock());
    let error = limiter.charge("serch", "ada").expect_err("no such policy");
    assert_eq!(error.to_string(), "unknown policy \"serch\"; did you mean \"search\"?");
    let ChargeError::UnknownPolicy(unknown) = limiter.charge("x", "ada").expect_err("no policy")
    else {
        panic!("another error");
    };
    assert_eq!(unknown.asked(), "x");
    assert_eq!(unknown.known().collect::<Vec<_>>(), ["search", "upload"]);
    assert_eq!(unknown.to_string(), "unknown policy \"x\"; expected one of search, upload");
    assert!(matches!(limiter.charge("search", ""), Err(ChargeError::Key(_))));
}

#[tokio::test]
async fn a_key_may_have_a_plan_and_keeps_what_it_used_when_the_plan_changes() {
    let clock = clock();
    let is_pro = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_pro);
    let pro = Arc::new(policy("api", "5/1m"));
    let plans = Plans::new(move |key| {
        (key == b"acme" && asked.load(Ordering::Relaxed)).then(|| Arc::clone(&pro))
    });
    let plans = Arc::new(plans.kept(Duration::from_secs(10), 100));
    let limit = Limit::new("api", Header::new("x-account").expect("a name"));
    let limit = limit.plans(Arc::clone(&plans) as _);
    let layer = RateLimitLayer::builder(limiter([policy("api", "2/1m")], &clock));
    let service = ok(layer.limit(limit));
    let ask = |account: &'static str| {
        Request::get("/").header("x-account", account).body(String::new()).expect("a request")
    };
    assert_eq!(statuses(&service, 3, || ask("acme")).await, [200, 200, 429]);
    is_pro.store(true, Ordering::Relaxed);
    plans.forget("acme");
    let answer = call(&service, ask("acme")).await;
    assert_eq!(header(&answer, "ratelimit-policy"), "\"api\";q=5;w=60");
    assert!(header(&answer, "ratelimit").starts_with("\"api\";r=2"), "2 of 5 were used");
    assert_eq!(statuses(&service, 3, || ask("acme")).await, [200, 200, 429]);
    assert_eq!(statuses(&service, 3, || ask("small")).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_source_of_plans_that_panics_or_names_another_kind_leaves_the_policy_in_force() {
    struct Panics;
    impl PlanSource for Panics {
        fn plan(&self, _: &[u8], _: tollway_core::Timestamp) -> Option<Arc<Policy>> {
            panic!("a mistake")
        }
    }
    let clock = clock();
    let slots = Concurrency::new(9, Duration::from_secs(60)).expect("slots");
    let slots = Arc::new(Policy::new("slots", slots).expect("a policy"));
    let plans = Plans::new(move |_| Some(Arc::clone(&slots)));
    for source in [Arc::new(Panics) as Arc<dyn PlanSource>, Arc::new(plans)] {
        let layer = RateLimitLayer::builder(limiter([policy("api", "2/1m")], &clock));
        let service = ok(layer.limit(Limit::new("api", Everyone).plans(source)));
        let request = || from("192.0.2.1", "/");
        assert_eq!(statuses(&service, 3, request).await, [200, 200, 429]);
    }
}
