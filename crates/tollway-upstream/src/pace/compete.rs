//! A floor beside clients that do not pace: slots are taken where none are given.
//!
//! Clients that only react to 429s keep the bucket empty, and an empty bucket tells a ticket pacer
//! that there are more clients than slots: it stretches its reserve and falls back further and
//! further. Once it has fallen back beyond what any number of pacing clients that it can serve
//! would ask for, it competes: it sends one request every [`ROUND`] units of refill and no more,
//! accepted or not, so at most an eighth of the refill is ever wasted.
//!
//! What it sends then must meet a unit. An empty bucket gains its units one unit of refill apart,
//! whoever takes them, so the moments at which one appears can be learned:
//!
//! ```text
//!  units appear   |.......|.......|.......|.......|     each is gone soon after
//!  accepted          ^                                   come a little earlier next time
//!  refused                      ^                        come later next time, towards the next
//! ```
//!
//! It goes back to tickets as soon as the level rises and with it the stretch falls. And it goes
//! back to them for a while every [`SPELL`] units, the longer the less it has won: so many pacing
//! clients that compete with nobody but each other find out that they are among themselves.

use super::parameters::PaceParameters;

/// Units of refill between two requests of a client that competes.
const ROUND: f64 = 8.0;
/// Stretch, in reserves, at which a client begins and ceases to compete. Those whom the reserve is
/// for never stretch it so far.
const BEGIN: f64 = 6.0;
const CEASE: f64 = 0.5;
/// Units of refill for which every answer must say that nothing is left: when many pacing clients
/// start at an empty bucket, each may stretch too far once, and then the level rises.
const PROOF: f64 = 4_096.0;
/// Units that count as nothing.
const LEVEL_MAX: f64 = 1.0;
/// By which parts of a unit of refill the next request comes earlier and later: balanced when four
/// in five are accepted.
const EARLIER: f64 = 1.0 / 32.0;
const LATER: f64 = 1.0 / 8.0;
/// Units of refill for which a client competes at a stretch.
const SPELL: f64 = 2_048.0;
/// Whoever wins this part of its requests retreats for as long as it has competed.
const WON_EVEN: f64 = 0.4;
/// The weight of the last request in the part that was won.
const WON_GAIN: f64 = 1.0 / 24.0;
/// The longest retreat, in spells.
const RETREAT_MAX: f64 = 8.0;

/// Whether a client competes, and with what success.
#[derive(Clone, Debug, Default)]
pub(super) struct Compete {
    /// The part of its requests that was accepted of late, while it competes.
    won: Option<f64>,
    /// By how much the next request comes later than a whole number of units after the last.
    shift_ns: f64,
    /// Since when every answer has said that it is needed.
    needed_ns: Option<u64>,
    /// When this spell, or the retreat after it, ends.
    until_ns: u64,
}

/// What an answer says to a client that competes, or might.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) is_accepted: bool,
    /// The stretch that the answer led to.
    pub(super) stretch: f64,
    pub(super) level: f64,
    pub(super) now_ns: u64,
    /// Between 0 and 1: strangers must not retreat and return together.
    pub(super) chance: f64,
}

impl Compete {
    pub(super) fn is_on(&self) -> bool {
        self.won.is_some()
    }

    /// Whether an answer that leads to this stretch can change anything: almost none can.
    #[inline]
    pub(super) fn may_change(&self, params: &PaceParameters, stretch: f64) -> bool {
        self.is_on() || self.needed_ns.is_some() || stretch >= BEGIN * params.reserve
    }

    /// The time between two requests while it competes.
    pub(super) fn interval_ns(&self, params: &PaceParameters) -> f64 {
        ROUND * params.unit_ns + self.shift_ns
    }

    /// Takes note of an answer.
    pub(super) fn on_answer(&mut self, params: &PaceParameters, told: Told) {
        let Some(won) = &mut self.won else {
            let is_needed = told.stretch >= BEGIN * params.reserve && told.level <= LEVEL_MAX;
            self.needed_ns = is_needed.then(|| self.needed_ns.unwrap_or(told.now_ns));
            let proof_ns = (PROOF * params.unit_ns) as u64;
            let proven = |since_ns: u64| told.now_ns.saturating_sub(since_ns) >= proof_ns;
            if self.needed_ns.is_some_and(proven) && told.now_ns >= self.until_ns {
                self.won = Some(WON_EVEN);
                self.shift_ns = 0.0;
                self.until_ns = later(told.now_ns, SPELL * params.unit_ns);
            }
            return;
        };
        *won += WON_GAIN * (f64::from(told.is_accepted) - *won);
        let part = if told.is_accepted { -EARLIER } else { LATER };
        self.shift_ns = part * params.unit_ns;
        if told.stretch < CEASE * params.reserve {
            *self = Self::default();
        } else if told.now_ns >= self.until_ns {
            let even = WON_EVEN / *won;
            let spells = (even * even).min(RETREAT_MAX) * (0.5 + told.chance);
            self.until_ns = later(told.now_ns, spells * SPELL * params.unit_ns);
            self.won = None;
        }
    }

    /// Moves remembered moments back with a clock that stepped back.
    pub(super) fn shift(&mut self, back_ns: u64) {
        self.until_ns = self.until_ns.saturating_sub(back_ns);
        self.needed_ns = self.needed_ns.map(|since_ns| since_ns.saturating_sub(back_ns));
    }
}

fn later(now_ns: u64, by_ns: f64) -> u64 {
    now_ns.saturating_add(by_ns as u64)
}
