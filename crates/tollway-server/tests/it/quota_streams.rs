use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tollway_server::testing::messages;
use tollway_server::testing::quota_messages::{
    BucketEntry, BucketId, BucketUsage, QuotaResponse, TokenBucket, UsageReports,
};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::harness::{Child, Folder, Http, PATIENCE, Running, eventually, free_port, start, tool};
use crate::proxies::{spawn, upstream};

const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

const RULES: &str = r#"
[quota_streams]
lifetime = "3s"
[[domains]]
domain = "edge"
[[domains.descriptors]]
key = "plan"
value = "basic"
quota = "50/1s burst 50"
[[domains.descriptors]]
key = "plan"
value = "none"
rate_limit = { unit = "hour", requests_per_unit = 0 }
[[domains.descriptors]]
key = "tenant"
[[domains.descriptors.descriptors]]
key = "plan"
quota = "10/1s burst 16"
"#;

fn usage(pairs: &[(&str, &str)], allowed: u64) -> BucketUsage {
    let entry = |(key, value): &(&str, &str)| BucketEntry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    BucketUsage {
        bucket_id: Some(BucketId { bucket: pairs.iter().map(entry).collect() }),
        time_elapsed: Some(messages::Duration { seconds: i64::MIN, nanos: -1 }),
        allowed,
        denied: 0,
    }
}

fn reports(domain: &str, usages: Vec<BucketUsage>) -> UsageReports {
    UsageReports { domain: domain.to_owned(), usages }
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// Sends these reports and leaves the stream open.
async fn open(channel: &Channel, sent: Vec<UsageReports>) -> Streaming<QuotaResponse> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = ProstCodec::<UsageReports, QuotaResponse>::default();
    let requests = tokio_stream::iter(sent).chain(tokio_stream::pending());
    let request = tonic::Request::new(requests);
    client.streaming(request, PathAndQuery::from_static(PATH), codec).await.unwrap().into_inner()
}

async fn end_of(stream: &mut Streaming<QuotaResponse>) -> Status {
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    };
    tokio::time::timeout(PATIENCE, end).await.unwrap()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

#[test]
fn a_stream_that_misbehaves_is_ended_with_a_status_that_says_why() {
    let running = start(RULES);
    let basic = || usage(&[("plan", "basic")], 1);
    let many = |from: usize| {
        let one = |at| usage(&[("tenant", &format!("t{at}")), ("plan", "x")], 1);
        reports("edge", (from..from + 5_000).map(one).collect())
    };
    let long = "x".repeat(5_000);
    let cases = [
        (vec![reports("", vec![basic()])], Code::InvalidArgument, "must name a domain"),
        (
            vec![reports("edge", vec![basic()]), reports("other", vec![basic()])],
            Code::InvalidArgument,
            "\"other\"",
        ),
        (vec![reports("edge", vec![usage(&[], 1)])], Code::InvalidArgument, "pairs of a key"),
        (vec![reports("edge", vec![usage(&[("a", "")], 1)])], Code::InvalidArgument, "pairs of"),
        (
            vec![reports("edge", vec![usage(&[("plan", &long)], 1)])],
            Code::InvalidArgument,
            "5004 bytes",
        ),
        (vec![reports("edge", vec![BucketUsage::default()])], Code::InvalidArgument, "bucket_id"),
        (vec![many(0), many(5_000), many(10_000)], Code::ResourceExhausted, "10000 buckets"),
    ];
    run(async {
        let channel = connect(running.grpc).await;
        for (sent, code, text) in cases {
            let status = end_of(&mut open(&channel, sent).await).await;
            assert_eq!(status.code(), code, "{status:?}");
            assert!(status.message().contains(text), "{status:?}");
        }
    });
    let metrics = Http::connect(running.http).get("/metrics").body;
    assert!(metrics.contains("tollway_quota_streams_refused_total 7"), "{metrics}");
    assert!(metrics.contains("tollway_quota_buckets 0"), "{metrics}");
}

/// The next assignment: a blanket or a token bucket.
async fn assigned(stream: &mut Streaming<QuotaResponse>) -> (Option<i32>, Option<TokenBucket>) {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap();
    let action = message.unwrap().unwrap().actions.remove(0);
    let assignment = action.assignment.unwrap();
    assert_eq!(assignment.lifetime.unwrap().seconds, 3);
    let strategy = assignment.strategy.unwrap();
    (strategy.blanket, strategy.token_bucket)
}

