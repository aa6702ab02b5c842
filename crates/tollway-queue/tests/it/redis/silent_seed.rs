//! Sentinels and seeds of which the first takes connections and never says a word.

use std::net::TcpListener;
use std::time::Duration;

use tollway_testkit::servers::{Cluster, Engine, Server, eventually};

use super::{Shared, queue_at, settings};
use crate::world::job;

/// Cuts the connections to `primary`, and waits until the queue is usable again.
fn comes_back(url: &str, namespace: &str, primary: &Server) {
    let shared = Shared::impatient(url, namespace);
    let (queue, runtime) = (queue_at(&shared.backend, 0, "q"), &shared._runtime);
    runtime.block_on(queue.put(settings("concurrent 1"))).unwrap();
    primary.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually(Duration::from_secs(30), || runtime.block_on(queue.enqueue(job("g"))).is_ok());
}

#[test]
fn a_connection_is_made_again_though_the_first_sentinel_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let primary = Server::start(Engine::Redis, &[]);
    let watch = format!("sentinel monitor main 127.0.0.1 {} 1\n", primary.port);
    let sentinel = Server::start(Engine::Redis, &[&watch, "--sentinel"]);
    let first = silent.local_addr().unwrap();
    let url = format!("redis+sentinel://{first},127.0.0.1:{}/main", sentinel.port);
    comes_back(&url, "silent", &primary);
}

#[test]
fn a_connection_is_made_again_though_the_first_seed_of_a_cluster_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = Cluster::shared(Engine::Redis);
    let seeds = format!("redis+cluster://{},", silent.local_addr().unwrap());
    let url = cluster.url().replace("redis+cluster://", &seeds);
    comes_back(&url, "silent", cluster.primary_of("silent"));
}
