//! The unusual ways to say HTTP, by hyper: HTTP/2, chunked bodies, `Expect`, HTTP/1.0.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};

use super::connection::HEAD_BYTES_MAX;
use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use super::routes::{answer, events};
use crate::dashboard;
use crate::drain::Stop;
use crate::metrics::Front;
use crate::worker::Worker;

/// Requests of one HTTP/2 connection under way at once.
const STREAMS_MAX: u32 = 256;
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// Serves the rest of a connection of which `begun` has been read already.
pub(super) async fn serve<S>(
    worker: &Rc<Worker>,
    stream: S,
    begun: Vec<u8>,
    peer: IpAddr,
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let is_http2 = begun.starts_with(PREFACE);
    let io = TokioIo::new(Rewound::new(Rc::clone(worker), stream, begun));
    let patience = worker.service.settings().limits.slow_client_after;
    let service = service_fn(move |request| {
        let worker = Rc::clone(worker);
        async move { respond(&worker, request, peer).await }
    });
    let served = if is_http2 {
        let mut builder = http2::Builder::new(LocalExecutor);
        builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
        builder.keep_alive_interval(patience).keep_alive_timeout(patience);
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            served = connection.as_mut() => served,
            () = stop.stopped() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(patience);
        builder.max_buf_size(HEAD_BYTES_MAX);
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            served = connection.as_mut() => served,
            () = stop.stopped() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    served.map_err(io::Error::other)
}

async fn respond(
    worker: &Worker,
    request: http::Request<Incoming>,
    peer: IpAddr,
) -> Result<http::Response<Either<Full<Bytes>, dashboard::Events>>, http::Error> {
    let mut reply = Reply::default();
    let (head, body) = request.into_parts();
    match collect(worker, body).await {
        Err(trouble) => trouble.write(&mut reply),
        Ok(body) => {
            let request = Request {
                method: head.method.as_str(),
                path: head.uri.path(),
                query: head.uri.query(),
                fields: &head.headers,
                body: &body,
                peer,
            };
            if request.path == dashboard::EVENTS {
                match events(worker, &request) {
                    Ok(events) => return stream(events),
                    Err(trouble) => trouble.write(&mut reply),
                }
            } else {
                answer(worker, &request, &mut reply).await;
            }
        }
    }
    let mut response = http::Response::builder()
        .status(reply.status)
        .header(http::header::CONTENT_TYPE, reply.content_type);
    for (name, value) in &reply.fields {
        response = response.header(*name, value);
    }
    response.body(Either::Left(Full::new(Bytes::from(reply.body))))
}

fn stream<B>(
    events: dashboard::Events,
) -> Result<http::Response<Either<B, dashboard::Events>>, http::Error> {
    http::Response::builder()
        .header(http::header::CONTENT_TYPE, dashboard::Events::CONTENT_TYPE)
        .header(http::header::CACHE_CONTROL, "no-store")
        // A proxy that gathers an answer before it passes it on would show nothing.
        .header("x-accel-buffering", "no")
        .body(Either::Right(events))
}

async fn collect(worker: &Worker, body: Incoming) -> Result<Bytes, Trouble> {
    let limits = &worker.service.settings().limits;
    let collected = Limited::new(body, limits.body_bytes_max).collect();
    match timeout(limits.slow_client_after, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Trouble::TooLarge),
        Ok(Err(error)) => Err(Trouble::Bad(format!("the body: {error}"))),
        Err(_) => Err(Trouble::Slow),
    }
}

/// Runs hyper's own tasks on the thread of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// A stream of which some bytes have been read already, and on which nobody waits for ever: hyper
/// has no deadline for a client that does not read.
struct Rewound<S> {
    begun: Vec<u8>,
    at: usize,
    stream: S,
    worker: Rc<Worker>,
    /// Runs out if the client has taken nothing for too long.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Rewound<S> {
    const fn new(worker: Rc<Worker>, stream: S, begun: Vec<u8>) -> Self {
        Self { begun, at: 0, stream, worker, stalled: None }
    }

    /// What became of an attempt to write, or an error once attempts have failed for too long.
    fn in_time<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.worker.service.settings().limits.slow_client_after;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        self.worker.service.metrics().front(Front::Http).timed_out.add(1);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = &this.begun[this.at..];
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, room);
        }
        let count = rest.len().min(room.remaining());
        room.put_slice(&rest[..count]);
        this.at += count;
        if this.at == this.begun.len() {
            (this.begun, this.at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
