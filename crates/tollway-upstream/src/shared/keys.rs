//! The names of keys and channels, drawn in `scripts/bucket.lua`.

use std::fmt;
use std::sync::Arc;

use super::Naming;
use crate::profile::Route;

/// What the keys of one credential start with.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Prefix(Arc<str>);

/// Longer names are cut: keys are made of what clients send.
const NAME_MAX: usize = 512;

impl Prefix {
    /// No prefix: the keys of the first Spectacles version, one credential per store.
    #[must_use]
    pub fn none() -> Self {
        Self("".into())
    }

    /// `<name>:`, as existing clients write it. In a cluster the name must have a hash tag
    /// (`{name}`), so that all keys of a bucket are on one server.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(format!("{}:", cut(name)).into())
    }

    /// A hash of the credential in braces: tells nothing of the credential, and works in a cluster.
    #[must_use]
    pub fn of_credential(credential: &[u8]) -> Self {
        Self(format!("{{{}}}:", hex(credential, 16)).into())
    }

    /// The prefix as it stands before a key, with its colon.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    /// The channel on which a process is woken, without its name.
    pub(super) fn wake_channel(&self) -> String {
        self.key(WAKE)
    }

    /// The pattern of the counters of all buckets, for `SCAN`.
    pub(super) fn counters(&self) -> String {
        let mut pattern = String::new();
        for char in self.0.chars() {
            if matches!(char, '*' | '?' | '[' | ']' | '\\') {
                pattern.push('\\');
            }
            pattern.push(char);
        }
        pattern + "*:remaining"
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefix({})", self.0)
    }
}

pub(super) const WAKE: &str = "tollway:wake:";
pub(super) const RENAMED: &str = "tollway:renamed";

/// The keys of a bucket and of one lane in it, in the order of the scripts.
#[derive(Clone, Debug)]
pub(super) struct Keys(pub(super) [String; 16]);

impl Keys {
    pub(super) fn new(prefix: &Prefix, bucket: &str, lane: &str, exempt_from_global: bool) -> Self {
        let of = |rest: &str| format!("{}{bucket}:{rest}", prefix.as_str());
        // Nobody writes the second of these: a request that the global limit does not count must
        // not wait for it.
        let global = if exempt_from_global { "tollway:none" } else { "global" };
        Self([
            of("remaining"),
            of("limit"),
            prefix.key(global),
            of("tollway:leases"),
            of("tollway:window"),
            of("tollway:waiting"),
            of("tollway:alive"),
            of(&format!("tollway:block:{}", cut(lane))),
            of("tollway:quick"),
            of("tollway:meters"),
            prefix.key("tollway:meters"),
            prefix.key("tollway:flights"),
            of("tollway:low"),
            of("tollway:foreign"),
            prefix.key("tollway:waiting"),
            prefix.key("tollway:alive"),
        ])
    }

    /// Those of the quickest way, in its order; the last two are for a fleet with old clients.
    pub(super) fn quick(&self, naming: Naming) -> Vec<String> {
        let indices: &[usize] = match naming {
            Naming::Learned => &[0, 8, 2, 5, 7],
            Naming::Spectacles => &[0, 8, 2, 5, 7, 12, 13],
        };
        indices.iter().map(|index| self.0[*index].clone()).collect()
    }
}

/// Where a route's lane in a bucket is blocked by refusals that concern it alone.
pub(super) fn sub_limit_of(route: &Route) -> String {
    match route.lane() {
        Some(lane) => cut(lane).to_owned(),
        None => cut(&format!("{} {}", route.method(), veiled(route.path()))).to_owned(),
    }
}

/// What the names learned from the upstream are kept by: the route, even where the profile knows a
/// class for it, because the upstream may count it elsewhere.
pub(super) fn template_of(route: &Route) -> String {
    cut(route.shape()).to_owned()
}

/// The bucket of a route of which the upstream's name is `learned`, if it is.
pub(super) fn bucket_of(naming: Naming, route: &Route, learned: Option<&str>) -> String {
    if naming == Naming::Spectacles {
        return cut(&spectacles_of(route)).to_owned();
    }
    match learned.or(route.class()) {
        Some(name) => cut(&format!("{name}:{}", veiled(route.major()))).to_owned(),
        None => cut(&format!("{} {}", route.method(), veiled(route.path()))).to_owned(),
    }
}

