//! The bounds and times of a proxy, and where its upstream is.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use http::Uri;
use http::header::{AUTHORIZATION, HeaderName};
use http::uri::{Authority, Scheme};
use tollway_core::fields::Hosts;

use tollway_http::connect::Versions;

/// Fields that carry credentials in the APIs that have profiles.
const CREDENTIALS: [HeaderName; 6] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("private-token"),
    HeaderName::from_static("x-riot-token"),
    HeaderName::from_static("x-shopify-access-token"),
];

/// The bounds and times of a proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a request may wait that does not say so itself.
    pub patience: Duration,
    /// How long the upstream may take for the head of its answer, once it has the request.
    pub head_timeout: Duration,
    /// How long a body may stand still in either direction.
    pub idle_timeout: Duration,
    /// How long a connection to the upstream may take.
    pub connect_timeout: Duration,
    /// How long a client may take for the head of its request, and for the first bytes of all.
    pub slow_client_after: Duration,
    /// Requests at work or waiting, over all credentials.
    pub requests_max: usize,
    /// Bytes that they hold: heads, beginnings of bodies, copies for another try.
    pub held_bytes_max: u64,
    /// Open connections of clients; more wait to be accepted.
    pub connections_max: usize,
    /// Credentials remembered.
    pub credentials_max: usize,
    /// The largest body that is kept for another try.
    pub replay_bytes_max: usize,
    /// How often a refused request is sent again.
    pub retries_max: u32,
    /// Fields that tell credentials apart.
    pub credential_fields: Vec<HeaderName>,
    /// Shares of clients by name; others have one.
    pub weights: HashMap<String, u32>,
    /// After so many 401s in a row,
    pub unauthorized_max: u32,
    /// a credential is answered 401 for this long without asking the upstream.
    pub unauthorized_for: Duration,
    /// A 404 under one of these templates is remembered,
    pub missing_under: Vec<String>,
    /// for this long.
    pub missing_for: Duration,
    /// Which HTTP versions the upstream is spoken to in.
    pub versions: Versions,
    /// Where the proxy's own pages are served.
    pub admin: Admin,
    /// Names by which clients on this machine may call the proxy, beside this machine's own.
    pub hosts: Hosts,
}

/// Where the proxy's own pages are served, and to whom.
#[derive(Clone, Default)]
pub struct Admin {
    /// Whether they are on an address of their own, so that the upstream's paths are all free.
    pub apart: bool,
    /// Who has it may look and act; without one nobody may act, and only this machine look.
    pub token: Option<String>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        f.debug_struct("Admin").field("apart", &self.apart).finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            slow_client_after: Duration::from_secs(30),
            requests_max: 16_384,
            held_bytes_max: 256 << 20,
            connections_max: 10_000,
            credentials_max: 4_096,
            replay_bytes_max: 64 << 10,
            retries_max: 3,
            credential_fields: CREDENTIALS.to_vec(),
            weights: HashMap::new(),
            unauthorized_max: 3,
            unauthorized_for: Duration::from_secs(60),
            missing_under: vec!["/webhooks/".to_owned()],
            missing_for: Duration::from_secs(300),
            versions: Versions::default(),
            admin: Admin::default(),
            hosts: Hosts::default(),
        }
    }
}

/// Where the upstream is: scheme, authority and a path in front of every request's.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    base: String,
}

/// Why a text is no upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamError(&'static str);

impl Upstream {
    /// Reads `https://api.example.com` or `http://127.0.0.1:8080/base`.
    ///
    /// # Errors
    ///
    /// If it is no such URL, or carries a user, a query or a fragment.
    pub fn parse(text: &str) -> Result<Self, UpstreamError> {
        let uri: Uri = text.parse().map_err(|_| UpstreamError("no URL such as https://host"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.ok_or(UpstreamError("no http:// or https:// in front"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(UpstreamError("neither http nor https"));
        }
        let authority = parts.authority.ok_or(UpstreamError("no host"))?;
        if authority.as_str().contains('@') {
            return Err(UpstreamError("a user in the URL; clients send their own credentials"));
        }
        let target = parts.path_and_query;
        if target.as_ref().is_some_and(|target| target.query().is_some()) {
            return Err(UpstreamError("a query in the URL"));
        }
        let base = target.map(|target| target.path().trim_end_matches('/').to_owned());
        Ok(Self { scheme, authority, base: base.unwrap_or_default() })
    }

    /// The URL of a request whose target is `target`.
    pub(super) fn join(&self, target: &str) -> Option<Uri> {
        let builder = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        let path =
            if self.base.is_empty() { target.to_owned() } else { format!("{}{target}", self.base) };
        builder.path_and_query(path).build().ok()
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for UpstreamError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_token_is_never_printed() {
        let admin = Admin { apart: false, token: Some("s3cret".to_owned()) };
        let settings = Settings { admin, ..Settings::default() };
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
