//! Where a store is: the URLs that name servers, sentinels, clusters and Tollway services.
//!
//! | URL | means |
//! |---|---|
//! | `redis://[user:password@]host[:port][/db]` | one server |
//! | `redis+unix:///path[?db=n]` | one server on this host |
//! | `redis+sentinel://[user:password@]host[:port],…/name[/db]` | the primary of that name |
//! | `redis+cluster://[user:password@]host[:port],…` | the cluster that these nodes belong to |
//!
//! `rediss` in place of `redis` means TLS. User and password are those of the servers; those of the
//! sentinels, if they want any, follow as `?sentinel_user=…&sentinel_password=…`, either or both,
//! percent-encoded like everything in a URL.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tollway_core::{ErrorKind, StoreError};

/// Whether a URL names a store that this crate can speak to: a Redis or Valkey, or another Tollway.
/// Nobody is connected to.
///
/// # Errors
///
/// [`ErrorKind::Misuse`] if it names none. The text does not repeat the URL, which may hold a
/// password.
pub fn check_url(url: &str) -> Result<(), StoreError> {
    if url.starts_with("tollway") { service(url).map(drop) } else { Address::parse(url).map(drop) }
}

/// Where the store is.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    One(ConnectionInfo),
    Sentinel { sentinels: Vec<ConnectionInfo>, name: String, primary: ConnectionInfo },
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// The address that a URL names.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| misuse("a URL has a scheme"))?;
        let (base, sort) = scheme.split_once('+').unwrap_or((scheme, ""));
        match sort {
            "sentinel" => Self::parse_sentinel(base, rest),
            "cluster" => Ok(Self::Cluster(hosts(base, rest, "")?)),
            _ => Ok(Self::One(info(url)?)),
        }
    }

    fn parse_sentinel(base: &str, rest: &str) -> Result<Self, StoreError> {
        let usage = "a sentinel URL is redis+sentinel://host:port,host:port/name[/db]\
                     [?sentinel_user=user&sentinel_password=password]";
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').ok_or_else(|| misuse(usage))?;
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(misuse(usage));
        }
        let listed = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let credentials = sentinel_credentials(query).ok_or_else(|| misuse(usage))?;
        let sentinels = hosts(base, &format!("{credentials}{listed}"), "26379")?;
        let primary = hosts(base, &format!("{authority}/{db}"), "")?;
        let primary = primary.into_iter().next().ok_or_else(|| misuse(usage))?;
        Ok(Self::Sentinel { sentinels, name: name.to_owned(), primary })
    }
}

/// What a URL's query says of the sentinels' user, as it stands before their hosts.
fn sentinel_credentials(query: &str) -> Option<String> {
    let (mut user, mut password) = ("", "");
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("sentinel_user", value) => user = value,
            ("sentinel_password", value) => password = value,
            _ => return None,
        }
    }
    let none = user.is_empty() && password.is_empty();
    Some(if none { String::new() } else { format!("{user}:{password}@") })
}

/// The address of a Tollway service: `tollway://[:token@]host[:port]`, `tollways` with TLS,
/// `tollway+unix:///path`.
pub(crate) fn service(url: &str) -> Result<ConnectionInfo, StoreError> {
    let usage = "a service's URL is tollway://[:token@]host[:port] or tollway+unix:///path";
    let (scheme, rest) = url.split_once("://").ok_or_else(|| misuse(usage))?;
    let base = match scheme {
        "tollway" => "redis",
        "tollways" => "rediss",
        "tollway+unix" => return info(&format!("redis+unix://{rest}")),
        _ => return Err(misuse(usage)),
    };
    hosts(base, rest, "6380")?.into_iter().next().ok_or_else(|| misuse(usage))
}

/// One connection info per host of a list, each with the user, the password and the path.
fn hosts(base: &str, rest: &str, default_port: &str) -> Result<Vec<ConnectionInfo>, StoreError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, listed) = match authority.rsplit_once('@') {
        Some((user, listed)) => (format!("{user}@"), listed),
        None => (String::new(), authority),
    };
    let one = |host: &str| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if has_port || default_port.is_empty() {
            String::new()
        } else {
            format!(":{default_port}")
        };
        info(&format!("{base}://{user}{host}{port}/{path}"))
    };
    listed.split(',').map(one).collect()
}

fn info(url: &str) -> Result<ConnectionInfo, StoreError> {
    let info = url.into_connection_info().map_err(|error| {
        misuse("the store's URL is not valid; expected redis://[user:password@]host[:port][/db]")
            .caused_by(error)
    })?;
    // Without it a request may wait for the acknowledgement of the one before.
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// The same server at another host and port, as sentinels and clusters name them.
pub(crate) fn at(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    };
    info.clone().set_addr(addr)
}

pub(crate) fn unavailable(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, message)
}

pub(crate) fn misuse(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Misuse, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_servers_sentinels_and_clusters() {
        let parse = |url: &str| Address::parse(url).unwrap();
        assert!(matches!(parse("redis://h:1/2"), Address::One(_)));
        let Address::Sentinel { sentinels, name, primary } =
            parse("redis+sentinel://u:p@a,b:7/main/3")
        else {
            panic!("a sentinel URL");
        };
        let addresses: Vec<_> = sentinels.iter().map(|info| info.addr().to_string()).collect();
        assert_eq!(addresses, ["a:26379", "b:7"]);
        assert_eq!((name.as_str(), primary.redis_settings().db()), ("main", 3));
        assert_eq!(primary.redis_settings().username(), Some("u"));
        assert_eq!(sentinels[0].redis_settings().password(), None);
        let Address::Cluster(nodes) = parse("redis+cluster://u:p@a:1,b:2") else {
            panic!("a cluster URL");
        };
        assert_eq!(nodes.len(), 2);
        assert!(nodes[1].tcp_settings().nodelay());
        assert_eq!(nodes[1].redis_settings().password(), Some("p"));
    }

    #[test]
    fn sentinels_may_want_credentials_of_their_own() {
        let url =
            "redis+sentinel://app:p%40ss@s1:1,s2/main/2?sentinel_user=ask&sentinel_password=a%3Fb";
        let Ok(Address::Sentinel { sentinels, name, primary }) = Address::parse(url) else {
            panic!("{url}");
        };
        let redis = primary.redis_settings();
        assert_eq!((redis.username(), redis.password()), (Some("app"), Some("p@ss")));
        assert_eq!((name.as_str(), redis.db()), ("main", 2));
        assert_eq!(sentinels.len(), 2);
        for sentinel in &sentinels {
            let redis = sentinel.redis_settings();
            assert_eq!((redis.username(), redis.password()), (Some("ask"), Some("a?b")));
        }
        for wrong in ["?user=x", "?sentinel_user"] {
            assert!(
                Address::parse(&format!("redis+sentinel://s1/main{wrong}")).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_url_is_checked_without_connecting() {
        for url in ["redis://h", "rediss://u:p@h:1/2", "redis+cluster://a,b", "tollway://:t@h"] {
            assert!(check_url(url).is_ok(), "{url}");
        }
        for url in ["memcached://x", "tollwayx://h", "h:6379", "redis://:s3cret@h:notaport"] {
            let wrong = check_url(url).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Misuse, "{url}");
            assert!(!wrong.to_string().contains("s3cret"));
        }
    }

    #[test]
    fn a_url_that_names_nothing_is_misuse() {
        for url in ["", "redis:/x", "http://x", "redis+sentinel://a", "redis+sentinel://a/"] {
            assert_eq!(Address::parse(url).unwrap_err().kind(), ErrorKind::Misuse, "{url}");
        }
    }
}
