//! Listening: binding a front, accepting its connections, handing them to workers in turn.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use crate::drain::Stop;
use crate::endpoint::{Endpoint, UnixSocket};
use crate::front::Front;
use crate::http::Peer;
use crate::open_files::Places;
use crate::service::Service;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4_096;
/// After a failed accept (no file descriptors left) the next is tried this much later.
const PAUSE: Duration = Duration::from_millis(50);
/// Failures are told at most this often, with their number.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A socket that belongs to no runtime yet.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// A connection on its way to a worker.
#[derive(Debug)]
pub(crate) struct Handoff {
    pub front: Front,
    pub socket: Socket,
    pub peer: Peer,
    pub id: u64,
}

/// A front that is bound.
#[derive(Debug)]
pub(crate) struct Listener {
    pub front: Front,
    socket: ListenerSocket,
}

#[derive(Debug)]
enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds a front. Needs a runtime around it.
    pub(crate) fn bind(front: Front, endpoint: &Endpoint) -> io::Result<Self> {
        let named = |error: io::Error| {
            let remedy = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    format!(
                        "; another program listens there, --{} names another place",
                        front.name()
                    )
                }
                _ => String::new(),
            };
            let told = format!("{} on {endpoint}: {error}{remedy}", front.name());
            io::Error::new(error.kind(), told)
        };
        let socket = match endpoint {
            Endpoint::Tcp(address) => {
                let socket =
                    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                socket.set_reuseaddr(true)?;
                socket.bind(*address).map_err(named)?;
                ListenerSocket::Tcp(socket.listen(BACKLOG).map_err(named)?)
            }
            Endpoint::Unix(socket) => {
                remove_stale(&socket.path).map_err(named)?;
                let listener = UnixListener::bind(&socket.path).map_err(named)?;
                socket.protect().map_err(named)?;
                ListenerSocket::Unix(listener)
            }
        };
        Ok(Self { front, socket })
    }

    /// Where it listens really: port 0 has become a port.
    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        match &self.socket {
            ListenerSocket::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
            ListenerSocket::Unix(listener) => {
                let address = listener.local_addr()?;
                let socket = address.as_pathname().map(UnixSocket::at);
                socket
                    .map(Endpoint::Unix)
                    .ok_or_else(|| io::Error::other("a socket without a name"))
            }
        }
    }

    /// Accepts until told to stop.
    pub(crate) async fn accept(
        self,
        service: Arc<Service>,
        workers: Vec<UnboundedSender<Handoff>>,
        ids: Arc<AtomicU64>,
        places: Places,
        mut stop: Stop,
    ) {
        // Probes get in by HTTP, whatever the other fronts have used up.
        let places = if self.front == Front::Http { places.all } else { places.any_front };
        let mut failures = Failures::default();
        loop {
            let accepted = tokio::select! {
                accepted = self.next() => accepted,
                () = stop.stopped() => break,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    failures.tell(self.front, &error);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let counts = service.metrics().front(self.front);
            // Closed without a word: a flood is worth no bytes, and every front would need its own.
            if service.open_connections() >= places {
                counts.refused.add(1);
                continue;
            }
            counts.accepted.add(1);
            // Counted here and not by the worker: a burst would pass the bound before any worker
            // has looked at it.
            counts.open.fetch_add(1, Ordering::Relaxed);
            let id = ids.fetch_add(1, Ordering::Relaxed);
            let handoff = Handoff { front: self.front, socket, peer, id };
            // A worker that is gone takes nothing more; the connection is dropped with it.
            if workers[id as usize % workers.len()].send(handoff).is_err() {
                counts.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if let Ok(Endpoint::Unix(socket)) = self.endpoint() {
            let _ = std::fs::remove_file(socket.path);
        }
    }

    async fn next(&self) -> io::Result<(Socket, Peer)> {
        match &self.socket {
            ListenerSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Socket::Tcp(stream.into_std()?), Peer::at(peer.ip())))
            }
            ListenerSocket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Socket::Unix(stream.into_std()?), Peer::UNIX))
            }
        }
    }
}

/// Failures to accept, of which each log line tells many.
#[derive(Debug, Default)]
struct Failures {
    untold: u64,
    told_at: Option<Instant>,
}

impl Failures {
    fn tell(&mut self, front: Front, error: &io::Error) {
        if let Some(failures) = self.due(Instant::now()) {
            warn!(front = front.name(), %error, failures, "cannot accept");
        }
    }

    /// Counts a failure; how many there were, if it is time to say so.
    fn due(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        let is_early = self.told_at.is_some_and(|told| now.duration_since(told) < TELL_EVERY);
        if is_early {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// Removes a socket that nobody listens on any more: a process that was killed leaves it behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let is_stale =
        metadata.file_type().is_socket() && std::os::unix::net::UnixStream::connect(path).is_err();
    if is_stale { std::fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_once_a_second_with_their_number() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(failures.due(after(0)), Some(1));
        assert_eq!([failures.due(after(1)), failures.due(after(999))], [None, None]);
        assert_eq!(failures.due(after(1_000)), Some(3));
        assert_eq!(failures.due(after(1_500)), None);
        assert_eq!(failures.due(after(9_000)), Some(2));
    }
}
