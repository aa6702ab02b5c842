//! What is wrong with a configuration: file, line, field, and what would be right.

use std::cell::RefCell;
use std::fmt;

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, or where else it came from.
    pub source: String,
    /// The line, from 1; 0 if it is no matter of a line.
    pub line: usize,
    /// The field, as a path: `policies[0].quota`; empty for the file as a whole.
    pub field: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        f.write_str(": ")?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Whether it is said outside of files: by a flag or the environment.
    pub fn is_outside_of_files(&self) -> bool {
        self.source == super::OUTSIDE || self.source == super::ENVIRONMENT
    }
}

/// Everything that is wrong with a configuration, in the order in which it stands there; never
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    told: Vec<ConfigError>,
    more: usize,
}

impl Mistakes {
    /// Beyond so many, mistakes are only counted: whoever has more has given the wrong file.
    pub const TOLD_MAX: usize = 50;

    /// The mistakes, at most [`Self::TOLD_MAX`].
    pub fn told(&self) -> &[ConfigError] {
        &self.told
    }

    /// How many there are, those beyond the told ones included.
    pub fn count(&self) -> usize {
        self.told.len() + self.more
    }

    /// The first of them, and how many others there are: one line, for a log.
    pub fn brief(&self) -> String {
        let first = self.told.first().map(ToString::to_string).unwrap_or_default();
        match self.count() - 1 {
            0 => first,
            others => format!("{first} (and {others} more; tollway validate tells all)"),
        }
    }
}

impl From<ConfigError> for Mistakes {
    fn from(mistake: ConfigError) -> Self {
        Self { told: vec![mistake], more: 0 }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.told.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{mistake}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Mistakes while they are found: reading goes on after each, so that one run tells all.
#[derive(Debug, Default)]
pub(super) struct Finding(RefCell<(Vec<ConfigError>, usize)>);

impl Finding {
    /// Notes a mistake. What two readers of one table find is told once.
    pub(super) fn note(&self, mistake: ConfigError) {
        let (told, more) = &mut *self.0.borrow_mut();
        if told.contains(&mistake) {
            return;
        }
        if told.len() < Mistakes::TOLD_MAX { told.push(mistake) } else { *more += 1 }
    }

    /// The value, or a mistake noted.
    pub(super) fn tell<T>(&self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|mistake| self.note(mistake)).ok()
    }

    /// `value` if nothing was wrong.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, Mistakes> {
        match (self.0.into_inner(), value) {
            ((told, _), Some(value)) if told.is_empty() => Ok(value),
            ((told, more), _) => Err(Mistakes { told, more }),
        }
    }
}
