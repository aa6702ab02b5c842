//! One set of failure rules for everybody who talks to Redis: each fault through all four users.
//!
//! A user is an adaptor with one call: do one operation, and tell how it ended. Between it and a
//! real server stands a [`FaultyWay`], which plays the fault.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tollway_core::{
    Charge, ErrorKind, Key, OnStoreError, Outage, Policy, Store, Timestamp, VirtualClock,
};
use tollway_queue::{
    Backend, Group, NewJob, Queue, QueueName, QueueSettings, RedisBackend, RedisSettings,
};
use tollway_redis::{RedisStore, RemoteStore, Settings};
use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::budget::{Claim, Ledger};
use tollway_upstream::profile::Profile;
use tollway_upstream::shared::{Fleet, Prefix, RedisLedger, Settings as LedgerSettings};

use crate::harness::{PATIENCE, Running, start};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_millis(300);
/// A busy machine may let a task wait; a hang takes longer.
const HANG: Duration = Duration::from_secs(10);
const POLICIES: &str = "[[policies]]\nname = \"api\"\nquota = \"1000000/1m\"\n";

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Done,
    /// It was certainly not done.
    NotDone,
    /// Nobody knows whether it was done.
    Unknown,
    /// The server answered, and refused.
    Refused,
    /// Without the server, by this process's part of the limits: a ledger says no more.
    Alone,
}

/// Who asks.
enum User {
    Store(RedisStore),
    Remote(RemoteStore),
    Queue(RedisBackend, Queue),
    Ledger(Fleet, RedisLedger, AtomicU32),
}

const USERS: [&str; 4] = ["store", "remote", "queue", "ledger"];

impl User {
    /// The user of that name, through a way to what it talks to.
    async fn connect(name: &str, port: u16) -> Self {
        static PREFIXES: AtomicU32 = AtomicU32::new(0);
        let number = PREFIXES.fetch_add(1, Ordering::Relaxed);
        let connection = Settings {
            prefix: format!("faults{number}:"),
            timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
            // Long enough that no probe of an idle server falls into a test.
            backoff_max: Duration::from_secs(5),
            ..Settings::default()
        };
        let url = format!("redis://127.0.0.1:{port}");
        match name {
            "store" => Self::Store(RedisStore::connect(&url, connection).await.unwrap()),
            "remote" => {
                let url = format!("tollway://127.0.0.1:{port}");
                Self::Remote(RemoteStore::connect(&url, connection).await.unwrap())
            }
            "queue" => {
                let settings = RedisSettings {
                    answer_timeout: TIMEOUT,
                    patience: 2 * TIMEOUT,
                    connection,
                    ..RedisSettings::default()
                };
                let backend = RedisBackend::connect(&url, settings).await.unwrap();
                let clock = Arc::new(VirtualClock::at(Timestamp::MIN));
                let queue = Queue::new(Arc::new(backend.clone()), clock, queue_name());
                queue.put(QueueSettings::default()).await.unwrap();
                Self::Queue(backend, queue)
            }
            _ => {
                let settings = LedgerSettings {
                    timeout: TIMEOUT,
                    mends: false,
                    store: connection,
                    ..LedgerSettings::default()
                };
                let fleet = Fleet::connect(&url, settings).await.unwrap();
                let profile = Profile::builtin("discord").unwrap();
                let prefix = Prefix::named(&format!("faults{number}"));
                let ledger = fleet.ledger(prefix, profile).await.unwrap();
                Self::Ledger(fleet, ledger, AtomicU32::new(0))
            }
        }
    }

    /// Does one operation, and tells how it ended.
    async fn once(&self) -> Ended {
        match self {
            Self::Store(store) => check(store).await,
            Self::Remote(store) => check(store).await,
            Self::Queue(_, queue) => {
                let job = NewJob::new(Group::new("g").unwrap(), "payload");
                let enqueued = queue.enqueue(job).await;
                match enqueued.map_err(|error| error.kind()) {
                    Ok(_) => Ended::Done,
                    Err(tollway_queue::ErrorKind::Unavailable) => Ended::NotDone,
                    Err(tollway_queue::ErrorKind::Unknown) => Ended::Unknown,
                    Err(_) => Ended::Refused,
                }
            }
            Self::Ledger(fleet, ledger, routes) => {
                let failures = fleet.failures();
                // A bucket of its own: what was made of the others does not matter.
                let number = routes.fetch_add(1, Ordering::Relaxed);
                let profile = Profile::builtin("discord").unwrap();
                let route = profile.route("GET", &format!("/api/v10/channels/{number}"));
                ledger.claim(Claim::new(route)).await.unwrap().cancel();
                if fleet.failures() == failures { Ended::Done } else { Ended::Alone }
            }
        }
    }

