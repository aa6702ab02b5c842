//! Queues on real Redis and Valkey servers.

mod clocks;
mod failover;
mod herd;
mod silent_seed;
mod strain;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollway_core::{Clock, Timestamp};
use tollway_queue::{
    Backend, Embedded, ErrorKind, JobState, NewJob, Outcome, Progress, Queue, QueueName,
    QueueSettings, Recurring, RedisBackend, RedisSettings, Rhythm, Settled,
};
use tollway_testkit::servers::{Engine, LossyWay, Server, full};

use crate::model::{Jobs, Subject, operations, play, play_jobs};
use crate::world::{AtMoment as _, START, after, get, group, job, now_or_soon, queue};

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

    /// One that gives up soon, as a service does: to connect to one server may take as long as a
    /// call.
    fn impatient(url: &str, namespace: &str) -> Self {
        let soon = Duration::from_millis(300);
        let connection = tollway_redis::Settings { connect_timeout: soon, ..Default::default() };
        let settings = RedisSettings {
            namespace: QueueName::new(namespace).unwrap(),
            answer_timeout: soon,
            patience: soon,
            connection,
            ..RedisSettings::default()
        };
        let runtime = runtime();
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

    fn hears_at_once(&self) -> bool {
        false
    }

    fn clock_is_behind_max(&self) -> Option<Duration> {
        // Further back, the times in the store are mended where they are read: nothing is locked
        // for longer than its window, but not as if the step had never been.
        Some(Duration::from_secs(10))
    }
}

/// Queues of nobody else, whose time is the caller's.
pub(crate) fn on_a_server(engine: Engine, purpose: &str) -> Box<dyn Subject> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let namespace = format!("{purpose}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    Box::new(Shared::virtual_time(engine.shared(), &namespace))
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
    let operations = if full() { operations() } else { 4_000 };
    for engine in Engine::available() {
        let server = engine.shared();
        let history = |seed: u64| {
            let namespace = format!("model{seed}");
            let mut subject = Shared::virtual_time(server, &namespace);
            play(&mut subject, seed, operations / 4);
            assert_eq!(keys_without_ttl(server, &namespace), [""; 0], "{engine:?} {seed}");
        };
        std::thread::scope(|scope| {
            (1..=4).for_each(|seed| drop(scope.spawn(move || history(seed))));
        });
    }
}

#[test]
fn random_histories_of_plain_jobs_agree_with_the_reference_too() {
    let operations = if full() { operations() } else { 4_000 };
    for engine in Engine::available() {
        let server = engine.shared();
        let history = |seed: u64| {
            let namespace = format!("plain{seed}");
            let mut subject = Shared::virtual_time(server, &namespace);
            play_jobs(&mut subject, Jobs::Plain, seed, operations / 2);
            assert_eq!(keys_without_ttl(server, &namespace), [""; 0], "{engine:?} {seed}");
        };
        std::thread::scope(|scope| {
            (1..=2).for_each(|seed| drop(scope.spawn(move || history(seed))));
        });
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
        let done = |lease: &tollway_queue::Lease| (lease.token(), Outcome::Done { result: None });
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

/// Runs a queue's jobs as its workers would, and holds every start against what was told of it.
fn assert_none_starts_late(backend: &RedisBackend, name: &QueueName, jobs: Vec<NewJob>) {
    let context = get(backend.queues()).into_iter().find(|(of, _)| of == name);
    let told = get(backend.enqueue(name, jobs, START));
    let latest = |id| {
        let one = told.iter().find(|one| one.id == id).unwrap();
        one.ready.expect("a ready time is told").latest
    };
    let (mut now, mut started) = (START, 0);
    while started < told.len() {
        let leased = get(backend.lease(name, 100, "w", now));
        for lease in &leased.leases {
            let latest = latest(lease.id);
            assert!(now <= latest, "{lease:?} at {now:?}, told {latest:?}: {context:?}");
            let done = Outcome::Done { result: None };
            get(backend.settle_one(name, lease.token(), done, now));
            started += 1;
        }
        if leased.leases.is_empty() {
            now = now.max(leased.next.expect("jobs are left"));
        }
    }
}

#[test]
fn no_job_starts_later_than_told_whatever_limits_bind_it() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "bounds");
    let backend = &shared.backend;
    get(backend.put_shared(&queue("both"), "slots 3/10s".parse().unwrap(), START));
    let limits = [
        "slots 2/10s",
        "window 2/7s",
        "gcra 3/9s burst 2",
        "sliding 2/10s",
        "fixed 2/10s",
        "leaky 3 2/5s",
    ];
    for (index, limit) in limits.iter().enumerate() {
        for bind in 0..3 {
            let name = queue(&format!("q{index}-{bind}"));
            let limit = vec![limit.parse().unwrap()];
            let mut settings = QueueSettings { response_max: Duration::ZERO, ..Default::default() };
            match bind {
                0 => settings.group_limits = limit,
                1 => settings.queue_limits = limit,
                _ => {
                    settings.group_limits = limit;
                    settings.queue_limits = vec!["window 5/30s".parse().unwrap()];
                    settings.shared = vec![queue("both")];
                }
            }
            get(backend.put_queue(&name, settings, START));
            let jobs = (0..20).map(|n| job(["a", "b", "c"][n % 3]).weight(1 + n as u32 % 2));
            assert_none_starts_late(backend, &name, jobs.collect());
            get(backend.remove_queue(&name, START));
        }
    }
}

