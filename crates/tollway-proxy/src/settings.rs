//! The bounds and times of a proxy, and where its upstream is.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use http::Uri;
use http::header::{AUTHORIZATION, HeaderName};
use http::uri::{Authority, Scheme};
use tollway_core::fields::Hosts;
use tollway_upstream::profile::Profile;

use tollway_http::connect::Versions;

/// Fields that carry credentials, where the profile names none.
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
    /// WebSockets at once.
    pub tunnels_max: usize,
    /// How long a WebSocket may stand still.
    pub tunnel_idle: Duration,
    /// Credentials remembered.
    pub credentials_max: usize,
    /// The largest body that is kept for another try.
    pub replay_bytes_max: usize,
    /// A refused request is sent again for as long as it can wait, so often at once, and once more
    /// for every second: only waits that are absurdly short meet this bound.
    pub retries_max: u32,
    /// Fields that tell credentials apart: the first that a request has, and no other.
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
    /// What their paths begin with where requests are forwarded, such as `/-/tollway`; every other
    /// path is the upstream's. None keeps them to [`Proxy::listen_admin`](crate::Proxy).
    pub prefix: Option<String>,
    /// Who has it may look and act; without one nobody may act, and only this machine look.
    pub token: Option<String>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        f.debug_struct("Admin").field("prefix", &self.prefix).finish_non_exhaustive()
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
            tunnels_max: 1_024,
            tunnel_idle: Duration::from_secs(300),
            credentials_max: 4_096,
            replay_bytes_max: 1 << 20,
            retries_max: 32,
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

impl Settings {
    /// The usual bounds and times, with what a profile says of its API: the field of its
    /// credentials, and how long it may take.
    #[must_use]
    pub fn for_profile(profile: &Profile) -> Self {
        let usual = Self::default();
        let named: Vec<HeaderName> =
            profile.credential_fields().filter_map(|name| name.parse().ok()).collect();
        let timeouts = profile.timeouts();
        Self {
            credential_fields: if named.is_empty() { usual.credential_fields } else { named },
            head_timeout: timeouts.head.unwrap_or(usual.head_timeout),
            idle_timeout: timeouts.idle.unwrap_or(usual.idle_timeout),
            ..usual
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

    /// The URL that every other begins with.
    pub(super) fn root(&self) -> Uri {
        self.join("/").expect("a scheme, an authority and a path are a URL")
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

tollway_core::plain_error!(UpstreamError, self => self.0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_says_which_field_is_the_credential_and_how_long_its_api_may_take() {
        let of = |name: &str| Settings::for_profile(&Profile::builtin(name).unwrap());
        assert_eq!(of("discord").credential_fields, [AUTHORIZATION]);
        assert_eq!(of("anthropic").credential_fields, [CREDENTIALS[1].clone(), AUTHORIZATION]);
        assert_eq!(of("generic").credential_fields, CREDENTIALS);
        assert_eq!(of("discord").head_timeout, Duration::from_secs(30));
        for model in ["openai", "anthropic", "azure-openai"] {
            assert_eq!(of(model).head_timeout, Duration::from_secs(600), "{model}");
            assert_eq!(of(model).idle_timeout, Duration::from_secs(300), "{model}");
        }
    }

    #[test]
    fn the_admin_token_is_never_printed() {
        let admin = Admin { prefix: None, token: Some("s3cret".to_owned()) };
        let settings = Settings { admin, ..Settings::default() };
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
