//! Many workers that wait for few jobs: how often the backend is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollway_core::{Clock, Timestamp};
use tollway_queue::{
    Backend, Call, Command, Embedded, Operation, Outcome, Queue, QueueName, QueueSettings, Reply,
    WaitingLine, Wake,
};

use crate::world::{START, job, queue};

/// The clock of tokio's paused time.
pub(crate) struct Paused(tokio::time::Instant);

impl Paused {
    /// It begins now.
    pub(crate) fn new() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        START.after(self.0.elapsed())
    }
}

/// Queues of which it is counted how often they are asked for jobs.
struct Counted {
    queues: Embedded,
    leases: AtomicUsize,
}

impl Backend for Counted {
    fn run(&self, command: Command, now: Timestamp) -> Call<Reply> {
        if matches!(command, Command::Queue(_, Operation::Lease { .. })) {
            self.leases.fetch_add(1, Ordering::SeqCst);
        }
        self.queues.run(command, now)
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Call<Wake> {
        self.queues.changed(queue, seen)
    }

    fn waiting_line(&self, queue: &QueueName) -> Arc<WaitingLine> {
        self.queues.waiting_line(queue)
    }
}

/// So many who wait for jobs of `queue` and are done with each at once, for ever.
pub(crate) fn wait_for_jobs(queue: &Queue, workers: usize, done: &Arc<AtomicUsize>) -> JoinSet<()> {
    let mut waiting = JoinSet::new();
    for worker in 0..workers {
        let (queue, done) = (queue.clone(), Arc::clone(done));
        waiting.spawn(async move {
            let (name, patience) = (format!("w{worker}"), Duration::from_secs(3_600));
            while let Ok(leases) = queue.wait_for_leases(1, &name, patience).await {
                for lease in leases {
                    let outcome = Outcome::Done { result: None };
                    queue.settle_one(lease.token(), outcome).await.unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
    waiting
}

async fn opened(limit: &str) -> (Arc<Counted>, Queue) {
    let counted = Counted { queues: Embedded::memory(), leases: AtomicUsize::new(0) };
    let counted = Arc::new(counted);
    let clock = Arc::new(Paused::new());
    let queue = Queue::new(counted.clone(), clock, queue("work"));
    queue.put(QueueSettings::with_limit(limit.parse().unwrap())).await.unwrap();
    (counted, queue)
}

#[tokio::test(start_paused = true)]
async fn each_job_wakes_one_of_those_who_wait() {
    let (counted, queue) = opened("concurrent 5").await;
    let done = Arc::new(AtomicUsize::new(0));
    let _waiting = wait_for_jobs(&queue, 500, &done);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for enqueued in 1..=50 {
        queue.enqueue(job("g")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(done.load(Ordering::SeqCst), enqueued, "somebody woke");
    }
    // Several at once wake several.
    queue.enqueue_all(vec![job("g"); 5]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(done.load(Ordering::SeqCst), 55);
    let asked = counted.leases.load(Ordering::SeqCst);
    assert!(asked <= 57, "{asked} calls for 55 jobs");
}

#[tokio::test(start_paused = true)]
async fn at_a_time_that_all_wait_for_each_job_wakes_one() {
    let (counted, queue) = opened("slots 3/10s").await;
    let done = Arc::new(AtomicUsize::new(0));
    let _waiting = wait_for_jobs(&queue, 100, &done);
    queue.enqueue_all(vec![job("g"); 12]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(done.load(Ordering::SeqCst), 12, "four windows");
    let asked = counted.leases.load(Ordering::SeqCst);
    assert!(asked <= 18, "{asked} calls for 12 jobs");
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_first_in_line_leaves_it_to_the_next() {
    let (_counted, queue) = opened("concurrent 5").await;
    let impatient = queue.wait_for_leases(1, "impatient", Duration::from_secs(1));
    let patient = queue.wait_for_leases(1, "patient", Duration::from_secs(60));
    let late = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        queue.enqueue(job("g")).await.unwrap();
    };
    let (none, one, ()) = tokio::join!(impatient, patient, late);
    assert_eq!((none.unwrap().len(), one.unwrap().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_removed_is_told_to_everybody_who_waits() {
    let (_counted, queue) = opened("concurrent 5").await;
    let [first, second] = [1, 2].map(|_| queue.wait_for_leases(1, "w", Duration::from_secs(60)));
    let remove = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.remove().await.unwrap();
    };
    let (first, second, ()) = tokio::join!(first, second, remove);
    assert!(first.is_err() && second.is_err());
}
