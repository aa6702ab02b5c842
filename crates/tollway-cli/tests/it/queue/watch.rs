//! `tollway queue watch` and `drain`: what they show, what they say at the end, and how they fail.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Held, enqueue, lease, post};
use crate::serve::{Folder, Served};
use crate::tool::{fail, misuse, tollway};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service with a queue whose jobs may all start, and four of them in it.
fn serve_four(name: &str) -> (Folder, Served) {
    let folder = Folder::new(name);
    let config =
        "[[queues]]\nname = \"roles\"\ngroup_limits = [\"concurrent 10\"]\nlease = \"1h\"\n";
    let served = Served::start(&["--config", &folder.file("queue.toml", config)]);
    for _ in 0..4 {
        enqueue(&served, &json!({"group": "g", "payload": "x"}));
    }
    (folder, served)
}

/// A command that shows how far a queue is; killed when dropped.
struct Watching {
    process: Child,
    shown: mpsc::Receiver<String>,
    seen: String,
}

impl Watching {
    /// Watches through pipes.
    fn piped(served: &Served) -> Self {
        let at = served.http.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.args(["queue", "watch", "roles", "--every", "20ms", "--at", &at]);
        let mut process = spawn(&mut command);
        let shown = process.stderr.take().expect("piped");
        Self::new(process, shown)
    }

    /// Watches on a terminal, whose every byte is shown.
    fn on_a_terminal(served: &Served) -> Self {
        let binary = env!("CARGO_BIN_EXE_tollway");
        let line = format!("{binary} queue watch roles --every 20ms --at {}", served.http);
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let mut process = spawn(command.env("TERM", "xterm"));
        let shown = process.stdout.take().expect("piped");
        Self::new(process, shown)
    }

    fn new(process: Child, mut shown: impl Read + Send + 'static) -> Self {
        let (told, heard) = mpsc::channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4_096];
            while let Ok(length @ 1..) = shown.read(&mut chunk) {
                drop(told.send(String::from_utf8_lossy(&chunk[..length]).into_owned()));
            }
        });
        Self { process, shown: heard, seen: String::new() }
    }

    /// Waits until `text` is shown.
    fn until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let more = self.shown.recv_timeout(PATIENCE);
            self.seen += &more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
        }
    }

    /// Waits for the end: its exit code, what it showed, and what is left of its standard output.
    fn end(mut self) -> (Option<i32>, String, String) {
        while let Ok(more) = self.shown.recv_timeout(PATIENCE) {
            self.seen += &more;
        }
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("ours") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::park_timeout(Duration::from_millis(5));
        };
        let mut said = String::new();
        if let Some(mut out) = self.process.stdout.take() {
            out.read_to_string(&mut said).expect("text");
        }
        (status.code(), std::mem::take(&mut self.seen), said)
    }
}

fn spawn(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ended(served: &Served, verb: &str, held: &Held) {
    let body = match verb {
        "fail" => json!({"token": held.token, "reason": "no", "retry": false}),
        _ => json!({"token": held.token}),
    };
    let (status, answer): (u16, Value) = post(served, verb, &body);
    assert_eq!(status, 200, "{answer}");
}

/// Ends two of the four jobs, and when that is shown the other two.
fn drain_before(served: &Served, watching: &mut Watching) {
    watching.until("0/4  waiting for a worker");
    let leased = lease(served);
    ended(served, "ack", &leased[0]);
    ended(served, "ack", &leased[1]);
    watching.until("2/4  ");
    watching.until("/s, done in ");
    ended(served, "ack", &leased[2]);
    // One that failed for good is over, too.
    ended(served, "fail", &leased[3]);
}

const OVER: &str = "roles: 4 jobs have ended, nothing is left";

#[test]
fn a_queue_that_drains_is_shown_in_lines_through_a_pipe() {
    let (_folder, served) = serve_four("watch-pipe");
    let mut watching = Watching::piped(&served);
    drain_before(&served, &mut watching);
    let (code, shown, said) = watching.end();
    assert_eq!((code, said.as_str()), (Some(0), format!("{OVER}\n").as_str()), "{shown}");
    // Plain lines, none of them twice, and no trace of a terminal.
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("roles: ")), "{shown}");
    assert!(lines.len() <= 5 && !shown.contains(['\r', '\u{1b}']), "{shown}");
}

#[test]
fn a_queue_that_drains_is_shown_as_a_bar_on_a_terminal() {
    let (_folder, served) = serve_four("watch-terminal");
    let mut watching = Watching::on_a_terminal(&served);
    drain_before(&served, &mut watching);
    let (code, shown, _) = watching.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("roles "), "the bar names its queue: {shown}");
    assert!(shown.contains('█') && shown.contains('░'), "a bar: {shown}");
    let last = shown.lines().last().expect("the end");
    assert!(last.ends_with(OVER), "the bar is gone: {last:?}");
}

#[test]
fn a_service_that_goes_away_ends_the_watch_with_an_error() {
    let (_folder, served) = serve_four("watch-gone");
    let mut watching = Watching::piped(&served);
    watching.until("0/4  ");
    served.stop("KILL");
    let (code, shown, said) = watching.end();
    assert_eq!((code, said.as_str()), (Some(1), ""), "{shown}");
    let last = shown.lines().last().expect("an error");
    assert!(last.starts_with("error: ") && last.contains("/v1/queues/roles"), "{shown}");
}

#[test]
fn what_is_no_queue_is_never_said_to_be_empty() {
    let (_folder, served) = serve_four("watch-wrong");
    let at = served.http.to_string();
    for verb in ["watch", "drain"] {
        let complaint = fail(&["queue", verb, "nobody", "--at", &at]);
        assert!(complaint.contains("nobody") && complaint.contains("404"), "{complaint}");
        // Names that would be another address of the service.
        for name in ["", "roles/groups", "roles?", ".."] {
            let output = tollway(&["queue", verb, name, "--at", &at]);
            assert!(!output.status.success(), "{verb} {name:?}");
            assert!(output.stdout.is_empty(), "{verb} {name:?}");
        }
    }
    for body in ["{}", "<html>", "{\"waiting\":0,\"delayed\":0,\"running\":0}"] {
        let at = something_else(body);
        fail(&["queue", "drain", "roles", "--at", &at]);
    }
}

/// A server that answers 200 and `body`, once.
fn something_else(body: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
    });
    at
}

#[test]
fn whoever_has_waited_long_enough_is_told_what_is_left() {
    let (_folder, served) = serve_four("watch-timeout");
    let at = served.http.to_string();
    for verb in ["watch", "drain"] {
        // An hour between two looks does not make it late.
        let patience = ["--timeout", "50ms", "--every", "1h"];
        let complaint = fail(&[&["queue", verb, "roles", "--at", &at], &patience[..]].concat());
        assert!(complaint.contains("4 jobs are left"), "{complaint}");
        for wrong in ["0s", "5ms", "1", "-1", "NaN", "x"] {
            misuse(&["queue", verb, "roles", "--at", &at, &format!("--every={wrong}")]);
        }
    }
}
