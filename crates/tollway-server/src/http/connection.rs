//! One HTTP/1.1 connection: plain requests read and answered by hand, the rest given to hyper.
//!
//! Plain means: HTTP/1.1, a target that is a path, one `Host`, a `Content-Length` or no body, and
//! none of the fields that change how a message is framed or a connection goes on. A message about
//! whose end two readers could disagree is never plain, so request smuggling finds one strict
//! reader here. Lines end with CRLF: a line feed alone, which some readers take for an end and
//! others do not, is refused.

use std::io;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::fallback;
use super::presence::{Client, ReadAhead};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::{Peer, Request, split_target};
use super::routes::{admit, answer, is_stream};
use crate::client_stream::{ClientStream, Input, Received, WRITE_BYTES};
use crate::drain::Stop;
use crate::front::Front;
use crate::worker::Worker;

/// The longest head of a request, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves a client until it leaves, misbehaves, or the service stops.
///
/// # Errors
///
/// If the stream fails.
pub(crate) async fn serve<S>(
    worker: &Rc<Worker>,
    stream: S,
    peer: Peer,
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut client = ClientStream::new(worker, stream, Front::Http);
    let mut reply = Reply::default();
    loop {
        let mut next = match client.receive(&mut stop).await? {
            Received::Bytes => Next::More,
            Received::Over => return Ok(()),
            Received::Stopped => Next::Close,
            Received::Full => Next::Refuse,
        };
        // Answers longer than a write are written in parts; what has been read needs no more bytes.
        while next == Next::More || next == Next::Refuse {
            let mut out = worker.buffers.take_output();
            next = if next == Next::Refuse {
                refuse(worker, Trouble::Full, &mut reply, &mut out)
            } else {
                answer_all(worker, peer, &stop, client.parts(), &mut reply, &mut out).await
            };
            let sent = client.send(&mut out).await;
            worker.buffers.give_output(out);
            if !sent? {
                return Ok(());
            }
        }
        client.give_buffer();
        match next {
            Next::Close => {
                client.close().await;
                return Ok(());
            }
            Next::Fallback => {
                let (stream, input) = client.into_parts();
                return fallback::serve(worker, stream, input, peer, stop).await;
            }
            Next::Read | Next::More | Next::Refuse => {}
        }
    }
}

/// What to do after what was read has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Read more.
    Read,
    /// There is more to answer, after a write.
    More,
    /// There is no room for the rest of the request.
    Refuse,
    /// Close the connection.
    Close,
    /// Give the connection to hyper.
    Fallback,
}

async fn answer_all<S: AsyncRead + Unpin>(
    worker: &Worker,
    peer: Peer,
    stop: &Stop,
    (input, stream): (&mut Input, &mut S),
    reply: &mut Reply,
    out: &mut Vec<u8>,
) -> Next {
    let client = ReadAhead::new(stream);
    let body_max = worker.service.settings().limits.body_bytes_max;
    let mut used = 0;
    let next = loop {
        if out.len() >= WRITE_BYTES {
            break Next::More;
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let rest = &input.bytes()[used..];
        let (head, length) = match plain(rest, &mut headers, body_max) {
            // An answer without an end is hyper's to write.
            Parsed::Plain(head, _) if is_stream(split_target(head.target).0) => {
                break Next::Fallback;
            }
            Parsed::Plain(head, length) => (head, length),
            // Whoever may not ask is told before the body is held.
            Parsed::Begun(head) => {
                let request = head.request(&head.headers, peer, &client);
                match admit(worker, &request, true) {
                    Ok(()) => break Next::Read,
                    Err(trouble) => break refuse(worker, trouble, reply, out),
                }
            }
            Parsed::Partial => break Next::Read,
            Parsed::Unusual => break Next::Fallback,
            Parsed::Wrong(trouble) => break refuse(worker, trouble, reply, out),
        };
        answer(worker, &head.request(&head.headers, peer, &client), reply).await;
        used += length;
        // A request that has been sent already is answered; one more is asked of somebody else.
        let is_stopping = stop.is_stopped() || worker.service.is_draining();
        let is_last = is_stopping && input.bytes().len() == used && client.is_empty();
        reply.write_head(&worker.date(), is_last, out);
        if head.method != "HEAD" {
            out.extend_from_slice(reply.body());
        }
        if is_last {
            break Next::Close;
        }
    };
    let ahead = client.into_bytes();
    input.consume(used);
    input.append(&ahead);
    if used > 0 {
        input.has_asked();
    }
    // What was sent while an answer was awaited has been read: the socket tells of it no more.
    if next == Next::Read && !ahead.is_empty() { Next::More } else { next }
}

/// Writes the last answer of a connection.
fn refuse(worker: &Worker, trouble: Trouble, reply: &mut Reply, out: &mut Vec<u8>) -> Next {
    worker.service.metrics().front(Front::Http).rejected.add(1);
    trouble.write(reply);
    reply.write_head(&worker.date(), true, out);
    out.extend_from_slice(reply.body());
    Next::Close
}

struct Head<'a> {
    method: &'a str,
    target: &'a str,
    host: &'a [u8],
    headers: &'a [httparse::Header<'a>],
    body: &'a [u8],
}

