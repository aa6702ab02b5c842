//! One limit and what is in use of it: when it opens, what passing it takes, when it is idle.

use std::time::Duration;

use tollway_core::{Algorithm, Cost, Retry, State, Timestamp};

use super::cooling::{Cooling, EDGE_KEPT, Edge};
use super::in_flight::InFlight;
use super::slots::Slots;
use crate::Limit;

/// What is in use of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Slots(Slots),
    /// What of the reservoir is in use, and where an upstream said that its windows begin.
    Window(Slots, Option<Edge>),
    /// Charged when a job starts.
    Policy(State),
    /// Charged when the answer comes; until then it is in flight.
    Answered(State, InFlight),
}

/// When a gate opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opens {
    At(Timestamp),
    /// Only an answer to a call in flight can tell.
    Unknown,
}

impl Gate {
    /// A gate that nothing has passed.
    pub(crate) fn vacant(limit: &Limit) -> Self {
        match limit {
            Limit::Slots { .. } => Self::Slots(Slots::default()),
            Limit::Window { .. } => Self::Window(Slots::default(), None),
            Limit::Policy(algorithm) => Self::Policy(State::vacant(algorithm)),
            Limit::Answered(algorithm) => {
                Self::Answered(State::vacant(algorithm), InFlight::default())
            }
        }
    }

    /// Whether this is what is in use of a limit of the same kind.
    pub(crate) fn fits(&self, limit: &Limit) -> bool {
        match (self, limit) {
            (Self::Slots(_), Limit::Slots { .. }) | (Self::Window(..), Limit::Window { .. }) => {
                true
            }
            (Self::Policy(state), Limit::Policy(algorithm))
            | (Self::Answered(state, _), Limit::Answered(algorithm)) => {
                std::mem::discriminant(state) == std::mem::discriminant(&State::vacant(algorithm))
            }
            _ => false,
        }
    }

    /// The slots that a limit is made of, how many there are, and when those in use are free.
    pub(crate) fn slots(&self, limit: &Limit, now: Timestamp) -> Option<(&Slots, u32, Cooling)> {
        match (self, limit) {
            (Self::Slots(slots), Limit::Slots { units, window }) => {
                Some((slots, *units, Cooling::After(*window)))
            }
            (Self::Window(slots, edge), Limit::Window { units, window }) => {
                let edge = edge.filter(|edge| edge.late.after(EDGE_KEPT) > now);
                let cooling = match edge.unwrap_or_default() {
                    edge if edge.is_there() => Cooling::AtEdge(*window, edge),
                    _ => Cooling::After(*window),
                };
                Some((slots, *units, cooling))
            }
            _ => None,
        }
    }

    fn slots_mut(&mut self, limit: &Limit, now: Timestamp) -> Option<(&mut Slots, u32, Cooling)> {
        let (_, units, cooling) = self.slots(limit, now)?;
        match self {
            Self::Slots(slots) | Self::Window(slots, _) => Some((slots, units, cooling)),
            _ => None,
        }
    }

    /// What is in flight, if jobs hold their units by name until they are answered.
    pub(crate) fn in_flight_mut(&mut self) -> Option<&mut InFlight> {
        match self {
            Self::Slots(slots) | Self::Window(slots, _) => Some(&mut slots.in_flight),
            Self::Answered(_, in_flight) => Some(in_flight),
            Self::Policy(_) => None,
        }
    }

