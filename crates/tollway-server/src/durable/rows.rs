//! The rows of the file of durable counts: what each holds, written and read here and nowhere else.
//!
//! ```text
//!   head               ""                  -> last time
//!   states             policy, key         -> numbers, zone, id of the policy, state
//!   usage              policy, key, start  -> end, kept until, units
//!   open_reservations  id                  -> expires at, parts
//! ```
//!
//! Every row ends with a checksum over its name and itself: redb finds pages that were never whole,
//! and not a byte that flips in a file which was closed well.
//!
//! **Names.** Policy, key and start stand behind each other with a zero between them, so that rows
//! of a policy stand together, then those of a key, in the order of their windows. A byte `b` of a
//! key is the character `b + 1`, so that a key is a text, has no zero in it, and keeps its order.

use tollway_core::calendar_window::CalendarWindow;
use tollway_core::{
    Algorithm, Cost, Held, OnExpiry, State, Timestamp, calendar_window, fixed_window, gcra,
    leaky_bucket, named_enum,
};
use tollway_journal::bytes_codec::{ByteReader, ByteWriter};
use tollway_journal::{Layout, NamedTable, NumberedTable, Table, Written};

use super::ledger::{Entry, OpenReservation, ReservedUnits};

named_enum! {
    /// The tables; all rows are found by name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum CountTable {
        Head = "counts",
        States = "states",
        Usage = "usage",
        Reservations = "open_reservations",
    }
}

/// No rows are found by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NoTable {}

/// A file of durable counts.
#[derive(Debug)]
pub(super) enum CountFile {}

impl Layout for CountFile {
    type Numbered = NoTable;
    type Named = CountTable;
    // Queue files count from 1.
    const FORMAT: u32 = 0x0001_0001;
}

impl Table for NoTable {
    const ALL: &'static [Self] = &[];

    fn name(self) -> &'static str {
        match self {}
    }

    fn index(self) -> u8 {
        match self {}
    }
}

impl NumberedTable for NoTable {
    fn written(self) -> Written<Self> {
        match self {}
    }
}

tollway_journal::tables_by_name!(CountTable);

impl NamedTable for CountTable {}

/// A window of a key, and how long its usage is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    pub(super) kept_until: Timestamp,
}

/// What a key used in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsageRow {
    pub(super) end: Timestamp,
    pub(super) kept_until: Timestamp,
    pub(super) units: u64,
}

/// The name of the state of a key.
pub(super) fn state_name(policy: &str, key: &[u8]) -> String {
    let mut name = String::with_capacity(policy.len() + 1 + key.len());
    name.push_str(policy);
    name.push('\0');
    name.extend(key.iter().map(|byte| char::from_u32(u32::from(*byte) + 1).unwrap_or('\0')));
    name
}

/// The name of the usage of a key, of which `state_name` is the name, in the window from `start`.
pub(super) fn usage_name(state_name: &str, start: Timestamp) -> String {
    format!("{state_name}\0{:016x}", start.as_nanos())
}

/// The policy, the key and the start that make such a name.
pub(super) fn of_usage_name(name: &str) -> Option<(&str, Vec<u8>, Timestamp)> {
    let mut parts = name.split('\0');
    let (policy, key, start) = (parts.next()?, parts.next()?, parts.next()?);
    let byte = |letter: char| u8::try_from(u32::from(letter).checked_sub(1)?).ok();
    let key = key.chars().map(byte).collect::<Option<Vec<u8>>>()?;
    Some((policy, key, Timestamp::from_nanos(u64::from_str_radix(start, 16).ok()?)))
}

/// The row with its checksum.
pub(super) fn sealed(name: &str, out: ByteWriter) -> Vec<u8> {
    let mut row = out.0;
    let sum = checksum(name, &row);
    row.extend_from_slice(&sum.to_le_bytes());
    row
}

/// The row without its checksum, if that is right.
fn unsealed<'a>(name: &str, row: &'a [u8]) -> Option<ByteReader<'a>> {
    let (row, sum) = row.split_at_checked(row.len().checked_sub(8)?)?;
    let is_right = checksum(name, row).to_le_bytes() == sum;
    is_right.then_some(ByteReader(row))
}

/// FNV-1a: it finds what an accident does to a row. Whoever can write the file can write its sums.
fn checksum(name: &str, row: &[u8]) -> u64 {
    name.bytes()
        .chain([0xff])
        .chain(row.iter().copied())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

pub(super) fn write_head(last: Timestamp) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.time(last);
    sealed("", out)
}

pub(super) fn read_head(row: &[u8]) -> Option<Timestamp> {
    unsealed("", row)?.time()
}

pub(super) fn write_usage(name: &str, row: UsageRow) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.time(row.end).time(row.kept_until).u64(row.units);
    sealed(name, out)
}

pub(super) fn read_usage(name: &str, row: &[u8]) -> Option<UsageRow> {
    let mut row = unsealed(name, row)?;
    Some(UsageRow { end: row.time()?, kept_until: row.time()?, units: row.u64()? })
}

pub(super) fn write_entry(name: &str, entry: &Entry) -> Vec<u8> {
    let mut out = ByteWriter::default();
    write_algorithm(&mut out, &entry.algorithm);
    out.u64(entry.policy_id);
    match &entry.state {
        State::Gcra(state) => write_words(&mut out, 1, &state.to_words()),
        State::LeakyBucket(state) => write_words(&mut out, 2, &state.to_words()),
        State::FixedWindow(state) => write_words(&mut out, 3, &state.to_words()),
        State::CalendarWindow(state) => write_words(&mut out, 4, &state.to_words()),
        // Policies of other algorithms are not durable; the configuration sees to it.
        _ => write_words(&mut out, 0, &[]),
    }
    sealed(name, out)
}

