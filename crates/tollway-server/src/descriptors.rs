//! Descriptor rules: which limit Envoy's lists of keys and values ask for.
//!
//! A domain is a tree; a descriptor walks it entry by entry and must end at a node with a limit:
//!
//! ```text
//!   domain "edge"
//!   └─ path = /login   limit 5/minute                   [(path, /login)]           -> 5/minute
//!      └─ user         limit 2/minute, per value        [(path, /login), (user, x)] -> 2/minute
//! ```
//!
//! At each level an exact value is tried first, then wildcards in the order of the file, then the
//! bare key, as envoyproxy/ratelimit does. The walk does not go back: a branch once taken is taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollway_core::{Key, Policy};

use crate::config_line::ConfigLine;
use crate::metrics::Tally;
use crate::pattern::Pattern;

/// The rules of one domain.
#[derive(Debug, Default)]
pub struct Domain {
    name: String,
    root: Node,
}

/// A place in the tree.
#[derive(Debug, Default)]
pub struct Node {
    /// The limit for descriptors that end here.
    pub limit: Option<Limit>,
    /// Whether counts below here are kept for each value that led here (`value_to_metric`).
    pub tells_value: bool,
    exact: HashMap<String, HashMap<String, Node>>,
    wildcards: Vec<(String, Wildcard)>,
    /// Keys and values of the wildcards: a program may write thousands, and each is looked up here.
    wildcard_names: HashSet<(String, String)>,
    bare: HashMap<String, Node>,
}

/// A branch for all values that a pattern matches.
#[derive(Debug)]
struct Wildcard {
    pattern: Pattern,
    /// Whether these values share one count.
    shares_count: bool,
    node: Node,
}

/// Which values lead to a branch of the tree.
#[derive(Clone, Copy, Debug)]
pub enum DescriptorValues<'a> {
    /// Any that no other branch of the key takes.
    Any,
    /// This one.
    One(&'a str),
    /// All that a pattern with `*` matches, and whether they share one count.
    Matching(&'a str, bool),
}

/// What holds for the descriptors that end at a node.
#[derive(Debug)]
pub struct Limit {
    /// The policy; `None` for no limit at all.
    pub(crate) policy: Option<Policy>,
    /// Whether everything is denied: a limit of zero.
    pub deny_all: bool,
    /// Decide and count, but never deny.
    pub shadow: bool,
    /// Denies only together with every other limit in this mode.
    pub quota_mode: bool,
    /// Say that the store is unavailable rather than answer in its place.
    pub unavailable_on_store_error: bool,
    /// The name by which other limits replace it.
    pub name: Option<String>,
    /// The names of limits that do not count if this one matches in the same request.
    pub replaces: Vec<String>,
    /// What the proxy is told when a request matches and passes.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Where it stands in the configuration.
    pub place: ConfigLine,
    /// Its keys and values as the configuration has them, under which its decisions are counted.
    pub path: String,
    /// Whether they are counted for all values of a request (`detailed_metric`).
    pub tells_values: bool,
    /// Where its decisions are counted.
    pub tally: Arc<Tally>,
}

/// A limit found, and the key to count under.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// Who is limited: the domain and the descriptor, with wildcards for values that are shared.
    pub key: Vec<u8>,
    /// The keys and values under which this request is counted, if not those of the limit.
    pub counted_as: Option<String>,
}

/// How a value led to a branch.
#[derive(Clone, Copy)]
enum Led<'a> {
    /// It is named.
    Exact,
    /// It matches this pattern, and whether such values share one count.
    Wildcard(&'a Pattern, bool),
    /// Any value does.
    Any,
}

/// Ends each part of a key.
const SEPARATOR: u8 = 0x1f;
/// Stands before one of these two bytes where it belongs to a part itself.
const MARK: u8 = 0x10;

/// Adds a part to a key, so that no two lists of parts make the same one: parts are chosen by who
/// is limited.
pub(crate) fn push_part(key: &mut Vec<u8>, part: &[u8]) {
    let is_special = |byte: &u8| matches!(*byte, SEPARATOR | MARK);
    if part.iter().any(is_special) {
        for byte in part {
            key.extend(is_special(byte).then_some(MARK));
            key.push(*byte);
        }
    } else {
        key.extend_from_slice(part);
    }
    key.push(SEPARATOR);
}

