//! A store behind a slow line: bytes take a while in both directions.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Passes bytes on to a port of this machine, each a while later.
pub(crate) struct Relay {
    pub(crate) port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn to(port: u16, later_ms: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let later = Duration::from_millis(later_ms);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                let (client, server) = (client.into_split(), server.into_split());
                tokio::spawn(pass(client.0, server.1, later));
                tokio::spawn(pass(server.0, client.1, later));
            }
        });
        Self { port: own, task }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, later: Duration) {
    let (sender, mut late) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let deliver = tokio::spawn(async move {
        while let Some((at, bytes)) = late.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if sender.send((Instant::now() + later, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
    drop(sender);
    let _ = deliver.await;
}
