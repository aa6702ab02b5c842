//! Jobs per second on Redis through enqueue, lease and settle, for `bench/queue/run.py`.
//!
//! `shared PORT JOBS PAYLOAD_BYTES single|bulk GROUPS`: prints one line of JSON with the seconds
//! spent enqueueing (64 producers of one job at a time, or batches of 100) and processing (64 jobs
//! at once), every group with a limit that is never reached.

#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has no figure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollway_core::{Clock, Timestamp};
use tollway_queue::{
    Group, NewJob, Outcome, Queue, QueueName, QueueSettings, RedisBackend, RedisSettings,
};

const PRODUCERS: u64 = 64;
const BATCH: u64 = 100;

struct Now;

impl Clock for Now {
    fn now(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp::from_nanos(now.as_nanos() as u64)
    }
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let [port, jobs, bytes, mode, groups] = &arguments[..] else {
        return println!(
            "shared PORT JOBS PAYLOAD_BYTES single|bulk GROUPS; see bench/queue/run.py"
        );
    };
    let number = |text: &String| text.parse::<u64>().unwrap();
    let (port, jobs, bytes, groups) = (number(port), number(jobs), number(bytes), number(groups));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("redis://127.0.0.1:{port}");
        let backend = RedisBackend::connect(&url, RedisSettings::default()).await.unwrap();
        let queue = Queue::new(Arc::new(backend), Arc::new(Now), QueueName::new("bench").unwrap());
        let mut settings = QueueSettings::with_limit("slots 1000000/1s".parse().unwrap());
        // The peers are told to keep nothing, too.
        settings.retention.done_max = 0;
        queue.put(settings).await.unwrap();
        let bench = Bench { queue, payload: "x".repeat(bytes as usize), jobs, groups };
        let enqueue_s = if mode == "bulk" { bench.bulk().await } else { bench.single().await };
        let process_s = bench.process().await;
        println!(r#"{{"jobs":{jobs},"enqueue_s":{enqueue_s},"process_s":{process_s}}}"#);
    });
}

#[derive(Clone)]
struct Bench {
    queue: Queue,
    payload: String,
    jobs: u64,
    groups: u64,
}

impl Bench {
    fn job(&self, n: u64) -> NewJob {
        let group = Group::new(&format!("group {}", n % self.groups)).unwrap();
        NewJob::new(group, self.payload.clone())
    }

    async fn single(&self) -> f64 {
        let start = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        let mut producers = tokio::task::JoinSet::new();
        for _ in 0..PRODUCERS {
            let (bench, next) = (self.clone(), Arc::clone(&next));
            producers.spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= bench.jobs {
                        return;
                    }
                    bench.queue.enqueue(bench.job(n)).await.unwrap();
                }
            });
        }
        producers.join_all().await;
        start.elapsed().as_secs_f64()
    }

    async fn bulk(&self) -> f64 {
        let start = Instant::now();
        for first in (0..self.jobs).step_by(BATCH as usize) {
            let jobs = (first..(first + BATCH).min(self.jobs)).map(|n| self.job(n)).collect();
            self.queue.enqueue_all(jobs).await.unwrap();
        }
        start.elapsed().as_secs_f64()
    }

    async fn process(&self) -> f64 {
        let start = Instant::now();
        let mut left = self.jobs as usize;
        let mut settling = tokio::task::JoinSet::new();
        while left > 0 {
            let leased = self.queue.wait_for_leases(64, "bench", Duration::from_secs(5)).await;
            let leases = leased.unwrap();
            assert!(!leases.is_empty(), "{left} jobs are left and none may start");
            left -= leases.len();
            let queue = self.queue.clone();
            let done =
                |lease: tollway_queue::Lease| (lease.token(), Outcome::Done { result: None });
            let outcomes = leases.into_iter().map(done).collect();
            settling.spawn(async move { queue.settle(outcomes).await.unwrap() });
        }
        settling.join_all().await;
        start.elapsed().as_secs_f64()
    }
}
