//! Where the proxy's own pages are: an address, a prefix on the address of the proxy, or nowhere.
//!
//! Every path of the address that clients use is the upstream's: Shopify's whole API is below
//! `/admin/`. So the pages have an address of their own unless a prefix is asked for.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use tokio::net::TcpListener;
use tracing::warn;

/// Where they are if nothing is said.
const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8091);

/// What `--admin` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AdminPlace {
    Address(SocketAddr),
    /// Begins with a slash and ends with none.
    Prefix(String),
    Off,
}

impl FromStr for AdminPlace {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        if !text.starts_with('/') {
            let expected = "expected 127.0.0.1:8091, a prefix such as /-/tollway, or off";
            return text.parse().map(Self::Address).map_err(|_| expected);
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
        if text.ends_with('/') || text.contains("//") || !text.bytes().all(is_plain) {
            return Err("a prefix is a path such as /-/tollway, without a slash at its end");
        }
        Ok(Self::Prefix(text.to_owned()))
    }
}

impl AdminPlace {
    pub(super) fn prefix(place: Option<&Self>) -> Option<String> {
        match place {
            Some(Self::Prefix(prefix)) => Some(prefix.clone()),
            _ => None,
        }
    }

    /// Listens for the pages, if they have an address.
    ///
    /// # Errors
    ///
    /// If the address that was asked for cannot be had. The default may be taken, by a second proxy
    /// on this machine: then the pages are on a free port, for requests are to be forwarded
    /// nevertheless.
    pub(super) async fn listen(
        place: Option<&Self>,
        proxy: SocketAddr,
    ) -> Result<Option<TcpListener>> {
        match place {
            Some(Self::Off | Self::Prefix(_)) => Ok(None),
            Some(Self::Address(address)) if *address == proxy && proxy.port() != 0 => {
                bail!(
                    "--admin {address} is the address of --listen: every path there is the \
                       upstream's; name another, or a prefix such as /-/tollway"
                )
            }
            Some(Self::Address(address)) => Ok(Some(super::bind(*address).await?)),
            None => {
                let listener = match TcpListener::bind(DEFAULT).await {
                    Ok(listener) => listener,
                    Err(why) => instead(&why).await.context("no port is free for the own pages")?,
                };
                Ok(Some(listener))
            }
        }
    }
}

async fn instead(why: &io::Error) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let found = listener.local_addr()?;
    warn!("the proxy's own pages are on {found}, not on {DEFAULT}: {why}; --admin chooses");
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_a_prefix_or_nowhere() {
        let read = |text: &str| text.parse::<AdminPlace>();
        assert_eq!(read("off"), Ok(AdminPlace::Off));
        assert_eq!(read("127.0.0.1:8091"), Ok(AdminPlace::Address(DEFAULT)));
        assert_eq!(read("/-/tollway"), Ok(AdminPlace::Prefix("/-/tollway".to_owned())));
        for wrong in ["", "8091", "localhost", "/", "/a/", "//a", "/a?b", "/a b", "/%2f"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
