//! Clients that mean no harm: every session has a key of its own, so that what it is told does not
//! depend on anybody else, and must be exact to the unit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Run;
use super::node::{Node, post};

/// Longer than an answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Policies, what each holds, and how often it is asked.
const ASKED: [(&str, usize, usize); 2] = [("steady", 20, 23), ("window", 10, 13)];

/// One answer: whether it was allowed, and whether the store had a part in it.
struct Told {
    allowed: bool,
    degraded: bool,
}

/// Sessions over HTTP until the run is over; how many were judged.
pub(super) fn over_http(run: &Run, node: &Node) -> u64 {
    sessions(
        run,
        "http",
        || BufReader::new(connect(node.http)),
        |stream, policy, key| {
            let body = format!(r#"{{"policy":"{policy}","key":"{key}"}}"#);
            stream.get_mut().write_all(post("/v1/check", &body, false).as_bytes()).expect("sent");
            let (status, body) = http_answer(stream);
            assert!(status == 200 || status == 429, "{status}: {body}");
            Told { allowed: status == 200, degraded: body.contains("\"degraded\":true") }
        },
    )
}

/// Sessions over RESP until the run is over; how many were judged.
pub(super) fn over_resp(run: &Run, node: &Node) -> u64 {
    sessions(
        run,
        "resp",
        || BufReader::new(connect(node.resp)),
        |stream, policy, key| {
            let command = format!("TOLL.CHECK {policy} {key}\r\n");
            stream.get_mut().write_all(command.as_bytes()).expect("sent");
            // allowed, denied_by, degraded, charges
            let head = line(stream);
            assert_eq!(head, "*4", "an answer of four");
            let allowed = line(stream);
            skip(stream);
            let degraded = line(stream);
            skip(stream);
            Told { allowed: allowed == ":1", degraded: degraded == ":1" }
        },
    )
}

fn sessions<S>(
    run: &Run,
    front: &str,
    connect: impl Fn() -> S,
    mut ask: impl FnMut(&mut S, &str, &str) -> Told,
) -> u64 {
    let mut judged = 0;
    for number in 0u64.. {
        if !run.is_on() {
            break;
        }
        let outages = run.outages.load(Ordering::SeqCst);
        let mut stream = connect();
        let key = format!("honest-{front}-{number}");
        let told: Vec<(&str, usize, Vec<Told>)> = ASKED
            .iter()
            .map(|&(policy, holds, asked)| {
                let told = (0..asked).map(|_| ask(&mut stream, policy, &key)).collect();
                (policy, holds, told)
            })
            .collect();
        // A store that was away in the middle has forgotten the beginning.
        let calm = outages.is_multiple_of(2) && run.outages.load(Ordering::SeqCst) == outages;
        if !calm || told.iter().any(|(_, _, told)| told.iter().any(|told| told.degraded)) {
            continue;
        }
        for (policy, holds, told) in told {
            let allowed: Vec<bool> = told.iter().map(|told| told.allowed).collect();
            let right: Vec<bool> = (0..told.len()).map(|turn| turn < holds).collect();
            assert_eq!(allowed, right, "{policy}, {key}");
        }
        judged += 1;
    }
    judged
}

fn connect(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the service accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

fn http_answer(stream: &mut BufReader<TcpStream>) -> (u16, String) {
    let status = line(stream).split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut length = 0;
    loop {
        let field = line(stream).to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        if let Some(value) = field.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a whole answer");
    (status.expect("a status"), String::from_utf8(body).expect("text"))
}

/// Reads past one RESP value.
fn skip(stream: &mut BufReader<TcpStream>) {
    let head = line(stream);
    let count = head[1..].parse::<i64>().unwrap_or(0);
    match head.as_bytes()[0] {
        b'*' => (0..count).for_each(|_| skip(stream)),
        b'$' if count >= 0 => drop(line(stream)),
        _ => {}
    }
}

fn line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let length = stream.read_line(&mut line).expect("an answer in time");
    assert!(length > 0, "an honest client's connection was closed");
    line.trim_end().to_owned()
}
