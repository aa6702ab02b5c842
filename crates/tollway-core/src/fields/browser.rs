//! Requests that a web page sends: by which name it reached us, and which page it was.
//!
//! A browser on this machine, or in this network, reaches services that strangers cannot. Two
//! things tell a page's request from a program's, and no page can change either:
//!
//! ```text
//!   page of evil.example ── Origin: http://evil.example, Sec-Fetch-Site: cross-site ──► 127.0.0.1
//!   evil.example, whose address became 127.0.0.1 ── Host: evil.example (rebinding) ───► 127.0.0.1
//! ```
//!
//! So a service that asks for no token answers to names that are known ([`Hosts`]), and not to
//! pages of others ([`is_foreign_page`]). Whoever is no browser sends what it likes: these rules
//! keep pages out, and nobody else.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

/// The names under which a service answers those who show no token: this machine's, and those
/// added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<String>,
    any_address: bool,
}

impl Hosts {
    /// Adds a name, without a port.
    ///
    /// # Errors
    ///
    /// If it is no name or address as a `Host` field has it.
    pub fn add(&mut self, name: &str) -> Result<(), NotAHost> {
        match host_name(name.as_bytes()) {
            Some(found) if found == name => self.names.push(name.to_owned()),
            // An IPv6 address may be written with its brackets or without.
            _ => {
                let bare = name.trim_start_matches('[').trim_end_matches(']');
                bare.parse::<IpAddr>().map_err(|_| NotAHost)?;
                self.names.push(bare.to_owned());
            }
        }
        Ok(())
    }

    /// Answers to every address too, for a service that others reach by its address. Nobody can
    /// make an address resolve to another, so no page gets in by it.
    #[must_use]
    pub fn with_any_address(self) -> Self {
        Self { any_address: true, ..self }
    }

    /// Whether the value of a `Host` field, or an `:authority`, is one of the names; with any port.
    ///
    /// ```
    /// use tollway_core::fields::Hosts;
    ///
    /// let hosts = Hosts::default();
    /// assert!(hosts.has(b"localhost:8080") && hosts.has(b"127.0.0.1") && hosts.has(b"[::1]:80"));
    /// assert!(!hosts.has(b"evil.example:8080") && !hosts.has(b"10.0.0.1"));
    /// ```
    pub fn has(&self, host: &[u8]) -> bool {
        let Some(name) = host_name(host) else { return false };
        // Before anything is parsed: nearly every request says one of these two.
        if name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        if self.names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return true;
        }
        let address = name.parse::<IpAddr>();
        address.is_ok_and(|address| self.any_address || address.to_canonical().is_loopback())
    }
}

crate::plain_error! {
    /// A text that no `Host` field can hold.
    pub struct NotAHost = "expected a host name without a port, such as limits.example.com";
}

/// Whether a browser says that a page of another origin sent the request: `host` is the `Host`
/// field (or `:authority`), `origin` the `Origin` field, `fetch_site` the `Sec-Fetch-Site` field.
///
/// Where the browser compares the two itself, its word holds: behind a proxy that changes `Host`,
/// `Origin` would look foreign. Another port of the same machine is another origin.
///
/// ```
/// use tollway_core::fields::is_foreign_page;
///
/// let host = Some(&b"localhost:8080"[..]);
/// assert!(!is_foreign_page(host, None, None));
/// assert!(!is_foreign_page(host, Some(b"http://localhost:8080"), Some(b"same-origin")));
/// assert!(is_foreign_page(host, Some(b"http://evil.example"), None));
/// assert!(is_foreign_page(host, None, Some(b"cross-site")));
/// ```
pub fn is_foreign_page(
    host: Option<&[u8]>,
    origin: Option<&[u8]>,
    fetch_site: Option<&[u8]>,
) -> bool {
    match (fetch_site, origin) {
        (Some(site), _) => site != b"same-origin" && site != b"none",
        (None, None) => false,
        (None, Some(origin)) => !is_same_origin(host.unwrap_or_default(), origin),
    }
}

