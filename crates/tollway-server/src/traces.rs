//! OpenTelemetry traces: spans of answered requests, sent to a collector as OTLP over HTTP in JSON.
//!
//! ```text
//!   worker: begin ─► answer ─► end ─► queue (bounded, never waited for) ─► sender: batch ─► POST
//! ```
//!
//! Never in the way: a span that finds the queue full is dropped and counted, a collector that is
//! slow or gone costs the batch and nothing else. One request in so many is traced; one that comes
//! with a sampled `traceparent` always is, as a part of that trace. A span says front, route and
//! outcome, never a key.
//!
//! Own code instead of the OpenTelemetry crates: what is needed of them is this one message, and
//! they would more than double the dependencies of the binary.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use crate::front::Front;
use crate::metrics::Counter;

/// Spans that may wait for the sender.
const QUEUE_MAX: usize = 4_096;
/// Spans in one message, and how long the first of them waits for others.
const BATCH_MAX: usize = 512;
const BATCH_AFTER: Duration = Duration::from_secs(1);
/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where spans go.
#[derive(Debug)]
pub struct Traces {
    spans: mpsc::Sender<Span>,
    /// One request in so many is traced.
    every: u32,
    names: [RandomState; 2],
    /// Spans that were dropped because the collector does not keep up.
    pub dropped: Arc<Counter>,
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    host: String,
    path: String,
}

/// A request that is traced.
#[derive(Debug)]
pub(crate) struct Begun {
    trace_id: u128,
    span_id: u64,
    parent_id: u64,
    at: SystemTime,
}

#[derive(Debug)]
struct Span {
    begun: Begun,
    ended_at: SystemTime,
    front: Front,
    name: &'static str,
    requests: u64,
    status: u16,
}

impl Collector {
    /// The collector at `url`: `http://host[:port][/path]`, by default port 4318, `/v1/traces`.
    ///
    /// # Errors
    ///
    /// If it is no such URL. TLS is the business of a collector on this host.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong =
            || format!("{url:?} is no collector; expected for example http://127.0.0.1:4318");
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong());
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:4318") };
        let path = if path.is_empty() { "v1/traces" } else { path };
        Ok(Self { host, path: format!("/{path}") })
    }
}

impl Traces {
    /// Starts to send spans to `collector` on this runtime; one request in `every` is traced.
    pub fn start(collector: Collector, every: u32) -> Self {
        let (spans, queue) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(send_all(collector, queue));
        let names = [RandomState::new(), RandomState::new()];
        Self { spans, every: every.max(1), names, dropped: Arc::default() }
    }

    /// Begins a span if this request is traced: by its `traceparent`, or by its turn.
    pub(crate) fn begin(&self, traceparent: Option<&[u8]>) -> Option<Begun> {
        thread_local! {
            static COUNT: Cell<u64> = const { Cell::new(0) };
        }
        let count = COUNT.get();
        COUNT.set(count.wrapping_add(1));
        let parent = traceparent.and_then(sampled_parent);
        if parent.is_none() && !count.is_multiple_of(u64::from(self.every)) {
            return None;
        }
        let at = SystemTime::now();
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let random = |of: u8| self.names[usize::from(of & 1)].hash_one((count, since, of));
        let fresh = || u128::from(random(0)) << 64 | u128::from(random(1));
        let (trace_id, parent_id) = parent.unwrap_or_else(|| (fresh(), 0));
        Some(Begun { trace_id, span_id: random(2).max(1), parent_id, at })
    }