    fn outage(&self) -> Option<Outage> {
        match self {
            Self::Store(store) => store.outage(),
            Self::Remote(store) => store.outage(),
            Self::Queue(backend, _) => backend.outage(),
            Self::Ledger(fleet, ..) => fleet.outage(),
        }
    }
}

fn queue_name() -> QueueName {
    QueueName::new("q").unwrap()
}

async fn check(store: &dyn Store) -> Ended {
    let policy = Policy::parse("api", "1000000/1m").unwrap().on_store_error(OnStoreError::Deny);
    let charge = Charge::new(&policy, Key::new("k").unwrap());
    let failure = match store.check(&[charge], Timestamp::MIN).await {
        Ok(verdict) => verdict.store_failure(),
        Err(error) => Some(error.kind()),
    };
    match failure {
        None => Ended::Done,
        Some(ErrorKind::Unavailable) => Ended::NotDone,
        Some(ErrorKind::Unknown) => Ended::Unknown,
        Some(_) => Ended::Refused,
    }
}

/// What is wrong with the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// Commands are answered with this error and do not arrive, greetings excepted.
    Say(&'static str),
    /// The same of commands that name a script by its hash.
    SayToHashes(&'static str),
    /// The next answer ends in its middle, and the connection with it.
    CutReply,
    /// Commands arrive, and no answer comes back.
    Silence,
    /// Connections are cut, and new ones too.
    Gone,
}

/// A way to a server on which faults can be played.
struct FaultyWay {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    fault: Mutex<Option<Fault>>,
    open: Mutex<Vec<TcpStream>>,
    /// Whether the server at the end can say errors itself.
    has_scripts: bool,
}

impl Shared {
    fn fault(&self) -> Fault {
        self.fault.lock().unwrap().unwrap_or(Fault::Nothing)
    }
}

impl FaultyWay {
    fn to(port: u16, has_scripts: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { has_scripts, ..Shared::default() });
        let playing = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                if playing.fault() == Fault::Gone {
                    continue;
                }
                client.set_nodelay(true).unwrap();
                let clones = || (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (one, other) = clones();
                playing.open.lock().unwrap().extend([one, other]);
                let ((one, other), of_questions) = (clones(), Arc::clone(&playing));
                std::thread::spawn(move || pass_questions(one, other, &of_questions));
                let of_answers = Arc::clone(&playing);
                std::thread::spawn(move || pass_answers(server, client, &of_answers));
            }
        });
        Self { port: own, shared }
    }

    fn play(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = Some(fault);
        // What was held back is lost; whoever waits for it must not wait for ever.
        if matches!(fault, Fault::Gone | Fault::Nothing) {
            for stream in self.shared.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// What clients say to find out whom they talk to.
const GREETINGS: [&[u8]; 7] =
    [b"HELLO", b"CLIENT", b"AUTH", b"SELECT", b"ROLE", b"COMMAND", b"PSUBSCRIBE"];

fn pass_questions(client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let mut answers = client.try_clone().unwrap();
    let mut reader = BufReader::new(client);
    while let Some((name, command)) = read_command(&mut reader) {
        let mut say = |error: &str| match shared.has_scripts {
            true => server.write_all(&script_that_says(error)),
            false => answers.write_all(format!("-{error}\r\n").as_bytes()),
        };
        let is_greeting = GREETINGS.contains(&&name[..]);
        let passed = match shared.fault() {
            Fault::Say(error) if !is_greeting => say(error),
            Fault::SayToHashes(error) if name == b"EVALSHA" => say(error),
            _ => server.write_all(&command),
        };
        if passed.is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// A command that the server answers with this error, after what it was sent before: said by the
/// way itself, the error would overtake those answers and be taken for one of them.
fn script_that_says(error: &str) -> Vec<u8> {
    let words = ["EVAL", "return redis.error_reply(ARGV[1])", "0", error];
    let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

fn pass_answers(mut server: TcpStream, mut client: TcpStream, shared: &Shared) {
    let mut chunk = [0; 65_536];
    while let Ok(length @ 1..) = server.read(&mut chunk) {
        match shared.fault() {
            Fault::Silence => continue,
            Fault::CutReply => {
                *shared.fault.lock().unwrap() = None;
                let _ = client.write_all(&chunk[..length / 2]);
                break;
            }
            _ if client.write_all(&chunk[..length]).is_err() => break,
            _ => {}
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// The name of a command, and its bytes.
fn read_command(reader: &mut impl BufRead) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut command = Vec::new();
    let words = read_number(reader, &mut command)?;
    let mut name = Vec::new();
    for word in 0..words {
        let length = read_number(reader, &mut command)?;
        let begin = command.len();
        command.resize(begin + length + 2, 0);
        reader.read_exact(&mut command[begin..]).ok()?;
        if word == 0 {
            name = command[begin..begin + length].to_ascii_uppercase();
        }
    }
    Some((name, command))
}

/// The number in a line such as `*3` or `$5`, which is appended to what was read.
fn read_number(reader: &mut impl BufRead, read: &mut Vec<u8>) -> Option<usize> {
    let begin = read.len();
    reader.read_until(b'\n', read).ok()?;
    std::str::from_utf8(read.get(begin + 1..)?).ok()?.trim_end().parse().ok()
}

/// A user, the way that it goes, and what stands at the end of it.
struct Stage {
    name: &'static str,
    user: User,
    way: FaultyWay,
    _servers: (Server, Running),
}

impl Stage {
    async fn set(name: &'static str, engine: Engine) -> Self {
        let servers = (Server::start(engine, &[]), start(POLICIES));
        let port = if name == "remote" { servers.1.resp.port() } else { servers.0.port };
        let way = FaultyWay::to(port, name != "remote");
        let user = User::connect(name, way.port).await;
        let stage = Self { name, user, way, _servers: servers };
        assert_eq!(stage.once().await, Ended::Done, "{name}: before");
        assert_eq!(stage.user.outage(), None, "{name}: before");
        stage
    }

    /// Does one operation, which must not hang.
    async fn once(&self) -> Ended {
        let began = Instant::now();
        let ended = self.user.once().await;
        assert!(began.elapsed() < HANG, "{}: {:?}", self.name, began.elapsed());
        ended
    }

    /// Ends the fault, and waits until operations are done and the outage is over.
    async fn recover(&self) {
        self.way.play(Fault::Nothing);
        let began = Instant::now();
        while self.once().await != Ended::Done || self.user.outage().is_some() {
            assert!(began.elapsed() < PATIENCE, "{}: {:?}", self.name, self.user.outage());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Plays a fault for every user on every engine, all at once.
async fn for_all<F>(play: impl Fn(Stage) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut playing = tokio::task::JoinSet::new();
    for engine in Engine::available() {
        for name in USERS {
            playing.spawn(play(Stage::set(name, engine).await));
        }
    }
    playing.join_all().await;
}

/// Each with the word by which operators find it in what they are told.
const AWAY: [(&str, &str); 4] = [
    ("LOADING", "LOADING Redis is loading the dataset in memory"),
    ("BUSY", "BUSY Redis is busy running a script"),
    ("READONLY", "READONLY You can't write against a read only replica."),
    ("MASTERDOWN", "MASTERDOWN Link with MASTER is down"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_ready_or_no_primary_is_away_until_it_is() {
    for_all(|stage| async move {
        for (word, error) in AWAY {
            stage.way.play(Fault::Say(error));
            let expected = if stage.name == "ledger" { Ended::Alone } else { Ended::NotDone };
            assert_eq!(stage.once().await, expected, "{}: {word}", stage.name);
            let outage = stage.user.outage().unwrap_or_else(|| panic!("{}: {word}", stage.name));
            assert!(outage.reason.contains(word), "{}: {word}: {outage:?}", stage.name);
            stage.recover().await;
        }
    })
    .await;
}

const REFUSES_WRITES: [(&str, &str); 4] = [
    ("MISCONF", "MISCONF Redis is configured to save RDB snapshots"),
    ("NOREPLICAS", "NOREPLICAS Not enough good replicas to write."),
    ("NOPERM", "NOPERM this user has no permissions to run the 'set' command"),
    (
        "MISCONF",
        "ERR Error running script (call to f_5f2a): @user_script:1: @user_script: 1: \
         -MISCONF Redis is configured to save RDB snapshots",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_all_writes_is_told_of_and_used_again_afterwards() {
    for_all(|stage| async move {
        for (word, error) in REFUSES_WRITES {
            stage.way.play(Fault::Say(error));
            let expected = match stage.name {
                "ledger" => Ended::Alone,
                // It repeats the call until its patience ends.
                "queue" => Ended::NotDone,
                _ => Ended::Refused,
            };
            assert_eq!(stage.once().await, expected, "{}: {error}", stage.name);
            let outage = stage.user.outage().unwrap_or_else(|| panic!("{}: {error}", stage.name));
            assert!(outage.reason.contains(word), "{}: {outage:?}", stage.name);
            stage.recover().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_is_an_outage_but_for_the_queue_which_goes_on_with_its_jobs() {
    for_all(|stage| async move {
        stage.way.play(Fault::Say("OOM command not allowed when used memory > 'maxmemory'."));
        let expected = if stage.name == "ledger" { Ended::Alone } else { Ended::Refused };
        assert_eq!(stage.once().await, expected, "{}", stage.name);
        assert_eq!(stage.user.outage().is_none(), stage.name == "queue", "{}", stage.name);
        stage.recover().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_got_wrong_is_no_outage() {
    for_all(|stage| async move {
        for error in ["WRONGTYPE Operation against a key", "CROSSSLOT Keys in request"] {
            stage.way.play(Fault::Say(error));
            // A ledger goes by its part of the limits then, and does not count it as a failure.
            let expected = if stage.name == "ledger" { Ended::Done } else { Ended::Refused };
            assert_eq!(stage.once().await, expected, "{}: {error}", stage.name);
            assert_eq!(stage.user.outage(), None, "{}: {error}", stage.name);
        }
        stage.recover().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_the_server_does_not_know_is_sent_unnoticed() {
    for_all(|stage| async move {
        stage.way.play(Fault::SayToHashes("NOSCRIPT No matching script. Please use EVAL."));
        for _ in 0..3 {
            assert_eq!(stage.once().await, Ended::Done, "{}", stage.name);
            assert_eq!(stage.user.outage(), None, "{}", stage.name);
        }
        stage.recover().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_within_an_answer_is_an_unknown_outcome_or_asked_again() {
    for_all(|stage| async move {
        stage.way.play(Fault::CutReply);
        let ended = stage.once().await;
        let expected: &[Ended] = match stage.name {
            // Asked again under the same name, the server answers what it did.
            "queue" => &[Ended::Done],
            // The answer that is cut may be that to what it gave back before.
            "ledger" => &[Ended::Alone, Ended::Done],
            _ => &[Ended::Unknown],
        };
        assert!(expected.contains(&ended), "{}: {ended:?}", stage.name);
        stage.recover().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_costs_one_timeout_and_is_told_of() {
    for_all(|stage| async move {
        stage.way.play(Fault::Silence);
        let expected = if stage.name == "ledger" { Ended::Alone } else { Ended::Unknown };
        assert_eq!(stage.once().await, expected, "{}", stage.name);
        assert!(stage.user.outage().is_some(), "{}", stage.name);
        assert_ne!(stage.once().await, Ended::Done, "{}", stage.name);
        stage.recover().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_found_again() {
    for_all(|stage| async move {
        stage.way.play(Fault::Gone);
        // The first may have been sent before the end was seen.
        stage.once().await;
        let expected = if stage.name == "ledger" { Ended::Alone } else { Ended::NotDone };
        assert_eq!(stage.once().await, expected, "{}", stage.name);
        assert!(stage.user.outage().is_some(), "{}", stage.name);
        stage.recover().await;
    })
    .await;
}
