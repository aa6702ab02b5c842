//! Numbers that values are kept under, so that a state can be carried when they change.
//!
//! ```text
//!   value:  | … mark … |   tw:2n:{family}mark:  | edition: 7 | noted: 7 | numbers: 4 × 8 | zone |
//! ```
//!
//! A value says by a mark of three bytes under which numbers of its family it is kept. What a mark
//! stands for is noted in the store before anything is written under it, and kept for longer than a
//! value may live, so whoever finds the value knows, in any process and after any restart. Notes
//! are renewed now and then while their numbers are in use.
//!
//! **Editions** say which numbers are the newer ones: the time at which they were first noted, or
//! put in force together by [`Store::renew`](tollway_core::Store::renew). A process that starts
//! again with older numbers finds them noted and does not make them newer. Numbers that nobody has
//! noted for [`IN_USE_FOR`] are in force no more: when a rollout is rolled back, keys go back too.
//!
//! **Two sorts.** GCRA states are in ledgers, others in strings. The note of a set says whether its
//! family has numbers of the other sort; then scripts look at both keys, and mark in one what is in
//! the other. Whoever noted his numbers before there were others is told by such a mark.

use std::time::Duration;

use redis::{Cmd, FromRedisValue as _, Value};
use tollway_core::civil::Zone;
use tollway_core::{Algorithm, Cost, OnChange, Policy, State, Timestamp};

use crate::encoded_policy::{GCRA, NOTED_FOR_S};
use crate::layout;
use crate::packed_bytes::{Reader, put_number};
use crate::script_numbers::{moment, nanos};

/// What a value says about the numbers that it is kept under: the kind in its highest three bits
/// (GCRA and concurrency have two of them, see [`Mark::believing`]), and a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Mark(pub(crate) [u8; 3]);

impl Mark {
    pub(crate) fn of(policy: &Policy) -> Self {
        let [a, b, c, ..] =
            (policy.numbers_mark() >> Policy::NUMBERS_MARK.trailing_zeros()).to_le_bytes();
        Self([a, b, c])
    }

    /// The kind of the values that are kept under these numbers.
    pub(crate) const fn kind(self) -> u8 {
        match self.0[2] >> 5 {
            0 => 1,
            7 => 5,
            kind => kind,
        }
    }

    /// The same numbers, for states that may be further in the future than these numbers allow for:
    /// where numbers come with the call, or the state was carried here. Nothing of them is mended
    /// as if a clock had been set back.
    pub(crate) const fn believing(self) -> Self {
        let [a, b, c] = self.0;
        match c >> 5 {
            1 => Self([a, b, c & 31]),
            5 => Self([a, b, c | 7 << 5]),
            _ => self,
        }
    }

    /// The mark of these numbers as they are noted.
    const fn plain(self) -> Self {
        let [a, b, c] = self.0;
        Self([a, b, c & 31 | self.kind() << 5])
    }
}

/// The policies among which a key's state is carried: those of one name; with [`OnChange::Reset`],
/// of one name and the same numbers.
pub(crate) fn family(policy: &Policy) -> u64 {
    match policy.change_rule() {
        OnChange::Reset => policy.id() ^ policy.numbers_mark(),
        _ => policy.family_id(),
    }
}

/// One set of numbers, as it is noted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Known {
    pub(crate) algorithm: Algorithm,
    edition: u64,
    /// When somebody who uses them noted them last.
    noted_at: Timestamp,
}

impl Known {
    /// Whether who asks by other numbers is decided by these, as of `now`.
    pub(crate) fn come_before(&self, other: &Self, now: Timestamp) -> bool {
        let has_order = other.edition != NO_EDITION;
        has_order && self.edition > other.edition && now.since(self.noted_at) < IN_USE_FOR
    }
}

/// The edition of plans ([`Policy::as_plan`]), of which none is newer than another.
const NO_EDITION: u64 = 0;

/// For how long numbers are in use after they were noted: who uses them does it once a minute.
const IN_USE_FOR: Duration = Duration::from_secs(5 * NOTED_FOR_S);

/// The numbers of an algorithm, and the zone that they leave out.
pub(crate) fn encode(algorithm: &Algorithm) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    algorithm.numbers().iter().for_each(|number| put_number(&mut out, *number, 8));
    if let Algorithm::CalendarWindow(window) = algorithm {
        out.extend_from_slice(window.calendar().zone().name().as_bytes());
    }
    out
}

