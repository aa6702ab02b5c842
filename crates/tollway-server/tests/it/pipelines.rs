use std::io::{Read, Write};
use std::net::TcpStream;

use crate::harness::{Http, PATIENCE, start};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"1000/1h\"\n";

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Sends `requests` at once and the end after them; everything that comes back.
fn answers(address: std::net::SocketAddr, requests: String) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        writer.write_all(requests.as_bytes()).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    sending.join().unwrap();
    answers
}

#[test]
fn a_pipeline_is_answered_to_the_end_however_long_its_answers_are() {
    let running = start(POLICY);
    let asked = r#"{"policy":"api","key":"ada"}"#;
    let mut taken = 0;
    for count in [300, 400, 600] {
        let peeks = answers(running.http, post("/v1/peek", asked).repeat(count));
        assert_eq!(peeks.matches("HTTP/1.1 200 OK").count(), count);
        let checks = post("/v1/check", &asked.replace("ada", &format!("of-{count}")));
        let checks = answers(running.http, checks.repeat(count));
        assert_eq!(checks.matches("HTTP/1.1 200 OK").count(), count);
        taken += count as u64;
        let left = format!(r#"{{"policy":"api","key":"of-{count}"}}"#);
        let left = Http::connect(running.http).post("/v1/peek", &left).json();
        assert_eq!(left["charges"][0]["remaining"], 1_000 - count as u64);
    }
    assert_eq!(taken, 1_300);
}

#[test]
fn long_documents_are_pipelined_too() {
    let running = start(POLICY);
    let get = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(4);
    let answers = answers(running.http, get);
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 4);
    assert_eq!(answers.matches("\"openapi\":").count(), 4);
}

/// The reader of unusual requests is more lenient than the other: it reads one, and the rest is not
/// answered. Nor does what was sent behind cost the answer before it.
#[test]
fn nothing_is_read_behind_a_request_that_is_not_plain() {
    let running = start(POLICY);
    let asked = r#"{"policy":"api","key":"smuggled"}"#;
    let body = format!("{:x}\r\n{asked}\r\n0\r\n\r\n", asked.len());
    let post = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let chunked = format!("{post}transfer-encoding: chunked\r\n\r\n{body}");
    let many = |count: usize| "a: b\r\n".repeat(count);
    let unusual = [
        chunked.clone(),
        "GET http://localhost/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}\r\n", many(80)),
    ];
    for first in unusual {
        for second in [
            "GET /healthz HTTP/1.1\nhost: localhost\n\n".to_owned(),
            format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}\r\n", many(99)),
            chunked.repeat(20),
        ] {
            let answers = answers(running.http, format!("{first}{second}"));
            assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{first:?}: {answers}");
            assert!(answers.starts_with("HTTP/1.1 200 "), "{first:?}: {answers}");
            assert!(answers.contains("connection: close\r\n"), "{answers}");
        }
    }
    // Nor in the first, behind more fields than the strict reader has room for.
    let bare = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}c: d\n\r\n", many(80));
    assert!(answers(running.http, bare).starts_with("HTTP/1.1 400 "));
    let left = Http::connect(running.http).post("/v1/peek", asked).json();
    assert_eq!(left["charges"][0]["remaining"], 1_000 - 3, "one for each first request");
}

/// Two readers that disagree about a message are how requests are smuggled.
#[test]
fn a_request_names_one_host_and_its_lines_end_as_they_should() {
    let running = start(POLICY);
    for (request, status) in [
        ("GET /healthz HTTP/1.1\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nconnection: close\r\nhost: a\r\nhost: b\r\n\r\n", "400"),
        ("GET http://evil.example/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\nhost: localhost\n\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\nhost: localhost\nconnection: close\n\n", "400"),
        ("GET /healthz HTTP/1.0\r\n\r\n", "200"),
        ("GET http://localhost/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", "200"),
        ("GET /healthz HTTP/1.1\r\nhost: any.example\r\n\r\n", "200"),
    ] {
        let answer = answers(running.http, request.to_owned());
        assert!(answer.split(' ').nth(1) == Some(status), "{request:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{request:?}: {answer}");
    }
}
