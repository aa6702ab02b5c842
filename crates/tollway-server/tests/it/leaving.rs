use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Metrics, Queues, Server, Service};

use crate::harness::{Http, Running, eventually, running};

/// Half of the time for which the lease calls wait: who is not answered by then was not noticed.
const BOUND: Duration = Duration::from_secs(30);
/// Jobs that die if one lease of them is lost.
const QUEUE: &str = "[[queues]]\nname = \"mail\"\nlease = \"1h\"\nattempts = 1\n";

/// A server with the queue, and the runtime on which it lives.
fn start() -> (Running, tokio::runtime::Runtime) {
    let any = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
    let metrics = Metrics::default();
    let texts = [("test.toml".to_owned(), QUEUE.to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clock = Arc::new(SystemClock::new());
    let queues = runtime.block_on(async {
        let backend = tollway_server::open_queue_store(None, false).await.unwrap();
        Queues::start(backend, clock.clone(), &config.queues).await.unwrap()
    });
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(100))));
    let service = Service::new(config.rules, metrics, memory, clock, config.settings);
    let service = Arc::new(service.with_queues(queues));
    (running(Server::start(service, &config.listen, None, 1).unwrap()), runtime)
}

/// A lease call that waits for a minute, as a client writes it that sends `fields`.
fn lease(fields: &str) -> String {
    let body = json!({"max": 100, "wait_ms": 60_000, "worker": "gone"}).to_string();
    let length = body.len();
    format!(
        "POST /v1/queues/mail/lease HTTP/1.1\r\nhost: localhost\r\n{fields}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// A connection on which this was sent, and on which the service has begun to answer.
fn waiting(http: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    // The one thread reads what came first first.
    assert_eq!(Http::connect(http).get("/healthz").status, 200);
    stream
}

fn enqueue(http: &mut Http, jobs: usize) {
    let jobs: Vec<Value> = (0..jobs).map(|n| json!({"payload": n})).collect();
    let answer = http.post("/v1/queues/mail/jobs/batch", &json!({"jobs": jobs}).to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
}

fn figures(http: &mut Http) -> Value {
    http.get("/v1/queues/mail").json()
}

/// Waits until nobody but the one who asks is connected.
fn until_alone(http: &mut Http) {
    let begun = Instant::now();
    eventually("the connection is over", || {
        assert!(begun.elapsed() < BOUND, "still there");
        let metrics = http.get("/metrics").body;
        metrics.lines().any(|line| line == "tollway_connections{front=\"http\"} 1")
    });
}

/// Closed so that the other end is sent a reset.
fn reset(stream: TcpStream) {
    let at_once = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&stream, at_once).unwrap();
}

#[test]
fn a_worker_that_has_left_while_it_waits_is_given_no_job() {
    let (running, _runtime) = start();
    let mut http = Http::connect(running.http);
    type Leave = fn(TcpStream);
    let leave: [(&str, Leave); 2] = [("closed", drop), ("reset", reset)];
    // Read by hand, and by hyper.
    for fields in ["", "connection: close\r\n"] {
        for (how, leave) in leave {
            let stream = waiting(running.http, &lease(fields));
            leave(stream);
            until_alone(&mut http);
            enqueue(&mut http, 3);
            let found = figures(&mut http);
            assert_eq!((&found["waiting"], &found["running"]), (&json!(3), &json!(0)), "{how}");
            let leased = http.post("/v1/queues/mail/lease", "{\"max\":3}").json();
            let leases = leased["leases"].as_array().unwrap();
            assert_eq!(leases.len(), 3, "{how} {fields}: {leased}");
            for lease in leases {
                assert_eq!(lease["failures"], 0, "{lease}");
                let ack = json!({"token": lease["token"]}).to_string();
                assert_eq!(http.post("/v1/queues/mail/ack", &ack).status, 200);
            }
        }
    }
    assert_eq!(figures(&mut http)["totals"]["dead"], 0);
}

#[test]
fn a_worker_that_closes_its_writing_side_is_told_at_once_that_there_is_no_job() {
    let (running, _runtime) = start();
    for fields in ["", "connection: close\r\n"] {
        let mut stream = waiting(running.http, &lease(fields));
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("{\"leases\":[]}"), "{answer}");
    }
}

#[test]
fn requests_behind_a_waiting_lease_are_answered_after_it_and_its_end_is_seen_behind_them() {
    let (running, _runtime) = start();
    let mut http = Http::connect(running.http);
    let health = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // With it in one packet, and in a later one, cut in the middle.
    let mut stream = waiting(running.http, &format!("{}{health}", lease("")));
    stream.write_all(&health.as_bytes()[..10]).unwrap();
    assert_eq!(Http::connect(running.http).get("/healthz").status, 200);
    stream.write_all(&health.as_bytes()[10..]).unwrap();
    enqueue(&mut http, 2);
    let mut pipelined = Http::over(stream);
    assert_eq!(pipelined.answer().json()["leases"].as_array().unwrap().len(), 2);
    assert_eq!((pipelined.answer().status, pipelined.answer().status), (200, 200));
    assert_eq!(pipelined.get("/healthz").status, 200, "the connection goes on");
    drop(pipelined);

    let gone = waiting(running.http, &format!("{}{health}", lease("")));
    drop(gone);
    until_alone(&mut http);
    enqueue(&mut http, 3);
    assert_eq!(figures(&mut http)["waiting"], 3);
}
