//! When a job will start, by what the store told of its group: the schedule's own formulas.
//!
//! Jobs of several units ahead are counted as if all of the group's were, and every job of the
//! queue as if it were the heaviest: an estimate is then later than it might be, never too early.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tollway_core::fixed_window::Anchor;
use tollway_core::{Algorithm, Cost, State, Timestamp};

use super::decode::{bytes, damaged, list, number, unsigned};
use super::encode::{kind_of, moment, unpack_limits};
use crate::error::Error;
use crate::schedule::{Bound, Edge, Gate, InFlight, Position, Slots, estimate, served_before};
use crate::{Estimate, Limit, QueueSettings};
use tollway_journal::bytes_codec::ByteReader;

/// What holds for all groups: response times, the time, the heaviest job, and what is in use of the
/// limits that bind all of them.
pub(super) struct Frame {
    pub(super) version: u64,
    mean: Option<Duration>,
    longest: Duration,
    now: Timestamp,
    heaviest: u32,
    wide: Vec<Value>,
}

impl Frame {
    /// Reads `{ version, mean, longest, now, heaviest, limits that bind all groups }`.
    pub(super) fn read(value: &Value) -> Result<Self, Error> {
        let parts = list(value.clone())?;
        let [version, mean, longest, now, heaviest, wide] = &parts[..] else {
            return Err(damaged());
        };
        // Below zero if the clock was set back while jobs ran.
        let micros = |value: &Value| {
            number(value).map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
        };
        let mean = if bytes(mean)?.is_empty() { None } else { Some(micros(mean)?) };
        Ok(Self {
            version: unsigned(version)?,
            mean,
            longest: micros(longest)?,
            now: moment(unsigned(now)?),
            heaviest: u32::try_from(number(heaviest)?).unwrap_or(1).max(1),
            wide: list(wide.clone()).unwrap_or_default(),
        })
    }
}

/// What an estimate needs beside a group.
pub(super) struct EstimateContext {
    frame: Frame,
    settings: Arc<QueueSettings>,
    wide: Vec<Wide>,
}

/// Limits that bind several groups: what is in use of them, and the jobs that they bind.
struct Wide {
    limits: Vec<Limit>,
    gates: Vec<Gate>,
    /// Units of the queue's own jobs, and of others that share the limit.
    units: u64,
    others: u64,
    heaviest: u32,
    /// How many groups of the queue have jobs.
    groups: u64,
}

impl EstimateContext {
    pub(super) fn new(frame: Frame, settings: Arc<QueueSettings>) -> Result<Self, Error> {
        let wide = wide(&frame, &settings)?;
        Ok(Self { frame, settings, wide })
    }
}

fn wide(frame: &Frame, settings: &QueueSettings) -> Result<Vec<Wide>, Error> {
    let Some(([state, units, groups], shared)) = frame.wide.split_first_chunk() else {
        return Ok(Vec::new());
    };
    let limits = settings.queue_limits.clone();
    let gates = gates(ByteReader(bytes(state)?), &limits).ok_or_else(damaged)?;
    let (units, groups, heaviest) = (unsigned(units)?, unsigned(groups)?, frame.heaviest);
    let mut all = vec![Wide { limits, gates, units, others: 0, heaviest, groups }];
    for one in shared.chunks_exact(4) {
        // A limit that was never made binds nobody.
        let Some(limits) = unpack_limits(bytes(&one[0])?) else { continue };
        let gates = gates_of(&one[1], &limits)?;
        let heaviest = u32::try_from(unsigned(&one[3])?).unwrap_or(u32::MAX);
        let others = unsigned(&one[2])?.saturating_sub(units);
        all.push(Wide { limits, gates, units, others, heaviest, groups });
    }
    Ok(all)
}

fn gates_of(state: &Value, limits: &[Limit]) -> Result<Vec<Gate>, Error> {
    gates(ByteReader(bytes(state)?), limits).ok_or_else(damaged)
}

/// What was told of one group.
pub(super) struct GroupTold<'s> {
    setting: &'s EstimateContext,
    gates: Vec<Gate>,
    limits: Cow<'s, [Limit]>,
    blocked_until: Timestamp,
    /// Units of all jobs that wait.
    units: u64,
    /// Whether the group or the queue is paused, so that nobody can tell.
    paused: bool,
}

impl<'s> GroupTold<'s> {
    /// Reads `{ name, state, units in all, paused, own limits }`.
    pub(super) fn read(parts: &[Value], setting: &'s EstimateContext) -> Result<Self, Error> {
        let [_name, state, units, paused, own] = parts else { return Err(damaged()) };
        Self::of(bytes(state)?, number(units)?, paused, own, setting)
    }

    /// What is told of a group in whose position so many units wait in all.
    pub(super) fn of(
        state: &[u8],
        units: i64,
        paused: &Value,
        own: &Value,
        setting: &'s EstimateContext,
    ) -> Result<Self, Error> {
        let limits = match bytes(own)? {
            [] => Cow::Borrowed(&setting.settings.group_limits[..]),
            own => Cow::Owned(unpack_limits(own).ok_or_else(damaged)?),
        };
        let (gates, blocked_until) = group(state, &limits).ok_or_else(damaged)?;
        let (units, paused) = (units.unsigned_abs(), number(paused)? == 1);
        Ok(Self { setting, gates, limits, blocked_until, units, paused })
    }

