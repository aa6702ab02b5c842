//! The Redis that the environment names, as the URL of a store.

use tollway_server::config::ConfigError;

use super::variables::{Variables, wrong};

/// The URL; `None` if no Redis is named.
pub(super) fn read(variables: Variables<'_>) -> Result<Option<String>, ConfigError> {
    let Some(url) = variables.text("REDIS_URL") else { return Ok(None) };
    if url.contains("://") {
        return Ok(Some(url));
    }
    let credentials = credentials(variables.text("REDIS_AUTH").as_deref());
    let socket = variables.text_or("REDIS_SOCKET_TYPE", "unix");
    let base = if variables.flag("REDIS_TLS")? { "rediss" } else { "redis" };
    let kind = variables.text_or("REDIS_TYPE", "SINGLE");
    let single = |base: &str| Ok(Some(format!("{base}://{credentials}{url}")));
    match (kind.to_ascii_lowercase().as_str(), socket.to_ascii_lowercase().as_str()) {
        ("single", "tcp") => single(base),
        ("single", "unix") => Ok(Some(unix(&url, variables.text("REDIS_AUTH").as_deref()))),
        ("cluster", _) => single(&format!("{base}+cluster")),
        ("sentinel", _) => {
            let split = url.split_once(',');
            let (name, sentinels) =
                split.ok_or_else(|| wrong("REDIS_URL", &url, "a name, a comma and sentinels"))?;
            let own = sentinel_query(variables.text("REDIS_SENTINEL_AUTH").as_deref());
            Ok(Some(format!("{base}+sentinel://{credentials}{sentinels}/{name}{own}")))
        }
        ("single", _) => Err(wrong("REDIS_SOCKET_TYPE", &socket, "tcp or unix")),
        _ => Err(wrong("REDIS_TYPE", &kind, "SINGLE, SENTINEL or CLUSTER")),
    }
}

/// `user:password`, or a password alone.
fn split(auth: &str) -> (String, String) {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    (encoded(user), encoded(password))
}

fn credentials(auth: Option<&str>) -> String {
    auth.map(split).map(|(user, password)| format!("{user}:{password}@")).unwrap_or_default()
}

fn unix(path: &str, auth: Option<&str>) -> String {
    let query = auth.map(split).map(|(user, password)| match user.is_empty() {
        true => format!("?pass={password}"),
        false => format!("?user={user}&pass={password}"),
    });
    format!("redis+unix://{path}{}", query.unwrap_or_default())
}

fn sentinel_query(auth: Option<&str>) -> String {
    let (user, password) = match auth.map(split) {
        None => return String::new(),
        Some(both) => both,
    };
    let user = if user.is_empty() { user } else { format!("sentinel_user={user}&") };
    format!("?{user}sentinel_password={password}")
}

/// Every byte but the plainest as its number: a password may hold what ends a part of a URL.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(byte.into()),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_redis_has_its_url() {
        for (variables, expected) in [
            (&[][..], None),
            (&[("REDIS_URL", "/run/r.sock")], Some("redis+unix:///run/r.sock")),
            (&[("REDIS_URL", "rediss://h:1"), ("REDIS_TYPE", "x")], Some("rediss://h:1")),
            (
                &[("REDIS_URL", "h:6379"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_AUTH", "p@ss")],
                Some("redis://:p%40ss@h:6379"),
            ),
            (
                &[("REDIS_URL", "h:1,i:2"), ("REDIS_TYPE", "CLUSTER"), ("REDIS_TLS", "true")],
                Some("rediss+cluster://h:1,i:2"),
            ),
            (
                &[
                    ("REDIS_URL", "main,s1:26379,s2:26379"),
                    ("REDIS_TYPE", "sentinel"),
                    ("REDIS_AUTH", "app:x"),
                    ("REDIS_SENTINEL_AUTH", "y"),
                ],
                Some("redis+sentinel://app:x@s1:26379,s2:26379/main?sentinel_password=y"),
            ),
        ] {
            let lookup = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(read(Variables(&lookup)).unwrap().as_deref(), expected, "{variables:?}");
            if let Some(url) = expected {
                tollway_redis::check_url(url).unwrap();
            }
        }
    }

    #[test]
    fn a_kind_that_nobody_knows_is_told_with_those_that_are_known() {
        let lookup =
            |name: &str| Some(if name == "REDIS_TLS" { "false" } else { "udp" }.to_owned());
        let told = read(Variables(&lookup)).unwrap_err().to_string();
        let expected =
            "environment: REDIS_TYPE: found \"udp\", expected SINGLE, SENTINEL or CLUSTER";
        assert_eq!(told, expected);
    }
}
