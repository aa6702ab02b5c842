//! One service under attack, in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollway_testkit::servers::eventually;

use crate::serve::Folder;

/// What states may take.
pub(super) const MEMORY_BYTES: u64 = 64 << 20;
/// What all connections together may make a node hold: `limits.held_bytes`.
pub(super) const HELD_BYTES: u64 = 64 << 20;

/// `steady` and `window` are for the honest, whose quotas do not come back during the run; the
/// others are flooded.
const CONFIGURATION: &str = r#"
[limits]
slow_client = "2s"

[[policies]]
name = "steady"
quota = "20/1d burst 20"

[[policies]]
name = "window"
quota = "10/1d"
algorithm = "fixed-window"
anchor = "first-request"

[[policies]]
name = "flooded"
quota = "1/1h"

[[policies]]
name = "flooded-window"
quota = "1/1h"
algorithm = "sliding-window"
"#;

pub(super) struct Node {
    process: Child,
    pub(super) http: SocketAddr,
    pub(super) resp: SocketAddr,
    file: String,
    _folder: Folder,
}

impl Node {
    pub(super) fn start(name: &str, store: Option<&str>) -> Self {
        let folder = Folder::new(name);
        let file = folder.file("tollway.toml", CONFIGURATION);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.args(["serve", "--config", &file, "--grpc", "off", "--http", "127.0.0.1:0"]);
        command.args(["--resp", "127.0.0.1:0", "--memory-bytes", &MEMORY_BYTES.to_string()]);
        command.args(
            store.map(|url| ["--store", url]).unwrap_or_default().iter().filter(|a| !a.is_empty()),
        );
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = piped.spawn().expect("the binary starts");
        let out = process.stdout.take().expect("piped");
        let (mut http, mut resp) = (None, None);
        for line in BufReader::new(out).lines() {
            let line = line.expect("text");
            let address = |front: &str| {
                line.strip_prefix(front)?.split_whitespace().next()?.parse::<SocketAddr>().ok()
            };
            http = http.or(address("HTTP  "));
            resp = resp.or(address("RESP  "));
            if http.is_some() && resp.is_some() {
                break;
            }
        }
        let [http, resp] = [http, resp].map(|address| address.expect("it says where it listens"));
        Self { process, http, resp, file, _folder: folder }
    }

    /// Memory that the process really has.
    pub(super) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the process lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.split_whitespace().next().expect("a number").parse::<u64>().expect("a number") << 10
    }

    /// Writes the configuration again, a little different, and asks for a reload.
    pub(super) fn reload(&self, turn: u64) {
        let text = format!("{CONFIGURATION}\n# turn {turn}\n");
        std::fs::write(&self.file, text).expect("written");
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-HUP", &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits until answers come from the store again.
    pub(super) fn wait_for_store(&self) {
        eventually(Duration::from_secs(60), || {
            let body = r#"{"policy":"steady","key":"is-the-store-back"}"#;
            !self.ask("/v1/peek", body).contains("\"degraded\":true")
        });
    }

    fn ask(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.http).expect("it listens");
        stream.write_all(post(path, body, true).as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request as programs send it.
pub(super) fn post(path: &str, body: &str, last: bool) -> String {
    let connection = if last { "close" } else { "keep-alive" };
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: {connection}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
