//! Any bytes at the RESP port are answered by well-formed replies, and the connection ends by itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_protocol::{resp2, resp3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollway_fuzz::{run, worker};
use tollway_server::drain::Stopper;

/// The bytes of the reply at the start, in either version: `HELLO` changes it half-way.
fn reply_len(bytes: &[u8]) -> Option<usize> {
    let two = resp2::decode::decode(bytes).ok().flatten().map(|(_, used)| used);
    two.or_else(|| resp3::decode::complete::decode(bytes).ok().flatten().map(|(_, used)| used))
}

fuzz_target!(|input: &[u8]| {
    let answer = run(async {
        let (mut client, server) = tokio::io::duplex(1 << 24);
        client.write_all(input).await.expect("the pipe is wide enough");
        client.shutdown().await.expect("a pipe closes");
        let (_stopper, stop) = Stopper::new();
        let peer = std::net::IpAddr::from([127, 0, 0, 1]);
        tollway_server::resp::serve(&worker(), server, (7, peer), stop).await.expect("a pipe works");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("the pipe was closed");
        answer
    });
    let mut rest = &answer[..];
    while !rest.is_empty() {
        let Some(used) = reply_len(rest) else { panic!("no reply: {}", rest.escape_ascii()) };
        rest = &rest[used..];
    }
});
