//! The unusual ways to say HTTP, by hyper: HTTP/2, chunked bodies, `Expect`, HTTP/1.0.
//!
//! Over HTTP/1 one request is read so, and the connection is closed after its answer: hyper reads
//! more leniently than [`super::connection`] does (a line feed alone ends a line), so that behind a
//! request about whose end two readers may disagree there is no second one to smuggle.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, COOKIE, HOST, HeaderValue};
use http::{HeaderMap, Version};
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tollway_http::WriteTimeout;

use super::connection::HEAD_BYTES_MAX;
use super::event_stream;
use super::presence::{Client, HeardElsewhere, poll_end};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::{Peer, Request};
use super::routes::{admit, answer, events, is_stream};
use crate::channel_body::ChannelBody;
use crate::client_stream::{ClientStream, Input};
use crate::drain::Stop;
use crate::front::Front;
use crate::http2::{self, Answered, Holder, Options, Unread, pass_writes};
use crate::worker::Worker;

/// Requests of one HTTP/2 connection under way at once.
const STREAMS_MAX: u32 = 256;
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

type Body = Either<Full<Bytes>, ChannelBody>;

/// Serves the rest of a connection of which `input` has been read already.
pub(super) async fn serve<S>(
    worker: &Rc<Worker>,
    stream: S,
    input: Input,
    peer: Peer,
    stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    // Who has asked before may begin anew: the deadline is counted from here.
    let soon = || Instant::now() + worker.service.settings().limits.first_request_after;
    let first_by = input.first_by().unwrap_or_else(soon);
    let begun = input.bytes().to_vec();
    let is_http2 = begun.starts_with(PREFACE);
    let stream = Rewound(Rc::new(RefCell::new(Rewinding { begun, at: 0, stream })));
    if !is_http2 {
        return serve_http1(worker, stream, peer, stop).await;
    }
    let options = Options { front: Front::Http, streams_max: STREAMS_MAX, first_by, age: None };
    let respond = |request: http::Request<Incoming>, holder| {
        let worker = Rc::clone(worker);
        async move {
            let (head, mut body) = request.into_parts();
            let sender = (peer, &HeardElsewhere as &dyn Client);
            let response = respond(&worker, head, &mut body, sender, holder).await;
            Answered { response, request: Some(body) }
        }
    };
    http2::serve(worker, stream, options, stop, respond).await
}

async fn serve_http1<S>(
    worker: &Rc<Worker>,
    stream: Rewound<S>,
    peer: Peer,
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let patience = worker.service.settings().limits.slow_client_after;
    let holder = Holder::new(worker);
    let client = stream.clone();
    let service = service_fn(|request: http::Request<Incoming>| {
        let (holder, client) = (holder.clone(), &client);
        Box::pin(async move {
            let (head, mut body) = request.into_parts();
            let sender = (peer, client as &dyn Client);
            Ok::<_, Infallible>(respond(worker, head, &mut body, sender, holder).await)
        })
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience).keep_alive(false);
    // A client that has sent everything and says so is answered all the same.
    builder.max_buf_size(HEAD_BYTES_MAX).half_close(true);
    let stream = TokioIo::new(WriteTimeout::new(stream, patience));
    let mut connection = builder.serve_connection(stream, service);
    let served = tokio::select! {
        served = poll_fn(|context| connection.poll_without_shutdown(context)) => served,
        () = stop.stopped() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|context| connection.poll_without_shutdown(context)).await
        }
    };
    served.map_err(|error| {
        if error.is_timeout() || is_stalled(&error) {
            worker.service.metrics().front(Front::Http).timed_out.add(1);
        }
        io::Error::other(error)
    })?;
    // What was sent behind the request is not answered, and must not cost the answer before it.
    let stream = connection.into_parts().io.into_inner();
    ClientStream::new(worker, stream, Front::Http).close().await;
    Ok(())
}

/// Whether the client took nothing for too long.
fn is_stalled(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::TimedOut)
}

