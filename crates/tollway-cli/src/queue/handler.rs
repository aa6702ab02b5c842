//! The program that is run for a job: what it is told, and what its end means.
//!
//! | end | the job |
//! |---|---|
//! | exit code 0 | is done |
//! | 75, "temporary failure" | waits with its whole group: as long as header fields on standard output say |
//! | 65, "data error" | is a dead letter at once |
//! | any other, or a signal | has failed, and is tried again |
//!
//! If standard output has a response as `curl -i` prints it, the service hears of its header fields
//! whatever came of the job: a group whose limit is spent waits before it is refused.
//!
//! Both codes are those of `sysexits.h`. A program has a process group of its own: what stops the
//! worker at a terminal does not reach it, and what stops it reaches its children, too.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// The exit code that says: the upstream refuses, later it will not.
const LATER: i32 = 75;
/// The exit code that says: this job can never be done.
const NEVER: i32 = 65;
/// What is kept of standard output.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// What is kept of standard error, from its end.
const ERRORS_BYTES_MAX: usize = 1_024;
/// Header fields that are passed on.
const FIELDS_MAX: usize = 100;
/// How long pipes are read that the program has left to its children.
const READ_ON: Duration = Duration::from_secs(1);

/// A program that runs for a job.
pub(super) struct Handler {
    child: Child,
    payload: Vec<u8>,
}

/// How a program ended, and what it wrote.
pub(super) struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    errors: Vec<u8>,
}

impl Handler {
    /// Starts the program for a job that was leased.
    pub(super) fn start(program: &[OsString], queue: &str, lease: &Value) -> Result<Self> {
        let (name, arguments) = program.split_first().context("no program to run")?;
        let number = |field: &str| lease[field].to_string();
        let child = Command::new(name)
            .args(arguments)
            .env("TOLLWAY_QUEUE", queue)
            .env("TOLLWAY_JOB", number("id"))
            // A byte of zero would end it, and no program could be started.
            .env("TOLLWAY_GROUP", lease["group"].as_str().unwrap_or_default().replace('\0', " "))
            .env("TOLLWAY_ATTEMPT", number("attempt"))
            .env("TOLLWAY_FAILURES", number("failures"))
            .env("TOLLWAY_ENQUEUED_AT_MS", number("enqueued_at_ms"))
            // It works for the queue and does not speak for its worker.
            .env_remove("TOLLWAY_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", name.display()))?;
        let payload = match (lease["payload"].as_str(), lease["payload_base64"].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(base64)) => BASE64.decode(base64).context("the payload is not base 64")?,
            (None, None) => Vec::new(),
        };
        Ok(Self { child, payload })
    }

    /// What stops it, and may be kept while it is waited for.
    pub(super) fn process(&self) -> Process {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        Process(id.and_then(Pid::from_raw))
    }

    /// Waits for its end. What it writes goes to our standard output, unless that is `kept`, and to
    /// our standard error.
    pub(super) async fn ended(self, kept: bool) -> Result<Ended> {
        let Self { mut child, payload } = self;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (output, errors) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let mut write = pin!(async {
            if let Some(mut stdin) = stdin {
                // A program need not read its payload.
                let _ = stdin.write_all(&payload).await;
            }
        });
        let mut read = pin!(async {
            let keep = |bytes: &[u8]| {
                keep_first(&mut output.borrow_mut(), bytes);
                if !kept {
                    pass_on(&mut std::io::stdout(), bytes);
                }
            };
            let keep_errors = |bytes: &[u8]| {
                keep_last(&mut errors.borrow_mut(), bytes);
                pass_on(&mut std::io::stderr(), bytes);
            };
            tokio::join!(read_all(stdout, keep), read_all(stderr, keep_errors));
        });
        let (mut is_written, mut is_read) = (false, false);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                () = &mut read, if !is_read => is_read = true,
                () = &mut write, if !is_written => is_written = true,
            }
        };
        if !is_read {
            // Past this, children that it left behind write for themselves.
            let _ = tokio::time::timeout(READ_ON, read).await;
        }
        Ok(Ended { status, output: output.take(), errors: errors.take() })
    }
}

/// The processes of a handler.
#[derive(Clone, Copy)]
pub(super) struct Process(Option<Pid>);

impl Process {
    /// Asks them to end.
    pub(super) fn terminate(self) {
        self.signal(Signal::TERM);
    }

    /// Ends them.
    pub(super) fn kill(self) {
        self.signal(Signal::KILL);
    }

