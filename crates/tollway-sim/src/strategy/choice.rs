//! Which strategy clients follow: one of ours by its name, or one's own.

use std::fmt;
use std::sync::Arc;

use super::{Kind, Program, Setting, Strategy, Table};
use crate::Scenario;

/// What clients follow unless a scenario says otherwise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StrategyChoice {
    /// One of ours.
    Kind(Kind),
    /// A program, started once for each process of the scenario.
    Program(Arc<Program>),
    /// A table of pauses.
    Table(Arc<Table>),
}

/// A strategy of one's own did not do what it must; displays which, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyFailed(pub(super) String);

impl StrategyChoice {
    /// The strategy for one process.
    pub(crate) fn build(&self, setting: &Setting) -> Box<dyn Strategy> {
        match self {
            Self::Kind(kind) => kind.build(setting),
            Self::Program(program) => Program::start(program, setting),
            Self::Table(table) => Table::follow(table, setting),
        }
    }

    /// Whether it can be followed by so many processes.
    pub(crate) fn suits(&self, scenario: &Scenario) -> Result<(), StrategyFailed> {
        match self {
            Self::Program(program) => program.suits(scenario.each_process().count()),
            Self::Kind(_) | Self::Table(_) => Ok(()),
        }
    }

    /// Whether all has gone well so far.
    pub(crate) fn check(&self) -> Result<(), StrategyFailed> {
        match self {
            Self::Program(program) => program.check(),
            Self::Kind(_) | Self::Table(_) => Ok(()),
        }
    }
}

impl From<Kind> for StrategyChoice {
    fn from(kind: Kind) -> Self {
        Self::Kind(kind)
    }
}

/// The name in tables and charts.
impl fmt::Display for StrategyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Program(program) => f.pad(program.name()),
            Self::Table(table) => f.pad(table.name()),
        }
    }
}

tollway_core::plain_error!(StrategyFailed, self => &self.0);
