//! A client that sends bytes made beforehand and counts the answers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One command, or several that make one request, and how many answers they get.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) bytes: Vec<u8>,
    pub(crate) answers: usize,
}

pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// What a run came to.
pub(crate) struct Run {
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Vec<Duration>,
}

/// How long a run goes on: until neither is left.
#[derive(Clone, Copy)]
pub(crate) struct Until {
    pub(crate) time: Duration,
    /// How often each of the asks is sent.
    pub(crate) turns: usize,
}

/// Sends the asks in turn, `depth` at once on each of `connections`, which start at different ones.
pub(crate) fn drive(
    port: u16,
    asks: &[Ask],
    connections: usize,
    depth: usize,
    until: Until,
) -> Run {
    let start = Instant::now();
    let share = asks.len().div_ceil(connections);
    let runs: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..connections)
            .map(|number| {
                scope.spawn(move || {
                    work(port, asks, number * share, depth, until, share * until.turns)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let elapsed = start.elapsed();
    let latencies: Vec<Duration> = runs.into_iter().flatten().collect();
    Run { requests: (latencies.len() * depth) as u64, elapsed, latencies }
}

fn work(
    port: u16,
    asks: &[Ask],
    first: usize,
    depth: usize,
    until: Until,
    requests: usize,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut latencies = Vec::new();
    let (mut next, start) = (first, Instant::now());
    let mut out = Vec::new();
    let mut reader = Answers { buffer: Vec::new(), at: 0 };
    while start.elapsed() < until.time || next < first + requests {
        out.clear();
        let mut answers = 0;
        for _ in 0..depth {
            let ask = &asks[next % asks.len()];
            out.extend_from_slice(&ask.bytes);
            answers += ask.answers;
            next += 1;
        }
        let sent = Instant::now();
        stream.write_all(&out).unwrap();
        for _ in 0..answers {
            reader.skip(&mut stream);
        }
        latencies.push(sent.elapsed());
    }
    latencies
}

struct Answers {
    buffer: Vec<u8>,
    at: usize,
}

impl Answers {
    /// Reads one answer, whatever is in it; an error ends the benchmark.
    fn skip(&mut self, stream: &mut TcpStream) {
        let line = self.line(stream);
        let number: i64 = line[1..].parse().unwrap_or(0);
        match line.as_bytes()[0] {
            b'-' => panic!("the server says {line}"),
            b'$' if number >= 0 => self.take(stream, number as usize + 2),
            b'*' => (0..number).for_each(|_| self.skip(stream)),
            _ => {}
        }
    }

    fn line(&mut self, stream: &mut TcpStream) -> String {
        loop {
            let rest = &self.buffer[self.at..];
            if let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.at += end + 2;
                return line;
            }
            self.fill(stream);
        }
    }

    fn take(&mut self, stream: &mut TcpStream, length: usize) {
        while self.buffer.len() - self.at < length {
            self.fill(stream);
        }
        self.at += length;
    }

    fn fill(&mut self, stream: &mut TcpStream) {
        self.buffer.drain(..self.at);
        self.at = 0;
        let mut chunk = [0; 65_536];
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the server closed the connection");
        self.buffer.extend_from_slice(&chunk[..read]);
    }
}

/// A port that leads to the server, and what was sent through it.
pub(crate) fn record(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let through = listener.local_addr().unwrap().port();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&recorded);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            server.set_nodelay(true).unwrap();
            let (back_from, back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || copy(back_from, back_to, |_| {}));
            let sink = Arc::clone(&sink);
            std::thread::spawn(move || {
                copy(client, server, |bytes| sink.lock().unwrap().extend_from_slice(bytes));
            });
        }
    });
    (through, recorded)
}

fn copy(mut from: TcpStream, mut to: TcpStream, note: impl Fn(&[u8])) {
    let mut chunk = [0; 65_536];
    while let Ok(read) = from.read(&mut chunk) {
        if read == 0 {
            return;
        }
        note(&chunk[..read]);
        if to.write_all(&chunk[..read]).is_err() {
            return;
        }
    }
}