#[test]
fn buckets_get_portions_or_blankets_by_the_rules() {
    let running = start(RULES);
    run(async {
        let channels = [connect(running.grpc).await, connect(running.grpc).await];
        let of = |pairs: &[(&str, &str)]| vec![reports("edge", vec![usage(pairs, u64::MAX)])];
        let mut free = open(&channels[0], of(&[("plan", "free")])).await;
        assert_eq!(assigned(&mut free).await.0, Some(0), "no rule: everything is allowed");
        let mut none = open(&channels[0], of(&[("plan", "none")])).await;
        assert_eq!(assigned(&mut none).await.0, Some(1), "a limit of zero: nothing is");

        // The order of a bucket's pairs means nothing.
        let mut one = open(&channels[0], of(&[("plan", "x"), ("tenant", "t")])).await;
        let mut other = open(&channels[1], of(&[("tenant", "t"), ("plan", "x")])).await;
        let mut held = [None::<TokenBucket>; 2];
        while held.iter().any(Option::is_none) {
            let (index, (_, bucket)) = tokio::select! {
                told = assigned(&mut one) => (0, told),
                told = assigned(&mut other) => (1, told),
            };
            held[index] = bucket.or(held[index]);
        }
        for bucket in held.map(Option::unwrap) {
            assert!((1..16).contains(&bucket.max_tokens), "{held:?}");
            let rate = bucket_rate(bucket);
            assert!(rate > 0.0 && rate < 10.0, "{held:?}");
        }
    });
}

fn bucket_rate(bucket: TokenBucket) -> f64 {
    let fill = bucket.tokens_per_fill.unwrap().value;
    f64::from(fill) / bucket.fill_interval.unwrap().seconds as f64
}

