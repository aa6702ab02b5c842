//! The shortest way to ask: one request of GCRA checks, by a script written out for it.
//!
//! What a server pays for a script is mostly what goes in and out, so this says only what such a
//! request needs: one argument of packed numbers, one packed answer (`scripts/gcra_whole.lua`,
//! `scripts/gcra_fine.lua`, `scripts/gcra_apart.lua`, `scripts/gcra_apart_fine.lua`).

use std::borrow::Cow;

use tollway_core::Mode;

use crate::batch::{Fields, Found, Manner, time};
use crate::connection::Script;
use crate::encoded_policy::GCRA;
use crate::packed_bytes::{Reader, put_number};
use crate::request::{KeyCharge, Request};
use crate::script::{Shape, written_out};
use crate::script_numbers::moment;

/// A script for one request alone, and its arguments.
pub(crate) struct SingleRequest {
    pub(crate) script: &'static Script,
    pub(crate) arguments: Vec<Vec<u8>>,
    shape: Shape,
    charges: usize,
}

impl SingleRequest {
    /// For a request of checks on GCRA states, all different and in so many keys, with the
    /// identities of their policies; `None` if there is no such script.
    pub(crate) fn new(
        request: &Request,
        homes: usize,
        ids: &[[u8; 8]],
        manner: Manner,
    ) -> Option<Self> {
        let parts = &request.parts;
        if parts.iter().any(|part| part.mode == Mode::Count) {
            return None;
        }
        let is_whole = parts.iter().all(|part| part.terms.is_whole);
        let shape = match homes {
            1 if is_whole => Shape::Whole,
            1 => Shape::Fine,
            homes if homes == parts.len() && is_whole => Shape::Apart,
            homes if homes == parts.len() => Shape::ApartFine,
            _ => return None,
        };
        let script = written_out(parts.len(), shape)?;
        let mut arguments = vec![packed(parts, ids, shape, manner)];
        if manner.at.is_some() {
            arguments.push(time(manner.at));
        }
        Some(Self { script, arguments, shape, charges: parts.len() })
    }

    /// The time, the decision, and the states or the ledgers before.
    pub(crate) fn read<'a>(&self, answer: &'a [u8]) -> Option<Fields<'a>> {
        match self.shape {
            Shape::Whole | Shape::Fine => read_ledger(answer),
            Shape::Apart | Shape::ApartFine => self.read_states(answer),
        }
    }

    fn read_states<'a>(&self, answer: &[u8]) -> Option<Fields<'a>> {
        let mut reader = Reader::new(answer);
        let is_fine = self.shape == Shape::ApartFine;
        let (us, is_denied) = reader.double()?;
        let mut limb = |is_told: bool| match is_told {
            true => reader.double().map(|(number, _)| number),
            false => Some(0),
        };
        let now = moment(us, limb(is_fine)?);
        let mut state = |_| {
            let mut value = vec![GCRA];
            for (is_told, len) in [(true, 7), (is_fine, 2), (is_fine, 7)] {
                put_number(&mut value, limb(is_told)?, len);
            }
            Some(Cow::Owned(value))
        };
        let states = (0..self.charges).map(&mut state).collect::<Option<_>>()?;
        let digit: &[u8] = if is_denied { b"0" } else { b"1" };
        Some((now, digit, Found::States(states)))
    }
}

/// What a script answers that has all its states in one ledger.
fn read_ledger(answer: &[u8]) -> Option<Fields<'_>> {
    let mut reader = Reader::new(answer);
    let (us, ns) = (reader.number(7)?, reader.number(2)?);
    let digit = reader.take(1)?;
    Some((moment(us, ns), digit, Found::Keys(vec![reader.rest()])))
}

/// The argument of numbers, as the script of this shape draws it.
fn packed(parts: &[KeyCharge], ids: &[[u8; 8]], shape: Shape, manner: Manner) -> Vec<u8> {
    let mut packed = Vec::with_capacity(parts.len() * 80 + 16);
    for (part, id) in parts.iter().zip(ids) {
        packed.extend(numbers(part, shape));
        packed.extend_from_slice(id);
    }
    match shape {
        Shape::Whole | Shape::Fine => {
            packed.extend_from_slice(life_ms(parts, manner).to_string().as_bytes());
        }
        Shape::Apart | Shape::ApartFine => {
            parts.iter().for_each(|part| packed.extend(seldom_read(part, shape)));
            for part in parts {
                let text = life_ms(std::slice::from_ref(part), manner).to_string();
                packed.push(text.len() as u8);
                packed.extend_from_slice(text.as_bytes());
            }
        }
    }
    packed
}

/// How long a new ledger of these charges lives: rounded up, with a carry to spare, for a state must
/// not be forgotten before its time. In tests the server's time passes by itself.
fn life_ms(parts: &[KeyCharge], manner: Manner) -> u64 {
    let longest_us = parts.iter().map(|part| part.asked()[0]).max().unwrap_or_default();
    longest_us / 1_000 + 3 + if manner.at.is_some() { 3_600_000 } else { 0 }
}

/// What the bucket holds and what the charge costs, as doubles.
fn numbers(part: &KeyCharge, shape: Shape) -> Vec<u8> {
    let [cap_us, cap_ns, cap_part, scale, skew] = constants(part);
    let [us, ns, rest] = part.asked().map(double);
    match shape {
        Shape::Whole => [cap_us, us, skew].concat(),
        Shape::Fine => [cap_us, cap_ns, cap_part, scale, skew, us, ns, rest].concat(),
        Shape::Apart => [cap_us, us].concat(),
        Shape::ApartFine => [cap_us, scale, us, ns, rest].concat(),
    }
}

/// What only a request needs that is denied, or nearly so.
fn seldom_read(part: &KeyCharge, shape: Shape) -> Vec<u8> {
    let [_, cap_ns, cap_part, _, skew] = constants(part);
    if shape == Shape::Apart { skew.to_vec() } else { [cap_ns, cap_part, skew].concat() }
}

/// The constants of gcra.lua, as doubles.
fn constants(part: &KeyCharge) -> [[u8; 8]; 5] {
    let mut doubles = part.terms.constants.chunks_exact(8);
    std::array::from_fn(|_| {
        let double = doubles.next().and_then(|double| double.try_into().ok());
        double.expect("GCRA has five constants")
    })
}

fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}
