//! apalis-redis through enqueue, lease and acknowledge; it has no limits to switch on.
//!
//! `tollway-queue-bench-apalis PORT JOBS PAYLOAD_BYTES`: prints one line of JSON with the seconds
//! spent enqueueing (64 producers) and processing (64 jobs at once).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use serde::{Deserialize, Serialize};

const PRODUCERS: u64 = 64;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Payload {
    text: String,
}

#[derive(Clone)]
struct Progress {
    done: Arc<AtomicU64>,
    jobs: u64,
}

async fn handle(
    _: Payload,
    progress: Data<Progress>,
    worker: WorkerContext,
) -> Result<(), BoxDynError> {
    if progress.done.fetch_add(1, Ordering::Relaxed) + 1 == progress.jobs {
        worker.stop()?;
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let numbers: Vec<u64> =
        std::env::args().skip(1).map(|text| text.parse().expect("run.py passes numbers")).collect();
    let [port, jobs, bytes] = numbers[..] else { panic!("PORT JOBS PAYLOAD_BYTES") };
    let connection = apalis_redis::connect(format!("redis://127.0.0.1:{port}")).await;
    let connection = connection.expect("run.py has started the server");
    let config = Config::default().queue("bench").batch_size(100);
    let storage = RedisStorage::new(connection).with_config(config);
    let payload = Payload { text: "x".repeat(bytes as usize) };

    let start = Instant::now();
    let mut producers = Vec::new();
    for producer in 0..PRODUCERS {
        let (mut storage, payload) = (storage.clone(), payload.clone());
        let share = jobs / PRODUCERS + u64::from(producer < jobs % PRODUCERS);
        producers.push(tokio::spawn(async move {
            for _ in 0..share {
                storage.push(payload.clone()).await.expect("a run that loses a job is no run");
            }
        }));
    }
    for producer in producers {
        producer.await.expect("producers do not panic");
    }
    let enqueue_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let progress = Progress { done: Arc::default(), jobs };
    let worker = WorkerBuilder::new("bench").backend(storage).data(progress).concurrency(64);
    worker.build(handle).run().await.expect("a run that breaks off is no run");
    let process_s = start.elapsed().as_secs_f64();
    println!(r#"{{"jobs":{jobs},"enqueue_s":{enqueue_s},"process_s":{process_s}}}"#);
}
