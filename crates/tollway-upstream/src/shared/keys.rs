//! The names of keys and channels, drawn in `scripts/bucket.lua`.

use std::fmt;
use std::sync::Arc;

use super::Naming;
use crate::profile::{Route, RouteFields};

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

/// The keys of a group, in the order of the scripts: the last two in a fleet with old clients.
#[derive(Clone, Debug)]
pub(super) struct Keys(pub(super) Vec<String>);

impl Keys {
    pub(super) fn new(prefix: &Prefix, group: &str, has_old_clients: bool) -> Self {
        let mut keys = vec![
            prefix.key("tollway:account"),
            prefix.key(&format!("tollway:budgets:{group}")),
            prefix.key("global"),
        ];
        if has_old_clients {
            keys.extend([":remaining", ":limit"].map(|end| prefix.key(&[group, end].concat())));
        }
        Self(keys)
    }
}

/// A route as the documents name it, without what may be secret; in a fleet with old clients its
/// bucket has the name that they give it.
pub(super) fn stored_route(naming: Naming, route: &Route) -> Route {
    let (class, major) = match naming {
        Naming::Learned => (route.class().map(Box::from), veiled(route.major()).into()),
        Naming::Spectacles => (Some(cut(&spectacles_of(route)).into()), "".into()),
    };
    let name = match naming {
        Naming::Learned => veiled(route.name()),
        Naming::Spectacles => format!("{} {}", route.method(), veiled(route.path())),
    };
    let shape = (route.shape() != route.name()).then(|| cut(&veiled(route.shape())).into());
    Route::of_fields(RouteFields {
        name: cut(&name).into(),
        major,
        class,
        shape,
        lane: route.lane().map(|lane| cut(lane).into()),
        exempt_global: route.is_exempt_from_global(),
        ..RouteFields::default()
    })
}

/// The group of the bucket of a stored route.
pub(super) fn group_of(naming: Naming, is_one_group: bool, route: &Route) -> &str {
    match naming {
        _ if is_one_group => "",
        Naming::Learned => route.major(),
        Naming::Spectacles => route.class().unwrap_or_default(),
    }
}

/// What limits that the profile states for a route are counted by.
pub(super) fn stated_name(route: &Route) -> String {
    format!("{}:{}", route.class().unwrap_or(route.name()), route.major())
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
        let keys = Keys::new(&prefix, "b", true);
        assert!(keys.0.iter().all(|key| key.starts_with(text)));
    }

    #[test]
    fn keys_are_those_of_spectacles() {
        let keys = Keys::new(&Prefix::named("bot1"), "/channels/1/messages", true).0;
        assert_eq!(keys[3], "bot1:/channels/1/messages:remaining");
        assert_eq!(keys[4], "bot1:/channels/1/messages:limit");
        assert_eq!(keys[2], "bot1:global");
        assert_eq!(Keys::new(&Prefix::none(), "r", true).0[2], "global");
    }

    #[test]
    fn routes_are_named_as_spectacles_clients_name_them() {
        let name = |method: &str, path: &str| {
            let route = stored_route(Naming::Spectacles, &Route::new(method, path, ""));
            group_of(Naming::Spectacles, false, &route).to_owned()
        };
        assert_eq!(name("GET", "/channels/1/messages"), "/channels/1/messages");
        let deleted = name("DELETE", "/channels/1/messages/:id");
        assert_eq!(deleted, "delete/channels/1/messages/:id");
        let token = "t".repeat(68);
        assert_eq!(name("POST", &format!("/webhooks/7/{token}")), "/webhooks/7/:token");
    }

    #[test]
    fn no_secret_of_a_path_gets_into_a_document() {
        let token = "s".repeat(68);
        let route = Route::new("POST", &format!("/webhooks/7/{token}"), &format!("7/{token}"));
        for naming in [Naming::Learned, Naming::Spectacles] {
            let stored = format!("{:?}", stored_route(naming, &route));
            assert!(!stored.contains(&token) && stored.contains('~'), "{stored}");
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
