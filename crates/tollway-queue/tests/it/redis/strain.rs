//! A server that is full or refuses writes, and workers that have nothing to do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollway_queue::{Backend, ErrorKind, NewJob, Outcome, Task, Worker, handler_fn};
use tollway_testkit::servers::{Engine, Server, eventually};

use super::{Shared, queue_at, settings};
use crate::world::{AtMoment as _, START, get, group, job, now_or_soon, queue};

#[test]
fn a_server_whose_memory_is_full_refuses_and_keeps_what_it_acknowledged() {
    for engine in Engine::available().into_iter().chain(Engine::oldest()) {
        let server = Server::start(engine, &["--maxmemory", "12mb"]);
        let shared = Shared::virtual_time(&server, "full");
        let (backend, name) = (&shared.backend, queue("q"));
        get(backend.put_queue(&name, settings("concurrent 1000"), START));
        let large = NewJob::new(group("g"), vec![7; 60_000]);
        let mut kept = Vec::new();
        let refused = loop {
            assert!(kept.len() < 1_000, "12 MB hold no more");
            match now_or_soon(backend.enqueue(&name, vec![large.clone()], START)) {
                Ok(told) => kept.push(told[0].id),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(!kept.is_empty());
        server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        // More than a page of them.
        let lease = || get(backend.lease(&name, 1_000, "w", START)).leases;
        let leased: Vec<_> = lease().into_iter().chain(lease()).map(|lease| lease.id).collect();
        assert_eq!(leased, kept);
        get(backend.enqueue(&name, vec![large], START));
    }
}

#[test]
fn a_server_that_refuses_all_writes_is_away_until_it_takes_them_again() {
    for engine in Engine::available().into_iter().chain(Engine::oldest()) {
        let server = Server::start(engine, &[]);
        let shared = Shared::impatient(&server.url(), "lonely");
        let (backend, name) = (&shared.backend, queue("q"));
        let enqueue = || now_or_soon(backend.enqueue(&name, vec![job("g")], START));
        get(backend.put_queue(&name, settings("concurrent 1"), START));
        server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        let refused = enqueue().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
        assert_eq!(backend.health().failed_calls, 1);
        assert!(now_or_soon(backend.queues()).is_ok(), "it answers what only reads");
        let told = backend.outage().expect("it is no end of the outage");
        assert!(told.reason.contains("NOREPLICAS"), "{told:?}");
        server.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        // Nobody asks: it is found out all the same.
        eventually(Duration::from_secs(30), || backend.outage().is_none());
        assert_eq!(enqueue().unwrap().len(), 1);
    }
}

#[test]
fn a_worker_does_not_ask_while_jobs_are_delayed() {
    for engine in Engine::available() {
        let shared = Shared::connect(&engine.shared().url(), "idle", false);
        let queue = queue_at(&shared.backend, 0, "q");
        shared._runtime.block_on(queue.put(settings("slots 10/10s"))).unwrap();
        let (told, ran) = tokio::sync::oneshot::channel();
        let told = Arc::new(Mutex::new(Some(told)));
        let handler = handler_fn(move |_: Task| {
            if let Some(told) = told.lock().unwrap().take() {
                told.send(()).unwrap();
            }
            async { Outcome::Done { result: None } }
        });
        let producer = queue.clone();
        let until = async move {
            for batch in 1..=20u64 {
                let delay = Duration::from_secs(3_600 * batch);
                let jobs = (0..100).map(|n| job(&format!("g{}", n % 10)).after(delay)).collect();
                producer.enqueue_all(jobs).await.unwrap();
            }
            // One that may start now is what it asks for.
            producer.enqueue(job("now")).await.unwrap();
            ran.await.unwrap();
        };
        let worker = Worker::new(queue.clone()).concurrency(4);
        let summary = shared._runtime.block_on(worker.run(handler, until)).unwrap();
        // At first, because the queue has just been made, and because one may start.
        assert!(summary.asked <= 3, "{summary:?}");
        assert_eq!(shared._runtime.block_on(queue.stats(None, 0)).unwrap().queue.delayed, 2_000);
    }
}