/// A path without the secrets that are part of it, such as the tokens of webhooks.
fn veiled(path: &str) -> String {
    let veil = |segment: &str| match segment.len() {
        0..40 => segment.to_owned(),
        _ => format!("~{}", hex(segment.as_bytes(), 8)),
    };
    path.split('/').map(veil).collect::<Vec<_>>().join("/")
}

/// The first bytes of a digest, as text.
fn hex(secret: &[u8], bytes: usize) -> String {
    use std::fmt::Write as _;
    let digest = ring::digest::digest(&ring::digest::SHA256, secret);
    let mut text = String::with_capacity(2 * bytes);
    for byte in &digest.as_ref()[..bytes] {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The route as Spectacles clients write it: without the tokens of webhooks, and with the method
/// only where a message is deleted, which has a limit of its own.
fn spectacles_of(route: &Route) -> String {
    let mut segments: Vec<&str> = route.path().split('/').collect();
    if let ["", "webhooks", _, token, ..] = &mut segments[..]
        && token.len() >= 64
    {
        *token = ":token";
    }
    let path = segments.join("/");
    if route.method().eq_ignore_ascii_case("DELETE") && path.ends_with("/messages/:id") {
        return format!("delete{path}");
    }
    path
}

fn cut(name: &str) -> &str {
    match name.char_indices().nth(NAME_MAX) {
        Some((at, _)) => &name[..at],
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_tells_nothing_of_the_credential_and_chooses_one_slot() {
        let prefix = Prefix::of_credential(b"Bot secret");
        let text = prefix.as_str();
        assert!(text.starts_with('{') && text.ends_with("}:") && text.len() == 35);
        assert!(!text.contains("secret"));
        assert_ne!(prefix, Prefix::of_credential(b"Bot other"));
        let keys = Keys::new(&prefix, "b", "l", false);
        assert!(keys.0.iter().all(|key| key.starts_with(text)));
    }

    #[test]
    fn keys_are_those_of_spectacles() {
        let [remaining, limit, global, ..] =
            Keys::new(&Prefix::named("bot1"), "/channels/1/messages", "", false).0;
        assert_eq!(remaining, "bot1:/channels/1/messages:remaining");
        assert_eq!(limit, "bot1:/channels/1/messages:limit");
        assert_eq!(global, "bot1:global");
        assert_eq!(Keys::new(&Prefix::none(), "r", "", false).0[2], "global");
    }

    #[test]
    fn routes_are_named_as_spectacles_clients_name_them() {
        let name = |method: &str, path: &str| {
            bucket_of(Naming::Spectacles, &Route::new(method, path, ""), None)
        };
        assert_eq!(name("GET", "/channels/1/messages"), "/channels/1/messages");
        let deleted = name("DELETE", "/channels/1/messages/:id");
        assert_eq!(deleted, "delete/channels/1/messages/:id");
        let token = "t".repeat(68);
        assert_eq!(name("POST", &format!("/webhooks/7/{token}")), "/webhooks/7/:token");
    }

    #[test]
    fn no_secret_of_a_path_gets_into_a_key() {
        let token = "s".repeat(68);
        let route = Route::new("POST", &format!("/webhooks/7/{token}"), &format!("7/{token}"));
        for name in [
            bucket_of(Naming::Learned, &route, None),
            bucket_of(Naming::Learned, &route, Some("abc")),
            sub_limit_of(&route),
        ] {
            assert!(!name.contains(&token) && name.contains("7/~"), "{name}");
        }
    }

    #[test]
    fn a_pattern_matches_a_prefix_as_it_is_written() {
        assert_eq!(Prefix::named("a*[b]").counters(), "a\\*\\[b\\]:*:remaining");
    }

    #[test]
    fn a_long_name_is_cut_at_a_character() {
        let name = "é".repeat(600);
        assert_eq!(cut(&name).chars().count(), NAME_MAX);
    }
}
