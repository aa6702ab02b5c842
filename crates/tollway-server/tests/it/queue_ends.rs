use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollway_testkit::servers::{Engine, Server as RedisServer};

use crate::harness::{Folder, Http, PATIENCE, eventually};
use crate::queue_settings::{ADMIN, Started, TOKEN, start};

const QUEUE: &str = "[[queues]]\nname = \"mail\"\nattempts = 1\n\
     [[tokens]]\ntoken = \"r\"\nrole = \"read\"\n";

fn one(folder: &Folder) -> Started {
    start(vec![folder.file("t.toml", &format!("{TOKEN}{QUEUE}"))], None)
}

/// Two services whose queues are on one server of Redis or Valkey.
fn two(folder: &Folder, redis: &RedisServer) -> [Started; 2] {
    let path = folder.file("t.toml", &format!("{TOKEN}{QUEUE}"));
    [(); 2].map(|()| start(vec![path.clone()], Some(redis.url())))
}

fn enqueue(at: &Started, body: &Value) -> u64 {
    at.ask("POST", "/v1/queues/mail/jobs", body).1["id"].as_u64().unwrap()
}

/// Leases a job and says what came of it.
fn end(at: &Started, verb: &str, with: &Value) {
    let leased = at.ask("POST", "/v1/queues/mail/lease", &json!({})).1;
    let mut body = json!({"token": leased["leases"][0]["token"]});
    body.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    assert_eq!(at.ask("POST", &format!("/v1/queues/mail/{verb}"), &body).0, 200);
}

/// A stream of events that is open, and what its first block was.
struct Events {
    lines: BufReader<TcpStream>,
}

impl Events {
    fn open(http: SocketAddr, query: &str, fields: &str) -> (Self, String) {
        let mut stream = TcpStream::connect(http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = format!("/v1/queues/mail/events{query}");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").unwrap();
        let mut events = Self { lines: BufReader::new(stream) };
        let head = events.until_empty();
        assert!(head[0].starts_with("HTTP/1.1 200"), "{head:?}");
        assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
        let first = events.block();
        let id = first.iter().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
        (events, id)
    }

    fn until_empty(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "closed after {found:?}");
            let line = line.trim_end().to_owned();
            if line.is_empty() && !found.is_empty() {
                return found;
            }
            if !line.is_empty() {
                found.push(line);
            }
        }
    }

    /// The lines of a block, without those of the chunks around it.
    fn block(&mut self) -> Vec<String> {
        let is_chunk = |line: &String| u64::from_str_radix(line, 16).is_ok();
        loop {
            let lines: Vec<_> =
                self.until_empty().into_iter().filter(|line| !is_chunk(line)).collect();
            if !lines.is_empty() && lines != [":"] {
                return lines;
            }
        }
    }

    /// The next event: what it is called, its id, and the job.
    fn next(&mut self) -> (String, String, Value) {
        let lines = self.block();
        let field = |name: &str| {
            let found = lines.iter().find_map(|line| line.strip_prefix(name));
            found.unwrap_or_else(|| panic!("{lines:?}")).to_owned()
        };
        (field("event: "), field("id: "), serde_json::from_str(&field("data: ")).unwrap())
    }
}

#[test]
fn a_result_is_waited_for_and_told_when_it_is_there() {
    let folder = Folder::new("queue-result");
    let started = one(&folder);
    let id = enqueue(&started, &json!({"payload": "x"}));
    let path = format!("/v1/queues/mail/jobs/{id}");
    let (status, told) = started.get(&format!("{path}?wait_ms=1"));
    assert_eq!((status, &told["state"]), (200, &json!("waiting")), "not over in time: {told}");
    let waiting = std::thread::scope(|scope| {
        let waits = scope.spawn(|| started.get(&format!("{path}?wait_ms=60000")));
        end(&started, "ack", &json!({"result": "42"}));
        waits.join().unwrap()
    });
    assert_eq!((&waiting.1["state"], &waiting.1["result"]), (&json!("done"), &json!("42")));
    // At once, and for as long as it is kept.
    assert_eq!(started.get(&format!("{path}?wait_ms=60000")).1["result"], "42");
    for (query, status) in [("wait_ms=60001", 400), ("wait=5", 400), ("wait_ms=5", 200)] {
        assert_eq!(started.get(&format!("{path}?{query}")).0, status, "{query}");
    }
    assert_eq!(started.get("/v1/queues/mail/jobs/99?wait_ms=60000").0, 404, "never was");
    let cancelled = enqueue(&started, &json!({}));
    let told = std::thread::scope(|scope| {
        let path = format!("/v1/queues/mail/jobs/{cancelled}");
        let waits = {
            let path = path.clone();
            let started = &started;
            scope.spawn(move || started.get(&format!("{path}?wait_ms=60000")))
        };
        assert_eq!(started.ask("DELETE", &path, &Value::Null).0, 200);
        waits.join().unwrap()
    });
    assert_eq!(told.0, 404);
}

