//! Any bytes at the HTTP port are answered the same however they are cut, by HTTP/1.1 replies, and
//! the connection ends by itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;
use tollway_fuzz::{run, service};
use tollway_server::testing::serve_http;

/// Answers without their dates: hyper's are those of the machine.
fn undated(answers: &[u8]) -> Vec<String> {
    let lines = answers.split(|&byte| byte == b'\n').filter(|line| !line.starts_with(b"date: "));
    lines.map(|line| line.escape_ascii().to_string()).collect()
}

/// What comes back for the parts, each sent when the server has had its turn.
fn exchange(parts: &[&[u8]]) -> Vec<u8> {
    // Hyper runs tasks of its own beside the connection.
    run(LocalSet::new().run_until(async {
        let (mut client, server) = tokio::io::duplex(1 << 24);
        let serving = serve_http(service(), server);
        let asking = async move {
            for part in parts {
                // The server may have closed already: that is its right.
                let _ = client.write_all(part).await;
                tokio::task::yield_now().await;
            }
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.expect("the pipe was closed");
            answer
        };
        // A client that breaks off within a message is an error of its own.
        let (_, answer) = tokio::join!(serving, asking);
        answer
    }))
}

fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else { return };
    // HTTP/2 has a reader of its own, and events have no end.
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    if has(b"PRI *") || has(b"/dashboard/events") {
        return;
    }
    let whole = exchange(&[bytes]);
    assert!(whole.is_empty() || whole.starts_with(b"HTTP/1."), "{}", whole.escape_ascii());
    // What hyper reads it may refuse at another place; what is plain may not depend on the cut.
    let is_plain = !has(b"HTTP/1.0") && !whole.windows(9).any(|window| window == b" 400 Bad ");
    let cut = bytes.len() * usize::from(*first) / 256;
    let parted = exchange(&[&bytes[..cut], &bytes[cut..]]);
    if is_plain {
        assert_eq!(undated(&whole), undated(&parted));
    }
});
