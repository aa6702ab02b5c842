//! The client side of the examples: one HTTP/1.1 request, and what came back.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves the router on a free loopback port.
pub(crate) async fn serve(router: axum::Router) -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}

/// A response as a client sees it.
pub(crate) struct Reply {
    pub(crate) status: u16,
    text: String,
}

impl Reply {
    /// The value of a header field, or nothing.
    pub(crate) fn field(&self, name: &str) -> &str {
        let value =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(": "));
        self.text.lines().find(value).map_or("", |line| &line[name.len() + 2..])
    }
}

/// Sends `request` ("GET / HTTP/1.1", header lines after it) and reads the answer.
pub(crate) async fn send(address: SocketAddr, request: &str) -> Result<Reply, Error> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("{request}\r\nhost: example\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let status = text.get(9..12).ok_or("no status line")?.parse()?;
    Ok(Reply { status, text })
}
