//! What an algorithm is in the store: the constants that its script takes, and its states, the
//! values that scripts write, read and written here.
//!
//! ```text
//!   value    | head | what the algorithm's script draws | returns, 53 bytes each ... |
//!   head     | kind: 1 | mark of the numbers: 3 |
//! ```
//!
//! A GCRA state looks so wherever it leaves its ledger. `scripts/decide.lua` draws a return.

use tollway_core::concurrency::{self, Hold};
use tollway_core::fixed_window::Anchor;
use tollway_core::gcra::{self, Gcra};
use tollway_core::sliding_window::{self, Cell, SlidingWindow};
use tollway_core::{Algorithm, SKEW, State, Timestamp};
use tollway_core::{calendar_window, fixed_window, leaky_bucket};

use crate::numbers::Mark;
use crate::packed_bytes::{Reader, put_number};
use crate::script_numbers::{Scale, UNITS_MAX, amount, gcd, moment, nanos, pair, units};

/// The bytes of a head.
pub(crate) const HEAD_LEN: usize = 4;
/// The bytes of a return.
const RETURN_LEN: usize = 53;

/// Units of an open reservation that come back if nobody settles it in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) id: u128,
    pub(crate) units: u64,
    pub(crate) expires_at: Timestamp,
    pub(crate) taken_at: Timestamp,
    /// The numbers under which they were taken: under others nobody knows what counts since when.
    pub(crate) mark: Mark,
}

/// The kind of an algorithm and its constants, in the order that its script names them.
pub(crate) fn constants(algorithm: &Algorithm, believes: bool) -> (u8, Vec<u64>) {
    match algorithm {
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            let mut constants = amount(algorithm, quota.burst()).to_vec();
            constants.push(Scale::of(quota).ticks);
            constants.push(if believes { UNITS_MAX } else { SKEW.as_micros() as u64 });
            (1, constants)
        }
        Algorithm::LeakyBucket(bucket) => {
            let [us, ns] = pair(nanos(bucket.interval()));
            (2, vec![bucket.size(), bucket.drip_size(), us, ns])
        }
        Algorithm::FixedWindow(window) => {
            let [us, ns] = pair(nanos(window.quota().period()));
            let anchor = u64::from(window.anchor() == Anchor::FirstRequest);
            (3, vec![window.quota().units(), us, ns, anchor])
        }
        Algorithm::SlidingWindow(window) => {
            let period_ns = nanos(window.period());
            let common = gcd(period_ns, window.buckets());
            let ([us, ns], [whole_us, whole_ns]) = (pair(period_ns), pair(period_ns / common));
            (4, vec![window.limit(), us, ns, window.buckets() / common, whole_us, whole_ns])
        }
        Algorithm::Concurrency(limit) => {
            let [us, ns] = pair(nanos(limit.lease()));
            (5, vec![limit.limit(), us, ns, if believes { UNITS_MAX } else { 0 }])
        }
        Algorithm::CalendarWindow(window) => {
            (6, vec![window.units(), window.carry(), window.grace()])
        }
        // No script knows a tree of owners: its buckets are of other kinds, and another service
        // that is the store takes the policy's name.
        Algorithm::Shares(_) => (0, Vec::new()),
        _ => unreachable_kind(),
    }
}

/// The core has six algorithms; another one comes with its script.
pub(crate) fn unreachable_kind() -> ! {
    unreachable!("every algorithm of the core has a script")
}

/// The kind of a value and the numbers that it is kept under.
pub(crate) fn head(value: &[u8]) -> Option<(u8, Mark)> {
    let (head, _) = value.split_first_chunk::<HEAD_LEN>()?;
    let [kind, mark @ ..] = *head;
    Some((kind, Mark(mark)))
}

