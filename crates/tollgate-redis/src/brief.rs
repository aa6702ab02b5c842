//! The shortest way to ask: one request of GCRA checks, by a script written out for it.
//!
//! What a server pays for a script is mostly what goes in and out, so this says only what such a
//! request needs: one argument of packed numbers, one packed answer (`scripts/gcra_whole.lua`,
//! `scripts/gcra_fine.lua`, `scripts/gcra_apart.lua`).

use tollgate_core::Mode;

use crate::amount::moment;
use crate::batch::{Fields, Found, Manner, time};
use crate::bytes::{Reader, put_double};
use crate::request::{Part, Request};
use crate::script::{Script, Shape, written_out};

/// A script for one request alone, and its arguments.
pub(crate) struct Brief {
    pub(crate) script: &'static Script,
    pub(crate) arguments: Vec<Vec<u8>>,
    /// How many keys the states are in.
    homes: usize,
}

impl Brief {
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
        let shape = match homes {
            1 if parts.iter().all(|part| part.terms.is_whole) => Shape::Whole,
            1 => Shape::Fine,
            homes if homes == parts.len() => Shape::Apart,
            _ => return None,
        };
        let script = written_out(parts.len(), shape)?;
        let mut packed = Vec::with_capacity(parts.len() * 80 + 16);
        for (part, id) in parts.iter().zip(ids) {
            pack(&mut packed, part, shape);
            packed.extend_from_slice(id);
        }
        if shape == Shape::Apart {
            for part in parts {
                let text = life_ms(std::slice::from_ref(part), manner).to_string();
                packed.push(text.len() as u8);
                packed.extend_from_slice(text.as_bytes());
            }
        } else {
            packed.extend_from_slice(life_ms(parts, manner).to_string().as_bytes());
        }
        let mut arguments = vec![packed];
        if manner.at.is_some() {
            arguments.push(time(manner.at));
        }
        Some(Self { script, arguments, homes })
    }

    /// The time, the decision and the ledgers before.
    pub(crate) fn read<'a>(&self, answer: &'a [u8]) -> Option<Fields<'a>> {
        let mut reader = Reader::new(answer);
        let (us, ns) = (reader.number(7)?, reader.number(2)?);
        let digit = reader.take(1)?;
        if self.homes == 1 {
            return Some((moment(us, ns), digit, Found::Keys(vec![reader.rest()])));
        }
        let lengths: Option<Vec<u64>> = (0..self.homes).map(|_| reader.number(4)).collect();
        let ledger = |length| reader.take(usize::try_from(length).ok()?);
        let ledgers: Option<Vec<_>> = lengths?.into_iter().map(ledger).collect();
        Some((moment(us, ns), digit, Found::Keys(ledgers?)))
    }
}

/// How long a new ledger of these charges lives: rounded up, with a carry to spare, for a state must not be forgotten
/// before its time. In tests the server's time passes by itself.
fn life_ms(parts: &[Part], manner: Manner) -> u64 {
    let longest_us = parts.iter().map(|part| part.asked()[0]).max().unwrap_or_default();
    longest_us / 1_000 + 3 + if manner.at.is_some() { 3_600_000 } else { 0 }
}

/// What the bucket holds and what the charge costs.
fn pack(out: &mut Vec<u8>, part: &Part, shape: Shape) {
    let terms = &part.terms;
    if shape == Shape::Whole {
        put_double(out, terms.amount(terms.algorithm().limit())[0]);
        put_double(out, part.asked()[0]);
        out.extend_from_slice(terms.constants.last_chunk::<8>().unwrap_or(&[0; 8]));
    } else {
        out.extend_from_slice(&terms.constants);
        part.asked().iter().for_each(|limb| put_double(out, *limb));
    }
}
