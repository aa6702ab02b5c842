//! The server: threads that serve, one that accepts, and how they stop.
//!
//! ```text
//!   control thread: accept --> in turn --> worker 0 (runtime of its own) --> connections
//!                                     \--> worker 1 ...
//! ```
//!
//! Rejected: one work-stealing runtime (a request would wake a second thread and share its
//! buffers), and a listener per worker (the kernel spreads few connections badly).

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, LocalOptions, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::debug;

use crate::config::{Drain, Listen, Tls};
use crate::drain::{Stop, Stopper};
use crate::endpoint::Endpoint;
use crate::front::Front;
use crate::grpc::Probes;
use crate::listen::{Handoff, Listener, Socket};
use crate::open_files::{Places, make_places};
use crate::service::Service;
use crate::tls::{Acceptor, Certificates, check_client};
use crate::worker::Worker;
use crate::{dashboard, grpc, http, outage, queue_watch, resp};

/// How often a drain looks whether everybody has left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A server that runs until it is drained, or dropped.
pub struct Server {
    service: Arc<Service>,
    stopper: Stopper,
    probes: Probes,
    endpoints: Vec<(Front, Endpoint)>,
    threads: Vec<JoinHandle<()>>,
}

/// Fronts that are bound and not served yet: who connects waits.
#[derive(Debug)]
pub struct Bound {
    control: Control,
    listeners: Vec<Listener>,
}

impl Bound {
    /// Binds every front.
    ///
    /// # Errors
    ///
    /// If a place to listen is taken.
    pub fn new(listen: &Listen) -> io::Result<Self> {
        let control = Control(Some(Builder::new_current_thread().enable_all().build()?));
        let listeners = {
            let _inside = control.0.as_ref().map(Runtime::enter);
            bind(listen)?
        };
        Ok(Self { control, listeners })
    }

    /// Starts to serve with `workers` threads (one for every two processors if 0: most of what a
    /// request costs is the kernel's, and so is the other half of the machine).
    ///
    /// # Errors
    ///
    /// If a certificate is wrong, or a thread cannot be started.
    pub fn serve(
        self,
        service: Arc<Service>,
        tls: Option<&Tls>,
        workers: usize,
    ) -> io::Result<Server> {
        let Self { control, listeners } = self;
        let (stopper, stop) = Stopper::new();
        let probes = Probes::new();
        let certificates = tls.map(Certificates::read).transpose()?.map(Arc::new);
        if let Some(certificates) = &certificates {
            service.set_certificates(Arc::clone(certificates));
        }
        let shared = Shared { probes: probes.clone(), certificates, stop: stop.clone() };
        let endpoints = listeners
            .iter()
            .map(|listener| Ok((listener.front, listener.endpoint()?)))
            .collect::<io::Result<_>>()?;
        let places = make_places(service.settings().limits.connections_max);
        let mut threads = Vec::new();
        let mut senders: Vec<UnboundedSender<Handoff>> = Vec::new();
        for index in 0..worker_count(workers) {
            let (sender, receiver) = unbounded_channel();
            let (service, shared) = (Arc::clone(&service), shared.clone());
            let run = move || run_worker(service, shared, receiver);
            threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(run)?);
            senders.push(sender);
        }
        let (accepting, greeting) = (Arc::clone(&service), probes.clone());
        let run = move || {
            control.run(async move {
                greeting.begin().await;
                accept_all(listeners, accepting, senders, places, stop).await;
            });
        };
        threads.push(std::thread::Builder::new().name("control".to_owned()).spawn(run)?);
        Ok(Server { service, stopper, probes, endpoints, threads })
    }
}

/// What a worker needs beside the service.
#[derive(Clone)]
struct Shared {
    probes: Probes,
    /// If the fronts speak TLS.
    certificates: Option<Arc<Certificates>>,
    stop: Stop,
}

impl Server {
    /// Binds every front and starts to serve; see [`Bound`].
    ///
    /// # Errors
    ///
    /// If a place to listen is taken, a certificate is wrong, or a thread cannot be started.
    pub fn start(
        service: Arc<Service>,
        listen: &Listen,
        tls: Option<&Tls>,
        workers: usize,
    ) -> io::Result<Self> {
        Bound::new(listen)?.serve(service, tls, workers)
    }

    /// The service.
    pub const fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Where a front listens.
    pub fn endpoint(&self, front: Front) -> Option<&Endpoint> {
        self.endpoints(front).next()
    }

    /// All places where a front listens.
    pub fn endpoints(&self, front: Front) -> impl Iterator<Item = &Endpoint> {
        let of_front = move |bound: &&(Front, Endpoint)| bound.0 == front;
        self.endpoints.iter().filter(of_front).map(|(_, endpoint)| endpoint)
    }