    /// When a job with `ahead` units before it (below 0: those of all that wait) starts.
    pub(super) fn estimate(&self, ahead: i64, weight: u32, due_at: Timestamp) -> Option<Estimate> {
        if self.paused {
            return None;
        }
        let ahead = u64::try_from(ahead).unwrap_or(self.units);
        let Frame { now, mean, longest, heaviest, .. } = self.setting.frame;
        let response_max = self.setting.settings.response_max;
        let base = now.max(due_at).max(self.blocked_until);
        let heaviest = heaviest.max(weight);
        let position = Position { ahead, weight, heaviest, base, now };
        let all = self.setting.wide.iter().map(|wide| {
            let all = wide.units.saturating_sub(u64::from(weight));
            // Other groups are not looked at: each may have as many jobs as there are rounds.
            let jobs_in = |rounds: u64| wide.groups.saturating_mul(rounds);
            let before = served_before(&position, &self.limits, &wide.limits, all, jobs_in);
            let ahead = before.saturating_add(wide.others);
            let heaviest = wide.heaviest.max(weight);
            let position = Position { ahead, heaviest, ..position };
            Bound { gates: &wide.gates, limits: &wide.limits, position }
        });
        let of_group = Bound { gates: &self.gates, limits: &self.limits, position };
        let mean = mean.unwrap_or(response_max.min(QueueSettings::RESPONSE_UNSEEN));
        let bounds = std::iter::once(of_group).chain(all);
        Some(estimate(base, bounds, mean, response_max.max(longest)))
    }
}

/// What is in use of `limits`, by the bytes of a group's state; until when the group is blocked.
fn group(state: &[u8], limits: &[Limit]) -> Option<(Vec<Gate>, Timestamp)> {
    let mut read = ByteReader(state);
    let (_running, blocked, _deficit) = (read.u32()?, read.f64()?, read.u32()?);
    let (_waiting, _odd, _aside) = (read.u32()?, read.u32()?, read.u32()?);
    let _turn = read.f64()?;
    Some((gates(read, limits)?, moment(blocked as u64)))
}

/// What is in use of `limits`, as states stand one behind the other.
fn gates(mut read: ByteReader<'_>, limits: &[Limit]) -> Option<Vec<Gate>> {
    let mut gates: Vec<Gate> = limits.iter().map(Gate::vacant).collect();
    for (gate, limit) in gates.iter_mut().zip(limits) {
        if read.0.is_empty() {
            break;
        }
        let (kind, length) = (read.u8()?, usize::try_from(read.u32()?).ok()?);
        let mut body = ByteReader(read.take(length)?);
        // What is in use of a limit of another kind says nothing of this one.
        if length == 0 || kind != kind_of(limit) {
            continue;
        }
        *gate = match limit {
            Limit::Slots { .. } => Gate::Slots(slots(&mut body)?),
            Limit::Window { .. } => {
                let (early, late) = (moment(body.f64()? as u64), moment(body.f64()? as u64));
                let edge = (late > Timestamp::MIN).then_some(Edge { early, late });
                Gate::Window(slots(&mut body)?, edge)
            }
            Limit::Policy(algorithm) => Gate::Policy(state(body, algorithm)?),
            Limit::Answered(algorithm) => {
                let in_flight = in_flight(body.u32()?);
                let is_charged = !body.0.is_empty();
                let charged = is_charged.then(|| state(body, algorithm));
                let state = charged.unwrap_or_else(|| Some(State::vacant(algorithm)))?;
                Gate::Answered(state, in_flight)
            }
        }
    }
    Some(gates)
}

fn slots(body: &mut ByteReader<'_>) -> Option<Slots> {
    let (units, _held) = (body.u32()?, body.u32()?);
    Some(Slots::answered(anchors(body)?, in_flight(units)))
}

/// So many units in flight; the store does not say whose, and an estimate does not ask.
fn in_flight(units: u32) -> InFlight {
    let mut in_flight = InFlight::default();
    if units > 0 {
        in_flight.hold(u64::MAX, units);
    }
    in_flight
}

/// The rest of a log: when, and how many units.
fn anchors(body: &mut ByteReader<'_>) -> Option<Vec<(Timestamp, u32)>> {
    let mut anchors = Vec::with_capacity(body.0.len() / 12);
    while !body.0.is_empty() {
        anchors.push((moment(body.f64()? as u64), body.u32()?));
    }
    Some(anchors)
}

/// The state of an algorithm that the same units would have left behind.
fn state(mut body: ByteReader<'_>, algorithm: &Algorithm) -> Option<State> {
    let taken: Vec<(Timestamp, u32)> = match algorithm {
        Algorithm::Gcra(gcra) => {
            // All of the burst was taken so long before that its arrival time is the one stored,
            // or later by what is rounded up.
            let (us, part) = (body.f64()? as u64, body.f64()?);
            let quota = gcra.quota();
            let nanos = quota.period().as_nanos() * u128::from(quota.burst());
            let burst = Duration::from_nanos((nanos / u128::from(quota.units())) as u64);
            let at = moment(us + u64::from(part > 0.0)).before(burst);
            vec![(at, u32::try_from(quota.burst()).ok()?)]
        }
        Algorithm::LeakyBucket(_) => {
            let (level, dripped) = (body.f64()?, body.f64()?);
            vec![(moment(dripped as u64), level as u32)]
        }
        Algorithm::FixedWindow(window) => {
            let (start, used) = (body.f64()? as u64, body.u32()?);
            let at = match window.anchor() {
                Anchor::FirstRequest => moment(start),
                // The number of a window that begins with the epoch.
                _ => {
                    let period_ns = window.quota().period().as_nanos() as u64;
                    Timestamp::from_nanos(start.saturating_mul(period_ns))
                }
            };
            vec![(at, used)]
        }
        Algorithm::SlidingWindow(_) => {
            let _in_all = body.u32()?;
            anchors(&mut body)?
        }
        _ => Vec::new(),
    };
    let mut state = State::vacant(algorithm);
    for (at, units) in taken {
        if let Some(cost) = Cost::new(u64::from(units)) {
            let _ = state.count(algorithm, cost, 0, at);
        }
    }
    Some(state)
}