    fn signal(self, signal: Signal) {
        if let Some(group) = self.0 {
            // Whoever is gone needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }
}

async fn read_all(stream: Option<impl AsyncRead + Unpin>, keep: impl Fn(&[u8])) {
    let Some(mut stream) = stream else { return };
    let mut part = [0; 4_096];
    while let Ok(read @ 1..) = stream.read(&mut part).await {
        keep(&part[..read]);
    }
}

fn keep_first(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = OUTPUT_BYTES_MAX - kept.len();
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn keep_last(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    let over = kept.len().saturating_sub(ERRORS_BYTES_MAX);
    kept.drain(..over);
}

/// Whether anybody reads it is no matter of the job.
fn pass_on(stream: &mut impl std::io::Write, bytes: &[u8]) {
    let _ = stream.write_all(bytes).and_then(|()| stream.flush());
}

impl Ended {
    /// The path that tells the service what came of the job, and the body beside the token;
    /// `wait_ms` is how long a group waits if no header field says it.
    pub(super) fn report(
        &self,
        keep_result: bool,
        profile: Option<&str>,
        wait_ms: u64,
    ) -> (&'static str, Value) {
        let (verb, mut body) = match self.status.code() {
            Some(0) if keep_result => ("ack", self.result()),
            Some(0) => ("ack", json!({})),
            Some(LATER) => return ("retry-later", self.later(profile, wait_ms)),
            code => {
                let reason = self.reason();
                ("fail", json!({"reason": reason, "retry": code != Some(NEVER)}))
            }
        };
        if let (Some(status), fields) = self.response() {
            body["headers"] = fields.into();
            tell_profile(&mut body, profile, status);
        }
        (verb, body)
    }

    fn result(&self) -> Value {
        match std::str::from_utf8(&self.output) {
            Ok(text) => json!({"result": text}),
            Err(_) => json!({"result_base64": BASE64.encode(&self.output)}),
        }
    }

    /// The status of the last response that is written on standard output, as `curl -i` writes it,
    /// and its header fields; those that stand without a status, too.
    fn response(&self) -> (Option<u16>, Map<String, Value>) {
        let text = String::from_utf8_lossy(&self.output);
        let (mut status, mut fields, mut is_body) = (None, Map::new(), false);
        for line in text.lines() {
            // What stands behind a response's fields may look like some.
            is_body |= status.is_some() && line.is_empty();
            if line.starts_with("HTTP/") {
                status = line.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
                fields.clear();
                is_body = false;
            } else if let Some((name, value)) = line.split_once(':')
                && is_field_name(name)
                && fields.len() < FIELDS_MAX
                && !is_body
            {
                fields.insert(name.to_ascii_lowercase(), value.trim().into());
            }
        }
        fields.remove("set-cookie");
        (status, fields)
    }

    /// How long the group waits after a refusal.
    fn later(&self, profile: Option<&str>, wait_ms: u64) -> Value {
        let (status, fields) = self.response();
        if fields.is_empty() {
            return json!({"wait_ms": wait_ms});
        }
        let mut body = json!({"headers": fields});
        tell_profile(&mut body, profile, status.unwrap_or(429));
        body
    }

    fn reason(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no exit code".to_owned(),
        };
        let errors = String::from_utf8_lossy(&self.errors);
        match errors.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(last) => format!("{how}: {}", last.trim()),
            None => how,
        }
    }
}

/// Says which profile is to read the header fields, and of what status they are.
fn tell_profile(body: &mut Value, profile: Option<&str>, status: u16) {
    if let Some(profile) = profile {
        body["profile"] = profile.into();
        body["status"] = status.into();
    }
}

fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, output: &str, errors: &str) -> Ended {
        let status = ExitStatus::from_raw(code << 8);
        Ended { status, output: output.into(), errors: errors.into() }
    }

    #[test]
    fn an_exit_code_says_what_came_of_the_job() {
        let report = |ended: Ended| ended.report(true, None, 1_000);
        assert_eq!(report(ended(0, "42\n", "")), ("ack", json!({"result": "42\n"})));
        let failed = json!({"reason": "exit code 3: no such member", "retry": true});
        assert_eq!(report(ended(3, "", "a\nno such member\n\n")), ("fail", failed));
        let dead = json!({"reason": "exit code 65", "retry": false});
        assert_eq!(report(ended(65, "", "")), ("fail", dead));
        let killed = Ended { status: ExitStatus::from_raw(9), ..ended(0, "", "") };
        assert_eq!(report(killed).1["reason"], "signal 9");
    }

    #[test]
    fn the_fields_of_the_last_response_say_how_long_the_group_waits() {
        let later = |output: &str, profile| ended(75, output, "").report(false, profile, 1_500).1;
        assert_eq!(later("", None), json!({"wait_ms": 1_500}));
        assert_eq!(later("{\"retry\": 5}\n", None), json!({"wait_ms": 1_500}), "no field name");
        let curl =
            "HTTP/1.1 100 Continue\r\nAge: 1\r\n\r\nHTTP/1.1 503 No\r\nRetry-After: 7\r\n\r\n";
        assert_eq!(later(curl, None), json!({"headers": {"retry-after": "7"}}));
        let told = later(curl, Some("discord"));
        assert_eq!((&told["profile"], &told["status"]), (&json!("discord"), &json!(503)));
    }

    #[test]
    fn the_fields_of_a_response_are_told_whatever_came_of_the_job() {
        let curl = "HTTP/2 200 \r\nRateLimit-Remaining: 0\r\nSet-Cookie: a=b\r\n\r\nlevel: 7\n";
        let fields = json!({"ratelimit-remaining": "0"});
        assert_eq!(ended(0, curl, "").report(false, None, 1).1, json!({"headers": fields}));
        let (verb, failed) = ended(1, curl, "").report(true, Some("discord"), 1);
        assert_eq!((verb, &failed["headers"], &failed["status"]), ("fail", &fields, &json!(200)));
        let plain = "level: 7\n";
        assert_eq!(ended(0, plain, "").report(false, None, 1).1, json!({}), "no response");
    }

    #[test]
    fn no_more_is_kept_than_a_report_may_have() {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            keep_first(&mut output, &[b'x'; 4_096]);
            keep_last(&mut errors, &[b'y'; 700]);
        }
        assert_eq!((output.len(), errors.len()), (OUTPUT_BYTES_MAX, ERRORS_BYTES_MAX));
    }
}