impl<'a> Head<'a> {
    fn request<'b>(
        &'b self,
        fields: &'b &'a [httparse::Header<'a>],
        peer: Peer,
        client: &'b dyn Client,
    ) -> Request<'b> {
        let (path, query) = split_target(self.target);
        let Self { method, host, body, .. } = *self;
        Request { method, path, query, host: Some(host), fields, body, peer, client }
    }
}

enum Parsed<'a> {
    /// A plain request and its length in bytes.
    Plain(Head<'a>, usize),
    /// The head of a plain request, whose body is not all there.
    Begun(Head<'a>),
    Partial,
    Unusual,
    Wrong(Trouble),
}

fn plain<'a>(
    bytes: &'a [u8],
    headers: &'a mut [httparse::Header<'a>],
    body_max: usize,
) -> Parsed<'a> {
    let mut head = httparse::Request::new(headers);
    let head_len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_BYTES_MAX => length,
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES_MAX => return Parsed::Partial,
        // Read to the end before it is given away, so that a bare line feed is found in any of it.
        Err(httparse::Error::TooManyHeaders) if is_unfinished(bytes) => return Parsed::Partial,
        _ if has_lone_line_feed(head_of(bytes)) => return wrong_line(),
        // Hyper words the refusal, whatever it is.
        _ => return Parsed::Unusual,
    };
    if has_bare_line_feed(&bytes[..head_len]) {
        return wrong_line();
    }
    let (Some(method), Some(target), Some(1)) = (head.method, head.path, head.version) else {
        return Parsed::Unusual;
    };
    let headers = &*head.headers;
    let Some((body_len, host)) = framing(headers).filter(|_| target.starts_with('/')) else {
        return Parsed::Unusual;
    };
    let Some(host) = host else { return Parsed::Wrong(Trouble::NoHost) };
    if body_len > body_max {
        return Parsed::Wrong(Trouble::TooLarge);
    }
    let (body, is_whole) = match bytes.get(head_len..head_len + body_len) {
        Some(body) => (body, true),
        None => (&bytes[head_len..], false),
    };
    let head = Head { method, target, host, headers, body };
    if is_whole { Parsed::Plain(head, head_len + body_len) } else { Parsed::Begun(head) }
}

fn wrong_line<'a>() -> Parsed<'a> {
    Parsed::Wrong(Trouble::bad("a line of the head ends without CR"))
}

/// Whether the head goes on, as far as is known and as far as one may.
fn is_unfinished(bytes: &[u8]) -> bool {
    bytes.len() <= HEAD_BYTES_MAX
        && !has_lone_line_feed(bytes)
        && head_of(bytes).len() == bytes.len()
}

