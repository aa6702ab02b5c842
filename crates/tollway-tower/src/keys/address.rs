//! The client's address, told by the connection and by proxies that are trusted.
//!
//! Whom to believe is decided by [`ForwardedBy::client`]; here is where the connection's address is
//! found, and how an address becomes a key.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderValue};

use tollway_core::fields::ForwardedBy;
use tollway_core::{Cidr, masked};

use super::{KeyBuf, KeySource, NoKey};
use crate::Head;

/// The address of the connection, for servers that are not axum: insert it into each request's
/// extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Limits by the client's address; see the [module documentation](super).
///
/// ```
/// use tollway_tower::keys::ClientAddress;
///
/// let direct = ClientAddress::peer();
/// let behind_a_balancer = ClientAddress::behind(["10.0.0.0/8".parse()?]);
/// # let _ = (direct, behind_a_balancer);
/// # Ok::<(), tollway_tower::keys::CidrError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ClientAddress {
    trusted: Vec<Cidr>,
    header: ForwardedBy,
    v4_prefix: u8,
    v6_prefix: u8,
    /// `None` looks where servers usually attach it, without an indirect call.
    peer: Option<fn(&Extensions) -> Option<IpAddr>>,
}

impl ClientAddress {
    /// The address of the connection, whatever any header says.
    pub fn peer() -> Self {
        Self::behind([])
    }

    /// The address that proxies within `trusted` saw the request come from.
    pub fn behind(trusted: impl IntoIterator<Item = Cidr>) -> Self {
        Self {
            trusted: trusted.into_iter().collect(),
            header: ForwardedBy::default(),
            v4_prefix: 32,
            v6_prefix: 64,
            peer: None,
        }
    }

    /// Reads the hops from another header than `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded_by(self, header: ForwardedBy) -> Self {
        Self { header, ..self }
    }

    /// How many leading bits make up the key: by default 32 of IPv4, and 64 of IPv6, because there
    /// a single customer owns at least that much and could use a fresh address per request.
    #[must_use]
    pub fn grouped_by(self, v4_prefix: u8, v6_prefix: u8) -> Self {
        Self { v4_prefix: v4_prefix.min(32), v6_prefix: v6_prefix.min(128), ..self }
    }

    /// Finds the connection's address by `peer` instead of in [`PeerAddr`] or axum's `ConnectInfo`.
    #[must_use]
    pub fn peer_from(self, peer: fn(&Extensions) -> Option<IpAddr>) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// The client's address, if the connection's is known.
    #[inline]
    pub fn find(&self, head: &Head<'_>) -> Option<IpAddr> {
        let peer = match self.peer {
            None => attached_peer(head.extensions)?.ip(),
            Some(peer) => peer(head.extensions)?,
        };
        let peer = peer.to_canonical();
        if self.trusted.is_empty() || !self.trusts(peer) {
            return Some(peer);
        }
        Some(self.find_behind(peer, head))
    }

    fn find_behind(&self, peer: IpAddr, head: &Head<'_>) -> IpAddr {
        let lines = head.headers.get_all(self.header.field()).into_iter();
        self.header.client(peer, &self.trusted, lines.map(HeaderValue::as_bytes))
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|range| range.contains(address))
    }
}

impl KeySource for ClientAddress {
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        if !self.trusted.is_empty() || self.peer.is_some() {
            return self.write_found(head, key);
        }
        match attached_peer(head.extensions) {
            // The commonest case, without a look at what only others need.
            Some(SocketAddr::V4(peer)) if self.v4_prefix == 32 => {
                push_v4(key, peer.ip().octets());
                Ok(())
            }
            Some(peer) => {
                self.push(peer.ip().to_canonical(), key);
                Ok(())
            }
            None => Err(NoKey::Missing),
        }
    }
}

impl ClientAddress {
    #[inline(never)]
    fn write_found(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        self.push(self.find(head).ok_or(NoKey::Missing)?, key);
        Ok(())
    }

    #[inline(never)]
    fn push(&self, client: IpAddr, key: &mut KeyBuf) {
        match client {
            IpAddr::V4(v4) if self.v4_prefix == 32 => push_v4(key, v4.octets()),
            v4 @ IpAddr::V4(_) => push_range(key, v4, self.v4_prefix),
            v6 @ IpAddr::V6(_) => push_range(key, v6, self.v6_prefix),
        }
    }
}

/// Every octet in decimal with a dot after it, first character lowest, and how many bits that is.
static OCTETS: [(u32, u32); 256] = {
    let mut octets = [(0, 0); 256];
    let mut octet: u32 = 0;
    while octet < 256 {
        let (hundreds, tens, ones) = (octet / 100, octet / 10 % 10, octet % 10);
        let (digits, count) = match octet {
            0..10 => ([ones, 0, 0], 1),
            10..100 => ([tens, ones, 0], 2),
            _ => ([hundreds, tens, ones], 3),
        };
        let mut text = (b'.' as u32) << (8 * count);
        let mut place = 0;
        while place < count {
            text |= (digits[place] + b'0' as u32) << (8 * place);
            place += 1;
        }
        octets[octet as usize] = (text, 8 * (count as u32 + 1));
        octet += 1;
    }
    octets
};

/// Put together in a register because this runs on every request: the formatting machinery costs
/// as much as the limit check itself, and bytes stored one by one are slow to read as a whole.
#[inline]
fn push_v4(key: &mut KeyBuf, [a, b, c, d]: [u8; 4]) {
    let pair = |first: u8, second: u8| {
        let (digits, width) = OCTETS[usize::from(first)];
        let (more_digits, more_width) = OCTETS[usize::from(second)];
        (u64::from(digits) | u64::from(more_digits) << width, width + more_width)
    };
    let ((front, front_bits), (back, back_bits)) = (pair(a, b), pair(c, d));
    let text = u128::from(front) | u128::from(back) << front_bits;
    // Without the last dot: at most 15 characters.
    key.push_short(text, (front_bits + back_bits) as usize / 8 - 1);
}

fn push_range(key: &mut KeyBuf, address: IpAddr, prefix: u8) {
    // Writing into a buffer in memory cannot fail.
    let _ = write!(key, "{}/{prefix}", masked(address, prefix));
}

#[inline]
fn attached_peer(extensions: &Extensions) -> Option<&SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(&info.0);
    }
    inserted_peer(extensions)
}

/// Apart: who is found at the first look does not pay for a second one's registers.
#[inline(never)]
fn inserted_peer(extensions: &Extensions) -> Option<&SocketAddr> {
    extensions.get::<PeerAddr>().map(|peer| &peer.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_keys_are_the_address_in_decimal() {
        for octets in [[0, 0, 0, 0], [255, 255, 255, 255], [10, 9, 100, 1], [192, 0, 2, 99]] {
            let mut key = KeyBuf::new();
            push_v4(&mut key, octets);
            assert_eq!(key.bytes(), std::net::Ipv4Addr::from(octets).to_string().as_bytes());
        }
    }
}
