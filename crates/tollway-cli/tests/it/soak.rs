//! Attacks on two services while honest clients use them: a minute, or ten at full size.
//!
//! One node keeps its states in memory, the other on a Redis that is killed again and again. Both
//! are flooded with new, exhausted and very long keys, with clients that do not read, do not finish
//! or reset their connections, and with reloads. What must hold meanwhile: every honest request is
//! answered, and as though nobody else were there; memory stays within its bound.

mod attack;
mod honest;
mod node;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollway_testkit::servers::{Engine, Server, full};

use self::node::Node;

/// What a node may take in all: its states, what connections may hold, and the program itself.
const RESIDENT_MAX: u64 = node::MEMORY_BYTES + node::HELD_BYTES + (64 << 20);

/// Shared by all threads of the soak.
struct Run {
    over: AtomicBool,
    /// How often the store was killed or came back: odd while it is away.
    outages: AtomicU64,
}

impl Run {
    fn is_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }
}

#[test]
fn honest_clients_notice_nothing_of_attacks() {
    let mut redis = Server::start(Engine::Redis, &["--maxmemory", "64mb"]);
    let in_memory = Node::start("soak-memory", None);
    let on_redis = Node::start("soak-redis", Some(&redis.url()));
    let run = Run { over: AtomicBool::new(false), outages: AtomicU64::new(0) };
    let length = Duration::from_secs(if full() { 600 } else { 60 });
    thread::scope(|scope| {
        // Whatever fails, the others must hear that it is over, or the scope never ends.
        let over = EndsRun(&run);
        for node in [&in_memory, &on_redis] {
            attack::start(scope, &run, node);
        }
        let sessions = [
            scope.spawn(|| honest::over_http(&run, &in_memory)),
            scope.spawn(|| honest::over_resp(&run, &in_memory)),
            scope.spawn(|| honest::over_http(&run, &on_redis)),
            scope.spawn(|| honest::over_resp(&run, &on_redis)),
        ];
        let deadline = Instant::now() + length;
        while Instant::now() < deadline && sessions.iter().all(|session| !session.is_finished()) {
            for node in [&in_memory, &on_redis] {
                let resident = node.resident_bytes();
                assert!(resident <= RESIDENT_MAX, "{} MiB resident", resident >> 20);
            }
            interrupt(&run, &mut redis, &on_redis, length / 12);
        }
        drop(over);
        for session in sessions {
            let exact = session.join().expect("an honest client was served");
            assert!(exact > 0, "no honest client was served from beginning to end");
        }
    });
}

/// Kills the store for a while, then leaves it alone for `calm`.
fn interrupt(run: &Run, redis: &mut Server, node: &Node, calm: Duration) {
    run.outages.fetch_add(1, Ordering::SeqCst);
    redis.kill();
    thread::park_timeout(Duration::from_millis(500));
    redis.restart();
    node.wait_for_store();
    run.outages.fetch_add(1, Ordering::SeqCst);
    thread::park_timeout(calm);
}

struct EndsRun<'a>(&'a Run);

impl Drop for EndsRun<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}
