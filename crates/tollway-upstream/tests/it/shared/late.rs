//! What comes late or in the wrong order: messages, names, answers under another name, ends. No
//! request under way is forgotten, and nothing is sent into a window that is known to be full.

use std::time::Duration;

use redis::Value;
use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::budget::Permit;
use tollway_upstream::profile::{Observation, Route};
use tollway_upstream::shared::{Naming, RedisLedger, Settings};

use super::stage::{
    PATIENCE, ROUTE, Stage, World, claim, claim_on, settings, take_all, told, try_claim, until,
};

/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);
const TEN_MINUTES_MS: u64 = 600_000;

/// The permits under way, by their names in the store.
async fn under_way(stage: &Stage) -> Vec<String> {
    stage.tell(&format!("ZRANGE ${ROUTE}:tollway:leases 0 -1")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_names_a_ticket_after_its_grant_ends_no_lease() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let probe = claim(&stage.ledger).await;
        let [permit] = &under_way(&stage).await[..] else { panic!("one is under way") };
        let process = permit.split('.').next().expect("a process, and a number");
        // Another ticket, for which nobody waits: that it is given up shows that the message came.
        let strange = format!("{process}.1999");
        let _: i64 = stage.tell(&format!("ZADD ${ROUTE}:tollway:waiting 1 {strange}")).await;
        let message = format!("{ROUTE}\n0\n{permit} {strange}");
        let publish = format!("PUBLISH $tollway:wake:{process} @");
        let heard: i64 = stage.tell_script(&publish, &message).await;
        assert_eq!(heard, 1, "{engine:?}");
        until("the strange one is given up", async || {
            stage.tell::<i64>(&format!("ZCARD ${ROUTE}:tollway:waiting")).await == 0
        })
        .await;
        assert_eq!(
            under_way(&stage).await,
            std::slice::from_ref(permit),
            "{engine:?}: it is under way"
        );
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: no second probe beside it");
        probe.complete(&told(5, 4, TEN_MINUTES_MS, 1_000));
        stage.until("it counts", |left, ttl| left == Some(4) && ttl > 0).await;
    }
}

/// The script that gives up tickets, as it is put together.
fn leave_script() -> String {
    [
        include_str!("../../../src/shared/scripts/bucket.lua"),
        include_str!("../../../src/shared/scripts/meters.lua"),
        include_str!("../../../src/shared/scripts/leave.lua"),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_is_given_up_while_a_claim_grants_it_stays_under_way() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        let _permit = claim(&stage.ledger).await;
        let [permit] = &under_way(&stage).await[..] else { panic!("one is under way") };
        let own = ["leases", "window", "waiting", "alive", "block:", "quick", "meters"];
        let mut keys: Vec<_> = ["remaining", "limit"].map(|key| format!("${ROUTE}:{key}")).into();
        keys.push("$global".to_owned());
        keys.extend(own.map(|key| format!("${ROUTE}:tollway:{key}")));
        keys.extend(["$tollway:meters", "$tollway:flights"].map(str::to_owned));
        keys.extend(["low", "foreign"].map(|key| format!("${ROUTE}:tollway:{key}")));
        keys.extend(["$tollway:waiting", "$tollway:alive"].map(str::to_owned));
        let keys = keys.join(" ");
        let command = format!("EVAL @ 16 {keys} 120000 $tollway:wake: {ROUTE} 0 waiting {permit}");
        let _: i64 = stage.tell_script(&command, &leave_script()).await;
        assert_eq!(under_way(&stage).await, std::slice::from_ref(permit), "{engine:?}");
        assert_eq!(stage.remaining().await, Some(3), "{engine:?}: nor does its place come back");
    }
}

/// A fleet that goes by the upstream's own names.
async fn learning(engine: Engine, url: Option<&str>) -> Stage {
    let settings = Settings { naming: Naming::Learned, ..settings(LONG) };
    match url {
        Some(url) => Stage::at(url, settings).await,
        None => Stage::new(engine, settings).await,
    }
}

fn get() -> Route {
    Route::new("GET", "/x/1", "1")
}

