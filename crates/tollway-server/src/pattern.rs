//! Keys by pattern: bytes in which `*` stands for any bytes, none included.
//!
//! Matching walks the key once per `*` at most twice and never recurses, so a pattern with many
//! stars and a long key stay cheap.

use std::collections::HashSet;

/// Bytes with `*` for any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Box<[u8]>>,
}

impl Pattern {
    /// The pattern that `text` spells.
    pub fn new(text: &str) -> Self {
        Self { parts: text.as_bytes().split(|&byte| byte == b'*').map(Box::from).collect() }
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

/// A list of keys, some of them by pattern.
#[derive(Clone, Debug, Default)]
pub struct KeyList {
    exact: HashSet<Box<[u8]>>,
    patterns: Vec<Pattern>,
}

impl KeyList {
    /// Whether no key is on the list.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.patterns.is_empty()
    }

    /// Adds the keys of another list.
    pub(crate) fn extend(&mut self, other: Self) {
        self.exact.extend(other.exact);
        self.patterns.extend(other.patterns);
    }

    /// Whether `key` is on the list.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        !self.is_empty()
            && (self.exact.contains(key)
                || self.patterns.iter().any(|pattern| pattern.matches(key)))
    }
}

impl<'a> FromIterator<&'a str> for KeyList {
    fn from_iter<I: IntoIterator<Item = &'a str>>(entries: I) -> Self {
        let mut list = Self::default();
        for entry in entries {
            if entry.contains('*') {
                list.patterns.push(Pattern::new(entry));
            } else {
                list.exact.insert(entry.as_bytes().into());
            }
        }
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
        let list: KeyList = ["10.0.0.1", "192.168.*"].into_iter().collect();
        assert!(list.contains(b"10.0.0.1") && list.contains(b"192.168.7.7"));
        assert!(!list.contains(b"10.0.0.2"));
        assert!(KeyList::default().is_empty());
    }
}
