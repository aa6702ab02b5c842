//! One HTTP/1.1 connection: plain requests read and answered by hand, the rest given to hyper.
//!
//! Plain means: HTTP/1.1, a `Content-Length` or no body, and none of the fields that change how a
//! message is framed or a connection goes on. A message about whose end two readers could disagree
//! is never plain, so request smuggling finds one strict reader here.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::fallback;
use super::problem::Trouble;
use super::reply::Reply;
use super::request::{Request, split_target};
use super::routes::answer;
use crate::buffers::{Input, WRITE_BYTES};
use crate::dashboard;
use crate::drain::Stop;
use crate::metrics::Front;
use crate::worker::Worker;

/// The longest head of a request, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves a client until it leaves, misbehaves, or the service stops.
///
/// # Errors
///
/// If the stream fails.
pub async fn serve<S>(
    worker: &Rc<Worker>,
    mut stream: S,
    peer: IpAddr,
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut input = Input::default();
    let mut reply = Reply::default();
    while worker.receive(&mut stream, &mut input, &mut stop, Front::Http).await? {
        let mut out = worker.take_output();
        let next = answer_all(worker, peer, &stop, &mut input, &mut reply, &mut out).await;
        let sent = worker.send(&mut stream, &mut out, Front::Http).await;
        worker.give_output(out);
        worker.rest(&mut input);
        match next {
            _ if !sent? => return Ok(()),
            Next::Read => {}
            Next::More => continue,
            Next::Close => {
                worker.part(&mut stream, &mut input).await;
                return Ok(());
            }
            Next::Fallback => {
                return fallback::serve(worker, stream, input.into_bytes(), peer, stop).await;
            }
        }
    }
    Ok(())
}

/// What to do after what was read has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Read more.
    Read,
    /// There is more to answer, after a write.
    More,
    /// Close the connection.
    Close,
    /// Give the connection to hyper.
    Fallback,
}

async fn answer_all(
    worker: &Worker,
    peer: IpAddr,
    stop: &Stop,
    input: &mut Input,
    reply: &mut Reply,
    out: &mut Vec<u8>,
) -> Next {
    let body_max = worker.service.settings().limits.body_bytes_max;
    let mut used = 0;
    let next = loop {
        if out.len() >= WRITE_BYTES {
            break Next::More;
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let rest = &input.bytes()[used..];
        let (request, length) = match plain(rest, &mut headers, body_max) {
            // An answer without an end is hyper's to write.
            Parsed::Plain(request, _) if request.target.starts_with(dashboard::EVENTS) => {
                break Next::Fallback;
            }
            Parsed::Plain(request, length) => (request, length),
            Parsed::Partial if rest.len() > HEAD_BYTES_MAX + body_max => break Next::Fallback,
            Parsed::Partial => break Next::Read,
            Parsed::Unusual => break Next::Fallback,
            Parsed::TooLarge => {
                Trouble::TooLarge.write(reply);
                worker.write_head(reply, true, out);
                out.extend_from_slice(&reply.body);
                break Next::Close;
            }
        };
        let (path, query) = split_target(request.target);
        let fields = request.headers;
        let Head { method, body, .. } = request;
        let request = Request { method, path, query, fields: &fields, body, peer };
        answer(worker, &request, reply).await;
        let is_last = stop.is_stopped();
        worker.write_head(reply, is_last, out);
        if method != "HEAD" {
            out.extend_from_slice(&reply.body);
        }
        used += length;
        if is_last {
            break Next::Close;
        }
    };
    input.consume(used);
    next
}

struct Head<'a> {
    method: &'a str,
    target: &'a str,
    headers: &'a [httparse::Header<'a>],
    body: &'a [u8],
}

enum Parsed<'a> {
    /// A plain request and its length in bytes.
    Plain(Head<'a>, usize),
    Partial,
    Unusual,
    TooLarge,
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
        // Hyper words the refusal, whatever it is.
        _ => return Parsed::Unusual,
    };
    let (Some(method), Some(target), Some(1)) = (head.method, head.path, head.version) else {
        return Parsed::Unusual;
    };
    let headers = &*head.headers;
    let Some(body_len) = body_length(headers) else { return Parsed::Unusual };
    if body_len > body_max {
        return Parsed::TooLarge;
    }
    match bytes.get(head_len..head_len + body_len) {
        Some(body) => Parsed::Plain(Head { method, target, headers, body }, head_len + body_len),
        None => Parsed::Partial,
    }
}

/// The length of the body, or `None` if the request is not plain.
fn body_length(headers: &[httparse::Header<'_>]) -> Option<usize> {
    let mut length = None;
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        match header.name.len() {
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
    Some(length.unwrap_or(0))
}

impl Worker {
    /// Writes the head of a reply.
    fn write_head(&self, reply: &Reply, is_last: bool, out: &mut Vec<u8>) {
        let mut number = itoa::Buffer::new();
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(number.format(reply.status).as_bytes());
        out.push(b' ');
        let status = http::StatusCode::from_u16(reply.status).ok();
        let reason = status.and_then(|status| status.canonical_reason()).unwrap_or("Status");
        out.extend_from_slice(reason.as_bytes());
        let mut field = |name: &str, value: &str| {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
        };
        field("content-type", reply.content_type);
        // Not Modified has no body, and its length would be taken for that of the file.
        if reply.status != 304 {
            field("content-length", number.format(reply.body.len()));
        }
        field("date", &self.date());
        for (name, value) in &reply.fields {
            field(name, value);
        }
        if is_last {
            field("connection", "close");
        }
        out.extend_from_slice(b"\r\n\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> &'static str {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        match plain(text.as_bytes(), &mut headers, 100) {
            Parsed::Plain(..) => "plain",
            Parsed::Partial => "partial",
            Parsed::Unusual => "unusual",
            Parsed::TooLarge => "too large",
        }
    }

    #[test]
    fn only_requests_whose_end_is_beyond_doubt_are_plain() {
        for (fields, expected) in [
            ("", "plain"),
            ("Content-Length: 0\r\n", "plain"),
            ("Connection: keep-alive\r\n", "plain"),
            ("Content-Length: 5\r\n", "partial"),
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
        ] {
            let text = format!("POST /v1/check HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
            assert_eq!(parsed(&text), expected, "{fields}");
        }
        assert_eq!(parsed("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "unusual");
        assert_eq!(parsed("GET / HTTP/1.0\r\n\r\n"), "unusual");
        assert_eq!(parsed("GET / HTT"), "partial");
        assert_eq!(parsed(&format!("GET /{} HTTP/1.1", "a".repeat(HEAD_BYTES_MAX))), "unusual");
    }
}
