//! The quick and the short way of a claim beside old clients, which write the same keys.

use std::time::Duration;

use redis::Value;
use tollway_testkit::servers::Engine;

use super::stage::{ROUTE, Stage, claim, settings, take_all, told, try_claim, until};

/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);
const TEN_MINUTES_MS: u64 = 600_000;
const QUICK: &str = include_str!("../../../src/shared/scripts/claim_quick.lua");
const BESIDE: &str = include_str!("../../../src/shared/scripts/claim_beside.lua");

/// The keys of the quickest way, in its order; the last two beside old clients only.
const KEYS: [&str; 7] = ["counter", "quick", "global", "waiting", "block", "low", "foreign"];

/// Puts the keys whose bit is set, and forgets the others. Counter and account have so much left.
async fn put(stage: &Stage, there: usize, left: i64) {
    let mut commands = Vec::new();
    for (index, key) in KEYS.iter().enumerate() {
        commands.push(format!("DEL ${key}"));
        if there >> index & 1 == 1 {
            commands.push(match *key {
                "quick" => "XADD $quick 1-0 f v".to_owned(),
                "waiting" => "ZADD $waiting 1 t".to_owned(),
                "counter" | "low" => format!("SET ${key} {left} PX 600000"),
                _ => format!("SET ${key} 1 PX 600000"),
            });
        }
    }
    stage.tell_all(&commands).await;
}

/// What the keys hold that a claim may change; of their ends, whether there are any.
async fn state(stage: &Stage) -> Vec<Value> {
    let exist = "EXISTS $counter $quick $global $waiting $block $low $foreign";
    let looks = ["GET $counter", "GET $low", "XLEN $quick", exist, "PTTL $counter", "PTTL $low"];
    let mut seen = stage.tell_all(&looks.map(str::to_owned)).await;
    for ttl in &mut seen[4..] {
        *ttl = Value::Boolean(matches!(ttl, Value::Int(1..)));
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quickest_ways_give_a_permit_where_all_is_well_and_change_nothing_elsewhere() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        for (script, count, needed) in [(QUICK, 5, 0b00_0011), (BESIDE, 7, 0b10_0011)] {
            let keys: Vec<_> = KEYS[..count].iter().map(|key| format!("${key}")).collect();
            for there in 0..1 << count {
                for left in [0, 1] {
                    put(&stage, there, left).await;
                    let before = state(&stage).await;
                    let command = format!("EVAL @ {count} {}", keys.join(" "));
                    let answer: Value = stage.tell_script(&command, script).await;
                    let is_well = there == needed && left > 0;
                    let what = format!("{engine:?}: {count} keys, {there:b}, {left}: {answer:?}");
                    assert_eq!(matches!(answer, Value::BulkString(_)), is_well, "{what}");
                    if !is_well {
                        assert_eq!(state(&stage).await, before, "{what}");
                        continue;
                    }
                    assert_eq!(stage.tell::<i64>("GET $counter").await, left - 1, "{what}");
                    assert_eq!(stage.tell::<i64>("XLEN $quick").await, 2, "{what}");
                    assert!(stage.tell::<i64>("PTTL $counter").await > 500_000, "{what}");
                }
            }
        }
    }
}

/// A mixed fleet that knows of a limit of 200, with the quickest way open.
async fn plenty(engine: Engine) -> Stage {
    let stage = Stage::new(engine, settings(LONG)).await;
    claim(&stage.ledger).await.complete(&told(200, 199, TEN_MINUTES_MS, 1_000));
    stage.until("the limit is learned", |left, ttl| left == Some(199) && ttl > 0).await;
    until("the way is open", async || {
        claim(&stage.ledger).await.complete(&told(200, 199, TEN_MINUTES_MS, 1_000));
        stage.tell::<i64>(&format!("EXISTS ${ROUTE}:tollway:quick")).await == 1
    })
    .await;
    stage
}

async fn account(stage: &Stage) -> Option<i64> {
    stage.tell(&format!("GET ${ROUTE}:tollway:low")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_old_clients_too_a_claim_where_there_is_plenty_takes_the_quickest_way() {
    for engine in Engine::available() {
        let stage = plenty(engine).await;
        let quick = async || stage.tell::<i64>(&format!("XLEN ${ROUTE}:tollway:quick")).await;
        until("a claim goes by it", async || {
            let permit = claim(&stage.ledger).await;
            let is_quick = quick().await > 0;
            permit.cancel();
            is_quick
        })
        .await;
        // What was cancelled comes back in the background.
        until("nothing is under way", async || {
            let leases: i64 = stage.tell(&format!("ZCARD ${ROUTE}:tollway:leases")).await;
            leases + quick().await == 0
        })
        .await;
        assert_eq!(stage.old_claim().await, 0, "{engine:?}: theirs goes on beside it");
        let before = stage.remaining().await.expect("it is there");
        let _permit = claim(&stage.ledger).await;
        assert_eq!(stage.remaining().await, Some(before - 1), "{engine:?}: it is counted for them");
        let ours = account(&stage).await.expect("it is kept");
        assert!(ours < before, "{engine:?}: {ours}: what they took is not in our account");
        assert!(stage.pttl().await > 500_000, "{engine:?}: its end is kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_written_anew_gives_the_quick_ways_no_more_than_the_window_has() {
    for engine in Engine::available() {
        let stage = plenty(engine).await;
        let known = stage.remaining().await.expect("it is there");
        let first = take_all(&stage.ledger, 60).await;
        assert_eq!(first.len(), 60, "{engine:?}");
        // A late answer of theirs ends the window early, and the next one writes a full counter.
        let _: i64 = stage.tell(&format!("PEXPIRE ${ROUTE}:remaining 1")).await;
        stage.until("the key is gone", |left, _| left.is_none()).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 200 PX 600000 NX")).await;
        let second = take_all(&stage.ledger, 400).await;
        let taken = (first.len() + second.len()) as i64;
        assert!(taken <= known, "{engine:?}: {taken} of {known}");
        assert!(taken > known - 5, "{engine:?}: {taken} of {known}: nor less");
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_nothing_is_put_right_although_the_way_is_quick() {
    for engine in Engine::available() {
        let stage = plenty(engine).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 0")).await;
        until("the limit is written again", async || {
            claim(&stage.ledger).await.cancel();
            stage.tell::<i64>(&format!("GET ${ROUTE}:limit")).await == 200
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_limits_take_the_short_way_beside_old_clients_and_keep_the_account() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        assert_eq!(account(&stage).await, Some(4), "{engine:?}");
        let _first = claim(&stage.ledger).await;
        assert_eq!(account(&stage).await, Some(3), "{engine:?}");
        assert_eq!(stage.old_claim().await, 0);
        let _second = claim(&stage.ledger).await;
        // One of the four went to an old client: neither the counter nor the account has it.
        assert_eq!((stage.remaining().await, account(&stage).await), (Some(1), Some(1)));
        assert!(stage.tell::<i64>(&format!("PTTL ${ROUTE}:tollway:low")).await > 500_000);
        let immortal = stage.immortal().await;
        assert_eq!(immortal, Vec::<String>::new(), "{engine:?}");
    }
}