#[test]
fn a_shared_limit_that_is_not_there_is_told() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "absent");
    let settings = QueueSettings { shared: vec![queue("nowhere")], ..Default::default() };
    let refused = now_or_soon(shared.backend.put_queue(&queue("q"), settings, START));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "bad");
    let (backend, name) = (&shared.backend, queue("q"));
    let kind = |result: Result<_, tollway_queue::Error>| result.map(drop).unwrap_err().kind();
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

/// What is refused and what is not, and in which words, is what a queue in memory says.
#[test]
fn payloads_are_bounded_in_bytes_as_in_memory() {
    let shared = Shared::virtual_time(Engine::Redis.shared(), "bytes");
    let memory = Embedded::memory();
    let backends: [&dyn Backend; 2] = [&memory, &shared.backend];
    let [in_memory, on_redis] = backends.map(bytes_bounded);
    assert_eq!(in_memory, on_redis);
    assert_eq!(in_memory.iter().filter(|said| said.is_empty()).count(), 5, "{in_memory:#?}");
}

/// A queue for 250 bytes is filled and emptied in every way; what each call was refused with.
fn bytes_bounded(backend: &dyn Backend) -> Vec<String> {
    let name = queue("q");
    let hundred = || NewJob::new(group("g"), vec![7; 100]);
    let later = hundred().key("once").priority(2).after(Duration::from_secs(9));
    let mut said = Vec::new();
    let mut put = |jobs: Vec<NewJob>, now: Timestamp| {
        let refused = now_or_soon(backend.enqueue(&name, jobs, now)).err();
        said.push(refused.map_or(String::new(), |error| format!("{:?} {error}", error.kind())));
    };
    let lease = |now| get(backend.lease(&name, 1, "w", now)).leases[0].token();
    let fail = Outcome::Failed { reason: "so".to_owned(), retry: false };
    let settings = QueueSettings { bytes_max: 250, ..settings("concurrent 9") };
    get(backend.put_queue(&name, settings.clone(), START));
    assert_eq!(get(backend.queues())[0].1, settings, "it is stored");
    put(vec![hundred(); 3], START);
    put(vec![hundred(), hundred()], START);
    put(vec![hundred()], START);
    put(vec![hundred().key("k").weight(2)], START);
    // A dead letter is held as a job that waits is.
    get(backend.settle_one(&name, lease(START), fail.clone(), START));
    put(vec![hundred()], START);
    get(backend.settle_one(&name, lease(START), Outcome::Done { result: None }, START));
    put(vec![later], START);
    put(vec![hundred()], START);
    let dead = get(backend.dead(&name, None, 9, START))[0].id;
    get(backend.cancel(&name, dead, START));
    put(vec![hundred()], START);
    put(vec![hundred()], START);
    // Back from the dead it is held once.
    let token = lease(START);
    get(backend.settle_one(&name, token, fail.clone(), START));
    assert!(get(backend.revive(&name, token.id, START)));
    put(vec![hundred()], START);
    get(backend.cancel(&name, token.id, START));
    put(vec![hundred()], START);
    // The dead are held until they are forgotten.
    let later_on = START.after(settings.retention.dead_age + Duration::from_secs(1));
    get(backend.settle_one(&name, lease(START), fail, START));
    put(vec![hundred()], START);
    put(vec![hundred()], later_on);
    put(vec![hundred()], later_on);
    said
}