    /// When `weight` units may pass.
    pub(crate) fn opens(&self, limit: &Limit, weight: u32, now: Timestamp) -> Opens {
        if let Some((slots, units, cooling)) = self.slots(limit, now) {
            return slots.ready_at(weight, units, cooling).map_or(Opens::Unknown, Opens::At);
        }
        let (state, algorithm, wanted) = match (self, limit) {
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                (state, algorithm, cost(algorithm, weight))
            }
            // What is in flight may be counted at any moment from now on.
            (Self::Answered(state, in_flight), Limit::Answered(algorithm)) => {
                let wanted = in_flight.units() + cost(algorithm, weight).get();
                match Cost::new(wanted).filter(|_| wanted <= algorithm.limit()) {
                    Some(wanted) => (state, algorithm, wanted),
                    None => return Opens::Unknown,
                }
            }
            _ => return Opens::At(Timestamp::MIN),
        };
        match state.retry(algorithm, wanted, now) {
            None => Opens::At(Timestamp::MIN),
            Some(Retry::After(wait)) => Opens::At(now.after(wait)),
            Some(Retry::Never) => Opens::Unknown,
        }
    }

    /// `weight` units of `job` pass; whether that must be stored. Who holds units by name follows
    /// from the leases that are stored.
    pub(crate) fn pass(&mut self, limit: &Limit, job: u64, weight: u32, now: Timestamp) -> bool {
        if let Some((slots, units, cooling)) = self.slots_mut(limit, now) {
            slots.forget(now, cooling);
            slots.in_flight.hold(job, weight.min(units));
            return false;
        }
        match (self, limit) {
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                state.count(algorithm, cost(algorithm, weight), u128::from(job), now);
                true
            }
            (Self::Answered(_, in_flight), Limit::Answered(algorithm)) => {
                in_flight.hold(job, units_of(algorithm, weight));
                false
            }
            _ => true,
        }
    }

    /// A job that runs holds units that it did not take: the limit is new, or was read from a file.
    /// It holds as many as were stored, if the limit was another when it started, and otherwise as
    /// many as it would take now.
    pub(crate) fn hold(&mut self, limit: &Limit, job: u64, weight: u32) {
        let units = match limit {
            Limit::Slots { units, .. } | Limit::Window { units, .. } => weight.min(*units),
            Limit::Policy(algorithm) | Limit::Answered(algorithm) => units_of(algorithm, weight),
        };
        if let Some(in_flight) = self.in_flight_mut()
            && !in_flight.is_held_by(job)
        {
            in_flight.hold(job, units);
        }
    }

    /// Frees the units of jobs that do not run any more.
    #[cfg(feature = "redb")]
    pub(crate) fn retain(&mut self, runs: impl Fn(u64) -> bool) {
        if let Some(in_flight) = self.in_flight_mut() {
            in_flight.retain(runs);
        }
    }

    /// The call of `job` was answered, or given up, at `at`, of which is heard `now`. Whether
    /// anything changed.
    pub(crate) fn answer(
        &mut self,
        limit: &Limit,
        job: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> bool {
        if let Some((slots, units, cooling)) = self.slots_mut(limit, now) {
            slots.forget(now, cooling);
            slots.answer(job, at, units, cooling);
            return true;
        }
        let (Self::Answered(state, in_flight), Limit::Answered(algorithm)) = (self, limit) else {
            return false;
        };
        if let Some(units) = Cost::new(u64::from(in_flight.release(job))) {
            state.count(algorithm, units, u128::from(job), now);
        }
        true
    }

    /// The call of `job` was refused, or never made: it is uncharged. It passed at `passed_at`;
    /// `None` if it may have passed another gate in place of this one, and only what it holds by
    /// name can be given back.
    pub(crate) fn refund(
        &mut self,
        limit: &Limit,
        job: u64,
        weight: u32,
        passed_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        if let Some(in_flight) = self.in_flight_mut() {
            in_flight.release(job);
        } else if let (Self::Policy(state), Limit::Policy(algorithm), Some(passed_at)) =
            (self, limit, passed_at)
        {
            let units = cost(algorithm, weight).get();
            state.refund(algorithm, units, Some(passed_at), now);
        }
    }

    /// A call that was made at `made` was refused: the end of the `wait` that it was told is an
    /// edge of the upstream's windows.
    pub(crate) fn told(&mut self, limit: &Limit, made: Timestamp, wait: Duration, now: Timestamp) {
        if let (Self::Window(_, edge), Limit::Window { window, .. }) = (self, limit) {
            *edge = Some(Edge::told(made, wait, now, *window).narrowed_by(*edge, *window));
        }
    }

    /// From when on this gate says nothing; `None` while something is in flight.
    pub(crate) fn vacant_at(&self, limit: &Limit) -> Option<Timestamp> {
        // By the edge that was told, though it may be too old to count: it is remembered until
        // then.
        if let Some((slots, _, cooling)) = self.slots(limit, Timestamp::MIN) {
            let Self::Window(_, Some(edge)) = self else { return slots.vacant_at(cooling) };
            return Some(slots.vacant_at(cooling)?.max(edge.late.after(EDGE_KEPT)));
        }
        match (self, limit) {
            (Self::Answered(_, in_flight), _) if in_flight.units() > 0 => None,
            (Self::Policy(state), Limit::Policy(algorithm))
            | (Self::Answered(state, _), Limit::Answered(algorithm)) => {
                Some(state.vacant_at(algorithm))
            }
            _ => Some(Timestamp::MIN),
        }
    }

    /// The clock was set back by `by` to `now`: nothing is locked for longer than before.
    pub(crate) fn set_back(&mut self, limit: &Limit, by: Duration, now: Timestamp) {
        // What was over before the clock was set back stays over.
        let before = now.after(by);
        if let (Self::Window(..), Some((slots, _, cooling))) =
            (&Self::vacant(limit), self.slots_mut(limit, before))
        {
            slots.forget(before, cooling);
        }
        match (self, limit) {
            (Self::Slots(slots), _) => slots.set_back(by),
            (Self::Window(slots, edge), _) => {
                slots.set_back(by);
                *edge = edge.map(|edge| edge.set_back(by));
            }
            (Self::Policy(state), Limit::Policy(algorithm))
            | (Self::Answered(state, _), Limit::Answered(algorithm)) => {
                state.forget_past(algorithm, now.after(by));
                state.rewind(algorithm, now);
            }
            _ => {}
        }
    }
}

