//! Any bytes at the RESP port are answered by well-formed replies, and the connection ends by
//! itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_protocol::{resp2, resp3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollway_fuzz::{run, service};
use tollway_server::testing::serve_resp;

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
        serve_resp(service(), server).await.expect("a pipe works");
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
