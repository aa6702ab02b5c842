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
    /// No prefix: the keys of the first version of seed 003, one credential per store.
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
        use std::fmt::Write as _;
        let digest = ring::digest::digest(&ring::digest::SHA256, credential);
        let mut hex = String::with_capacity(32);
        for byte in &digest.as_ref()[..16] {
            let _ = write!(hex, "{byte:02x}");
        }
        Self(format!("{{{hex}}}:").into())
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

pub(super) const WAKE: &str = "tollgate:wake:";
pub(super) const RENAMED: &str = "tollgate:renamed";

/// The keys of a bucket and of one lane in it, in the order of the scripts.
#[derive(Clone, Debug)]
pub(super) struct Keys(pub(super) [String; 8]);

impl Keys {
    pub(super) fn new(prefix: &Prefix, bucket: &str, lane: &str, exempt_from_global: bool) -> Self {
        let of = |rest: &str| format!("{}{bucket}:{rest}", prefix.as_str());
        // Nobody writes the second of these: a request that the global limit does not count must
        // not wait for it.
        let global = if exempt_from_global { "tollgate:none" } else { "global" };
        Self([
            of("remaining"),
            of("limit"),
            prefix.key(global),
            of("tollgate:leases"),
            of("tollgate:window"),
            of("tollgate:waiting"),
            of("tollgate:alive"),
            of(&format!("tollgate:block:{}", cut(lane))),
        ])
    }
}

/// Where a route's lane in a bucket is blocked by refusals that concern it alone.
pub(super) fn lane_of(route: &Route) -> String {
    match route.lane() {
        Some(lane) => cut(lane).to_owned(),
        None => cut(&format!("{} {}", route.method(), route.path())).to_owned(),
    }
}

/// What the names learned from the upstream are kept by.
pub(super) fn template_of(route: &Route) -> String {
    cut(&format!("{} {}", route.method(), route.template())).to_owned()
}

/// The bucket of a route of which the upstream's name is `learned`, if it is.
pub(super) fn bucket_of(naming: Naming, route: &Route, learned: Option<&str>) -> String {
    if naming == Naming::Spectacles {
        return cut(&spectacles_of(route)).to_owned();
    }
    match learned.or(route.class()) {
        Some(name) => cut(&format!("{name}:{}", route.major())).to_owned(),
        None => cut(&format!("{} {}", route.method(), route.path())).to_owned(),
    }
}

/// The route as Spectacles clients write it: no leading slash, and the method only where a message
/// is deleted, which has a limit of its own.
fn spectacles_of(route: &Route) -> String {
    let path = route.path();
    if route.method().eq_ignore_ascii_case("DELETE") && path.ends_with("/messages/:id") {
        return format!("delete{path}");
    }
    path.to_owned()
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
    fn keys_are_those_of_seed_003() {
        let [remaining, limit, global, ..] =
            Keys::new(&Prefix::named("bot1"), "/channels/1/messages", "", false).0;
        assert_eq!(remaining, "bot1:/channels/1/messages:remaining");
        assert_eq!(limit, "bot1:/channels/1/messages:limit");
        assert_eq!(global, "bot1:global");
        assert_eq!(Keys::new(&Prefix::none(), "r", "", false).0[2], "global");
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