#[test]
fn whoever_leaves_while_it_waits_for_a_result_is_waited_for_no_longer() {
    let folder = Folder::new("queue-left");
    let started = one(&folder);
    let id = enqueue(&started, &json!({}));
    let mut stream = TcpStream::connect(started.running.http).unwrap();
    let path = format!("/v1/queues/mail/jobs/{id}?wait_ms=60000");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n{ADMIN}\r\n").unwrap();
    let mut http = Http::connect(started.running.http);
    let mut connections = || {
        let metrics = http.send("GET", "/metrics", ADMIN, "").body;
        let line = metrics.lines().find(|it| it.starts_with("tollway_connections{front=\"http\"}"));
        line.unwrap().split(' ').next_back().unwrap().to_owned()
    };
    eventually("both are connected", || connections() == "2");
    let begun = Instant::now();
    drop(stream);
    eventually("it is over", || connections() == "1");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn events_tell_of_each_job_that_ends_and_go_on_where_they_were() {
    let folder = Folder::new("queue-events");
    let started = one(&folder);
    let http = started.running.http;
    enqueue(&started, &json!({"group": "before"}));
    end(&started, "ack", &json!({}));
    let (mut events, begin) = Events::open(http, "", ADMIN);
    let (mut figures, _) = Events::open(http, "", "authorization: Bearer r\r\n");
    let (mut of_b, _) = Events::open(http, "?group=b", ADMIN);
    for (group, verb, with) in [
        ("a", "ack", json!({"result": "one"})),
        ("b", "fail", json!({"reason": "no such role"})),
        ("c", "ack", json!({"result": "two"})),
    ] {
        enqueue(&started, &json!({"group": group, "payload": "p"}));
        end(&started, verb, &with);
    }
    let (event, first_id, job) = events.next();
    assert_eq!((event.as_str(), &job["group"], &job["result"]), ("done", &json!("a"), &json!("one")));
    let (event, _, job) = events.next();
    let reason = (&job["reason"], &job["payload"]);
    assert_eq!((event.as_str(), reason), ("dead", (&json!("no such role"), &json!("p"))));
    assert_eq!(events.next().2["result"], "two");
    // Who may only read sees figures; a group sees its own.
    let (event, _, job) = figures.next();
    assert_eq!((event.as_str(), &job["state"]), ("done", &json!("done")));
    assert_eq!((&job["group"], &job["result"]), (&Value::Null, &Value::Null));
    let mut found = of_b.block();
    while found.len() == 1 {
        found = of_b.block();
    }
    assert!(found.iter().any(|line| line.contains("no such role")), "{found:?}");
    // Who comes again is told what it missed, whether by its field or by the address.
    let (mut again, _) = Events::open(http, "", &format!("{ADMIN}last-event-id: {first_id}\r\n"));
    assert_eq!(again.next().2["group"], "b");
    let (mut again, _) = Events::open(http, &format!("?after={begin}"), ADMIN);
    assert_eq!(again.next().2["group"], "a");
    let (mut all, _) = Events::open(http, "?after=0-0", ADMIN);
    assert_eq!(all.next().2["group"], "before");
    for (path, status) in [("mail/events?after=x", 400), ("mail/events?x=1", 400), ("no/events", 404)]
    {
        assert_eq!(started.get(&format!("/v1/queues/{path}")).0, status, "{path}");
    }
    assert_eq!(Http::connect(http).get("/v1/queues/mail/events").status, 401);
}

#[test]
fn a_job_ends_at_one_service_and_is_heard_of_at_another() {
    for engine in Engine::available() {
        let redis = RedisServer::start(engine, &[]);
        let folder = Folder::new(&format!("queue-two-{engine:?}"));
        let [here, there] = two(&folder, &redis);
        let (mut events, _) = Events::open(there.running.http, "", ADMIN);
        let id = enqueue(&here, &json!({}));
        let told = std::thread::scope(|scope| {
            let path = format!("/v1/queues/mail/jobs/{id}?wait_ms=60000");
            let waits = scope.spawn(|| there.get(&path));
            end(&here, "ack", &json!({"result": "far"}));
            waits.join().unwrap()
        });
        assert_eq!(told.1["result"], "far");
        assert_eq!(events.next().2["result"], "far");
    }
}

#[test]
fn a_job_is_given_another_time_over_http() {
    let folder = Folder::new("queue-reschedule");
    let started = one(&folder);
    let id = enqueue(&started, &json!({"delay_ms": 3_600_000}));
    let path = format!("/v1/queues/mail/jobs/{id}/reschedule");
    let (status, told) = started.ask("POST", &path, &json!({"delay_ms": 60_000}));
    assert_eq!((status, &told["state"]), (200, &json!("waiting")), "{told}");
    assert_eq!(started.leased("mail"), 0);
    assert_eq!(started.ask("POST", &path, &Value::Null).0, 200, "now");
    assert_eq!(started.leased("mail"), 1);
    let (status, told) = started.ask("POST", &path, &Value::Null);
    assert!(status == 409 && told["detail"].as_str().unwrap().contains("is already running"), "{told}");
    for (path, body, status) in [
        ("/v1/queues/mail/jobs/99/reschedule", json!({}), 404),
        (&*path, json!({"delay_ms": 1, "start_at_ms": 1}), 400),
        (&*path, json!({"priority": 1}), 400),
    ] {
        assert_eq!(started.ask("POST", path, &body).0, status, "{path} {body}");
    }
}
