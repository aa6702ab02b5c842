//! Queues on real Redis and Valkey servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate_core::{Clock, Timestamp};
use tollgate_queue::{
    Backend, ErrorKind, JobState, NewJob, Outcome, Progress, Queue, QueueName, QueueSettings,
    Recurring, RedisBackend, RedisSettings, Rhythm, Settled, Task, Worker, handler_fn,
};
use tollgate_sim::servers::{Cluster, Engine, LossyWay, Server, eventually, full};

use crate::model::{Subject, play};
use crate::world::{START, after, get, group, job, now_or_soon, queue};

/// A backend whose time is the caller's, on a runtime of its own.
struct Shared {
    _runtime: Runtime,
    backend: RedisBackend,
}

impl Shared {
    fn connect(url: &str, namespace: &str, use_callers_time: bool) -> Self {
        let runtime = runtime();
        let settings = RedisSettings {
            namespace: QueueName::new(namespace).unwrap(),
            use_callers_time,
            ..RedisSettings::default()
        };
        let backend = runtime.block_on(RedisBackend::connect(url, settings)).unwrap();
        Self { _runtime: runtime, backend }
    }

    fn virtual_time(server: &Server, namespace: &str) -> Self {
        Self::connect(&server.url(), namespace, true)
    }
}

impl Subject for Shared {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn has_a_clock_of_its_own(&self) -> bool {
        true
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The system's clock, wrong by some amount.
struct Skewed(i64);

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let millis = now.as_millis() as i64 + self.0;
        Timestamp::from_millis(millis as u64)
    }
}

fn queue_at(backend: &RedisBackend, skew_ms: i64, name: &str) -> Queue {
    Queue::new(Arc::new(backend.clone()), Arc::new(Skewed(skew_ms)), queue(name))
}

fn settings(limit: &str) -> QueueSettings {
    QueueSettings::with_limit(limit.parse().unwrap())
}

/// The keys of a namespace that have no TTL, without those that say that a queue exists.
fn keys_without_ttl(server: &Server, namespace: &str) -> Vec<String> {
    let script = "local left = {} \
        for _, key in ipairs(redis.call('KEYS', '*{' .. ARGV[1] .. '}*')) do \
          if redis.call('PTTL', key) == -1 and not key:find(':c$') then left[#left + 1] = key end \
        end return table.concat(left, ' ')";
    let answer = server.tell(&["EVAL", script, "0", namespace]);
    let body = answer.split_once("\r\n").map_or("", |(_, body)| body.trim());
    body.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn random_histories_agree_with_the_reference_and_leave_no_key_without_ttl() {
    let operations = if full() { 200_000 } else { 3_000 };
    for engine in Engine::available() {
        for seed in 1..=2 {
            let namespace = format!("model{seed}");
            let server = engine.shared();
            let mut subject = Shared::virtual_time(server, &namespace);
            play(&mut subject, seed, operations / 2);
            assert_eq!(keys_without_ttl(server, &namespace), [""; 0], "{engine:?} {seed}");
        }
    }
}

#[test]
fn limits_of_a_queue_and_shared_ones_bind_all_their_jobs_at_once() {
    for engine in Engine::available() {
        let shared = Shared::virtual_time(engine.shared(), "wide");
        let backend = &shared.backend;
        get(backend.put_shared(&queue("both"), "slots 3/10s".parse().unwrap(), START));
        let mut bound = settings("slots 2/10s");
        bound.shared = vec![queue("both")];
        for name in ["one", "two"] {
            get(backend.put_queue(&queue(name), bound.clone(), START));
            let jobs = ["a", "a", "a", "b", "b"].map(job).to_vec();
            get(backend.enqueue(&queue(name), jobs, START));
        }
        let first = get(backend.lease(&queue("one"), 10, "w", START));
        assert_eq!(first.leases.len(), 3, "three of the shared limit");
        let groups: Vec<&str> = first.leases.iter().map(|lease| lease.group.as_str()).collect();
        assert_eq!(groups, ["a", "b", "a"], "in turn");
        assert!(get(backend.lease(&queue("two"), 10, "w", START)).leases.is_empty());
        let done = |lease: &tollgate_queue::Lease| (lease.token(), Outcome::Done { result: None });
        let outcomes = first.leases.iter().map(done).collect();
        get(backend.settle(&queue("one"), outcomes, after(1.0)));
        let waits = get(backend.lease(&queue("two"), 10, "w", after(1.0)));
        assert_eq!((waits.leases.len(), waits.next), (0, Some(after(11.0))));
        let second = get(backend.lease(&queue("two"), 10, "w", after(11.0)));
        assert_eq!(second.leases.len(), 3);
    }
}

#[test]
fn heavy_jobs_take_their_units_and_higher_priorities_go_first() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "heavy");
    let (backend, name) = (&shared.backend, queue("q"));
    get(backend.put_queue(&name, settings("slots 3/10s"), START));
    let jobs = vec![job("g").weight(2), job("g").weight(2), job("g").priority(5)];
    let told = get(backend.enqueue(&name, jobs, START));
    let leased = get(backend.lease(&name, 10, "w", START));
    let ids: Vec<_> = leased.leases.iter().map(|lease| lease.id).collect();
    assert_eq!(ids, [told[2].id, told[0].id], "the second heavy one does not fit");
    // Heavier than the limit is as heavy as the limit: it must not wait for ever.
    get(backend.put_queue(&name, settings("slots 1/10s"), START));
    let outcomes =
        leased.leases.iter().map(|lease| (lease.token(), Outcome::Done { result: None })).collect();
    get(backend.settle(&name, outcomes, after(1.0)));
    assert_eq!(get(backend.lease(&name, 10, "w", after(10.9))).leases.len(), 0);
    assert_eq!(get(backend.lease(&name, 10, "w", after(11.0))).leases.len(), 1);
}

