//! The shortest way to ask: one request of GCRA checks, by a script written out for it.
//!
//! What a server pays for a script is mostly what goes in and out, so this says only what such a
//! request needs: one argument of packed numbers, one packed answer (`scripts/gcra_whole.lua`,
//! `scripts/gcra_fine.lua`).

use tollgate_core::Mode;

use crate::amount::moment;
use crate::batch::{Fields, Manner, time};
use crate::bytes::{Reader, put_double};
use crate::request::{Part, Request};
use crate::script::{Script, written_out};

/// A script for one request alone, and its arguments.
pub(crate) struct Brief {
    pub(crate) script: &'static Script,
    pub(crate) arguments: Vec<Vec<u8>>,
    /// How many states there are.
    states: usize,
}

impl Brief {
    /// For a request of checks on GCRA states, all different; `None` if there is no such script.
    pub(crate) fn new(request: &Request, manner: Manner) -> Option<Self> {
        if request.parts.iter().any(|part| part.mode == Mode::Count) {
            return None;
        }
        let is_whole = request.parts.iter().all(|part| part.terms.is_whole);
        let script = written_out(request.parts.len(), is_whole)?;
        let mut packed = Vec::with_capacity(request.parts.len() * 61);
        for part in &request.parts {
            pack(&mut packed, part, is_whole);
        }
        for part in &request.parts {
            let [us, ..] = part.asked();
            // Rounded up, with a carry to spare: a state must not be forgotten before its time. In
            // tests the server's time passes by itself.
            let life_ms = us / 1_000 + 3 + if manner.at.is_some() { 3_600_000 } else { 0 };
            let text = life_ms.to_string();
            packed.push(text.len() as u8);
            packed.extend_from_slice(text.as_bytes());
        }
        let mut arguments = vec![packed];
        if manner.at.is_some() {
            arguments.push(time(manner.at));
        }
        Some(Self { script, arguments, states: request.parts.len() })
    }

    /// The time, the decision and the value of each state before.
    pub(crate) fn read<'a>(&self, answer: &'a [u8]) -> Option<Fields<'a>> {
        let mut reader = Reader::new(answer);
        let (us, ns) = (reader.number(7)?, reader.number(2)?);
        let digit = reader.take(1)?;
        let lengths = reader.take(self.states)?;
        let values = lengths.iter().map(|length| reader.take(usize::from(*length)));
        Some((moment(us, ns), digit, values.collect::<Option<_>>()?))
    }
}

/// What the bucket holds and what the charge costs.
fn pack(out: &mut Vec<u8>, part: &Part, is_whole: bool) {
    let terms = &part.terms;
    if is_whole {
        put_double(out, terms.amount(terms.algorithm().limit())[0]);
        put_double(out, part.asked()[0]);
    } else {
        // The kind stands before the constants; all of this are GCRA.
        out.extend_from_slice(&terms.spec[1..]);
        part.asked().iter().for_each(|limb| put_double(out, *limb));
    }
}
