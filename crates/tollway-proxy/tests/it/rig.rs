//! A proxy in front of the fake upstream, on free loopback ports, and a client to speak to it.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_proxy::{Guard, OpenLedger, Parts, Proxy, Settings, Upstream};
use tollway_sim::fake_api::Spec;
use tollway_sim::fake_api::loopback::Loopback;
use tollway_upstream::budget::{self, Ledger, LocalLedger};
use tollway_upstream::profile::Profile;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A fake upstream, a proxy in front of it, and a client.
pub(crate) struct Rig {
    pub(crate) fake: Loopback,
    pub(crate) address: SocketAddr,
    /// Where its own pages are.
    pub(crate) admin: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    _proxy: Proxy,
}

/// A body in memory.
pub(crate) type Outgoing = Full<Bytes>;

/// Frames that are there already, and no word of their length.
pub(crate) struct Frames(pub(crate) std::collections::VecDeque<Frame<Bytes>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct ProxyReply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl ProxyReply {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Rig {
    /// A proxy by the Discord profile in front of `spec`.
    pub(crate) async fn start(spec: Spec, settings: Settings) -> Self {
        Self::guarded(spec, settings, "10000/10m").await
    }

    /// The same with another budget of invalid requests.
    pub(crate) async fn guarded(spec: Spec, settings: Settings, invalid: &str) -> Self {
        let fake = Loopback::start(spec, local()).await.unwrap();
        let upstream = format!("http://{}", fake.address());
        let (mut proxy, address) = proxy_to(&upstream, settings, invalid, None).await;
        let admin = admin_of(&mut proxy).await;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { fake, address, admin, client, _proxy: proxy }
    }

    /// The same over HTTP/2, on one connection: requests arrive in the order in which they are
    /// sent.
    pub(crate) fn over_http2(mut self) -> Self {
        self.client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        self
    }

    pub(crate) async fn send(&self, request: Request<Outgoing>) -> ProxyReply {
        self.try_send(request).await.unwrap()
    }

    pub(crate) async fn try_send(&self, request: Request<Outgoing>) -> Result<ProxyReply, String> {
        let asked = tokio::time::timeout(PATIENCE, self.client.request(request)).await;
        let response: Response<_> = asked.expect("in time").map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("in time");
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok(ProxyReply { status: head.status.as_u16(), headers: head.headers, body })
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Request<Outgoing> {
        self.request_with(method, path, &[], "")
    }

    pub(crate) fn request_with(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Request<Outgoing> {
        let own = ["/admin/", "/metrics", "/healthz", "/readyz"];
        let is_own = own.iter().any(|page| path.starts_with(page));
        let address = if is_own { self.admin } else { self.address };
        let uri = format!("http://{address}{path}");
        let mut request = Request::builder().method(method).uri(uri);
        if !fields.iter().any(|(name, _)| *name == "authorization") {
            request = request.header("authorization", "Bot one");
        }
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> ProxyReply {
        self.send(self.request("GET", path)).await
    }

    pub(crate) async fn post(&self, path: &str) -> ProxyReply {
        self.send(self.request_with("POST", path, &[], "{}")).await
    }

    /// The value of one of the proxy's metrics.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        metric(self.admin, name).await
    }

    /// Waits until a metric has a value.
    pub(crate) async fn until_metric(&self, name: &str, wanted: f64) {
        until_metric(self.admin, name, wanted).await;
    }
}

/// The value of one of the metrics of a proxy whose own pages are at `admin`.
pub(crate) async fn metric(admin: SocketAddr, name: &str) -> f64 {
    let page = reqwest::get(format!("http://{admin}/metrics")).await.unwrap();
    let text = page.text().await.unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("{name} in\n{text}"))
}

/// Waits until a metric has a value.
pub(crate) async fn until_metric(admin: SocketAddr, name: &str, wanted: f64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = metric(admin, name).await;
        if found == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {found} and never became {wanted}");
        tokio::task::yield_now().await;
    }
}

/// Serves the proxy's own pages on a free port.
pub(crate) async fn admin_of(proxy: &mut Proxy) -> SocketAddr {
    let listener = TcpListener::bind(local()).await.unwrap();
    let admin = listener.local_addr().unwrap();
    proxy.listen_admin(listener);
    admin
}

/// An upstream that answers as `answer` says.
pub(crate) async fn upstream_of<F>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = Response<Outgoing>> + Send + 'static,
{
    let listener = TcpListener::bind(local()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(answer_on(listener, answer));
    address
}

/// Answers what comes to `listener`.
pub(crate) async fn answer_on<F>(
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) where
    F: Future<Output = Response<Outgoing>> + Send + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        let answer = answer.clone();
        let service = service_fn(move |request| {
            let answered = answer(request);
            async move { Ok::<_, std::convert::Infallible>(answered.await) }
        });
        tokio::spawn(async move {
            let connection = auto::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// A proxy by the Discord profile in front of any upstream.
pub(crate) async fn proxy_to(
    upstream: &str,
    settings: Settings,
    invalid: &str,
    roots_pem: Option<Vec<u8>>,
) -> (Proxy, SocketAddr) {
    let profile = Profile::builtin("discord").unwrap();
    let window = SlidingWindow::new(invalid.parse().unwrap(), 60).unwrap();
    let policy = Policy::new("invalid", window).unwrap();
    let store = Arc::new(MemoryStore::new(Capacity::keys(1_000)));
    let limiter = StoreLimiter::new([policy], store, Arc::new(SystemClock::new()));
    let parts = Parts {
        upstream: Upstream::parse(upstream).unwrap(),
        ledgers: local_ledgers(Arc::clone(&profile)),
        profile,
        guard: Guard::new(limiter, "invalid"),
        models: None,
        roots_pem,
        settings,
    };
    listening(parts).await
}

/// A proxy without a guard, by default settings.
pub(crate) async fn plain_proxy(
    upstream: SocketAddr,
    profile: Arc<Profile>,
    ledgers: OpenLedger,
) -> (Proxy, String) {
    let parts = Parts {
        upstream: Upstream::parse(&format!("http://{upstream}")).unwrap(),
        ledgers,
        profile,
        guard: None,
        models: None,
        roots_pem: None,
        settings: Settings::default(),
    };
    let (proxy, address) = listening(parts).await;
    (proxy, format!("http://{address}"))
}

pub(crate) async fn listening(parts: Parts) -> (Proxy, SocketAddr) {
    let mut proxy = Proxy::new(parts).unwrap();
    let listener = TcpListener::bind(local()).await.unwrap();
    let address = listener.local_addr().unwrap();
    proxy.listen(listener);
    (proxy, address)
}

pub(crate) fn local_ledgers(profile: Arc<Profile>) -> OpenLedger {
    Arc::new(move |_| {
        let ledger = LocalLedger::new(Arc::clone(&profile), budget::Settings::default());
        let ledger: Arc<dyn Ledger> = Arc::new(ledger);
        Box::pin(std::future::ready(Ok(ledger)))
    })
}

pub(crate) fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Discord as the simulator plays it, with `changes` on top and its periods divided by three.
pub(crate) fn discord(changes: &str) -> Spec {
    let mut spec = Spec::named("discord").unwrap().faster(3);
    let changed = Spec::from_toml(changes).unwrap();
    spec.latency = changed.latency;
    spec.faults = changed.faults;
    spec.ban = changed.ban.or(spec.ban);
    spec
}
