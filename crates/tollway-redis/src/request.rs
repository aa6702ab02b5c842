//! One request to the store, owned, and its encoding for the script.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::shares::{Role, SharedPart};
use tollway_core::{Algorithm, Mode, OnStoreError, Policy, ReservationId, Timestamp};

use crate::encoded_policy::EncodedPolicy;
use crate::packed_bytes::{Reader, put_double, put_number};
use crate::script_numbers::{Amount, nanos, pair};
use crate::state_value::parse_moment;
use crate::{layout, numbers};

/// What is asked, of which states.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// Names what the request holds: a reservation, a permit, or the request itself.
    pub(crate) id: u128,
    pub(crate) parts: Vec<KeyCharge>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Check,
    Peek,
    Take,
    /// Of units taken then, if that is known.
    Refund {
        taken_at: Option<Timestamp>,
    },
    Reset,
    /// `slots` are all that a reservation across slots has charges in; none if it is in one.
    Reserve {
        expires_after: Duration,
        slots: Vec<u16>,
    },
    /// At these costs; none means that everything is given back. `taken` are the units that were
    /// taken by those parts whose numbers have changed since; it may be shorter.
    Settle {
        costs: Option<Vec<u64>>,
        taken: Vec<Option<u64>>,
    },
}

/// One charge: the name of its state in the store, and what is asked of it.
#[derive(Clone, Debug)]
pub(crate) struct KeyCharge {
    /// The name of the state in the store.
    pub(crate) key: Vec<u8>,
    pub(crate) encoded: Arc<EncodedPolicy>,
    pub(crate) units: u64,
    pub(crate) mode: Mode,
    pub(crate) on_store_error: OnStoreError,
    /// Whether a reservation's units come back when it expires.
    pub(crate) returns: bool,
    /// Which of the request's charges it is, or a part of.
    pub(crate) place: u16,
    /// A value that was found at the key under other numbers, and what that is under these.
    pub(crate) carried: Option<Arc<CarriedValue>>,
    /// What it is in a tree of owners, if it is a part of a charge to one.
    pub(crate) shared: Option<SharedPart>,
}

/// A value that was found under other numbers, and what it is under those of the charge.
#[derive(Debug)]
pub(crate) struct CarriedValue {
    pub(crate) found: Vec<u8>,
    /// Empty if it says nothing.
    pub(crate) becomes: Vec<u8>,
}

impl KeyCharge {
    /// A charge of so many units to a key of a policy of this limit, for tests.
    #[cfg(test)]
    pub(crate) fn of_limit(key: &[u8], limit: &str, units: u64) -> Self {
        let policy = tollway_core::Policy::parse("api", limit).unwrap();
        Self {
            key: key.to_vec(),
            encoded: Arc::new(EncodedPolicy::new(&policy)),
            units,
            mode: Mode::Enforce,
            on_store_error: OnStoreError::Deny,
            returns: false,
            place: 0,
            carried: None,
            shared: None,
        }
    }

    /// What the charge asks for, as a script compares it. One above the limit is denied like
    /// anything above it, and its sums stay exact.
    pub(crate) fn asked(&self) -> Amount {
        let most = self.encoded.algorithm().limit().saturating_add(1);
        self.encoded.amount(self.units.min(most))
    }

    /// The same with what the bucket of a tree is to keep.
    fn asked_beyond_kept(&self) -> Amount {
        let keeps = self.shared.map_or(0, |shared| shared.role.keeps());
        Self { units: self.units.saturating_add(keeps), ..self.clone() }.asked()
    }

    /// How the script is told what the part is in a tree.
    fn shared_bits(&self) -> u64 {
        match self.shared.map(|shared| shared.role) {
            None => 0,
            Some(Role::Lender { .. }) => 4,
            Some(Role::Ceiling { .. }) => 8,
        }
    }

    /// The cost of 1, 2, 4 … units, up to those wanted; only GCRA needs them.
    fn encode_powers(&self, out: &mut Vec<u8>) {
        let wanted = self.units.min(self.encoded.algorithm().limit());
        let powers = match self.encoded.algorithm() {
            Algorithm::Gcra(_) => wanted.checked_ilog2().map_or(0, |power| power + 1),
            _ => 0,
        };
        put_number(out, u64::from(powers), 1);
        for power in 0..powers {
            self.encoded.amount(1 << power).iter().for_each(|limb| put_double(out, *limb));
        }
    }
}

/// How a part is settled.
pub(crate) enum Settling {
    /// Keeps so many of the units that were taken, and gives the rest back.
    Keep(u64),
    /// Takes units, allowed or not.
    Extra(u64),
    /// Gives units back that nobody knows when they were taken.
    GiveBack(u64),
    /// Ends what is in flight.
    Release,
}

impl Request {
    /// The slot of the first state; all of a request's states share it in a cluster.
    pub(crate) fn slot(&self) -> u16 {
        self.parts.first().map_or(0, |part| layout::slot(&part.key))
    }

