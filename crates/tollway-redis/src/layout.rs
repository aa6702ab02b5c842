//! Names of keys in the store: whose state it is, and the slot that it lives in.
//!
//! ```text
//!   tw:2GkTSxSzLo80:k{alice}           state of key `alice` under policies of that family
//!   tw:2GkTSxSzLo80:h{5f2a…}a{b}       a key with braces: tagged by its hash
//!   tw:2GkTSxSzLo80:s{x8Jd…}           a key of more than 128 bytes: its SHA-256, tagged by it
//!   tw:2GkTSxSzLo80:tuser{acme}:7       with `key_tags`, a key that brings its own hash tag
//!   tw:2GkTSxSzLo80:u{acme}x8Jd…       the same of a long key
//!   tw:2GkTSxSzLo80:t{2/1f3}alice      share 2 of a split key
//!   tw:2g:k{alice}                     ledger of all GCRA states of key `alice`
//!   tw:2r:{2k}9f0c…                    record of a reservation; `2k` is in the slot of its charges
//!   tw:2q:{2k}71aa…                    answer to a request that may be asked again
//!   tw:2n:{GkTSxSzLo80}9c01e2           numbers of a family, by their mark
//!   tw:2n:{GkTSxSzLo80}g               some of them have states in ledgers (`s`: strings)
//! ```
//!
//! **A family** is all policies of one name: a state stays where it is when their numbers change,
//! and its value says under which numbers it is kept (`numbers`).
//!
//! **The digit** says how all that is written. Versions of before 2026-11-19 wrote no digit; what
//! they have left is not looked at, and expires.
//!
//! **One slot per key.** The tag depends on the key alone, so charges on one key under any number
//! of policies share a slot. Braces in a key choose nothing, unless the settings say that keys
//! bring their own tags (`{tenant}`): then all keys of one tag share a slot.
//!
//! **Nothing is mistaken.** The letter before the tag says how the rest was made, the prefix holds
//! no brace, and the family's identity has a fixed length and no colon: no two keys have one name,
//! whatever bytes they are made of. Long keys are told apart by a hash for which nobody can find
//! two of a kind: whoever could would make another pay. It has no seed, since all processes must
//! agree.

use std::borrow::Cow;
use std::sync::OnceLock;

use ring::digest::{SHA256, digest};

/// Slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The longest key, or tag, that stands in a name as it is. Strangers choose keys of up to 64 KiB,
/// and a store that is full answers nobody.
const VERBATIM_LEN_MAX: usize = 128;

/// Says how everything is written.
const VERSION: u8 = b'2';

/// The name of the state of `key` under the policies of this family. With `key_tags` the tag in a
/// key chooses the slot.
pub(crate) fn state_key(prefix: &str, family: u64, key: &[u8], key_tags: bool) -> Vec<u8> {
    let mut name = begun(prefix, family);
    let is_long = key.len() > VERBATIM_LEN_MAX;
    match own_tag(key).filter(|_| key_tags) {
        Some(tag) if is_long => put_tagged(&mut name, b'u', &short(tag), &hashed(key)),
        Some(_) => {
            name.extend_from_slice(b":t");
            name.extend_from_slice(key);
        }
        None if is_long => put_tagged(&mut name, b's', &hashed(key), b""),
        None if key.contains(&b'{') || key.contains(&b'}') => {
            put_tagged(&mut name, b'h', format!("{:016x}", fnv1a(key)).as_bytes(), key);
        }
        None => put_tagged(&mut name, b'k', key, b""),
    }
    name
}

/// The name of one share of a split key, in a slot of its own.
pub(crate) fn share_key(prefix: &str, family: u64, key: &[u8], share: usize) -> Vec<u8> {
    let mut name = begun(prefix, family);
    let key = short(key);
    let tag = format!("{share}/{:x}", crc16(&key) % SLOTS);
    put_tagged(&mut name, b't', tag.as_bytes(), &key);
    name
}

fn begun(prefix: &str, family: u64) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + VERBATIM_LEN_MAX + 64);
    name.extend_from_slice(prefix.as_bytes());
    name.push(VERSION);
    name.extend_from_slice(&identity(family));
    name
}

/// The name of a state that belongs to another family from now on.
pub(crate) fn in_family(prefix: &str, mut name: Vec<u8>, family: u64) -> Vec<u8> {
    name[prefix.len() + 1..][..IDENTITY_LEN].copy_from_slice(&identity(family));
    name
}

/// The family that the name of a state says; `None` if it is not of our making.
pub(crate) fn family(prefix: &str, name: &[u8]) -> Option<u64> {
    name.get(prefix.len() + 1..)?.get(..IDENTITY_LEN).map(family_of)
}

fn put_tagged(name: &mut Vec<u8>, sort: u8, tag: &[u8], rest: &[u8]) {
    name.extend_from_slice(&[b':', sort, b'{']);
    name.extend_from_slice(tag);
    name.push(b'}');
    name.extend_from_slice(rest);
}