pub(super) fn read_entry(name: &str, row: &[u8]) -> Option<Entry> {
    let mut row = unsealed(name, row)?;
    let (algorithm, policy_id) = (read_algorithm(&mut row)?, row.u64()?);
    let state = match row.u8()? {
        1 => State::Gcra(gcra::State::from_words([row.u64()?, row.u64()?])),
        2 => State::LeakyBucket(leaky_bucket::State::from_words([row.u64()?, row.u64()?])),
        3 => State::FixedWindow(fixed_window::State::from_words([row.u64()?, row.u64()?])),
        4 => {
            let words = [row.u64()?, row.u64()?, row.u64()?];
            State::CalendarWindow(calendar_window::State::from_words(words))
        }
        _ => State::vacant(&algorithm),
    };
    Some(Entry { algorithm, policy_id, state })
}

fn write_words(out: &mut ByteWriter, kind: u8, words: &[u64]) {
    out.u8(kind);
    for word in words {
        out.u64(*word);
    }
}

/// Numbers, and the zone that they leave out.
fn write_algorithm(out: &mut ByteWriter, algorithm: &Algorithm) {
    for number in algorithm.numbers() {
        out.u64(number);
    }
    let zone = match algorithm {
        Algorithm::CalendarWindow(window) => window.calendar().zone().name(),
        _ => "",
    };
    out.short_text(zone);
}

fn read_algorithm(row: &mut ByteReader<'_>) -> Option<Algorithm> {
    let algorithm = Algorithm::from_numbers([row.u64()?, row.u64()?, row.u64()?, row.u64()?])?;
    let zone = row.short_text()?;
    Some(match algorithm {
        Algorithm::CalendarWindow(window) => Algorithm::CalendarWindow(in_zone(window, zone)),
        other => other,
    })
}

/// A zone that is not known any more is UTC: the window that is open ends when it said it would.
fn in_zone(window: CalendarWindow, zone: &str) -> CalendarWindow {
    tollway_zones::named(zone).map_or(window, |zone| window.in_zone(zone))
}

pub(super) fn reservation_name(id: u128) -> String {
    format!("{id:032x}")
}

pub(super) fn write_reservation(name: &str, open: &OpenReservation) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.time(open.expires_at);
    out.list(open.parts.iter(), |out, part| {
        out.text(&part.name).u32(part.charge);
        write_algorithm(out, &part.algorithm);
        out.u64(part.policy_id).u64(part.held.cost.get()).u64(part.held.taken);
        out.time(part.held.at).u8(u8::from(part.on_expiry == OnExpiry::Keep));
        out.option(part.period, |out, period| {
            out.time(period.start).time(period.end).time(period.kept_until);
        });
    });
    sealed(name, out)
}

pub(super) fn read_reservation(name: &str, row: &[u8]) -> Option<(u128, OpenReservation)> {
    let id = u128::from_str_radix(name, 16).ok()?;
    let mut row = unsealed(name, row)?;
    let expires_at = row.time()?;
    let parts = row.list(|row| {
        let (name, charge) = (row.text()?.into(), row.u32()?);
        let (algorithm, policy_id) = (read_algorithm(row)?, row.u64()?);
        let (cost, taken) = (Cost::new(row.u64()?)?, row.u64()?);
        let held = Held { id, cost, taken, at: row.time()? };
        let on_expiry = if row.flag()? { OnExpiry::Keep } else { OnExpiry::Return };
        let period = row.option(|row| {
            Some(Period { start: row.time()?, end: row.time()?, kept_until: row.time()? })
        })?;
        Some(ReservedUnits { name, charge, algorithm, policy_id, held, on_expiry, period })
    })?;
    Some((id, OpenReservation { expires_at, elsewhere: None, parts }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_policy_key_and_start_back_whatever_bytes_the_key_has() {
        let key: Vec<u8> = (0..=255).collect();
        let name = usage_name(&state_name("plan a", &key), Timestamp::from_nanos(77));
        assert_eq!(of_usage_name(&name), Some(("plan a", key, Timestamp::from_nanos(77))));
    }

    #[test]
    fn names_stand_in_the_order_of_keys_and_of_windows() {
        let at =
            |key: &[u8], start| usage_name(&state_name("p", key), Timestamp::from_nanos(start));
        assert!(at(b"a", 9) < at(b"a", 10) && at(b"a", 10) < at(b"ab", 1));
        assert!(at(b"ab", 1) < at(b"b", 0) && at(b"b", 0) < at(b"\xff", 0));
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_row_is_found() {
        let name = usage_name(&state_name("p", b"k"), Timestamp::from_nanos(1));
        let [end, kept_until] = [5, 6].map(Timestamp::from_nanos);
        let usage = UsageRow { end, kept_until, units: 7 };
        let row = write_usage(&name, usage);
        assert_eq!(read_usage(&name, &row), Some(usage));
        assert_eq!(read_usage("another", &row), None);
        for bit in 0..row.len() * 8 {
            let mut wrong = row.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_usage(&name, &wrong), None, "bit {bit}");
        }
    }
}