#[test]
fn absurd_counts_and_times_take_no_more_than_an_equal_part() {
    let running = start(RULES);
    run(async {
        let mut senders = Vec::new();
        let mut streams = Vec::new();
        for _ in 0..2 {
            let channel = connect(running.grpc).await;
            let mut client = Grpc::new(channel);
            client.ready().await.unwrap();
            let (sender, receiver) = tokio::sync::mpsc::channel(8);
            let codec = ProstCodec::<UsageReports, QuotaResponse>::default();
            let path = PathAndQuery::from_static(PATH);
            let request = tonic::Request::new(ReceiverStream::new(receiver));
            sender.send(reports("edge", vec![usage(&[("plan", "basic")], 1)])).await.unwrap();
            let stream = client.streaming(request, path, codec).await.unwrap().into_inner();
            senders.push(sender);
            streams.push(stream);
        }
        let (mut modest, mut absurd) = (streams.remove(0), streams.remove(0));
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        let modest_has = async {
            loop {
                tokio::select! {
                    _ = ticks.tick() => {
                        for (sender, count) in senders.iter().zip([1_000, u64::MAX]) {
                            let usages = vec![usage(&[("plan", "basic")], count)];
                            sender.send(reports("", usages)).await.unwrap();
                        }
                    }
                    told = assigned(&mut modest) => {
                        if told.1.is_some_and(|bucket| bucket_rate(bucket) > 20.0) {
                            return;
                        }
                    }
                    _ = assigned(&mut absurd) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, modest_has).await.unwrap();
    });
}

/// The file that the book shows, with the addresses of this run.
fn envoy_file(listen: u16, application: SocketAddr, service: SocketAddr, log: &Path) -> String {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/envoy-quota.md");
    let book = std::fs::read_to_string(book).unwrap();
    let (_, rest) = book.split_once("```yaml file=envoy.yaml\n").unwrap();
    let (file, _) = rest.split_once("```").unwrap();
    let port = |port: u16| format!("port_value: {port} ");
    let shown = ["port_value: 9003 ", "port_value: 9000 ", "port_value: 8081 ", "/dev/stdout"];
    let here =
        [port(listen), port(application.port()), port(service.port()), log.display().to_string()];
    shown.iter().zip(&here).fold(file.to_owned(), |file, (shown, here)| {
        assert!(file.contains(shown), "the book's file does not name {shown}");
        file.replace(shown, here)
    })
}

/// An Envoy with the book's file, its port and its access log.
struct Envoy {
    process: Child,
    port: u16,
    log: PathBuf,
}

fn envoy(binary: &Path, folder: &Folder, name: &str, service: SocketAddr) -> Envoy {
    let port = free_port();
    let log = folder.0.join(format!("{name}.log"));
    let text = envoy_file(port, upstream(), service, &log);
    let file = folder.file(&format!("{name}.yaml"), &text);
    let mut command = Command::new(binary);
    command.arg("-c").arg(file).args(["--concurrency", "1", "--use-dynamic-base-id"]);
    command.args(["--file-flush-interval-msec", "50"]);
    Envoy { process: spawn(command, port), port, log }
}

/// About four times the rate, for so long; how much was admitted.
fn load(port: u16, time: Duration) -> u64 {
    let mut http = Http::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    let end = Instant::now() + time;
    let mut admitted = 0;
    while Instant::now() < end {
        for _ in 0..10 {
            admitted += u64::from(http.get("/").status == 200);
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    admitted
}

/// When requests were admitted, by all logs, in microseconds.
fn admissions(logs: &[PathBuf]) -> Vec<u64> {
    let mut times = Vec::new();
    for log in logs {
        let text = std::fs::read_to_string(log).unwrap();
        // The last line may be half written.
        for line in text.lines().filter(|line| line.ends_with(" 200")) {
            let (time, _) = line.split_once(' ').unwrap();
            let (seconds, micros) = time.split_once('.').unwrap();
            times
                .push(seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap());
        }
    }
    times.sort_unstable();
    times
}

/// The most that was admitted in any interval beyond `burst + rate * t`, in units. Envoy notes when
/// a request began, and decides a moment later: an interval is taken as 20 ms longer.
fn excess(times: &[u64], burst: f64, rate: f64) -> f64 {
    let slack = rate * 0.02;
    let (mut used, mut last, mut worst) = (0.0_f64, 0, f64::MIN);
    for time in times {
        used = (used - (time - last) as f64 / 1e6 * rate).max(0.0) + 1.0;
        worst = worst.max(used - burst - slack);
        last = *time;
    }
    worst
}

#[test]
fn real_envoys_together_admit_no_more_than_the_quota() {
    let Some(binary) = tool("envoy") else { return };
    let running: Running = start(RULES);
    let folder = Folder::new("envoy-quota");
    let envoys = ["a", "b"].map(|name| envoy(&binary, &folder, name, running.grpc));
    let loads = envoys.each_ref().map(|envoy| {
        let port = envoy.port;
        std::thread::spawn(move || load(port, Duration::from_secs(9)))
    });
    let admitted: Vec<u64> = loads.into_iter().map(|load| load.join().unwrap()).collect();
    let logs = envoys.each_ref().map(|envoy| envoy.log.clone());
    assert!(admitted.iter().all(|admitted| *admitted > 20), "{admitted:?}");
    let sum: u64 = admitted.iter().sum();
    eventually("all is in the logs", || admissions(&logs).len() as u64 == sum);
    let times = admissions(&logs);
    let worst = excess(&times, 50.0, 50.0);
    assert!(worst <= 0.0, "{worst} too many of {}", times.len());
}

/// What was admitted in the last so many seconds.
fn admitted_lately(logs: &[PathBuf], seconds: u64) -> usize {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let from = u64::try_from(now.as_micros()).unwrap() - seconds * 1_000_000;
    admissions(logs).into_iter().filter(|time| *time >= from).count()
}

/// Takes a minute and a half.
#[test]
fn load_that_shifts_between_real_envoys_and_a_killed_one_keep_the_bound_and_use_the_quota() {
    let Some(binary) = tool("envoy").filter(|_| std::env::var_os("TOLLWAY_FULL").is_some()) else {
        return;
    };
    let running = start(RULES);
    let folder = Folder::new("envoy-shifts");
    let mut envoys = ["a", "b", "c"].map(|name| envoy(&binary, &folder, name, running.grpc));
    let logs = envoys.each_ref().map(|envoy| envoy.log.clone());
    for (phase, busy) in [&[0, 1, 2][..], &[0], &[1], &[0, 2], &[1, 2]].into_iter().enumerate() {
        if phase == 4 {
            envoys[0].process.0.kill().unwrap();
        }
        let loads: Vec<_> = busy.iter().map(|index| envoys[*index].port).collect();
        let loads = loads
            .into_iter()
            .map(|port| std::thread::spawn(move || load(port, Duration::from_secs(20))));
        for load in loads.collect::<Vec<_>>() {
            load.join().unwrap();
        }
        // Two reports after the shift; the log is half a second behind at most.
        let lately = admitted_lately(&logs, 9);
        assert!(phase == 0 || lately * 100 >= 8 * 50 * 95, "phase {phase}: {lately}");
        let worst = excess(&admissions(&logs), 50.0, 50.0);
        assert!(worst <= 0.0, "phase {phase}: {worst} too many");
    }
}