/// A job that is heavier than the limit takes all of it: it must not wait for ever.
fn cost(algorithm: &Algorithm, weight: u32) -> Cost {
    Cost::new(u64::from(weight).min(algorithm.limit())).unwrap_or(Cost::ONE)
}

/// As many units as a job of `weight` takes.
fn units_of(algorithm: &Algorithm, weight: u32) -> u32 {
    u32::try_from(cost(algorithm, weight).get()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn every_kind_of_limit_opens_when_it_says_and_not_before() {
        for text in [
            "window 3/3s",
            "gcra 3/3s burst 2",
            "sliding 3/3s answered",
            "fixed 3/3s",
            "leaky 3 1/1s",
        ] {
            let limit: Limit = text.parse().unwrap();
            let (mut gate, mut now) = (Gate::vacant(&limit), at(100));
            for job in 0..20 {
                if let Opens::At(opens) = gate.opens(&limit, 1, now)
                    && opens > now
                {
                    let before = Timestamp::from_nanos(opens.as_nanos() - 1);
                    assert!(gate.opens(&limit, 1, before) >= Opens::At(opens), "{text}");
                    assert!(gate.opens(&limit, 1, opens) <= Opens::At(opens), "{text}");
                    now = opens;
                }
                gate.pass(&limit, job, 1, now);
                gate.answer(&limit, job, now, now);
            }
            assert!(gate.vacant_at(&limit).unwrap() > now, "{text}");
        }
    }

    #[test]
    fn a_job_heavier_than_its_limit_takes_all_of_it() {
        for text in ["slots 3/3s", "window 3/3s", "gcra 3/3s", "sliding 3/3s", "leaky 3 1/1s"] {
            let limit: Limit = text.parse().unwrap();
            let mut gate = Gate::vacant(&limit);
            assert!(gate.opens(&limit, 1_000, at(0)) <= Opens::At(at(0)), "{text}");
            gate.pass(&limit, 1, 1_000, at(0));
            assert!(gate.opens(&limit, 1, at(0)) > Opens::At(at(0)), "{text}");
        }
    }

    #[test]
    fn what_is_refunded_may_pass_again() {
        for text in [
            "slots 1/3s",
            "window 1/3s",
            "gcra 1/3s",
            "gcra 1/3s answered",
            "sliding 1/3s",
            "fixed 1/3s",
        ] {
            let limit: Limit = text.parse().unwrap();
            let mut gate = Gate::vacant(&limit);
            gate.pass(&limit, 1, 1, at(100));
            assert!(gate.opens(&limit, 1, at(200)) > Opens::At(at(200)), "{text}");
            gate.refund(&limit, 1, 1, Some(at(100)), at(200));
            assert!(gate.opens(&limit, 1, at(200)) <= Opens::At(at(200)), "{text}");
        }
    }
}