    /// The policy of each part.
    pub(crate) fn policies(&self) -> Vec<&Policy> {
        self.parts.iter().map(|part| &part.encoded.policy).collect()
    }

    /// Whether the parts of the other request are under the same numbers.
    pub(crate) fn are_numbers_of(&self, other: &Self) -> bool {
        let heads = |request: &Self| {
            request.parts.iter().map(|part| part.encoded.head()).collect::<Vec<_>>()
        };
        heads(self) == heads(other)
    }

    /// Whether the request reads or writes a reservation's record.
    pub(crate) fn has_record(&self) -> bool {
        matches!(self.op, Op::Reserve { .. } | Op::Settle { .. })
    }

    /// Appends the request; `place` says part by part which number its state has among the keys,
    /// `record` which number the reservation's record has.
    pub(crate) fn encode(
        &self,
        out: &mut Vec<u8>,
        place: &mut dyn FnMut() -> u64,
        record: Option<u64>,
    ) {
        let lends = self.lends();
        put_number(out, self.op.code() + if lends { SHARED } else { 0 }, 1);
        put_number(out, self.parts.len() as u64, 2);
        out.extend_from_slice(&self.id.to_be_bytes());
        let mut charge = None;
        for (index, part) in self.parts.iter().enumerate() {
            put_number(out, place(), 2);
            let (mode, amount) = self.mode_and_amount(index, part);
            let is_first = charge.replace(part.place) != Some(part.place);
            let bits = part.shared_bits() + if is_first { 16 } else { 0 };
            put_number(out, mode + if lends { bits } else { 0 }, 1);
            amount.iter().for_each(|limb| put_double(out, *limb));
        }
        for part in self.parts.iter().filter(|_| lends) {
            part.asked_beyond_kept().iter().for_each(|limb| put_double(out, *limb));
        }
        match &self.op {
            Op::Take => self.parts.iter().for_each(|part| part.encode_powers(out)),
            Op::Reserve { expires_after, slots } => {
                self.encode_counted_powers(out);
                pair(nanos(*expires_after)).iter().for_each(|limb| put_double(out, *limb));
                put_number(out, record.unwrap_or_default(), 2);
                let written = self.record(slots);
                put_number(out, written.len() as u64, 4);
                out.extend_from_slice(&written);
            }
            Op::Settle { .. } => put_number(out, record.unwrap_or_default(), 2),
            Op::Refund { taken_at } => put_taken(out, *taken_at),
            Op::Check | Op::Peek | Op::Reset => {}
        }
    }

    /// Whether it is to be found out who lends: some of its parts are to trees of owners.
    pub(crate) fn lends(&self) -> bool {
        let asks = matches!(self.op, Op::Check | Op::Peek | Op::Reserve { .. });
        asks && self.parts.iter().any(|part| part.shared.is_some())
    }

    /// The request with each charge to a tree as one to its root: what is left of it where the
    /// store does not answer.
    pub(crate) fn at_roots(&self) -> Self {
        let is_last = |index: usize, part: &KeyCharge| {
            self.parts.get(index + 1).is_none_or(|next| next.place != part.place)
        };
        let last = self.parts.iter().enumerate().filter(|(index, part)| is_last(*index, part));
        let parts = last.map(|(_, part)| part.clone()).collect();
        Self { op: self.op.clone(), id: self.id, parts }
    }

    /// How one part is settled at its real cost.
    fn settling(&self, index: usize, part: &KeyCharge) -> Settling {
        let Op::Settle { costs, taken } = &self.op else { return Settling::Release };
        if matches!(part.encoded.algorithm(), Algorithm::Concurrency(_)) {
            return Settling::Release;
        }
        let cost = match costs {
            None => 0,
            Some(costs) => costs.get(usize::from(part.place)).copied().unwrap_or(part.units),
        };
        match (cost.checked_sub(part.units), taken.get(index).copied().flatten()) {
            (None | Some(0), None) => Settling::Keep(cost),
            (None | Some(0), Some(taken)) => Settling::GiveBack(taken.saturating_sub(cost)),
            (Some(more), _) => Settling::Extra(more),
        }
    }

    fn mode_and_amount(&self, index: usize, part: &KeyCharge) -> (u64, Amount) {
        match &self.op {
            Op::Settle { .. } => match self.settling(index, part) {
                Settling::Keep(units) => (0, part.encoded.amount(units)),
                Settling::Extra(units) => (1, part.encoded.amount(units)),
                Settling::GiveBack(units) => (3, part.encoded.amount(units)),
                Settling::Release => (2, [0; 3]),
            },
            Op::Take => {
                let wanted = part.units.min(part.encoded.algorithm().limit());
                (u64::from(part.mode == Mode::Count), [wanted, 0, 0])
            }
            Op::Refund { .. } | Op::Reset => (0, part.encoded.amount(part.units)),
            Op::Check | Op::Peek | Op::Reserve { .. } => {
                let counted = part.mode == Mode::Count;
                let mode = u64::from(counted) + if part.returns { 2 } else { 0 };
                (mode, if counted { part.encoded.amount(part.units) } else { part.asked() })
            }
        }
    }

