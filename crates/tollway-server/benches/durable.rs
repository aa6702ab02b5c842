//! Durable charges per second, and what a charge waits for.
//!
//! `cargo bench -p tollway-server --bench durable [-- SECONDS [DIRECTORY]]`: four seconds a row by
//! default, the file under the directory for build output, so that it is on a disk.

#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has no figure")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{Charge, Clock as _, Key, Policy, Store as _};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_server::DurableStore;

/// Keys that are charged in turn.
const KEYS: u64 = 10_000;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(4);
    let folder =
        arguments.next().map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("one sync of 4 KiB on {}: {:?}\n", folder.display(), sync(&folder));
    println!("| callers, each one charge at a time | charges/s | mean wait |\n|---|---|---|");
    for callers in [1, 64, 256, 1_024] {
        let path = folder.join(format!("durable-bench-{}-{callers}", std::process::id()));
        let memory = Arc::new(MemoryStore::new(Capacity::keys(1_000)));
        let store = Arc::new(DurableStore::open(&path, memory, 256 << 20).unwrap());
        let length = Duration::from_secs(seconds);
        let (charges, wall) = runtime.block_on(charges(&store, callers, length));
        let rate = charges as f64 / wall.as_secs_f64();
        let wait = wall.mul_f64(callers as f64 / charges as f64);
        println!("| {callers} | {rate:.0} | {wait:?} |");
        drop(store);
        std::fs::remove_file(&path).unwrap();
    }
}

/// How long the disk takes for one sync, in the mean of a hundred.
fn sync(folder: &Path) -> Duration {
    let path = folder.join(format!("durable-bench-{}-sync", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        file.write_all(&[1; 4_096]).unwrap();
        file.sync_data().unwrap();
    }
    let lasted = began.elapsed() / 100;
    std::fs::remove_file(&path).unwrap();
    lasted
}

async fn charges(store: &Arc<DurableStore>, callers: u64, length: Duration) -> (u64, Duration) {
    let window = FixedWindow::new("1000000000/1d".parse().unwrap(), Anchor::Epoch);
    let policy = Policy::new("plan", window).unwrap().durable(Duration::from_secs(86_400));
    let (policy, done) = (Arc::new(policy), Arc::new(AtomicU64::new(0)));
    let (ends, clock) = (Arc::new(AtomicBool::new(false)), Arc::new(SystemClock::new()));
    let began = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (store, policy) = (Arc::clone(store), Arc::clone(&policy));
            let (done, ends, clock) = (Arc::clone(&done), Arc::clone(&ends), Arc::clone(&clock));
            tokio::spawn(async move {
                let mut next = caller;
                while !ends.load(Ordering::Relaxed) {
                    let key = format!("customer {}", next % KEYS);
                    next += callers;
                    let charge = Charge::new(&policy, Key::new(&key).unwrap());
                    let answer = store.check(&[charge], clock.now());
                    assert!(answer.await.unwrap().is_allowed());
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(length).await;
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    (done.load(Ordering::Relaxed), began.elapsed())
}
