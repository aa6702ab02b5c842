//! Connections to somebody else's service: TCP or a Unix socket, and TLS by rustls where the URL
//! says so.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A client with a pool of connections.
pub type Pool<B> = Client<Connector, B>;

/// Which versions of HTTP are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// As TLS negotiates; HTTP/1.1 without TLS.
    #[default]
    Negotiated,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only, without TLS by prior knowledge.
    Http2,
}

/// How connections are made.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Which versions of HTTP are spoken.
    pub versions: Versions,
    /// Certificates in PEM that are trusted in place of the system's.
    pub roots_pem: Option<&'a [u8]>,
    /// A Unix socket that every connection goes to, whatever host the URL names.
    pub unix: Option<&'a Path>,
    /// How long it may take until a connection is there.
    pub timeout: Duration,
    /// Idle connections that are kept.
    pub idle_max: usize,
    /// What this client shows to servers that ask for a certificate.
    pub identity: Option<Identity<'a>>,
    /// The name that the server's certificate must be good for, in place of the URL's host.
    pub server_name: Option<&'a str>,
}

/// A certificate chain and its key, both in PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// The chain.
    pub certificate_pem: &'a [u8],
    /// The key.
    pub key_pem: &'a [u8],
}

impl std::fmt::Debug for Identity<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is a secret.
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Whether an error means that nothing was sent: there was no connection, or it was closed before
/// the request's turn came on it.
pub fn was_not_sent(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|it| it.downcast_ref::<hyper::Error>());
    error.is_connect() || cause.is_some_and(hyper::Error::is_canceled)
}

/// Why there was no connection: the last of the error's causes, which names what the system or TLS
/// said.
pub fn reason_of(error: &Error) -> String {
    let error: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().unwrap_or(error).to_string()
}

/// A pool of connections.
///
/// # Errors
///
/// If the certificates to trust cannot be read.
pub fn pool<B>(options: &Options<'_>) -> io::Result<Pool<B>>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
{
    Ok(pool_of(connector(options)?, options))
}

/// What opens the connections of a pool, for whoever wants one outside of it.
///
/// # Errors
///
/// If the certificates to trust or to show cannot be read, or the server's name is none.
pub fn connector(options: &Options<'_>) -> io::Result<Connector> {
    let tls = tls(options)?;
    let named = |name: &str| ServerName::try_from(name.to_owned()).map_err(io::Error::other);
    let server_name = options.server_name.map(named).transpose()?;
    let unix = options.unix.map(Arc::from);
    Ok(Connector { tls, unix, timeout: options.timeout, server_name })
}

/// A pool of the connections that `connector` opens.
#[must_use]
pub fn pool_of<B>(connector: Connector, options: &Options<'_>) -> Pool<B>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
{
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_max_idle_per_host(options.idle_max)
        .pool_idle_timeout(Duration::from_secs(60))
        .http2_only(options.versions == Versions::Http2)
        .http2_keep_alive_interval(Duration::from_secs(30));
    builder.build(connector)
}

fn tls(options: &Options<'_>) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match options.roots_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(io::Error::other)?;
                roots.add(certificate).map_err(io::Error::other)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let mut config = match options.identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate_pem, key_pem }) => {
            let chain = CertificateDer::pem_slice_iter(certificate_pem).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(io::Error::other)?;
            let chain = chain.map_err(io::Error::other)?;
            builder.with_client_auth_cert(chain, key).map_err(io::Error::other)?
        }
    };
    let offered: &[&[u8]] = match options.versions {
        Versions::Negotiated => &[b"h2", b"http/1.1"],
        Versions::Http1 => &[b"http/1.1"],
        Versions::Http2 => &[b"h2"],
    };
    config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Opens connections.
#[derive(Clone)]
pub struct Connector {
    tls: TlsConnector,
    unix: Option<Arc<Path>>,
    timeout: Duration,
    server_name: Option<ServerName<'static>>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, unix, timeout, server_name } = self.clone();
        Box::pin(async move {
            let opened = tokio::time::timeout(timeout, open(tls, unix, server_name, uri)).await;
            opened.map_err(|_| BoxError::from("no connection in time"))?.map(TokioIo::new)
        })
    }
}

async fn open(
    tls: TlsConnector,
    unix: Option<Arc<Path>>,
    server_name: Option<ServerName<'static>>,
    uri: Uri,
) -> Result<Stream, BoxError> {
    let host = uri.host().ok_or("no host")?.trim_matches(['[', ']']).to_owned();
    let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let socket = match unix {
        Some(path) => Box::new(HalfOpen::new(UnixStream::connect(path).await?)) as Socket,
        None => {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Box::new(HalfOpen::new(stream))
        }
    };
    if !is_tls {
        return Ok(Stream::Plain(socket));
    }
    let server_name = server_name.map_or_else(|| ServerName::try_from(host), Ok)?;
    let stream = tls.connect(server_name, socket).await?;
    Ok(Stream::Tls(Box::new(stream)))
}

/// A connection that is read although nothing can be written to it any more.
///
/// A server that refuses an upload answers, and closes while the upload is still on its way. What
/// is written then fails before the answer is read, and with the failure the answer would be lost.
/// So a failed write is no failure here: what comes is thrown away until the answer, or the end,
/// is read.
struct HalfOpen<S> {
    inner: S,
    is_cut: bool,
}

impl<S> HalfOpen<S> {
    const fn new(inner: S) -> Self {
        Self { inner, is_cut: false }
    }

    /// The outcome of a write of so many bytes.
    fn written(
        &mut self,
        outcome: Poll<io::Result<usize>>,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Ready(Err(error)) if is_cut(&error) => {
                self.is_cut = true;
                Poll::Ready(Ok(bytes))
            }
            other => other,
        }
    }

    /// The outcome of a call that has nothing more to do.
    fn ended(&mut self, outcome: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        self.written(outcome.map(|done| done.map(|()| 0)), 0).map(|done| done.map(|_| ()))
    }
}

/// Whether the other side no longer takes anything.
fn is_cut(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected)
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfOpen<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfOpen<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Ok(bytes.len()));
        }
        let outcome = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.written(outcome, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(context);
        self.ended(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(context);
        self.ended(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        if self.is_cut {
            return Poll::Ready(Ok(bytes));
        }
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.written(outcome, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// What a connection goes through: the network, or a Unix socket.
pub type Socket = Box<dyn Duplex>;

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection, with or without TLS.
pub enum Stream {
    /// Without.
    Plain(Socket),
    /// With.
    Tls(Box<TlsStream<Socket>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(_) => Connected::new(),
            Self::Tls(stream) => match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Connected::new().negotiated_h2(),
                _ => Connected::new(),
            },
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
