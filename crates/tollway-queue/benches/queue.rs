//! Durable jobs per second, bytes per delayed job, and what waiting costs.
//!
//! `cargo bench -p tollway-queue --bench queue [-- SECONDS [DIRECTORY]]`: half a minute by default,
//! the queue file under the directory for build output, so that it is on a disk.

#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has no figure")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollway_core::{Clock, Timestamp};
use tollway_queue::{
    Embedded, FileOptions, Group, NewJob, Outcome, Queue, QueueName, QueueSettings,
};

const PRODUCERS: usize = 64;
const WORKERS: usize = 4;
const GROUPS: usize = 100;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(4);
    let directory =
        arguments.next().map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!(
        "enqueue, lease, settle; {PRODUCERS} producers of one job at a time, {WORKERS} workers,"
    );
    println!("{GROUPS} groups with a limit each, payloads of 100 bytes, {seconds} s each\n");
    println!("| backend | jobs/s | cpu µs per job |\n|---|---|---|");
    let length = Duration::from_secs(seconds);
    report("memory", runtime.block_on(throughput(Embedded::memory(), length)));
    for two_phase in [true, false] {
        let path = directory.join(format!("queue-bench-{}.redb", std::process::id()));
        let options = FileOptions::at(&path).two_phase(two_phase);
        let queues = Embedded::open_with(options).unwrap();
        let name = if two_phase { "file, two-phase commits" } else { "file, one-phase commits" };
        report(name, runtime.block_on(throughput(queues, length)));
        remove(&path);
    }
    println!(
        "\n| a million delayed jobs in 1,000 groups | bytes per job | cpu ms in 3 s of waiting |\n|---|---|---|"
    );
    let path = directory.join(format!("queue-bench-delayed-{}.redb", std::process::id()));
    runtime.block_on(delayed("file", Embedded::open(&path).unwrap()));
    remove(&path);
    runtime.block_on(delayed("memory, payloads of 32 bytes in it", Embedded::memory()));
}

fn report(name: &str, (jobs, wall, cpu): (u64, Duration, Duration)) {
    let rate = jobs as f64 / wall.as_secs_f64();
    println!("| {name} | {rate:.0} | {:.1} |", cpu.as_secs_f64() * 1e6 / jobs as f64);
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp::from_nanos(since.as_nanos() as u64)
    }
}

async fn queue(queues: Embedded, limit: &str) -> Queue {
    let name = QueueName::new("bench").unwrap();
    let queue = Queue::new(Arc::new(queues), Arc::new(WallClock), name);
    queue.put(QueueSettings::with_limit(limit.parse().unwrap())).await.unwrap();
    queue
}

/// Jobs that went all the way, in how long, at what processor time.
async fn throughput(queues: Embedded, length: Duration) -> (u64, Duration, Duration) {
    let queue = queue(queues, "slots 100000/1s").await;
    let (stop, settled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut tasks = Vec::new();
    for producer in 0..PRODUCERS {
        tasks.push(tokio::spawn(produce(queue.clone(), producer, stop.clone())));
    }
    for _ in 0..WORKERS {
        tasks.push(tokio::spawn(work(queue.clone(), settled.clone(), stop.clone())));
    }
    tokio::time::sleep(length).await;
    let outcome = (settled.load(Ordering::SeqCst), start.elapsed(), cpu_time() - cpu);
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    outcome
}

async fn produce(queue: Queue, producer: usize, stop: Arc<AtomicBool>) {
    let payload = bytes::Bytes::from(vec![b'x'; 100]);
    let mut index = producer;
    while !stop.load(Ordering::Relaxed) {
        index += PRODUCERS;
        let group = Group::new(&format!("group {}", index % GROUPS)).unwrap();
        queue.enqueue(NewJob::new(group, payload.clone())).await.unwrap();
        // The memory backend answers at once and would never let go of the thread.
        tokio::task::yield_now().await;
    }
}

async fn work(queue: Queue, settled: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let leased = queue.lease(256, "bench").await.unwrap();
        if leased.leases.is_empty() {
            let wait = Duration::from_millis(50);
            drop(
                tokio::time::timeout(wait, queue.backend().changed(queue.name(), leased.seen))
                    .await,
            );
            continue;
        }
        let done = |lease: &tollway_queue::Lease| (lease.token(), Outcome::Done { result: None });
        let outcomes: Vec<_> = leased.leases.iter().map(done).collect();
        let count = outcomes.len() as u64;
        queue.settle(outcomes).await.unwrap();
        settled.fetch_add(count, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

/// What a million delayed jobs cost.
async fn delayed(what: &str, queues: Embedded) {
    let queue = queue(queues, "slots 10/10s").await;
    let before = resident_bytes();
    let payload = bytes::Bytes::from(vec![b'x'; 32]);
    for batch in 0..1_000u64 {
        let job = |index: u64| {
            let group = Group::new(&format!("group {index}")).unwrap();
            let delay = Duration::from_secs(86_400 + batch);
            NewJob::new(group, bytes::Bytes::copy_from_slice(&payload)).after(delay)
        };
        queue.enqueue_all((0..1_000).map(job).collect()).await.unwrap();
    }
    let bytes = resident_bytes() - before;
    let leased = queue.lease(1, "bench").await.unwrap();
    assert!(leased.leases.is_empty());
    let cpu = cpu_time();
    let changed = queue.backend().changed(queue.name(), leased.seen);
    assert!(tokio::time::timeout(Duration::from_secs(3), changed).await.is_err(), "woken");
    let cpu = cpu_time() - cpu;
    println!("| {what} | {} | {:.1} |", bytes / 1_000_000, cpu.as_secs_f64() * 1e3);
}

/// The processor time of this process, in ticks of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}
