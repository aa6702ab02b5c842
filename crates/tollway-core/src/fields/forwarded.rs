//! The client behind proxies, by the hops that forwarding header fields name.
//!
//! ```text
//! X-Forwarded-For: farthest, …, nearest          appended to at the right by each proxy
//! Forwarded: for=farthest;proto=https, for="[2001:db8::1]:4711"
//!
//! peer (connection) ── trusted? ── no ──────────────────────────► peer is the client
//!                        │ yes
//!                        ▼
//! nearest hop in header ── names no address ────────────────────► last address believed
//!                        ├ untrusted ───────────────────────────► it is the client
//!                        └ trusted ──► next hop; none left ─────► farthest hop is the client
//! ```
//!
//! Walking from the right is what makes a forged field harmless: a client can only write to the
//! left of the address that the first trusted proxy saw it come from. Several lines are one list,
//! in order.

use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;

use crate::Cidr;

/// Trusted chains are short; a longer one is an attempt to make us parse.
const HOPS_MAX: usize = 32;

/// Which field the trusted proxies append to. Only that one is read: a proxy that maintains one
/// passes the other through as the client wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ForwardedBy {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` of RFC 7239.
    Forwarded,
}

impl ForwardedBy {
    /// The field's name in lower case.
    pub const fn field(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    /// The client of a connection from `peer` whose proxies within `trusted` wrote these `lines` of
    /// the field, in order.
    ///
    /// ```
    /// use tollway_core::fields::ForwardedBy;
    /// let trusted = ["10.0.0.0/8".parse()?];
    /// let lines: [&[u8]; 1] = [b"6.6.6.6, 203.0.113.9:4711, 10.0.0.7"];
    /// let client = ForwardedBy::XForwardedFor.client("10.0.0.2".parse()?, &trusted, lines);
    /// assert_eq!(client.to_string(), "203.0.113.9");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn client<'a, L>(self, peer: IpAddr, trusted: &[Cidr], lines: L) -> IpAddr
    where
        L: IntoIterator<Item = &'a [u8], IntoIter: DoubleEndedIterator>,
    {
        let is_trusted = |address| trusted.iter().any(|range| range.contains(address));
        let mut believed = peer.to_canonical();
        for element in elements(lines).take(HOPS_MAX) {
            if !is_trusted(believed) {
                break;
            }
            // Nothing farther than an element that names no address can be believed.
            let Some(hop) = self.hop(element) else { break };
            believed = hop;
        }
        believed
    }

    fn hop(self, element: &str) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => address(element),
            Self::Forwarded => address(for_parameter(element)?),
        }
    }
}

impl FromStr for ForwardedBy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::XForwardedFor, Self::Forwarded]
            .into_iter()
            .find(|by| text.eq_ignore_ascii_case(by.field()))
            .ok_or("unknown field; expected \"x-forwarded-for\" or \"forwarded\"")
    }
}

/// List elements of all lines of a field, last first. An element that is not UTF-8 is empty.
///
/// Split at commas without regard to quotes: no address holds a comma, so a quoted comma can only
/// make its element malformed, which ends the walk.
fn elements<'a>(
    lines: impl IntoIterator<Item = &'a [u8], IntoIter: DoubleEndedIterator>,
) -> impl Iterator<Item = &'a str> {
    let elements = lines.into_iter().rev().flat_map(|line| line.rsplit(|&byte| byte == b','));
    elements.map(|element| core::str::from_utf8(element).unwrap_or_default())
}

