//! Servers that die: restarted with their data, or replaced by a replica.

use std::time::Duration;

use tollway_queue::{Outcome, Settled};
use tollway_testkit::servers::{Cluster, Engine, Server, eventually, tell};

use super::{Shared, queue_at, settings};
use crate::world::job;

#[test]
fn a_server_that_comes_back_with_its_data_has_lost_nothing() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &["--appendonly", "yes", "--appendfsync", "always"]);
        let shared = Shared::connect(&server.url(), "kept", false);
        let queue = queue_at(&shared.backend, 0, "q");
        let runtime = &shared._runtime;
        runtime.block_on(queue.put(settings("concurrent 100"))).unwrap();
        runtime.block_on(queue.enqueue_all(vec![job("g"); 50])).unwrap();
        let leased = runtime.block_on(queue.lease(20, "w")).unwrap().leases;
        server.kill();
        server.restart();
        let outcomes =
            leased.iter().map(|lease| (lease.token(), Outcome::Done { result: None })).collect();
        let settled = runtime.block_on(queue.settle(outcomes)).unwrap();
        assert_eq!(settled, vec![Settled::Done; 20]);
        let rest = runtime.block_on(queue.lease(100, "w")).unwrap().leases;
        assert_eq!(rest.len(), 30);
        assert!(rest.iter().all(|lease| lease.attempt == 1), "nothing ran twice");
    }
}

/// Waits until the replicas of `primary` have all that it wrote.
fn replicated(primary: &Server) {
    eventually(Duration::from_secs(10), || {
        let info = tell(primary.port, &["INFO", "replication"]).unwrap_or_default();
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.split_once(name))
                .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
        };
        field("master_repl_offset:").is_some_and(|own| field("offset=") == Some(own))
    });
}

/// A life of a queue around the death of its primary: leases hold across it, nothing is lost and
/// nothing runs twice.
fn outlives(url: &str, namespace: &str, primary: &Server) {
    let shared = Shared::connect(url, namespace, false);
    let queue = queue_at(&shared.backend, 0, "q");
    let runtime = &shared._runtime;
    runtime.block_on(queue.put(settings("slots 15/1h"))).unwrap();
    runtime.block_on(queue.enqueue_all(vec![job("g"); 20])).unwrap();
    let leased = runtime.block_on(queue.lease(10, "w")).unwrap().leases;
    replicated(primary);
    primary.kill();
    let outcomes =
        leased.iter().map(|lease| (lease.token(), Outcome::Done { result: None })).collect();
    let settled = runtime.block_on(queue.settle(outcomes)).unwrap();
    assert_eq!(settled, vec![Settled::Done; 10], "leases hold");
    let rest = runtime.block_on(queue.lease(100, "w")).unwrap().leases;
    assert_eq!(rest.len(), 5, "what was used of the limit stays used");
    assert!(rest.iter().all(|lease| lease.attempt == 1), "nothing ran twice");
    runtime.block_on(queue.enqueue(job("h"))).unwrap();
    let waiting = runtime.block_on(queue.stats(None, 0)).unwrap().queue;
    assert_eq!((waiting.waiting, waiting.running), (6, 5), "nothing is lost");
}

#[test]
fn a_cluster_that_fails_over_goes_on_with_the_queue() {
    for engine in Engine::available() {
        let cluster = Cluster::start(engine);
        outlives(&cluster.url(), "failover", cluster.primary_of("failover"));
    }
}

#[test]
fn a_primary_that_sentinels_replace_goes_on_with_the_queue() {
    for engine in Engine::available() {
        let primary = Server::start(engine, &["--repl-diskless-sync-delay", "0"]);
        let port = primary.port.to_string();
        let replica = Server::start(
            engine,
            &["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port],
        );
        eventually(Duration::from_secs(30), || {
            let info = tell(replica.port, &["INFO", "replication"]).unwrap_or_default();
            info.contains("master_link_status:up")
        });
        let watch = format!(
            "sentinel monitor main 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 2000\n"
        );
        let sentinel = Server::start(engine, &[&watch, "--sentinel"]);
        eventually(Duration::from_secs(30), || {
            let known = tell(sentinel.port, &["SENTINEL", "replicas", "main"]).unwrap_or_default();
            known.contains(&replica.port.to_string())
        });
        let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port);
        outlives(&url, "sentinel", &primary);
    }
}