/// The server forgets the dead letters of a queue when the last of them is old enough.
#[test]
fn dead_letters_that_have_expired_are_not_counted_when_the_next_job_dies() {
    let server = Engine::Redis.shared();
    let shared = Shared::virtual_time(server, "expired");
    let (backend, name) = (&shared.backend, queue("q"));
    let settings = QueueSettings { bytes_max: 250, ..settings("concurrent 9") };
    get(backend.put_queue(&name, settings, START));
    let hundred = || NewJob::new(group("g"), vec![7; 100]);
    get(backend.enqueue(&name, vec![hundred(), hundred()], START));
    let leased = get(backend.lease(&name, 2, "w", START)).leases;
    for lease in leased {
        let expire = "for _, name in ipairs({'x', 'xz'}) do \
            for _, key in ipairs(redis.call('KEYS', '*{expired}:q:' .. name)) do \
              redis.call('PEXPIREAT', key, 1) end end";
        assert_eq!(server.tell(&["EVAL", expire, "0"]), "$-1\r\n");
        let fail = Outcome::Failed { reason: "so".to_owned(), retry: false };
        get(backend.settle_one(&name, lease.token(), fail, START));
    }
    assert_eq!(get(backend.dead(&name, None, 9, START)).len(), 1, "the first has expired");
    get(backend.enqueue(&name, vec![hundred()], START));
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
fn leases_that_ended_one_by_one_are_forgotten_when_their_time_has_come() {
    let server = Engine::Redis.shared();
    let shared = Shared::virtual_time(server, "ended");
    let (backend, name) = (&shared.backend, queue("q"));
    get(backend.put_queue(&name, settings("concurrent 100"), START));
    get(backend.enqueue(&name, vec![job("g"); 13], START));
    let long = get(backend.lease(&name, 1, "w", START)).leases[0].token();
    for _ in 0..3 {
        for lease in get(backend.lease(&name, 4, "w", START)).leases {
            get(backend.settle_one(&name, lease.token(), Outcome::Done { result: None }, START));
        }
    }
    let times = || {
        let count = "return redis.call('ZCARD', redis.call('KEYS', '*{ended}:q:l')[1])";
        server.tell(&["EVAL", count, "0"]).trim().to_owned()
    };
    let (soon, late) = (after(20.0), after(31.0));
    get(backend.heartbeat(&name, &[long], soon));
    assert_eq!(times(), ":4", "that of the long one, and of three calls");
    assert!(get(backend.lease(&name, 10, "w", late)).leases.is_empty());
    assert_eq!(times(), ":1");
    get(backend.settle_one(&name, long, Outcome::Done { result: None }, late));
    assert_eq!(keys_without_ttl(server, "ended"), [""; 0]);
}

#[test]
fn processes_that_share_queues_share_their_secret() {
    for engine in Engine::available() {
        let server = engine.shared();
        let [one, other] = [(); 2].map(|()| Shared::virtual_time(server, "secret"));
        assert_eq!(get(one.backend.secret([1; 32])), [1; 32], "{engine:?}");
        assert_eq!(get(other.backend.secret([2; 32])), [1; 32], "{engine:?}");
        let apart = Shared::virtual_time(server, "secret-of-others");
        assert_eq!(get(apart.backend.secret([3; 32])), [3; 32], "{engine:?}");
    }
}