/// The lines up to the first empty one, and what is there if there is none.
fn head_of(bytes: &[u8]) -> &[u8] {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Whether a line of a head that httparse has read ends with a line feed alone. It refuses a
/// carriage return that no line feed follows, so that there are as many of one as of the other
/// unless a line feed stands alone.
fn has_bare_line_feed(head: &[u8]) -> bool {
    let count = |wanted| head.iter().filter(|&&byte| byte == wanted).count();
    count(b'\n') != count(b'\r')
}

/// The same of bytes that nobody has read yet, which takes longer.
fn has_lone_line_feed(head: &[u8]) -> bool {
    let before = std::iter::once(&b' ').chain(head);
    before.zip(head).any(|(before, byte)| *byte == b'\n' && *before != b'\r')
}

/// The length of the body and the one `Host`, `None` if there is none or more; nothing if the
/// request is not plain.
fn framing<'a>(headers: &[httparse::Header<'a>]) -> Option<(usize, Option<&'a [u8]>)> {
    let (mut length, mut host, mut hosts) = (None, None, 0);
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        match header.name.len() {
            4 if is("host") => {
                hosts += 1;
                host = Some(header.value);
            }
            14 if is("content-length") => {
                let digits = std::str::from_utf8(header.value).ok()?;
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                if length.is_some() || !is_number {
                    return None;
                }
                length = Some(digits.parse().ok()?);
            }
            17 if is("transfer-encoding") => return None,
            10 if is("connection") && !header.value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            7 if is("upgrade") => return None,
            6 if is("expect") => return None,
            _ => {}
        }
    }
    Some((length.unwrap_or(0), host.filter(|_| hosts == 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> &'static str {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        match plain(text.as_bytes(), &mut headers, 100) {
            Parsed::Plain(..) => "plain",
            Parsed::Begun(_) => "begun",
            Parsed::Partial => "partial",
            Parsed::Unusual => "unusual",
            Parsed::Wrong(Trouble::TooLarge) => "too large",
            Parsed::Wrong(Trouble::NoHost) => "no host",
            Parsed::Wrong(_) => "wrong",
        }
    }

    #[test]
    fn only_requests_whose_end_is_beyond_doubt_are_plain() {
        for (fields, expected) in [
            ("", "plain"),
            ("Content-Length: 0\r\n", "plain"),
            ("Connection: keep-alive\r\n", "plain"),
            ("Content-Length: 5\r\n", "begun"),
            ("Content-Length: 101\r\n", "too large"),
            ("Content-Length: 0\r\nContent-Length: 0\r\n", "unusual"),
            ("Content-Length: +0\r\n", "unusual"),
            ("Content-Length: 0, 0\r\n", "unusual"),
            ("Transfer-Encoding: chunked\r\n", "unusual"),
            ("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "unusual"),
            ("Connection: close\r\n", "unusual"),
            ("Connection: Upgrade\r\n", "unusual"),
            ("Expect: 100-continue\r\n", "unusual"),
            ("Content-Length : 0\r\n", "unusual"),
            ("Host: x\r\n", "no host"),
            ("Accept: */*\n", "wrong"),
            ("Transfer-Encoding: chunked\n", "wrong"),
        ] {
            let text = format!("POST /v1/check HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
            assert_eq!(parsed(&text), expected, "{fields}");
        }
        assert_eq!(parsed("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "unusual");
        assert_eq!(parsed("GET / HTTP/1.0\r\n\r\n"), "unusual");
        let many = |count| format!("GET / HTTP/1.1\r\nHost: x\r\n{}", "a: b\r\n".repeat(count));
        assert_eq!(parsed(&many(99)), "partial", "its end has not come");
        assert_eq!(parsed(&format!("{}\r\n", many(99))), "unusual");
        assert_eq!(parsed(&format!("{}c: d\n", many(99))), "wrong");
        assert_eq!(parsed(&format!("{}c: d\n\n", many(64))), "wrong");
        assert_eq!(parsed("GET / HTT"), "partial");
        assert_eq!(parsed("GET / HTTP/1.1\r\n\r\n"), "no host");
        assert_eq!(parsed("GET / HTTP/1.1\nHost: x\n\n"), "wrong");
        assert_eq!(parsed("GET / HTTP/1.1\r\nHost: x\r\n\n"), "wrong");
        assert_eq!(parsed("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"), "plain");
        assert_eq!(parsed("GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n"), "unusual");
        assert_eq!(parsed(&format!("GET /{} HTTP/1.1", "a".repeat(HEAD_BYTES_MAX))), "unusual");
    }
}
