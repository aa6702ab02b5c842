//! By the real clock: threads that outnumber the cores and processes that are stopped for most of
//! the time read the clock long before they ask. Only upper bounds are asserted, never speed.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Clock, Policy, Quota};
use tollway_memory::{Capacity, Limiter, MemoryStore, SystemClock};
use tollway_testkit::oracle::bound;

fn policies() -> Vec<Policy> {
    let [thousand, ten]: [Quota; 2] = ["1000/1s", "10/20ms"].map(|text| text.parse().unwrap());
    let all: [(&str, Algorithm); 7] = [
        ("gcra", thousand.into()),
        ("fraction", "999/1000000007ns".parse::<Quota>().unwrap().into()),
        ("epoch", FixedWindow::new(ten, Anchor::Epoch).into()),
        ("first", FixedWindow::new(ten, Anchor::FirstRequest).into()),
        ("leaky", LeakyBucket::new(10, 1, Duration::from_millis(1)).unwrap().into()),
        ("exact", SlidingWindow::exact(thousand).unwrap().into()),
        ("permits", Concurrency::new(100, Duration::from_millis(20)).unwrap().into()),
    ];
    all.map(|(name, algorithm)| Policy::new(name, algorithm).unwrap()).into()
}

/// What came of `threads` threads that did nothing but check one key: what was admitted, and the
/// most that may be between the first reading of the clock and the last.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    admitted: u64,
    most: u64,
}

fn hammer(policy: Policy, threads: usize, time: Duration) -> Outcome {
    let clock = Arc::new(SystemClock::new());
    let store = Arc::new(MemoryStore::new(Capacity::keys(64)));
    let limiter = Limiter::with_store(policy, store, clock.clone());
    let (admitted, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (began, until) = (clock.now(), Instant::now() + time);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut mine = 0;
                while !over.load(Ordering::Relaxed) {
                    mine += (0..64).filter(|_| limiter.check("everybody").is_allowed()).count();
                    if Instant::now() > until {
                        over.store(true, Ordering::Relaxed);
                    }
                }
                admitted.fetch_add(mine as u64, Ordering::Relaxed);
            });
        }
    });
    let most = bound(limiter.policy().algorithm(), clock.now().since(began));
    Outcome { admitted: admitted.into_inner(), most: u64::try_from(most).unwrap() }
}

fn is_full() -> bool {
    std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1")
}

#[test]
fn threads_that_outnumber_the_cores_exceed_no_bound() {
    let (threads, time): (&[usize], _) = if is_full() {
        (&[2, 8, 32, 64], Duration::from_millis(500))
    } else {
        (&[8], Duration::from_millis(300))
    };
    for &threads in threads {
        for policy in policies().into_iter().take(if is_full() { usize::MAX } else { 2 }) {
            let name = policy.name().to_owned();
            let Outcome { admitted, most } = hammer(policy, threads, time);
            assert!(admitted <= most, "{name}, {threads} threads: {admitted} of {most}");
            assert!(admitted > 0, "{name}, {threads} threads: nobody was admitted");
        }
    }
}

/// Tells this test binary to be the process that is stopped.
const CHILD: &str = "TOLLWAY_STOPPED_CHILD";

/// Not a test of its own: what the process does that the next test stops.
#[test]
fn the_process_that_is_stopped() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    for policy in policies() {
        let name = policy.name().to_owned();
        let Outcome { admitted, most } = hammer(policy, 4, Duration::from_millis(700));
        println!("@outcome {name} {admitted} {most}");
    }
}

#[test]
fn a_process_that_is_stopped_for_most_of_the_time_exceeds_no_bound() {
    if !is_full() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stopped::the_process_that_is_stopped", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stops, give_up) = (0, Instant::now() + Duration::from_secs(60));
    while child.try_wait().unwrap().is_none() && Instant::now() < give_up {
        signal(&child, "-STOP");
        pass(Duration::from_millis(60));
        signal(&child, "-CONT");
        pass(Duration::from_millis(40));
        stops += 1;
    }
    let _ = child.kill();
    let told = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let outcomes: Vec<Vec<&str>> = told
        .lines()
        .filter_map(|line| Some(line.split_once("@outcome ")?.1.split(' ').collect()))
        .collect();
    assert_eq!(outcomes.len(), policies().len(), "{told}");
    assert!(stops > 10, "it was stopped only {stops} times");
    for outcome in outcomes {
        let [admitted, most] = [1, 2].map(|at: usize| outcome[at].parse::<u64>().unwrap());
        assert!(admitted <= most, "{outcome:?}");
    }
}

fn signal(child: &Child, signal: &str) {
    // It may be over already.
    let _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
}

/// Lets real time pass, which is what this is about: the signals are a schedule by the clock.
fn pass(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}