    /// Ends a span and hands it over, if there is room.
    pub(crate) fn end(
        &self,
        begun: Begun,
        (front, name): (Front, &'static str),
        requests: u64,
        status: u16,
    ) {
        let ended_at = SystemTime::now();
        let span = Span { begun, ended_at, front, name, requests, status };
        if self.spans.try_send(span).is_err() {
            self.dropped.add(1);
        }
    }
}

/// The trace and the span that a sampled `traceparent` names: `00-<32 hex>-<16 hex>-01`.
fn sampled_parent(field: &[u8]) -> Option<(u128, u64)> {
    let text = std::str::from_utf8(field).ok()?;
    let mut parts = text.splitn(4, '-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let flags = flags.get(..2)?;
    if !(is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
    (u8::from_str_radix(flags, 16).ok()? & 1 == 1).then_some((trace, span))
}

/// Sends spans in batches until nobody is left to make one.
async fn send_all(collector: Collector, mut queue: mpsc::Receiver<Span>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while let Some(first) = queue.recv().await {
        batch.push(first);
        let deadline = Instant::now() + BATCH_AFTER;
        while batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            match timeout_at(deadline, queue.recv_many(&mut batch, room)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        let message = message(&batch);
        batch.clear();
        match timeout(PATIENCE, post(&collector, &message)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "a batch of spans was not taken"),
            Err(_) => debug!("the collector of spans does not answer"),
        }
    }
}

async fn post(collector: &Collector, message: &str) -> io::Result<()> {
    let Collector { host, path } = collector;
    let mut stream = TcpStream::connect(host).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        message.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(message.as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    if status.starts_with(b"HTTP/1.") && status.get(9) == Some(&b'2') {
        return Ok(());
    }
    Err(io::Error::other(format!("the collector says {}", status.escape_ascii())))
}

/// The spans as an OTLP message. Nothing in it is chosen by strangers.
fn message(spans: &[Span]) -> String {
    let spans: Vec<Value> = spans.iter().map(span).collect();
    let scope = json!({"name": "tollway", "version": env!("CARGO_PKG_VERSION")});
    let service = attribute("service.name", "stringValue", "tollway");
    json!({"resourceSpans": [{
        "resource": {"attributes": [service]},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]})
    .to_string()
}

fn span(span: &Span) -> Value {
    let Span { begun, ended_at, front, name, requests, status } = span;
    let nanos = |at: &SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    // Kind 2 is a server; status 2 an error. OTLP writes 64-bit numbers as text.
    let mut span = json!({
        "traceId": format!("{:032x}", begun.trace_id),
        "spanId": format!("{:016x}", begun.span_id),
        "name": name,
        "kind": 2,
        "startTimeUnixNano": nanos(&begun.at).to_string(),
        "endTimeUnixNano": nanos(ended_at).to_string(),
        "attributes": [
            attribute("tollway.front", "stringValue", front.name()),
            attribute("tollway.requests", "intValue", &requests.to_string()),
            attribute("tollway.status", "intValue", &status.to_string()),
        ],
        "status": {"code": if *status >= 500 { 2 } else { 0 }},
    });
    if begun.parent_id != 0 {
        span["parentSpanId"] = format!("{:016x}", begun.parent_id).into();
    }
    span
}

fn attribute(key: &str, kind: &str, value: &str) -> Value {
    json!({"key": key, "value": {kind: value}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_plain_http_address() {
        let parsed = |url| Collector::parse(url).map(|to| (to.host, to.path));
        let pair = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(parsed("http://127.0.0.1:4318"), pair("127.0.0.1:4318", "/v1/traces"));
        assert_eq!(parsed("http://otel/"), pair("otel:4318", "/v1/traces"));
        assert_eq!(parsed("http://otel:9/x/y"), pair("otel:9", "/x/y"));
        for wrong in ["https://otel", "otel:4318", "http://", "http://a b", "http://a\r\nb"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_whole_and_sampled_parent_is_followed() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let parent = |text: String| sampled_parent(text.as_bytes());
        let expected = Some((0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331));
        assert_eq!(parent(format!("00-{trace}-b7ad6b7169203331-01")), expected);
        for wrong in [
            format!("00-{trace}-b7ad6b7169203331-00"),
            format!("00-{trace}-0000000000000000-01"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{trace}-b7ad6b71692033-01"),
            format!("00-{trace}"),
            "x".repeat(70_000),
            String::new(),
        ] {
            assert_eq!(parent(wrong), None);
        }
    }

    #[tokio::test]
    async fn a_collector_that_is_gone_costs_spans_and_nothing_else() {
        let traces = Traces::start(Collector::parse("http://127.0.0.1:9").unwrap(), 1);
        for _ in 0..3 * QUEUE_MAX {
            let begun = traces.begin(None).unwrap();
            traces.end(begun, (Front::Resp, "RESP"), 1, 200);
        }
        assert!(traces.dropped.get() > 0);
    }
}