/// An answer of a bucket of four that the upstream calls `abc`.
fn of_abc(left: u64) -> Observation {
    Observation { bucket: Some("abc".into()), ..told(4, left, TEN_MINUTES_MS, 1_000) }
}

async fn take_all_of(ledger: &RedisLedger) -> Vec<Permit> {
    use tollway_upstream::budget::{Claim, Ledger as _};
    let mut permits = Vec::new();
    while let Ok(permit) = ledger.claim(Claim::new(get()).patience(Duration::ZERO)).await {
        permits.push(permit);
    }
    permits
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_told_only_after_what_the_answer_that_brought_it_says() {
    for engine in Engine::available() {
        // A server of its own: it writes down every command.
        let server = Server::start(engine, &[]);
        let stage = learning(engine, Some(&server.url())).await;
        let _: () = stage.tell("CONFIG SET slowlog-log-slower-than 0").await;
        let _: () = stage.tell("CONFIG SET slowlog-max-len 1000").await;
        claim_on(&stage.ledger, get()).await.complete(&of_abc(3));
        until("the name is told", async || stage.tell::<i64>("HLEN $tollway:names").await == 1)
            .await;
        let entries: Vec<Vec<Value>> = stage.tell("SLOWLOG GET -1").await;
        // The newest is the first: oldest first from here on.
        let commands: Vec<String> =
            entries.iter().rev().map(|entry| format!("{:?}", entry[3])).collect();
        let at = |what: &[&str]| {
            let is_it = |command: &String| what.iter().all(|word| command.contains(word));
            commands.iter().position(is_it).unwrap_or_else(|| panic!("{what:?}: {commands:#?}"))
        };
        let learned = at(&["PEXPIRE", "abc:1:remaining"]);
        let told = at(&["HSET", "tollway:names"]);
        assert!(learned < told, "{engine:?}: {commands:#?}");
        // Until then it is under way: given up before, nothing would tell of it under either name.
        let given_up = commands.iter().position(|command| {
            command.contains(r#""ZREM""#) && command.contains(r#"GET /x/1:tollway:leases""#)
        });
        assert!(given_up.is_none_or(|at| learned < at), "{engine:?}: {commands:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_under_another_name_counts_beside_a_probe_under_this_one() {
    for engine in Engine::available() {
        // The probe was let go later than the other, or by the server's clock at the same time.
        for same_time in [false, true] {
            let stage = learning(engine, None).await;
            let other = stage.process().await;
            let first = claim_on(&stage.ledger, get()).await;
            // Both processes hear of the name before the answer is learned.
            let renamed = "GET /x/1\nabc";
            let _: i64 = stage.tell_script("PUBLISH $tollway:renamed @", renamed).await;
            let probe = claim_on(&other, get()).await;
            assert_eq!(stage.tell::<Option<i64>>("GET $abc:1:remaining").await, Some(0));
            if same_time {
                let _: i64 = stage.tell("HSET $abc:1:tollway:window began 1").await;
            }
            first.complete(&of_abc(3));
            until("the answer is learned", async || {
                stage.tell::<i64>("PTTL $abc:1:remaining").await > 0
            })
            .await;
            let taken = take_all_of(&other).await;
            assert_eq!(taken.len(), 2, "{engine:?}: four, less the answered one and the probe");
            probe.complete(&of_abc(2));
            until("the probe counts", async || {
                stage.tell::<i64>("ZCARD $abc:1:tollway:leases").await == 2
            })
            .await;
            assert!(take_all_of(&stage.ledger).await.is_empty(), "{engine:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_an_old_client_opened_a_moment_early_is_not_opened_again() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        drop(take_all(&stage.ledger, 20).await);
        until("nothing is under way", async || under_way(&stage).await.is_empty()).await;
        // By our account the window goes on for some milliseconds; an old client has seen its end,
        // and has taken the first of the next one.
        let script = "
            local clock = redis.call('TIME')
            local ends = clock[1] * 1000 + math.floor(clock[2] / 1000) + 20
            redis.call('HSET', KEYS[2], 'ends', ends)
            redis.call('PEXPIRE', KEYS[3], 20)
            return redis.call('SET', KEYS[1], 4)";
        let keys = ["remaining", "tollway:window", "tollway:low"];
        let keys = keys.map(|key| format!("${ROUTE}:{key}")).join(" ");
        let _: () = stage.tell_script(&format!("EVAL @ 3 {keys}"), script).await;
        let _permit = claim(&stage.ledger).await;
        assert_eq!(stage.remaining().await, Some(3), "{engine:?}: the old client's is counted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_several_windows_that_come_late_are_not_taken_for_a_sliding_one() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        let mut late = take_all(&stage.ledger, 20).await.into_iter();
        // Each window began when the one before it was over, by the upstream's clock, and each
        // answer comes while the window goes on by ours.
        let mut permit = || late.next().expect("four are under way");
        for window in 1..=3_u64 {
            let reset_at_ms = 10_000_000 + window * TEN_MINUTES_MS;
            permit().complete(&told(5, 3, TEN_MINUTES_MS, reset_at_ms));
            until("the answer is learned", async || {
                let known: Option<u64> =
                    stage.tell(&format!("HGET ${ROUTE}:tollway:window reset")).await;
                known == Some(reset_at_ms)
            })
            .await;
        }
        let slides: i64 = stage.tell(&format!("HGET ${ROUTE}:tollway:window slides")).await;
        assert_eq!(slides, 0, "{engine:?}: all at once is what such a bucket gives back");
        permit().complete(&told(5, 4, TEN_MINUTES_MS, 10_000_000 + 3 * TEN_MINUTES_MS));
        until("all are answered", async || under_way(&stage).await.is_empty()).await;
        assert_eq!(stage.remaining().await, Some(0), "{engine:?}: nothing has come back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_answers_under_another_name_the_first_to_be_learned_speaks_for_all() {
    for engine in Engine::available() {
        let stage = learning(engine, None).await;
        // One of six is answered and five are under way under the old name, which knows its limit.
        let of_old = |key: &str| format!("{}:GET /x/1:{key}", stage.name);
        claim_on(&stage.ledger, get()).await.complete(&told(6, 5, TEN_MINUTES_MS, 1_000));
        until("the limit is learned", async || {
            stage.tell_script::<i64>("PTTL @", &of_old("remaining")).await > 0
        })
        .await;
        let mut permits = take_all_of(&stage.ledger).await;
        assert_eq!(permits.len(), 5, "{engine:?}");
        // The answer to the first has left the old name, and has not come to the new one. Nothing
        // that is under way here or there tells of it, but for what the answer to the second says
        // is left.
        let _: Value = stage.tell_script("ZPOPMIN @", &of_old("tollway:leases")).await;
        let second = told(6, 3, TEN_MINUTES_MS, 1_000);
        permits.remove(1).complete(&Observation { bucket: Some("abc".into()), ..second });
        until("the answer is learned", async || {
            stage.tell::<i64>("PTTL $abc:1:remaining").await > 0
        })
        .await;
        assert_eq!(stage.tell::<i64>("GET $abc:1:remaining").await, 0, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn however_long_requests_and_answers_are_under_way_no_window_gets_more_than_its_limit() {
    for engine in Engine::available() {
        for naming in [Naming::Learned, Naming::Spectacles] {
            let stage = Stage::new(engine, Settings { naming, ..settings(LONG) }).await;
            let ledgers = [stage.ledger.clone(), stage.process().await, stage.process().await];
            let world = World::new(r#"limit = 4, per = "60ms""#);
            // Up to one and a half windows each way, so answers of three windows come mixed.
            let mut dice = 1_u64;
            let mut delay = || {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Duration::from_millis((dice >> 33) % 4 * 30)
            };
            let calls: Vec<_> = (0..60)
                .map(|index| {
                    let (world, ledger) = (world.clone(), ledgers[index % 3].clone());
                    let (there, back) = (delay(), delay());
                    tokio::spawn(async move { world.call_slowly(&ledger, there, back).await })
                })
                .collect();
            for call in calls {
                tokio::time::timeout(PATIENCE, call).await.expect("no stall").unwrap();
            }
            assert_eq!(world.counters().limited_all(), 0, "{engine:?} {naming:?}");
        }
    }
}
