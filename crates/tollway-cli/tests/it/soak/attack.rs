//! What is done to a node meanwhile. Every attack is bounded in rate, and ends with the run.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{self, Scope};
use std::time::Duration;

use super::Run;
use super::node::Node;

const PAUSE: Duration = Duration::from_millis(10);

/// Starts all attacks on a node.
pub(super) fn start<'s>(scope: &'s Scope<'s, '_>, run: &'s Run, node: &'s Node) {
    scope.spawn(|| flood(run, node.resp, "flooded", 200, 0));
    scope.spawn(|| flood(run, node.resp, "flooded-window", 100, 0));
    scope.spawn(|| flood(run, node.resp, "flooded", 4, 65_000));
    scope.spawn(|| never_read(run, node));
    scope.spawn(|| never_finish(run, node));
    scope.spawn(|| reset(run, node));
    scope.spawn(|| change_rules(run, node));
}

/// New keys that one charge exhausts, many at a time, padded to `length`.
fn flood(run: &Run, address: SocketAddr, policy: &str, batch: u64, length: usize) {
    let mut stream = None;
    for turn in 0u64.. {
        if !run.is_on() {
            return;
        }
        let keys = (0..batch).map(|at| format!("{length}-{:0>length$}", turn * batch + at));
        let commands: String = keys.map(|key| format!("TOLL.CHECK {policy} {key}\r\n")).collect();
        let sent = send(&mut stream, address, commands.as_bytes());
        let read = sent.then(|| stream.as_mut().map(drain));
        if read.is_none() {
            stream = None;
        }
        thread::park_timeout(PAUSE);
    }
}

/// Reads what has come, without waiting long for more.
fn drain(stream: &mut TcpStream) {
    let mut bytes = [0; 65_536];
    let _ = stream.set_read_timeout(Some(PAUSE));
    while stream.read(&mut bytes).is_ok_and(|length| length == bytes.len()) {}
}

/// Clients that ask for much and read nothing: HTTP/1.1, HTTP/2 with a shut window, RESP.
fn never_read(run: &Run, node: &Node) {
    let documents = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let pings = b"PING\r\n".repeat(20_000);
    let streams = shut_window(100);
    let mut held: Vec<Option<TcpStream>> = (0..24).map(|_| None).collect();
    while run.is_on() {
        for (at, stream) in held.iter_mut().enumerate() {
            let (address, bytes) = match at % 3 {
                0 => (node.http, &documents),
                1 => (node.http, &streams),
                _ => (node.resp, &pings),
            };
            if stream.is_none() {
                send(stream, address, bytes);
            } else if is_closed(stream) {
                *stream = None;
            }
        }
        thread::park_timeout(10 * PAUSE);
    }
}

/// Clients that begin and never go on, or never begin.
fn never_finish(run: &Run, node: &Node) {
    let begun: [(SocketAddr, &[u8]); 6] = [
        (node.resp, b""),
        (node.http, b""),
        (node.resp, b"*2\r\n$10\r\nTOLL"),
        (node.resp, b"*1\r\n$1048576\r\nx"),
        (node.http, b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\n"),
        (node.http, b"PRI * HTTP/2.0\r\n"),
    ];
    let mut held: Vec<Option<TcpStream>> = (0..120).map(|_| None).collect();
    while run.is_on() {
        for (at, stream) in held.iter_mut().enumerate() {
            let (address, bytes) = begun[at % begun.len()];
            if stream.is_none() {
                send(stream, address, bytes);
            } else if is_closed(stream) {
                *stream = None;
            }
        }
        thread::park_timeout(10 * PAUSE);
    }
}

/// Connections that end with answers unread, which resets them, after resetting keys.
fn reset(run: &Run, node: &Node) {
    let commands = b"TOLL.CHECK flooded victim\r\nTOLL.RESET flooded victim\r\n".repeat(50);
    while run.is_on() {
        let mut stream = None;
        if send(&mut stream, node.resp, &commands) {
            let mut byte = [0];
            let _ = stream.as_mut().map(|stream| stream.read(&mut byte));
        }
        thread::park_timeout(PAUSE);
    }
}

fn change_rules(run: &Run, node: &Node) {
    for turn in 0u64.. {
        if !run.is_on() {
            return;
        }
        node.reload(turn);
        thread::park_timeout(50 * PAUSE);
    }
}

/// Sends on the connection that there is, or on a new one; whether all of it went out.
fn send(stream: &mut Option<TcpStream>, address: SocketAddr, bytes: &[u8]) -> bool {
    if stream.is_none() {
        *stream = TcpStream::connect(address).ok();
        let timeout = Some(10 * PAUSE);
        stream
            .as_ref()
            .map(|stream| (stream.set_write_timeout(timeout), stream.set_read_timeout(timeout)));
    }
    stream.as_mut().is_some_and(|stream| stream.write_all(bytes).is_ok())
}

/// Whether the other side has let go.
fn is_closed(stream: &mut Option<TcpStream>) -> bool {
    let Some(stream) = stream else { return true };
    let _ = stream.set_nonblocking(true);
    let closed = match stream.peek(&mut [0; 1]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    if closed {
        let _ = stream.shutdown(Shutdown::Both);
    }
    closed
}

/// An HTTP/2 connection that asks for the largest document `streams` times and lets nothing come.
fn shut_window(streams: u32) -> Vec<u8> {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END: u8 = 0x5;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // INITIAL_WINDOW_SIZE 0.
    frame(&mut bytes, SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // :method GET, :scheme http, :path and :authority spelled out.
    let mut head = vec![0x82, 0x86, 0x04, 13];
    head.extend(b"/openapi.json\x01\x09localhost");
    for stream in 0..streams {
        frame(&mut bytes, HEADERS, END, 2 * stream + 1, &head);
    }
    bytes
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}