/// The bytes, or their hash if they are many.
fn short(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.len() > VERBATIM_LEN_MAX { hashed(bytes).into() } else { bytes.into() }
}

/// SHA-256 as 43 characters of base 64.
fn hashed(bytes: &[u8]) -> Vec<u8> {
    let digest = digest(&SHA256, bytes);
    let sextets = |bytes: &[u8]| {
        let [high, middle, low] = [0, 1, 2].map(|at| bytes.get(at).copied().unwrap_or_default());
        [high >> 2, (high << 4 | middle >> 4) & 63, (middle << 2 | low >> 6) & 63, low & 63]
            .map(|sextet| DIGITS[usize::from(sextet)])
    };
    let mut text: Vec<u8> = digest.as_ref().chunks(3).flat_map(sextets).collect();
    text.pop();
    text
}

/// The ledger in which a state is that would be called `name`, if it is a GCRA state, and what
/// names its family there.
pub(crate) fn ledger(prefix: &str, name: &[u8]) -> (Vec<u8>, [u8; 5]) {
    let (policy, tail) = name[prefix.len() + 1..].split_at(IDENTITY_LEN);
    let mut ledger = Vec::with_capacity(name.len());
    ledger.extend_from_slice(prefix.as_bytes());
    ledger.extend_from_slice(&[VERSION, b'g']);
    ledger.extend_from_slice(tail);
    let family = family_of(policy);
    // Forty bits tell apart the few families that charge one key.
    let bits = (family ^ family >> 40).to_le_bytes();
    (ledger, std::array::from_fn(|at| bits[at]))
}

/// What the name of everything begins with that says which numbers a family has.
pub(crate) fn numbers_key(prefix: &str, family: u64) -> Vec<u8> {
    let mut name = format!("{prefix}{}n:{{", char::from(VERSION)).into_bytes();
    name.extend_from_slice(&identity(family));
    name.push(b'}');
    name
}

/// The name of a record that lives in `slot`: `r` for reservations, `q` for requests.
pub(crate) fn record_key(prefix: &str, sort: char, slot: u16, id: u128) -> Vec<u8> {
    let version = char::from(VERSION);
    format!("{prefix}{version}{sort}:{{{}}}{id:032x}", slot_tag(slot)).into_bytes()
}

/// The slot of a key's name, as a cluster works it out.
pub(crate) fn slot(name: &[u8]) -> u16 {
    crc16(own_tag(name).unwrap_or(name)) % SLOTS
}

const IDENTITY_LEN: usize = 11;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A family as eleven characters of base 64.
fn identity(id: u64) -> [u8; IDENTITY_LEN] {
    let mut left = id;
    std::array::from_fn(|_| {
        let digit = DIGITS[(left % 64) as usize];
        left /= 64;
        digit
    })
}

/// The family that [`identity`] names.
fn family_of(identity: &[u8]) -> u64 {
    let digit = |byte: &u8| DIGITS.iter().position(|known| known == byte).unwrap_or_default();
    identity.iter().rev().fold(0, |id, byte| id.wrapping_mul(64).wrapping_add(digit(byte) as u64))
}

/// What stands between the first `{` and the next `}`, unless empty.
fn own_tag(name: &[u8]) -> Option<&[u8]> {
    let open = name.iter().position(|&byte| byte == b'{')?;
    let rest = &name[open + 1..];
    let close = rest.iter().position(|&byte| byte == b'}')?;
    (close > 0).then(|| &rest[..close])
}

/// A short tag that falls into `slot`.
fn slot_tag(slot: u16) -> &'static str {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); usize::from(SLOTS)];
        let mut missing = tags.len();
        for number in 0u32.. {
            let tag = format!("{number:x}");
            let place = &mut tags[usize::from(crc16(tag.as_bytes()) % SLOTS)];
            if place.is_empty() {
                *place = tag;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags
    });
    &tags[usize::from(slot % SLOTS)]
}

