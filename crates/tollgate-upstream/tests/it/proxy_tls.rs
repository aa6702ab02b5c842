use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tollgate_upstream::proxy::{Settings, Versions};

use crate::proxy::{local, proxy_to};

/// A certificate for loopback that signs itself, in a folder that is removed afterwards.
struct Certificate(PathBuf);

impl Certificate {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let folder = std::env::temp_dir().join(format!("tollgate-tls-{name}-{id}"));
        std::fs::create_dir_all(&folder).unwrap();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1"])
            // An authority must not be used as a server's own certificate.
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(folder.join("key.pem"))
            .arg("-out")
            .arg(folder.join("cert.pem"))
            .output()
            .expect("openssl is installed by scripts/install-peers");
        assert!(made.status.success(), "{made:?}");
        Self(folder)
    }

    fn pem(&self) -> Vec<u8> {
        std::fs::read(self.0.join("cert.pem")).unwrap()
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An upstream over TLS that answers with the version in which it was asked.
async fn upstream(folder: &Path) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(local()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(|request: Request<Incoming>| async move {
                    let version = format!("{:?}", request.version());
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(version))))
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn the_upstream_is_spoken_to_over_tls_in_the_version_that_both_know() {
    let certificate = Certificate::new("known");
    let url = format!("https://{}", upstream(&certificate.0).await);
    for (versions, expected) in [
        (Versions::Negotiated, "HTTP/2.0"),
        (Versions::Http1, "HTTP/1.1"),
        (Versions::Http2, "HTTP/2.0"),
    ] {
        let settings = Settings { versions, ..Settings::default() };
        let (_proxy, address) = proxy_to(&url, settings, "9/1m", Some(certificate.pem())).await;
        let answer = reqwest::get(format!("http://{address}/x")).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), expected, "{versions:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_prove_itself_is_sent_nothing() {
    let (theirs, ours) = (Certificate::new("theirs"), Certificate::new("ours"));
    let url = format!("https://{}", upstream(&theirs.0).await);
    let (_proxy, address) = proxy_to(&url, Settings::default(), "9/1m", Some(ours.pem())).await;
    let answer = reqwest::get(format!("http://{address}/x")).await.unwrap();
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.headers()["x-tollgate-answer"], "no-connection");
}