/// What a value says that is kept under `algorithm`; `None` if it says something else.
pub(crate) fn parse(algorithm: &Algorithm, value: &[u8]) -> Option<(State, Vec<Return>)> {
    let mut reader = Reader::new(value.get(HEAD_LEN..)?);
    let state = parse_state(algorithm, &mut reader)?;
    let mut returns = Vec::new();
    while !reader.is_empty() {
        returns.push(parse_return(algorithm, &mut reader)?);
    }
    Some((state, returns))
}

/// Whether a value has a length that its kind may have: somebody else's data seldom has.
pub(crate) fn is_whole(value: &[u8]) -> bool {
    let Some((kind, _)) = head(value) else { return false };
    let body = &value[HEAD_LEN..];
    let of_cells = |cell_len: usize| {
        let count = Reader::new(body).number(4).and_then(|count| usize::try_from(count).ok());
        count.and_then(|count| count.checked_mul(cell_len)?.checked_add(4))
    };
    let state_len = match kind {
        1..=3 => Some(16),
        4 => of_cells(16),
        5 => of_cells(32),
        6 => Some(21),
        _ => None,
    };
    let returns = state_len.and_then(|len| body.len().checked_sub(len));
    returns.is_some_and(|len| len % RETURN_LEN == 0)
}

/// The value of a state that is kept under `algorithm`.
pub(crate) fn format(
    algorithm: &Algorithm,
    (kind, mark): (u8, Mark),
    state: &State,
    returns: &[Return],
) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&mark.0);
    put_state(&mut out, algorithm, state);
    for entry in returns {
        out.extend_from_slice(&entry.id.to_be_bytes());
        let [us, ns, part] = amount(algorithm, entry.units);
        put_number(&mut out, us, 7);
        put_number(&mut out, ns, 2);
        put_number(&mut out, part, 7);
        put_moment(&mut out, entry.expires_at);
        put_moment(&mut out, entry.taken_at);
        out.extend_from_slice(&entry.mark.0);
    }
    out
}

fn parse_return(algorithm: &Algorithm, reader: &mut Reader<'_>) -> Option<Return> {
    let id = reader.id()?;
    let limbs = [reader.number(7)?, reader.number(2)?, reader.number(7)?];
    let (expires_at, taken_at) = (parse_moment(reader)?, parse_moment(reader)?);
    let mark = Mark(reader.take(3)?.try_into().ok()?);
    Some(Return { id, units: units(algorithm, limbs), expires_at, taken_at, mark })
}

fn parse_state(algorithm: &Algorithm, reader: &mut Reader<'_>) -> Option<State> {
    Some(match algorithm {
        Algorithm::Gcra(gcra) => State::Gcra(parse_gcra(gcra, reader)?),
        Algorithm::LeakyBucket(_) => {
            let level = reader.number(7)?;
            State::LeakyBucket(leaky_bucket::State::new(level, parse_moment(reader)?))
        }
        Algorithm::FixedWindow(_) => {
            let start = parse_moment(reader)?.as_nanos();
            State::FixedWindow(fixed_window::State::from_words([start, reader.number(7)?]))
        }
        Algorithm::SlidingWindow(window) => State::SlidingWindow(parse_cells(window, reader)?),
        Algorithm::Concurrency(_) => State::Concurrency(parse_holds(reader)?),
        Algorithm::CalendarWindow(_) => {
            let [start, end] = [moment(reader.number(7)?, 0), moment(reader.number(7)?, 0)];
            let words = [start.as_nanos(), end.as_nanos(), reader.number(7)?];
            State::CalendarWindow(calendar_window::State::from_words(words))
        }
        _ => unreachable_kind(),
    })
}

