//! Waiting for jobs to end: nobody is forgotten, and nobody asks for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollway_core::Timestamp;
use tollway_queue::{
    Backend, Call, Command, Embedded, EndMark, EndWatch, JobId, JobState, NewJob, Operation,
    Outcome, Queue, QueueName, QueueSettings, Reply, Wake,
};

use crate::waiting::Paused;
use crate::world::{group, job, queue};

/// Queues of which it is counted how often they are asked what has ended.
struct Counted {
    queues: Embedded,
    asked: AtomicUsize,
}

impl Backend for Counted {
    fn run(&self, command: Command, now: Timestamp) -> Call<Reply> {
        if matches!(command, Command::Queue(_, Operation::Ended { .. } | Operation::Job(_))) {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        self.queues.run(command, now)
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Call<Wake> {
        self.queues.changed(queue, seen)
    }

    fn end_watch(&self, queue: &QueueName) -> Arc<EndWatch> {
        self.queues.end_watch(queue)
    }
}

async fn opened() -> (Arc<Counted>, Queue) {
    let counted = Arc::new(Counted { queues: Embedded::memory(), asked: AtomicUsize::new(0) });
    let queue = Queue::new(counted.clone(), Arc::new(Paused::new()), queue("work"));
    queue.put(QueueSettings::with_limit("concurrent 1000".parse().unwrap())).await.unwrap();
    (counted, queue)
}

/// Runs a job to its end.
async fn run_one(queue: &Queue, outcome: Outcome) {
    let lease = queue.lease(1, "w").await.unwrap().leases.remove(0);
    queue.settle_one(lease.token(), outcome).await.unwrap();
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_job_hears_of_its_end_and_of_no_other() {
    let (counted, queue) = opened().await;
    let jobs = queue.enqueue_all(vec![job("g"); 500]).await.unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    let mut waiting = JoinSet::new();
    for enqueued in &jobs {
        let (queue, id, ended) = (queue.clone(), enqueued.id, Arc::clone(&ended));
        waiting.spawn(async move {
            let job = queue.wait_for_end(id, Duration::from_secs(3_600)).await.unwrap().unwrap();
            assert!(matches!(job.state, JobState::Done { .. }), "{job:?}");
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    // So that they all stand there, and none of them looks by itself.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let before = counted.asked.load(Ordering::SeqCst);
    for done in 1..=500 {
        run_one(&queue, Outcome::Done { result: None }).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(ended.load(Ordering::SeqCst), done, "at once");
    }
    let asked = counted.asked.load(Ordering::SeqCst) - before;
    assert!(asked <= 2_000, "{asked} calls for 500 jobs: two reads and two looks each at most");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_dead_or_not_over_in_time_is_told_as_such() {
    let (_, queue) = opened().await;
    let ids: Vec<JobId> =
        queue.enqueue_all(vec![job("g"); 3]).await.unwrap().iter().map(|it| it.id).collect();
    let patience = Duration::from_secs(60);
    let end = async {
        pass(1).await;
        run_one(&queue, Outcome::Failed { reason: "no".into(), retry: false }).await;
        queue.cancel(ids[1]).await.unwrap();
    };
    let [dead, cancelled, waits] =
        [0, 1, 2].map(|one: usize| queue.wait_for_end(ids[one], patience));
    let (dead, cancelled, waits, ()) = tokio::join!(dead, cancelled, waits, end);
    assert!(matches!(dead.unwrap().unwrap().state, JobState::Dead { .. }));
    assert_eq!(cancelled.unwrap(), None);
    assert!(matches!(waits.unwrap().unwrap().state, JobState::Waiting { .. }));
    // What is over already is told at once, and what never was, too.
    let start = tokio::time::Instant::now();
    assert!(queue.wait_for_end(ids[0], patience).await.unwrap().is_some());
    assert!(queue.wait_for_end(JobId(77), patience).await.unwrap().is_none());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn whoever_read_for_all_may_leave() {
    let (_, queue) = opened().await;
    let jobs = queue.enqueue_all(vec![job("g"); 2]).await.unwrap();
    let impatient = queue.wait_for_end(jobs[0].id, Duration::from_secs(1));
    let patient = queue.wait_for_end(jobs[1].id, Duration::from_secs(60));
    let late = async {
        pass(2).await;
        run_one(&queue, Outcome::Done { result: None }).await;
        run_one(&queue, Outcome::Done { result: None }).await;
    };
    let start = tokio::time::Instant::now();
    let (first, second, ()) = tokio::join!(impatient, patient, late);
    assert!(matches!(first.unwrap().unwrap().state, JobState::Waiting { .. }));
    assert!(matches!(second.unwrap().unwrap().state, JobState::Done { .. }));
    assert!(start.elapsed() < Duration::from_secs(3), "told, not looked up");
}

#[tokio::test(start_paused = true)]
async fn whoever_follows_a_queue_sees_every_end_in_order() {
    let (_, queue) = opened().await;
    let follow = async {
        let (mut mark, mut seen) = (EndMark::FIRST, Vec::new());
        while seen.len() < 30 {
            let ended = queue.wait_for_ends(mark, 4).await.unwrap();
            mark = ended.mark;
            seen.extend(ended.jobs.into_iter().map(|job| job.id));
        }
        seen
    };
    let run = async {
        let mut ran = Vec::new();
        for one in 0..30 {
            let new = NewJob::new(group("g"), format!("{one}"));
            ran.push(queue.enqueue(new).await.unwrap().id);
            run_one(&queue, Outcome::Done { result: None }).await;
            if one % 7 == 0 {
                pass(1).await;
            }
        }
        ran
    };
    let (seen, ran) = tokio::join!(follow, run);
    assert_eq!(seen, ran);
}
