//! A thousand workers that wait, in one process and in two.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollway_queue::Queue;
use tollway_testkit::servers::{Engine, Server, eventually};

use super::{Shared, queue_at, settings};
use crate::waiting::wait_for_jobs;
use crate::world::job;

/// How many scripts were run since the server started.
fn scripts(server: &Server) -> u64 {
    let told = server.tell(&["INFO", "commandstats"]);
    let calls = told.split_once("cmdstat_evalsha:calls=").map(|(_, rest)| rest);
    calls.and_then(|rest| rest.split_once(',')).map_or(0, |(calls, _)| calls.parse().unwrap())
}

/// Enqueues `jobs` one after the other as soon as the last is done; how many scripts that took.
fn run_one_by_one(server: &Server, runtime: &Shared, queue: &Queue, done: &AtomicUsize) -> u64 {
    const JOBS: usize = 200;
    let before = (scripts(server), done.load(Ordering::SeqCst));
    for one in 1..=JOBS {
        runtime._runtime.block_on(queue.enqueue(job(&format!("g{}", one % 7)))).unwrap();
        eventually(Duration::from_secs(60), || done.load(Ordering::SeqCst) == before.1 + one);
    }
    let per_job_in_hundredths = (scripts(server) - before.0) * 100 / JOBS as u64;
    assert!(per_job_in_hundredths <= 300, "{per_job_in_hundredths} calls per 100 jobs");
    per_job_in_hundredths
}

#[test]
fn a_job_costs_three_calls_however_many_workers_wait_for_it() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let processes = [(); 2].map(|()| Shared::connect(&server.url(), "herd", false));
        let queues = processes.each_ref().map(|one| queue_at(&one.backend, 0, "q"));
        processes[0]._runtime.block_on(queues[0].put(settings("concurrent 50"))).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let wait = |of: usize, workers: usize| {
            let _entered = processes[of]._runtime.enter();
            wait_for_jobs(&queues[of], workers, &done)
        };
        let _first = wait(0, 1_000);
        // Whoever waits has asked by then: it is the first in line that blocks.
        let is_quiet = || {
            let blocked = server.tell(&["INFO", "clients"]);
            blocked.contains("blocked_clients:1") || blocked.contains("blocked_clients:2")
        };
        eventually(Duration::from_secs(60), is_quiet);
        run_one_by_one(&server, &processes[0], &queues[0], &done);
        let _second = wait(1, 1_000);
        eventually(Duration::from_secs(60), || {
            server.tell(&["INFO", "clients"]).contains("blocked_clients:2")
        });
        run_one_by_one(&server, &processes[0], &queues[0], &done);
    }
}

/// How long 300 jobs took from enqueueing to their leases, in milliseconds and in order, with so
/// many workers that wait.
fn waits_ms(workers: usize) -> Vec<f64> {
    let server = Server::start(Engine::Redis, &[]);
    let process = Shared::connect(&server.url(), "herd", false);
    let queue = queue_at(&process.backend, 0, "q");
    process._runtime.block_on(queue.put(settings("concurrent 50"))).unwrap();
    let (leased, heard) = std::sync::mpsc::channel();
    let _entered = process._runtime.enter();
    for worker in 0..workers {
        let (queue, leased) = (queue.clone(), leased.clone());
        process._runtime.spawn(async move {
            let (name, patience) = (format!("w{worker}"), Duration::from_secs(600));
            while let Ok(leases) = queue.wait_for_leases(1, &name, patience).await {
                for lease in leases {
                    leased.send(std::time::Instant::now()).unwrap();
                    let done = tollway_queue::Outcome::Done { result: None };
                    queue.settle_one(lease.token(), done).await.unwrap();
                }
            }
        });
    }
    eventually(Duration::from_secs(60), || {
        server.tell(&["INFO", "clients"]).contains("blocked_clients:1")
    });
    let wait = |one: usize| {
        let begun = std::time::Instant::now();
        process._runtime.block_on(queue.enqueue(job(&format!("g{}", one % 7)))).unwrap();
        heard.recv().unwrap().duration_since(begun).as_secs_f64() * 1e3
    };
    let mut waits: Vec<f64> = (0..300).map(wait).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

/// `cargo test -p tollway-queue --all-features --test it herd -- --ignored --nocapture` prints what
/// bench/runs records.
#[test]
#[ignore = "measures; checks nothing"]
#[allow(clippy::print_stdout, reason = "it prints what it measures")]
fn time_from_enqueueing_to_the_lease() {
    for round in 0..3 {
        for workers in [5, 1_000] {
            let waits = waits_ms(workers);
            let [p50, p95] = [150, 285].map(|index| waits[index]);
            println!("round {round}, {workers} wait: p50 {p50:.2} ms, p95 {p95:.2} ms");
        }
    }
}