/// The value of the `for` parameter, which must stand exactly once.
fn for_parameter(element: &str) -> Option<&str> {
    let mut found = None;
    for pair in element.split(';') {
        let (name, value) = pair.trim().split_once('=')?;
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    found
}

/// An address as proxies write it: quoted or not, in brackets or not, with a port or not.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let text = match text.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"')?,
        None => text,
    };
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse().ok().map(|socket: SocketAddr| socket.ip());
    let found = text.parse().ok().or_else(bare).or_else(with_port);
    found.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn addresses_are_read_in_every_spelling() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            (" 192.0.2.1\t", Some("192.0.2.1")),
            ("192.0.2.1:8080", Some("192.0.2.1")),
            ("\"192.0.2.1:8080\"", Some("192.0.2.1")),
            ("2001:DB8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("\"[2001:db8::1]:4711\"", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:80", Some("192.0.2.1")),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("192.0.2.1:99999", None),
            ("192.0.2.256", None),
            ("192.0.2.1.5", None),
            ("0xC0000201", None),
            ("[192.0.2.1]", None),
            ("\"192.0.2.1", None),
            ("192.0.2.1 evil", None),
            ("fe80::1%eth0", None),
        ] {
            assert_eq!(address(text), expected.map(|text| text.parse().expect(text)), "{text}");
        }
    }

    #[test]
    fn the_for_parameter_stands_once_in_any_case() {
        assert_eq!(for_parameter("For=192.0.2.1;proto=https"), Some("192.0.2.1"));
        assert_eq!(for_parameter("proto=https; FOR=x"), Some("x"));
        assert_eq!(for_parameter("for=a;for=b"), None);
        assert_eq!(for_parameter("proto=https"), None);
        assert_eq!(for_parameter("for"), None);
    }

    #[test]
    fn several_lines_are_one_list_read_from_the_right() {
        let lines: [&[u8]; 3] = [b"192.0.2.1, 192.0.2.2", b"192.0.2.3", b"192.0.2.4,bad"];
        let hops: Vec<_> = elements(lines).map(address).collect();
        let hop = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        assert_eq!(hops, [None, hop(4), hop(3), hop(2), hop(1)]);
    }

    fn client(by: ForwardedBy, peer: &str, lines: &str, trusted: &str) -> String {
        let trusted: Vec<Cidr> =
            trusted.split_whitespace().map(|range| range.parse().expect("a range")).collect();
        let lines = lines.lines().map(str::as_bytes).collect::<Vec<_>>();
        by.client(peer.parse().expect("an address"), &trusted, lines).to_string()
    }

    #[test]
    fn the_client_is_the_first_stranger_from_the_right() {
        let client = |lines| client(ForwardedBy::XForwardedFor, "10.0.0.2", lines, "10.0.0.0/8");
        assert_eq!(client("6.6.6.6, 203.0.113.9, 10.0.0.7"), "203.0.113.9");
        assert_eq!(client("203.0.113.9:4711"), "203.0.113.9");
        assert_eq!(client("\"[2001:db8::1]:4711\""), "2001:db8::1");
        assert_eq!(client("6.6.6.6\n203.0.113.9"), "203.0.113.9");
        assert_eq!(client("203.0.113.9\n::ffff:10.0.0.7"), "203.0.113.9");
        assert_eq!(client("10.0.0.3, 10.0.0.4"), "10.0.0.3");
        assert_eq!(client(""), "10.0.0.2");
        assert_eq!(client("203.0.113.9, garbage"), "10.0.0.2");
    }

    #[test]
    fn a_stranger_cannot_name_its_own_address() {
        for by in [ForwardedBy::XForwardedFor, ForwardedBy::Forwarded] {
            assert_eq!(client(by, "203.0.113.9", "1.2.3.4", "10.0.0.0/8"), "203.0.113.9");
            assert_eq!(client(by, "203.0.113.9", "for=1.2.3.4", ""), "203.0.113.9");
        }
    }

    #[test]
    fn a_field_is_read_only_as_itself() {
        let forwarded = |lines| client(ForwardedBy::Forwarded, "10.0.0.2", lines, "10.0.0.0/8");
        assert_eq!(forwarded("for=6.6.6.6, for=\"203.0.113.9:1\";proto=https"), "203.0.113.9");
        assert_eq!(forwarded("203.0.113.9"), "10.0.0.2");
        assert_eq!("Forwarded".parse(), Ok(ForwardedBy::Forwarded));
        assert!("x-real-ip".parse::<ForwardedBy>().is_err());
    }
}
