//! Address ranges: `10.0.0.0/8`, `2001:db8::/32`, or a single address.
//!
//! An IPv4 address and the IPv6 address it is mapped to are one and the same, ranges included:
//! `::ffff:10.0.0.0/104` is `10.0.0.0/8`. A shorter prefix would hold every IPv4 address there is
//! and is refused.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// A range of addresses that share their first bits.
///
/// ```
/// use tollway_core::Cidr;
/// let range: Cidr = "10.0.0.0/8".parse()?;
/// assert!(range.contains("10.1.2.3".parse()?));
/// assert!(range.contains("::ffff:10.1.2.3".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// The bits of `::ffff:0:0/96`, before the IPv4 address that is mapped.
const MAPPED_PREFIX: u8 = 96;

impl Cidr {
    /// Whether `address` lies in the range. IPv4-mapped IPv6 addresses count as the IPv4 they are.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && masked(address, self.prefix) == self.network
    }
}

impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Self {
        let network = address.to_canonical();
        Self { network, prefix: if network.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let Some((address, prefix)) = text.split_once('/') else {
            return text.parse().map(IpAddr::into).map_err(|_| CidrError);
        };
        let network: IpAddr = address.parse().map_err(|_| CidrError)?;
        let plain = prefix.len() <= 3 && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| plain).ok_or(CidrError)?;
        // Bits beyond the prefix are refused: whoever wrote 10.1.0.0/8 meant another range.
        let max = if network.is_ipv4() { 32 } else { 128 };
        if prefix > max || masked(network, prefix) != network {
            return Err(CidrError);
        }
        match (network, network.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(mapped)) => {
                let prefix = prefix.checked_sub(MAPPED_PREFIX).ok_or(CidrError)?;
                Ok(Self { network: mapped.into(), prefix })
            }
            _ => Ok(Self { network, prefix }),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.network, self.prefix)
    }
}

crate::plain_error! {
    /// A text that is no address range.
    pub struct CidrError = "not an address range; expected 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1";
}

/// The address with all bits after the first `prefix` cleared.
pub fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.into())).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.into())).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_shares_their_first_bits() {
        let holds = |range: &str, address: &str| {
            range.parse::<Cidr>().expect("a range").contains(address.parse().expect("an address"))
        };
        assert!(holds("10.0.0.0/8", "10.255.255.255"));
        assert!(!holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("0.0.0.0/0", "255.1.2.3"));
        assert!(holds("192.0.2.1", "192.0.2.1"));
        assert!(!holds("192.0.2.1", "192.0.2.2"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("::/0", "2001:db9::"));
        assert!(!holds("::/0", "10.0.0.1"));
        assert!(!holds("0.0.0.0/0", "2001:db9::"));
    }

    #[test]
    fn mapped_addresses_are_the_ipv4_they_carry() {
        let range: Cidr = "10.0.0.0/8".parse().expect("a range");
        assert!(range.contains("::ffff:10.0.0.1".parse().expect("an address")));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
        assert_eq!(Cidr::from(mapped), "192.0.2.1".parse().expect("a range"));
        let spelled: Cidr = "::ffff:10.0.0.0/104".parse().expect("a range");
        assert_eq!(spelled, range);
        assert_eq!("::ffff:10.0.0.0/8".parse::<Cidr>(), Err(CidrError));
        assert_eq!("::ffff:0:0/95".parse::<Cidr>(), Err(CidrError));
    }

    #[test]
    fn texts_that_are_no_range_are_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "::/129", "10/8", "10.0.0.0/+8", "a/8", "/8"]
        {
            assert_eq!(text.parse::<Cidr>(), Err(CidrError), "{text}");
        }
    }
}
