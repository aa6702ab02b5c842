//! TLS by rustls, client certificates where they are wanted, and new certificates without a
//! restart.
//!
//! A handshake takes the certificates that are in force when it begins; connections that are open
//! keep theirs. New ones are put in force for all fronts together once they read and belong
//! together, or not at all: a pair caught half replaced leaves the old one in force.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore, ServerConfig, ServerConnection};
use tokio_rustls::TlsAcceptor;

use crate::config::Tls;
use crate::front::Front;

/// The certificates in force on all fronts.
#[derive(Debug)]
pub(crate) struct Certificates {
    in_force: ArcSwap<InForce>,
}

#[derive(Debug)]
struct InForce {
    tls: Tls,
    fronts: [Arc<ServerConfig>; 3],
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or holds no certificate or key, or they do not belong together.
    pub(crate) fn read(tls: &Tls) -> io::Result<Self> {
        Ok(Self { in_force: ArcSwap::from_pointee(InForce::read(tls)?) })
    }

    /// Reads the files again, or others; what was in force stays so if they are wrong.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub(crate) fn replace(&self, tls: &Tls) -> io::Result<()> {
        self.in_force.store(Arc::new(InForce::read(tls)?));
        Ok(())
    }

    /// The files that are in force.
    pub(crate) fn files(&self) -> Tls {
        self.in_force.load().tls.clone()
    }

    /// What accepts the next connection of a front; `None` if the front speaks without TLS.
    pub(crate) fn acceptor(&self, front: Front) -> Option<Acceptor> {
        let in_force = self.in_force.load();
        in_force.tls.fronts.contains(&front).then(|| Acceptor {
            tls: TlsAcceptor::from(Arc::clone(&in_force.fronts[front as usize])),
            client_name: in_force.tls.client_name.clone(),
        })
    }
}

/// What accepts a connection.
pub(crate) struct Acceptor {
    pub tls: TlsAcceptor,
    /// The name that the client's certificate must be good for.
    pub client_name: Option<String>,
}

/// Refuses a client whose certificate is not good for this name.
///
/// # Errors
///
/// If it is not, or there is none.
pub(crate) fn check_client(connection: &ServerConnection, name: Option<&str>) -> io::Result<()> {
    let Some(name) = name else { return Ok(()) };
    let wrong = || io::Error::other(format!("a client's certificate is not good for {name:?}"));
    let shown = connection.peer_certificates().and_then(|chain| chain.first());
    let leaf = ParsedCertificate::try_from(shown.ok_or_else(wrong)?).map_err(|_| wrong())?;
    let name = ServerName::try_from(name).map_err(|_| wrong())?;
    verify_server_name(&leaf, &name).map_err(|_| wrong())
}

impl InForce {
    fn read(tls: &Tls) -> io::Result<Self> {
        let [resp, http, grpc] = Front::ALL.map(|front| server_config(tls, front).map(Arc::new));
        Ok(Self { tls: tls.clone(), fronts: [resp?, http?, grpc?] })
    }
}

/// What is wrong with the files, each with the field that names it.
pub(crate) fn mistakes(tls: &Tls) -> Vec<(&'static str, String)> {
    let pair = (certificates(&tls.certificate), key(&tls.key));
    let mut mistakes = Vec::new();
    mistakes.extend(pair.0.as_ref().err().map(|error| ("certificate", error.to_string())));
    mistakes.extend(pair.1.as_ref().err().map(|error| ("key", error.to_string())));
    if let (Ok(chain), Ok(key)) = pair
        && let Err(error) = CertifiedKey::from_der(chain, key, &provider())
    {
        mistakes.push(("key", format!("does not belong to the certificate: {error}")));
    }
    if let Some(Err(error)) = tls.client_authority.as_deref().map(roots) {
        mistakes.push(("client_authority", error.to_string()));
    }
    mistakes
}

/// What is wrong with the files of a client, each with the field that names it: the authority that
/// it trusts, and the certificate and key that it shows.
pub(crate) fn mistakes_of_client(
    authority: Option<&Path>,
    identity: Option<&(PathBuf, PathBuf)>,
) -> Vec<(&'static str, String)> {
    let pair = identity.map(|(certificate, key)| {
        let (certificate, key) = (certificate.clone(), key.clone());
        mistakes(&Tls {
            certificate,
            key,
            client_authority: None,
            client_name: None,
            client_optional: false,
            fronts: Vec::new(),
        })
    });
    let authority = authority.and_then(|file| roots(file).err());
    let authority = authority.map(|error| ("authority", error.to_string()));
    pair.unwrap_or_default().into_iter().chain(authority).collect()
}

/// The first of `hosts` that the certificate is good for, or else a name that it is good for.
pub(crate) fn name_for(tls: &Tls, hosts: &[&str]) -> Option<String> {
    let chain = certificates(&tls.certificate).ok()?;
    let leaf = ParsedCertificate::try_from(chain.first()?).ok()?;
    let mut names = Vec::new();
    for host in hosts {
        let name = ServerName::try_from(*host).ok()?;
        match verify_server_name(&leaf, &name) {
            Ok(()) => return Some((*host).to_owned()),
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                presented,
                ..
            })) => names = presented,
            Err(_) => return None,
        }
    }
    let of_dns = |name: &String| {
        Some(name.strip_prefix("DnsName(\"")?.strip_suffix("\")")?.replace('*', "tollway"))
    };
    // Of a wildcard any name will do.
    names.iter().find_map(of_dns)
}

/// Named, not the process's default: another library in the binary may have installed its own.
fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

fn server_config(tls: &Tls, front: Front) -> io::Result<ServerConfig> {
    let provider = Arc::new(provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &tls.client_authority {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(roots(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            let verifier =
                if tls.client_optional { verifier.allow_unauthenticated() } else { verifier };
            builder.with_client_cert_verifier(verifier.build().map_err(io::Error::other)?)
        }
    };
    let chain = certificates(&tls.certificate)?;
    let mut config = builder
        .with_single_cert(chain, key(&tls.key)?)
        .map_err(|error| named(&tls.key, format!("not the key of the certificate: {error}")))?;
    config.alpn_protocols = match front {
        Front::Resp => Vec::new(),
        Front::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Front::Grpc => vec![b"h2".to_vec()],
    };
    Ok(config)
}

fn key(file: &Path) -> io::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| named(file, error))
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| named(file, error))?;
    let read: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| named(file, error))?;
    if read.is_empty() {
        return Err(named(file, "no certificate in it"));
    }
    Ok(read)
}

fn roots(file: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| named(file, error))?;
    }
    Ok(roots)
}

fn named(file: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", file.display()))
}
