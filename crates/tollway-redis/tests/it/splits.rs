//! One hot key over several slots.

use std::num::NonZeroU16;
use std::sync::Arc;

use tollway_core::{ErrorKind, Policy, Store, Timestamp};
use tollway_redis::{PolicySettings, Settings};

use crate::caller::{charge, check, connect, settings};
use crate::faults::until;
use tollway_testkit::servers::Engine;

const SHARES: u16 = 8;

fn split(shares: u16) -> Settings {
    let policy = PolicySettings { split: NonZeroU16::new(shares), ..PolicySettings::default() };
    Settings { policies: [("global".to_owned(), policy)].into(), ..settings() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_key_admits_its_quota_to_the_unit_and_denies_early_within_the_bound() {
    const PROCESSES: u64 = 4;
    for engine in Engine::available() {
        let settings = split(SHARES);
        let policy = Arc::new(Policy::parse("global", "1003/30d").unwrap());
        let mut callers = Vec::new();
        for _ in 0..PROCESSES {
            let store = connect(&engine.shared().url(), &settings).await;
            let policy = Arc::clone(&policy);
            callers.push(tokio::spawn(async move {
                let (mut allowed, mut before_denial) = (0u64, None);
                for _ in 0..400 {
                    if check(&store, &policy, "all").await.unwrap().is_allowed() {
                        allowed += 1;
                    } else {
                        before_denial.get_or_insert(allowed);
                    }
                }
                (allowed, before_denial)
            }));
        }
        let (mut total, mut first_denials) = (0, Vec::new());
        for caller in callers {
            let (allowed, before_denial) = caller.await.unwrap();
            total += allowed;
            first_denials.extend(before_denial);
        }
        assert!(total <= 1_003, "{engine:?}: never more than the quota, got {total}");
        let bound = u64::from(SHARES) * PROCESSES;
        assert!(total >= 1_003 - bound, "{engine:?}: {total} of 1003, bound {bound}");
        assert!(!first_denials.is_empty(), "there were more requests than units");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_loses_nothing_to_the_split() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &split(SHARES)).await;
        let policy = Policy::parse("global", "103/30d").unwrap();
        let mut allowed = 0;
        for _ in 0..150 {
            allowed += u64::from(check(&store, &policy, "all").await.unwrap().is_allowed());
        }
        assert_eq!(allowed, 103, "{engine:?}: the remainder is placed");
        store.reset(&charge(&policy, "all"), Timestamp::MIN).await.unwrap();
        for _ in 0..103 {
            assert!(check(&store, &policy, "all").await.unwrap().is_allowed(), "all is reset");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_says_its_parts_itself_is_split_without_the_store_being_told() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let whole = Policy::parse("called", "103/30d").unwrap();
        let policy = whole.clone().in_parts(NonZeroU16::new(SHARES).unwrap());
        let mut allowed = 0;
        for _ in 0..150 {
            allowed += u64::from(check(&store, &policy, "all").await.unwrap().is_allowed());
        }
        assert_eq!(allowed, 103, "{engine:?}");
        let other = whole.clone().in_parts(NonZeroU16::new(2).unwrap());
        for apart in [&whole, &other] {
            let first = check(&store, apart, "all").await.unwrap();
            assert!(first.is_allowed(), "{engine:?}: in other parts it counts anew");
        }
        let left = check(&store, &other, "all").await.unwrap().decisions()[0].snapshot();
        assert_eq!((left.limit(), left.remaining()), (51, 50), "{engine:?}: of its share");
        store.reset(&charge(&policy, "all"), Timestamp::MIN).await.unwrap();
        assert!(check(&store, &policy, "all").await.unwrap().is_allowed(), "all is reset");
    }
}

/// Shares of 11 and 10, of 10 and 10, of 11 and 11, of 13 and 12: numbers that were in use before
/// come into force again, and every share gives the difference.
#[tokio::test(flavor = "multi_thread")]
async fn each_share_carries_what_was_used_when_the_quota_changes() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &split(2)).await;
        let policy = |limit| Policy::parse("global", &format!("{limit}/365d")).unwrap();
        let mut total = 0;
        for (limit, calls) in [(21, 6), (20, 30), (22, 30), (25, 30)] {
            let policy = policy(limit);
            store.renew(&[&policy], Timestamp::MIN);
            let expected = (total + calls).min(limit).max(total);
            until("what the quota leaves", async || {
                let allowed = check(&store, &policy, "all").await.unwrap().is_allowed();
                total += u64::from(allowed);
                total >= expected
            })
            .await;
            if calls == 30 {
                for _ in 0..3 {
                    let verdict = check(&store, &policy, "all").await.unwrap();
                    assert!(!verdict.is_allowed(), "{engine:?}: more than {limit}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_shares_than_units_are_refused() {
    let store = connect(&Engine::Redis.shared().url(), &split(SHARES)).await;
    let policy = Policy::parse("global", "7/30d").unwrap();
    let error = check(&store, &policy, "all").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
}
