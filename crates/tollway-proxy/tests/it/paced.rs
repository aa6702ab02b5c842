//! Proxies that do not know of each other, on one token, in front of an upstream of its own logic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tollway_proxy::{OpenLedger, Proxy};
use tollway_upstream::budget::{self, Ledger, LocalLedger};
use tollway_upstream::pace;
use tollway_upstream::profile::Profile;

use crate::rig::{PATIENCE, local, plain_proxy};

/// A hundred per second. Heroku's documents: each response tells in `RateLimit-Remaining` how many
/// requests are left, they come back one by one, and a request beyond them gets a 429.
const PROFILE: &str = "name = 'heroku-fast'\n[route]\nby = 'none'\n[[dimensions]]\n\
    name = 'requests'\nwindow = 'sliding'\nremaining = 'ratelimit-remaining'\n\
    stated = '6000/1m'\ncommon = true\n[retry]\nunsaid = '1s'\n";
const PER_S: f64 = 100.0;
const BURST: f64 = 6_000.0;

/// The upstream: a bucket in real time, written from the documents alone.
struct Bucket {
    level: f64,
    filled: Instant,
    accepted: u64,
    refused: u64,
}

impl Bucket {
    fn take(&mut self) -> Response<Full<Bytes>> {
        let now = Instant::now();
        let back = now.duration_since(self.filled).as_secs_f64() * PER_S;
        self.level = (self.level + back).min(BURST);
        self.filled = now;
        let status = if self.level >= 1.0 {
            self.level -= 1.0;
            self.accepted += 1;
            200
        } else {
            self.refused += 1;
            429
        };
        let left = self.level.floor() as u64;
        let reply = Response::builder().status(status).header("ratelimit-remaining", left);
        reply.body(Full::new(Bytes::from_static(b"{}"))).unwrap()
    }
}

async fn upstream(level: f64) -> (SocketAddr, Arc<Mutex<Bucket>>) {
    let bucket = Bucket { level, filled: Instant::now(), accepted: 0, refused: 0 };
    let bucket = Arc::new(Mutex::new(bucket));
    let listener = TcpListener::bind(local()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::clone(&bucket);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let bucket = Arc::clone(&shared);
            let service = service_fn(move |_: Request<Incoming>| {
                let answer = bucket.lock().unwrap().take();
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            let served = connection.serve_connection(TokioIo::new(stream), service);
            tokio::spawn(served);
        }
    });
    (address, bucket)
}

async fn paced_proxy(upstream: SocketAddr, seed: u64) -> (Proxy, String) {
    let profile = Arc::new(Profile::parse(PROFILE).unwrap());
    let of = Arc::clone(&profile);
    let ledgers: OpenLedger = Arc::new(move |_| {
        let pace = pace::Settings::default().seed(seed);
        let ledger = LocalLedger::paced(&of, budget::Settings::default(), pace);
        let ledger: Arc<dyn Ledger> = Arc::new(ledger.expect("its dimension is common"));
        Box::pin(std::future::ready(Ok(ledger)))
    });
    plain_proxy(upstream, profile, ledgers).await
}

/// Keeps `busy` clients of each proxy busy until `total` requests were served; how many of them
/// each proxy had.
async fn share(urls: &[String], busy: usize, total: u64) -> Vec<u64> {
    let (served, all) = (urls.iter().map(|_| AtomicU64::new(0)), AtomicU64::new(0));
    let served: Vec<AtomicU64> = served.collect();
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let keep_busy = |index: usize| {
        let (client, served, all) = (&client, &served, &all);
        async move {
            while all.load(Ordering::Relaxed) < total {
                let request = Request::get(format!("{}/apps", urls[index]))
                    .header("authorization", "Bearer one")
                    .body(Full::default());
                let response = client.request(request.unwrap()).await.unwrap();
                if response.status() == 200 {
                    served[index].fetch_add(1, Ordering::Relaxed);
                    all.fetch_add(1, Ordering::Relaxed);
                }
                response.into_body().collect().await.unwrap();
            }
        }
    };
    let clients = (0..urls.len() * busy).map(|number| keep_busy(number % urls.len()));
    tokio::time::timeout(4 * PATIENCE, join_all(clients)).await.expect("in time");
    served.iter().map(|served| served.load(Ordering::Relaxed)).collect()
}

fn jain(shares: &[u64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        let share = *share as f64;
        (sum + share, squares + share * share)
    });
    sum * sum / (shares.len() as f64 * squares)
}

#[tokio::test]
async fn three_proxies_that_cannot_see_each_other_share_a_token() {
    let (address, bucket) = upstream(150.0).await;
    let mut proxies = Vec::new();
    for seed in 1..=3 {
        proxies.push(paced_proxy(address, seed).await);
    }
    let urls: Vec<String> = proxies.iter().map(|(_, url)| url.clone()).collect();
    let shares = share(&urls, 4, 1_000).await;
    let (accepted, refused) = {
        let bucket = bucket.lock().unwrap();
        (bucket.accepted, bucket.refused)
    };
    assert!(jain(&shares) >= 0.99, "{shares:?}, refused {refused}");
    assert!(1_000 * refused <= accepted, "{refused} of {accepted} refused, {shares:?}");
}

#[tokio::test]
async fn an_empty_bucket_costs_each_proxy_its_first_request_and_no_other() {
    let (address, bucket) = upstream(0.0).await;
    let mut proxies = Vec::new();
    for seed in 1..=3 {
        proxies.push(paced_proxy(address, seed).await);
    }
    let urls: Vec<String> = proxies.iter().map(|(_, url)| url.clone()).collect();
    let shares = share(&urls, 4, 300).await;
    let refused = bucket.lock().unwrap().refused;
    assert!(refused <= 3, "{refused} refused, {shares:?}");
}