/// What [`encode`] was given.
pub(crate) fn decode(numbers: &[u8]) -> Option<Algorithm> {
    let mut reader = Reader::new(numbers);
    let mut words = [0; 4];
    for word in &mut words {
        *word = reader.number(8)?;
    }
    let algorithm = Algorithm::from_numbers(words)?;
    let Algorithm::CalendarWindow(window) = algorithm else { return Some(algorithm) };
    let zone = std::str::from_utf8(reader.rest()).ok()?;
    Some(window.in_zone(zone_named(zone)?).into())
}

/// The numbers of these marks as a command looks them up.
pub(crate) fn look_up(prefix: &str, family: u64, marks: &[Mark]) -> Cmd {
    let mut command = redis::cmd("MGET");
    for mark in marks {
        command.arg(key(prefix, family, *mark));
    }
    command
}

/// What is noted of each of the marks that were looked up.
pub(crate) fn read(answer: &Value) -> Vec<Option<Known>> {
    let values: Vec<Option<Vec<u8>>> = Vec::from_redis_value_ref(answer).unwrap_or_default();
    let known = |value: Option<Vec<u8>>| {
        let value = value?;
        let mut reader = Reader::new(&value);
        let (edition, noted_at) = (reader.number(7)?, moment(reader.number(7)?, 0));
        Some(Known { algorithm: decode(reader.rest())?, edition, noted_at })
    };
    values.into_iter().map(known).collect()
}

/// Keys and arguments of `scripts/numbers.lua` for sets of one family.
pub(crate) fn note(
    prefix: &str,
    family: u64,
    policies: &[&Policy],
    in_force_now: bool,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let begun = layout::numbers_key(prefix, family);
    let sort = |letter: u8| [&begun[..], &[letter]].concat();
    let mut keys = vec![sort(b'g'), sort(b's')];
    keys.extend(policies.iter().map(|policy| key(prefix, family, Mark::of(policy))));
    let kept = policies.iter().map(|policy| kept_for(policy.algorithm())).max();
    let manner: &[u8] = match in_force_now {
        true => b"1",
        false if policies.iter().all(|policy| policy.is_plan()) => b"2",
        false => b"0",
    };
    let kept_ms = kept.unwrap_or_default().as_millis().to_string().into_bytes();
    let in_ledger = |policy: &&&Policy| Mark::of(policy).kind() == GCRA;
    let ledgers = policies.iter().filter(in_ledger).count();
    let sorts = match ledgers {
        0 => b"2".to_vec(),
        _ if ledgers == policies.len() => b"1".to_vec(),
        _ => b"12".to_vec(),
    };
    let mut arguments = vec![manner.to_vec(), kept_ms, sorts];
    arguments.extend(policies.iter().map(|policy| encode(policy.algorithm())));
    (keys, arguments)
}

/// All forms of a mark are noted once: they say the same of a state.
fn key(prefix: &str, family: u64, mark: Mark) -> Vec<u8> {
    let [a, b, c] = mark.plain().0;
    let mut name = layout::numbers_key(prefix, family);
    name.extend_from_slice(format!("{c:02x}{b:02x}{a:02x}").as_bytes());
    name
}

/// For longer than any state is kept: twice as long as an empty bucket takes to fill, and a day.
fn kept_for(algorithm: &Algorithm) -> Duration {
    let start = Timestamp::from_millis(1_700_000_000_000);
    let mut state = State::vacant(algorithm);
    let all = Cost::new(algorithm.limit()).unwrap_or(Cost::ONE);
    let _ = state.count(algorithm, all, 0, start);
    let fill = state.vacant_at(algorithm).since(start);
    Duration::from_nanos(nanos(fill).saturating_mul(2)).min(Duration::from_hours(24 * 3_660))
        + Duration::from_hours(24)
}

#[cfg(feature = "zones")]
pub(crate) fn zone_named(name: &str) -> Option<Zone> {
    tollway_zones::named(name).ok()
}

#[cfg(not(feature = "zones"))]
pub(crate) fn zone_named(name: &str) -> Option<Zone> {
    (name == Zone::UTC.name()).then_some(Zone::UTC)
}
