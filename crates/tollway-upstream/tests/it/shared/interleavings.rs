//! The interleavings in which the Spectacles script fails, each by its letter: no over-admission,
//! no lost TTL, no stuck bucket.

use std::time::Duration;

use tollway_testkit::servers::Engine;
use tollway_upstream::budget::{Claim, Ledger as _};
use tollway_upstream::profile::{Observation, Route, Scope};
use tollway_upstream::shared::{GlobalRate, Naming, Settings, SpectaclesVersion};

use super::stage::{
    ROUTE, Stage, World, claim, claim_on, join, limited, settings, standing, take_all, told,
    try_claim, until,
};

const LEASE: Duration = Duration::from_millis(400);
/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);
const TEN_MINUTES_MS: u64 = 600_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_its_last_millisecond_admits_nobody_for_free() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let world = World::new(r#"limit = 5, per = "20ms""#);
        // Claimed without a pause, also in the millisecond of every reset.
        while world.counters().served < 150 {
            if let Ok(permit) = try_claim(&stage.ledger).await {
                permit.complete(&world.send().await);
            }
        }
        assert_eq!(world.counters().limited_all(), 0, "{engine:?}: over-admissions");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b_a_claim_never_takes_the_end_of_a_window_away() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(1_000, 999, TEN_MINUTES_MS, 1_000));
        stage.until("the answer is learned", |_, ttl| ttl > 0).await;
        for _ in 0..20 {
            std::mem::forget(claim(&stage.ledger).await);
            assert!(stage.pttl().await > 500_000, "{engine:?}: an immortal counter");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c_a_bucket_stranded_by_a_crash_heals_within_one_lease() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LEASE)).await;
        crash(&stage).await;
        assert_eq!((stage.remaining().await, stage.pttl().await), (Some(0), -1));
        let began: i64 = now_ms(&stage).await;
        let permit = claim(&stage.ledger).await;
        let healed = now_ms(&stage).await;
        assert!(healed - began <= 10 * LEASE.as_millis() as i64, "{engine:?}: {}", healed - began);
        permit.complete(&told(5, 4, TEN_MINUTES_MS, 1_000));
        stage.until("the counter has an end", |left, ttl| left == Some(4) && ttl > 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d_a_route_without_limit_headers_is_not_limited() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&Observation::default());
        until("the silence is learned", async || {
            stage.tell::<Option<i64>>(&format!("GET ${ROUTE}:limit")).await == Some(1_000_000)
        })
        .await;
        one_by_one(&stage, 50).await;
        assert_eq!(stage.old_claim().await, 0, "{engine:?}: an old client goes too");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e_no_limit_is_read_as_later_clients_write_it_and_written_so_that_old_ones_go_on() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 0")).await;
        one_by_one(&stage, 50).await;
        let _: () = stage.tell(&format!("DEL ${ROUTE}:limit")).await;
        let later = Settings { spectacles_version: SpectaclesVersion::Later, ..settings(LONG) };
        let stage = Stage::new(engine, later).await;
        claim(&stage.ledger).await.complete(&Observation::default());
        until("the later form is written", async || {
            stage.tell::<Option<i64>>(&format!("GET ${ROUTE}:limit")).await == Some(0)
        })
        .await;
        one_by_one(&stage, 50).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e_a_limit_that_an_answer_told_is_not_lifted_by_an_old_clients_zero() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        // What @spectacles/rest 0.8.3 does after a 429 without the header.
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 0")).await;
        assert_eq!(take_all(&stage.ledger, 50).await.len(), 4, "{engine:?}");
        let limit: i64 = stage.tell(&format!("GET ${ROUTE}:limit")).await;
        assert_eq!(limit, 5, "{engine:?}: the old clients are told again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f_the_slots_beside_the_probe_are_usable_at_once() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        assert_eq!(take_all(&stage.ledger, 10).await.len(), 4, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g_headers_release_the_waiters_of_every_process_not_a_poll() {
    for engine in Engine::available() {
        // With this lease a poll would come after forty seconds, and the test fail.
        let stage = Stage::new(engine, settings(LONG)).await;
        let other = stage.process().await;
        let probe = claim(&stage.ledger).await;
        let waiting: Vec<_> = [&stage.ledger, &other, &stage.ledger, &other]
            .map(|ledger| ledger.clone())
            .into_iter()
            .map(|ledger| tokio::spawn(async move { claim(&ledger).await }))
            .collect();
        until("all stand in line", async || standing(&stage.ledger).await.0 == 4).await;
        probe.complete(&told(5, 4, TEN_MINUTES_MS, 1_000));
        for waiter in waiting {
            drop(waiter.await.unwrap());
        }
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: five, no more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h_a_refusal_empties_the_bucket_whatever_was_left() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(100, 99, TEN_MINUTES_MS, 1_000));
        stage.until("the limit is learned", |left, _| left == Some(99)).await;
        let refused = claim(&stage.ledger).await;
        refused.complete(&limited(Scope::User, Duration::from_secs(700)));
        stage.until("the bucket is empty", |left, ttl| left == Some(0) && ttl > 600_000).await;
        for _ in 0..10 {
            assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: a 429 storm");
        }
        let limit: i64 = stage.tell(&format!("GET ${ROUTE}:limit")).await;
        assert_eq!(limit, 100, "{engine:?}: an answer without a limit does not change it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h_a_shared_refusal_blocks_its_own_lane_and_a_global_one_everything() {
    for engine in Engine::available() {
        let stage =
            Stage::new(engine, Settings { naming: Naming::Learned, ..settings(LONG) }).await;
        let [get, put] = ["GET", "PUT"].map(|method| Route::new(method, "/x/1", "1"));
        let bucket = Some("abc".into());
        let known = |limit, left| Observation {
            bucket: bucket.clone(),
            ..told(limit, left, TEN_MINUTES_MS, 9)
        };
        claim_on(&stage.ledger, get.clone()).await.complete(&known(50, 49));
        until("the name is known", async || stage.tell::<i64>("HLEN $tollway:names").await == 1)
            .await;
        claim_on(&stage.ledger, put.clone()).await.complete(&known(50, 48));
        until("both share a bucket", async || stage.tell::<i64>("HLEN $tollway:names").await == 2)
            .await;
        let shared = Observation { bucket: bucket.clone(), ..limited(Scope::Shared, LONG) };
        claim_on(&stage.ledger, get.clone()).await.complete(&shared);
        let refused = async |route: &Route| {
            let claim = Claim::new(route.clone()).patience(Duration::ZERO);
            stage.ledger.claim(claim).await.is_err()
        };
        until("the lane is blocked", async || refused(&get).await).await;
        assert!(!refused(&put).await, "{engine:?}: the other lane goes on");
        let global = Observation { bucket: bucket.clone(), ..limited(Scope::Global, LONG) };
        claim_on(&stage.ledger, put.clone()).await.complete(&global);
        until("everything is blocked", async || refused(&put).await).await;
        assert!(stage.tell::<i64>("PTTL $global").await > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i_a_late_answer_never_shortens_a_newer_window() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(5, 4, 60, 1_000));
        stage.until("the limit is learned", |left, ttl| left == Some(4) && ttl > 0).await;
        let late = take_all(&stage.ledger, 2).await;
        stage.until("the window is over", |left, _| left.is_none()).await;
        let fresh = claim(&stage.ledger).await;
        // Of the old window, with next to nothing left of it.
        let mut late = late.into_iter();
        late.next().unwrap().complete(&told(5, 3, 1, 1_000));
        until("it gives its place back", async || standing(&stage.ledger).await.1 == 2).await;
        fresh.complete(&told(5, 4, TEN_MINUTES_MS, 601_000));
        stage.until("the new window is known", |_, ttl| ttl > 500_000).await;
        late.next().unwrap().complete(&told(5, 2, 1, 1_000));
        until("it gives its place back", async || standing(&stage.ledger).await.1 == 0).await;
        assert!(stage.pttl().await > 500_000, "{engine:?}: never shortened");
        // What the late ones told holds until their resets, a millisecond at the most.
        let mut permits = Vec::new();
        until("five in this window", async || {
            permits.extend(take_all(&stage.ledger, 20).await);
            permits.len() >= 4
        })
        .await;
        assert_eq!(permits.len(), 4, "{engine:?}: five in this window");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i_an_end_that_an_old_client_cuts_short_opens_no_second_window() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        let _permits = take_all(&stage.ledger, 20).await;
        stage.end_counter().await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: the window goes on");
        assert!(stage.pttl().await > 500_000, "{engine:?}: and everybody sees it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j_an_answer_after_the_key_expired_leaves_no_counter_without_an_end() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(5, 4, 50, 1_000));
        // The window may be over before anybody has looked; the limit stays.
        until("the limit is learned", async || {
            stage.tell::<Option<i64>>(&format!("GET ${ROUTE}:limit")).await == Some(5)
        })
        .await;
        let slow = claim(&stage.ledger).await;
        stage.until("the window is over", |left, _| left.is_none()).await;
        slow.complete(&told(5, 4, TEN_MINUTES_MS, 601_000));
        stage.until("the counter has an end", |left, ttl| left.is_some() && ttl > 0).await;
        assert!(take_all(&stage.ledger, 20).await.len() <= 4, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k_a_limit_lowered_in_mid_window_counts_at_once() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        claim(&stage.ledger).await.complete(&told(2, 0, TEN_MINUTES_MS, 1_000));
        stage.until("nothing is left", |left, _| left == Some(0)).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l_fractions_of_a_millisecond_neither_fail_nor_delete() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let mut observation = told(5, 4, 0, 1_000);
        observation.readings[0].reset_after = Some(Duration::from_secs_f64(64.57));
        claim(&stage.ledger).await.complete(&observation);
        stage.until("the end is set", |_, ttl| (1..=64_570).contains(&ttl)).await;
        assert!(stage.pttl().await > 40_000, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn m_waiters_of_all_processes_go_in_order_of_arrival() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let others = [stage.process().await, stage.process().await];
        let ledgers = [&stage.ledger, &others[0], &others[1]];
        let probe = claim(&stage.ledger).await;
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        for index in 0..9_usize {
            let (ledger, done) = (ledgers[(index * 2) % 3].clone(), done.clone());
            tokio::spawn(async move {
                let permit = claim(&ledger).await;
                let _ = done.send(index);
                permit.complete(&told(1, 0, 3, 10_000 + 1_000 * index as u64));
            });
            until("it stands in line", async || standing(&stage.ledger).await.0 == index + 1).await;
        }
        probe.complete(&told(1, 0, 3, 1_000));
        let mut went = Vec::new();
        for _ in 0..9 {
            let next = tokio::time::timeout(super::stage::PATIENCE, order.recv()).await;
            went.push(next.expect("the line moves").unwrap());
        }
        assert_eq!(went, [0, 1, 2, 3, 4, 5, 6, 7, 8], "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn o_credentials_do_not_stop_each_other_and_the_global_limit_is_kept_beforehand() {
    for engine in Engine::available() {
        let rate = GlobalRate {
            limit: 5,
            period: Duration::from_millis(200),
            spend: Duration::from_millis(50),
        };
        let stage = Stage::new(engine, Settings { global: Some(rate), ..settings(LONG) }).await;
        let neighbour = Stage::new(engine, settings(LONG)).await;
        let _: () = neighbour.tell("SET $global true PX 60000").await;
        claim(&stage.ledger).await.complete(&Observation::default());
        until("no limit of its own", async || standing(&stage.ledger).await.1 == 0).await;
        let began = now_ms(&stage).await;
        let other = stage.process().await;
        let callers: Vec<_> = (0..24)
            .map(|index| if index % 2 == 0 { stage.ledger.clone() } else { other.clone() })
            // Nothing tells a limit: only so many are let go before some have come back.
            .map(|ledger| tokio::spawn(async move { claim(&ledger).await.complete(&silent()) }))
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        // 25 with the first one: five at once, and every other five a period later at least.
        let took = now_ms(&stage).await - began;
        assert!(took >= 3 * 200, "{engine:?}: 24 in {took} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p_every_key_expires_and_a_lost_counter_opens_no_second_window() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        let _permits = take_all(&stage.ledger, 20).await;
        assert_eq!(stage.immortal().await, Vec::<String>::new(), "{engine:?}");
        // As eviction would.
        let _: () = stage.tell(&format!("DEL ${ROUTE}:remaining")).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn q_a_sliding_bucket_gives_its_slots_back_one_by_one() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let world = World::new(r#"limit = 5, per = "5s", window = "sliding""#);
        for _ in 0..5 {
            world.call(&stage.ledger).await;
            stage.until("the answer is learned", |_, ttl| ttl > 0).await;
        }
        until("it is known to slide", async || {
            let page = stage.ledger.buckets(0, 1).await.unwrap();
            page.buckets[0].dimensions[0].sliding == Some(true)
        })
        .await;
        // All five are taken: a fixed window would give none for the five seconds to come.
        let permit = claim(&stage.ledger).await;
        assert!(stage.pttl().await > 1_000, "{engine:?}: long before it is full again");
        permit.complete(&world.send().await);
        assert_eq!(world.counters().limited_all(), 0, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r_resets_are_read_in_seconds_with_decimals() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let world = World::new(r#"limit = 5, per = "97500ms""#);
        world.call(&stage.ledger).await;
        stage.until("the end is set", |_, ttl| (60_000..=97_501).contains(&ttl)).await;
    }
}

/// An answer that tells of no limit.
fn silent() -> Observation {
    Observation::default()
}

/// So many requests go one after the other, and nothing is told of any limit.
async fn one_by_one(stage: &Stage, count: usize) {
    for _ in 0..count {
        let permit = try_claim(&stage.ledger).await.expect("there is no limit");
        permit.complete(&Observation::default());
        until("it is answered", async || standing(&stage.ledger).await.1 == 0).await;
    }
}

/// The server's clock.
async fn now_ms(stage: &Stage) -> i64 {
    let (seconds, micros): (i64, i64) = stage.tell("TIME").await;
    seconds * 1_000 + micros / 1_000
}

/// A process takes the only permit there is, and is gone without a word: nothing of it runs on.
async fn crash(stage: &Stage) {
    let (url, name, settings) = (stage.url.clone(), stage.name.clone(), stage.settings.clone());
    let process = move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            std::mem::forget(claim(&join(&url, &name, &settings).await).await);
        });
        runtime.shutdown_background();
    };
    tokio::task::spawn_blocking(process).await.unwrap();
}
