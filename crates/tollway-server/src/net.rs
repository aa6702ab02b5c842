//! The key that stands for a client's address.

use std::net::IpAddr;

use tollway_core::masked;

/// An IPv6 host owns at least this much and could otherwise pick a new key per request.
const V6_PREFIX: u8 = 64;

/// The key for an address.
pub(crate) fn address_key(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        v6 => format!("{}/{V6_PREFIX}", masked(v6, V6_PREFIX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_one_key_whatever_address_it_picks() {
        let key = |text: &str| address_key(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_eq!(key("2001:db8::1"), "2001:db8::/64");
        assert_eq!(key("::ffff:1.2.3.4"), "1.2.3.4");
    }
}