fn is_same_origin(host: &[u8], origin: &[u8]) -> bool {
    // `null`, which a sandboxed page sends, has no scheme.
    let (authority, port) =
        match (origin.strip_prefix(b"http://"), origin.strip_prefix(b"https://")) {
            (Some(authority), _) => (authority, &b":80"[..]),
            (_, Some(authority)) => (authority, &b":443"[..]),
            _ => return false,
        };
    // A browser leaves the scheme's own port out; a program may write it.
    let authority = authority.strip_suffix(port).unwrap_or(authority);
    let host = host.strip_suffix(port).unwrap_or(host);
    !authority.is_empty() && authority.eq_ignore_ascii_case(host)
}

/// The name or address in the value of a `Host` field, without port and brackets; `None` if it is
/// malformed.
fn host_name(host: &[u8]) -> Option<&str> {
    let host = core::str::from_utf8(host).ok()?;
    let (name, rest) = match host.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = match rest {
        "" => "",
        _ => rest.strip_prefix(':')?,
    };
    let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = if host.starts_with('[') {
        name.parse::<core::net::Ipv6Addr>().is_ok()
    } else {
        name.bytes().all(of_a_name)
    };
    let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_name && is_port && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_known_until_others_are_added() {
        let mut hosts = Hosts::default();
        for local in
            ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:65535"]
        {
            assert!(hosts.has(local.as_bytes()), "{local}");
        }
        for foreign in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[2001:db8::1]:80",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost:80:80",
            "localhost:port",
            "::1",
            "[::1",
            "[::1]x",
            "localhost, evil.example",
            "localhost evil.example",
            "\u{e9}",
        ] {
            assert!(!hosts.has(foreign.as_bytes()), "{foreign:?}");
        }
        assert!(!hosts.has(b"\xff"));
        hosts.add("limits.example.com").unwrap();
        hosts.add("2001:db8::1").unwrap();
        hosts.add("[2001:db8::2]").unwrap();
        for added in ["Limits.Example.com:443", "[2001:db8::1]:80", "[2001:db8::2]"] {
            assert!(hosts.has(added.as_bytes()), "{added}");
        }
        assert!(!hosts.has(b"example.com"));
        for wrong in ["", "a b", "limits.example.com:80", "http://x", "*"] {
            assert_eq!(hosts.add(wrong), Err(NotAHost), "{wrong}");
        }
    }

    #[test]
    fn any_address_is_not_any_name() {
        let hosts = Hosts::default().with_any_address();
        assert!(hosts.has(b"10.0.0.1:8080") && hosts.has(b"[2001:db8::1]"));
        assert!(!hosts.has(b"evil.example"));
    }

    #[test]
    fn a_page_is_foreign_unless_it_came_from_here() {
        let foreign = |origin: &str, site: &str| {
            let (origin, site) = (origin.as_bytes(), site.as_bytes());
            let origin = Some(origin).filter(|origin| !origin.is_empty());
            let site = Some(site).filter(|site| !site.is_empty());
            is_foreign_page(Some(b"localhost:8080"), origin, site)
        };
        assert!(!foreign("", "") && !foreign("http://localhost:8080", ""));
        assert!(!is_foreign_page(Some(b"Ops.example:443"), Some(b"https://ops.example"), None));
        assert!(!foreign("", "none") && !foreign("https://ops.example", "same-origin"));
        for (origin, site) in [
            ("http://evil.example", ""),
            ("http://localhost:3000", ""),
            ("http://localhost", ""),
            ("null", ""),
            ("http://", ""),
            ("file://", ""),
            ("", "cross-site"),
            ("", "same-site"),
            ("http://localhost:8080", "cross-site"),
        ] {
            assert!(foreign(origin, site), "{origin:?} {site:?}");
        }
    }
}