#[test]
fn recurring_jobs_results_and_progress_are_there() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "kept");
    let (backend, name) = (&shared.backend, queue("q"));
    get(backend.put_queue(&name, settings("concurrent 5"), START));
    let rhythm = Rhythm::Every(Duration::from_secs(60));
    let recurring = Recurring { name: "tidy up".to_owned(), rhythm, job: job("g") };
    get(backend.put_recurring(&name, recurring.clone(), START));
    assert_eq!(get(backend.recurring(&name)), [recurring]);
    let next = get(backend.lease(&name, 1, "w", START)).next.unwrap();
    // Of several times that passed unseen one job is enqueued, not all.
    let late = next.after(Duration::from_secs(150));
    let leased = get(backend.lease(&name, 10, "w", late));
    assert_eq!(leased.leases.len(), 1);
    let lease = &leased.leases[0];
    let progress = Progress { done: 3, total: 7 };
    assert!(get(backend.progress(&name, lease.token(), progress, late)));
    let running = get(backend.job(&name, lease.id, late)).unwrap();
    assert!(
        matches!(running.state, JobState::Running { progress: Some(p), .. } if p == progress),
        "{running:?}"
    );
    let done = Outcome::Done { result: Some("42".into()) };
    let settled = get(backend.settle_one(&name, lease.token(), done, late));
    assert_eq!(settled, Settled::Done);
    let kept = get(backend.job(&name, lease.id, late)).unwrap();
    assert!(matches!(kept.state, JobState::Done { result: Some(r), .. } if r == "42"));
    assert!(get(backend.remove_recurring(&name, "tidy up", late)));
}

#[test]
fn estimates_are_those_of_the_schedule() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "told");
    let (backend, name) = (&shared.backend, queue("q"));
    let mut told = settings("slots 2/10s");
    told.response_max = Duration::ZERO;
    get(backend.put_queue(&name, told, START));
    let enqueued = get(backend.enqueue(&name, vec![job("g"); 5], START));
    let latest: Vec<_> = enqueued.iter().map(|one| one.ready.unwrap().latest).collect();
    assert_eq!(latest, [START, START, after(10.0), after(10.0), after(20.0)]);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "bad");
    let (backend, name) = (&shared.backend, queue("q"));
    let kind = |result: Result<_, tollgate_queue::Error>| result.map(drop).unwrap_err().kind();
    let unknown = now_or_soon(backend.enqueue(&name, vec![job("g")], START));
    assert_eq!(kind(unknown), ErrorKind::UnknownQueue);
    let small = QueueSettings { payload_max: 3, jobs_max: 2, ..settings("concurrent 1") };
    get(backend.put_queue(&name, small, START));
    let long = NewJob::new(group("g"), "four");
    let refused = now_or_soon(backend.enqueue(&name, vec![job("g"), long], START));
    assert_eq!(kind(refused), ErrorKind::Invalid);
    let many = now_or_soon(backend.enqueue(&name, vec![job("g"); 3], START));
    assert_eq!(kind(many), ErrorKind::Full);
    assert_eq!(get(backend.stats(&name, None, 10, START)).queue.waiting, 0);
}

/// Runs `worker` until `left` is zero, on a runtime of its own.
fn work(
    url: &str,
    namespace: &str,
    skew_ms: i64,
    calls: &Arc<Calls>,
) -> std::thread::JoinHandle<()> {
    let (url, namespace, calls) = (url.to_owned(), namespace.to_owned(), Arc::clone(calls));
    std::thread::spawn(move || {
        let shared = Shared::connect(&url, &namespace, false);
        let worker = Worker::new(queue_at(&shared.backend, skew_ms, "q")).concurrency(4);
        let stop = Arc::clone(&calls);
        let handler = handler_fn(move |task: Task| {
            let calls = Arc::clone(&calls);
            async move {
                let dispatched = Instant::now();
                tokio::task::yield_now().await;
                let group = task.lease().group.as_str().to_owned();
                calls.log.lock().unwrap().push((group, dispatched, Instant::now()));
                if calls.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    calls.over.notify_waiters();
                }
                Outcome::Done { result: None }
            }
        });
        let over = async move {
            let notified = stop.over.notified();
            if stop.left.load(Ordering::SeqCst) > 0 {
                notified.await;
            }
        };
        shared._runtime.block_on(worker.run(handler, over)).unwrap();
    })
}

