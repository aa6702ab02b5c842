use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::harness::{Http, PATIENCE, Running, eventually, start};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"10/1h\"\n";
const SOON: &str = "[limits]\nfirst_request = \"300ms\"\n";
const TOKEN: &str = "[[tokens]]\ntoken = \"t\"\nrole = \"admin\"\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("still open: {error}"),
    }
}

fn ping(stream: &mut TcpStream) -> String {
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[test]
fn a_connection_that_asks_nothing_is_closed_and_one_that_has_asked_may_be_idle() {
    let running = start(&format!("{SOON}{POLICY}"));
    let mut asked = connect(running.resp);
    assert_eq!(ping(&mut asked), "+PONG\r\n");
    let mut asked_http = Http::connect(running.http);
    assert_eq!(asked_http.get("/healthz").status, 200);
    let Running { http, grpc, resp, .. } = running;
    let silent: [(SocketAddr, &[u8]); 12] = [
        (resp, b""),
        (http, b""),
        (grpc, b""),
        (resp, b"*1\r\n$4\r\n"),
        (resp, b"PI"),
        (http, b"PR"),
        (http, b"PRI * HTTP/"),
        (http, b"GET / HTTP/1.1\r\n"),
        (grpc, b"PR"),
        (grpc, b"PRI * HTTP/"),
        // The preface is there, and no request ever follows.
        (http, PREFACE),
        (grpc, PREFACE),
    ];
    let opened: Vec<TcpStream> = silent
        .iter()
        .map(|(address, bytes)| {
            let mut stream = connect(*address);
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    for stream in opened {
        is_closed(stream);
    }
    assert_eq!(ping(&mut asked), "+PONG\r\n");
    assert_eq!(asked_http.get("/healthz").status, 200);
}

#[test]
fn where_tokens_are_known_one_must_be_shown_in_time() {
    let running = start(&format!("{SOON}{TOKEN}{POLICY}"));
    let mut known = connect(running.resp);
    known.write_all(b"AUTH t\r\n").unwrap();
    let mut ok = [0; 5];
    known.read_exact(&mut ok).unwrap();
    let mut stranger = connect(running.resp);
    // Asking does not help.
    assert!(ping(&mut stranger).starts_with("-NOAUTH"));
    is_closed(stranger);
    assert_eq!(ping(&mut known), "+PONG\r\n");
}

/// Probes ask over HTTP: they get in when connections of other fronts have used up what there is.
#[test]
fn some_places_are_kept_for_http() {
    let running = start(&format!("[limits]\nconnections = 40\n{POLICY}"));
    let service = running.server.service();
    let mut held = Vec::new();
    for _ in 0..35 {
        let mut stream = connect(running.resp);
        assert_eq!(ping(&mut stream), "+PONG\r\n");
        held.push(stream);
    }
    is_closed(connect(running.resp));
    is_closed(connect(running.grpc));
    let mut probes: Vec<Http> = (0..5).map(|_| Http::connect(running.http)).collect();
    for probe in &mut probes {
        assert_eq!(probe.get("/healthz").status, 200);
    }
    is_closed(connect(running.http));
    drop((held, probes));
    eventually("all are gone", || service.open_connections() == 0);
    assert_eq!(ping(&mut connect(running.resp)), "+PONG\r\n");
}
