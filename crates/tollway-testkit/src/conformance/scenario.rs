//! A scenario as it is played: policies, and operations at given times with what must be answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Charge, Cost, Key, Mode, Policy, Timestamp, named_enum};

use super::Outcome;

/// Policies and steps.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The rule that it checks.
    pub name: String,
    /// Words by which a subject may decline it.
    pub tags: Vec<String>,
    /// Every policy that its steps name.
    pub policies: Vec<Arc<Policy>>,
    /// The start of the run is a multiple of this.
    pub align: Duration,
    /// Whether times count from the Unix epoch.
    pub absolute: bool,
    /// What is asked, in order.
    pub steps: Vec<Step>,
}

/// One operation, when, and what must be answered.
#[derive(Clone, Debug)]
pub struct Step {
    /// Nanoseconds after the start of the run.
    pub offset_ns: i128,
    /// What is asked.
    pub operation: Operation,
    /// What must be answered, as far as it says anything.
    pub expect: Outcome,
}

impl Step {
    /// When the step happens in a run that starts at `base`.
    pub fn at(&self, base: Timestamp) -> Timestamp {
        let nanos = i128::from(base.as_nanos()) + self.offset_ns;
        Timestamp::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (millis, nanos) = (self.offset_ns / 1_000_000, self.offset_ns % 1_000_000);
        write!(f, "at {millis} ms")?;
        if nanos != 0 {
            write!(f, " {nanos} ns")?;
        }
        write!(f, ": {}", self.operation)
    }
}

/// A charge that owns its parts, so that it can be kept, sent and shown.
#[derive(Clone, Debug)]
pub struct Ask {
    policy: Arc<Policy>,
    key: Vec<u8>,
    cost: Cost,
    mode: Mode,
}

impl Ask {
    /// `cost` units of `policy` for `key`; `None` if the bytes are no key.
    pub fn new(
        policy: Arc<Policy>,
        key: impl Into<Vec<u8>>,
        cost: Cost,
        mode: Mode,
    ) -> Option<Self> {
        let key = key.into();
        Key::new(&key).is_ok().then_some(Self { policy, key, cost, mode })
    }

    /// The charge.
    ///
    /// # Panics
    ///
    /// Never: the key was checked when the ask was made.
    pub fn charge(&self) -> Charge<'_> {
        let key = Key::new(&self.key).expect("an ask is made of a valid key");
        Charge { policy: &self.policy, key, cost: self.cost, mode: self.mode }
    }

    /// The policy.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The units asked for.
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// Whether the policy may say no.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The same ask under another policy.
    pub fn under(&self, policy: Arc<Policy>) -> Self {
        Self { policy, ..self.clone() }
    }

    /// The same ask at another cost.
    pub fn at_cost(&self, cost: Cost) -> Self {
        Self { cost, ..self.clone() }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (policy, key) = (self.policy.name(), self.key.escape_ascii());
        write!(f, "{} of {policy} for {key}", self.cost.get())?;
        if self.mode == Mode::Count { f.write_str(" counted") } else { Ok(()) }
    }
}

/// What is asked of a subject.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Take every charge, or none.
    Check(Vec<Ask>),
    /// Say what a check would answer; the figures show the keys untouched.
    Peek(Vec<Ask>),
    /// Take as many units as there are, up to the cost.
    Take(Ask),
    /// Give units back.
    Refund(Ask),
    /// Forget the key.
    Reset(Ask),
    /// Take every charge, or none, to be settled under this name.
    Reserve {
        /// The name, chosen by the scenario.
        label: String,
        /// The charges.
        asks: Vec<Ask>,
    },
    /// Settle a reservation at its real costs.
    Commit {
        /// The name that it was given.
        label: String,
        /// The real costs, one per charge in order; those left out are as reserved.
        costs: Vec<u64>,
    },
    /// Settle a reservation by giving everything back.
    Cancel {
        /// The name that it was given.
        label: String,
    },
}

named_enum! {
    /// What can be asked, without the details.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(missing_docs, reason = "each is the operation of the same name")]
    pub enum Verb {
        Check = "check",
        Peek = "peek",
        Take = "take",
        Refund = "refund",
        Reset = "reset",
        Reserve = "reserve",
        Commit = "commit",
        Cancel = "cancel",
    }
}

impl Operation {
    /// What is asked, without the details.
    pub const fn verb(&self) -> Verb {
        match self {
            Self::Check(_) => Verb::Check,
            Self::Peek(_) => Verb::Peek,
            Self::Take(_) => Verb::Take,
            Self::Refund(_) => Verb::Refund,
            Self::Reset(_) => Verb::Reset,
            Self::Reserve { .. } => Verb::Reserve,
            Self::Commit { .. } => Verb::Commit,
            Self::Cancel { .. } => Verb::Cancel,
        }
    }

    /// The charges that it names; none for a settlement.
    pub fn asks(&self) -> &[Ask] {
        match self {
            Self::Check(asks) | Self::Peek(asks) | Self::Reserve { asks, .. } => asks,
            Self::Take(ask) | Self::Refund(ask) | Self::Reset(ask) => std::slice::from_ref(ask),
            Self::Commit { .. } | Self::Cancel { .. } => &[],
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb().name())?;
        match self {
            Self::Reserve { label, .. } | Self::Cancel { label } => write!(f, " {label}")?,
            Self::Commit { label, costs } => write!(f, " {label} at {costs:?}")?,
            _ => {}
        }
        for (index, ask) in self.asks().iter().enumerate() {
            write!(f, "{}{ask}", if index == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}
