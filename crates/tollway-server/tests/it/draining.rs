use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollway_server::config::Drain;

use crate::harness::{Http, PATIENCE, eventually, start};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"1000000/1h\"\n";
const ASKED: &str = r#"{"policy":"api","key":"ada"}"#;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// During the delay every answer says that it is the last of its connection.
#[test]
fn busy_http_connections_are_told_to_go_and_none_fails() {
    let running = start(POLICY);
    let (address, answered) = (running.http, Arc::new(AtomicUsize::new(0)));
    let service = Arc::clone(running.server.service());
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (answered, service) = (Arc::clone(&answered), Arc::clone(&service));
            std::thread::spawn(move || {
                let mut http = Http::connect(address);
                // Half of them by the reader for unusual requests, which closes after each.
                let chunked = format!(
                    "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\
                     content-type: application/json\r\n\r\n{:x}\r\n{ASKED}\r\n0\r\n\r\n",
                    ASKED.len()
                );
                loop {
                    let answer = match client % 2 {
                        0 => http.post("/v1/check", ASKED),
                        _ => http.raw(&chunked),
                    };
                    assert_eq!(answer.status, 200, "{answer:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    if answer.field("connection") != Some("close") {
                        continue;
                    }
                    if !http.is_closed() || client % 2 == 0 || service.is_draining() {
                        return http.is_closed();
                    }
                    http = Http::connect(address);
                }
            })
        })
        .collect();
    eventually("all are busy", || answered.load(Ordering::Relaxed) > 100);
    let draining = runtime();
    let drain = Drain { delay: PATIENCE, timeout: PATIENCE };
    draining.spawn(running.server.drain(drain));
    for client in clients {
        assert!(client.join().unwrap(), "closed after the answer that said so");
    }
    // Until the delay has passed, whoever has not noticed is served.
    let answer = Http::connect(address).post("/v1/check", ASKED);
    assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    draining.shutdown_background();
}

/// What was sent before the end is answered, and what is not answered was not decided.
#[test]
fn resp_connections_are_answered_before_they_close() {
    let running = start(POLICY);
    let service = Arc::clone(running.server.service());
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            // Connected before the end begins, however late its thread runs.
            let stream = TcpStream::connect(running.resp).unwrap();
            let answered = Arc::clone(&answered);
            std::thread::spawn(move || busy(stream, &answered))
        })
        .collect();
    // Sent at once before the end, longer than one read and one batch.
    let mut pipelined = TcpStream::connect(running.resp).unwrap();
    pipelined.set_read_timeout(Some(PATIENCE)).unwrap();
    pipelined.write_all(b"PING\r\n").unwrap();
    pipelined.read_exact(&mut [0; 7]).unwrap();
    eventually("all are busy", || answered.load(Ordering::Relaxed) > 100);
    pipelined.write_all(&b"PING\r\n".repeat(20_000)).unwrap();
    let draining = runtime();
    let drain = Drain { delay: Duration::ZERO, timeout: PATIENCE };
    let done = draining.spawn(running.server.drain(drain));
    let mut pongs = Vec::new();
    pipelined.read_to_end(&mut pongs).unwrap();
    assert_eq!(pongs.len(), 7 * 20_000);
    let answers: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    drop(pipelined);
    assert!(draining.block_on(done).unwrap());
    let decided = service.metrics().tally("", "api").allowed.get();
    assert_eq!(decided, answers as u64, "decided and not answered");
}

/// One command after the other until the connection is closed; how many were answered.
fn busy(mut stream: TcpStream, answered: &AtomicUsize) -> usize {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = 0;
    let mut answer = vec![0; 4_096];
    loop {
        if stream.write_all(b"TOLL.CHECK api ada\r\n").is_err() {
            return answers;
        }
        match stream.read(&mut answer) {
            Ok(read) if read > 0 => answers += 1,
            _ => return answers,
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
}
