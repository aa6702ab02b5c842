//! WebSockets: asked for as a request, which is counted as one, and bytes both ways after that.
//!
//! Only `websocket` is tunnelled. Behind another protocol (`h2c`) there could be requests again,
//! which nobody would count; such a wish ends here, and its request is answered as usual.
//!
//! Tunnels are bounded in number, and each in the time that it may stand still. A stop ends them:
//! nobody can be told to finish in a protocol that the proxy cannot speak.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Request, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::fields::names;

/// What clients may ask to go on with.
const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");

/// A client's wish to go on with another protocol.
#[derive(Debug)]
pub(super) struct Wish {
    client: OnUpgrade,
    place: OwnedSemaphorePermit,
}

/// All tunnels are in use.
#[derive(Debug)]
pub(super) struct NoPlace;

impl Wish {
    /// The wish that a request shows, if it is for a protocol that is tunnelled.
    pub(super) fn of<B>(
        request: &mut Request<B>,
        places: &Arc<Semaphore>,
    ) -> Result<Option<Self>, NoPlace> {
        let headers = request.headers();
        let has = |field, word| headers.get_all(field).iter().any(|value| names(value, word));
        let is_wished = request.version() == Version::HTTP_11
            && has(CONNECTION, "upgrade")
            && has(UPGRADE, "websocket");
        if !is_wished {
            return Ok(None);
        }
        let place = Arc::clone(places).try_acquire_owned().map_err(|_| NoPlace)?;
        Ok(Some(Self { client: hyper::upgrade::on(request), place }))
    }

    /// Passes bytes on both ways until one side ends, or none moves for `idle`.
    pub(super) async fn run(
        self,
        upstream: OnUpgrade,
        idle: Duration,
        mut stopping: watch::Receiver<bool>,
    ) {
        let Ok(client) = self.client.await else { return };
        let Ok(upstream) = upstream.await else { return };
        let moved = Moved(Arc::new(Mutex::new(Instant::now())));
        let mut client = Side { inner: TokioIo::new(client), moved: moved.clone() };
        let mut upstream = Side { inner: TokioIo::new(upstream), moved: moved.clone() };
        tokio::select! {
            _ = copy_bidirectional(&mut client, &mut upstream) => {}
            () = moved.is_idle_for(idle) => {}
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        drop(self.place);
    }
}

/// Says in a message's fields that its connection goes on with the other protocol.
pub(super) fn insert_fields(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, PROTOCOL);
}

/// When something moved last.
#[derive(Clone)]
struct Moved(Arc<Mutex<Instant>>);

impl Moved {
    fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    async fn is_idle_for(&self, idle: Duration) {
        loop {
            let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + idle;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// One side of a tunnel, which takes note when something is read from it.
struct Side {
    inner: TokioIo<Upgraded>,
    moved: Moved,
}

impl AsyncRead for Side {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if polled.is_ready() {
            self.moved.touch();
        }
        polled
    }
}

impl AsyncWrite for Side {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
