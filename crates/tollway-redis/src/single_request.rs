//! One request of GCRA checks as `scripts/gcra_one_request.lua` takes it.
//!
//! What a server pays for a script is mostly what goes in and out, so this says only what such a
//! request needs: one argument of packed numbers, one packed answer.

use std::borrow::Cow;

use tollway_core::Mode;

use crate::batch::{Fields, Found, Manner, time};
use crate::connection::Script;
use crate::encoded_policy::GCRA;
use crate::packed_bytes::{Reader, put_double, put_number};
use crate::request::{KeyCharge, Request};
use crate::script::gcra_one_request;
use crate::script_numbers::moment;

/// The bytes that say how long a new ledger lives: a length and at most 15 digits.
const LIFE_LEN: usize = 16;

/// The script for a request of checks on GCRA states, all different and in so many keys, with the
/// identities of their policies, and its arguments; `None` if there is no such script.
pub(crate) fn encode(
    request: &Request,
    keys: usize,
    ids: &[[u8; 8]],
    manner: Manner,
) -> Option<(&'static Script, Vec<Vec<u8>>)> {
    let parts = &request.parts;
    // The script compares identities as doubles. One in a thousand is none that can be compared,
    // and takes the way of a batch.
    let is_comparable = |id: &[u8; 8]| f64::from_le_bytes(*id).is_normal();
    if parts.iter().any(|part| part.mode == Mode::Count) || !ids.iter().all(is_comparable) {
        return None;
    }
    let script = gcra_one_request(parts.len(), keys)?;
    let mut arguments = vec![numbers(parts, keys, ids, manner)];
    arguments.extend(manner.at.map(|_| time(manner.at)));
    Some((script, arguments))
}

/// What the script answers on charges to states that are named so: the time, the decision, and the
/// states before.
pub(crate) fn read<'a>(
    answer: &[u8],
    ids: impl ExactSizeIterator<Item = [u8; 8]>,
) -> Option<Fields<'a>> {
    let mut reader = Reader::new(answer);
    let (now_us, is_denied) = reader.double()?;
    let charges = ids.len();
    let tats_us = (0..charges).map(|_| Some(reader.double()?.0)).collect::<Option<Vec<_>>>()?;
    // What is not told is 0.
    let mut limb = || if reader.is_empty() { Some(0) } else { Some(reader.double()?.0) };
    let now = moment(now_us, limb()?);
    let state = |(us, [.., a, b, c]): (u64, [u8; 8])| {
        let mut value = vec![GCRA, a, b, c];
        put_number(&mut value, us, 7);
        put_number(&mut value, limb()?, 2);
        put_number(&mut value, limb()?, 7);
        Some(Cow::Owned(value))
    };
    let states = tats_us.into_iter().zip(ids).map(state).collect::<Option<_>>()?;
    let digit: &[u8] = if is_denied { b"0" } else { b"1" };
    Some((now, digit, Found::States(states)))
}

fn numbers(parts: &[KeyCharge], keys: usize, ids: &[[u8; 8]], manner: Manner) -> Vec<u8> {
    let mut out = Vec::with_capacity(parts.len() * 72 + keys * LIFE_LEN);
    for (part, id) in parts.iter().zip(ids) {
        out.extend_from_slice(id);
        out.extend_from_slice(&constants(part)[0].to_le_bytes());
        put_double(&mut out, part.asked()[0]);
    }
    for part in parts {
        let [.., skew_us] = constants(part);
        out.extend_from_slice(&skew_us.to_le_bytes());
    }
    if parts.iter().any(|part| below_micros(part) != WHOLE_MICROS) {
        let numbers = parts.iter().flat_map(below_micros);
        out.extend(numbers.flat_map(f64::to_le_bytes));
    }
    for parts in parts.chunks(parts.len() / keys) {
        let life_ms = life_ms(parts, manner).to_string();
        let end = out.len() + LIFE_LEN;
        out.push(life_ms.len() as u8);
        out.extend_from_slice(life_ms.as_bytes());
        out.resize(end, 0);
    }
    out
}

/// What the script takes for `below_micros` if it is not told: a policy whose states have no `part`
/// either, because one of its units is a whole number of nanoseconds.
const WHOLE_MICROS: [f64; 5] = [1.0, 0.0, 0.0, 0.0, 0.0];

/// The scale of a policy, then what a charge costs and what the bucket holds beyond microseconds.
fn below_micros(part: &KeyCharge) -> [f64; 5] {
    let ([_, cap_ns, cap_part, scale, _], [_, ns, rest]) = (constants(part), part.asked());
    [scale, ns as f64, rest as f64, cap_ns, cap_part]
}

/// How long a new ledger of these charges lives: rounded up, with a carry to spare, for a state
/// must not be forgotten before its time. In tests the server's time passes by itself.
fn life_ms(parts: &[KeyCharge], manner: Manner) -> u64 {
    let longest_us = parts.iter().map(|part| part.asked()[0]).max().unwrap_or_default();
    longest_us / 1_000 + 3 + if manner.at.is_some() { 3_600_000 } else { 0 }
}

/// The constants of gcra.lua.
fn constants(part: &KeyCharge) -> [f64; 5] {
    let mut doubles = part.encoded.constants.as_chunks().0.iter().copied().map(f64::from_le_bytes);
    std::array::from_fn(|_| doubles.next().expect("GCRA has five constants"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument_len(limits: &[(&str, u64)]) -> usize {
        let part = |&(limit, units): &(&str, u64)| KeyCharge::of_limit(&[], limit, units);
        let parts: Vec<_> = limits.iter().map(part).collect();
        let manner = Manner::default();
        numbers(&parts, parts.len(), &vec![[0; 8]; parts.len()], manner).len()
    }

    #[test]
    fn numbers_below_a_microsecond_are_left_out_only_where_no_state_can_have_them() {
        let (whole, full) = (32 + LIFE_LEN, 72 + LIFE_LEN);
        assert_eq!(argument_len(&[("10/1s", 1)]), whole);
        assert_eq!(argument_len(&[("10/1s", 1), ("100/1m", 3)]), whole * 2);
        assert_eq!(argument_len(&[("10/1s", 1), ("7/1s", 1)]), full * 2);
        // 7 units of these take 1 s, but those before may have left a fraction behind.
        assert_eq!(argument_len(&[("7/1s", 7)]), full);
    }
}