fn put_state(out: &mut Vec<u8>, algorithm: &Algorithm, state: &State) {
    match (algorithm, state) {
        (Algorithm::Gcra(gcra), State::Gcra(state)) => put_gcra(out, gcra, *state),
        (_, State::LeakyBucket(state)) => {
            put_number(out, state.level().min(UNITS_MAX), 7);
            put_moment(out, state.dripped_at());
        }
        (_, State::FixedWindow(state)) => {
            let [start, count] = state.to_words();
            put_moment(out, Timestamp::from_nanos(start));
            put_number(out, count.min(UNITS_MAX), 7);
        }
        (Algorithm::SlidingWindow(window), State::SlidingWindow(state)) => {
            put_cells(out, window, state);
        }
        (_, State::Concurrency(state)) => put_holds(out, state),
        (_, State::CalendarWindow(state)) => {
            let [start, end, debt] = state.to_words();
            for edge in [start, end] {
                put_number(out, pair(edge)[0], 7);
            }
            put_number(out, debt.min(UNITS_MAX), 7);
        }
        _ => unreachable_kind(),
    }
}

fn parse_gcra(gcra: &Gcra, reader: &mut Reader<'_>) -> Option<gcra::State> {
    let limbs = [reader.number(7)?, reader.number(2)?, reader.number(7)?];
    let tat = Scale::of(gcra.quota()).ticks_of(limbs);
    Some(gcra::State::from_words([tat as u64, (tat >> 64) as u64]))
}

fn put_gcra(out: &mut Vec<u8>, gcra: &Gcra, state: gcra::State) {
    let [low, high] = state.to_words();
    let ticks = u128::from(low) | u128::from(high) << 64;
    let [us, ns, part] = Scale::of(gcra.quota()).limbs_of(ticks);
    put_number(out, us, 7);
    put_number(out, ns, 2);
    put_number(out, part, 7);
}

fn parse_cells(window: &SlidingWindow, reader: &mut Reader<'_>) -> Option<sliding_window::State> {
    let (buckets, period_ns) = (u128::from(window.buckets()), window.period().as_nanos());
    let count = reader.number(4)?;
    let cells = (0..count).map(|_| {
        let start_ns = u128::from(parse_moment(reader)?.as_nanos());
        // A cell is named by the first nanosecond of its tick, which lies in that tick.
        let tick = start_ns * buckets / period_ns;
        Some(Cell { tick: u64::try_from(tick).ok()?, units: reader.number(7)? })
    });
    Some(sliding_window::State::from_cells(cells.collect::<Option<Vec<_>>>()?))
}

fn put_cells(out: &mut Vec<u8>, window: &SlidingWindow, state: &sliding_window::State) {
    let (buckets, period_ns) = (u128::from(window.buckets()), u128::from(nanos(window.period())));
    put_number(out, state.cells().len() as u64, 4);
    for cell in state.cells() {
        let start_ns = (u128::from(cell.tick) * period_ns).div_ceil(buckets);
        put_moment(out, Timestamp::from_nanos(u64::try_from(start_ns).unwrap_or(u64::MAX)));
        put_number(out, cell.units.min(UNITS_MAX), 7);
    }
}

fn parse_holds(reader: &mut Reader<'_>) -> Option<concurrency::State> {
    let count = reader.number(4)?;
    let holds = (0..count).map(|_| {
        let (id, units) = (reader.id()?, reader.number(7)?);
        Some(Hold { id, units, expires_at: parse_moment(reader)? })
    });
    Some(concurrency::State::from_holds(holds.collect::<Option<Vec<_>>>()?))
}

fn put_holds(out: &mut Vec<u8>, state: &concurrency::State) {
    put_number(out, state.holds().len() as u64, 4);
    for hold in state.holds() {
        out.extend_from_slice(&hold.id.to_be_bytes());
        put_number(out, hold.units.min(UNITS_MAX), 7);
        put_moment(out, hold.expires_at);
    }
}

pub(crate) fn parse_moment(reader: &mut Reader<'_>) -> Option<Timestamp> {
    let micros = reader.number(7)?;
    Some(moment(micros, reader.number(2)?))
}

fn put_moment(out: &mut Vec<u8>, at: Timestamp) {
    let [us, ns] = pair(at.as_nanos());
    put_number(out, us, 7);
    put_number(out, ns, 2);
}
