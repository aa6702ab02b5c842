//! A server of aggregated discovery that says whatever a test wants it to say.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::protobuf::{Fields, bytes, number};
use crate::harness::PATIENCE;

pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A request, and on which stream it came.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) stream: usize,
    pub(crate) version: String,
    pub(crate) nonce: String,
    pub(crate) type_url: String,
    pub(crate) node: Fields,
    /// Code and message.
    pub(crate) error: Option<(u64, String)>,
    pub(crate) fields: HeaderMap,
}

pub(crate) struct ControlPlane {
    pub(crate) address: SocketAddr,
    heard: mpsc::Receiver<Heard>,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

struct Shared {
    is_away: watch::Sender<bool>,
    streams: AtomicUsize,
    latest: Mutex<Option<UnboundedSender<Frame<Bytes>>>>,
    heard: Mutex<mpsc::Sender<Heard>>,
}

/// What is said on a stream.
struct Said(UnboundedReceiver<Frame<Bytes>>);

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

impl ControlPlane {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, heard) = mpsc::channel();
        let shared = Arc::new(Shared {
            is_away: watch::Sender::new(false),
            streams: AtomicUsize::default(),
            latest: Mutex::default(),
            heard: Mutex::new(sender),
        });
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, heard, shared, _runtime: runtime }
    }

    /// The next request.
    pub(crate) fn heard(&self) -> Heard {
        self.heard.recv_timeout(PATIENCE).expect("a request within a minute")
    }

    /// Pushes resources of the right type; the answer.
    pub(crate) fn push(&self, version: &str, nonce: &str, resources: &[Vec<u8>]) -> Heard {
        self.say(&response(version, nonce, resources));
        let heard = self.heard();
        assert_eq!((heard.nonce.as_str(), heard.type_url.as_str()), (nonce, TYPE_URL), "{heard:?}");
        heard
    }

    /// Sends a message on the latest stream.
    pub(crate) fn say(&self, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        self.say_bytes([&[0][..], &length, message].concat());
    }

    /// Sends bytes that may be no message.
    pub(crate) fn say_bytes(&self, bytes: Vec<u8>) {
        self.frame(Frame::data(bytes.into()));
    }

    /// Ends the stream with a status.
    pub(crate) fn end(&self, status: &str, message: &str) {
        let fields = [("grpc-status", status), ("grpc-message", message)];
        let fields = fields.map(|(name, text)| (name.parse().unwrap(), text.parse().unwrap()));
        self.frame(Frame::trailers(HeaderMap::from_iter(fields)));
        *self.shared.latest.lock().unwrap() = None;
    }

    fn frame(&self, frame: Frame<Bytes>) {
        let latest = self.shared.latest.lock().unwrap();
        // The client may have ended the stream for what was said before.
        let _ = latest.as_ref().expect("a stream").send(frame);
    }

    /// Breaks all connections, and takes no others while it is away.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.shared.is_away.send_replace(is_away);
    }
}

/// A response with these resources.
pub(crate) fn response(version: &str, nonce: &str, resources: &[Vec<u8>]) -> Vec<u8> {
    let any = |resource: &Vec<u8>| bytes(2, [bytes(1, TYPE_URL), bytes(2, resource)].concat());
    let resources: Vec<u8> = resources.iter().flat_map(any).collect();
    [bytes(1, version), resources, number(3, 0), bytes(4, TYPE_URL), bytes(5, nonce)].concat()
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let mut is_away = shared.is_away.subscribe();
        if *is_away.borrow() {
            continue;
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::select! {
                () = serve(stream, shared) => {}
                _ = is_away.wait_for(|is_away| *is_away) => {}
            }
        });
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(begin(request, &shared)) }
    });
    let builder = http2::Builder::new(TokioExecutor::new());
    // A client that is gone is no failure of the server.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

fn begin(request: Request<Incoming>, shared: &Arc<Shared>) -> Response<Said> {
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    assert_eq!((request.method().as_str(), request.uri().path()), ("POST", path));
    assert_eq!(
        (&request.headers()["content-type"], &request.headers()["te"]),
        (&"application/grpc".parse().unwrap(), &"trailers".parse().unwrap())
    );
    let (sender, said) = unbounded_channel();
    let stream = shared.streams.fetch_add(1, Ordering::Relaxed) + 1;
    *shared.latest.lock().unwrap() = Some(sender);
    tokio::spawn(hear(request, stream, Arc::clone(shared)));
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(Said(said)).unwrap()
}

async fn hear(request: Request<Incoming>, stream: usize, shared: Arc<Shared>) {
    let (head, mut body) = request.into_parts();
    let mut read = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        read.extend_from_slice(frame.data_ref().unwrap());
        while let Some(&[flag, a, b, c, d]) = read.first_chunk::<5>() {
            assert_eq!(flag, 0, "requests are not compressed");
            let end = 5 + u32::from_be_bytes([a, b, c, d]) as usize;
            if read.len() < end {
                break;
            }
            let message = Fields::of(&read.split_to(end)[5..]);
            let error = message.message(6);
            let heard = Heard {
                stream,
                version: message.text(1),
                nonce: message.text(5),
                type_url: message.text(4),
                node: message.message(2).expect("every request names the node"),
                error: error.map(|status| (status.number(1), status.text(2))),
                fields: head.headers.clone(),
            };
            // A test that is over listens no more.
            let _ = shared.heard.lock().unwrap().send(heard);
        }
    }
}
