//! The value that holds all GCRA states of one key, as the short ways answer with it.
//!
//! `scripts/gcra.lua` draws it. A request that charges one key under several policies so reads one
//! value and writes one, where a value for each would cost a look-up and a call of their own.

use crate::encoded_policy::GCRA;
use crate::packed_bytes::Reader;

const TILL_LEN: usize = 4;
const ID_LEN: usize = 8;
const STATE_LEN: usize = 16;

/// The state of the family and the numbers that are named so, as
/// [`EncodedPolicy::parse`](crate::encoded_policy::EncodedPolicy::parse) takes it: empty if there
/// is none. `None` if the value is not of our making.
pub(crate) fn state(value: &[u8], id: [u8; ID_LEN]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(value);
    if value.is_empty() {
        return Some(Vec::new());
    }
    if reader.byte()? != GCRA {
        return None;
    }
    reader.take(TILL_LEN)?;
    while !reader.is_empty() {
        let (owner, limbs) = (reader.take(ID_LEN)?, reader.take(STATE_LEN)?);
        if owner == id {
            return Some([&[GCRA], &owner[ID_LEN - 3..], limbs].concat());
        }
    }
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_found_by_the_identity_of_its_policy() {
        let ledger = [&[1, 0, 0, 0, 0][..], &[7; 8], &[70; 16], &[9; 8], &[90; 16]].concat();
        assert_eq!(state(&ledger, [9; 8]), Some([&[1, 9, 9, 9][..], &[90; 16]].concat()));
        assert_eq!(state(&ledger, [8; 8]), Some(Vec::new()));
        assert_eq!(state(b"", [7; 8]), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_ledger_is_not_read() {
        let whole = [&[1, 0, 0, 0, 0][..], &[7; 8], &[70; 16]].concat();
        for end in 1..whole.len() {
            let cut = state(&whole[..end], [7; 8]);
            assert!(cut.is_none() || end == 5, "{end} bytes");
        }
        assert_eq!(state(b"\x02other", [7; 8]), None);
    }
}
