//! `tollway serve` as its own process: signals, changed files, snapshots, shared stores.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollway_testkit::servers::{Certificate, Cluster, Engine, Server, eventually, tell};

use crate::tool::{fail, succeed, tollway};

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"2/1h burst 2\"\n";

/// A service in a process of its own, on free ports; killed when dropped.
pub(crate) struct Served {
    process: Child,
    pub(crate) http: SocketAddr,
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Served {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut Command::new(env!("CARGO_BIN_EXE_tollway")), arguments, Stdio::null())
    }

    /// A service whose log goes to a file, a new one.
    pub(crate) fn start_logged(log: &Path, arguments: &[&str]) -> Self {
        let log = std::fs::File::create(log).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        Self::spawn(&mut command, arguments, log.into())
    }

    /// A service with these variables in its environment.
    pub(crate) fn start_with(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.envs(variables.iter().copied());
        Self::spawn(&mut command, arguments, Stdio::null())
    }

    /// A service none of whose files may have more than `blocks` of 512 bytes: a disk that is full.
    pub(crate) fn start_on_a_full_disk(blocks: u32, arguments: &[&str]) -> Self {
        let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_tollway")]);
        Self::spawn(&mut command, arguments, Stdio::null())
    }

    /// A service that sees a disk of its own of `mebibytes` at `place`, and a file `filler` on it
    /// that takes up eight of them; `None` where such a disk may not be made.
    pub(crate) fn start_on_a_small_disk(
        place: &Path,
        mebibytes: u32,
        arguments: &[&str],
    ) -> Option<Self> {
        let place = place.display();
        let disk = format!("mount -t tmpfs -o size={mebibytes}m none {place}");
        let apart = ["-Urm", "sh", "-c"];
        let probe = Command::new("unshare").args(apart).arg(&disk).output();
        if !probe.is_ok_and(|probe| probe.status.success()) {
            println!("skipped: no disk may be made here (unshare -Urm, mount -t tmpfs)");
            return None;
        }
        let filled = format!("head -c 8388608 /dev/urandom > {place}/filler");
        let script = format!("{disk} && {filled} && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(apart).args([&script, env!("CARGO_BIN_EXE_tollway")]);
        Some(Self::spawn(&mut command, arguments, Stdio::null()))
    }

    /// A file as the service sees it.
    pub(crate) fn inside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.process.id()));
        root.join(path.strip_prefix("/").expect("a whole path"))
    }

    /// A service that may have no more than `files` open at once.
    fn start_with_few_files(files: u32, arguments: &[&str]) -> Self {
        let limited = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_tollway")]);
        Self::spawn(&mut command, arguments, Stdio::null())
    }

    /// A service that logs to this file.
    pub(crate) fn start_logging(log: &Path, arguments: &[&str]) -> Self {
        let log = std::fs::File::create(log).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        Self::spawn(&mut command, arguments, log.into())
    }

    fn spawn(command: &mut Command, arguments: &[&str], errors: Stdio) -> Self {
        let silent: &[&str] = if arguments.contains(&"--resp") { &[] } else { &["--resp", "off"] };
        let mut process = command
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off"])
            .args(silent)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the binary starts");
        let out = process.stdout.take().expect("piped");
        let mut lines = BufReader::new(out).lines();
        let http = lines.find_map(|line| {
            let line = line.expect("text");
            line.strip_prefix("HTTP  ")?.split_whitespace().next()?.parse().ok()
        });
        if silent.is_empty() {
            // It says where before it serves, and must be heard out.
            lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("RESP  ")));
        }
        Self { process, http: http.expect("it says where it listens") }
    }

    /// A service whose HTTP listens elsewhere than on a port.
    fn start_on(http: &str, arguments: &[&str]) -> Killed {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollway"))
            .args(["serve", "--http", http, "--grpc", "off", "--resp", "off"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let told = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("HTTP  ")));
        told.expect("it says where it listens").expect("text");
        Killed(process)
    }

    /// Status and body of a check of one unit for `key`.
    fn check(&self, key: &str) -> (u16, String) {
        let body = format!(r#"{{"policy":"api","key":"{key}"}}"#);
        self.ask("POST", "/v1/check", &body)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.ask_with(method, path, "", body)
    }

    /// The same with header fields of the caller's.
    pub(crate) fn ask_with(
        &self,
        method: &str,
        path: &str,
        fields: &str,
        body: &str,
    ) -> (u16, String) {
        let mut stream = TcpStream::connect(self.http).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{fields}connection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let status = answer[9..12].parse().expect("a status");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, body.to_owned())
    }

    fn statuses(&self, key: &str, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.check(key).0).collect()
    }

    /// Sends a signal, and waits for the end; whether it ended well.
    pub(crate) fn stop(mut self, signal: &str) -> bool {
        self.signal(signal);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("ours") {
                return status.success();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder that is removed afterwards.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollway-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_termination_drains_and_ends_well() {
    let folder = Folder::new("term");
    let quick = format!("{POLICY}[drain]\ndelay = \"0s\"\n");
    let served = Served::start(&["--config", &folder.file("a.toml", &quick)]);
    assert_eq!(served.statuses("k", 3), [200, 200, 429]);
    // A request that was begun before the signal is answered after it. That it was begun shows in
    // the service's word to go on.
    let mut begun = TcpStream::connect(served.http).expect("it listens");
    begun.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let body = br#"{"policy":"api","key":"other"}"#;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    begun.write_all(head.as_bytes()).expect("sent");
    let mut go_on = [0; 25];
    begun.read_exact(&mut go_on).expect("told to go on");
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    served.signal("TERM");
    let address = served.http;
    eventually(PATIENCE, || TcpStream::connect(address).is_err());
    begun.write_all(body).expect("still there");
    let mut answer = String::new();
    begun.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(served.stop("CONT"), "the exit status is good");
}

#[test]
fn a_changed_file_takes_effect_and_a_wrong_one_does_not() {
    let folder = Folder::new("watch");
    let path = folder.file("a.toml", POLICY);
    let served = Served::start(&["--config", &path]);
    assert_eq!(served.statuses("k", 3), [200, 200, 429]);
    let added = format!("{POLICY}[[policies]]\nname = \"more\"\nquota = \"9/1m\"\n");
    folder.file("a.toml", &added);
    let knows_more = || {
        let (status, _) = served.ask("POST", "/v1/peek", r#"{"policy":"more","key":"k"}"#);
        status == 200
    };
    eventually(PATIENCE, knows_more);
    assert_eq!(served.check("k").0, 429, "counts of an unchanged policy stay");
    folder.file("a.toml", "[[policies]]\nname = \"api\"\nqouta = \"9/1m\"\n");
    eventually(PATIENCE, || served.ask("GET", "/readyz", "").1.contains("stale"));
    let (_, ready) = served.ask("GET", "/readyz", "");
    assert!(ready.contains("did you mean quota?"), "{ready}");
    assert!(knows_more(), "the old rules stay in force");
    let (_, metrics) = served.ask("GET", "/metrics", "");
    assert!(metrics.contains("tollway_config_reloads_total{result=\"refused\"} 1"), "{metrics}");
    folder.file("a.toml", POLICY);
    served.signal("HUP");
    eventually(PATIENCE, || !served.ask("GET", "/readyz", "").1.contains("stale"));
}

#[test]
fn a_restart_from_a_snapshot_is_no_amnesty() {
    let folder = Folder::new("snapshot");
    let quick = format!("{POLICY}[drain]\ndelay = \"0s\"\n");
    let config = folder.file("a.toml", &quick);
    let snapshot = folder.0.join("states").to_str().expect("text").to_owned();
    let arguments = ["--config", &config, "--snapshot", &snapshot, "--memory-bytes", "1048576"];
    let served = Served::start(&arguments);
    assert_eq!(served.statuses("spent", 3), [200, 200, 429]);
    assert_eq!(served.check("half").0, 200);
    assert!(served.stop("TERM"));
    assert!(Path::new(&snapshot).exists());
    let again = Served::start(&arguments);
    assert_eq!(again.check("spent").0, 429);
    assert_eq!(again.statuses("half", 2), [200, 429]);
}

/// Two services on one store are one limit.
fn share(url: &str) {
    let folder = Folder::new("shared");
    let config = folder.file("a.toml", POLICY);
    let nodes = [0, 1].map(|_| Served::start(&["--config", &config, "--store", url]));
    let key = format!("{url} {}", std::process::id());
    let turns = [0, 1, 0, 1].map(|node: usize| nodes[node].check(&key).0);
    assert_eq!(turns, [200, 200, 429, 429], "{url}");
    let (_, metrics) = nodes[0].ask("GET", "/metrics", "");
    let line = "tollway_store_duration_seconds_count{store=\"redis\"} 2";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[test]
fn nodes_share_a_limit_through_one_server() {
    share(&Engine::Redis.shared().url());
}

#[test]
fn nodes_share_a_limit_through_sentinels() {
    let primary = Server::start(Engine::Redis, &[]);
    let port = primary.port;
    let watch = format!("sentinel monitor main 127.0.0.1 {port} 1\n");
    let sentinel = Server::start(Engine::Redis, &[&watch, "--sentinel"]);
    let knows = || {
        let asked = ["SENTINEL", "get-master-addr-by-name", "main"];
        tell(sentinel.port, &asked).unwrap_or_default().contains(&port.to_string())
    };
    eventually(PATIENCE, knows);
    share(&format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port));
}

#[test]
fn nodes_share_a_limit_through_a_cluster() {
    share(&Cluster::shared(Engine::Redis).url());
}

#[test]
fn files_are_validated_each_for_itself_and_all_are_looked_at() {
    let folder = Folder::new("validate");
    let good = folder.file("good.toml", POLICY);
    let other = folder.file("other.toml", "[[policies]]\nname = \"b\"\nquota = \"1/1s\"\n");
    let out = succeed(&["validate", &good, &other]);
    assert!(out.contains("good.toml: valid: 1 policy, 0 domains, 0 queues\n"), "{out}");
    assert!(out.contains("together: valid: 2 policies"), "{out}");
    let misspelt = folder.file("bad.toml", "[[policies]]\nname = \"api\"\n\nqouta = \"1/1s\"\n");
    let broken = folder.file("broken.toml", "x = \n");
    let output = tollway(&["validate", &misspelt, &good, &broken]);
    let out = String::from_utf8(output.stdout).expect("text");
    assert!(!output.status.success());
    let wrong = "bad.toml:4: policies[0].qouta: unknown field; did you mean quota?";
    assert!(out.contains(wrong), "{out}");
    assert!(out.contains("good.toml: valid"), "{out}");
    assert!(out.contains("broken.toml:1"), "{out}");
    let told = fail(&["validate", &misspelt, &good, &broken]);
    assert!(told.contains("2 of 3 files are wrong: 2 mistakes\n"), "{told}");
    let told = fail(&["validate", &misspelt, &good]);
    assert!(told.contains("1 of 2 files is wrong: 1 mistake\n"), "{told}");
    assert!(fail(&["validate", &misspelt]).contains("the file is wrong: 1 mistake\n"));
}

/// A reset gives somebody new units, so it is to be known who did it, whatever it came by.
#[test]
fn a_reset_is_logged_by_key_and_by_token_whichever_front_it_comes_by() {
    let folder = Folder::new("reset-logged");
    let tokens = "tokens = [{ token = \"t\", role = \"admin\", name = \"ada\" }]\n";
    let (log, config) = (folder.0.join("log"), folder.file("a.toml", &format!("{tokens}{POLICY}")));
    let resp = folder.0.join("resp.sock");
    let place = format!("unix:{}", resp.display());
    let served = Served::start_logged(&log, &["--config", &config, "--resp", &place]);
    let body = "{\"policy\":\"api\",\"key\":\"by\\u0007http\"}";
    let bearer = "authorization: Bearer t\r\n";
    assert_eq!(served.ask_with("POST", "/v1/reset", bearer, body).0, 200);
    let mut stream = UnixStream::connect(&resp).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let commands =
        ["AUTH t", "TOLL.RESET api by-resp", "MULTI", "TOLL.RESET api in-exec", "EXEC", "QUIT"];
    for words in commands {
        let words: Vec<&str> = words.split(' ').collect();
        let parts = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let command = format!("*{}\r\n{}", words.len(), parts.collect::<String>());
        stream.write_all(command.as_bytes()).expect("sent");
    }
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answered");
    assert_eq!(answers, "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n+OK\r\n");
    for key in ["by\\\\x07http", "by-resp", "in-exec"] {
        let words = ["an operator reset a key", "who=\"ada\"", "policy=\"api\"", key];
        eventually(PATIENCE, || {
            let log = std::fs::read_to_string(&log).expect("a log");
            log.lines().any(|line| words.iter().all(|word| line.contains(word)))
        });
    }
}

#[test]
fn validate_tells_every_mistake_and_looks_at_stores_and_certificates() {
    let folder = Folder::new("validate-all");
    let text = "store = \"memcached://x\"\nqueue_store = \"sqlite:q\"\n\
                [tls]\ncertificate = \"CERT\"\n\
                key = \"/nowhere/key.pem\"\n[[policies]]\nname = \"a\"\nquota = \"1/x\"\n\
                [[queues]]\n\
                name = \"q\"\nlease = \"never\"\n";
    let certificate = folder.file("cert.pem", "no certificate\n");
    let file = folder.file("all.toml", &text.replace("CERT", &certificate));
    let output = tollway(&["validate", &file]);
    let out = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "{out}");
    for told in [
        "all.toml:1: store: memcached:// is not supported; expected memory, redis://host",
        "all.toml:2: queue_store: is not a store; expected memory, redb:PATH, redis://host",
        "cert.pem: no certificate in it",
        "all.toml:5: tls.key: /nowhere/key.pem: ",
        "all.toml:8: policies[0].quota: ",
        "all.toml:11: queues[0].lease: ",
    ] {
        assert!(out.contains(told), "{told}\n{out}");
    }
    assert!(fail(&["validate", &file]).contains("the file is wrong: 6 mistakes\n"));
    let queues = folder.file("queues.toml", "[[queues]]\nname = \"q\"\n[[queues]]\nname = \"r\"\n");
    let out = succeed(&["validate", &queues]);
    assert!(out.contains("valid: 0 policies, 0 domains, 2 queues"), "{out}");
}

#[test]
fn validate_tells_every_mistake_of_a_list_and_what_the_machine_lacks() {
    let folder = Folder::new("validate-more");
    let text = "queue_store = \"redb:/nowhere/queue.redb\"\n\
                trusted_proxies = [\"10.0.0.0/8\", \"ten\", \"10.0.0.0/99\"]\n\
                [listen]\nhttp = \"127.0.0.1:8099\"\ngrpc = \"0.0.0.0:8099\"\n\
                resp = \"unix:/tmp/t.sock?group=no-such-group\"\nhosts = [\"a b\", \"c d\"]\n\
                [[shared_limits]]\nname = \"a b c\\n\"\nlimit = \"slots 0/1s\"\n\
                [[queues]]\nname = \"q\"\ngroup_limits = [\"slots 0/1s\", \"nothing\"]\n\
                [[policies]]\nname = \"p\"\nalgorithm = \"leaky-bucket\"\nsize = \"x\"\n\
                drip_interval = \"y\"\nunlimited = [[], {}]\n";
    let file = folder.file("more.toml", text);
    let output = tollway(&["validate", &file]);
    let out = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "{out}");
    for told in [
        "more.toml:1: queue_store: the folder /nowhere does not exist",
        "more.toml:2: trusted_proxies[1]: ",
        "more.toml:2: trusted_proxies[2]: ",
        "more.toml:5: listen.grpc: 0.0.0.0:8099 is also where listen.http listens",
        "more.toml:6: listen.resp: there is no group \"no-such-group\"",
        "more.toml:7: listen.hosts[0]: ",
        "more.toml:7: listen.hosts[1]: ",
        "more.toml:9: shared_limits[0].name: ",
        "more.toml:10: shared_limits[0].limit: ",
        "more.toml:13: queues[0].group_limits[0]: ",
        "more.toml:13: queues[0].group_limits[1]: ",
        "more.toml:17: policies[0].size: ",
        "more.toml:18: policies[0].drip_interval: ",
        "more.toml:19: policies[0].unlimited[0]: ",
        "more.toml:19: policies[0].unlimited[1]: ",
        "listen.grpc: 0.0.0.0:8099 can be reached from other machines",
    ] {
        assert!(out.contains(told), "{told}\n{out}");
    }
    assert!(fail(&["validate", &file]).contains("the file is wrong: 16 mistakes\n"), "{out}");
    assert!(
        fail(&["serve", "--http", "127.0.0.1:8099", "--grpc", "127.0.0.1:8099"])
            .contains("settings: listen.grpc: 127.0.0.1:8099 is also where listen.http listens")
    );
}

/// Taken by the very service that the file is for, more often than not: told, and no mistake.
#[test]
fn validate_tells_a_place_that_is_taken_and_goes_on() {
    let folder = Folder::new("validate-taken");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("bound");
    let queue = folder.0.join("queue.redb").display().to_string();
    let text = format!("queue_store = \"redb:{queue}\"\n[listen]\nhttp = \"{at}\"\n");
    let file = folder.file("taken.toml", &text);
    let out = succeed(&["validate", &file]);
    assert!(out.contains("taken.toml:3: listen.http: is taken now"), "{out}");
    assert!(out.contains("taken.toml: valid"), "{out}");
    let left: Vec<_> = std::fs::read_dir(&folder.0).expect("a folder").collect();
    assert_eq!(left.len(), 1, "nothing is left behind: {left:?}");
}

#[test]
fn validate_tells_a_key_that_is_not_the_certificates() {
    let folder = Folder::new("validate-pair");
    let pair = |name: &str| {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"])
            .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")])
            .current_dir(&folder.0)
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    pair("one");
    pair("two");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let tls = |key: &str| {
        format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", path("one.pem"), path(key))
    };
    succeed(&["validate", &folder.file("right.toml", &tls("one.key"))]);
    let wrong = folder.file("wrong.toml", &tls("two.key"));
    let output = tollway(&["validate", &wrong]);
    let out = String::from_utf8(output.stdout).expect("text");
    assert!(!output.status.success());
    assert!(out.contains("wrong.toml:3: tls.key: does not belong to the certificate"), "{out}");
}

#[test]
fn top_and_queue_speak_tls_and_unix_sockets() {
    let folder = Folder::new("clients");
    let made = Certificate::for_loopback();
    let (ca, key) = (folder.file("cert.pem", &made.certificate), folder.file("key.pem", &made.key));
    let tls = format!("[tls]\ncertificate = {ca:?}\nkey = {key:?}\n");
    let queue = "[[queues]]\nname = \"mail\"\n";
    let config = folder.file("tls.toml", &format!("{tls}{POLICY}{queue}"));
    let served = Served::start(&["--config", &config]);
    let at = format!("https://{}", served.http);
    assert!(succeed(&["top", "--once", &at, "--ca", &ca]).contains("DENIED/s"));
    assert!(succeed(&["queue", "--at", &at, "--ca", &ca, "stats"]).contains("mail: 0 waiting"));
    let stranger = fail(&["top", "--once", &at]);
    assert!(stranger.contains("certificate"), "{stranger}");
    let socket = folder.0.join("http.sock");
    let place = format!("unix:{}", socket.display());
    let config = folder.file("plain.toml", &format!("{POLICY}{queue}"));
    let _served = Served::start_on(&place, &["--config", &config]);
    assert!(succeed(&["top", "--once", &place]).contains("DENIED/s"));
    assert!(succeed(&["queue", "--at", &place, "stats"]).contains("mail: 0 waiting"));
    let wrong = fail(&["top", "--once", "ftp://localhost"]);
    assert!(wrong.contains("expected host:port"), "{wrong}");
}

/// Whoever opens connections and says nothing uses up places, but never those of probes.
#[test]
fn a_probe_is_answered_when_silent_connections_have_used_up_the_files() {
    let socket = std::env::temp_dir().join(format!("tollway-files-{}", std::process::id()));
    let place = format!("unix:{}", socket.display());
    let served = Served::start_with_few_files(64, &["--resp", &place]);
    let silent: Vec<_> =
        (0..70).map(|_| UnixStream::connect(&socket).expect("it listens")).collect();
    for _ in 0..5 {
        assert_eq!(served.ask("GET", "/healthz", "").0, 200);
    }
    drop(silent);
}
