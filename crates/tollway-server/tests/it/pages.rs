use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::harness::{Http, HttpAnswer, PATIENCE, output, start, tool};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"10/1h\"\n";
const JSON: &str = "content-type: application/json\r\n";
const ASKED: &str = r#"{"policy":"api","key":"ada"}"#;

/// Everything but the probes and the gate, with a method that it takes.
const PATHS: [(&str, &str); 19] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/peek"),
    ("POST", "/v1/check-batch"),
    ("POST", "/v1/take"),
    ("POST", "/v1/refund"),
    ("POST", "/v1/reset"),
    ("POST", "/v1/reserve"),
    ("POST", "/throttle"),
    ("POST", "/json"),
    ("POST", "/admin/reload"),
    ("POST", "/dashboard/key"),
    ("POST", "/v1/queues/q/jobs"),
    ("GET", "/v1/queues"),
    ("GET", "/admin/top"),
    ("GET", "/admin/rules"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/dashboard/history"),
    ("GET", "/dashboard/events"),
];

/// One request as a browser would send it: the host and the fields are the attacker's.
fn send(at: SocketAddr, method: &str, path: &str, host: &str, fields: &str) -> HttpAnswer {
    let body = if method == "POST" { ASKED } else { "" };
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n");
    stream.write_all(format!("{head}{fields}\r\n{body}").as_bytes()).unwrap();
    Http::over(stream).answer()
}

