//! What somebody meant who wrote a name that does not exist.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

/// More names than this are not listed: nobody reads on.
const LISTED_MAX: usize = 40;

/// Says that `found` is no `what`: with the known name that was most likely meant, or else with
/// those that there are.
///
/// ```
/// use tollway_core::spelling::unknown;
///
/// let known = ["ticket", "backoff"];
/// let told = unknown("strategy", "tiket", known);
/// assert_eq!(told, "unknown strategy \"tiket\"; did you mean \"ticket\"?");
/// let told = unknown("strategy", "fast", known);
/// assert_eq!(told, "unknown strategy \"fast\"; expected one of ticket, backoff");
/// ```
pub fn unknown<'a>(
    what: &str,
    found: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    match likely(known.clone(), found) {
        Some(likely) => format!("unknown {what} {found:?}; did you mean {likely:?}?"),
        None => {
            let listed: Vec<&str> = known.clone().into_iter().take(LISTED_MAX).collect();
            let listed = match listed[..] {
                [] => return format!("unknown {what} {found:?}; there is none"),
                [only] => return format!("unknown {what} {found:?}; expected {only}"),
                _ => listed.join(", "),
            };
            let more = match known.into_iter().count().saturating_sub(LISTED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("unknown {what} {found:?}; expected one of {listed}{more}")
        }
    }
}

/// The first of the known names of which `found` is a slip of the finger.
pub fn likely<'a>(known: impl IntoIterator<Item = &'a str>, found: &str) -> Option<&'a str> {
    known.into_iter().find(|known| is_slip(known, found))
}

/// Whether `found` could be a slip of `known`: the same but for dashes and case, or up to two
/// letters that were added, left out, changed or swapped, in a word long enough for that to mean
/// something.
pub fn is_slip(known: &str, found: &str) -> bool {
    let plain = |text: &str| text.replace(['-', '_'], "").to_lowercase().into_bytes();
    let (known, found) = (plain(known), plain(found));
    let shortest = known.len().min(found.len());
    let slips_max = if shortest >= 5 { 2 } else { usize::from(shortest >= 3) };
    known.len().abs_diff(found.len()) <= slips_max && slips(&known, &found) <= slips_max
}

/// How many letters must be added, left out, changed or swapped to get from one to the other.
fn slips(from: &[u8], to: &[u8]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, letter) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in to.iter().enumerate() {
            let changed = rows[i][j] + usize::from(letter != other);
            let mut least = changed.min(row[j] + 1).min(rows[i][j + 1] + 1);
            if i > 0 && j > 0 && from[i - 1] == *other && to[j - 1] == *letter {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_names_is_cut_and_a_short_one_reads_well() {
        let names: Vec<String> = (0..45).map(|number| format!("policy-{number}-of-many")).collect();
        let told = unknown("policy", "x", names.iter().map(String::as_str));
        assert!(
            told.contains(", policy-39-of-many and 5 more") && !told.contains("-40-"),
            "{told}"
        );
        assert_eq!(unknown("policy", "x", ["api"]), "unknown policy \"x\"; expected api");
        assert_eq!(unknown("policy", "x", []), "unknown policy \"x\"; there is none");
    }

    #[test]
    fn slips_of_the_finger_are_recognised_and_other_words_are_not() {
        for (known, found) in [
            ("quota", "qouta"),
            ("quota", "quotta"),
            ("quota", "Quota"),
            ("name", "nmae"),
            ("on_store_error", "on-store-eror"),
            ("drip_interval", "drip_intervall"),
        ] {
            assert!(is_slip(known, found), "{known} {found}");
        }
        for (known, found) in [("name", "quota"), ("size", "shadow"), ("ttl", "key"), ("a", "b")] {
            assert!(!is_slip(known, found), "{known} {found}");
        }
    }
}
