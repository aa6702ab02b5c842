//! Addresses: networks that are trusted, and who a client is behind them.
//!
//! ```text
//!   X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7      peer 10.0.0.2, trusted 10.0.0.0/8
//!                    ^spoofed ^client      ^ours         walk from the right to the first stranger
//! ```
//!
//! What stands left of the first untrusted hop was written by that hop and proves nothing. Several
//! lines of the field are one list, in order: some proxies add a line of their own below the client's.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses: `10.0.0.0/8`, `::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    bits: u128,
    prefix: u32,
}

/// IPv4 addresses are looked at as the IPv6 addresses they map to.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network; right would be 10.0.0.0/8 or ::1");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (width, offset) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let prefix: u32 = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| wrong())?,
            None => width,
        };
        if prefix > width {
            return Err(wrong());
        }
        Ok(Self { bits: bits(address), prefix: prefix + offset })
    }
}

impl Network {
    /// Whether `address` lies in the network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let differs = self.bits ^ bits(address);
        self.prefix == 0 || differs >> (128 - self.prefix) == 0
    }
}

/// The address of the client: the rightmost hop that is not a trusted proxy.
#[must_use]
pub fn client_address(peer: IpAddr, forwarded_for: &[&[u8]], trusted: &[Network]) -> IpAddr {
    let is_trusted = |address| trusted.iter().any(|network| network.contains(address));
    let mut client = peer;
    let hops = forwarded_for.iter().rev().flat_map(|line| line.rsplit(|&byte| byte == b','));
    for hop in hops {
        if !is_trusted(client) {
            break;
        }
        let hop = std::str::from_utf8(hop).ok().and_then(|hop| hop.trim().parse().ok());
        let Some(hop) = hop else { break };
        client = hop;
    }
    client
}

/// The key for an address. IPv6 hosts own a /64 and could otherwise pick a new key per request.
#[must_use]
pub fn address_key(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => {
            let network = Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64));
            format!("{network}/64")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, forwarded_for: &str, trusted: &[&str]) -> String {
        let trusted: Vec<Network> = trusted.iter().map(|text| text.parse().unwrap()).collect();
        let lines: Vec<&[u8]> = forwarded_for.lines().map(str::as_bytes).collect();
        client_address(peer.parse().unwrap(), &lines, &trusted).to_string()
    }

    #[test]
    fn the_client_is_the_first_stranger_from_the_right() {
        let trusted = ["10.0.0.0/8"];
        assert_eq!(client("10.0.0.2", "6.6.6.6, 203.0.113.9, 10.0.0.7", &trusted), "203.0.113.9");
        assert_eq!(client("10.0.0.2", "203.0.113.9", &trusted), "203.0.113.9");
        assert_eq!(client("10.0.0.2", "", &trusted), "10.0.0.2");
        assert_eq!(client("10.0.0.2", "garbage", &trusted), "10.0.0.2");
    }

    #[test]
    fn the_lines_of_the_field_are_one_list() {
        let trusted = ["10.0.0.0/8"];
        assert_eq!(client("10.0.0.2", "6.6.6.6\n203.0.113.9", &trusted), "203.0.113.9");
        assert_eq!(client("10.0.0.2", "203.0.113.9\n10.0.0.7", &trusted), "203.0.113.9");
    }

    #[test]
    fn a_stranger_cannot_name_its_own_address() {
        assert_eq!(client("203.0.113.9", "1.2.3.4", &["10.0.0.0/8"]), "203.0.113.9");
        assert_eq!(client("203.0.113.9", "1.2.3.4", &[]), "203.0.113.9");
    }

    #[test]
    fn networks_are_read_and_compared_by_prefix() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("::1", "::1", "::2"),
            ("2001:db8::/32", "2001:db8:1::5", "2001:db9::1"),
            ("0.0.0.0/0", "1.2.3.4", "2001:db8::1"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()));
            assert!(!network.contains(outside.parse().unwrap()));
        }
        for text in ["", "10.0.0.0/33", "x", "10.0.0.0/", "::/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_ipv6_host_is_one_key_whatever_address_it_picks() {
        let key = |text: &str| address_key(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_eq!(key("2001:db8::1"), "2001:db8::/64");
        assert_eq!(key("::ffff:1.2.3.4"), "1.2.3.4");
    }
}