/// CRC-16/XMODEM, the checksum that clusters use.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0u16; 256];
        let mut index = 0;
        while index < 256 {
            let mut crc = (index as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }

    #[test]
    fn a_key_has_one_slot_under_every_policy_whatever_its_bytes() {
        let keys: [&[u8]; 8] =
            [b"alice", b"user{acme}:7", b"}x", b"{}", b"{", b"a}b{", b"\0 \n", &[0xff; 65_536]];
        for (key, key_tags) in keys.into_iter().flat_map(|key| [(key, false), (key, true)]) {
            let slots = [1, u64::MAX].map(|policy| slot(&state_key("tw:", policy, key, key_tags)));
            assert_eq!(slots[0], slots[1], "{}", key.escape_ascii());
        }
    }

    /// Keys of about `len` bytes that all have the tag `acme`.
    fn tagged(len: usize) -> Vec<Vec<u8>> {
        (0..1_000).map(|number| format!("{{acme}}{number:0len$}").into_bytes()).collect()
    }

    #[test]
    fn a_tag_in_a_key_chooses_the_slot_only_where_the_settings_say_so() {
        for len in [8, 128, 5_000] {
            let slots = |key_tags| -> std::collections::HashSet<u16> {
                let names = tagged(len).into_iter().map(|key| state_key("tw:", 1, &key, key_tags));
                names.map(|name| slot(&name)).collect()
            };
            assert!(slots(false).len() > 900, "{len}: {} slots", slots(false).len());
            assert_eq!(slots(true), [crc16(b"acme") % SLOTS].into(), "{len}");
        }
        let shares = |share| tagged(8).into_iter().map(move |key| share_key("tw:", 1, &key, share));
        let slots: std::collections::HashSet<u16> = shares(1).map(|name| slot(&name)).collect();
        assert!(slots.len() > 900, "shares of split keys: {} slots", slots.len());
    }

    #[test]
    fn long_keys_have_short_names_of_their_own() {
        let long = |last: u8, len: usize| [vec![b'x'; len - 1], vec![last]].concat();
        let keys = [long(b'a', 129), long(b'b', 129), long(b'a', 65_536), long(b'b', 65_536)];
        let mut names = std::collections::HashSet::new();
        for key in &keys {
            names.insert(state_key("tw:", 7, key, false));
            names.insert(share_key("tw:", 7, key, 0));
            names.insert(state_key("tw:", 7, &[b"{t}", &key[..]].concat(), true));
        }
        assert_eq!(names.len(), 3 * keys.len());
        assert!(names.iter().all(|name| name.len() <= 128), "{names:?}");
        let tag = [&[b'{'][..], &[b't'; 300], b"}", &[b'k'; 300]].concat();
        assert!(state_key("tw:", 7, &tag, true).len() <= 128, "a long tag is hashed too");
    }

    /// What is in a store stays there when the process is replaced by a newer one.
    #[test]
    fn names_are_those_of_earlier_versions_of_this_layout() {
        let name = |key: &[u8]| String::from_utf8(state_key("tw:", 7, key, true)).unwrap();
        assert_eq!(name(b"alice"), "tw:2HAAAAAAAAAA:k{alice}");
        assert_eq!(name(&[b'x'; 128]), format!("tw:2HAAAAAAAAAA:k{{{}}}", "x".repeat(128)));
        assert_eq!(name(b"user{acme}:7"), "tw:2HAAAAAAAAAA:tuser{acme}:7");
        assert_eq!(name(b"a}"), "tw:2HAAAAAAAAAA:h{089c4707b5459d83}a}");
        let share = share_key("tw:", 7, b"alice", 2);
        assert_eq!(String::from_utf8(share).unwrap(), "tw:2HAAAAAAAAAA:t{2/2ed}alice");
    }

    #[test]
    fn the_hash_of_a_long_key_is_sha_256_in_base_64() {
        let expected = b"ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
        assert_eq!(hashed(b"abc"), expected);
    }

    #[test]
    fn no_two_keys_have_one_name() {
        let keys = [b"a".as_slice(), b"{a}", b"{a", b"a}", b"{a}}", b"}a{", b"{}a", b"h{a}"];
        let names: std::collections::HashSet<_> =
            keys.iter().map(|key| state_key("tw:", 7, key, true)).collect();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn the_gcra_states_of_a_key_share_a_ledger_in_their_slot() {
        for key in [b"alice".as_slice(), b"user{acme}:7", b"{}", b"AAAAAAAAAAA:k{x}"] {
            let names = [7, u64::MAX].map(|family| state_key("tw:", family, key, true));
            let [(one, first), (two, last)] = names.each_ref().map(|name| ledger("tw:", name));
            assert_ne!(first, last);
            assert_eq!(one, two);
            assert_eq!(slot(&one), slot(&names[0]));
            assert_ne!(one, names[0]);
        }
        let tagged = |key: &[u8]| ledger("tw:", &state_key("tw:", 1, key, true)).0;
        assert_ne!(tagged(b"AAAAAAAAAAA:k{x}"), state_key("tw:", 0, b"x", true));
    }

    #[test]
    fn a_name_says_its_family_and_can_be_given_another() {
        let name = state_key("tw:", 7, b"alice", false);
        assert_eq!(family("tw:", &name), Some(7));
        let other = in_family("tw:", name, u64::MAX);
        assert_eq!(other, state_key("tw:", u64::MAX, b"alice", false));
        assert_eq!(family("tw:", b"tw:2short"), None);
    }

    #[test]
    fn a_record_lives_in_the_slot_that_it_is_made_for() {
        for wanted in [0, 1, 77, 16_383] {
            assert_eq!(slot(&record_key("tw:", 'r', wanted, u128::MAX)), wanted);
        }
    }
}
