//! Worker processes whose clocks are a second apart, on one queue.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tollway_core::Clock;
use tollway_queue::{NewJob, Outcome, Task, Worker, handler_fn};
use tollway_testkit::servers::Engine;

use super::{Shared, Skewed, queue_at, settings};
use crate::world::job;

const CHILD: &str = "TOLLWAY_QUEUE_CLOCKS";
const UNITS: usize = 5;
const WINDOW: Duration = Duration::from_millis(300);
const JOBS: usize = 40;

/// A worker in a process of its own, which does not outlive its test.
struct WorkerProcess {
    child: Child,
    output: Option<ChildStdout>,
}

impl WorkerProcess {
    fn start(url: &str, namespace: &str, skew_ms: i64) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["redis::clocks::child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, format!("{skew_ms} {namespace} {url}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test starts again");
        let output = child.stdout.take();
        Self { child, output }
    }

    /// Tells the calls it makes, each in a line, to `told`, until it ends.
    fn listen(&mut self, told: std::sync::mpsc::Sender<Call>) -> std::thread::JoinHandle<()> {
        let output = self.output.take().expect("listened to once");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(call) = Call::read(&line) {
                    drop(told.send(call));
                }
            }
        })
    }

    /// A worker whose input has ended stops.
    fn stop(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One call of a job's group, by the machine's own clock.
#[derive(Debug)]
struct Call {
    skew_ms: i64,
    group: String,
    dispatched: u64,
    answered: u64,
}

impl Call {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_once("@call ")?.1.split(' ');
        Some(Self {
            skew_ms: words.next()?.parse().ok()?,
            group: words.next()?.to_owned(),
            dispatched: words.next()?.parse().ok()?,
            answered: words.next()?.parse().ok()?,
        })
    }
}

/// What both processes can compare: the machine's clock, whatever their workers believe.
fn machine_ns() -> u64 {
    Skewed(0).now().as_nanos()
}

#[test]
fn two_worker_processes_whose_clocks_are_a_second_apart_never_exceed_a_limit() {
    for engine in Engine::available() {
        let url = engine.shared().url();
        let shared = Shared::connect(&url, "skewed", false);
        let producer = queue_at(&shared.backend, 0, "q");
        let limit = format!("slots {UNITS}/{}ms", WINDOW.as_millis());
        shared._runtime.block_on(producer.put(settings(&limit))).unwrap();
        let (told, calls) = std::sync::mpsc::channel();
        let mut workers = [500, -500].map(|skew| WorkerProcess::start(&url, "skewed", skew));
        let listeners = workers.each_mut().map(|worker| worker.listen(told.clone()));
        let jobs: Vec<NewJob> = (0..JOBS).map(|n| job(["a", "b"][n % 2])).collect();
        shared._runtime.block_on(producer.enqueue_all(jobs)).unwrap();
        let next = || calls.recv_timeout(Duration::from_secs(60)).expect("a call");
        let calls: Vec<Call> = std::iter::repeat_with(next).take(JOBS).collect();
        workers.iter_mut().for_each(WorkerProcess::stop);
        listeners.into_iter().for_each(|listener| listener.join().unwrap());
        judge(&calls);
        let stats = shared._runtime.block_on(producer.stats(None, 0)).unwrap();
        assert_eq!((stats.totals.leased, stats.totals.expired), (JOBS as u64, 0));
    }
}

/// Each job ran once, in either process, and no call exceeded the limit of its group.
fn judge(calls: &[Call]) {
    for skew_ms in [500, -500] {
        assert!(calls.iter().any(|call| call.skew_ms == skew_ms), "both worked: {calls:?}");
    }
    for name in ["a", "b"] {
        let mut of: Vec<_> = calls.iter().filter(|call| call.group == name).collect();
        assert_eq!(of.len(), JOBS / 2, "each job ran once");
        of.sort_by_key(|call| call.dispatched);
        for (index, call) in of.iter().enumerate().skip(UNITS) {
            // At most UNITS calls whose answers are younger than the window, or not there yet.
            let counts = |other: &&&Call| {
                Duration::from_nanos(call.dispatched.saturating_sub(other.answered)) < WINDOW
            };
            let busy = of[..index].iter().filter(counts).count();
            assert!(busy < UNITS, "{busy} calls count against the one at {index}");
        }
    }
}

/// Works at the queue that the environment names, by a clock that is wrong, until its input ends.
#[test]
#[ignore = "a child of the test above"]
#[allow(clippy::print_stdout, reason = "the parent reads what it prints")]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let mut words = told.splitn(3, ' ');
    let mut word = || words.next().expect("a word").to_owned();
    let (skew_ms, namespace, url) = (word().parse::<i64>().unwrap(), word(), word());
    let shared = Shared::connect(&url, &namespace, false);
    let worker = Worker::new(queue_at(&shared.backend, skew_ms, "q")).concurrency(4);
    let handler = handler_fn(move |task: Task| async move {
        let dispatched = machine_ns();
        tokio::task::yield_now().await;
        let (group, answered) = (task.lease().group.as_str(), machine_ns());
        println!("@call {skew_ms} {group} {dispatched} {answered}");
        drop(std::io::stdout().flush());
        Outcome::Done { result: None }
    });
    let over = async {
        let ended = tokio::task::spawn_blocking(|| {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
        });
        drop(ended.await);
    };
    shared._runtime.block_on(worker.run(handler, over)).unwrap();
}
