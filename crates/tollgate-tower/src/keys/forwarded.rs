//! The hops that forwarding headers name, from the nearest to the farthest.
//!
//! ```text
//! X-Forwarded-For: farthest, …, nearest          appended to at the right by each proxy
//! Forwarded: for=farthest;proto=https, for="[2001:db8::1]:4711"
//! ```
//!
//! Several lines are one list, in order. An element that names no address yields `None`: whoever
//! walks the hops must stop there, because nothing farther can be believed.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};

/// The hops of `X-Forwarded-For`, nearest first.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    elements(headers, HeaderName::from_static("x-forwarded-for")).map(address)
}

/// The hops of `Forwarded` (RFC 7239), nearest first.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    elements(headers, http::header::FORWARDED).map(|element| address(for_parameter(element)?))
}

/// List elements of all lines of a field, last first. An element that is not UTF-8 is empty.
///
/// Split at commas without regard to quotes: no address holds a comma, so a quoted comma can only
/// make its element malformed, which ends the walk.
fn elements(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().rev();
    lines
        .flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','))
        .map(|element| std::str::from_utf8(element).unwrap_or_default())
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
        let mut headers = HeaderMap::new();
        for line in ["192.0.2.1, 192.0.2.2", "192.0.2.3", "192.0.2.4,bad"] {
            headers.append("x-forwarded-for", line.parse().expect("a value"));
        }
        let hops: Vec<_> = x_forwarded_for(&headers).collect();
        let hop = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        assert_eq!(hops, [None, hop(4), hop(3), hop(2), hop(1)]);
    }
}
