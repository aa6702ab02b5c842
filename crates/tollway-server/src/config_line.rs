//! Where something stands in the configuration: a file and a line, kept with what was read there so
//! that an operator finds the rule that denied a key.

use std::fmt;
use std::sync::Arc;

/// A line of a file; unknown for what no file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigLine {
    file: Arc<str>,
    line: usize,
}

impl ConfigLine {
    /// The line, from 1, of this file.
    pub(crate) const fn new(file: Arc<str>, line: usize) -> Self {
        Self { file, line }
    }

    /// Whether it stands in a file.
    pub(crate) fn is_known(&self) -> bool {
        self.line > 0
    }
}

impl fmt::Display for ConfigLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_editors_read_it() {
        assert_eq!(ConfigLine::new("rules.toml".into(), 7).to_string(), "rules.toml:7");
        assert!(!ConfigLine::default().is_known());
    }
}
