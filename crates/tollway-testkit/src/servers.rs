//! Real Redis and Valkey on loopback for tests: started on a free port, killed when the test ends.
//!
//! Every crate that talks to a store is tried on real ones, by these few types: [`Server`] is one
//! process, [`Cluster`] three primaries with a replica each, [`LossyWay`] a connection on which
//! answers can be lost. A server dies with the process that started it, in whatever way that ends:
//! a shell between the two waits for its standard input to close. A failure to start panics, which
//! is what a test wants.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod certificate;
mod cluster;
mod lossy;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use certificate::Certificate;
pub use cluster::Cluster;
pub use lossy::LossyWay;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `redis-server`, which every machine that tests must have.
    Redis,
    /// `valkey-server`, where it can be had.
    Valkey,
    /// The oldest `redis-server` that is supported, where `scripts/install-redis` could get it.
    Redis62,
}

impl Engine {
    /// The engines that this machine has. Redis it must have; Valkey is skipped with a line.
    pub fn available() -> Vec<Self> {
        static SAID: OnceLock<bool> = OnceLock::new();
        let has_valkey = *SAID.get_or_init(|| {
            let found = runs("valkey-server");
            if !found {
                let mut out = std::io::stderr();
                let _ = writeln!(out, "valkey-server is not installed: its half is skipped");
            }
            found
        });
        assert!(runs("redis-server"), "redis-server is not installed; run scripts/install-redis");
        if has_valkey { vec![Self::Redis, Self::Valkey] } else { vec![Self::Redis] }
    }

    /// Redis 6.2, if this machine has it; skipped with a line otherwise.
    pub fn oldest() -> Option<Self> {
        let found = runs(Self::Redis62.program());
        if !found {
            let mut out = std::io::stderr();
            let _ = writeln!(out, "Redis 6.2 is not installed: its tests are skipped");
        }
        found.then_some(Self::Redis62)
    }

    /// The server's program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
            Self::Redis62 => {
                concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/redis-6.2/redis-server")
            }
        }
    }

    /// The command-line client's program.
    pub fn client(self) -> &'static str {
        match self {
            Self::Redis | Self::Redis62 => "redis-cli",
            Self::Valkey => "valkey-cli",
        }
    }

    /// A server that all tests of this binary share, each under a prefix of its own.
    pub fn shared(self) -> &'static Server {
        static SERVERS: [OnceLock<Server>; 3] = [const { OnceLock::new() }; 3];
        SERVERS[self as usize].get_or_init(|| Server::start(self, &[]))
    }
}

/// Whether to run at full size.
pub fn full() -> bool {
    std::env::var_os("TOLLWAY_FULL").is_some_and(|value| value == "1")
}

fn runs(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// A server process.
#[derive(Debug)]
pub struct Server {
    /// Which program it is.
    pub engine: Engine,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// The process.
    pub pid: u32,
    directory: std::path::PathBuf,
    arguments: Vec<String>,
    /// Kills the server when its standard input is closed, which happens when this process ends
    /// in whatever way.
    guard: Child,
}

impl Server {
    /// Starts a server with these arguments beside the usual ones, and waits until it answers. A
    /// first argument of several lines is a configuration file, in place of the usual ones.
    pub fn start(engine: Engine, arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        // A port that was free a moment ago may be taken now.
        for _ in 0..10 {
            if let Some(server) = Self::start_at(engine, free_port(), &arguments) {
                return server;
            }
        }
        panic!("no {engine:?} server would start");
    }

    fn start_at(engine: Engine, port: u16, arguments: &[String]) -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("tollway-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the server");
        let (guard, pid) = spawn(engine, port, &directory, arguments);
        let server = Self { engine, port, pid, directory, arguments: arguments.to_vec(), guard };
        eventually(Duration::from_secs(10), || server.answers() || !server.is_alive());
        server.is_alive().then_some(server)
    }

    /// How a client names it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends it as a power cut would.
    pub fn kill(&self) {
        signal(self.pid, "KILL");
        eventually(Duration::from_secs(10), || !self.is_alive());
    }

    /// Stops it without ending it: its connections stay open and nothing is answered.
    pub fn pause(&self) {
        signal(self.pid, "STOP");
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        signal(self.pid, "CONT");
    }

    /// Starts it again on the same port, empty.
    pub fn restart(&mut self) {
        let (guard, pid) = spawn(self.engine, self.port, &self.directory, &self.arguments);
        let mut old = std::mem::replace(&mut self.guard, guard);
        let _ = old.kill();
        let _ = old.wait();
        self.pid = pid;
        eventually(Duration::from_secs(10), || self.answers());
    }

    /// Sends a command given as words, and returns the raw answer.
    pub fn tell(&self, words: &[&str]) -> String {
        tell(self.port, words).expect("the server answers")
    }

    fn answers(&self) -> bool {
        let answers = |answer: &str| answer.starts_with('+') || answer.starts_with("-NOAUTH");
        tell(self.port, &["PING"]).is_ok_and(|answer| answers(&answer))
    }

    /// Whether the process has not ended.
    pub fn is_alive(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        status.is_ok_and(|stat| !stat.contains(") Z "))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal(self.pid, "KILL");
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn spawn(
    engine: Engine,
    port: u16,
    directory: &std::path::Path,
    arguments: &[String],
) -> (Child, u32) {
    const GUARD: &str = r#""$@" >server.log 2>&1 & echo $!; read _; kill -9 $!; wait"#;
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "sh", engine.program()]);
    if let [configuration, rest @ ..] = arguments
        && configuration.contains('\n')
    {
        // A sentinel writes what it learns into its file, and will not start without one.
        let text = format!("port {port}\nbind 127.0.0.1\n{configuration}");
        std::fs::write(directory.join("server.conf"), text).expect("its directory is there");
        command.arg("server.conf").args(rest);
    } else {
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "no", "--protected-mode", "no"]).args(arguments);
    }
    let mut guard = command
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    let mut pid = String::new();
    let stdout = guard.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut pid).expect("sh names the server");
    (guard, pid.trim().parse().expect("a process id"))
}

/// A port that nobody listens on, nor on the one that a cluster's bus takes beside it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let count = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() * 37;
        let port = 20_000 + (count % 10_000) as u16;
        if [port, port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        {
            return port;
        }
    }
}

/// Waits for a condition, and fails if it does not come true in time.
pub fn eventually(at_most: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < at_most, "what was waited for did not happen in {at_most:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Sends a signal to a process that a test has started.
fn signal(pid: u32, name: &str) {
    // The process may be gone already; the program must be there.
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    sent.expect("kill is installed: Debian's procps");
}

/// Sends a command to a server, and returns what it answers within two seconds.
pub fn tell(port: u16, words: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes())?;
    let mut answer = vec![0; 65_536];
    let mut length = 0;
    // One answer arrives whole unless it is long: those are read until a pause.
    loop {
        let read = match stream.read(&mut answer[length..]) {
            // A child's end interrupts a read that has a timeout.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        length += read;
        if read == 0 || length == answer.len() || answer[..length].ends_with(b"\r\n") {
            return Ok(String::from_utf8_lossy(&answer[..length]).into_owned());
        }
    }
}
