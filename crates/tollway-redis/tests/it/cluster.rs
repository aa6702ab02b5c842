//! A real 3+3 cluster: the same answers, slots, failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{ErrorKind, OnStoreError, Policy, Quota, Settlement, Store, Timestamp};
use tollway_redis::{PolicySettings, Settings};
use tollway_testkit::conformance::{run, scenarios};
use tollway_testkit::oracle::{Kind, Mix, history};

use crate::caller::{admitted, charge, check, connect, cost, settings};
use crate::conformance::{OnServer, single_charges};
use crate::faults::{fail_over, hasty, until, until_asked};
use tollway_testkit::servers::{Cluster, Engine, LossyWay, Server, full};

/// The engines on which clusters are tried: Redis always, Valkey where it is.
#[test]
fn conformance_file_and_histories_hold_on_a_cluster() {
    for engine in Engine::available() {
        let mut subject = OnServer::new(&Cluster::shared(engine).url()).with_one_tag();
        let report = run(&mut subject, &scenarios().unwrap());
        assert!(report.passed(), "{engine:?}: {report}");
        let histories = if full() { 1_000 } else { 50 };
        let scenarios: Vec<_> =
            (0..histories).map(|seed| history(seed, &single_charges())).collect();
        let report = run(&mut subject, &scenarios);
        assert!(report.passed(), "{engine:?}: {report}");
    }
}

