use std::convert::Infallible;
use std::net::SocketAddr;
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
use tollway_proxy::{Settings, Versions};
use tollway_testkit::servers::Certificate;

use crate::rig::{local, proxy_to};

/// An upstream over TLS that answers with the version in which it was asked.
async fn upstream(certificate: &Certificate) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_slice(certificate.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).unwrap();
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

fn trusted(certificate: &Certificate) -> Vec<u8> {
    certificate.certificate.clone().into_bytes()
}

#[tokio::test]
async fn the_upstream_is_spoken_to_over_tls_in_the_version_that_both_know() {
    let certificate = Certificate::for_loopback();
    let url = format!("https://{}", upstream(&certificate).await);
    for (versions, expected) in [
        (Versions::Negotiated, "HTTP/2.0"),
        (Versions::Http1, "HTTP/1.1"),
        (Versions::Http2, "HTTP/2.0"),
    ] {
        let settings = Settings { versions, ..Settings::default() };
        let (_proxy, address) = proxy_to(&url, settings, "9/1m", Some(trusted(&certificate))).await;
        let answer = reqwest::get(format!("http://{address}/x")).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), expected, "{versions:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_prove_itself_is_sent_nothing() {
    let (theirs, ours) = (Certificate::for_loopback(), Certificate::for_loopback());
    let url = format!("https://{}", upstream(&theirs).await);
    let (_proxy, address) = proxy_to(&url, Settings::default(), "9/1m", Some(trusted(&ours))).await;
    let request = reqwest::Client::new().get(format!("http://{address}/x"));
    let answer = request.header("x-tollway-deadline", "0").send().await.unwrap();
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.headers()["x-tollway-answer"], "no-connection");
}
