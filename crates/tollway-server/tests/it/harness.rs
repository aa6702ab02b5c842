use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_core::{Clock, Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Endpoint, Front, Metrics, Origin, Server, Service};

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server on free loopback ports.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
}

/// A server with the rules and settings of a TOML text, at a time that stands still.
pub(crate) fn start(toml: &str) -> Running {
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    start_with(toml, clock, Vec::new(), Capacity::keys(100_000))
}

/// The same, listening where the text says, for RESP at least.
pub(crate) fn start_listening(toml: &str) -> Server {
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    let off = || Some("off".to_owned());
    let overrides = Overrides { http: off(), grpc: off(), ..Overrides::default() };
    let metrics = Metrics::default();
    let texts = [("test.toml".to_owned(), toml.to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(1_000))));
    let service = Service::new(config.rules, metrics, memory, clock, config.settings);
    Server::start(Arc::new(service), &config.listen, None, 1).unwrap()
}

/// The same with a clock, files to reload from, and room for keys.
pub(crate) fn start_with(
    toml: &str,
    clock: Arc<dyn Clock>,
    files: Vec<PathBuf>,
    capacity: Capacity,
) -> Running {
    let any = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
    let metrics = Metrics::default();
    let texts = [("test.toml".to_owned(), toml.to_owned())];
    let config = if files.is_empty() {
        Config::from_texts(&texts, &overrides, &metrics)
    } else {
        Config::load(&files, &overrides, &metrics)
    };
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let memory = Backing::Memory(Arc::new(MemoryStore::new(capacity)));
    let service = Service::new(config.rules, metrics, memory, clock, config.settings);
    let service = Arc::new(service.with_origin(Origin { files, overrides, ..Origin::default() }));
    running(Server::start(service, &config.listen, config.tls.as_ref(), 2).unwrap())
}

pub(crate) fn running(server: Server) -> Running {
    let address = |front| match server.endpoint(front) {
        Some(Endpoint::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    };
    let (http, grpc, resp) = (address(Front::Http), address(Front::Grpc), address(Front::Resp));
    Running { server, http, grpc, resp }
}

/// An answer over HTTP/1.1.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let matches = |line: &&str| {
            line.split_once(':').is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
        };
        self.head.lines().find(matches)?.split_once(':').map(|(_, value)| value.trim())
    }
}

/// One keep-alive connection.
pub(crate) struct Http(BufReader<TcpStream>);

impl Http {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        Self::over(stream)
    }

    /// Over a connection on which something may have been sent already.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// The answer to a request that is written out.
    pub(crate) fn raw(&mut self, request: &str) -> HttpAnswer {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.answer()
    }

    /// Waits until the other side closes; whether it did, without another word.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        fields: &str,
        body: &str,
    ) -> HttpAnswer {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n{fields}\r\n{body}"
        );
        self.raw(&request)
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> HttpAnswer {
        self.send("POST", path, "", body)
    }

    pub(crate) fn get(&mut self, path: &str) -> HttpAnswer {
        self.send("GET", path, "", "")
    }

    pub(crate) fn answer(&mut self) -> HttpAnswer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "closed after {head:?}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = HttpAnswer { status, head, body: String::new() };
        let length = answer.field("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        answer.body = String::from_utf8(body).unwrap();
        answer
    }
}

/// Whether the tools that `scripts/install-service-tests` installs must be there. Without
/// `TOLLWAY_TOOLS` a test that needs a missing tool says so and passes.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let folder = tools();
    let candidates = [
        folder.join(name),
        PathBuf::from("/usr/bin").join(name),
        PathBuf::from("/usr/sbin").join(name),
    ];
    if let Some(found) = candidates.into_iter().find(|path| path.exists()) {
        return Some(found);
    }
    assert!(
        std::env::var_os("TOLLWAY_TOOLS").is_none(),
        "{name} is missing: run scripts/install-service-tests"
    );
    println!("skipped: {name} is not installed (scripts/install-service-tests)");
    None
}

pub(crate) fn tools() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/service-tests")
}

/// Runs a command to its end; its standard output.
pub(crate) fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&stderr));
    text
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// A folder that is removed afterwards.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollway-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A port that is free now, for a program that must be told one.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A program that is ended with the test.
pub(crate) struct Child(pub(crate) std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
