//! Where a front listens: an address and port, or a Unix socket.

mod unix;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

pub use unix::UnixSocket;

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and port.
    Tcp(SocketAddr),
    /// A Unix socket: `unix:/run/tollway.sock`, with `?mode=0660&group=www-data` if others are to
    /// connect.
    Unix(UnixSocket),
}

impl Endpoint {
    /// A port of this machine that only it can reach.
    pub const fn loopback(port: u16) -> Self {
        Self::Tcp(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// Whether not both can be listened on.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                // `[::]` takes the addresses of IPv4 as well.
                let covers = |one: &SocketAddr, other: &SocketAddr| {
                    one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4())
                };
                let overlap = one.ip() == other.ip() || covers(one, other) || covers(other, one);
                one.port() == other.port() && one.port() != 0 && overlap
            }
            (Self::Unix(one), Self::Unix(other)) => one.path == other.path,
            _ => false,
        }
    }

    /// Whether it could be listened on just now, as far as that can be tried.
    ///
    /// # Errors
    ///
    /// If it could not: taken, not permitted, or no address of this machine.
    pub(crate) fn try_out(&self) -> io::Result<()> {
        match self {
            Self::Tcp(address) => std::net::TcpListener::bind(address).map(drop),
            Self::Unix(socket) => socket.try_out(),
        }
    }

    /// Whether only this machine can connect.
    pub const fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(socket) = text.strip_prefix("unix:") {
            return socket.parse().map(Self::Unix);
        }
        let right = "expected 127.0.0.1:8080, [::1]:8080 or unix:/run/tollway.sock";
        text.parse()
            .map(Self::Tcp)
            .map_err(|_| format!("{text:?} is not an address to listen on; {right}"))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(socket) => socket.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_addresses_collide_if_one_covers_the_other() {
        let collide = |one: &str, other: &str| {
            let endpoint = |text: &str| text.parse::<Endpoint>().unwrap();
            let (one, other) = (endpoint(one), endpoint(other));
            assert_eq!(one.collides(&other), other.collides(&one));
            one.collides(&other)
        };
        assert!(collide("127.0.0.1:80", "127.0.0.1:80") && collide("0.0.0.0:80", "127.0.0.1:80"));
        assert!(collide("[::]:80", "127.0.0.1:80") && collide("[::]:80", "[::1]:80"));
        assert!(!collide("0.0.0.0:80", "[::1]:80") && !collide("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!collide("127.0.0.1:0", "127.0.0.1:0"), "each gets a port of its own");
    }
}