    /// What a script needs to find out how much a counted charge took, after its length.
    fn encode_counted_powers(&self, out: &mut Vec<u8>) {
        let is_gcra = |part: &&KeyCharge| matches!(part.encoded.algorithm(), Algorithm::Gcra(_));
        let mut powers = Vec::new();
        for part in self.parts.iter().filter(|part| part.mode == Mode::Count).filter(is_gcra) {
            part.encode_powers(&mut powers);
        }
        put_number(out, powers.len() as u64, 4);
        out.extend_from_slice(&powers);
    }

    /// What another process needs to settle this reservation.
    fn record(&self, slots: &[u16]) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, self.parts.len() as u64, 2);
        for part in &self.parts {
            put_number(&mut out, part.key.len() as u64, 4);
            out.extend_from_slice(&part.key);
            put_number(&mut out, part.units, 8);
            put_number(&mut out, u64::from(part.returns), 1);
            let numbers = numbers::encode(part.encoded.algorithm());
            put_number(&mut out, numbers.len() as u64, 2);
            out.extend_from_slice(&numbers);
            put_number(&mut out, u64::from(part.place), 2);
        }
        put_number(&mut out, slots.len() as u64, 2);
        slots.iter().for_each(|slot| put_number(&mut out, u64::from(*slot), 2));
        out
    }
}

/// Added to the code of an operation in which it is to be found out who lends.
const SHARED: u64 = 7;

impl Op {
    fn code(&self) -> u64 {
        match self {
            Self::Check => 1,
            Self::Peek => 2,
            Self::Take => 3,
            Self::Refund { .. } => 4,
            Self::Reset => 5,
            Self::Reserve { .. } => 6,
            Self::Settle { .. } => 7,
        }
    }
}

fn put_taken(out: &mut Vec<u8>, taken_at: Option<Timestamp>) {
    let limbs = taken_at.map_or([-1.0, 0.0], |at| pair(at.as_nanos()).map(|limb| limb as f64));
    limbs.iter().for_each(|limb| out.extend_from_slice(&limb.to_le_bytes()));
}

/// What a reservation's record says.
pub(crate) struct Record {
    pub(crate) parts: Vec<KeyCharge>,
    /// The units that each part took.
    pub(crate) taken: Vec<u64>,
    /// All slots of the reservation, if there are several.
    pub(crate) slots: Vec<u16>,
}

/// What a reservation's record says; `None` if it is not of our making.
pub(crate) fn parse_record(record: &[u8]) -> Option<Record> {
    let mut reader = Reader::new(record);
    parse_moment(&mut reader)?;
    parse_moment(&mut reader)?;
    let taken = (0..reader.number(2)?)
        .map(|_| Some([reader.number(7)?, reader.number(2)?, reader.number(7)?]));
    let taken = taken.collect::<Option<Vec<Amount>>>()?;
    let count = reader.number(2)?;
    let part = |_| {
        let len = usize::try_from(reader.number(4)?).ok()?;
        let key = reader.take(len)?.to_vec();
        let (units, returns) = (reader.number(8)?, reader.byte()? == 1);
        let len = usize::try_from(reader.number(2)?).ok()?;
        let algorithm = numbers::decode(reader.take(len)?)?;
        let policy = tollway_core::Policy::new("reserved", algorithm).ok()?;
        let encoded = Arc::new(EncodedPolicy::new(&policy));
        let (mode, on_store_error) = (Mode::Enforce, OnStoreError::Deny);
        let place = u16::try_from(reader.number(2)?).ok()?;
        let (carried, shared) = (None, None);
        Some(KeyCharge {
            key,
            encoded,
            units,
            mode,
            on_store_error,
            returns,
            place,
            carried,
            shared,
        })
    };
    let parts = (0..count).map(part).collect::<Option<Vec<KeyCharge>>>()?;
    let taken = parts.iter().zip(taken).map(|(part, taken)| part.encoded.units(taken)).collect();
    let slots = (0..reader.number(2)?).map(|_| u16::try_from(reader.number(2)?).ok());
    let slots = slots.collect::<Option<_>>()?;
    Some(Record { parts, taken, slots })
}

/// The slot that a reservation's name carries in its upper bits.
pub(crate) const fn slot_of(id: ReservationId) -> u16 {
    (id.0 >> 112) as u16
}

/// A reservation's name in `slot`, from random bits.
pub(crate) const fn name_in(slot: u16, random: u128) -> u128 {
    (random & (u128::MAX >> 16)) | (slot as u128) << 112
}
