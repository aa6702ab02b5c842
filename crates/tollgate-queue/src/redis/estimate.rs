//! When a job will start, by what the store told of its group: the schedule's own formulas.
//!
//! Jobs of several units ahead are counted as if all of the group's were: an estimate is then later
//! than it might be, never too early. Limits of the whole queue and shared ones are not told with a
//! group, so with these there is no estimate.

use std::time::Duration;

use redis::Value;
use tollgate_core::Timestamp;

use super::pack::{Reader, moment, unpack_limits};
use super::read::{bytes, damaged, list, number, text, unsigned};
use crate::error::Error;
use crate::schedule::{Gate, Line, Slots, estimate_wait};
use crate::{Estimate, Limit, QueueSettings};

/// What holds for all groups: response times, the time, the heaviest job.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) version: u64,
    mean: Option<Duration>,
    longest: Duration,
    pub(super) now: Timestamp,
    heaviest: u32,
}

impl Frame {
    /// Reads `{ version, mean, longest, now }` and the heaviest job.
    pub(super) fn read(parts: &[Value], heaviest: &Value) -> Result<Self, Error> {
        let [version, mean, longest, now] = parts else { return Err(damaged()) };
        let micros = |value: &Value| unsigned(value).map(Duration::from_micros);
        let mean = if bytes(mean)?.is_empty() { None } else { Some(micros(mean)?) };
        Ok(Self {
            version: unsigned(version)?,
            mean,
            longest: micros(longest)?,
            now: moment(unsigned(now)?),
            heaviest: u32::try_from(number(heaviest)?).unwrap_or(1).max(1),
        })
    }
}

/// What was told of one group.
pub(super) struct Told {
    pub(super) name: String,
    frame: Frame,
    gates: Vec<Gate>,
    limits: Vec<Limit>,
    blocked_until: Timestamp,
    /// Units of all jobs that wait.
    units: u64,
    response_max: Duration,
    /// Whether nobody can tell: paused, or bound by limits of the whole queue.
    is_unknown: bool,
}

impl Told {
    /// Reads `{ name, state, units in all, paused, own limits }`.
    pub(super) fn read(
        value: Value,
        frame: Frame,
        settings: &QueueSettings,
    ) -> Result<Self, Error> {
        let parts = list(value)?;
        let [name, state, units, paused, own] = &parts[..] else { return Err(damaged()) };
        let own = bytes(own)?;
        let limits = match own {
            [] => settings.group_limits.clone(),
            own => unpack_limits(own).ok_or_else(damaged)?,
        };
        let (gates, blocked_until) = gates(bytes(state)?, &limits).ok_or_else(damaged)?;
        let bound = !settings.queue_limits.is_empty() || !settings.shared.is_empty();
        let is_policy = limits.iter().any(|limit| matches!(limit, Limit::Policy(_)));
        Ok(Self {
            name: text(name)?.to_owned(),
            frame,
            gates,
            limits,
            blocked_until,
            units: unsigned(units)?,
            response_max: settings.response_max,
            is_unknown: number(paused)? == 1 || bound || is_policy,
        })
    }

    /// When a job with `ahead` units before it (below 0: those of all that wait) starts.
    pub(super) fn estimate(&self, ahead: i64, weight: u32, due_at: Timestamp) -> Option<Estimate> {
        if self.is_unknown {
            return None;
        }
        let ahead = u64::try_from(ahead).unwrap_or(self.units);
        let at = |response: Duration| {
            let now = self.frame.now;
            let base = now.max(due_at).max(self.blocked_until);
            let heaviest = self.frame.heaviest.max(weight);
            let line = Line { ahead, weight, heaviest, base, now, response };
            let waits = self.gates.iter().zip(&self.limits);
            base.after(waits.map(|(gate, limit)| estimate_wait(gate, limit, &line)).sum())
        };
        let slowest = self.response_max.max(self.frame.longest);
        Some(Estimate {
            expected: at(self.frame.mean.unwrap_or(self.response_max)),
            latest: at(slowest),
        })
    }
}

/// What is in use of `limits`, by the bytes of a group's state.
fn gates(state: &[u8], limits: &[Limit]) -> Option<(Vec<Gate>, Timestamp)> {
    let mut gates: Vec<Gate> = limits.iter().map(Gate::vacant).collect();
    if state.is_empty() {
        return Some((gates, Timestamp::MIN));
    }
    let mut read = Reader(state);
    let (_running, blocked, _deficit) = (read.number()?, read.double()?, read.double()?);
    for (gate, limit) in gates.iter_mut().zip(limits) {
        if read.0.is_empty() {
            break;
        }
        let (kind, length) = (read.byte()?, usize::try_from(read.number()?).ok()?);
        let mut body = Reader(read.take(length)?);
        match (kind, limit) {
            (_, _) if length == 0 => {}
            (1, Limit::Slots { .. }) => *gate = Gate::Slots(slots(&mut body)?),
            (2, Limit::Window { .. }) => {
                *gate = Gate::Window { number: body.double()? as u64, used: body.number()? };
            }
            _ => {}
        }
    }
    Some((gates, moment(blocked as u64)))
}

fn slots(body: &mut Reader<'_>) -> Option<Slots> {
    let (in_flight, _held) = (body.number()?, body.number()?);
    let mut anchors = Vec::with_capacity(body.0.len() / 12);
    while !body.0.is_empty() {
        anchors.push((moment(body.double()? as u64), body.number()?));
    }
    let mut slots = Slots::answered(anchors);
    if in_flight > 0 {
        slots.hold(u64::MAX, in_flight);
    }
    Some(slots)
}
