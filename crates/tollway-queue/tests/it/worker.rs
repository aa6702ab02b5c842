//! Workers: concurrency, exact sleeping, heartbeats, cancellation, and how they stop.

mod flaky;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tollway_core::{Clock, Timestamp};
use tollway_queue::{
    Cancelled, Embedded, JobState, NewJob, Outcome, Queue, QueueSettings, Summary, Task, Worker,
    handler_fn,
};

use crate::world::{START, group, job, queue};
use flaky::Flaky;

/// The clock of tokio's paused time.
struct Paused(tokio::time::Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        START.after(self.0.elapsed())
    }
}

async fn open(settings: QueueSettings) -> Queue {
    let clock = Arc::new(Paused(tokio::time::Instant::now()));
    let queue = Queue::new(Arc::new(Embedded::memory()), clock, queue("work"));
    queue.put(settings).await.unwrap();
    queue
}

fn limited(limit: &str) -> QueueSettings {
    QueueSettings::with_limit(limit.parse().unwrap())
}

fn done() -> Outcome {
    Outcome::Done { result: None }
}

/// Runs a worker whose jobs are done at once, until so many were.
async fn run_jobs(worker: Worker, jobs: usize) -> Summary {
    let (left, over) = (Arc::new(AtomicUsize::new(jobs)), Arc::new(Notify::new()));
    let stop = Arc::clone(&over);
    let handler = handler_fn(move |_: Task| {
        let (left, over) = (Arc::clone(&left), Arc::clone(&over));
        async move {
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                over.notify_one();
            }
            done()
        }
    });
    worker.run(handler, async move { stop.notified().await }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_worker_sleeps_exactly_until_the_next_job_may_start() {
    let queue = open(limited("slots 2/10s")).await;
    queue.enqueue_all(vec![job("g"); 6]).await.unwrap();
    let begin = tokio::time::Instant::now();
    let summary = run_jobs(Worker::new(queue).concurrency(4), 6).await;
    let took = begin.elapsed();
    assert!((Duration::from_secs(20)..Duration::from_millis(20_020)).contains(&took), "{took:?}");
    assert_eq!(summary.settled, 6);
    assert!(summary.asked <= 6, "{} calls for 6 jobs", summary.asked);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_long_job_and_tell_it_that_it_was_cancelled() {
    let settings = QueueSettings { lease: Duration::from_secs(3), ..limited("concurrent 1") };
    let queue = open(settings).await;
    let id = queue.enqueue(job("g")).await.unwrap().id;
    let (told, heard) = oneshot::channel();
    let told = Arc::new(std::sync::Mutex::new(Some(told)));
    let handler = handler_fn(move |mut task: Task| {
        let told = Arc::clone(&told);
        async move {
            tokio::time::sleep(Duration::from_secs(30)).await;
            task.cancelled().await;
            told.lock().unwrap().take().unwrap().send(task.lease().attempt).unwrap();
            done()
        }
    });
    let (looker, worker) = (queue.clone(), Worker::new(queue));
    let cancel = async move {
        tokio::time::sleep(Duration::from_secs(40)).await;
        let state = looker.job(id).await.unwrap().unwrap().state;
        assert!(matches!(state, JobState::Running { .. }), "{state:?}");
        assert_eq!(looker.cancel(id).await.unwrap(), Cancelled::Requested);
        assert_eq!(heard.await.unwrap(), 1, "it ran once");
    };
    worker.run(handler, cancel).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_told_to_stop_lets_jobs_end_and_gives_back_those_that_do_not() {
    let queue = open(limited("concurrent 10")).await;
    for payload in ["1", "100"] {
        queue.enqueue(NewJob::new(group("g"), payload)).await.unwrap();
    }
    let handler = handler_fn(|task: Task| async move {
        let seconds = std::str::from_utf8(&task.lease().payload).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        done()
    });
    let worker = Worker::new(queue.clone()).concurrency(2).grace(Duration::from_secs(5));
    let stop = tokio::time::sleep(Duration::from_millis(10));
    let summary = worker.run(handler, stop).await.unwrap();
    assert_eq!(summary.settled, 1, "the short one ended");
    let stats = queue.stats(None, 0).await.unwrap();
    assert_eq!((stats.queue.running, stats.totals.failed, stats.totals.done), (0, 1, 1));
    assert_eq!(stats.queue.delayed, 1, "the long one waits for its backoff");
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_concurrency_run_at_once_and_errors_are_failures() {
    let settings = QueueSettings { attempts_max: 1, ..limited("concurrent 100") };
    let queue = open(settings).await;
    queue.enqueue_all(vec![job("g"); 20]).await.unwrap();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let handler = handler_fn(move |_: Task| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(100)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Outcome::Failed { reason: "no".to_owned(), retry: true }
        }
    });
    let worker = Worker::new(queue.clone()).concurrency(3);
    worker.run(handler, tokio::time::sleep(Duration::from_secs(10))).await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 3);
    assert_eq!(queue.stats(None, 0).await.unwrap().dead, 20);
}

/// Runs one job of `work` under leases of 3 s, on a store that takes no outcome in the first `away`
/// seconds; its worker is stopped after a minute.
async fn run_beside_a_store_that_is_away(
    work: Duration,
    away: Duration,
) -> (Summary, tollway_queue::Stats) {
    let begin = tokio::time::Instant::now();
    let backend = Flaky::new(begin + away, None);
    let queue = Queue::new(Arc::new(backend), Arc::new(Paused(begin)), queue("work"));
    let lease = Duration::from_secs(3);
    queue.put(QueueSettings { lease, attempts_max: 1, ..Default::default() }).await.unwrap();
    queue.enqueue(job("g")).await.unwrap();
    let handler = handler_fn(move |_: Task| async move {
        tokio::time::sleep(work).await;
        done()
    });
    let stop = tokio::time::sleep(Duration::from_secs(60));
    let summary = Worker::new(queue.clone()).run(handler, stop).await.unwrap();
    (summary, queue.stats(None, 0).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_repeated_for_a_lease_time_from_the_end_of_its_job() {
    // Ten leases long, and two seconds without a store at its end.
    let (work, away) = (Duration::from_secs(30), Duration::from_secs(32));
    let (summary, stats) = run_beside_a_store_that_is_away(work, away).await;
    assert_eq!((summary.settled, summary.lost), (1, 0));
    assert_eq!((stats.totals.done, stats.totals.leased, stats.totals.expired), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_takes_is_given_up_and_its_lease_ends() {
    let (work, away) = (Duration::from_secs(10), Duration::from_secs(3_600));
    let (summary, stats) = run_beside_a_store_that_is_away(work, away).await;
    assert_eq!((summary.settled, summary.lost), (0, 1));
    assert_eq!((stats.dead, stats.totals.expired, stats.queue.running), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_time_that_is_told_makes_nobody_forget_an_earlier_one() {
    let begin = tokio::time::Instant::now();
    let backend = Flaky::new(begin, Some(START.after(Duration::from_secs(30))));
    let queue = Queue::new(Arc::new(backend), Arc::new(Paused(begin)), queue("work"));
    queue.put(limited("slots 1/10s")).await.unwrap();
    queue.enqueue_all(vec![job("g"); 2]).await.unwrap();
    run_jobs(Worker::new(queue).concurrency(2), 2).await;
    let took = begin.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_millis(10_020)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_kept_fails_its_job_once() {
    let queue = open(QueueSettings { payload_max: 10, ..Default::default() }).await;
    let id = queue.enqueue(job("g")).await.unwrap().id;
    let handler =
        handler_fn(|_: Task| async { Outcome::Done { result: Some(vec![7; 11].into()) } });
    let stop = tokio::time::sleep(Duration::from_secs(3_600));
    Worker::new(queue.clone()).run(handler, stop).await.unwrap();
    let stats = queue.stats(None, 0).await.unwrap();
    assert_eq!((stats.totals.leased, stats.totals.expired, stats.dead), (1, 0, 1));
    let state = queue.job(id).await.unwrap().unwrap().state;
    assert!(matches!(&state, JobState::Dead { reason, .. } if reason.contains("10 bytes")));
}

#[tokio::test(start_paused = true)]
async fn a_worker_asks_once_while_a_hundred_thousand_jobs_are_delayed() {
    let queue = open(limited("slots 10/10s")).await;
    let hour = Duration::from_secs(3_600);
    let worker = Worker::new(queue.clone()).concurrency(4);
    let producer = async move {
        // Some before it asks, most while it waits, a minute between any two batches.
        for batch in 0..100u32 {
            let delayed =
                |n: u32| job(&format!("g{}", n % 50)).after(2 * hour + hour / 100 * batch);
            queue.enqueue_all((0..1_000).map(delayed).collect()).await.unwrap();
            if batch % 2 == 0 {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
        }
        assert_eq!(queue.stats(None, 0).await.unwrap().queue.delayed, 100_000);
    };
    let handler = handler_fn(|_: Task| async { done() });
    let summary = worker.run(handler, producer).await.unwrap();
    assert_eq!((summary.asked, summary.settled), (1, 0));
}
