//! TLS by rustls, and client certificates where they are wanted.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config::Tls;
use crate::metrics::Front;

/// What accepts TLS connections on a front.
///
/// # Errors
///
/// If a file cannot be read, or holds no certificate or key, or they do not belong together.
pub fn acceptor(tls: &Tls, front: Front) -> io::Result<TlsAcceptor> {
    // Named, not the process's default: another library in the binary may have installed its own.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &tls.client_authority {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(io::Error::other)?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(io::Error::other)?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| named(&tls.key, error))?;
    let mut config =
        builder.with_single_cert(certificates(&tls.certificate)?, key).map_err(io::Error::other)?;
    config.alpn_protocols = match front {
        Front::Resp => Vec::new(),
        Front::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Front::Grpc => vec![b"h2".to_vec()],
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| named(file, error))?;
    let read: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| named(file, error))?;
    if read.is_empty() {
        return Err(io::Error::other(format!("{}: no certificate in it", file.display())));
    }
    Ok(read)
}

fn named(file: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", file.display()))
}