struct Calls {
    log: Mutex<Vec<(String, Instant, Instant)>>,
    left: AtomicUsize,
    over: tokio::sync::Notify,
}

#[test]
fn two_workers_whose_clocks_are_a_second_apart_never_exceed_a_limit() {
    const UNITS: usize = 5;
    let window = Duration::from_millis(300);
    for engine in Engine::available() {
        let url = engine.shared().url();
        let shared = Shared::connect(&url, "skewed", false);
        let producer = queue_at(&shared.backend, 0, "q");
        let limit = format!("slots {UNITS}/300ms");
        shared._runtime.block_on(producer.put(settings(&limit))).unwrap();
        let jobs: Vec<NewJob> = (0..40).map(|n| job(["a", "b"][n % 2])).collect();
        let calls = Arc::new(Calls {
            log: Mutex::default(),
            left: AtomicUsize::new(jobs.len()),
            over: tokio::sync::Notify::new(),
        });
        let workers = [500, -500].map(|skew_ms| work(&url, "skewed", skew_ms, &calls));
        shared._runtime.block_on(producer.enqueue_all(jobs)).unwrap();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let log = calls.log.lock().unwrap();
        for name in ["a", "b"] {
            let mut of: Vec<_> = log.iter().filter(|call| call.0 == name).collect();
            assert_eq!(of.len(), 20, "each job ran once");
            of.sort_by_key(|call| call.1);
            for (index, call) in of.iter().enumerate().skip(UNITS) {
                // At most UNITS calls whose answers are younger than the window, or not there yet.
                let busy = of[..index].iter().filter(|other| other.2 + window > call.1).count();
                assert!(busy < UNITS, "{busy} calls count against the one at {index}");
            }
        }
    }
}

#[test]
fn an_answer_that_was_lost_is_asked_for_again_and_nothing_happens_twice() {
    for engine in Engine::available() {
        let server = engine.shared();
        let way = LossyWay::to(server);
        let shared = Shared::connect(&format!("redis://127.0.0.1:{}", way.port), "lossy", false);
        let queue = queue_at(&shared.backend, 0, "q");
        let runtime = &shared._runtime;
        runtime.block_on(queue.put(settings("concurrent 10"))).unwrap();
        for _ in 0..5 {
            way.lose_next();
            runtime.block_on(queue.enqueue(job("g"))).unwrap();
            way.lose_next();
            let leased = runtime.block_on(queue.lease(10, "w")).unwrap();
            assert_eq!(leased.leases.len(), 1, "one job, leased once");
            way.lose_next();
            let done = Outcome::Done { result: None };
            let settled = runtime.block_on(queue.settle_one(leased.leases[0].token(), done));
            assert_eq!(settled.unwrap(), Settled::Done);
        }
        let stats = runtime.block_on(queue.stats(None, 0)).unwrap();
        assert_eq!((stats.totals.enqueued, stats.totals.done), (5, 5));
    }
}

#[test]
fn a_server_that_comes_back_with_its_data_has_lost_nothing() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &["--appendonly", "yes", "--appendfsync", "always"]);
        let shared = Shared::connect(&server.url(), "kept", false);
        let queue = queue_at(&shared.backend, 0, "q");
        let runtime = &shared._runtime;
        runtime.block_on(queue.put(settings("concurrent 100"))).unwrap();
        runtime.block_on(queue.enqueue_all(vec![job("g"); 50])).unwrap();
        let leased = runtime.block_on(queue.lease(20, "w")).unwrap().leases;
        server.kill();
        server.restart();
        let outcomes =
            leased.iter().map(|lease| (lease.token(), Outcome::Done { result: None })).collect();
        let settled = runtime.block_on(queue.settle(outcomes)).unwrap();
        assert_eq!(settled, vec![Settled::Done; 20]);
        let rest = runtime.block_on(queue.lease(100, "w")).unwrap().leases;
        assert_eq!(rest.len(), 30);
        assert!(rest.iter().all(|lease| lease.attempt == 1), "nothing ran twice");
    }
}

#[test]
fn a_cluster_that_fails_over_goes_on_with_the_queue() {
    for engine in Engine::available() {
        let cluster = Cluster::start(engine);
        let shared = Shared::connect(&cluster.url(), "failover", false);
        let queue = queue_at(&shared.backend, 0, "q");
        let runtime = &shared._runtime;
        runtime.block_on(queue.put(settings("concurrent 100"))).unwrap();
        runtime.block_on(queue.enqueue_all(vec![job("g"); 10])).unwrap();
        let primary = cluster.primary_of("failover");
        eventually(Duration::from_secs(5), || {
            let info = primary.tell(&["INFO", "replication"]);
            let field = |name: &str| {
                info.lines().find_map(|line| line.split_once(name)).map(|(_, rest)| {
                    rest.chars().take_while(char::is_ascii_digit).collect::<String>()
                })
            };
            field("master_repl_offset:").is_some_and(|own| field("offset=") == Some(own))
        });
        primary.kill();
        let leased = runtime.block_on(queue.lease(100, "w")).unwrap().leases;
        assert_eq!(leased.len(), 10);
        runtime.block_on(queue.enqueue(job("g"))).unwrap();
    }
}
