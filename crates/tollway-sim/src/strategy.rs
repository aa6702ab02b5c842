//! How a client decides when to send: one trait, ten strategies, and those of one's own.
//!
//! A strategy belongs to one process and serves all its tasks. Two kinds of behaviour fit the
//! trait. A *sleeper* tells each task when to send as soon as it wants to ([`NextSend::At`]). A
//! *gate* lets tasks stand in line ([`NextSend::Queue`]) and is asked again after every answer when
//! the first in line may go.
//!
//! One's own are a program that is asked over its standard input and output ([`Program`]), and a
//! table of pauses ([`Table`]); [`StrategyChoice`] puts them beside the ten.
//!
//! The ticket and AIMD strategies are the production [`Pacer`](tollway_upstream::pace::Pacer).

mod adaptive;
mod backoff;
mod choice;
mod cubic;
mod header_proportional;
mod paced;
mod program;
mod proxied;
mod remembering;
mod table;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollway_core::{Cost, Quota, named_enum};
use tollway_upstream::pace::{Dice, Feedback};

pub use backoff::Backoff;
pub use choice::{StrategyChoice, StrategyFailed};
pub use header_proportional::HeaderProportional;
pub use program::Program;
pub use remembering::{Decrease, Remembering};
pub use table::{Table, TableError};

/// When a task that wants to send may do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextSend {
    /// At this moment of the process's clock, in nanoseconds; the past means at once.
    At(u64),
    /// Not now: it is to ask again at this moment.
    Later(u64),
    /// When it is first in line and [`Strategy::gate`] opens.
    Queue,
}

/// How one process decides when its tasks send. Times are nanoseconds of the process's own clock.
pub trait Strategy {
    /// The process has started.
    fn on_join(&mut self, _now_ns: u64) {}

    /// `task` wants to send; `retry` if its last request was refused.
    fn next_send(&mut self, task: usize, retry: bool, now_ns: u64) -> NextSend;

    /// When the first in line may go. Only asked if a turn was [`NextSend::Queue`].
    fn gate(&mut self, _cost: Cost, now_ns: u64) -> u64 {
        now_ns
    }

    /// `task` sends now.
    fn on_send(&mut self, _task: usize, _cost: Cost, _now_ns: u64) {}

    /// The answer to `task`'s request.
    fn on_response(&mut self, task: usize, answer: &Feedback, now_ns: u64);

    /// No answer will come to `task`'s request.
    fn on_lost(&mut self, _task: usize, _now_ns: u64) {}

    /// The pause between two requests as of now, for charts.
    fn pause_ns(&self) -> u64;
}

/// What a strategy is built from.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The quota that the client believes in.
    pub quota: Quota,
    /// Tasks of the process.
    pub tasks: usize,
    /// The sleep to begin with.
    pub start_sleep_ns: u64,
    /// Units that each request costs.
    pub cost: Cost,
    /// The share asked for relative to the others.
    pub weight: u32,
    /// Units to leave unspent, if not the usual number.
    pub reserve: Option<u64>,
    /// The process's own generator.
    pub dice: Dice,
}

impl Setting {
    /// Seconds in which one unit comes back: the minimal sleep of rate_throttle_client.
    fn unit_s(&self) -> f64 {
        self.quota.period().as_secs_f64() / self.quota.units() as f64
    }
}

named_enum! {
    /// The strategies by name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum Kind {
        /// Ticket pacing, the default.
        Ticket = "ticket",
        /// Ticket pacing behind the queue and the budgets of `tollway proxy --pace`.
        Proxied = "proxied",
        /// Additive increase, multiplicative decrease on 429s: the pacer's last resort.
        Aimd = "aimd",
        /// CUBIC on the measured rate, as the AWS SDKs' adaptive retry mode.
        Cubic = "cubic",
        /// Rejecting locally in proportion to rejections, as in Google's SRE book.
        Sre = "sre",
        /// Sleeps in proportion to what the last answer says is left.
        HeaderProportional = "header-proportional",
        /// The exponential backoff.
        Backoff = "backoff",
        /// The exponential increase, gradual decrease.
        Gradual = "gradual",
        /// The exponential increase, proportional decrease.
        Proportional = "proportional",
        /// The exponential increase, decrease in proportion to what remains.
        ProportionalRemaining = "proportional-remaining",
    }
}

impl Kind {
    /// The strategy for one process.
    pub fn build(self, setting: &Setting) -> Box<dyn Strategy> {
        match self {
            Self::Ticket => Box::new(paced::Paced::ticket(setting)),
            Self::Proxied => Box::new(proxied::Proxied::new(setting)),
            Self::Aimd => Box::new(paced::Paced::aimd(setting)),
            Self::Cubic => Box::new(cubic::Cubic::new(setting)),
            Self::Sre => Box::new(adaptive::Adaptive::new(setting)),
            Self::HeaderProportional => Box::new(HeaderProportional::new(setting)),
            Self::Backoff => Box::new(Backoff::new(setting)),
            Self::Gradual => Box::new(Remembering::new(setting, Decrease::Step)),
            Self::Proportional => Box::new(Remembering::new(setting, Decrease::Share)),
            Self::ProportionalRemaining => {
                Box::new(Remembering::new(setting, Decrease::ShareOfRemaining))
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no strategy has; displays the ones that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy(String);

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Kind::ALL.iter().map(|kind| kind.name());
        f.write_str(&tollway_core::spelling::unknown("strategy", &self.0, known))
    }
}

impl std::error::Error for UnknownStrategy {}

impl FromStr for Kind {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownStrategy(text.to_owned()))
    }
}

/// Nanoseconds in a second.
const NANOS_PER_S: f64 = 1e9;

/// Seconds as whole nanoseconds.
fn to_ns(seconds: f64) -> u64 {
    (seconds * NANOS_PER_S) as u64
}

/// The jitter of rate_throttle_client and of the header-proportional client: up to a tenth more, so
/// that neighbours drift apart.
fn jittered(sleep_s: f64, dice: &mut Dice) -> f64 {
    sleep_s + sleep_s * dice.unit() * 0.1
}