/// The parts that make a key; `None` if [`push_part`] has not made it.
pub(crate) fn parts(key: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut parts, mut part) = (Vec::new(), Vec::new());
    let mut bytes = key.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            SEPARATOR => parts.push(std::mem::take(&mut part)),
            MARK => part.push(bytes.next().filter(|byte| matches!(*byte, SEPARATOR | MARK))?),
            byte => part.push(byte),
        }
    }
    (part.is_empty() && !parts.is_empty()).then_some(parts)
}

/// What stands for a key that is longer than a store takes; `None` for others. Refused, a
/// descriptor would pass at a proxy that lets requests through when the service has no answer.
///
/// No list of parts makes it: there a mark always stands before one of the two special bytes.
pub(crate) fn digest(key: &[u8]) -> Option<Vec<u8>> {
    let is_long = key.len() > Key::LEN_MAX;
    let digest = || ring::digest::digest(&ring::digest::SHA256, key);
    is_long.then(|| [&[MARK, b'#'], digest().as_ref()].concat())
}

impl Domain {
    /// The rules of the domain `name`.
    pub const fn new(name: String, root: Node) -> Self {
        Self { name, root }
    }

    /// Where its rules begin, to add to them.
    pub(crate) const fn root_mut(&mut self) -> &mut Node {
        &mut self.root
    }

    /// Every limit of it.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.root.limits()
    }

    /// The domain's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy of this name, if one of the rules has it.
    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies().find(|policy| policy.name() == name)
    }

    /// The policies of all rules.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.limits().filter_map(|limit| limit.policy.as_ref())
    }

    /// The limit for entries whose order means nothing: that of the first order, by their keys, in
    /// which the tree has one.
    pub(crate) fn find_in_any_order(&self, entries: &[(&str, &str)]) -> Option<Found<'_>> {
        let mut order = Vec::with_capacity(entries.len());
        let mut entries = entries.to_vec();
        entries.sort_unstable();
        self.root.leads_on(&entries, &mut order).then(|| self.find(&order))?
    }

    /// The limit for a descriptor with these entries.
    pub(crate) fn find(&self, entries: &[(&str, &str)]) -> Option<Found<'_>> {
        let mut node = &self.root;
        // For each entry how it led on, and whether its value is told.
        let mut way = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (next, led) = node.next(key, value)?;
            way.push((led, next.tells_value));
            node = next;
        }
        let limit = node.limit.as_ref()?;
        // The policy is named after the rule alone: another domain may have the same one.
        let mut bytes = Vec::with_capacity(64);
        push_part(&mut bytes, self.name.as_bytes());
        for ((key, value), (led, _)) in entries.iter().zip(&way) {
            push_part(&mut bytes, key.as_bytes());
            match led {
                Led::Wildcard(pattern, true) => push_part(&mut bytes, &pattern.spelled()),
                _ => push_part(&mut bytes, value.as_bytes()),
            }
        }
        let is_told = |(led, tells): &(Led<'_>, bool)| *tells && !matches!(led, Led::Exact);
        let tells = limit.tells_values || way.iter().any(is_told);
        let counted_as = tells.then(|| counted_as(limit, entries, &way));
        Some(Found { limit, key: bytes, counted_as })
    }
}

