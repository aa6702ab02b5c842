use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::{SteadyClock, Timestamp, VirtualClock};
use tollway_memory::{Capacity, SystemClock};

use crate::harness::{Http, PATIENCE, Running, eventually, start, start_with};

const POLICY: &str =
    "[[policies]]\nname = \"api\"\nquota = \"5/1m\"\n[limits]\nslow_client = \"300ms\"\n";

/// Larger sizes take minutes; `TOLLWAY_FULL=1` asks for them.
fn sized(full: usize, usual: usize) -> usize {
    if std::env::var_os("TOLLWAY_FULL").is_some() { full } else { usual }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether other clients are answered on every front.
fn answers_others(running: &Running) {
    let mut resp = connect(running.resp);
    resp.write_all(b"PING\r\n").unwrap();
    let mut pong = [0; 7];
    resp.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    assert_eq!(Http::connect(running.http).get("/healthz").status, 200);
    let mut grpc = crate::clients::Grpc::connect(running.grpc);
    assert!(grpc.should_rate_limit(Default::default()).is_err());
}

/// Everything until the other side closes.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn thousands_of_idle_connections_are_held_and_others_answered() {
    let running = start(&format!("{POLICY}first_request = \"10m\"\n"));
    // Both ends are files of this process, which may usually have 20,000.
    let count = sized(9_500, 3_000);
    let idle: Vec<TcpStream> =
        (0..count).map(|at| connect([running.resp, running.http, running.grpc][at % 3])).collect();
    eventually("all are open", || running.server.service().open_connections() >= count);
    answers_others(&running);
    drop(idle);
    eventually("all are gone", || running.server.service().open_connections() < 10);
}

#[test]
fn connections_beyond_the_limit_are_refused_and_room_is_found_again() {
    let running =
        start("[limits]\nconnections = 2\n[[policies]]\nname = \"api\"\nquota = \"5/1m\"\n");
    let mut held = [connect(running.resp), connect(running.resp)];
    for stream in &mut held {
        stream.write_all(b"PING\r\n").unwrap();
        let mut pong = [0; 7];
        stream.read_exact(&mut pong).unwrap();
    }
    assert_eq!(until_closed(&mut connect(running.resp)), b"");
    drop(held);
    eventually("the two are gone", || running.server.service().open_connections() == 0);
    assert_eq!(Http::connect(running.http).get("/healthz").status, 200);
}

