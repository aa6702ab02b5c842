//! Names of keys in the store: whose state it is, and the slot that it lives in.
//!
//! ```text
//!   tg:GkTSxSzLo80:k{alice}            state of key `alice` under the policy of that identity
//!   tg:GkTSxSzLo80:tuser{acme}:7       the key `user{acme}:7` brings its own hash tag
//!   tg:GkTSxSzLo80:h{5f2a…}a}b         a key with braces that are no tag: tagged by its hash
//!   tg:g:k{alice}                      ledger of all GCRA states of key `alice`
//!   tg:r:{2k}9f0c…                     record of a reservation; `2k` is in the slot of its charges
//!   tg:q:{2k}71aa…                     answer to a request that may be asked again
//! ```
//!
//! **One slot per key.** The tag depends on the key alone, so charges on one key under any number
//! of policies share a slot; a key with a tag of its own (`{tenant}`) shares it with all keys so
//! tagged.
//!
//! **Nothing is mistaken.** The letter before the tag says how the rest was made, the prefix holds
//! no brace, and the policy's identity has a fixed length and no colon: no two keys have one name,
//! whatever bytes they are made of.

use std::sync::OnceLock;

/// Slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The name of the state of `key` under the policy with this identity.
pub(crate) fn state_key(prefix: &str, policy_id: u64, key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + key.len() + 36);
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(&identity(policy_id));
    match own_tag(key) {
        Some(_) => {
            name.extend_from_slice(b":t");
            name.extend_from_slice(key);
        }
        None if key.contains(&b'{') || key.contains(&b'}') => {
            name.extend_from_slice(format!(":h{{{:016x}}}", fnv1a(key)).as_bytes());
            name.extend_from_slice(key);
        }
        None => {
            name.extend_from_slice(b":k{");
            name.extend_from_slice(key);
            name.push(b'}');
        }
    }
    name
}

/// Where a GCRA state is that would be called `name`: the ledger of its key, and the policy's
/// identity, which names it there.
pub(crate) fn ledger(prefix: &str, name: &[u8]) -> (Vec<u8>, [u8; 8]) {
    let (policy, tail) = name[prefix.len()..].split_at(IDENTITY_LEN);
    let mut ledger = Vec::with_capacity(name.len());
    ledger.extend_from_slice(prefix.as_bytes());
    ledger.push(b'g');
    ledger.extend_from_slice(tail);
    (ledger, policy_id(policy).to_le_bytes())
}

/// The name of a record that lives in `slot`: `r` for reservations, `q` for requests.
pub(crate) fn record_key(prefix: &str, sort: char, slot: u16, id: u128) -> Vec<u8> {
    format!("{prefix}{sort}:{{{}}}{id:032x}", slot_tag(slot)).into_bytes()
}

/// The slot of a key's name, as a cluster works it out.
pub(crate) fn slot(name: &[u8]) -> u16 {
    crc16(own_tag(name).unwrap_or(name)) % SLOTS
}

const IDENTITY_LEN: usize = 11;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Policy identity as eleven characters of base 64.
fn identity(id: u64) -> [u8; IDENTITY_LEN] {
    let mut left = id;
    std::array::from_fn(|_| {
        let digit = DIGITS[(left % 64) as usize];
        left /= 64;
        digit
    })
}

/// The policy that [`identity`] names.
fn policy_id(identity: &[u8]) -> u64 {
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
        for key in keys {
            let slots = [1, u64::MAX].map(|policy| slot(&state_key("tg:", policy, key)));
            assert_eq!(slots[0], slots[1], "{}", key.escape_ascii());
        }
        let tagged = [b"user{acme}:7".as_slice(), b"{acme}", b"acme"];
        let slots = tagged.map(|key| slot(&state_key("tg:", 1, key)));
        assert!(slots.iter().all(|one| *one == slots[0]), "a tag is shared");
    }

    #[test]
    fn no_two_keys_have_one_name() {
        let keys = [b"a".as_slice(), b"{a}", b"{a", b"a}", b"{a}}", b"}a{", b"{}a", b"h{a}"];
        let names: std::collections::HashSet<_> =
            keys.iter().map(|key| state_key("tg:", 7, key)).collect();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn the_gcra_states_of_a_key_share_a_ledger_in_their_slot() {
        for key in [b"alice".as_slice(), b"user{acme}:7", b"{}", b"AAAAAAAAAAA:k{x}"] {
            let names = [7, u64::MAX].map(|policy| state_key("tg:", policy, key));
            let [(one, first), (two, last)] = names.each_ref().map(|name| ledger("tg:", name));
            assert_eq!((first, last), (7u64.to_le_bytes(), u64::MAX.to_le_bytes()));
            assert_eq!(one, two);
            assert_eq!(slot(&one), slot(&names[0]));
            assert_ne!(one, names[0]);
        }
        let tagged = |key: &[u8]| ledger("tg:", &state_key("tg:", 1, key)).0;
        assert_ne!(tagged(b"AAAAAAAAAAA:k{x}"), state_key("tg:", 0, b"x"));
    }

    #[test]
    fn a_record_lives_in_the_slot_that_it_is_made_for() {
        for wanted in [0, 1, 77, 16_383] {
            assert_eq!(slot(&record_key("tg:", 'r', wanted, u128::MAX)), wanted);
        }
    }
}