/// Keys and values of a request as envoyproxy/ratelimit names the counts of `detailed_metric` and
/// `value_to_metric`.
fn counted_as(limit: &Limit, entries: &[(&str, &str)], way: &[(Led<'_>, bool)]) -> String {
    let mut name = String::new();
    for ((key, value), (led, tells_value)) in entries.iter().zip(way) {
        let pattern = |pattern: &Pattern| String::from_utf8_lossy(&pattern.spelled()).into_owned();
        let value = match led {
            // Such values have one count, so they have one name.
            Led::Wildcard(shared, true) => pattern(shared),
            Led::Exact => (*value).to_owned(),
            _ if limit.tells_values || *tells_value => (*value).to_owned(),
            Led::Wildcard(own, false) => pattern(own),
            Led::Any => String::new(),
        };
        let dot = if name.is_empty() { "" } else { "." };
        let line = if value.is_empty() { "" } else { "_" };
        name += &format!("{dot}{key}{line}{value}");
    }
    name
}

impl Limit {
    /// A limit that is enforced, and nothing else.
    pub fn new(policy: Option<Policy>, tally: Arc<Tally>) -> Self {
        Self {
            policy,
            deny_all: false,
            shadow: false,
            quota_mode: false,
            unavailable_on_store_error: false,
            name: None,
            replaces: Vec::new(),
            metadata: serde_json::Map::new(),
            place: ConfigLine::default(),
            path: String::new(),
            tells_values: false,
            tally,
        }
    }
}

impl Node {
    /// A place without branches.
    pub fn new(limit: Option<Limit>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a branch; false if the same one is there already.
    #[must_use]
    pub fn add(&mut self, key: &str, values: DescriptorValues<'_>, node: Self) -> bool {
        match values {
            DescriptorValues::Any => self.bare.insert(key.to_owned(), node).is_none(),
            DescriptorValues::Matching(text, shares_count) => {
                let wildcard = Wildcard { pattern: Pattern::new(text), shares_count, node };
                self.wildcards.push((key.to_owned(), wildcard));
                self.wildcard_names.insert((key.to_owned(), text.to_owned()))
            }
            DescriptorValues::One(value) => {
                let values = self.exact.entry(key.to_owned()).or_default();
                values.insert(value.to_owned(), node).is_none()
            }
        }
    }

    /// Finds an order of the entries that leads from here to a limit.
    fn leads_on<'a>(
        &self,
        entries: &[(&'a str, &'a str)],
        order: &mut Vec<(&'a str, &'a str)>,
    ) -> bool {
        if order.len() == entries.len() {
            return self.limit.is_some();
        }
        for entry in entries {
            if order.contains(entry) {
                continue;
            }
            let Some((next, _)) = self.next(entry.0, entry.1) else { continue };
            order.push(*entry);
            if next.leads_on(entries, order) {
                return true;
            }
            order.pop();
        }
        false
    }

    /// The limits of this place and of those behind it.
    fn limits(&self) -> Box<dyn Iterator<Item = &Limit> + '_> {
        let exact = self.exact.values().flat_map(HashMap::values);
        let wildcards = self.wildcards.iter().map(|(_, wildcard)| &wildcard.node);
        let branches = exact.chain(wildcards).chain(self.bare.values());
        Box::new(self.limit.iter().chain(branches.flat_map(Self::limits)))
    }

    /// The branch for an entry, and how it led there.
    fn next(&self, key: &str, value: &str) -> Option<(&Self, Led<'_>)> {
        if let Some(node) = self.exact.get(key).and_then(|values| values.get(value)) {
            return Some((node, Led::Exact));
        }
        let matches = |(name, wildcard): &&(String, Wildcard)| {
            name == key && wildcard.pattern.matches(value.as_bytes())
        };
        match self.wildcards.iter().find(matches) {
            Some((_, Wildcard { pattern, shares_count, node })) => {
                Some((node, Led::Wildcard(pattern, *shares_count)))
            }
            None => self.bare.get(key).map(|node| (node, Led::Any)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(quota: &str) -> Node {
        Node::new(Some(limit(quota)))
    }

    fn limit(quota: &str) -> Limit {
        Limit::new(Some(Policy::parse("p", quota).unwrap()), Arc::default())
    }

    fn domain() -> Domain {
        let mut root = Node::default();
        let mut login = leaf("5/m");
        assert!(login.add("user", DescriptorValues::Any, leaf("2/m")));
        assert!(root.add("path", DescriptorValues::One("/login"), login));
        assert!(root.add("path", DescriptorValues::Matching("/a*", true), leaf("7/m")));
        assert!(root.add("path", DescriptorValues::Matching("/*", false), leaf("8/m")));
        assert!(root.add("path", DescriptorValues::Any, leaf("9/m")));
        Domain::new("edge".to_owned(), root)
    }

    fn found(entries: &[(&str, &str)]) -> Option<(u64, Vec<u8>)> {
        let domain = domain();
        let found = domain.find(entries)?;
        Some((found.limit.policy.as_ref()?.algorithm().limit(), found.key))
    }

    #[test]
    fn exact_values_come_before_wildcards_before_bare_keys() {
        let limit = |value: &str| found(&[("path", value)]).map(|(limit, _)| limit);
        assert_eq!(limit("/login"), Some(5));
        assert_eq!(limit("/about"), Some(7));
        assert_eq!(limit("/x"), Some(8));
        assert_eq!(limit("plain"), Some(9));
    }

    #[test]
    fn no_values_imitate_the_key_of_others() {
        let key = |parts: &[&str]| {
            let mut key = Vec::new();
            parts.iter().for_each(|part| push_part(&mut key, part.as_bytes()));
            key
        };
        assert_ne!(key(&["a\u{1f}b", "c"]), key(&["a", "b\u{1f}c"]));
        assert_ne!(key(&["a\u{10}", "b"]), key(&["a\u{10}\u{1f}b"]));
        assert_eq!(key(&["a", "b"]), b"a\x1fb\x1f");
    }

    #[test]
    fn a_key_is_taken_apart_as_it_was_put_together() {
        for parts_of_key in [&["edge", "user", "a\u{1f}b\u{10}"][..], &["edge", "", ""]] {
            let mut key = Vec::new();
            parts_of_key.iter().for_each(|part| push_part(&mut key, part.as_bytes()));
            let expected: Vec<Vec<u8>> = parts_of_key.iter().map(|part| (*part).into()).collect();
            assert_eq!(parts(&key), Some(expected));
        }
        for no_key in [&b""[..], b"ada", b"a\x1fb", b"\x10#digest\x1f", b"\x10"] {
            assert_eq!(parts(no_key), None, "{no_key:?}");
        }
    }

    #[test]
    fn a_key_too_long_for_a_store_is_its_digest() {
        let digest_of = |len: usize| digest(&vec![b'x'; len]);
        assert_eq!(digest_of(Key::LEN_MAX), None);
        let (one, other) = (digest_of(Key::LEN_MAX + 1), digest_of(Key::LEN_MAX + 2));
        assert_ne!(one, other);
        assert_eq!(one.map(|digest| digest.len()), Some(34));
    }

    #[test]
    fn the_depth_must_match_and_unknown_keys_have_no_limit() {
        assert_eq!(found(&[("path", "/login"), ("user", "ada")]).unwrap().0, 2);
        assert_eq!(found(&[("path", "/login"), ("user", "ada"), ("x", "y")]), None);
        assert_eq!(found(&[("verb", "GET")]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn values_are_counted_apart_unless_a_wildcard_shares() {
        assert_ne!(found(&[("path", "/x")]), found(&[("path", "/y")]));
        assert_eq!(found(&[("path", "/a1")]), found(&[("path", "/a2")]));
    }

    #[test]
    fn each_wildcard_level_shares_by_its_own_flag() {
        let key_of = |[outer, inner]: [bool; 2], values: [&str; 2]| {
            let mut tenant = Node::default();
            assert!(tenant.add("file", DescriptorValues::Matching("f*", inner), leaf("2/m")));
            let mut root = Node::default();
            assert!(root.add("tenant", DescriptorValues::Matching("t*", outer), tenant));
            let domain = Domain::new("edge".to_owned(), root);
            domain.find(&[("tenant", values[0]), ("file", values[1])]).unwrap().key
        };
        for flags in [[false, false], [false, true], [true, false], [true, true]] {
            let same = |one, other| key_of(flags, one) == key_of(flags, other);
            assert_eq!(same(["t1", "f1"], ["t2", "f1"]), flags[0], "{flags:?}: tenants");
            assert_eq!(same(["t1", "f1"], ["t1", "f2"]), flags[1], "{flags:?}: files");
        }
    }
}