#[test]
fn slow_clients_are_cut_off_however_they_trickle() {
    let running = start(POLICY);
    let begun: [(SocketAddr, &[u8]); 3] = [
        (running.resp, b"*2\r\n$4\r\nPI"),
        (running.http, b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"),
        (running.http, b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"),
    ];
    for (address, bytes) in begun {
        let mut slow = connect(address);
        slow.write_all(bytes).unwrap();
        slow.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        // A byte now and then does not move the deadline.
        eventually("the slow client is cut off", || {
            let mut byte = [0];
            match slow.read(&mut byte) {
                Ok(0) => true,
                Ok(_) => false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    slow.write_all(b"x").is_err()
                }
                Err(_) => true,
            }
        });
        answers_others(&running);
    }
}

#[test]
fn a_client_that_never_reads_is_cut_off_and_holds_little() {
    let running = start(POLICY);
    let chunked =
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let greedy: [(SocketAddr, &[u8]); 3] = [
        (running.resp, b"PING\r\n"),
        (running.http, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        (running.http, chunked),
    ];
    for (address, request) in greedy {
        let mut greedy = connect(address);
        let requests = request.repeat(10_000);
        eventually("the client is cut off", || match greedy.write_all(&requests) {
            Ok(()) => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it is held for ever"),
            Err(_) => true,
        });
        answers_others(&running);
    }
}

#[test]
fn a_very_long_pipeline_is_answered_to_the_end() {
    let running = start(POLICY);
    let chunk =
        b"*5\r\n$8\r\nTHROTTLE\r\n$1\r\nk\r\n$1\r\n9\r\n$1\r\n9\r\n$1\r\n9\r\n".repeat(1_000);
    let chunks = sized(1 << 30, 32 << 20) / chunk.len();
    let stream = connect(running.resp);
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for _ in 0..chunks {
            writer.write_all(&chunk).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut answered = 0usize;
    let mut stream = stream;
    let mut bytes = vec![0; 1 << 16];
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => break,
            read => answered += bytes[..read].iter().filter(|&&byte| byte == b'*').count(),
        }
    }
    sending.join().unwrap();
    assert_eq!(answered, chunks * 1_000);
}

#[test]
fn absurd_lengths_and_numbers_are_refused_without_being_believed() {
    let running = start(POLICY);
    for bytes in [
        &b"*1\r\n$536870912\r\n"[..],
        b"*1000000000\r\n",
        b"*-9223372036854775808\r\n*9223372036854775808\r\n",
        b"*1\r\n$99999999999999999999\r\n",
    ] {
        let mut stream = connect(running.resp);
        stream.write_all(bytes).unwrap();
        let answer = until_closed(&mut stream);
        assert!(answer.starts_with(b"-ERR Protocol error"), "{}", answer.escape_ascii());
    }
    let mut stream = connect(running.resp);
    stream.write_all(b"THROTTLE k 4294967295 1 9223372036854775807\r\nPING\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = String::from_utf8(until_closed(&mut stream)).unwrap();
    assert!(answer.starts_with("-ERR ") && answer.ends_with("+PONG\r\n"), "{answer}");
    let mut http = Http::connect(running.http);
    assert_eq!(http.send("POST", "/v1/check", "content-length: 99999999999\r\n", "").status, 400);
    let mut http = Http::connect(running.http);
    let large = "x".repeat((1 << 20) + 1);
    assert_eq!(http.post("/v1/check", &large).status, 413);
    answers_others(&running);
}

#[test]
fn malformed_bodies_are_refused_alone_and_nothing_is_charged() {
    let running = start(POLICY);
    let mut http = Http::connect(running.http);
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("[]", 400),
        ("{\"policy\":\"api\"}", 400),
        ("{\"policy\":\"api\",\"key\":\"\"}", 400),
        ("{\"policy\":\"api\",\"key\":\"k\",\"cost\":0}", 400),
        ("{\"policy\":\"api\",\"key\":\"k\",\"cost\":-1}", 400),
        ("{\"policy\":\"api\",\"key\":\"k\",\"cost\":1e99}", 400),
        ("{\"policy\":\"api\",\"key\":\"k\",\"burst\":1}", 400),
        ("{\"policy\":\"api\",\"key\":1}", 400),
        ("{\"charges\":[]}", 400),
        ("{\"policy\":\"web\",\"key\":\"k\"}", 404),
    ] {
        let answer = http.post("/v1/check", body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert_eq!(answer.field("content-type"), Some("application/problem+json"), "{body}");
        assert_eq!(answer.json()["status"], status, "{body}");
    }
    assert_eq!(http.get("/v1/check").status, 405);
    assert_eq!(http.get("/nowhere").status, 404);
    assert_eq!(http.get("/v1/gate?policy=web").status, 404, "not an offer of POST");
    let left = http.post("/v1/peek", r#"{"policy":"api","key":"k"}"#).json();
    assert_eq!(left["charges"][0]["remaining"], 5);
}

/// A small generator: the same bytes in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self) -> Vec<u8> {
        let pieces: [&[u8]; 12] = [
            b"*3\r\n",
            b"$5\r\n",
            b"\r\n",
            b"TOLL.CHECK",
            b"POST /v1/check HTTP/1.1\r\n",
            b"{",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"content-length: 7\r\n",
            b"\0\0\x08\x04",
            b"\"",
            b"CL.THROTTLE k 1 1 1\r\n",
            b"transfer-encoding: chunked\r\n",
        ];
        let mut bytes = Vec::new();
        for _ in 0..self.next() % 40 {
            match self.next() % 3 {
                0 => bytes.extend_from_slice(pieces[(self.next() % 12) as usize]),
                _ => bytes.extend(self.next().to_le_bytes()),
            }
        }
        bytes
    }
}

#[test]
fn random_bytes_at_each_port_do_no_harm() {
    let running = start(POLICY);
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..sized(60_000, 1_500) {
        let mut stream = connect([running.resp, running.http, running.grpc][round % 3]);
        // The server may close before all is sent: that is its right.
        let _ = stream.write_all(&noise.bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        if round % 50 == 0 {
            until_closed(&mut stream);
        }
    }
    answers_others(&running);
}

fn resident_kilobytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn a_flood_of_keys_stays_under_the_cap_and_a_limited_key_stays_limited() {
    let (keys, cap) = (sized(50_000_000, 1_000_000), sized(256 << 20, 8 << 20));
    let clock = Arc::new(SystemClock::new());
    let running = start_with(POLICY, clock, Vec::new(), Capacity::bytes(cap));
    let before = resident_kilobytes();
    let mut limited = connect(running.resp);
    let mut ask = |bytes: &[u8]| {
        limited.write_all(bytes).unwrap();
        let mut answer = vec![0; 256];
        let read = limited.read(&mut answer).unwrap();
        answer.truncate(read);
        answer
    };
    for _ in 0..6 {
        ask(b"CL.THROTTLE victim 4 1 3600\r\n");
    }
    assert!(ask(b"CL.THROTTLE victim 4 1 3600\r\n").starts_with(b"*5\r\n:1\r\n"));
    flood(running.resp, keys);
    assert!(ask(b"CL.THROTTLE victim 4 1 3600\r\n").starts_with(b"*5\r\n:1\r\n"), "forgiven");
    let grown = resident_kilobytes().saturating_sub(before);
    // Other tests share the process: the store's cap and as much again for them.
    let bound = cap / 1024 * 2 + 128 * 1024;
    assert!(grown < bound, "{grown} kB grown, {bound} allowed");
    answers_others(&running);
}

fn flood(address: SocketAddr, keys: usize) {
    let stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for key in 0..keys {
            bytes.extend_from_slice(format!("CL.THROTTLE f{key} 0 1 2\r\n").as_bytes());
            if bytes.len() > 60_000 {
                writer.write_all(&bytes).unwrap();
                bytes.clear();
            }
        }
        writer.write_all(&bytes).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let (mut stream, mut bytes, mut answered) = (stream, vec![0; 1 << 16], 0);
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => break,
            read => answered += bytes[..read].iter().filter(|&&byte| byte == b'*').count(),
        }
    }
    sending.join().unwrap();
    assert_eq!(answered, keys);
}

#[test]
fn time_set_back_does_not_stop_the_service() {
    let wall = VirtualClock::at(Timestamp::from_millis(1_700_000_000_000));
    let clock = Arc::new(SteadyClock::new(wall));
    let running = start_with(POLICY, Arc::clone(&clock) as _, Vec::new(), Capacity::keys(100));
    let mut http = Http::connect(running.http);
    let body = r#"{"policy":"api","key":"k","cost":5}"#;
    assert_eq!(http.post("/v1/check", body).status, 200);
    clock.inner().set(Timestamp::from_millis(1_000_000_000_000));
    assert_eq!(http.post("/v1/check", body).status, 429);
    clock.inner().advance(Duration::from_secs(61));
    assert_eq!(http.post("/v1/check", body).status, 200);
}