/// All buckets of a tree are in one slot, whatever its owners are called.
#[test]
fn trees_of_owners_are_answered_on_a_cluster_as_the_oracle_answers_them() {
    for engine in Engine::available() {
        let mut subject = OnServer::new(&Cluster::shared(engine).url());
        let mix = Mix { kinds: &[Kind::Shares], keys: 4, ..single_charges() };
        let histories = if full() { 1_000 } else { 30 };
        let scenarios: Vec<_> = (0..histories).map(|seed| history(seed, &mix)).collect();
        let report = run(&mut subject, &scenarios);
        assert!(report.passed(), "{engine:?}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charges_across_slots_are_refused_unless_the_policies_allow_it() {
    for engine in Engine::available() {
        let url = Cluster::shared(engine).url();
        let settings = settings();
        let store = connect(&url, &settings).await;
        let [a, b] = ["a", "b"].map(|name| Policy::parse(name, "10/30d").unwrap());
        let apart = [charge(&a, "one"), charge(&b, "two")];
        let error = store.check(&apart, Timestamp::MIN).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("hash tag"), "{error}");
        let together = [charge(&a, "one{t}"), charge(&b, "two{t}")];
        let error = store.check(&together, Timestamp::MIN).await.unwrap_err();
        assert!(error.to_string().contains("key_tags"), "{error}");
        let tagging = connect(&url, &Settings { key_tags: true, ..settings }).await;
        assert!(tagging.check(&together, Timestamp::MIN).await.unwrap().is_allowed());
    }
}

/// Whoever chooses keys must not choose the server that bears them.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_all_bring_one_tag_are_spread_over_the_cluster() {
    for engine in Engine::available() {
        let (cluster, settings) = (Cluster::shared(engine), settings());
        let store = connect(&cluster.url(), &settings).await;
        let policy = Policy::parse("a", "10/30d").unwrap();
        for number in 0..300 {
            assert!(check(&store, &policy, &format!("{{x}}{number}")).await.unwrap().is_allowed());
        }
        let pattern = format!("{}*", settings.prefix);
        let held = |node: &Server| {
            let is_primary = node.tell(&["ROLE"]).contains("master");
            is_primary.then(|| node.tell(&["KEYS", &pattern]).matches(":h{").count())
        };
        let mut held: Vec<usize> = cluster.nodes.iter().filter_map(held).collect();
        held.sort_unstable();
        assert_eq!(held.iter().sum::<usize>(), 300, "{engine:?}: {held:?}");
        assert!(held[0] > 50, "{engine:?}: {held:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_across_slots_takes_all_or_rolls_back() {
    for engine in Engine::available() {
        let across = PolicySettings { across_slots: true, ..PolicySettings::default() };
        let policies = ["a", "b"].map(|name| (name.to_owned(), across));
        let settings = Settings { policies: policies.into(), ..settings() };
        let url = Cluster::shared(engine).url();
        let a = Policy::parse("a", "100/30d").unwrap();
        let b = Policy::parse("b", "30/30d").unwrap();
        let mut callers = Vec::new();
        for _ in 0..16 {
            let (store, a, b) = (connect(&url, &settings).await, a.clone(), b.clone());
            callers.push(tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..5 {
                    let charges = [charge(&a, "one"), charge(&b, "two")];
                    let verdict = store.check(&charges, Timestamp::MIN).await.unwrap();
                    allowed += u64::from(verdict.is_allowed());
                }
                allowed
            }));
        }
        let mut allowed = 0;
        for caller in callers {
            allowed += caller.await.unwrap();
        }
        assert!(allowed <= 30, "{engine:?}: never one over, got {allowed}");
        let store = connect(&url, &settings).await;
        for (policy, key, limit) in [(&a, "one", 100), (&b, "two", 30)] {
            let verdict = store.peek(&[charge(policy, key)], Timestamp::MIN).await.unwrap();
            let left = verdict.decisions()[0].snapshot().remaining();
            assert_eq!(left, limit - allowed, "{engine:?}: what was not taken was rolled back");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_across_slots_is_made_and_settled_in_all_of_them_or_in_none() {
    for engine in Engine::available() {
        let across = PolicySettings { across_slots: true, ..PolicySettings::default() };
        let policies = ["a", "b"].map(|name| (name.to_owned(), across));
        let settings = Settings { policies: policies.into(), ..settings() };
        let url = Cluster::shared(engine).url();
        let (maker, settler) = (connect(&url, &settings).await, connect(&url, &settings).await);
        let a = Policy::parse("a", "10/30d").unwrap();
        let b = Policy::parse("b", "5/30d").unwrap();
        let charges = [charge(&a, "one").cost(cost(4)), charge(&b, "two").cost(cost(3))];
        let left = async || {
            let charges = [charge(&a, "one"), charge(&b, "two")];
            let verdict = maker.peek(&charges, Timestamp::MIN).await.unwrap();
            [0, 1].map(|n| verdict.decisions()[n].snapshot().remaining())
        };
        for by in [&maker, &settler] {
            let before = left().await;
            let open = maker.reserve(&charges, Timestamp::MIN).await.unwrap();
            assert_eq!(left().await, [before[0] - 4, before[1] - 3], "{engine:?}: taken at once");
            let id = open.reservation.unwrap().id;
            let settled = by.cancel(id, Timestamp::MIN).await.unwrap();
            assert_eq!(settled, Settlement::Settled);
            assert_eq!(left().await, before, "{engine:?}: all of it is back");
            let again = by.cancel(id, Timestamp::MIN).await.unwrap();
            assert_eq!(again, Settlement::Unknown, "{engine:?}: only once");
        }
        let open = maker.reserve(&charges, Timestamp::MIN).await.unwrap();
        let id = open.reservation.unwrap().id;
        settler.commit(id, &[1, 3], Timestamp::MIN).await.unwrap();
        assert_eq!(left().await, [9, 2], "{engine:?}: each charge at its own cost");
        let denied = maker.reserve(&charges, Timestamp::MIN).await.unwrap();
        assert!(!denied.verdict.is_allowed() && denied.reservation.is_none());
        assert_eq!(denied.verdict.denied_by(), Some(1));
        assert_eq!(left().await, [9, 2], "{engine:?}: the half that was allowed is rolled back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_loses_no_answer_and_grants_nothing_twice() {
    for engine in Engine::available() {
        let cluster = Cluster::shared(engine);
        let settings = Settings { key_tags: true, ..settings() };
        let store = connect(&cluster.url(), &settings).await;
        let policies = ["a", "b"].map(|name| Policy::parse(name, "1000000/30d").unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let (store, policies, stop) = (store.clone(), policies.clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let (mut allowed, mut slowest) = (0, Duration::ZERO);
                    while !stop.load(Ordering::Relaxed) {
                        // Half of them ask for both keys, which are not moved at the same moment.
                        let charges = policies.each_ref().map(|policy| charge(policy, "{moving}"));
                        let charges = if caller % 2 == 0 { &charges[..1] } else { &charges[..] };
                        let asked = Instant::now();
                        let verdict = store.check(charges, Timestamp::MIN).await.unwrap();
                        slowest = slowest.max(asked.elapsed());
                        assert!(verdict.is_allowed() && !verdict.is_degraded(), "{verdict:?}");
                        allowed += 1;
                        tokio::task::yield_now().await;
                    }
                    (allowed, slowest)
                })
            })
            .collect();
        for _ in 0..4 {
            until_asked(&store, 200).await;
            let moving = SlotMove::begin(cluster, "moving");
            until_asked(&store, 200).await;
            moving.carry(&settings.prefix, async || until_asked(&store, 50).await).await;
            until_asked(&store, 200).await;
            moving.end(cluster);
        }
        until_asked(&store, 200).await;
        stop.store(true, Ordering::Relaxed);
        let (mut singles, mut doubles, mut slowest) = (0, 0, Duration::ZERO);
        for (number, caller) in callers.into_iter().enumerate() {
            let (allowed, slow) = caller.await.unwrap();
            *(if number % 2 == 0 { &mut singles } else { &mut doubles }) += allowed;
            slowest = slowest.max(slow);
        }
        let charges = policies.each_ref().map(|policy| charge(policy, "{moving}"));
        let verdict = store.peek(&charges, Timestamp::MIN).await.unwrap();
        let taken = [0, 1].map(|n| 1_000_000 - verdict.decisions()[n].snapshot().remaining());
        println!(
            "{engine:?}: slot moved 4 times, {} answers, slowest {slowest:?}",
            singles + doubles
        );
        assert_eq!(taken, [singles + doubles, doubles], "{engine:?}: each answer charged once");
    }
}

/// Callers of old numbers and of new ones, whose states are in keys of another sort, while the slot
/// of their key moves: each answer is charged once.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_while_numbers_change_grants_nothing_twice_and_loses_nothing() {
    let window = Quota::new(2_000_000, Duration::from_hours(8_760)).unwrap();
    let new = Policy::new("a", FixedWindow::new(window, Anchor::FirstRequest)).unwrap();
    let old = Policy::parse("a", "1000000/3650d").unwrap();
    for engine in Engine::available() {
        let cluster = Cluster::shared(engine);
        let settings = Settings { key_tags: true, ..settings() };
        let store = connect(&cluster.url(), &settings).await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut total = 0;
        for _ in 0..10 {
            assert!(check(&store, &old, "{changing}").await.unwrap().is_allowed());
            total += 1;
        }
        let mut callers = Vec::new();
        for caller in 0..6 {
            let (store, stop) = (connect(&cluster.url(), &settings).await, Arc::clone(&stop));
            let policy = if caller % 2 == 0 { old.clone() } else { new.clone() };
            callers.push(tokio::spawn(async move {
                let mut allowed = 0;
                while !stop.load(Ordering::Relaxed) {
                    let verdict = check(&store, &policy, "{changing}").await.unwrap();
                    assert!(verdict.is_allowed() && !verdict.is_degraded(), "{verdict:?}");
                    allowed += 1;
                    tokio::task::yield_now().await;
                }
                allowed
            }));
        }
        let asked = async |more: u64| {
            let taken = async || {
                let verdict = store.peek(&[charge(&new, "{changing}")], Timestamp::MIN).await;
                2_000_000 - verdict.unwrap().decisions()[0].snapshot().remaining()
            };
            let before = taken().await;
            until("callers", async || taken().await >= before + more).await;
        };
        for _ in 0..2 {
            asked(50).await;
            let moving = SlotMove::begin(cluster, "changing");
            asked(50).await;
            // While its two keys are apart nobody can be answered.
            moving.carry(&settings.prefix, async || ()).await;
            asked(50).await;
            moving.end(cluster);
        }
        asked(50).await;
        stop.store(true, Ordering::Relaxed);
        for caller in callers {
            total += caller.await.unwrap();
        }
        let verdict = store.peek(&[charge(&new, "{changing}")], Timestamp::MIN).await.unwrap();
        let taken = 2_000_000 - verdict.decisions()[0].snapshot().remaining();
        assert_eq!(taken, total, "{engine:?}: each answer charged once");
    }
}

/// One slot on its way from one primary to another, as `redis-cli --cluster reshard` does it.
struct SlotMove<'a> {
    slot: String,
    from: &'a Server,
    to: &'a Server,
    to_id: String,
}

impl<'a> SlotMove<'a> {
    fn begin(cluster: &'a Cluster, tag: &str) -> Self {
        let slot = cluster.nodes[0].tell(&["CLUSTER", "KEYSLOT", tag]);
        let slot = slot.trim().trim_start_matches(':').to_owned();
        let is_primary = |node: &&Server| node.tell(&["ROLE"]).contains("master");
        let from = cluster.primary_of(tag);
        let to = cluster.nodes.iter().filter(is_primary).find(|node| node.port != from.port);
        let (to, id) = (to.unwrap(), |node: &Server| {
            node.tell(&["CLUSTER", "MYID"]).lines().nth(1).unwrap().to_owned()
        });
        let (from_id, to_id) = (id(from), id(to));
        accept(to.tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]));
        accept(from.tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]));
        Self { slot, from, to, to_id }
    }

    /// Carries the keys over, one after the other.
    async fn carry(&self, prefix: &str, mut between: impl AsyncFnMut()) {
        let keys = self.from.tell(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]);
        let port = self.to.port.to_string();
        for key in keys.lines().filter(|line| line.starts_with(prefix) || *line == "moving") {
            accept(self.from.tell(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000", "REPLACE"]));
            between().await;
        }
    }

    fn end(self, cluster: &Cluster) {
        let set = |node: &Server| {
            node.tell(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.to_id]);
        };
        set(self.to);
        set(self.from);
        cluster.nodes.iter().filter(|node| node.tell(&["ROLE"]).contains("master")).for_each(set);
    }
}