    /// Stops in order: unready at once, serving for the delay, then no new connections, those idle
    /// closed, requests in flight finished. Whether all were finished in time.
    pub async fn drain(self, drain: Drain) -> bool {
        self.service.drain();
        self.probes.drain().await;
        tokio::time::sleep(drain.delay).await;
        self.stopper.stop();
        self.service.end_waits();
        let deadline = Instant::now() + drain.timeout;
        while self.service.open_connections() > 0 && Instant::now() < deadline {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.service.open_connections() == 0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        self.service.end_waits();
        // Workers end when their connections have; a drain has waited for that already.
        self.threads.retain(|thread| !thread.is_finished());
    }
}

/// The runtime of the control thread. A bare one must not be dropped within another, which is where
/// a caller of [`Server::start`] is when a port is taken.
#[derive(Debug)]
struct Control(Option<Runtime>);

impl Control {
    fn run(mut self, task: impl Future<Output = ()>) {
        if let Some(runtime) = self.0.take() {
            runtime.block_on(task);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn worker_count(workers: usize) -> usize {
    match workers {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)),
        workers => workers,
    }
}

fn bind(listen: &Listen) -> io::Result<Vec<Listener>> {
    let bound = Front::ALL.into_iter().filter_map(|front| Some((front, listen.of(front)?)));
    let more = listen.more_http.iter().map(|endpoint| (Front::Http, endpoint));
    bound.chain(more).map(|(front, endpoint)| Listener::bind(front, endpoint)).collect()
}

async fn accept_all(
    listeners: Vec<Listener>,
    service: Arc<Service>,
    workers: Vec<UnboundedSender<Handoff>>,
    places: Places,
    stop: Stop,
) {
    let ids = Arc::new(AtomicU64::new(1));
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let (service, workers, ids) = (Arc::clone(&service), workers.clone(), Arc::clone(&ids));
        accepting.spawn(listener.accept(service, workers, ids, places, stop.clone()));
    }
    accepting.spawn(outage::watch(Arc::clone(&service), stop.clone()));
    accepting.spawn(queue_watch::watch(Arc::clone(&service), stop.clone()));
    accepting.spawn(dashboard::sample(service, stop));
    drop(workers);
    while accepting.join_next().await.is_some() {}
}

fn run_worker(service: Arc<Service>, shared: Shared, mut handoffs: UnboundedReceiver<Handoff>) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "a worker cannot start"),
    };
    runtime.block_on(async move {
        let worker = Rc::new(Worker::new(service));
        let mut connections = tokio::task::JoinSet::new();
        while let Some(handoff) = handoffs.recv().await {
            let (worker, shared) = (Rc::clone(&worker), shared.clone());
            connections.spawn_local(async move {
                let _open = Open(&worker.service, handoff.front);
                if let Err(error) = connect(&worker, handoff, shared).await {
                    debug!(%error, "a connection ended badly");
                }
            });
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    });
}

/// Counts a connection as open for as long as it lives, however it ends.
struct Open<'a>(&'a Service, Front);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics().front(self.1).open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection: over TLS if the fronts speak it.
async fn connect(worker: &Rc<Worker>, handoff: Handoff, shared: Shared) -> io::Result<()> {
    let Handoff { front, socket, peer, id } = handoff;
    let accepted = Accepted { worker, front, peer, id, shared };
    match socket {
        Socket::Tcp(stream) => accepted.handshake(TcpStream::from_std(stream)?).await,
        Socket::Unix(stream) => accepted.handshake(UnixStream::from_std(stream)?).await,
    }
}

/// A connection that was accepted.
struct Accepted<'a> {
    worker: &'a Rc<Worker>,
    front: Front,
    peer: http::Peer,
    id: u64,
    shared: Shared,
}

impl Accepted<'_> {
    async fn handshake<S: AsyncRead + AsyncWrite + Unpin + 'static>(
        self,
        stream: S,
    ) -> io::Result<()> {
        let acceptor = self.shared.certificates.as_ref().and_then(|all| all.acceptor(self.front));
        let Some(Acceptor { tls, client_name }) = acceptor else { return self.serve(stream).await };
        let patience = self.worker.service.settings().limits.slow_client_after;
        match tokio::time::timeout(patience, tls.accept(stream)).await {
            Ok(stream) => {
                let stream = stream?;
                check_client(stream.get_ref().1, client_name.as_deref())?;
                self.serve(stream).await
            }
            Err(_) => {
                self.worker.service.metrics().front(self.front).timed_out.add(1);
                Ok(())
            }
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(self, stream: S) -> io::Result<()> {
        let Self { worker, front, peer, id, shared: Shared { probes, stop, .. } } = self;
        match front {
            Front::Resp => resp::serve(worker, stream, (id, peer.address), stop).await,
            Front::Http => http::serve(worker, stream, peer, stop).await,
            Front::Grpc => grpc::serve(worker, stream, peer, &probes, stop).await,
        }
    }
}
