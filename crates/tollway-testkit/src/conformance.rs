//! Conformance scenarios: one data file that every store and every front must answer alike.
//!
//! The file, `conformance/scenarios.json`, is a list of scenarios: policies, then steps at given
//! times, each with what must be answered. A [`Subject`] is whatever is asked: the core, a store, a
//! server behind a socket. It states what it can express ([`Capabilities`]); scenarios beyond that
//! are skipped and listed, figures beyond that are not compared, and durations are compared rounded
//! up to its resolution. [`run`] plays the scenarios and lists every mismatch.
//!
//! ```
//! use tollway_testkit::conformance::{OnCore, run, scenarios};
//!
//! let report = run(&mut OnCore::new(), &scenarios()?);
//! assert!(report.passed(), "{report}");
//! # Ok::<(), tollway_testkit::conformance::FormatError>(())
//! ```
//!
//! # The file
//!
//! ```json
//! { "name": "what must hold", "tags": ["gcra"],
//!   "policies": { "api": { "gcra": "1/s burst 5" } },
//!   "steps": [
//!     { "at_ms": 0, "check": { "cost": 6 }, "expect": { "denied_by": "api", "retry": "never" } },
//!     { "at_ms": 0, "check": {}, "expect": { "allowed": true, "remaining": 4, "reset": "1s" } }
//!   ] }
//! ```
//!
//! | field | means |
//! |---|---|
//! | `tags` | words by which a subject may decline the scenario |
//! | `align` | the start of the run is a multiple of this duration (default `1s`), for algorithms tied to the epoch |
//! | `absolute` | times count from the Unix epoch, not from the start of the run |
//! | `policies` | by name: `gcra`, `leaky_bucket`, `legacy`, `sliding_window`, `fixed_window`, `concurrency` or `calendar_window`, and `reservations` |
//! | `at_ms`, `at_ns` | when, after the start of the run: the sum of both; `at_ns` may be negative |
//! | `check`, `peek`, `take`, `refund`, `reset`, `reserve` | a charge or a list of them: `policy` (may be left out if there is one), `key` (default `k`), `cost` (default 1), `counted` |
//! | `commit`, `cancel` | the name that the reservation was given with `as`; `costs` are the real ones |
//! | `expect` | `allowed`, `denied_by`, `granted`, `settlement`, `expires`, and per charge `limit`, `remaining`, `retry` (`never`, `none` or a duration), `reset`, `next`: directly for one charge, in a list `charges` for several |
//!
//! A legacy limit makes two policies of `max` and `minInterval` together: the second is named as
//! the first, with ` spacing` added.
//!
//! Some tags are there to be declined: `clock-steps-back` (the clock is set back; for stores that
//! decide by a server's clock), `late-reading` (who asks read the clock some time ago; for those
//! who decide by the caller's), `end-of-time` (the last moments that a timestamp can tell),
//! `absolute-time`, `several-denials` (several charges deny with different waits), `repeated-key`
//! (one request names a key twice). The others say what a scenario is about.
//!
//! What is not expected is not compared, except that an allowed request has no charge that denies.
//!
//! Deliberately absent: anything that waits. Time is an argument; a subject with a clock of its own
//! sets it.

mod compare;
mod file;
mod on_core;
mod on_store;
mod scenario;
mod subject;

use std::fmt;
use std::time::Duration;

use tollway_core::Timestamp;

pub use compare::Mismatch;
pub use file::{FormatError, load};
pub use on_core::OnCore;
pub use on_store::OnStore;
pub use scenario::{Ask, Operation, Scenario, Step, Verb};
pub use subject::{Capabilities, Failure, Figure, Figures, Outcome, Subject, Wait};

/// The scenarios of the data file.
///
/// # Errors
///
/// If the file is malformed; a test of this crate makes sure that it is not.
pub fn scenarios() -> Result<Vec<Scenario>, FormatError> {
    load(include_str!("../conformance/scenarios.json"))
}

/// Plays `scenarios` on `subject`, each on a fresh start.
pub fn run(subject: &mut dyn Subject, scenarios: &[Scenario]) -> Report {
    let mut report = Report::default();
    let capabilities = subject.capabilities();
    for scenario in scenarios {
        match capabilities.obstacle(scenario) {
            Some(reason) => report.skipped.push((scenario.name.clone(), reason)),
            None => {
                play(subject, &capabilities, scenario, &mut report.mismatches);
                report.ran.push(scenario.name.clone());
            }
        }
    }
    report
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The scenarios that were played.
    pub ran: Vec<String>,
    /// Those that the subject cannot express, and why.
    pub skipped: Vec<(String, String)>,
    /// Every answer that was not as expected.
    pub mismatches: Vec<Mismatch>,
}

impl Report {
    /// Whether something was played and everything was as expected.
    pub fn passed(&self) -> bool {
        !self.ran.is_empty() && self.mismatches.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ran, skipped) = (self.ran.len(), self.skipped.len());
        writeln!(f, "{ran} scenarios played, {skipped} skipped")?;
        for (name, reason) in &self.skipped {
            writeln!(f, "skipped: {name}: {reason}")?;
        }
        self.mismatches.iter().try_for_each(|mismatch| writeln!(f, "{mismatch}"))
    }
}

fn play(
    subject: &mut dyn Subject,
    capabilities: &Capabilities,
    scenario: &Scenario,
    mismatches: &mut Vec<Mismatch>,
) {
    let base = start(subject.base(), scenario);
    let mismatch = |step: usize, faults: Vec<String>| Mismatch {
        scenario: scenario.name.clone(),
        step,
        asked: scenario.steps.get(step).map(|step| step.to_string()).unwrap_or_default(),
        faults,
    };
    if let Err(failure) = subject.begin(&scenario.policies, base) {
        return mismatches.push(mismatch(0, vec![format!("did not start: {failure}")]));
    }
    for (index, step) in scenario.steps.iter().enumerate() {
        let faults = match subject.apply(step.at(base), &step.operation) {
            Ok(outcome) => compare::faults(&step.expect, &outcome, capabilities),
            Err(failure) => vec![format!("failed: {failure}")],
        };
        if !faults.is_empty() {
            mismatches.push(mismatch(index, faults));
        }
    }
}

/// The first aligned moment from `base` on; the epoch if the scenario's times are absolute.
fn start(base: Timestamp, scenario: &Scenario) -> Timestamp {
    if scenario.absolute {
        return Timestamp::MIN;
    }
    let past = base.as_nanos() % align_ns(scenario.align);
    let wait_ns = if past == 0 { 0 } else { align_ns(scenario.align) - past };
    base.after(Duration::from_nanos(wait_ns))
}

fn align_ns(align: Duration) -> u64 {
    u64::try_from(align.as_nanos()).unwrap_or(u64::MAX).max(1)
}