async fn respond(
    worker: &Worker,
    mut head: http::request::Parts,
    body: &mut Incoming,
    sender: (Peer, &dyn Client),
    holder: Holder,
) -> http::Response<Body> {
    let mut reply = Reply::default();
    let is_http1 = head.version < Version::HTTP_2;
    join_crumbs(&mut head.headers);
    match take(worker, &head, body, sender, &holder, &mut reply).await {
        Ok(Some(events)) => return stream(events),
        Ok(None) => {}
        Err(trouble) => {
            worker.service.metrics().front(Front::Http).rejected.add(1);
            trouble.write(&mut reply);
        }
    }
    let (mut body, is_constant) = reply.take_body();
    if !is_constant && !is_http1 {
        body = match holder.keep(body) {
            Some(body) => body,
            None => {
                Trouble::Full.write(&mut reply);
                reply.take_body().0
            }
        };
    }
    let mut response = http::Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = http::StatusCode::from_u16(reply.status).unwrap_or_default();
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    for (name, value) in &reply.fields {
        if let (Ok(name), Ok(value)) =
            (http::HeaderName::try_from(*name), HeaderValue::try_from(value))
        {
            fields.append(name, value);
        }
    }
    if is_http1 {
        fields.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads a request to its end and answers it: into `reply`, or by events.
async fn take(
    worker: &Worker,
    head: &http::request::Parts,
    body: &mut Incoming,
    (peer, client): (Peer, &dyn Client),
    holder: &Holder,
    reply: &mut Reply,
) -> Result<Option<ChannelBody>, Trouble> {
    let host = host(head)?;
    let request = Request {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query(),
        host,
        fields: &head.headers,
        body: &[],
        peer,
        client,
    };
    // Before the body is read: whoever may not ask does not make anything held.
    admit(worker, &request, !body.is_end_stream())?;
    if is_stream(request.path) {
        return events(worker, &request).await.map(Some);
    }
    let limits = &worker.service.settings().limits;
    let body = holder.collect(body, limits).await.map_err(|unread| match unread {
        Unread::TooLong => Trouble::TooLarge,
        Unread::Full => Trouble::Full,
        Unread::Slow => Trouble::Slow,
        Unread::Broken(why) => Trouble::bad(format!("the body: {why}")),
    })?;
    answer(worker, &Request { body: &body, ..request }, reply).await;
    Ok(None)
}

/// The host that a request names. Two names, or none in HTTP/1.1, are refused: two readers would
/// not agree on which site was meant.
fn host(head: &http::request::Parts) -> Result<Option<&[u8]>, Trouble> {
    let mut fields = head.headers.get_all(HOST).iter();
    let (field, second) = (fields.next().map(HeaderValue::as_bytes), fields.next());
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let differ = |(one, other): (&[u8], &[u8])| !one.eq_ignore_ascii_case(other);
    let is_missing = head.version == Version::HTTP_11 && field.is_none();
    if second.is_some() || is_missing || field.zip(authority).is_some_and(differ) {
        return Err(Trouble::NoHost);
    }
    Ok(authority.or(field))
}

/// HTTP/2 may send a cookie in crumbs, one field each, which are one field to everybody else
/// (RFC 9113, section 8.2.3).
fn join_crumbs(fields: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() < 2 {
        return;
    }
    if let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        fields.insert(COOKIE, whole);
    }
}

fn stream(events: ChannelBody) -> http::Response<Body> {
    let mut response = http::Response::new(Either::Right(events));
    let fields = response.headers_mut();
    let text = HeaderValue::from_static;
    fields.insert(CONTENT_TYPE, text(event_stream::CONTENT_TYPE));
    fields.insert(http::header::CACHE_CONTROL, text("no-store"));
    // A proxy that gathers an answer before it passes it on would show nothing.
    fields.insert("x-accel-buffering", text("no"));
    response
}

/// A stream of which some bytes have been read already. Hyper reads it, but not while it waits for
/// an answer; meanwhile another part looks whether the client is still there. So the two share it,
/// and never use it at the same moment.
struct Rewound<S>(Rc<RefCell<Rewinding<S>>>);

struct Rewinding<S> {
    begun: Vec<u8>,
    at: usize,
    stream: S,
}

impl<S> Clone for Rewound<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self.0.borrow_mut();
        let rest = &this.begun[this.at..];
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.at += count;
        if this.at == this.begun.len() {
            (this.begun, this.at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> Client for Rewound<S> {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        let Rewinding { begun, stream, .. } = &mut *self.0.borrow_mut();
        poll_end(stream, begun, context)
    }
}

pass_writes!(Rewound, this => this.0.borrow_mut().stream);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crumbs_of_a_cookie_are_one_field() {
        let mut fields = HeaderMap::new();
        for crumb in ["a=1", "b=2", "c=3"] {
            fields.append(COOKIE, HeaderValue::from_static(crumb));
        }
        join_crumbs(&mut fields);
        let joined: Vec<&HeaderValue> = fields.get_all(COOKIE).iter().collect();
        assert_eq!(joined, ["a=1; b=2; c=3"]);
    }

    #[test]
    fn a_request_names_one_host() {
        let named = |version, uri: &str, fields: &[&'static str]| {
            let mut request = http::Request::builder().version(version).uri(uri);
            for field in fields {
                request = request.header(HOST, *field);
            }
            let head = request.body(()).unwrap().into_parts().0;
            host(&head).map(|host| host.map(|host| host.escape_ascii().to_string())).ok()
        };
        let some = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(named(Version::HTTP_11, "/", &["a"]), some("a"));
        assert_eq!(named(Version::HTTP_11, "/", &[]), None);
        assert_eq!(named(Version::HTTP_11, "/", &["a", "a"]), None);
        assert_eq!(named(Version::HTTP_11, "http://b/", &["a"]), None);
        assert_eq!(named(Version::HTTP_10, "/", &[]), Some(None));
        assert_eq!(named(Version::HTTP_2, "http://b/", &[]), some("b"));
        assert_eq!(named(Version::HTTP_2, "http://b/", &["B"]), some("b"));
        assert_eq!(named(Version::HTTP_2, "http://b/", &["a"]), None);
    }
}