fn accept(answer: String) {
    assert!(answer.starts_with('+'), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_on_a_cluster_get_exactly_the_limit() {
    for engine in Engine::available() {
        let policy = Policy::parse("race", "100/30d").unwrap();
        let url = Cluster::shared(engine).url();
        assert_eq!(admitted(&url, &settings(), &policy, 16, 16).await, 100, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_to_one_node_share_round_trips() {
    for engine in Engine::available() {
        let store = connect(&Cluster::shared(engine).url(), &settings()).await;
        let policy = Policy::parse("api", "1000000/1s").unwrap();
        let before = store.status();
        let callers: Vec<_> = (0..64)
            .map(|caller| {
                let (store, policy) = (store.clone(), policy.clone());
                tokio::spawn(async move {
                    for request in 0..20 {
                        let key = format!("key {}", caller * 20 + request);
                        assert!(check(&store, &policy, &key).await.unwrap().is_allowed());
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let after = store.status();
        let trips = after.round_trips - before.round_trips;
        assert!(trips * 2 < 1_280, "{engine:?}: {trips} round trips for 1280 requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_and_at_most_its_limit_is_admitted_again() {
    for engine in Engine::available() {
        let cluster = Cluster::start(engine);
        let store = connect(&cluster.url(), &hasty()).await;
        fail_over(engine, "cluster", &store, || cluster.primary_of("hot").kill()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_comes_after_the_start_is_found() {
    let engine = Engine::Redis;
    let cluster = Cluster::shared(engine);
    let way = LossyWay::to(&cluster.nodes[0]);
    way.hold(true);
    let url = format!("redis+cluster://127.0.0.1:{}", way.port);
    let store = connect(&url, &hasty()).await;
    let policy = Policy::parse("api", "5/30d").unwrap();
    let at_most = Duration::from_secs(3_600);
    let allow = policy.clone().on_store_error(OnStoreError::Allow { at_most });
    let verdict = check(&store, &policy, "k").await.unwrap();
    assert!(verdict.is_degraded() && !verdict.is_allowed());
    let verdict = check(&store, &allow, "k").await.unwrap();
    assert!(verdict.is_degraded() && verdict.is_allowed(), "the outage has only begun");
    assert!(store.outage().is_some());
    way.hold(false);
    until("the cluster is found", async || {
        !check(&store, &policy, "k").await.unwrap().is_degraded()
    })
    .await;
    assert_eq!(store.outage(), None);
}
