//! Keys by pattern: bytes in which `*` stands for any bytes, none included.
//!
//! Matching walks the key once per `*` at most twice and never recurses, so a pattern with many
//! stars and a long key stay cheap.

use std::collections::HashMap;

use crate::config_line::ConfigLine;

/// Bytes with `*` for any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Box<[u8]>>,
}

impl Pattern {
    /// The pattern that `text` spells.
    pub fn new(text: &str) -> Self {
        Self::of_bytes(text.as_bytes())
    }

    /// The pattern that these bytes spell.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self { parts: bytes.split(|&byte| byte == b'*').map(Box::from).collect() }
    }

    /// The text that spells the pattern.
    pub(crate) fn spelled(&self) -> Vec<u8> {
        self.parts.join(&b'*')
    }

    /// Whether `bytes` match.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        let [first, middle @ .., last] = &self.parts[..] else {
            return *self.parts[0] == *bytes;
        };
        let Some(rest) = bytes.strip_prefix(&**first) else { return false };
        let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
        for part in middle {
            // The leftmost place is as good as any: what follows has the most room after it.
            let Some(at) = find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    text.windows(part.len()).position(|window| window == part)
}

/// A list of keys, some of them by pattern, each with where it stands in the configuration.
#[derive(Clone, Debug, Default)]
pub struct KeyList {
    exact: HashMap<Box<[u8]>, ConfigLine>,
    patterns: Vec<(Pattern, ConfigLine)>,
}

/// The entry of a list that a key matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<'a> {
    /// The pattern, if it is one; otherwise the entry is the key itself.
    pub pattern: Option<&'a Pattern>,
    /// Where the entry stands.
    pub place: &'a ConfigLine,
}

impl KeyList {
    /// Whether no key is on the list.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.patterns.is_empty()
    }

    /// Adds a key, or a pattern if there is a star in it.
    pub(crate) fn add(&mut self, entry: &str, place: ConfigLine) {
        if entry.contains('*') {
            self.patterns.push((Pattern::new(entry), place));
        } else {
            self.exact.insert(entry.as_bytes().into(), place);
        }
    }

    /// Adds the keys of another list.
    pub(crate) fn extend(&mut self, other: Self) {
        self.exact.extend(other.exact);
        self.patterns.extend(other.patterns);
    }

    /// The entry that `key` matches, if there is one.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Listed<'_>> {
        if self.is_empty() {
            return None;
        }
        let exact = self.exact.get(key).map(|place| Listed { pattern: None, place });
        exact.or_else(|| {
            let (pattern, place) = self.patterns.iter().find(|(entry, _)| entry.matches(key))?;
            Some(Listed { pattern: Some(pattern), place })
        })
    }
}

impl<'a> FromIterator<&'a str> for KeyList {
    fn from_iter<I: IntoIterator<Item = &'a str>>(entries: I) -> Self {
        let mut list = Self::default();
        entries.into_iter().for_each(|entry| list.add(entry, ConfigLine::default()));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_bytes_and_none() {
        for (pattern, yes, no) in [
            ("*", &["", "a"][..], &[][..]),
            ("vip-*", &["vip-", "vip-1"], &["vip", "xvip-1"]),
            ("*.example", &["a.example", ".example"], &["example", "a.example.org"]),
            ("a*b*c", &["abc", "a-b-c", "abbc"], &["ab", "ac", "acb"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("plain", &["plain"], &["plain2", "plai"]),
        ] {
            let (spelled, pattern) = (pattern, Pattern::new(pattern));
            assert_eq!(pattern.spelled(), spelled.as_bytes());
            assert!(yes.iter().all(|text| pattern.matches(text.as_bytes())), "{pattern:?}");
            assert!(!no.iter().any(|text| pattern.matches(text.as_bytes())), "{pattern:?}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let pattern = Pattern::new(&"a*".repeat(200));
        assert!(!pattern.matches(&[b'b'; 60_000]));
        assert!(pattern.matches(&[b'a'; 60_000]));
    }

    #[test]
    fn a_list_holds_keys_and_patterns() {
        let mut list: KeyList = ["10.0.0.1"].into_iter().collect();
        list.add("192.168.*", ConfigLine::new("rules.toml".into(), 3));
        let found = |key: &[u8]| {
            let Listed { pattern, place } = list.find(key)?;
            Some((pattern.map(Pattern::spelled), place.is_known()))
        };
        assert_eq!(found(b"10.0.0.1"), Some((None, false)));
        assert_eq!(found(b"192.168.7.7"), Some((Some(b"192.168.*".to_vec()), true)));
        assert_eq!(found(b"10.0.0.2"), None);
        assert!(KeyList::default().is_empty());
    }
}
