//! The shortest way to ask: one request of GCRA checks on one key, by a script written out for it.
//!
//! What a server pays for a script is mostly what goes in and out, so this says only what such a
//! request needs: one argument of packed numbers, one packed answer (`scripts/gcra_whole.lua`,
//! `scripts/gcra_fine.lua`).

use tollgate_core::Mode;

use crate::amount::moment;
use crate::batch::{Fields, Found, Manner, time};
use crate::bytes::{Reader, put_double};
use crate::request::{Part, Request};
use crate::script::{Script, written_out};

/// A script for one request alone, and its arguments.
pub(crate) struct Brief {
    pub(crate) script: &'static Script,
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl Brief {
    /// For a request of checks on GCRA states of one key, all different, with the identities of
    /// their policies; `None` if there is no such script.
    pub(crate) fn new(request: &Request, ids: &[[u8; 8]], manner: Manner) -> Option<Self> {
        if request.parts.iter().any(|part| part.mode == Mode::Count) {
            return None;
        }
        let is_whole = request.parts.iter().all(|part| part.terms.is_whole);
        let script = written_out(request.parts.len(), is_whole)?;
        let mut packed = Vec::with_capacity(request.parts.len() * 72 + 16);
        for (part, id) in request.parts.iter().zip(ids) {
            pack(&mut packed, part, is_whole);
            packed.extend_from_slice(id);
        }
        packed.extend_from_slice(life_ms(request, manner).to_string().as_bytes());
        let mut arguments = vec![packed];
        if manner.at.is_some() {
            arguments.push(time(manner.at));
        }
        Some(Self { script, arguments })
    }

    /// The time, the decision and the ledger before.
    pub(crate) fn read<'a>(&self, answer: &'a [u8]) -> Option<Fields<'a>> {
        let mut reader = Reader::new(answer);
        let (us, ns) = (reader.number(7)?, reader.number(2)?);
        let digit = reader.take(1)?;
        Some((moment(us, ns), digit, Found::Keys(vec![reader.rest()])))
    }
}

/// How long a new ledger lives: rounded up, with a carry to spare, for a state must not be forgotten
/// before its time. In tests the server's time passes by itself.
fn life_ms(request: &Request, manner: Manner) -> u64 {
    let longest_us = request.parts.iter().map(|part| part.asked()[0]).max().unwrap_or_default();
    longest_us / 1_000 + 3 + if manner.at.is_some() { 3_600_000 } else { 0 }
}

/// What the bucket holds and what the charge costs.
fn pack(out: &mut Vec<u8>, part: &Part, is_whole: bool) {
    let terms = &part.terms;
    if is_whole {
        put_double(out, terms.amount(terms.algorithm().limit())[0]);
        put_double(out, part.asked()[0]);
        out.extend_from_slice(terms.constants.last_chunk::<8>().unwrap_or(&[0; 8]));
    } else {
        out.extend_from_slice(&terms.constants);
        part.asked().iter().for_each(|limb| put_double(out, *limb));
    }
}
