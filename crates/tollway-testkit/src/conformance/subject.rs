//! What is tested: whatever decides, and how much of an answer it can express.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Decision, Mode, Policy, Retry, Settlement, Snapshot, Timestamp, Verdict};

use super::{Operation, Scenario, Verb};

/// Why a subject could not answer at all.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Whatever decides: the core, a store, a server behind a socket.
pub trait Subject {
    /// What it can express; everything unless it says otherwise.
    fn capabilities(&self) -> Capabilities {
        Capabilities::FULL
    }

    /// The earliest time at which a run may start. A subject with a real clock says now.
    fn base(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000)
    }

    /// Starts afresh: nothing taken, nothing reserved, these policies, the time `base`.
    ///
    /// # Errors
    ///
    /// If it cannot start.
    fn begin(&mut self, policies: &[Arc<Policy>], base: Timestamp) -> Result<(), Failure>;

    /// Does one operation at the time `at`, which may be before that of the previous one: then, as
    /// the scenario's tags say, it comes late, or the clock was set back.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure>;
}

/// What was answered, or must be: what is left out is not said, or not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether all was taken.
    pub allowed: Option<bool>,
    /// The name of the policy that denied.
    pub denied_by: Option<String>,
    /// The figures of each charge, in order.
    pub figures: Vec<Figures>,
    /// Units taken by a partial grant.
    pub granted: Option<u64>,
    /// What became of a settlement.
    pub settlement: Option<Settlement>,
    /// How long a reservation stays open.
    pub expires_after: Option<Duration>,
}

/// What was answered about one charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The most that one request can take.
    pub limit: Option<u64>,
    /// Units that could be taken now.
    pub remaining: Option<u64>,
    /// Whether this charge denied, and until when.
    pub retry: Option<Wait>,
    /// How long until the key is as good as new.
    pub reset_after: Option<Duration>,
    /// How long until more units remain.
    pub next_after: Option<Duration>,
}

/// How long a charge must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It need not: it was not the obstacle.
    No,
    /// Exactly this long.
    After(Duration),
    /// No wait helps.
    Never,
}

impl From<Option<Retry>> for Wait {
    fn from(retry: Option<Retry>) -> Self {
        match retry {
            None => Self::No,
            Some(Retry::After(wait)) => Self::After(wait),
            Some(Retry::Never) => Self::Never,
        }
    }
}

impl From<Snapshot> for Figures {
    fn from(snapshot: Snapshot) -> Self {
        Self {
            limit: Some(snapshot.limit()),
            remaining: Some(snapshot.remaining()),
            retry: None,
            reset_after: Some(snapshot.reset_after()),
            next_after: Some(snapshot.next_after()),
        }
    }
}

impl From<&Decision> for Figures {
    fn from(decision: &Decision) -> Self {
        Self { retry: Some(decision.retry().into()), ..decision.snapshot().into() }
    }
}

impl Outcome {
    /// The outcome that `verdict` on the charges of `operation` is.
    pub fn of_verdict(verdict: &Verdict, operation: &Operation) -> Self {
        let denier = verdict.denied_by().and_then(|index| operation.asks().get(index));
        Self {
            allowed: Some(verdict.is_allowed()),
            denied_by: denier.map(|ask| ask.policy().name().to_owned()),
            figures: verdict.decisions().iter().map(Figures::from).collect(),
            ..Self::default()
        }
    }

    /// The outcome of a settlement.
    pub fn of_settlement(settlement: Settlement) -> Self {
        Self { settlement: Some(settlement), ..Self::default() }
    }

    /// The outcome that shows a key and nothing else.
    pub fn of_snapshot(snapshot: Snapshot) -> Self {
        Self { figures: vec![snapshot.into()], ..Self::default() }
    }
}

/// A part of an answer that not every front can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the field of the same name")]
pub enum Figure {
    Limit,
    Remaining,
    Retry,
    ResetAfter,
    NextAfter,
    DeniedBy,
    Expires,
}

/// What a subject can express. What it cannot is skipped, and reported as skipped.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// What it can be asked.
    pub verbs: &'static [Verb],
    /// What its answers contain.
    pub figures: &'static [Figure],
    /// Which policies it can enforce.
    pub enforces: fn(&Policy) -> bool,
    /// The most charges in one request.
    pub charges_max: usize,
    /// Whether it can count without enforcing.
    pub counts: bool,
    /// Whether the charges of one request may cost different amounts.
    pub costs_differ: bool,
    /// The grid of its clock: steps between two of its ticks cannot be played.
    pub clock: Duration,
    /// The grid of its answers: durations are rounded up to it.
    pub resolution: Duration,
    /// Tags of scenarios that it declines.
    pub declines: &'static [&'static str],
}

impl Capabilities {
    /// Everything, to the nanosecond. By a clock that does not go back, which is what a process
    /// has: a reading of it may come late, and so `clock-steps-back` is not for them.
    pub const FULL: Self = Self {
        verbs: &Verb::ALL,
        figures: &[
            Figure::Limit,
            Figure::Remaining,
            Figure::Retry,
            Figure::ResetAfter,
            Figure::NextAfter,
            Figure::DeniedBy,
            Figure::Expires,
        ],
        enforces: |_| true,
        charges_max: usize::MAX,
        counts: true,
        costs_differ: true,
        clock: Duration::from_nanos(1),
        resolution: Duration::from_nanos(1),
        declines: &["clock-steps-back"],
    };

    /// Whether answers contain `figure`.
    pub fn says(&self, figure: Figure) -> bool {
        self.figures.contains(&figure)
    }

    /// Why `scenario` cannot be played, if it cannot.
    pub fn obstacle(&self, scenario: &Scenario) -> Option<String> {
        if let Some(tag) = scenario.tags.iter().find(|tag| self.declines.contains(&tag.as_str())) {
            return Some(format!("declines {tag}"));
        }
        if let Some(policy) = scenario.policies.iter().find(|policy| !(self.enforces)(policy)) {
            return Some(format!("cannot enforce {}", policy.name()));
        }
        let clock_ns = i128::try_from(self.clock.as_nanos()).unwrap_or(i128::MAX).max(1);
        if scenario.steps.iter().any(|step| step.offset_ns % clock_ns != 0) {
            return Some(format!("its clock ticks every {:?}", self.clock));
        }
        scenario.steps.iter().find_map(|step| self.cannot_ask(&step.operation))
    }

    fn cannot_ask(&self, operation: &Operation) -> Option<String> {
        if !self.verbs.contains(&operation.verb()) {
            return Some(format!("cannot {:?}", operation.verb()));
        }
        if operation.asks().len() > self.charges_max {
            return Some(format!("cannot ask for {} charges at once", operation.asks().len()));
        }
        let asks = operation.asks();
        if asks.iter().any(|ask| ask.mode() == Mode::Count) && !self.counts {
            return Some("cannot count without enforcing".to_owned());
        }
        let differ = || asks.windows(2).any(|two| two[0].charge().cost != two[1].charge().cost);
        (!self.costs_differ && differ())
            .then(|| "cannot ask for different amounts at once".to_owned())
    }
}
