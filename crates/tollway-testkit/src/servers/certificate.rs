//! A certificate for loopback, for what is tried over TLS.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A certificate for 127.0.0.1 that signs itself, and its key, as PEM text.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate, which is also what a client has to trust.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Certificate {
    /// A new one, made by `openssl`, which `scripts/install-peers` installs.
    pub fn for_loopback() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollway-certificate-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1"])
            // An authority must not be used as a server's own certificate.
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .expect("openssl is installed by scripts/install-peers");
        assert!(made.status.success(), "{made:?}");
        let read = |file| std::fs::read_to_string(file).expect("openssl has written it");
        let [certificate, key] = [certificate, key].map(read);
        let _ = std::fs::remove_dir_all(&folder);
        Self { certificate, key }
    }
}