fn left(at: SocketAddr) -> u64 {
    let json = Http::connect(at).post("/v1/peek", ASKED).json();
    json["charges"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn without_a_token_a_page_of_another_site_is_refused_everywhere() {
    let running = start(POLICY);
    let port = running.http.port();
    let here = format!("127.0.0.1:{port}");
    for (method, path) in PATHS {
        for fields in [
            "origin: http://evil.example\r\n",
            "origin: null\r\n",
            "origin: http://localhost:3000\r\n",
            "sec-fetch-site: cross-site\r\n",
            "sec-fetch-site: same-site\r\n",
            "origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n",
        ] {
            let answer = send(running.http, method, path, &here, &format!("{JSON}{fields}"));
            assert_eq!(answer.status, 403, "{method} {path} {fields:?}: {answer:?}");
        }
        // Rebinding: a stranger's name, which its own page may use.
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.nip.io"] {
            let answer = send(running.http, method, path, &format!("{host}:{port}"), JSON);
            assert_eq!(answer.status, 403, "{method} {path} as {host}: {answer:?}");
        }
        if method == "POST" {
            for media in
                ["", "content-type: text/plain\r\n", "content-type: multipart/form-data\r\n"]
            {
                let answer = send(running.http, method, path, &here, media);
                assert_eq!(answer.status, 415, "{path} {media:?}: {answer:?}");
                assert!(answer.body.contains("application/json"), "{answer:?}");
            }
        }
    }
    assert_eq!(left(running.http), 10, "nothing was taken, reset or given back");
}

#[test]
fn programs_and_the_services_own_page_are_answered_as_before() {
    let running = start(POLICY);
    let port = running.http.port();
    for host in ["localhost", "127.0.0.1", "[::1]", "127.0.0.2", "LocalHost"] {
        let host = format!("{host}:{port}");
        let own = format!("{JSON}origin: http://{host}\r\nsec-fetch-site: same-origin\r\n");
        for fields in [JSON, &own, "content-type: Application/JSON; charset=utf-8\r\n"] {
            let answer = send(running.http, "POST", "/v1/peek", &host, fields);
            assert_eq!(answer.status, 200, "{host} {fields:?}: {answer:?}");
        }
    }
    // A link in somebody's mail may lead to the page, which holds nothing.
    let link = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n";
    assert_eq!(send(running.http, "GET", "/", &format!("localhost:{port}"), link).status, 200);
    assert_eq!(send(running.http, "GET", "/", "evil.example", "").status, 403);
    // Nothing to say, nothing to call JSON.
    let mut bare = Http::over(TcpStream::connect(running.http).unwrap());
    let answer = bare.raw("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(answer.status, 400, "{answer:?}");
}

#[test]
fn probes_and_the_gate_are_asked_by_any_name() {
    let running = start(POLICY);
    let foreign = "origin: https://shop.example\r\nsec-fetch-site: cross-site\r\n";
    for path in ["/healthz", "/health", "/healthcheck", "/readyz", "/v1/gate/api"] {
        let answer = send(running.http, "GET", path, "shop.example", foreign);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    // A proxy passes on what the client said of its own body, which it does not send.
    let form = "content-type: text/plain\r\n";
    assert_eq!(send(running.http, "POST", "/v1/gate/api", "shop.example", form).status, 200);
}

#[test]
fn with_tokens_a_token_is_the_proof_and_names_do_not_matter() {
    let token = "[[tokens]]\ntoken = \"t\"\nrole = \"admin\"\n";
    let running = start(&format!("{token}{POLICY}"));
    let shown = "authorization: Bearer t\r\ncontent-type: text/plain\r\n";
    let answer = send(running.http, "POST", "/v1/check", "limits.example", shown);
    assert_eq!(answer.status, 200, "{answer:?}");
    let page = "origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n";
    assert_eq!(send(running.http, "POST", "/v1/check", "limits.example", page).status, 401);
    // A browser asks first whether a page may add the field: it may not.
    let answer = send(running.http, "OPTIONS", "/v1/check", "limits.example", page);
    assert!(answer.status >= 400, "{answer:?}");
    assert!(!answer.head.to_lowercase().contains("access-control"), "{answer:?}");
}

#[test]
fn other_names_are_answered_once_they_are_configured() {
    let running = start(&format!("[listen]\nhosts = [\"limits.example\"]\n{POLICY}"));
    for (host, status) in
        [("limits.example", 200), ("LIMITS.example:8080", 200), ("x.limits.example", 403)]
    {
        let answer = send(running.http, "POST", "/v1/peek", host, JSON);
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
    let own = format!("{JSON}origin: https://limits.example\r\n");
    assert_eq!(send(running.http, "POST", "/v1/peek", "limits.example", &own).status, 200);
    let refused = send(running.http, "POST", "/v1/peek", "other.example", JSON);
    assert!(
        refused.body.contains("other.example") && refused.body.contains("--host"),
        "{refused:?}"
    );
    let public = start(&format!("[listen]\npublic = true\n{POLICY}"));
    for (host, status) in [("10.0.0.7:8080", 200), ("evil.example", 403)] {
        assert_eq!(send(public.http, "POST", "/v1/peek", host, JSON).status, status, "{host}");
    }
}

#[test]
fn the_rules_hold_over_http2_and_for_chunked_bodies() {
    let Some(curl) = tool("curl") else { return };
    let running = start(POLICY);
    let url = format!("http://{}/v1/check", running.http);
    let status = |arguments: &[&str]| {
        let quiet = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", ASKED];
        output(Command::new(&curl).args(quiet).args(arguments).arg(&url))
    };
    let json = "content-type: application/json";
    for way in [&["--http2-prior-knowledge"][..], &["-H", "transfer-encoding: chunked"], &[]] {
        let with = |more: &[&str]| status(&[way, more].concat());
        assert_eq!(with(&["-H", json]), "200", "{way:?}");
        assert_eq!(with(&[]), "415", "{way:?}");
        assert_eq!(with(&["-H", json, "-H", "host: evil.example"]), "403", "{way:?}");
        assert_eq!(with(&["-H", json, "-H", "origin: http://evil.example"]), "403", "{way:?}");
        assert_eq!(with(&["-H", json, "-H", "sec-fetch-site: cross-site"]), "403", "{way:?}");
    }
    assert_eq!(left(running.http), 7, "three were let through");
}

#[test]
fn a_browser_at_the_port_for_resp_is_closed_and_not_obeyed() {
    let running = start(POLICY);
    for first in ["POST / HTTP/1.1", "GET / HTTP/1.1", "Host: 127.0.0.1:6380", "post /x HTTP/1.1"] {
        let mut stream = TcpStream::connect(running.resp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request =
            format!("{first}\r\nAccept: */*\r\n\r\nTOLL.CHECK api ada COST 10\r\nPING\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("-ERR Protocol error") && answer.lines().count() == 1,
            "{answer}"
        );
    }
    assert_eq!(left(running.http), 10);
    // A client that takes this for a Redis is told so, and goes on.
    let mut stream = TcpStream::connect(running.resp).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "-ERR unknown command 'GET'\r\n+OK\r\n");
}
