//! Durable charges per second, what a charge waits for, and what it costs.
//!
//! `cargo bench -p tollway-server --bench durable [-- SECONDS [DIRECTORY]]`: four seconds a row by
//! default, the file under the directory for build output, so that it is on a disk. Callers in this
//! process first, each with so many charges under way; then connections over RESP to a service in
//! this process, each with a pipeline of so many.

#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has no figure")]

use std::future::poll_fn;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{Answer, Charge, Clock as _, Key, Policy, Store as _, Verdict};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, DurableStore, Endpoint, Front, Metrics, Server, Service};

/// Keys that are charged in turn.
const KEYS: u64 = 10_000;
/// What a pipeline ends with: its answer comes after those to all charges.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(4);
    let folder =
        arguments.next().map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("one sync of 4 KiB on {}: {:?}\n", folder.display(), sync(&folder));
    println!("| callers | under way of each | charges/s | mean wait | µs of CPU | charges/sync |");
    println!("|---|---|---|---|---|---|");
    let length = Duration::from_secs(seconds);
    for (callers, batch) in [(1, 1), (64, 1), (64, 16), (64, 64), (256, 1), (1_024, 1)] {
        let scene = Scene::new(&folder);
        let load = Load::start(callers, batch);
        let tasks = (0..callers)
            .map(|caller| runtime.spawn(in_process(Arc::clone(&scene.store), load.of(caller))));
        let row = measure(&runtime, &scene, &load, tasks.collect(), length);
        println!("| {callers} in process | {batch} | {row}");
    }
    for batch in [1, 16, 64] {
        let (callers, scene) = (64, Scene::new(&folder));
        let service = serve(&scene.store);
        let Some(Endpoint::Tcp(address)) = service.endpoint(Front::Resp) else { panic!("no RESP") };
        let load = Load::start(callers, batch);
        let tasks = (0..callers).map(|caller| runtime.spawn(over_resp(*address, load.of(caller))));
        let row = measure(&runtime, &scene, &load, tasks.collect(), length);
        println!("| {callers} over RESP | {batch} | {row}");
    }
}

/// How long the disk takes for one sync, in the mean of a hundred.
fn sync(folder: &Path) -> Duration {
    let path = folder.join(format!("durable-bench-{}-sync", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        file.write_all(&[1; 4_096]).unwrap();
        file.sync_data().unwrap();
    }
    let lasted = began.elapsed() / 100;
    std::fs::remove_file(&path).unwrap();
    lasted
}

/// A store, whose file goes with it.
struct Scene {
    store: Arc<DurableStore>,
    path: PathBuf,
}

impl Scene {
    fn new(folder: &Path) -> Self {
        let path = folder.join(format!("durable-bench-{}", std::process::id()));
        let memory = Arc::new(MemoryStore::new(Capacity::keys(1_000)));
        let store = Arc::new(DurableStore::open(&path, memory, 256 << 20).unwrap());
        Self { store, path }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

fn serve(store: &Arc<DurableStore>) -> Server {
    let off = || Some("off".to_owned());
    let resp = Some("127.0.0.1:0".to_owned());
    let durable_file = Some("counts".to_owned());
    let overrides =
        Overrides { http: off(), grpc: off(), resp, durable_file, ..Default::default() };
    let text = "[[policies]]\nname = \"plan\"\nquota = \"1000000000/1d\"\ndurable = true\n\
                algorithm = \"fixed-window\"\n";
    let metrics = Metrics::default();
    let texts = [("bench.toml".to_owned(), text.to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics).unwrap();
    let (clock, backing) = (Arc::new(SystemClock::new()), Backing::Durable(Arc::clone(store)));
    let service = Service::new(config.rules, metrics, backing, clock, config.settings);
    Server::start(Arc::new(service), &config.listen, None, 2).unwrap()
}

/// What callers do, until it ends.
#[derive(Clone)]
struct Load {
    caller: u64,
    callers: u64,
    batch: u64,
    done: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Load {
    fn start(callers: u64, batch: u64) -> Self {
        Self { caller: 0, callers, batch, done: Arc::default(), ends: Arc::default() }
    }

    fn of(&self, caller: u64) -> Self {
        Self { caller, ..self.clone() }
    }

    /// The keys of the next charges; none when it is over.
    fn next(&self, turn: u64) -> Option<Vec<String>> {
        if self.ends.load(Ordering::Relaxed) {
            return None;
        }
        let first = (turn * self.callers + self.caller) * self.batch;
        Some((first..first + self.batch).map(|key| format!("customer {}", key % KEYS)).collect())
    }
}

fn measure(
    runtime: &Runtime,
    scene: &Scene,
    load: &Load,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    length: Duration,
) -> String {
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let charges = runtime.block_on(async {
        tokio::time::sleep(length).await;
        load.ends.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        load.done.load(Ordering::Relaxed)
    });
    let (wall, cpu) = (began.elapsed(), cpu_seconds() - cpu);
    let rate = charges as f64 / wall.as_secs_f64();
    let wait = wall.mul_f64((load.callers * load.batch) as f64 / charges as f64);
    let (each, per_sync) =
        (cpu * 1e6 / charges as f64, charges as f64 / scene.store.commits() as f64);
    format!("{rate:.0} | {wait:.1?} | {each:.1} | {per_sync:.0} |")
}

/// What all threads of this process used, in hundredths of a second.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after_name) = text.rsplit_once(") ").unwrap();
    let ticks = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

async fn in_process(store: Arc<DurableStore>, load: Load) {
    let window = FixedWindow::new("1000000000/1d".parse().unwrap(), Anchor::Epoch);
    let policy = Policy::new("plan", window).unwrap().durable(Duration::from_secs(86_400));
    let clock = SystemClock::new();
    for turn in 0.. {
        let Some(keys) = load.next(turn) else { return };
        let check = |key: &String| {
            store.check(&[Charge::new(&policy, Key::new(key).unwrap())], clock.now())
        };
        all_allowed(keys.iter().map(check).collect()).await;
        load.done.fetch_add(load.batch, Ordering::Relaxed);
    }
}

async fn all_allowed(mut waiting: Vec<Answer<Verdict>>) {
    poll_fn(|context| {
        waiting.retain_mut(|answer| match Pin::new(answer).poll(context) {
            Poll::Ready(verdict) => {
                assert!(verdict.unwrap().is_allowed());
                false
            }
            Poll::Pending => true,
        });
        if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn over_resp(address: SocketAddr, load: Load) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answers = vec![0; 64 << 10];
    for turn in 0.. {
        let Some(keys) = load.next(turn) else { return };
        let mut asked = Vec::new();
        for key in keys {
            let length = key.len();
            let check = format!("*3\r\n$10\r\nTOLL.CHECK\r\n$4\r\nplan\r\n${length}\r\n{key}\r\n");
            asked.extend_from_slice(check.as_bytes());
        }
        asked.extend_from_slice(PING);
        stream.write_all(&asked).await.unwrap();
        let mut filled = 0;
        while !answers[..filled].ends_with(PONG) {
            let count = stream.read(&mut answers[filled..]).await.unwrap();
            assert!(count > 0, "the service closed the connection");
            filled += count;
        }
        assert!(!answers[..filled].windows(3).any(|bytes| bytes == b"\r\n-"), "an error");
        load.done.fetch_add(load.batch, Ordering::Relaxed);
    }
}
